//! MXFP4: 32 weights in 17 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | `e`, E8M0: the scale is 2 to the power `e - 128` |
//! | 1..17 | `qs`: byte `j` holds the code of weight `j` in its low nibble and of weight `j + 16` in its high one |
//!
//! Weight: the scale times `LEVELS[code]`. The levels are those of E2M1 doubled, and the scale is halved for it.

/// Twice the values of the codes, also of NVFP4.
pub const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The scale of a block.
pub fn scale(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = scale(block[0]);
    for (j, &q) in block[1..17].iter().enumerate() {
        out[j] = d * f32::from(LEVELS[usize::from(q & 15)]);
        out[j + 16] = d * f32::from(LEVELS[usize::from(q >> 4)]);
    }
}

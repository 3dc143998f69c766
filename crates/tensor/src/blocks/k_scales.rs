//! The packed sub-block scales and minima of Q4_K and Q5_K.

/// Unpacks the 6-bit scales and minima of the 8 sub-blocks from their 12 bytes: `(scales, mins)`.
///
/// Sub-block `i < 4`: byte `i` holds its scale and byte `i + 4` its minimum, in the low six bits. For
/// sub-block `i + 4`, byte `i + 8` holds the low four bits of the scale (low nibble) and of the minimum (high
/// nibble); their upper two bits are the top two bits of bytes `i` and `i + 4`.
pub fn unpack_scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (scale, min, rest) = (packed[i], packed[i + 4], packed[i + 8]);
        scales[i] = scale & 63;
        mins[i] = min & 63;
        scales[i + 4] = rest & 15 | scale >> 6 << 4;
        mins[i + 4] = rest >> 4 | min >> 6 << 4;
    }
    (scales, mins)
}

/// The step and the offset of each sub-block: `(d * scale, dmin * min)`, from the first 16 bytes of a block.
pub(super) fn steps_offsets(block: &[u8]) -> [(f32, f32); 8] {
    let (d, dmin) = (super::f16_at(block, 0), super::f16_at(block, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[4..16]);
    let (scales, mins) = unpack_scales_mins(&packed);
    std::array::from_fn(|i| (d * f32::from(scales[i]), dmin * f32::from(mins[i])))
}

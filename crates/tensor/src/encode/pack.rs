//! Where codes and scales go.

/// Stores a binary16 at byte `at` and gives its value.
pub(super) fn half(out: &mut [u8], at: usize, value: f32) -> f32 {
    let value = half::f16::from_f32(value);
    out[at..at + 2].copy_from_slice(&value.to_le_bytes());
    value.to_f32()
}

/// 32 codes of 4 bits into 16 bytes: code `j` below, code `j + 16` above.
pub(super) fn nibbles(out: &mut [u8], codes: &[u8]) {
    let (low, high) = codes.split_at(16);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low & 15 | (high & 15) << 4;
    }
}

/// Bit 4 of 32 codes into four bytes.
pub(super) fn fifth_bits(out: &mut [u8], codes: &[u8]) {
    out.fill(0);
    codes.iter().enumerate().for_each(|(i, code)| out[i / 8] |= (code >> 4 & 1) << (i % 8));
}

/// The low two bits of 256 codes into 64 bytes: in each half, run `r` of 32 codes in bits `2 r` and `2 r + 1`.
pub(super) fn two_bits(out: &mut [u8], codes: &[u8; 256]) {
    out.fill(0);
    for (i, code) in codes.iter().enumerate() {
        out[i / 128 * 32 + i % 32] |= (code & 3) << (i / 32 % 4 * 2);
    }
}

/// Eight scales and minima of 6 bits into 12 bytes, the inverse of [`crate::blocks::unpack_scales_mins`].
pub(super) fn scales_mins(out: &mut [u8], scales: &[u8; 8], mins: &[u8; 8]) {
    for i in 0..4 {
        out[i] = scales[i] | scales[i + 4] >> 4 << 6;
        out[i + 4] = mins[i] | mins[i + 4] >> 4 << 6;
        out[i + 8] = scales[i + 4] & 15 | (mins[i + 4] & 15) << 4;
    }
}

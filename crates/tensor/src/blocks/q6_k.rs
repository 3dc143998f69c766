//! Q6_K: 256 weights in 210 bytes, as 16 sub-blocks of 16.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | `ql`: low four code bits |
//! | 128..192 | `qh`: high two code bits |
//! | 192..208 | scale of each sub-block, i8 |
//! | 208..210 | `d`, f16 |
//!
//! The codes lie in two halves of 128 weights, each as 4 runs of 32. Within a half (64 bytes of `ql`, 32 of
//! `qh`), weight `j` of run `r` has its low bits in byte `j + 32 (r mod 2)` of `ql`, in the low nibble for runs 0
//! and 1 and the high one for runs 2 and 3, and its high bits in bits `2 r` and `2 r + 1` of byte `j` of `qh`.
//!
//! Weight: `(d * scale) * (code - 32)`, each product rounded.

use super::f16_at;

/// Decodes one block.
pub fn decode_block(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    for (i, out) in out.chunks_exact_mut(16).enumerate() {
        let step = d * f32::from(block[192 + i] as i8);
        let (half, run, start) = (i / 8, i / 2 % 4, i % 2 * 16);
        let low = &block[half * 64 + run % 2 * 32 + start..][..16];
        let high = &block[128 + half * 32 + start..][..16];
        for ((out, &l), &h) in out.iter_mut().zip(low).zip(high) {
            let code = l >> (run / 2 * 4) & 15 | (h >> (2 * run) & 3) << 4;
            *out = step * (i32::from(code) - 32) as f32;
        }
    }
}

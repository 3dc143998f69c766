//! The codes of 32 weights of each row of a lane group, out of their packed fields.

use crate::isa::Isa;

/// How codes are stored; the fields are those of [`crate::pack::layout`].
pub(super) trait Codes {
    /// Bytes per row for 32 weights.
    const BYTES: usize;

    /// The codes of the weights `16 H + 4 J` to `16 H + 4 J + 3` of each row, as unsigned bytes.
    ///
    /// # Safety
    /// `p` must point at the codes of 32 weights: [`Codes::BYTES`] times [`Isa::LANES`] readable bytes.
    unsafe fn dword<S: Isa, const H: usize, const J: usize>(s: S, p: *const u8) -> S::I;
}

/// 4-bit codes.
pub(super) struct Four;
/// 5-bit codes: *fifth bits*, then *codes*.
pub(super) struct Five;
/// 6-bit codes: *upper bits*, then *codes*.
pub(super) struct Six;

impl Codes for Four {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn dword<S: Isa, const H: usize, const J: usize>(s: S, p: *const u8) -> S::I {
        // SAFETY: dword `J < 4` of the 4 at `p`.
        let both = unsafe { s.load_i(p.add(J * 4 * S::LANES)) };
        let shifted = if H == 0 { both } else { s.shr::<4>(both) };
        s.and_i(shifted, s.splat_i(0x0f0f_0f0f))
    }
}

impl Codes for Five {
    const BYTES: usize = 20;

    #[inline(always)]
    unsafe fn dword<S: Isa, const H: usize, const J: usize>(s: S, p: *const u8) -> S::I {
        // SAFETY: one dword of fifth bits a row, then the codes.
        let (bits, low) = unsafe { (s.load_i(p), <Four as Codes>::dword::<S, H, J>(s, p.add(4 * S::LANES))) };
        let fifth = match 4 * H + J {
            0 => s.shl::<4>(bits),
            1 => s.shl::<3>(bits),
            2 => s.shl::<2>(bits),
            3 => s.shl::<1>(bits),
            4 => bits,
            5 => s.shr::<1>(bits),
            6 => s.shr::<2>(bits),
            _ => s.shr::<3>(bits),
        };
        s.or_i(low, s.and_i(fifth, s.splat_i(0x1010_1010)))
    }
}

impl Codes for Six {
    const BYTES: usize = 24;

    #[inline(always)]
    unsafe fn dword<S: Isa, const H: usize, const J: usize>(s: S, p: *const u8) -> S::I {
        // SAFETY: two dwords of upper bits a row, then the codes.
        let (bits, low) = unsafe {
            (s.load_i(p.add(H * 4 * S::LANES)), <Four as Codes>::dword::<S, H, J>(s, p.add(8 * S::LANES)))
        };
        let upper = match J {
            0 => s.shl::<4>(bits),
            1 => s.shl::<2>(bits),
            2 => bits,
            _ => s.shr::<2>(bits),
        };
        s.or_i(low, s.and_i(upper, s.splat_i(0x3030_3030)))
    }
}

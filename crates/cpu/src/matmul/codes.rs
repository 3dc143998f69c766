//! The codes of 32 weights of each row of a lane group, out of their packed fields.

use crate::isa::Isa;
use crate::pack::books::{FLOATS_SHIFT, SHIFTED_FLOATS};

/// How codes are stored; the fields are those of [`crate::pack::layout`].
pub(super) trait Codes {
    /// Bytes per row for 32 weights.
    const BYTES: usize;

    /// The codes of the weights `4 J` to `4 J + 3` and `16 + 4 J` to `16 + 4 J + 3` of each row, as unsigned bytes.
    ///
    /// # Safety
    /// `p` must point at the codes of 32 weights: [`Codes::BYTES`] times [`Isa::LANES`] readable bytes.
    unsafe fn pair<S: Isa, const J: usize>(s: S, p: *const u8) -> [S::I; 2];
}

/// 1-bit codes, doubled: one dword of bits.
pub(super) struct Signs;
/// 2-bit codes: two dwords of them.
pub(super) struct Two;
/// 3-bit codes: *third bits*, then those of [`Two`].
pub(super) struct Three;
/// 4-bit codes.
pub(super) struct Four;
/// 5-bit codes: *fifth bits*, then *codes*.
pub(super) struct Five;
/// 6-bit codes: *upper bits*, then *codes*.
pub(super) struct Six;

impl Codes for Signs {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, p: *const u8) -> [S::I; 2] {
        // SAFETY: one dword of bits a row.
        let bits = unsafe { s.load_i(p) };
        let both = match J {
            0 => [s.shl::<1>(bits), s.shr::<3>(bits)],
            1 => [bits, s.shr::<4>(bits)],
            2 => [s.shr::<1>(bits), s.shr::<5>(bits)],
            _ => [s.shr::<2>(bits), s.shr::<6>(bits)],
        };
        let place = s.splat_i(0x0202_0202);
        [s.and_i(both[0], place), s.and_i(both[1], place)]
    }
}

impl Codes for Two {
    const BYTES: usize = 8;

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, p: *const u8) -> [S::I; 2] {
        // SAFETY: two dwords a row.
        let bits = unsafe { [s.load_i(p), s.load_i(p.add(4 * S::LANES))] };
        let both = match J {
            0 => bits,
            1 => [s.shr::<2>(bits[0]), s.shr::<2>(bits[1])],
            2 => [s.shr::<4>(bits[0]), s.shr::<4>(bits[1])],
            _ => [s.shr::<6>(bits[0]), s.shr::<6>(bits[1])],
        };
        let place = s.splat_i(0x0303_0303);
        [s.and_i(both[0], place), s.and_i(both[1], place)]
    }
}

impl Codes for Three {
    const BYTES: usize = 12;

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, p: *const u8) -> [S::I; 2] {
        // SAFETY: one dword of third bits a row, then the others.
        let (bits, low) = unsafe { (s.load_i(p), <Two as Codes>::pair::<S, J>(s, p.add(4 * S::LANES))) };
        let third = match J {
            0 => [s.shl::<2>(bits), s.shr::<2>(bits)],
            1 => [s.shl::<1>(bits), s.shr::<3>(bits)],
            2 => [bits, s.shr::<4>(bits)],
            _ => [s.shr::<1>(bits), s.shr::<5>(bits)],
        };
        let place = s.splat_i(0x0404_0404);
        [s.or_i(low[0], s.and_i(third[0], place)), s.or_i(low[1], s.and_i(third[1], place))]
    }
}

impl Codes for Four {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, p: *const u8) -> [S::I; 2] {
        // SAFETY: dword `J < 4` of the 4 at `p`.
        let both = unsafe { s.load_i(p.add(J * 4 * S::LANES)) };
        let nibbles = s.splat_i(0x0f0f_0f0f);
        [s.and_i(both, nibbles), s.and_i(s.shr::<4>(both), nibbles)]
    }
}

impl Codes for Five {
    const BYTES: usize = 20;

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, p: *const u8) -> [S::I; 2] {
        // SAFETY: one dword of fifth bits a row, then the codes.
        let (bits, low) = unsafe { (s.load_i(p), <Four as Codes>::pair::<S, J>(s, p.add(4 * S::LANES))) };
        let fifth = match J {
            0 => [s.shl::<4>(bits), bits],
            1 => [s.shl::<3>(bits), s.shr::<1>(bits)],
            2 => [s.shl::<2>(bits), s.shr::<2>(bits)],
            _ => [s.shl::<1>(bits), s.shr::<3>(bits)],
        };
        let place = s.splat_i(0x1010_1010);
        [s.or_i(low[0], s.and_i(fifth[0], place)), s.or_i(low[1], s.and_i(fifth[1], place))]
    }
}

impl Codes for Six {
    const BYTES: usize = 24;

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, p: *const u8) -> [S::I; 2] {
        // SAFETY: two dwords of upper bits a row, then the codes.
        let (bits, low) = unsafe {
            (
                [s.load_i(p), s.load_i(p.add(4 * S::LANES))],
                <Four as Codes>::pair::<S, J>(s, p.add(8 * S::LANES)),
            )
        };
        let upper = match J {
            0 => [s.shl::<4>(bits[0]), s.shl::<4>(bits[1])],
            1 => [s.shl::<2>(bits[0]), s.shl::<2>(bits[1])],
            2 => bits,
            _ => [s.shr::<2>(bits[0]), s.shr::<2>(bits[1])],
        };
        let place = s.splat_i(0x3030_3030);
        [s.or_i(low[0], s.and_i(upper[0], place)), s.or_i(low[1], s.and_i(upper[1], place))]
    }
}

/// 4-bit floats: *codes* that stand for levels, which are shifted to be unsigned.
pub(super) struct Floats;

impl Floats {
    /// What the levels are shifted by.
    pub(super) const OFFSET: i32 = FLOATS_SHIFT as i32;
}

impl Codes for Floats {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, p: *const u8) -> [S::I; 2] {
        let table = s.table(&SHIFTED_FLOATS);
        // SAFETY: the caller's contract.
        let codes = unsafe { <Four as Codes>::pair::<S, J>(s, p) };
        [s.lookup(table, codes[0]), s.lookup(table, codes[1])]
    }
}

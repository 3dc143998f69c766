//! Causal depthwise convolution over ragged batches with recurrent state.

use super::rows::{Rows, RowsMut};
use super::segments::Segments;
use crate::isa::{CpuIsa, Isa, Kernel};
use crate::memory::SharedSlice;
use std::ops::Range;

/// Channels that are walked together: wide enough for whole cache lines, narrow enough to stay in registers and L1.
const TILE: usize = 64;

/// `y[t] = sum over j of weight[.., j] * x[t - (taps - 1) + j]`, each channel by itself.
#[derive(Debug, Clone, Copy)]
pub struct ShortConv<'a> {
    /// `[rows, channels]`
    pub x: Rows<'a>,
    /// `[channels, taps]`
    pub weight: &'a [f32],
    /// Rows that a value reaches, its own included.
    pub taps: usize,
    /// A state is the last `taps - 1` rows of x.
    pub segments: Segments<'a>,
}

/// Computes some channels of a [`ShortConv`].
///
/// `state` is `[slots, taps - 1, channels]`: rows of x, oldest first. `out` is `[rows, channels]`; only
/// `channels` of it are written.
///
/// # Safety
/// Nobody else reads or writes these channels of `state` meanwhile, and no sequence reads a slot that a row of another
/// sequence of the batch stores to.
///
/// # Panics
/// When shapes do not fit together or a slot does not exist.
pub unsafe fn short_conv(
    isa: CpuIsa,
    conv: ShortConv<'_>,
    state: SharedSlice<'_, f32>,
    channels: Range<usize>,
    out: RowsMut<'_>,
) {
    let (rows, width) = (out.rows(), out.dim());
    let used = conv.segments.used(rows);
    assert!(conv.taps > 0 && conv.weight.len() == width * conv.taps, "a weight for each channel and tap");
    assert_eq!((conv.x.rows(), conv.x.dim()), (rows, width), "an x for each row and channel");
    assert!(channels.start <= channels.end && channels.end <= width, "channels {channels:?} of {width}");
    isa.run(Channels { conv, state, channels, out, used });
}

struct Channels<'a> {
    conv: ShortConv<'a>,
    state: SharedSlice<'a, f32>,
    channels: Range<usize>,
    out: RowsMut<'a>,
    used: usize,
}

impl Kernel for Channels<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        let ShortConv { x, weight, taps, segments } = self.conv;
        let width = self.out.dim();
        let state = self.state;
        let stored = |slot: u32, age: usize, first: usize, len: usize| {
            let at = (slot as usize * (taps - 1) + age) * width + first;
            at..at + len
        };
        let mut taps_of_tile = vec![[0f32; TILE]; taps];
        // The last `taps` rows of x; row `t` is at `t mod taps`.
        let mut ring = vec![[0f32; TILE]; taps];
        for first in self.channels.clone().step_by(TILE) {
            let len = (self.channels.end - first).min(TILE);
            for c in 0..len {
                for (j, tap) in taps_of_tile.iter_mut().enumerate() {
                    tap[c] = weight[(first + c) * taps + j];
                }
            }
            let mut row = 0;
            for (&extent, &slot) in segments.extents.iter().zip(segments.slots) {
                for age in 0..taps - 1 {
                    let past = &mut ring[age + 1];
                    if extent > 0 && segments.pos[row] > 0 {
                        // SAFETY: the caller vouches for these channels of the state.
                        past[..len]
                            .copy_from_slice(unsafe { self.state.part(stored(slot, age, first, len)) });
                    } else {
                        past.fill(0.0);
                    }
                }
                for t in 0..extent as usize {
                    ring[t % taps][..len].copy_from_slice(&x.row(row)[first..][..len]);
                    let out = &mut self.out.row(row)[first..][..len];
                    let mut i = 0;
                    while i < len {
                        let n = (len - i).min(S::LANES);
                        // SAFETY: `n` values are left at `i` in `out`; a whole vector fits the tile arrays at `i`, since
                        // TILE is a multiple of LANES.
                        unsafe {
                            let mut sum = s.splat(0.0);
                            for (j, tap) in taps_of_tile.iter().enumerate() {
                                let past = &ring[(t + 1 + j) % taps];
                                sum = s.fma(s.load(tap.as_ptr().add(i)), s.load(past.as_ptr().add(i)), sum);
                            }
                            s.store_partial(out.as_mut_ptr().add(i), sum, n);
                        }
                        i += n;
                    }
                    if let Some(slot) = segments.stored(row) {
                        for age in 0..taps - 1 {
                            // SAFETY: the caller vouches for these channels of the state.
                            let kept = unsafe { state.part_mut(stored(slot, age, first, len)) };
                            kept.copy_from_slice(&ring[(t + 2 + age) % taps][..len]);
                        }
                    }
                    row += 1;
                }
            }
            for row in self.used..self.out.rows() {
                self.out.row(row)[first..][..len].fill(0.0);
            }
        }
    }
}

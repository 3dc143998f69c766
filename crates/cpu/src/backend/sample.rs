//! Drawing tokens, and feeding them back.

use std::ops::Range;

use tensor::ops::{NO_SNAP, NO_TOKEN, NOT_A_TOKEN};
use tensor::sampling::{Candidates, ONE, Policy, Ranked};

use crate::isa::CpuIsa;
use crate::vector::{self, SelectError};

use super::operand::RowsArg;
use super::steps::Ctx;

/// [`tensor::Op::Sample`].
pub(super) struct SampleStep {
    pub(super) logits: RowsArg,
    pub(super) state: usize,
    pub(super) into: RowsArg,
    pub(super) uniform: RowsArg,
    pub(super) sharpness: RowsArg,
    pub(super) top_k: RowsArg,
    pub(super) top_p: RowsArg,
    pub(super) min_p: RowsArg,
    pub(super) out: RowsArg,
}

impl SampleStep {
    /// Some rows, this worker's own.
    pub(super) fn part(&self, ctx: &Ctx, rows: Range<usize>) {
        let logits = ctx.rows(&self.logits);
        let into = ctx.words(&self.into);
        let [uniform, top_k, top_p, min_p] =
            [&self.uniform, &self.top_k, &self.top_p, &self.min_p].map(|arg| ctx.words(arg));
        let sharpness = ctx.words(&self.sharpness);
        let drawn = ctx.states[self.state].words();
        let mut candidates = Candidates::default();
        for row in rows {
            let policy = Policy {
                uniform: uniform[row],
                sharpness: f32::from_bits(sharpness[row]),
                top_k: top_k[row],
                top_p: top_p[row],
                min_p: min_p[row],
            };
            let slot = into[row];
            let token = match slot {
                NO_SNAP => NO_TOKEN,
                _ => draw(ctx.isa, logits.row(row), &policy, &mut candidates),
            };
            // SAFETY: this row's result is this worker's own, and no other row stores to its slot: the step was
            // validated.
            unsafe {
                ctx.start(&self.out).wrapping_add(row).write(token);
                if slot != NO_SNAP {
                    drawn.part_mut(slot as usize..slot as usize + 1)[0] = token;
                }
            }
        }
    }
}

fn draw(isa: CpuIsa, row: &[f32], policy: &Policy, candidates: &mut Candidates) -> u32 {
    let best = match vector::argmax(isa, row) {
        Ok(best) => best,
        Err(SelectError::Nan { .. } | SelectError::TooFew { .. }) => return refused(row),
    };
    match row[best as usize] {
        f32::INFINITY => return refused(row),
        f32::NEG_INFINITY => return NO_TOKEN,
        _ if policy.top_k == 1 => return best,
        _ => {}
    }
    let above = (0u32..).zip(row).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
    let tokens = above.map(|(id, logit)| Ranked::new(*logit, id));
    let top_k = (policy.top_k > 0).then_some(policy.top_k as usize);
    candidates.start(Ranked::new(row[best as usize], best), tokens, top_k);
    candidates.top_p(policy.top_p, policy.sharpness);
    candidates.min_p(policy.min_p.min(ONE), policy.sharpness);
    candidates.draw(policy.uniform, policy.sharpness).unwrap_or(NO_TOKEN)
}

/// The mark of a row with a logit that is NaN or +inf.
fn refused(row: &[f32]) -> u32 {
    let bad = row.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY);
    bad.map_or(NO_TOKEN, |at| NOT_A_TOKEN | at as u32)
}

/// [`tensor::Op::Feed`].
pub(super) struct FeedStep {
    pub(super) ids: RowsArg,
    pub(super) state: usize,
    pub(super) out: RowsArg,
}

impl FeedStep {
    /// Some rows, this worker's own.
    pub(super) fn part(&self, ctx: &Ctx, rows: Range<usize>) {
        let ids = ctx.words(&self.ids);
        let drawn = ctx.states[self.state].words();
        for row in rows {
            // SAFETY: nothing stores to the slots during this step, and the slot is one of them: it was validated. The
            // row's result is this worker's own.
            unsafe {
                let id = match ids[row] & NOT_A_TOKEN {
                    0 => ids[row],
                    _ => {
                        let slot = (ids[row] ^ NOT_A_TOKEN) as usize;
                        drawn.part(slot..slot + 1)[0]
                    }
                };
                ctx.start(&self.out).wrapping_add(row).write(id);
            }
        }
    }
}

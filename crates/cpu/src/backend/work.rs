//! What a step reads and multiplies, for [`graph::backend::KernelTime`].

use tensor::ops::KV_BLOCK;

use crate::pack::PackedMatrix;

use super::experts::Choice;
use super::state::AttentionStep;
use super::steps::{Ctx, Product, Step};

/// The work of one run of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Bytes of packed weights, and of cached keys and values once for each sequence that sees them.
    pub(super) bytes: u64,
    /// Multiply-adds of products and of attention.
    pub(super) products: u64,
}

impl Work {
    /// The work of a step whose operands are in place.
    pub(super) fn of(step: &Step, ctx: &Ctx) -> Work {
        match step {
            Step::Products(products) => Work::of_products(products, ctx),
            Step::Gated(step) => match &step.choice {
                None => Work::of_products(&step.products, ctx),
                Some(choice) => {
                    let [gate, up] = step.matrices(ctx);
                    Work::of_experts(gate, choice, ctx).and(Work::of_experts(up, choice, ctx))
                }
            },
            Step::Experts(step) => {
                Work::of_experts(ctx.weights[step.product.weight].matrices(), &step.choice, ctx)
            }
            Step::Attention(attention) => Work::of_attention(attention, ctx),
            _ => Work::default(),
        }
    }

    fn of_products(products: &[Product], ctx: &Ctx) -> Work {
        products.iter().fold(Work::default(), |work, p| {
            let (w, rows) = (ctx.weights[p.weight].matrix(), ctx.count(p.x.rows()));
            work.plus(w.n() * w.k() * rows, if rows > 0 { w.groups() * w.group_bytes() } else { 0 })
        })
    }

    fn of_experts(matrices: &[PackedMatrix], choice: &Choice, ctx: &Ctx) -> Work {
        choice.grouped(ctx, |grouped| {
            grouped.chosen().fold(Work::default(), |work, (expert, rows)| {
                let w = &matrices[expert];
                work.plus(w.n() * w.k() * rows, w.groups() * w.group_bytes())
            })
        })
    }

    fn and(self, other: Work) -> Work {
        Work { bytes: self.bytes + other.bytes, products: self.products + other.products }
    }

    fn plus(self, products: usize, bytes: usize) -> Work {
        Work { bytes: self.bytes + bytes as u64, products: self.products + products as u64 }
    }

    fn of_attention(step: &AttentionStep, ctx: &Ctx) -> Work {
        let (layout, window) = (step.layout, step.window.map_or(usize::MAX, |w| w as usize));
        let dims = step.heads * (layout.k_dim() + layout.v_dim());
        let rows = ctx.words(&step.pos).iter().zip(ctx.words(&step.until)).zip(ctx.seq);
        let mut work = Work::default();
        // Where the keys end that rows of the sequence at hand have seen: its rows follow each other, in order.
        let (mut sequence, mut seen) = (None, 0);
        for ((&pos, &until), &seq) in rows {
            let keys = (pos as usize + 1).saturating_sub(window)..until as usize;
            if sequence != Some(seq) {
                (sequence, seen) = (Some(seq), 0);
            }
            let fresh = keys.end.saturating_sub(keys.start.max(seen));
            seen = seen.max(keys.end);
            work = work.plus(keys.len() * dims, fresh * layout.block_bytes() / KV_BLOCK);
        }
        work
    }
}

//! The tokens that may be drawn, cut down stage by stage.

use super::rank::{Ranked, select};
use super::{ONE, part, part_up, weight};

/// Tokens in play, in order of id, and their weights. Every truncation is exact and orders tokens by logit, highest
/// first, then by id, lowest first.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    kept: Vec<Ranked>,
    /// Of each of `kept`.
    weights: Vec<u32>,
    /// Where a stage sorts or selects.
    scratch: Vec<Ranked>,
    /// The highest logit of all.
    max: f32,
}

impl Candidates {
    /// Starts over with these tokens, in order of id, of which `best` is the greatest; with `top_k`, at least 1, with
    /// that many of the highest.
    pub fn start(&mut self, best: Ranked, tokens: impl Iterator<Item = Ranked>, top_k: Option<usize>) {
        self.max = best.logit();
        self.kept.clear();
        match top_k {
            // Few tokens pass a leading top-k: the whole vocabulary is then never listed.
            Some(k) => {
                select(tokens, k, &mut self.kept);
                self.kept.sort_unstable_by_key(|token| token.id());
            }
            None => self.kept.extend(tokens),
        }
    }

    /// Keeps the `k` highest, at least 1.
    pub fn top_k(&mut self, k: usize) {
        if k < self.kept.len() {
            select(self.kept.iter().copied(), k, &mut self.scratch);
            self.keep_selected();
        }
    }

    /// Keeps the smallest set of the highest whose weight reaches the [`super::share`] of the whole: the crossing token
    /// is kept.
    pub fn top_p(&mut self, share: u32, sharpness: f32) {
        if share == 0 {
            return;
        }
        let total = self.weigh(sharpness);
        let wanted = part_up(total, share);
        // All the tokens lighter than `floor` weigh at most what may be left out, so the nucleus lies within the rest,
        // and only the rest need sorting.
        let floor = (total - wanted) / self.kept.len().max(1) as u64;
        let heavy = self.kept.iter().zip(&self.weights).filter(|&(_, &weight)| u64::from(weight) >= floor);
        self.scratch.clear();
        self.scratch.extend(heavy.map(|(&token, _)| token));
        self.scratch.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let crossing = self.scratch.iter().position(|token| {
            sum += u64::from(weight(token.logit(), self.max, sharpness));
            sum >= wanted
        });
        if let Some(at) = crossing {
            self.scratch.truncate(at + 1);
            self.keep_selected();
        }
    }

    /// Keeps what weighs at least so much.
    pub fn min_p(&mut self, least: u32, sharpness: f32) {
        if least > 0 {
            self.kept.retain(|token| weight(token.logit(), self.max, sharpness) >= least);
        }
    }

    /// The first token, in order of id, at which the sum of weights exceeds the share `uniform` (in units of 2^-32) of the
    /// total. `None` when there is no token.
    ///
    /// The comparison is strict, so a token of weight 0 is never drawn, and the last partial sum is the total, so that
    /// the search ends inside: the highest always weighs something.
    pub fn draw(&mut self, uniform: u32, sharpness: f32) -> Option<u32> {
        let target = part(self.weigh(sharpness), uniform);
        let mut sum = 0;
        let drawn = self.weights.iter().position(|weight| {
            sum += u64::from(*weight);
            sum > target
        });
        drawn.map(|at| self.kept[at].id())
    }

    /// Each token with its share of the total.
    pub fn shares(&mut self, sharpness: f32) -> impl Iterator<Item = (u32, f64)> {
        let total = self.weigh(sharpness) as f64;
        let tokens = self.kept.iter().zip(&self.weights);
        tokens.map(move |(token, weight)| (token.id(), f64::from(*weight) / total))
    }

    /// Cuts `kept` to the tokens in `scratch`, which are its first ones in rank and at least one.
    fn keep_selected(&mut self) {
        if let Some(&last) = self.scratch.iter().min() {
            self.kept.retain(|token| *token >= last);
        }
    }

    /// Fills in the weights and gives their sum, which is below 2^64: there are fewer than 2^33 tokens.
    fn weigh(&mut self, sharpness: f32) -> u64 {
        self.weights.clear();
        self.weights.extend(self.kept.iter().map(|token| weight(token.logit(), self.max, sharpness)));
        debug_assert!(self.kept.is_empty() || self.weights.iter().all(|w| *w <= ONE));
        self.weights.iter().map(|w| u64::from(*w)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sharpness;
    use super::*;

    /// Three tokens of one weight between two of weight 0.
    #[test]
    fn a_draw_exceeds_its_share_strictly_in_order_of_id() {
        let mut candidates = Candidates::default();
        let logits = [-100.0, 2.0, 2.0, 2.0, -100.0];
        let tokens = || (0..).zip(logits).map(|(id, logit)| Ranked::new(logit, id));
        candidates.start(Ranked::new(2.0, 1), tokens(), None);
        let third = u32::MAX / 3;
        for (uniform, id) in
            [(0, 1), (third, 1), (third + 1, 2), (2 * third, 2), (2 * third + 1, 3), (u32::MAX, 3)]
        {
            assert_eq!(candidates.draw(uniform, sharpness(1.0)), Some(id), "at {uniform}");
        }
        candidates.start(Ranked::new(0.0, 0), std::iter::empty(), None);
        assert_eq!(candidates.draw(0, 1.0), None);
    }
}

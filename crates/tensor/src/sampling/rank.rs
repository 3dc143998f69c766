//! Tokens in the order every truncation uses, and selection of the first of them.

/// A token and its logit as one integer whose order is the sampling order: the greater has the higher logit or, at
/// equal logits, the lower id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ranked(u64);

impl Ranked {
    /// Below the rank of every token.
    const LEAST: Ranked = Ranked(0);

    /// The rank of `id` at `logit`, which is not NaN. Both zeros are one value.
    pub fn new(logit: f32, id: u32) -> Self {
        Ranked(u64::from(ordered(logit)) << 32 | u64::from(!id))
    }

    /// The token.
    pub fn id(self) -> u32 {
        !(self.0 as u32)
    }

    /// The token's logit.
    pub fn logit(self) -> f32 {
        let ordered = (self.0 >> 32) as u32;
        f32::from_bits(ordered ^ (((!ordered as i32) >> 31) as u32 | 0x8000_0000))
    }
}

/// An integer that orders as the logit does, which is not NaN. Both zeros are one value.
pub fn ordered(logit: f32) -> u32 {
    // Adding 0 turns -0 into +0. Flipping the sign bit of positive floats and every bit of negative ones makes the
    // integer order of IEEE 754 bits the order of the values.
    let bits = (logit + 0.0).to_bits();
    bits ^ (((bits as i32) >> 31) as u32 | 0x8000_0000)
}

/// Fills `best` with the `k` greatest of `items`, in no particular order, or with all of them if they are fewer.
///
/// One comparison for most items: a buffer of candidates above a rising floor is cut back to `k` whenever it fills.
pub fn select(items: impl Iterator<Item = Ranked>, k: usize, best: &mut Vec<Ranked>) {
    let cut = |best: &mut Vec<Ranked>| {
        if best.len() > k {
            best.select_nth_unstable_by(k, |a, b| b.cmp(a));
            best.truncate(k);
        }
    };
    best.clear();
    if k == 0 {
        return;
    }
    let room = k.saturating_mul(2).saturating_add(64);
    let mut floor = Ranked::LEAST;
    for item in items {
        if item > floor {
            best.push(item);
            if best.len() == room {
                cut(best);
                floor = best.iter().min().copied().unwrap_or(floor);
            }
        }
    }
    cut(best);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rank_orders_by_logit_then_by_lowest_id() {
        let logits = [f32::NEG_INFINITY, f32::MIN, -1.5, -1e-45, -0.0, 1e-45, 0.1, 2.0, f32::MAX];
        for (at, &low) in logits.iter().enumerate() {
            for &high in &logits[at + 1..] {
                assert!(Ranked::new(high, 900) > Ranked::new(low, 1), "{high} above {low}");
            }
            assert!(Ranked::new(low, 1) > Ranked::new(low, 2));
            assert_eq!(Ranked::new(low, 7).logit(), low);
            assert_eq!(Ranked::new(low, 7).id(), 7);
        }
        assert!(Ranked::new(-0.0, 1) > Ranked::new(0.0, 2));
        assert_eq!(Ranked::new(1.0, u32::MAX).id(), u32::MAX);
    }

    proptest! {
        #[test]
        fn select_agrees_with_sorting(levels in prop::collection::vec(-20i32..20, 0..600), k in 0usize..300) {
            let items: Vec<Ranked> =
                levels.iter().zip(0..).map(|(&level, id)| Ranked::new(level as f32, id)).collect();
            let mut best = Vec::new();
            select(items.iter().copied(), k, &mut best);
            best.sort_unstable();
            let mut sorted = items;
            sorted.sort_by(|a, b| b.logit().total_cmp(&a.logit()).then(a.id().cmp(&b.id())));
            sorted.truncate(k);
            sorted.reverse();
            prop_assert_eq!(best, sorted);
        }
    }
}

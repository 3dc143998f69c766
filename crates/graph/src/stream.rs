//! Random draws as a pure function of a seed and a token index.
//!
//! A sequence's draw at token index `i` does not depend on how many draws came before it, so batching, chunking,
//! speculation and preemption cannot change what is sampled. The generator is Philox 4x32 with ten rounds (Salmon,
//! Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): the 64-bit key is the seed and the
//! 128-bit counter holds the index in its two low words and the purpose of the draw in its top word.

/// Top counter word of [`Stream::draw`].
const DRAW: u32 = 0;
/// Top counter word of [`Stream::derive`]: child seeds share no counter with draws.
const DERIVE: u32 = 1;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// A stateless stream of uniform numbers, one per token index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream {
    seed: u64,
}

impl Stream {
    /// The stream of `seed`. Every value is valid, 0 included.
    pub const fn new(seed: u64) -> Self {
        Stream { seed }
    }

    /// The seed this stream is keyed by.
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// The stream of sequence `sequence` under this one: for several answers to one request.
    ///
    /// Keyed by `sequence + 1`, so that sequence 0 also differs from its parent.
    pub fn derive(self, sequence: u64) -> Self {
        let index = u128::from(sequence) + 1;
        let [low, high, ..] = philox(counter(index, DERIVE), self.key());
        Stream { seed: u64::from(low) | u64::from(high) << 32 }
    }

    /// The uniform draw of the token at `token_index`: a multiple of 2^-24 in `[0, 1)`.
    ///
    /// 24 bits are exact in f32, so the largest value is 0.99999994 and no rounding can reach 1.
    pub fn draw(self, token_index: u64) -> f32 {
        (self.word(token_index) >> 8) as f32 / (1u32 << 24) as f32
    }

    /// As [`Stream::draw`], with all its digits: in units of 2^-32.
    pub fn word(self, token_index: u64) -> u32 {
        let [word, ..] = philox(counter(u128::from(token_index), DRAW), self.key());
        word
    }

    fn key(self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }
}

/// The counter block of `index` (below 2^96) for one purpose.
fn counter(index: u128, purpose: u32) -> [u32; 4] {
    [index as u32, (index >> 32) as u32, (index >> 64) as u32, purpose]
}

/// Philox 4x32-10: a bijection of the counter for every key.
fn philox(mut x: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(x[0]);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(x[2]);
        x = [(p1 >> 32) as u32 ^ x[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ x[3] ^ key[1], p0 as u32];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The three philox4x32-10 vectors that the authors publish with Random123 (`kat_vectors`).
    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// Seeds and indices reach the key and the counter low word first.
    #[test]
    fn draw_and_derive_use_the_documented_words() {
        let seed = 0x299f_31d0_a409_3822;
        let word = philox([7, 3, 0, 0], [0xa409_3822, 0x299f_31d0])[0];
        assert_eq!(Stream::new(seed).draw(7 | 3 << 32), (f64::from(word >> 8) / 16_777_216.0) as f32);
        let child = philox([8, 3, 0, 1], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(
            Stream::new(seed).derive(7 | 3 << 32).seed(),
            u64::from(child[0]) | u64::from(child[1]) << 32
        );
        // The carry of sequence + 1 leaves the low 64 bits.
        let last = philox([0, 0, 1, 1], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(Stream::new(seed).derive(u64::MAX).seed(), u64::from(last[0]) | u64::from(last[1]) << 32);
    }

    #[test]
    fn draws_stay_below_one_on_a_24_bit_grid() {
        for index in 0..100_000 {
            let u = Stream::new(11).draw(index);
            assert!((0.0..1.0).contains(&u));
            assert_eq!((u * 16_777_216.0).fract(), 0.0);
        }
        assert_eq!((u32::MAX >> 8) as f32 / (1u32 << 24) as f32, 0.999_999_94);
    }

    #[test]
    fn streams_of_neighbouring_seeds_and_children_differ() {
        let root = Stream::new(1);
        let mut streams = vec![Stream::new(0), root, Stream::new(2)];
        streams.extend((0..1000).map(|sequence| root.derive(sequence)));
        assert_eq!(streams.iter().map(|s| s.seed()).collect::<HashSet<_>>().len(), streams.len());
        let firsts = |s: &Stream| (0..4).map(|i| s.draw(i).to_bits()).collect::<Vec<_>>();
        assert_eq!(streams.iter().map(firsts).collect::<HashSet<_>>().len(), streams.len());
    }

    /// Chi-square over 256 cells (255 degrees of freedom: mean 255, standard deviation 22.6), along the index, along
    /// the seed, along derived sequences and over pairs of neighbouring draws (16 x 16 cells).
    #[test]
    fn draws_are_uniform_along_index_seed_and_sequence() {
        const N: u64 = 65_536;
        let cell = |u: f32| (u * 256.0) as usize;
        let half = |u: f32| (u * 16.0) as usize;
        let root = Stream::new(42);
        let chi = |cells: &mut dyn Iterator<Item = usize>| {
            let mut counts = [0f64; 256];
            cells.for_each(|c| counts[c] += 1.0);
            let expected = N as f64 / 256.0;
            counts.iter().map(|c| (c - expected).powi(2) / expected).sum::<f64>()
        };
        let along = [
            chi(&mut (0..N).map(|i| cell(root.draw(i)))),
            chi(&mut (0..N).map(|seed| cell(Stream::new(seed).draw(0)))),
            chi(&mut (0..N).map(|sequence| cell(root.derive(sequence).draw(0)))),
            chi(&mut (0..N).map(|i| half(root.draw(i)) * 16 + half(root.draw(i + 1)))),
        ];
        for value in along {
            assert!((170.0..340.0).contains(&value), "chi-square {along:?}");
        }
    }
}

//! The sampling policy against hand-computed cases, a naive whole-vocabulary model, and the statistics of its draws.

use gristmill_engine::sampling::{Sampler, SamplingError, SamplingOptions, Stage};
use proptest::prelude::*;

fn options() -> SamplingOptions {
    SamplingOptions { temperature: 1.0, seed: Some(7), ..Default::default() }
}

fn sampler(options: SamplingOptions, vocab: usize) -> Sampler {
    Sampler::new(options, vocab, 0).unwrap()
}

/// Logits of these probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

fn kept(options: SamplingOptions, logits: &[f32]) -> Vec<u32> {
    let mut sampler = sampler(options, logits.len());
    sampler.distribution(&mut logits.to_vec()).unwrap().iter().map(|c| c.id).collect()
}

fn greedy(logits: &[f32]) -> Result<u32, SamplingError> {
    let mut sampler = sampler(SamplingOptions::default(), logits.len());
    sampler.sample(&mut logits.to_vec(), 0).map(|sampled| sampled.id)
}

#[test]
fn temperature_zero_is_argmax_with_the_lowest_id_on_a_tie() {
    assert_eq!(greedy(&[1.0, 3.0, 2.0, 3.0]), Ok(1));
    assert_eq!(greedy(&[-0.0, 0.0]), Ok(0));
    assert_eq!(greedy(&[f32::NEG_INFINITY, -1e30]), Ok(1));
}

#[test]
fn top_k_keeps_exactly_k_and_settles_ties_by_id() {
    let row = [1.0, 5.0, 3.0, 3.0, 3.0, 5.0];
    for (k, want) in
        [(1, vec![1]), (2, vec![1, 5]), (3, vec![1, 2, 5]), (4, vec![1, 2, 3, 5]), (6, (0..6).collect())]
    {
        assert_eq!(kept(SamplingOptions { top_k: Some(k), ..options() }, &row), want, "k = {k}");
    }
    assert_eq!(kept(SamplingOptions { top_k: Some(100), ..options() }, &row).len(), 6);
}

#[test]
fn top_p_includes_the_crossing_token_and_never_keeps_none() {
    let row = logits(&[0.1, 0.5, 0.15, 0.25]);
    for (p, want) in [
        (1e-6, vec![1]),
        (0.49, vec![1]),
        (0.51, vec![1, 3]),
        (0.76, vec![1, 2, 3]),
        (0.91, vec![0, 1, 2, 3]),
    ] {
        assert_eq!(kept(SamplingOptions { top_p: p, ..options() }, &row), want, "p = {p}");
    }
    // Two equal halves: the first reaches 0.5 exactly.
    assert_eq!(kept(SamplingOptions { top_p: 0.5, ..options() }, &[2.0, 2.0]), [0]);
}

#[test]
fn top_p_is_a_share_of_what_top_k_kept() {
    // After top-k the shares are 2/3 and 1/3; of the whole vocabulary they would be 0.5 and 0.25.
    let row = logits(&[0.5, 0.25, 0.15, 0.1]);
    assert_eq!(kept(SamplingOptions { top_k: Some(2), top_p: 0.6, ..options() }, &row), [0]);
    assert_eq!(kept(SamplingOptions { top_p: 0.6, ..options() }, &row), [0, 1]);
    let p_first = [Stage::Temperature, Stage::TopP, Stage::TopK, Stage::MinP];
    let reordered = SamplingOptions { top_k: Some(2), top_p: 0.6, stages: p_first, ..options() };
    assert_eq!(kept(reordered, &row), [0, 1]);
}

#[test]
fn min_p_is_relative_to_the_most_probable() {
    let row = logits(&[0.4, 0.1, 0.3, 0.2]);
    assert_eq!(kept(SamplingOptions { min_p: 0.6, ..options() }, &row), [0, 2]);
    assert_eq!(kept(SamplingOptions { min_p: 0.45, ..options() }, &row), [0, 2, 3]);
    assert_eq!(kept(SamplingOptions { min_p: 1.0, ..options() }, &[3.0, 3.0, 2.9]), [0, 1]);
}

#[test]
fn stage_order_decides_what_the_truncations_see() {
    // At temperature 2 the shares 0.64, 0.32, 0.04 become about 0.51, 0.36, 0.13.
    let row = logits(&[0.64, 0.32, 0.04]);
    let base = SamplingOptions { temperature: 2.0, top_p: 0.6, ..options() };
    assert_eq!(kept(base.clone(), &row), [0, 1]);
    assert_eq!(kept(SamplingOptions { stages: Stage::LLAMA_CPP, ..base }, &row), [0]);
    // The temperature is applied all the same: 0.8 / (0.8 + sqrt(0.32)).
    let last = SamplingOptions { temperature: 2.0, top_k: Some(2), stages: Stage::LLAMA_CPP, ..options() };
    let distribution = sampler(last, 3).distribution(&mut row.clone()).unwrap();
    assert!((distribution[0].probability - 0.8 / (0.8 + 0.32f64.sqrt())).abs() < 1e-6);
}

#[test]
fn bias_comes_before_everything() {
    let biased = SamplingOptions { logit_bias: vec![(2, 10.0), (0, f32::NEG_INFINITY)], ..options() };
    assert_eq!(kept(SamplingOptions { temperature: 0.0, ..biased.clone() }, &[9.0, 8.0, 1.0]), [2]);
    assert_eq!(kept(biased, &[9.0, 8.0, 1.0]), [1, 2]);
    let all = SamplingOptions { logit_bias: vec![(0, f32::NEG_INFINITY)], ..options() };
    assert_eq!(sampler(all, 1).sample(&mut [1.0], 0), Err(SamplingError::NothingLeft));
}

/// Options within their ranges that no logit survives: they are named, and not the model.
#[test]
fn options_that_overflow_a_logit_are_named() {
    let overflow = |policy: SamplingOptions, row: [f32; 3]| {
        let mut sampler = sampler(policy, 3);
        sampler.accept_prompt(&[1]).unwrap();
        sampler.sample(&mut row.to_vec(), 0).unwrap_err()
    };
    let penalty = |penalty| SamplingOptions { repetition_penalty: penalty, ..options() };
    let bias = |bias| SamplingOptions { logit_bias: vec![(1, bias)], ..options() };
    let of = |option| SamplingError::Overflow { option, id: 1 };
    assert_eq!(overflow(penalty(1e-38), [0.0, 4.0, 1.0]), of("repetition_penalty"));
    assert_eq!(overflow(bias(f32::MAX), [0.0, f32::MAX, 1.0]), of("logit_bias"));
    // What is wrong before them is the model's.
    for policy in [penalty(1e-38), bias(1.0)] {
        assert_eq!(overflow(policy, [0.0, f32::NAN, 1.0]), SamplingError::Logit { id: 1 });
    }
    // What they take to -inf is forbidden.
    let mut huge = sampler(penalty(f32::MAX), 3);
    huge.accept_prompt(&[1]).unwrap();
    assert_eq!(huge.distribution(&mut [-9.0, -9.0, -9.0]).unwrap().len(), 2);
}

#[test]
fn penalties_come_before_temperature_and_follow_the_history() {
    let policy = SamplingOptions { repetition_penalty: 2.0, presence_penalty: 1.0, ..Default::default() };
    let mut sampler = sampler(policy, 4);
    let row = [4.0, 3.5, 1.9, 2.2];
    let pick = |sampler: &mut Sampler| sampler.sample(&mut row.to_vec(), 0).unwrap().id;
    assert_eq!(pick(&mut sampler), 0);
    sampler.accept_prompt(&[0]).unwrap(); // token 0 at 2.0
    assert_eq!(pick(&mut sampler), 1);
    sampler.accept(1).unwrap(); // token 1 at 0.75
    assert_eq!(pick(&mut sampler), 3);
    sampler.accept(3).unwrap(); // token 3 at 0.1
    assert_eq!(pick(&mut sampler), 0);
    let beyond = SamplingError::Id { place: "history", id: 4, vocab: 4 };
    assert_eq!(sampler.accept(4), Err(beyond.clone()));
    assert_eq!(sampler.accept_prompt(&[4]), Err(beyond));
}

#[test]
fn unusable_rows_are_errors() {
    for value in [f32::NAN, f32::INFINITY, -f32::NAN] {
        for temperature in [0.0, 1.0] {
            let mut sampler = sampler(SamplingOptions { temperature, ..options() }, 3);
            let error = sampler.sample(&mut [1.0, value, 0.0], 0).unwrap_err();
            assert_eq!(error, SamplingError::Logit { id: 1 });
        }
    }
    assert_eq!(greedy(&[f32::NEG_INFINITY; 3]), Err(SamplingError::NothingLeft));
    let mut sampler = sampler(options(), 3);
    let short = sampler.sample(&mut [0.0; 2], 0);
    assert_eq!(short, Err(SamplingError::LogitCount { got: 2, vocab: 3 }));
    assert!(Sampler::new(SamplingOptions { top_p: 0.0, ..options() }, 3, 0).is_err());
}

#[test]
fn extreme_logits_neither_overflow_nor_lose_the_maximum() {
    let row = [f32::MAX, f32::MIN, f32::MAX, f32::NEG_INFINITY];
    let cold = SamplingOptions {
        temperature: SamplingOptions::MIN_TEMPERATURE,
        top_p: 0.9,
        min_p: 0.5,
        ..options()
    };
    assert_eq!(kept(cold, &row), [0, 2]);
}

#[test]
fn logprobs_are_those_of_the_raw_row() {
    let policy = SamplingOptions {
        logprobs: Some(2),
        top_k: Some(1),
        temperature: 0.5,
        logit_bias: vec![(3, 50.0)],
        ..options()
    };
    let sampled = sampler(policy, 4).sample(&mut logits(&[0.4, 0.1, 0.4, 0.1]), 0).unwrap();
    assert_eq!(sampled.id, 3);
    let logprobs = sampled.logprobs.unwrap();
    assert!((logprobs.sampled - 0.1f32.ln()).abs() < 1e-6);
    assert_eq!(logprobs.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 2]);
    assert!((logprobs.top[1].1 - 0.4f32.ln()).abs() < 1e-6);
    let none = sampler(SamplingOptions { logprobs: Some(0), ..options() }, 1).sample(&mut [3.0], 0).unwrap();
    assert_eq!((none.logprobs.clone().unwrap().sampled, none.logprobs.unwrap().top.len()), (0.0, 0));
}

#[test]
fn a_draw_depends_on_seed_and_index_alone() {
    let row: Vec<f32> = (0..1000).map(|id| (id % 17) as f32 * 0.1).collect();
    let draw = |seed, index| {
        let mut sampler = sampler(SamplingOptions { seed: Some(seed), ..options() }, 1000);
        sampler.sample(&mut row.clone(), index).unwrap().id
    };
    let forward: Vec<u32> = (0..50).map(|index| draw(3, index)).collect();
    let mut one = sampler(SamplingOptions { seed: Some(3), ..options() }, 1000);
    let mut backward: Vec<u32> =
        (0..50).rev().map(|index| one.sample(&mut row.clone(), index).unwrap().id).collect();
    backward.reverse();
    assert_eq!(forward, backward);
    assert_ne!(forward, (0..50).map(|index| draw(4, index)).collect::<Vec<_>>());
    // Without a seed the caller's entropy is the seed.
    let mut unseeded = Sampler::new(SamplingOptions { seed: None, ..options() }, 1000, 3).unwrap();
    let drawn = (0..50).map(|index| unseeded.sample(&mut row.clone(), index).unwrap().id);
    assert_eq!(drawn.collect::<Vec<_>>(), forward);
}

/// Chi-square of 40 000 draws against the distribution, per policy; the bound is the 0.999 quantile for the degrees of
/// freedom. Each seed is fixed, so the outcome is too.
#[test]
fn draws_follow_the_distribution() {
    const DRAWS: u64 = 40_000;
    let row: Vec<f32> = (0..10).map(|id| ((id * 7 % 10) as f32) * 0.3).collect();
    let policies = [
        (options(), 9, 27.88),
        (SamplingOptions { temperature: 2.5, ..options() }, 9, 27.88),
        (SamplingOptions { top_k: Some(4), ..options() }, 3, 16.27),
        (SamplingOptions { temperature: 0.7, top_p: 0.8, stages: Stage::LLAMA_CPP, ..options() }, 4, 18.47),
        (SamplingOptions { min_p: 0.3, ..options() }, 4, 18.47),
    ];
    for (policy, degrees, bound) in policies {
        let mut sampler = sampler(policy.clone(), 10);
        let expected = sampler.distribution(&mut row.clone()).unwrap();
        assert_eq!(expected.len(), degrees + 1, "{policy:?}");
        let mut counts = [0u64; 10];
        for index in 0..DRAWS {
            counts[sampler.sample(&mut row.clone(), index).unwrap().id as usize] += 1;
        }
        let chi: f64 = expected
            .iter()
            .map(|c| (c.probability * DRAWS as f64, counts[c.id as usize] as f64))
            .map(|(expected, count)| (count - expected).powi(2) / expected)
            .sum();
        assert!(chi < bound, "chi-square {chi} for {policy:?}");
        assert_eq!(
            expected.iter().map(|c| counts[c.id as usize]).sum::<u64>(),
            DRAWS,
            "a truncated token was drawn"
        );
    }
}

/// The policy by its definition: sort the whole vocabulary, cut, renormalise.
fn naive(options: &SamplingOptions, row: &[f32]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..row.len()).filter(|&id| row[id] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
    let mut temperature = 1.0;
    for stage in options.stages {
        let weights: Vec<f64> =
            order.iter().map(|&id| (f64::from(row[id] - row[order[0]]) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let keep = match stage {
            Stage::Temperature => {
                temperature = f64::from(options.temperature);
                order.len()
            }
            Stage::TopK => options.top_k.unwrap_or(order.len()),
            Stage::TopP if options.top_p == 1.0 => order.len(),
            Stage::TopP => {
                let above = |at: usize| weights[..at].iter().sum::<f64>();
                (1..order.len())
                    .find(|&at| above(at) >= f64::from(options.top_p) * total)
                    .unwrap_or(order.len())
            }
            Stage::MinP => weights.iter().filter(|&&weight| weight >= f64::from(options.min_p)).count(),
        };
        order.truncate(keep);
    }
    let mut ids: Vec<u32> = order.into_iter().map(|id| id as u32).collect();
    ids.sort_unstable();
    ids
}

fn policy() -> impl Strategy<Value = SamplingOptions> {
    let stages = Just(Stage::TRANSFORMERS.to_vec()).prop_shuffle();
    (0.1f32..3.0, prop::option::of(1usize..60), 0.01f32..1.3, -0.3f32..0.6, stages).prop_map(
        |(temperature, top_k, top_p, min_p, stages)| SamplingOptions {
            temperature,
            top_k,
            top_p: top_p.min(1.0),
            min_p: min_p.max(0.0),
            stages: stages.try_into().unwrap(),
            ..options()
        },
    )
}

proptest! {
    /// Rows on a coarse grid are full of ties; on a fine one they have none.
    #[test]
    fn kept_sets_are_those_of_the_definition(
        policy in policy(),
        levels in prop::collection::vec(prop::option::weighted(0.95, -400i32..400), 1..400),
        coarse in any::<bool>(),
    ) {
        let value = |level: i32| if coarse { (level / 80) as f32 } else { level as f32 / 64.0 };
        let row: Vec<f32> = levels.iter().map(|level| level.map_or(f32::NEG_INFINITY, value)).collect();
        prop_assume!(row.iter().any(|&logit| logit > f32::NEG_INFINITY));
        prop_assert_eq!(kept(policy.clone(), &row), naive(&policy, &row));
    }

    /// Renaming the tokens renames the answer, where no tie makes ids matter.
    #[test]
    fn a_permutation_of_the_vocabulary_permutes_the_kept_set(
        policy in policy(),
        order in Just((0u32..200).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let row: Vec<f32> = (0..200).map(|id| (id as f32 * 0.37).sin() * 5.0 + id as f32 * 1e-4).collect();
        let permuted: Vec<f32> = order.iter().map(|&id| row[id as usize]).collect();
        let mut back: Vec<u32> = kept(policy.clone(), &permuted).iter().map(|&at| order[at as usize]).collect();
        back.sort_unstable();
        prop_assert_eq!(back, kept(policy, &row));
    }

    /// Cold sampling is greedy and hot sampling is uniform.
    #[test]
    fn the_limits_of_temperature(levels in prop::collection::btree_set(-1000i32..1000, 2..50), index in 0u64..1000) {
        let row: Vec<f32> = levels.iter().map(|&level| level as f32 * 0.05).collect();
        let cold = SamplingOptions { temperature: SamplingOptions::MIN_TEMPERATURE, ..options() };
        let drawn = sampler(cold, row.len()).sample(&mut row.clone(), index).unwrap().id;
        prop_assert_eq!(drawn, greedy(&row).unwrap());
        let hot = SamplingOptions { temperature: 1e9, ..options() };
        for candidate in sampler(hot, row.len()).distribution(&mut row.clone()).unwrap() {
            prop_assert!((candidate.probability * row.len() as f64 - 1.0).abs() < 1e-6);
        }
    }
}

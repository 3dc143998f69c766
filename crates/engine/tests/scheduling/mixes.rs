//! Random mixes of requests: each gets what it gets alone, or was cancelled.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use gristmill_engine::EngineOptions;
use gristmill_engine::sampling::SamplingOptions;
use proptest::prelude::*;

use crate::desk::{Answer, Desk, alone, pool_of, prompt, sample, score};
use checks::faults::Fault;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Ask {
    len: usize,
    salt: u32,
    /// Tokens to generate; `None` scores the last half of the prompt.
    tokens: Option<usize>,
    /// Which of [`policy`]'s.
    policy: usize,
}

/// Greedy; policies that a device can follow; one that needs the host.
fn policy(which: usize) -> SamplingOptions {
    let hot = SamplingOptions { temperature: 0.9, seed: Some(which as u64), ..SamplingOptions::default() };
    match which {
        0 => SamplingOptions::default(),
        1 => hot,
        2 => SamplingOptions { temperature: 1.3, top_k: Some(20), top_p: 0.8, ..hot },
        3 => SamplingOptions { min_p: 0.1, ..hot },
        _ => SamplingOptions { repetition_penalty: 1.3, ..hot },
    }
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    ask: Ask,
    /// Rounds of events to wait before it is submitted.
    wait: usize,
    /// Rounds after which it is cancelled.
    cancel: Option<usize>,
}

fn request(ask: Ask) -> gristmill_engine::Request {
    let tokens = prompt(ask.len, ask.salt);
    match ask.tokens {
        Some(n) => sample(tokens, n, policy(ask.policy)),
        None => score(tokens, ask.len / 2),
    }
}

/// Answers alone, made once.
fn expected(case: &'static str, ask: Ask) -> Answer {
    static KNOWN: LazyLock<Mutex<HashMap<(&'static str, Ask), Answer>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap();
    let options = EngineOptions { context: Some(96), ..EngineOptions::default() };
    known.entry((case, ask)).or_insert_with(|| alone(case, request(ask), options)).clone()
}

fn turn() -> impl Strategy<Value = Turn> {
    let len = prop::sample::select(vec![1usize, 5, 15, 16, 17, 40, 64, 70]);
    let tokens = prop::option::weighted(0.8, prop::sample::select(vec![1usize, 3, 18]));
    let ask = (len, 0..3u32, tokens, 0..5usize).prop_map(|(len, salt, tokens, policy)| Ask {
        len,
        salt,
        tokens,
        policy,
    });
    let cancel = prop::option::weighted(0.2, 0..5usize);
    (ask, 0..3usize, cancel).prop_map(|(ask, wait, cancel)| Turn { ask, wait, cancel })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_that_given_alone(
        turns in prop::collection::vec(turn(), 1..9),
        case in prop::sample::select(vec!["llama", "mistral", "lfm2"]),
        max_sequences in 1..6usize,
        chunk in prop::sample::select(vec![1usize, 7, 16, 64, 512]),
        blocks in 6..20usize,
        run_ahead in any::<bool>(),
    ) {
        let base = EngineOptions { context: Some(96), max_sequences, chunk, run_ahead: Some(run_ahead), ..EngineOptions::default() };
        let bytes = Desk::on(case, Fault::None, base.clone()).bytes_of(blocks);
        let mut desk = Desk::on(case, Fault::None, EngineOptions { cache_bytes: Some(bytes), ..base });
        let (mut ids, mut cancels, mut round) = (vec![], vec![], 0);
        let mut rounds = |desk: &mut Desk, cancels: &mut Vec<(usize, _)>, n: usize| {
            for _ in 0..n {
                let more = desk.advance();
                round += 1;
                for (_, id) in cancels.extract_if(.., |(at, _)| *at <= round) {
                    desk.cancel(id);
                }
                if !more {
                    break;
                }
            }
            round
        };
        for turn in &turns {
            let now = rounds(&mut desk, &mut cancels, turn.wait);
            let id = desk.submit(request(turn.ask));
            ids.push(id);
            cancels.extend(turn.cancel.map(|after| (now + after, id)));
        }
        rounds(&mut desk, &mut cancels, 100_000);
        prop_assert!(desk.open.is_empty() && !desk.advance());
        for (turn, id) in turns.iter().zip(ids) {
            let want = expected(case, turn.ask);
            let got = desk.answers.get(&id).cloned().unwrap_or_default();
            if turn.cancel.is_none() || got.end.is_some() {
                prop_assert_eq!(got, want);
            } else {
                // Cancelled on the way: what there is, is the beginning.
                prop_assert!(want.tokens.starts_with(&got.tokens));
                prop_assert!(got.logits.iter().all(|(at, row)| want.logits.get(at) == Some(row)));
            }
        }
    }
}

#[test]
fn the_pools_of_these_tests_are_as_small_as_they_say() {
    let options = EngineOptions { context: Some(96), ..EngineOptions::default() };
    assert_eq!(Desk::new(pool_of(7, options)).engine.cache_size().blocks, 7);
}

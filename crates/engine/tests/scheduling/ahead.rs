//! Steps submitted before the tokens of the one before them are read. What a request gets is that of one step at a time;
//! `mixes` shows it for everything at once.

use std::task::{Context, Waker};

use checks::faults::Fault;
use gristmill_engine::sampling::{SamplingError, SamplingOptions, Stage};
use gristmill_engine::{EngineError, EngineOptions, Finish, Request, Task};

use crate::desk::{Answer, Desk, alone, generate, pool_of, prompt, sample};

fn options() -> EngineOptions {
    EngineOptions { context: Some(128), run_ahead: Some(true), ..EngineOptions::default() }
}

/// One step at a time, tokens drawn by the host.
fn at_rest(request: Request) -> Answer {
    alone("llama", request, EngineOptions { run_ahead: Some(false), ..options() })
}

fn hot(seed: u64) -> SamplingOptions {
    SamplingOptions { temperature: 1.1, top_k: Some(40), top_p: 0.95, seed: Some(seed), ..Default::default() }
}

#[test]
fn two_steps_are_in_flight_and_the_tokens_are_the_same() {
    for (request, in_flight) in [
        (generate(prompt(20, 1), 30), 2),
        (sample(prompt(20, 2), 30, hot(3)), 2),
        // Penalties need the host: it draws before the next step.
        (sample(prompt(20, 2), 30, SamplingOptions { repetition_penalty: 1.2, ..hot(3) }), 1),
    ] {
        let mut desk = Desk::new(options());
        let id = desk.submit(request.clone());
        desk.finish();
        assert_eq!(desk.answer(id), &at_rest(request));
        assert_eq!(desk.device.most_in_flight(), in_flight);
    }
    let mut desk = Desk::new(EngineOptions { run_ahead: Some(false), ..options() });
    desk.submit(generate(prompt(20, 1), 30));
    desk.finish();
    assert_eq!(desk.device.most_in_flight(), 1);
}

/// A step beside one that waits for the host would miss its sequence, and then every other step would.
#[test]
fn who_waits_for_the_host_is_in_every_step() {
    let mut desk = Desk::new(options());
    desk.device.hold();
    desk.submit(sample(prompt(20, 1), 12, hot(1)));
    desk.submit(sample(prompt(20, 2), 12, SamplingOptions { repetition_penalty: 1.2, ..hot(2) }));
    desk.settle();
    while !desk.open.is_empty() {
        desk.device.end_step();
        desk.settle();
    }
    let mut want = vec![vec![1, 1]; 12];
    want[0] = vec![20, 20];
    assert_eq!(desk.device.steps(), want);
}

#[test]
fn logits_are_read_only_where_somebody_looks_at_them() {
    let read = |sampling: SamplingOptions, logits: bool| {
        let options = EngineOptions { logits, ..options() };
        let mut desk = Desk::without_logits("llama", Fault::None, options);
        desk.submit(sample(prompt(20, 1), 10, sampling));
        desk.finish();
        desk.device.outputs()
    };
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert_eq!(read(SamplingOptions::default(), false), names(&["tokens"]));
    assert_eq!(read(hot(1), false), names(&["tokens"]));
    assert_eq!(read(hot(1), true), names(&["logits", "tokens"]));
    for on_host in [
        SamplingOptions { presence_penalty: 0.5, ..hot(1) },
        SamplingOptions { frequency_penalty: 0.5, ..hot(1) },
        SamplingOptions { repetition_penalty: 1.1, ..hot(1) },
        SamplingOptions { logit_bias: vec![(5, 1.0)], ..hot(1) },
        SamplingOptions { logprobs: Some(0), ..SamplingOptions::default() },
        SamplingOptions { stages: Stage::LLAMA_CPP, ..hot(1) },
    ] {
        assert_eq!(read(on_host, false), names(&["logits"]));
    }
    // The order of stages that do nothing does not matter, nor that of top-k and temperature.
    let cold = SamplingOptions { stages: Stage::LLAMA_CPP, temperature: 0.0, ..hot(1) };
    let few = SamplingOptions { stages: Stage::LLAMA_CPP, top_p: 1.0, ..hot(1) };
    let plain = SamplingOptions { stages: Stage::LLAMA_CPP, temperature: 1.0, ..hot(1) };
    for on_device in [cold, few, plain] {
        assert_eq!(read(on_device, false), names(&["tokens"]));
    }
}

/// That log-probabilities are asked for, which keeps a request on the host, changes no token.
#[test]
fn host_and_device_draw_the_same_tokens() {
    for (seed, stages) in [(1, Stage::TRANSFORMERS), (2, Stage::TRANSFORMERS), (3, Stage::LLAMA_CPP)] {
        let policy = SamplingOptions { temperature: 1.0, stages, ..hot(seed) };
        let told = SamplingOptions { logprobs: Some(1), ..policy.clone() };
        let request = |sampling| sample(prompt(30, seed as u32), 60, sampling);
        let device = alone("llama", request(policy), options());
        let host = alone("llama", request(told), options());
        assert_eq!(device.tokens.len(), 60);
        assert_eq!(device, host);
    }
}

#[test]
fn nothing_is_computed_past_a_known_end() {
    let mut desk = Desk::new(options());
    desk.submit(generate(prompt(20, 1), 6));
    desk.finish();
    assert_eq!(desk.device.steps(), [vec![20], vec![1], vec![1], vec![1], vec![1], vec![1]]);
    // The context is as well known.
    let mut desk = Desk::new(EngineOptions { context: Some(24), ..options() });
    let id = desk.submit(generate(prompt(20, 1), 100));
    desk.finish();
    assert_eq!(desk.answer(id).end, Some(Ok(Finish::ContextFull)));
    assert_eq!(desk.device.steps(), [vec![20], vec![1], vec![1], vec![1]]);
}

#[test]
fn the_row_behind_a_stop_token_is_seen_by_nobody() {
    let free = at_rest(generate(prompt(20, 1), 30)).tokens;
    let at = (5..20).find(|at| !free[..*at].contains(&free[*at])).expect("a token that is new");
    let stopping = || {
        let task = Task::Generate {
            max_tokens: Some(30),
            sampling: SamplingOptions::default(),
            entropy: 0,
            stop: vec![free[at]],
        };
        Request { prompt: prompt(20, 1), task, session: None }
    };
    let want = at_rest(stopping());
    assert_eq!((&want.tokens[..], &want.end), (&free[..=at], &Some(Ok(Finish::Stop))));

    let mut desk = Desk::new(pool_of(8, options()));
    let id = desk.submit(stopping());
    let other = desk.submit(generate(prompt(9, 2), 40));
    desk.finish();
    assert_eq!(desk.answer(id), &want);
    assert_eq!(desk.answer(other), &at_rest(generate(prompt(9, 2), 40)));
    // One row too many, and what it lay in is free: the whole pool serves one that needs it.
    let pairs = desk.device.steps().iter().filter(|step| step.len() == 2).count();
    assert_eq!(pairs, at + 2);
    let whole = desk.submit(generate(prompt(100, 3), 28));
    desk.finish();
    assert_eq!(desk.answer(whole), &at_rest(generate(prompt(100, 3), 28)));
}

/// Blocks and slots change hands while steps in flight still write them.
#[test]
fn what_a_cancelled_request_held_serves_the_next_at_once() {
    for rounds in 0..6 {
        let mut desk = Desk::new(pool_of(8, EngineOptions { max_sequences: 1, ..options() }));
        let first = desk.submit(sample(prompt(90, 0), 30, hot(1)));
        let next = [sample(prompt(100, 1), 20, hot(2)), generate(prompt(30, 2), 20)];
        let ids = next.clone().map(|request| desk.submit(request));
        for _ in 0..rounds {
            assert!(desk.advance());
        }
        // Starts steps, whatever becomes of them.
        let mut cx = Context::from_waker(Waker::noop());
        let _ = desk.engine.poll(&mut cx);
        desk.cancel(first);
        desk.finish();
        for (id, request) in ids.into_iter().zip(next) {
            assert_eq!(desk.answer(id), &at_rest(request), "cancelled after {rounds} rounds");
        }
    }
}

#[test]
fn a_preempted_sequence_draws_again_what_nobody_had_read() {
    let request = |i: u32| sample(prompt(20, i), 60, hot(u64::from(i)));
    let mut desk = Desk::new(pool_of(10, options()));
    let ids: Vec<_> = (0..4).map(|i| desk.submit(request(i))).collect();
    desk.finish();
    assert!(desk.device.starts() > 4, "nothing was preempted");
    for (i, id) in ids.into_iter().enumerate() {
        assert_eq!(desk.answer(id), &at_rest(request(i as u32)), "request {i}");
    }
}

/// A sequence that gives its blocks up runs again while a step of its earlier life is still in flight: what that step drew is
/// not taken for what it draws now.
#[test]
fn a_preempted_sequence_takes_nothing_of_its_earlier_life() {
    // The older one ends with 79 tokens, in five blocks of the eight, and the newer one then needs a fourth.
    let (ending, growing) = (generate(prompt(70, 0), 9), sample(prompt(40, 1), 30, hot(5)));
    let mut seen = 0;
    for steps in 1..12 {
        let mut desk = Desk::new(pool_of(8, options()));
        desk.device.hold();
        let ids = [ending.clone(), growing.clone()].map(|request| desk.submit(request));
        desk.settle();
        for _ in 0..steps {
            desk.device.end_step();
            desk.settle();
        }
        let ended = desk.ended.contains(&ids[0]);
        desk.cancel(ids[0]);
        desk.settle();
        seen += usize::from(!ended && desk.device.starts() > 2);
        desk.device.release();
        desk.finish();
        assert_eq!(desk.answer(ids[1]), &at_rest(growing.clone()), "after {steps} steps");
    }
    assert!(seen > 0, "no sequence ran again beside its earlier life");
}

/// The host does not see the logits; the device says that they are no numbers.
#[test]
fn logits_that_are_no_numbers_fail_their_request_alone() {
    let bad = || {
        let mut bad = prompt(12, 0);
        *bad.last_mut().unwrap() = 299;
        generate(bad, 6)
    };
    for run_ahead in [true, false] {
        let options = EngineOptions { run_ahead: Some(run_ahead), ..options() };
        let mut desk = Desk::without_logits("llama", Fault::NanFrom(299), options);
        let before = desk.submit(generate(prompt(9, 1), 6));
        let failing = desk.submit(bad());
        let after = desk.submit(sample(prompt(15, 2), 6, hot(1)));
        desk.finish();
        let error = EngineError::Sampling(SamplingError::Logit { id: 0 });
        assert_eq!(desk.answer(failing).end, Some(Err(error)));
        assert_eq!(desk.answer(before).tokens, at_rest(generate(prompt(9, 1), 6)).tokens);
        assert_eq!(desk.answer(after).tokens, at_rest(sample(prompt(15, 2), 6, hot(1))).tokens);
    }
}

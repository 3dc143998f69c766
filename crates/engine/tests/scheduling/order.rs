//! Who runs when, who gives way, and who is left alone.

use std::task::{Context, Waker};

use checks::faults::Fault;
use gristmill_engine::sampling::SamplingOptions;
use gristmill_engine::{EngineError, EngineOptions, Finish, Request, Task};

use crate::desk::{Desk, alone, generate, pool_of, prompt, score};

/// Without steps ahead, which `ahead.rs` tries: what is scheduled after a token is in the step behind it.
fn options() -> EngineOptions {
    EngineOptions { context: Some(128), run_ahead: Some(false), ..EngineOptions::default() }
}

#[test]
fn requests_run_in_the_order_they_came() {
    let mut desk = Desk::new(EngineOptions { max_sequences: 2, ..options() });
    let ids: Vec<_> = (0..6).map(|i| desk.submit(generate(prompt(10 + i as usize, i), 4))).collect();
    desk.finish();
    assert_eq!(desk.begun, ids);
    assert_eq!(desk.ended, ids);
    assert!(desk.device.steps().iter().all(|step| step.len() <= 2));
}

#[test]
fn sequences_share_steps() {
    let mut desk = Desk::new(options());
    let ids: Vec<_> = (0..5).map(|i| desk.submit(generate(prompt(10 + i as usize, i), 4))).collect();
    desk.finish();
    assert_eq!(desk.device.steps()[0], [10, 11, 12, 13, 14]);
    assert_eq!(desk.device.steps()[1..], vec![vec![1; 5]; 3]);
    assert!(ids.iter().all(|id| desk.answer(*id).tokens.len() == 4));
}

#[test]
fn prompts_share_the_rows_of_a_step_and_decoding_goes_on() {
    let mut desk = Desk::new(EngineOptions { chunk: 8, ..options() });
    desk.submit(generate(prompt(4, 0), 20));
    assert!(desk.advance());
    desk.submit(generate(prompt(20, 1), 2));
    desk.finish();
    let steps = desk.device.steps();
    assert_eq!(steps[..5], [vec![4], vec![1, 7], vec![1, 7], vec![1, 6], vec![1, 1]]);
    assert!(steps.iter().all(|step| step.iter().sum::<u32>() <= 8));
}

#[test]
fn a_request_that_waits_for_blocks_is_not_overtaken_and_runs() {
    // Four blocks: the first takes three of them, the second needs four, the third would fit beside the first.
    let mut desk = Desk::new(pool_of(4, EngineOptions { context: Some(64), ..options() }));
    let lengths = [40, 50, 10];
    let ids = lengths.map(|n| desk.submit(generate(prompt(n, n as u32), 3)));
    desk.finish();
    assert_eq!(desk.begun, ids);
    assert!(ids.iter().all(|id| desk.answer(*id).end == Some(Ok(Finish::MaxTokens))));
}

/// A long output is never held up by those that keep coming, nor do they wait for its end.
#[test]
fn nobody_starves() {
    let mut desk = Desk::new(pool_of(9, EngineOptions { max_sequences: 3, chunk: 16, ..options() }));
    let long = desk.submit(generate(prompt(20, 0), 100));
    let mut others = vec![];
    for i in 0..12 {
        others.push(desk.submit(generate(prompt(17 + i as usize, i), 20)));
        desk.advance();
    }
    let mut rounds = 0;
    while desk.advance() {
        rounds += 1;
        assert!(rounds < 2000);
    }
    assert_eq!(desk.answer(long).tokens.len(), 100);
    assert!(others.iter().all(|id| desk.answer(*id).tokens.len() == 20));
    assert!(desk.ended.iter().position(|id| *id == long) >= Some(3), "the others waited for the longest");
    // The oldest is in every step until it ends: it is never preempted.
    assert!(desk.device.starts() > 13, "nothing was preempted");
    assert_eq!(desk.answer(long).logits, alone("llama", generate(prompt(20, 0), 100), options()).logits);
}

#[test]
fn cancelling_frees_blocks_before_the_next_step() {
    // One sequence fills the pool.
    let small = || pool_of(4, EngineOptions { context: Some(64), ..options() });
    let mut desk = Desk::new(small());
    let first = desk.submit(generate(prompt(60, 0), 4));
    let second = desk.submit(generate(prompt(60, 1), 2));
    assert!(desk.advance());
    desk.cancel(first);
    let steps = desk.device.steps().len();
    assert!(desk.advance());
    // The very next step is the other's.
    assert_eq!(desk.device.steps()[steps..], [[60]]);
    desk.finish();
    assert_eq!(desk.answer(second), &alone("llama", generate(prompt(60, 1), 2), options()));
    assert_eq!((desk.answer(first).tokens.len(), &desk.answer(first).end), (1, &None));
}

#[test]
fn cancelling_during_prefill_frees_blocks_too() {
    let mut desk = Desk::new(pool_of(4, EngineOptions { context: Some(64), chunk: 16, ..options() }));
    // Scores are reported chunk by chunk, which shows that the prompt is not through.
    let first = desk.submit(score(prompt(60, 0), 0));
    let second = desk.submit(generate(prompt(50, 1), 2));
    assert!(desk.advance());
    assert_eq!((desk.answer(first).logits.len(), desk.device.steps().len()), (16, 1));
    desk.cancel(first);
    desk.finish();
    assert_eq!(desk.device.steps()[1..5], [[16], [16], [16], [2]]);
    assert_eq!(desk.answer(first).logits.len(), 16);
    assert_eq!(desk.answer(second), &alone("llama", generate(prompt(50, 1), 2), options()));
}

#[test]
fn cancelling_while_a_step_is_in_flight_silences_the_request() {
    let mut desk = Desk::new(EngineOptions { max_sequences: 1, ..options() });
    let first = desk.submit(generate(prompt(100, 0), 50));
    let second = desk.submit(generate(prompt(8, 1), 3));
    // Starts a step; whether it has finished when this returns does not matter.
    let mut cx = Context::from_waker(Waker::noop());
    let _ = desk.engine.poll(&mut cx);
    desk.cancel(first);
    desk.finish();
    assert!(!desk.begun.contains(&first), "an event after cancelling");
    assert_eq!(desk.answer(second), &alone("llama", generate(prompt(8, 1), 3), options()));
}

#[test]
fn cancelling_before_any_step_leaves_nothing() {
    let mut desk = Desk::new(options());
    let nothing = desk.submit(generate(prompt(5, 0), 0));
    let waiting = desk.submit(generate(prompt(5, 0), 5));
    desk.cancel(nothing);
    desk.cancel(waiting);
    assert!(!desk.advance());
    assert!(desk.answers.is_empty() && desk.device.steps().is_empty());
}

/// Sampled, not greedy: draws are a function of seed and position, so a sequence that is computed again draws the same.
#[test]
fn preempted_sequences_draw_the_same_tokens() {
    let request = |i: u32| {
        let sampling = SamplingOptions {
            temperature: 0.9,
            repetition_penalty: 1.2,
            seed: Some(u64::from(i)),
            ..SamplingOptions::default()
        };
        let task = Task::Generate { max_tokens: Some(40), sampling, entropy: 0, stop: vec![] };
        Request { prompt: prompt(20, i), task, session: None }
    };
    let mut desk = Desk::new(pool_of(8, options()));
    let ids: Vec<_> = (0..4).map(|i| desk.submit(request(i))).collect();
    desk.finish();
    assert!(desk.device.starts() > 4, "nothing was preempted");
    for (i, id) in ids.into_iter().enumerate() {
        assert_eq!(desk.answer(id), &alone("llama", request(i as u32), options()), "request {i}");
    }
}

#[test]
fn logits_that_are_no_numbers_fail_their_request_alone() {
    let mut desk = Desk::on("llama", Fault::NanAfter(299), options());
    let mut bad = prompt(12, 0);
    *bad.last_mut().unwrap() = 299;
    let before = desk.submit(generate(prompt(9, 1), 6));
    let failing = desk.submit(generate(bad, 6));
    let after = desk.submit(generate(prompt(15, 2), 6));
    desk.finish();
    let end = desk.answer(failing).end.clone();
    assert!(matches!(end, Some(Err(EngineError::Sampling(_)))), "{end:?}");
    for (id, request) in [(before, generate(prompt(9, 1), 6)), (after, generate(prompt(15, 2), 6))] {
        assert_eq!(desk.answer(id), &alone("llama", request, options()));
    }
    // What it held is free again: a request that needs the whole context runs.
    let whole = desk.submit(generate(prompt(127, 3), 1));
    desk.finish();
    assert_eq!(desk.answer(whole).tokens.len(), 1);
}

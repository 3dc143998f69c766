//! Requests whose rows the device refuses fail alone, with their position; all others in the step go on. So do those beside a
//! sampler that panics.
//!
//! The fault makes the embedding of a token no number, so the first router of a mixture refuses each row of it.

use checks::faults::Fault;
use graph::backend::Precision;
use gristmill_engine::sampling::{CustomSampling, Draw, SamplingOptions, Seen};
use gristmill_engine::{EngineError, EngineOptions, Finish, Request};

use crate::desk::{Desk, alone, generate, prompt, sample, score};

const BAD: u32 = 299;
const MODEL: &str = "qwen3_moe";

fn options(precision: Precision, chunk: usize) -> EngineOptions {
    EngineOptions { context: Some(128), precision: Some(precision), chunk, ..EngineOptions::default() }
}

fn ahead(run_ahead: bool, options: EngineOptions) -> EngineOptions {
    EngineOptions { run_ahead: Some(run_ahead), ..options }
}

/// A prompt with the bad token at these positions.
fn with_bad(len: usize, salt: u32, at: &[usize]) -> Vec<u32> {
    let mut tokens = prompt(len, salt);
    at.iter().for_each(|i| tokens[*i] = BAD);
    tokens
}

#[track_caller]
fn failed_at(desk: &Desk, id: gristmill_engine::RequestId) -> usize {
    match &desk.answer(id).end {
        Some(Err(EngineError::Numeric { position, op, .. })) if op == "route" => *position,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_requests_of_refused_rows_fail_and_no_others() {
    // Each good request, and the bad positions of each bad one; in the order of submission.
    let mix: [Result<Request, &[usize]>; 8] = [
        Ok(generate(prompt(9, 1), 6)),
        Err(&[5]),
        Ok(generate(prompt(15, 2), 6)),
        Err(&[3, 4, 11]),
        Err(&[0]),
        Ok(score(prompt(13, 3), 2)),
        Err(&[11]),
        Ok(generate(prompt(1, 4), 6)),
    ];
    for precision in [Precision::Exact, Precision::Fast] {
        // Chunks cut some bad prompts before their bad token, others behind it.
        for (chunk, run_ahead) in [(512, false), (512, true), (10, true), (10, false), (1, true)] {
            let options = || ahead(run_ahead, options(precision, chunk));
            let mut desk = Desk::on(MODEL, Fault::NanFrom(BAD), options());
            let ids = mix
                .clone()
                .map(|request| desk.submit(request.unwrap_or_else(|at| generate(with_bad(12, 9, at), 6))));
            desk.finish();
            assert!(chunk < 512 || desk.device.steps()[0].len() == ids.len(), "all share the first step");
            for (request, id) in mix.iter().zip(ids) {
                match request {
                    Ok(request) => {
                        let want = alone(MODEL, request.clone(), options());
                        assert_eq!(desk.answer(id), &want, "{precision:?}, chunks of {chunk}");
                    }
                    Err(at) => {
                        assert_eq!(failed_at(&desk, id), at[0], "{precision:?}, chunks of {chunk}");
                        assert!(desk.answer(id).tokens.is_empty());
                    }
                }
            }
        }
    }
}

/// A token that the request itself drew: it has been reported, what came before stands.
#[test]
fn a_request_fails_while_it_decodes() {
    for run_ahead in [false, true] {
        fails_while_it_decodes(&ahead(run_ahead, options(Precision::Exact, 512)));
    }
}

fn fails_while_it_decodes(options: &EngineOptions) {
    let options = || options.clone();
    let free = alone(MODEL, generate(prompt(9, 1), 8), options());
    let others = [generate(prompt(20, 5), 12), generate(prompt(3, 6), 12)];
    let want = others.clone().map(|request| alone(MODEL, request, options()));
    let prompts = [prompt(20, 5), prompt(3, 6), prompt(9, 1)].concat();
    let ours = |token: &u32| !prompts.contains(token) && want.iter().all(|w| !w.tokens.contains(token));
    let at = free.tokens[..7].iter().position(ours).expect("a token that only this request draws");

    let mut desk = Desk::on(MODEL, Fault::NanFrom(free.tokens[at]), options());
    let [before, after] = others;
    let before = desk.submit(before);
    let failing = desk.submit(generate(prompt(9, 1), 8));
    let after = desk.submit(after);
    desk.finish();
    assert_eq!(failed_at(&desk, failing), 9 + at);
    assert_eq!(desk.answer(failing).tokens, free.tokens[..=at]);
    assert_eq!((desk.answer(before), desk.answer(after)), (&want[0], &want[1]));
}

#[test]
fn what_a_refused_request_held_is_free_again() {
    let mut desk = Desk::on(MODEL, Fault::NanFrom(BAD), options(Precision::Exact, 512));
    for salt in 0..3 {
        let failing: Vec<_> =
            (0..8).map(|i| desk.submit(generate(with_bad(100, salt + i, &[70 + i as usize]), 4))).collect();
        desk.finish();
        for (i, id) in failing.into_iter().enumerate() {
            assert_eq!(failed_at(&desk, id), 70 + i);
        }
    }
    let whole = desk.submit(generate(prompt(127, 3), 1));
    desk.finish();
    assert_eq!(desk.answer(whole).end, Some(Ok(Finish::MaxTokens)));
}

/// Cancelled while the step that would fail it is in flight: nothing is heard of it, and the others go on.
#[test]
fn a_cancelled_request_does_not_fail() {
    let options = || options(Precision::Exact, 512);
    let mut desk = Desk::on(MODEL, Fault::NanFrom(BAD), options());
    let failing = desk.submit(generate(with_bad(60, 1, &[50]), 4));
    let other = desk.submit(generate(prompt(8, 1), 3));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = desk.engine.poll(&mut cx);
    desk.cancel(failing);
    desk.finish();
    assert!(!desk.answers.contains_key(&failing));
    assert_eq!(desk.answer(other), &alone(MODEL, generate(prompt(8, 1), 3), options()));
}

#[test]
fn a_sampler_that_panics_fails_its_request_and_no_other() {
    let options = |run_ahead| ahead(run_ahead, options(Precision::Exact, 512));
    let panics = SamplingOptions {
        custom: Some(CustomSampling::new(|| {
            |_: &mut [f32], seen: &Seen<'_>| match seen.tokens.len() - seen.prompt {
                0 | 1 => Ok(Draw::Policy),
                _ => panic!("the mill stands still"),
            }
        })),
        ..SamplingOptions::default()
    };
    for run_ahead in [false, true] {
        let mut desk = Desk::on("llama", Fault::None, options(run_ahead));
        let session = desk.engine.open_session();
        let on = |request: Request| Request { session: Some(session), ..request };
        let before = desk.submit(generate(prompt(9, 1), 8));
        let bad = desk.submit(on(sample(prompt(9, 2), 8, panics.clone())));
        let behind = desk.submit(generate(prompt(9, 3), 8));
        desk.finish();
        for (id, salt) in [(before, 1), (behind, 3)] {
            let want = alone("llama", generate(prompt(9, salt), 8), options(false));
            assert_eq!(desk.answer(id), &want, "ahead: {run_ahead}");
        }
        let failed = desk.answer(bad);
        assert_eq!(failed.tokens.len(), 2);
        let Some(Err(error)) = &failed.end else { panic!("{failed:?}") };
        assert!(error.to_string().contains("it panicked: the mill stands still"), "{error}");
        // Its session is there for the next one.
        let next = desk.submit(on(generate(prompt(9, 2), 8)));
        desk.finish();
        assert_eq!(desk.answer(next), &alone("llama", generate(prompt(9, 2), 8), options(false)));
    }
}

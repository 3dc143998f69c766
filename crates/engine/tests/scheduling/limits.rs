//! What a request is refused for and what ends it.

use gristmill_engine::sampling::SamplingOptions;
use gristmill_engine::{EngineError, EngineOptions, Finish, Request, Task};

use crate::desk::{Desk, alone, generate, prompt, score};

fn small() -> EngineOptions {
    EngineOptions { context: Some(40), ..EngineOptions::default() }
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let mut desk = Desk::new(small());
    let error = desk.engine.submit(generate(prompt(41, 0), 5)).unwrap_err();
    assert_eq!(error, EngineError::PromptTooLong { prompt: 41, context: 40 });
    let message = error.to_string();
    assert!(message.contains("41") && message.contains("40"), "{message}");
    assert!(desk.engine.is_idle());
}

#[test]
fn empty_and_foreign_prompts_are_refused() {
    let mut desk = Desk::new(small());
    assert_eq!(desk.engine.submit(generate(vec![], 5)).unwrap_err(), EngineError::EmptyPrompt);
    let vocab = desk.engine.info().vocab;
    let error = desk.engine.submit(score(vec![1, vocab as u32], 0)).unwrap_err();
    assert_eq!(error, EngineError::TokenId { index: 1, id: vocab as u32, vocab });
}

#[test]
fn a_full_context_ends_the_output() {
    let mut desk = Desk::new(small());
    let id = desk.submit(generate(prompt(30, 1), 1000));
    let full = desk.submit(generate(prompt(40, 2), 1000));
    desk.finish();
    let answer = desk.answer(id);
    assert_eq!(answer.end, Some(Ok(Finish::ContextFull)));
    // Forty positions are computed, and each from the thirtieth on gives a token.
    assert_eq!(answer.tokens.len(), 11);
    // A prompt that fills the context still has its next token.
    assert_eq!((desk.answer(full).tokens.len(), &desk.answer(full).end), (1, &Some(Ok(Finish::ContextFull))));
}

#[test]
fn no_tokens_asked_for_are_no_tokens() {
    let mut desk = Desk::new(small());
    let id = desk.submit(generate(prompt(5, 0), 0));
    desk.finish();
    assert_eq!((desk.answer(id).tokens.len(), &desk.answer(id).end), (0, &Some(Ok(Finish::MaxTokens))));
    assert!(desk.device.steps().is_empty(), "nothing was to be computed");
}

#[test]
fn as_many_tokens_as_asked_for() {
    let mut desk = Desk::new(small());
    let ids = [1, 2, 7].map(|n| desk.submit(generate(prompt(5, 0), n)));
    desk.finish();
    for (id, n) in ids.iter().zip([1, 2, 7]) {
        assert_eq!((desk.answer(*id).tokens.len(), &desk.answer(*id).end), (n, &Some(Ok(Finish::MaxTokens))));
    }
}

#[test]
fn a_stop_token_is_reported_and_ends_the_output() {
    let free = alone("llama", generate(prompt(9, 3), 12), small());
    let stop = free.tokens[6];
    let first = free.tokens.iter().position(|t| *t == stop).unwrap();
    let task = Task::Generate {
        max_tokens: Some(12),
        sampling: SamplingOptions::default(),
        entropy: 0,
        stop: vec![stop],
    };
    let stopped = alone("llama", Request { prompt: prompt(9, 3), task }, small());
    assert_eq!(stopped.end, Some(Ok(Finish::Stop)));
    assert_eq!(stopped.tokens, free.tokens[..=first]);
}

#[test]
fn scores_begin_where_they_are_asked_for() {
    let options = || EngineOptions { chunk: 7, context: Some(64), ..EngineOptions::default() };
    let all = alone("llama", score(prompt(40, 4), 0), options());
    assert_eq!((all.logits.len(), &all.end), (40, &Some(Ok(Finish::Stop))));
    for from in [1, 6, 7, 20, 39] {
        let tail = alone("llama", score(prompt(40, 4), from), options());
        assert_eq!(tail.logits, all.logits.clone().split_off(&from), "from {from}");
    }
    let nothing = alone("llama", score(prompt(40, 4), 40), options());
    assert_eq!((nothing.logits.len(), nothing.end), (0, Some(Ok(Finish::Stop))));
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_what_would() {
    let needed = Desk::new(small()).bytes_of(3);
    let device = Desk::new(small()).device;
    let options = EngineOptions { cache_bytes: Some(needed - 1), ..small() };
    let engine = gristmill_engine::Engine::new(crate::desk::model("llama"), device, &options, &mut |_, _| {});
    let Err(error) = engine else { panic!("accepted") };
    assert!(matches!(error, EngineError::CacheTooSmall { fits: 32, .. }), "{error}");
}

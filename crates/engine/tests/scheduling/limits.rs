//! What a request is refused for and what ends it.

use checks::faults::Fault;
use gristmill_engine::sampling::SamplingOptions;
use gristmill_engine::{EngineError, EngineOptions, Finish, Request, Task};

use crate::desk::{Desk, alone, generate, pool_of, prompt, score};

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
    assert!(!desk.advance(), "a refused request is computed");
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
    // Prompt and output are forty tokens, whether or not the last of them has to be computed.
    for (n, tokens) in [(30, 10), (39, 1), (32, 8), (1, 39)] {
        let id = desk.submit(generate(prompt(n, 1), 1000));
        desk.finish();
        let answer = desk.answer(id);
        assert_eq!((answer.tokens.len(), &answer.end), (tokens, &Some(Ok(Finish::ContextFull))), "after {n}");
    }
    // As many as asked for is as many as asked for, also where they just fit.
    let id = desk.submit(generate(prompt(30, 1), 10));
    desk.finish();
    assert_eq!((desk.answer(id).tokens.len(), &desk.answer(id).end), (10, &Some(Ok(Finish::MaxTokens))));
}

#[test]
fn a_prompt_as_long_as_the_context_has_scores_but_no_output() {
    let mut desk = Desk::new(small());
    let error = desk.engine.submit(generate(prompt(40, 2), 1)).unwrap_err();
    assert_eq!(error, EngineError::NoRoomForOutput { context: 40 });
    assert!(error.to_string().contains("40 tokens and the context holds 40"), "{error}");
    let scored = desk.submit(score(prompt(40, 2), 0));
    let nothing = desk.submit(generate(prompt(40, 2), 0));
    desk.finish();
    assert_eq!((desk.answer(scored).logits.len(), &desk.answer(scored).end), (40, &Some(Ok(Finish::Stop))));
    assert_eq!(desk.answer(nothing).end, Some(Ok(Finish::MaxTokens)));
}

/// A pool of just one context: the oldest sequence reaches its end however many others want blocks.
#[test]
fn the_smallest_pool_holds_a_whole_context() {
    let mut desk = Desk::new(pool_of(3, small()));
    assert_eq!(desk.engine.cache_size().blocks, 3);
    let ids = [0, 1, 2].map(|i| desk.submit(generate(prompt(20, i), 1000)));
    desk.finish();
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(desk.answer(*id), &alone("llama", generate(prompt(20, i as u32), 1000), small()));
        assert_eq!(desk.answer(*id).tokens.len(), 20);
    }
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
    let stopped = alone("llama", Request { prompt: prompt(9, 3), task, session: None }, small());
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
    let desk = Desk::new(small());
    let refused = |bytes: u64, context| {
        let options = EngineOptions { cache_bytes: Some(bytes), context, ..small() };
        let device = desk.device.clone();
        let engine = gristmill_engine::Engine::new(
            crate::desk::model("llama"),
            vec![device],
            &options,
            &mut |_, _| {},
        );
        let Err(error) = engine else { panic!("accepted") };
        error
    };
    let needed = desk.bytes_of(3);
    let error = refused(needed - 1, Some(40));
    let EngineError::CacheTooSmall { context: 40, fits: 32, given: true, .. } = error else {
        panic!("{error}")
    };
    assert!(error.to_string().contains("at most 32 tokens fits"), "{error}");
    let error = refused(needed - 1, Some(1 << 30));
    assert!(matches!(error, EngineError::CacheTooSmall { context: 0x4000_0000, fits: 32, .. }), "{error}");
    // Where nothing fits, what would is said, whether or not a context was asked for.
    for context in [Some(40), None] {
        let error = refused(1, context);
        let EngineError::CacheTooSmall { fits: 0, least, .. } = error else { panic!("{error}") };
        assert_eq!(least, desk.bytes_of(1));
        let message = error.to_string();
        assert!(
            message.contains("and 1 B is the limit") && message.contains("not even the smallest"),
            "{message}"
        );
    }
}

#[test]
fn options_out_of_range_are_named_with_the_range() {
    let base = EngineOptions::default;
    for (options, name, most) in [
        (EngineOptions { chunk: 0, ..base() }, "chunk", "8192"),
        (EngineOptions { chunk: 8193, ..base() }, "chunk", "8192"),
        (EngineOptions { context: Some(0), ..base() }, "context", "1073741824"),
        (EngineOptions { context: Some(usize::MAX), ..base() }, "context", "1073741824"),
        (EngineOptions { max_sequences: 0, ..base() }, "max_sequences", "1024"),
    ] {
        let device = Desk::new(small()).device;
        let engine = gristmill_engine::Engine::new(
            crate::desk::model("llama"),
            vec![device],
            &options,
            &mut |_, _| {},
        );
        let Err(EngineError::Option { option, problem }) = engine else { panic!("{options:?} is accepted") };
        assert_eq!(option, name);
        assert!(problem.contains("between 1 and") && problem.contains(most), "{problem}");
    }
}

/// A request that scores its prompt fails at the first row that is no numbers; those before it are told, and others go on.
#[test]
fn scores_that_are_no_numbers_fail_with_their_position() {
    for (chunk, told) in [(512, 0..=0), (7, 1..=9), (1, 9..=9)] {
        let options = EngineOptions { chunk, ..small() };
        let mut desk = Desk::without_logits("llama", Fault::NanFrom(299), options.clone());
        let mut bad = prompt(20, 4);
        (bad[9], bad[15]) = (299, 299);
        let other = desk.submit(score(prompt(20, 3), 2));
        let failing = desk.submit(score(bad, 0));
        desk.finish();
        let answer = desk.answer(failing);
        let Some(Err(error @ EngineError::Numeric { position: 9, .. })) = &answer.end else {
            panic!("{:?}", answer.end)
        };
        assert!(error.to_string().contains("at position 9, logits: that of token 0 is NaN"), "{error}");
        // All of its steps before that one; the other request has rows in them too.
        let rows: Vec<usize> = answer.logits.keys().copied().collect();
        assert!(
            told.contains(&rows.len()) && rows == (0..rows.len()).collect::<Vec<_>>(),
            "{chunk}: {rows:?}"
        );
        assert_eq!(desk.answer(other), &alone("llama", score(prompt(20, 3), 2), options));
    }
}

//! Models whose prompts are cut at fixed positions.

use checks::faults::Fault;
use gristmill_engine::EngineOptions;

use crate::desk::{Desk, alone, generate, prompt, score};

fn options(chunk: usize) -> EngineOptions {
    EngineOptions { context: Some(256), chunk, ..EngineOptions::default() }
}

#[test]
fn chunks_end_at_cuts_or_at_the_end() {
    for chunk in [1, 7, 64, 100, 128, 200] {
        let mut desk = Desk::on("lfm2", Fault::None, options(chunk));
        desk.submit(generate(prompt(200, 0), 1));
        desk.finish();
        let mut end = 0;
        for rows in desk.device.steps().concat() {
            end += rows;
            assert!(end == 200 || end % 64 == 0, "chunks of {chunk}: one ends at {end}");
            assert!(rows as usize <= chunk.max(64), "chunks of {chunk}: one has {rows} rows");
        }
        assert_eq!(end, 200);
    }
}

/// More rows than a step reports, so that a prompt advances by cuts.
#[test]
fn long_prompts_are_scored() {
    let all = alone("lfm2", score(prompt(200, 1), 0), options(512));
    assert_eq!(all.logits.len(), 200);
    let small = alone("lfm2", score(prompt(200, 1), 90), options(1));
    assert_eq!(small.logits, all.logits.clone().split_off(&90));
}

/// A prompt advances by a cut in every step, however many others decode.
#[test]
fn prompts_advance_beside_others_that_decode() {
    let mut desk = Desk::on("lfm2", Fault::None, options(64));
    let others: Vec<_> = (0..6).map(|i| desk.submit(generate(prompt(3, i), 60))).collect();
    assert!(desk.advance());
    let long = desk.submit(generate(prompt(150, 9), 2));
    let scored = desk.submit(score(prompt(150, 8), 0));
    desk.finish();
    let ends = |id| desk.ended.iter().position(|e| *e == id).unwrap();
    assert!(others.iter().all(|id| ends(long) < ends(*id) && ends(scored) < ends(*id)));
    assert_eq!(desk.answer(long), &alone("lfm2", generate(prompt(150, 9), 2), options(512)));
    assert_eq!(desk.answer(scored), &alone("lfm2", score(prompt(150, 8), 0), options(512)));
}

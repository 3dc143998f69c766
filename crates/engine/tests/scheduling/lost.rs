//! A device that is lost fails the requests of the steps in flight, and no others.

use checks::faults::{Fault, LOST};
use graph::backend::DeviceError;
use gristmill_engine::sampling::SamplingOptions;
use gristmill_engine::{EngineError, EngineOptions, Finish};

use crate::desk::{Answer, Desk, alone, generate, pool_of, prompt, sample, score};

fn options(run_ahead: bool) -> EngineOptions {
    EngineOptions { context: Some(128), run_ahead: Some(run_ahead), ..EngineOptions::default() }
}

fn lost() -> Option<Result<Finish, EngineError>> {
    Some(Err(EngineError::Device(DeviceError::Lost(LOST.to_owned()))))
}

#[test]
fn the_request_fails_and_the_next_one_is_answered() {
    for run_ahead in [false, true] {
        for step in [0, 1, 5] {
            let request =
                || sample(prompt(20, 1), 12, SamplingOptions { temperature: 0.8, ..Default::default() });
            let want = alone("llama", request(), options(false));
            let mut desk = Desk::on("llama", Fault::Lost(step), options(run_ahead));
            let failing = desk.submit(request());
            desk.finish();
            // Told apart from an end, with what was read before: of the first step nothing, of the sixth five tokens.
            assert_eq!(desk.answers.get(&failing).map(|a| a.end.clone()), Some(lost()));
            assert_eq!(desk.answer(failing).tokens, &want.tokens[..step]);
            // Nobody asked for anything since: the device is left alone.
            assert!(!desk.advance() && desk.device.reopened() == 0);
            for _ in 0..2 {
                let next = desk.submit(request());
                desk.finish();
                assert_eq!(desk.answer(next), &want, "lost at {step}");
            }
            assert_eq!(desk.device.reopened(), 1);
        }
    }
}

/// Two of five run when the device goes, the others wait and are none the wiser.
#[test]
fn requests_that_wait_are_answered() {
    for run_ahead in [false, true] {
        let two = EngineOptions { max_sequences: 2, ..options(run_ahead) };
        let requests = [
            generate(prompt(20, 1), 12),
            generate(prompt(33, 2), 12),
            score(prompt(40, 3), 10),
            generate(prompt(64, 4), 12),
            sample(prompt(7, 5), 12, SamplingOptions { temperature: 1.1, ..SamplingOptions::default() }),
        ];
        let mut desk = Desk::on("llama", Fault::Lost(4), two);
        let ids = requests.clone().map(|request| desk.submit(request));
        desk.finish();
        for (i, (id, request)) in ids.into_iter().zip(requests).enumerate() {
            if i < 2 {
                assert_eq!(desk.answer(id).end, lost());
            } else {
                assert_eq!(desk.answer(id), &alone("llama", request, options(false)), "request {i}");
            }
        }
        assert_eq!(desk.device.reopened(), 1);
    }
}

/// A sequence that runs but is not in the step that fails, for lack of rows, has nothing on the device that is opened anew:
/// what it held there may be another's now.
#[test]
fn a_sequence_beside_the_lost_step_starts_over() {
    let request = |i: u32| generate(prompt(30, i), 10);
    // A prompt a step: the third sequence runs, but is not in it. The fourth waits.
    let narrow = EngineOptions { chunk: 30, max_sequences: 3, ..options(false) };
    let mut desk = Desk::on("llama", Fault::Lost(1), pool_of(20, narrow));
    let ids: Vec<_> = (0..4).map(|i| desk.submit(request(i))).collect();
    desk.finish();
    let ends: Vec<bool> = ids.iter().map(|id| desk.answer(*id).end == lost()).collect();
    assert!(ends.contains(&true) && ends.contains(&false), "{ends:?}");
    for (i, id) in ids.into_iter().enumerate().filter(|(i, _)| !ends[*i]) {
        let want: Answer = alone("llama", request(i as u32), options(false));
        assert_eq!(desk.answer(id), &want);
    }
}

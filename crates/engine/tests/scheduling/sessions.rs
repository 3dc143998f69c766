//! Sessions: what is kept, who gives way, and what is not to be relied on.

use checks::faults::Fault;
use gristmill_engine::{EngineError, EngineOptions, Finish, Request, SessionError, SessionId, Task};

use crate::desk::{Desk, alone, generate, pool_of, prompt, score};

fn options(run_ahead: bool) -> EngineOptions {
    EngineOptions { context: Some(128), run_ahead: Some(run_ahead), ..EngineOptions::default() }
}

fn on(session: SessionId, request: Request) -> Request {
    Request { session: Some(session), ..request }
}

/// Runs a request on a session; the positions it did not compute. Its answer is that of the request alone.
fn ask(desk: &mut Desk, case: &str, session: SessionId, request: Request) -> usize {
    let want = alone(case, request.clone(), options(false));
    let id = desk.submit(on(session, request));
    desk.finish();
    assert_eq!(desk.answer(id), &want);
    desk.reused[&id]
}

fn error(result: Result<impl Sized, EngineError>) -> SessionError {
    match result.err() {
        Some(EngineError::Session(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_has_one_request_at_a_time() {
    let mut desk = Desk::new(options(false));
    let session = desk.engine.open_session();
    let id = desk.submit(on(session, generate(prompt(20, 1), 8)));
    let busy = |desk: &mut Desk| {
        let refused = desk.engine.submit(on(session, generate(prompt(20, 1), 8)));
        assert_eq!(error(refused), SessionError::Busy);
        assert_eq!(error(desk.engine.save_session(session, b"")), SessionError::Busy);
    };
    busy(&mut desk);
    assert!(desk.advance());
    busy(&mut desk);
    desk.finish();
    assert_eq!(desk.engine.session_tokens(session).unwrap().len(), 27);
    // One that is cancelled before it runs leaves what was there.
    let waiting = desk.submit(on(session, generate(prompt(9, 3), 8)));
    desk.cancel(waiting);
    assert_eq!(desk.engine.session_tokens(session).unwrap().len(), 27);
    // A closed session's request goes on, and its blocks come back.
    let last = desk.submit(on(session, generate(prompt(20, 1), 8)));
    assert!(desk.advance());
    desk.engine.close_session(session);
    desk.finish();
    assert_eq!(desk.answer(last), desk.answer(id));
    assert_eq!(error(desk.engine.session_tokens(session)), SessionError::Unknown);
    let gone = desk.engine.submit(on(session, generate(prompt(20, 1), 8)));
    assert_eq!(error(gone), SessionError::Unknown);
    let whole = desk.submit(generate(prompt(100, 2), 28));
    desk.finish();
    assert_eq!(desk.answer(whole).end, Some(Ok(Finish::MaxTokens)));
}

/// Of a prompt whose logits are wanted from some position on, no more is left out than lies before.
#[test]
fn scores_are_of_the_positions_that_were_asked_for() {
    for case in ["llama", "lfm2"] {
        let mut desk = Desk::on(case, Fault::None, options(false));
        let session = desk.engine.open_session();
        assert_eq!(ask(&mut desk, case, session, score(prompt(70, 1), 0)), 0);
        let reused = ask(&mut desk, case, session, score(prompt(70, 1), 69));
        assert_eq!(reused, 69, "{case}");
        let part = ask(&mut desk, case, session, score(prompt(70, 1), 30));
        assert_eq!(part, if case == "llama" { 30 } else { 0 }, "{case}");
        assert_eq!(ask(&mut desk, case, session, score(prompt(70, 1), 0)), 0);
    }
}

/// The row behind a stop token that is one step ahead is a row of the session as any other.
#[test]
fn answers_that_a_token_ends_go_on() {
    for case in ["llama", "lfm2"] {
        let free = alone(case, generate(prompt(20, 1), 6), options(false)).tokens;
        let ends = free.iter().position(|id| *id == free[3]).unwrap();
        for run_ahead in [false, true] {
            let mut desk = Desk::on(case, Fault::None, options(run_ahead));
            let session = desk.engine.open_session();
            let mut first = generate(prompt(20, 1), 6);
            let Task::Generate { stop, .. } = &mut first.task else { unreachable!() };
            *stop = vec![free[3]];
            assert_eq!(ask(&mut desk, case, session, first), 0);
            let known = [&prompt(20, 1)[..], &free[..=ends]].concat();
            let next = [&known[..], &prompt(9, 5)].concat();
            let reused = ask(&mut desk, case, session, generate(next, 4));
            assert_eq!(reused, known.len() - usize::from(!run_ahead), "{case}, ahead: {run_ahead}");
        }
    }
}

/// However an answer is broken off, the prompt is not computed again; with as many steps in flight as there may be, too, of
/// which the last has the row of a token that nobody has read.
#[test]
fn answers_that_are_broken_off_leave_what_was_computed() {
    for case in ["llama", "lfm2"] {
        for (run_ahead, polls, held) in (0..20).map(|i| (i % 2 > 0, i / 4, i % 4 > 1)) {
            let mut desk = Desk::on(case, Fault::None, options(run_ahead));
            let session = desk.engine.open_session();
            let id = desk.submit(on(session, generate(prompt(70, 1), 20)));
            (0..polls).for_each(|_| assert!(desk.advance()));
            if held {
                desk.device.hold();
                desk.settle();
            }
            desk.cancel(id);
            desk.device.release();
            let read = desk.answers.get(&id).map(|a| a.tokens.clone()).unwrap_or_default();
            let next = [&prompt(70, 1)[..], &read, &prompt(9, 5)].concat();
            let reused = ask(&mut desk, case, session, generate(next, 4));
            let least = if polls == 0 && !held { 0 } else { 69 };
            assert!(reused >= least, "{case} after {polls} polls, ahead: {run_ahead}: {reused}");
        }
    }
}

#[test]
fn the_session_that_was_used_longest_ago_gives_way() {
    // Three sessions of two blocks and a request of three.
    let mut desk = Desk::on("llama", Fault::None, pool_of(8, options(false)));
    let sessions = [0; 3].map(|_| desk.engine.open_session());
    for (i, session) in sessions.into_iter().enumerate() {
        ask(&mut desk, "llama", session, generate(prompt(20, i as u32), 8));
    }
    // The first one is used again, so that the second is the oldest.
    assert!(ask(&mut desk, "llama", sessions[0], generate(prompt(20, 0), 8)) > 0);
    let starts = desk.device.starts();
    let other = desk.submit(generate(prompt(40, 7), 4));
    desk.finish();
    assert_eq!(desk.answer(other), &alone("llama", generate(prompt(40, 7), 4), options(false)));
    assert_eq!(desk.device.starts(), starts + 1, "no request was preempted");
    let kept = sessions.map(|session| desk.engine.session_tokens(session).unwrap().len());
    assert_eq!(kept, [27, 0, 27]);
    for (i, session) in sessions.into_iter().enumerate() {
        let reused = ask(&mut desk, "llama", session, generate(prompt(20, i as u32), 8));
        assert_eq!(reused > 0, i != 1, "session {i}");
    }
}

/// Requests on sessions come and go for each other as all others do.
#[test]
fn requests_on_sessions_are_preempted() {
    for case in ["llama", "lfm2"] {
        let narrow = EngineOptions { max_sequences: 4, ..options(false) };
        let bytes = Desk::on(case, Fault::None, narrow.clone()).bytes_of(8);
        let narrow = EngineOptions { cache_bytes: Some(bytes), ..narrow };
        let mut desk = Desk::on(case, Fault::None, narrow);
        let sessions = [0; 4].map(|_| desk.engine.open_session());
        let mut known: Vec<Vec<u32>> = (0..4).map(|i| prompt(20, i)).collect();
        for turn in 0..3u32 {
            let both = sessions.iter().zip(&known);
            let ids: Vec<_> =
                both.map(|(s, known)| desk.submit(on(*s, generate(known.clone(), 20)))).collect();
            desk.finish();
            for (known, id) in known.iter_mut().zip(ids) {
                let want = alone(case, generate(known.clone(), 20), options(false));
                assert_eq!(desk.answer(id), &want, "{case}, turn {turn}");
                known.extend(&want.tokens);
                known.extend(prompt(3, turn));
            }
        }
        assert!(desk.device.starts() > 12, "{case}: no request was preempted");
    }
}

/// What a lost device held is computed again; so is what a request that failed leaves.
#[test]
fn nothing_is_kept_of_what_failed() {
    for run_ahead in [false, true] {
        let mut desk = Desk::on("llama", Fault::Lost(9), options(run_ahead));
        let [session, other] = [0; 2].map(|_| desk.engine.open_session());
        ask(&mut desk, "llama", session, generate(prompt(20, 1), 6));
        let failing = desk.submit(on(other, generate(prompt(20, 2), 20)));
        desk.finish();
        assert!(matches!(desk.answer(failing).end, Some(Err(EngineError::Device(_)))));
        assert!(desk.engine.save_session(session, b"").is_err(), "it is on a device that was lost");
        for (session, salt) in [(session, 1), (other, 2)] {
            assert_eq!(ask(&mut desk, "llama", session, generate(prompt(20, salt), 6)), 0);
            assert!(ask(&mut desk, "llama", session, generate(prompt(20, salt), 6)) > 0);
        }
    }
    // Logits that are no numbers end a request.
    let mut desk = Desk::on("llama", Fault::NanAfter(prompt(20, 4)[19]), options(false));
    let session = desk.engine.open_session();
    let failing = desk.submit(on(session, generate(prompt(20, 4), 6)));
    desk.finish();
    assert!(matches!(desk.answer(failing).end, Some(Err(_))));
    assert_eq!(desk.engine.session_tokens(session).unwrap(), [0u32; 0]);
}

/// A step that fails when its request has ended already: what it computed is not there.
#[test]
fn nothing_is_kept_of_a_step_that_failed_behind_the_end() {
    let mut desk = Desk::on("llama", Fault::Lost(2), options(true));
    let session = desk.engine.open_session();
    let id = desk.submit(on(session, generate(prompt(20, 1), 30)));
    while desk.answers.get(&id).is_none_or(|a| a.tokens.len() < 2) {
        assert!(desk.advance());
    }
    // The step that loses the device was not read yet.
    desk.cancel(id);
    let next = [&prompt(20, 1)[..], &desk.answers[&id].tokens, &prompt(4, 4)].concat();
    let want = alone("llama", generate(next.clone(), 6), options(false));
    let resumed = desk.submit(on(session, generate(next, 6)));
    desk.finish();
    assert_eq!(desk.answer(resumed), &want);
    assert_eq!((desk.reused[&resumed], desk.device.reopened()), (0, 1));
}

/// The row behind a stop token that the device refuses is no row of the session: the next request meets it by itself.
#[test]
fn nothing_is_kept_of_a_row_that_was_refused_behind_the_end() {
    let case = "qwen3_moe";
    let free = alone(case, generate(prompt(20, 1), 6), options(false)).tokens;
    let fresh = |at: &usize| !prompt(20, 1).contains(&free[*at]) && !free[..*at].contains(&free[*at]);
    let at = (1..6).find(fresh).expect("a token that is drawn once");
    let (mut desk, token) = (Desk::on(case, Fault::NanFrom(free[at]), options(true)), free[at]);
    let session = desk.engine.open_session();
    let mut first = generate(prompt(20, 1), 6);
    let Task::Generate { stop, .. } = &mut first.task else { unreachable!() };
    *stop = vec![token];
    let id = desk.submit(on(session, first));
    desk.finish();
    assert_eq!(
        (&desk.answer(id).tokens[..], desk.answer(id).end.clone()),
        (&free[..=at], Some(Ok(Finish::Stop)))
    );
    assert_eq!(desk.engine.session_tokens(session).unwrap().len(), 20 + at);
    let next = [&prompt(20, 1)[..], &free[..=at], &prompt(4, 4)].concat();
    let failing = desk.submit(on(session, generate(next, 4)));
    desk.finish();
    let end = desk.answer(failing).end.clone();
    assert!(
        matches!(end, Some(Err(EngineError::Numeric { position, .. })) if position == 20 + at),
        "{end:?}"
    );
}

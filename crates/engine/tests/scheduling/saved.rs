//! Saved sessions: whole ones go on, all others end in errors.

use std::sync::Arc;

use checks::faults::Fault;
use cpu::{CpuBackend, CpuOptions};
use graph::backend::{Backend, KvType};
use gristmill_engine::{EngineError, EngineOptions, Request, SavedSession, SessionError, SessionId};
use sha2::{Digest, Sha256};

use crate::desk::{Desk, alone, generate, pool_of, prompt};

fn options() -> EngineOptions {
    EngineOptions { context: Some(128), max_sequences: 2, ..EngineOptions::default() }
}

fn on(session: SessionId, prompt: Vec<u32>, tokens: usize) -> Request {
    Request { session: Some(session), ..generate(prompt, tokens) }
}

/// A session of some tokens, saved.
fn saved(desk: &mut Desk, len: usize) -> Vec<u8> {
    let session = desk.engine.open_session();
    desk.submit(on(session, prompt(len, 1), 4));
    desk.finish();
    pollster::block_on(desk.engine.save_session(session, b"a note").unwrap()).unwrap()
}

/// With the checksum that goes with it.
fn stamped(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len() - 32;
    let sum = Sha256::digest(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum);
    bytes
}

fn refusal(desk: &mut Desk, bytes: &[u8]) -> Option<SessionError> {
    let restored = SavedSession::parse(bytes).map_err(EngineError::from);
    match restored.and_then(|saved| desk.engine.restore_session(&saved)) {
        Ok(session) => {
            desk.engine.close_session(session);
            None
        }
        Err(EngineError::Session(error)) => Some(error),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_saved_session_goes_on_on_one_device_and_on_two() {
    let cpu =
        || -> Arc<dyn Backend> { Arc::new(CpuBackend::new(CpuOptions { threads: 1, isa: None }).unwrap()) };
    for case in ["llama", "lfm2"] {
        for devices in [1, 2] {
            let desk = || {
                let others = (1..devices).map(|_| cpu()).collect();
                Desk::split(case, Fault::None, others, EngineOptions { logits: true, ..options() })
            };
            let bytes = saved(&mut desk(), 40);
            let parsed = SavedSession::parse(&bytes).unwrap();
            let whole = [prompt(40, 1), alone(case, generate(prompt(40, 1), 4), options()).tokens].concat();
            assert_eq!((parsed.tokens(), parsed.note()), (&whole[..43], &b"a note"[..]));
            let mut desk = desk();
            assert_eq!(parsed.fingerprint(), desk.engine.fingerprint());
            let session = desk.engine.restore_session(&parsed).unwrap();
            assert_eq!(desk.engine.session_tokens(session).unwrap(), &whole[..43]);
            let id = desk.submit(on(session, [&whole[..], &prompt(5, 2)].concat(), 6));
            desk.finish();
            let want = alone(case, generate([&whole[..], &prompt(5, 2)].concat(), 6), options());
            assert_eq!((desk.answer(id), desk.reused[&id]), (&want, 43), "{case} on {devices}");
        }
    }
}

/// Of every type of cache: the states are the bytes that the device has.
#[test]
fn a_saved_session_of_any_type_of_cache_goes_on() {
    for kv_type in KvType::ALL {
        let options = || EngineOptions { kv_type: Some(kv_type), logits: true, ..options() };
        let bytes = saved(&mut Desk::new(options()), 40);
        let parsed = SavedSession::parse(&bytes).unwrap();
        let mut desk = Desk::new(options());
        let session = desk.engine.restore_session(&parsed).unwrap();
        let whole = [parsed.tokens(), &prompt(5, 2)[..]].concat();
        let id = desk.submit(on(session, whole.clone(), 6));
        desk.finish();
        let want = alone("llama", generate(whole, 6), options());
        assert_eq!((desk.answer(id), desk.reused[&id]), (&want, 43), "{kv_type}");
    }
}

#[test]
fn sessions_of_another_engine_are_refused_by_name() {
    let bytes = saved(&mut Desk::new(options()), 20);
    for other in [
        Desk::on("llama", Fault::None, EngineOptions { context: Some(144), ..options() }),
        Desk::on("llama", Fault::None, EngineOptions { kv_type: Some(KvType::F16), ..options() }),
        Desk::on("llama", Fault::None, EngineOptions { kv_type: Some(KvType::Q8_0), ..options() }),
        Desk::on("qwen2", Fault::None, options()),
    ] {
        let mut desk = other;
        let own = desk.engine.fingerprint();
        let saved = SavedSession::parse(&bytes).unwrap().fingerprint().to_owned();
        assert_eq!(refusal(&mut desk, &bytes), Some(SessionError::OtherEngine { saved, own }));
    }
    let mut newer = bytes.clone();
    newer[8] = 9;
    let version = SessionError::Version { found: 9, known: 1 };
    assert_eq!(refusal(&mut Desk::new(options()), &newer), Some(version));
    assert_eq!(refusal(&mut Desk::new(options()), b"GGUF and more"), Some(SessionError::Foreign));
}

#[test]
fn files_that_are_cut_off_or_changed_are_refused() {
    let mut desk = Desk::on("lfm2", Fault::None, options());
    let bytes = saved(&mut desk, 1);
    assert_eq!(refusal(&mut desk, &bytes), None);
    for len in 0..bytes.len() {
        let error = refusal(&mut desk, &bytes[..len]);
        assert!(matches!(error, Some(SessionError::Foreign | SessionError::Damaged(_))), "{len}: {error:?}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(refusal(&mut desk, &changed).is_some(), "byte {at}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(refusal(&mut desk, &longer), Some(SessionError::Damaged(_))));
}

/// The checksum is no secret: sizes, positions and ids may be any, and whatever is taken for a session runs.
#[test]
fn files_with_a_right_checksum_and_wrong_contents_do_no_harm() {
    let mut desk = Desk::on("lfm2", Fault::None, options());
    let bytes = saved(&mut desk, 3);
    let head = 8 + 4 + 16 + 6 * 8 + 6 + 6 * 4 + 3 * 8 + 8;
    for at in 12..head {
        for value in [0, 1, 0x7f, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x80] {
            let mut changed = bytes.clone();
            changed[at] = value;
            let changed = stamped(changed);
            let Ok(parsed) = SavedSession::parse(&changed) else { continue };
            let Ok(session) = desk.engine.restore_session(&parsed) else { continue };
            let longer = [parsed.tokens(), &prompt(2, 2)].concat();
            desk.submit(on(session, longer, 2));
            desk.finish();
            desk.engine.close_session(session);
        }
    }
    // All blocks are free again.
    let id = desk.submit(generate(prompt(100, 1), 8));
    desk.finish();
    assert_eq!(desk.answer(id), &alone("lfm2", generate(prompt(100, 1), 8), options()));
    for (at, value) in [(28, u64::MAX), (36, u64::MAX / 4 + 2), (36, 1 << 40), (68, u64::MAX)] {
        let mut changed = bytes.clone();
        changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let error = refusal(&mut desk, &stamped(changed));
        assert!(matches!(error, Some(SessionError::Damaged(_))), "{at} {value}: {error:?}");
    }
}

/// Without room beside what runs, a session has its ids alone.
#[test]
fn a_session_without_room_is_computed_again() {
    let small = pool_of(8, EngineOptions { context: Some(128), ..options() });
    let bytes = saved(&mut Desk::on("llama", Fault::None, small.clone()), 20);
    let mut desk = Desk::on("llama", Fault::None, small);
    let running = desk.submit(generate(prompt(100, 3), 20));
    assert!(desk.advance());
    let parsed = SavedSession::parse(&bytes).unwrap();
    let session = desk.engine.restore_session(&parsed).unwrap();
    assert_eq!(desk.engine.session_tokens(session).unwrap(), [0u32; 0]);
    let next = [parsed.tokens(), &prompt(4, 4)].concat();
    let id = desk.submit(on(session, next.clone(), 4));
    desk.finish();
    assert_eq!(desk.answer(running), &alone("llama", generate(prompt(100, 3), 20), options()));
    assert_eq!((desk.answer(id), desk.reused[&id]), (&alone("llama", generate(next, 4), options()), 0));
}

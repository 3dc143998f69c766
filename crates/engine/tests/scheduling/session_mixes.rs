//! Random lives of sessions in small pools: every request gets the bits of the same request alone.

use std::cell::RefCell;
use std::collections::BTreeMap;

use checks::faults::Fault;
use gristmill_engine::sampling::SamplingOptions;
use gristmill_engine::{
    EngineError, EngineOptions, Finish, Request, RequestId, SavedSession, SessionError, SessionId, Task,
};
use proptest::prelude::*;

use crate::desk::{Answer, Desk, prompt};

const CONTEXT: usize = 112;

/// Where a prompt on a session comes from.
#[derive(Clone, Copy, Debug)]
enum From {
    /// What is known of the session, and more.
    End,
    /// As `End`, from a share of it in 64ths on: another branch.
    Branch(usize),
    /// The last prompt once more.
    Again,
    /// Another conversation.
    Fresh,
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    from: From,
    more: usize,
    salt: u32,
    /// Tokens to generate; `None` scores from the share of the prompt in `policy`.
    tokens: Option<usize>,
    policy: usize,
    /// Whether one of 290 tokens in three ends the answer.
    stops: bool,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Open,
    Close(usize),
    Ask(usize, Ask),
    /// Without a session.
    Alone(Ask),
    Cancel(usize),
    Events(usize),
    /// The device does not end steps for a while, as many are in flight as may be.
    Hold,
    Release,
    Save(usize),
    Restore(usize),
}

fn ask() -> impl Strategy<Value = Ask> {
    let from = prop_oneof![
        4 => Just(From::End),
        2 => (0..64usize).prop_map(From::Branch),
        2 => Just(From::Again),
        1 => Just(From::Fresh),
    ];
    let more = prop::sample::select(vec![1usize, 2, 15, 16, 17, 33, 64, 70]);
    let tokens = prop::option::weighted(0.85, prop::sample::select(vec![1usize, 2, 5, 17]));
    (from, more, 0..4u32, tokens, 0..4usize, prop::bool::weighted(0.3))
        .prop_map(|(from, more, salt, tokens, policy, stops)| Ask { from, more, salt, tokens, policy, stops })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => Just(Act::Open),
        1 => (0..8usize).prop_map(Act::Close),
        10 => (0..8usize, ask()).prop_map(|(session, ask)| Act::Ask(session, ask)),
        2 => ask().prop_map(Act::Alone),
        2 => (0..8usize).prop_map(Act::Cancel),
        6 => prop::sample::select(vec![1usize, 2, 5, 100]).prop_map(Act::Events),
        1 => Just(Act::Hold),
        1 => Just(Act::Release),
        2 => (0..8usize).prop_map(Act::Save),
        2 => (0..8usize).prop_map(Act::Restore),
    ]
}

fn request(prompt: Vec<u32>, ask: Ask, session: Option<SessionId>) -> Request {
    let sampling = match ask.policy {
        0 => SamplingOptions::default(),
        // A policy of the host's.
        1 => {
            SamplingOptions { temperature: 0.9, repetition_penalty: 1.3, seed: Some(1), ..Default::default() }
        }
        which => SamplingOptions { temperature: 1.1, seed: Some(which as u64), ..Default::default() },
    };
    let stop = if ask.stops { (0..290).step_by(3).collect() } else { vec![] };
    let task = match ask.tokens {
        Some(n) => Task::Generate { max_tokens: Some(n), sampling, entropy: 0, stop },
        None => Task::Score { from: prompt.len() * ask.policy / 4 },
    };
    Request { prompt, task, session }
}

/// The answer to a request without a session, with nothing beside it.
fn alone(case: &'static str, request: &Request) -> Answer {
    thread_local! {
        static DESKS: RefCell<BTreeMap<&'static str, Desk>> = const { RefCell::new(BTreeMap::new()) };
    }
    DESKS.with_borrow_mut(|desks| {
        let options =
            EngineOptions { context: Some(CONTEXT), run_ahead: Some(false), ..EngineOptions::default() };
        let desk = desks.entry(case).or_insert_with(|| Desk::on(case, Fault::None, options));
        let id = desk.submit(Request { session: None, ..request.clone() });
        desk.finish();
        desk.answers.remove(&id).unwrap()
    })
}

#[derive(Default)]
struct Known {
    prompt: Vec<u32>,
    /// The request on it that has not been looked at.
    request: Option<RequestId>,
    /// The prompt and its answer.
    all: Vec<u32>,
}

/// What was asked, and whether it was cancelled.
struct Asked {
    request: Request,
    cancelled: bool,
}

struct Trial {
    case: &'static str,
    desk: Desk,
    sessions: Vec<(SessionId, Known)>,
    closed: Vec<SessionId>,
    asked: BTreeMap<RequestId, Asked>,
    saved: Vec<Vec<u8>>,
    held: bool,
}

impl Trial {
    fn events(&mut self, n: usize) {
        for _ in 0..n {
            if self.held {
                return self.desk.settle();
            }
            if !self.desk.advance() {
                break;
            }
        }
    }

    fn ended(&self, id: RequestId) -> bool {
        self.asked[&id].cancelled || self.desk.ended.contains(&id)
    }

    /// Reads the answer to a session's request, when it has ended.
    fn learn(&mut self, at: usize) {
        let Some(id) = self.sessions[at].1.request.filter(|id| self.ended(*id)) else { return };
        let read = self.desk.answers.get(&id).map(|a| a.tokens.clone()).unwrap_or_default();
        let known = &mut self.sessions[at].1;
        known.request = None;
        known.all = [&known.prompt[..], &read].concat();
    }

    fn ask(&mut self, at: Option<usize>, ask: Ask) {
        at.inspect(|at| self.learn(*at));
        let none = Known::default();
        let known = at.map_or(&none, |at| &self.sessions[at].1);
        let more = prompt(ask.more, ask.salt);
        let base = match ask.from {
            From::End => &known.all[..],
            From::Branch(share) => &known.all[..known.all.len() * share / 64],
            From::Again if !known.prompt.is_empty() => &known.prompt[..],
            From::Again | From::Fresh => &[],
        };
        let more = if matches!(ask.from, From::Again) && !base.is_empty() { &[] } else { &more[..] };
        let mut prompt = [base, more].concat();
        prompt.truncate(CONTEXT - 1);
        let session = at.map(|at| self.sessions[at].0);
        let request = request(prompt.clone(), ask, session);
        match self.desk.engine.submit(request.clone()) {
            Ok(id) => {
                self.desk.open.push(id);
                self.asked.insert(id, Asked { request, cancelled: false });
                if let Some(at) = at {
                    assert!(self.sessions[at].1.request.is_none(), "two requests on one session");
                    let all = self.sessions[at].1.all.clone();
                    self.sessions[at].1 = Known { prompt, request: Some(id), all };
                }
            }
            Err(error) => {
                assert_eq!(error, EngineError::Session(SessionError::Busy));
                assert!(at.is_some_and(|at| self.sessions[at].1.request.is_some()));
            }
        }
    }

    fn act(&mut self, act: Act) {
        let at = |index: usize| (!self.sessions.is_empty()).then(|| index % self.sessions.len().max(1));
        match act {
            Act::Open => self.sessions.push((self.desk.engine.open_session(), Known::default())),
            Act::Close(index) => {
                let Some(at) = at(index) else { return };
                let (session, _) = self.sessions.remove(at);
                self.desk.engine.close_session(session);
                self.closed.push(session);
            }
            Act::Ask(index, ask) => {
                let at = at(index);
                self.ask(at, ask);
            }
            Act::Alone(ask) => self.ask(None, ask),
            Act::Cancel(index) => {
                let Some(id) = self.desk.open.get(index % self.desk.open.len().max(1)).copied() else {
                    return;
                };
                self.desk.cancel(id);
                self.asked.get_mut(&id).unwrap().cancelled = true;
            }
            Act::Events(n) => self.events(n),
            Act::Hold => {
                self.desk.device.hold();
                self.held = true;
            }
            Act::Release => {
                self.desk.device.release();
                self.held = false;
            }
            Act::Save(index) => {
                let Some(at) = at(index) else { return };
                if self.held {
                    return;
                }
                match self.desk.engine.save_session(self.sessions[at].0, b"") {
                    Ok(saving) => self.saved.push(pollster::block_on(saving).unwrap()),
                    Err(error) => assert_eq!(error, EngineError::Session(SessionError::Busy)),
                }
            }
            Act::Restore(index) => {
                let Some(bytes) = self.saved.get(index % self.saved.len().max(1)) else { return };
                let parsed = SavedSession::parse(bytes).unwrap();
                let session = self.desk.engine.restore_session(&parsed).unwrap();
                let all = parsed.tokens().to_vec();
                self.sessions.push((session, Known { prompt: all.clone(), request: None, all }));
            }
        }
    }

    fn check(&self) {
        for (id, Asked { request, cancelled }) in &self.asked {
            let want = alone(self.case, request);
            let got = self.desk.answers.get(id).cloned().unwrap_or_default();
            if *cancelled {
                assert!(want.tokens.starts_with(&got.tokens), "{request:?}");
                assert!(got.logits.iter().all(|(at, row)| want.logits.get(at) == Some(row)), "{request:?}");
            } else {
                assert_eq!(got, want, "{request:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sessions_change_no_bit(
        acts in prop::collection::vec(act(), 1..50),
        case in prop::sample::select(vec!["llama", "gemma3_text", "lfm2", "qwen3_moe"]),
        max_sequences in 1..4usize,
        chunk in prop::sample::select(vec![1usize, 16, 64, 512]),
        blocks in 7..16usize,
        run_ahead in any::<bool>(),
    ) {
        let base = EngineOptions {
            context: Some(CONTEXT),
            max_sequences,
            chunk,
            run_ahead: Some(run_ahead),
            ..EngineOptions::default()
        };
        let bytes = Desk::on(case, Fault::None, base.clone()).bytes_of(blocks);
        let desk = Desk::on(case, Fault::None, EngineOptions { cache_bytes: Some(bytes), ..base });
        let (sessions, closed, saved) = (vec![], vec![], vec![]);
        let mut trial = Trial { case, desk, sessions, closed, asked: BTreeMap::new(), saved, held: false };
        trial.act(Act::Open);
        acts.into_iter().for_each(|act| trial.act(act));
        trial.act(Act::Release);
        trial.desk.finish();
        trial.check();
        // Nothing is lost: a request as long as the context finds all that it needs.
        let Trial { mut desk, sessions, closed, .. } = trial;
        for session in closed {
            prop_assert!(desk.engine.session_tokens(session).is_err());
        }
        sessions.iter().for_each(|(session, _)| desk.engine.close_session(*session));
        let whole = (0..max_sequences).map(|i| desk.submit(crate::desk::generate(prompt(100, i as u32), 12)));
        let whole: Vec<_> = whole.collect();
        desk.finish();
        for id in whole {
            prop_assert_eq!(desk.answer(id).end.clone(), Some(Ok(Finish::MaxTokens)));
        }
    }
}

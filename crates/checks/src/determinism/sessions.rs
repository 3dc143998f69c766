//! A conversation on a session gives the bits of its turns as requests of their own.

use engine::{Engine, EngineOptions, Event, Request, RequestId, SavedSession, SessionId, Task};
use tensor::ops::KV_BLOCK;

use super::{Answer, Answers, LONGEST, Outcome, Trial, sampling, total};
use crate::error::CheckError;

/// Positions of the first prompt that a turn which goes back to it keeps.
const BACK: usize = 20;

/// A turn, and what the request alone gives.
struct Turn {
    prompt: Vec<u32>,
    alone: Answer,
    /// Positions that a session which has run the turns before computes no more, at least: of models without recurrent states,
    /// and of those with.
    reused: [usize; 2],
}

impl Trial<'_> {
    /// Tokens of an answer: the conversation fits the context.
    fn answer_len(&self) -> usize {
        self.options.tokens.min(self.options.prompt / 8)
    }

    fn ask_on(
        &self,
        engine: &mut Engine,
        prompt: &[u32],
        turn: usize,
        session: Option<SessionId>,
    ) -> Result<RequestId, CheckError> {
        let (sampling, max_tokens) = (sampling(turn), Some(self.answer_len()));
        let task = Task::Generate { max_tokens, sampling, entropy: 0, stop: vec![] };
        Ok(engine.submit(Request { prompt: prompt.to_vec(), task, session })?)
    }

    /// The answer to a turn, and the positions that were not computed.
    fn turn(
        &self,
        engine: &mut Engine,
        prompt: &[u32],
        turn: usize,
        session: Option<SessionId>,
    ) -> Result<(Answer, usize), CheckError> {
        let id = self.ask_on(engine, prompt, turn, session)?;
        let (mut answers, mut kept) = (Answers::default(), 0);
        let vocab = self.model.info().vocab;
        crate::drive::drive(engine, |event| {
            answers.record(event, vocab);
            if let Event::Resumed { reused, .. } = event {
                kept = *reused;
            }
            matches!(event, Event::Finished { .. })
        })?;
        // Steps may be in flight that nobody waits for.
        crate::drive::settle(engine)?;
        Ok((answers.take(&[id]).remove(0), kept))
    }

    /// Turns that go on, that differ at the end of the answer before, that repeat, and that go back.
    fn conversation(&self) -> Result<Vec<Turn>, CheckError> {
        let mut engine = self.engine((self.make)(1), &self.base())?;
        let more = |from: usize, n: usize| self.prompts[5][from..from + n].iter().copied();
        let mut turns: Vec<Turn> = vec![];
        let first = self.prompts[LONGEST][..self.options.prompt / 2].to_vec();
        for i in 0..5 {
            let before = turns.last().map(|t| (t.prompt.clone(), t.alone.tokens.clone()));
            let (prompt, reused) = match (i, before) {
                (1, Some((prompt, answer))) => {
                    let computed = prompt.len() + answer.len() - 1;
                    (prompt.into_iter().chain(answer).chain(more(0, 5)).collect(), [computed; 2])
                }
                (2, Some((prompt, answer))) => {
                    let (shared, at) = (prompt.len() + answer.len() - 1, prompt.len() - 1);
                    let other = (answer[answer.len() - 1] + 1) % self.model.info().vocab as u32;
                    let same = answer[..answer.len() - 1].iter().copied();
                    (prompt.into_iter().chain(same).chain([other]).chain(more(5, 3)).collect(), [shared, at])
                }
                (3, Some((prompt, _))) => {
                    let at = prompt.len() - 1;
                    (prompt, [at; 2])
                }
                (4, _) => {
                    let other = (first[BACK] + 1) % self.model.info().vocab as u32;
                    (first[..BACK].iter().copied().chain([other]).chain(more(9, 7)).collect(), [BACK, 0])
                }
                _ => (first.clone(), [0; 2]),
            };
            let (alone, _) = self.turn(&mut engine, &prompt, i, None)?;
            turns.push(Turn { prompt, alone, reused });
        }
        Ok(turns)
    }

    /// Compares the answer to a turn; `reused` says how much of it must not have been computed.
    fn compare_turn(
        &self,
        turn: usize,
        want: &Turn,
        got: &(Answer, usize),
        reused: usize,
        when: &str,
    ) -> Outcome {
        let (answer, kept) = got;
        if *kept < reused {
            return Err(format!("turn {turn} {when}: {kept} positions were reused, {reused} were there"));
        }
        if answer.rows != want.alone.rows {
            let other = want.alone.rows.iter().find(|(at, row)| answer.rows.get(at) != Some(row));
            return Err(format!(
                "turn {turn} {when}: other logits at position {:?}",
                other.map(|(at, _)| at)
            ));
        }
        if answer.tokens != want.alone.tokens {
            return Err(format!("turn {turn} {when}: other tokens"));
        }
        Ok(answer.rows.len())
    }

    fn reused(&self, turn: &Turn) -> usize {
        turn.reused[usize::from(self.model.info().recurrent())]
    }

    /// One after another on a session; whichever the device would choose, one step ahead and not.
    pub(super) fn sessions(&self) -> Result<Outcome, CheckError> {
        let turns = self.conversation()?;
        let plain = [false, true].map(|ahead| {
            let options = EngineOptions { run_ahead: Some(ahead), ..self.base() };
            let mut engine = self.engine((self.make)(1), &options)?;
            let session = engine.open_session();
            total(turns.iter().enumerate().map(|(i, turn)| {
                let got = self.turn(&mut engine, &turn.prompt, i, Some(session))?;
                Ok(self.compare_turn(i, turn, &got, self.reused(turn), "on a session"))
            }))
        });
        let cut = [false, true].map(|ahead| self.broken_off(&turns, ahead));
        total(plain.into_iter().chain(cut).chain([self.evicted(&turns)]))
    }

    /// An answer that is broken off after its first token leaves what was computed.
    fn broken_off(&self, turns: &[Turn], run_ahead: bool) -> Result<Outcome, CheckError> {
        let options = EngineOptions { run_ahead: Some(run_ahead), ..self.base() };
        let mut engine = self.engine((self.make)(1), &options)?;
        let session = engine.open_session();
        let mut answers = Answers::default();
        let id = self.ask_on(&mut engine, &turns[1].prompt, 1, Some(session))?;
        self.first_token(&mut engine, &mut answers)?;
        engine.cancel(id);
        // At once, while steps are in flight.
        let reused = turns[1].prompt.len() - 1;
        let got = self.turn(&mut engine, &turns[2].prompt, 2, Some(session))?;
        Ok(self.compare_turn(2, &turns[2], &got, reused, "after an answer that was broken off"))
    }

    /// A request that needs every block takes those of the session.
    fn evicted(&self, turns: &[Turn]) -> Result<Outcome, CheckError> {
        let size = self.engine((self.make)(1), &self.base())?.cache_size();
        let blocks = (self.options.prompt + self.options.tokens).div_ceil(KV_BLOCK);
        let kv = size.bytes_per_token * (blocks * KV_BLOCK) as u64;
        let cache_bytes = Some(kv + size.bytes_per_slot * size.slots as u64);
        let mut engine = self.engine((self.make)(1), &EngineOptions { cache_bytes, ..self.base() })?;
        let session = engine.open_session();
        let first = self.turn(&mut engine, &turns[0].prompt, 0, Some(session))?;
        let first = self.compare_turn(0, &turns[0], &first, 0, "before it is evicted");
        let all = self.one_by_one(&mut engine, &[LONGEST], "beside a session that has what it needs");
        let got = self.turn(&mut engine, &turns[1].prompt, 1, Some(session))?;
        if size.bytes_per_token > 0 && got.1 > 0 {
            return Ok(Err("no session was evicted: the property was not tried".to_owned()));
        }
        let second = self.compare_turn(1, &turns[1], &got, 0, "after it was evicted");
        let again = self.turn(&mut engine, &turns[2].prompt, 2, Some(session))?;
        let again = self.compare_turn(2, &turns[2], &again, self.reused(&turns[2]), "computed again");
        total([Ok(first), all, Ok(second), Ok(again)])
    }

    /// A session is saved after each turn and goes on in an engine of its own.
    pub(super) fn saved_sessions(&self) -> Result<Outcome, CheckError> {
        let turns = self.conversation()?;
        let mut saved: Option<Vec<u8>> = None;
        total(turns.iter().enumerate().map(|(i, turn)| {
            let mut engine = self.engine((self.make)(1), &self.base())?;
            let session = match &saved {
                None => engine.open_session(),
                Some(bytes) => {
                    // Other blocks than those it was saved from.
                    let other = engine.open_session();
                    self.turn(&mut engine, &self.prompts[2], 0, Some(other))?;
                    let parsed = SavedSession::parse(bytes).map_err(engine::EngineError::from)?;
                    engine.restore_session(&parsed)?
                }
            };
            let got = self.turn(&mut engine, &turn.prompt, i, Some(session))?;
            saved = Some(pollster::block_on(engine.save_session(session, b"")?)?);
            Ok(self.compare_turn(i, turn, &got, self.reused(turn), "after save and load"))
        }))
    }
}

//! What comes of a step.

use graph::backend::DeviceError;
use graph::rewrite::ahead::TOKENS;
use models::LOGITS;
use tensor::ops::{NO_TOKEN, NOT_A_TOKEN};

use super::{Engine, Flight, hidden_names};
use crate::error::EngineError;
use crate::request::{Event, Finish};
use crate::sampling::{Sampled, SamplingError};
use crate::sequence::{Sequence, Work};
use crate::step::{Segment, positions_of};

impl Engine {
    /// Ends a step: its sequences advance, or fail.
    pub(super) fn complete(&mut self, flight: Flight, result: Result<(), DeviceError>) {
        if self.recipe.profile && result.is_ok() {
            self.profiles.extend(self.plans.profiles(&flight.run));
        }
        let refused = match result {
            Ok(()) => Ok(vec![None; flight.segments.len()]),
            Err(error) => refused_by(&flight.segments, error),
        };
        let outcome = refused.and_then(|refused| self.collect(&flight, refused));
        if let Err(error) = outcome {
            self.fail(&flight.segments, &error);
        }
        self.spare.push(self.plans.finish(flight.run));
    }

    /// Reads a finished step: advances its sequences, samples, reports. `refused` says for each segment what the device
    /// refused of it; the others have their results. Segments whose request has ended or been started over meanwhile are
    /// passed over.
    fn collect(&mut self, flight: &Flight, refused: Vec<Option<EngineError>>) -> Result<(), EngineError> {
        let vocab = self.info().vocab;
        let wanted = self.wanted(&flight.segments);
        let run = &flight.run;
        // What cannot be read fails the step before anything is reported of it.
        let logits = if wanted.logits { self.plans.output(run, LOGITS)? } else { &[] };
        let tokens = if wanted.tokens { self.plans.words(run, TOKENS)? } else { &[] };
        let mut hidden = vec![];
        if self.recipe.taps {
            for name in hidden_names(self.model.info().layers) {
                hidden.push((self.plans.output(run, &name)?, name));
            }
        }
        let step_rows = flight.segments.iter().map(|s| s.len).sum::<usize>();
        let mut ended = vec![];
        let (mut next_row, mut next_out) = (0, 0);
        for (segment, refused) in flight.segments.iter().zip(refused) {
            let (first_row, first_out) = (next_row, next_out);
            (next_row, next_out) = (first_row + segment.len, first_out + segment.outs);
            let Some(index) = index_of(&self.scheduler.running, segment) else {
                if refused.is_some() {
                    self.sessions.spoil((segment.id, segment.life), segment.start);
                }
                continue;
            };
            let s = &mut self.scheduler.running[index];
            if let Some(error) = refused {
                self.ready.push(Event::Failed { id: s.id, error });
                ended.push((index, false));
                continue;
            }
            for (all, name) in &hidden {
                let width = all.len() / step_rows;
                let (name, rows) = (name.clone(), all[first_row * width..next_row * width].to_vec());
                self.ready.push(Event::Hidden { id: s.id, name, first: segment.start, rows });
            }
            if segment.outs == 0 {
                continue;
            }
            let rows = logits.get(first_out * vocab..next_out * vocab).unwrap_or_default();
            let end = match &mut s.work {
                Work::Score { next } if let Some(error) = no_number(rows, vocab, *next) => Some(Err(error)),
                Work::Score { next } => {
                    self.ready.push(Event::Scores { id: s.id, first: *next, logits: rows.to_vec() });
                    *next = segment.start + segment.len;
                    (*next == s.tokens.len()).then_some(Ok(Finish::Stop))
                }
                Work::Generate { sampler, .. } => {
                    let position = s.tokens.len();
                    if self.logits {
                        let (first, logits) = (position - 1, rows.to_vec());
                        self.ready.push(Event::Scores { id: s.id, first, logits });
                    }
                    let drawn = if segment.draws {
                        s.unread -= 1;
                        drawn(tokens[first_out])
                    } else {
                        self.row.clear();
                        self.row.extend_from_slice(rows);
                        sampler.sample(&mut self.row, position as u64)
                    };
                    match drawn.and_then(|token| sampler.accept(token.id).map(|()| token)) {
                        Ok(token) => {
                            let end = s.push(token.id);
                            self.ready.push(Event::Token { id: s.id, token });
                            end.map(Ok)
                        }
                        Err(error) => Some(Err(EngineError::from(error))),
                    }
                }
            };
            if let Some(end) = end {
                ended.push((index, end.is_ok()));
                self.ready.push(match end {
                    Ok(reason) => Event::Finished { id: s.id, reason },
                    Err(error) => Event::Failed { id: s.id, error },
                });
            }
        }
        ended.sort_unstable();
        for (index, well) in ended.into_iter().rev() {
            self.retire(index, well);
        }
        Ok(())
    }

    /// Takes a sequence out; what it leaves is its session's when it ended `well`. Steps in flight may still write what it held:
    /// they run before any that is submitted from now on.
    pub(super) fn retire(&mut self, index: usize, well: bool) {
        let mut s = self.scheduler.running.remove(index);
        if well {
            return self.sessions.keep(&mut s, &mut self.cache);
        }
        self.cache.free(&mut s.holding);
        self.sessions.release(s.session);
    }

    /// A step that failed as a whole fails the requests in it.
    pub(super) fn fail(&mut self, segments: &[Segment], error: &EngineError) {
        self.note_lost(error);
        for segment in segments {
            match index_of(&self.scheduler.running, segment) {
                Some(index) => {
                    self.ready.push(Event::Failed { id: segment.id, error: error.clone() });
                    self.retire(index, false);
                }
                None => self.sessions.spoil((segment.id, segment.life), segment.start),
            }
        }
    }
}

/// The sequence of a segment, if it is still in the life in which the step was planned.
fn index_of(running: &[Sequence], segment: &Segment) -> Option<usize> {
    running.iter().position(|s| s.id == segment.id && s.life == segment.life)
}

/// The first of these rows of logits, from a position on, that has one no probability can be made of.
fn no_number(rows: &[f32], vocab: usize, first: usize) -> Option<EngineError> {
    let unusable = |value: &f32| value.is_nan() || *value == f32::INFINITY;
    // Without an early exit the check runs in vector lanes.
    if !rows.iter().fold(false, |found, value| found | unusable(value)) {
        return None;
    }
    let at = rows.iter().position(unusable)?;
    Some(EngineError::Numeric {
        position: first + at / vocab,
        op: LOGITS.to_owned(),
        problem: format!("that of token {} is {}", at % vocab, rows[at]),
    })
}

/// What the device says of a row: a token, or why there is none.
fn drawn(token: u32) -> Result<Sampled, SamplingError> {
    match token {
        NO_TOKEN => Err(SamplingError::NothingLeft),
        _ if token & NOT_A_TOKEN != 0 => Err(SamplingError::Logit { id: token ^ NOT_A_TOKEN }),
        id => Ok(Sampled { id, logprobs: None }),
    }
}

/// What a failed step comes to for each of its segments; the error where it is not known whose fault it was.
fn refused_by(segments: &[Segment], error: DeviceError) -> Result<Vec<Option<EngineError>>, EngineError> {
    let DeviceError::Numeric { op, problem, rows } = &error else { return Err(error.into()) };
    let Some(positions) = positions_of(segments, rows) else { return Err(error.into()) };
    let told = |position| EngineError::Numeric { position, op: op.clone(), problem: problem.clone() };
    Ok(positions.into_iter().map(|position| position.map(told)).collect())
}

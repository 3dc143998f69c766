//! What `run` prints of an answer, as it comes and at its end.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use gristmill::sampling::Sampled;
use gristmill::{Generate, Llm, Outcome, StopReason, Tokenizer};
use serde_json::{Map, Value, json};

use crate::output::{Results, note, results, shortest};
use crate::resolve::{name_of, precision_name};

/// The form of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// The text as it comes.
    Text,
    /// A line for each token, with probabilities.
    Tokens,
    /// One object at the end.
    Json,
    /// An object for each piece of text, then the one of [`Form::Json`].
    JsonLines,
}

/// An answer being printed.
pub(super) struct Answer {
    form: Form,
    out: Results,
    tokenizer: Arc<Tokenizer>,
    text: String,
    /// Tokens that are told of.
    told: usize,
    start: Instant,
    first: Option<f64>,
    load_seconds: f64,
    seed: Option<u64>,
    /// Keys of the object that are known before there is an answer.
    about: Map<String, Value>,
}

impl Answer {
    pub(super) fn new(llm: &mut Llm, options: &Generate, form: Form, load_seconds: f64) -> Answer {
        let mut about = Map::new();
        if matches!(form, Form::Json | Form::JsonLines) {
            about.insert("model".to_owned(), name_of(llm.info()).into());
            let engine = llm.engine();
            about.insert("device".to_owned(), engine.device().into());
            about.insert("precision".to_owned(), precision_name(engine.precision()).into());
            about.insert("kv_type".to_owned(), engine.kv_type().name().into());
            about.insert("context".to_owned(), engine.cache_size().context.into());
            about.insert("fingerprint".to_owned(), engine.fingerprint().into());
        }
        Answer {
            form,
            out: results(),
            tokenizer: llm.tokenizer().clone(),
            text: String::new(),
            told: 0,
            start: Instant::now(),
            first: None,
            load_seconds,
            seed: options.sampling.seed,
            about,
        }
    }

    /// Text that has come; `generated` are all tokens so far.
    pub(super) fn piece(&mut self, piece: &str, generated: &[Sampled]) -> Result<()> {
        self.first.get_or_insert_with(|| self.start.elapsed().as_secs_f64());
        match self.form {
            Form::Json => self.text.push_str(piece),
            Form::Text => self.out.write_all(piece.as_bytes())?,
            Form::Tokens => self.lines(generated)?,
            Form::JsonLines => {
                let new = &generated[self.told..];
                let mut object = Map::new();
                object.insert("text".to_owned(), piece.into());
                object.insert("ids".to_owned(), new.iter().map(|t| t.id).collect());
                self.insert_logprobs(&mut object, new);
                writeln!(self.out, "{}", Value::Object(object))?;
                self.text.push_str(piece);
            }
        }
        self.told = generated.len();
        Ok(self.out.flush()?)
    }

    /// The answer is complete.
    pub(super) fn end(mut self, outcome: &Outcome) -> Result<()> {
        let seconds = self.start.elapsed().as_secs_f64();
        let first = self.first.unwrap_or(seconds);
        match self.form {
            Form::Text => writeln!(self.out)?,
            Form::Tokens => self.lines(&outcome.generated)?,
            Form::Json => {
                let object = self.object(outcome, first, seconds);
                self.out.json(&object)?;
            }
            Form::JsonLines => {
                let object = self.object(outcome, first, seconds);
                writeln!(self.out, "{object}")?;
            }
        }
        self.out.flush()?;
        let reason = match outcome.reason {
            StopReason::EndOfText => "the model ended its text",
            StopReason::StopString(_) => "stop string",
            StopReason::MaxTokens => "token limit reached",
            StopReason::ContextFull => "prompt and output fill the context",
            StopReason::Interrupted => "interrupted",
            _ => "ended",
        };
        let seed = self.seed.map(|seed| format!("; seed {seed}")).unwrap_or_default();
        note(format_args!(
            "{} prompt tokens, {} generated in {seconds:.2} s (first after {first:.2} s); {reason}{seed}",
            outcome.prompt_tokens,
            outcome.generated.len(),
        ));
        Ok(())
    }

    fn object(&self, outcome: &Outcome, first: f64, seconds: f64) -> Value {
        let (reason, stop) = match outcome.reason {
            StopReason::EndOfText => ("end_of_text", None),
            StopReason::StopString(index) => ("stop_string", Some(index)),
            StopReason::MaxTokens => ("max_tokens", None),
            StopReason::ContextFull => ("context_full", None),
            StopReason::Interrupted => ("interrupted", None),
            _ => ("other", None),
        };
        let ids: Vec<u32> = outcome.generated.iter().map(|t| t.id).collect();
        let mut object = Map::new();
        object.insert("text".to_owned(), self.text.as_str().into());
        object.insert("ids".to_owned(), ids.into());
        self.insert_logprobs(&mut object, &outcome.generated);
        object.insert("finish_reason".to_owned(), reason.into());
        if let Some(index) = stop {
            object.insert("stop_index".to_owned(), index.into());
        }
        object.insert("prompt_tokens".to_owned(), outcome.prompt_tokens.into());
        object.insert("generated_tokens".to_owned(), outcome.generated.len().into());
        object.insert("seed".to_owned(), self.seed.into());
        object.insert(
            "seconds".to_owned(),
            json!({ "load": self.load_seconds, "first_token": first, "total": seconds }),
        );
        object.extend(self.about.clone());
        Value::Object(object)
    }

    /// `logprobs`: for each token its own and the best, where they were asked for.
    fn insert_logprobs(&self, object: &mut Map<String, Value>, tokens: &[Sampled]) {
        let entry = |id: u32, logprob: f32| {
            let mut entry = Map::new();
            entry.insert("id".to_owned(), id.into());
            entry.insert("token".to_owned(), self.shown(id).into());
            let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
            if std::str::from_utf8(&bytes).is_err() {
                entry.insert("bytes".to_owned(), bytes.to_vec().into());
            }
            // Minus infinity, of a token that cannot come, is no number of JSON.
            entry.insert("logprob".to_owned(), logprob.is_finite().then(|| shortest(logprob)).into());
            entry
        };
        let all: Option<Vec<Value>> = tokens
            .iter()
            .map(|token| {
                let logprobs = token.logprobs.as_ref()?;
                let mut own = entry(token.id, logprobs.sampled);
                let top = logprobs.top.iter().map(|(id, logprob)| Value::Object(entry(*id, *logprob)));
                own.insert("top".to_owned(), top.collect());
                Some(Value::Object(own))
            })
            .collect();
        if let Some(all) = all {
            object.insert("logprobs".to_owned(), all.into());
        }
    }

    /// A line for each token that is new: probability, token, and the best with theirs.
    fn lines(&mut self, generated: &[Sampled]) -> Result<()> {
        for token in &generated[self.told..] {
            let Some(logprobs) = &token.logprobs else { continue };
            let best = logprobs
                .top
                .iter()
                .map(|(id, logprob)| format!("{:?} {:.4}", self.shown(*id), logprob.exp()));
            let best = best.collect::<Vec<_>>().join("  ");
            let own = format!("{:?}", self.shown(token.id));
            let line = format!("{:.4} {own:<16} {best}", logprobs.sampled.exp());
            writeln!(self.out, "{}", line.trim_end())?;
        }
        self.told = generated.len();
        Ok(())
    }

    /// The text of a token alone; where it is part of a character only, U+FFFD stands for that.
    fn shown(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
    }
}

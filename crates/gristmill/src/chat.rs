//! A conversation that is computed once.

use engine::{EngineError, SavedSession, SessionError, SessionId};
use serde::{Deserialize, Serialize};
use text::{Content, Message};

use crate::block_on::{block_on, next_events};
use crate::error::Error;
use crate::generation::{Generation, Outcome, StopReason};
use crate::interrupt::Interrupt;
use crate::llm::{Generate, Llm};

/// A conversation with a model, on one cache: each turn computes what is new in it.
///
/// ```no_run
/// use gristmill::{Chat, Generate, Llm, LoadOptions};
///
/// # fn main() -> Result<(), gristmill::Error> {
/// let mut llm = Llm::load("model.gguf", &LoadOptions::default())?;
/// let mut chat = Chat::new(&mut llm)?;
/// chat.set_system(Some("Be brief."));
/// for question in ["Why is the sky blue?", "And at sunset?"] {
///     for piece in chat.say(question, &Generate::default())? {
///         print!("{}", piece?);
///     }
///     println!();
/// }
/// println!("{:?}", chat.stats());
/// std::fs::write("sky.session", chat.save()?).unwrap();
/// # Ok(())
/// # }
/// ```
///
/// The messages decide what is asked, rendered anew each turn with the model's template; the session below them only saves
/// work, as far as the rendering begins with what was computed before. So messages may be taken back ([`Chat::undo`]) or
/// answered again ([`Chat::retry`]), and no bit of an answer depends on what came and went.
///
/// Nothing is ever dropped from a conversation to make it fit: a turn beyond the context is an error with both numbers, and the
/// conversation stays as it was.
pub struct Chat<'l> {
    llm: &'l mut Llm,
    session: SessionId,
    messages: Vec<Message>,
    stats: ChatStats,
}

/// What a conversation has taken so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ChatStats {
    /// Answers, those that were broken off among them.
    pub answers: usize,
    /// Prompt tokens, each counted in every turn that it was part of, that were in the cache.
    pub reused: usize,
    /// Those that were computed.
    pub computed: usize,
    /// Tokens generated.
    pub generated: usize,
}

/// What became of the states of a saved conversation; its messages are there in any case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resumption {
    /// So many tokens are in the cache and are not computed again.
    Restored(usize),
    /// All is computed again with the next turn, for this reason.
    Recomputed(String),
}

/// What a saved conversation has beside the states.
#[derive(Serialize, Deserialize)]
struct Note {
    messages: Vec<Message>,
    stats: ChatStats,
}

/// Role of what the model says.
const ASSISTANT: &str = "assistant";
/// Role of instructions.
const SYSTEM: &str = "system";
/// Role of who talks to it.
const USER: &str = "user";

impl<'l> Chat<'l> {
    /// An empty conversation.
    ///
    /// # Errors
    /// The model has no chat template, or one that cannot be read.
    pub fn new(llm: &'l mut Llm) -> Result<Chat<'l>, Error> {
        llm.template()?;
        let session = llm.engine().open_session();
        Ok(Chat { llm, session, messages: vec![], stats: ChatStats::default() })
    }

    /// The model that is talked to.
    pub fn llm(&mut self) -> &mut Llm {
        self.llm
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a message that nobody answers yet, such as a turn of another conversation.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Sets, changes or takes away the system message, which comes first.
    pub fn set_system(&mut self, text: Option<&str>) {
        self.messages.retain(|message| message.role != SYSTEM);
        if let Some(text) = text {
            self.messages.insert(0, Message::new(SYSTEM, text));
        }
    }

    /// The text of the system message.
    pub fn system(&self) -> Option<&str> {
        self.messages.iter().find(|message| message.role == SYSTEM).and_then(text_of)
    }

    /// Says something; the answer comes as a stream, and is part of the conversation as far as it was read: dropping the stream
    /// breaks it off there. Where nothing of an answer was read, the question is taken back.
    ///
    /// # Errors
    /// The template refuses the conversation, or it is too long for the context, with room for output; the options are refused.
    /// Then the conversation is as it was.
    pub fn say(&mut self, text: impl Into<String>, options: &Generate) -> Result<Reply<'_>, Error> {
        self.messages.push(Message::new(USER, text));
        self.reply(options, 1, None)
    }

    /// Answers the last question again, in place of the answer it has. With the same options and a seed the same answer comes.
    ///
    /// # Errors
    /// As [`Chat::say`]; nothing was asked yet. Then the conversation is as it was.
    pub fn retry(&mut self, options: &Generate) -> Result<Reply<'_>, Error> {
        let answered = self.messages.pop_if(|last| last.role == ASSISTANT);
        if self.messages.last().is_none_or(|last| last.role == SYSTEM) {
            self.messages.extend(answered);
            return Err(Error::Chat("there is no question yet that could be answered again".into()));
        }
        self.reply(options, 0, answered)
    }

    /// The reply to the messages; where there is none, the last `new` messages go and what was taken away comes back.
    fn reply(&mut self, options: &Generate, new: usize, taken: Option<Message>) -> Result<Reply<'_>, Error> {
        let ids = self.llm.render(&self.messages);
        match ids.and_then(|ids| self.llm.start(ids, options, Some(self.session))) {
            Ok(generation) => Ok(Reply {
                generation: Some(generation),
                messages: &mut self.messages,
                stats: &mut self.stats,
                text: String::new(),
                failed: false,
                new,
                taken,
            }),
            Err(error) => {
                self.messages.truncate(self.messages.len() - new);
                self.messages.extend(taken);
                Err(error)
            }
        }
    }

    /// Takes back the last question and what followed it; gives its text, `None` when there is no question.
    pub fn undo(&mut self) -> Option<String> {
        let last = self.messages.iter().rposition(|message| message.role == USER)?;
        let text = text_of(&self.messages[last]).unwrap_or_default().to_owned();
        self.messages.truncate(last);
        Some(text)
    }

    /// Forgets everything but the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == SYSTEM);
        self.stats = ChatStats::default();
        let engine = self.llm.engine();
        engine.close_session(self.session);
        self.session = engine.open_session();
    }

    /// What was computed so far.
    pub fn stats(&self) -> ChatStats {
        self.stats
    }

    /// Tokens of the conversation as the next question's prompt would begin with them; the context is
    /// [`engine::CacheSize::context`].
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub fn tokens(&self) -> Result<usize, Error> {
        if self.messages.is_empty() { Ok(0) } else { Ok(self.llm.render(&self.messages)?.len()) }
    }

    /// The conversation as bytes for [`Chat::load`]: the messages, and keys, values and recurrent states of what was computed.
    ///
    /// # Errors
    /// The device was lost, or has no memory for a copy.
    pub fn save(&mut self) -> Result<Vec<u8>, Error> {
        let (messages, stats) = (self.messages.clone(), self.stats);
        let note = serde_json::to_vec(&Note { messages, stats }).map_err(|e| Error::Chat(e.to_string()))?;
        let engine = self.llm.engine();
        // Steps of an answer that was broken off may be in flight; nobody waits for what they give.
        while next_events(engine).is_some() {}
        Ok(block_on(engine.save_session(self.session, &note)?)?)
    }

    /// Goes on with a saved conversation in place of this one. States of another model, device, precision, KV type, context or
    /// build are of no use: then the messages alone are taken, and computed again.
    ///
    /// # Errors
    /// The bytes are no saved conversation, or damaged. Then this one stays.
    pub fn load(&mut self, bytes: &[u8]) -> Result<Resumption, Error> {
        let saved = SavedSession::parse(bytes).map_err(EngineError::from)?;
        let note: Note = serde_json::from_slice(saved.note())
            .map_err(|e| Error::Chat(format!("this is a saved session without a conversation: {e}")))?;
        let engine = self.llm.engine();
        let (session, resumption) = match engine.restore_session(&saved) {
            Ok(session) => {
                let resumption = match engine.session_tokens(session)?.len() {
                    0 if !saved.tokens().is_empty() => {
                        Resumption::Recomputed("there is no room for its states now".to_owned())
                    }
                    tokens => Resumption::Restored(tokens),
                };
                (session, resumption)
            }
            Err(EngineError::Session(error @ SessionError::OtherEngine { .. })) => {
                (engine.open_session(), Resumption::Recomputed(error.to_string()))
            }
            Err(error) => return Err(error.into()),
        };
        engine.close_session(self.session);
        (self.session, self.messages, self.stats) = (session, note.messages, note.stats);
        Ok(resumption)
    }
}

impl Drop for Chat<'_> {
    fn drop(&mut self) {
        self.llm.engine().close_session(self.session);
    }
}

fn text_of(message: &Message) -> Option<&str> {
    match &message.content {
        Content::Text(text) => Some(text),
        _ => None,
    }
}

/// An answer as it comes: iterates over pieces of text.
pub struct Reply<'c> {
    /// There until the end.
    generation: Option<Generation<'c>>,
    messages: &'c mut Vec<Message>,
    stats: &'c mut ChatStats,
    text: String,
    failed: bool,
    /// Messages at the end that go when the request fails.
    new: usize,
    /// The answer that this one takes the place of.
    taken: Option<Message>,
}

impl Reply<'_> {
    /// The answer ends when the interrupt is raised, with [`crate::StopReason::Interrupted`]; what came before is kept.
    #[must_use]
    pub fn until(mut self, interrupt: &Interrupt) -> Self {
        self.generation = self.generation.take().map(|generation| generation.until(interrupt));
        self
    }

    /// The whole rest of the answer.
    ///
    /// # Errors
    /// The request failed.
    pub fn text(mut self) -> Result<String, Error> {
        self.by_ref().collect()
    }

    /// The result, once the stream has ended without an error.
    pub fn outcome(&self) -> Option<Outcome> {
        self.generation.as_ref().and_then(Generation::outcome)
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.generation.as_mut()?.next();
        match &piece {
            Some(Ok(piece)) => self.text += piece,
            Some(Err(_)) => self.failed = true,
            None => {}
        }
        piece
    }
}

impl Drop for Reply<'_> {
    /// What was read is the answer. Where the request failed, or was broken off before the model said anything, there is none.
    fn drop(&mut self) {
        let ended = self.outcome().is_some_and(|outcome| outcome.reason != StopReason::Interrupted);
        let unanswered = self.failed || self.text.is_empty() && !ended;
        if let Some(generation) = self.generation.take() {
            let (prompt, reused, generated) = generation.counts();
            // Those of a loaded conversation may be anything.
            let stats = &mut self.stats;
            stats.reused = stats.reused.saturating_add(reused);
            stats.computed = stats.computed.saturating_add(prompt - reused);
            stats.generated = stats.generated.saturating_add(generated);
        }
        if unanswered {
            self.messages.truncate(self.messages.len() - self.new);
            self.messages.extend(self.taken.take());
        } else {
            self.stats.answers = self.stats.answers.saturating_add(1);
            self.messages.push(Message::new(ASSISTANT, std::mem::take(&mut self.text)));
        }
    }
}

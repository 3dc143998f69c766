//! Run language models from Rust: load, generate, stream, chat.
//!
//! ```no_run
//! use gristmill::{Generate, Llm, LoadOptions, Message};
//!
//! # fn main() -> Result<(), gristmill::Error> {
//! let mut llm = Llm::load("SmolLM2-135M-Instruct.Q4_1.gguf", &LoadOptions::default())?;
//!
//! // Stream a completion.
//! for piece in llm.generate("The capital of France is", &Generate::default().max_tokens(16))? {
//!     print!("{}", piece?);
//! }
//!
//! // Or answer a chat turn with the model's own template.
//! let answer = llm.chat(&[Message::new("user", "Why is the sky blue?")], &Generate::default())?.text()?;
//! println!("{answer}");
//! # Ok(())
//! # }
//! ```
//!
//! A conversation of several turns is a [`Chat`], which computes each token once. [`Llm`] runs one request at a time. Several at once, on shared steps, are [`Engine`]'s business: submit requests,
//! then [`next_events`] until it has none. Logits of a prompt's own positions come from [`score`].
//!
//! A context of N tokens ([`EngineOptions::context`]) is N tokens of prompt and output together. A prompt that is longer, or
//! that leaves no room for output, is refused with both numbers; output that reaches the end stops there
//! ([`StopReason::ContextFull`]).
//!
//! What waits on a thread ([`Llm`], [`next_events`]) is not there in browsers; `gristmill-web` drives the engine on theirs.

#[cfg(not(target_arch = "wasm32"))]
mod block_on;
#[cfg(not(target_arch = "wasm32"))]
mod chat;
#[cfg(not(target_arch = "wasm32"))]
mod device;
mod error;
#[cfg(not(target_arch = "wasm32"))]
mod generation;
#[cfg(not(target_arch = "wasm32"))]
mod interrupt;
#[cfg(not(target_arch = "wasm32"))]
mod llm;
#[cfg(not(target_arch = "wasm32"))]
mod score;
mod tokenizer;

#[cfg(not(target_arch = "wasm32"))]
pub use block_on::next_events;
#[cfg(not(target_arch = "wasm32"))]
pub use chat::{Chat, ChatStats, Reply, Resumption};
#[cfg(not(target_arch = "wasm32"))]
pub use device::{
    DeviceKind, DeviceOptions, Families, Peaks, Profile, device_kind, device_kinds, device_names,
    gpu_adapters, measure_peaks, most_threads, open_device, open_devices, quiet_lost_devices,
};
pub use engine::sampling::{self, SamplingOptions, Stage};
pub use engine::{
    ByteSize, CacheSize, Engine, EngineError, EngineOptions, Event, Finish, Request, RequestId, SavedSession,
    Saving, SessionError, SessionId, Task,
};
pub use engine::{MAX_CHUNK, MAX_CONTEXT};
pub use error::Error;
pub use formats::{Checkpoint, Container};
#[cfg(not(target_arch = "wasm32"))]
pub use generation::{Generation, Outcome, StopReason};
pub use graph::backend::{Precision, StepProfile};
pub use graph::{PlanReport, PortKind};
#[cfg(not(target_arch = "wasm32"))]
pub use interrupt::Interrupt;
#[cfg(not(target_arch = "wasm32"))]
pub use llm::{Generate, Llm, LoadOptions, fresh_seed, load_engine};
pub use models::{Model, ModelInfo};
#[cfg(not(target_arch = "wasm32"))]
pub use score::score;
pub use text::{ChatTemplate, Content, Detokenizer, EncodeOptions, Message, RenderOptions, Tokenizer};
pub use tokenizer::tokenizer_of;

/// Lower layers, for tools that look inside.
pub mod parts {
    #[cfg(not(target_arch = "wasm32"))]
    pub use {cpu, gpu};
    pub use {engine, formats, graph, models, tensor, text};
}

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

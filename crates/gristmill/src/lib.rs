//! Run language models from Rust: load, generate, stream, chat.
//!
//! ```
//! use gristmill::{Generate, Llm, LoadOptions};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens-gguf/llama.gguf");
//! // A GGUF file (of a split model any shard) or a Hugging Face folder.
//! let mut llm = Llm::load(path, &LoadOptions::default())?;
//!
//! // Stream a completion.
//! for piece in llm.generate("The capital of France is", &Generate::default().max_tokens(16))? {
//!     print!("{}", piece?);
//! }
//! # Ok::<(), gristmill::Error>(())
//! ```
//!
//! | to | there is | example |
//! |---|---|---|
//! | load a model and look at it | [`Llm::load`], [`LoadOptions`], [`ModelInfo`] | `load` |
//! | generate text | [`Llm::generate`], [`Generate`] | `generate` |
//! | stream it, and learn why it ended | [`Generation`], [`Outcome`] | `stream` |
//! | answer a conversation | [`Llm::chat`], [`Message`] | `stream` |
//! | keep a conversation, each token computed once | [`Chat`], [`Engine::open_session`] | `chat` |
//! | choose tokens your own way | [`Generate::sampler`], [`sampling::CustomSampler`] | `sampler` |
//! | run several sequences at once | [`Engine`], [`Request`], [`next_events`] | `several` |
//! | score a text | [`score`], [`sampling::negative_log_likelihood`] | |
//!
//! The examples are programs: `cargo run --release --example several -- MODEL`.
//!
//! **Answers repeat.** The same request gives the same tokens, whatever else the engine runs, on however many threads; a
//! temperature above 0 needs a seed for that ([`Generate::seed`]).
//!
//! **Context.** A context of N tokens ([`EngineOptions::context`]) is N tokens of prompt and output together. A prompt that
//! is longer, or that leaves no room for output, is refused with both numbers; output that reaches the end stops there
//! ([`StopReason::ContextFull`]).
//!
//! **Errors.** Every [`Error`] says what was wrong, where, and what to do. Files are not trusted: whatever is in them ends in
//! a value or an error.
//!
//! **Features.** `gpu`, on by default, is what runs models on GPUs; without it (`default-features = false`) there is less to build,
//! and naming a GPU is an error that says so.
//!
//! **Versions.** What is re-exported here keeps to semantic versioning. Errors, events and results may grow, and are
//! `non_exhaustive`; options may too, so write them with `..Default::default()` or with their methods. [`parts`] is for tools
//! of this repository and changes with it.
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
mod open;
#[cfg(not(target_arch = "wasm32"))]
mod score;
mod tokenizer;

#[cfg(not(target_arch = "wasm32"))]
pub use block_on::next_events;
#[cfg(not(target_arch = "wasm32"))]
pub use chat::{Chat, ChatStats, Reply, Resumption};
#[cfg(not(target_arch = "wasm32"))]
pub use device::{
    DeviceKind, DeviceOptions, GpuApi, Peaks, device_kind, device_kinds, device_names, measure_peaks,
    most_threads, open_device, open_devices, quiet_lost_devices,
};
#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
pub use device::{Families, Profile, gpu_adapters};
pub use engine::sampling::{self, SamplingOptions, Stage};
pub use engine::{
    ByteSize, CacheSize, Engine, EngineError, EngineOptions, Event, Finish, Request, RequestId, SavedSession,
    Saving, SessionError, SessionId, Task,
};
pub use engine::{MAX_CHUNK, MAX_CONTEXT, MAX_SEQUENCES};
pub use error::Error;
pub use formats::{Checkpoint, Container};
#[cfg(not(target_arch = "wasm32"))]
pub use generation::{Generation, Outcome, StopReason};
pub use graph::backend::{KvType, Precision, StepProfile};
pub use graph::{PlanReport, PortKind};
#[cfg(not(target_arch = "wasm32"))]
pub use interrupt::Interrupt;
#[cfg(not(target_arch = "wasm32"))]
pub use llm::{Generate, Llm, LoadOptions, fresh_seed, load_engine};
pub use models::{Model, ModelInfo};
pub use open::open_checkpoint;
#[cfg(not(target_arch = "wasm32"))]
pub use score::score;
pub use text::{ChatTemplate, Content, Detokenizer, EncodeOptions, Message, RenderOptions, Tokenizer};
pub use tokenizer::{tokenizer_metadata, tokenizer_of};

/// Lower layers, for tools that look inside. They change from version to version.
pub mod parts {
    #[cfg(not(target_arch = "wasm32"))]
    pub use cpu;
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub use gpu;
    pub use {engine, formats, graph, models, tensor, text};
}

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

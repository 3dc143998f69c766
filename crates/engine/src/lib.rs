//! Sequences, scheduling, KV blocks and sampling.
//!
//! [`Engine`] is a state machine that is polled; it contains no thread, no blocking wait and no file access of its own.

mod cache;
mod engine;
mod error;
mod fingerprint;
mod options;
mod plans;
mod request;
pub mod sampling;
mod scheduler;
mod sequence;
mod session;
mod session_file;
mod step;

pub use cache::CacheSize;
pub use engine::{Engine, Saving};
pub use error::EngineError;
pub use graph::ByteSize;
pub use options::{EngineOptions, MAX_CHUNK, MAX_CONTEXT, MAX_SEQUENCES};
pub use plans::Progress;
pub use request::{Event, Finish, Request, RequestId, Task};
pub use session::{SessionError, SessionId};
pub use session_file::SavedSession;

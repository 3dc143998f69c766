//! Conformance: cases generated from the op vocabulary, run on a backend and judged by the references.
//!
//! Every case is compared with the reference under the op's own bound, in both precisions, and then bitwise with
//! itself: in a larger bucket, with its rows or sequences in another order, and with one of them alone. A state is
//! judged by the ops that read it.

pub mod case;
pub mod cases;
pub mod reference;
mod report;
mod run;
mod states;
pub mod values;

pub use case::Case;
pub use reference::ReferenceBackend;
pub use report::{Cell, Failure, Report};
pub use run::{Stored, judge, run};
pub use states::states;

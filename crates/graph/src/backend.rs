//! The contract between the engine and a device.
//!
//! A backend packs weights, owns states and compiles graphs. A plan has instances, each with its own bindings and
//! input slot and at most one submission in flight: `encode` may run while other instances execute, `submit` does not
//! block, completion is a [`Fence`].
//!
//! Submissions of all the instances of a backend run in the order in which they are submitted, each on the states as the
//! one before it left them. So storage that a submission in flight still writes can be given to the next one, and a step
//! can take what the step before it drew ([`tensor::Op::Feed`]) although nobody has read it yet.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use tensor::ops::{KvType, Precision};
use tensor::{DType, Shape};

use crate::fence::Fence;
use crate::graph::Graph;
use crate::report::PlanReport;

/// What went wrong on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The backend has no kernel for an op with these operands.
    #[error("{device} cannot compute {op}: {reason}")]
    Unsupported {
        /// Backend name.
        device: String,
        /// The op and its operand types.
        op: String,
        /// What is missing.
        reason: String,
    },
    /// Storage was refused.
    #[error("{device} has no memory for {what} ({bytes} bytes)")]
    Memory {
        /// Backend name.
        device: String,
        /// What was to be stored.
        what: String,
        /// Its size.
        bytes: u64,
    },
    /// A binding, input or scalar is missing or does not fit its port.
    #[error("binding `{port}`: {problem}")]
    Binding {
        /// The port or scalar.
        port: String,
        /// What is wrong.
        problem: String,
    },
    /// The instance already has a submission in flight, or the encoded step is not its latest.
    #[error("{0}")]
    Busy(String),
    /// A kernel met values it must not pass on (NaN router logits, say). The submission ran to its end: with `rows`
    /// given, the rows of all other sequences have their results, bitwise as if these had not been in the step, and
    /// [`Instance::output`] gives them; what later rows of the same sequences got is unspecified.
    #[error("{op}: {problem}{}", of_rows(.rows))]
    Numeric {
        /// The op; where several met such values, the first in execution order.
        op: String,
        /// What it met, without the row: it must not depend on what else is in the step.
        problem: String,
        /// Every row of the step where this or a later op met such values, ascending. Empty when the device cannot tell,
        /// as where an op's rows are not those of the step (see [`Graph::row_scalar`]): then the step has no results.
        rows: Vec<u32>,
    },
    /// There is no such device, or it cannot be opened.
    #[error("{0}")]
    Absent(String),
    /// The device or its worker died; the requests on it have failed.
    #[error("the device was lost: {0}")]
    Lost(String),
}

fn of_rows(rows: &[u32]) -> String {
    if rows.is_empty() { String::new() } else { format!(" (rows {rows:?} of the step)") }
}

/// A weight to be packed.
#[derive(Clone, Debug)]
pub struct WeightDesc {
    /// Port name, for messages.
    pub name: String,
    /// Storage type.
    pub dtype: DType,
    /// `[N, K]`, `[E, N, K]` or a row `[K]`.
    pub shape: Shape,
    /// How ops read it.
    pub layout: WeightUse,
}

/// How the ops of a graph read a weight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightUse {
    /// Matrix of a product, or a table that rows are gathered from: packed for the device.
    Matrix,
    /// Norm gains, biases, frequencies, convolution taps: f32 elements in order.
    Elements,
}

/// Supplies rows of a weight, in any order, possibly from several threads. Rows are those of all leading axes
/// flattened, `shape.last()` elements each, in the type's storage bytes.
pub trait RowSource: Sync {
    /// Calls `sink(row, bytes)` for every row of `rows`.
    ///
    /// # Errors
    /// The source cannot be read.
    fn rows(
        &self,
        rows: std::ops::Range<usize>,
        sink: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DeviceError>;
}

/// A packed weight. The backend that made it knows what it is.
pub type WeightHandle = Arc<dyn Any + Send + Sync>;

/// A state's storage. The backend that made it knows what it is.
pub type StateHandle = Arc<dyn Any + Send + Sync>;

/// Bytes of entries of a state on their way to the host: see [`Backend::read_state`].
pub type Reading = Pin<Box<dyn Future<Output = Result<Vec<u8>, DeviceError>> + Send>>;

/// A state to be allocated, zeroed.
#[derive(Clone, Debug)]
pub struct StateDesc {
    /// Port name, for messages.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Logical extents, as the op that uses it documents; the physical layout is the backend's.
    pub shape: Shape,
}

/// What a plan is compiled with.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// For reports.
    pub label: String,
    /// Kernel class.
    pub precision: Precision,
    /// Time the kernels, where the device can: [`Instance::profile`]. That slows them down a little.
    pub profile: bool,
}

/// What a submission took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepProfile {
    /// The kernels in execution order.
    pub kernels: Vec<KernelTime>,
    /// What is in each of their times without being theirs: nanoseconds of a kernel that does next to nothing, timed alike.
    pub floor_nanos: u64,
    /// Nanoseconds the host took to encode and submit the step.
    pub host_nanos: u64,
}

/// What one run of a kernel took and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Which of [`PlanReport::selections`] it is of.
    pub selection: usize,
    /// Nanoseconds on the device.
    pub nanos: u64,
    /// Bytes of packed weights that it reads, and of cached keys and values where the device counts those.
    pub bytes: u64,
    /// Multiply-adds of a product; 0 where the device does not count them.
    pub products: u64,
}

/// A device being opened anew: see [`Backend::reopen`].
pub type Reopening = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>, DeviceError>> + Send>>;

/// The [`Backend::memory_name`] of the memory that the processors use, and of devices without memory of their own.
pub const HOST_MEMORY: &str = "host";

/// A device.
pub trait Backend: Send + Sync {
    /// Name, as given to `--device`.
    fn name(&self) -> &str;

    /// The hardware and the kernel family in use, for reports and the fingerprint.
    fn description(&self) -> String;

    /// Memory this device has for weights, states and plans in all, in bytes, when it is known.
    fn memory_limit(&self) -> Option<u64>;

    /// Names the memory that [`Backend::memory_limit`] is of: devices that give the same name take from the same memory.
    /// `None` where no other device takes from it; [`HOST_MEMORY`] for that of the processors.
    fn memory_name(&self) -> Option<String> {
        None
    }

    /// The types that a KV cache may have here. What others are is refused with [`DeviceError::Unsupported`] when a graph with
    /// them is compiled; whoever chooses the type asks first.
    fn kv_types(&self) -> &[KvType];

    /// Whether a state of this shape can be made where there is memory for it: kernels may see only so much of one buffer.
    /// A shape with fewer entries in its first axis can be made if this one can.
    fn state_fits(&self, _desc: &StateDesc) -> bool {
        true
    }

    /// Whether this device is best kept one step ahead of the host: tokens are drawn on it, the next step is submitted
    /// before they are read, and logits are read only where somebody asks for them.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Opens the device again, after it was lost ([`DeviceError::Lost`]). Nothing of the old one can be used with what this
    /// gives: weights are packed, states allocated and plans compiled anew.
    ///
    /// # Errors
    /// Those of opening it in the first place.
    fn reopen(&self) -> Reopening;

    /// Packs a weight into the device's one layout for its type.
    ///
    /// # Errors
    /// Unsupported type, memory, or the source's error.
    fn weight(&self, desc: &WeightDesc, source: &dyn RowSource) -> Result<WeightHandle, DeviceError>;

    /// Allocates a state, zeroed.
    ///
    /// # Errors
    /// Memory.
    fn state(&self, desc: &StateDesc) -> Result<StateHandle, DeviceError>;

    /// Bytes of an entry of a state's first axis (a KV block, a slot), in the device's own layout. What they mean is known to
    /// devices of the same description and to plans of the same identity; a KV cache has to be bound to one first.
    ///
    /// # Errors
    /// A state of another backend, or a KV cache that no plan was bound to.
    fn entry_bytes(&self, state: &StateHandle) -> Result<usize, DeviceError>;

    /// Reads entries of a state, one after another as they are listed, as the submissions before this call leave them and
    /// untouched by those after it. Does not block.
    ///
    /// # Errors
    /// Those of [`Backend::entry_bytes`], an entry that there is not, or memory. The future tells of a device that was lost.
    fn read_state(&self, state: &StateHandle, entries: &[u32]) -> Result<Reading, DeviceError>;

    /// Writes entries of a state, after the submissions before this call and before those after it. `bytes` are what
    /// [`Backend::read_state`] gives for as many entries. Does not block.
    ///
    /// # Errors
    /// As for reading, an entry listed twice, or bytes of another number. The fence tells of a device that was lost.
    fn write_state(&self, state: &StateHandle, entries: &[u32], bytes: &[u8]) -> Result<Fence, DeviceError>;

    /// Compiles a graph.
    ///
    /// # Errors
    /// An op without a kernel, memory.
    fn compile(&self, graph: &Graph, options: &CompileOptions) -> Result<Arc<dyn Plan>, DeviceError>;
}

/// What an instance is bound to for its life, by port name.
#[derive(Clone, Default)]
pub struct Bindings {
    /// Every weight port.
    pub weights: HashMap<String, WeightHandle>,
    /// Every state port.
    pub states: HashMap<String, StateHandle>,
}

/// A compiled graph.
pub trait Plan: Send + Sync {
    /// Ports, scalars, selections, memory.
    fn report(&self) -> &PlanReport;

    /// Makes an instance; the whole binding set is validated here.
    ///
    /// # Errors
    /// A port without a binding, a binding of another type, shape or backend.
    fn instance(&self, bindings: &Bindings) -> Result<Box<dyn Instance>, DeviceError>;
}

/// The varying part of one submission, by name. An input shorter than its port fills the leading part; the rest is
/// padding. The bounds are the scalars.
#[derive(Clone, Copy)]
pub struct StepInputs<'a> {
    /// u32 inputs.
    pub inputs: &'a [(&'a str, &'a [u32])],
    /// f32 inputs.
    pub floats: &'a [(&'a str, &'a [f32])],
    /// Scalars.
    pub scalars: &'a [(&'a str, u32)],
    /// Outputs that are to be read after the submission; a device may leave all others where they are.
    pub outputs: &'a [&'a str],
}

/// Proof that a step was encoded, to be submitted once.
#[derive(Debug)]
pub struct Encoded {
    /// Which encoding of its instance.
    pub serial: u64,
}

/// One executable copy of a plan.
pub trait Instance: Send {
    /// Validates and stores a step's inputs. Refused while a submission is in flight. The ids of a gather may be any: one
    /// at or beyond the rows of its table is no mistake and gives zeros.
    ///
    /// # Errors
    /// A missing, misspelt, mistyped or overlong input or scalar; an index out of range; an output that there is not; a
    /// busy instance.
    fn encode(&mut self, step: &StepInputs) -> Result<Encoded, DeviceError>;

    /// Starts the encoded step and returns without waiting. A failure is a fence that has failed.
    fn submit(&mut self, encoded: Encoded) -> Fence;

    /// The elements of an f32 output, valid after the fence until the next submission; entries past the bound of the
    /// first axis are not included. A fence that failed with [`DeviceError::Numeric`] and its rows counts as finished.
    ///
    /// # Errors
    /// No such f32 output among those that the step asked for, or the submission has not finished.
    fn output(&self, name: &str) -> Result<&[f32], DeviceError>;

    /// Times of the submission that has finished last; `None` when the plan was not compiled for it or the device cannot
    /// tell. It may wait for submissions of other instances.
    fn profile(&self) -> Option<StepProfile> {
        None
    }

    /// As [`Instance::output`], of a u32 output.
    ///
    /// # Errors
    /// As there.
    fn words(&self, name: &str) -> Result<&[u32], DeviceError>;
}

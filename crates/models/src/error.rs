//! Why a checkpoint cannot become a model.

use graph::Diagnostics;

/// Why a model cannot be opened or recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No family is registered for the architecture.
    #[error(
        "the checkpoint's architecture is {found}, which this version cannot run; choose a model of one of these: {known}"
    )]
    UnknownArchitecture {
        /// The key and what it says.
        found: String,
        /// All names of the registry.
        known: String,
    },
    /// A hyper-parameter is missing that has no default.
    #[error(
        "the hyper-parameter `{key}` is missing (it should hold {expected}): fetch the model again, or convert it again"
    )]
    MissingKey {
        /// The key of the container.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A hyper-parameter holds what it cannot mean.
    #[error(
        "the hyper-parameter `{key}` is {found}, it should be {expected}: fetch the model again, or convert it again"
    )]
    BadValue {
        /// The key of the container.
        key: String,
        /// Its value.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A hyper-parameter has a legal value for which there is no code.
    #[error(
        "the hyper-parameter `{key}` is {found}, which is not implemented ({implemented}); choose another model"
    )]
    Unsupported {
        /// The key of the container.
        key: String,
        /// Its value.
        found: String,
        /// What is.
        implemented: String,
    },
    /// Hyper-parameters that the family's code does not know. Computing without them could be wrong, so they are not
    /// skipped.
    #[error(
        "{architecture} does not know these hyper-parameters, whose meaning might change the results: {}; choose another \
         model, or a later version of this program",
        list(.keys)
    )]
    UnknownKeys {
        /// The family.
        architecture: &'static str,
        /// `key = value` of each.
        keys: Vec<String>,
    },
    /// Tensors are missing, do not fit, or have no place in the model.
    #[error("{}:{}", unfit(.0), lines(.0))]
    Tensors(Vec<TensorProblem>),
    /// A hyper-parameter that files of another container do not have.
    #[error(
        "a GGUF file of the architecture {architecture} cannot say {what}: this model cannot be converted"
    )]
    NotInGguf {
        /// The architecture, as GGUF names it.
        architecture: &'static str,
        /// What it cannot say.
        what: String,
    },
    /// A graph that another model recorded.
    #[error("the graph's weight `{name}` is not one of this model")]
    ForeignWeight {
        /// The port.
        name: String,
    },
    /// The recording is wrong: a fault of this program, or limits that cannot be.
    #[error(transparent)]
    Graph(#[from] Diagnostics),
}

/// What is wrong with one tensor of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorProblem {
    /// It is not there.
    #[error("{name} is missing, expected shape {expected:?}")]
    Missing {
        /// Name in the container.
        name: String,
        /// Expected shape, outermost axis first.
        expected: Vec<usize>,
    },
    /// It has another shape.
    #[error("{name} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Name in the container.
        name: String,
        /// Expected shape, outermost axis first.
        expected: Vec<usize>,
        /// Its shape.
        found: Vec<usize>,
    },
    /// It is stored as a type that cannot be computed with here.
    #[error("{name}: {problem}")]
    Type {
        /// Name in the container.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Nothing uses it, so the model would silently be another one.
    #[error("{name} (shape {found:?}) has no place in the model")]
    Unused {
        /// Name in the container.
        name: String,
        /// Its shape.
        found: Vec<usize>,
    },
}

impl TensorProblem {
    /// The tensor's name in the container.
    pub fn name(&self) -> &str {
        match self {
            TensorProblem::Missing { name, .. }
            | TensorProblem::Shape { name, .. }
            | TensorProblem::Type { name, .. }
            | TensorProblem::Unused { name, .. } => name,
        }
    }
}

/// What the problems come to, and what to do.
fn unfit(problems: &[TensorProblem]) -> &'static str {
    match problems.iter().all(|problem| matches!(problem, TensorProblem::Type { .. })) {
        true => {
            "types of tensors are not supported; convert the model to BF16, F16 or F32, or choose another file of it"
        }
        false => {
            "the checkpoint's tensors do not fit its hyper-parameters; fetch both again from one version of the model, or \
             convert it again"
        }
    }
}

fn list(items: &[String]) -> String {
    items.join(", ")
}

/// One problem a line; a wrong configuration can make every tensor a problem.
fn lines(problems: &[TensorProblem]) -> String {
    const MOST: usize = 20;
    let mut text: String = problems.iter().take(MOST).map(|p| format!("\n  {p}")).collect();
    if problems.len() > MOST {
        text += &format!("\n  and {} more", problems.len() - MOST);
    }
    text
}

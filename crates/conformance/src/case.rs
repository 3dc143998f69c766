//! One case: a small graph, its weights and the steps it is run with.

use std::collections::BTreeMap;

use graph::backend::StepInputs;
use graph::{Builder, Diagnostics, Graph, ScalarId, State, Tensor};
use tensor::{DType, HostTensor};

/// Inputs of one submission. Row inputs have an entry per row of the step, sequence inputs one per sequence.
#[derive(Clone)]
pub struct Step {
    /// Inputs whose first axis is the rows of the step.
    pub rows: Vec<(&'static str, HostTensor)>,
    /// Inputs whose first axis is the sequences of the step; with any there is one named `extents`.
    pub seqs: Vec<(&'static str, HostTensor)>,
}

impl Step {
    /// Rows of the step.
    pub fn row_count(&self) -> usize {
        self.rows.first().map_or(0, |(_, t)| t.dims()[0])
    }

    /// Sequences of the step; 0 where the case knows none.
    pub fn seq_count(&self) -> usize {
        self.seqs.first().map_or(0, |(_, t)| t.dims()[0])
    }

    /// The rows of each group that may move on its own: of a sequence, or one row where the case knows no sequences.
    fn groups(&self) -> Vec<std::ops::Range<usize>> {
        let extents = self.seqs.iter().find(|(name, _)| *name == "extents");
        let Some((_, extents)) = extents else { return (0..self.row_count()).map(|r| r..r + 1).collect() };
        let mut start = 0;
        let each = extents.u32s().expect("extents are U32").iter().map(|extent| {
            start += *extent as usize;
            start - *extent as usize..start
        });
        each.collect()
    }

    /// The step with only these groups, in this order, and where each of its rows was.
    fn select(&self, order: &[usize]) -> (Step, Vec<usize>) {
        let groups = self.groups();
        let rows: Vec<usize> = order.iter().flat_map(|g| groups[*g].clone()).collect();
        let pick = |inputs: &[(&'static str, HostTensor)], entries: &[usize]| -> Vec<_> {
            inputs.iter().map(|(name, t)| (*name, take(t, entries))).collect()
        };
        let seqs = if self.seqs.is_empty() { vec![] } else { pick(&self.seqs, order) };
        (Step { rows: pick(&self.rows, &rows), seqs }, rows)
    }

    /// Calls `f` with the step as a backend takes it, asking for these outputs.
    pub fn with_inputs<T>(&self, outputs: &[&str], f: impl FnOnce(&StepInputs) -> T) -> T {
        let (mut inputs, mut floats) = (vec![], vec![]);
        for (name, tensor) in self.rows.iter().chain(&self.seqs) {
            match (tensor.u32s(), tensor.f32s()) {
                (Ok(values), _) => inputs.push((*name, values)),
                (_, Ok(values)) => floats.push((*name, values)),
                _ => unreachable!("step inputs are U32 or F32"),
            }
        }
        let mut scalars = vec![("rows", self.row_count() as u32)];
        if !self.seqs.is_empty() {
            scalars.push(("seqs", self.seq_count() as u32));
        }
        f(&StepInputs { inputs: &inputs, floats: &floats, scalars: &scalars, outputs })
    }
}

/// Entries of the first axis, in the given order.
fn take(t: &HostTensor, entries: &[usize]) -> HostTensor {
    let width = t.bytes().len() / t.dims()[0].max(1);
    let bytes: Vec<u8> = entries.iter().flat_map(|e| &t.bytes()[e * width..][..width]).copied().collect();
    let mut dims = t.dims().to_vec();
    dims[0] = entries.len();
    HostTensor::new(t.dtype(), &dims, &bytes).expect("whole entries")
}

/// Records the graph of a case.
pub type Record = Box<dyn Fn(&Recorder) + Send + Sync>;

/// One case.
pub struct Case {
    /// The op it is about, as reports name it.
    pub op: &'static str,
    /// The type that varies: of the weights or the cache.
    pub dtype: DType,
    /// Shape class and what else is special about it.
    pub class: String,
    /// Weights by port name.
    pub weights: BTreeMap<String, HostTensor>,
    /// Submissions, in order; states live through all of them.
    pub steps: Vec<Step>,
    /// Rows of the first input that are no numbers are refused, each alone: that is tried as well.
    pub refuses: bool,
    /// Records the graph.
    pub record: Record,
}

/// Rows and sequences that a bucket has beyond the largest step.
#[derive(Clone, Copy, Default, Debug)]
pub struct Padding {
    /// Rows.
    pub rows: usize,
    /// Sequences.
    pub seqs: usize,
}

impl Case {
    /// `op/dtype/class`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.op, self.dtype, self.class)
    }

    /// Rows of the bucket.
    pub fn bucket(&self, padding: Padding) -> usize {
        self.steps.iter().map(Step::row_count).max().unwrap_or(0).max(1) + padding.rows
    }

    /// The graph for a bucket of the largest step and some padding.
    ///
    /// # Errors
    /// Mistakes of the case itself.
    pub fn graph(&self, padding: Padding) -> Result<Graph, Diagnostics> {
        let b = Builder::new();
        let rows = b.scalar("rows");
        let with_seqs = self.steps.iter().any(|s| !s.seqs.is_empty());
        let seqs = if with_seqs { b.scalar("seqs") } else { rows };
        let recorder = Recorder { b, case: self, padding, rows, seqs };
        (self.record)(&recorder);
        recorder.b.finish()
    }

    /// The steps with their sequences (or rows) in reverse order, and where each row was.
    pub fn reversed(&self) -> Vec<(Step, Vec<usize>)> {
        let order = |s: &Step| (0..s.groups().len()).rev().collect::<Vec<_>>();
        self.steps.iter().map(|s| s.select(&order(s))).collect()
    }

    /// The steps with only the sequence (or row) that has most to do, and where each row was.
    pub fn alone(&self) -> Vec<(Step, Vec<usize>)> {
        let work =
            |g: usize| self.steps.iter().map(|s| s.groups().get(g).map_or(0, |r| r.len())).sum::<usize>();
        let groups = self.steps.iter().map(|s| s.groups().len()).min().unwrap_or(0);
        let busiest = (0..groups).max_by_key(|g| work(*g));
        self.steps.iter().map(|s| s.select(busiest.as_slice())).collect()
    }
}

/// Declares the ports of a case for one bucket.
pub struct Recorder<'a> {
    /// Where to record.
    pub b: Builder,
    case: &'a Case,
    padding: Padding,
    rows: ScalarId,
    seqs: ScalarId,
}

impl Recorder<'_> {
    /// A row or sequence input of the steps.
    #[track_caller]
    pub fn input(&self, name: &str) -> Tensor {
        let step = &self.case.steps[0];
        let row = step.rows.iter().find(|(n, _)| *n == name);
        let (tensor, bound, entries) = match row {
            Some((_, t)) => (t, self.rows, self.case.bucket(self.padding)),
            None => {
                let (_, t) = step.seqs.iter().find(|(n, _)| *n == name).expect("an input of the steps");
                let most = self.case.steps.iter().map(Step::seq_count).max().unwrap_or(0);
                (t, self.seqs, most.max(1) + self.padding.seqs)
            }
        };
        let mut dims = tensor.dims().to_vec();
        dims[0] = entries;
        self.b.input(name, tensor.dtype(), &dims, Some(bound))
    }

    /// A weight of the case.
    #[track_caller]
    pub fn weight(&self, name: &str) -> Tensor {
        let weight = &self.case.weights[name];
        self.b.weight(name, weight.dtype(), weight.dims())
    }

    /// A state.
    #[track_caller]
    pub fn state(&self, name: &str, dtype: DType, dims: &[usize]) -> State {
        self.b.state(name, dtype, dims)
    }

    /// Rows of the bucket.
    pub fn bucket(&self) -> usize {
        self.case.bucket(self.padding)
    }

    /// Names every result as an output: `y`, `y1`, `y2`, ...
    #[track_caller]
    pub fn outputs(&self, results: &[Tensor]) {
        for (i, y) in results.iter().enumerate() {
            self.b.output(&if i == 0 { "y".to_owned() } else { format!("y{i}") }, *y);
        }
    }
}

//! From a graph to a list of kernels.

mod gated;
mod operands;

use std::sync::Arc;

use graph::backend::{CompileOptions, DeviceError, Precision, WeightDesc};
use graph::validate::StepLayout;
use graph::{Graph, Identity, MemoryReport, Node, PlanReport, PortKind, Selection, ValueId};
use tensor::ops::{Activation, Binary, KV_BLOCK};
use tensor::{DType, Op};

use crate::attention::partials_len;
use crate::quant::{ActBlock, BLOCK};
use crate::vector;

use super::Shared;
use super::experts::{Choice, ExpertStep, ExpertSumStep, RouteStep};
use super::instance::{CpuPlan, OutputInfo, PlanInner};
use super::operand::{Place, Resolver, RowsArg};
use super::order;
use super::sample::{FeedStep, SampleStep};
use super::state::{AttentionStep, ConvStep, DeltaStep, KvWriteStep, SegmentsArg, StateInfo};
use super::steps::{Input, Planned, Product, Step, Table};

/// Words of a block of activations.
const BLOCK_WORDS: usize = size_of::<ActBlock>() / 4;
/// Alignment of intermediates: a cache line, which is also what [`ActBlock`] needs.
const ALIGN: usize = 64;

pub(super) fn compile(
    shared: Arc<Shared>,
    graph: &Graph,
    options: &CompileOptions,
) -> Result<CpuPlan, DeviceError> {
    let gated = gated::groups(graph);
    let arena = graph::memory::plan(graph, ALIGN, &gated, &order::runs(graph));
    let mut places = vec![None; graph.values.len()];
    for (place, offset) in places.iter_mut().zip(&arena.offsets) {
        *place = offset.map(|bytes| Place::Arena(bytes / 4));
    }
    let layout = StepLayout::new(graph);
    for (i, port) in graph.ports.iter().enumerate() {
        let at = layout.offset(graph::PortId(i as u32));
        if let Some(at) = at {
            places[port.value.0 as usize] = Some(Place::Input(at));
        }
    }
    let (mut outputs, mut output_words) = (vec![], 0);
    for port in graph.ports.iter().filter(|p| p.kind == PortKind::Output) {
        let base = graph.base(port.value);
        let elements = port.shape.elements();
        // Two outputs may be views of one value; they share its storage.
        let at = match places[base.0 as usize] {
            Some(Place::Output(at)) => at,
            _ => {
                let at = output_words;
                places[base.0 as usize] = Some(Place::Output(at));
                output_words += elements.next_multiple_of(ALIGN / 4);
                at
            }
        };
        let value = graph.value(port.value);
        let per = elements / port.shape.dims().first().copied().unwrap_or(1).max(1);
        outputs.push(OutputInfo {
            name: port.name.clone(),
            offset: at + value.layout.offset,
            elements,
            bound: value.bound.map(|b| (b.0 as usize, per)),
        });
    }

    let states = graph.ports.iter().filter(|p| p.kind == PortKind::State);
    let states =
        states.map(|p| StateInfo { name: p.name.clone(), dtype: p.dtype, shape: p.shape, k_dim: None });
    let mut compiler = Compiler {
        resolver: Resolver { graph, places },
        weights: graph.weights(),
        states: states.collect(),
        precision: options.precision,
        isa: shared.isa.name(),
        scratch: Scratch { at: arena.bytes / 4, words: 0 },
        angles: vec![],
        quantised: None,
        extents: None,
        workers: shared.pool.threads(),
        steps: vec![],
        selections: vec![],
    };
    compiler.angles()?;
    let mut at = 0;
    while let Some(node) = graph.nodes.get(at) {
        let nodes = match gated.iter().find(|group| group[0] == at) {
            Some(group) => {
                compiler.gated(&graph.nodes[at..at + group.len()], graph.nodes.get(at + group.len()))?;
                group.len()
            }
            None => {
                compiler.node(node)?;
                1
            }
        };
        at += nodes;
    }
    let Compiler { steps, selections, weights, states, scratch, extents, .. } = compiler;
    let waits = order::waits(steps.iter().map(|(_, step)| step));
    let planned =
        steps.into_iter().zip(waits).map(|((selection, step), waits)| Planned { selection, step, waits });
    let scratch_words = scratch.at + scratch.words - arena.bytes / 4;
    let bytes = |dtype: DType, elements: usize| dtype.bytes_for(elements).unwrap_or(0) as u64;
    let memory = MemoryReport {
        arena: arena.bytes as u64,
        unaliased: arena.unaliased as u64,
        io: ((layout.words() + output_words) * 4) as u64,
        scratch: (scratch_words * 4) as u64,
        weights: weights.iter().map(|w| bytes(w.dtype, w.shape.elements())).sum(),
        states: states.iter().map(|s| bytes(s.dtype, s.shape.elements())).sum(),
    };
    let how = format!("cpu {} {:?}", shared.isa.name(), options.precision);
    let report = PlanReport {
        label: options.label.clone(),
        identity: Identity::of(graph, &how),
        ports: PlanReport::ports(graph),
        scalars: graph.scalars.clone(),
        selections,
        memory,
    };
    let arena_bytes = arena.bytes + scratch_words * 4;
    let inner = PlanInner {
        states,
        graph: graph.clone(),
        steps: planned.collect(),
        profile: options.profile,
        layout,
        weights,
        outputs,
        extents,
        output_words,
        arena_bytes,
        shared,
    };
    // The storage is made before any instance asks for it, so that the largest plan, compiled first, sizes it.
    inner.shared.arena(arena_bytes)?;
    Ok(CpuPlan { inner: Arc::new(inner), report })
}

/// Cosines and sines of the rows of a step, `[rows, frequencies]` each.
#[derive(Clone, Copy)]
struct Angles {
    /// Positions, weight that holds the frequencies, bits of the factor.
    key: (ValueId, usize, u32),
    cos: RowsArg,
    sin: RowsArg,
    /// A step that fills them has been added.
    computed: bool,
}

/// Memory for one step at a time (quantised activations, partial softmaxes), from a word of the arena on.
struct Scratch {
    at: usize,
    words: usize,
}

impl Scratch {
    /// The first word of so many.
    fn room(&mut self, words: usize) -> usize {
        self.words = self.words.max(words.next_multiple_of(ALIGN / 4));
        self.at
    }
}

struct Compiler<'a> {
    resolver: Resolver<'a>,
    weights: Vec<WeightDesc>,
    states: Vec<StateInfo>,
    precision: Precision,
    isa: &'static str,
    /// Scratch for one step at a time (quantised activations, partial softmaxes), behind the intermediates
    /// and the angles.
    scratch: Scratch,
    angles: Vec<Angles>,
    /// The value whose blocks are in scratch, so that consecutive products share them, and at which word.
    quantised: Option<(ValueId, usize)>,
    /// See [`PlanInner::extents`].
    extents: Option<(usize, usize, Option<usize>)>,
    workers: usize,
    /// Kernels, each with the index of its selection.
    steps: Vec<(usize, Step)>,
    selections: Vec<Selection>,
}

fn gated_op(activation: Activation) -> vector::Binary {
    match activation {
        Activation::Silu => vector::Binary::SiluMul,
        Activation::GeluTanh => vector::Binary::GeluTanhMul,
        Activation::GeluErf => vector::Binary::GeluErfMul,
        Activation::Sigmoid => vector::Binary::SigmoidMul,
    }
}

impl Compiler<'_> {
    fn unsupported<T>(&self, node: &Node, reason: impl Into<String>) -> Result<T, DeviceError> {
        let op = format!(
            "{} {} at {}:{}",
            node.op.name(),
            self.operands(node),
            node.site.file(),
            node.site.line()
        );
        Err(DeviceError::Unsupported { device: "cpu".into(), op, reason: reason.into() })
    }

    fn operands(&self, node: &Node) -> String {
        let show = |id: &ValueId| {
            let v = self.resolver.graph.value(*id);
            format!("{}{}", v.dtype, v.layout.shape)
        };
        // All siblings of a product, which may have different formats; of other ops what is large.
        let shown = if let Op::MatMuls { biased } = &node.op { 1 + biased.len() } else { 3 };
        node.inputs.iter().take(shown).map(show).collect::<Vec<_>>().join(" ")
    }

    fn select(&mut self, node: &Node, kernel: impl Into<String>, reason: impl Into<String>) {
        self.select_for(node.op.name(), node, kernel, reason);
    }

    /// Notes the choice for a part of a node's work that has a kernel of its own.
    fn select_for(
        &mut self,
        op: &'static str,
        node: &Node,
        kernel: impl Into<String>,
        reason: impl Into<String>,
    ) {
        let selection = Selection {
            op,
            operands: self.operands(node),
            kernel: format!("{}/{}", kernel.into(), self.isa),
            reason: reason.into(),
            site: format!("{}:{}", node.site.file(), node.site.line()),
        };
        self.selections.push(selection);
    }

    /// Adds the kernel that was selected last.
    fn push(&mut self, step: Step) {
        self.steps.push((self.selections.len() - 1, step));
    }

    /// Activations of a product: quantised for quantised weights in the fast class, otherwise as they are.
    fn input(&mut self, node: &Node, x: ValueId, weight: usize) -> Result<Input, DeviceError> {
        let rows = self.last(node, x)?;
        if self.precision == Precision::Exact || !self.weights[weight].dtype.is_quantised() {
            return Ok(Input::Exact(rows));
        }
        // Blocks of the same value that an earlier product left are used again.
        if let Some((_, at)) = self.quantised.filter(|(value, _)| *value == x) {
            return Ok(Input::Quantised { at, rows });
        }
        let words = rows.rows * rows.width / BLOCK * BLOCK_WORDS;
        if let (Some((_, Step::Attention(step))), Some(selection)) =
            (self.steps.last_mut(), self.selections.last_mut())
            && step.out == rows
            && step.layout.v_dim().is_multiple_of(BLOCK)
        {
            let before = step.partials.1.next_multiple_of(ALIGN / 4);
            let at = self.scratch.room(before + words) + before;
            step.blocks = Some(at);
            selection.reason.push_str("; quantised where it is made");
            self.quantised = Some((x, at));
            return Ok(Input::Quantised { at, rows });
        }
        let at = self.scratch.room(words);
        self.select_for(
            "quantise",
            node,
            "quantise",
            "8-bit codes in blocks of 32, for the products that follow",
        );
        // Each worker goes on with the rows that it made, if those are what the last step made.
        let by_rows = self.steps.last().is_some_and(|(_, step)| {
            let makes = step.touched().is_some_and(|touched| touched.writes.contains(&rows));
            makes && step.division().is_some_and(|division| division.is_by_rows())
        });
        self.push(Step::Quantise { x: rows, at, by_rows });
        self.quantised = Some((x, at));
        Ok(Input::Quantised { at, rows })
    }

    fn product_reason(&self, input: &Input) -> (&'static str, &'static str) {
        match input {
            Input::Exact(_) => ("matmul_f32", "f32 activations"),
            Input::Quantised { .. } => ("matmul_i8", "8-bit activations, integer products"),
        }
    }

    fn node(&mut self, node: &Node) -> Result<(), DeviceError> {
        let step = match &node.op {
            Op::MatMul => {
                let w = self.matrix(node, node.inputs[1])?;
                return self.products(node, &[w], &[None]);
            }
            Op::MatMuls { biased } => {
                let (weights, biases) = self.siblings(node, biased)?;
                return self.products(node, &weights, &biases);
            }
            Op::Gather => {
                let (table, ids) = (node.inputs[0], self.vector(node, node.inputs[1])?);
                let out = self.last(node, node.outputs[0])?;
                let table = match self.resolver.weight(table) {
                    Some(_) => Table::Weight(self.matrix(node, table)?),
                    None => Table::Rows(self.last(node, table)?),
                };
                self.select(node, "gather", "decodes rows of the packed layout");
                Step::Gather { table, ids, out }
            }
            Op::Binary(op) => {
                let op = match op {
                    Binary::Add => vector::Binary::Add,
                    Binary::Mul => vector::Binary::Mul,
                };
                self.select(node, "rows", "elementwise");
                self.binary(node, op)?
            }
            Op::GatedActivate(activation) => {
                self.select(node, "gated_rows", "fused activation and product");
                let op = gated_op(*activation);
                self.binary(node, op)?
            }
            Op::Activate(activation) => {
                self.select(node, "rows", "elementwise");
                let op = match activation {
                    Activation::Silu => vector::Unary::Silu,
                    Activation::GeluTanh => vector::Unary::GeluTanh,
                    Activation::GeluErf => vector::Unary::GeluErf,
                    Activation::Sigmoid => vector::Unary::Sigmoid,
                };
                let [x, out] = self.alike(node, [node.inputs[0], node.outputs[0]])?;
                Step::Unary { op, x, out }
            }
            Op::Scale { factor } => {
                self.select(node, "rows", "elementwise");
                let op = vector::Unary::Scale(*factor);
                let [x, out] = self.alike(node, [node.inputs[0], node.outputs[0]])?;
                Step::Unary { op, x, out }
            }
            Op::RmsNorm { eps } => {
                self.select(node, "rms_norm", "f32 lanes, fixed tree");
                let width = self.resolver.shape(node.inputs[0]).last();
                let [x, out] = self.alike(node, [node.inputs[0], node.outputs[0]])?;
                Step::RmsNorm { x, weight: self.elements(node, node.inputs[1])?, width, eps: *eps, out }
            }
            Op::AddRmsNorm { eps } => {
                self.select(node, "add_rms_norm", "fused residual and norm");
                Step::AddRmsNorm {
                    a: self.last(node, node.inputs[0])?,
                    b: self.last(node, node.inputs[1])?,
                    weight: self.elements(node, node.inputs[2])?,
                    eps: *eps,
                    sum: self.last(node, node.outputs[0])?,
                    out: self.last(node, node.outputs[1])?,
                }
            }
            Op::Rope { magnitude } => {
                let angles = self.angles_of(node, *magnitude)?;
                self.select(node, "rope", "half-split");
                Step::Rope {
                    x: self.outer(node, node.inputs[0])?,
                    head_dim: self.resolver.shape(node.inputs[0]).last(),
                    cos: angles.cos,
                    sin: angles.sin,
                    out: self.outer(node, node.outputs[0])?,
                }
            }
            Op::Route { renormalise, .. } => {
                self.select(node, "route", "softmax, selection");
                let graph = self.resolver.graph;
                let of_step =
                    graph.row_scalar().is_none_or(|rows| graph.value(node.inputs[0]).bound == Some(rows));
                Step::Route(RouteStep {
                    of_step,
                    logits: self.last(node, node.inputs[0])?,
                    renormalise: *renormalise,
                    weights: self.last(node, node.outputs[0])?,
                    experts: self.words(node, node.outputs[1])?,
                })
            }
            Op::ExpertMatMul => return self.expert_products(node),
            Op::ExpertSum => {
                self.select(node, "expert_sum", "slot order");
                Step::ExpertSum(ExpertSumStep {
                    y: self.last(node, node.inputs[0])?,
                    weights: self.last(node, node.inputs[1])?,
                    out: self.last(node, node.outputs[0])?,
                })
            }
            Op::ShortConv => {
                self.select(node, "short_conv", "channels in lanes, rows in order");
                Step::ShortConv(ConvStep {
                    x: self.last(node, node.inputs[0])?,
                    weight: self.elements(node, node.inputs[1])?,
                    taps: self.resolver.shape(node.inputs[1]).last(),
                    state: self.state(node)?,
                    segments: self.segments(node, 3)?,
                    out: self.last(node, node.outputs[0])?,
                })
            }
            Op::GatedDeltaRule { scale, eps } => {
                self.select(
                    node,
                    "gated_delta_rule",
                    "columns in lanes, which pass all rows of a sequence in turn",
                );
                Step::DeltaRule(DeltaStep {
                    q: self.outer(node, node.inputs[0])?,
                    k: self.outer(node, node.inputs[1])?,
                    v: self.outer(node, node.inputs[2])?,
                    log_decay: self.last(node, node.inputs[3])?,
                    beta: self.last(node, node.inputs[4])?,
                    dims: [0, 2].map(|i| self.resolver.shape(node.inputs[i]).last()),
                    scale: *scale,
                    eps: *eps,
                    state: self.state(node)?,
                    segments: self.segments(node, 6)?,
                    out: self.outer(node, node.outputs[0])?,
                })
            }
            Op::KvWrite => {
                let (state, layout) = self.kv(node)?;
                self.extents(node, node.inputs[4])?;
                self.select(node, "kv_write", "keys transposed in blocks of 16");
                Step::KvWrite(KvWriteStep {
                    k: self.outer(node, node.inputs[0])?,
                    v: self.outer(node, node.inputs[1])?,
                    state,
                    layout,
                    pos: self.vector(node, node.inputs[3])?,
                    pages: self.words(node, node.inputs[5])?,
                })
            }
            Op::Attention { scale, window, softcap } => {
                let (state, layout) = self.kv(node)?;
                self.extents(node, node.inputs[4])?;
                self.select(node, "paged_attention", "running softmax over key groups in order");
                let heads = self.resolver.shape(node.inputs[0]).dims()[1];
                let context = self.resolver.shape(node.inputs[5]).last() * KV_BLOCK;
                let words = partials_len(layout, heads, context, self.workers);
                // Scratch serves one step at a time: blocks that an earlier product left are gone.
                self.quantised = None;
                let partials = (self.scratch.room(words), words);
                Step::Attention(AttentionStep {
                    partials,
                    q: self.outer(node, node.inputs[0])?,
                    heads,
                    state,
                    layout,
                    pos: self.vector(node, node.inputs[2])?,
                    until: self.vector(node, node.inputs[3])?,
                    pages: self.words(node, node.inputs[5])?,
                    scale: *scale,
                    window: *window,
                    softcap: *softcap,
                    out: self.outer(node, node.outputs[0])?,
                    blocks: None,
                })
            }
            Op::Sample => {
                self.select(node, "sample", "integer weights");
                let [into, uniform, sharpness, top_k, top_p, min_p] =
                    [2, 3, 4, 5, 6, 7].map(|i| self.vector(node, node.inputs[i]));
                Step::Sample(SampleStep {
                    logits: self.last(node, node.inputs[0])?,
                    state: self.state(node)?,
                    into: into?,
                    uniform: uniform?,
                    sharpness: sharpness?,
                    top_k: top_k?,
                    top_p: top_p?,
                    min_p: min_p?,
                    out: self.vector(node, node.outputs[0])?,
                })
            }
            Op::Feed => {
                self.select(node, "feed", "the only one");
                Step::Feed(FeedStep {
                    ids: self.vector(node, node.inputs[0])?,
                    state: self.state(node)?,
                    out: self.vector(node, node.outputs[0])?,
                })
            }
        };
        self.push(step);
        Ok(())
    }

    /// Makes room for the angles of all rotations. Those of one key are computed once, at its first rotation, and stay to
    /// the end of the plan.
    fn angles(&mut self) -> Result<(), DeviceError> {
        for node in &self.resolver.graph.nodes {
            let Op::Rope { magnitude } = node.op else { continue };
            let (pos, inv_freq) = (node.inputs[1], self.elements(node, node.inputs[2])?);
            let key = (pos, inv_freq, magnitude.to_bits());
            if self.angles.iter().any(|a| a.key == key) {
                continue;
            }
            let (rows, half) = (self.resolver.shape(pos).last(), self.resolver.shape(node.inputs[2]).last());
            let words = (rows * half).next_multiple_of(ALIGN / 4);
            let table = |at| RowsArg { at: Place::Arena(at), rows, width: half, stride: half, bound: None };
            let (cos, sin) = (table(self.scratch.at), table(self.scratch.at + words));
            self.scratch.at += 2 * words;
            self.angles.push(Angles { key, cos, sin, computed: false });
        }
        Ok(())
    }

    /// The angles of a rotation, computed by a step before it.
    fn angles_of(&mut self, node: &Node, magnitude: f32) -> Result<Angles, DeviceError> {
        let (pos, inv_freq) = (self.vector(node, node.inputs[1])?, self.elements(node, node.inputs[2])?);
        let key = (node.inputs[1], inv_freq, magnitude.to_bits());
        let angles =
            self.angles.iter_mut().find(|a| a.key == key).expect("there is room for every rotation's");
        let found = *angles;
        angles.computed = true;
        if !found.computed {
            let Angles { cos, sin, .. } = found;
            self.select_for("angles", node, "angles", "f64, once for all rotations of a kind");
            self.push(Step::Angles { pos, inv_freq, magnitude, cos, sin });
        }
        Ok(found)
    }

    fn binary(&mut self, node: &Node, op: vector::Binary) -> Result<Step, DeviceError> {
        let (a, b, out) = (node.inputs[0], node.inputs[1], node.outputs[0]);
        if let Some(w) = self.resolver.weight(b) {
            let layout = self.resolver.graph.value(b).layout;
            let one_row =
                layout.row_stride() == Some(0) || layout.shape.rows() == 1 && layout.row_stride().is_some();
            if layout.offset > 0 || !one_row {
                return self.unsupported(node, "a weight operand must be a broadcast row");
            }
            let (a, out) = (self.last(node, a)?, self.last(node, out)?);
            return Ok(Step::BinaryRow { op, a, row: self.unpacked(node, w)?, out });
        }
        let [a, b, out] = self.alike(node, [a, b, out])?;
        Ok(Step::Binary { op, a, b, out })
    }

    /// The weights and biases of the products of a node.
    #[allow(clippy::type_complexity, reason = "two lists, side by side")]
    fn siblings(
        &self,
        node: &Node,
        biased: &[bool],
    ) -> Result<(Vec<usize>, Vec<Option<usize>>), DeviceError> {
        let n = biased.len();
        let weights: Result<_, _> = node.inputs[1..=n].iter().map(|id| self.matrix(node, *id)).collect();
        let (mut rows, mut biases) = (node.inputs[n + 1..].iter(), vec![]);
        for has in biased {
            let row = if *has { rows.next() } else { None };
            biases.push(row.map(|id| self.elements(node, *id)).transpose()?);
        }
        Ok((weights?, biases))
    }

    fn products(
        &mut self,
        node: &Node,
        weights: &[usize],
        biases: &[Option<usize>],
    ) -> Result<(), DeviceError> {
        let (mut products, mut kernels, mut reasons) = (vec![], vec![], vec![]);
        for ((&weight, &bias), &out) in weights.iter().zip(biases).zip(&node.outputs) {
            let x = self.input(node, node.inputs[0], weight)?;
            let (kernel, reason) = self.product_reason(&x);
            if !kernels.contains(&kernel) {
                kernels.push(kernel);
                reasons.push(reason);
            }
            products.push(Product { x, weight, bias, out: self.last(node, out)? });
        }
        self.select(node, kernels.join(" + "), reasons.join("; "));
        self.push(Step::Products(products));
        Ok(())
    }

    /// The operands of a node from number `first` on: pos, extents, slots, snap.
    fn segments(&self, node: &Node, first: usize) -> Result<SegmentsArg, DeviceError> {
        let of = |i| self.vector(node, node.inputs[first + i]);
        Ok(SegmentsArg { pos: of(0)?, extents: of(1)?, slots: of(2)?, snap: of(3)? })
    }

    /// By what the experts of a node are chosen.
    fn choice(&self, node: &Node, weight: usize) -> Result<Choice, DeviceError> {
        let (x, ids) = (node.inputs[0], node.inputs[2]);
        let slots = self.resolver.shape(ids).last();
        let shared = if self.resolver.shape(x).rank() == 2 { slots } else { 1 };
        Ok(Choice { ids: self.words(node, ids)?, experts: self.weights[weight].shape.dims()[0], shared })
    }

    fn expert_products(&mut self, node: &Node) -> Result<(), DeviceError> {
        let weight = self.matrix(node, node.inputs[1])?;
        let choice = self.choice(node, weight)?;
        let x = self.input(node, node.inputs[0], weight)?;
        let (kernel, reason) = self.product_reason(&x);
        self.select(node, format!("expert_{kernel}"), format!("{reason}; rows by expert"));
        let product = Product { x, weight, bias: None, out: self.last(node, node.outputs[0])? };
        self.push(Step::Experts(ExpertStep { product, choice }));
        Ok(())
    }
}

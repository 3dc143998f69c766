//! From a graph to a list of kernels.

use std::sync::Arc;

use graph::backend::{CompileOptions, DeviceError, Precision, WeightDesc, WeightUse};
use graph::validate::StepLayout;
use graph::{Graph, Identity, MemoryReport, Node, PlanReport, PortId, PortKind, Selection, ValueId};
use tensor::ops::{Activation, Binary};
use tensor::{DType, Op};

use crate::device::{Gpu, Pipeline};
use crate::fuse::{self, Fused};
use crate::kernel::{Kernel, SCALARS};
use crate::operand::{Resolver, RowsArg, counts};
use crate::pack::BLOCK;
use crate::plan::{GpuPlan, OutputInfo, PlanInner, RopeTable};
use crate::select::{self, Elementwise};
use crate::state::StateInfo;

mod products;
mod sequences;

mod sample;

/// Words that values are aligned to.
const ALIGN: usize = 64;

/// One kernel to be dispatched, once for every chunk of its weight.
pub(crate) struct Step {
    pub(crate) pipeline: Arc<Pipeline>,
    /// Index into the plan's selections.
    pub(crate) selection: usize,
    pub(crate) params: Vec<u32>,
    /// What is bound after arena, parameters and scalars.
    pub(crate) args: Vec<Arg>,
    pub(crate) grid: [u32; 3],
    pub(crate) weight: Use,
}

/// A binding that is not of every kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// The chunk's buffer, as vectors or words.
    Chunk,
    /// The same of the matrix beside it.
    Up,
    /// The buffer of a weight's elements.
    Elements(usize),
    /// The buffer of the biases of a product.
    Biases,
    /// Codes of quantised activations.
    Acts,
    /// Their scales and sums.
    Meta,
    /// A state.
    State(usize),
    /// Parts of split attention.
    Parts,
}

/// Which weights a kernel reads, and so which parameters an instance fills in.
#[derive(Clone, Debug)]
pub(crate) enum Use {
    /// None.
    None,
    /// Elements of weights: the first word of each goes into a parameter.
    Elements(Vec<(usize, usize)>),
    /// A table to gather from, gather.wgsl.
    Table { weight: usize },
    /// Matrices of one type with one input, matmul.wgsl.
    Matrices(Vec<Segment>),
    /// A matrix, and a weight of the same type and shape whose product is multiplied with the activation of its own.
    Gated { gate: Segment, up: usize },
}

/// A matrix of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
    /// First word and stride of the result.
    pub(crate) out: [usize; 2],
    /// Tiles of weights' rows, for a grid over so many rows of each.
    pub(crate) rows_per_group: usize,
    /// Rows that the grid covers, when that is not the matrix's: those of one expert.
    pub(crate) expert_rows: Option<usize>,
}

pub(crate) fn compile(
    gpu: &Arc<Gpu>,
    graph: &Graph,
    options: &CompileOptions,
) -> Result<GpuPlan, DeviceError> {
    gpu.check()?;
    if graph.scalars.len() > SCALARS {
        let reason = format!("the graph has {} scalars, kernels see at most {SCALARS}", graph.scalars.len());
        return Err(DeviceError::Unsupported { device: "gpu".into(), op: "scalar".into(), reason });
    }
    let layout = StepLayout::new(graph);
    let mut places = vec![None; graph.values.len()];
    for (i, port) in graph.ports.iter().enumerate() {
        if let Some(at) = layout.offset(PortId(i as u32)) {
            places[port.value.0 as usize] = Some(at);
        }
    }
    let extents = extents(graph, &layout);
    let mut compiler = Compiler {
        gpu,
        resolver: Resolver { graph, places },
        weights: graph.weights(),
        precision: options.precision,
        step_words: layout.words(),
        seq_at: None,
        start_at: None,
        status: None,
        ropes: vec![],
        acts: 0,
        parts: 0,
        quantised: None,
        norm: None,
        steps: vec![],
        selections: vec![],
    };
    // What the host computes for a step follows its inputs; then come intermediates, then outputs.
    compiler.reserve_step(graph, extents)?;
    let intermediates = compiler.step_words;
    let groups = if gpu.capabilities.fused { fuse::groups(graph) } else { vec![] };
    let fused: Vec<Vec<usize>> = groups.iter().map(Fused::nodes).collect();
    let arena = graph::memory::plan(graph, ALIGN * 4, &fused, &[]);
    for (place, offset) in compiler.resolver.places.iter_mut().zip(&arena.offsets) {
        *place = offset.map(|bytes| intermediates + bytes / 4).or(*place);
    }
    let outputs_at = intermediates + arena.bytes / 4;
    let (mut outputs, mut words) = (vec![], outputs_at);
    let mut placed: Vec<(ValueId, usize)> = vec![];
    for port in graph.ports.iter().filter(|p| p.kind == PortKind::Output) {
        let base = graph.base(port.value);
        let elements = port.shape.elements();
        // Two outputs may be views of one value; they share its storage.
        let at = match placed.iter().find(|(id, _)| *id == base) {
            Some((_, at)) => *at,
            None => {
                let at = words;
                words += graph.value(base).layout.shape.elements().next_multiple_of(ALIGN);
                placed.push((base, at));
                compiler.resolver.places[base.0 as usize] = Some(at);
                at
            }
        };
        let value = graph.value(port.value);
        let per = elements / port.shape.dims().first().copied().unwrap_or(1).max(1);
        outputs.push(OutputInfo {
            name: port.name.clone(),
            at: at + value.layout.offset,
            elements,
            bound: value.bound.map(|b| (b.0 as usize, per)),
        });
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        match fused.iter().position(|nodes| nodes.contains(&at)) {
            None => compiler.node(node)?,
            // A group runs at the place of its last node.
            Some(group) if fused[group].iter().all(|other| *other <= at) => compiler.fused(&groups[group])?,
            Some(_) => {}
        }
    }
    let Compiler { weights, seq_at, start_at, status, ropes, acts, parts, steps, selections, .. } = compiler;
    // Rows that were gathered are not those of the step: then it is not known whose values a kernel refused.
    let of_step = |n: &Node| graph.row_scalar().is_none_or(|r| graph.value(n.inputs[0]).bound == Some(r));
    let refuses_rows = graph.nodes.iter().all(|n| !matches!(n.op, Op::Route { .. }) || of_step(n));

    let states: Vec<_> = graph.ports.iter().filter(|p| p.kind == PortKind::State).collect();
    let bytes = |dtype: DType, elements: usize| dtype.bytes_for(elements).unwrap_or(0) as u64;
    let memory = MemoryReport {
        arena: arena.bytes as u64,
        unaliased: arena.unaliased as u64,
        io: 4 * (intermediates + 2 * (words - outputs_at)) as u64,
        scratch: 4 * (acts_words(acts) + parts) as u64,
        weights: weights.iter().map(|w| bytes(w.dtype, w.shape.elements())).sum(),
        states: states.iter().map(|p| bytes(p.dtype, p.shape.elements())).sum(),
    };
    let kernels: Vec<&str> = selections.iter().map(|s| s.kernel.as_str()).collect();
    let how = format!("{} {:?} {}", crate::describe(gpu), options.precision, kernels.join(","));
    let report = PlanReport {
        label: options.label.clone(),
        identity: Identity::of(graph, &how),
        ports: PlanReport::ports(graph),
        scalars: graph.scalars.clone(),
        selections,
        memory,
    };
    let arena = gpu.scratch("intermediates", 4 * words as u64)?;
    let inner = PlanInner {
        gpu: gpu.clone(),
        graph: graph.clone(),
        layout,
        weights,
        states: states.iter().map(|p| StateInfo::new(graph, p)).collect(),
        outputs,
        steps,
        step_words: intermediates,
        extents,
        seq_at,
        start_at,
        status,
        refuses_rows,
        ropes,
        acts: gpu.scratch("activations", 4 * acts_words(acts) as u64)?,
        meta_at: 4 * (acts * BLOCK / 4).next_multiple_of(ALIGN) as u64,
        parts: gpu.scratch("attention parts", 4 * parts as u64)?,
        arena,
        profile: options.profile,
    };
    gpu.check()?;
    Ok(GpuPlan { inner: Arc::new(inner), report })
}

/// Words of so many blocks of quantised activations: codes, then scales and sums.
fn acts_words(blocks: usize) -> usize {
    (blocks * BLOCK / 4).next_multiple_of(ALIGN) + 2 * blocks
}

/// The input that is the extents of the sequences: first word, entries, and the scalar that bounds them.
pub(crate) type Extents = (usize, usize, Option<usize>);

fn extents(graph: &Graph, layout: &StepLayout) -> Option<Extents> {
    let of = |node: &Node| {
        let at = node.op.roles().iter().position(|r| *r == "extents")?;
        let port = graph.port_of(node.inputs[at])?;
        let value = graph.value(graph.port(port).value);
        Some((layout.offset(port)?, value.layout.shape.elements(), value.bound.map(|b| b.0 as usize)))
    };
    graph.nodes.iter().find_map(of)
}

struct Compiler<'a> {
    gpu: &'a Arc<Gpu>,
    resolver: Resolver<'a>,
    weights: Vec<WeightDesc>,
    precision: Precision,
    step_words: usize,
    /// The sequence of each row.
    seq_at: Option<usize>,
    /// The first row of each sequence.
    start_at: Option<usize>,
    /// A word for each row, which a kernel sets when it met values it must not pass on: first word and rows.
    status: Option<(usize, usize)>,
    ropes: Vec<RopeTable>,
    /// Most blocks of quantised activations.
    acts: usize,
    /// Most words of parts of split attention.
    parts: usize,
    /// The value whose blocks are in scratch, so that consecutive products share them.
    quantised: Option<ValueId>,
    /// The last norm of whole rows: its result, the steps up to it, and whether it adds.
    norm: Option<(ValueId, usize, bool)>,
    steps: Vec<Step>,
    selections: Vec<Selection>,
}

impl Compiler<'_> {
    /// Makes room for what the host computes from a step's inputs.
    fn reserve_step(&mut self, graph: &Graph, extents: Option<Extents>) -> Result<(), DeviceError> {
        self.step_words = self.step_words.next_multiple_of(ALIGN);
        let mut take = |words: usize| {
            let at = self.step_words;
            self.step_words += words.next_multiple_of(ALIGN);
            at
        };
        if let Some((_, seqs, _)) = extents {
            let rows = graph.nodes.iter().filter_map(|n| {
                let at = n.op.roles().iter().position(|r| *r == "pos")?;
                Some(graph.value(n.inputs[at]).layout.shape.elements())
            });
            self.seq_at = Some(take(rows.max().unwrap_or(0)));
            self.start_at = Some(take(seqs));
        }
        let routed = graph.nodes.iter().filter(|n| matches!(n.op, Op::Route { .. }));
        if let Some(rows) = routed.map(|n| graph.value(n.inputs[0]).layout.shape.rows()).max() {
            self.status = Some((take(rows), rows));
        }
        for node in &graph.nodes {
            if let Op::Rope { magnitude } = node.op {
                self.rope_table(node, magnitude)?;
            }
        }
        Ok(())
    }

    fn unsupported<T>(&self, node: &Node, reason: impl Into<String>) -> Result<T, DeviceError> {
        let site = format!("{}:{}", node.site.file(), node.site.line());
        let op = format!("{} {} at {site}", node.op.name(), self.operands(node));
        Err(DeviceError::Unsupported { device: "gpu".into(), op, reason: reason.into() })
    }

    fn operands(&self, node: &Node) -> String {
        let show = |id: &ValueId| {
            let v = self.resolver.graph.value(*id);
            format!("{}{}", v.dtype, v.layout.shape)
        };
        node.inputs.iter().take(3).map(show).collect::<Vec<_>>().join(" ")
    }

    fn rows(&self, node: &Node, id: ValueId, width: usize) -> Result<RowsArg, DeviceError> {
        match self.resolver.rows(id, width) {
            Some(rows) => Ok(rows),
            None => {
                let layout = self.resolver.graph.value(id).layout;
                self.unsupported(
                    node,
                    format!("an operand {layout:?} is not rows of {width} that a kernel can walk"),
                )
            }
        }
    }

    /// The value as rows of its last axis.
    fn last(&self, node: &Node, id: ValueId) -> Result<RowsArg, DeviceError> {
        self.rows(node, id, self.resolver.shape(id).last())
    }

    /// The value as rows of everything after its first axis.
    fn outer(&self, node: &Node, id: ValueId) -> Result<RowsArg, DeviceError> {
        self.rows(node, id, self.resolver.shape(id).dims().iter().skip(1).product())
    }

    /// Values of one shape as rows of one width.
    fn alike<const N: usize>(&self, node: &Node, ids: [ValueId; N]) -> Result<[RowsArg; N], DeviceError> {
        let shape = self.resolver.shape(ids[0]);
        let outer = shape.dims().iter().skip(1).product();
        let whole = ids.iter().all(|id| shape.rank() > 1 && self.resolver.rows(*id, outer).is_some());
        let width = if whole { outer } else { shape.last() };
        let mut rows = Vec::with_capacity(N);
        for id in ids {
            rows.push(self.rows(node, id, width)?);
        }
        Ok(rows.try_into().unwrap_or_else(|_| unreachable!("one for each value")))
    }

    /// First word of a u32 operand whose entries follow one another.
    fn words(&self, node: &Node, id: ValueId) -> Result<u32, DeviceError> {
        let rows = self.last(node, id)?;
        if !rows.is_dense() {
            return self.unsupported(node, "ids, pages and step arrays must be dense");
        }
        Ok(rows.at as u32)
    }

    fn elements(&self, node: &Node, id: ValueId) -> Result<usize, DeviceError> {
        match self.resolver.weight(id) {
            Some(w) if self.weights[w].layout == WeightUse::Elements => Ok(w),
            Some(w) => self.unsupported(
                node,
                format!("weight `{}` is both a matrix and elements", self.weights[w].name),
            ),
            None => self.unsupported(node, "this operand must be a weight"),
        }
    }

    fn matrix(&self, node: &Node, id: ValueId) -> Result<usize, DeviceError> {
        match self.resolver.weight(id) {
            Some(w) => Ok(w),
            None => self.unsupported(node, "the matrix must be a weight"),
        }
    }

    fn state(&self, node: &Node) -> Result<usize, DeviceError> {
        let operand = node.op.state_operand().map(|i| node.inputs[i]);
        match operand.and_then(|id| self.resolver.state(id)) {
            Some(state) => Ok(state),
            None => self.unsupported(node, "the state operand must be a state port"),
        }
    }

    fn seq(&self, node: &Node) -> Result<u32, DeviceError> {
        match self.seq_at {
            Some(at) => Ok(at as u32),
            None => self.unsupported(node, "the extents must be an input"),
        }
    }

    /// Adds a kernel with what it is chosen for.
    #[allow(clippy::too_many_arguments)] // one for each part of a step
    fn push(
        &mut self,
        node: &Node,
        kernel: &Kernel,
        reason: &str,
        params: Vec<u32>,
        args: Vec<Arg>,
        grid: [usize; 3],
        weight: Use,
    ) -> Result<(), DeviceError> {
        let most = self.gpu.limits.max_compute_workgroups_per_dimension as usize;
        self.selections.push(Selection {
            op: node.op.name(),
            operands: self.operands(node),
            kernel: kernel.name(),
            reason: reason.to_owned(),
            site: format!("{}:{}", node.site.file(), node.site.line()),
        });
        self.steps.push(Step {
            pipeline: self.gpu.pipeline(kernel)?,
            selection: self.selections.len() - 1,
            params,
            args,
            // Kernels walk what the grid cannot cover.
            grid: grid.map(|n| n.clamp(1, most) as u32),
            weight,
        });
        Ok(())
    }

    /// Kernels that take the rows' elements one a lane.
    fn per_element(
        &mut self,
        node: &Node,
        kernel: &Kernel,
        params: Vec<u32>,
        args: Vec<Arg>,
        out: &RowsArg,
        weight: Use,
    ) -> Result<(), DeviceError> {
        let grid = [out.width.div_ceil(64), out.rows, 1];
        self.push(node, kernel, "one element a lane", params, args, grid, weight)
    }

    /// Activations as 8-bit codes: quantises them unless the scratch holds them already.
    fn quantise(&mut self, node: &Node, x: ValueId) -> Result<(), DeviceError> {
        let rows = self.last(node, x)?;
        let blocks = rows.width / BLOCK;
        self.acts = self.acts.max(rows.rows * blocks);
        if self.quantised == Some(x) {
            return Ok(());
        }
        self.quantised = Some(x);
        // A norm right before leaves the codes itself.
        if let Some((value, after, add)) = self.norm
            && (value, after) == (x, self.steps.len())
            && self.gpu.capabilities.fused
        {
            let kernel = select::rms_norm(&self.gpu.capabilities, rows.width, add, true);
            let pipeline = self.gpu.pipeline(&kernel)?;
            let step = &mut self.steps[after - 1];
            step.pipeline = pipeline;
            step.args.extend([Arg::Acts, Arg::Meta]);
            let selection = &mut self.selections[step.selection];
            selection.kernel = kernel.name();
            selection.reason.push_str(", with its codes");
            return Ok(());
        }
        let mut params = counts(&rows).to_vec();
        params.extend([blocks as u32, rows.at as u32, rows.stride as u32]);
        let grid = [blocks.div_ceil(8), rows.rows, 1];
        let args = vec![Arg::Acts, Arg::Meta];
        self.push(node, &select::quantise(), "8-bit activations", params, args, grid, Use::None)
    }

    fn fused(&mut self, group: &Fused) -> Result<(), DeviceError> {
        match group {
            Fused::RopeKv(group) => self.rope_kv(group),
            Fused::Gated(group) => self.gated(group),
        }
    }

    fn node(&mut self, node: &Node) -> Result<(), DeviceError> {
        match &node.op {
            Op::MatMul => {
                let w = self.matrix(node, node.inputs[1])?;
                self.products(node, &[(w, None, node.outputs[0])])
            }
            Op::MatMuls { biased } => {
                let n = biased.len();
                let mut rows = node.inputs[n + 1..].iter();
                let mut matrices = vec![];
                for (i, has) in biased.iter().enumerate() {
                    let w = self.matrix(node, node.inputs[1 + i])?;
                    let bias = if *has { rows.next() } else { None };
                    let bias = bias.map(|id| self.elements(node, *id)).transpose()?;
                    matrices.push((w, bias, node.outputs[i]));
                }
                self.products(node, &matrices)
            }
            Op::Gather => self.gather(node),
            Op::Binary(op) => {
                let op = if *op == Binary::Add { Elementwise::Add } else { Elementwise::Mul };
                self.binary(node, op)
            }
            Op::GatedActivate(activation) => self.binary(node, Elementwise::gated(*activation)),
            Op::Activate(activation) => {
                let op = match activation {
                    Activation::Silu => Elementwise::Silu,
                    Activation::GeluTanh => Elementwise::GeluTanh,
                    Activation::GeluErf => Elementwise::GeluErf,
                    Activation::Sigmoid => Elementwise::Sigmoid,
                };
                self.unary(node, op, 0.0)
            }
            Op::Scale { factor } => self.unary(node, Elementwise::Scale, *factor),
            Op::RmsNorm { eps } => {
                let [x, out] = self.alike(node, [node.inputs[0], node.outputs[0]])?;
                self.norm(node, [x, x, out, out], node.inputs[1], *eps, false)
            }
            Op::AddRmsNorm { eps } => {
                let [a, b, sum, out] = [node.inputs[0], node.inputs[1], node.outputs[0], node.outputs[1]];
                let rows =
                    [self.last(node, a)?, self.last(node, b)?, self.last(node, sum)?, self.last(node, out)?];
                self.norm(node, rows, node.inputs[2], *eps, true)
            }
            Op::Rope { magnitude } => self.rope(node, *magnitude),
            Op::KvWrite => self.kv_write(node),
            Op::Attention { scale, window, softcap } => self.attention(node, *scale, *window, *softcap),
            Op::Route { k, renormalise } => self.route(node, *k, *renormalise),
            Op::ExpertMatMul => self.experts(node),
            Op::ExpertSum => {
                let y = self.last(node, node.inputs[0])?;
                let weights = self.last(node, node.inputs[1])?;
                let out = self.last(node, node.outputs[0])?;
                let mut params = counts(&out).to_vec();
                params.extend(
                    [
                        out.width,
                        weights.width,
                        y.at,
                        y.stride,
                        weights.at,
                        weights.stride,
                        out.at,
                        out.stride,
                    ]
                    .map(|v| v as u32),
                );
                self.per_element(node, &select::expert_sum(), params, vec![], &out, Use::None)
            }
            Op::ShortConv => self.short_conv(node),
            Op::GatedDeltaRule { .. } => {
                self.unsupported(node, "there is no kernel for it yet: run the model on the CPU")
            }
            Op::Sample => self.sample(node),
            Op::Feed => self.feed(node),
        }
    }

    fn unary(&mut self, node: &Node, op: Elementwise, factor: f32) -> Result<(), DeviceError> {
        let [x, out] = self.alike(node, [node.inputs[0], node.outputs[0]])?;
        self.elementwise(node, op, [x, x, out], factor)
    }

    fn elementwise(
        &mut self,
        node: &Node,
        op: Elementwise,
        [a, b, out]: [RowsArg; 3],
        factor: f32,
    ) -> Result<(), DeviceError> {
        let mut params = counts(&out).to_vec();
        params.extend([out.width, a.at, a.stride, b.at, b.stride, out.at, out.stride].map(|v| v as u32));
        params.push(factor.to_bits());
        self.per_element(node, &select::elementwise(op), params, vec![], &out, Use::None)
    }

    fn binary(&mut self, node: &Node, op: Elementwise) -> Result<(), DeviceError> {
        let (mut a, mut b) = (node.inputs[0], node.inputs[1]);
        if self.resolver.weight(a).is_some() && matches!(op, Elementwise::Add | Elementwise::Mul) {
            (a, b) = (b, a);
        }
        if self.resolver.weight(b).is_none() {
            let rows = self.alike(node, [a, b, node.outputs[0]])?;
            return self.elementwise(node, op, rows, 0.0);
        }
        if !matches!(op, Elementwise::Add | Elementwise::Mul) {
            return self.unsupported(node, "a weight can be added or multiplied only");
        }
        let weight = self.elements(node, b)?;
        let shape = self.resolver.shape(b);
        let layout = self.resolver.graph.value(b).layout;
        // A row for all rows; a weight of the operand's own shape is rows of its own.
        if layout.row_stride() != Some(0) && shape.rows() > 1 {
            return self.unsupported(node, "a weight can be added or multiplied only as one row for all");
        }
        let x = self.last(node, a)?;
        let out = self.last(node, node.outputs[0])?;
        let mut params = counts(&out).to_vec();
        params.extend([out.width, x.at, x.stride, layout.offset, out.at, out.stride].map(|v| v as u32));
        let fix = Use::Elements(vec![(weight, 6)]);
        self.per_element(node, &select::binary_row(op), params, vec![Arg::Elements(weight)], &out, fix)
    }

    fn gather(&mut self, node: &Node) -> Result<(), DeviceError> {
        let (table, ids) = (node.inputs[0], self.words(node, node.inputs[1])?);
        let out = self.last(node, node.outputs[0])?;
        let mut params = counts(&out).to_vec();
        let Some(weight) = self.resolver.weight(table) else {
            let from = self.last(node, table)?;
            params.extend([out.width as u32, ids]);
            params.extend([from.at, from.stride, from.rows, out.at, out.stride].map(|v| v as u32));
            return self.per_element(node, &select::gather_rows(), params, vec![], &out, Use::None);
        };
        let (dtype, shape) = (self.weights[weight].dtype, self.weights[weight].shape);
        let Some(kernel) = select::gather(&self.gpu.capabilities, dtype) else {
            return self.unsupported(node, format!("weights of {dtype} have no kernel on this device"));
        };
        let blocks = out.width.div_ceil(BLOCK);
        params.extend([blocks as u32, out.width as u32, ids, out.at as u32, out.stride as u32]);
        params.extend([0, 0, shape.rows() as u32, 0, 0, 0, 0, 0, 0]);
        let grid = [blocks.div_ceil(64), out.rows, 1];
        let args = vec![Arg::Chunk, Arg::Chunk];
        self.push(
            node,
            &kernel,
            "decodes rows of the packed layout",
            params,
            args,
            grid,
            Use::Table { weight },
        )
    }

    fn norm(
        &mut self,
        node: &Node,
        [x, y, sum, out]: [RowsArg; 4],
        weight: ValueId,
        eps: f32,
        add: bool,
    ) -> Result<(), DeviceError> {
        let weight = self.elements(node, weight)?;
        let width = self.resolver.shape(node.inputs[0]).last();
        let inner = out.width.checked_div(width).unwrap_or(1);
        let [rows, bound, per] = counts(&out);
        let mut params = vec![rows * inner as u32, bound, per * inner as u32];
        params.extend(
            [width, x.at, x.stride, y.at, y.stride, sum.at, sum.stride, out.at, out.stride, 0]
                .map(|v| v as u32),
        );
        params.extend([eps.to_bits(), inner as u32]);
        let fix = Use::Elements(vec![(weight, 12)]);
        let args = vec![Arg::Elements(weight)];
        let kernel = select::rms_norm(&self.gpu.capabilities, width, add, false);
        self.push(node, &kernel, "a workgroup a row", params, args, [out.rows * inner, 1, 1], fix)?;
        if inner == 1 {
            self.norm = Some((*node.outputs.last().unwrap_or(&node.inputs[0]), self.steps.len(), add));
        }
        Ok(())
    }

    /// First word of the table of cosines and sines of `pos`, which the host fills in for every step.
    fn rope_table(&mut self, node: &Node, magnitude: f32) -> Result<usize, DeviceError> {
        let weight = self.elements(node, node.inputs[2])?;
        let Some(port) = self.resolver.graph.port_of(node.inputs[1]) else {
            return self.unsupported(node, "positions must be an input");
        };
        let pos = self.last(node, node.inputs[1])?;
        if self.resolver.graph.port(port).kind != PortKind::Input || !pos.is_dense() {
            return self.unsupported(node, "positions must be an input, whole");
        }
        let same = |t: &&RopeTable| t.weight == weight && t.pos == pos.at && t.magnitude == magnitude;
        if let Some(table) = self.ropes.iter().find(same) {
            return Ok(table.at);
        }
        let half = self.weights[weight].shape.elements();
        let at = self.step_words;
        let value = self.resolver.graph.value(node.inputs[1]);
        self.ropes.push(RopeTable {
            at,
            weight,
            pos: pos.at,
            rows: pos.width,
            bound: value.bound.map(|b| b.0 as usize),
            magnitude,
        });
        self.step_words += (2 * half * pos.width).next_multiple_of(ALIGN);
        Ok(at)
    }
}

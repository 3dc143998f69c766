//! Recording: operators that never fail in the caller's face.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

use tensor::ops::{Activation, Binary, Operand};
use tensor::{DType, Layout, Op, Shape};

use crate::graph::{Graph, Node, NodeId, Port, PortId, PortKind, ScalarId, Source, Value, ValueId};

/// Handle of a value of one [`Builder`]. A poisoned handle stands for a result that a reported mistake prevented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tensor {
    builder: u32,
    id: u32,
}

/// Handle of one version of a state. Writing returns the next version; reading an older one is a mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    tensor: Tensor,
    version: u32,
}

const POISON: u32 = u32::MAX;

/// One mistake of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The operator.
    pub operator: &'static str,
    /// What is wrong, naming the operand.
    pub problem: String,
    /// The caller's line.
    pub site: &'static Location<'static>,
}

/// All mistakes of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the graph has {} mistake(s):", self.0.len())?;
        for d in &self.0 {
            write!(f, "\n  {}:{}: {}: {}", d.site.file(), d.site.line(), d.operator, d.problem)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// Records a graph. Operators return copyable handles; a mistake is noted with the operator, the operand and the
/// caller's line, the result is poisoned, and [`Builder::finish`] returns all of them at once.
pub struct Builder {
    id: u32,
    inner: RefCell<Inner>,
}

struct Inner {
    graph: Graph,
    versions: Vec<(ValueId, u32)>,
    errors: Vec<Diagnostic>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Default for Builder {
    fn default() -> Self {
        Builder::new()
    }
}

impl Builder {
    /// An empty recording.
    pub fn new() -> Builder {
        let graph = Graph { values: vec![], nodes: vec![], ports: vec![], scalars: vec![] };
        let inner = Inner { graph, versions: vec![], errors: vec![] };
        Builder { id: NEXT.fetch_add(1, Ordering::Relaxed), inner: RefCell::new(inner) }
    }

    /// Declares a u32 scalar supplied with every submission; used to bound the first axis of inputs.
    #[track_caller]
    pub fn scalar(&self, name: &str) -> ScalarId {
        let mut inner = self.inner.borrow_mut();
        if inner.graph.scalars.iter().any(|s| s == name) {
            inner.fail("scalar", format!("`{name}` is declared twice"), Location::caller());
        }
        inner.graph.scalars.push(name.to_owned());
        ScalarId(inner.graph.scalars.len() as u32 - 1)
    }

    /// Declares an input. `bound` names the scalar that says how many entries of the first axis are real.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, dims: &[usize], bound: Option<ScalarId>) -> Tensor {
        self.port(name, PortKind::Input, dtype, dims, bound, Location::caller())
    }

    /// Declares a weight. Asking again for the same name gives the same tensor, when type and shape agree.
    #[track_caller]
    pub fn weight(&self, name: &str, dtype: DType, dims: &[usize]) -> Tensor {
        self.port(name, PortKind::Weight, dtype, dims, None, Location::caller())
    }

    /// Declares a state and gives its first version.
    #[track_caller]
    pub fn state(&self, name: &str, dtype: DType, dims: &[usize]) -> State {
        let tensor = self.port(name, PortKind::State, dtype, dims, None, Location::caller());
        if tensor.id != POISON {
            self.inner.borrow_mut().versions.push((ValueId(tensor.id), 0));
        }
        State { tensor, version: 0 }
    }

    /// Makes a tensor readable under this name after a submission.
    #[track_caller]
    pub fn output(&self, name: &str, x: Tensor) {
        let site = Location::caller();
        let mut inner = self.inner.borrow_mut();
        let Some(value) = inner.resolve(self.id, x, "output", site) else { return };
        if inner.graph.find_port(name).is_some() {
            return inner.fail("output", format!("a port named `{name}` exists already"), site);
        }
        let v = inner.graph.value(value);
        if !v.layout.is_contiguous()
            || !matches!(inner.graph.value(inner.graph.base(value)).source, Source::Node(..))
        {
            return inner.fail(
                "output",
                format!("`{name}` must be a whole computed tensor, not a strided view or a port"),
                site,
            );
        }
        let (dtype, shape) = (v.dtype, v.layout.shape);
        inner.graph.ports.push(Port { name: name.to_owned(), kind: PortKind::Output, dtype, shape, value });
    }

    /// The extents of a tensor; empty for a poisoned one.
    pub fn dims(&self, x: Tensor) -> Vec<usize> {
        let inner = self.inner.borrow();
        if x.id == POISON || x.builder != self.id {
            return vec![];
        }
        inner.graph.values[x.id as usize].layout.shape.dims().to_vec()
    }

    /// The same elements under other extents (a view).
    #[track_caller]
    pub fn reshape(&self, x: Tensor, dims: &[usize]) -> Tensor {
        self.view("reshape", x, Location::caller(), |v| {
            let shape = Shape::new(dims).map_err(|e| e.to_string())?;
            let keeps = shape.dims().first() == v.layout.shape.dims().first();
            let layout = v.layout.reshape(shape);
            Ok((
                layout.ok_or_else(|| format!("{} does not become {shape} without a copy", v.layout.shape))?,
                keeps,
            ))
        })
    }

    /// The elements `start..start + len` of one axis (a view).
    #[track_caller]
    pub fn slice(&self, x: Tensor, axis: usize, start: usize, len: usize) -> Tensor {
        self.view("slice", x, Location::caller(), |v| {
            let layout = v.layout.slice(axis, start, len);
            let range = format!("{start}..{start}+{len} is not within axis {axis} of {}", v.layout.shape);
            Ok((layout.ok_or(range)?, axis != 0))
        })
    }

    /// A row repeated over all leading axes of `dims` (a view with stride 0).
    #[track_caller]
    pub fn broadcast_row(&self, x: Tensor, dims: &[usize]) -> Tensor {
        self.view("broadcast_row", x, Location::caller(), |v| {
            let shape = Shape::new(dims).map_err(|e| e.to_string())?;
            let layout = v.layout.broadcast_row(shape);
            Ok((layout.ok_or_else(|| format!("{} is not a row of {shape}", v.layout.shape))?, false))
        })
    }

    /// [`Op::Gather`].
    #[track_caller]
    pub fn gather(&self, table: Tensor, ids: Tensor) -> Tensor {
        self.one(Op::Gather, &[table, ids])
    }

    /// [`Op::MatMul`].
    #[track_caller]
    pub fn matmul(&self, x: Tensor, w: Tensor) -> Tensor {
        self.one(Op::MatMul, &[x, w])
    }

    /// Adds a row to every row of `x` (a broadcast and [`Binary::Add`]).
    #[track_caller]
    pub fn add_row(&self, x: Tensor, row: Tensor) -> Tensor {
        let dims = self.dims(x);
        let wide = self.broadcast_row(row, &dims);
        self.one(Op::Binary(Binary::Add), &[x, wide])
    }

    /// [`Binary::Add`].
    #[track_caller]
    pub fn add(&self, a: Tensor, b: Tensor) -> Tensor {
        self.one(Op::Binary(Binary::Add), &[a, b])
    }

    /// [`Binary::Mul`].
    #[track_caller]
    pub fn mul(&self, a: Tensor, b: Tensor) -> Tensor {
        self.one(Op::Binary(Binary::Mul), &[a, b])
    }

    /// [`Op::Activate`].
    #[track_caller]
    pub fn activate(&self, activation: Activation, x: Tensor) -> Tensor {
        self.one(Op::Activate(activation), &[x])
    }

    /// [`Op::Scale`]; a factor of 1 records nothing.
    #[track_caller]
    pub fn scale(&self, x: Tensor, factor: f32) -> Tensor {
        if factor == 1.0 { x } else { self.one(Op::Scale { factor }, &[x]) }
    }

    /// [`Op::RmsNorm`].
    #[track_caller]
    pub fn rms_norm(&self, x: Tensor, w: Tensor, eps: f32) -> Tensor {
        self.one(Op::RmsNorm { eps }, &[x, w])
    }

    /// [`Op::Rope`].
    #[track_caller]
    pub fn rope(&self, x: Tensor, pos: Tensor, inv_freq: Tensor, magnitude: f32) -> Tensor {
        self.one(Op::Rope { magnitude }, &[x, pos, inv_freq])
    }

    /// [`Op::KvWrite`]: the cache's next version.
    #[track_caller]
    pub fn kv_write(
        &self,
        cache: State,
        k: Tensor,
        v: Tensor,
        pos: Tensor,
        extents: Tensor,
        pages: Tensor,
    ) -> State {
        self.record(Op::KvWrite, &[k, v, cache.tensor, pos, extents, pages], Some(cache), Location::caller());
        State { version: cache.version + 1, ..cache }
    }

    /// An [`Op::Attention`] over the current version of the cache.
    #[track_caller]
    #[allow(clippy::too_many_arguments)] // the operands the op documents
    pub fn attention(
        &self,
        op: Op,
        q: Tensor,
        cache: State,
        pos: Tensor,
        until: Tensor,
        extents: Tensor,
        pages: Tensor,
    ) -> Tensor {
        let operands = [q, cache.tensor, pos, until, extents, pages];
        self.record(op, &operands, Some(cache), Location::caller()).first().copied().unwrap_or(self.poison())
    }

    /// [`Op::Route`]: weights and expert ids.
    #[track_caller]
    pub fn route(&self, logits: Tensor, k: usize, renormalise: bool) -> (Tensor, Tensor) {
        match self.record(Op::Route { k, renormalise }, &[logits], None, Location::caller())[..] {
            [weights, experts] => (weights, experts),
            _ => (self.poison(), self.poison()),
        }
    }

    /// [`Op::ExpertMatMul`].
    #[track_caller]
    pub fn expert_matmul(&self, x: Tensor, w: Tensor, experts: Tensor) -> Tensor {
        self.one(Op::ExpertMatMul, &[x, w, experts])
    }

    /// [`Op::ExpertSum`].
    #[track_caller]
    pub fn expert_sum(&self, y: Tensor, weights: Tensor) -> Tensor {
        self.one(Op::ExpertSum, &[y, weights])
    }

    /// [`Op::ShortConv`]: the result and the ring's next version. `step` is pos, extents, slots, snap.
    #[track_caller]
    pub fn short_conv(&self, x: Tensor, w: Tensor, ring: State, step: [Tensor; 4]) -> (Tensor, State) {
        let [pos, extents, slots, snap] = step;
        let operands = [x, w, ring.tensor, pos, extents, slots, snap];
        let out = self.record(Op::ShortConv, &operands, Some(ring), Location::caller());
        (out.first().copied().unwrap_or(self.poison()), State { version: ring.version + 1, ..ring })
    }

    /// [`Op::GatedDeltaRule`]: the result and the state's next version. `gates` is log_decay, beta; `step` is pos, extents,
    /// slots, snap.
    #[track_caller]
    pub fn gated_delta_rule(
        &self,
        op: Op,
        [q, k, v]: [Tensor; 3],
        [log_decay, beta]: [Tensor; 2],
        state: State,
        [pos, extents, slots, snap]: [Tensor; 4],
    ) -> (Tensor, State) {
        let operands = [q, k, v, log_decay, beta, state.tensor, pos, extents, slots, snap];
        let out = self.record(op, &operands, Some(state), Location::caller());
        (out.first().copied().unwrap_or(self.poison()), State { version: state.version + 1, ..state })
    }

    /// [`Op::Feed`].
    #[track_caller]
    pub fn feed(&self, ids: Tensor, drawn: State) -> Tensor {
        let out = self.record(Op::Feed, &[ids, drawn.tensor], Some(drawn), Location::caller());
        out.first().copied().unwrap_or(self.poison())
    }

    /// [`Op::Sample`]: the tokens and the next version of what was drawn. `policy` is uniform, sharpness, top_k, top_p, min_p.
    #[track_caller]
    pub fn sample(&self, logits: Tensor, drawn: State, into: Tensor, policy: [Tensor; 5]) -> (Tensor, State) {
        let [uniform, sharpness, top_k, top_p, min_p] = policy;
        let operands = [logits, drawn.tensor, into, uniform, sharpness, top_k, top_p, min_p];
        let out = self.record(Op::Sample, &operands, Some(drawn), Location::caller());
        (out.first().copied().unwrap_or(self.poison()), State { version: drawn.version + 1, ..drawn })
    }

    /// Records an op without a state by its documented operands; how tests reach the fused ones.
    #[track_caller]
    pub fn op(&self, op: Op, operands: &[Tensor]) -> Vec<Tensor> {
        self.record(op, operands, None, Location::caller())
    }

    /// The mistakes so far.
    #[cfg(test)]
    pub(crate) fn errors(&self) -> Vec<Diagnostic> {
        self.inner.borrow().errors.clone()
    }

    /// The finished graph.
    ///
    /// # Errors
    /// Every mistake of the recording.
    pub fn finish(self) -> Result<Graph, Diagnostics> {
        let inner = self.inner.into_inner();
        if inner.errors.is_empty() { Ok(inner.graph) } else { Err(Diagnostics(inner.errors)) }
    }

    fn poison(&self) -> Tensor {
        Tensor { builder: self.id, id: POISON }
    }

    fn port(
        &self,
        name: &str,
        kind: PortKind,
        dtype: DType,
        dims: &[usize],
        bound: Option<ScalarId>,
        site: &'static Location<'static>,
    ) -> Tensor {
        let operator = match kind {
            PortKind::Input => "input",
            PortKind::Weight => "weight",
            _ => "state",
        };
        let mut inner = self.inner.borrow_mut();
        let shape = match Shape::new(dims) {
            Ok(shape) => shape,
            Err(e) => {
                inner.fail(operator, format!("`{name}`: {e}"), site);
                return self.poison();
            }
        };
        if let Some(old) = inner.graph.find_port(name) {
            let port = inner.graph.port(old);
            if kind == PortKind::Weight && (port.kind, port.dtype, port.shape) == (kind, dtype, shape) {
                return Tensor { builder: self.id, id: port.value.0 };
            }
            let was = format!("`{name}` is already a {} {} {}", port.kind, port.dtype, port.shape);
            inner.fail(operator, was, site);
            return self.poison();
        }
        let port = PortId(inner.graph.ports.len() as u32);
        let value =
            inner.push(Value { dtype, layout: Layout::contiguous(shape), source: Source::Port(port), bound });
        inner.graph.ports.push(Port { name: name.to_owned(), kind, dtype, shape, value });
        Tensor { builder: self.id, id: value.0 }
    }

    fn view(
        &self,
        operator: &'static str,
        x: Tensor,
        site: &'static Location<'static>,
        make: impl FnOnce(&Value) -> Result<(Layout, bool), String>,
    ) -> Tensor {
        let mut inner = self.inner.borrow_mut();
        let Some(id) = inner.resolve(self.id, x, operator, site) else { return self.poison() };
        let base = inner.graph.base(id);
        let value = inner.graph.value(id).clone();
        let made = if value.dtype.is_quantised() {
            Err(format!("{} is block-quantised and has no views", value.dtype))
        } else {
            make(&value)
        };
        match made {
            Ok((layout, keeps_rows)) => {
                let bound = value.bound.filter(|_| keeps_rows);
                let id = inner.push(Value { layout, source: Source::View(base), bound, ..value });
                Tensor { builder: self.id, id: id.0 }
            }
            Err(problem) => {
                inner.fail(operator, problem, site);
                self.poison()
            }
        }
    }

    #[track_caller]
    fn one(&self, op: Op, operands: &[Tensor]) -> Tensor {
        self.record(op, operands, None, Location::caller()).first().copied().unwrap_or(self.poison())
    }

    fn record(
        &self,
        op: Op,
        operands: &[Tensor],
        state: Option<State>,
        site: &'static Location<'static>,
    ) -> Vec<Tensor> {
        let mut inner = self.inner.borrow_mut();
        let resolved: Option<Vec<ValueId>> =
            operands.iter().map(|t| inner.resolve(self.id, *t, op.name(), site)).collect();
        let Some(inputs) = resolved else { return vec![] };
        if let Err(problem) = inner.check_state(&op, &inputs, state) {
            inner.fail(op.name(), problem, site);
            return vec![];
        }
        let metas: Vec<Operand> = inputs
            .iter()
            .map(|id| Operand {
                dtype: inner.graph.value(*id).dtype,
                shape: inner.graph.value(*id).layout.shape,
            })
            .collect();
        let results = match op.infer(&metas) {
            Ok(results) => results,
            Err(e) => {
                inner.fail(op.name(), e.to_string(), site);
                return vec![];
            }
        };
        if let Some(i) = inputs.iter().position(|id| !inner.acceptable(*id)) {
            let role = op.roles().get(i).copied().unwrap_or("operand");
            inner.fail(
                op.name(),
                format!(
                    "operand {i} ({role}): its rows are not equally spaced; slice or reshape it otherwise"
                ),
                site,
            );
            return vec![];
        }
        let node = NodeId(inner.graph.nodes.len() as u32);
        let bound = inner.graph.value(inputs[if matches!(op, Op::Gather) { 1 } else { 0 }]).bound;
        let outputs: Vec<ValueId> = (0..)
            .zip(results)
            .map(|(i, r)| {
                let layout = Layout::contiguous(r.shape);
                inner.push(Value { dtype: r.dtype, layout, source: Source::Node(node, i), bound })
            })
            .collect();
        if op.writes_state()
            && let Some(slot) = op.state_operand()
        {
            let id = inputs[slot];
            for (state, version) in &mut inner.versions {
                *version += u32::from(*state == id);
            }
        }
        let handles = outputs.iter().map(|v| Tensor { builder: self.id, id: v.0 }).collect();
        inner.graph.nodes.push(Node { op, inputs, outputs, site });
        handles
    }
}

impl Inner {
    fn push(&mut self, value: Value) -> ValueId {
        self.graph.values.push(value);
        ValueId(self.graph.values.len() as u32 - 1)
    }

    fn fail(&mut self, operator: &'static str, problem: String, site: &'static Location<'static>) {
        self.errors.push(Diagnostic { operator, problem, site });
    }

    /// The value of a handle, or `None` (silently for poison, with a diagnostic for a stranger).
    fn resolve(
        &mut self,
        builder: u32,
        t: Tensor,
        operator: &'static str,
        site: &'static Location<'static>,
    ) -> Option<ValueId> {
        if t.builder != builder {
            self.fail(operator, "an operand belongs to another builder".to_owned(), site);
            return None;
        }
        (t.id != POISON).then_some(ValueId(t.id))
    }

    /// Kernels take operands whose rows are equally spaced; one more axis of heads inside a row-strided view is fine.
    fn acceptable(&self, id: ValueId) -> bool {
        let layout = &self.graph.value(id).layout;
        if layout.row_stride().is_some() {
            return true;
        }
        let d = layout.shape.dims();
        d.len() == 3 && layout.strides()[2] == 1 && layout.strides()[1] == d[2]
    }

    fn check_state(&self, op: &Op, inputs: &[ValueId], state: Option<State>) -> Result<(), String> {
        for (i, id) in inputs.iter().enumerate() {
            let is_state =
                self.graph.port_of(*id).is_some_and(|p| self.graph.port(p).kind == PortKind::State);
            if is_state != (op.state_operand() == Some(i)) && i < op.roles().len() {
                let role = op.roles()[i];
                let must = if is_state { "is a state, must be a tensor" } else { "must be a state" };
                return Err(format!("operand {i} ({role}): {must}"));
            }
        }
        let Some(slot) = op.state_operand() else { return Ok(()) };
        for (i, (role, id)) in op.roles().iter().zip(inputs).enumerate() {
            // Kernels follow these into the state as `validate` let them through, by port.
            let value = self.graph.value(*id);
            let input = matches!(value.source, Source::Port(p) if self.graph.port(p).kind == PortKind::Input);
            if value.dtype == DType::U32 && i != slot && !input {
                return Err(format!("{role} must be an input itself, which is checked with every step"));
            }
        }
        let Some(&id) = inputs.get(slot) else { return Ok(()) };
        let current = self.versions.iter().find(|(s, _)| *s == id).map(|(_, v)| *v);
        let given = state.filter(|s| s.tensor.id == id.0).map(|s| s.version);
        if current != given {
            let name = self.graph.port_of(id).map_or("?", |p| &self.graph.port(p).name);
            return Err(format!(
                "operand {slot} ({}): version {given:?} of state `{name}` was given, the current one is {current:?}",
                op.roles()[slot]
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_every_mistake_with_its_line_and_poisons_the_rest() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, &[4, 8], None);
        let w = b.weight("w", DType::F32, &[6, 7]);
        let y = b.matmul(x, w);
        let z = b.add(y, x); // poisoned: no second report
        b.output("z", z);
        let g = b.weight("g", DType::F32, &[9]);
        b.rms_norm(x, g, 1e-5);
        let errors = b.finish().unwrap_err();
        assert_eq!(errors.0.len(), 2);
        assert!(errors.0[0].problem.contains("operand 1 (w): has rows of 7, x has rows of 8"), "{errors}");
        assert_eq!(errors.0[0].site.line() + 4, errors.0[1].site.line());
        assert!(errors.0[0].site.file().ends_with("builder.rs"));
    }

    #[test]
    fn refuses_stale_states_and_strangers() {
        let b = Builder::new();
        let u = |name, dims: &[usize]| b.input(name, DType::U32, dims, None);
        let (pos, extents, pages) = (u("pos", &[2]), u("extents", &[1]), u("pages", &[1, 4]));
        let k = b.input("k", DType::F32, &[2, 1, 8], None);
        let old = b.state("kv", DType::F32, &[9, 16, 1, 16]);
        let new = b.kv_write(old, k, k, pos, extents, pages);
        let op = || Op::Attention { scale: 1.0, window: None, softcap: None };
        b.attention(op(), k, new, pos, pos, extents, pages);
        assert!(b.errors().is_empty(), "{:?}", b.errors());
        b.attention(op(), k, old, pos, pos, extents, pages);
        let stranger = Builder::new().input("x", DType::F32, &[1], None);
        b.scale(stranger, 2.0);
        let errors = b.errors();
        assert!(errors[0].problem.contains("version Some(0) of state `kv`"), "{errors:?}");
        assert!(errors[1].problem.contains("another builder"));
    }

    /// Positions, pages and slots lead into a state; a view of them would be followed unchecked.
    #[test]
    fn step_arrays_are_inputs_themselves() {
        let b = Builder::new();
        let u = |name, dims: &[usize]| b.input(name, DType::U32, dims, None);
        let (pos, extents, pages) = (u("pos", &[2]), u("extents", &[1]), u("pages", &[1, 4]));
        let (long, wide) = (u("long", &[4]), u("wide", &[1, 8]));
        let (_, experts) = b.route(b.input("logits", DType::F32, &[2, 4], None), 1, true);
        let k = b.input("k", DType::F32, &[2, 1, 8], None);
        let mut cache = b.state("kv", DType::F32, &[9, 16, 1, 16]);
        let view = b.slice(long, 0, 1, 2);
        for (role, [pos, pages]) in [
            ("", [pos, pages]),
            ("pos", [view, pages]),
            ("pos", [b.reshape(experts, &[2]), pages]),
            ("pages", [pos, b.slice(wide, 1, 4, 4)]),
        ] {
            let before = b.errors().len();
            let next = b.kv_write(cache, k, k, pos, extents, pages);
            let errors = b.errors();
            let problem = errors[before..].first().map_or("", |e| &e.problem);
            match role {
                "" => assert_eq!(problem, ""),
                role => assert!(problem.starts_with(&format!("{role} must be an input itself")), "{problem}"),
            }
            cache = if problem.is_empty() { next } else { cache };
        }
        let ring = b.state("ring", DType::F32, &[3, 2, 8]);
        let (x, w) = (b.input("x", DType::F32, &[2, 8], None), b.weight("w", DType::F32, &[8, 3]));
        b.short_conv(x, w, ring, [pos, extents, b.slice(long, 0, 0, 1), pos]);
        assert!(
            b.errors().last().is_some_and(|e| e.problem.starts_with("slots must be")),
            "{:?}",
            b.errors()
        );
    }

    #[test]
    fn same_weight_twice_is_one_port_but_not_with_another_type() {
        let b = Builder::new();
        assert_eq!(b.weight("w", DType::Q8_0, &[2, 32]), b.weight("w", DType::Q8_0, &[2, 32]));
        b.weight("w", DType::F32, &[2, 32]);
        assert!(b.errors()[0].problem.contains("already a weight Q8_0 [2, 32]"));
    }
}

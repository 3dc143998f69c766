//! The oracle as a device: graphs interpreted with the references of their ops.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use graph::backend::{
    Backend, Bindings, CompileOptions, DeviceError, Encoded, Instance, Plan, Reading, Reopening, RowSource,
    StateDesc, StateHandle, StepInputs, WeightDesc, WeightHandle,
};
use graph::validate::{self, StepLayout};
use graph::{
    Fence, Graph, Identity, MemoryReport, Node, PlanReport, PortId, PortKind, Selection, Source, ValueId,
};
use tensor::host::HostError;
use tensor::ops::{KvType, ReferenceError};
use tensor::{DType, HostTensor, Op, Shape};

/// Name of the device.
pub const NAME: &str = "reference";

/// Computes the results of an op and updates its state, as [`Op::reference`] does.
pub type Evaluate = dyn Fn(&Op, &mut [HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> + Send + Sync;

/// Sees a node and its operands.
pub type Visit<'a> = dyn FnMut(&Node, &[HostTensor]) -> Result<(), ReferenceError> + 'a;

/// A device that computes every op with its reference, in [`Instance::submit`] itself. Slow, and right by definition.
/// Activations are f32 in both precisions.
#[derive(Clone)]
pub struct ReferenceBackend {
    evaluate: Arc<Evaluate>,
    /// One submission at a time: two instances may share states.
    queue: Arc<Mutex<()>>,
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        ReferenceBackend::new()
    }
}

impl ReferenceBackend {
    /// The oracle.
    pub fn new() -> ReferenceBackend {
        ReferenceBackend::with(Arc::new(|op: &Op, args: &mut [HostTensor]| op.reference(args)))
    }

    /// The same device over another evaluation: how tests show that a wrong one is caught.
    pub fn with(evaluate: Arc<Evaluate>) -> ReferenceBackend {
        ReferenceBackend { evaluate, queue: Arc::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state behind a handle.
fn own(state: &StateHandle) -> Result<Arc<Mutex<HostTensor>>, DeviceError> {
    state.clone().downcast().map_err(|_| DeviceError::Binding {
        port: "state".to_owned(),
        problem: "was allocated by another backend".to_owned(),
    })
}

fn zeros(what: &str, dtype: DType, shape: Shape) -> Result<HostTensor, DeviceError> {
    made(what, HostTensor::zeros(dtype, shape))
}

fn made(what: &str, tensor: Result<HostTensor, HostError>) -> Result<HostTensor, DeviceError> {
    tensor.map_err(|e| DeviceError::Binding { port: what.to_owned(), problem: e.to_string() })
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn description(&self) -> String {
        "the references of the ops, accumulated in f64 on one thread".to_owned()
    }

    fn memory_limit(&self) -> Option<u64> {
        None
    }

    fn kv_types(&self) -> &[KvType] {
        &KvType::ALL
    }

    fn reopen(&self) -> Reopening {
        Box::pin(std::future::ready(Ok(Arc::new(self.clone()) as Arc<dyn Backend>)))
    }

    fn weight(&self, desc: &WeightDesc, source: &dyn RowSource) -> Result<WeightHandle, DeviceError> {
        let mut weight = zeros(&desc.name, desc.dtype, desc.shape)?;
        let rows = desc.shape.rows();
        let width = weight.bytes().len().checked_div(rows).unwrap_or(0);
        let bytes = weight.bytes_mut();
        let mut problem = None;
        source.rows(0..rows, &mut |row, given| match bytes
            .get_mut(row * width..(row + 1) * width)
            .filter(|place| place.len() == given.len())
        {
            Some(place) => place.copy_from_slice(given),
            None => {
                problem = Some(format!(
                    "row {row} of {} bytes does not fit {rows} rows of {width} bytes",
                    given.len()
                ));
            }
        })?;
        match problem {
            Some(problem) => Err(DeviceError::Binding { port: desc.name.clone(), problem }),
            None => Ok(Arc::new(weight)),
        }
    }

    fn state(&self, desc: &StateDesc) -> Result<StateHandle, DeviceError> {
        Ok(Arc::new(Mutex::new(made(&desc.name, HostTensor::state(desc.dtype, desc.shape))?)))
    }

    fn entry_bytes(&self, state: &StateHandle) -> Result<usize, DeviceError> {
        let state = own(state)?;
        let state = lock(&state);
        Ok(state.bytes().len().checked_div(state.dims()[0]).unwrap_or(0))
    }

    fn read_state(&self, state: &StateHandle, entries: &[u32]) -> Result<Reading, DeviceError> {
        let each = self.entry_bytes(state)?;
        let state = own(state)?;
        let state = lock(&state);
        validate::entries("state", entries, state.dims()[0], each, None)?;
        let entry = |entry: &u32| state.bytes()[*entry as usize * each..][..each].iter().copied();
        let bytes = entries.iter().flat_map(entry).collect();
        Ok(Box::pin(std::future::ready(Ok(bytes))))
    }

    fn write_state(&self, state: &StateHandle, entries: &[u32], bytes: &[u8]) -> Result<Fence, DeviceError> {
        let each = self.entry_bytes(state)?;
        let state = own(state)?;
        let mut state = lock(&state);
        validate::entries("state", entries, state.dims()[0], each, Some(bytes.len()))?;
        for (entry, from) in entries.iter().zip(bytes.chunks_exact(each.max(1))) {
            state.bytes_mut()[*entry as usize * each..][..each].copy_from_slice(from);
        }
        let (signal, fence) = graph::fence();
        signal.set(Ok(()));
        Ok(fence)
    }

    fn compile(&self, graph: &Graph, options: &CompileOptions) -> Result<Arc<dyn Plan>, DeviceError> {
        let bytes = |kind| -> u64 {
            let ports = graph.ports.iter().filter(|p| p.kind == kind);
            ports.filter_map(|p| p.dtype.bytes_for(p.shape.elements())).map(|b| b as u64).sum()
        };
        let sizes = graph.nodes.iter().flat_map(|n| &n.outputs).map(|id| {
            let value = graph.value(*id);
            (value.layout.shape.elements() * value.dtype.block_bytes()) as u64
        });
        let computed = sizes.sum();
        let report = PlanReport {
            label: options.label.clone(),
            identity: Identity::of(graph, NAME),
            ports: PlanReport::ports(graph),
            scalars: graph.scalars.clone(),
            selections: graph.nodes.iter().map(|n| selection(graph, n)).collect(),
            memory: MemoryReport {
                arena: computed,
                unaliased: computed,
                io: bytes(PortKind::Input) + bytes(PortKind::Output),
                scratch: 0,
                weights: bytes(PortKind::Weight),
                states: bytes(PortKind::State),
            },
        };
        let layout = StepLayout::new(graph);
        let plan = PlanInner { graph: graph.clone(), layout, report, backend: self.clone() };
        Ok(Arc::new(ReferencePlan(Arc::new(plan))))
    }
}

fn selection(graph: &Graph, node: &Node) -> Selection {
    let operand = |id: &ValueId| {
        let value = graph.value(*id);
        format!("{} {}", value.dtype, value.layout.shape)
    };
    Selection {
        op: node.op.name(),
        operands: node.inputs.iter().map(operand).collect::<Vec<_>>().join(", "),
        kernel: NAME.to_owned(),
        reason: "the only one".to_owned(),
        site: format!("{}:{}", node.site.file(), node.site.line()),
    }
}

struct PlanInner {
    graph: Graph,
    layout: StepLayout,
    report: PlanReport,
    backend: ReferenceBackend,
}

struct ReferencePlan(Arc<PlanInner>);

impl Plan for ReferencePlan {
    fn report(&self) -> &PlanReport {
        &self.0.report
    }

    fn instance(&self, bindings: &Bindings) -> Result<Box<dyn Instance>, DeviceError> {
        let graph = &self.0.graph;
        validate::bindings(graph, bindings)?;
        let mut weights = vec![None; graph.ports.len()];
        let mut states = vec![None; graph.ports.len()];
        for (i, port) in graph.ports.iter().enumerate() {
            let refuse = |problem: String| Err(DeviceError::Binding { port: port.name.clone(), problem });
            let have = match port.kind {
                PortKind::Weight => {
                    let Ok(weight) = bindings.weights[&port.name].clone().downcast::<HostTensor>() else {
                        return refuse("was packed by another backend".to_owned());
                    };
                    let operand = weight.operand();
                    weights[i] = Some(HostTensor::clone(&weight));
                    operand
                }
                PortKind::State => {
                    let Ok(state) = bindings.states[&port.name].clone().downcast::<Mutex<HostTensor>>()
                    else {
                        return refuse("was allocated by another backend".to_owned());
                    };
                    let operand = lock(&state).operand();
                    states[i] = Some(state);
                    operand
                }
                _ => continue,
            };
            if (have.dtype, have.shape) != (port.dtype, port.shape) {
                return refuse(format!(
                    "is {} {}, the plan wants {} {}",
                    have.dtype, have.shape, port.dtype, port.shape
                ));
            }
        }
        let buffer = vec![0; self.0.layout.words()];
        let plan = self.0.clone();
        Ok(Box::new(ReferenceInstance {
            plan,
            weights,
            states,
            buffer,
            scalars: vec![],
            serial: 0,
            ready: false,
            wanted: vec![],
            outputs: HashMap::new(),
        }))
    }
}

struct ReferenceInstance {
    plan: Arc<PlanInner>,
    weights: Vec<Option<HostTensor>>,
    states: Vec<Option<Arc<Mutex<HostTensor>>>>,
    buffer: Vec<u32>,
    scalars: Vec<u32>,
    serial: u64,
    /// The step of `serial` is encoded and not yet submitted.
    ready: bool,
    /// Outputs that the encoded step asks for.
    wanted: Vec<String>,
    /// Those that the submission gave.
    outputs: HashMap<String, Vec<u32>>,
}

impl ReferenceInstance {
    fn execute(&mut self) -> Result<(), DeviceError> {
        let plan = self.plan.clone();
        let graph = &plan.graph;
        let _turn = lock(&plan.backend.queue);
        let mut ports = self.weights.clone();
        for (i, port) in graph.ports.iter().enumerate() {
            if let Some(offset) = plan.layout.offset(PortId(i as u32)) {
                let words = &self.buffer[offset..][..port.shape.elements()];
                let tensor = HostTensor::new(port.dtype, port.shape.dims(), bytemuck::cast_slice(words));
                ports[i] =
                    Some(tensor.map_err(|e| DeviceError::Binding {
                        port: port.name.clone(),
                        problem: e.to_string(),
                    })?);
            }
        }
        // A state is moved out while the graph runs, so that it is written in place.
        let empty = zeros("state", DType::F32, Shape::new(&[0]).expect("one axis"))?;
        for (place, state) in ports.iter_mut().zip(&self.states) {
            if let Some(state) = state {
                *place = Some(std::mem::replace(&mut *lock(state), empty.clone()));
            }
        }
        let results = interpret(graph, &mut ports, &*plan.backend.evaluate, &mut |_, _| Ok(()));
        for (place, state) in ports.into_iter().zip(&self.states) {
            if let (Some(tensor), Some(state)) = (place, state) {
                *lock(state) = tensor;
            }
        }
        let results = results?;
        for (name, value) in results.outputs.into_iter().filter(|(name, _)| self.wanted.contains(name)) {
            let real = real_elements(graph, &name, value.shape(), &self.scalars);
            self.outputs.insert(name, bytemuck::cast_slice(&value.bytes()[..4 * real]).to_vec());
        }
        results.refused.map_or(Ok(()), Err)
    }
}

impl ReferenceInstance {
    fn read(&self, name: &str, dtype: DType) -> Result<&[u32], DeviceError> {
        validate::readable(&self.plan.layout, &self.wanted, name, dtype)?;
        match self.outputs.get(name) {
            Some(values) => Ok(values),
            None => Err(DeviceError::Busy("no submission of this instance has finished".to_owned())),
        }
    }
}

/// Elements of an output that are no padding.
pub(crate) fn real_elements(graph: &Graph, name: &str, shape: Shape, scalars: &[u32]) -> usize {
    let bound = graph.find_port(name).and_then(|p| graph.value(graph.port(p).value).bound);
    let rows = shape.dims().first().copied().unwrap_or(1);
    let real = bound.map_or(rows, |b| rows.min(scalars[b.0 as usize] as usize));
    shape.elements() / rows.max(1) * real
}

impl Instance for ReferenceInstance {
    fn encode(&mut self, step: &StepInputs) -> Result<Encoded, DeviceError> {
        self.ready = false;
        // Padding is zeros: row ops compute something harmless there and sequence ops skip it.
        self.buffer.fill(0);
        self.plan.layout.encode(step, &mut self.buffer, &mut self.scalars)?;
        self.wanted = step.outputs.iter().map(|name| (*name).to_owned()).collect();
        self.serial += 1;
        self.ready = true;
        Ok(Encoded { serial: self.serial })
    }

    fn submit(&mut self, encoded: Encoded) -> Fence {
        if !self.ready || encoded.serial != self.serial {
            let problem = "the encoded step is not this instance's latest, or was submitted already";
            return Fence::failed(DeviceError::Busy(problem.to_owned()));
        }
        self.ready = false;
        self.outputs.clear();
        let (signal, fence) = graph::fence();
        signal.set(self.execute());
        fence
    }

    fn output(&self, name: &str) -> Result<&[f32], DeviceError> {
        self.read(name, DType::F32).map(bytemuck::cast_slice)
    }

    fn words(&self, name: &str) -> Result<&[u32], DeviceError> {
        self.read(name, DType::U32)
    }
}

/// What [`interpret`] found.
pub struct Interpreted {
    /// The outputs by name.
    pub outputs: Vec<(String, HostTensor)>,
    /// The rows that were refused, as [`DeviceError::Numeric`]; the outputs hold the others.
    pub refused: Option<DeviceError>,
}

/// Rows that an op refused.
struct Refused {
    op: &'static str,
    problem: &'static str,
    rows: BTreeSet<u32>,
}

/// Runs a graph over `ports` (by port index: every input, weight and state), with all rows of every bucket. States are
/// updated there. `visit` sees each node with its operands before it is computed. A row that an op refuses by itself
/// goes on as what the op makes of zeros.
///
/// # Errors
/// What `evaluate` or `visit` refuses otherwise, as [`DeviceError::Numeric`] without rows.
pub fn interpret(
    graph: &Graph,
    ports: &mut [Option<HostTensor>],
    evaluate: &Evaluate,
    visit: &mut Visit,
) -> Result<Interpreted, DeviceError> {
    let mut computed: Vec<Option<HostTensor>> = vec![None; graph.values.len()];
    let mut refused: Option<Refused> = None;
    let read = |ports: &[Option<HostTensor>], computed: &[Option<HostTensor>], id: ValueId| {
        let base = graph.base(id);
        let tensor = match graph.value(base).source {
            Source::Port(port) => ports[port.0 as usize].as_ref(),
            _ => computed[base.0 as usize].as_ref(),
        };
        let missing = || DeviceError::Lost(format!("value {} was read before it was computed", base.0));
        let view = tensor.ok_or_else(missing)?.view(&graph.value(id).layout);
        view.map_err(|e| DeviceError::Lost(e.to_string()))
    };
    let row_scalar = graph.row_scalar();
    for node in &graph.nodes {
        let numeric = |e: ReferenceError| DeviceError::Numeric {
            op: node.op.name().to_owned(),
            problem: e.to_string(),
            rows: vec![],
        };
        let mut args = Vec::with_capacity(node.inputs.len());
        for id in &node.inputs {
            args.push(read(ports, &computed, *id)?);
        }
        visit(node, &args).map_err(numeric)?;
        let written = node.op.state_operand().filter(|_| node.op.writes_state());
        let port = written.and_then(|slot| Some((slot, graph.port_of(node.inputs[slot])?)));
        if let Some((_, port)) = port {
            ports[port.0 as usize] = None; // so that the only copy is the operand
        }
        let of_step = row_scalar.is_none() || row_scalar == graph.value(node.inputs[0]).bound;
        let mut cleared = BTreeSet::new();
        let results = loop {
            match evaluate(&node.op, &mut args) {
                Err(ReferenceError::Row { row, problem }) if of_step && cleared.insert(row as u32) => {
                    clear_row(&mut args[0], row).map_err(numeric)?;
                    let op = node.op.name();
                    let known = refused.get_or_insert(Refused { op, problem, rows: BTreeSet::new() });
                    known.rows.insert(row as u32);
                }
                results => break results,
            }
        };
        if let Some((slot, port)) = port {
            ports[port.0 as usize] = Some(args.swap_remove(slot));
        }
        for (id, result) in node.outputs.iter().zip(results.map_err(numeric)?) {
            computed[id.0 as usize] = Some(result);
        }
    }
    let outputs = graph.ports.iter().filter(|p| p.kind == PortKind::Output);
    let outputs = outputs.map(|p| Ok((p.name.clone(), read(ports, &computed, p.value)?)));
    let refused = refused.map(|r| DeviceError::Numeric {
        op: r.op.to_owned(),
        problem: r.problem.to_owned(),
        rows: r.rows.into_iter().collect(),
    });
    Ok(Interpreted { outputs: outputs.collect::<Result<_, DeviceError>>()?, refused })
}

fn clear_row(x: &mut HostTensor, row: usize) -> Result<(), ReferenceError> {
    let width = x.shape().elements() / x.dims()[0].max(1);
    x.f32s_mut()?[row * width..][..width].fill(0.0);
    Ok(())
}

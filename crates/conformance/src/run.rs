//! Running cases on a backend.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use graph::backend::{Backend, Bindings, CompileOptions, DeviceError, RowSource, StateDesc};
use graph::{Graph, PortKind};
use tensor::ops::Precision;
use tensor::{DType, HostTensor};

use crate::case::{Case, Padding, Step};
use crate::reference::interpret;
use crate::report::{Failure, Report};

/// The bits of the outputs of one step by name, whole rows.
type Outputs = BTreeMap<String, Vec<u32>>;

/// What a step's output must be, in bits, and how far it may lie from that in each precision.
struct Expected {
    dtype: DType,
    values: Vec<u32>,
    exact: Vec<f64>,
    fast: Vec<f64>,
}

/// Runs every case that `filter` accepts and reports.
pub fn run(backend: &dyn Backend, filter: impl Fn(&Case) -> bool) -> Report {
    let mut report = Report { device: backend.name().to_owned(), ..Report::default() };
    for case in crate::cases::all().iter().filter(|c| filter(c)) {
        judge(backend, case, &mut report);
    }
    report
}

/// Runs one case in both precisions and enters the result.
pub fn judge(backend: &dyn Backend, case: &Case, report: &mut Report) {
    let before = report.failures.len();
    let (mut worst, mut unsupported) = (0.0, None);
    let mut fail = |check: String, problem: String| {
        report.failures.push(Failure { case: case.name(), check, problem });
    };
    match expect(case) {
        Err(problem) => fail("reference".to_owned(), problem),
        Ok(expected) => {
            for precision in [Precision::Exact, Precision::Fast] {
                match check(backend, case, precision, &expected, &mut fail) {
                    Ok(share) => worst = f64::max(worst, share),
                    Err(e @ DeviceError::Unsupported { .. }) => unsupported = Some(e.to_string()),
                    Err(e) => fail(format!("{precision:?}"), e.to_string()),
                }
            }
        }
    }
    let passed = report.failures.len() == before && unsupported.is_none();
    let missing = usize::from(unsupported.is_some());
    report.unsupported.extend(unsupported.map(|reason| (case.name(), reason)));
    let cell = report.cell(case.op, case.dtype);
    cell.cases += 1;
    cell.passed += usize::from(passed);
    cell.unsupported += missing;
    cell.worst = cell.worst.max(worst);
}

/// The outputs by the references, and their bounds by the op that gives them.
fn expect(case: &Case) -> Result<Vec<BTreeMap<String, Expected>>, String> {
    let graph = case.graph(Padding::default()).map_err(|e| e.to_string())?;
    let layout = graph::validate::StepLayout::new(&graph);
    let mut ports: Vec<Option<HostTensor>> = vec![None; graph.ports.len()];
    for (place, port) in ports.iter_mut().zip(&graph.ports) {
        *place = match port.kind {
            PortKind::Weight => case.weights.get(&port.name).cloned(),
            PortKind::State => Some(HostTensor::state(port.dtype, port.shape).map_err(|e| e.to_string())?),
            _ => None,
        };
    }
    let mut all = vec![];
    for step in &case.steps {
        let mut buffer = vec![0u32; layout.words()];
        let mut scalars = vec![];
        step.with_inputs(&[], |s| layout.encode(s, &mut buffer, &mut scalars)).map_err(|e| e.to_string())?;
        for (i, port) in graph.ports.iter().enumerate() {
            if let Some(at) = layout.offset(graph::PortId(i as u32)) {
                let words = bytemuck::cast_slice(&buffer[at..][..port.shape.elements()]);
                let tensor = HostTensor::new(port.dtype, port.shape.dims(), words);
                ports[i] = Some(tensor.map_err(|e| e.to_string())?);
            }
        }
        let mut bounds = BTreeMap::new();
        let done = interpret(&graph, &mut ports, &|op, args| op.reference(args), &mut |node, args| {
            let [exact, fast] = [Precision::Exact, Precision::Fast].map(|p| node.op.bounds(args, p));
            for (id, pair) in node.outputs.iter().zip(exact?.into_iter().zip(fast?)) {
                bounds.insert(*id, pair);
            }
            Ok(())
        })
        .map_err(|e| e.to_string())?;
        if let Some(refused) = done.refused {
            return Err(refused.to_string());
        }
        let mut expected = BTreeMap::new();
        for (name, tensor) in done.outputs {
            let port = graph.find_port(&name).expect("an output of the graph");
            let (exact, fast) = bounds.remove(&graph.base(graph.port(port).value)).expect("a node's result");
            let real = tensor.shape().elements() / case.bucket(Padding::default()) * step.row_count();
            let values = bytemuck::cast_slice(&tensor.bytes()[..4 * real]).to_vec();
            expected.insert(name, Expected { dtype: tensor.dtype(), values, exact, fast });
        }
        all.push(expected);
    }
    Ok(all)
}

/// All checks of one precision. Gives the worst error as a share of its bound.
fn check(
    backend: &dyn Backend,
    case: &Case,
    precision: Precision,
    expected: &[BTreeMap<String, Expected>],
    fail: &mut impl FnMut(String, String),
) -> Result<f64, DeviceError> {
    let plain = execute(backend, case, precision, &case.steps, Padding::default())?;
    let mut worst = 0.0;
    for (at, (have, want)) in plain.iter().zip(expected).enumerate() {
        for (name, want) in want {
            let have = &have[name];
            let bounds = if precision == Precision::Exact { &want.exact } else { &want.fast };
            let check = || format!("{precision:?}, step {at}, {name}");
            if have.len() != want.values.len() {
                fail(check(), format!("{} elements, must be {}", have.len(), want.values.len()));
                worst = f64::INFINITY;
                continue;
            }
            let shares = have.iter().zip(&want.values).zip(bounds);
            let shares = shares.map(|((h, w), b)| share(want.dtype, *h, *w, *b));
            let (i, most) = shares.enumerate().fold((0, 0.0), |m, s| if s.1 > m.1 { s } else { m });
            if most > 1.0 {
                let (have, must) = (show(want.dtype, have[i]), show(want.dtype, want.values[i]));
                fail(check(), format!("element {i} is {have}, must be {must} within {:.1e}", bounds[i]));
            }
            worst = f64::max(worst, most);
        }
    }
    let padding = Padding { rows: 5, seqs: 2 };
    let padded = execute(backend, case, precision, &case.steps, padding)?;
    let straight: Vec<Vec<usize>> = case.steps.iter().map(|s| (0..s.row_count()).collect()).collect();
    let mut same = |what: &str, have: &[Outputs], rows: &[Vec<usize>]| {
        if let Some(problem) = differing_row(&plain, have, case, rows) {
            fail(format!("{precision:?}, bits {what}"), problem);
        }
    };
    same("in a larger bucket", &padded, &straight);
    for (what, selected) in [("in another order", case.reversed()), ("alone", case.alone())] {
        let (steps, rows): (Vec<Step>, Vec<Vec<usize>>) = selected.into_iter().unzip();
        let have = execute(backend, case, precision, &steps, Padding::default())?;
        same(what, &have, &rows);
    }
    if case.refuses {
        for (what, poison) in POISONS {
            let (steps, bad) = poisoned(&case.steps, poison);
            let found = beside_refused(backend, case, precision, &steps, &bad, &plain)?;
            if let Some(problem) = found {
                fail(format!("{precision:?}, rows refused for {what}"), problem);
            }
        }
    }
    Ok(worst)
}

fn show(dtype: DType, bits: u32) -> String {
    if dtype == DType::F32 { format!("{:e}", f32::from_bits(bits)) } else { bits.to_string() }
}

/// The error as a share of the bound. Integers have none but 0.
fn share(dtype: DType, have: u32, want: u32, bound: f64) -> f64 {
    if dtype != DType::F32 {
        return if have == want { 0.0 } else { f64::INFINITY };
    }
    let error = (f64::from(f32::from_bits(have)) - f64::from(f32::from_bits(want))).abs();
    if have == want || error == 0.0 {
        0.0
    } else if error.is_nan() || !bound.is_finite() {
        f64::INFINITY // a bound that bounds nothing
    } else {
        error / bound // infinite for a bound of zero
    }
}

/// The first row whose bits differ; row i of `have` was row `rows[i]` of `plain`.
fn differing_row(plain: &[Outputs], have: &[Outputs], case: &Case, rows: &[Vec<usize>]) -> Option<String> {
    for (at, ((plain, have), rows)) in plain.iter().zip(have).zip(rows).enumerate() {
        for (name, plain) in plain {
            let width = plain.len().checked_div(case.steps[at].row_count()).unwrap_or(0);
            let have = &have[name];
            if have.len() != rows.len() * width {
                return Some(format!("step {at}, {name}: {} elements for {} rows", have.len(), rows.len()));
            }
            for (row, was) in rows.iter().enumerate() {
                let (a, b) = (&have[row * width..][..width], &plain[was * width..][..width]);
                if let Some(i) = (0..width).find(|i| a[*i] != b[*i]) {
                    return Some(format!(
                        "step {at}, {name}: row {row} (was {was}) has the bits {:08x} at {i}, had {:08x}",
                        a[i], b[i]
                    ));
                }
            }
        }
    }
    None
}

/// What makes a row of logits one that routing refuses.
type Poison = fn(row: usize, logits: &mut [f32]);

const POISONS: [(&str, Poison); 3] = [
    ("NaN", |row, logits| logits[row % logits.len()] = f32::NAN),
    ("infinity", |row, logits| logits[row % logits.len()] = f32::INFINITY),
    ("nothing finite", |_, logits| logits.fill(f32::NEG_INFINITY)),
];

/// The steps with every third row of the first input poisoned, counted from the last, and these rows of each.
fn poisoned(steps: &[Step], poison: Poison) -> (Vec<Step>, Vec<Vec<u32>>) {
    let one = |step: &Step| {
        let mut step = step.clone();
        let (_, logits) = &mut step.rows[0];
        let (rows, width) = (logits.dims()[0], logits.shape().last());
        let bad: Vec<usize> = (0..rows).filter(|row| (rows - 1 - row) % 3 == 0).collect();
        let values = logits.f32s_mut().expect("logits are F32");
        bad.iter().for_each(|row| poison(*row, &mut values[row * width..][..width]));
        (step, bad.into_iter().map(|row| row as u32).collect())
    };
    steps.iter().map(one).unzip()
}

/// Runs steps whose rows `bad` must be refused, each of these and no other; the others must have the bits of `plain`.
fn beside_refused(
    backend: &dyn Backend,
    case: &Case,
    precision: Precision,
    steps: &[Step],
    bad: &[Vec<u32>],
    plain: &[Outputs],
) -> Result<Option<String>, DeviceError> {
    let (mut kept, mut places) = (vec![], vec![]);
    for ((step, bad), (outcome, outputs)) in
        steps.iter().zip(bad).zip(submit(backend, case, precision, steps, Padding::default())?)
    {
        match outcome {
            Ok(()) if bad.is_empty() => {}
            Err(DeviceError::Numeric { rows, .. }) if rows == *bad => {}
            Ok(()) => return Ok(Some(format!("rows {bad:?} must fail, none did"))),
            Err(e) => return Ok(Some(format!("rows {bad:?} must fail and no other, it says: {e}"))),
        }
        let good: Vec<usize> = (0..step.row_count()).filter(|row| !bad.contains(&(*row as u32))).collect();
        let keep = |(name, y): (String, Vec<u32>)| {
            let width = y.len().checked_div(step.row_count()).unwrap_or(0);
            (name, good.iter().flat_map(|row| &y[row * width..][..width]).copied().collect())
        };
        kept.push(outputs.into_iter().map(keep).collect());
        places.push(good);
    }
    Ok(differing_row(plain, &kept, case, &places))
}

/// Runs the steps over fresh states. Outputs are cut to the true rows.
fn execute(
    backend: &dyn Backend,
    case: &Case,
    precision: Precision,
    steps: &[Step],
    padding: Padding,
) -> Result<Vec<Outputs>, DeviceError> {
    let all = submit(backend, case, precision, steps, padding)?;
    all.into_iter().map(|(outcome, outputs)| outcome.map(|()| outputs)).collect()
}

/// How a submission ended, and its outputs where that left any.
type Submitted = (Result<(), DeviceError>, Outputs);

/// As [`execute`], whatever the submissions end in.
fn submit(
    backend: &dyn Backend,
    case: &Case,
    precision: Precision,
    steps: &[Step],
    padding: Padding,
) -> Result<Vec<Submitted>, DeviceError> {
    let broken = |problem: String| DeviceError::Binding { port: case.name(), problem };
    let graph = case.graph(padding).map_err(|e| broken(e.to_string()))?;
    let options = CompileOptions { label: case.name(), precision, profile: false };
    let plan = backend.compile(&graph, &options)?;
    let mut instance = plan.instance(&bind(backend, case, &graph)?)?;
    let names: Vec<&str> =
        graph.ports.iter().filter(|p| p.kind == PortKind::Output).map(|p| p.name.as_str()).collect();
    let mut all = vec![];
    for step in steps {
        let encoded = step.with_inputs(&names, |s| instance.encode(s))?;
        let outcome = pollster::block_on(instance.submit(encoded));
        let readable = match &outcome {
            Ok(()) => true,
            Err(DeviceError::Numeric { rows, .. }) => !rows.is_empty(),
            Err(_) => false,
        };
        let mut outputs = Outputs::new();
        for port in graph.ports.iter().filter(|p| readable && p.kind == PortKind::Output) {
            let given = match port.dtype {
                DType::F32 => bytemuck::cast_slice(instance.output(&port.name)?),
                _ => instance.words(&port.name)?,
            };
            // Results that count rows in another way than by their first axis have no bound: cut them here.
            let real = port.shape.elements() / case.bucket(padding) * step.row_count();
            outputs.insert(port.name.clone(), given[..real.min(given.len())].to_vec());
        }
        all.push((outcome, outputs));
    }
    Ok(all)
}

fn bind(backend: &dyn Backend, case: &Case, graph: &Graph) -> Result<Bindings, DeviceError> {
    let mut bindings = Bindings::default();
    for desc in graph.weights() {
        let handle = backend.weight(&desc, &Stored(&case.weights[&desc.name]))?;
        bindings.weights.insert(desc.name, handle);
    }
    for port in graph.ports.iter().filter(|p| p.kind == PortKind::State) {
        let desc = StateDesc { name: port.name.clone(), dtype: port.dtype, shape: port.shape };
        bindings.states.insert(desc.name.clone(), Arc::clone(&backend.state(&desc)?));
    }
    Ok(bindings)
}

/// The rows of a tensor in memory, as a weight's.
#[derive(Debug)]
pub struct Stored<'a>(pub &'a HostTensor);

impl RowSource for Stored<'_> {
    fn rows(&self, rows: Range<usize>, sink: &mut dyn FnMut(usize, &[u8])) -> Result<(), DeviceError> {
        for row in rows {
            match self.0.row_bytes(row) {
                Ok(bytes) => sink(row, bytes),
                Err(e) => {
                    return Err(DeviceError::Binding { port: format!("row {row}"), problem: e.to_string() });
                }
            }
        }
        Ok(())
    }
}

//! Plans and their instances.

use std::sync::Arc;
use std::time::Instant;

use graph::backend::{
    Bindings, DeviceError, Encoded, Instance, KernelTime, Plan, StepInputs, StepProfile, WeightDesc,
};
use graph::validate::StepLayout;
use graph::{Fence, PlanReport, fence};
use tensor::DType;

use crate::compile::{Arg, Extents, Segment, Step, Use};
use crate::device::{Awaited, Gpu};
use crate::kernel::SCALARS;
use crate::pack::planes;
use crate::select::SEGMENTS;
use crate::state::{GpuState, StateInfo};
use crate::timing::Timing;
use crate::weight::{Chunk, GpuWeight, PackedMatrix};

/// A compiled graph.
pub(crate) struct GpuPlan {
    pub(crate) inner: Arc<PlanInner>,
    pub(crate) report: PlanReport,
}

pub(crate) struct PlanInner {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) graph: graph::Graph,
    pub(crate) layout: StepLayout,
    pub(crate) weights: Vec<WeightDesc>,
    pub(crate) states: Vec<StateInfo>,
    pub(crate) outputs: Vec<OutputInfo>,
    pub(crate) steps: Vec<Step>,
    /// Words at the start of the arena that each step writes.
    pub(crate) step_words: usize,
    pub(crate) extents: Option<Extents>,
    pub(crate) seq_at: Option<usize>,
    pub(crate) start_at: Option<usize>,
    /// First word and rows, see the compiler.
    pub(crate) status: Option<(usize, usize)>,
    /// Marked rows are rows of the step.
    pub(crate) refuses_rows: bool,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) arena: wgpu::Buffer,
    pub(crate) acts: wgpu::Buffer,
    /// First byte of the scales of quantised activations.
    pub(crate) meta_at: u64,
    pub(crate) parts: wgpu::Buffer,
    /// Kernels are to be timed.
    pub(crate) profile: bool,
}

/// Cosines and sines of a step's positions, `[rows, 2 * half]`.
pub(crate) struct RopeTable {
    pub(crate) at: usize,
    /// The frequencies.
    pub(crate) weight: usize,
    /// First word of the positions among the inputs, and how many.
    pub(crate) pos: usize,
    pub(crate) rows: usize,
    /// The scalar that bounds them.
    pub(crate) bound: Option<usize>,
    pub(crate) magnitude: f32,
}

pub(crate) struct OutputInfo {
    pub(crate) name: String,
    pub(crate) at: usize,
    pub(crate) elements: usize,
    /// The scalar that bounds the first axis, and elements per entry.
    pub(crate) bound: Option<(usize, usize)>,
}

impl Plan for GpuPlan {
    fn report(&self) -> &PlanReport {
        &self.report
    }

    fn instance(&self, bindings: &Bindings) -> Result<Box<dyn Instance>, DeviceError> {
        let plan = &self.inner;
        plan.gpu.check()?;
        graph::validate::bindings(&plan.graph, bindings)?;
        let stranger = |name: &str| DeviceError::Binding {
            port: name.to_owned(),
            problem: "was made by another backend or for another type, shape or width of keys".into(),
        };
        let weights = plan.weights.iter().map(|desc| {
            let bound = bindings.weights[&desc.name].clone().downcast::<GpuWeight>();
            bound.ok().filter(|w| w.fits(&plan.gpu, desc)).ok_or_else(|| stranger(&desc.name))
        });
        let states = plan.states.iter().map(|info| {
            let bound = bindings.states[&info.name].clone().downcast::<GpuState>();
            bound.ok().filter(|s| s.fits(&plan.gpu, info)).ok_or_else(|| stranger(&info.name))
        });
        let weights = weights.collect::<Result<Vec<_>, _>>()?;
        let states = states.collect::<Result<Vec<_>, _>>()?;
        GpuInstance::new(plan.clone(), weights, states).map(|i| Box::new(i) as Box<dyn Instance>)
    }
}

/// A dispatch with everything it is bound to.
struct Dispatch {
    step: usize,
    group: wgpu::BindGroup,
    grid: [u32; 3],
    /// Bytes of packed weights that it reads.
    weight_bytes: u64,
}

struct GpuInstance {
    plan: Arc<PlanInner>,
    weights: Vec<Arc<GpuWeight>>,
    dispatches: Vec<Dispatch>,
    timing: Option<Timing>,
    host_nanos: u64,
    scalars_buffer: wgpu::Buffer,
    readback: wgpu::Buffer,
    /// What the next submission writes at the start of the arena.
    inputs: Vec<u32>,
    scalars: Vec<u32>,
    serial: u64,
    encoded: Option<u64>,
    /// The commands of the next submission, which are the same for each: made while the last one runs.
    commands: Option<wgpu::CommandBuffer>,
    flight: Option<Arc<Awaited>>,
    /// Outputs that the encoded step asks for.
    wanted: Vec<Read>,
    /// Those of the submission whose outputs can be read.
    reads: Vec<Read>,
}

/// An output that is copied for reading.
struct Read {
    name: String,
    /// First word in the arena.
    from: usize,
    /// First word in the readback buffer, and how many.
    at: usize,
    words: usize,
}

impl GpuInstance {
    fn new(
        plan: Arc<PlanInner>,
        weights: Vec<Arc<GpuWeight>>,
        states: Vec<Arc<GpuState>>,
    ) -> Result<GpuInstance, DeviceError> {
        use wgpu::BufferUsages as U;
        let gpu = plan.gpu.clone();
        let scalars_buffer = gpu.buffer("scalars", 4 * SCALARS as u64, U::UNIFORM | U::COPY_DST)?;
        let status = plan.status.map_or(0, |(_, rows)| rows);
        let readback_bytes = 4 * (plan.outputs.iter().map(|o| o.elements).sum::<usize>() + status) as u64;
        let readback = gpu.buffer("readback", readback_bytes, U::MAP_READ | U::COPY_DST)?;

        // The parameters of all dispatches lie in one buffer, each at an offset that a binding may have.
        let align = gpu.limits.min_uniform_buffer_offset_alignment as usize / 4;
        let mut words: Vec<u32> = vec![];
        let most = gpu.limits.max_compute_workgroups_per_dimension as usize;
        let mut planned: Vec<(usize, usize, Lowered)> = vec![];
        for (index, step) in plan.steps.iter().enumerate() {
            for lowered in lower(step, &weights, most) {
                words.resize(words.len().next_multiple_of(align), 0);
                planned.push((index, words.len(), lowered));
                let (_, _, lowered) = &planned[planned.len() - 1];
                words.extend(&lowered.params);
            }
        }
        words.resize(words.len() + 4, 0);
        let params = gpu.buffer("parameters", 4 * words.len() as u64, U::UNIFORM | U::COPY_DST)?;
        gpu.queue.write_buffer(&params, 0, bytemuck::cast_slice(&words));

        let mut dispatches = vec![];
        for (index, at, lowered) in planned {
            let step = &plan.steps[index];
            let range = |buffer, offset: u64, size: u64| {
                let size = std::num::NonZeroU64::new(size);
                wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
            };
            let chunk = || lowered.chunk.expect("only kernels with a matrix take chunks");
            let mut resources = vec![
                plan.arena.as_entire_binding(),
                range(&params, 4 * at as u64, 4 * lowered.params.len().next_multiple_of(4) as u64),
                scalars_buffer.as_entire_binding(),
            ];
            for arg in &step.args {
                resources.push(match arg {
                    Arg::Chunk => chunk().as_entire_binding(),
                    Arg::Elements(w) => weights[*w].elements().region.buffer.as_entire_binding(),
                    Arg::Biases | Arg::Up => lowered.second.unwrap_or_else(|| chunk()).as_entire_binding(),
                    Arg::Acts => range(&plan.acts, 0, plan.meta_at),
                    Arg::Meta => range(&plan.acts, plan.meta_at, plan.acts.size() - plan.meta_at),
                    Arg::State(s) => states[*s].buffer.as_entire_binding(),
                    Arg::Parts => plan.parts.as_entire_binding(),
                });
            }
            let entries: Vec<_> = (0..)
                .zip(resources)
                .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
                .collect();
            let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &step.pipeline.layout,
                entries: &entries,
            });
            let Lowered { grid, weight_bytes, .. } = lowered;
            dispatches.push(Dispatch { step: index, group, grid, weight_bytes });
        }
        let timed = plan.profile && gpu.capabilities.timestamps;
        let timing = timed.then(|| Timing::new(&gpu, dispatches.len())).transpose()?;
        gpu.check()?;
        Ok(GpuInstance {
            inputs: vec![0; plan.step_words],
            plan,
            weights,
            dispatches,
            timing,
            host_nanos: 0,
            scalars_buffer,
            readback,
            scalars: vec![],
            serial: 0,
            encoded: None,
            commands: None,
            flight: None,
            wanted: vec![],
            reads: vec![],
        })
    }

    fn is_busy(&self) -> bool {
        self.flight.as_ref().is_some_and(|f| f.read.get().is_none())
    }

    /// What the host computes from a step's inputs.
    fn derive(&mut self) {
        let plan = &*self.plan;
        let count = |most: usize, bound: Option<usize>| bound.map_or(most, |b| self.scalars[b] as usize);
        if let (Some((at, most, bound)), Some(seq_at), Some(start_at)) =
            (plan.extents, plan.seq_at, plan.start_at)
        {
            let mut row = 0;
            for seq in 0..count(most, bound) {
                let rows = self.inputs[at + seq] as usize;
                self.inputs[start_at + seq] = row as u32;
                self.inputs[seq_at + row..seq_at + row + rows].fill(seq as u32);
                row += rows;
            }
        }
        for table in &plan.ropes {
            let GpuWeight::Elements(frequencies) = &*self.weights[table.weight] else { continue };
            let half = frequencies.values.len();
            for row in 0..count(table.rows, table.bound) {
                let pos = f64::from(self.inputs[table.pos + row]);
                let to = &mut self.inputs[table.at + row * 2 * half..][..2 * half];
                for (i, frequency) in frequencies.values.iter().enumerate() {
                    let (sin, cos) = (pos * f64::from(*frequency)).sin_cos();
                    let magnitude = f64::from(table.magnitude);
                    to[i] = ((cos * magnitude) as f32).to_bits();
                    to[half + i] = ((sin * magnitude) as f32).to_bits();
                }
            }
        }
    }

    /// The time, where it is wanted: a page has no such clock.
    fn clock(&self) -> Option<Instant> {
        self.timing.as_ref().filter(|_| cfg!(not(target_arch = "wasm32"))).map(|_| Instant::now())
    }

    fn commands(&self) -> wgpu::CommandBuffer {
        let plan = &*self.plan;
        let mut encoder = plan.gpu.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let mut last: Option<*const crate::device::Pipeline> = None;
            if let Some(timing) = &self.timing {
                timing.stamp(&mut pass, 0);
            }
            for (i, dispatch) in self.dispatches.iter().enumerate() {
                let step = &plan.steps[dispatch.step];
                let pipeline = Arc::as_ptr(&step.pipeline);
                if last != Some(pipeline) {
                    pass.set_pipeline(&step.pipeline.pipeline);
                    last = Some(pipeline);
                }
                pass.set_bind_group(0, &dispatch.group, &[]);
                let [x, y, z] = dispatch.grid;
                pass.dispatch_workgroups(x, y, z);
                if let Some(timing) = &self.timing {
                    timing.stamp(&mut pass, i + 1);
                }
            }
            if let Some(timing) = &self.timing {
                timing.floor(&mut pass);
            }
        }
        if let Some(timing) = &self.timing {
            timing.resolve(&mut encoder);
        }
        encoder.finish()
    }

    /// Copies what the encoded step asks for to where the host can read it. Apart from the kernels: it differs from step to
    /// step.
    fn copies(&self) -> wgpu::CommandBuffer {
        let plan = &*self.plan;
        let mut encoder = plan.gpu.device.create_command_encoder(&Default::default());
        let mut copy = |from: usize, to: usize, words: usize| {
            let [from, to, bytes] = [from, to, words].map(|words| 4 * words as u64);
            if bytes > 0 {
                encoder.copy_buffer_to_buffer(&plan.arena, from, &self.readback, to, Some(bytes));
            }
        };
        plan.status.into_iter().for_each(|(at, rows)| copy(at, 0, rows));
        self.wanted.iter().for_each(|read| copy(read.from, read.at, read.words));
        encoder.finish()
    }

    /// What the encoded step asks for: real rows alone, behind the marks of refused rows.
    fn want(&mut self, outputs: &[&str]) {
        let mut at = self.plan.status.map_or(0, |(_, rows)| rows);
        self.wanted.clear();
        for info in self.plan.outputs.iter().filter(|o| outputs.contains(&o.name.as_str())) {
            let words = info.bound.map_or(info.elements, |(scalar, per)| self.scalars[scalar] as usize * per);
            self.wanted.push(Read { name: info.name.clone(), from: info.at, at, words });
            at += words;
        }
    }

    /// The real elements of an output.
    fn read(&self, name: &str, dtype: DType) -> Result<&[u32], DeviceError> {
        graph::validate::readable(&self.plan.layout, self.reads.iter().map(|r| &r.name), name, dtype)?;
        let values = match self.flight.as_ref().and_then(|f| f.read.get()) {
            Some(Ok(values)) => values,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(DeviceError::Busy("no submission of this instance has finished".into())),
        };
        match self.reads.iter().find(|r| r.name == name) {
            Some(read) => Ok(&values[read.at..read.at + read.words]),
            None => unreachable!("it was asked for"),
        }
    }
}

/// A dispatch of a step, before its parameters have a place.
struct Lowered<'w> {
    params: Vec<u32>,
    grid: [u32; 3],
    /// What holds the weights.
    chunk: Option<&'w wgpu::Buffer>,
    /// What holds the biases of a product, or the weights beside those.
    second: Option<&'w wgpu::Buffer>,
    weight_bytes: u64,
}

/// The dispatches of a step: one, or as many as the storage of its weights asks for.
fn lower<'w>(step: &Step, weights: &'w [Arc<GpuWeight>], most: usize) -> Vec<Lowered<'w>> {
    let one = |params| vec![Lowered { params, grid: step.grid, chunk: None, second: None, weight_bytes: 0 }];
    match &step.weight {
        Use::None => one(step.params.clone()),
        Use::Elements(elements) => {
            let mut params = step.params.clone();
            for (weight, parameter) in elements {
                params[*parameter] += weights[*weight].elements().region.at;
            }
            one(params)
        }
        Use::Table { weight } => {
            let matrix = weights[*weight].matrix();
            let each = matrix.chunks.iter().map(|chunk| {
                let mut params = step.params.clone();
                params[8] = chunk.first as u32;
                params[9] = chunk.rows as u32;
                let [codes, high, scales] = chunk.planes;
                params[11..14].copy_from_slice(&[codes / 4, high, scales]);
                params[14..17].copy_from_slice(&row_strides(matrix));
                let weight_bytes = row_bytes(matrix) * chunk.rows.min(step.grid[1] as usize) as u64;
                let chunk = Some(&chunk.region.buffer);
                Lowered { params, grid: step.grid, chunk, second: None, weight_bytes }
            });
            each.collect()
        }
        Use::Matrices(segments) => products(step, segments, weights, most),
        Use::Gated { gate, up } => gated(step, gate, *up, weights, most),
    }
}

/// Distance of rows in each plane: vectors of codes, words of the others.
fn row_strides(matrix: &PackedMatrix) -> [u32; 3] {
    let rows = planes(matrix.dtype).map_or([0; 3], |p| p.row_words(matrix.k)).map(|v| v as u32);
    [rows[0] / 4, rows[1], rows[2]]
}

/// Bytes of a packed row.
fn row_bytes(matrix: &PackedMatrix) -> u64 {
    let words = planes(matrix.dtype).map_or([0; 3], |p| p.row_words(matrix.k));
    4 * words.iter().sum::<usize>() as u64
}

/// Words of a product's parameters before its segments, and of a segment (matmul.wgsl).
const PRODUCT_WORDS: usize = 16;
const SEGMENT_WORDS: usize = 8;

/// Products with several matrices: those that lie in one buffer share a dispatch.
fn products<'w>(
    step: &Step,
    segments: &[Segment],
    weights: &'w [Arc<GpuWeight>],
    most: usize,
) -> Vec<Lowered<'w>> {
    let mut out: Vec<Lowered> = vec![];
    for segment in segments {
        let matrix = weights[segment.weight].matrix();
        let bias = segment.bias.map(|b| &weights[b].elements().region);
        for chunk in &matrix.chunks {
            let column = column_of(segment, chunk);
            let fits = |l: &&mut Lowered| {
                segment.expert_rows.is_none()
                    && l.params.len() < PRODUCT_WORDS + SEGMENTS * SEGMENT_WORDS
                    && l.chunk == Some(&chunk.region.buffer)
                    && bias.is_none_or(|b| l.second.is_none_or(|other| *other == b.buffer))
            };
            let at = match out.last_mut().filter(fits) {
                Some(last) => last,
                None => {
                    let params = product_words(step, matrix, chunk);
                    let chunk = Some(&chunk.region.buffer);
                    let grid = [0, step.grid[1], 1];
                    out.push(Lowered { params, grid, chunk, second: None, weight_bytes: 0 });
                    out.last_mut().expect("one was pushed")
                }
            };
            at.grid[0] = (at.grid[0] + groups_of(segment, chunk) as u32).min(most as u32);
            at.second = at.second.or(bias.map(|b| &b.buffer));
            at.weight_bytes += row_bytes(matrix) * rows_read(step, segment, chunk);
            let bias = bias.map_or(u32::MAX, |b| b.at + column);
            at.params.extend(segment_words(segment, chunk, column, bias));
        }
    }
    for l in &mut out {
        // Segments that are not there have no rows.
        l.params[15] = ((l.params.len() - PRODUCT_WORDS) / SEGMENT_WORDS) as u32;
        l.params.resize(PRODUCT_WORDS + SEGMENTS * SEGMENT_WORDS, 0);
    }
    out
}

/// Products with a gate and the matrix beside it, which is cut into the same chunks.
fn gated<'w>(
    step: &Step,
    gate: &Segment,
    up: usize,
    weights: &'w [Arc<GpuWeight>],
    most: usize,
) -> Vec<Lowered<'w>> {
    let matrix = weights[gate.weight].matrix();
    let pairs = matrix.chunks.iter().zip(&weights[up].matrix().chunks);
    let each = pairs.map(|(chunk, beside)| {
        let mut params = product_words(step, matrix, chunk);
        for chunk in [chunk, beside] {
            params.extend(segment_words(gate, chunk, column_of(gate, chunk), u32::MAX));
        }
        // They count as one: its partner follows.
        params[15] = 1;
        params.resize(PRODUCT_WORDS + SEGMENTS * SEGMENT_WORDS, 0);
        let grid = [groups_of(gate, chunk).min(most) as u32, step.grid[1], 1];
        let weight_bytes = 2 * row_bytes(matrix) * rows_read(step, gate, chunk);
        let [chunk, second] = [chunk, beside].map(|c| Some(&c.region.buffer));
        Lowered { params, grid, chunk, second, weight_bytes }
    });
    each.collect()
}

/// A product's parameters before its segments.
fn product_words(step: &Step, matrix: &PackedMatrix, chunk: &Chunk) -> Vec<u32> {
    let mut params = step.params.clone();
    params[7..10].copy_from_slice(&row_strides(matrix));
    params[12] = chunk.first as u32;
    params.resize(PRODUCT_WORDS, 0);
    params
}

fn segment_words(segment: &Segment, chunk: &Chunk, column: u32, bias: u32) -> [u32; SEGMENT_WORDS] {
    let [codes, high, scales] = chunk.planes;
    let [to, stride] = segment.out.map(|v| v as u32);
    [chunk.rows as u32, to + column, stride, bias, codes / 4, high, scales, 0]
}

/// Where a chunk's results start: experts' are the same rows for every chunk, matrices' lie side by side.
fn column_of(segment: &Segment, chunk: &Chunk) -> u32 {
    if segment.expert_rows.is_some() { 0 } else { chunk.first as u32 }
}

/// Workgroups that cover the rows of a chunk.
fn groups_of(segment: &Segment, chunk: &Chunk) -> usize {
    segment.expert_rows.unwrap_or(chunk.rows).div_ceil(segment.rows_per_group)
}

/// Rows of a chunk that a step reads: of experts, no more than it has choices.
fn rows_read(step: &Step, segment: &Segment, chunk: &Chunk) -> u64 {
    segment.expert_rows.map_or(chunk.rows, |n| chunk.rows.min(n * step.grid[1] as usize)) as u64
}

impl Instance for GpuInstance {
    fn encode(&mut self, step: &StepInputs) -> Result<Encoded, DeviceError> {
        if self.is_busy() {
            return Err(DeviceError::Busy(
                "the instance has a submission in flight: await its fence first".into(),
            ));
        }
        self.plan.gpu.check()?;
        let start = self.clock();
        self.encoded = None; // a step that is refused leaves the inputs half written
        let plan = self.plan.clone();
        plan.layout.encode(step, &mut self.inputs[..plan.layout.words()], &mut self.scalars)?;
        self.derive();
        self.want(step.outputs);
        self.serial += 1;
        self.encoded = Some(self.serial);
        if self.commands.is_none() {
            self.commands = Some(self.commands());
        }
        self.host_nanos = nanos_since(start);
        Ok(Encoded { serial: self.serial })
    }

    fn submit(&mut self, encoded: Encoded) -> Fence {
        if self.is_busy() || self.encoded.take() != Some(encoded.serial) {
            let problem = "only the latest encoding of an idle instance can be submitted";
            return Fence::failed(DeviceError::Busy(problem.into()));
        }
        let start = self.clock();
        let commands = self.commands.take().unwrap_or_else(|| self.commands());
        let gpu = self.plan.gpu.clone();
        if let Err(error) = gpu.check() {
            return Fence::failed(error);
        }
        gpu.queue.write_buffer(&self.plan.arena, 0, bytemuck::cast_slice(&self.inputs));
        let mut scalars = [0u32; SCALARS];
        scalars[..self.scalars.len()].copy_from_slice(&self.scalars);
        gpu.queue.write_buffer(&self.scalars_buffer, 0, bytemuck::cast_slice(&scalars));
        let (submission, verdict) = gpu.submit([commands, self.copies()]);

        let (signal, fence) = fence();
        let flight = gpu.faults.expect(signal);
        let status = self.plan.status.map_or(0, |(_, rows)| rows);
        let of_step = self.plan.refuses_rows;
        self.reads = std::mem::take(&mut self.wanted);
        // At least a word, so that there is something to wait for.
        let words = self.reads.last().map_or(status, |r| r.at + r.words).max(1);
        let bytes = 4 * words as u64;
        let whole = move |words: &[u32]| marked(&words[..status], of_step);
        gpu.end_when_read(&flight, &self.readback, bytes, verdict, whole);
        gpu.wake_after(submission);
        self.flight = Some(flight);
        self.commands = Some(self.commands());
        self.host_nanos += nanos_since(start);
        fence
    }

    fn output(&self, name: &str) -> Result<&[f32], DeviceError> {
        self.read(name, DType::F32).map(bytemuck::cast_slice)
    }

    fn words(&self, name: &str) -> Result<&[u32], DeviceError> {
        self.read(name, DType::U32)
    }

    fn profile(&self) -> Option<StepProfile> {
        let timing = self.timing.as_ref()?;
        let (nanos, floor_nanos) = timing.read(&self.plan.gpu)?;
        let kernel = |(dispatch, nanos): (&Dispatch, u64)| KernelTime {
            selection: self.plan.steps[dispatch.step].selection,
            nanos,
            bytes: dispatch.weight_bytes,
            products: 0,
        };
        let kernels = self.dispatches.iter().zip(nanos).map(kernel).collect();
        Some(StepProfile { kernels, floor_nanos, host_nanos: self.host_nanos })
    }
}

/// Nanoseconds since a reading of the clock.
fn nanos_since(start: Option<Instant>) -> u64 {
    start.map_or(0, |start| start.elapsed().as_nanos() as u64)
}

/// The rows that kernels marked, when they are `of_step`.
fn marked(marks: &[u32], of_step: bool) -> Result<(), DeviceError> {
    let rows: Vec<u32> = (0..).zip(marks).filter(|(_, mark)| **mark != 0).map(|(row, _)| row).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let rows = if of_step { rows } else { vec![] };
    let problem = "the router's logits are not numbers, or none is finite".to_owned();
    Err(DeviceError::Numeric { op: "route".into(), problem, rows })
}

//! Plans and their instances.

use std::sync::{Arc, OnceLock};

use graph::backend::{Bindings, DeviceError, Encoded, Instance, Plan, StepInputs, WeightDesc};
use graph::validate::StepLayout;
use graph::{Fence, PlanReport, fence};
use tensor::{DType, Shape};

use crate::compile::{Arg, Extents, Step, Use};
use crate::device::Gpu;
use crate::state::GpuState;
use crate::weight::{Chunk, GpuWeight};

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
    pub(crate) states: Vec<(String, DType, Shape)>,
    pub(crate) outputs: Vec<OutputInfo>,
    pub(crate) steps: Vec<Step>,
    /// Words at the start of the arena that each step writes.
    pub(crate) step_words: usize,
    /// First word of the outputs and how many there are.
    pub(crate) outputs_at: usize,
    pub(crate) output_words: usize,
    pub(crate) extents: Option<Extents>,
    pub(crate) seq_at: Option<usize>,
    pub(crate) start_at: Option<usize>,
    /// First word and rows, see the compiler.
    pub(crate) status: Option<(usize, usize)>,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) arena: wgpu::Buffer,
    pub(crate) acts: wgpu::Buffer,
    /// First byte of the scales of quantised activations.
    pub(crate) meta_at: u64,
    pub(crate) parts: wgpu::Buffer,
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

/// Most scalars of a graph.
const SCALARS: usize = 8;

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
            problem: "was made by another backend or for another type or shape".into(),
        };
        let weights = plan.weights.iter().map(|desc| {
            let bound = bindings.weights[&desc.name].clone().downcast::<GpuWeight>();
            bound.ok().filter(|w| w.fits(&plan.gpu, desc)).ok_or_else(|| stranger(&desc.name))
        });
        let states = plan.states.iter().map(|(name, dtype, shape)| {
            let bound = bindings.states[name].clone().downcast::<GpuState>();
            bound.ok().filter(|s| s.fits(&plan.gpu, *dtype, *shape)).ok_or_else(|| stranger(name))
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
}

struct GpuInstance {
    plan: Arc<PlanInner>,
    weights: Vec<Arc<GpuWeight>>,
    dispatches: Vec<Dispatch>,
    scalars_buffer: wgpu::Buffer,
    readback: wgpu::Buffer,
    /// What the next submission writes at the start of the arena.
    inputs: Vec<u32>,
    scalars: Vec<u32>,
    serial: u64,
    encoded: Option<(u64, wgpu::CommandBuffer)>,
    flight: Option<Flight>,
    /// The scalars of the submission whose outputs can be read.
    ran: Vec<u32>,
}

/// What a submission leaves: its outputs.
type Flight = Arc<OnceLock<Result<Vec<f32>, DeviceError>>>;

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
        let readback_bytes = 4 * (plan.output_words + status) as u64;
        let readback = gpu.buffer("readback", readback_bytes, U::MAP_READ | U::COPY_DST)?;

        // The parameters of all dispatches lie in one buffer, each at an offset that a binding may have.
        let align = gpu.limits.min_uniform_buffer_offset_alignment as usize / 4;
        let mut words: Vec<u32> = vec![];
        let mut planned: Vec<(usize, usize, usize, Option<&Chunk>)> = vec![];
        for (index, step) in plan.steps.iter().enumerate() {
            for (params, chunk) in lower(step, &weights) {
                words.resize(words.len().next_multiple_of(align), 0);
                planned.push((index, words.len(), params.len().next_multiple_of(4), chunk));
                words.extend(params);
            }
        }
        words.resize(words.len() + 4, 0);
        let params = gpu.buffer("parameters", 4 * words.len() as u64, U::UNIFORM | U::COPY_DST)?;
        gpu.queue.write_buffer(&params, 0, bytemuck::cast_slice(&words));

        let mut dispatches = vec![];
        for (index, at, len, chunk) in planned {
            let step = &plan.steps[index];
            let range = |buffer, offset: u64, size: u64| {
                let size = std::num::NonZeroU64::new(size);
                wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
            };
            let elements = |w: usize| match &*weights[w] {
                GpuWeight::Elements(e) => &e.region.buffer,
                GpuWeight::Matrix(m) => &m.chunks[0].region.buffer,
            };
            let mut resources = vec![
                plan.arena.as_entire_binding(),
                range(&params, 4 * at as u64, 4 * len as u64),
                scalars_buffer.as_entire_binding(),
            ];
            for arg in &step.args {
                resources.push(match arg {
                    Arg::Chunk => match chunk {
                        Some(chunk) => chunk.region.buffer.as_entire_binding(),
                        None => unreachable!("only kernels with a matrix take chunks"),
                    },
                    Arg::Elements(w) => elements(*w).as_entire_binding(),
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
            dispatches.push(Dispatch { step: index, group });
        }
        gpu.check()?;
        Ok(GpuInstance {
            inputs: vec![0; plan.step_words],
            plan,
            weights,
            dispatches,
            scalars_buffer,
            readback,
            scalars: vec![],
            serial: 0,
            encoded: None,
            flight: None,
            ran: vec![],
        })
    }

    fn is_busy(&self) -> bool {
        self.flight.as_ref().is_some_and(|f| f.get().is_none())
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

    fn commands(&self) -> wgpu::CommandBuffer {
        let plan = &*self.plan;
        let mut encoder = plan.gpu.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let mut last: Option<*const crate::device::Pipeline> = None;
            for dispatch in &self.dispatches {
                let step = &plan.steps[dispatch.step];
                let pipeline = Arc::as_ptr(&step.pipeline);
                if last != Some(pipeline) {
                    pass.set_pipeline(&step.pipeline.pipeline);
                    last = Some(pipeline);
                }
                pass.set_bind_group(0, &dispatch.group, &[]);
                let [x, y, z] = step.grid;
                pass.dispatch_workgroups(x, y, z);
            }
        }
        let words = plan.output_words as u64;
        if words > 0 {
            let from = 4 * plan.outputs_at as u64;
            encoder.copy_buffer_to_buffer(&plan.arena, from, &self.readback, 0, Some(4 * words));
        }
        if let Some((at, rows)) = plan.status {
            let (from, to, bytes) = (4 * at as u64, 4 * words, 4 * rows as u64);
            encoder.copy_buffer_to_buffer(&plan.arena, from, &self.readback, to, Some(bytes));
        }
        encoder.finish()
    }
}

/// The parameters of a step's dispatches: one, or one for each chunk of its matrix.
fn lower<'w>(step: &Step, weights: &'w [Arc<GpuWeight>]) -> Vec<(Vec<u32>, Option<&'w Chunk>)> {
    let element_at = |w: usize| match &*weights[w] {
        GpuWeight::Elements(e) => e.region.at,
        GpuWeight::Matrix(_) => unreachable!("bindings were checked against the plan"),
    };
    let matrix = |w: usize| match &*weights[w] {
        GpuWeight::Matrix(m) => m,
        GpuWeight::Elements(_) => unreachable!("bindings were checked against the plan"),
    };
    // Codes are addressed in vectors of four words.
    let planes = |params: &mut [u32], w: usize, chunk: &Chunk| {
        let m = matrix(w);
        let rows = crate::pack::planes(m.dtype).map_or([0; 3], |p| p.row_words(m.k)).map(|v| v as u32);
        let [codes, high, scales] = chunk.planes;
        params.copy_from_slice(&[codes / 4, high, scales, rows[0] / 4, rows[1], rows[2]]);
    };
    match step.weight {
        Use::None => vec![(step.params.clone(), None)],
        Use::Elements { weight, parameter } => {
            let mut params = step.params.clone();
            params[parameter] += element_at(weight);
            vec![(params, None)]
        }
        Use::Table { weight } => {
            let each = matrix(weight).chunks.iter().map(|chunk| {
                let mut params = step.params.clone();
                params[8] = chunk.first as u32;
                params[9] = chunk.rows as u32;
                planes(&mut params[11..17], weight, chunk);
                (params, Some(chunk))
            });
            each.collect()
        }
        Use::Matrix { weight, bias } => {
            let each = matrix(weight).chunks.iter().map(|chunk| {
                let mut params = step.params.clone();
                params[3] = chunk.rows as u32;
                params[8] += chunk.first as u32;
                planes(&mut params[10..16], weight, chunk);
                params[16] = bias.map_or(u32::MAX, |b| element_at(b) + chunk.first as u32);
                (params, Some(chunk))
            });
            each.collect()
        }
        Use::Experts { weight } => {
            let each = matrix(weight).chunks.iter().map(|chunk| {
                let mut params = step.params.clone();
                params[3] = chunk.rows as u32;
                planes(&mut params[10..16], weight, chunk);
                params[19] = chunk.first as u32;
                (params, Some(chunk))
            });
            each.collect()
        }
    }
}

impl Instance for GpuInstance {
    fn encode(&mut self, step: &StepInputs) -> Result<Encoded, DeviceError> {
        if self.is_busy() {
            return Err(DeviceError::Busy(
                "the instance has a submission in flight: await its fence first".into(),
            ));
        }
        self.plan.gpu.check()?;
        self.encoded = None; // a step that is refused leaves the inputs half written
        let plan = self.plan.clone();
        plan.layout.encode(step, &mut self.inputs[..plan.layout.words()], &mut self.scalars)?;
        self.derive();
        self.serial += 1;
        self.encoded = Some((self.serial, self.commands()));
        Ok(Encoded { serial: self.serial })
    }

    fn submit(&mut self, encoded: Encoded) -> Fence {
        let commands = match self.encoded.take() {
            Some((serial, commands)) if serial == encoded.serial && !self.is_busy() => commands,
            _ => {
                let problem = "only the latest encoding of an idle instance can be submitted";
                return Fence::failed(DeviceError::Busy(problem.into()));
            }
        };
        let gpu = self.plan.gpu.clone();
        if let Err(error) = gpu.check() {
            return Fence::failed(error);
        }
        gpu.queue.write_buffer(&self.plan.arena, 0, bytemuck::cast_slice(&self.inputs));
        let mut scalars = [0u32; SCALARS];
        scalars[..self.scalars.len()].copy_from_slice(&self.scalars);
        gpu.queue.write_buffer(&self.scalars_buffer, 0, bytemuck::cast_slice(&scalars));
        let (submission, verdict) = gpu.submit(commands);

        let (signal, fence) = fence();
        let flight = Flight::default();
        let status = self.plan.status.map(|_| self.plan.output_words);
        let (slot, buffer, faults) = (flight.clone(), self.readback.clone(), gpu.faults.clone());
        self.readback.map_async(wgpu::MapMode::Read, .., move |mapped| {
            verdict.then(faults.clone(), move || {
                let read = match mapped {
                    Ok(()) => read(&buffer, status),
                    Err(_) => Err(DeviceError::Lost(
                        faults.lost().unwrap_or_else(|| "the driver did not finish the step".into()),
                    )),
                };
                let read = faults.check().and(read);
                let result = read.as_ref().map(|_| ()).map_err(Clone::clone);
                let _ = slot.set(read);
                signal.set(result);
            });
        });
        gpu.wake_after(submission);
        self.flight = Some(flight);
        self.ran.clone_from(&self.scalars);
        fence
    }

    fn output(&self, name: &str) -> Result<&[f32], DeviceError> {
        let unknown = || DeviceError::Binding {
            port: name.to_owned(),
            problem: "is not an output of this plan".into(),
        };
        let info = self.plan.outputs.iter().find(|o| o.name == name).ok_or_else(unknown)?;
        let values = match self.flight.as_ref().and_then(|f| f.get()) {
            Some(Ok(values)) => values,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(DeviceError::Busy("no submission of this instance has finished".into())),
        };
        let len = info.bound.map_or(info.elements, |(scalar, per)| self.ran[scalar] as usize * per);
        let at = info.at - self.plan.outputs_at;
        Ok(&values[at..at + len])
    }
}

/// What was read back; behind the outputs, from `status` on, a word for each row that kernels may have marked.
fn read(buffer: &wgpu::Buffer, status: Option<usize>) -> Result<Vec<f32>, DeviceError> {
    let range = buffer.slice(..).get_mapped_range().map_err(|e| DeviceError::Lost(e.to_string()))?;
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(&range);
    drop(range);
    buffer.unmap();
    if let Some(row) = status.and_then(|at| values[at..].iter().position(|v| *v != 0.0)) {
        let problem = format!("row {row}: the router's logits are not numbers");
        return Err(DeviceError::Numeric { op: "route".into(), problem });
    }
    Ok(values)
}

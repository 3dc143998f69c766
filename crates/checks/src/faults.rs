//! Devices with a fault put in, which show that a check can fail.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use graph::backend::{
    Backend, Bindings, CompileOptions, DeviceError, Encoded, Instance, Plan, Reading, Reopening, RowSource,
    StateDesc, StateHandle, StepInputs, WeightDesc, WeightHandle,
};
use graph::{Fence, Graph, PlanReport, Signal, fence};
use tensor::ops::{KV_BLOCK, KvType, NOT_A_TOKEN};

/// What is wrong with a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing; the device only counts.
    None,
    /// The last bit of a logit is another in every row.
    Always,
    /// Rows see the keys of their whole chunk, also later ones.
    SeesChunk,
    /// The last bit of a logit is another for rows of chunks longer than a cut of recurrent models. (That rows see later
    /// keys of their chunk would not do: it need not reach the last row of a prompt.)
    KnowsChunk,
    /// Rows see what lies in their last KV block past their own position.
    SeesBlock,
    /// The last bit of a logit is another where several sequences share a step.
    KnowsNeighbours,
    /// The last bit of a logit is another for sequences that are not first in their step.
    KnowsPlace,
    /// The last bit of a logit is another where a sequence lies in KV blocks that another one had.
    KnowsHistory,
    /// Token 0 is taken for those that the step before drew on the device.
    LosesDrawn,
    /// States that are written are all zeros.
    WritesNothing,
    /// The device is lost with the step of this number, the first being 0, until it is opened anew.
    Lost(usize),
    /// Logits after this token are no numbers.
    NanAfter(u32),
    /// The embedding of this token is no number, and so is all that comes of it.
    NanFrom(u32),
}

/// What a device says that [`Fault::Lost`] took away.
pub const LOST: &str = "taken away by a test";

/// Another device with a [`Fault`].
pub struct FaultyBackend {
    inner: Arc<dyn Backend>,
    watch: Arc<Watch>,
}

/// What the instances of a [`FaultyBackend`] have seen.
struct Watch {
    fault: Fault,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Times a sequence was computed from its first position.
    starts: usize,
    /// Times the device was opened anew.
    reopened: usize,
    submissions: usize,
    /// Until the device is opened anew, nothing can be submitted.
    lost: bool,
    /// Rows of each sequence in each step.
    steps: Vec<Vec<u32>>,
    /// Outputs that some step asked for.
    outputs: BTreeSet<String>,
    /// Steps submitted of which nothing was read yet, and the most there were.
    unread: usize,
    most_unread: usize,
    /// Sequences so far, by the first KV block they have now.
    lives: HashMap<u32, usize>,
    /// The sequence that wrote a block last.
    owners: HashMap<u32, usize>,
    /// Blocks that have had several.
    used: HashSet<u32>,
    /// Submissions whose end is held back.
    held: Option<VecDeque<(Signal, Fence)>>,
}

impl FaultyBackend {
    /// `inner` with a fault.
    pub fn new(inner: Arc<dyn Backend>, fault: Fault) -> FaultyBackend {
        FaultyBackend { inner, watch: Arc::new(Watch { fault, seen: Mutex::default() }) }
    }

    /// Times a sequence was computed from its first position: more than there are sequences when some were preempted.
    pub fn starts(&self) -> usize {
        self.watch.seen().starts
    }

    /// Times the device was opened anew after it was lost.
    pub fn reopened(&self) -> usize {
        self.watch.seen().reopened
    }

    /// The outputs that steps asked for, in alphabetic order.
    pub fn outputs(&self) -> Vec<String> {
        self.watch.seen().outputs.iter().cloned().collect()
    }

    /// The most steps that were submitted before anything was read of the first of them.
    pub fn most_in_flight(&self) -> usize {
        self.watch.seen().most_unread
    }

    /// From now on no step ends, as on a device that takes its time.
    pub fn hold(&self) {
        self.watch.seen().held.get_or_insert_default();
    }

    /// The first step that is held back ends.
    pub fn end_step(&self) {
        let first = self.watch.seen().held.as_mut().and_then(VecDeque::pop_front);
        if let Some((signal, fence)) = first {
            signal.set(pollster::block_on(fence));
        }
    }

    /// Steps end again, those that were held back at once.
    pub fn release(&self) {
        let held = self.watch.seen().held.take();
        for (signal, fence) in held.into_iter().flatten() {
            signal.set(pollster::block_on(fence));
        }
    }

    /// Of every step so far, the rows of each sequence in it.
    pub fn steps(&self) -> Vec<Vec<u32>> {
        self.watch.seen().steps.clone()
    }
}

impl Watch {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<(), DeviceError> {
        if self.seen().lost { Err(DeviceError::Lost(LOST.to_owned())) } else { Ok(()) }
    }
}

impl Backend for FaultyBackend {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn description(&self) -> String {
        format!("{} with a fault: {:?}", self.inner.description(), self.watch.fault)
    }

    fn memory_limit(&self) -> Option<u64> {
        self.inner.memory_limit()
    }

    fn memory_name(&self) -> Option<String> {
        self.inner.memory_name()
    }

    fn kv_types(&self) -> &[KvType] {
        self.inner.kv_types()
    }

    fn state_fits(&self, desc: &StateDesc) -> bool {
        self.inner.state_fits(desc)
    }

    fn runs_ahead(&self) -> bool {
        self.inner.runs_ahead()
    }

    fn reopen(&self) -> Reopening {
        let (inner, watch) = (self.inner.reopen(), self.watch.clone());
        Box::pin(async move {
            watch.seen().reopened += 1;
            watch.seen().lost = false;
            Ok(Arc::new(FaultyBackend { inner: inner.await?, watch }) as Arc<dyn Backend>)
        })
    }

    fn weight(&self, desc: &WeightDesc, source: &dyn RowSource) -> Result<WeightHandle, DeviceError> {
        match self.watch.fault {
            Fault::NanFrom(token) if desc.name == "token_embd.weight" => {
                self.inner.weight(desc, &Poisoned { source, row: token as usize })
            }
            _ => self.inner.weight(desc, source),
        }
    }

    fn state(&self, desc: &StateDesc) -> Result<StateHandle, DeviceError> {
        self.inner.state(desc)
    }

    fn entry_bytes(&self, state: &StateHandle) -> Result<usize, DeviceError> {
        self.inner.entry_bytes(state)
    }

    fn read_state(&self, state: &StateHandle, entries: &[u32]) -> Result<Reading, DeviceError> {
        self.watch.check()?;
        self.inner.read_state(state, entries)
    }

    fn write_state(&self, state: &StateHandle, entries: &[u32], bytes: &[u8]) -> Result<Fence, DeviceError> {
        self.watch.check()?;
        match self.watch.fault {
            Fault::WritesNothing => self.inner.write_state(state, entries, &vec![0; bytes.len()]),
            _ => self.inner.write_state(state, entries, bytes),
        }
    }

    fn compile(&self, graph: &Graph, options: &CompileOptions) -> Result<Arc<dyn Plan>, DeviceError> {
        let inner = self.inner.compile(graph, options)?;
        Ok(Arc::new(FaultyPlan { inner, watch: self.watch.clone() }))
    }
}

/// Rows of a weight, one of which is no number.
struct Poisoned<'a> {
    source: &'a dyn RowSource,
    row: usize,
}

impl RowSource for Poisoned<'_> {
    fn rows(&self, rows: Range<usize>, sink: &mut dyn FnMut(usize, &[u8])) -> Result<(), DeviceError> {
        self.source.rows(rows, &mut |row, bytes| {
            // All bits set are NaN in every float type, scales of blocks included.
            if row == self.row { sink(row, &vec![0xff; bytes.len()]) } else { sink(row, bytes) }
        })
    }
}

struct FaultyPlan {
    inner: Arc<dyn Plan>,
    watch: Arc<Watch>,
}

impl Plan for FaultyPlan {
    fn report(&self) -> &PlanReport {
        self.inner.report()
    }

    fn instance(&self, bindings: &Bindings) -> Result<Box<dyn Instance>, DeviceError> {
        let inner = self.inner.instance(bindings)?;
        let watch = self.watch.clone();
        let (changes, logits) = (vec![], OnceLock::new());
        Ok(Box::new(FaultyInstance { inner, watch, changes, logits, unread: AtomicBool::new(false) }))
    }
}

struct FaultyInstance {
    inner: Box<dyn Instance>,
    watch: Arc<Watch>,
    /// For each row of logits of the latest step, whether it is changed.
    changes: Vec<bool>,
    logits: OnceLock<Vec<f32>>,
    /// A step was submitted of which nothing was read yet.
    unread: AtomicBool,
}

impl FaultyInstance {
    fn note_read(&self) {
        if self.unread.swap(false, Ordering::Relaxed) {
            self.watch.seen().unread -= 1;
        }
    }
}

/// The rows of a sequence in a step.
struct Segment {
    first: usize,
    len: usize,
    pages: Vec<u32>,
}

fn input<'a>(step: &StepInputs<'a>, name: &str) -> &'a [u32] {
    step.inputs.iter().find(|(n, _)| *n == name).map_or(&[], |(_, values)| *values)
}

/// The sequences of a step, with the blocks that hold their positions so far.
fn segments(step: &StepInputs) -> Vec<Segment> {
    let (extents, pages, pos) = (input(step, "extents"), input(step, "pages"), input(step, "pos"));
    let width = pages.len().checked_div(extents.len()).unwrap_or(0);
    let mut first = 0;
    let segment = |(i, extent): (usize, &u32)| {
        let len = *extent as usize;
        let blocks = pos[first..first + len].last().map_or(0, |p| *p as usize / KV_BLOCK + 1);
        let pages = pages[i * width..(i + 1) * width].iter().take(blocks).copied().collect();
        first += len;
        Segment { first: first - len, len, pages }
    };
    extents.iter().enumerate().map(segment).collect()
}

impl Seen {
    /// Records the sequences of a step; for each, whether it lies in blocks that another one had.
    fn record(&mut self, pos: &[u32], segments: &[Segment]) -> Vec<bool> {
        self.steps.push(segments.iter().map(|s| s.len as u32).collect());
        let mut in_used = vec![];
        for s in segments {
            if s.len > 0 && pos[s.first] == 0 {
                self.starts += 1;
                s.pages.first().map(|page| self.lives.insert(*page, self.starts));
            }
            let life = s.pages.first().and_then(|page| self.lives.get(page)).copied().unwrap_or(0);
            for page in &s.pages {
                if self.owners.insert(*page, life).is_some_and(|before| before != life) {
                    self.used.insert(*page);
                }
            }
            in_used.push(s.pages.iter().any(|page| self.used.contains(page)));
        }
        in_used
    }
}

impl Instance for FaultyInstance {
    fn encode(&mut self, step: &StepInputs) -> Result<Encoded, DeviceError> {
        let (pos, segments) = (input(step, "pos"), segments(step));
        let ids = input(step, "ids");
        self.note_read();
        self.watch.check()?;
        self.watch.seen().outputs.extend(step.outputs.iter().map(|name| (*name).to_owned()));
        let in_used = self.watch.seen().record(pos, &segments);
        let changed = |row: u32| {
            let at = segments.iter().position(|s| (s.first..s.first + s.len).contains(&(row as usize)));
            at.is_some_and(|at| match self.watch.fault {
                Fault::None
                | Fault::SeesChunk
                | Fault::SeesBlock
                | Fault::LosesDrawn
                | Fault::WritesNothing
                | Fault::Lost(_)
                | Fault::NanFrom(_) => false,
                Fault::KnowsChunk => segments[at].len > models::RECURRENT_CHUNK,
                Fault::Always => true,
                Fault::KnowsNeighbours => segments.len() > 1,
                Fault::KnowsPlace => segments[at].first > 0,
                Fault::KnowsHistory => in_used[at],
                Fault::NanAfter(token) => ids[row as usize] == token,
            })
        };
        self.changes = input(step, "out_rows").iter().map(|row| changed(*row)).collect();
        self.logits = OnceLock::new();

        let mut until = input(step, "until").to_vec();
        for s in &segments {
            for row in s.first..s.first + s.len {
                match self.watch.fault {
                    Fault::SeesChunk => until[row] = pos[s.first + s.len - 1] + 1,
                    Fault::SeesBlock => until[row] = (pos[row] + 1).next_multiple_of(KV_BLOCK as u32),
                    _ => {}
                }
            }
        }
        let mut ids = ids.to_vec();
        if self.watch.fault == Fault::LosesDrawn {
            ids.iter_mut().filter(|id| **id & NOT_A_TOKEN != 0).for_each(|id| *id = 0);
        }
        let replaced = step.inputs.iter().map(|(name, values)| match *name {
            "until" => (*name, &until[..]),
            "ids" => (*name, &ids[..]),
            _ => (*name, *values),
        });
        let inputs: Vec<(&str, &[u32])> = replaced.collect();
        self.inner.encode(&StepInputs { inputs: &inputs, ..*step })
    }

    fn submit(&mut self, encoded: Encoded) -> Fence {
        {
            let mut seen = self.watch.seen();
            seen.unread += 1;
            seen.most_unread = seen.most_unread.max(seen.unread);
            self.unread.store(true, Ordering::Relaxed);
            seen.submissions += 1;
            seen.lost |= self.watch.fault == Fault::Lost(seen.submissions - 1);
            if seen.lost {
                return Fence::failed(DeviceError::Lost(LOST.to_owned()));
            }
        }
        let inner = self.inner.submit(encoded);
        match &mut self.watch.seen().held {
            None => inner,
            Some(held) => {
                let (signal, outer) = fence();
                held.push_back((signal, inner));
                outer
            }
        }
    }

    fn words(&self, name: &str) -> Result<&[u32], DeviceError> {
        self.note_read();
        self.inner.words(name)
    }

    fn output(&self, name: &str) -> Result<&[f32], DeviceError> {
        self.note_read();
        let values = self.inner.output(name)?;
        if name != "logits" || !self.changes.contains(&true) {
            return Ok(values);
        }
        Ok(self.logits.get_or_init(|| {
            let mut changed = values.to_vec();
            let width = values.len() / self.changes.len();
            for (row, _) in self.changes.iter().enumerate().filter(|(_, changed)| **changed) {
                let logit = &mut changed[row * width];
                *logit = match self.watch.fault {
                    Fault::NanAfter(_) => f32::NAN,
                    _ => f32::from_bits(logit.to_bits() ^ 1),
                };
            }
            changed
        }))
    }
}

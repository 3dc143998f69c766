//! Checking a submission before it reaches a kernel. Kernels trust what passed here.

use tensor::ops::{KV_BLOCK, NO_SNAP, NOT_A_TOKEN};
use tensor::{DType, Op};

use crate::backend::{Bindings, DeviceError, StepInputs};
use crate::graph::{Graph, PortId, PortKind, ScalarId, ValueId};

/// Where the inputs of a graph lie in one buffer of 32-bit words, and what their values must satisfy.
#[derive(Clone, Debug)]
pub struct StepLayout {
    slots: Vec<InputSlot>,
    scalars: Vec<String>,
    outputs: Vec<(String, DType)>,
    rules: Vec<Rule>,
    words: usize,
}

#[derive(Clone, Debug)]
struct InputSlot {
    name: String,
    port: PortId,
    dtype: DType,
    offset: usize,
    /// Entries of the first axis.
    rows: usize,
    /// Elements per entry of the first axis.
    width: usize,
    bound: Option<ScalarId>,
}

/// A condition on input values. Inputs are named by index into the slots.
#[derive(Clone, Debug, PartialEq)]
enum Rule {
    /// The extents add up to the rows given for `pos`.
    Extents { extents: usize, pos: usize },
    /// Every entry is below the limit, or is the marker when that is allowed.
    Below { input: usize, limit: usize, or_none: bool, what: &'static str },
    /// No two rows are written to one place of the cache. `width` is the length of a row of `pages`.
    Apart { pos: usize, extents: usize, pages: usize, width: usize },
    /// Sequences with rows read slots of their own, and store only to slots that no other one reads.
    OwnSlots { slots: usize, extents: usize, snap: usize },
    /// Every entry is at most the limit.
    AtMost { input: usize, limit: usize, what: &'static str },
    /// Entries that are slots, not tokens, are below the limit.
    Fed { input: usize, limit: usize },
    /// No slot is stored to twice.
    Distinct { input: usize },
}

fn refuse<T>(port: &str, problem: impl Into<String>) -> Result<T, DeviceError> {
    Err(DeviceError::Binding { port: port.to_owned(), problem: problem.into() })
}

impl StepLayout {
    /// The layout for a graph: inputs in declaration order.
    pub fn new(graph: &Graph) -> StepLayout {
        let outputs = graph.ports.iter().filter(|p| p.kind == PortKind::Output);
        let outputs = outputs.map(|p| (p.name.clone(), p.dtype)).collect();
        let scalars = graph.scalars.clone();
        let mut layout = StepLayout { slots: vec![], scalars, outputs, rules: vec![], words: 0 };
        for (i, port) in graph.ports.iter().enumerate().filter(|(_, p)| p.kind == PortKind::Input) {
            let rows = port.shape.dims().first().copied().unwrap_or(1);
            layout.slots.push(InputSlot {
                name: port.name.clone(),
                port: PortId(i as u32),
                dtype: port.dtype,
                offset: layout.words,
                rows,
                width: port.shape.elements() / rows.max(1),
                bound: graph.value(port.value).bound,
            });
            layout.words += port.shape.elements().next_multiple_of(16);
        }
        for node in &graph.nodes {
            layout.add_rules(graph, &node.op, &node.inputs);
        }
        layout
    }

    fn add_rules(&mut self, graph: &Graph, op: &Op, operands: &[ValueId]) {
        let Some(state) = op.state_operand() else { return };
        let units = graph.value(operands[state]).layout.shape.dims()[0];
        let operand = |name: &str| op.roles().iter().position(|r| *r == name).map(|i| operands[i]);
        let slot = |name: &str| {
            let port = graph.port_of(operand(name)?)?;
            self.slots.iter().position(|s| s.port == port)
        };
        let mut rules = vec![];
        if let (Some(extents), Some(pos)) = (slot("extents"), slot("pos")) {
            rules.push(Rule::Extents { extents, pos });
        }
        if let (Some(input), Some(pages)) = (slot("pages"), operand("pages")) {
            rules.push(Rule::Below { input, limit: units, or_none: false, what: "KV blocks" });
            let positions = graph.value(pages).layout.shape.last() * KV_BLOCK;
            let pos = slot("pos");
            let what = "positions of the page table";
            rules.extend(pos.map(|input| Rule::Below { input, limit: positions, or_none: false, what }));
            rules.extend(slot("until").map(|input| Rule::AtMost { input, limit: positions, what }));
        }
        for (name, or_none) in [("slots", false), ("snap", true), ("into", true)] {
            let what = "state slots";
            rules.extend(slot(name).map(|input| Rule::Below { input, limit: units, or_none, what }));
        }
        rules.extend(slot("into").map(|input| Rule::Distinct { input }));
        if let (Op::Feed, Some(input)) = (op, slot("ids")) {
            rules.push(Rule::Fed { input, limit: units });
        }
        // After the ranges, on which these rely.
        if let (Op::KvWrite, Some(pos), Some(extents), Some(pages)) =
            (op, slot("pos"), slot("extents"), slot("pages"))
        {
            let width = self.slots[pages].width;
            rules.push(Rule::Apart { pos, extents, pages, width });
        }
        if let (Some(slots), Some(extents), Some(snap)) = (slot("slots"), slot("extents"), slot("snap")) {
            rules.push(Rule::OwnSlots { slots, extents, snap });
        }
        for rule in rules {
            if !self.rules.contains(&rule) {
                self.rules.push(rule);
            }
        }
    }

    /// Size of the buffer in 32-bit words.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Where an input port's elements start in the buffer, in words.
    pub fn offset(&self, port: PortId) -> Option<usize> {
        self.slots.iter().find(|s| s.port == port).map(|s| s.offset)
    }

    /// Checks a step and writes its inputs into `buffer` and its scalars, in declaration order, into `scalars`. Entries
    /// past an input's given length keep what they held, for nothing reads them; those of an input that may name no slot
    /// name none.
    ///
    /// # Errors
    /// [`DeviceError::Binding`] naming the input or scalar that is missing, unknown, of the wrong type, too long, shorter
    /// than its bound, or out of range, or the output that there is not.
    pub fn encode(
        &self,
        step: &StepInputs,
        buffer: &mut [u32],
        scalars: &mut Vec<u32>,
    ) -> Result<(), DeviceError> {
        let given = step.inputs.iter().map(|(n, _)| *n).chain(step.floats.iter().map(|(n, _)| *n));
        for name in given.clone() {
            if !self.slots.iter().any(|s| s.name == name) {
                return refuse(name, "is not an input of this plan");
            }
            if given.clone().filter(|n| *n == name).count() > 1 {
                return refuse(name, "is given twice");
            }
        }
        scalars.clear();
        for name in &self.scalars {
            let mut found = step.scalars.iter().filter(|(n, _)| n == name);
            match (found.next(), found.next()) {
                (Some((_, value)), None) => scalars.push(*value),
                (None, _) => return refuse(name, "the scalar is not given"),
                _ => return refuse(name, "the scalar is given twice"),
            }
        }
        if let Some((name, _)) = step.scalars.iter().find(|(n, _)| !self.scalars.iter().any(|s| s == n)) {
            return refuse(name, "is not a scalar of this plan");
        }
        if let Some(name) = step.outputs.iter().find(|n| !self.outputs.iter().any(|(o, _)| o == *n)) {
            return refuse(name, "is not an output of this plan");
        }
        for (index, slot) in self.slots.iter().enumerate() {
            let words: &[u32] = match slot.dtype {
                DType::U32 => find(step.inputs, &slot.name)?,
                DType::F32 => bytemuck::cast_slice(find(step.floats, &slot.name)?),
                other => return refuse(&slot.name, format!("inputs of type {other} cannot be given")),
            };
            let rows = slot.bound.map_or(slot.rows, |b| scalars[b.0 as usize] as usize);
            if rows > slot.rows {
                return refuse(
                    &slot.name,
                    format!("{rows} entries are bound, the plan has room for {}", slot.rows),
                );
            }
            if words.len() != rows * slot.width {
                let want = rows * slot.width;
                return refuse(&slot.name, format!("{} elements given, {want} expected", words.len()));
            }
            buffer[slot.offset..slot.offset + words.len()].copy_from_slice(words);
            let may_be_none =
                |r: &Rule| matches!(r, Rule::Below { input, or_none: true, .. } if *input == index);
            if self.rules.iter().any(may_be_none) {
                buffer[slot.offset + words.len()..slot.offset + slot.rows * slot.width].fill(NO_SNAP);
            }
        }
        self.rules.iter().try_for_each(|rule| self.check(rule, buffer, scalars))
    }

    fn check(&self, rule: &Rule, buffer: &[u32], scalars: &[u32]) -> Result<(), DeviceError> {
        let values = |i: usize| {
            let slot = &self.slots[i];
            let rows = slot.bound.map_or(slot.rows, |b| scalars[b.0 as usize] as usize);
            &buffer[slot.offset..slot.offset + rows * slot.width]
        };
        match *rule {
            Rule::Extents { extents, pos } => {
                let sum: u64 = values(extents).iter().map(|e| u64::from(*e)).sum();
                let rows = values(pos).len() as u64;
                if sum != rows {
                    return refuse(
                        &self.slots[extents].name,
                        format!("the extents add up to {sum}, the step has {rows} rows"),
                    );
                }
            }
            Rule::Below { input, limit, or_none, what } => {
                let bad = |v: u32| v as usize >= limit && !(or_none && v == NO_SNAP);
                if let Some(i) = values(input).iter().position(|v| bad(*v)) {
                    let v = values(input)[i];
                    return refuse(
                        &self.slots[input].name,
                        format!("entry {i} is {v}, there are {limit} {what}"),
                    );
                }
            }
            Rule::Apart { pos, extents, pages, width } => {
                let rows = rows_of(values(extents), values(pos).len());
                let place = |(row, seq): (usize, usize)| {
                    let at = values(pos)[row] as usize;
                    values(pages)[seq * width + at / KV_BLOCK] as usize * KV_BLOCK + at % KV_BLOCK
                };
                let mut places: Vec<usize> = rows.map(place).collect();
                places.sort_unstable();
                if places.windows(2).any(|pair| pair[0] == pair[1]) {
                    return refuse(&self.slots[pos].name, "two rows have one place in the KV cache");
                }
            }
            Rule::OwnSlots { slots, extents, snap } => {
                let active =
                    || values(slots).iter().zip(values(extents)).enumerate().filter(|(_, (_, n))| **n > 0);
                let reader = |slot: u32| active().find(|(_, (s, _))| **s == slot).map(|(seq, _)| seq);
                if let Some((seq, (slot, _))) = active().find(|(seq, (s, _))| reader(**s) != Some(*seq)) {
                    let problem = format!("sequence {seq} reads slot {slot}, as another one does");
                    return refuse(&self.slots[slots].name, problem);
                }
                for (row, seq) in rows_of(values(extents), values(snap).len()) {
                    let slot = values(snap)[row];
                    if slot != NO_SNAP && reader(slot).is_some_and(|r| r != seq) {
                        return refuse(
                            &self.slots[snap].name,
                            format!("row {row} stores to another sequence's slot {slot}"),
                        );
                    }
                }
            }
            Rule::Fed { input, limit } => {
                let bad = |v: u32| v & NOT_A_TOKEN != 0 && (v ^ NOT_A_TOKEN) as usize >= limit;
                if let Some(i) = values(input).iter().position(|v| bad(*v)) {
                    let slot = values(input)[i] ^ NOT_A_TOKEN;
                    return refuse(
                        &self.slots[input].name,
                        format!("entry {i} stands for slot {slot}, there are {limit} slots"),
                    );
                }
            }
            Rule::Distinct { input } => {
                let mut stored: Vec<u32> = values(input).iter().copied().filter(|v| *v != NO_SNAP).collect();
                stored.sort_unstable();
                if let Some(pair) = stored.windows(2).find(|pair| pair[0] == pair[1]) {
                    return refuse(
                        &self.slots[input].name,
                        format!("slot {} is stored to by two rows", pair[0]),
                    );
                }
            }
            Rule::AtMost { input, limit, what } => {
                if let Some(i) = values(input).iter().position(|v| *v as usize > limit) {
                    let v = values(input)[i];
                    return refuse(
                        &self.slots[input].name,
                        format!("entry {i} is {v}, there are {limit} {what}"),
                    );
                }
            }
        }
        Ok(())
    }
}

/// Each row with its sequence.
fn rows_of(extents: &[u32], rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let seqs = extents.iter().enumerate().flat_map(|(seq, n)| std::iter::repeat_n(seq, *n as usize));
    (0..rows).zip(seqs)
}

fn find<'a, T>(given: &[(&str, &'a [T])], name: &str) -> Result<&'a [T], DeviceError> {
    match given.iter().find(|(n, _)| *n == name) {
        Some((_, values)) => Ok(values),
        None => refuse(name, "the input is not given"),
    }
}

/// Checks that an output was asked for and is of this type; what [`crate::backend::Instance::output`] and its like refuse.
///
/// # Errors
/// [`DeviceError::Binding`] naming the output.
pub fn readable<'a>(
    layout: &StepLayout,
    asked: impl IntoIterator<Item = &'a String>,
    name: &str,
    dtype: DType,
) -> Result<(), DeviceError> {
    match layout.outputs.iter().find(|(n, _)| n == name) {
        None => refuse(name, "is not an output of this plan"),
        Some((_, is)) if *is != dtype => refuse(name, format!("is {is}, not {dtype}")),
        Some(_) if asked.into_iter().any(|n| n == name) => Ok(()),
        Some(_) => refuse(name, "was not asked for when the step was encoded"),
    }
}

/// Checks what is to be read or written of a state `name` of so many entries of `entry_bytes` each: entries that there are, and
/// for writing (`bytes` given) each once and as many bytes as they have.
///
/// # Errors
/// [`DeviceError::Binding`] naming the state.
pub fn entries(
    name: &str,
    entries: &[u32],
    count: usize,
    entry_bytes: usize,
    bytes: Option<usize>,
) -> Result<(), DeviceError> {
    if let Some(entry) = entries.iter().find(|entry| **entry as usize >= count) {
        return refuse(name, format!("has no entry {entry}, it has {count}"));
    }
    let Some(bytes) = bytes else { return Ok(()) };
    let mut sorted = entries.to_vec();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return refuse(name, format!("entry {} is to be written twice", pair[0]));
    }
    if entries.len().checked_mul(entry_bytes) != Some(bytes) {
        let entries = entries.len();
        return refuse(name, format!("{bytes} bytes are not those of {entries} entries of {entry_bytes}"));
    }
    Ok(())
}

/// Checks that every weight and state port has a binding and nothing else is bound.
///
/// # Errors
/// [`DeviceError::Binding`] naming the port.
pub fn bindings(graph: &Graph, bindings: &Bindings) -> Result<(), DeviceError> {
    for port in &graph.ports {
        let bound = match port.kind {
            PortKind::Weight => bindings.weights.contains_key(&port.name),
            PortKind::State => bindings.states.contains_key(&port.name),
            _ => continue,
        };
        if !bound {
            return refuse(&port.name, format!("the {} is not bound", port.kind));
        }
    }
    let is = |name: &String, kind| graph.ports.iter().any(|p| p.kind == kind && p.name == *name);
    if let Some(name) = bindings.weights.keys().find(|n| !is(n, PortKind::Weight)) {
        return refuse(name, "is not a weight of this plan");
    }
    if let Some(name) = bindings.states.keys().find(|n| !is(n, PortKind::State)) {
        return refuse(name, "is not a state of this plan");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    #[test]
    fn entries_exist_and_are_written_once_and_whole() {
        let check = |list: &[u32], bytes| entries("kv", list, 4, 8, bytes);
        assert_eq!(
            (check(&[3, 0, 3], None), check(&[], Some(0)), check(&[2, 1], Some(16))),
            (Ok(()), Ok(()), Ok(()))
        );
        for (list, bytes, problem) in [
            (&[4][..], None, "has no entry 4"),
            (&[0, u32::MAX], Some(16), "has no entry 4294967295"),
            (&[1, 2, 1], Some(24), "entry 1 is to be written twice"),
            (&[1, 2], Some(15), "15 bytes are not those of 2 entries of 8"),
        ] {
            let error = check(list, bytes).unwrap_err().to_string();
            assert!(error.contains("`kv`") && error.contains(problem), "{error}");
        }
    }

    fn graph() -> Graph {
        let b = Builder::new();
        let rows = b.scalar("rows");
        let seqs = b.scalar("seqs");
        let row = |name: &str| b.input(name, DType::U32, &[8], Some(rows));
        let (pos, until) = (row("pos"), row("until"));
        let extents = b.input("extents", DType::U32, &[3], Some(seqs));
        let pages = b.input("pages", DType::U32, &[3, 2], Some(seqs));
        let q = b.input("q", DType::F32, &[8, 1, 4], Some(rows));
        let kv = b.kv_write(b.state("kv", DType::F32, &[5, 16, 1, 8]), q, q, pos, extents, pages);
        let op = Op::Attention { scale: 1.0, window: None, softcap: None };
        b.output("y", b.attention(op, q, kv, pos, until, extents, pages));
        b.finish().unwrap()
    }

    #[test]
    fn slots_of_drawn_tokens_are_checked_and_padding_names_none() {
        let b = Builder::new();
        let (rows, outs) = (b.scalar("rows"), b.scalar("outs"));
        let ids = b.input("ids", DType::U32, &[4], Some(rows));
        let drawn = b.state("drawn", DType::U32, &[3]);
        b.output("fed", b.feed(ids, drawn));
        let words = |name: &str| b.input(name, DType::U32, &[4], Some(outs));
        let sharpness = b.input("sharpness", DType::F32, &[4], Some(outs));
        let logits = b.input("logits", DType::F32, &[4, 2], Some(outs));
        let [into, uniform, top_k, top_p, min_p] = ["into", "uniform", "top_k", "top_p", "min_p"].map(words);
        b.output("tokens", b.sample(logits, drawn, into, [uniform, sharpness, top_k, top_p, min_p]).0);
        let graph = b.finish().unwrap();
        let layout = StepLayout::new(&graph);
        let check = |ids: &[u32], into: &[u32], outputs: &[&str]| {
            let zeros = vec![0; into.len()];
            let mut inputs: Vec<(&str, &[u32])> = vec![("ids", ids), ("into", into)];
            inputs.extend(["uniform", "top_k", "top_p", "min_p"].map(|name| (name, &zeros[..])));
            let floats = vec![0.0; 2 * into.len()];
            let floats: [(&str, &[f32]); 2] = [("logits", &floats), ("sharpness", &floats[..into.len()])];
            let scalars = [("rows", ids.len() as u32), ("outs", into.len() as u32)];
            let step = StepInputs { inputs: &inputs, floats: &floats, scalars: &scalars, outputs };
            let mut buffer = vec![7; layout.words()];
            layout.encode(&step, &mut buffer, &mut vec![]).map_err(|e| e.to_string())?;
            let at = layout.offset(graph.find_port("into").unwrap()).unwrap();
            Ok::<_, String>(buffer[at..at + 4].to_vec())
        };
        assert_eq!(
            check(&[5, NOT_A_TOKEN | 2], &[2, NO_SNAP, 0], &["tokens"]).unwrap(),
            [2, NO_SNAP, 0, NO_SNAP]
        );
        let bad = |ids: &[u32], into: &[u32], outputs: &[&str]| check(ids, into, outputs).unwrap_err();
        let fed = bad(&[5, NOT_A_TOKEN | 3], &[0], &[]);
        assert!(fed.contains("`ids`: entry 1 stands for slot 3, there are 3"), "{fed}");
        assert!(bad(&[5], &[0, 3], &[]).contains("`into`: entry 1 is 3, there are 3"));
        assert!(bad(&[5], &[1, NO_SNAP, 1], &[]).contains("`into`: slot 1 is stored to by two rows"));
        assert!(bad(&[5], &[1], &["tokens", "logits"]).contains("`logits`: is not an output"));
        let asked = ["tokens".to_owned()];
        let read = |name, dtype| readable(&layout, &asked, name, dtype).map_err(|e| e.to_string());
        assert_eq!(read("tokens", DType::U32), Ok(()));
        assert!(read("tokens", DType::F32).unwrap_err().contains("is U32, not F32"));
        assert!(read("fed", DType::U32).unwrap_err().contains("was not asked for"));
    }

    #[test]
    fn every_kind_of_bad_step_is_refused_by_name() {
        let layout = StepLayout::new(&graph());
        let q = [0.0f32; 8];
        type Edit = fn(&mut Vec<(&'static str, Vec<u32>)>, &mut Vec<(&'static str, u32)>);
        let cases: [(Edit, &str); 11] = [
            (|_, _| (), ""),
            (|i, _| i[0].1[1] = 32, "`pos`: entry 1 is 32, there are 32 positions"),
            (|i, _| i[1].1[0] = 33, "`until`: entry 0 is 33"),
            (|i, _| i[2].1 = vec![1, 2], "`extents`: the extents add up to 3, the step has 2 rows"),
            (|i, _| i[3].1[3] = 5, "`pages`: entry 3 is 5, there are 5 KV blocks"),
            (|i, _| i[0].1[1] = 0, "`pos`: two rows have one place in the KV cache"),
            (|i, _| i[0].1.push(1), "`pos`: 3 elements given, 2 expected"),
            (|i, _| drop(i.remove(1)), "`until`: the input is not given"),
            (|i, _| i.push(("posx", vec![])), "`posx`: is not an input"),
            (|_, s| s[0].1 = 9, "`pos`: 9 entries are bound, the plan has room for 8"),
            (|_, s| s.truncate(1), "`seqs`: the scalar is not given"),
        ];
        for (edit, message) in cases {
            let mut inputs = vec![("pos", vec![0, 31]), ("until", vec![1, 32])];
            inputs.extend([("extents", vec![2, 0]), ("pages", vec![4, 0, 1, 2])]);
            let mut scalars = vec![("rows", 2), ("seqs", 2)];
            edit(&mut inputs, &mut scalars);
            let inputs: Vec<(&str, &[u32])> = inputs.iter().map(|(n, v)| (*n, &v[..])).collect();
            let step =
                StepInputs { inputs: &inputs, floats: &[("q", &q)], scalars: &scalars, outputs: &["y"] };
            let result = layout.encode(&step, &mut vec![0; layout.words()], &mut vec![]);
            match result {
                Ok(()) => assert_eq!(message, ""),
                Err(e) => assert!(!message.is_empty() && e.to_string().contains(message), "{e}"),
            }
        }
    }
}

//! Where each weight of a model is in its checkpoint, and how its rows become those of the graph's port.

use std::ops::Range;

use formats::{Checkpoint, Container, TensorError};
use graph::backend::{DeviceError, RowSource, WeightDesc, WeightUse};
use tensor::{DType, Shape, blocks};

use crate::error::TensorProblem;
use crate::gguf_form::GgufTensor;

/// Stems of names: GGUF's, which the ports use, and the Hugging Face one. `{}` stands for an expert's number.
pub(crate) type Names = &'static [(&'static str, &'static str)];

/// The names most families share; a family's own list is searched first.
const COMMON: Names = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
];

/// The name in a Hugging Face checkpoint of a port named as in GGUF, such as `blk.3.attn_q.weight`.
pub(crate) fn hf_name(own: Names, port: &str) -> String {
    let stem_of = |stem: &str| {
        let pair = own.iter().chain(COMMON).find(|(gguf, _)| *gguf == stem);
        pair.map_or_else(|| stem.to_owned(), |(_, hf)| (*hf).to_owned())
    };
    let (path, kind) = port.rsplit_once('.').unwrap_or((port, ""));
    match path.strip_prefix("blk.").and_then(|p| p.split_once('.')) {
        Some((layer, stem)) => format!("model.layers.{layer}.{}.{kind}", stem_of(stem)),
        None => format!("{}.{kind}", stem_of(path)),
    }
}

/// What is done to stored rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Treatment {
    /// The rows (of a vector: the elements) of each head of so many are stored in GGUF files for interleaved rotary pairs, that
    /// is 0, h/2, 1, h/2 + 1, ...; they are put back to halves.
    pub(crate) interleaved: Option<usize>,
    /// Decoded to F32, exactly.
    pub(crate) f32: bool,
    /// 1 is added to each element.
    pub(crate) plus_one: bool,
    /// A Hugging Face checkpoint has a tensor for each entry of the first axis.
    pub(crate) stacked: bool,
}

/// One weight port and its source.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    port: String,
    /// Type of the port.
    pub(crate) dtype: DType,
    shape: Shape,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Computed(Vec<f32>),
    /// Equal parts of the leading axes' rows.
    Stored {
        parts: Vec<String>,
        treatment: Treatment,
    },
}

impl Weight {
    fn new(port: &str, dtype: DType, dims: &[usize], source: Source) -> Result<Weight, TensorProblem> {
        let shape = Shape::new(dims)
            .map_err(|e| TensorProblem::Type { name: port.to_owned(), problem: e.to_string() })?;
        Ok(Weight { port: port.to_owned(), dtype, shape, source })
    }

    /// A row that is computed from the hyper-parameters.
    pub(crate) fn computed(port: &str, row: Vec<f32>) -> Result<Weight, TensorProblem> {
        Weight::new(port, DType::F32, &[row.len()], Source::Computed(row))
    }

    /// Finds a weight in the checkpoint and checks type and shape.
    pub(crate) fn stored(
        checkpoint: &Checkpoint,
        own: Names,
        port: &str,
        dims: &[usize],
        treatment: Treatment,
    ) -> Result<Weight, Vec<TensorProblem>> {
        let gguf = checkpoint.container() == Container::Gguf;
        let name = if gguf { port.to_owned() } else { hf_name(own, port) };
        let (parts, part_dims) = if treatment.stacked && !gguf {
            // More experts than tensors cannot all be there: do not list the absent ones of a hostile configuration.
            let experts = dims[0].min(checkpoint.tensors().count() + 1);
            ((0..experts).map(|e| name.replace("{}", &e.to_string())).collect(), &dims[1..])
        } else {
            (vec![name], dims)
        };
        let mut dtype = None;
        let mut problems = vec![];
        for part in &parts {
            match check(checkpoint, part, part_dims) {
                Ok(found) if dtype.is_some_and(|d| d != found) && !treatment.f32 => {
                    let problem = format!("is stored as {found}, the other experts differ");
                    problems.push(TensorProblem::Type { name: part.clone(), problem });
                }
                Ok(found) => dtype = Some(found),
                Err(problem) => problems.push(problem),
            }
        }
        match dtype {
            Some(stored) if problems.is_empty() => {
                let dtype = if treatment.f32 { DType::F32 } else { stored };
                Weight::new(port, dtype, dims, Source::Stored { parts, treatment }).map_err(|p| vec![p])
            }
            _ => Err(problems),
        }
    }

    /// The tensors of the checkpoint it is made of.
    pub(crate) fn parts(&self) -> &[String] {
        match &self.source {
            Source::Computed(_) => &[],
            Source::Stored { parts, .. } => parts,
        }
    }

    /// As a GGUF file holds it.
    pub(crate) fn as_gguf(&self) -> GgufTensor {
        GgufTensor { name: self.port.clone(), dtype: self.dtype, shape: self.shape.dims().to_vec() }
    }

    /// Elements that come from the checkpoint.
    pub(crate) fn parameters(&self) -> u64 {
        if self.parts().is_empty() { 0 } else { self.shape.elements() as u64 }
    }
}

/// Axes of extent 1 that stand between others (the channel axis of a depthwise convolution) do not matter.
fn check(checkpoint: &Checkpoint, name: &str, dims: &[usize]) -> Result<DType, TensorProblem> {
    let entry = checkpoint.tensor(name).map_err(|e| match e {
        TensorError::Missing { name } => TensorProblem::Missing { name, expected: dims.to_vec() },
        TensorError::Unsupported { name, type_name } => {
            TensorProblem::Type { name, problem: format!("is stored as {type_name}, which is not supported") }
        }
    })?;
    let squeezed = |d: &[usize]| match d {
        [n, 1, k] => vec![*n, *k],
        _ => d.to_vec(),
    };
    if entry.shape != dims && squeezed(&entry.shape) != dims {
        let (expected, found) = (dims.to_vec(), entry.shape);
        return Err(TensorProblem::Shape { name: name.to_owned(), expected, found });
    }
    Ok(entry.dtype)
}

/// Rows of one weight, read from the checkpoint when asked for.
pub struct WeightRows<'m> {
    desc: WeightDesc,
    weight: &'m Weight,
    checkpoint: &'m Checkpoint,
    /// In the order of GGUF files, instead of half-split.
    gguf_order: bool,
}

impl<'m> WeightRows<'m> {
    /// The rows for a port of a graph; `None` when they are not of its type and shape.
    pub(crate) fn new(
        desc: WeightDesc,
        weight: &'m Weight,
        checkpoint: &'m Checkpoint,
    ) -> Option<WeightRows<'m>> {
        let fits = (desc.dtype, desc.shape) == (weight.dtype, weight.shape);
        fits.then_some(WeightRows { desc, weight, checkpoint, gguf_order: false })
    }

    /// The rows as a GGUF file holds them.
    pub(crate) fn in_gguf_order(weight: &'m Weight, checkpoint: &'m Checkpoint) -> WeightRows<'m> {
        let desc = WeightDesc {
            name: weight.port.clone(),
            dtype: weight.dtype,
            shape: weight.shape,
            layout: WeightUse::Matrix,
        };
        WeightRows { desc, weight, checkpoint, gguf_order: true }
    }

    /// Where a row, or an element of a vector, is among those that are stored.
    fn stored_at(&self, row: usize, head: Option<usize>) -> usize {
        let is_gguf = self.checkpoint.container() == Container::Gguf;
        match head {
            Some(head) if is_gguf && !self.gguf_order => interleaved(row, head),
            Some(head) if !is_gguf && self.gguf_order => halved(row, head),
            _ => row,
        }
    }

    /// Name, type, shape and use of the port.
    pub fn desc(&self) -> &WeightDesc {
        &self.desc
    }

    /// Gives back the memory that the stored rows hold in the mapped file, once they are packed.
    pub fn release(&self) {
        if let Source::Stored { parts, .. } = &self.weight.source {
            parts.iter().for_each(|name| self.checkpoint.release(name));
        }
    }

    fn fail(&self, problem: String) -> DeviceError {
        DeviceError::Binding { port: self.weight.port.clone(), problem }
    }

    fn stored(
        &self,
        parts: &[String],
        treatment: Treatment,
        rows: Range<usize>,
        sink: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DeviceError> {
        let shape = self.weight.shape;
        let width = shape.last();
        let rows_per_part = shape.rows() / parts.len();
        let mut start = rows.start;
        while start < rows.end {
            let part = start / rows_per_part;
            let end = rows.end.min((part + 1) * rows_per_part);
            let view = self.checkpoint.tensor(&parts[part]).map_err(|e| self.fail(e.to_string()))?;
            let row_bytes = view.bytes.len() / rows_per_part;
            for row in start..end {
                let vector = shape.rank() == 1;
                let within = row - part * rows_per_part;
                let from = self.stored_at(within, treatment.interleaved.filter(|_| !vector));
                let bytes = &view.bytes[from * row_bytes..(from + 1) * row_bytes];
                if !treatment.f32 {
                    sink(row, bytes);
                    continue;
                }
                let mut values = vec![0.0; width];
                blocks::decode(view.dtype, bytes, &mut values).map_err(|e| self.fail(e.to_string()))?;
                if treatment.plus_one {
                    values.iter_mut().for_each(|v| *v += 1.0);
                }
                if vector && treatment.interleaved.is_some() {
                    values = (0..width).map(|i| values[self.stored_at(i, treatment.interleaved)]).collect();
                }
                sink(row, &bytes_of(&values));
            }
            // By each thread behind itself: a whole tensor's pages take one thread as long as it took several to read them.
            let [first, last] = [start, end].map(|row| (row - part * rows_per_part) * row_bytes);
            self.checkpoint.release_part(&parts[part], first..last);
            start = end;
        }
        Ok(())
    }
}

impl RowSource for WeightRows<'_> {
    fn rows(&self, rows: Range<usize>, sink: &mut dyn FnMut(usize, &[u8])) -> Result<(), DeviceError> {
        let all = self.weight.shape.rows();
        if rows.start > rows.end || rows.end > all {
            return Err(self.fail(format!("rows {rows:?} were asked for, there are {all}")));
        }
        match &self.weight.source {
            Source::Computed(row) => {
                rows.for_each(|r| sink(r, &bytes_of(row)));
                Ok(())
            }
            Source::Stored { parts, treatment } => self.stored(parts, *treatment, rows, sink),
        }
    }
}

/// Where the row of index `row`, in half-split order, is among rows stored for interleaved pairs.
fn interleaved(row: usize, head: usize) -> usize {
    let (first, within) = (row / head * head, row % head);
    let (half, pair) = (within / (head / 2), within % (head / 2));
    first + 2 * pair + half
}

/// The other way: where the row of index `row`, among rows for interleaved pairs, is in half-split order.
fn halved(row: usize, head: usize) -> usize {
    let (first, within) = (row / head * head, row % head);
    first + within % 2 * (head / 2) + within / 2
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_translate() {
        let own: Names = &[("attn_norm", "operator_norm")];
        assert_eq!(hf_name(own, "blk.3.attn_q.bias"), "model.layers.3.self_attn.q_proj.bias");
        assert_eq!(hf_name(own, "blk.3.attn_norm.weight"), "model.layers.3.operator_norm.weight");
        assert_eq!(hf_name(&[], "output.weight"), "lm_head.weight");
    }

    /// A head of 6 rows: halves 0 1 2 and 3 4 5 are stored as 0 3 1 4 2 5.
    #[test]
    fn interleaved_rows_are_found() {
        let stored = [0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15];
        let back: Vec<_> = (0..12).map(|r| stored[interleaved(r, 6)]).collect();
        assert_eq!(back, [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
        assert!((0..12).all(|r| halved(interleaved(r, 6), 6) == r));
    }
}

//! A model as a GGUF file holds it: the keys that the readers read, and its weights under the names of its ports.

use std::ops::Range;

use formats::gguf::{Array, Value};
use graph::backend::{DeviceError, RowSource};
use tensor::DType;
use tensor::ops::Activation;

use crate::error::ModelError;
use crate::keys::Key;
use crate::weights::{Weight, WeightRows};
use crate::{Model, registry};

/// What a GGUF file says of a model, apart from its tokenizer.
#[derive(Clone, PartialEq, Debug)]
pub struct GgufForm {
    architecture: &'static str,
    /// Keys with the architecture's prefix, and `general.architecture`, in the order to write them.
    pub metadata: Vec<(String, Value)>,
    /// The tensors, in the order to write them.
    pub tensors: Vec<GgufTensor>,
    /// Tensors of F32 that follow from the hyper-parameters.
    pub(crate) tables: Vec<(String, Vec<f32>)>,
}

/// A tensor as a GGUF file holds it.
#[derive(Clone, PartialEq, Debug)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// Element type: of vectors and what decides choices F32, else as it is stored.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl GgufForm {
    fn set(&mut self, key: Key, value: Value) {
        let name = format!("{}.{}", self.architecture, key.1);
        // What two layers share is said once.
        self.metadata.retain(|(other, _)| *other != name);
        self.metadata.push((name, value));
    }

    pub(crate) fn count(&mut self, key: Key, value: usize) {
        // Counts are below 2^31 (`Keys`).
        self.set(key, Value::U32(value as u32));
    }

    pub(crate) fn counts(&mut self, key: Key, values: impl Iterator<Item = usize>) {
        self.set(key, Value::Array(Array::I32(values.map(|v| v as i32).collect())));
    }

    pub(crate) fn float(&mut self, key: Key, value: f32) {
        self.set(key, Value::F32(value));
    }

    pub(crate) fn text(&mut self, key: Key, value: &str) {
        self.set(key, Value::String(value.to_owned()));
    }

    pub(crate) fn flags(&mut self, key: Key, values: Vec<bool>) {
        self.set(key, Value::Array(Array::Bool(values)));
    }

    /// The files have no key for something.
    pub(crate) fn none(&self, what: &str) -> ModelError {
        ModelError::NotInGguf { architecture: self.architecture, what: what.to_owned() }
    }

    /// The files mean the family's activation.
    pub(crate) fn usual_activation(&self, is: Activation, usual: Activation) -> Result<(), ModelError> {
        if is == usual { Ok(()) } else { Err(self.none(&format!("the activation {is:?}"))) }
    }

    /// The files know no window.
    pub(crate) fn no_window<'a>(
        &self,
        windows: impl IntoIterator<Item = &'a Option<usize>>,
    ) -> Result<(), ModelError> {
        match windows.into_iter().flatten().next() {
            Some(window) => Err(self.none(&format!("a sliding window (`sliding_window` = {window})"))),
            None => Ok(()),
        }
    }
}

impl Model {
    /// What a GGUF file of this model says, whatever it was opened from.
    ///
    /// # Errors
    /// Hyper-parameters that such a file cannot say.
    pub fn gguf_form(&self) -> Result<GgufForm, ModelError> {
        let architecture = registry::written_as(self.info.architecture);
        let metadata = vec![("general.architecture".to_owned(), Value::String(architecture.to_owned()))];
        let mut form = GgufForm { architecture, metadata, tensors: vec![], tables: vec![] };
        self.decoder.write_gguf(&mut form);
        self.family.write_gguf(&self.decoder, &mut form)?;
        let stored = self.weights.values().filter(|w| !w.parts().is_empty()).map(Weight::as_gguf);
        let tables = form.tables.iter().map(|(name, row)| GgufTensor {
            name: name.clone(),
            dtype: DType::F32,
            shape: vec![row.len()],
        });
        form.tensors = stored.chain(tables).collect();
        // Layers in their order, between what stands before and behind them.
        let place = |name: &str| match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, _)) => (1, layer.parse().unwrap_or(usize::MAX)),
            None => (if name.starts_with("output") { 2 } else { 0 }, 0),
        };
        form.tensors.sort_by(|a, b| (place(&a.name), &a.name).cmp(&(place(&b.name), &b.name)));
        Ok(form)
    }

    /// The bytes of some rows of a tensor of [`Model::gguf_form`], in order.
    ///
    /// # Errors
    /// There is no such tensor, or its rows cannot be read.
    pub fn gguf_rows(&self, form: &GgufForm, name: &str, rows: Range<usize>) -> Result<Vec<u8>, DeviceError> {
        if let Some((_, row)) = form.tables.iter().find(|(table, _)| table == name) {
            let row = if rows.contains(&0) { &row[..] } else { &[] };
            return Ok(row.iter().flat_map(|v| v.to_le_bytes()).collect());
        }
        let unknown =
            || DeviceError::Binding { port: name.to_owned(), problem: "is no weight of the model".into() };
        let weight = self.weights.get(name).ok_or_else(unknown)?;
        let source = WeightRows::in_gguf_order(weight, &self.checkpoint);
        let mut bytes = vec![];
        source.rows(rows, &mut |_, row| bytes.extend_from_slice(row))?;
        Ok(bytes)
    }

    /// Gives back the memory that the stored tensors behind one of [`Model::gguf_form`] hold; see
    /// [`Checkpoint::release`](formats::Checkpoint::release).
    pub fn release(&self, name: &str) {
        let parts = self.weights.get(name).map(Weight::parts).unwrap_or_default();
        parts.iter().for_each(|part| self.checkpoint.release(part));
    }
}

//! What is read: a GGUF file as it is, or a Hugging Face folder as the GGUF file it would be.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use gristmill::parts::formats::gguf::{GgufMetadata, Value};
use gristmill::parts::models::{GgufForm, GgufTensor};
use gristmill::{Checkpoint, Error, Model, open_checkpoint, tokenizer_metadata};

/// A model to be written as GGUF.
pub(super) struct Input {
    source: Source,
    pub(super) metadata: GgufMetadata,
    /// In the order to write them.
    pub(super) tensors: Vec<GgufTensor>,
    /// Bytes of the weights' files.
    pub(super) bytes: u64,
}

enum Source {
    Gguf(Checkpoint),
    Folder { model: Box<Model>, form: GgufForm },
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Input> {
        let checkpoint = open_checkpoint(path)?;
        let bytes = checkpoint.file_bytes();
        let Some(metadata) = checkpoint.gguf().cloned() else {
            return Input::of_folder(path, checkpoint, bytes);
        };
        let tensors = checkpoint.tensor_names().map(|name| {
            let view = checkpoint.tensor(name)?;
            Ok(GgufTensor { name: name.to_owned(), dtype: view.dtype, shape: view.shape })
        });
        let tensors = tensors.collect::<Result<_>>()?;
        Ok(Input { source: Source::Gguf(checkpoint), metadata, tensors, bytes })
    }

    fn of_folder(path: &Path, checkpoint: Checkpoint, bytes: u64) -> Result<Input> {
        let checkpoint = Arc::new(checkpoint);
        let failed = |source| Error::Model { path: path.to_owned(), source };
        let model = Model::open(checkpoint.clone()).map_err(failed)?;
        let form = model.gguf_form().map_err(failed)?;
        let tokenizer = tokenizer_metadata(&checkpoint, model.info().vocab)?;
        let folder = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = |key: &str, value: &str| (key.to_owned(), Value::String(value.to_owned()));
        let general = [text("general.type", "model"), text("general.name", &name)];
        let metadata = form.metadata.iter().cloned().chain(general).chain(tokenizer).collect();
        let tensors = form.tensors.clone();
        Ok(Input { source: Source::Folder { model: Box::new(model), form }, metadata, tensors, bytes })
    }

    /// Where it comes from.
    pub(super) fn checkpoint(&self) -> &Checkpoint {
        match &self.source {
            Source::Gguf(checkpoint) => checkpoint,
            Source::Folder { model, .. } => model.checkpoint(),
        }
    }

    /// The bytes of some rows of a tensor that has so many.
    pub(super) fn rows(&self, tensor: &GgufTensor, of: usize, rows: Range<usize>) -> Result<Cow<'_, [u8]>> {
        match &self.source {
            Source::Gguf(checkpoint) => {
                let bytes = checkpoint.tensor(&tensor.name)?.bytes;
                let row = bytes.len() / of.max(1);
                Ok(Cow::Borrowed(&bytes[rows.start * row..rows.end * row]))
            }
            Source::Folder { model, form } => Ok(Cow::Owned(model.gguf_rows(form, &tensor.name, rows)?)),
        }
    }

    /// Gives back the memory that a tensor holds, once it was read.
    pub(super) fn release(&self, tensor: &GgufTensor) {
        match &self.source {
            Source::Gguf(checkpoint) => checkpoint.release(&tensor.name),
            Source::Folder { model, .. } => model.release(&tensor.name),
        }
    }
}

//! From arguments to opened models.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use gristmill::{Checkpoint, Engine, EngineOptions, Llm, LoadOptions, Precision, load_engine};

use crate::args::{DeviceArgs, EngineArgs, ModelArgs, PrecisionArg, ThreadArgs};
use crate::output::{byte_bar, bytes, note};
use crate::{catalogue, fetch};

impl ModelArgs {
    /// Where the model is; fetches the default one when none was named and it is not there yet.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        match &self.model {
            Some(path) => Ok(path.clone()),
            None => fetch::ensure(&catalogue::DEFAULT, &fetch::cache_dir(self.cache_dir.as_deref())?),
        }
    }

    /// The path and the opened checkpoint.
    pub(crate) fn open(&self) -> Result<(PathBuf, Arc<Checkpoint>)> {
        let path = self.path()?;
        let checkpoint = Checkpoint::open(&path)?;
        Ok((path, Arc::new(checkpoint)))
    }
}

impl From<PrecisionArg> for Precision {
    fn from(arg: PrecisionArg) -> Precision {
        match arg {
            PrecisionArg::Exact => Precision::Exact,
            PrecisionArg::Fast => Precision::Fast,
        }
    }
}

impl EngineArgs {
    /// The engine's options, for so many sequences at once.
    pub(crate) fn options(&self, max_sequences: usize) -> EngineOptions {
        EngineOptions {
            precision: self.precision.map(Precision::from),
            context: self.context,
            max_sequences,
            chunk: self.chunk,
            cache_bytes: self.kv_memory,
            ..EngineOptions::default()
        }
    }
}

/// How a model is loaded that computes one sequence at a time.
pub(crate) fn load_options(device: &DeviceArgs, threads: &ThreadArgs, engine: EngineOptions) -> LoadOptions {
    let device_options = device.options(threads.threads.unwrap_or(0));
    LoadOptions { device: device.device.clone(), device_options, engine }
}

/// Loads a model with its tokenizer, showing progress.
pub(crate) fn load(model: &ModelArgs, options: &LoadOptions) -> Result<Llm> {
    let path = model.path()?;
    with_bar(|progress| Ok(Llm::load_with_progress(path, options, progress)?))
}

/// Loads a model without its tokenizer, showing progress.
pub(crate) fn load_ids_only(model: &ModelArgs, options: &LoadOptions) -> Result<Engine> {
    let (path, checkpoint) = model.open()?;
    with_bar(|progress| Ok(load_engine(path, checkpoint, options, progress)?))
}

fn with_bar<T>(load: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<T>) -> Result<T> {
    let bar = byte_bar("loading");
    let loaded = load(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    loaded
}

/// Says what the engine settled on.
pub(crate) fn describe(engine: &Engine) {
    let (info, size) = (engine.info(), engine.cache_size());
    let name = if info.name.is_empty() { info.architecture } else { &info.name };
    let tokens = size.blocks * gristmill::parts::tensor::ops::KV_BLOCK;
    note(format_args!(
        "{name} on {}, {}; context {} tokens, KV pool {tokens} tokens ({})",
        engine.backend().description(),
        precision_name(engine.precision()),
        size.context,
        bytes(size.bytes()),
    ));
}

/// The name that `--precision` takes.
pub(crate) fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Exact => "exact",
        Precision::Fast => "fast",
    }
}

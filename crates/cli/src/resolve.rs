//! From arguments to opened models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use gristmill::{
    ByteSize, Checkpoint, Container, DeviceOptions, Engine, EngineOptions, Error, Llm, LoadOptions,
    ModelInfo, Precision, load_engine, open_checkpoint,
};
#[cfg(feature = "gpu")]
use gristmill::{Families, Profile};

use crate::args::{CacheArgs, DeviceArgs, LoadArgs, ModelArgs, PrecisionArg, StepArgs};
#[cfg(feature = "gpu")]
use crate::args::{GpuFamily, GpuLimits};
use crate::error::Usage;
use crate::fetch::source::{Source, is_repository};
use crate::fetch::{Fetcher, WebOptions};
use crate::output::{byte_bar, note, warn};
use crate::{catalogue, fetch};

impl ModelArgs {
    /// Where the model is. One that is named otherwise than by its path, and the default one when none is named, is fetched when
    /// it is not there yet.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let cache_dir = self.cache_dir.as_deref();
        match &self.model {
            Some(name) => model_path(name, cache_dir),
            None => fetcher(cache_dir)?.ensure(&Source::Catalogue(&catalogue::DEFAULT)),
        }
    }

    /// The path and the opened checkpoint.
    pub(crate) fn open(&self) -> Result<(PathBuf, Arc<Checkpoint>)> {
        let path = self.path()?;
        let checkpoint = open_checkpoint(&path)?;
        Ok((path, Arc::new(checkpoint)))
    }
}

fn fetcher(cache_dir: Option<&Path>) -> Result<Fetcher> {
    Fetcher::new(cache_dir, WebOptions::default())
}

/// Where the model of a name is: a path, or what `pull` takes, fetched when it is not there yet.
pub(crate) fn model_path(path: &Path, cache_dir: Option<&Path>) -> Result<PathBuf> {
    // What is there is meant, whatever it is called.
    let name = path.to_str().filter(|_| !path.exists());
    let Some(name) = name else { return Ok(path.to_owned()) };
    // A path needs no folder for fetched models.
    match fetch::named(name).map_err(|e| Usage::error(format!("{e:#}")))? {
        Some(source) => fetcher(cache_dir)?.ensure(&source),
        None if is_repository(name) && !name.ends_with(".gguf") => Err(Usage::error(format!(
            "{name} does not exist here; if it is a repository of the hub, that is -m hf:{name}"
        ))),
        None => Ok(path.to_owned()),
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

impl LoadArgs {
    /// How a model is loaded that computes one sequence at a time.
    pub(crate) fn options(&self) -> LoadOptions {
        LoadOptions {
            device: self.device.device.clone(),
            device_options: self.device.options(self.threads.threads.unwrap_or(0)),
            engine: engine_options(&self.step, &self.cache),
        }
    }

    /// The path, and the model loaded with its tokenizer, showing progress.
    pub(crate) fn llm(&self) -> Result<(PathBuf, Llm)> {
        let path = self.model.path()?;
        let llm = with_bar(|progress| Llm::load_with_progress(&path, &self.options(), progress));
        let mut llm = llm.map_err(|error| at(&path, error))?;
        warn_of_context(llm.engine());
        Ok((path, llm))
    }

    /// Loads a model without its tokenizer, showing progress.
    pub(crate) fn engine(&self) -> Result<Engine> {
        let (path, checkpoint) = self.model.open()?;
        Ok(load(&path, checkpoint, &self.options())?)
    }
}

/// An error with the path of the model, where it does not name it itself.
pub(crate) fn at(path: &Path, error: Error) -> anyhow::Error {
    match error {
        Error::Tokenizer(_) | Error::NoTokenizer(_) | Error::Template(_) => {
            anyhow::Error::new(error).context(path.display().to_string())
        }
        named => named.into(),
    }
}

impl DeviceArgs {
    /// How the device is opened with so many threads; 0 is one for each processor.
    pub(crate) fn options(&self, threads: usize) -> DeviceOptions {
        DeviceOptions {
            threads,
            isa: self.isa.clone(),
            #[cfg(feature = "gpu")]
            gpu_limits: match self.gpu_limits {
                GpuLimits::Adapter => Profile::Adapter,
                GpuLimits::Webgpu => Profile::WebGpu,
            },
            #[cfg(feature = "gpu")]
            gpu_families: Families {
                no_subgroups: self.gpu_without.contains(&GpuFamily::Subgroups),
                no_fusion: self.gpu_without.contains(&GpuFamily::Fusion),
                no_agreement: self.gpu_without.contains(&GpuFamily::Agreement),
            },
        }
    }
}

/// An engine's options for one sequence at a time.
pub(crate) fn engine_options(step: &StepArgs, cache: &CacheArgs) -> EngineOptions {
    EngineOptions {
        precision: step.precision.map(Precision::from),
        chunk: step.chunk,
        context: cache.context,
        cache_bytes: cache.kv_memory,
        max_sequences: 1,
        ..EngineOptions::default()
    }
}

/// Loads an opened model, showing progress.
pub(crate) fn load(path: &Path, checkpoint: Arc<Checkpoint>, options: &LoadOptions) -> Result<Engine, Error> {
    let engine = with_bar(|progress| load_engine(path, checkpoint, options, progress))?;
    warn_of_context(&engine);
    Ok(engine)
}

fn with_bar<T>(load: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<T, Error>) -> Result<T, Error> {
    let bar = byte_bar("loading", None);
    let loaded = load(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    loaded
}

fn warn_of_context(engine: &Engine) {
    let (context, trained) = (engine.cache_size().context, engine.info().context);
    if context > trained {
        warn(format_args!(
            "a context of {context} tokens is longer than the {trained} that the model was trained with: beyond them \
             its answers become worse or senseless"
        ));
    }
}

/// What a model is called: its name, or its architecture where it has none.
pub(crate) fn name_of(info: &ModelInfo) -> &str {
    if info.name.is_empty() { info.architecture } else { &info.name }
}

/// Says what the engine settled on.
pub(crate) fn describe(engine: &Engine) {
    let (info, size) = (engine.info(), engine.cache_size());
    let name = name_of(info);
    let tokens = size.blocks * gristmill::parts::tensor::ops::KV_BLOCK;
    note(format_args!(
        "{name} on {}, {}; context {} tokens, KV pool {tokens} tokens ({})",
        engine.device(),
        precision_name(engine.precision()),
        size.context,
        ByteSize(size.bytes()),
    ));
}

/// The name that `--precision` takes.
pub(crate) fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Exact => "exact",
        Precision::Fast => "fast",
    }
}

/// Refuses to write to a file that is read: one of the weights, what lies beside them in a folder and is no GGUF file, or
/// `another`.
///
/// # Errors
/// It is one.
pub(crate) fn spare_inputs(output: &Path, checkpoint: &Checkpoint, another: Option<&Path>) -> Result<()> {
    // What is not there is no input.
    let Ok(found) = output.canonicalize() else { return Ok(()) };
    let files = checkpoint.files();
    let read: Vec<PathBuf> = files
        .iter()
        .filter_map(|file| file.path)
        .chain(another)
        .filter_map(|p| p.canonicalize().ok())
        .collect();
    let gguf = found.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let beside = checkpoint.container() == Container::HuggingFace
        && !gguf
        && found.is_file()
        && files
            .iter()
            .filter_map(|f| f.path?.parent()?.canonicalize().ok())
            .any(|dir| found.parent() == Some(&dir));
    if beside || read.contains(&found) {
        let name = output.display();
        return Err(Usage::error(format!("{name} is a file to read: give another name to write to")));
    }
    Ok(())
}

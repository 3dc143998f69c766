//! From arguments to opened models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use gristmill::{
    ByteSize, Checkpoint, Container, DeviceOptions, Engine, EngineOptions, Error, KvType, Llm, LoadOptions,
    ModelInfo, Precision, load_engine, open_checkpoint,
};
#[cfg(feature = "gpu")]
use gristmill::{Families, Profile};

use crate::args::{CacheArgs, DeviceArgs, KvTypeArg, LoadArgs, ModelArgs, PrecisionArg, StepArgs};
#[cfg(feature = "gpu")]
use crate::args::{GpuFamily, GpuLimits};
use crate::error::Usage;
use crate::fetch::source::{Source, is_repository};
use crate::fetch::{Fetcher, WebOptions};
use crate::output::{byte_bar, note, warn};
use crate::whole::folder_of;
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
        // Neither a path nor what models' files are called.
        None if !name.contains(['/', '\\']) && !name.to_ascii_lowercase().ends_with(".gguf") => Err(
            Usage::error(fetch::unknown(name, "is no file or folder here, and no model of the catalogue")),
        ),
        None => match folder_of(path) {
            Ok(_) => Ok(path.to_owned()),
            Err(problem) => bail!("{name} does not exist: {problem}"),
        },
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

impl From<KvTypeArg> for KvType {
    fn from(arg: KvTypeArg) -> KvType {
        match arg {
            KvTypeArg::F32 => KvType::F32,
            KvTypeArg::F16 => KvType::F16,
            KvTypeArg::Q80 => KvType::Q8_0,
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
        kv_type: step.kv_type.map(KvType::from),
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

/// What notes call a model at a path: its name where that and the file's are the same as far as one goes, else the file's. Names are
/// written by whoever made a file, and some are paths or those of training runs.
fn title(path: &Path, info: &ModelInfo) -> String {
    // What is called `.` has a name too.
    let whole = path.canonicalize().unwrap_or_default();
    let file = path.file_name().or(whole.file_name()).unwrap_or(path.as_os_str()).to_string_lossy();
    let letters =
        |text: &str| text.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    let (own, of_file) = (letters(&info.name), letters(file.trim_end_matches(".gguf")));
    let is_path = info.name.contains(['/', '\\']);
    let same = [&own, &of_file].iter().all(|letters| letters.len() > 2)
        && (own.starts_with(&of_file) || of_file.starts_with(&own));
    if same && !is_path { info.name.clone() } else { file.into_owned() }
}

/// Says what the engine settled on for the model at a path.
pub(crate) fn describe(path: &Path, engine: &Engine) {
    let (info, size) = (engine.info(), engine.cache_size());
    let name = title(path, info);
    let tokens = size.blocks * gristmill::parts::tensor::ops::KV_BLOCK;
    note(format_args!(
        "{name} on {}, {}; context {} tokens, KV pool {tokens} tokens of {} ({})",
        engine.device(),
        precision_name(engine.precision()),
        size.context,
        engine.kv_type(),
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

#[cfg(test)]
mod tests {
    use gristmill::Model;

    use super::*;

    #[test]
    fn models_are_called_by_names_that_do_not_surprise() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens-gguf/llama.gguf");
        let model = Model::open(Arc::new(open_checkpoint(golden).unwrap())).unwrap();
        let mut info = model.info().clone();
        for (path, own, called) in [
            ("m/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2 135M Instruct", "SmolLM2 135M Instruct"),
            ("m/SmolLM2.gguf", "SmolLM2 135M Instruct", "SmolLM2 135M Instruct"),
            ("m/SmolLM2.gguf", "Smollm2 135M 8k Lc100K Mix1 Ep2", "Smollm2 135M 8k Lc100K Mix1 Ep2"),
            ("m/SmolLM2-135M-Instruct.Q4_1.gguf", "Smollm2 135M 8k Mix1", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            ("m/llama.gguf", "/home/somebody/llama", "llama.gguf"),
            ("m/llama.gguf", "", "llama.gguf"),
            ("m/llama.gguf", ".", "llama.gguf"),
            ("m/folder", "", "folder"),
        ] {
            own.clone_into(&mut info.name);
            assert_eq!(title(path.as_ref(), &info), called, "{path} {own}");
        }
    }
}

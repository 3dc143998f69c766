//! The command line as it is written. [`crate::resolve`] and the commands turn it into what is done.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gristmill::parts::tensor::DType;

use crate::catalogue;
use crate::commands::{
    bench, chat, completions, devices, inspect, logits, man, models, perplexity, plan, pull, quantize, run,
    selftest, synth, tokenize,
};

/// Runs language models on the hardware you have.
#[derive(Parser, Debug)]
#[command(name = "gristmill", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Run(run::RunArgs),
    Chat(chat::ChatArgs),
    Inspect(inspect::InspectArgs),
    Tokenize(tokenize::TokenizeArgs),
    Logits(logits::LogitsArgs),
    Perplexity(perplexity::PerplexityArgs),
    Bench(bench::BenchArgs),
    Plan(plan::PlanArgs),
    Selftest(selftest::SelftestArgs),
    Quantize(quantize::QuantizeArgs),
    Synth(synth::SynthArgs),
    Pull(pull::PullArgs),
    Models(models::ModelsArgs),
    Devices(devices::DevicesArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// What every command needs that loads a model to compute one sequence at a time.
#[derive(Args, Debug, Clone)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,
    #[command(flatten)]
    pub(crate) step: StepArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

/// Which model.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = MODEL_AND_DEVICE)]
pub(crate) struct ModelArgs {
    #[arg(short, long, value_name = "MODEL", help = format!(
        "GGUF file or Hugging Face folder, or what `pull` takes, such as `hf:owner/name:Q4_K_M`, fetched once; without it \
         the default model: {}", catalogue::DEFAULT))]
    pub(crate) model: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = CACHE_DIR)]
    pub(crate) cache_dir: Option<PathBuf>,
}

/// On what.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = MODEL_AND_DEVICE)]
pub(crate) struct DeviceArgs {
    /// Device to run on: `cpu`, `gpu`, `gpu:1` for the second, or the first of an API: `vulkan`, `metal`, `dx12`; several,
    /// separated by commas, share the layers
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device)]
    pub(crate) device: String,
    /// CPU instruction set [default: the best of this CPU]
    #[arg(long, value_name = "NAME", value_parser = isa, help_heading = TUNING, hide_short_help = true)]
    pub(crate) isa: Option<String>,
    /// Limits and features that a GPU is used with
    #[cfg(feature = "gpu")]
    #[arg(long, value_name = "LIMITS", default_value = "adapter", help_heading = TUNING, hide_short_help = true)]
    pub(crate) gpu_limits: GpuLimits,
    /// GPU kernel families that are not used, separated by commas
    #[cfg(feature = "gpu")]
    #[arg(long, value_name = "FAMILY,...", value_delimiter = ',', help_heading = TUNING, hide_short_help = true)]
    pub(crate) gpu_without: Vec<GpuFamily>,
}

/// Limits and features of a GPU.
#[cfg(feature = "gpu")]
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum GpuLimits {
    /// All that the adapter has
    Adapter,
    /// What every browser offers
    Webgpu,
}

/// Kernel families of a GPU that can be left out.
#[cfg(feature = "gpu")]
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GpuFamily {
    /// Kernels with subgroup operations
    Subgroups,
    /// Kernels that do the work of several ops
    Fusion,
    /// Kernels of their own for many rows, although they agree with those for one
    Agreement,
}

/// CPU worker threads.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = MODEL_AND_DEVICE)]
pub(crate) struct ThreadArgs {
    /// CPU worker threads, at most four for each processor [default: one for each processor that this process may use]
    ///
    /// All threads of a step wait for the slowest: where other programs keep some processors busy, as many threads as are idle are
    /// faster than the default.
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
}

impl ThreadArgs {
    /// How many there are, for work that no device does.
    pub(crate) fn count(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// How a step is computed.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = MODEL_AND_DEVICE)]
pub(crate) struct StepArgs {
    /// Kernels: `exact` computes in f32, `fast` with 8-bit activations [default: fast for quantised models]
    #[arg(long, value_name = "CLASS")]
    pub(crate) precision: Option<PrecisionArg>,
    /// How keys and values are kept: `q8_0` takes about half the memory of `f16`, for slightly other answers; CPU only
    /// [default: f16 with `fast` kernels, f32 with `exact` ones]
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvTypeArg>,
    /// Prompt tokens computed in one step, at most 8192; changes speed and memory, never the answer
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = chunk, help_heading = TUNING,
          hide_short_help = true)]
    pub(crate) chunk: usize,
}

/// How much is kept of a sequence.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = MODEL_AND_DEVICE)]
pub(crate) struct CacheArgs {
    /// Most tokens of prompt and output together [default: what the model was trained with, or what fits in memory]
    #[arg(short, long, value_name = "N", value_parser = context)]
    pub(crate) context: Option<usize>,
    /// Most memory for the KV cache, as in `500M` or `2G` [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_memory: Option<u64>,
}

/// Help of `--cache-dir`.
pub(crate) const CACHE_DIR: &str = "Folder for fetched models [default: what GRISTMILL_CACHE names, unless it is empty, \
                                    else gristmill/models in the user's cache folder]";

/// Options that many commands share stand together in their help.
const MODEL_AND_DEVICE: &str = "Model and device";

/// Options that hardly anybody needs stand at the end, and in the long help alone.
const TUNING: &str = "Tuning and debugging";

/// The two kernel classes.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum PrecisionArg {
    /// f32 activations and, unless --kv-type is given, KV cache
    Exact,
    /// 8-bit activations and, unless --kv-type is given, an f16 KV cache
    Fast,
}

/// The types of KV caches.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum KvTypeArg {
    /// 32-bit floats
    F32,
    /// 16-bit floats
    F16,
    /// 8-bit codes with a scale for each 32
    #[value(name = "q8_0")]
    Q80,
}

/// A whole number above 0.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    within(text, 1, usize::MAX)
}

/// A whole number within bounds.
pub(crate) fn within(text: &str, least: usize, most: usize) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ if most == usize::MAX => Err(format!("must be a whole number of at least {least}")),
        _ => Err(format!("must be a whole number from {least} to {most}")),
    }
}

/// A number; the error has an example of how the option is given.
pub(crate) fn number(example: &'static str) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| text.trim().parse().map_err(|_| format!("must be a number, as in `{example}`"))
}

/// A whole number, 0 among them; the error has an example of how the option is given.
pub(crate) fn whole<T: FromStr>(example: &'static str) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        text.trim().parse().map_err(|_| format!("must be a whole number of at least 0, as in `{example}`"))
    }
}

fn chunk(text: &str) -> Result<usize, String> {
    within(text, 1, gristmill::MAX_CHUNK)
}

fn context(text: &str) -> Result<usize, String> {
    within(text, 1, gristmill::MAX_CONTEXT)
}

/// A number of CPU worker threads.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    let most = gristmill::most_threads();
    within(text, 1, most)
        .map_err(|problem| format!("{problem}, four for each processor; one for each is best"))
}

/// An element type by its name, in any case, among those of which `usable` is true.
pub(crate) fn dtype(name: &str, usable: fn(DType) -> bool) -> Result<DType, String> {
    let all = || DType::ALL.into_iter().filter(|d| usable(*d));
    all().find(|d| d.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<_> = all().map(|d| d.name()).collect();
        format!("`{name}` is none of {}", names.join(", "))
    })
}

/// A number of bytes, with an optional binary suffix.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("must be a number of bytes with an optional K, M, G or T".into()),
    };
    let bytes = digits.parse::<f64>().ok().filter(|n| *n > 0.0).map(|n| n * (1u64 << shift) as f64);
    match bytes {
        Some(bytes) if (1.0..9e18).contains(&bytes) => Ok(bytes as u64),
        _ => Err("must be a number of bytes above 0, as in `500M` or `1.5G`".into()),
    }
}

fn device(text: &str) -> Result<String, String> {
    gristmill::device_kinds(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

fn isa(text: &str) -> Result<String, String> {
    text.parse::<gristmill::parts::cpu::isa::CpuIsa>().map(|isa| isa.to_string()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("1"), Ok(1));
        assert_eq!(size("2K"), Ok(2048));
        assert_eq!(size("1.5MiB"), Ok(3 << 19));
        assert_eq!(size("3gb"), Ok(3 << 30));
        for bad in ["", "G", "0", "-1", "1X", "1e30T", "NaN", "inf"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_have_bounds() {
        assert_eq!((positive("7"), positive(" 7 ")), (Ok(7), Ok(7)));
        for bad in ["0", "-1", "x", "", "1e3", "99999999999999999999999"] {
            assert_eq!(positive(bad), Err("must be a whole number of at least 1".to_owned()));
        }
        assert_eq!(chunk("8192"), Ok(8192));
        assert_eq!(chunk("8193"), Err("must be a whole number from 1 to 8192".to_owned()));
        assert!(threads("1").is_ok());
        assert!(threads("1000000").unwrap_err().contains("four for each processor"));
    }

    /// The help speaks of the limits that the engine has.
    #[test]
    fn limits_in_the_help_are_those_of_the_engine() {
        let help = Cli::command().find_subcommand_mut("run").unwrap().render_long_help().to_string();
        assert!(help.contains(&format!("at most {}", gristmill::MAX_CHUNK)), "{help}");
    }
}

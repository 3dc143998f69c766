//! The command line as it is written. [`crate::resolve`] and the commands turn it into what is done.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use gristmill::{DeviceOptions, Families, Profile};

use crate::commands::{bench, devices, inspect, logits, perplexity, plan, run, selftest, synth, tokenize};

/// Runs language models on the hardware you have.
#[derive(Parser, Debug)]
#[command(name = "gristmill", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong command line.\n\
    Results go to standard output; progress and notes go to standard error.";

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Answer a prompt, streamed
    Run(run::RunArgs),
    /// Describe a model: hyper-parameters, metadata, tensors, memory
    Inspect(inspect::InspectArgs),
    /// Turn text into tokens
    Tokenize(tokenize::TokenizeArgs),
    /// Print the logits of every position of a token sequence
    Logits(logits::LogitsArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Measure speed, in the rows and columns of llama-bench
    Bench(bench::BenchArgs),
    /// Show what was compiled for a model: kernels with reasons, memory
    Plan(plan::PlanArgs),
    /// Check that a device computes what it should
    Selftest(selftest::SelftestArgs),
    /// Write a model of a known shape with random weights
    Synth(synth::SynthArgs),
    /// List the devices of this machine with what they offer
    Devices(devices::DevicesArgs),
}

/// Which model.
#[derive(Args, Debug, Clone)]
pub(crate) struct ModelArgs {
    /// GGUF file or Hugging Face folder; without it the default model, fetched once
    #[arg(short, long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    /// Folder for fetched models
    #[arg(long, value_name = "DIR", env = "GRISTMILL_CACHE")]
    pub(crate) cache_dir: Option<PathBuf>,
}

/// On what.
#[derive(Args, Debug, Clone)]
pub(crate) struct DeviceArgs {
    /// Device to run on: `cpu`, `gpu`, `gpu:1` for the second, or the first of an API: `vulkan`, `metal`, `dx12`
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device)]
    pub(crate) device: String,
    /// CPU instruction set [default: the best of this CPU]
    #[arg(long, value_name = "NAME", value_parser = isa)]
    pub(crate) isa: Option<String>,
    /// Limits and features that a GPU is used with
    #[arg(long, value_name = "LIMITS", default_value = "adapter")]
    pub(crate) gpu_limits: GpuLimits,
    /// GPU kernel families that are not used, separated by commas
    #[arg(long, value_name = "FAMILY,...", value_delimiter = ',')]
    pub(crate) gpu_without: Vec<GpuFamily>,
}

/// Limits and features of a GPU.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum GpuLimits {
    /// All that the adapter has
    Adapter,
    /// What every browser offers
    Webgpu,
}

/// Kernel families of a GPU that can be left out.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GpuFamily {
    /// Kernels with subgroup operations
    Subgroups,
}

impl DeviceArgs {
    /// How the device is opened; `threads` of 0 is one per processor.
    pub(crate) fn options(&self, threads: usize) -> DeviceOptions {
        DeviceOptions {
            threads,
            isa: self.isa.clone(),
            gpu_limits: match self.gpu_limits {
                GpuLimits::Adapter => Profile::Adapter,
                GpuLimits::Webgpu => Profile::WebGpu,
            },
            gpu_families: Families { no_subgroups: self.gpu_without.contains(&GpuFamily::Subgroups) },
        }
    }
}

/// How the engine is set up.
#[derive(Args, Debug, Clone)]
pub(crate) struct EngineArgs {
    /// Kernels: `exact` computes in f32, `fast` with 8-bit activations [default: fast for quantised models]
    #[arg(long, value_name = "CLASS")]
    pub(crate) precision: Option<PrecisionArg>,
    /// Longest sequence in tokens, prompt and output together [default: the trained length, or what fits]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub(crate) context: Option<usize>,
    /// Most memory for the KV cache, as in `500M` or `2G` [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_memory: Option<u64>,
    /// Prompt tokens computed in one step
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) chunk: usize,
}

/// CPU worker threads.
#[derive(Args, Debug, Clone)]
pub(crate) struct ThreadArgs {
    /// CPU worker threads [default: one per processor]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
}

/// The two kernel classes.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum PrecisionArg {
    /// f32 activations and KV cache
    Exact,
    /// 8-bit activations, f16 KV cache
    Fast,
}

/// A whole number above 0.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a whole number of at least 1".into()),
        Ok(n) => Ok(n),
    }
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
    gristmill::device_kind(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
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
    fn counts_are_positive() {
        assert_eq!(positive("7"), Ok(7));
        assert!(positive("0").is_err() && positive("-1").is_err() && positive("x").is_err());
    }
}

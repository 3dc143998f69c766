//! Loads a model and says what it is: `cargo run --release --example load -- MODEL`.

use std::error::Error;
use std::io::{Write, stdout};

use gristmill::{ByteSize, Llm, LoadOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).ok_or("usage: load MODEL")?;
    run(&model, &mut stdout().lock())
}

/// Describes the model at a path.
pub(crate) fn run(model: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    // At most 256 tokens of prompt and output together, so that the cache is small.
    let options = LoadOptions::default().context(256);
    let mut llm = Llm::load(model, &options)?;
    let info = llm.info();
    writeln!(out, "{}: {} parameters in {} layers", info.architecture, info.parameters, info.layers)?;
    let size = llm.engine().cache_size();
    writeln!(out, "a context of {} tokens takes {}", size.context, ByteSize(size.bytes()))?;
    Ok(())
}

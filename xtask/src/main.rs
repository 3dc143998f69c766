//! Chores of the repository.
//!
//! - `cargo xtask rules` checks what the compiler cannot: who may know whom, and where names and choices belong.
//! - `cargo xtask mutate [TEXT]` breaks the code in one place after the other and shows that the suites notice; with a
//!   text, only the mutations with it in their names.
//! - `cargo xtask wasm` checks the crates of the browser build for wasm32, making a toolchain where there is none.
//! - `cargo xtask aarch64` runs the tests of the CPU backend for aarch64 in an emulator, with and without dot products of
//!   bytes; `cargo xtask aarch64 check` only has clippy read them for that target.
//! - `cargo xtask web` runs the browser build in a headless browser.
//! - `cargo xtask full` runs everything that takes long and prints a table.

mod aarch64;
mod full;
mod mutate;
mod mutations;
mod rules;
mod serve;
mod toolchain;
mod tree;
mod wasm;
mod web;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["rules"] => rules::run(),
        ["mutate"] => mutate::run(""),
        ["mutate", filter] => mutate::run(filter),
        ["wasm"] => wasm::run(),
        ["aarch64"] => aarch64::run(),
        ["aarch64", "check"] => aarch64::check(),
        ["web"] => web::run(),
        ["full"] => full::run(),
        _ => bail!("usage: cargo xtask rules | mutate [TEXT] | wasm | aarch64 [check] | web | full"),
    }
}

//! Rules of the repository that the compiler does not know.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::{mutate, tree};

/// The crates, each with those it uses, all of which stand before it: never one beside or above.
const USES: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("graph", &["tensor"]),
    ("formats", &["tensor"]),
    ("text", &[]),
    ("cpu", &["tensor", "graph"]),
    ("gpu", &["tensor", "graph"]),
    ("models", &["tensor", "graph", "formats"]),
    ("engine", &["tensor", "graph", "models"]),
    ("gristmill", &["tensor", "graph", "formats", "models", "text", "cpu", "gpu", "engine"]),
    ("web", &["graph", "formats", "models", "text", "gpu", "engine", "gristmill"]),
    ("conformance", &["tensor", "graph"]),
    ("checks", &["tensor", "graph", "formats", "models", "engine"]),
    ("cli", &["gristmill", "conformance", "checks"]),
];

/// Names of devices and their instruction sets, unknown to `models`.
const DEVICES: &[&str] = &[
    "cpu", "gpu", "vulkan", "metal", "dx12", "cuda", "rocm", "wgpu", "webgpu", "avx", "avx2", "avx512",
    "neon", "simd",
];

/// Starts of the names of architectures, known to `models/src/families` and the registry alone.
const ARCHITECTURES: &[&str] = &["llama", "mistral", "qwen", "gemma", "lfm2"];

/// Names that start like an architecture and are none: of a program, of kinds of tokenizers and rotary scalings, of keys.
const NO_ARCHITECTURES: &[&str] = &["llama.cpp", "llama_cpp", "llama-gguf-split", "is_llama_config"];

/// Files whose business such names are: kinds of tokenizers and of rotary scaling are called after the first model that
/// had them.
const NAMED_AFTER_MODELS: &[&str] = &[
    "crates/text/src/families.rs",
    "crates/text/src/gguf.rs",
    "crates/text/src/error.rs",
    "crates/models/src/rope.rs",
];

/// Files longer than this are two.
const LINES: usize = 700;

/// A line of a source file outside its tests, without its comment.
struct Line<'a> {
    file: &'a str,
    number: usize,
    code: &'a str,
}

/// Checks every rule.
pub(crate) fn run() -> Result<()> {
    let mut problems = vec![];
    dependencies(&mut problems)?;
    for file in tree::files()? {
        let name = file.to_string_lossy().replace('\\', "/");
        if !name.ends_with(".rs") {
            continue;
        }
        let text = tree::read(&file)?;
        let lines = text.lines().count();
        if lines > LINES {
            problems.push(format!("{name}: {lines} lines, at most {LINES}: it is usually two rooms"));
        }
        if name.starts_with("crates/") && name.contains("/src/") && !is_tests(&name) {
            for line in code_of(&name, &text) {
                problems.extend(device_name(&line));
                problems.extend(architecture_name(&line));
                problems.extend(kernel_choice(&line));
            }
        }
    }
    if let Err(e) = mutate::check_places() {
        problems.push(e.to_string());
    }
    ensure!(problems.is_empty(), "{} rules broken:\n{}", problems.len(), problems.join("\n"));
    println!("every rule is kept");
    Ok(())
}

/// Files that are tests as a whole.
fn is_tests(name: &str) -> bool {
    name.ends_with("/tests.rs") || name.contains("/tests/") || name.ends_with("/testing.rs")
}

/// The lines of a file up to its tests, which come last, without comments.
fn code_of<'a>(file: &'a str, text: &'a str) -> Vec<Line<'a>> {
    let until_tests = text.lines().enumerate().take_while(|(_, line)| *line != "mod tests {");
    let code = |(i, line): (usize, &'a str)| {
        let code = line.split_once("//").map_or(line, |(code, _)| code);
        Line { file, number: i + 1, code }
    };
    until_tests.map(code).filter(|l| !l.code.trim().is_empty()).collect()
}

fn words(code: &str) -> impl Iterator<Item = String> {
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| !w.is_empty());
    words.flat_map(|w| w.split('_')).map(str::to_ascii_lowercase)
}

fn device_name(line: &Line) -> Option<String> {
    let word = words(line.code).find(|w| DEVICES.contains(&w.as_str()))?;
    let inside = line.file.starts_with("crates/models/");
    inside.then(|| format!("{}:{}: `{word}` names a device: models know none", line.file, line.number))
}

fn architecture_name(line: &Line) -> Option<String> {
    let families = ["crates/models/src/families/", "crates/models/src/registry.rs"];
    let program = ["crates/cli/"];
    let elsewhere = NAMED_AFTER_MODELS.iter().chain(&families).chain(&program);
    if elsewhere.into_iter().any(|place| line.file.starts_with(place)) {
        return None;
    }
    let code =
        NO_ARCHITECTURES.iter().fold(line.code.to_ascii_lowercase(), |code, name| code.replace(name, ""));
    // Goldens are called after architectures.
    if line.file == "crates/checks/src/goldens.rs" && code.trim().starts_with('"') {
        return None;
    }
    let word = words(&code).find(|w| ARCHITECTURES.iter().any(|a| w.starts_with(a)))?;
    Some(format!("{}:{}: `{word}` names an architecture outside its family's file", line.file, line.number))
}

/// What a kernel is chosen by is read where instruction sets are made, and chosen by where a graph is compiled.
fn kernel_choice(line: &Line) -> Option<String> {
    let rules: [(&str, &[&str]); 3] = [
        ("is_x86_feature_detected!", &["crates/cpu/src/isa/"]),
        ("is_aarch64_feature_detected!", &["crates/cpu/src/isa/"]),
        (
            "Selection {",
            &[
                "crates/cpu/src/backend/compile.rs",
                "crates/gpu/src/compile.rs",
                "crates/graph/src/report.rs",
                "crates/conformance/src/reference.rs",
            ],
        ),
    ];
    let broken = rules.iter().find(|(text, places)| {
        line.code.contains(text) && !places.iter().any(|place| line.file.starts_with(place))
    });
    let (text, places) = broken?;
    Some(format!("{}:{}: `{text}` belongs to {} alone", line.file, line.number, places.join(", ")))
}

/// Every crate uses those of the table, and no other.
fn dependencies(problems: &mut Vec<String>) -> Result<()> {
    for (name, below) in USES {
        let manifest = tree::read(&Path::new("crates").join(name).join("Cargo.toml"))?;
        let used = used_crates(&manifest);
        let ours = used.iter().filter(|used| USES.iter().any(|(name, _)| name == *used));
        problems.extend(
            ours.filter(|used| !below.contains(used))
                .map(|used| format!("crates/{name} uses `{used}`, which is not below it")),
        );
        problems.extend(below.iter().filter(|below| !used.contains(below)).map(|below| {
            format!("crates/{name} does not use `{below}`: it need not be in its line (xtask/src/rules.rs)")
        }));
    }
    for entry in std::fs::read_dir(tree::root().join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !USES.iter().any(|(known, _)| *known == name) {
            problems.push(format!("crates/{name} has no place in the order of crates (xtask/src/rules.rs)"));
        }
    }
    Ok(())
}

/// The names under `[dependencies]` of a manifest, those of single targets too, as this workspace writes them. What tests
/// use does not count.
fn used_crates(manifest: &str) -> Vec<&str> {
    let sections = manifest.split("\n[");
    let used = |s: &&str| {
        let heading = s.lines().next().unwrap_or_default();
        heading == "dependencies]" || heading.starts_with("target.") && heading.ends_with(".dependencies]")
    };
    sections
        .filter(used)
        .flat_map(|section| section.lines().skip(1))
        .filter_map(|l| l.split(['.', ' ', '=']).next())
        .filter(|n| !n.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(file: &'a str, code: &'a str) -> Line<'a> {
        Line { file, number: 1, code }
    }

    #[test]
    fn names_in_the_wrong_place_are_found() {
        assert!(device_name(&line("crates/models/src/step.rs", "let on_gpu = true;")).is_some());
        assert!(device_name(&line("crates/cpu/src/lib.rs", "let on_gpu = true;")).is_none());
        assert!(device_name(&line("crates/models/src/step.rs", "let occupied = 1;")).is_none());
        assert!(architecture_name(&line("crates/engine/src/lib.rs", "if name == \"qwen3\" {")).is_some());
        assert!(architecture_name(&line("crates/engine/src/lib.rs", "Stage::LLAMA_CPP")).is_none());
        assert!(architecture_name(&line("crates/models/src/families/gemma3.rs", "gemma3")).is_none());
        assert!(
            kernel_choice(&line("crates/cpu/src/pool.rs", "is_x86_feature_detected!(\"fma\")")).is_some()
        );
    }

    #[test]
    fn tests_and_comments_are_no_code() {
        let text = "fn a() {} // gpu\n// gpu\n#[cfg(test)]\nmod tests {\n    gpu();\n}\n";
        let code: Vec<_> = code_of("f", text).iter().map(|l| l.code).collect();
        assert_eq!(code, ["fn a() {} ", "#[cfg(test)]"]);
    }

    #[test]
    fn used_crates_are_read() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\ntensor.workspace = true\nzip = { version = \"9\" }\n\n[target.'cfg(unix)'.dependencies]\ncpu.workspace = true\n\n[dev-dependencies]\ngpu.workspace = true\n";
        assert_eq!(used_crates(manifest), ["tensor", "zip", "cpu"]);
    }
}

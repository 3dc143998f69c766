//! Running the program on the goldens.

pub(crate) mod hub;
#[cfg(target_os = "linux")]
mod terminal;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use checks::variants::with_metadata;
use gristmill::Checkpoint;
use gristmill::parts::formats::Bytes;
use gristmill::parts::formats::gguf::{Gguf, Value};
use gristmill::parts::formats::safetensors::SafetensorsFile;

#[cfg(target_os = "linux")]
pub(crate) use terminal::Terminal;

/// The program, not yet run.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.stdin(Stdio::null());
    command
}

/// Runs the program.
pub(crate) fn gristmill(args: &[&str]) -> Output {
    program().args(args).output().expect("the program starts")
}

/// Runs the program, which must succeed; gives standard output.
pub(crate) fn ok(args: &[&str]) -> String {
    let output = gristmill(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// Runs the program, which must end with this code and print nothing to standard output; gives standard error.
pub(crate) fn fails(args: &[&str], code: i32) -> String {
    let output = gristmill(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    assert!(output.stdout.is_empty(), "{args:?} wrote to standard output");
    errors
}

/// Runs the program with this standard input; gives the exit code, standard output and standard error.
pub(crate) fn fed(args: &[&str], input: impl AsRef<[u8]>) -> (Option<i32>, String, String) {
    let mut command = program();
    let pipes = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may end before it has read everything.
    let _ = stdin.write_all(input.as_ref());
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    let [out, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.code(), out, errors)
}

/// Runs the program with a standard output that nobody reads; gives the exit code and standard error.
pub(crate) fn unread(args: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = program();
    let child = command.args(args).stdout(writer).stderr(Stdio::piped()).spawn().expect("the program starts");
    let output = child.wait_with_output().expect("the program ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A file of the `llama` golden with a chat template.
pub(crate) fn with_template(template: &str) -> tempfile::NamedTempFile {
    with_key("tokenizer.chat_template", Value::String(template.to_owned()))
}

/// A file of the `llama` golden with this metadata.
pub(crate) fn with_key(key: &str, value: Value) -> tempfile::NamedTempFile {
    let checkpoint =
        Checkpoint::open(tests("goldens-gguf/llama.gguf").as_ref()).expect("goldens are readable");
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a temporary file");
    let bytes = with_metadata(&checkpoint, &[(key, value)]).expect("goldens can be written again");
    std::fs::write(file.path(), bytes).expect("a temporary file");
    file
}

/// A file of the `llama` golden whose embedding of a token is no number.
pub(crate) fn with_nan(token: u32) -> tempfile::NamedTempFile {
    let mut bytes = std::fs::read(tests("goldens-gguf/llama.gguf")).expect("goldens are readable");
    let header = Gguf::parse(&bytes).expect("goldens are GGUF");
    let table = header.tensor("token_embd.weight").expect("the golden has a table");
    let (start, rows) = (table.range.start, table.shape[0]);
    let row = table.range.len() / rows;
    bytes[start + token as usize * row..][..row].fill(0xff);
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a temporary file");
    std::fs::write(file.path(), bytes).expect("a temporary file");
    file
}

/// The ids of a text, special tokens included.
pub(crate) fn tokenize(model: &str, text: &str) -> Vec<u32> {
    let printed = ok(&["tokenize", "-m", model, "--ids", text]);
    printed.trim().split(',').map(|id| id.parse().expect("ids are numbers")).collect()
}

/// A path below the repository's `tests`.
pub(crate) fn tests(path: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    root.join(path).to_str().expect("the path is UTF-8").to_owned()
}

/// A JSON file of a golden.
pub(crate) fn golden_json(case: &str, file: &str) -> serde_json::Value {
    let path = tests(&format!("goldens/{case}/{file}"));
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_slice(&text).expect("goldens are JSON")
}

/// A list of ids of a golden.
pub(crate) fn golden_ids(case: &str, key: &str) -> Vec<u32> {
    serde_json::from_value(golden_json(case, "expected.json")[key].clone()).expect("a list of ids")
}

/// An F32 tensor of a golden.
pub(crate) fn golden_floats(case: &str, name: &str) -> Vec<f32> {
    let path = tests(&format!("goldens/{case}/expected.safetensors"));
    let bytes = Bytes::from(std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}")));
    let file = SafetensorsFile::new(bytes).expect("goldens are readable");
    let (_, data) = file.tensor(name).expect("the golden has the tensor");
    data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Ids as `--ids` takes them.
pub(crate) fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The rows that `logits` prints.
pub(crate) fn logits(model: &str, ids: &[u32], more: &[&str]) -> Vec<Vec<f32>> {
    let ids = list(ids);
    let args = [&["logits", "-m", model, "--ids", &ids, "--precision", "exact"], more].concat();
    let printed: serde_json::Value = serde_json::from_str(&ok(&args)).expect("logits are JSON");
    let rows: Vec<Vec<f32>> = serde_json::from_value(printed["logits"].clone()).expect("rows of numbers");
    assert!(rows.iter().all(|row| row.len() as u64 == printed["vocab"]));
    rows
}

/// The index of the largest element, the first of several.
pub(crate) fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

/// Copies what a golden's Hugging Face folder has.
pub(crate) fn copy_folder(case: &str, dir: &Path) {
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tests(&format!("goldens/{case}/{file}")), dir.join(file)).unwrap();
    }
}

/// Header and data of the `llama` golden's safetensors file.
pub(crate) fn safetensors() -> (String, Vec<u8>) {
    let bytes = std::fs::read(tests("goldens/llama/model.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (String::from_utf8(bytes[8..8 + len].to_vec()).unwrap(), bytes[8 + len..].to_vec())
}

/// A safetensors file.
pub(crate) fn joined(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

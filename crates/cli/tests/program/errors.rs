//! What the program says when something is wrong, and how it ends.

use crate::support::*;

#[test]
fn a_wrong_command_line_ends_with_2() {
    let model = tests("goldens-gguf/llama.gguf");
    fails(&[], 2);
    fails(&["grind"], 2);
    fails(&["logits", "-m", &model], 2);
    let errors = fails(&["run", "-m", &model, "--threads", "0", "x"], 2);
    assert!(errors.contains("--threads") && errors.contains("from 1 to"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--device", "abacus", "x"], 2);
    assert!(errors.contains("abacus") && errors.contains("cpu"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--isa", "mmx", "x"], 2);
    assert!(errors.contains("mmx") && errors.contains("scalar"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--temperature", "-1", "x"], 2);
    assert!(errors.contains("temperature") && errors.contains("-1"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--top-k", "0", "x"], 2);
    assert!(errors.contains("--top-k is 0"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--logit-bias", "5", "x"], 2);
    assert!(errors.contains("42=-1.5"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--stop", "", "x"], 2);
    assert!(errors.contains("--stop"), "{errors}");
    let errors = fails(&["logits", "-m", &model, "--ids", "1,two"], 2);
    assert!(errors.contains("two"), "{errors}");
    let errors = fails(&["bench", "-m", &model, "-p", "0", "-n", "0"], 2);
    assert!(errors.contains("nothing to measure"), "{errors}");
}

/// Values that no model and no machine takes, and values that this one does not take, of an option.
#[test]
fn values_that_are_not_allowed_end_with_2_and_the_range() {
    let model = tests("goldens-gguf/llama.gguf");
    let dynamic = tests("fixtures/models/llama_dynamic");
    for (args, parts) in [
        (&["run", "--chunk", "0", "x"][..], &["--chunk", "from 1 to 8192"][..]),
        (&["plan", "--chunk", "8193"], &["--chunk", "from 1 to 8192"]),
        (&["bench", "--chunk", "0"], &["--chunk", "from 1 to 8192"]),
        (&["logits", "--ids", "1", "-c", "0"], &["--context", "from 1 to 1073741824"]),
        (&["logits", "--ids", "1", "-c", "99999999999999999999"], &["--context", "from 1 to 1073741824"]),
        (&["run", "-n", "0", "x"], &["--max-tokens", "at least 1"]),
        (&["run", "-t", "1000000", "x"], &["--threads", "four for each processor"]),
        (&["bench", "-t", "1,1000000"], &["--threads", "four for each processor"]),
        (&["selftest", "-t", "1000000"], &["--threads", "four for each processor"]),
        (&["bench", "-p", "1,x"], &["--n-prompt", "'x'"]),
        (&["bench", "-s", "1025"], &["--sequences", "from 1 to 1024"]),
        (&["bench", "-n", "0", "-s", "5"], &["-s", "-n is 0"]),
        (&["run", "--kv-memory", "0", "x"], &["--kv-memory", "above 0"]),
        (&["perplexity", "-f", "x", "--ids-limit", "1"], &["--ids-limit", "from 2"]),
        (&["logits", "--ids", "1", "-c", "300", "-m", &dynamic], &["--context: is 300", "256 tokens"]),
        (&["bench", "-p", "300", "--probe", "0", "-m", &dynamic], &["-p, -n and -d", "256 tokens"]),
    ] {
        let model: &[&str] =
            if args.contains(&"-m") || args[0] == "selftest" { &[] } else { &["-m", &model] };
        let errors = fails(&[args, model].concat(), 2);
        assert!(parts.iter().all(|part| errors.contains(part)), "{args:?}: {errors}");
    }
}

#[test]
fn the_help_explains_exit_codes_and_what_counts_as_context() {
    let help = ok(&["--help"]);
    for part in ["Exit codes:", "0  done", "1  failed", "2  the command line"] {
        assert!(help.contains(part), "{help}");
    }
    let help = ok(&["run", "-h"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("-c, --context <N> Most tokens of prompt and output together"), "{help}");
    assert!(help.contains("-n, --max-tokens <N> Most tokens to generate"), "{help}");
}

#[test]
fn lists_of_ids_may_have_spaces_but_no_gaps() {
    let model = tests("goldens-gguf/llama.gguf");
    let ok_with = |ids: &str| ok(&["logits", "-m", &model, "--rows", "last", "--ids", ids]);
    assert_eq!(ok_with("5, 17 , 9"), ok_with("5,17,9"));
    for ids in ["", " ", "5,17,", ",5", "5,,17"] {
        let errors = fails(&["logits", "-m", &model, "--ids", ids], 2);
        assert!(errors.contains("an id is missing") && errors.contains("`5,17,9`"), "{ids:?}: {errors}");
    }
    for ids in ["-1", "5 17", "5;17", "1.5", "4294967296"] {
        let errors = fails(&["logits", "-m", &model, "--ids", ids], 2);
        assert!(errors.contains("is no token id"), "{ids:?}: {errors}");
    }
}

/// As `| head` does.
#[cfg(unix)]
#[test]
fn an_output_that_nobody_reads_ends_the_program_quietly() {
    let model = tests("goldens-gguf/llama.gguf");
    let ids = list(&[5; 200]);
    let text = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(text.path(), "The mill grinds what is brought to it.").unwrap();
    let text = text.path().to_str().unwrap();
    for args in [
        &["logits", "-m", &model, "--ids", &ids][..],
        &["run", "-m", &model, "--ignore-eos", "Hello"],
        &["tokenize", "-m", &model, "Hello"],
        &["tokenize", "-m", &model, "--ids", "Hello"],
        &["inspect", "-m", &model],
        &["inspect", "-m", &model, "--json"],
        &["inspect", "-m", &model, "--graph", "svg"],
        &["run", "-m", &model, "-n", "2", "Hello", "--json"],
        &["run", "-m", &model, "-n", "2", "Hello", "--json-lines"],
        &["plan", "-m", &model],
        &["perplexity", "-m", &model, "-f", text],
        &["perplexity", "-m", &model, "-f", text, "--json"],
        &["bench", "-m", &model, "-p", "4", "-n", "2", "-r", "1", "--probe", "0"],
        &["bench", "-m", &model, "-p", "4", "-n", "2", "-r", "1", "--probe", "0", "-o", "json"],
        &["bench", "-m", &model, "-p", "4", "-n", "2", "-r", "1", "--probe", "0", "-o", "csv"],
        &["selftest", "--filter", "rms_norm"],
        &["--help"],
        &["run", "--help"],
    ] {
        let (code, errors) = unread(args);
        assert_eq!(code, Some(0), "{args:?}: {errors}");
        assert!(!errors.contains("error") && !errors.contains("panic"), "{args:?}: {errors}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_cannot_be_written_is_an_error_that_names_it() {
    let model = tests("goldens-gguf/llama.gguf");
    for args in [
        &["logits", "-m", &model, "--ids", "5,17"][..],
        &["run", "-m", &model, "-n", "2", "Hello"],
        &["tokenize", "-m", &model, "Hello"],
        &["inspect", "-m", &model],
        &["inspect", "-m", &model, "--json"],
        &["inspect", "-m", &model, "--graph", "text"],
        &["inspect", "-m", &model, "--graph", "svg"],
        &["run", "-m", &model, "-n", "2", "Hello", "--json"],
        &["run", "-m", &model, "-n", "2", "Hello", "--json-lines"],
        &["run", "-m", &model, "-n", "2", "Hello", "--logprobs", "1"],
        &["plan", "-m", &model],
        &["bench", "-m", &model, "-p", "4", "-n", "0", "-r", "1", "--probe", "0"],
        &["selftest", "--filter", "rms_norm"],
        &["devices"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program().args(args).stdout(full).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert!(errors.contains("standard output cannot be written: No space left"), "{args:?}: {errors}");
    }
}

/// What a model of damaged weights gives is told where it happens, and nothing half of it is printed.
#[test]
fn values_that_are_no_numbers_are_an_error_with_their_position() {
    let model = tests("goldens-gguf/llama.gguf");
    let text = "The mill grinds what is brought to it.";
    let ids = tokenize(&model, text);
    let bad = ids[ids.len() / 2];
    let position = ids.iter().position(|id| *id == bad).unwrap();
    let damaged = with_nan(bad);
    let damaged = damaged.path().to_str().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let (file, ids) = (file.path().to_str().unwrap(), list(&ids));
    for args in [
        &["logits", "--ids", &ids][..],
        &["logits", "--ids", &ids, "--chunk", "2"],
        &["perplexity", "-f", file],
        &["perplexity", "-f", file, "--json", "--chunk", "1"],
    ] {
        let errors = fails(&[args, &["-m", damaged]].concat(), 1);
        assert!(errors.contains(&format!("at position {position}, logits")), "{args:?}: {errors}");
        assert!(errors.contains("--precision exact") && errors.contains("file is whole"), "{errors}");
    }
    let errors = fails(&["run", "-m", damaged, "--raw", text], 1);
    assert!(errors.contains("NaN") && errors.contains("--precision exact"), "{errors}");
    // Not the model's doing.
    let errors = fails(&["run", "-m", &model, "--raw", text, "--repetition-penalty", "1e-45"], 1);
    assert!(errors.contains("repetition_penalty takes the logit"), "{errors}");
    assert!(errors.contains("--repetition-penalty") && !errors.contains("weights"), "{errors}");
}

#[test]
fn several_devices_are_refused_where_they_do_not_go() {
    let model = tests("goldens-gguf/llama.gguf");
    let nine = ["cpu"; 9].join(",");
    for command in [&["run", "x"][..], &["logits", "--ids", "1"], &["inspect"], &["plan"]] {
        let errors = fails(&[command, &["-m", &model, "--device", &nine]].concat(), 2);
        assert!(errors.contains("--device: 9 devices cannot share"), "{command:?}: {errors}");
    }
    let errors = fails(&["selftest", "--device", "cpu,cpu"], 2);
    assert!(errors.contains("--device") && errors.contains("of one device"), "{errors}");
    let of = |device: &str| ok(&["inspect", "--json", "-m", &model, "--device", device]);
    assert_eq!(of("cpu,cpu"), of("cpu"));
}

/// Before the weights are read, which takes long.
#[test]
fn a_kv_type_that_a_device_does_not_have_is_refused() {
    let model = tests("goldens-gguf/llama.gguf");
    for command in [&["run", "x"][..], &["logits", "--ids", "1"], &["inspect"], &["bench", "--probe", "0"]] {
        let kv = ["-m", &model, "--device", "gpu", "--kv-type", "q8_0"];
        let errors = fails(&[command, &kv].concat(), 2);
        for part in ["--kv-type: gpu", "q8_0", "f32 or f16", "cpu"] {
            assert!(errors.contains(part), "{command:?}: {part} is missing from {errors}");
        }
        assert!(!errors.contains("kv_type"), "{errors}");
    }
    let errors = fails(&["run", "-m", &model, "--kv-type", "q4_0", "x"], 2);
    assert!(errors.contains("--kv-type") && errors.contains("[possible values: f32, f16, q8_0]"), "{errors}");
}

/// What the probe is to read or copy has its size, or is refused.
#[test]
fn a_probe_that_is_too_large_is_an_error() {
    let model = tests("goldens-gguf/llama.gguf");
    for (device, problem) in [("cpu", "memory"), ("gpu", "gpu cannot copy within")] {
        let bench = ["bench", "-m", &model, "-p", "1", "-n", "0", "-r", "1", "--device", device, "--probe"];
        let errors = fails(&[&bench[..], &["9999T"]].concat(), 1);
        assert!(errors.contains(problem) && errors.contains("--probe"), "{device}: {errors}");
    }
}

#[test]
fn a_model_that_is_not_there_is_named_with_what_was_expected() {
    for command in [&["run", "-m", "no/such.gguf", "x"][..], &["inspect", "-m", "no/such.gguf"]] {
        let errors = fails(command, 1);
        assert!(errors.contains("no/such.gguf does not exist: the folder no is not there"), "{errors}");
    }
    let errors = fails(&["inspect", "-m", "none.gguf"], 1);
    for part in ["none.gguf does not exist", "GGUF file", "folder"] {
        assert!(errors.contains(part), "{errors}");
    }
}

#[test]
fn a_folder_that_lacks_something_says_what() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let refused = |parts: &[&str]| {
        for command in [&["run", "-m", path, "x"][..], &["logits", "-m", path, "--ids", "1"]] {
            let errors = fails(command, 1);
            assert!(parts.iter().all(|part| errors.contains(part)), "{errors}");
        }
    };
    refused(&["no config.json", "model.safetensors"]);
    let copy =
        |file: &str| std::fs::copy(tests(&format!("goldens/llama/{file}")), dir.path().join(file)).unwrap();
    copy("config.json");
    copy("tokenizer.json");
    refused(&["neither model.safetensors nor model.safetensors.index.json", "fetch them"]);
    let index =
        r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    refused(&["2 are not in", "model-00002-of-00002.safetensors", "download the missing files"]);
    copy("model.safetensors");
    ok(&["logits", "-m", path, "--ids", "1"]);
    std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    ok(&["logits", "-m", path, "--ids", "1"]);
    let errors = fails(&["run", "-m", path, "x"], 1);
    assert!(errors.contains("no tokenizer.json") && errors.contains("fetch it"), "{errors}");
}

#[test]
fn a_file_that_is_no_model_is_named() {
    let readme = tests("goldens/README.md");
    let errors = fails(&["run", "-m", &readme, "x"], 1);
    assert!(errors.contains("README.md"), "{errors}");
    let errors = fails(&["logits", "-m", &tests("goldens-gguf/bert.gguf"), "--ids", "1"], 1);
    assert!(errors.contains("bert"), "{errors}");
}

#[test]
fn a_prompt_that_is_too_long_says_how_long_and_what_fits() {
    let model = tests("goldens-gguf/llama.gguf");
    let ids = list(&[5; 50]);
    let errors = fails(&["logits", "-m", &model, "--context", "20", "--ids", &ids], 1);
    assert!(errors.contains("50 tokens") && errors.contains("holds 20"), "{errors}");
    let prompt = "Hello world, how are you?";
    let tokens = tokenize(&model, prompt).len();
    let errors = fails(&["run", "-m", &model, "--context", "3", prompt], 1);
    assert!(errors.contains(&format!("{tokens} tokens")) && errors.contains("holds 3"), "{errors}");
    assert!(errors.contains("-c/--context"), "{errors}");
    // Scores need no room behind the prompt, output does.
    ok(&["logits", "-m", &model, "--context", "50", "--ids", &ids]);
    let errors = fails(&["run", "-m", &model, "--context", &tokens.to_string(), prompt], 1);
    assert!(
        errors.contains(&format!("holds {tokens}")) && errors.contains("nothing is left for output"),
        "{errors}"
    );
}

#[test]
fn a_cache_that_does_not_fit_says_what_would() {
    let model = tests("goldens-gguf/llama.gguf");
    let run = |more: &[&str]| fails(&[&["run", "-m", &model, "x"], more].concat(), 1);
    let errors = run(&["--kv-memory", "1"]);
    for part in ["1 B is the limit", "not even the smallest context fits", "KiB", "--kv-memory"] {
        assert!(errors.contains(part), "{errors}");
    }
    let errors = run(&["--kv-memory", "20K", "-c", "100"]);
    for part in
        ["100 tokens", "20.0 KiB is the limit", "at most 32 tokens fits", "-c/--context", "--kv-memory"]
    {
        assert!(errors.contains(part), "{errors}");
    }
    if cfg!(target_os = "linux") {
        let errors = run(&["-c", "1073741824"]);
        assert!(errors.contains("of memory is free") && errors.contains("tokens fits"), "{errors}");
    }
    let errors = fails(&["bench", "-m", &model, "-p", "1073741000", "--probe", "0"], 1);
    assert!(errors.contains("with -p, -n and -d") && !errors.contains("--context"), "{errors}");
}

#[test]
fn an_id_beyond_the_vocabulary_is_an_error() {
    let errors = fails(&["logits", "-m", &tests("goldens-gguf/llama.gguf"), "--ids", "1,320"], 1);
    assert!(errors.contains("320"), "{errors}");
}

#[test]
fn a_system_message_needs_a_template() {
    let model = tests("goldens-gguf/llama.gguf");
    let errors = fails(&["run", "-m", &model, "--system", "Be brief.", "x"], 1);
    assert!(errors.contains("no chat template"), "{errors}");
    fails(&["run", "-m", &model, "--system", "Be brief.", "--raw", "x"], 2);
}

#[test]
fn a_text_that_cannot_be_scored_is_named_with_the_reason() {
    let model = tests("goldens-gguf/llama.gguf");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let refused = |parts: &[&str], more: &[&str]| {
        let errors = fails(&[&["perplexity", "-m", &model, "-f", path], more].concat(), 1);
        assert!(parts.iter().all(|part| errors.contains(part)), "{errors}");
    };
    refused(&[path, "at least 2 tokens"], &[]);
    std::fs::write(path, b"The mill \xff grinds").unwrap();
    refused(&[path, "UTF-8", "byte 9"], &[]);
    std::fs::write(path, "The mill grinds what is brought to it. ".repeat(40)).unwrap();
    refused(&["1024 ids", "holds 100", "--ids-limit", "--context"], &["-c", "100"]);
    file.as_file().set_len((4 << 20) + 1).unwrap();
    refused(&[path, "4.0 MiB", "the beginning"], &[]);
    for (gone, why) in [("no/such.txt", "No such file"), (&*tests("goldens"), "directory")] {
        let errors = fails(&["perplexity", "-m", &model, "-f", gone], 1);
        assert!(errors.contains(gone) && errors.contains(why), "{errors}");
    }
}

#[test]
fn goldens_that_are_not_there_are_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let output = gristmill(&["selftest", "--filter", "no such case", "--goldens", path]);
    assert_eq!(output.status.code(), Some(1));
}

/// Fetching weights would not help where there is no code for the architecture.
#[test]
fn an_architecture_that_is_not_known_is_told_before_missing_weights() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    for index in [false, true] {
        if index {
            write(
                "model.safetensors.index.json",
                r#"{"weight_map": {"a": "model-00001-of-00002.safetensors"}}"#,
            );
        }
        for command in [&["inspect"][..], &["run", "x"], &["logits", "--ids", "1"]] {
            write("config.json", r#"{"model_type": "abacus"}"#);
            let errors = fails(&[command, &["-m", folder]].concat(), 1);
            assert!(errors.contains("abacus") && errors.contains("qwen2"), "{errors}");
            write("config.json", r#"{"model_type": "llama"}"#);
            let errors = fails(&[command, &["-m", folder]].concat(), 1);
            assert!(errors.contains("model.safetensors") || errors.contains("model-00001"), "{errors}");
        }
    }
}

/// A model that is named otherwise than a command line names it.
#[test]
fn who_names_a_model_in_another_way_is_told_how() {
    let model = tests("goldens-gguf/llama.gguf");
    for args in [
        &["inspect", &model][..],
        &["chat", &model],
        &["plan", &model, "-c", "64"],
        &["tokenize", &model, "Hello", "x"],
    ] {
        let word = if args[0] == "tokenize" { "Hello" } else { &model };
        let errors = fails(args, 2);
        let tip = format!("a model is named with -m: gristmill {} -m {word}", args[0]);
        assert!(errors.contains(&tip), "{args:?}: {errors}");
    }
    for args in [&["inspect", "--abacus"][..], &["models", "list", "x"]] {
        let errors = fails(args, 2);
        assert!(!errors.contains("named with -m"), "{args:?}: {errors}");
    }
    for (name, near) in [("smollm2", "did you mean smollm2-135m-instruct?"), ("abacus", "gemma-3-270m")] {
        for args in [&["run", "-m", name, "x"][..], &["inspect", "-m", name], &["pull", name]] {
            let errors = fails(args, 2);
            for part in [near, "qwen2.5-coder-1.5b-instruct", "hf:owner/name"] {
                assert!(errors.contains(part), "{args:?}: {part:?} is not in {errors}");
            }
        }
    }
}

#[test]
fn options_that_take_numbers_say_how_they_are_given() {
    for (args, example) in [
        (&["run", "--temperature", "cold", "x"][..], "must be a number, as in `--temperature 0.7`"),
        (&["run", "--top-p", "x", "x"], "must be a number, as in `--top-p 0.9`"),
        (&["run", "--min-p", "x", "x"], "as in `--min-p 0.05`"),
        (&["run", "--repetition-penalty", "x", "x"], "as in `--repetition-penalty 1.1`"),
        (&["chat", "--presence-penalty", "x"], "as in `--presence-penalty 0.5`"),
        (&["chat", "--frequency-penalty", "x"], "as in `--frequency-penalty 0.5`"),
        (&["chat", "--top-k", "1.5"], "as in `--top-k 40`"),
        (&["run", "--seed", "1.5", "x"], "must be a whole number of at least 0, as in `--seed 1`"),
        (&["run", "--logprobs", "many", "x"], "as in `--logprobs 3`"),
        (&["pull", "--retries", "often", "x"], "as in `--retries 5`"),
    ] {
        let errors = fails(args, 2);
        assert!(errors.contains(example) && errors.contains(args[1]), "{args:?}: {errors}");
        // The example is one that is taken.
        let flag: Vec<&str> = example.split('`').nth(1).unwrap().split(' ').collect();
        let taken = [&args[..1], &flag, &["--no-such-option"]].concat();
        assert!(fails(&taken, 2).contains("--no-such-option"), "{taken:?}");
    }
}

//! What the commands print, against the goldens.

use std::io::Write;
use std::process::Stdio;

use crate::support::*;
use gristmill::{Checkpoint, Detokenizer, tokenizer_of};

#[test]
fn tokenize_prints_the_expected_ids() {
    for (case, model) in [
        ("llama", tests("goldens-gguf/llama.gguf")),
        ("gemma3_text", tests("goldens-gguf/gemma3_text.gguf")),
        ("qwen2", tests("goldens/qwen2")),
    ] {
        let expected = golden_json(case, "tokenizer_expected.json");
        let samples = expected["samples"].as_array().unwrap();
        assert!(samples.len() > 5);
        for sample in samples {
            let text = sample["text"].as_str().unwrap();
            let ids =
                |key: &str| list(&serde_json::from_value::<Vec<u32>>(sample[key].clone()).unwrap()) + "\n";
            let args = ["tokenize", "-m", &model, "--ids", text];
            assert_eq!(ok(&args), ids("ids_with_special"), "{case} {text:?}");
            let args = ["tokenize", "--no-add-special", "-m", &model, "--ids", text];
            assert_eq!(ok(&args), ids("ids"), "{case} {text:?}");
        }
    }
}

#[test]
fn tokenize_parses_special_tokens_unless_told_not_to() {
    let model = tests("goldens-gguf/gemma3_text.gguf");
    let with = ok(&["tokenize", "-m", &model, "--ids", "--no-add-special", "</s>"]);
    let without = ok(&["tokenize", "-m", &model, "--ids", "--no-add-special", "--no-parse-special", "</s>"]);
    assert_eq!(with.trim().split(',').count(), 1, "{with}");
    assert!(without.trim().split(',').count() > 1, "{without}");
}

#[test]
fn tokenize_reads_standard_input_and_texts_that_look_like_options() {
    let model = tests("goldens-gguf/llama.gguf");
    let argument = ok(&["tokenize", "-m", &model, "--ids", "-x 5 --yes"]);
    let mut child = program()
        .args(["tokenize", "-m", &model, "--ids", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"-x 5 --yes").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), argument);
}

#[test]
fn tokenize_shows_pieces() {
    let model = tests("goldens-gguf/llama.gguf");
    let ids = ok(&["tokenize", "-m", &model, "--ids", "Hello"]);
    let pieces = ok(&["tokenize", "-m", &model, "Hello"]);
    let first: Vec<&str> = pieces.lines().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert_eq!(first.join(","), ids.trim());
}

#[test]
fn logits_are_those_of_the_goldens() {
    for (case, model) in [("llama", tests("goldens-gguf/llama.gguf")), ("qwen3", tests("goldens/qwen3"))] {
        let notes = golden_json(case, "expected.json");
        let number = |key: &str| notes[key].as_f64().unwrap();
        let bound = 2e-5 * number("logit_absmax") + 10.0 * number("noise_1e-07");
        let prompt = golden_ids(case, "input_ids");
        let off = |rows: &[Vec<f32>]| {
            let expected = golden_floats(case, "logits");
            assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), expected.len(), "{case}");
            let pairs = rows.iter().flatten().zip(&expected);
            pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
        };
        let rows = logits(&model, &prompt, &[]);
        assert!(off(&rows) <= bound, "{case}: off by {}, allowed are {bound}", off(&rows));
        // One wrong id is seen.
        let mut wrong = prompt.clone();
        wrong[3] = (wrong[3] + 1) % rows[0].len() as u32;
        assert!(off(&logits(&model, &wrong, &[])) > bound, "{case}");
        // The last row alone, and however the prompt is cut, has the same bits.
        assert_eq!(logits(&model, &prompt, &["--rows", "last"]), rows[prompt.len() - 1..]);
        assert_eq!(logits(&model, &prompt, &["--chunk", "7", "--threads", "1"]), rows);

        let greedy = golden_ids(case, "greedy_ids");
        let all = [prompt.as_slice(), &greedy[..greedy.len() - 1]].concat();
        let chosen: Vec<u32> =
            logits(&model, &all, &[])[prompt.len() - 1..].iter().map(|r| argmax(r)).collect();
        assert_eq!(chosen, greedy, "{case}");
    }
}

#[test]
fn run_streams_the_greedy_continuation() {
    let model = tests("goldens-gguf/llama.gguf");
    let prompt = "Hello world";
    let mut ids = tokenize(&model, prompt);
    let start = ids.len();
    for _ in 0..8 {
        let next = argmax(&logits(&model, &ids, &["--rows", "last"])[0]);
        ids.push(next);
    }
    let tokenizer = tokenizer_of(&Checkpoint::open(model.as_ref()).unwrap()).unwrap();
    let mut text = String::new();
    let mut stream = Detokenizer::continuing(&tokenizer, true);
    ids[start..].iter().for_each(|id| text.push_str(stream.push(*id)));
    text.push_str(stream.finish());

    let args = ["run", "-m", &model, "--precision", "exact", "--ignore-eos", "-n", "8", "--raw", prompt];
    assert_eq!(ok(&args), text + "\n");
}

#[test]
fn run_answers_a_chat_turn_where_the_model_has_a_template() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
    let file = with_template(template);
    let model = file.path().to_str().unwrap();
    let run = |more: &[&str]| ok(&[&["run", "-m", model, "-n", "8", "--ignore-eos"], more].concat());
    assert_eq!(run(&["Why?"]), run(&["--raw", "<user>Why?<assistant>"]));
    assert_eq!(
        run(&["--system", "Be brief.", "Why?"]),
        run(&["--raw", "<system>Be brief.<user>Why?<assistant>"])
    );
    assert_ne!(run(&["Why?"]), run(&["--raw", "Why?"]));
}

#[test]
fn run_fills_the_context_and_no_more() {
    let model = tests("goldens-gguf/llama.gguf");
    let prompt = tokenize(&model, "Hello world").len();
    for room in [1, 3] {
        let context = (prompt + room).to_string();
        let args = ["run", "-m", &model, "-c", &context, "--ignore-eos", "--raw", "Hello world"];
        let output = gristmill(&args);
        assert_eq!(output.status.code(), Some(0));
        let notes = String::from_utf8(output.stderr).unwrap();
        let want = format!("{prompt} prompt tokens, {room} generated");
        assert!(notes.contains(&want) && notes.contains("prompt and output fill the context"), "{notes}");
        let asked = room.to_string();
        let limited = ["run", "-m", &model, "-n", &asked, "--ignore-eos", "--raw", "Hello world"];
        assert_eq!(String::from_utf8(output.stdout).unwrap(), ok(&limited));
    }
}

#[test]
fn a_context_longer_than_trained_is_warned_of() {
    let model = tests("goldens-gguf/llama.gguf");
    let ids = list(&[5, 17, 9]);
    for command in [&["logits", "--ids", &ids][..], &["run", "-n", "2", "Hello"], &["plan"]] {
        let stderr = |context: &str| {
            let output = gristmill(&[command, &["-m", &model, "-c", context]].concat());
            assert_eq!(output.status.code(), Some(0));
            String::from_utf8(output.stderr).unwrap()
        };
        let warned = stderr("513");
        assert!(warned.contains("warning: a context of 513 tokens is longer than the 512"), "{warned}");
        assert!(!stderr("512").contains("warning"));
    }
}

#[test]
fn run_draws_the_same_with_the_same_seed() {
    let model = tests("goldens-gguf/llama.gguf");
    let draw = |seed: &str| {
        let sampling = ["--temperature", "2", "--top-k", "50", "--seed", seed, "-n", "24", "--ignore-eos"];
        ok(&[&["run", "-m", &model, "--raw", "Hello world"], &sampling[..]].concat())
    };
    assert_eq!(draw("7"), draw("7"));
    assert_ne!(draw("7"), draw("8"));
}

#[test]
fn run_says_what_it_chose_and_that_a_base_model_continues() {
    let model = tests("goldens-gguf/llama.gguf");
    let output = gristmill(&["run", "-m", &model, "--context", "64", "-n", "2", "Hello"]);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("context 64 tokens") && notes.contains("KV pool 64 tokens"), "{notes}");
    assert!(notes.contains("no chat template"), "{notes}");
    assert!(!notes.contains('\x1b'), "colours are for terminals");
}

/// Each command that runs a model takes the type of its cache, and says which one it has.
#[test]
fn the_type_of_the_cache_is_chosen() {
    let model = tests("goldens-gguf/llama.gguf");
    let run = |kv: &[&str]| -> serde_json::Value {
        let args = ["run", "-m", &model, "--raw", "-n", "2", "--ignore-eos", "--json", "-c", "64", "Hello"];
        serde_json::from_str(&ok(&[&args[..], kv].concat())).unwrap()
    };
    let logits = |kv: &[&str]| -> String {
        let args = ["logits", "-m", &model, "--ids", "5,17,9,4", "--rows", "last", "--format", "json"];
        ok(&[&args[..], kv].concat())
    };
    let (mut all, mut sizes, mut answers) = (vec![], vec![], vec![]);
    for kv_type in ["f32", "f16", "q8_0"] {
        let kv = ["--kv-type", kv_type];
        let answer = run(&kv);
        assert_eq!(answer["kv_type"], kv_type);
        all.push(answer["fingerprint"].as_str().unwrap().to_owned());
        answers.push(logits(&kv));
        let inspect = ok(&[&["inspect", "--json", "-m", &model, "-c", "64"][..], &kv].concat());
        let inspect: serde_json::Value = serde_json::from_str(&inspect).unwrap();
        assert_eq!(inspect["memory"]["kv_type"], kv_type);
        sizes.push(inspect["memory"]["cache_bytes"].as_u64().unwrap());
        let plan = ok(&[&["plan", "-m", &model, "-c", "64"][..], &kv].concat());
        assert!(plan.contains(&format!("blocks of {kv_type}, ")), "{plan}");
        let bench = ["bench", "-m", &model, "-p", "4", "-n", "2", "-r", "1", "--probe", "0", "-o", "json"];
        let bench: serde_json::Value = serde_json::from_str(&ok(&[&bench[..], &kv].concat())).unwrap();
        assert_eq!(bench[0]["type_k"], kv_type);
        assert_eq!(bench[0]["type_v"], kv_type);
    }
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2], "{all:?}");
    assert!(answers[0] != answers[1] && answers[1] != answers[2], "nothing was rounded");
    assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2], "{sizes:?}");
    // As the precision has them, where none is given.
    let default = |precision| run(&["--precision", precision])["kv_type"].as_str().unwrap().to_owned();
    assert_eq!((default("exact"), default("fast")), ("f32".to_owned(), "f16".to_owned()));
}

#[test]
fn perplexity_is_that_of_the_logits() {
    let model = tests("goldens-gguf/llama.gguf");
    let text = "The mill grinds what is brought to it, and nothing else.";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, text).unwrap();
    let file = file.path().to_str().unwrap();
    let mut ids = tokenize(&model, text);
    ids.truncate(20);
    let rows = logits(&model, &ids, &[]);
    let nll = |(row, id): (&Vec<f32>, &u32)| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        sum.ln() - f64::from(row[*id as usize])
    };
    let mean = rows.iter().zip(&ids[1..]).map(nll).sum::<f64>() / 19.0;

    let args =
        ["perplexity", "-m", &model, "-f", file, "--ids-limit", "20", "--precision", "exact", "--json"];
    let answer: serde_json::Value = serde_json::from_str(&ok(&args)).unwrap();
    assert_eq!((answer["tokens"].as_u64(), answer["scored"].as_u64()), (Some(20), Some(19)));
    let ppl = answer["ppl"].as_f64().unwrap();
    assert!((ppl / mean.exp() - 1.0).abs() < 1e-9, "{ppl} and {}", mean.exp());
    assert!(ok(&args[..args.len() - 1]).starts_with(&format!("ppl {ppl:.4}")));
}

#[test]
fn inspect_describes_models_and_files_it_cannot_run() {
    let json = |path: &str| -> serde_json::Value {
        serde_json::from_str(&ok(&["inspect", "--json", "-m", &tests(path)])).unwrap()
    };
    let gguf = json("goldens-gguf/llama.gguf");
    assert_eq!(gguf["model"]["architecture"], "llama");
    assert_eq!(gguf["model"]["vocab"], 320);
    assert_eq!(gguf["metadata"]["general.architecture"], "llama");
    assert_eq!(gguf["metadata"]["tokenizer.ggml.tokens"]["type"], "strings");
    assert!(gguf["memory"]["cache_bytes"].as_u64().unwrap() > 0);
    let folder = json("goldens/llama");
    assert_eq!(folder["model"]["parameters"], gguf["model"]["parameters"]);
    assert_eq!(folder["tensors"].as_array().unwrap().len(), gguf["tensors"].as_array().unwrap().len());
    let foreign = json("goldens-gguf/bert.gguf");
    assert!(foreign["model"].is_null() && foreign["problem"].as_str().unwrap().contains("bert"));
    assert!(!foreign["tensors"].as_array().unwrap().is_empty());

    let text = ok(&["inspect", "-m", &tests("goldens-gguf/llama.gguf")]);
    assert!(text.contains("architecture  llama") && text.contains("token_embd.weight"), "{text}");
}

#[test]
fn plan_shows_kernels_and_memory() {
    let text = ok(&["plan", "-m", &tests("goldens-gguf/llama.gguf"), "--context", "100"]);
    for part in ["context      100 tokens", "fingerprint", "matmul", "attention", "memory: arena"] {
        assert!(text.contains(part), "{part} is missing from\n{text}");
    }
}

#[test]
fn bench_prints_the_rows_of_llama_bench() {
    let model = tests("goldens-gguf/llama.gguf");
    let bench = |format: &str| {
        let tests = ["-p", "8,0", "-n", "4", "-d", "0,3", "-r", "2", "--probe", "8M", "-t", "1"];
        ok(&[&["bench", "-m", &model, "--precision", "fast", "-o", format], &tests[..]].concat())
    };
    let rows: Vec<serde_json::Value> = serde_json::from_str(&bench("json")).unwrap();
    let names: Vec<&str> = rows.iter().map(|r| r["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp8", "tg4", "pp8 @ d3", "tg4 @ d3"]);
    // A prompt at a depth is the difference of two times, which on so small a model may be nothing.
    for row in rows.iter().filter(|r| r["n_gen"] != 0 || r["n_depth"] == 0) {
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["samples_ts"].as_array().unwrap().len(), 2);
        assert!(row["load_ns"].as_u64().unwrap() > 0);
        let share = if row["n_gen"] == 0 { "int_share" } else { "read_share" };
        let share = row[share].as_f64().unwrap_or_else(|| panic!("no {share} in {row}"));
        assert!(share > 0.0, "{row}");
        if cfg!(target_os = "linux") {
            assert!(row["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
        }
    }
    let table = bench("md");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2 + rows.len());
    assert!(lines[0].starts_with("| model ") && lines[0].contains("| t/s |") || lines[0].contains(" t/s |"));
    assert!(lines.iter().all(|l| l.matches('|').count() == 9), "{table}");
    let csv = bench("csv");
    assert_eq!(csv.lines().count(), 1 + rows.len());
    assert!(csv.starts_with("model_filename,model_type,"), "{csv}");
}

#[test]
fn selftest_runs_cases_and_goldens() {
    let (goldens, gguf) = (tests("goldens"), tests("goldens-gguf"));
    let text = ok(&["selftest", "--filter", "rms_norm"]);
    assert!(text.contains("rms_norm") && !text.contains("matmul"), "{text}");
    let args = ["selftest", "--filter", "llama_yarn", "--goldens", &goldens, "--goldens-gguf", &gguf];
    let text = ok(&args);
    assert!(text.contains("2 passed, 0 failed, 0 not tried"), "{text}");
    assert!(text.contains("llama_yarn.gguf") && text.contains("ok worst 0."), "{text}");
}

#[test]
fn selftest_sees_wrong_answers() {
    // The answers of one golden beside the checkpoint of another.
    let dir = tempfile::tempdir().unwrap();
    let case = dir.path().join("mixed");
    std::fs::create_dir(&case).unwrap();
    for (from, file) in [
        ("llama", "config.json"),
        ("llama", "model.safetensors"),
        ("llama_yarn", "expected.json"),
        ("llama_yarn", "expected.safetensors"),
    ] {
        std::fs::copy(tests(&format!("goldens/{from}/{file}")), case.join(file)).unwrap();
    }
    let output = gristmill(&["selftest", "--filter", "mixed", "--goldens", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("FAILED"));
}

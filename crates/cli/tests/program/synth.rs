//! Synthetic models are written, run, and the same every time.

use crate::support::*;

fn write(dir: &std::path::Path, name: &str, more: &[&str]) -> String {
    let path = dir.join(name).to_str().unwrap().to_owned();
    ok(&[&["synth", "--shape", "tiny"], more, &[&path]].concat());
    path
}

#[test]
fn a_tiny_model_is_written_and_runs_in_every_type() {
    let dir = tempfile::tempdir().unwrap();
    for quant in ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"] {
        let model = write(dir.path(), &format!("{quant}.gguf"), &["--quant", quant]);
        assert_eq!(ok(&["tokenize", "-m", &model, "--ids", "a\u{e9}"]).trim(), "97,195,169");
        for precision in ["exact", "fast"] {
            let ids = ["logits", "-m", &model, "--ids", "1,2,3,4,5,300", "--precision", precision];
            let printed: serde_json::Value = serde_json::from_str(&ok(&ids)).unwrap();
            let rows: Vec<Vec<f32>> = serde_json::from_value(printed["logits"].clone()).unwrap();
            assert_eq!((rows.len(), rows[0].len()), (6, 512));
            for row in rows {
                let mean = row.iter().sum::<f32>() / 512.0;
                let deviation = (row.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 512.0).sqrt();
                // Unit values in, unit values out.
                assert!((0.3..3.0).contains(&deviation), "{quant} {precision}: {deviation}");
            }
        }
    }
}

#[test]
fn a_synthetic_model_answers_and_is_benched() {
    let dir = tempfile::tempdir().unwrap();
    let model = write(dir.path(), "m.gguf", &["--quant", "q4_0"]);
    assert!(!ok(&["run", "-m", &model, "-n", "8", "--ignore-eos", "Hello"]).is_empty());
    let table = ok(&["bench", "-m", &model, "-p", "8", "-n", "4", "-r", "1", "--probe", "0"]);
    assert!(table.contains("pp8") && table.contains("tg4") && table.contains("Q4_0"), "{table}");
}

#[test]
fn a_mixture_of_experts_is_written_with_as_many_layers_as_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf").to_str().unwrap().to_owned();
    for (layers, more) in [(2, &[][..]), (1, &["--layers", "1"]), (3, &["--layers", "3"])] {
        ok(&[&["synth", "--shape", "tiny-moe", "--quant", "q4_k"], more, &[&path]].concat());
        let shown = ok(&["inspect", "-m", &path]);
        let last = format!("blk.{}.ffn_down_exps.weight", layers - 1);
        assert!(shown.contains(&last) && !shown.contains(&format!("blk.{layers}.")), "{shown}");
        assert!(!ok(&["run", "-m", &path, "-n", "8", "--ignore-eos", "Hello"]).is_empty());
    }
    let errors = fails(&["synth", "--shape", "tiny-moe", "--quant", "q4_k", "--layers", "0", &path], 2);
    assert!(errors.contains("from 1 to 1000"), "{errors}");
}

#[test]
fn a_seed_is_a_model_whatever_the_threads() {
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str, more: &[&str]| {
        std::fs::read(write(dir.path(), name, &[&["--quant", "q8_0"], more].concat())).unwrap()
    };
    let one = read("a", &["--threads", "1"]);
    assert!(one == read("b", &["--threads", "5", "--seed", "0"]));
    assert!(one != read("c", &["--seed", "1"]));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn what_cannot_be_written_is_refused_with_the_reason() {
    let errors = fails(&["synth", "--shape", "tiny", "--quant", "q9", "x"], 2);
    assert!(errors.contains("Q4_0") && errors.contains("BF16"), "{errors}");
    let errors = fails(&["synth", "--shape", "huge", "--quant", "q4_0", "x"], 2);
    assert!(errors.contains("huge") && errors.contains("qwen3-8b"), "{errors}");
    let errors = fails(&["synth", "--shape", "gemma-3-1b", "--quant", "q4_k", "x"], 2);
    assert!(errors.contains("1152") && errors.contains("256"), "{errors}");
    let errors = fails(&["synth", "--shape", "tiny", "--quant", "q4_0", "no/such/folder/x.gguf"], 1);
    assert!(errors.contains("no/such/folder/x.gguf"), "{errors}");
    let errors = fails(&["synth", "--shape", "tiny", "--quant", "q4_0", &tests("goldens")], 1);
    assert!(errors.contains("goldens cannot be written: it is a folder"), "{errors}");
}

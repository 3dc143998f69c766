//! Quantised files are read by this program, and what cannot be done is refused in words.

use crate::support::*;

fn synth(dir: &std::path::Path, quant: &str) -> String {
    let path = dir.join(format!("{quant}.gguf")).to_str().unwrap().to_owned();
    ok(&["synth", "--shape", "tiny", "--quant", quant, &path]);
    path
}

fn answers(model: &str) -> Vec<f32> {
    logits(model, &[1, 2, 3, 300], &[]).concat()
}

/// The distance of two answers as a share of their size.
fn off(a: &[f32], b: &[f32]) -> f32 {
    let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|v| v * v).sum::<f32>().sqrt();
    squares(&mut a.iter().zip(b).map(|(a, b)| a - b)) / squares(&mut a.iter().copied())
}

#[test]
fn every_mix_gives_a_model_that_answers_nearly_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let model = synth(dir.path(), "f32");
    let want = answers(&model);
    let mut sizes = vec![];
    for (mix, near) in [
        ("f32", 1e-7),
        ("F16", 1e-3),
        ("bf16", 1e-2),
        ("q8_0", 0.02),
        ("q6_k", 0.06),
        ("q5_k_m", 0.12),
        ("q5_1", 0.12),
        ("q5_0", 0.14),
        ("q4_k_m", 0.25),
        ("q4_1", 0.25),
        ("q4_0", 0.3),
        ("iq4_nl", 0.25),
        ("iq4_xs", 0.25),
        ("mxfp4_moe", 0.02),
        ("q3_k_m", 0.5),
        ("q2_k", 1.0),
    ] {
        let out = dir.path().join(format!("out-{mix}.gguf")).to_str().unwrap().to_owned();
        ok(&["quantize", &model, &out, mix]);
        let off = off(&want, &answers(&out));
        println!("{mix}: {off}");
        assert!(off <= near, "{mix}: {off}");
        sizes.push((mix, std::fs::metadata(&out).unwrap().len()));
        let again = dir.path().join("again.gguf").to_str().unwrap().to_owned();
        ok(&["quantize", &model, &again, mix, "-t", "3"]);
        assert!(std::fs::read(&out).unwrap() == std::fs::read(&again).unwrap(), "{mix} with other threads");
    }
    assert!(sizes[0].1 > 6 * sizes[10].1, "{sizes:?}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{left:?}");
}

#[test]
fn types_can_be_chosen_for_each_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let model = synth(dir.path(), "f16");
    let out = dir.path().join("out.gguf").to_str().unwrap().to_owned();
    ok(&[
        "quantize",
        &model,
        &out,
        "q4_0",
        "--tensor-type",
        "blk.0.*ffn_down=q8_0",
        "--tensor-type",
        "attn_k=bf16",
    ]);
    let shown: serde_json::Value = serde_json::from_str(&ok(&["inspect", "-m", &out, "--json"])).unwrap();
    let of = |name: &str| {
        let tensors = shown["tensors"].as_array().unwrap();
        tensors.iter().find(|t| t["name"] == name).unwrap()["type"].as_str().unwrap().to_owned()
    };
    assert_eq!(of("blk.0.ffn_down.weight"), "Q8_0");
    assert_eq!(of("blk.1.ffn_down.weight"), "Q4_0");
    assert_eq!(of("blk.1.attn_k.weight"), "BF16");
    assert_eq!(of("blk.1.attn_norm.weight"), "F32");
}

#[test]
fn what_cannot_be_done_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let model = synth(dir.path(), "f16");
    let out = dir.path().join("out.gguf").to_str().unwrap().to_owned();
    for (args, code, words) in [
        (vec!["quantize", &model, &model, "q8_0"], 2, "give another name"),
        (vec!["quantize", &model, &out, "q9_0"], 2, "possible values"),
        (vec!["quantize", &model, &out, "q8_0", "--tensor-type", "nothing=q4_0"], 2, "no tensor"),
        (
            vec![
                "quantize",
                &model,
                &out,
                "q8_0",
                "--tensor-type",
                "attn*=q4_0",
                "--tensor-type",
                "attn_k=bf16",
            ],
            2,
            "earlier pattern",
        ),
        (vec!["quantize", &model, &out, "q8_0", "--tensor-type", "attn_k=iq1_s"], 2, "is none of"),
        (vec!["quantize", &model, &out, "q8_0", "--imatrix", &model], 1, "has no entries"),
        (vec!["quantize", &model, "/no/such/folder/x.gguf", "q8_0"], 1, "x.gguf cannot be written"),
    ] {
        let error = fails(&args, code);
        assert!(error.contains(words), "{args:?}: {error}");
    }
    assert!(!std::path::Path::new(&out).exists());
}

//! Quantised files are read by this program, and what cannot be done is refused in words.

use gristmill::parts::formats::gguf::{GgmlType, GgufWriter, Value};
use gristmill::parts::tensor::DType;

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
        ok(&["quantize", &model, &again, mix, "-t", "3", "--force"]);
        assert!(std::fs::read(&out).unwrap() == std::fs::read(&again).unwrap(), "{mix} with other threads");
    }
    assert!(sizes[0].1 > 6 * sizes[10].1, "{sizes:?}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{left:?}");
}

/// A file that takes a while: 16 matrices of half precision, and nothing else of a model.
fn large(dir: &std::path::Path) -> String {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama".into()));
    for layer in 0..16 {
        let name = format!("blk.{layer}.ffn_down.weight");
        writer.declare(&name, GgmlType::try_from(DType::F16).unwrap(), &[1024, 1024]).unwrap();
    }
    let head = writer.head().unwrap();
    let mut bytes = head.bytes.clone();
    bytes.resize(head.len as usize, 0);
    for place in &head.places {
        let values = bytes[place.start as usize..place.end as usize].chunks_exact_mut(2).enumerate();
        // Halves from 0.25 to 4, in no order.
        values.for_each(|(i, half)| {
            half.copy_from_slice(&(0x3400 + (i * 2_654_435_761 % 0x1000) as u16).to_le_bytes())
        });
    }
    let path = dir.join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Killed for real, at several points: the name stands for what it stood for before, and the next run cleans up.
#[test]
fn a_killed_run_leaves_the_old_file_and_the_next_one_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let model = large(dir.path());
    let out = dir.path().join("out.gguf");
    let args = ["quantize", &model, out.to_str().unwrap(), "q4_k_m", "-t", "1", "--force"];
    let left = || {
        let names =
            std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|n| n != "model.gguf").collect();
        names.sort();
        names
    };
    for old in [None, Some("what was there before")] {
        if let Some(old) = old {
            std::fs::write(&out, old).unwrap();
        }
        for wait in [0, 5, 50, 200] {
            let before = left();
            let mut child = program().args(args).stderr(std::process::Stdio::null()).spawn().unwrap();
            // From when its own unfinished file is there, not that of the run before.
            while !left().iter().any(|name| name.ends_with(".part") && !before.contains(name)) {
                assert!(child.try_wait().unwrap().is_none(), "it ended too early to be killed");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            std::thread::sleep(std::time::Duration::from_millis(wait));
            child.kill().unwrap();
            assert!(!child.wait().unwrap().success(), "it was too fast to be killed");
            assert_eq!(std::fs::read_to_string(&out).ok().as_deref(), old);
            let parts: Vec<_> = left().into_iter().filter(|name| name.ends_with(".part")).collect();
            assert_eq!(parts.len(), 1, "{parts:?}");
            let part = std::fs::read(dir.path().join(&parts[0])).unwrap();
            assert!(part.len() < 4 || part[..4] == [0; 4], "what is left could be taken for a model");
        }
        ok(&args);
        assert_eq!(left(), ["out.gguf"]);
        ok(&["inspect", "-m", out.to_str().unwrap()]);
    }
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

/// A folder and the file it becomes give the same bits, ids and templates.
#[test]
fn folders_become_files_that_give_the_same_answers() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf").to_str().unwrap().to_owned();
    for case in checks::goldens::CASES {
        let folder = tests(&format!("goldens/{case}"));
        let shown: serde_json::Value =
            serde_json::from_str(&ok(&["inspect", "-m", &folder, "--json"])).unwrap();
        let types = shown["tensors"].as_array().unwrap().iter();
        let mix = if types.clone().any(|t| t["type"] == "BF16") { "bf16" } else { "f32" };
        ok(&["quantize", &folder, &out, mix, "--force"]);
        let ids = golden_ids(case, "input_ids");
        let (want, have) = (logits(&folder, &ids, &[]), logits(&out, &ids, &[]));
        // The divisors of Llama 3.1 are rounded in files.
        let same = |a: &f32, b: &f32| a == b || (*case == "llama3_rope" && (a - b).abs() < 1e-4);
        let all = |rows: &[Vec<f32>]| rows.concat();
        assert!(all(&want).iter().zip(&all(&have)).all(|(a, b)| same(a, b)), "{case}");
        for text in ["the quick brown fox jumps", " over 12 lazy dogs'\n\n ü 你", "<s>a<|im_end|> b"] {
            assert_eq!(tokenize(&folder, text), tokenize(&out, text), "{case} {text:?}");
        }
        ok(&["quantize", &folder, &out, "q8_0", "--force"]);
        ok(&["plan", "-m", &out]);
    }
    // A template, several ends of generation, and fewer bits.
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    copy_folder("qwen2", &folder);
    std::fs::write(
        folder.join("chat_template.jinja"),
        "{% for m in messages %}[{{ m.content }}]{% endfor %}",
    )
    .unwrap();
    std::fs::write(folder.join("generation_config.json"), "{\"eos_token_id\": [2, 4, 7]}").unwrap();
    let folder = folder.to_str().unwrap();
    ok(&["quantize", folder, &out, "bf16", "--force"]);
    for args in [&["run", "-n", "8", "hi"][..], &["run", "-n", "3", "--raw", "the"]] {
        let with = |model: &str| ok(&[args, &["-m", model]].concat());
        assert_eq!(with(folder), with(&out));
    }
}

#[test]
fn folders_that_cannot_be_converted_are_refused_by_what_is_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf").to_str().unwrap().to_owned();
    for (folder, words) in [
        ("fixtures/models/qwen2_window", "sliding_window"),
        ("fixtures/models/llama_dynamic", "dynamic"),
        ("goldens/gpt2", "gpt2"),
    ] {
        let errors = fails(&["quantize", &tests(folder), &out, "q8_0"], 1);
        assert!(errors.contains(words), "{folder}: {errors}");
        assert!(!std::path::Path::new(&out).exists());
    }
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

#[test]
fn a_file_that_is_there_is_written_over_on_demand_alone() {
    let dir = tempfile::tempdir().unwrap();
    let model = synth(dir.path(), "q4_0");
    let out = dir.path().join("out.gguf").to_str().unwrap().to_owned();
    std::fs::write(&out, "of somebody else").unwrap();
    let errors = fails(&["quantize", &model, &out, "F16"], 2);
    assert!(errors.contains("out.gguf is there already") && errors.contains("--force"), "{errors}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "of somebody else");
    let output = gristmill(&["quantize", &model, &out, "F16", "--force"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.contains("is larger than what it was made of: F16"),
        "{errors}"
    );
    // No word of that where the file became smaller.
    let small = dir.path().join("small.gguf").to_str().unwrap().to_owned();
    let output = gristmill(&["quantize", &out, &small, "Q4_0"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("larger"), "{errors}");
}

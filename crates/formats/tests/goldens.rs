//! Every golden checkpoint opens, and both containers agree where they store the same tensor.

use std::path::{Path, PathBuf};

use gristmill_formats::{Checkpoint, Container, HfFile};
use tensor::{DType, blocks};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(name)
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let listing = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    listing.map(|entry| entry.expect("a directory entry").path()).collect()
}

fn decoded(checkpoint: &Checkpoint, name: &str) -> (Vec<usize>, Vec<f32>) {
    let view = checkpoint.tensor(name).expect("a tensor");
    let mut values = vec![0.0; view.shape.iter().product()];
    blocks::decode(view.dtype, view.bytes, &mut values).expect("bytes that fit the shape");
    (view.shape, values)
}

#[test]
fn every_gguf_golden_opens() {
    let files: Vec<_> = entries(&folder("goldens-gguf"))
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    assert!(files.len() >= 11, "{} files", files.len());
    for path in files {
        let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(checkpoint.container(), Container::Gguf);
        let metadata = checkpoint.gguf().expect("metadata");
        let arch: &str = metadata.require("general.architecture").expect("an architecture");
        let blocks: usize = metadata.require(&format!("{arch}.block_count")).expect("a block count");
        assert!(blocks > 0 && checkpoint.config().is_none(), "{}", path.display());
        assert!(checkpoint.tensor_names().count() > blocks, "{}", path.display());
        for name in checkpoint.tensor_names() {
            decoded(&checkpoint, name);
        }
    }
}

#[test]
fn every_hugging_face_golden_opens() {
    // Cases of families that do not run yet are kept without their weights.
    let dirs: Vec<_> =
        entries(&folder("goldens")).into_iter().filter(|p| p.join("model.safetensors").exists()).collect();
    assert!(dirs.len() >= 11, "{} folders", dirs.len());
    for dir in dirs {
        let checkpoint = match Checkpoint::open(&dir) {
            Ok(checkpoint) => checkpoint,
            // Not strict JSON, as the README of the goldens says.
            Err(e) if e.to_string().contains("config.json: not valid JSON") => {
                let config = std::fs::read_to_string(dir.join("config.json")).expect("config.json");
                assert!(config.contains("Infinity"), "{e}");
                continue;
            }
            Err(e) => panic!("{e}"),
        };
        assert_eq!(checkpoint.container(), Container::HuggingFace);
        assert!(checkpoint.config().expect("a config")["model_type"].is_string(), "{}", dir.display());
        assert!(checkpoint.gguf().is_none());
        let has_tokenizer = checkpoint.hf_file(HfFile::Tokenizer).expect("readable").is_some();
        assert_eq!(has_tokenizer, dir.join("tokenizer.json").exists());
        for entry in checkpoint.tensors() {
            match entry.dtype {
                Some(_) => drop(decoded(&checkpoint, entry.name)),
                None => {
                    let error = checkpoint.tensor(entry.name).unwrap_err().to_string();
                    assert!(error.contains(entry.name) && error.contains(entry.type_name), "{error}");
                }
            }
        }
    }
}

#[test]
fn both_containers_hold_the_same_numbers() {
    // Tensors that conversion only renames; norms may widen to F32.
    let same = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"),
        ("blk.1.attn_norm.weight", "model.layers.1.input_layernorm.weight"),
    ];
    for case in ["llama", "qwen2", "qwen3"] {
        let gguf =
            Checkpoint::open(&folder("goldens-gguf").join(format!("{case}.gguf"))).expect("a GGUF file");
        let hf = Checkpoint::open(&folder("goldens").join(case)).expect("a folder");
        for (in_gguf, in_hf) in same {
            assert_eq!(decoded(&gguf, in_gguf), decoded(&hf, in_hf), "{case}: {in_gguf}");
        }
        let embedding = gguf.tensor(same[0].0).expect("the embedding");
        assert!(matches!(embedding.dtype, DType::F32 | DType::F16 | DType::BF16), "{case}");
    }
}

//! What is not understood is refused, and the message names it.

mod common;

use std::sync::Arc;

use checks::goldens::CASES;
use common::{open, tests};
use formats::Checkpoint;
use gristmill_models::{Model, ModelError};
use serde_json::{Value, json};

type Header = serde_json::Map<String, Value>;

/// Opens the golden `case` with its config.json and its weights, header and data, edited.
fn edited(
    case: &str,
    config: impl FnOnce(&mut Value),
    weights: impl FnOnce(&mut Header, &mut [u8]),
) -> Result<Model, ModelError> {
    let from = tests().join("goldens").join(case);
    let dir = tempfile::tempdir().unwrap();
    let mut json: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config(&mut json);
    std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut map: Header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    weights(&mut map, &mut bytes[8 + length..]);
    let mut text = Value::Object(map).to_string();
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text.as_bytes());
    file.extend(&bytes[8 + length..]);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    Model::open(Arc::new(Checkpoint::open(dir.path()).unwrap()))
}

/// The message of a golden opened with one key changed.
fn with_key(case: &str, key: &str, value: Value) -> String {
    message(edited(case, |c| c[key] = value, |_, _| {}))
}

fn message(result: Result<Model, ModelError>) -> String {
    match result {
        Ok(model) => panic!("opened as {:?}", model.info()),
        Err(e) => e.to_string(),
    }
}

/// The message of a GGUF golden with bytes replaced by as many others.
fn patched(case: &str, from: &[u8], to: &[u8]) -> String {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(tests().join(format!("goldens-gguf/{case}.gguf"))).unwrap();
    let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    message(Model::open(Arc::new(Checkpoint::from_bytes(bytes).unwrap())))
}

fn assert_names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn unedited_goldens_open() {
    for case in CASES {
        edited(case, |_| {}, |_, _| {}).unwrap();
    }
}

/// The style that transformers 5 writes: `rope_parameters`, `layer_types`, `dtype`, every default filled in.
#[test]
fn resolved_configurations_are_the_same_models() {
    for case in CASES {
        let path = tests().join("goldens").join(case).join("config_resolved.json");
        let resolved: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let a = edited(case, |c| *c = resolved, |_, _| {}).unwrap();
        let b = open(&tests().join("goldens").join(case));
        assert_eq!(a.info(), b.info(), "{case}");
    }
}

#[test]
fn unknown_keys_are_named() {
    assert_names(
        &with_key("llama", "residual_multiplier", json!(0.2)),
        &["residual_multiplier = 0.2", "llama"],
    );
    assert_names(&with_key("llama", "quantization_config", json!({"bits": 4})), &["quantization_config"]);
    assert_names(&with_key("llama", "partial_rotary_factor", json!(0.5)), &["partial_rotary_factor = 0.5"]);
    // A flag that another family knows.
    assert_names(&with_key("mistral", "attention_bias", json!(true)), &["attention_bias = true"]);
    assert_names(
        &patched("llama", b"llama.rope.dimension_count", b"llama.rope.dimension_coumt"),
        &["llama.rope.dimension_coumt", "u32 16"],
    );
}

#[test]
fn values_without_code_are_named() {
    for (case, key, value) in [
        ("llama", "hidden_act", json!("relu2")),
        ("gemma3_text", "final_logit_softcapping", json!(30.0)),
        ("gemma3_text", "attn_logit_softcapping", json!(50.0)),
        ("gemma3_text", "use_bidirectional_attention", json!(true)),
        ("lfm2", "use_pos_enc", json!(false)),
        ("lfm2", "block_use_swiglu", json!(false)),
        ("lfm2", "conv_L_cache", json!(1)),
    ] {
        assert_names(&with_key(case, key, value.clone()), &[key, &value.to_string().replace('"', "")]);
    }
    let types = json!(["full_attention", "chunked_attention"]);
    assert_names(&with_key("qwen3", "layer_types", types), &["layer_types", "chunked_attention"]);
    let rope = json!({"rope_type": "ntk", "factor": 2.0});
    assert_names(&with_key("llama", "rope_scaling", rope), &["rope_scaling.rope_type", "ntk", "yarn"]);
    let rope = json!({"rope_type": "linear", "factor": 2.0, "swing": 3});
    assert_names(&with_key("llama", "rope_scaling", rope), &["rope_scaling.swing = 3"]);
}

#[test]
fn values_without_meaning_are_named() {
    for (case, key, value) in [
        ("llama", "hidden_size", json!(-64)),
        ("llama", "num_hidden_layers", json!(1_000_000_000)),
        ("llama", "num_key_value_heads", json!(3)),
        ("llama", "rms_norm_eps", json!("small")),
        ("llama", "head_dim", json!(2_000_000_000)),
        ("llama", "tie_word_embeddings", json!(1)),
        ("qwen3_moe", "num_experts_per_tok", json!(9)),
    ] {
        assert_names(&with_key(case, key, value.clone()), &[key, &value.to_string()]);
    }
    assert_names(&with_key("llama", "head_dim", json!(15)), &["head_dim", "15", "even"]);
    assert_names(&with_key("llama", "hidden_size", Value::Null), &["hidden_size", "missing"]);
    assert_names(&with_key("qwen3", "layer_types", json!(["full_attention"])), &["layer_types", "2 long"]);
    let rope = json!({"rope_type": "llama3", "factor": 2.0});
    assert_names(&with_key("llama", "rope_scaling", rope), &["low_freq_factor", "missing"]);
}

#[test]
fn unknown_architectures_list_the_known() {
    assert_names(
        &with_key("llama", "model_type", json!("mamba")),
        &["`model_type` = \"mamba\"", "qwen3_moe"],
    );
    let classes = json!(["LlamaForSequenceClassification"]);
    let parts = ["`architectures`", "LlamaForSequenceClassification", "LlamaForCausalLM or absent"];
    assert_names(&with_key("llama", "architectures", classes), &parts);
    assert_names(
        &patched("qwen2", b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0qwen9"),
        &["qwen9", "gemma3"],
    );
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let renamed = edited(
        "llama",
        |_| {},
        |h, _| {
            let tensor = h.remove(name).unwrap();
            h.insert("model.layers.1.mlp.sideways.weight".to_owned(), tensor);
        },
    );
    assert_names(
        &message(renamed),
        &[
            "model.layers.1.mlp.up_proj.weight is missing, expected shape [128, 64]",
            "model.layers.1.mlp.sideways.weight (shape [128, 64]) has no place",
        ],
    );
    let turned = edited("llama", |_| {}, |h, _| h[name]["shape"] = json!([64, 128]));
    assert_names(&message(turned), &[name, "has shape [64, 128], expected [128, 64]"]);
    // One layer fewer must not pass as a shallower model.
    let all = with_key("llama", "num_hidden_layers", json!(1));
    assert_names(&all, &["model.layers.1.self_attn.q_proj.weight (shape [64, 64]) has no place"]);
    assert_names(&with_key("llama", "vocab_size", json!(319)), &["model.embed_tokens.weight", "[320, 64]"]);
    let tensor = patched("llama", b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight");
    assert_names(&tensor, &["blk.1.ffn_up.weight is missing", "blk.1.ffn_uq.weight (shape [128, 64])"]);
    let experts = with_key("qwen3_moe", "num_experts", json!(9));
    assert_names(&experts, &["model.layers.0.mlp.experts.8.gate_proj.weight is missing"]);
}

/// Tokens that the vocabulary of 320 does not have, alone or in a list.
#[test]
fn tokens_beyond_the_vocabulary_are_named() {
    for (key, value) in [
        ("bos_token_id", json!(320)),
        ("eos_token_id", json!(320)),
        ("eos_token_id", json!([2, 319, 320])),
        ("eos_token_id", json!([2, [3]])),
        ("pad_token_id", json!(4_294_967_295_u32)),
        ("bos_token_id", json!([1, 2])),
    ] {
        assert_names(&with_key("llama", key, value.clone()), &[key, &value.to_string(), "vocabulary, 320"]);
    }
    edited("llama", |c| c["eos_token_id"] = json!([2, 319, 5]), |_, _| {}).unwrap();
    // Old files have -1 for no padding.
    edited("llama", |c| c["pad_token_id"] = json!(-1), |_, _| {}).unwrap();
    let key = b"tokenizer.ggml.eos_token_id\x04\0\0\0";
    let (from, to) = ([key, &b"\x02\0\0\0"[..]].concat(), [key, &b"\x40\x01\0\0"[..]].concat());
    assert_names(&patched("llama", &from, &to), &["tokenizer.ggml.eos_token_id", "320", "vocabulary, 320"]);
}

/// Keys that are each possible and cannot both be meant.
#[test]
fn contradictions_are_named() {
    let llama3 = |low: f64, high: f64| json!({"rope_type": "llama3", "factor": 2, "low_freq_factor": low, "high_freq_factor": high});
    let yarn = |fast: f64, slow: f64| json!({"rope_type": "yarn", "factor": 2, "beta_fast": fast, "beta_slow": slow});
    let yarn_of = |factor: Value| json!({"rope_type": "yarn", "factor": factor});
    let types = |old: &str, new: &str| json!({"type": old, "rope_type": new, "factor": 2});
    let slides = json!(["sliding_attention", "full_attention"]);
    for (case, key, value, parts) in [
        ("llama", "rope_scaling", llama3(4.0, 4.0), &["low_freq_factor", "4", "below high_freq_factor"][..]),
        ("llama", "rope_scaling", llama3(5.0, 1.0), &["low_freq_factor", "5", "below high_freq_factor, 1"]),
        ("llama", "rope_scaling", yarn(1.0, 2.0), &["beta_fast", "1", "at least", "2"]),
        ("llama", "rope_scaling", yarn(0.5, 0.75), &["beta_fast", "0.5", "0.75"]),
        ("llama", "rope_scaling", yarn_of(json!(0)), &["rope_scaling.factor", "from 1 to 65536"]),
        ("llama", "rope_scaling", yarn_of(json!(-4.0)), &["rope_scaling.factor", "-4", "from 1 to 65536"]),
        ("llama", "rope_scaling", yarn_of(json!(1e9)), &["rope_scaling.factor", "from 1 to 65536"]),
        ("llama", "rope_scaling", yarn_of(Value::Null), &["factor", "missing"]),
        ("llama", "rope_scaling", types("linear", "yarn"), &["rope_scaling.rope_type", "yarn", "linear"]),
        ("llama", "rope_parameters", json!({"rope_theta": 500.0}), &["rope_theta", "500", "10000"]),
        ("llama_yarn", "rope_parameters", yarn_of(json!(8)), &["rope_parameters", "rope_scaling"]),
        ("llama", "architectures", json!(["Qwen2ForCausalLM"]), &["architectures", "LlamaForCausalLM"]),
        ("qwen3", "architectures", json!(["Qwen3MoeForCausalLM"]), &["architectures", "Qwen3ForCausalLM"]),
        ("llama", "num_attention_heads", json!(6), &["num_attention_heads", "6", "divisor", "64"]),
        ("qwen3_moe", "num_key_value_heads", json!(3), &["num_key_value_heads", "3", "divisor", "4"]),
        ("qwen3_moe", "num_local_experts", json!(4), &["num_local_experts", "4", "num_experts"]),
        ("qwen2", "layer_types", slides.clone(), &["layer_types", "sliding_attention", "use_sliding_window"]),
        ("qwen3", "layer_types", slides, &["layer_types", "sliding_attention", "use_sliding_window"]),
        (
            "gemma3_text",
            "rope_scaling",
            json!({"type": "linear", "factor": 8.0}),
            &["rope_scaling.type", "linear", "`rope_type`"],
        ),
        ("gemma3_text", "sliding_window", Value::Null, &["sliding_window", "null", "slide"]),
        ("lfm2", "full_attn_idxs", json!([1]), &["full_attn_idxs", "[1]", "{2}", "layer_types"]),
        ("lfm2", "full_attn_idxs", json!([4]), &["full_attn_idxs", "4"]),
        ("lfm2", "block_ff_dim", json!(1), &["block_ff_dim"]),
    ] {
        assert_names(&with_key(case, key, value), parts);
    }
    for case in CASES.iter().filter(|case| **case != "lfm2") {
        if !case.contains("llama") {
            assert_names(&with_key(case, "sliding_window", json!(0)), &["sliding_window", "is 0"]);
        }
        assert_names(&with_key(case, "rms_norm_eps", json!(0)), &["rms_norm_eps", "above 0"]);
        assert_names(&with_key(case, "rope_theta", json!(-1e4)), &["rope_theta", "above 1"]);
    }
}

/// What looks like a contradiction and has one meaning.
#[test]
fn odd_spellings_are_read() {
    // The first files of the family spelt their class so.
    edited("llama", |c| c["architectures"] = json!(["LLaMAForCausalLM"]), |_, _| {}).unwrap();
    edited("llama", |c| c["architectures"] = json!([]), |_, _| {}).unwrap();
    let both = json!({"type": "linear", "rope_type": "linear", "factor": 4.0});
    edited("llama_linear_rope", |c| c["rope_scaling"] = both, |_, _| {}).unwrap();
    // Null means as many KV heads as query heads, also where the default is 8 or 32.
    for case in ["mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "lfm2"] {
        let problems = with_key(case, "num_key_value_heads", Value::Null);
        assert_names(&problems, &["self_attn.k_proj.weight has shape"]);
        let heads = if matches!(case, "qwen2" | "mistral" | "lfm2") { 4 * 16 } else { 4 * 32 };
        assert_names(&problems, &[&format!("expected [{heads}, 64]")]);
    }
}

/// A stored head equal to the embedding table is the tied model; another one is used.
#[test]
fn a_stored_head_wins_over_the_tie_unless_it_is_a_copy() {
    let tied = edited("llama", |c| c["tie_word_embeddings"] = json!(true), |_, _| {}).unwrap();
    assert!(!tied.info().tied_embedding);
    let copy = edited(
        "llama",
        |c| c["tie_word_embeddings"] = json!(true),
        |header, data| {
            let range = |name: &str| {
                let offsets: Vec<u64> = serde_json::from_value(header[name]["data_offsets"].clone()).unwrap();
                offsets[0] as usize..offsets[1] as usize
            };
            data.copy_within(range("model.embed_tokens.weight"), range("lm_head.weight").start);
        },
    );
    assert!(copy.unwrap().info().tied_embedding);
}

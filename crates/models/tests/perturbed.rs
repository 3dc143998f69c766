//! Every key of every family's configuration with values that mean nothing, in both containers: each is refused with an
//! error that names the key, or has no influence on the model at all.

mod common;

use std::path::Path;
use std::sync::Arc;

use checks::goldens::CASES;
use common::{open, tests};
use formats::Checkpoint;
use formats::gguf::{Array, GgmlType, GgufWriter, Value as Meta};
use graph::backend::RowSource;
use gristmill_models::{Model, StepLimits};
use serde_json::{Value, json};
use tensor::DType;

/// All that a model is but its stored weights: what is known of it, its graph, and the tables it computes.
fn essence(model: &Model) -> String {
    let limits = StepLimits { rows: 4, seqs: 2, outs: 2, pages: 3, blocks: 8, slots: 3 };
    let graph = model.record(&limits, DType::F32, true).unwrap();
    let mut tables = vec![];
    for rows in model.weights(&graph).unwrap() {
        if rows.desc().name.starts_with("rope") {
            let all = rows.desc().shape.rows();
            rows.rows(0..all, &mut |_, bytes| tables.push(bytes.to_vec())).unwrap();
        }
    }
    format!("{:?} {} {tables:?}", model.info(), graph::Identity::of(&graph, ""))
}

/// What opening gave, judged: nothing to say, or what is wrong.
fn judge(opened: Result<Model, String>, key: &str, value: &str, plain: &str) -> Option<String> {
    match opened {
        Err(message) if message.contains(key) => None,
        Err(message) => Some(format!("{key} = {value} is refused without its name: {message}")),
        Ok(model) if essence(&model) == plain => None,
        Ok(_) => Some(format!("{key} = {value} gives another model")),
    }
}

/// Every key, also within objects, as a JSON pointer.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    for (key, inner) in value.as_object().into_iter().flatten() {
        let pointer = format!("{at}/{key}");
        pointers(inner, &pointer, out);
        out.push(pointer);
    }
}

/// Values among the senseless ones that mean something after all: as a number of this kind, or as a token.
fn means_something(key: &str, value: &Value) -> bool {
    match key {
        "bos_token_id" | "eos_token_id" | "pad_token_id" => *value == json!(0) || *value == json!([0]),
        "rope_theta"
        | "rope_local_base_freq"
        | "factor"
        | "attention_factor"
        | "low_freq_factor"
        | "high_freq_factor"
        | "query_pre_attn_scalar"
        | "block_ffn_dim_multiplier" => *value == json!(2.5),
        "mscale" | "mscale_all_dim" => *value == json!(0) || *value == json!(2.5),
        "max_window_layers" => *value == json!(0),
        "mlp_only_layers" | "full_attn_idxs" => *value == json!([]) || *value == json!([0]),
        // A flag that is set is another model; what that is, other tests check.
        _ => value.is_boolean(),
    }
}

#[test]
fn senseless_values_of_config_json() {
    let values = [
        json!(0),
        json!(-1),
        json!(2.5),
        json!(1e300),
        json!(1_u64 << 40),
        json!("NaN"),
        json!("-Infinity"),
        json!(""),
        json!(true),
        json!([]),
        json!([0]),
        json!(["x", "y"]),
        json!({"x": 1}),
    ];
    let (mut wrong, mut refused, mut tried) = (vec![], 0, 0);
    let goldens = CASES.iter().map(|case| tests().join("goldens").join(case));
    let variants = std::fs::read_dir(tests().join("fixtures/models")).unwrap().map(|e| e.unwrap().path());
    for from in goldens.chain(variants) {
        let case = from.file_name().unwrap().to_string_lossy();
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
        let opened = |config: &Value| {
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            Model::open(Arc::new(checkpoint)).map_err(|e| e.to_string())
        };
        for file in ["config.json", "config_resolved.json"] {
            let Ok(bytes) = std::fs::read(from.join(file)) else { continue };
            let config: Value = serde_json::from_slice(&bytes).unwrap();
            let plain = essence(&opened(&config).unwrap());
            let mut keys = vec![];
            pointers(&config, "", &mut keys);
            assert!(keys.len() > 9, "{case} {file}: {keys:?}");
            for pointer in &keys {
                let key = pointer.rsplit('/').next().unwrap();
                for value in values.iter().filter(|value| !means_something(key, value)) {
                    let mut changed = config.clone();
                    *changed.pointer_mut(pointer).unwrap() = value.clone();
                    let opened = opened(&changed);
                    refused += usize::from(opened.is_err());
                    tried += 1;
                    let problem = judge(opened, key, &value.to_string(), &plain);
                    wrong.extend(problem.map(|p| format!("{case} {file} {pointer}: {p}")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    // The control: most keys do matter.
    assert!(refused * 2 > tried, "only {refused} of {tried} were refused");
}

/// A GGUF file with one value in another's place.
fn with_value(path: &Path, key: &str, value: &Meta) -> Checkpoint {
    let file = Checkpoint::open(path).unwrap();
    let gguf = file.gguf_file().unwrap();
    let mut writer = GgufWriter::new();
    for (name, old) in gguf.metadata().iter() {
        writer.metadata(name, if name == key { value.clone() } else { old.clone() });
    }
    for info in gguf.tensors() {
        let (info, bytes): (_, &[u8]) = gguf.tensor(&info.name).unwrap();
        let kind: GgmlType = info.ggml_type;
        writer.tensor(&info.name, kind, &info.shape, bytes).unwrap();
    }
    Checkpoint::from_bytes(writer.to_bytes().unwrap()).unwrap()
}

#[test]
fn senseless_values_of_gguf() {
    let values = [
        Meta::U32(0),
        Meta::I32(-1),
        Meta::F32(-2.5),
        Meta::F32(f32::NAN),
        Meta::F64(f64::INFINITY),
        Meta::F64(1e300),
        Meta::U64(1 << 40),
        Meta::String("NaN".to_owned()),
        Meta::Array(Array::F32(vec![f32::NAN])),
        Meta::Array(Array::U32(vec![])),
    ];
    let (mut wrong, mut refused, mut tried) = (vec![], 0, 0);
    for case in CASES {
        let path = tests().join(format!("goldens-gguf/{case}.gguf"));
        let model = open(&path);
        let plain = essence(&model);
        let metadata = model.checkpoint().gguf().unwrap();
        let architecture: &str = metadata.get("general.architecture").unwrap().unwrap();
        let own = |key: &str| key.starts_with(&format!("{architecture}.")) || key.ends_with("_token_id");
        for (key, old) in metadata.iter().filter(|(key, _)| own(key)) {
            for value in &values {
                let token = key.ends_with("_token_id") && *value == Meta::U32(0);
                if token || (value == old && !matches!(value, Meta::F32(x) if x.is_nan())) {
                    continue;
                }
                let opened = Model::open(Arc::new(with_value(&path, key, value)));
                let opened = opened.map_err(|e| e.to_string());
                refused += usize::from(opened.is_err());
                tried += 1;
                let problem = judge(opened, key, &value.describe(), &plain);
                wrong.extend(problem.map(|p| format!("{case}: {p}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(refused * 2 > tried, "only {refused} of {tried} were refused");
}

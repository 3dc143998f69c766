//! What there is to run on, and running on it.

use crate::support::*;

#[test]
fn devices_are_listed() {
    let text = ok(&["devices"]);
    assert!(text.starts_with("cpu\n") && text.contains("threads"), "{text}");
    let listed: serde_json::Value = serde_json::from_str(&ok(&["devices", "--json"])).unwrap();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed[0]["device"], "cpu");
    assert!(listed[0]["threads"].as_u64() > Some(0));
    for (index, gpu) in listed[1..].iter().enumerate() {
        assert_eq!(gpu["device"], format!("gpu:{index}"));
        assert!(text.contains(gpu["name"].as_str().unwrap()), "{text}");
        assert!(gpu["limits"]["max_storage_buffer_binding_size"].as_u64() > Some(0), "{gpu}");
    }
}

#[test]
fn the_gpu_answers_as_the_cpu_does() {
    let model = tests("goldens-gguf/llama.gguf");
    let cpu = logits(&model, &[1, 2, 3, 4, 5], &[]);
    for device in [&["--device", "gpu"][..], &["--device", "gpu:0", "--gpu-limits", "webgpu"]] {
        let gpu = logits(&model, &[1, 2, 3, 4, 5], device);
        for (a, b) in cpu.iter().flatten().zip(gpu.iter().flatten()) {
            assert!((a - b).abs() < 1e-4, "{device:?}: {a} and {b}");
        }
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_that_says_what_to_do() {
    let model = tests("goldens-gguf/llama.gguf");
    let errors = fails(&["run", "-m", &model, "--device", "gpu:99", "x"], 1);
    assert!(errors.contains("99") && errors.contains("gristmill devices"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--device", "gpu", "--gpu-without", "magic", "x"], 2);
    assert!(errors.contains("subgroups"), "{errors}");
}

//! What there is to run on, and running on it.

use gristmill::parts::formats::gguf::Value;

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

/// Nobody takes a driver that computes on the CPU for a GPU.
#[test]
fn a_gpu_in_software_is_called_so() {
    let model = tests("goldens-gguf/llama.gguf");
    let listed: serde_json::Value = serde_json::from_str(&ok(&["devices", "--json"])).unwrap();
    let all = ok(&["devices"]);
    for gpu in &listed.as_array().unwrap()[1..] {
        let device = gpu["device"].as_str().unwrap();
        let software = gpu["kind"] == "software";
        let block = all.split(&format!("\n{device}\n")).nth(1).unwrap().split("\n\n").next().unwrap();
        assert_eq!(block.contains("a driver that computes on the CPU"), software, "{block}");
        let output = gristmill(&["run", "-m", &model, "--device", device, "-n", "1", "Hello"]);
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(notes.contains("in software"), software, "{notes}");
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

#[test]
fn kernels_are_timed() {
    let model = tests("goldens-gguf/llama.gguf");
    for (device, limit, kernel) in
        [("gpu", "GB/s, read and written", "| matmul_f32 |"), ("cpu", "GOP/s int8", "| matmul_f32/")]
    {
        let bench = ["bench", "-m", &model, "--device", device, "--probe", "1M", "--profile"];
        let bench = [&bench[..], &["-p", "8", "-n", "4", "-r", "1"]].concat();
        let table = ok(&bench);
        assert!(table.contains(limit) && table.contains("tg4: 4 steps"), "{table}");
        assert!(table.contains(kernel), "{table}");
        let rows: serde_json::Value =
            serde_json::from_str(&ok(&[&bench[..], &["-o", "json"]].concat())).unwrap();
        for row in rows.as_array().unwrap() {
            let kernels = &row["kernels"];
            let lines = kernels["lines"].as_array().unwrap();
            let sum = |key: &str| lines.iter().map(|l| l[key].as_u64().unwrap()).sum::<u64>();
            let steps = kernels["steps"].as_u64().unwrap();
            assert_eq!(sum("calls"), kernels["dispatches"].as_u64().unwrap());
            // Every matrix is read once in a step; the embedding table only in part.
            let stored = row["model_size"].as_u64().unwrap();
            let read = sum("bytes") / steps;
            assert!((stored / 2..2 * stored).contains(&read), "{device}: {read} of {stored} bytes");
            if device == "cpu" {
                // A multiply-add for each parameter and row, beside attention and less the embedding.
                let rows = (row["n_prompt"].as_u64().unwrap() + row["n_gen"].as_u64().unwrap()) / steps;
                let each = row["model_n_params"].as_u64().unwrap() * rows;
                let products = sum("products") / steps;
                assert!((each / 2..2 * each).contains(&products), "{products} for {each}");
            }
            assert!(row["memory_bytes_per_second"].as_f64() > Some(0.0));
        }
    }
}

/// Tokens of several sequences count together, and a step reads the weights once for all of them.
#[test]
fn sequences_are_measured_together_and_drawn_under_the_limits() {
    let model = tests("goldens-gguf/llama.gguf");
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("roofline.svg");
    let bench =
        ["bench", "-m", &model, "-p", "0", "-n", "6", "-s", "1,3", "-r", "1", "--probe", "1M", "-o", "json"];
    let rows = ok(&[&bench[..], &["--plot", picture.to_str().unwrap()]].concat());
    let rows: serde_json::Value = serde_json::from_str(&rows).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["test"].as_str().unwrap()).collect::<Vec<_>>(), ["tg6", "tg6 x 3"]);
    let sum = |row: &serde_json::Value, key: &str| -> u64 {
        row["kernels"]["lines"].as_array().unwrap().iter().map(|l| l[key].as_u64().unwrap()).sum()
    };
    for row in rows {
        assert_eq!(row["kernels"]["steps"], 6);
        let tokens = row["n_sequences"].as_u64().unwrap() as f64 * 6.0;
        let rate = tokens * 1e9 / row["avg_ns"].as_f64().unwrap();
        assert!((rate / row["avg_ts"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    }
    assert!(sum(&rows[1], "products") > 2 * sum(&rows[0], "products"));
    assert!(sum(&rows[1], "bytes") < 2 * sum(&rows[0], "bytes"));
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert_eq!(svg.matches("<g ").count(), 2);
    assert!(svg.contains("tg6 x 3") && svg.contains("GOP/s int8") && svg.contains("matmul "), "{svg}");
    let errors = fails(&["bench", "-m", &model, "--plot", "x.svg", "--probe", "0"], 2);
    assert!(errors.contains("--plot"), "{errors}");
    // What was measured is told although the picture cannot be written.
    let output = gristmill(&[&bench[..], &["--plot", "no/such/x.svg"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap().as_array().unwrap().len(),
        2
    );
}

/// Kernels see only so much of a buffer: without a context asked for, what fits is taken.
#[test]
fn a_long_trained_context_is_cut_to_what_a_gpu_holds() {
    let model = with_key("llama.context_length", Value::U32(1 << 24));
    let model = model.path().to_str().unwrap();
    let plan = ["plan", "-m", model, "--precision", "exact", "--device", "gpu", "--gpu-limits", "webgpu"];
    let text = ok(&plan);
    let line = text.lines().find_map(|l| l.strip_prefix("context ")).unwrap();
    let context: usize = line.split_whitespace().next().unwrap().parse().unwrap();
    assert!((4096..1 << 24).contains(&context), "{line}");
    let errors = fails(&[&plan[..], &["-c", "16777216"]].concat(), 1);
    assert!(errors.contains(&format!("at most {context} tokens fit")), "{errors}");
    assert!(errors.contains("too long for gpu") && errors.contains("-c/--context"), "{errors}");
}

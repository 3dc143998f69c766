//! The engine on the first GPU of this machine: one step ahead, when the device is lost, and split over several.

use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Waker};

use cpu::{CpuBackend, CpuOptions};
use engine::sampling::SamplingOptions;
use engine::{Engine, EngineError, EngineOptions, Event, Finish, Request, RequestId, Task};
use gpu::{GpuBackend, GpuOptions, Profile};
use graph::backend::{Backend, DeviceError, Precision, StateDesc};
use gristmill_checks::faults::{Fault, FaultyBackend};
use gristmill_checks::open_model;
use gristmill_checks::quantise::quantised;
use models::Model;
use tensor::ops::KV_BLOCK;
use tensor::{DType, Shape};

fn open() -> Arc<GpuBackend> {
    let options = GpuOptions { profile: Profile::WebGpu, ..GpuOptions::default() };
    Arc::new(pollster::block_on(GpuBackend::open("gpu", &options)).unwrap_or_else(|e| panic!("{e}")))
}

fn model(case: &str) -> Arc<Model> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    open_model(&tests.join(format!("goldens-gguf/{case}.gguf"))).unwrap()
}

fn options() -> EngineOptions {
    EngineOptions { context: Some(96), chunk: 64, max_sequences: 4, ..EngineOptions::default() }
}

fn engine(backend: Arc<dyn Backend>, run_ahead: Option<bool>) -> Engine {
    let options = EngineOptions { run_ahead, ..options() };
    Engine::new(model("llama"), vec![backend], &options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// A greedy request and two that are sampled.
fn requests() -> [Request; 3] {
    let hot = SamplingOptions { temperature: 0.9, seed: Some(4), ..SamplingOptions::default() };
    let policies = [
        SamplingOptions::default(),
        hot.clone(),
        SamplingOptions { temperature: 1.2, top_k: Some(40), top_p: 0.9, min_p: 0.01, ..hot },
    ];
    let mut salt = 0;
    policies.map(|sampling| {
        salt += 1;
        let prompt = (0..20 * salt).map(|i| 3 + (i * 31 + salt * 101) % 290).collect();
        let task = Task::Generate { max_tokens: Some(16), sampling, entropy: 0, stop: vec![] };
        Request { prompt, task, session: None }
    })
}

/// What came of a request: its tokens and its end.
type Answer = (Vec<u32>, Option<Result<Finish, EngineError>>);

fn finish(engine: &mut Engine, ids: &[RequestId]) -> Vec<Answer> {
    let mut answers: Vec<Answer> = ids.iter().map(|_| (vec![], None)).collect();
    while let Some(events) = pollster::block_on(poll_fn(|cx| engine.poll(cx))) {
        for event in events {
            let Some(at) = ids.iter().position(|id| *id == event.request()) else { continue };
            match event {
                Event::Token { token, .. } => answers[at].0.push(token.id),
                Event::Finished { reason, .. } => answers[at].1 = Some(Ok(reason)),
                Event::Failed { error, .. } => answers[at].1 = Some(Err(error)),
                _ => {}
            }
        }
    }
    answers
}

fn ask(engine: &mut Engine) -> Vec<Answer> {
    let ids = requests().map(|request| engine.submit(request).unwrap());
    finish(engine, &ids)
}

#[test]
fn one_step_ahead_draws_the_same_tokens_and_reads_nothing_else() {
    let backend = open();
    let watched = Arc::new(FaultyBackend::new(backend.clone(), Fault::None));
    let ahead = ask(&mut engine(watched.clone(), None));
    assert_eq!((watched.most_in_flight(), watched.outputs()), (2, vec!["tokens".to_owned()]));
    assert!(ahead.iter().all(|(tokens, end)| tokens.len() == 16 && *end == Some(Ok(Finish::MaxTokens))));
    let watched = Arc::new(FaultyBackend::new(backend, Fault::None));
    let at_rest = ask(&mut engine(watched.clone(), Some(false)));
    assert_eq!((watched.most_in_flight(), watched.outputs()), (1, vec!["logits".to_owned()]));
    assert_eq!(ahead, at_rest);
}

/// The driver says so only to those who wait, and calls nobody back.
#[test]
fn a_device_that_its_driver_loses_fails_its_requests_and_answers_the_next() {
    let backend = open();
    let mut engine = engine(backend.clone(), None);
    let want = ask(&mut engine);
    backend.lose_in_driver();
    for ((tokens, end), (whole, _)) in ask(&mut engine).into_iter().zip(&want) {
        // Submitting a step may call back those before it.
        assert!(whole.starts_with(&tokens) && tokens.len() < whole.len());
        assert_eq!(end, Some(Err(EngineError::Device(DeviceError::Lost("the driver lost it".to_owned())))));
    }
    assert_eq!(ask(&mut engine), want, "the next requests");
}

/// Taken away while steps are in flight, or between two.
#[test]
fn a_lost_device_fails_its_requests_and_answers_the_next() {
    for in_flight in [true, false] {
        let backend = open();
        let mut engine = engine(backend.clone(), None);
        let want = ask(&mut engine);
        let ids = requests().map(|request| engine.submit(request).unwrap());
        // A few tokens in.
        for _ in 0..4 {
            assert!(pollster::block_on(poll_fn(|cx| engine.poll(cx))).is_some());
        }
        if in_flight {
            let _ = engine.poll(&mut Context::from_waker(Waker::noop()));
        }
        backend.lose();
        for (i, (_, end)) in finish(&mut engine, &ids).iter().enumerate() {
            let error = EngineError::Device(DeviceError::Lost("taken away by a test".to_owned()));
            assert_eq!(end, &Some(Err(error)), "request {i}");
        }
        assert_eq!(ask(&mut engine), want, "the next requests");
        assert_eq!(ask(&mut engine), want, "and those after");
    }
}

/// Bits of the logits that a request reports, by position, and its tokens.
type Told = (Vec<(usize, Vec<u32>)>, Vec<u32>);

/// The answers of a model split over devices, logits and all.
fn told(model: &Arc<Model>, devices: Vec<Arc<dyn Backend>>, precision: Precision) -> Vec<Told> {
    let options = EngineOptions { logits: true, precision: Some(precision), ..options() };
    let mut engine = Engine::new(model.clone(), devices, &options, &mut |_, _| {}).unwrap();
    let vocab = engine.info().vocab;
    let mut ids: Vec<RequestId> = requests().map(|request| engine.submit(request).unwrap()).into();
    let prompt = (0..50).map(|i| 3 + i * 5 % 290).collect();
    ids.push(engine.submit(Request { prompt, task: Task::Score { from: 0 }, session: None }).unwrap());
    let mut answers: Vec<Told> = ids.iter().map(|_| (vec![], vec![])).collect();
    while let Some(events) = pollster::block_on(poll_fn(|cx| engine.poll(cx))) {
        for event in events {
            let (rows, tokens) = &mut answers[ids.iter().position(|id| *id == event.request()).unwrap()];
            match event {
                Event::Token { token, .. } => tokens.push(token.id),
                Event::Scores { first, logits, .. } => {
                    let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect();
                    rows.extend(logits.chunks(vocab).enumerate().map(|(i, row)| (first + i, bits(row))));
                }
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    }
    answers
}

/// Two devices opened on one adapter.
#[test]
fn split_over_two_devices_is_the_whole_bit_for_bit() {
    let [one, other] = [open(), open()].map(|device| device as Arc<dyn Backend>);
    for case in ["llama", "gemma3_text", "qwen3_moe", "lfm2"] {
        let exact = model(case);
        let fast = quantised(exact.checkpoint(), DType::Q4_0).unwrap();
        for (model, precision) in [(exact, Precision::Exact), (fast, Precision::Fast)] {
            let whole = told(&model, vec![one.clone()], precision);
            assert!(whole[3].0.len() == 50 && whole[0].1.len() == 16);
            let split = told(&model, vec![one.clone(), other.clone()], precision);
            assert!(whole == split, "{case} {precision:?}");
        }
    }
}

/// Unlike devices agree within what their arithmetic leaves open.
#[test]
fn split_over_the_cpu_and_the_gpu_agrees() {
    let cpu: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions { threads: 1, isa: None }).unwrap());
    let gpu: Arc<dyn Backend> = open();
    let model = model("gemma3_text");
    let scores = |devices| told(&model, devices, Precision::Exact).swap_remove(3).0;
    let want = scores(vec![cpu.clone()]);
    for devices in [vec![cpu.clone(), gpu.clone()], vec![gpu, cpu]] {
        for ((at, have), (_, want)) in scores(devices).iter().zip(&want) {
            let [have, want] =
                [have, want].map(|row| row.iter().map(|v| f32::from_bits(*v)).collect::<Vec<_>>());
            let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
            let error = have.iter().zip(&want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(error <= 1e-4 * largest && largest > 0.0, "position {at}: {error} of {largest}");
        }
    }
}

/// What the size of a cache is chosen by.
#[test]
fn a_gpu_opened_twice_has_one_memory_and_says_how_large_a_state_may_be() {
    let (one, two) = (open(), open());
    assert!(one.memory_name().is_some());
    assert_eq!(one.memory_name(), two.memory_name());
    for dtype in [DType::F32, DType::F16] {
        let desc = |blocks: usize| {
            let shape = Shape::new(&[blocks, KV_BLOCK, 2, 66]).unwrap();
            StateDesc { name: "kv.0".to_owned(), dtype, shape }
        };
        // Bindings of this profile are of 128 MiB.
        let bound = (128 << 20) / (KV_BLOCK * 2 * 66 * dtype.block_bytes());
        let most = (0..=bound).rev().find(|blocks| one.state_fits(&desc(*blocks))).unwrap();
        assert!(most > bound * 3 / 4, "{most} of {bound}");
        assert!(one.state(&desc(most)).is_ok());
        assert!(matches!(one.state(&desc(most + 1)), Err(DeviceError::Memory { .. })));
    }
}

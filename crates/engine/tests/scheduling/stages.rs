//! A model split by layers over devices answers, bit for bit, as on one.

use std::sync::Arc;

use checks::faults::{Fault, FaultyBackend, LOST};
use checks::goldens::CASES;
use cpu::{CpuBackend, CpuOptions};
use graph::backend::{Backend, DeviceError, Precision};
use gristmill_engine::sampling::SamplingOptions;
use gristmill_engine::{Engine, EngineError, EngineOptions, Event, Request};

use crate::desk::{Desk, alone, generate, model, prompt, sample, score};

fn cpu() -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(CpuOptions { threads: 1, isa: None }).unwrap())
}

fn options(precision: Precision) -> EngineOptions {
    EngineOptions { context: Some(96), precision: Some(precision), logits: true, ..EngineOptions::default() }
}

fn requests() -> [Request; 4] {
    let hot = SamplingOptions { temperature: 0.9, seed: Some(1), ..SamplingOptions::default() };
    [
        generate(prompt(20, 1), 10),
        score(prompt(70, 2), 30),
        sample(prompt(1, 3), 10, hot.clone()),
        sample(prompt(33, 4), 10, SamplingOptions { repetition_penalty: 1.2, ..hot }),
    ]
}

#[test]
fn every_split_of_every_family_is_the_whole() {
    for case in CASES {
        let layers = model(case).info().layers;
        assert!(layers >= 2, "{case} cannot be split");
        for precision in [Precision::Exact, Precision::Fast] {
            let want = requests().map(|request| alone(case, request, options(precision)));
            let splits = (1..layers).map(|first| vec![first, layers - first]).chain([vec![1; layers]]);
            for split in splits {
                let others = (1..split.len()).map(|_| cpu()).collect();
                let options = EngineOptions { layers: Some(split.clone()), ..options(precision) };
                let mut desk = Desk::split(case, Fault::None, others, options);
                assert_eq!(desk.engine.devices().len(), split.len());
                let ids = requests().map(|request| desk.submit(request));
                desk.finish();
                for (id, want) in ids.iter().zip(&want) {
                    assert_eq!(desk.answer(*id), want, "{case} {precision:?} {split:?}");
                }
                // Rows of the residual stream are all that is read of the first device.
                assert_eq!(desk.device.outputs(), [format!("hidden.{}", split[0])]);
            }
        }
    }
}

#[test]
fn layers_are_divided_evenly_and_each_device_has_its_own() {
    let devices = vec![cpu(), cpu(), cpu()];
    let options = options(Precision::Exact);
    let engine = Engine::new(model("gemma3_text"), devices, &options, &mut |_, _| {}).unwrap();
    let layers = engine.info().layers;
    let reports = engine.reports();
    assert_eq!(reports.len() % 3, 0);
    let states =
        |report: &graph::PlanReport| report.ports.iter().filter(|p| p.name.starts_with("kv.")).count();
    let counts: Vec<usize> = reports[..3].iter().map(states).collect();
    assert_eq!(counts.iter().sum::<usize>(), layers);
    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    assert!(reports[0].label.contains("1 rows, layers 0 to"), "{}", reports[0].label);
    let has = |at: usize, port: &str| reports[at].ports.iter().any(|p| p.name == port);
    assert!(has(0, "ids") && !has(1, "ids") && !has(2, "ids"));
    assert!(!has(0, "logits") && !has(1, "logits") && has(2, "logits"));
}

#[test]
fn hidden_states_are_told_from_every_device() {
    let told = |devices| {
        let options = EngineOptions { taps: true, ..options(Precision::Exact) };
        let mut engine = Engine::new(model("llama"), devices, &options, &mut |_, _| {}).unwrap();
        engine.submit(score(prompt(9, 1), 0)).unwrap();
        let mut hidden = vec![];
        while let Some(events) = pollster::block_on(std::future::poll_fn(|cx| engine.poll(cx))) {
            for event in events {
                if let Event::Hidden { name, rows, .. } = event {
                    hidden.push((name, rows.iter().map(|v| v.to_bits()).collect::<Vec<_>>()));
                }
            }
        }
        hidden
    };
    let one = told(vec![cpu()]);
    assert!(one.len() > 2);
    assert_eq!(told(vec![cpu(), cpu()]), one);
}

#[test]
fn splits_that_do_not_go_with_the_model_are_refused() {
    let layers = model("llama").info().layers;
    let refused = |devices: usize, options: EngineOptions| {
        let devices = (0..devices).map(|_| cpu()).collect();
        match Engine::new(model("llama"), devices, &options, &mut |_, _| {}).err() {
            Some(EngineError::Option { option, problem }) => format!("{option}: {problem}"),
            other => panic!("{other:?}"),
        }
    };
    let base = || options(Precision::Exact);
    let of = |layers: Vec<usize>| EngineOptions { layers: Some(layers), ..base() };
    assert!(
        refused(layers + 1, base()).contains(&format!("{} devices cannot share the {layers}", layers + 1))
    );
    assert!(refused(0, base()).contains("0 devices"));
    assert!(refused(2, of(vec![layers])).contains("are not the layers of 2 devices"));
    assert!(refused(2, of(vec![0, layers])).contains("at least one for each"));
    assert!(refused(2, of(vec![1, layers])).contains(&format!("{layers} in all")));
    assert!(refused(1, of(vec![usize::MAX, 2])).starts_with("layers: "));
    let ahead = EngineOptions { run_ahead: Some(true), ..base() };
    assert!(refused(2, ahead).starts_with("run_ahead: needs the whole model on one device"));
}

/// Rows that the second device refuses fail their request; those of the same step, and of the same device, go on.
#[test]
fn rows_refused_by_a_later_device_fail_their_request_alone() {
    let options = || options(Precision::Exact);
    let others = || -> Vec<Arc<dyn Backend>> { vec![cpu()] };
    let mut desk = Desk::split("qwen3_moe", Fault::NanFrom(299), others(), options());
    let mut bad = prompt(12, 0);
    bad[7] = 299;
    let good = generate(prompt(9, 1), 6);
    let first = desk.submit(good.clone());
    let failing = desk.submit(generate(bad, 6));
    desk.finish();
    let end = desk.answer(failing).end.clone();
    assert!(matches!(end, Some(Err(EngineError::Numeric { position: 7, .. }))), "{end:?}");
    assert_eq!(desk.answer(first), &alone("qwen3_moe", good, options()));
}

/// Whichever of the devices is lost, all are opened again.
#[test]
fn a_lost_device_of_several_fails_its_requests_and_answers_the_next() {
    for lost in [0, 1] {
        let faults = if lost == 0 { [Fault::Lost(3), Fault::None] } else { [Fault::None, Fault::Lost(3)] };
        let second = Arc::new(FaultyBackend::new(cpu(), faults[1]));
        let mut desk = Desk::split("llama", faults[0], vec![second.clone()], options(Precision::Exact));
        let request = || generate(prompt(20, 1), 10);
        let failing = desk.submit(request());
        desk.finish();
        let error = EngineError::Device(DeviceError::Lost(LOST.to_owned()));
        assert_eq!(desk.answer(failing).end, Some(Err(error)));
        assert_eq!(desk.answer(failing).tokens.len(), 3);
        let next = desk.submit(request());
        desk.finish();
        assert_eq!(desk.answer(next), &alone("llama", request(), options(Precision::Exact)));
        assert_eq!((desk.device.reopened(), second.reopened()), (1, 1));
    }
}

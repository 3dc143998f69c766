//! The sampling policy against transformers: `sampling_oracle.py` made the fixture.

use gristmill_engine::sampling::{Sampler, SamplingOptions, Stage};
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    rows: Vec<Vec<f32>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    row: usize,
    stages: String,
    temperature: f32,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    logit_bias: Vec<(u32, f32)>,
    prompt: Vec<u32>,
    output: Vec<u32>,
    kept: Vec<u32>,
    probabilities: Vec<f64>,
}

impl Case {
    fn options(&self) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            stages: match self.stages.as_str() {
                "transformers" => Stage::TRANSFORMERS,
                "llama_cpp" => Stage::LLAMA_CPP,
                other => panic!("unknown order {other}"),
            },
            ..Default::default()
        }
    }
}

#[test]
fn kept_sets_and_probabilities_are_those_of_transformers() {
    let fixture: Fixture = serde_json::from_str(include_str!("sampling_oracle.json")).unwrap();
    assert_eq!(fixture.cases.len(), 120);
    for (number, case) in fixture.cases.iter().enumerate() {
        let mut row = fixture.rows[case.row].clone();
        let mut sampler = Sampler::new(case.options(), row.len(), 0).unwrap();
        sampler.accept_prompt(&case.prompt).unwrap();
        case.output.iter().for_each(|&id| sampler.accept(id).unwrap());
        let distribution = sampler.distribution(&mut row).unwrap();
        let ids: Vec<u32> = distribution.iter().map(|c| c.id).collect();
        assert_eq!(ids, case.kept, "case {number}: {:?}", case.options());
        // Logits up to about 40 carry f32 steps of 4e-6, divided by temperatures down to 0.3. Weights are multiples of
        // 2^-31 of the highest, by definition.
        let highest = case.probabilities.iter().copied().fold(0.0, f64::max);
        let unit = highest / f64::from(tensor::sampling::ONE);
        for (candidate, want) in distribution.iter().zip(&case.probabilities) {
            let error = (candidate.probability - want).abs();
            assert!(
                error < 2e-5 * want + 0.51 * unit,
                "case {number}, token {}: {} for {want}",
                candidate.id,
                candidate.probability
            );
        }
    }
}

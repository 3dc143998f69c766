//! Samplers of the caller's own.

use gristmill_engine::sampling::{
    CustomSampler, CustomSampling, Draw, Sampler, SamplingError, SamplingOptions, Seen,
};

const ROW: [f32; 4] = [0.0, 3.0, 1.0, 2.0];

fn custom<S: CustomSampler + 'static>(make: impl Fn() -> S + Send + Sync + 'static) -> SamplingOptions {
    SamplingOptions { seed: Some(7), custom: Some(CustomSampling::new(make)), ..Default::default() }
}

fn draw(sampler: &mut Sampler, position: u64) -> Result<u32, SamplingError> {
    sampler.sample(&mut ROW.to_vec(), position).map(|sampled| sampled.id)
}

#[test]
fn it_settles_the_token_or_leaves_it_to_the_policy() {
    let options = custom(|| |_: &mut [f32], _: &Seen<'_>| Ok(Draw::Token(2)));
    assert_eq!(draw(&mut Sampler::new(options, 4, 0).unwrap(), 0), Ok(2));
    let forbid = custom(|| {
        |logits: &mut [f32], _: &Seen<'_>| {
            logits[1] = f32::NEG_INFINITY;
            Ok(Draw::Policy)
        }
    });
    assert_eq!(draw(&mut Sampler::new(forbid.clone(), 4, 0).unwrap(), 0), Ok(3));
    // Bias comes after it, and log-probabilities are of the row as the model gave it.
    let biased = SamplingOptions { logit_bias: vec![(2, 9.0)], logprobs: Some(1), ..forbid };
    let sampled = Sampler::new(biased, 4, 0).unwrap().sample(&mut ROW.to_vec(), 0).unwrap();
    assert_eq!((sampled.id, sampled.logprobs.unwrap().top[0].0), (2, 1));
}

#[test]
fn it_is_shown_the_tokens_and_a_number_by_seed_and_position() {
    let told = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
    let keep = told.clone();
    let options = custom(move || {
        let keep = keep.clone();
        move |_: &mut [f32], seen: &Seen<'_>| {
            keep.lock().unwrap().push((seen.tokens.to_vec(), seen.prompt, seen.random));
            Ok(Draw::Token(seen.tokens.len() as u32 % 4))
        }
    });
    let run = |seed: u64| {
        let options = SamplingOptions { seed: Some(seed), ..options.clone() };
        let mut sampler = Sampler::new(options, 4, 0).unwrap();
        sampler.accept_prompt(&[3, 1]).unwrap();
        for position in [2, 3] {
            let id = draw(&mut sampler, position).unwrap();
            sampler.accept(id).unwrap();
        }
        std::mem::take(&mut *told.lock().unwrap())
    };
    let (first, again, other) = (run(7), run(7), run(8));
    assert_eq!(first[0].0, [3, 1]);
    assert_eq!((&first[1].0[..], first[1].1), (&[3, 1, 2][..], 2));
    assert_eq!(first, again);
    assert!(first[0].2 != first[1].2 && first[0].2 != other[0].2);
}

#[test]
fn what_cannot_be_used_fails_with_its_reason() {
    let refused = |options, part: &str| {
        let error = draw(&mut Sampler::new(options, 4, 0).unwrap(), 0).unwrap_err().to_string();
        assert!(error.starts_with("the custom sampler: ") && error.contains(part), "{error}");
    };
    refused(custom(|| |_: &mut [f32], _: &Seen<'_>| Err("no grammar fits".to_owned())), "no grammar fits");
    refused(
        custom(|| |_: &mut [f32], _: &Seen<'_>| Ok(Draw::Token(4))),
        "token 4, beyond the vocabulary of 4",
    );
    refused(
        custom(|| |_: &mut [f32], _: &Seen<'_>| panic!("the mill stands still")),
        "it panicked: the mill",
    );
    for bad in [f32::NAN, f32::INFINITY] {
        let spoil = move |logits: &mut [f32], _: &Seen<'_>| {
            logits[2] = bad;
            Ok(Draw::Policy)
        };
        refused(custom(move || spoil), "token 2 NaN or +inf");
    }
    // A row that is no good is not shown.
    let options = custom(|| |_: &mut [f32], _: &Seen<'_>| panic!("shown"));
    let error = Sampler::new(options, 4, 0).unwrap().sample(&mut [f32::NAN; 4], 0).unwrap_err();
    assert_eq!(error, SamplingError::Logit { id: 0 });
}

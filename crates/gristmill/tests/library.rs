//! The library as its documentation uses it, on a tiny model.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use checks::variants::with_metadata;
use gristmill::parts::formats::gguf::Value;
use gristmill::{
    Checkpoint, DeviceOptions, EngineError, EngineOptions, Error, Generate, Llm, LoadOptions, Message,
    StopReason, most_threads, open_device, score,
};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens-gguf/llama.gguf")
}

fn load(options: &LoadOptions) -> Llm {
    Llm::load(golden(), options).unwrap_or_else(|e| panic!("{e}"))
}

fn of_context(context: usize) -> LoadOptions {
    LoadOptions {
        engine: EngineOptions { context: Some(context), ..Default::default() },
        ..Default::default()
    }
}

/// The golden with a chat template.
fn with_template(template: &str) -> tempfile::NamedTempFile {
    let checkpoint = Checkpoint::open(&golden()).unwrap();
    let template = ("tokenizer.chat_template", Value::String(template.to_owned()));
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    std::fs::write(file.path(), with_metadata(&checkpoint, &[template]).unwrap()).unwrap();
    file
}

#[test]
fn a_completion_is_streamed_in_the_pieces_of_the_whole() {
    let mut llm = load(&LoadOptions::default());
    let options = Generate { ignore_end: true, ..Generate::default() }.max_tokens(12);
    let mut pieces = vec![];
    for piece in llm.generate("The capital of France is", &options).unwrap() {
        pieces.push(piece.unwrap());
    }
    assert!(pieces.len() > 1 && pieces.iter().all(|p| !p.is_empty()), "{pieces:?}");
    let mut generation = llm.generate("The capital of France is", &options).unwrap();
    let text: String = generation.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, pieces.concat());
    let outcome = generation.outcome().unwrap();
    assert_eq!((outcome.reason, outcome.generated.len()), (StopReason::MaxTokens, 12));
    drop(generation);
    assert_eq!(outcome.prompt_tokens, llm.encode("The capital of France is").unwrap().len());
}

#[test]
fn devices_that_share_the_layers_answer_as_one_does() {
    let text = |options: &LoadOptions| {
        let options = LoadOptions {
            device_options: DeviceOptions { threads: 1, ..Default::default() },
            ..options.clone()
        };
        let mut llm = load(&options);
        let generate =
            Generate { ignore_end: true, ..Generate::default() }.max_tokens(12).temperature(0.8).seed(3);
        (
            llm.generate("The capital of France is", &generate).unwrap().text().unwrap(),
            llm.engine().devices().len(),
        )
    };
    let (want, one) = text(&LoadOptions::default());
    assert_eq!(one, 1);
    assert_eq!(text(&LoadOptions { device: "cpu,cpu".into(), ..LoadOptions::default() }), (want, 2));
    for (device, problem) in
        [("cpu,", "no device ``"), ("cpu,abacus", "`abacus`"), ("cpu,cpu,cpu", "3 devices cannot")]
    {
        let options = LoadOptions { device: device.into(), ..LoadOptions::default() };
        let error = Llm::load(golden(), &options).err().unwrap().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn a_chat_turn_is_the_completion_of_its_rendering() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
    let file = with_template(template);
    let mut llm = Llm::load(file.path(), &LoadOptions::default()).unwrap();
    let options = Generate::default().max_tokens(8);
    let messages = [Message::new("system", "Be brief."), Message::new("user", "Why?")];
    let answer = llm.chat(&messages, &options).unwrap().text().unwrap();
    let ids = llm.encode("<system>Be brief.<user>Why?<assistant>").unwrap();
    assert_eq!(llm.render(&messages).unwrap(), ids);
    assert_eq!(answer, llm.generate_ids(ids, &options).unwrap().text().unwrap());
    // Without a template there is no chat.
    let error = load(&LoadOptions::default()).chat(&messages, &options).err().unwrap();
    assert!(matches!(error, Error::Template(_)), "{error}");
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let mut llm = load(&LoadOptions::default());
    let free = Generate { ignore_end: true, ..Generate::default() }.max_tokens(16);
    let whole = llm.generate("Hello world", &free).unwrap().text().unwrap();
    let (at, last) = whole.char_indices().nth(whole.chars().count() / 2).unwrap();
    let stop = &whole[at..at + last.len_utf8()];
    let mut generation = llm.generate("Hello world", &free.clone().stop("no such text").stop(stop)).unwrap();
    let text: String = generation.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, whole[..whole.find(stop).unwrap()]);
    assert_eq!(generation.outcome().unwrap().reason, StopReason::StopString(1));
    drop(generation);
    let empty = llm.generate("Hello world", &free.stop("")).err().unwrap();
    assert!(matches!(empty, Error::Option { option: "stop", .. }), "{empty}");
}

#[test]
fn prompt_and_output_fill_the_context_and_no_more() {
    let mut llm = load(&of_context(24));
    let go_on = Generate { ignore_end: true, ..Generate::default() };
    let mut generation = llm.generate_ids(vec![5; 20], &go_on).unwrap();
    generation.by_ref().for_each(|piece| drop(piece.unwrap()));
    let outcome = generation.outcome().unwrap();
    assert_eq!((outcome.reason, outcome.generated.len()), (StopReason::ContextFull, 4));
    drop(generation);
    for (prompt, want) in [
        (24, EngineError::NoRoomForOutput { context: 24 }),
        (25, EngineError::PromptTooLong { prompt: 25, context: 24 }),
    ] {
        let error = llm.generate_ids(vec![5; prompt], &go_on).err().unwrap();
        assert!(matches!(&error, Error::Engine(e) if *e == want), "{error}");
    }
}

#[test]
fn scores_can_be_broken_off_and_the_engine_goes_on() {
    let options = EngineOptions { chunk: 4, context: Some(32), ..Default::default() };
    let mut llm = load(&LoadOptions { engine: options, ..Default::default() });
    let vocab = llm.info().vocab;
    let rows = |llm: &mut Llm, most: usize| {
        let mut seen = vec![];
        score(llm.engine(), vec![5; 20], 2, |first, logits| {
            seen.push((first, logits.len() / vocab));
            if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        seen
    };
    assert_eq!(rows(&mut llm, 2), [(2, 2), (4, 4)]);
    assert_eq!(rows(&mut llm, 99), [(2, 2), (4, 4), (8, 4), (12, 4), (16, 4)]);
}

#[test]
fn threads_are_limited_by_the_processors() {
    let open = |threads| open_device("cpu", &DeviceOptions { threads, ..DeviceOptions::default() }).map(drop);
    open(most_threads()).unwrap();
    let error = open(most_threads() + 1).unwrap_err();
    assert!(matches!(error, Error::Option { option: "threads", .. }), "{error}");
    let processors = std::thread::available_parallelism().unwrap();
    assert!(error.to_string().contains(&format!("{processors} here")), "{error}");
}

/// A sampler that is asked once a token, on the host or beside others, answers the same; asking for probabilities changes
/// nothing.
#[test]
fn samplers_of_ones_own_and_probabilities_leave_answers_as_they_are() {
    use gristmill::sampling::{Draw, Seen};
    let mut llm = load(&LoadOptions::default().max_sequences(2));
    let plain = Generate { ignore_end: true, ..Generate::default() }.max_tokens(12).temperature(0.9).seed(5);
    let ids = |llm: &mut Llm, options: &Generate| -> Vec<u32> {
        let mut generation = llm.generate("The mill", options).unwrap();
        generation.by_ref().for_each(|piece| drop(piece.unwrap()));
        generation.generated().iter().map(|token| token.id).collect()
    };
    let want = ids(&mut llm, &plain);
    assert_eq!(ids(&mut llm, &plain.clone().logprobs(5)), want);
    let same = plain.clone().sampler(|| |_: &mut [f32], _: &Seen<'_>| Ok(Draw::Policy));
    assert_eq!(ids(&mut llm, &same), want);
    let counted = plain.sampler(|| {
        let mut asked = 0;
        move |_: &mut [f32], seen: &Seen<'_>| {
            asked += 1;
            assert_eq!(seen.tokens.len(), seen.prompt + asked - 1);
            Ok(Draw::Token(asked as u32 + 10))
        }
    });
    assert_eq!(ids(&mut llm, &counted), (11..23).collect::<Vec<u32>>());
}

//! The examples run, on a tiny model.

use std::path::Path;

// Each is a program of its own, of which only `run` is called here.
#[allow(dead_code)]
#[path = "../examples/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "../examples/load.rs"]
mod load;
#[allow(dead_code)]
#[path = "../examples/sampler.rs"]
mod sampler;
#[allow(dead_code)]
#[path = "../examples/several.rs"]
mod several;
#[allow(dead_code)]
#[path = "../examples/stream.rs"]
mod stream;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// What an example prints, which is the same each time.
fn printed(run: impl Fn(&str, &mut Vec<u8>) -> Outcome) -> String {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens-gguf/llama.gguf");
    let [first, second] = [(), ()].map(|()| {
        let mut out = vec![];
        run(model.to_str().unwrap(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    });
    assert_eq!(first, second);
    first
}

#[test]
fn load_describes_the_model() {
    let text = printed(load::run);
    assert!(text.starts_with("llama: ") && text.contains("a context of 256 tokens takes"), "{text}");
}

#[test]
fn generate_continues_the_prompt() {
    let text = printed(|model, out| generate::run(model, "Once upon a time", out));
    assert!(text.starts_with("Once upon a time") && text.len() > 24, "{text}");
}

#[test]
fn stream_says_why_it_ended() {
    let text = printed(|model, out| stream::run(model, "Why is the sky blue?", out));
    let last = text.lines().last().unwrap();
    assert!(last.contains("tokens; MaxTokens") || last.contains("tokens; EndOfText"), "{text}");
}

#[test]
fn sampler_chooses_its_own_way() {
    let own = printed(|model, out| sampler::run(model, "The mill", out));
    let greedy = printed(|model, out| {
        let mut llm = gristmill::Llm::load(model, &gristmill::LoadOptions::default())?;
        let options = gristmill::Generate::default().max_tokens(32);
        Ok(std::io::Write::write_all(out, llm.generate("The mill", &options)?.text()?.as_bytes())?)
    });
    assert!(own.starts_with("The mill") && !own.contains(&greedy), "{own}");
}

/// Together they are answered as each alone.
#[test]
fn several_answers_are_those_of_one_at_a_time() {
    let prompts = ["The mill grinds", "Rivers run", "Once upon a time"];
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.split_inclusive("MaxTokens\n").map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let together = sorted(printed(|model, out| several::run(model, &prompts, out)));
    let alone = prompts.map(|prompt| printed(|model, out| several::run(model, &[prompt], out)));
    assert_eq!(together, sorted(alone.concat()));
}

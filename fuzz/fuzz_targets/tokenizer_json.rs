//! Any bytes as a tokenizer.json: what is accepted must take any text, and give text for any ids.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text::{EncodeOptions, JsonFiles, Tokenizer};

const TEXTS: [&str; 4] = ["", "Hello  world\n 12345 é🙂", "<s>a</s> <|im_end|>\u{2581}\u{301}\0", "don't   漢字\r\n\tab"];

/// Panics in the `tokenizers` crate become errors, so that only those that leave ours count.
fn only_those_that_leave() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

fuzz_target!(|bytes: &[u8]| {
    only_those_that_leave();
    std::panic::catch_unwind(|| run(bytes)).unwrap_or_else(|_| std::process::abort());
});

fn run(bytes: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_json(JsonFiles { tokenizer: bytes, ..JsonFiles::default() }) else { return };
    for text in TEXTS {
        for options in [(false, false), (true, true)] {
            let options = EncodeOptions { add_special: options.0, parse_special: options.1 };
            if let Ok(ids) = tokenizer.encode(text, options) {
                tokenizer.decode(&ids, true);
            }
        }
    }
    let ids: Vec<u32> = (0..tokenizer.vocab_size().min(300) as u32 + 2).collect();
    tokenizer.decode(&ids, false);
}

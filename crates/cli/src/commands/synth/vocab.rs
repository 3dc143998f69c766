//! A tokenizer for any vocabulary size: a token for every byte, one that ends the text, and others that no text becomes.

use gristmill::parts::formats::gguf::{Array, GgufWriter, Strings, Value};

/// GGUF's `tokenizer.ggml.token_type` of ordinary, special and unused tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// Token id of the end of the text: the first behind the bytes.
const END: usize = 256;

/// Sets the tokenizer's keys. `pre` is how text is split before it becomes bytes; `size` is above 256.
pub(super) fn metadata(writer: &mut GgufWriter, pre: &str, size: usize) {
    let bytes = byte_letters().into_iter().map(String::from);
    let rest =
        (END..size).map(|id| if id == END { "<|end|>".to_owned() } else { format!("<|unused {id}|>") });
    let tokens: Strings = bytes.chain(rest).collect();
    let kind = |id: usize| match id {
        0..END => NORMAL,
        END => CONTROL,
        _ => UNUSED,
    };
    let mut set = |key: &str, value| {
        writer.metadata(&format!("tokenizer.ggml.{key}"), value);
    };
    set("model", Value::String("gpt2".into()));
    set("pre", Value::String(pre.into()));
    set("tokens", Value::Array(Array::String(tokens)));
    set("token_type", Value::Array(Array::I32((0..size).map(kind).collect())));
    set("merges", Value::Array(Array::String(Strings::default())));
    set("eos_token_id", Value::U32(END as u32));
    set("add_bos_token", Value::Bool(false));
}

/// The letter that stands for each byte in a byte-level vocabulary: itself where it is printable in Latin-1, else the next
/// of those from U+0100 on.
fn byte_letters() -> Vec<char> {
    let mut others = '\u{100}'..;
    let letter = |byte: u8| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    (0..=255).map(letter).collect()
}

//! What the integration tests share: the goldens, and just enough of a GGUF reader to fill a `GgufVocab`.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several test programs, each of which uses its own part"
)]

use gristmill_text::GgufVocab;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The goldens in Hugging Face form.
pub fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

/// The goldens as GGUF.
pub fn goldens_gguf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens-gguf")
}

/// A directory named by an environment variable. A test that asks for it was run on purpose and fails without it.
pub fn directory(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| panic!("{variable} is not set: nothing can be tested"))
}

/// A metadata value, reduced to what vocabularies hold.
#[derive(Debug, Clone)]
enum Value {
    Int(i64),
    Float(f32),
    Text(Vec<u8>),
    List(Vec<Value>),
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk::<N>().expect("file ends early");
        self.0 = rest;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn text(&mut self) -> Vec<u8> {
        let length = self.u64() as usize;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        text.to_vec()
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 | 7 => Value::Int(self.take::<1>()[0].into()),
            1 => Value::Int((self.take::<1>()[0] as i8).into()),
            2 => Value::Int(u16::from_le_bytes(self.take()).into()),
            3 => Value::Int(i16::from_le_bytes(self.take()).into()),
            4 => Value::Int(self.u32().into()),
            5 => Value::Int((self.u32() as i32).into()),
            6 => Value::Float(f32::from_bits(self.u32())),
            8 => Value::Text(self.text()),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                Value::List((0..count).map(|_| self.value(kind)).collect())
            }
            10 | 11 => Value::Int(self.u64() as i64),
            12 => Value::Float(f64::from_bits(self.u64()) as f32),
            other => panic!("metadata type {other}"),
        }
    }
}

/// The vocabulary of a GGUF file.
pub fn gguf_vocab(path: &Path) -> GgufVocab {
    let mut reader = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // Metadata comes first; the weights behind it are not needed.
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(&mut reader, 64 << 20), &mut bytes).unwrap();
    let mut reader = Reader(&bytes);
    assert_eq!(&reader.take::<4>(), b"GGUF");
    let (_version, _tensors, count) = (reader.u32(), reader.u64(), reader.u64());
    let mut keys = HashMap::new();
    for _ in 0..count {
        let key = String::from_utf8(reader.text()).unwrap();
        let kind = reader.u32();
        keys.insert(key, reader.value(kind));
    }
    let text = |key: &str| match keys.get(key) {
        Some(Value::Text(text)) => Some(String::from_utf8(text.clone()).unwrap()),
        _ => None,
    };
    let int = |key: &str| match keys.get(&format!("tokenizer.ggml.{key}")) {
        Some(Value::Int(value)) => Some(*value as u32),
        _ => None,
    };
    let list = |key: &str| match keys.get(&format!("tokenizer.ggml.{key}")) {
        Some(Value::List(values)) => values.clone(),
        _ => Vec::new(),
    };
    let texts = |key: &str| {
        let text = |value| match value {
            Value::Text(text) => text,
            other => panic!("{other:?}"),
        };
        list(key).into_iter().map(text).collect::<Vec<_>>()
    };
    let floats = |value| match value {
        Value::Float(value) => value,
        other => panic!("{other:?}"),
    };
    let ints = |value| match value {
        Value::Int(value) => value as i32,
        other => panic!("{other:?}"),
    };
    GgufVocab {
        model: text("tokenizer.ggml.model").unwrap(),
        pre: text("tokenizer.ggml.pre"),
        tokens: texts("tokens"),
        scores: list("scores").into_iter().map(floats).collect(),
        token_types: list("token_type").into_iter().map(ints).collect(),
        merges: texts("merges").into_iter().map(|merge| String::from_utf8(merge).unwrap()).collect(),
        bos: int("bos_token_id"),
        eos: int("eos_token_id"),
        eot: int("eot_token_id"),
        eom: int("eom_token_id"),
        unknown: int("unknown_token_id"),
        padding: int("padding_token_id"),
        separator: int("seperator_token_id"),
        class: int("cls_token_id"),
        add_bos: int("add_bos_token").map(|value| value != 0),
        add_eos: int("add_eos_token").map(|value| value != 0),
        add_space_prefix: int("add_space_prefix").map(|value| value != 0),
        remove_extra_whitespaces: int("remove_extra_whitespaces").map(|value| value != 0),
        charsmap: list("precompiled_charsmap").into_iter().map(|byte| ints(byte) as u8).collect(),
        lowercase: int("normalizer.lowercase").map(|value| value != 0),
        strip_accents: int("normalizer.strip_accents").map(|value| value != 0),
        chat_template: text("tokenizer.chat_template"),
        named_chat_templates: Vec::new(),
    }
}

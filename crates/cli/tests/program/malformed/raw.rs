//! The parts of a GGUF file, to be put together wrongly.

use crate::support::tests;

/// A GGUF file in parts, whatever they hold.
pub(super) struct RawGguf {
    pub(super) magic: [u8; 4],
    pub(super) version: u32,
    pub(super) pair_count: Option<u64>,
    pub(super) tensor_count: Option<u64>,
    /// Key, type and bytes of each value.
    pub(super) pairs: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub(super) tensors: Vec<RawTensor>,
    pub(super) data: Vec<u8>,
}

#[derive(Clone)]
pub(super) struct RawTensor {
    pub(super) name: String,
    /// Innermost first.
    pub(super) dims: Vec<u64>,
    pub(super) ggml_type: u32,
    pub(super) offset: u64,
}

pub(super) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// An array of strings.
pub(super) fn strings(all: &[&str]) -> Vec<u8> {
    let mut bytes = [&8u32.to_le_bytes()[..], &(all.len() as u64).to_le_bytes()].concat();
    all.iter().for_each(|s| bytes.extend(string(s.as_bytes())));
    bytes
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn string(&mut self) -> &'a [u8] {
        let n = self.u64() as usize;
        self.take(n)
    }

    fn value(&mut self, kind: u32) -> &'a [u8] {
        let start = self.0;
        let _: &[u8] = match kind {
            0 | 1 | 7 => self.take(1),
            2 | 3 => self.take(2),
            4..=6 => self.take(4),
            8 => self.string(),
            9 => {
                let (kind, n) = (self.u32(), self.u64());
                for _ in 0..n {
                    self.value(kind);
                }
                &[]
            }
            _ => self.take(8),
        };
        &start[..start.len() - self.0.len()]
    }
}

impl RawGguf {
    /// The `llama` golden.
    pub(super) fn golden() -> RawGguf {
        let bytes = std::fs::read(tests("goldens-gguf/llama.gguf")).unwrap();
        let mut cur = Cursor(&bytes);
        let (magic, version) = (cur.take(4).try_into().unwrap(), cur.u32());
        let (tensors, pairs) = (cur.u64(), cur.u64());
        let pairs = (0..pairs).map(|_| {
            let (key, kind) = (cur.string().to_vec(), cur.u32());
            (key, kind, cur.value(kind).to_vec())
        });
        let pairs = pairs.collect();
        let tensors = (0..tensors).map(|_| {
            let (name, rank) = (String::from_utf8(cur.string().to_vec()).unwrap(), cur.u32());
            let dims = (0..rank).map(|_| cur.u64()).collect();
            RawTensor { name, dims, ggml_type: cur.u32(), offset: cur.u64() }
        });
        let tensors = tensors.collect();
        let data = bytes[(bytes.len() - cur.0.len()).next_multiple_of(32)..].to_vec();
        RawGguf { magic, version, pair_count: None, tensor_count: None, pairs, tensors, data }
    }

    /// Sets the value of a key, which may be new.
    pub(super) fn set(&mut self, key: &str, kind: u32, value: impl Into<Vec<u8>>) {
        let value = value.into();
        match self.pairs.iter_mut().find(|(known, ..)| known == key.as_bytes()) {
            Some(pair) => *pair = (key.into(), kind, value),
            None => self.pairs.push((key.into(), kind, value)),
        }
    }

    pub(super) fn set_u32(&mut self, key: &str, value: u32) {
        self.set(key, 4, value.to_le_bytes());
    }

    pub(super) fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, 8, string(value.as_bytes()));
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.pairs.retain(|(known, ..)| known != key.as_bytes());
    }

    pub(super) fn tensor(&mut self, name: &str) -> &mut RawTensor {
        self.tensors.iter_mut().find(|t| t.name == name).expect("the golden has it")
    }

    /// The bytes before the data section, and all of them.
    pub(super) fn bytes(&self) -> (usize, Vec<u8>) {
        let mut out = [&self.magic[..], &self.version.to_le_bytes()].concat();
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pair_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.pairs {
            out.extend(string(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        for t in &self.tensors {
            out.extend(string(t.name.as_bytes()));
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.ggml_type.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        let head = out.len();
        out.extend(&self.data);
        (head, out)
    }
}

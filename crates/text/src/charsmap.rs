//! The table of replacements by which SentencePiece models normalise text (`precompiled_charsmap`).
//!
//! A length, a double array of so many bytes (Darts, Yata) whose leaves are offsets, and the replacements at these offsets, each
//! ended by a zero byte.

use crate::TokenizerError;
use unicode_segmentation::UnicodeSegmentation;

/// Longest cluster that is looked up as a whole; transformers' tokenizers do so, and XLM-R's ids depend on it.
const LONGEST_CLUSTER: usize = 5;

pub(crate) struct Charsmap {
    units: Vec<u32>,
    replacements: String,
}

/// Offset from a unit to its children.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

/// Marks a unit that holds the value of a leaf.
const VALUE: u32 = 1 << 31;

impl Charsmap {
    /// Reads and checks the table: every step from any unit stays inside it.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let bad = |why: &str| {
            TokenizerError::BadVocab(format!("the table of replacements (precompiled_charsmap) {why}"))
        };
        let (length, rest) = bytes.split_first_chunk().ok_or_else(|| bad("is cut off"))?;
        let length = u32::from_le_bytes(*length) as usize;
        let (units, replacements) = rest.split_at_checked(length).ok_or_else(|| bad("is cut off"))?;
        let units: Vec<u32> = units.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let inside =
            |(at, &unit): (usize, &u32)| unit & VALUE != 0 || (at ^ offset(unit)) | 0xFF < units.len();
        if !length.is_multiple_of(4) || units.is_empty() || !units.iter().enumerate().all(inside) {
            return Err(bad("is no double array"));
        }
        let replacements =
            std::str::from_utf8(replacements).map_err(|_| bad("has replacements that are no UTF-8"))?;
        Ok(Self { units, replacements: replacements.to_owned() })
    }

    /// What stands for the shortest beginning of `text` that the table has.
    fn replacement(&self, text: &str) -> Option<&str> {
        let mut at = offset(self.units[0]);
        for &byte in text.as_bytes() {
            // No key has a zero byte: there the values lie.
            if byte == 0 {
                return None;
            }
            at ^= byte as usize;
            let unit = self.units[at];
            if unit & (VALUE | 0xFF) != u32::from(byte) {
                return None;
            }
            at ^= offset(unit);
            if unit & 1 << 8 != 0 {
                let from = self.replacements.get((self.units[at] & !VALUE) as usize..)?;
                return Some(from.split('\0').next().unwrap_or_default());
            }
        }
        None
    }

    /// The text with everything replaced that the table has; `None` where it would be longer than the limit, in bytes.
    pub(crate) fn apply(&self, text: &str, limit: usize) -> Option<String> {
        let mut out = String::with_capacity(text.len());
        for cluster in text.graphemes(true) {
            if cluster.len() <= LONGEST_CLUSTER
                && let Some(with) = self.replacement(cluster)
            {
                push(&mut out, with, limit)?;
                continue;
            }
            for c in cluster.chars() {
                let mut buffer = [0; 4];
                let c: &str = c.encode_utf8(&mut buffer);
                push(&mut out, self.replacement(c).unwrap_or(c), limit)?;
            }
        }
        Some(out)
    }
}

/// Appends to a text that may not become longer than the limit.
pub(crate) fn push(out: &mut String, text: &str, limit: usize) -> Option<()> {
    (text.len() <= limit.saturating_sub(out.len())).then(|| out.push_str(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn broken_tables_are_refused() {
        for bytes in
            [&[][..], &[9, 0, 0], &[8, 0, 0, 0, 1, 2, 3, 4], &[0, 0, 0, 0], &[4, 0, 0, 0, 0, 4, 0, 0]]
        {
            let message = Charsmap::new(bytes).err().unwrap().to_string();
            assert!(message.contains("precompiled_charsmap"), "{message}");
        }
    }

    proptest! {
        /// What is accepted is safe to walk.
        #[test]
        fn any_table_is_refused_or_applied(units in prop::collection::vec(any::<u32>(), 256), mask: u32, text: String) {
            let units: Vec<u8> = units.iter().flat_map(|unit| (unit & (mask & 0x3FF | 0x3FFF)).to_le_bytes()).collect();
            let bytes = [&1024u32.to_le_bytes()[..], &units, b"x\0"].concat();
            if let Ok(map) = Charsmap::new(&bytes) {
                map.apply(&text, 1 << 20);
            }
        }
    }
}

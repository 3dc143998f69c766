//! The printable alphabet in which GPT-2 vocabularies write arbitrary bytes.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68 are written, in ascending order, as the
//! code points from U+0100 on (GPT-2, Radford et al. 2019, `bytes_to_unicode`).

/// Number of code points the alphabet spans: U+0000 to U+0143.
const SPAN: usize = 0x144;

const fn printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

const fn table() -> [u16; SPAN] {
    let mut to_byte = [u16::MAX; SPAN];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        if printable(byte as u8) {
            to_byte[byte] = byte as u16;
        } else {
            to_byte[next] = byte as u16;
            next += 1;
        }
        byte += 1;
    }
    to_byte
}

static TO_BYTE: [u16; SPAN] = table();

/// The bytes a token written in the alphabet stands for, or `None` when a character is outside the alphabet.
pub(crate) fn decode(token: &str) -> Option<Vec<u8>> {
    token.chars().map(|c| TO_BYTE.get(c as usize).and_then(|&b| u8::try_from(b).ok())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_letters() {
        assert_eq!(decode("Ġthe").as_deref(), Some(b" the".as_slice()));
        assert_eq!(decode("Ċ").as_deref(), Some(b"\n".as_slice()));
        assert_eq!(decode("Ã©").as_deref(), Some("é".as_bytes()));
        assert_eq!(decode("a b"), None);
        assert_eq!(decode("你"), None);
    }

    #[test]
    fn covers_every_byte_once() {
        let mut seen: Vec<u16> = TO_BYTE.iter().copied().filter(|&b| b != u16::MAX).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..256).collect::<Vec<u16>>());
    }
}

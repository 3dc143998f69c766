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

fn byte(letter: char) -> Option<u8> {
    TO_BYTE.get(letter as usize).and_then(|&byte| u8::try_from(byte).ok())
}

/// The character that stands for a byte.
pub(crate) fn letter(byte: u8) -> char {
    let at = TO_BYTE.iter().position(|&of| of == u16::from(byte));
    at.and_then(|at| char::from_u32(at as u32)).expect("every byte has a letter")
}

/// Whether every character of a token stands for a byte.
pub(crate) fn is_in_alphabet(token: &str) -> bool {
    token.chars().all(|letter| byte(letter).is_some())
}

/// The bytes a token written in the alphabet stands for, or `None` when a character is outside the alphabet.
pub(crate) fn decode(token: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(token.chars().count());
    for letter in token.chars() {
        bytes.push(byte(letter)?);
    }
    Some(bytes)
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
        for byte in 0..=255 {
            let name = letter(byte).to_string();
            assert_eq!(decode(&name).as_deref(), Some([byte].as_slice()));
            assert!(is_in_alphabet(&name));
        }
        assert!(!is_in_alphabet("a b"));
    }
}

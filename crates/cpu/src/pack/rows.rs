//! What packed blocks are made with: bytes of several rows at once.

use std::ops::{BitAnd, BitOr, Shl, Shr};

/// A dword of each of `R` rows. Loops over an array of the lanes' length compile to vector instructions where those are enabled.
#[derive(Clone, Copy)]
pub(super) struct Words<const R: usize>([u32; R]);

impl<const R: usize> Words<R> {
    #[inline(always)]
    fn each(mut self, f: impl Fn(u32) -> u32) -> Words<R> {
        for word in &mut self.0 {
            *word = f(*word);
        }
        self
    }
}

impl<const R: usize> BitAnd<u32> for Words<R> {
    type Output = Words<R>;

    #[inline(always)]
    fn bitand(self, mask: u32) -> Words<R> {
        self.each(
            #[inline(always)]
            |word| word & mask,
        )
    }
}

impl<const R: usize> BitOr for Words<R> {
    type Output = Words<R>;

    #[inline(always)]
    fn bitor(mut self, other: Words<R>) -> Words<R> {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
        self
    }
}

impl<const R: usize> Shl<usize> for Words<R> {
    type Output = Words<R>;

    #[inline(always)]
    fn shl(self, bits: usize) -> Words<R> {
        self.each(
            #[inline(always)]
            |word| word << bits,
        )
    }
}

impl<const R: usize> Shr<usize> for Words<R> {
    type Output = Words<R>;

    #[inline(always)]
    fn shr(self, bits: usize) -> Words<R> {
        self.each(
            #[inline(always)]
            |word| word >> bits,
        )
    }
}

/// Each of the dwords shifted right.
#[inline(always)]
pub(super) fn shifted<const R: usize>(mut words: [Words<R>; 8], bits: usize) -> [Words<R>; 8] {
    for word in &mut words {
        *word = *word >> bits;
    }
    words
}

/// A block of `B` bytes of each of `R` rows.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a, const B: usize, const R: usize>(pub(super) [&'a [u8; B]; R]);

impl<'a, const B: usize, const R: usize> Blocks<'a, B, R> {
    /// `N` bytes from `at` on.
    #[inline(always)]
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [[u8; N]; R] {
        let mut bytes = [[0; N]; R];
        for (bytes, block) in bytes.iter_mut().zip(self.0) {
            bytes.copy_from_slice(&block[at..at + N]);
        }
        bytes
    }

    /// The dword that begins at byte `at`.
    #[inline(always)]
    pub(super) fn words(&self, at: usize) -> Words<R> {
        let mut words = [0; R];
        for (word, bytes) in words.iter_mut().zip(self.bytes(at)) {
            *word = u32::from_le_bytes(bytes);
        }
        Words(words)
    }

    /// Eight dwords, the first of which begins at byte `at`.
    #[inline(always)]
    pub(super) fn eight(&self, at: usize) -> [Words<R>; 8] {
        let mut eight = [Words([0; R]); 8];
        for (j, words) in eight.iter_mut().enumerate() {
            *words = self.words(at + 4 * j);
        }
        eight
    }
}

/// Where `R` rows lie in a packed block.
pub(super) struct Place<'a, const R: usize> {
    /// The packed block.
    pub(super) out: &'a mut [u8],
    /// Its rows.
    pub(super) lanes: usize,
    /// The lane of the first of the `R`.
    pub(super) lane: usize,
    /// Offset of the field that is written next.
    pub(super) at: usize,
}

impl<const R: usize> Place<'_, R> {
    /// Writes the next field.
    #[inline(always)]
    pub(super) fn put<const N: usize>(&mut self, field: [[u8; N]; R]) {
        self.out[self.at + self.lane * N..][..R * N].copy_from_slice(field.as_flattened());
        self.at += self.lanes * N;
    }

    #[inline(always)]
    pub(super) fn put_words(&mut self, words: Words<R>) {
        let mut field = [[0; 4]; R];
        for (bytes, word) in field.iter_mut().zip(words.0) {
            *bytes = word.to_le_bytes();
        }
        self.put(field);
    }

    /// Writes two fields of two bytes each: those of the dwords, the lower ones first.
    #[inline(always)]
    pub(super) fn put_halves(&mut self, words: Words<R>) {
        for i in 0..2 {
            let mut field = [[0; 2]; R];
            for (half, word) in field.iter_mut().zip(words.0) {
                *half = ((word >> (16 * i)) as u16).to_le_bytes();
            }
            self.put(field);
        }
    }

    /// Writes four fields of a byte each: those of the dwords, the lowest first.
    #[inline(always)]
    pub(super) fn put_bytes(&mut self, words: Words<R>) {
        for i in 0..4 {
            let mut field = [[0]; R];
            for (byte, word) in field.iter_mut().zip(words.0) {
                *byte = [(word >> (8 * i)) as u8];
            }
            self.put(field);
        }
    }

    /// Writes the low nibbles of 8 dwords as *codes*.
    #[inline(always)]
    pub(super) fn put_codes(&mut self, words: [Words<R>; 8]) {
        const LOW: u32 = 0x0f0f_0f0f;
        for j in 0..4 {
            self.put_words(words[j] & LOW | (words[j + 4] & LOW) << 4);
        }
    }

    /// Writes bits 0 and 1 of the bytes of 8 dwords as *two bits*.
    #[inline(always)]
    pub(super) fn put_two_bits(&mut self, words: [Words<R>; 8]) {
        const LOW: u32 = 0x0303_0303;
        for [a, b, c, d] in words.as_chunks::<4>().0 {
            self.put_words(*a & LOW | (*b & LOW) << 2 | (*c & LOW) << 4 | (*d & LOW) << 6);
        }
    }

    /// Writes bit 0 of the bytes of 8 dwords as *fifth bits*.
    #[inline(always)]
    pub(super) fn put_bits(&mut self, words: [Words<R>; 8]) {
        const LOW: u32 = 0x0101_0101;
        let [first, rest @ ..] = words;
        let mut all = first & LOW;
        for (j, word) in (1..).zip(rest) {
            all = all | (word & LOW) << j;
        }
        self.put_words(all);
    }
}

/// From bit `4 j + i` belonging to weight `4 j + i` to *fifth bits*.
#[inline(always)]
pub(super) fn fifth_bits<const R: usize>(qh: Words<R>) -> Words<R> {
    let mut bytes = [qh; 4];
    for (i, byte) in bytes.iter_mut().enumerate() {
        let x = qh >> i & 0x1111_1111;
        let x = (x | x >> 3) & 0x0303_0303;
        let x = (x | x >> 6) & 0x000f_000f;
        *byte = ((x | x >> 12) & 0xff) << (8 * i);
    }
    bytes[0] | bytes[1] | bytes[2] | bytes[3]
}

//! Code books: the signed bytes that packed codes stand for.

use tensor::DType;
use tensor::blocks::{iq2_xxs, iq3_s, iq3_xxs, iq4_nl, mxfp4};

/// Levels of 4-bit codes, or in the first places those of 3-bit codes.
pub(crate) type Book = [i8; 16];

/// Points of the books of IQ1, with the shift in them.
const IQ1: Book = [-9, -7, -1, 1, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const IQ2: Book = {
    let [a, b, c, _] = iq2_xxs::MAGNITUDES;
    signed(&[a, b, c])
};
const IQ3_XXS: Book = signed(&iq3_xxs::MAGNITUDES);
const IQ3_S: Book = signed(&iq3_s::MAGNITUDES);

/// Magnitudes with either sign, in ascending order; at most 8.
const fn signed(magnitudes: &[i8]) -> Book {
    let mut levels = [0; 16];
    let mut i = 0;
    while i < magnitudes.len() {
        levels[magnitudes.len() - 1 - i] = -magnitudes[i];
        levels[magnitudes.len() + i] = magnitudes[i];
        i += 1;
    }
    levels
}

/// What the 4-bit floats are shifted by to be unsigned: the largest of them.
pub(crate) const FLOATS_SHIFT: i8 = 12;

/// The 4-bit floats of MXFP4 and NVFP4, shifted.
pub(crate) const SHIFTED_FLOATS: Book = {
    let mut shifted = mxfp4::LEVELS;
    let mut i = 0;
    while i < shifted.len() {
        shifted[i] += FLOATS_SHIFT;
        i += 1;
    }
    shifted
};

/// The book of a type whose packed codes index one.
pub(crate) fn book(dtype: DType) -> &'static Book {
    match dtype {
        DType::IQ4_NL | DType::IQ4_XS => &iq4_nl::LEVELS,
        DType::IQ3_XXS => &IQ3_XXS,
        DType::IQ3_S => &IQ3_S,
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => &IQ2,
        DType::IQ1_S | DType::IQ1_M => &IQ1,
        other => unreachable!("{other} has no code book"),
    }
}

/// For each signed byte its code in a book; bytes that are not in it get 0.
pub(crate) fn inverse(book: &Book) -> [u8; 256] {
    let mut codes = [0; 256];
    // From the end, so that of equal levels the first one counts.
    for (code, level) in book.iter().enumerate().rev() {
        codes[usize::from(*level as u8)] = code as u8;
    }
    codes
}

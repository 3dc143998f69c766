//! Code books: the signed bytes that packed codes stand for.

use tensor::DType;
use tensor::blocks::{iq4_nl, mxfp4};

/// Levels of 4-bit codes, or in the first places those of 3-bit codes.
pub(crate) type Book = [i8; 16];

/// Points of the books of IQ1, with the shift in them.
const IQ1: Book = [-9, -7, -1, 1, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const IQ2: Book = [-43, -25, -8, 8, 25, 43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const IQ3_XXS: Book = [-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62];
const IQ3_S: Book = [-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15];

/// The 4-bit floats of MXFP4 and NVFP4, shifted by 12 to be unsigned.
pub(crate) const SHIFTED_FLOATS: Book = {
    let mut shifted = mxfp4::LEVELS;
    let mut i = 0;
    while i < shifted.len() {
        shifted[i] += 12;
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

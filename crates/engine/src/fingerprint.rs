//! What decides the bits of an answer, as a short text.

use std::ops::Range;

use graph::backend::{DeviceError, RowSource, WeightDesc};
use sha2::{Digest, Sha256};

/// Bytes that are read at the beginning, in the middle and at the end of a weight, at least.
const SAMPLE: usize = 4096;

/// A digest of weights by sample: of each its name, type and shape and whole rows of its beginning, middle and end, each at
/// least [`SAMPLE`] bytes. All of a weight of up to three times that is read, so that norms and rotary tables are covered
/// whole; of larger ones a change elsewhere is not seen.
#[derive(Clone, Default)]
pub(crate) struct WeightDigest(Sha256);

impl WeightDigest {
    /// Adds a weight as the graph means it: decoded and put in order where the model asks for that.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub(crate) fn add(&mut self, desc: &WeightDesc, source: &dyn RowSource) -> Result<(), DeviceError> {
        put(&mut self.0, &format!("{} {} {}", desc.name, desc.dtype, desc.shape));
        let row_bytes = desc.dtype.bytes_for(desc.shape.last()).unwrap_or(0);
        for rows in sample(desc.shape.rows(), row_bytes) {
            source.rows(rows, &mut |_, bytes| self.0.update(bytes))?;
        }
        Ok(())
    }
}

/// The rows that are read of so many: at three places, or all of them at the first.
fn sample(rows: usize, row_bytes: usize) -> [Range<usize>; 3] {
    let n = SAMPLE.div_ceil(row_bytes.max(1));
    if rows / 3 <= n {
        return [0..rows, rows..rows, rows..rows];
    }
    let middle = (rows - n) / 2;
    [0..n, middle..middle + n, rows - n..rows]
}

/// Eight bytes in hexadecimal of a digest over `parts` and the weights.
pub(crate) fn fingerprint(parts: impl IntoIterator<Item = String>, weights: &WeightDigest) -> String {
    let mut hash = weights.0.clone();
    parts.into_iter().for_each(|part| put(&mut hash, &part));
    hash.finalize()[..8].iter().map(|b| format!("{b:02x}")).collect()
}

/// With its length, so that no two sequences of texts are alike.
fn put(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

#[cfg(test)]
mod tests {
    use graph::backend::WeightUse;
    use tensor::{DType, Shape};

    use super::*;

    /// Zeros, but for one byte.
    struct Rows {
        row_bytes: usize,
        changed: Option<usize>,
    }

    impl RowSource for Rows {
        fn rows(&self, rows: Range<usize>, sink: &mut dyn FnMut(usize, &[u8])) -> Result<(), DeviceError> {
            for row in rows {
                let mut bytes = vec![0; self.row_bytes];
                if let Some(at) = self.changed.filter(|at| at / self.row_bytes == row) {
                    bytes[at % self.row_bytes] = 1;
                }
                sink(row, &bytes);
            }
            Ok(())
        }
    }

    fn of(name: &str, dtype: DType, dims: &[usize], changed: Option<usize>) -> String {
        let shape = Shape::new(dims).unwrap();
        let row_bytes = dtype.bytes_for(shape.last()).unwrap();
        let desc = WeightDesc { name: name.to_owned(), dtype, shape, layout: WeightUse::Matrix };
        let mut digest = WeightDigest::default();
        digest.add(&desc, &Rows { row_bytes, changed }).unwrap();
        fingerprint([], &digest)
    }

    #[test]
    fn beginning_middle_and_end_are_covered_and_small_weights_whole() {
        let large = [100, 256]; // rows of 1024 bytes: four of them at each place
        let same = of("w", DType::F32, &large, None);
        assert_eq!(same, of("w", DType::F32, &large, None));
        for at in [0, 4095, 48 * 1024, 52 * 1024 - 1, 96 * 1024, 100 * 1024 - 1] {
            assert_ne!(same, of("w", DType::F32, &large, Some(at)), "byte {at}");
        }
        // Documented: what lies between is not seen.
        for at in [4096, 48 * 1024 - 1, 52 * 1024, 96 * 1024 - 1] {
            assert_eq!(same, of("w", DType::F32, &large, Some(at)), "byte {at}");
        }
        let small = [12, 256];
        let same = of("w", DType::F32, &small, None);
        for at in (0..12 * 1024).step_by(511) {
            assert_ne!(same, of("w", DType::F32, &small, Some(at)), "byte {at}");
        }
        // Long rows are read whole.
        let wide = [9, 5000];
        let same = of("w", DType::F32, &wide, None);
        assert_ne!(same, of("w", DType::F32, &wide, Some(4 * 20_000 + 19_999)));
    }

    #[test]
    fn name_type_and_shape_are_covered() {
        let all = [
            of("w", DType::F32, &[8, 32], None),
            of("v", DType::F32, &[8, 32], None),
            of("w", DType::F32, &[4, 64], None),
            of("w", DType::F16, &[8, 64], None),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{all:?}");
        }
    }

    #[test]
    fn samples_lie_inside_and_do_not_overlap() {
        for rows in 0..200 {
            for row_bytes in [0, 1, 18, 1000, 4096, 9999] {
                let ranges = sample(rows, row_bytes);
                assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start), "{rows} {row_bytes}: {ranges:?}");
                assert_eq!(ranges[0].start, 0);
                assert_eq!(ranges[2].end, rows);
            }
        }
    }
}

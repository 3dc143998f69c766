//! Row counts that plans are compiled for.

use thiserror::Error;

/// The lengths plans exist for, in ascending order.
///
/// A length between two buckets runs in the larger one with padded rows; a length beyond the largest is an error and
/// never shortened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buckets {
    sizes: Box<[usize]>,
}

/// Why a list of buckets, or a length, was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BucketsError {
    /// No size was given.
    #[error("no bucket sizes were given: at least one is needed")]
    Empty,
    /// A bucket of no rows was given.
    #[error("a bucket size is 0: every bucket must hold at least one row")]
    Zero,
    /// A size was given twice.
    #[error("bucket size {0} is given more than once")]
    Duplicate(usize),
    /// The length fits no bucket.
    #[error(
        "length {len} is longer than the largest bucket, {largest}: split it, or configure a larger bucket"
    )]
    TooLong {
        /// The length asked for.
        len: usize,
        /// The largest bucket there is.
        largest: usize,
    },
}

impl Buckets {
    /// Buckets of these sizes, given in any order.
    ///
    /// # Errors
    /// An empty list, a size of 0, and a size given twice are refused.
    pub fn new(sizes: impl Into<Vec<usize>>) -> Result<Self, BucketsError> {
        let mut sizes: Vec<usize> = sizes.into();
        sizes.sort_unstable();
        match sizes.first() {
            None => return Err(BucketsError::Empty),
            Some(0) => return Err(BucketsError::Zero),
            Some(_) => {}
        }
        if let Some(pair) = sizes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(BucketsError::Duplicate(pair[0]));
        }
        Ok(Buckets { sizes: sizes.into() })
    }

    /// The smallest bucket that holds `len` rows.
    ///
    /// # Errors
    /// A length beyond [`Buckets::largest`] is refused.
    pub fn for_len(&self, len: usize) -> Result<usize, BucketsError> {
        let at = self.sizes.partition_point(|&size| size < len);
        self.sizes.get(at).copied().ok_or(BucketsError::TooLong { len, largest: self.largest() })
    }

    /// The largest bucket.
    pub fn largest(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// Every bucket, ascending.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_bucket_that_holds_the_length_is_chosen() {
        let buckets = Buckets::new([64, 1, 8, 512]).unwrap();
        assert_eq!(buckets.sizes(), [1, 8, 64, 512]);
        for (len, bucket) in [(0, 1), (1, 1), (2, 8), (8, 8), (9, 64), (64, 64), (65, 512), (512, 512)] {
            assert_eq!(buckets.for_len(len), Ok(bucket), "length {len}");
        }
    }

    #[test]
    fn a_length_beyond_the_largest_is_an_error_with_both_numbers() {
        let error = Buckets::new([16, 4]).unwrap().for_len(17).unwrap_err();
        assert_eq!(error, BucketsError::TooLong { len: 17, largest: 16 });
        assert!(error.to_string().contains("17") && error.to_string().contains("16"));
    }

    #[test]
    fn bad_lists_are_refused() {
        assert_eq!(Buckets::new([]), Err(BucketsError::Empty));
        assert_eq!(Buckets::new([4, 0]), Err(BucketsError::Zero));
        assert_eq!(Buckets::new([4, 1, 2, 4]), Err(BucketsError::Duplicate(4)));
    }
}

//! Bytes of any length that derive from a number, generated and compared at the speed of a copy.
//!
//! They start with the number, so that all values differ. The rest is a slice of a pool of random
//! bytes, at an offset that the number selects. So a store that confuses two values, or parts of
//! them, is detected.

use crate::random::{self};

/// Offsets at which a slice can start: the pool stays in the second-level cache.
const OFFSETS: usize = 1 << 16;

/// Maximum length of contents from [`Contents::new`].
pub const BYTES_MAX: usize = 4096;

/// Bytes of the number.
const HEAD: usize = 8;

/// The pool.
#[derive(Debug)]
pub struct Contents {
    pool: Vec<u8>,
}

/// Maximum length of a value, for workloads with `--value-bytes`.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

impl Contents {
    /// Generates a pool from a seed, for up to [`BYTES_MAX`] bytes.
    pub fn new(seed: u64) -> Self {
        Self::of_bytes(seed, BYTES_MAX)
    }

    /// Generates a pool for up to `bytes_max` bytes.
    pub fn of_bytes(seed: u64, bytes_max: usize) -> Self {
        let mut rng = random::rng(seed);
        let mut pool = Vec::with_capacity(OFFSETS + bytes_max + HEAD);
        while pool.len() < OFFSETS + bytes_max {
            pool.extend_from_slice(&rng.u64(..).to_le_bytes());
        }
        Self { pool }
    }

    /// The slice of the pool that belongs to a number.
    #[inline]
    fn slice(&self, number: u64, bytes: usize) -> &[u8] {
        let at = usize::try_from(number & (OFFSETS as u64 - 1)).unwrap_or(0);
        self.pool.get(at..at + bytes).unwrap_or_default()
    }

    /// Appends the contents of a number.
    #[inline]
    pub fn append(&self, number: u64, bytes: usize, out: &mut Vec<u8>) {
        let head = number.to_le_bytes();
        let length = bytes.min(HEAD);
        out.extend_from_slice(head.get(..length).unwrap_or_default());
        out.extend_from_slice(self.slice(number, bytes - length));
    }

    /// True if `found` is the contents of a number.
    #[inline]
    pub fn are(&self, number: u64, bytes: usize, found: &[u8]) -> bool {
        let (head, length) = (number.to_le_bytes(), bytes.min(HEAD));
        match found.split_at_checked(length) {
            Some((first, rest)) => {
                head.get(..length) == Some(first) && rest == self.slice(number, bytes - length)
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_recognised_and_changed_ones_are_not() {
        let contents = Contents::new(1);
        for bytes in [0, 1, 7, 8, 9, 100, BYTES_MAX] {
            let mut made = b"x".to_vec();
            contents.append(42, bytes, &mut made);
            let made = made.split_off(1);
            assert_eq!(made.len(), bytes);
            assert!(contents.are(42, bytes, &made));
            assert!(!contents.are(42, bytes + 1, &made));
            if bytes > 0 {
                assert!(!contents.are(43, bytes, &made));
                let mut other = made.clone();
                other[bytes - 1] ^= 1;
                assert!(!contents.are(42, bytes, &other));
            }
        }
    }

    #[test]
    fn values_differ_at_their_start_and_mostly_at_their_end() {
        let contents = Contents::new(2);
        let of = |number: u64| {
            let mut out = Vec::new();
            contents.append(random::draw(1, 2, number), 100, &mut out);
            out
        };
        let all: Vec<Vec<u8>> = (0..200).map(of).collect();
        let mut same_ends = 0;
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| one[..8] != other[..8]));
            same_ends += all[..at].iter().filter(|other| one[92..] == other[92..]).count();
        }
        // Of 19,900 pairs. A few start at the same one of the 65,536 offsets.
        assert!(same_ends < 5, "{same_ends}");
    }
}

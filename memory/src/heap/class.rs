//! Size classes of cells: 32 classes in steps of one line up to 2 KiB, eight for each doubling up
//! to 64 KiB, then four for each doubling up to 256 MiB. At most one eighth (small) or one quarter
//! (large) of a cell is unused.

use crate::layout::LINE;

/// Number of classes.
pub(crate) const CLASSES: u8 = 120;

/// The first classes: each has a line more than the one before, the first one has one.
pub(crate) const CLASSES_OF_LINES: u64 = 32;

/// The largest cell, in bytes.
pub(crate) const CELL_BYTES_MAX: u64 = 256 << 20;

/// The smallest class whose cells hold `bytes`, or `None` above [`CELL_BYTES_MAX`].
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the results are below CLASSES")]
pub(crate) const fn class_of(bytes: u64) -> Option<u8> {
    let units = bytes.div_ceil(LINE);
    if units <= 32 {
        return Some(if units == 0 { 0 } else { (units - 1) as u8 });
    }
    if bytes > CELL_BYTES_MAX {
        return None;
    }
    // 2^log < units <= 2^(log + 1)
    let log = 63 - (units - 1).leading_zeros() as u64;
    if log < 10 {
        let step = 1 << (log - 3);
        Some((32 + (log - 5) * 8 + (units - (1 << log)).div_ceil(step) - 1) as u8)
    } else {
        let step = 1 << (log - 2);
        Some((72 + (log - 10) * 4 + (units - (1 << log)).div_ceil(step) - 1) as u8)
    }
}

/// Bytes of a cell of this class; 0 for a class that does not exist.
#[inline]
pub(crate) const fn bytes_of(class: u8) -> u64 {
    let c = class as u64;
    let units = if c < 32 {
        c + 1
    } else if c < 72 {
        let log = 5 + (c - 32) / 8;
        (1 << log) + ((c - 32) % 8 + 1) * (1 << (log - 3))
    } else if c < CLASSES as u64 {
        let log = 10 + (c - 72) / 4;
        (1 << log) + ((c - 72) % 4 + 1) * (1 << (log - 2))
    } else {
        0
    };
    units * LINE
}

const _: () = assert!(bytes_of(CLASSES - 1) == CELL_BYTES_MAX);
const _: () = assert!(bytes_of(0) == LINE && bytes_of(31) == 32 * LINE);
const _: () = assert!(bytes_of(CLASSES_OF_LINES as u8 - 1) == CLASSES_OF_LINES * LINE);
const _: () = assert!(bytes_of(CLASSES) == 0 && bytes_of(u8::MAX) == 0);
const _: () = assert!(matches!(class_of(0), Some(0)) && matches!(class_of(LINE + 1), Some(1)));

/// The largest class whose cells fit in `bytes` (at least a line).
pub(crate) const fn class_within(bytes: u64) -> Option<u8> {
    if bytes < LINE {
        return None;
    }
    let mut class = match class_of(if bytes > CELL_BYTES_MAX { CELL_BYTES_MAX } else { bytes }) {
        Some(class) => class,
        None => CLASSES - 1,
    };
    if bytes_of(class) > bytes {
        class -= 1;
    }
    debug_assert!(bytes_of(class) <= bytes, "a cell of the class fits");
    Some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_falls_into_the_least_class_that_holds_it() {
        for class in 0..CLASSES {
            let bytes = bytes_of(class);
            assert_eq!(class_of(bytes), Some(class));
            assert_eq!(class_within(bytes), Some(class));
            assert_eq!(class_of(bytes - 1), Some(class));
            if class > 0 {
                assert!(bytes > bytes_of(class - 1));
                assert_eq!(class_of(bytes_of(class - 1) + 1), Some(class));
                assert_eq!(class_within(bytes - 1), Some(class - 1));
            }
        }
        assert_eq!(bytes_of(CLASSES - 1), CELL_BYTES_MAX);
        assert_eq!(class_of(CELL_BYTES_MAX + 1), None);
        assert_eq!(bytes_of(16), 1088);
    }
}

//! Composite keys: a tag's value and a record's key as one byte string. Composite keys sort by
//! value, then by record key, and are unique:
//!
//! ```text
//! value, each 00 written as 00 FF | 00 00 | record key
//! ```
//!
//! 00 is followed by FF within a value and by 00 at its end, so a value that is a prefix of another
//! one sorts before it. All keys of one value are at least `value | 00 00` and below
//! `value | 00 01`.

use std::ops::Bound;

use nearstate_memory::Corruption;

const CUT: Corruption = Corruption("a key of an ordered index is cut short");

/// Appends the composite key of a value and a record key.
#[inline]
pub fn composite(value: &[u8], record_key: &[u8], out: &mut Vec<u8>) {
    let begin = out.len();
    escape(value, out);
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(record_key);
    debug_assert!(
        out.len() - begin >= value.len() + 2 + record_key.len(),
        "a composite key lacks a part of its value"
    );
}

fn escape(value: &[u8], out: &mut Vec<u8>) {
    out.reserve(value.len() + 2);
    let mut runs = value.split(|byte| *byte == 0);
    out.extend_from_slice(runs.next().unwrap_or_default());
    for run in runs {
        out.extend_from_slice(&[0, 0xff]);
        out.extend_from_slice(run);
    }
}

/// Splits a composite key: appends the value to `value`, returns the record key.
///
/// # Errors
/// Damage: the bytes are not a composite key. A part of the value may have been appended.
pub fn split_composite<'a>(key: &'a [u8], value: &mut Vec<u8>) -> Result<&'a [u8], Corruption> {
    let mut rest = key;
    loop {
        let zero = rest.iter().position(|byte| *byte == 0).ok_or(CUT)?;
        let (run, after) = rest.split_at_checked(zero).ok_or(CUT)?;
        value.extend_from_slice(run);
        let ([_, mark], after) = after.split_first_chunk::<2>().ok_or(CUT)?;
        match mark {
            0 => return Ok(after),
            0xff => value.push(0),
            _ => {
                return Err(Corruption("a key of an ordered index has a mark that does not exist"));
            }
        }
        debug_assert!(after.len() < rest.len(), "a composite key is read byte by byte");
        rest = after;
    }
}

/// The bounds of all composite keys whose values are in a range, for
/// [`Ordered::walk`](super::Ordered::walk).
pub fn composite_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    // The keys of a value are between its two edges.
    let edge = |value: &[u8], mark| {
        let mut edge = Vec::new();
        escape(value, &mut edge);
        edge.extend_from_slice(&[0, mark]);
        edge
    };
    let from = match from {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(value) => Bound::Included(edge(value, 0)),
        Bound::Excluded(value) => Bound::Included(edge(value, 1)),
    };
    let to = match to {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(value) => Bound::Excluded(edge(value, 1)),
        Bound::Excluded(value) => Bound::Excluded(edge(value, 0)),
    };
    (from, to)
}

#[cfg(test)]
mod tests {
    use std::ops::RangeBounds;

    use proptest::prelude::*;

    use super::*;

    /// Short strings of the bytes that matter.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop::sample::select(vec![0, 1, 2, 0xfe, 0xff]);
        prop::collection::vec(byte, 0..5)
    }

    fn key(value: &[u8], record: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        composite(value, record, &mut out);
        out
    }

    fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
        prop_oneof![
            Just(Bound::Unbounded),
            bytes().prop_map(Bound::Included),
            bytes().prop_map(Bound::Excluded)
        ]
    }

    proptest! {
        #[test]
        fn composite_keys_sort_by_value_then_by_record(
            left in (bytes(), bytes()),
            right in (bytes(), bytes()),
        ) {
            let order = key(&left.0, &left.1).cmp(&key(&right.0, &right.1));
            prop_assert_eq!(order, left.cmp(&right));
        }

        #[test]
        fn a_composite_key_splits_into_its_parts(value in bytes(), record in bytes()) {
            let key = key(&value, &record);
            let mut found = Vec::new();
            prop_assert_eq!(split_composite(&key, &mut found), Ok(record.as_slice()));
            prop_assert_eq!(found, value);
        }

        #[test]
        fn any_bytes_split_or_are_damage(key in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut value = Vec::new();
            if let Ok(record) = split_composite(&key, &mut value) {
                let mut again = Vec::new();
                composite(&value, record, &mut again);
                prop_assert_eq!(again, key);
            }
        }

        #[test]
        fn a_range_of_values_has_the_keys_of_these_values(
            value in bytes(),
            record in bytes(),
            from in bound(),
            to in bound(),
        ) {
            let slice = |bound: &Bound<Vec<u8>>| bound.clone();
            let is_meant = (slice(&from), slice(&to)).contains(&value);
            let range = composite_range(
                from.as_ref().map(Vec::as_slice),
                to.as_ref().map(Vec::as_slice),
            );
            prop_assert_eq!(range.contains(&key(&value, &record)), is_meant);
        }
    }
}

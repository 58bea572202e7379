//! Equality of keys: every read and every write compares one.

/// Equality of two keys.
#[inline]
pub(crate) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && is_same(one, other)
}

/// Equality of two slices of the same length. Keys are short: two overlapping loads compare up to
/// 32 bytes. A call of `memcmp` would cost as much as the rest of a read.
#[inline]
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    debug_assert!(one.len() == other.len(), "both have one length");
    match one.len() {
        16..=32 => {
            one.first_chunk::<16>() == other.first_chunk::<16>()
                && one.last_chunk::<16>() == other.last_chunk::<16>()
        }
        8..=15 => {
            one.first_chunk::<8>() == other.first_chunk::<8>()
                && one.last_chunk::<8>() == other.last_chunk::<8>()
        }
        4..=7 => {
            one.first_chunk::<4>() == other.first_chunk::<4>()
                && one.last_chunk::<4>() == other.last_chunk::<4>()
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_differ_in_every_byte() {
        for length in 0..40 {
            let key: Vec<u8> = (0..length).collect();
            assert!(is_equal(&key, &key.clone()));
            assert!(!is_equal(&key, &(0..=length).collect::<Vec<_>>()));
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] ^= 0x80;
                assert!(!is_equal(&key, &other), "byte {at} of {length}");
            }
        }
    }
}

//! The hash of the prototype: two multiplications for a key of the workloads.

use crate::operations::RecordKey;

/// An odd number without a pattern (digits of pi), with which the hash multiplies.
const FACTOR: u64 = 0x2437_06f7_2189_b3a5;

/// Multiplies two numbers and folds the product.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a few instructions of the read that is measured")]
fn folded(a: u64, b: u64) -> u64 {
    let [low, high] = words(&(u128::from(a) * u128::from(b)).to_le_bytes());
    low ^ high
}

/// Two words.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) fn words(bytes: &[u8; 16]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    [0, 1].map(|at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)))
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
fn folded_piece(state: u64, piece: &[u8; 16]) -> u64 {
    let [low, high] = words(piece);
    folded(low ^ state, high ^ FACTOR)
}

/// A hash of a key: a folded product of each sixteen bytes, the last of which may overlap with the
/// ones before. Not keyed: a prototype has no protection against crafted keys.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) fn hash(key: &[u8]) -> u64 {
    // A key of known length needs no loop.
    match <&RecordKey>::try_from(key) {
        Ok(key) => hash_of(key),
        Err(_) => hash_of(key),
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
fn hash_of(key: &[u8]) -> u64 {
    let mut state = FACTOR.wrapping_mul(key.len() as u64);
    let (pieces, rest) = key.as_chunks::<16>();
    for piece in pieces {
        state = folded_piece(state, piece);
    }
    if let (Some(last), false) = (key.last_chunk(), rest.is_empty()) {
        return folded_piece(state, last);
    }
    let mut piece = [0; 16];
    for (to, from) in piece.iter_mut().zip(rest) {
        *to = *from;
    }
    folded_piece(state, &piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_similar_keys_differ() {
        let keys = (0..1000_u32).flat_map(|n| {
            let digits = format!("imsi-{n:015}").into_bytes();
            [
                digits.clone(),
                digits[15..].to_vec(),
                digits[4..].to_vec(),
                [digits.as_slice(); 3].concat(),
            ]
        });
        let mut tops: Vec<u64> = keys.map(|key| hash(&key) >> 32).collect();
        tops.sort_unstable();
        tops.dedup();
        assert_eq!(tops.len(), 4000);
    }
}

//! Linear hashing: the bucket of a hash in an index that grows by one bucket at a time.

/// The depth of the first eight buckets of a namespace.
pub(crate) const DEPTH_FIRST: u32 = 3;

const _: () = assert!(wide_mask(8) == 15 && wide_mask(15) == 15 && wide_mask(16) == 31);
const _: () = assert!(bucket_of(9, 8) == 1 && bucket_of(9, 10) == 9);

/// The mask of all hash bits that `n` buckets distinguish (n >= 8).
#[inline]
pub(crate) const fn wide_mask(n: u64) -> u64 {
    (2 << (n | 1).ilog2()) - 1
}

/// The bucket of a hash among `n` buckets, with the mask of `n`. With the mask of another count
/// (both are read without a lock) the result is a bucket that exists, and its depth leads on.
#[inline]
pub(crate) const fn bucket_among(hash: u64, n: u64, wide: u64) -> u64 {
    debug_assert!(wide & wide.wrapping_add(1) == 0, "a mask has all its low bits set");
    let bucket = hash & wide;
    if bucket < n { bucket } else { bucket & (wide >> 1) }
}

/// The bucket of a hash among `n` buckets.
pub(crate) const fn bucket_of(hash: u64, n: u64) -> u64 {
    bucket_among(hash, n, wide_mask(n))
}

/// The next bucket to search if bucket `b` of depth `depth` cannot hold this hash: the split of `b`
/// that took it. `None` if `b` is right. A bucket of depth 0, as one of zeros, is right for no hash
/// but its own number.
#[inline]
pub(crate) const fn step(hash: u64, b: u64, depth: u32) -> Option<u64> {
    if is_at_depth(hash, b, depth as u64) {
        return None;
    }
    Some(step_on(hash, b))
}

/// True if [`step`] returns `None`. Only the low six bits of `depth` count, and no mask is made.
#[inline]
pub(crate) const fn is_at_depth(hash: u64, b: u64, depth: u64) -> bool {
    (hash ^ b).wrapping_shl((depth as u32).wrapping_neg()) == 0
}

#[cold]
const fn step_on(hash: u64, b: u64) -> u64 {
    // Bucket b was created with the bits below `known`. The lowest set bit above them is that of
    // the split that took the key.
    let bits = 64 - b.leading_zeros();
    let known = if bits < DEPTH_FIRST { DEPTH_FIRST } else { bits };
    let rest = hash >> known;
    if rest == 0 {
        return b;
    }
    let bit = known + rest.trailing_zeros();
    hash & mask(bit + 1)
}

/// The low `depth` bits.
#[inline]
pub(crate) const fn mask(depth: u32) -> u64 {
    debug_assert!(depth <= 64, "a depth counts bits of a hash");
    (1 << (depth & 63)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hash_is_searched_in_a_bucket_of_zeros() {
        for bucket in 0..64 {
            for hash in (0..1 << 20).step_by(64).map(|rest| rest | bucket) {
                assert_eq!(step(hash, bucket, 0).is_none(), hash == bucket, "{hash} in {bucket}");
            }
        }
    }

    #[test]
    fn a_stale_bucket_count_still_leads_to_the_right_bucket() {
        for n_now in 8..300_u64 {
            let depth = |b: u64| {
                // A bucket's depth is the number of hash bits that its keys share.
                let mut d = DEPTH_FIRST;
                while d < 20 && (b | 1 << d) < n_now || b >= 1 << d {
                    d += 1;
                }
                d
            };
            for n_seen in 8..=n_now {
                for hash in 0..1024_u64 {
                    let mut b = bucket_of(hash, n_seen);
                    let mut steps = 0;
                    while let Some(next) = step(hash, b, depth(b)) {
                        assert!(!is_at_depth(hash, b, u64::from(depth(b)) | 0xffc0));
                        assert!(next > b, "n {n_seen} of {n_now}, hash {hash}: {b} -> {next}");
                        b = next;
                        steps += 1;
                        assert!(steps < 20);
                    }
                    assert_eq!(b, bucket_of(hash, n_now));
                    assert!(is_at_depth(hash, b, u64::from(depth(b)) | 0xffc0));
                }
            }
        }
    }
}

//! The seed of the key hash, prepared for keys of the usual length.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of a region, with what the hash of a key of 17 to 32 bytes takes from it. Keys of that
/// length are usual, and a hash from the seed alone takes eight instructions more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySeed {
    pub(crate) seed: u64,
    /// The first words of XXH3's secret, plus and minus the seed in turns.
    secret: [u64; 4],
}

/// The first words of XXH3's secret, and its second prime.
const SECRET: [u64; 4] =
    [0xbe4b_a423_396c_feb8, 0x1cad_21f7_2c81_017c, 0xdb97_9083_e96d_d4de, 0x1f67_b3b7_a4a4_4072];
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_MX1: u64 = 0x1656_6791_9e37_79f9;

impl KeySeed {
    pub(crate) const fn new(seed: u64) -> Self {
        let [one, two, three, four] = SECRET;
        let secret = [
            one.wrapping_add(seed),
            two.wrapping_sub(seed),
            three.wrapping_add(seed),
            four.wrapping_sub(seed),
        ];
        Self { seed, secret }
    }

    /// XXH3-64 of a key with the seed.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every operation")]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        // The length is compared first: it decides that both ends are there.
        if (17..=32).contains(&key.len())
            && let (Some(first), Some(last)) = (key.first_chunk::<16>(), key.last_chunk::<16>())
        {
            return self.hash_ends(key.len() as u64, u128::from_le_bytes(*first), *last);
        }
        xxh3_64_with_seed(key, self.seed)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every operation")]
    #[expect(clippy::cast_possible_truncation, reason = "halves of 128 bits")]
    fn hash_ends(&self, bytes: u64, first: u128, last: [u8; 16]) -> u64 {
        let mix = |input: u128, [low, high]: [u64; 2]| {
            let (a, b) = (input as u64 ^ low, (input >> 64) as u64 ^ high);
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let [one, two, three, four] = self.secret;
        let sum = bytes
            .wrapping_mul(PRIME64_1)
            .wrapping_add(mix(first, [one, two]))
            .wrapping_add(mix(u128::from_le_bytes(last), [three, four]));
        let sum = (sum ^ (sum >> 37)).wrapping_mul(PRIME_MX1);
        sum ^ (sum >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_seed() {
        let bytes: Vec<u8> = (0..80_u32).map(|n| (n * n * 37 % 251) as u8).collect();
        for seed in [0, 1, u64::MAX, 0x9e37_79b9_7f4a_7c15, 1 << 63] {
            let prepared = KeySeed::new(seed);
            for from in 0..40 {
                for len in 0..40 {
                    let key = bytes.get(from..from + len).unwrap();
                    assert_eq!(prepared.hash(key), xxh3_64_with_seed(key, seed), "{len} bytes");
                }
            }
        }
    }
}

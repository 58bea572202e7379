//! Values derived from a number: the draw alone determines what a workload writes into a variable.
//!
//! Not for secrets: these keys are for workloads and tests only.

/// The odd number nearest to 2^64 divided by the golden ratio. Steps of it visit every word once
/// before any repeats (Weyl's sequence, as in `SplitMix64`).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The words of one variable in one procedure.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    whole: u64,
    state: u64,
}

impl Draw {
    /// The words of one variable: the same for the same `draw` and `salt`, in every run.
    #[inline]
    pub const fn new(draw: u64, salt: u64) -> Self {
        Self { whole: draw, state: draw ^ mix(salt.wrapping_mul(STEP)) }
    }

    /// The draw itself, unmixed: for values that must differ if their draws differ.
    #[inline]
    pub const fn whole(self) -> u64 {
        self.whole
    }

    /// The word with this number.
    #[inline]
    pub const fn word(self, number: u64) -> u64 {
        folded(self.state.wrapping_add(number.wrapping_mul(STEP)))
    }

    /// A number from `low` to `high`, both included.
    #[inline]
    pub const fn between(self, low: u64, high: u64) -> u64 {
        low + self.word(0) % (high - low + 1)
    }

    /// The words of a part of a value.
    #[inline]
    #[must_use]
    pub const fn part(self, number: u64) -> Self {
        Self { whole: self.whole, state: self.word(!number) }
    }

    /// The requested number of bytes.
    #[inline]
    pub fn bytes<const BYTES: usize>(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for (number, word) in (0..).zip(words.iter_mut()) {
            *word = self.word(number).to_be_bytes();
        }
        for (byte, drawn) in rest.iter_mut().zip(self.word(words.len() as u64).to_be_bytes()) {
            *byte = drawn;
        }
        bytes
    }
}

/// The finaliser of `SplitMix64` (Stafford's mix 13): a bijection in which each input bit flips
/// each output bit about half of the time.
#[inline]
const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The XOR of the two halves of a product: half the cost of [`mix`], but not a bijection. A context
/// has about eighty such words.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
const fn folded(word: u64) -> u64 {
    let product = (word as u128).wrapping_mul(0xa076_1d64_78bd_642f);
    (product >> 64) as u64 ^ product as u64
}

/// The number of low bits of a draw that determine an identity that must be unique.
pub const IDENTITY_BITS: u32 = 52;
const IDENTITY_MASK: u64 = (1 << IDENTITY_BITS) - 1;

/// A bijection of the low 52 bits: a multiplication by an odd number modulo a power of two, and the
/// folding of high bits onto low ones, are both invertible.
#[inline]
pub(crate) const fn mix_identity(word: u64) -> u64 {
    let word = (word & IDENTITY_MASK).wrapping_mul(0xbf58_476d_1ce4_e5b9) & IDENTITY_MASK;
    let word = (word ^ (word >> 26)).wrapping_mul(0x94d0_49bb_1331_11eb) & IDENTITY_MASK;
    word ^ (word >> 26)
}

/// Number of UEs that [`draw_for`] distinguishes: 2^28, some 268 million.
pub const UES_MAX: u64 = 1 << 28;
/// Number of draws of one UE that [`draw_for`] distinguishes: 2^24, a procedure each second for
/// half a year.
pub const DRAWS_MAX: u64 = 1 << 24;

/// The draw with this number of a UE. For one seed, draws differ for every UE and number, also in
/// the bits that determine identities, so that no GUTI is assigned twice in a run. Beyond
/// [`UES_MAX`] UEs and [`DRAWS_MAX`] draws of a UE, they repeat.
#[inline]
pub const fn draw_for(seed: u64, ue: u64, number: u64) -> u64 {
    let identity = ((ue % UES_MAX) << 24) | (number % DRAWS_MAX);
    let low = identity ^ (mix(seed) & IDENTITY_MASK);
    low | (mix(seed ^ mix(identity)) & !IDENTITY_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn identities_of_different_draws_differ() {
        let mut seen = BTreeSet::new();
        for ue in 0..500 {
            for number in 0..200 {
                let draw = draw_for(7, ue, number);
                assert!(seen.insert(mix_identity(draw)), "UE {ue}, number {number}");
            }
        }
        // Bits that are not part of an identity do not change it.
        assert_eq!(mix_identity(5), mix_identity(5 | 1 << IDENTITY_BITS));
    }

    #[test]
    fn neighbouring_draws_differ() {
        let draw = Draw::new(1, 2);
        let mut seen = BTreeSet::from([draw.word(0), draw.word(1)]);
        assert!(seen.insert(Draw::new(1, 3).word(0)));
        assert!(seen.insert(Draw::new(2, 2).word(0)));
        assert!(seen.insert(draw.part(0).word(0)));
        assert!(seen.insert(draw.part(1).word(0)));
        assert_eq!(seen.len(), 6);
        let bytes: [u8; 12] = draw.bytes();
        assert_eq!(bytes[..8], draw.word(0).to_be_bytes());
        assert_eq!(bytes[8..], draw.word(1).to_be_bytes()[..4]);
    }

    #[test]
    fn every_bit_of_a_draw_is_set_in_half_of_all_draws() {
        const DRAWS: u32 = 20_000;
        let words: [&dyn Fn(u64) -> u64; 4] = [
            &|n| Draw::new(n, 1).word(0),
            &|n| Draw::new(draw_for(1, n, 1), 2).word(1),
            &|n| Draw::new(draw_for(1, 1, n), 3).word(0),
            &|n| Draw::new(9, 4).part(n).word(2),
        ];
        for (number, word) in words.iter().enumerate() {
            let mut set = [0_u32; 64];
            for draw in 0..u64::from(DRAWS) {
                let word = word(draw);
                for (bit, set) in set.iter_mut().enumerate() {
                    *set += u32::from(word >> bit & 1 != 0);
                }
            }
            for (bit, set) in set.iter().enumerate() {
                // Five standard deviations: the square root of a quarter of the draws is 71.
                assert!(set.abs_diff(DRAWS / 2) < 355, "word {number}, bit {bit}: {set}");
            }
        }
    }

    #[test]
    fn a_draw_is_within_its_bounds() {
        let mut seen = BTreeSet::new();
        for draw in 0..200 {
            seen.insert(Draw::new(draw, 0).between(5, 8));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [5, 6, 7, 8]);
    }
}

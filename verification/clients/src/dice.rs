//! Chance from a seed (`SplitMix64`): the same seed gives the same commands in every run.

/// A stream of choices.
#[derive(Clone, Debug)]
pub struct Dice(u64);

const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Dice {
    /// A stream of its own for each pair of numbers.
    pub fn new(seed: u64, part: u64) -> Self {
        Self(mix(seed) ^ mix(part.wrapping_add(1)))
    }

    /// A number below `bound` (0 if the bound is 0).
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        usize::try_from(mix(self.0).checked_rem(bound).unwrap_or(0)).unwrap_or(0)
    }

    /// True in `percent` of all cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these, or nothing if there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }

    /// One of these words.
    pub fn word(&mut self, choices: &[&'static str]) -> &'static str {
        self.pick(choices).copied().unwrap_or("")
    }
}

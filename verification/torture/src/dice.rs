//! Chance from a seed: `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number
//! generators", 2014). The same seed gives the same choices in every run.

/// A stream of choices.
#[derive(Clone, Debug)]
pub struct Dice(u64);

/// Mixes the bits of a word, so that words which differ in one bit differ in half of them.
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Dice {
    /// A stream of its own for each list of numbers.
    pub fn new(parts: &[u64]) -> Self {
        Self(parts.iter().fold(0x6e65_6172, |seed, part| mix(seed ^ mix(part.wrapping_add(1)))))
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound` (0 if the bound is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word().checked_rem(bound).unwrap_or(0)
    }

    /// A small number below `bound`.
    pub fn pick(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(u64::from(bound))).unwrap_or(0)
    }

    /// True in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A size of a value: mostly small, sometimes up to 100 KiB, sometimes nothing.
    pub fn size(&mut self) -> u32 {
        match self.below(100) {
            0..=4 => self.pick(48),
            5..=59 => self.pick(600),
            60..=89 => self.pick(4 << 10),
            90..=96 => self.pick(32 << 10),
            _ => self.pick((100 << 10) + 1),
        }
    }
}

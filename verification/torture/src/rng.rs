//! Random choices from a seed: the same seed gives the same choices in every run.

pub use fastrand::Rng;

/// Mixes the bits of a word: words that differ in one bit give results that differ in about half of
/// their bits (the finalizer of `SplitMix64`). Hashes of contents use it too.
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A generator of its own for each list of numbers.
pub fn seeded(parts: &[u64]) -> Rng {
    let seed = parts.iter().fold(0, |seed, part| mix(seed ^ mix(part.wrapping_add(1))));
    Rng::with_seed(seed)
}

/// True with this probability.
pub fn percent(rng: &mut Rng, percent: u64) -> bool {
    rng.u64(..100) < percent
}

/// The size of a value: mostly small, sometimes up to 100 KiB, sometimes nearly empty.
pub fn value_size(rng: &mut Rng) -> u32 {
    match rng.u32(..100) {
        0..=4 => rng.u32(..48),
        5..=59 => rng.u32(..600),
        60..=89 => rng.u32(..4 << 10),
        90..=96 => rng.u32(..32 << 10),
        _ => rng.u32(..=100 << 10),
    }
}

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

/// Sizes of values in a full region, each with its share in percent.
const MIXED: [(u32, u32); 5] = [(64, 40), (300, 25), (1000, 15), (4096, 15), (64 << 10, 5)];

/// The size of a value in a full region.
pub fn mixed_size(rng: &mut Rng) -> u32 {
    let mut draw = rng.u32(..100);
    for (bytes, share) in MIXED {
        if draw < share {
            return bytes;
        }
        draw -= share;
    }
    unreachable!("the shares are 100 percent together")
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

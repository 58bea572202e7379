//! Random numbers: everything derives from a seed, so that two runs, and two targets, receive the
//! same draws. The generator is that of `fastrand`, at a fixed version.
//!
//! A draw of Zipf's law computes a power, which costs as much as a cheap operation of the region.
//! [`RecordSequence`] therefore draws a million records in advance and repeats them. On each pass
//! the records that are seldom drawn are shifted, so that a long run draws all of them. The records
//! at the head of the law stay: which records are drawn most does not depend on the pass.

pub use fastrand::Rng;

use crate::stat::as_f64;
use nearstate_model::Result;
use serde::{Deserialize, Serialize};

/// The distribution of accesses over the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum AccessDistribution {
    /// All equally.
    Uniform,
    /// Zipf's law with YCSB's exponent of 0.99, ranks scattered over the keys.
    #[default]
    Zipfian,
}

/// A number truncated to an integer. Negative numbers become 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` keeps a float within the bounds of the integer"
)]
pub const fn whole(ns: f64) -> u64 {
    ns as u64
}

/// 2^64 divided by the golden ratio: the step of splitmix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Odd, and different from [`GOLDEN`].
const OTHER: u64 = 0xD6E8_FEB8_6659_FD93;

/// A word that depends on every bit of `x`: the finalizer of splitmix64.
#[inline]
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A number that depends on all bits of three others: the seed of a record's contents.
#[inline]
pub fn draw(seed: u64, record: u64, number: u64) -> u64 {
    mix(seed ^ record.wrapping_mul(GOLDEN) ^ number.wrapping_mul(OTHER).rotate_left(32))
}

/// The seed of a client in one round, different for each pair of client and round. A sum would give
/// the first round of the second client the seed of the second round of the first.
pub fn seed_of(seed: u64, client: u64, round: u64) -> u64 {
    draw(mix(seed ^ OTHER), client, round)
}

/// A generator whose draws follow from the seed.
#[inline]
pub fn rng(seed: u64) -> Rng {
    Rng::with_seed(mix(seed))
}

/// Distributions of the workloads.
pub trait Distributions {
    /// 0 to `count` - 1, each with the same probability; 0 if `count` is 0.
    fn below(&mut self, count: u64) -> u64;

    /// Above 0, up to 1, so that it has a logarithm.
    fn above_zero(&mut self) -> f64;

    /// Exponential: the time until the next of independent events, with this mean.
    #[inline]
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.above_zero().ln()
    }

    /// Standard normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.above_zero().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.above_zero()).cos()
    }

    /// Lognormal: half of all draws are below `median`, and `sigma` is the deviation of their
    /// logarithm.
    fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    /// Pareto: none is below `least`; the smaller `shape`, the heavier the tail (no mean up to 1,
    /// no variance up to 2).
    fn pareto(&mut self, least: f64, shape: f64) -> f64 {
        least * self.above_zero().powf(-1.0 / shape)
    }
}

impl Distributions for Rng {
    #[inline]
    fn below(&mut self, count: u64) -> u64 {
        if count == 0 { 0 } else { self.u64(..count) }
    }

    #[inline]
    fn above_zero(&mut self) -> f64 {
        1.0 - self.f64()
    }
}

/// Zipf's law by the algorithm of Gray and others, "Quickly generating billion-record synthetic
/// databases" (1994), as in YCSB.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

/// YCSB's exponent.
const THETA: f64 = 0.99;

/// Items over which YCSB draws before it scatters the ranks, whatever the number of records.
const SCATTERED_ITEMS: u64 = 10_000_000_000;

/// Terms of a sum that are added one by one; the rest is integrated, to twelve digits.
const TERMS: u64 = 1 << 16;

/// The sum of 1 / i^0.99 for i from 1 to `items`.
fn zeta(items: u64) -> f64 {
    let first: f64 = (1..=items.min(TERMS)).rev().map(|i| as_f64(i).powf(-THETA)).sum();
    if items <= TERMS {
        return first;
    }
    // Euler and Maclaurin: the integral and half of what its ends differ.
    let (low, high) = (as_f64(TERMS), as_f64(items));
    let whole = (high.powf(1.0 - THETA) - low.powf(1.0 - THETA)) / (1.0 - THETA);
    first + whole + f64::midpoint(high.powf(-THETA), -low.powf(-THETA))
}

impl Zipf {
    /// The distribution over `items` items, at least one.
    pub fn new(items: u64) -> Self {
        let items = items.max(1);
        let zeta = zeta(items);
        let two = self::zeta(2);
        let eta = (1.0 - (2.0 / as_f64(items)).powf(1.0 - THETA)) / (1.0 - two / zeta);
        Self { items: as_f64(items), zeta, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// A rank: 0 comes most often.
    #[inline]
    pub fn rank(&self, rng: &mut Rng) -> u64 {
        let unit = rng.f64();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return u64::from(self.items > 1.0);
        }
        let rank = self.items * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and below the number of items"
        )]
        let rank = rank.min(self.items - 1.0) as u64;
        rank
    }

    /// The share of all draws that rank 0 has.
    pub fn top_share(&self) -> f64 {
        1.0 / self.zeta
    }
}

/// YCSB's hash of a rank (FNV-1a over its eight bytes, absolute value), which selects the record.
#[inline]
pub fn scatter(rank: u64) -> u64 {
    let hash = rank.to_le_bytes().iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211)
    });
    hash.cast_signed().unsigned_abs()
}

/// The share of the most frequent record, by [`AccessDistribution::Zipfian`].
pub fn top_share() -> f64 {
    Zipf::new(SCATTERED_ITEMS).top_share()
}

/// Records that are drawn in advance: a power of two, for a mask; 4 MiB, read sequentially.
const DRAWN: usize = 1 << 20;

/// The largest number of records: a draw has 32 bits, one of which marks draws that stay.
pub const RECORDS_MAX: u64 = (1 << 31) - 1;

/// Marks a draw that is not shifted.
const UNSHIFTED: u32 = 1 << 31;

/// The first ranks of Zipf's law, which stay the same on every pass: a thousand ranks have 29 % of
/// all draws over 10^10 items, any other one less than 0.004 %.
const HEAD: u64 = 1024;

/// An endless sequence of records, drawn in advance.
#[derive(Clone, Debug)]
pub struct RecordSequence {
    drawn: Vec<u32>,
    at: usize,
    shift: u32,
    records: u32,
    rng: Rng,
    top: u64,
    displaced: u64,
}

impl RecordSequence {
    /// Draws from `records` records.
    pub fn new(spread: AccessDistribution, records: u64, seed: u64) -> Result<Self> {
        match spread {
            AccessDistribution::Uniform => {
                Self::of(records, seed, |rng| (rng.below(records), false))
            }
            AccessDistribution::Zipfian => {
                let zipf = Zipf::new(SCATTERED_ITEMS);
                Self::of(records, seed, |rng| {
                    let rank = zipf.rank(rng);
                    (scatter(rank) % records, rank < HEAD)
                })
            }
        }
    }

    /// Draws ages by Zipf's law, 0 most often and never shifted: for `latest` of YCSB.
    pub fn of_ages(records: u64, seed: u64) -> Result<Self> {
        let zipf = Zipf::new(records);
        Self::of(records, seed, |rng| (zipf.rank(rng), true))
    }

    fn of(records: u64, seed: u64, mut one: impl FnMut(&mut Rng) -> (u64, bool)) -> Result<Self> {
        let count = u32::try_from(records).ok().filter(|_| (1..=RECORDS_MAX).contains(&records));
        let records = count.ok_or_else(|| {
            bad_argument!("{records} records for one client: give 1 to {RECORDS_MAX}")
        })?;
        let mut rng = rng(seed);
        let drawn = std::iter::repeat_with(|| {
            let (record, is_unshifted) = one(&mut rng);
            u32::try_from(record).unwrap_or(0) | if is_unshifted { UNSHIFTED } else { 0 }
        });
        let drawn = drawn.take(DRAWN).collect();
        let top = scatter(0) % u64::from(records);
        Ok(Self { drawn, at: 0, shift: 0, records, rng, top, displaced: 0 })
    }

    /// The next record: below the number of records.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "it never ends, so there is no option")]
    pub fn next(&mut self) -> u64 {
        let drawn = self.drawn.get(self.at).copied().unwrap_or(0);
        self.at = (self.at + 1) & (DRAWN - 1);
        if self.at == 0 {
            self.pass();
        }
        if drawn & UNSHIFTED != 0 {
            return u64::from(drawn & !UNSHIFTED);
        }
        let shifted = drawn + self.shift;
        u64::from(if shifted >= self.records { shifted - self.records } else { shifted })
    }

    /// Replaces `picked` by `count` different records, or by all if there are fewer.
    pub fn pick(&mut self, count: usize, picked: &mut Vec<u64>) {
        self.pick_except(count, &[], picked);
    }

    /// The same, without the records in `taken`, which differ from each other.
    pub fn pick_except(&mut self, count: usize, taken: &[u64], picked: &mut Vec<u64>) {
        let records = usize::try_from(self.records).unwrap_or(usize::MAX);
        picked.clear();
        for _ in 0..count.min(records.saturating_sub(taken.len())) {
            let mut record = self.next();
            // The neighbour instead of another draw: ends even where nearly all are picked.
            while picked.contains(&record) || taken.contains(&record) {
                self.displaced += u64::from(record == self.top);
                record = (record + 1) % u64::from(self.records);
            }
            picked.push(record);
        }
    }

    /// The most frequent record, by [`AccessDistribution::Zipfian`].
    pub const fn top(&self) -> u64 {
        self.top
    }

    /// How often [`RecordSequence::pick`] drew it again and used another record instead.
    pub const fn displaced(&self) -> u64 {
        self.displaced
    }

    #[cold]
    fn pass(&mut self) {
        let shift = self.rng.below(u64::from(self.records));
        self.shift = u32::try_from(shift).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and deviation of many draws.
    fn moments(count: u64, mut one: impl FnMut() -> f64) -> (f64, f64) {
        let draws: Vec<f64> = (0..count).map(|_| one()).collect();
        let mean = draws.iter().sum::<f64>() / as_f64(count);
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / as_f64(count);
        (mean, variance.sqrt())
    }

    fn within(found: f64, expected: f64, part: f64) {
        assert!((found - expected).abs() <= part * expected.abs(), "{found}, expected {expected}");
    }

    #[test]
    fn distributions_have_the_moments_of_their_formulas() {
        const MANY: u64 = 400_000;
        let mut rng = rng(2);
        let (mean, deviation) = moments(MANY, || rng.normal());
        assert!(mean.abs() < 0.01, "{mean}");
        within(deviation, 1.0, 0.01);
        let (mean, deviation) = moments(MANY, || rng.exponential(3.0));
        within(mean, 3.0, 0.01);
        within(deviation, 3.0, 0.02);
        let (mean, _) = moments(MANY, || rng.lognormal(10.0, 0.8));
        within(mean, 10.0 * (0.8_f64 * 0.8 / 2.0).exp(), 0.01);
        let (mean, _) = moments(MANY, || rng.pareto(2.0, 3.5));
        within(mean, 2.0 * 3.5 / 2.5, 0.01);
    }

    #[test]
    fn lognormal_draws_have_their_median_and_pareto_draws_their_minimum() {
        let mut rng = rng(3);
        let below = (0..100_000).filter(|_| rng.lognormal(10.0, 1.3) < 10.0).count();
        assert!(below.abs_diff(50_000) < 800, "{below}");
        assert!((0..100_000).all(|_| rng.pareto(2.0, 1.1) >= 2.0));
        // The tail: a share of (least / x)^shape lies above x.
        let above = (0..100_000).filter(|_| rng.pareto(1.0, 2.0) > 10.0).count();
        assert!(above.abs_diff(1000) < 160, "{above}");
    }

    #[test]
    fn the_zeta_sum_is_the_constant_of_ycsb() {
        assert!((zeta(SCATTERED_ITEMS) - 26.469_028_201_783_02).abs() < 1e-6);
        // Adding terms and integrating them give the same sum.
        let added: f64 = (1..=TERMS * 2).map(|i| as_f64(i).powf(-THETA)).sum();
        assert!((zeta(TERMS * 2) - added).abs() < 1e-9);
    }

    #[test]
    fn ranks_have_the_shares_of_the_law() {
        const MANY: u64 = 1_000_000;
        let (zipf, mut rng) = (Zipf::new(1000), rng(4));
        let mut seen = [0_u64; 1000];
        for _ in 0..MANY {
            seen[usize::try_from(zipf.rank(&mut rng)).unwrap()] += 1;
        }
        let all = zeta(1000);
        for rank in [0, 1] {
            let expected = as_f64(MANY) * as_f64(rank as u64 + 1).powf(-THETA) / all;
            within(as_f64(seen[rank]), expected, 0.02);
        }
        // The algorithm of the rest is an approximation: within a tenth from the fourth rank on.
        for (from, to) in [(4, 10), (10, 100), (100, 1000)] {
            let expected: f64 = (from..to).map(|r| as_f64(r as u64 + 1).powf(-THETA)).sum();
            within(as_f64(seen[from..to].iter().sum()), expected * as_f64(MANY) / all, 0.1);
        }
    }

    #[test]
    fn a_rank_is_scattered_as_by_ycsb() {
        // Its hash of zero is eight multiplications of the offset; the sign is taken off.
        let mut hash = 0xCBF2_9CE4_8422_2325_u64;
        for _ in 0..8 {
            hash = hash.wrapping_mul(1_099_511_628_211);
        }
        assert_eq!(scatter(0), hash.cast_signed().unsigned_abs());
        assert!((0..100_000).all(|rank| scatter(rank) <= 1 << 63));
        let top = top_share();
        assert!((top - 0.037_78).abs() < 0.000_01, "{top}");
    }

    #[test]
    fn a_ring_keeps_its_law_over_several_passes() {
        const RECORDS: u64 = 5000;
        let mut sequence = RecordSequence::new(AccessDistribution::Zipfian, RECORDS, 5).unwrap();
        let mut seen = vec![0_u64; 5000];
        for _ in 0..3 * DRAWN {
            seen[usize::try_from(sequence.next()).unwrap()] += 1;
        }
        let top = usize::try_from(scatter(0) % RECORDS).unwrap();
        assert_eq!(seen.iter().max(), Some(&seen[top]), "the most frequent one stays so");
        within(as_f64(seen[top]) / as_f64(3 * DRAWN as u64), top_share(), 0.02);
        assert!(seen.iter().all(|n| *n > 0), "every record is met");
    }

    #[test]
    fn a_uniform_ring_draws_more_records_than_it_has_entries() {
        const RECORDS: u64 = 2 * DRAWN as u64;
        let mut sequence = RecordSequence::new(AccessDistribution::Uniform, RECORDS, 6).unwrap();
        let mut seen = vec![false; 2 * DRAWN];
        for _ in 0..4 * DRAWN {
            seen[usize::try_from(sequence.next()).unwrap()] = true;
        }
        // 1 - e^-2 of them if every draw were new: one pass alone would give 39 %.
        let met = seen.iter().filter(|s| **s).count();
        assert!(2 * met > 3 * DRAWN, "{met}");
        assert!(RecordSequence::new(AccessDistribution::Uniform, 0, 1).is_err());
        assert!(RecordSequence::new(AccessDistribution::Uniform, RECORDS_MAX + 1, 1).is_err());
    }

    #[test]
    fn ages_are_small_most_often_and_below_the_number_of_records() {
        let mut sequence = RecordSequence::of_ages(1000, 7).unwrap();
        let ages: Vec<u64> = (0..DRAWN * 2).map(|_| sequence.next()).collect();
        assert!(ages.iter().all(|age| *age < 1000));
        let newest = ages.iter().filter(|age| **age == 0).count();
        within(as_f64(newest as u64) / as_f64(ages.len() as u64), 1.0 / zeta(1000), 0.02);
    }

    #[test]
    fn picked_records_are_different_even_if_all_are_picked() {
        let mut sequence = RecordSequence::new(AccessDistribution::Zipfian, 20, 8).unwrap();
        let mut picked = Vec::new();
        for count in [1, 16, 20, 50] {
            sequence.pick(count, &mut picked);
            let different: std::collections::BTreeSet<u64> = picked.iter().copied().collect();
            assert_eq!((picked.len(), different.len()), (count.min(20), count.min(20)));
            assert!(picked.iter().all(|record| *record < 20));
        }
    }

    #[test]
    fn taken_records_are_not_picked() {
        let mut sequence = RecordSequence::new(AccessDistribution::Zipfian, 20, 8).unwrap();
        let (mut taken, mut picked) = (Vec::new(), Vec::new());
        for count in [5, 5, 9, 9] {
            sequence.pick_except(count, &taken, &mut picked);
            assert_eq!(picked.len(), count.min(20 - taken.len()));
            taken.extend(&picked);
        }
        let different: std::collections::BTreeSet<u64> = taken.iter().copied().collect();
        assert_eq!((taken.len(), different.len()), (20, 20));
    }

    #[test]
    fn no_two_clients_or_trials_share_a_sequence_of_draws() {
        const CLIENTS: u64 = 512;
        const TRIALS: u64 = 40;
        let mut seen = std::collections::BTreeSet::new();
        // Seeds that follow each other, as those of repeated runs do.
        for seed in [1, 2] {
            for (client, trial) in (0..CLIENTS).flat_map(|c| (0..TRIALS).map(move |t| (c, t))) {
                let mut rng = rng(seed_of(seed, client, trial));
                // One word in common would be enough: the rest follows from it.
                for _ in 0..8 {
                    assert!(seen.insert(rng.u64(..)), "{seed}, {client}, {trial}");
                }
            }
        }
    }

    #[test]
    fn contents_are_drawn_from_all_three_numbers() {
        let base = draw(1, 2, 3);
        assert_eq!(base, draw(1, 2, 3));
        assert!(
            [draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(1, 3, 2)].iter().all(|d| *d != base)
        );
    }
}

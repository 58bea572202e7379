//! What one turn of a target consists of: which keys in which order, which values, how many
//! operations. It is the same for every target.

use super::clock::Clock;
use crate::legacy::content::{KEY_BYTES, Source, key, mix};

/// A key of a record.
pub type Key = [u8; KEY_BYTES];

/// Keys of one batch.
pub const BATCH: usize = 16;

/// Different values that puts take in turn: they stay in the first two caches.
const VALUES: usize = 64;

/// The keys of a database in a random order, and values to put.
#[derive(Debug)]
pub struct Material {
    keys: Vec<Key>,
    values: Vec<Vec<u8>>,
}

impl Material {
    /// The keys of records 0 to `records`, shuffled, and values of `value_bytes` bytes.
    pub fn new(records: u64, value_bytes: usize, seed: u64) -> Self {
        let mut keys: Vec<Key> = (0..records).map(key_of).collect();
        // Fisher-Yates; keys stand in the order in which they are used, so that reading the list of
        // keys itself is a walk that the processor foresees.
        let mut state = mix(seed);
        for last in (1..keys.len()).rev() {
            state = mix(state);
            let other = usize::try_from(state % (last as u64 + 1)).unwrap_or(0);
            keys.swap(last, other);
        }
        let mut source = Source::new(seed, 1, value_bytes);
        let values = (0..VALUES as u64).map(|v| source.value(v).to_vec()).collect();
        Self { keys, values }
    }

    /// How many keys there are.
    #[expect(clippy::len_without_is_empty, reason = "there is always a key")]
    pub fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    /// `ops` operations from key `start` of the random order on, over the end to its beginning.
    pub fn work(&self, start: u64, ops: u64, clock: Clock) -> Work<'_> {
        let count = self.keys.len().max(1);
        let mut at = usize::try_from(start).unwrap_or(0) % count;
        let mut rest = usize::try_from(ops).unwrap_or(usize::MAX);
        let mut runs = Vec::new();
        while rest > 0 && !self.keys.is_empty() {
            let to = count.min(at.saturating_add(rest));
            let run = self.keys.get(at..to).unwrap_or_default();
            rest -= run.len();
            runs.push(run);
            at = 0;
        }
        let zero = std::hint::black_box(0);
        Work { runs, values: &self.values, keys: &self.keys, ops, zero, clock }
    }
}

/// The key of a record.
pub fn key_of(record: u64) -> Key {
    let mut name = [0; KEY_BYTES];
    key(record, &mut name);
    name
}

/// One turn.
#[derive(Debug)]
pub struct Work<'a> {
    /// The keys, in stretches.
    pub runs: Vec<&'a [Key]>,
    /// Values to put, in turn.
    pub values: &'a [Vec<u8>],
    /// All keys in the random order.
    pub keys: &'a [Key],
    /// How many operations.
    pub ops: u64,
    /// Zero, which the compiler does not know: what is multiplied with it is still waited for.
    pub zero: u64,
    /// Which time is counted.
    pub clock: Clock,
}

/// Looks at a value: its first and its last byte.
#[inline]
pub fn touch(value: &[u8]) -> u64 {
    let first = value.first().copied().map_or(0, u64::from);
    let last = value.last().copied().map_or(0, u64::from);
    first + last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_the_order_once() {
        let material = Material::new(1000, 64, 7);
        let mut keys = material.keys.clone();
        keys.sort_unstable();
        let ascending: Vec<Key> = (0..1000).map(key_of).collect();
        assert_eq!(keys, ascending);
        assert_ne!(material.keys, ascending);
    }

    #[test]
    fn a_turn_goes_on_where_it_is_told_and_over_the_end() {
        let material = Material::new(10, 64, 7);
        let turn = material.work(8, 25, Clock::Wall);
        let flat: Vec<Key> = turn.runs.concat();
        assert_eq!(flat.len(), 25);
        for (at, key) in flat.iter().enumerate() {
            assert_eq!(key, &material.keys[(8 + at) % 10]);
        }
    }

    #[test]
    fn a_touch_sees_both_ends() {
        assert_eq!(touch(&[3, 100, 4]), 7);
        assert_eq!(touch(&[]), 0);
    }
}

//! The values that are written and read: random bytes without a NUL, each certifying itself.
//!
//! Paper 1 §4.2.2 found that WhiteDB stores equal strings once, so no two values are equal. The
//! first three words of a value are its own; the rest comes from a small set of random bodies, so
//! that making a value costs the writer a few nanoseconds. The sum of all words of a value is a
//! function of its first word: a reader that adds up what it reads has touched every byte, and
//! knows that it read one whole value and not parts of two.

/// The smallest value, in bytes: three words of its own and one that is not.
pub const RECORD_BYTES_MIN: usize = 32;

/// The bodies of one source fit in this many bytes, so that they stay in the second-level cache.
const BODIES_BYTES: usize = 4 << 20;
const BODIES_MAX: usize = 64;

/// Length of a key that [`key`] writes, in bytes: `imsi-` and fifteen digits.
pub const KEY_BYTES: usize = 20;

/// A word that depends on every bit of `x` (the finaliser of splitmix64).
#[inline]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Finds bytes that are zero. A byte of one above a zero may be marked too, which does not matter:
/// [`without_nul`] turns both into one.
#[inline]
fn nul_marks(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
}

#[inline]
fn without_nul(word: u64) -> u64 {
    word | (nul_marks(word) >> 7)
}

/// The sum of all words of `value`, the last one padded with zeros.
#[inline]
pub fn sum(value: &[u8]) -> u64 {
    let (words, tail) = value.as_chunks::<8>();
    let mut total = words.iter().fold(0_u64, |t, w| t.wrapping_add(u64::from_le_bytes(*w)));
    if !tail.is_empty() {
        let padded = tail.iter().rev().fold(0_u64, |t, b| (t << 8) | u64::from(*b));
        total = total.wrapping_add(padded);
    }
    total
}

/// The first word of `value`, on which the rest of it depends.
#[inline]
pub fn first_word(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |w| u64::from_le_bytes(*w))
}

/// Adds up every byte of `value`: `Some(sum)` if it is one that a [`Source`] made, whole.
#[inline]
pub fn certified(value: &[u8]) -> Option<u64> {
    let total = sum(value);
    (total == mix(first_word(value))).then_some(total)
}

/// Whether `value` is one that a source with this seed made for this record.
pub fn belongs_to(value: &[u8], seed: u64, record: u64) -> bool {
    first_word(value) >> 32 == without_nul(mix(seed ^ record) << 32) >> 32
}

/// Writes the key of `record`: looks like a subscriber's identity, has a fixed length.
#[inline]
pub fn key(record: u64, out: &mut [u8; KEY_BYTES]) {
    let (high, low) = (record / 100_000_000, record % 100_000_000);
    // Seven digits of the higher half: its eighth is beyond what a key has.
    let high = eight_digits(high % 10_000_000) >> 8;
    let first = u64::from_le_bytes(*b"imsi-\0\0\0") | (high << 40);
    let end = eight_digits(low).to_le_bytes();
    // In words, not byte by byte: whoever reads a key reads words.
    let Some((begin, rest)) = out.split_first_chunk_mut::<8>() else { return };
    *begin = first.to_le_bytes();
    let Some((middle, rest)) = rest.split_first_chunk_mut::<4>() else { return };
    let [a, b, c, d, ..] = (high >> 24).to_le_bytes();
    *middle = [a, b, c, d];
    if let Some((last, _)) = rest.split_first_chunk_mut::<8>() {
        *last = end;
    }
}

/// The decimal digits of a number below 10^8, the first in the lowest byte: two numbers of four
/// digits, four of two, eight of one, each time all of them in one word.
#[inline]
const fn eight_digits(number: u64) -> u64 {
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    // Divided by 100: exact below 10,000.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - 100 * hundreds) << 16);
    // Divided by 10: exact below 100.
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    let ones = tens | ((twos - 10 * tens) << 8);
    ones + 0x3030_3030_3030_3030
}

/// Makes values of one size. Two sources with the same seed agree on which value belongs to which
/// record ([`belongs_to`]); `salt` keeps their values apart.
#[derive(Debug)]
pub struct Source {
    bodies: Vec<Body>,
    seed: u64,
    state: u64,
}

#[derive(Debug)]
struct Body {
    bytes: Vec<u8>,
    rest: u64,
}

impl Source {
    /// A source of values of `record_bytes` bytes, raised to [`RECORD_BYTES_MIN`].
    pub fn new(seed: u64, salt: u64, record_bytes: usize) -> Self {
        let record_bytes = record_bytes.max(RECORD_BYTES_MIN);
        let count = (BODIES_BYTES / record_bytes).clamp(1, BODIES_MAX);
        let mut state = mix(seed).wrapping_add(salt << 32);
        let bodies = (0..count)
            .map(|_| {
                let mut bytes = Vec::with_capacity(record_bytes + 8);
                while bytes.len() < record_bytes {
                    state = state.wrapping_add(1);
                    bytes.extend_from_slice(&without_nul(mix(state)).to_le_bytes());
                }
                bytes.truncate(record_bytes);
                let rest = sum(bytes.get(24..).unwrap_or_default());
                Body { bytes, rest }
            })
            .collect();
        Self { bodies, seed, state }
    }

    /// The next value for `record`; no two calls give the same bytes.
    #[inline]
    pub fn value(&mut self, record: u64) -> &[u8] {
        let at = usize::try_from(record).unwrap_or(0) % self.bodies.len();
        let mut word = || {
            self.state = self.state.wrapping_add(1);
            mix(self.state)
        };
        let first = without_nul((mix(self.seed ^ record) << 32) | (word() >> 32));
        let Some(body) = self.bodies.get_mut(at) else { return &[] };
        let need = mix(first).wrapping_sub(first).wrapping_sub(body.rest);
        // One try in sixteen meets a NUL in the third word.
        let (second, third) = loop {
            let second = without_nul(word());
            let third = need.wrapping_sub(second);
            if nul_marks(third) == 0 {
                break (second, third);
            }
        };
        let words = [first, second, third];
        for (place, word) in body.bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        &body.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_certifies_itself_and_one_changed_byte_is_seen() {
        for bytes in [32, 33, 39, 1024, 5000] {
            let mut source = Source::new(7, 1, bytes);
            for record in 0..500 {
                let mut value = source.value(record).to_vec();
                assert_eq!(value.len(), bytes);
                assert!(!value.contains(&0), "a NUL would end a string of WhiteDB");
                assert!(certified(&value).is_some());
                assert!(belongs_to(&value, 7, record));
                assert!(!belongs_to(&value, 7, record + 1));
                let at = usize::try_from(record).unwrap() % bytes;
                value[at] ^= 4;
                assert!(certified(&value).is_none(), "byte {at} of {bytes}");
            }
        }
    }

    #[test]
    fn no_two_values_are_equal() {
        let mut source = Source::new(1, 0, 64);
        let mut seen: Vec<Vec<u8>> = (0..5000).map(|i| source.value(i % 50).to_vec()).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 5000);
    }

    #[test]
    fn a_key_has_fifteen_digits() {
        let mut out = [0; KEY_BYTES];
        key(1_234_567, &mut out);
        assert_eq!(&out, b"imsi-000000001234567");
        let some = (0..20_000).chain((0..5000).map(|i| i * 12_345_678_917));
        for record in some.chain((0..16).map(|zeros| 10_u64.pow(zeros) - 1)) {
            key(record, &mut out);
            let digits = format!("imsi-{:015}", record % 1_000_000_000_000_000);
            assert_eq!(&out, digits.as_bytes());
        }
    }
}

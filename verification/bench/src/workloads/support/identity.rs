//! Keys in the form of a subscriber's identity.

use crate::operations::{KEY_BYTES, RecordKey};

/// The key of `record`: a SUPI of type IMSI with a fixed length (TS 23.003).
#[inline]
pub(crate) fn key(record: u64) -> RecordKey {
    let mut out = [0; KEY_BYTES];
    let (high, low) = (record / 100_000_000, record % 100_000_000);
    // Fifteen digits: seven of the higher half, eight of the lower.
    let high = eight_digits(high % 10_000_000) >> 8;
    let first = u64::from_le_bytes(*b"imsi-\0\0\0") | (high << 40);
    let end = eight_digits(low).to_le_bytes();
    // Written in words, because the key is read in words: smaller stores would stall those loads.
    let Some((start, rest)) = out.split_first_chunk_mut::<8>() else { return out };
    *start = first.to_le_bytes();
    let Some((middle, rest)) = rest.split_first_chunk_mut::<4>() else { return out };
    let [a, b, c, d, ..] = (high >> 24).to_le_bytes();
    *middle = [a, b, c, d];
    if let Some((last, _)) = rest.split_first_chunk_mut::<8>() {
        *last = end;
    }
    out
}

/// The decimal digits of a number below 10^8, the first in the lowest byte. Splits it into two
/// numbers of four digits, four of two and eight of one, each time within one word.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_fifteen_digits() {
        for record in [0, 7, 99_999_999, 100_000_000, 123_456_789_012_345, 999_999_999_999_999] {
            assert_eq!(key(record).as_slice(), format!("imsi-{record:015}").as_bytes());
        }
    }
}

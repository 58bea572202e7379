//! The rows and keys of TATP's four tables as bytes.
//!
//! ```text
//! table               key                                row
//! subscriber          s_id u32                           sub_nbr 15, bit 10, hex 10, byte2 10,
//!                                                        msc_location u32, vlr_location u32
//! access_info         s_id u32, ai_type u8               data1, data2, data3 3, data4 5
//! special_facility    s_id u32, sf_type u8               is_active, error_cntrl, data_a, data_b 5
//! call_forwarding     s_id u32, sf_type u8, start u8     end_time, numberx 15
//! (secondary lookup)  sub_nbr 15                         s_id u32
//! ```
//!
//! Numbers in keys are big-endian, so that keys sort in the order of the numbers.

use super::super::support::share::digits;
use crate::random::Rng;

/// A subscriber's number: `s_id` in fifteen digits.
pub type Number = [u8; 15];

/// Bytes of a subscriber's row.
pub const SUBSCRIBER_BYTES: usize = 15 + 30 + 8;
/// Offset of `bit_1`.
pub const BIT_1: usize = 15;
/// Offset of `vlr_location`.
pub const VLR_LOCATION: std::ops::Range<usize> = 49..53;
/// Bytes of an access row.
pub const ACCESS_BYTES: usize = 10;
/// Bytes of a facility's row.
pub const FACILITY_BYTES: usize = 8;
/// Offset of `is_active`.
pub const IS_ACTIVE: usize = 0;
/// Offset of `data_a`.
pub const DATA_A: usize = 2;
/// Bytes of a forwarding's row.
pub const FORWARDING_BYTES: usize = 16;

/// Hours at which a forwarding can begin.
pub const STARTS: [u8; 3] = [0, 8, 16];
/// Types of access rows and of facilities.
pub const TYPES: std::ops::RangeInclusive<u8> = 1..=4;

/// A number of fifteen digits.
pub fn number(n: u64) -> Number {
    digits(n)
}

pub const fn subscriber_key(s_id: u32) -> [u8; 4] {
    s_id.to_be_bytes()
}

/// The key of an access row or a facility.
pub const fn typed_key(s_id: u32, row_type: u8) -> [u8; 5] {
    let [a, b, c, d] = s_id.to_be_bytes();
    [a, b, c, d, row_type]
}

pub const fn forwarding_key(s_id: u32, sf_type: u8, start: u8) -> [u8; 6] {
    let [a, b, c, d] = s_id.to_be_bytes();
    [a, b, c, d, sf_type, start]
}

pub fn forwarding_row(end: u8, numberx: &Number) -> [u8; FORWARDING_BYTES] {
    let mut row = [end; FORWARDING_BYTES];
    if let Some((_, digits)) = row.split_first_chunk_mut::<1>() {
        digits.copy_from_slice(numberx);
    }
    row
}

pub trait FieldDraws {
    /// Fifteen random digits.
    fn number(&mut self) -> Number;

    /// A random subset of `count` items; all subsets of this size are equally probable.
    fn choose<const N: usize>(&mut self, items: [u8; N], count: u8) -> Vec<u8>;
}

impl FieldDraws for Rng {
    fn number(&mut self) -> Number {
        number(self.u64(..1_000_000_000_000_000))
    }

    fn choose<const N: usize>(&mut self, mut items: [u8; N], count: u8) -> Vec<u8> {
        self.shuffle(&mut items);
        items.into_iter().take(usize::from(count)).collect()
    }
}

fn letters<const N: usize>(rng: &mut Rng) -> [u8; N] {
    std::array::from_fn(|_| rng.u8(b'A'..=b'Z'))
}

pub fn subscriber_row(s_id: u32, rng: &mut Rng) -> [u8; SUBSCRIBER_BYTES] {
    let mut row = [0; SUBSCRIBER_BYTES];
    let most = |at: usize| match at {
        0..10 => 1,
        10..20 => 15,
        _ => 255,
    };
    for (at, field) in row.iter_mut().skip(15).take(30).enumerate() {
        *field = rng.u8(..=most(at));
    }
    let locations = [rng.u32(1..).to_le_bytes(), rng.u32(1..).to_le_bytes()].concat();
    for (to, from) in row.iter_mut().skip(45).zip(locations) {
        *to = from;
    }
    for (to, from) in row.iter_mut().zip(number(u64::from(s_id))) {
        *to = from;
    }
    row
}

pub fn access_row(rng: &mut Rng) -> [u8; ACCESS_BYTES] {
    let mut row: [u8; ACCESS_BYTES] = letters(rng);
    for number in row.iter_mut().take(2) {
        *number = rng.u8(0..=255);
    }
    row
}

/// A facility's row: active in 85 cases of 100.
pub fn facility_row(rng: &mut Rng) -> [u8; FACILITY_BYTES] {
    let mut row: [u8; FACILITY_BYTES] = letters(rng);
    let numbers = [u8::from(rng.u8(..100) < 85), rng.u8(0..=255), rng.u8(0..=255)];
    for (to, number) in row.iter_mut().zip(numbers) {
        *to = number;
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_numbers() {
        assert!(subscriber_key(255) < subscriber_key(256));
        assert!(typed_key(256, 4) < typed_key(257, 1));
        assert!(forwarding_key(9, 1, 16) < forwarding_key(9, 2, 0));
        assert_eq!(&number(1_234_567), b"000000001234567");
    }

    #[test]
    fn a_subscriber_has_its_fields_where_they_are_changed() {
        let mut rng = crate::random::rng(5);
        for s_id in 1..2000 {
            let row = subscriber_row(s_id, &mut rng);
            assert_eq!(row[..15], number(u64::from(s_id)));
            assert!(row[BIT_1..25].iter().all(|bit| *bit <= 1));
            assert!(row[25..35].iter().all(|hex| *hex <= 15));
            assert_ne!(row[VLR_LOCATION], [0; 4]);
        }
    }

    #[test]
    fn every_set_of_so_many_items_is_chosen_as_often() {
        let mut rng = crate::random::rng(1);
        let mut seen = std::collections::BTreeMap::<Vec<u8>, u32>::new();
        for _ in 0..60_000 {
            let mut chosen = rng.choose([1, 2, 3, 4], 2);
            chosen.sort_unstable();
            *seen.entry(chosen).or_default() += 1;
        }
        assert_eq!(seen.len(), 6);
        assert!(seen.values().all(|times| times.abs_diff(10_000) < 500), "{seen:?}");
    }

    #[test]
    fn a_forwarding_has_its_end_before_its_number() {
        let row = forwarding_row(9, &number(42));
        assert_eq!((row[0], &row[1..]), (9, &number(42)[..]));
    }
}

//! Unsigned integers of any size, with the operations that [`LongDouble`](super::LongDouble) needs.

use std::cmp::Ordering;
use std::fmt::Write as _;

/// An unsigned integer: 32-bit limbs, lowest first, no leading zero limbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BigUint(Vec<u32>);

impl BigUint {
    pub(super) fn of(number: u64) -> Self {
        let mut new = Self(vec![low(number), low(number >> 32)]);
        new.trim();
        new
    }

    /// Parses ASCII digits to base 10 or 16.
    pub(super) fn of_digits(digits: &[u8], base: u32) -> Self {
        let mut new = Self(Vec::new());
        // Seven digits at a time: 16^7 fits.
        for part in digits.chunks(7) {
            let (mut number, mut scale) = (0, 1);
            for digit in part {
                number = number * base + char::from(*digit).to_digit(base).unwrap_or_default();
                scale *= base;
            }
            new.multiply_add(scale, number);
        }
        new
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of bits.
    pub(super) fn bits(&self) -> usize {
        let last = self.0.last().map_or(0, |last| 32 - last.leading_zeros() as usize);
        self.0.len().saturating_sub(1) * 32 + last
    }

    /// The value, if it has at most 64 bits.
    pub(super) fn low_u64(&self) -> Option<u64> {
        match self.0.as_slice() {
            [] => Some(0),
            [one] => Some(u64::from(*one)),
            [one, two] => Some(u64::from(*two) << 32 | u64::from(*one)),
            _ => None,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut carry = 0;
        let others = other.0.iter().copied().chain(std::iter::repeat(0));
        for (digit, more) in self.0.iter_mut().zip(others) {
            let sum = u64::from(*digit) + u64::from(more) + carry;
            *digit = low(sum);
            carry = sum >> 32;
        }
        if carry > 0 {
            self.0.push(low(carry));
        }
    }

    /// Subtracts a number that is not greater.
    pub(super) fn subtract(&mut self, other: &Self) {
        let mut borrow = false;
        let others = other.0.iter().copied().chain(std::iter::repeat(0));
        for (digit, less) in self.0.iter_mut().zip(others) {
            let (one, is_below) = digit.overflowing_sub(less);
            let (two, is_still) = one.overflowing_sub(u32::from(borrow));
            *digit = two;
            borrow = is_below || is_still;
        }
        self.trim();
    }

    pub(super) fn multiply_by_power(&mut self, base: u32, power: u32) {
        // Nine digits at a time: 10^9 fits.
        for _ in 0..power / 9 {
            self.multiply_add(base.pow(9), 0);
        }
        self.multiply_add(base.pow(power % 9), 0);
    }

    fn multiply_add(&mut self, factor: u32, more: u32) {
        let mut carry = u64::from(more);
        for digit in &mut self.0 {
            let product = u64::from(*digit) * u64::from(factor) + carry;
            *digit = low(product);
            carry = product >> 32;
        }
        if carry > 0 {
            self.0.push(low(carry));
        }
    }

    pub(super) fn shifted_left(&self, bits: usize) -> Self {
        let mut digits = vec![0; bits / 32];
        let within = u32::try_from(bits % 32).unwrap_or_default();
        let mut carry = 0;
        for digit in &self.0 {
            let wide = u64::from(*digit) << within | carry;
            digits.push(low(wide));
            carry = wide >> 32;
        }
        digits.push(low(carry));
        let mut new = Self(digits);
        new.trim();
        new
    }

    /// Without its last bits, and whether one of them was set.
    fn shifted_right(&self, bits: usize) -> (Self, bool) {
        let (cut, kept) = self.0.split_at_checked(bits / 32).unwrap_or((&self.0, &[]));
        let within = u32::try_from(bits % 32).unwrap_or_default();
        let mut digits = Vec::with_capacity(kept.len());
        let highers = kept.iter().skip(1).copied().chain([0]);
        for (digit, higher) in kept.iter().zip(highers) {
            digits.push(low((u64::from(higher) << 32 | u64::from(*digit)) >> within));
        }
        let is_set = |digit: &u32| u64::from(*digit) & ((1 << within) - 1) != 0;
        let has_more = cut.iter().any(|digit| *digit != 0) || kept.first().is_some_and(is_set);
        let mut new = Self(digits);
        new.trim();
        (new, has_more)
    }

    /// Divided by a power of two, rounded to nearest even. `has_more`: the number was slightly
    /// larger.
    pub(super) fn halved(&self, times: usize, has_more: bool) -> Self {
        let Some(before) = times.checked_sub(1) else { return self.clone() };
        let (twice, has_below) = self.shifted_right(before);
        let is_half = twice.is_odd();
        let (mut new, _) = twice.shifted_right(1);
        if is_half && (has_below || has_more || new.is_odd()) {
            new.add(&Self::of(1));
        }
        new
    }

    fn is_odd(&self) -> bool {
        self.0.first().is_some_and(|digit| digit % 2 == 1)
    }

    /// The quotient, of at most 68 bits, and whether there is a remainder. The divisor is not 0.
    pub(super) fn divided(mut self, by: &Self) -> (Self, bool) {
        let mut quotient = Self(Vec::new());
        let mut part = by.shifted_left(67);
        for _ in 0..68 {
            quotient = quotient.shifted_left(1);
            if self >= part {
                self.subtract(&part);
                quotient.add(&Self::of(1));
            }
            part = part.shifted_right(1).0;
        }
        (quotient, !self.is_zero())
    }

    /// Decimal digits; "0" for zero.
    pub(super) fn decimal(mut self) -> String {
        const PART: u32 = 1_000_000_000;
        let mut parts = Vec::new();
        while !self.is_zero() {
            let mut rest = 0;
            for digit in self.0.iter_mut().rev() {
                let wide = rest << 32 | u64::from(*digit);
                *digit = low(wide / u64::from(PART));
                rest = wide % u64::from(PART);
            }
            self.trim();
            parts.push(rest);
        }
        let mut text = parts.pop().unwrap_or_default().to_string();
        for part in parts.iter().rev() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{part:09}");
        }
        text
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl PartialOrd for BigUint {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BigUint {
    fn cmp(&self, other: &Self) -> Ordering {
        let sizes = self.0.len().cmp(&other.0.len());
        sizes.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

/// The lower half.
#[expect(clippy::cast_possible_truncation, reason = "it is meant")]
const fn low(wide: u64) -> u32 {
    wide as u32
}

//! Floating-point numbers of `HINCRBYFLOAT` and `INCRBYFLOAT`: the 80-bit format of x86, with
//! exactly its rounding in parsing, addition and printing, so that 0.1 plus 0.2 is 0.3 as in Redis.
//!
//! A finite number is `mantissa * 2^exponent`. Sums and decimal fractions are computed with
//! integers of any size and rounded once, to nearest even.

mod natural;

use crate::number::signed;
use natural::BigUint;

/// A number with 64 bits of mantissa and 15 bits of exponent; never NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    is_negative: bool,
    magnitude: Magnitude,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Magnitude {
    Finite { mantissa: u64, exponent: i32 },
    Infinite,
}

/// Longest text of a number, as in Redis.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;

/// Exponent of the smallest positive number.
const EXPONENT_MIN: i32 = -16_445;

/// The first power of two that is too large.
const POWER_MAX: i32 = 16_384;

/// Decimal exponents beyond which every number overflows or underflows.
const TENS_MAX: i64 = 4_950;
const TENS_MIN: i64 = -4_970;

/// Printed digits after the point.
const FRACTION_DIGITS: u32 = 17;

impl LongDouble {
    /// Parses what C's `strtold` parses, with Redis' restrictions: the whole text, no spaces, no
    /// NaN, no overflow or underflow.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (is_negative, rest) = signed(text);
        let magnitude = match rest {
            [b'0', b'x' | b'X', digits @ ..] => hexadecimal(digits)?,
            [b'i' | b'I', ..] => {
                let is = |word: &[u8]| word.eq_ignore_ascii_case(rest);
                (is(b"inf") || is(b"infinity")).then_some(Magnitude::Infinite)?
            }
            rest => decimal(rest)?,
        };
        Some(Self { is_negative, magnitude })
    }

    /// False for infinity.
    pub const fn is_finite(self) -> bool {
        matches!(self.magnitude, Magnitude::Finite { .. })
    }

    /// The sum; `None` if it is not finite.
    pub fn plus(self, other: Self) -> Option<Self> {
        let Magnitude::Finite { mantissa: one, exponent: from } = self.magnitude else {
            return None;
        };
        let Magnitude::Finite { mantissa: two, exponent: to } = other.magnitude else {
            return None;
        };
        let exponent = from.min(to);
        let mut left = BigUint::of(one).shifted_left(above(from, exponent));
        let mut right = BigUint::of(two).shifted_left(above(to, exponent));
        let is_negative = match (self.is_negative, other.is_negative) {
            (one, two) if one == two => {
                left.add(&right);
                one
            }
            (one, _) if left >= right => {
                left.subtract(&right);
                one && !left.is_zero()
            }
            (_, two) => {
                right.subtract(&left);
                left = right;
                two
            }
        };
        let magnitude = rounded(&left, exponent, false);
        matches!(magnitude, Magnitude::Finite { .. }).then_some(Self { is_negative, magnitude })
    }

    /// Redis' format: no exponent, at most 17 digits after the point, no trailing zeros.
    pub fn text(self) -> String {
        let Magnitude::Finite { mantissa, exponent } = self.magnitude else {
            return if self.is_negative { "-inf".to_owned() } else { "inf".to_owned() };
        };
        let mut scaled = BigUint::of(mantissa);
        scaled.multiply_by_power(10, FRACTION_DIGITS);
        let scaled = match usize::try_from(exponent) {
            Ok(up) => scaled.shifted_left(up),
            Err(_) => scaled.halved(exponent.unsigned_abs() as usize, false),
        };
        let mut digits = scaled.decimal();
        let places = FRACTION_DIGITS as usize;
        if digits.len() <= places {
            digits.insert_str(0, &"0".repeat(places + 1 - digits.len()));
        }
        digits.insert(digits.len() - places, '.');
        let shown = digits.trim_end_matches('0').trim_end_matches('.');
        if self.is_negative && shown != "0" { format!("-{shown}") } else { shown.to_owned() }
    }
}

/// The difference of two exponents, the first of which is not smaller.
fn above(exponent: i32, other: i32) -> usize {
    usize::try_from(exponent.saturating_sub(other)).unwrap_or_default()
}

/// The number nearest to `whole * 2^exponent`. `has_more`: lower bits of `whole`, which has at
/// least 66 bits, were cut off.
fn rounded(whole: &BigUint, exponent: i32, has_more: bool) -> Magnitude {
    let bits = i32::try_from(whole.bits()).unwrap_or(i32::MAX);
    if bits == 0 {
        return Magnitude::Finite { mantissa: 0, exponent: EXPONENT_MIN };
    }
    let lowest = exponent.saturating_add(bits).saturating_sub(64).max(EXPONENT_MIN);
    let mantissa = match above(exponent, lowest) {
        0 => whole.halved(above(lowest, exponent), has_more),
        up => whole.shifted_left(up),
    };
    // Rounding up may have added a bit.
    let (mantissa, lowest) = match mantissa.low_u64() {
        Some(mantissa) => (mantissa, lowest),
        None => (1 << 63, lowest + 1),
    };
    let power = lowest + 64 - i32::try_from(mantissa.leading_zeros()).unwrap_or_default();
    if power > POWER_MAX {
        Magnitude::Infinite
    } else {
        Magnitude::Finite { mantissa, exponent: lowest }
    }
}

/// Digits with an optional point: the digits, how many of them follow the point, and the remaining
/// text.
fn digits_of(text: &[u8], is_digit: impl Fn(u8) -> bool) -> Option<(Vec<u8>, i64, &[u8])> {
    let mut digits = Vec::new();
    let (mut behind, mut is_behind, mut taken) = (0, false, 0);
    for byte in text {
        match byte {
            b'.' if !is_behind => is_behind = true,
            digit if is_digit(*digit) => {
                digits.push(*digit);
                behind += i64::from(is_behind);
            }
            _ => break,
        }
        taken += 1;
    }
    (!digits.is_empty()).then_some((digits, behind, text.get(taken..).unwrap_or_default()))
}

/// The exponent after its letter; 0 if there is none. Clamped to the range that matters.
fn exponent_of(text: &[u8], letter: u8) -> Option<i64> {
    let Some((first, rest)) = text.split_first() else { return Some(0) };
    if first.to_ascii_lowercase() != letter {
        return None;
    }
    let (is_negative, digits) = signed(rest);
    if digits.is_empty() {
        return None;
    }
    let mut exponent = 0_i64;
    for byte in digits {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        exponent = (exponent * 10 + i64::from(digit)).min(1 << 32);
    }
    Some(if is_negative { -exponent } else { exponent })
}

fn decimal(text: &[u8]) -> Option<Magnitude> {
    let (digits, behind, rest) = digits_of(text, |byte| byte.is_ascii_digit())?;
    let tens = exponent_of(rest, b'e')? - behind;
    let first = digits.iter().position(|digit| *digit != b'0').unwrap_or(digits.len());
    let digits = digits.get(first..).unwrap_or_default();
    if digits.is_empty() {
        return Some(Magnitude::Finite { mantissa: 0, exponent: EXPONENT_MIN });
    }
    let magnitude = tens.saturating_add(i64::try_from(digits.len()).unwrap_or(i64::MAX));
    if !(TENS_MIN..=TENS_MAX).contains(&magnitude) {
        return None;
    }
    let mut whole = BigUint::of_digits(digits, 10);
    if let Ok(tens) = u32::try_from(tens) {
        whole.multiply_by_power(10, tens);
        return in_range(rounded(&whole, 0, false));
    }
    let mut below = BigUint::of(1);
    below.multiply_by_power(10, u32::try_from(tens.unsigned_abs()).ok()?);
    // The quotient then has 66 or 67 bits, two more than the mantissa.
    let lift = i64::try_from(below.bits()).ok()? + 66 - i64::try_from(whole.bits()).ok()?;
    match usize::try_from(lift) {
        Ok(lift) => whole = whole.shifted_left(lift),
        Err(_) => below = below.shifted_left(usize::try_from(-lift).ok()?),
    }
    let (quotient, has_more) = whole.divided(&below);
    in_range(rounded(&quotient, i32::try_from(-lift).ok()?, has_more))
}

fn hexadecimal(text: &[u8]) -> Option<Magnitude> {
    let (digits, behind, rest) = digits_of(text, |byte| byte.is_ascii_hexdigit())?;
    let twos = exponent_of(rest, b'p')? - 4 * behind;
    let whole = BigUint::of_digits(&digits, 16);
    if whole.is_zero() {
        return Some(Magnitude::Finite { mantissa: 0, exponent: EXPONENT_MIN });
    }
    // Beyond a hundred thousand every number is out of range, regardless of its digits.
    let twos = i32::try_from(twos.clamp(-100_000, 100_000)).ok()?;
    // The lowest exponent is further away than there are bits to shift out.
    in_range(rounded(&whole, twos, false))
}

/// A nonzero number that is neither infinite nor 0 after rounding.
const fn in_range(magnitude: Magnitude) -> Option<Magnitude> {
    match magnitude {
        Magnitude::Infinite | Magnitude::Finite { mantissa: 0, .. } => None,
        Magnitude::Finite { .. } => Some(magnitude),
    }
}

#[cfg(test)]
mod tests;

//! Strings of decimal digits: identities of subscribers and equipment.
//!
//! One digit per half byte, the first one in the low half, `f` after the last (TS 24.008 clause
//! 10.5.1.4).

use std::fmt;

use super::number::are_digits;

/// Checks the bytes of `min` to `max` digits.
#[inline]
pub(crate) fn check_digits(bytes: [u8; 8], min: u32, max: u32) -> Result<(), &'static str> {
    let halves = u64::from_le_bytes(bytes); // The first digit is the lowest half byte.
    let count = 16 - (!halves).leading_zeros() / 4;
    let digits = halves & u64::MAX.checked_shr(64 - 4 * count).unwrap_or(0);
    if !are_digits(digits) {
        Err("has a half byte that is not a digit")
    } else if count < min || count > max {
        Err("has too few or too many digits")
    } else {
        Ok(())
    }
}

/// The bytes of digits.
pub(crate) fn digits_of(text: &str) -> [u8; 8] {
    let mut bytes = [0xff; 8];
    let digits = text.as_bytes().chunks(2);
    for (byte, pair) in bytes.iter_mut().zip(digits) {
        *byte = match pair {
            [low, high] => (high & 15) << 4 | low & 15,
            [low] => 0xf0 | low & 15,
            _ => 0xff,
        };
    }
    bytes
}

/// Writes digits.
pub(crate) fn write_digits(bytes: [u8; 8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for digit in bytes.into_iter().flat_map(|byte| [byte & 15, byte >> 4]) {
        if digit == 15 {
            break;
        }
        write!(f, "{digit}")?;
    }
    Ok(())
}

/// The bytes of the last `count` digits of a number.
#[inline]
pub(crate) fn digits_of_number(mut number: u64, count: u32) -> [u8; 8] {
    let mut halves = u64::MAX.checked_shl(4 * count).unwrap_or(0);
    for position in (0..count).rev() {
        halves |= (number % 10) << (4 * position);
        number /= 10;
    }
    halves.to_le_bytes()
}

/// Defines a string of decimal digits: name, prefix in texts, smallest and largest number of
/// digits, and the number of a draw (written with the largest number of digits).
macro_rules! digits {
    (
        $(#[$doc:meta])*
        $name:ident, $prefix:literal, $min:literal to $max:literal, $drawn:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 8]);

        impl $name {
            #[doc = concat!("From its text: `", $prefix, "`, ", $min, " to ", $max, " digits.")]
            ///
            /// # Errors
            /// `BadArgument`.
            pub fn new(text: &str) -> nearstate_model::Result<Self> {
                Self::of(text).or_else($crate::value::refused)
            }

            fn of(text: &str) -> std::result::Result<Self, String> {
                if let Some(digits) = text.strip_prefix($prefix)
                    && digits.bytes().all(|byte| byte.is_ascii_digit())
                    && ($min..=$max).contains(&digits.len())
                {
                    return Ok(Self($crate::value::digits::digits_of(digits)));
                }
                Err(format!(
                    concat!("{:?} is not a valid ", stringify!($name), ": give ", $prefix, " and ",
                        $min, " to ", $max, " digits"),
                    text
                ))
            }

            #[inline]
            fn of_number(number: u64) -> Self {
                Self($crate::value::digits::digits_of_number(number, $max))
            }

            /// Its bytes: two digits per byte, the first one in the low half, `f` after the last.
            pub const fn as_bytes(&self) -> &[u8; 8] {
                &self.0
            }
        }

        $crate::value::text_impls!($name);

        impl $crate::value::Value for $name {
            const BYTES: usize = 8;

            #[inline]
            fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
                $crate::value::digits::check_digits($crate::value::front(slot), $min, $max)
            }

            #[inline]
            fn load(slot: &[u8]) -> Self {
                Self($crate::value::front(slot))
            }

            #[inline]
            fn store(&self, slot: &mut [u8]) {
                $crate::value::fill(slot, &self.0);
            }

            #[inline]
            fn drawn(draw: $crate::draw::Draw) -> Self {
                Self::of_number($drawn(draw))
            }

            fn text(
                &self,
                _: $crate::value::KeyText,
                f: &mut std::fmt::Formatter<'_>,
            ) -> std::fmt::Result {
                f.write_str($prefix)?;
                $crate::value::digits::write_digits(self.0, f)
            }

            fn json(&self, _: $crate::value::KeyText) -> serde_json::Value {
                serde_json::Value::from(self.to_string())
            }

            fn from_json(json: &serde_json::Value) -> std::result::Result<Self, String> {
                Self::of($crate::value::string(json)?)
            }
        }
    };
}
pub(crate) use digits;

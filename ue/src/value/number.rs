//! Bounded numbers: identifiers and counts, big-endian, in the smallest number of bytes.

use std::fmt;

use serde_json::Value as Json;

use super::{kind_of, string};

/// The notation of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Decimal,
    /// With the number of digits of the largest value; a string in JSON, as a TAC in 3GPP.
    Hex,
}

/// Hexadecimal digits of the numbers up to `max`.
pub(crate) const fn digits(max: u64) -> usize {
    let bits = 64 - max.leading_zeros();
    (bits.div_ceil(4)) as usize
}

/// True if each of the sixteen half bytes is a decimal digit: 10 to 15 have the bit of 8 and that
/// of 4 or 2.
#[inline]
pub(crate) const fn are_digits(halves: u64) -> bool {
    (halves >> 3) & ((halves >> 2) | (halves >> 1)) & 0x1111_1111_1111_1111 == 0
}

/// The number in the first `bytes` bytes.
#[inline]
pub(crate) fn load(slot: &[u8], bytes: usize) -> u64 {
    slot.iter().take(bytes).fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

/// Writes the low `BYTES` bytes of a number.
#[inline]
pub(crate) fn store<const BYTES: usize>(number: u64, slot: &mut [u8]) {
    if let Some(low) = number.to_be_bytes().last_chunk::<BYTES>() {
        super::fill(slot, low);
    }
}

pub(crate) fn text(number: u64, max: u64, style: Style, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match style {
        Style::Decimal => write!(f, "{number}"),
        Style::Hex => write!(f, "{number:0width$x}", width = digits(max)),
    }
}

pub(crate) fn json(number: u64, max: u64, style: Style) -> Json {
    match style {
        Style::Decimal => Json::from(number),
        Style::Hex => Json::from(format!("{number:0width$x}", width = digits(max))),
    }
}

pub(crate) fn from_json(json: &Json, max: u64, style: Style) -> Result<u64, String> {
    match style {
        Style::Decimal => {
            json.as_u64().ok_or_else(|| format!("give a whole number, not {}", kind_of(json)))
        }
        Style::Hex => from_hex(string(json)?, max),
    }
}

/// A number with at most the digits of the largest value.
pub(crate) fn from_hex(text: &str, max: u64) -> Result<u64, String> {
    let width = digits(max);
    let is_hex = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(text, 16) {
        Ok(number) if is_hex && text.len() <= width => Ok(number),
        Ok(_) | Err(_) => Err(format!("give 1 to {width} hexadecimal digits")),
    }
}

/// The range of drawn values: the last two numbers.
macro_rules! bounds {
    ($low:literal, $high:literal) => {
        ($low, $high)
    };
    ($low:literal, $high:literal, $min:literal, $max:literal) => {
        ($min, $max)
    };
}
pub(crate) use bounds;

/// Defines a number type: name, integer, bytes, bounds, notation; optionally the bounds of draws,
/// if not all valid values are usual.
macro_rules! number {
    (
        $(#[$doc:meta])*
        $name:ident($int:ty), $bytes:literal bytes, $low:literal to $high:literal, $style:ident
        $(, drawn $min:literal to $max:literal)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name($int);

        impl $name {
            /// The smallest value.
            pub const MIN: Self = Self($low);
            /// The largest value.
            pub const MAX: Self = Self($high);

            #[doc = concat!("The number, if it is from ", $low, " to ", $high, ".")]
            ///
            /// # Errors
            /// `BadArgument`.
            pub fn new(number: $int) -> nearstate_model::Result<Self> {
                Self::from_wide(u64::from(number)).or_else($crate::value::refused)
            }

            /// The number.
            #[inline]
            pub const fn get(self) -> $int {
                self.0
            }

            fn from_wide(number: u64) -> std::result::Result<Self, String> {
                match <$int>::try_from(number) {
                    Ok(narrow) if ($low..=$high).contains(&number) => Ok(Self(narrow)),
                    Ok(_) | Err(_) => Err(format!(
                        concat!("{} is not a valid ", stringify!($name), ": give ", $low, " to ",
                            $high),
                        number
                    )),
                }
            }
        }

        $crate::value::text_impls!($name);

        impl $crate::value::Value for $name {
            const BYTES: usize = $bytes;

            #[inline]
            fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
                match ($low..=$high).contains(&$crate::value::number::load(slot, $bytes)) {
                    true => Ok(()),
                    false => Err(concat!("is not from ", $low, " to ", $high)),
                }
            }

            #[inline]
            fn load(slot: &[u8]) -> Self {
                let number = $crate::value::number::load(slot, $bytes);
                Self(<$int>::try_from(number).unwrap_or($high))
            }

            #[inline]
            fn store(&self, slot: &mut [u8]) {
                $crate::value::number::store::<$bytes>(u64::from(self.0), slot);
            }

            #[inline]
            fn drawn(draw: $crate::draw::Draw) -> Self {
                const BOUNDS: (u64, u64) =
                    $crate::value::number::bounds!($low, $high $(, $min, $max)?);
                Self(<$int>::try_from(draw.between(BOUNDS.0, BOUNDS.1)).unwrap_or($high))
            }

            fn text(
                &self,
                _: $crate::value::KeyText,
                f: &mut std::fmt::Formatter<'_>,
            ) -> std::fmt::Result {
                let style = $crate::value::number::Style::$style;
                $crate::value::number::text(u64::from(self.0), $high, style, f)
            }

            fn json(&self, _: $crate::value::KeyText) -> serde_json::Value {
                let style = $crate::value::number::Style::$style;
                $crate::value::number::json(u64::from(self.0), $high, style)
            }

            fn from_json(json: &serde_json::Value) -> std::result::Result<Self, String> {
                let style = $crate::value::number::Style::$style;
                Self::from_wide($crate::value::number::from_json(json, $high, style)?)
            }
        }
    };
}
pub(crate) use number;

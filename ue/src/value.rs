//! Values of state variables: types that are valid by construction, and their bytes.
//!
//! Bytes are checked once, when they enter the program. After that nothing here can fail: `load`
//! returns some value for any bytes, and missing bytes of a short slice count as zeros.

use std::fmt;

use nearstate_model::{Error, Result};
use serde_json::Value as Json;

use crate::draw::Draw;

pub mod subscription;
pub mod session;
pub mod slice;
pub mod nr;

pub mod subscriber;
pub mod security;
pub mod identity;
pub mod bearer;
pub mod filter;
pub mod area;

pub mod address;
pub mod apn;
pub mod key;
pub mod name;
pub mod plmn;
pub(crate) mod list;
pub(crate) mod composite;
pub(crate) mod digits;
pub(crate) mod number;

/// The part of a key that a text shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyText {
    /// The first two bytes: enough to distinguish keys, too little to use one.
    #[default]
    Short,
    /// The whole key.
    Whole,
}

/// A type that fills the slot of a state variable, or a part of one.
pub trait Value: Copy + PartialEq + fmt::Debug {
    /// Bytes of its slot; the same for every value.
    const BYTES: usize;

    /// The salt of its draws. With 0 each variable has its own salt. Types whose values must agree
    /// when one procedure draws them (a TAI, and the list that starts with it) share a salt.
    const SALT: u64 = 0;

    /// Checks the bytes of a value; `slot` has [`Value::BYTES`].
    ///
    /// # Errors
    /// The error, as the end of a sentence that starts with the name of the variable.
    fn check(slot: &[u8]) -> std::result::Result<(), &'static str>;

    /// The value of checked bytes; some value for any others.
    fn load(slot: &[u8]) -> Self;

    /// Writes its bytes to the start of `slot`; has no effect if `slot` is too short.
    fn store(&self, slot: &mut [u8]);

    /// A valid value, determined by the draw alone.
    fn drawn(draw: Draw) -> Self;

    /// The text of the value, in 3GPP's notation.
    ///
    /// # Errors
    /// Those of the formatter.
    fn text(&self, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The value as JSON: a string or number if it is a single one, otherwise an object.
    fn json(&self, keys: KeyText) -> Json;

    /// Parses the result of [`Value::json`] with whole keys.
    ///
    /// # Errors
    /// The error and its position in the value.
    fn from_json(json: &Json) -> std::result::Result<Self, String>;
}

/// A value and its key format, for `{}`.
#[derive(Clone, Copy)]
pub(crate) struct ValueText<'a, T>(pub &'a T, pub KeyText);

impl<T: Value> fmt::Display for ValueText<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.text(self.1, f)
    }
}

/// Implements `Display` and `Debug` with shortened keys, so that no log contains a usable key.
macro_rules! text_impls {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::value::Value::text(self, $crate::value::KeyText::Short, f)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}
pub(crate) use text_impls;

/// The first bytes of a slot; zeros if the slot is shorter.
#[inline]
pub(crate) fn front<const BYTES: usize>(slot: &[u8]) -> [u8; BYTES] {
    slot.first_chunk().copied().unwrap_or([0; BYTES])
}

/// Writes bytes to the start of a slot.
#[inline]
pub(crate) fn fill<const BYTES: usize>(slot: &mut [u8], bytes: &[u8; BYTES]) {
    if let Some(front) = slot.first_chunk_mut() {
        *front = *bytes;
    }
}

/// True if all bytes are 0. Without an early exit, so that the loop is vectorised.
#[inline]
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |any, byte| any | byte) == 0
}

/// The error of a constructor.
pub(crate) fn refused<T>(detail: String) -> Result<T> {
    Err(Error::BadArgument { detail })
}

/// The type of a JSON value, for error messages.
pub(crate) fn kind_of(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// The string of a JSON value.
pub(crate) fn string(json: &Json) -> std::result::Result<&str, String> {
    json.as_str().ok_or_else(|| format!("give a string, not {}", kind_of(json)))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let digit = |half: u8| char::from(if half < 10 { b'0' + half } else { b'a' - 10 + half });
        text.extend([digit(byte >> 4), digit(byte & 15)]);
        text
    })
}

/// Bytes from hexadecimal digits.
pub(crate) fn unhex<const BYTES: usize>(text: &str) -> std::result::Result<[u8; BYTES], String> {
    let digits = text.as_bytes();
    let mut bytes = [0; BYTES];
    if digits.len() != 2 * BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(format!("give {} hexadecimal digits", 2 * BYTES));
    }
    let half = |digit: u8| match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A').wrapping_add(10),
    };
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair.iter().fold(0, |sum, digit| (sum << 4) | half(*digit));
    }
    Ok(bytes)
}

/// The bytes of a value, as stored in its slot and in a tag.
pub fn to_bytes<T: Value>(value: &T) -> Vec<u8> {
    let mut bytes = vec![0; T::BYTES];
    value.store(&mut bytes);
    bytes
}

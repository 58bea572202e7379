//! Values of state variables: types that are legal by construction, and their bytes.
//!
//! A value is checked where its bytes come in. After that nothing here can fail: `load` gives some
//! value for any bytes, and a slice that is too short counts as zeros.

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

/// How much of a key a text shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyText {
    /// The first two bytes: enough to tell two keys apart, too little to use one.
    #[default]
    Short,
    /// All of it.
    Whole,
}

/// A type that fills the slot of a state variable, or a part of one.
pub trait Value: Copy + PartialEq + fmt::Debug {
    /// Bytes of its slot; the same for every value.
    const BYTES: usize;

    /// What its draws are mixed with. With 0 each variable has its own; types that must agree when
    /// one procedure draws them (a TAI, and the list that begins with it) share another number.
    const SALT: u64 = 0;

    /// Why these bytes are not a value; `slot` has [`Value::BYTES`].
    ///
    /// # Errors
    /// The error, as the end of a sentence that begins with the name of the variable.
    fn check(slot: &[u8]) -> std::result::Result<(), &'static str>;

    /// The value of bytes that were checked; some value for any others.
    fn load(slot: &[u8]) -> Self;

    /// Writes its bytes into the front of `slot`; nothing if that is too short.
    fn store(&self, slot: &mut [u8]);

    /// A legal value that the draw alone decides.
    fn drawn(draw: Draw) -> Self;

    /// As people in 3GPP write it.
    ///
    /// # Errors
    /// Those of the formatter.
    fn text(&self, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// As JSON: the text if it is one word or number, otherwise an object.
    fn json(&self, keys: KeyText) -> Json;

    /// The reverse of [`Value::json`] with whole keys.
    ///
    /// # Errors
    /// The error and its position in the value.
    fn from_json(json: &Json) -> std::result::Result<Self, String>;
}

/// A value with its text, for `{}`.
#[derive(Clone, Copy)]
pub(crate) struct ValueText<'a, T>(pub &'a T, pub KeyText);

impl<T: Value> fmt::Display for ValueText<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.text(self.1, f)
    }
}

/// `Display` and `Debug` by the text, keys shortened: what ends up in a log must not open a
/// session.
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

/// Writes bytes into the front of a slot.
#[inline]
pub(crate) fn fill<const BYTES: usize>(slot: &mut [u8], bytes: &[u8; BYTES]) {
    if let Some(front) = slot.first_chunk_mut() {
        *front = *bytes;
    }
}

/// Are all these bytes 0? Without a branch for each, so that the compiler takes many at once.
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

/// The string that a JSON value is.
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

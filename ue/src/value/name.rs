//! Names that services of the core assign: identifiers of instances, URIs of resources.

use std::fmt;

use nearstate_model::Result;
use serde_json::Value as Json;

use super::composite::part;
use super::{KeyText, Value, fill, front, hex, is_zero, refused, string, text_impls, unhex};
use crate::draw::Draw;

/// A universally unique identifier (RFC 9562) of an instance of a network function (TS 29.571
/// clause 5.3.2), or of a context in an SMF.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// The identifier of these bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

text_impls!(Uuid);

impl Value for Uuid {
    const BYTES: usize = 16;

    #[inline]
    fn check(_: &[u8]) -> std::result::Result<(), &'static str> {
        Ok(())
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        Self(front(slot))
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        fill(slot, &self.0);
    }

    /// Version 4: random except for six bits.
    #[inline]
    fn drawn(draw: Draw) -> Self {
        let bits = u128::from_be_bytes(draw.bytes());
        let fixed = (0x4 << 76) | (0b10 << 62);
        Self((bits & !((0xf << 76) | (0b11 << 62)) | fixed).to_be_bytes())
    }

    fn text(&self, _: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, byte) in self.0.iter().enumerate() {
            let dash = if matches!(number, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }

    fn json(&self, _: KeyText) -> Json {
        Json::from(self.to_string())
    }

    fn from_json(json: &Json) -> std::result::Result<Self, String> {
        let text = string(json)?;
        let bad = || format!("{text:?} is not a UUID like 123e4567-e89b-42d3-a456-426614174000");
        let lengths = text.split('-').map(str::len);
        if !lengths.eq([8, 4, 4, 4, 12]) {
            return Err(bad());
        }
        unhex(&text.replace('-', "")).map(Self).map_err(|_| bad())
    }
}

/// The radio capability identifier of a UE: hexadecimal digits, assigned by the manufacturer (20)
/// or by the network (13), `f` after the last (TS 23.003 clause 29.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RadioCapabilityId {
    /// Its issuer, and the number of the capabilities.
    digits: [u8; 10],
}

impl RadioCapabilityId {
    /// An identifier that a manufacturer assigned.
    pub const fn of_manufacturer(digits: [u8; 10]) -> Self {
        Self { digits }
    }
}

text_impls!(RadioCapabilityId);

impl Value for RadioCapabilityId {
    const BYTES: usize = 10;

    #[inline]
    fn check(_: &[u8]) -> std::result::Result<(), &'static str> {
        Ok(())
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        Self { digits: front(slot) }
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        fill(slot, &self.digits);
    }

    /// The first digit marks a manufacturer's identifier.
    #[inline]
    fn drawn(draw: Draw) -> Self {
        let [first, rest @ ..] = draw.bytes::<10>();
        let mut digits = [first & 0x0f; 10];
        let [_, others @ ..] = &mut digits;
        *others = rest;
        Self { digits }
    }

    fn text(&self, _: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.digits))
    }

    fn json(&self, _: KeyText) -> Json {
        Json::from(self.to_string())
    }

    fn from_json(json: &Json) -> std::result::Result<Self, String> {
        Ok(Self { digits: unhex(string(json)?)? })
    }
}

/// The longest URI, in bytes. With the full domain name of a network function (TS 23.003 clause
/// 28.3.2) and the path of its service, URIs have 80 to 95. A longer URI is refused.
pub const URI_BYTES_MAX: usize = 111;
const URI_SLOT: usize = 1 + URI_BYTES_MAX;

/// The URI of a resource (RFC 3986) that a service assigned: visible ASCII without spaces, quotes
/// and backslashes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uri([u8; URI_SLOT]);

impl Uri {
    /// The URI.
    ///
    /// # Errors
    /// `BadArgument`: longer than [`URI_BYTES_MAX`], or with invalid characters.
    pub fn new(text: &str) -> Result<Self> {
        Self::of(text).or_else(refused)
    }

    fn of(text: &str) -> std::result::Result<Self, String> {
        match text.len() {
            1..=URI_BYTES_MAX if is_legal(text.as_bytes()) => Ok(Self::packed(text.as_bytes())),
            _ => Err(format!(
                "{text:?} is not a URI: give 1 to {URI_BYTES_MAX} visible ASCII characters without \
                 quotes and backslashes"
            )),
        }
    }

    /// The text, truncated to the slot.
    #[inline]
    fn packed(text: &[u8]) -> Self {
        let mut bytes = [0; URI_SLOT];
        let [length, slots @ ..] = &mut bytes;
        for (slot, byte) in slots.iter_mut().zip(text) {
            *slot = *byte;
            *length += 1;
        }
        Self(bytes)
    }

    /// The URI.
    pub fn as_str(&self) -> &str {
        let [length, text @ ..] = &self.0;
        str::from_utf8(text.get(..usize::from(*length)).unwrap_or_default()).unwrap_or_default()
    }
}

#[inline]
fn is_legal(text: &[u8]) -> bool {
    text.iter().fold(true, |all, byte| {
        let is_visible = matches!(byte, b'!' | b'#'..=b'[' | b']'..=b'~');
        // A loop without an early exit is vectorised.
        if is_visible { all } else { false }
    })
}

text_impls!(Uri);

impl Value for Uri {
    const BYTES: usize = URI_SLOT;

    #[inline]
    fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
        let (length, text) = part(slot, 1);
        let [length] = front(length);
        let Some((used, unused)) = text.split_at_checked(usize::from(length)) else {
            return Err("is longer than its slot");
        };
        if length > 0 && is_legal(used) && is_zero(unused) {
            Ok(())
        } else {
            Err("is empty, or has invalid characters")
        }
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        Self(front(slot))
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        fill(slot, &self.0);
    }

    /// A resource in the test network.
    #[inline]
    fn drawn(draw: Draw) -> Self {
        const PATH: &[u8; 81] =
            b"https://set1.nf.5gc.mnc001.mcc001.3gppnetwork.org/nnf-service/v1/associations/ue-";
        let mut text = [0; PATH.len() + 16];
        let (path, number) = text.split_at_mut(PATH.len());
        path.copy_from_slice(PATH);
        for (position, digit) in (0..).zip(number) {
            let half = (draw.word(0) >> (60 - 4 * position) & 15) as u8;
            *digit = if half < 10 { b'0' + half } else { b'a' - 10 + half };
        }
        Self::packed(&text)
    }

    fn text(&self, _: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }

    fn json(&self, _: KeyText) -> Json {
        Json::from(self.as_str())
    }

    fn from_json(json: &Json) -> std::result::Result<Self, String> {
        Self::of(string(json)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_accept_only_visible_ascii() {
        for good in ["a", "https://smf:29502/nsmf-pdusession/v1/x?y=z#1", &"x".repeat(111)] {
            let uri = Uri::new(good).unwrap();
            assert_eq!(uri.as_str(), good);
            assert_eq!(Uri::check(&uri.0), Ok(()));
        }
        for bad in ["", "a b", "\"", "\\", "é", "a\0", "\u{7f}", &"x".repeat(112)] {
            assert!(Uri::new(bad).is_err(), "{bad:?}");
        }
        let mut bytes = Uri::new("abc").unwrap().0;
        for (at, wrong) in [(0, 0), (0, 2), (0, 4), (0, 200), (1, b' '), (111, 1)] {
            let old = std::mem::replace(&mut bytes[at], wrong);
            assert!(Uri::check(&bytes).is_err(), "{at} {wrong}");
            bytes[at] = old;
        }
        let drawn = Uri::drawn(Draw::new(1, 1));
        assert_eq!(Uri::check(&drawn.0), Ok(()));
        assert_eq!(drawn.as_str().len(), 97);
    }

    #[test]
    fn a_uuid_is_printed_in_five_groups() {
        let uuid = Uuid::drawn(Draw::new(1, 1));
        let text = uuid.to_string();
        assert_eq!(text.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&text.as_bytes()[19]), "{text}");
        assert_eq!(Uuid::from_json(&Json::from(text.clone())), Ok(uuid));
        for bad in [text.replace('-', ""), text.replace('-', "_"), format!("{text}0")] {
            assert!(Uuid::from_json(&Json::from(bad)).is_err());
        }
    }
}

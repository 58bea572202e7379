//! Names of packet data networks: APN in EPS, DNN in 5GS.

use std::fmt;

use nearstate_model::Result;
use serde_json::Value as Json;

use super::composite::part;
use super::{KeyText, Value, fill, front, is_zero, refused, string, text_impls};
use crate::draw::Draw;

/// The longest name, in bytes. TS 23.003 clause 9.1 allows 100 with the operator identifier.
/// Operators use ten to thirty, and with two names of this size a context is as large as paper 2's.
/// A longer name is refused.
pub const APN_BYTES_MAX: usize = 49;
const APN_SLOT: usize = 1 + APN_BYTES_MAX;

/// Labels of letters, digits and hyphens, separated by dots. The case is preserved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Apn([u8; APN_SLOT]);

/// Names of test networks.
const DRAWN: [Apn; 4] = [
    literal("internet"),
    literal("ims"),
    literal("internet.mnc001.mcc001.gprs"),
    literal("iot-meters.mnc001.mcc001.gprs"),
];

impl Apn {
    /// The name.
    ///
    /// # Errors
    /// `BadArgument`: longer than [`APN_BYTES_MAX`], or not dotted labels.
    pub fn new(name: &str) -> Result<Self> {
        Self::of(name).or_else(refused)
    }

    fn of(name: &str) -> std::result::Result<Self, String> {
        let mut bytes = [0; APN_SLOT];
        let (length, text) = bytes.split_at_mut(1);
        if let (Some(front), Ok(count)) = (text.get_mut(..name.len()), u8::try_from(name.len())) {
            front.copy_from_slice(name.as_bytes());
            fill(length, &[count]);
        }
        match Self::check(&bytes) {
            Ok(()) if !name.is_empty() => Ok(Self(bytes)),
            Ok(()) | Err(_) => Err(format!(
                "{name:?} is not an APN: give labels of letters, digits and hyphens, separated by \
                 dots, at most {APN_BYTES_MAX} bytes"
            )),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let [length, text @ ..] = &self.0;
        let name = text.get(..usize::from(*length)).unwrap_or_default();
        str::from_utf8(name).unwrap_or_default()
    }
}

/// The class of each byte in a name. A table, because a name is checked with each context.
const CLASSES: [u8; 256] = classes();
const INVALID: u8 = 4;
const DOT: u8 = 1;
const WORD: u8 = 2;

const fn classes() -> [u8; 256] {
    let mut classes = [INVALID; 256];
    let (mut rest, mut byte) = (classes.as_mut_slice(), 0_u8);
    while let [class, after @ ..] = rest {
        match byte {
            b'.' => *class = DOT,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => *class = WORD,
            _ => {}
        }
        byte = byte.wrapping_add(1);
        rest = after;
    }
    classes
}

/// True if all bytes are valid and no label is empty: a dot follows a dot, or is first or last.
#[inline]
fn is_legal(name: &[u8]) -> bool {
    let (mut seen, mut doubled, mut last) = (0, 0, DOT);
    for byte in name {
        let class = CLASSES.get(usize::from(*byte)).copied().unwrap_or(INVALID);
        seen |= class;
        doubled |= class & last & DOT;
        last = class;
    }
    seen < INVALID && doubled == 0 && last == WORD
}

text_impls!(Apn);

impl Value for Apn {
    const BYTES: usize = APN_SLOT;

    #[inline]
    fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
        let (length, text) = part(slot, 1);
        let [length] = front(length);
        let Some((name, unused)) = text.split_at_checked(usize::from(length)) else {
            return Err("is longer than its slot");
        };
        if is_legal(name) && is_zero(unused) { Ok(()) } else { Err("is not made of dotted labels") }
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        Self(front(slot))
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        fill(slot, &self.0);
    }

    #[inline]
    fn drawn(draw: Draw) -> Self {
        let [first, second, third, fourth] = DRAWN;
        match draw.word(0) & 3 {
            0 => first,
            1 => second,
            2 => third,
            _ => fourth,
        }
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

/// A name from a literal.
const fn literal(name: &str) -> Apn {
    assert!(name.len() <= APN_BYTES_MAX, "a name fits into its slot");
    let mut bytes = [0; APN_SLOT];
    let [length, text @ ..] = &mut bytes;
    let (mut text, mut rest) = (text.as_mut_slice(), name.as_bytes());
    while let ([slot, after @ ..], [byte, others @ ..]) = (text, rest) {
        *slot = *byte;
        *length += 1;
        (text, rest) = (after, others);
    }
    Apn(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apns_are_dotted_labels() {
        for good in ["internet", "a", "ims.mnc001.mcc262.gprs", "x-1.y", &"a".repeat(49)] {
            let apn = Apn::new(good).unwrap();
            assert_eq!(apn.as_str(), good);
            assert_eq!(Apn::check(&apn.0), Ok(()));
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "ä", "a\0", "_", &"a".repeat(50)] {
            assert!(Apn::new(bad).is_err(), "{bad:?}");
        }
        let end = format!("{}.", "a".repeat(48));
        assert!(Apn::new(&end).is_err(), "a dot at the end");
    }

    #[test]
    fn invalid_name_bytes_are_rejected() {
        let mut bytes = Apn::new("ims").unwrap().0;
        for (at, wrong) in [(0, 0), (0, 50), (0, 2), (0, 4), (2, b'!'), (1, b'.'), (3, b'.')] {
            let old = std::mem::replace(&mut bytes[at], wrong);
            assert!(Apn::check(&bytes).is_err(), "{at} {wrong}");
            bytes[at] = old;
        }
        assert_eq!(Apn::check(&bytes), Ok(()));
    }

    #[test]
    fn drawn_names_are_legal() {
        for draw in 0..20 {
            let apn = Apn::drawn(Draw::new(draw, 1));
            assert_eq!(Apn::check(&apn.0), Ok(()));
            assert!(apn.as_str().contains('i'), "{apn}");
        }
    }
}

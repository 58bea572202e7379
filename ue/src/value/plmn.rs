//! The identity of a public land mobile network: three digits of the country, two or three of the
//! network.

use std::fmt;

use nearstate_model::Result;
use serde_json::{Map, Value as Json};

use super::composite::{member, object};
use super::number::are_digits;
use super::{KeyText, Value, fill, front, refused, string, text_impls};
use crate::draw::Draw;

/// MCC and MNC in three bytes (TS 24.008 clause 10.5.1.13): one digit per half byte; the third
/// digit of the MNC is `f` if it has two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Plmn([u8; 3]);

impl Plmn {
    /// The test network: MCC 001, MNC 01 (ITU-T E.212 annex E). Draws use this network.
    pub const TEST: Self = Self([0x00, 0xf1, 0x10]);

    /// From its digits: three of the country, two or three of the network.
    ///
    /// # Errors
    /// `BadArgument`.
    pub fn new(mcc: &str, mnc: &str) -> Result<Self> {
        Self::from_digits(mcc, mnc).or_else(refused)
    }

    fn from_digits(mcc: &str, mnc: &str) -> std::result::Result<Self, String> {
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let bad = || format!("MCC {mcc:?} and MNC {mnc:?}: give 3 digits, and 2 or 3 digits");
        if !all_digits(mcc) || !all_digits(mnc) {
            return Err(bad());
        }
        let two = |low: u8, high: u8| high << 4 | low & 15;
        match (mcc.as_bytes(), mnc.as_bytes()) {
            (&[one, ten, last], &[first, second]) => {
                Ok(Self([two(one, ten), two(last, 15), two(first, second)]))
            }
            (&[one, ten, last], &[first, second, third]) => {
                Ok(Self([two(one, ten), two(last, third), two(first, second)]))
            }
            (_, _) => Err(bad()),
        }
    }

    /// The three digits of the country.
    pub fn mcc(self) -> String {
        let Self([a, b, _]) = self;
        text(&[a & 15, a >> 4, b & 15])
    }

    /// The two or three digits of the network.
    pub fn mnc(self) -> String {
        let Self([_, b, c]) = self;
        if b >> 4 == 15 { text(&[c & 15, c >> 4]) } else { text(&[c & 15, c >> 4, b >> 4]) }
    }
}

fn text(digits: &[u8]) -> String {
    digits.iter().map(|digit| char::from(b'0' + digit % 10)).collect()
}

text_impls!(Plmn);

impl Value for Plmn {
    const BYTES: usize = 3;

    #[inline]
    fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
        let [one, two, three] = front::<3>(slot);
        // Without a third digit the half byte is `f`, which is checked as a 0.
        let two = if two >> 4 == 15 { two & 15 } else { two };
        if are_digits(u64::from(u32::from_le_bytes([one, two, three, 0]))) {
            Ok(())
        } else {
            Err("has a PLMN with a nibble that is not a digit")
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

    #[inline]
    fn drawn(_: Draw) -> Self {
        Self::TEST
    }

    fn text(&self, _: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.mcc(), self.mnc())
    }

    fn json(&self, _: KeyText) -> Json {
        let mut object = Map::new();
        object.insert("mcc".to_owned(), Json::from(self.mcc()));
        object.insert("mnc".to_owned(), Json::from(self.mnc()));
        Json::Object(object)
    }

    fn from_json(json: &Json) -> std::result::Result<Self, String> {
        let object = object(json, &["mcc", "mnc"])?;
        let owned = |json: &Json| string(json).map(str::to_owned);
        Self::from_digits(&member(object, "mcc", owned)?, &member(object, "mnc", owned)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nibbles_match_ts_24_008() {
        assert_eq!(Plmn::new("262", "01").unwrap(), Plmn([0x62, 0xf2, 0x10]));
        assert_eq!(Plmn::new("310", "410").unwrap(), Plmn([0x13, 0x00, 0x14]));
        assert_eq!(Plmn::new("001", "01").unwrap(), Plmn::TEST);
        assert_eq!(Plmn::new("310", "410").unwrap().to_string(), "310-410");
        assert_eq!(Plmn::TEST.to_string(), "001-01");
    }

    #[test]
    fn an_invalid_plmn_is_rejected() {
        for (mcc, mnc) in [("26", "01"), ("262", "1"), ("262", "0123"), ("26a", "01"), ("", "")] {
            assert!(Plmn::new(mcc, mnc).is_err(), "{mcc}-{mnc}");
        }
        for bytes in [[0xa0, 0xf1, 0x10], [0x00, 0xfa, 0x10], [0x00, 0xe1, 0x10], [0, 0xf1, 0x1b]] {
            assert!(Plmn::check(&bytes).is_err(), "{bytes:02x?}");
        }
    }
}

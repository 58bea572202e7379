//! Network slices and lists of network slices.

use std::fmt;

use serde_json::{Map, Value as Json};

use super::composite::object;
use super::list::list;
use super::number::{from_hex, number};
use super::{KeyText, Value, ValueText, fill, front, string, text_impls};
use crate::draw::Draw;

number! {
    /// Slice or service type (TS 23.501 clause 5.15.2.2): 1 eMBB, 2 URLLC, 3 MIoT, 4 V2X, 5 HMTC,
    /// 128 to 255 operator-specific.
    SliceType(u8), 1 bytes, 0 to 255, Decimal
}

/// A slice: S-NSSAI (TS 23.003 clause 28.4.2), 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Snssai {
    /// The slice or service type.
    pub slice_type: SliceType,
    /// The slice differentiator, 24 bits; `ffffff` is "none", as in 3GPP's encoding.
    differentiator: [u8; 3],
}

/// No differentiator.
const NONE: [u8; 3] = [0xff; 3];

impl Snssai {
    /// A slice with the low 24 bits of this differentiator, or without one.
    pub const fn new(slice_type: SliceType, differentiator: Option<u32>) -> Self {
        let differentiator = match differentiator {
            Some(number) => {
                let [_, high, middle, low] = number.to_be_bytes();
                [high, middle, low]
            }
            None => NONE,
        };
        Self { slice_type, differentiator }
    }

    /// The slice differentiator, if present.
    pub fn differentiator(self) -> Option<u32> {
        let [high, middle, low] = self.differentiator;
        (self.differentiator != NONE).then_some(u32::from_be_bytes([0, high, middle, low]))
    }
}

text_impls!(Snssai);

impl Value for Snssai {
    const BYTES: usize = 4;

    #[inline]
    fn check(_: &[u8]) -> Result<(), &'static str> {
        Ok(())
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        let [slice_type, differentiator @ ..] = front::<4>(slot);
        Self { slice_type: SliceType::load(&[slice_type]), differentiator }
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        let [high, middle, low] = self.differentiator;
        fill(slot, &[self.slice_type.get(), high, middle, low]);
    }

    /// A slice of one of the first three types, with a differentiator.
    #[inline]
    fn drawn(draw: Draw) -> Self {
        let [slice_type, high, middle, low] = draw.bytes();
        Self {
            slice_type: SliceType::load(&[1 + slice_type % 3]),
            differentiator: [high & 0x7f, middle, low],
        }
    }

    fn text(&self, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ValueText(&self.slice_type, keys))?;
        match self.differentiator() {
            Some(number) => write!(f, "-{number:06x}"),
            None => Ok(()),
        }
    }

    /// With the names of TS 29.571 clause 5.4.4.2.
    fn json(&self, keys: KeyText) -> Json {
        let mut object = Map::new();
        object.insert("sst".to_owned(), self.slice_type.json(keys));
        if let Some(number) = self.differentiator() {
            object.insert("sd".to_owned(), Json::from(format!("{number:06x}")));
        }
        Json::Object(object)
    }

    fn from_json(json: &Json) -> Result<Self, String> {
        let object = object(json, &["sst", "sd"])?;
        let slice_type = super::composite::member(object, "sst", SliceType::from_json)?;
        let differentiator = match object.get("sd") {
            Some(json) => {
                let number = string(json).and_then(|text| from_hex(text, 0x00ff_ffff));
                Some(number.map_err(|what| format!("sd: {what}"))?)
            }
            None => None,
        };
        let number = differentiator.and_then(|number| u32::try_from(number).ok());
        Ok(Self::new(slice_type, number))
    }
}

list! {
    /// Slices that a UE requests or may use now (TS 24.501 clause 9.11.3.37): at most eight.
    Nssai of Snssai, at most 8, drawn 2, salt 0
}
list! {
    /// Slices that a UE is subscribed to or configured with (TS 23.501 clause 5.15.4.1): at most
    /// sixteen.
    LongNssai of Snssai, at most 16, drawn 3, salt 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_differentiator_is_optional() {
        let one = Snssai::new(SliceType::new(1).unwrap(), Some(0x01_0203));
        assert_eq!(
            (one.to_string(), one.differentiator()),
            ("1-010203".to_owned(), Some(0x01_0203))
        );
        let plain = Snssai::new(SliceType::new(3).unwrap(), None);
        assert_eq!((plain.to_string(), plain.differentiator()), ("3".to_owned(), None));
        for slice in [one, plain] {
            assert_eq!(Snssai::from_json(&slice.json(KeyText::Whole)), Ok(slice));
        }
        let bad = r#"{"sst": 1, "sd": "1234567"}"#;
        assert!(Snssai::from_json(&serde_json::from_str(bad).unwrap()).unwrap_err().contains("sd"));
    }
}

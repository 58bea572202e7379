//! Keys. Their text is shortened by default, so that no log contains a usable key.

use std::fmt;

use serde_json::Value as Json;

use super::{KeyText, Value, fill, front, string, text_impls, unhex};
use crate::draw::Draw;

macro_rules! key {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// The key of these bytes.
            pub const fn new(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// Its bytes.
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }
        }

        text_impls!($name);

        impl Value for $name {
            const BYTES: usize = $bytes;

            #[inline]
            fn check(_: &[u8]) -> Result<(), &'static str> {
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

            #[inline]
            fn drawn(draw: Draw) -> Self {
                Self(draw.bytes())
            }

            fn text(&self, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_key(&self.0, keys, f)
            }

            fn json(&self, keys: KeyText) -> Json {
                Json::from(super::ValueText(self, keys).to_string())
            }

            fn from_json(json: &Json) -> Result<Self, String> {
                unhex(string(json)?).map(Self)
            }
        }
    };
}

key! {
    /// A key of 128 bits, for the algorithms of EPS and 5GS: the 128 least significant bits of the
    /// derived 256 (TS 33.401 clause A.7, TS 33.501 clause A.8).
    Key128, 16
}
key! {
    /// A key of 256 bits, for the derivation of keys (TS 33.401 clause 6.2, TS 33.501 clause 6.2).
    Key256, 32
}

fn write_key(bytes: &[u8], keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let shown = match keys {
        KeyText::Short => 2,
        KeyText::Whole => bytes.len(),
    };
    for byte in bytes.iter().take(shown) {
        write!(f, "{byte:02x}")?;
    }
    if shown < bytes.len() { f.write_str("..") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_two_bytes_of_a_key() {
        let key = Key128::new([0xab; 16]);
        assert_eq!(key.to_string(), "abab..");
        assert_eq!(format!("{key:?}"), "Key128(abab..)");
        assert_eq!(key.json(KeyText::Whole), Json::from("ab".repeat(16)));
        assert_eq!(Key128::from_json(&key.json(KeyText::Whole)).unwrap(), key);
        assert!(Key128::from_json(&key.json(KeyText::Short)).is_err());
    }
}

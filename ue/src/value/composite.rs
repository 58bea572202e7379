//! Values that consist of consecutive values.

use std::fmt;

use serde_json::{Map, Value as Json};

use super::kind_of;

/// The next part of a slot and the rest; both empty if the slot is too short.
#[inline]
pub(crate) fn part(slot: &[u8], bytes: usize) -> (&[u8], &[u8]) {
    slot.split_at_checked(bytes).unwrap_or((&[], &[]))
}

/// As [`part`], mutable.
#[inline]
pub(crate) fn part_mut(slot: &mut [u8], bytes: usize) -> (&mut [u8], &mut [u8]) {
    slot.split_at_mut_checked(bytes).unwrap_or((&mut [], &mut []))
}

/// The JSON object of a composite; each member must be one of `names`.
pub(crate) fn object<'a>(json: &'a Json, names: &[&str]) -> Result<&'a Map<String, Json>, String> {
    let object =
        json.as_object().ok_or_else(|| format!("give an object, not {}", kind_of(json)))?;
    match object.keys().find(|name| !names.contains(&name.as_str())) {
        Some(name) => Err(format!("unknown member {name:?}: give {}", names.join(", "))),
        None => Ok(object),
    }
}

/// One member of an object.
pub(crate) fn member<T>(
    object: &Map<String, Json>,
    name: &str,
    parse: impl Fn(&Json) -> Result<T, String>,
) -> Result<T, String> {
    let json = object.get(name).ok_or_else(|| format!("{name} is missing"))?;
    parse(json).map_err(|what| format!("{name}: {what}"))
}

/// The separator of two parts in a text.
pub(crate) fn separate(is_first: &mut bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if std::mem::take(is_first) { Ok(()) } else { f.write_str(", ") }
}

/// Defines a struct of values. Its bytes are those of its fields, in order; its JSON is an object.
/// Its text is `listed` (`kEnb 1a2b.., ncc 3`) or written by the named function. Its draw consists
/// of those of `each` field, or is returned by the named function.
macro_rules! composite {
    (
        $(#[$doc:meta])*
        $name:ident, salt $salt:literal, text $text:ident, drawn $drawn:ident {
            $($(#[$field_doc:meta])* $field:ident: $kind:ty = $json:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)+
        }

        $crate::value::text_impls!($name);

        impl $crate::value::Value for $name {
            const BYTES: usize = 0 $(+ <$kind as $crate::value::Value>::BYTES)+;
            const SALT: u64 = $salt;

            #[inline]
            fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
                use $crate::value::{Value, composite::part};
                let rest = slot;
                $(
                    let (mine, rest) = part(rest, <$kind as Value>::BYTES);
                    <$kind as Value>::check(mine)?;
                )+
                let _ = rest;
                Ok(())
            }

            #[inline]
            fn load(slot: &[u8]) -> Self {
                use $crate::value::{Value, composite::part};
                let rest = slot;
                $(
                    let (mine, rest) = part(rest, <$kind as Value>::BYTES);
                    let $field = <$kind as Value>::load(mine);
                )+
                let _ = rest;
                Self { $($field),+ }
            }

            #[inline]
            fn store(&self, slot: &mut [u8]) {
                use $crate::value::{Value, composite::part_mut};
                let rest = slot;
                $(
                    let (mine, rest) = part_mut(rest, <$kind as Value>::BYTES);
                    Value::store(&self.$field, mine);
                )+
                let _ = rest;
            }

            #[inline]
            fn drawn(draw: $crate::draw::Draw) -> Self {
                $crate::value::composite::composite_drawn!($drawn, draw, $($field)+)
            }

            fn text(
                &self,
                keys: $crate::value::KeyText,
                f: &mut std::fmt::Formatter<'_>,
            ) -> std::fmt::Result {
                $crate::value::composite::composite_text!($text, self, keys, f, $($field $json)+)
            }

            fn json(&self, keys: $crate::value::KeyText) -> serde_json::Value {
                let mut object = serde_json::Map::new();
                $(
                    let value = $crate::value::Value::json(&self.$field, keys);
                    object.insert($json.to_owned(), value);
                )+
                serde_json::Value::Object(object)
            }

            fn from_json(json: &serde_json::Value) -> std::result::Result<Self, String> {
                use $crate::value::{Value, composite};
                let object = composite::object(json, &[$($json),+])?;
                Ok(Self {
                    $($field: composite::member(object, $json, <$kind as Value>::from_json)?,)+
                })
            }
        }
    };
}
pub(crate) use composite;

/// The text of a composite.
macro_rules! composite_text {
    (listed, $self:ident, $keys:ident, $f:ident, $($field:ident $json:literal)+) => {{
        let mut is_first = true;
        $(
            $crate::value::composite::separate(&mut is_first, $f)?;
            write!($f, concat!($json, " {}"), $crate::value::ValueText(&$self.$field, $keys))?;
        )+
        Ok(())
    }};
    ($written:ident, $self:ident, $keys:ident, $f:ident, $($rest:tt)+) => {
        $written(*$self, $keys, $f)
    };
}
pub(crate) use composite_text;

/// The draw of a composite.
macro_rules! composite_drawn {
    (each, $draw:ident, $($field:ident)+) => {{
        let mut number = 0;
        let mut next = || {
            number += 1;
            $draw.part(number)
        };
        Self { $($field: $crate::value::Value::drawn(next())),+ }
    }};
    ($drawn:ident, $draw:ident, $($rest:tt)+) => {
        $drawn($draw)
    };
}
pub(crate) use composite_drawn;

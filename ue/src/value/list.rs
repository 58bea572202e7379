//! Bounded lists: a count, then room for the maximum number of items.

use std::fmt;

use serde_json::Value as Json;

use super::composite::part;
use super::{KeyText, Value, ValueText, front, is_zero, kind_of};

/// The error of a list that can have `most` items.
#[inline]
pub(crate) fn check<T: Value>(slot: &[u8], most: usize) -> Result<(), &'static str> {
    let (count, items) = part(slot, 1);
    let [count] = front(count);
    let count = usize::from(count);
    if count == 0 || count > most {
        return Err("has no item, or more than have a place");
    }
    let (used, unused) = part(items, count * T::BYTES);
    for item in used.chunks_exact(T::BYTES) {
        T::check(item)?;
    }
    if is_zero(unused) { Ok(()) } else { Err("has bytes after its last item") }
}

/// The bytes of each item.
pub(crate) fn items(slot: &[u8], bytes: usize) -> impl Iterator<Item = &[u8]> {
    let (count, items) = part(slot, 1);
    let [count] = front(count);
    items.chunks_exact(bytes).take(usize::from(count))
}

/// Writes a list; `false` if the list is empty or too long.
#[inline]
pub(crate) fn write<T: Value>(list: impl ExactSizeIterator<Item = T>, slot: &mut [u8]) -> bool {
    let Some((count, items)) = slot.split_first_mut() else { return false };
    let most = items.len() / T::BYTES;
    match u8::try_from(list.len()) {
        Ok(length) if length > 0 && list.len() <= most => *count = length,
        Ok(_) | Err(_) => return false,
    }
    for (item, place) in list.zip(items.chunks_exact_mut(T::BYTES)) {
        item.store(place);
    }
    true
}

pub(crate) fn text<T: Value>(
    list: impl Iterator<Item = T>,
    keys: KeyText,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    for (number, item) in list.enumerate() {
        let between = if number == 0 { "" } else { "; " };
        write!(f, "{between}{}", ValueText(&item, keys))?;
    }
    Ok(())
}

/// The items of a JSON list; at most `most` of them are looked at.
pub(crate) fn from_json<T: Value>(json: &Json, most: usize) -> Result<Vec<T>, String> {
    let list = json.as_array().ok_or_else(|| format!("give a list, not {}", kind_of(json)))?;
    if list.is_empty() || list.len() > most {
        return Err(format!("{} items: give 1 to {most}", list.len()));
    }
    list.iter().map(T::from_json).collect()
}

/// A list: its name, the type of its items, the most of them, how many a draw gives, its salt.
macro_rules! list {
    (
        $(#[$doc:meta])*
        $name:ident of $item:ty, at most $most:literal, drawn $drawn:literal, salt $salt:literal
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 1 + $most * <$item as $crate::value::Value>::BYTES]);

        impl $name {
            /// The most items.
            pub const MOST: usize = $most;

            #[doc = concat!("The list of these items, of which there are 1 to ", $most, ".")]
            ///
            /// # Errors
            /// `BadArgument`: none, or more than [`Self::MOST`].
            pub fn new(items: &[$item]) -> nearstate_model::Result<Self> {
                Self::of(items).or_else($crate::value::refused)
            }

            fn of(items: &[$item]) -> std::result::Result<Self, String> {
                let mut bytes = [0; <Self as $crate::value::Value>::BYTES];
                if $crate::value::list::write(items.iter().copied(), &mut bytes) {
                    return Ok(Self(bytes));
                }
                Err(format!(concat!("{} items are no ", stringify!($name), ": give 1 to ", $most),
                    items.len()))
            }

            /// The items.
            pub fn iter(&self) -> impl Iterator<Item = $item> + '_ {
                let bytes = <$item as $crate::value::Value>::BYTES;
                let items = $crate::value::list::items(&self.0, bytes);
                items.map(<$item as $crate::value::Value>::load)
            }
        }

        $crate::value::text_impls!($name);

        impl $crate::value::Value for $name {
            const BYTES: usize = 1 + $most * <$item as $crate::value::Value>::BYTES;
            const SALT: u64 = $salt;

            #[inline]
            fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
                $crate::value::list::check::<$item>(slot, $most)
            }

            #[inline]
            fn load(slot: &[u8]) -> Self {
                Self($crate::value::front(slot))
            }

            #[inline]
            fn store(&self, slot: &mut [u8]) {
                $crate::value::fill(slot, &self.0);
            }

            /// The first item is what the same draw gives alone.
            #[inline]
            fn drawn(draw: $crate::draw::Draw) -> Self {
                let mut bytes = [0; <Self as $crate::value::Value>::BYTES];
                let items = (0..$drawn).map(|number: u8| match number {
                    0 => <$item as $crate::value::Value>::drawn(draw),
                    _ => <$item as $crate::value::Value>::drawn(draw.part(u64::from(number))),
                });
                $crate::value::list::write(items, &mut bytes);
                Self(bytes)
            }

            fn text(
                &self,
                keys: $crate::value::KeyText,
                f: &mut std::fmt::Formatter<'_>,
            ) -> std::fmt::Result {
                $crate::value::list::text(self.iter(), keys, f)
            }

            fn json(&self, keys: $crate::value::KeyText) -> serde_json::Value {
                self.iter().map(|item| $crate::value::Value::json(&item, keys)).collect()
            }

            fn from_json(json: &serde_json::Value) -> std::result::Result<Self, String> {
                Self::of(&$crate::value::list::from_json(json, $most)?)
            }
        }
    };
}
pub(crate) use list;

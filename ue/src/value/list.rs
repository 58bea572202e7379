//! Bounded lists: a count, then slots for the maximum number of items.

use std::fmt;

use serde_json::Value as Json;

use super::composite::part;
use super::{KeyText, Value, ValueText, front, is_zero, kind_of};

/// Checks a list with at most `max` items.
#[inline]
pub(crate) fn check<T: Value>(slot: &[u8], max: usize) -> Result<(), &'static str> {
    let (count, items) = part(slot, 1);
    let [count] = front(count);
    let count = usize::from(count);
    if count == 0 || count > max {
        return Err("has no items, or too many");
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
    let max = items.len() / T::BYTES;
    match u8::try_from(list.len()) {
        Ok(length) if length > 0 && list.len() <= max => *count = length,
        Ok(_) | Err(_) => return false,
    }
    for (item, slot) in list.zip(items.chunks_exact_mut(T::BYTES)) {
        item.store(slot);
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

/// The items of a JSON list; at most `max`.
pub(crate) fn from_json<T: Value>(json: &Json, max: usize) -> Result<Vec<T>, String> {
    let list = json.as_array().ok_or_else(|| format!("give a list, not {}", kind_of(json)))?;
    if list.is_empty() || list.len() > max {
        return Err(format!("{} items: give 1 to {max}", list.len()));
    }
    list.iter().map(T::from_json).collect()
}

/// A list: its name, the type of its items, their largest number, the number that a draw gives, its
/// salt.
macro_rules! list {
    (
        $(#[$doc:meta])*
        $name:ident of $item:ty, at most $max:literal, drawn $drawn:literal, salt $salt:literal
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 1 + $max * <$item as $crate::value::Value>::BYTES]);

        impl $name {
            /// The largest number of items.
            pub const ITEMS_MAX: usize = $max;

            #[doc = concat!("A list of 1 to ", $max, " items.")]
            ///
            /// # Errors
            /// `BadArgument`: none, or more than [`Self::ITEMS_MAX`].
            pub fn new(items: &[$item]) -> nearstate_model::Result<Self> {
                Self::of(items).or_else($crate::value::refused)
            }

            fn of(items: &[$item]) -> std::result::Result<Self, String> {
                let mut bytes = [0; <Self as $crate::value::Value>::BYTES];
                if $crate::value::list::write(items.iter().copied(), &mut bytes) {
                    return Ok(Self(bytes));
                }
                Err(format!(concat!("a ", stringify!($name), " of {} items: give 1 to ", $max),
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
            const BYTES: usize = 1 + $max * <$item as $crate::value::Value>::BYTES;
            const SALT: u64 = $salt;

            #[inline]
            fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
                $crate::value::list::check::<$item>(slot, $max)
            }

            #[inline]
            fn load(slot: &[u8]) -> Self {
                Self($crate::value::front(slot))
            }

            #[inline]
            fn store(&self, slot: &mut [u8]) {
                $crate::value::fill(slot, &self.0);
            }

            /// The first item is the value of the same draw.
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
                Self::of(&$crate::value::list::from_json(json, $max)?)
            }
        }
    };
}
pub(crate) use list;

//! A list that mostly has one value, and then needs no allocation.

use std::ops::Deref;
use std::{iter, slice, vec};

/// Values, of which there is mostly one.
#[derive(Clone, Debug)]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// Any other number; also one that was alone in a vector.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// No value.
    pub const NONE: Self = Self::Many(Vec::new());

    /// Adds a value behind the others.
    pub fn push(&mut self, value: T) {
        match std::mem::replace(self, Self::NONE) {
            Self::One(first) => *self = Self::Many(vec![first, value]),
            Self::Many(none) if none.is_empty() => *self = Self::One(value),
            Self::Many(mut values) => {
                values.push(value);
                *self = Self::Many(values);
            }
        }
    }

    /// The same number of other values, in the same order.
    pub fn map<U>(self, mut each: impl FnMut(T) -> U) -> OneOrMany<U> {
        match self {
            Self::One(value) => OneOrMany::One(each(value)),
            Self::Many(values) => OneOrMany::Many(values.into_iter().map(each).collect()),
        }
    }
}

impl<T> Deref for OneOrMany<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(value) => slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

impl<T: PartialEq> PartialEq for OneOrMany<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for OneOrMany<T> {}

impl<T> From<Vec<T>> for OneOrMany<T> {
    fn from(values: Vec<T>) -> Self {
        Self::Many(values)
    }
}

impl<T> FromIterator<T> for OneOrMany<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut values = values.into_iter();
        let (first, second) = (values.next(), values.next());
        match (first, second) {
            (None, _) => Self::NONE,
            (Some(first), None) => Self::One(first),
            (Some(first), Some(second)) => {
                Self::Many(iter::once(first).chain(iter::once(second)).chain(values).collect())
            }
        }
    }
}

impl<'l, T> IntoIterator for &'l OneOrMany<T> {
    type Item = &'l T;
    type IntoIter = slice::Iter<'l, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> IntoIterator for OneOrMany<T> {
    type Item = T;
    type IntoIter = iter::Chain<std::option::IntoIter<T>, vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Self::One(value) => (Some(value), Vec::new()),
            Self::Many(values) => (None, values),
        };
        one.into_iter().chain(many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_values_that_were_added_however_many_they_are() {
        for count in 0..5_usize {
            let values: Vec<usize> = (0..count).collect();
            let collected: OneOrMany<usize> = (0..count).collect();
            let mut pushed = OneOrMany::NONE;
            (0..count).for_each(|value| pushed.push(value));
            let from = OneOrMany::from(values.clone());
            for list in [collected, pushed, from] {
                assert_eq!(*list, *values);
                assert_eq!(list.iter().count(), (&list).into_iter().count());
                assert_eq!(list.clone().into_iter().collect::<Vec<_>>(), values);
                let doubled: Vec<_> = values.iter().map(|value| value * 2).collect();
                assert_eq!(list.map(|value| value * 2), OneOrMany::from(doubled));
            }
        }
        assert!(matches!((0..1).collect(), OneOrMany::One(0)), "one value is not allocated");
    }
}

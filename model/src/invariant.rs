//! Assertions that stay on in every build.
//!
//! An invariant is a condition that this process itself has established. A violation is a bug, so
//! it panics: the operation does not return, and nothing that follows is acknowledged. Bytes in
//! shared memory, in a file or on a socket are never the subject of an invariant, because another
//! process can write them. Those are parsed, and give an error.

use std::fmt;

/// Panics with a message if a condition does not hold. With a message alone it always panics, and
/// has the type `!`.
///
/// ```
/// use nearstate_model::invariant;
///
/// let locks = [1, 2, 3];
/// invariant!(locks.is_sorted(), "locks are taken in ascending order");
/// let Some(first) = locks.first() else { invariant!("a plan of {} locks is empty", locks.len()) };
/// assert_eq!(*first, 1);
/// ```
#[macro_export]
macro_rules! invariant {
    ($message:literal $(, $argument:expr)* $(,)?) => {
        $crate::invariant::violated(::core::format_args!($message $(, $argument)*))
    };
    ($condition:expr, $message:literal $(, $argument:expr)* $(,)?) => {
        if !$condition {
            $crate::invariant::violated(::core::format_args!($message $(, $argument)*));
        }
    };
}

/// Reports a violated invariant. Called by [`crate::invariant!`].
///
/// # Panics
/// Always.
#[cold]
#[inline(never)]
#[track_caller]
pub fn violated(message: fmt::Arguments<'_>) -> ! {
    panic!("invariant violated: {message}")
}

/// The value of an option that an invariant guarantees to be `Some`.
///
/// # Panics
/// If it is `None`. `what` names the violated invariant.
#[inline]
#[track_caller]
pub fn guaranteed<T>(value: Option<T>, what: &str) -> T {
    match value {
        Some(value) => value,
        None => violated(format_args!("{what}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invariant_that_holds_has_no_effect() {
        crate::invariant!(1 + 1 == 2, "sum");
        assert_eq!(guaranteed(Some(7), "a value"), 7);
    }

    #[test]
    #[should_panic(expected = "invariant violated: 3 of 2")]
    fn a_violated_invariant_panics_with_its_message() {
        let (have, most) = (3, 2);
        crate::invariant!(have <= most, "{have} of {most}");
    }

    #[test]
    #[should_panic(expected = "invariant violated: an entry was pushed")]
    fn a_missing_value_panics_with_the_invariant() {
        guaranteed(None::<u8>, "an entry was pushed");
    }
}

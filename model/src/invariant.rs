//! Assertions that are always on: a case that cannot happen is a bug of ours, and stops this
//! session before it acknowledges anything further. It never affects another process.

use std::fmt;

/// Panics with the message if the condition does not hold.
///
/// Use it for what our own code guarantees. Bytes read from shared memory, disk or the network are
/// untrusted: they give an [`Error`](crate::Error).
///
/// ```should_panic
/// let (children, table) = (3, 2);
/// nearstate_model::invariant!(children == table, "{children} children, {table} in the table");
/// ```
#[macro_export]
macro_rules! invariant {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::invariant::violated(::core::format_args!($($message)+));
        }
    };
}

/// Panics: an invariant does not hold.
///
/// # Panics
/// Always.
#[cold]
#[inline(never)]
#[track_caller]
pub fn violated(message: fmt::Arguments<'_>) -> ! {
    panic!("invariant violated: {message}");
}

/// The value that an invariant guarantees to be there.
///
/// # Panics
/// If there is none; `what` says which invariant is violated.
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
    fn an_invariant_that_holds_costs_nothing_and_says_nothing() {
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

//! Errors with a text, whose arguments are those of `format!`. The macros come before all modules.

/// The user has asked for something that cannot be done.
macro_rules! bad_argument {
    ($($text:tt)+) => { nearstate_model::Error::BadArgument { detail: format!($($text)+) } };
}

/// A program or a store that is measured has failed.
macro_rules! backend_error {
    ($($text:tt)+) => { nearstate_model::Error::Backend { detail: format!($($text)+) } };
}

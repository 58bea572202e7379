//! Errors as texts that say what was done.

use std::fmt::Display;

pub(crate) trait ErrorContext<T> {
    /// Turns an error into a text that begins with `what`.
    fn context(self, what: impl Display) -> Result<T, String>;
}

impl<T, E: Display> ErrorContext<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Result<T, String> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

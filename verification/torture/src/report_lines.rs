//! The lines of a report: a name and a value each.

use std::fmt::Write as _;

/// True if the crash points are built in.
pub(crate) const HAS_POINTS: bool = cfg!(feature = "crash-points");

/// One line for each name and value.
pub(crate) fn table(lines: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut text = String::new();
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<30} {value}");
    }
    text
}

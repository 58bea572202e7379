//! The C header: what lies in `capi/include` must be what the code says.
//!
//! The generator is a test of crate `nearstate-capi` (`tests/integration/header.rs`), so that only
//! that crate pays for it: it fails if the two differ, and writes the header if [`WRITE`] is set.

use crate::finding::Finding;
use crate::run;
use std::path::Path;

const SETTINGS: &str = "capi/cbindgen.toml";
const WRITE: &str = "NEARSTATE_HEADER_WRITE";
const WORDS: &[&str] =
    &["test", "--quiet", "--package", "nearstate-capi", "--test", "integration", "header::"];

/// Compares the header with the code.
pub(crate) fn check(root: &Path) -> Result<(Vec<Finding>, String), String> {
    if !root.join(SETTINGS).is_file() {
        return Ok((Vec::new(), format!("no C face yet ({SETTINGS} is not there)")));
    }
    run::show(run::cargo().args(WORDS).env_remove(WRITE).current_dir(root))
        .map_err(|why| format!("{why}: run `cargo xtask header --write` and commit the header"))?;
    Ok((Vec::new(), "one header".to_owned()))
}

/// Writes the header anew.
pub(crate) fn write(root: &Path) -> Result<(), String> {
    if !root.join(SETTINGS).is_file() {
        return Err(format!("{SETTINGS} is not there: the C face is not built yet"));
    }
    run::show(run::cargo().args(WORDS).env(WRITE, "1").current_dir(root))
}

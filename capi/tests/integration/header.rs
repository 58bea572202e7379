//! The generated files are current: `src/status.rs` is generated from `model/src/error.rs`, and
//! `include/nearstate.h` from this crate. With `NEARSTATE_HEADER_WRITE=1` the test writes both
//! (`cargo xtask header --write`).

mod catalogue;

use std::fs;
use std::path::{Path, PathBuf};

const ADVICE: &str = "run `cargo xtask header --write` and commit the result";

fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Compares a file with its expected text, or writes it.
fn compare(path: &Path, text: &str) {
    if std::env::var_os("NEARSTATE_HEADER_WRITE").is_some_and(|word| word == "1") {
        fs::write(path, text).expect("the file can be written");
    }
    let current = read(path);
    let differs = current.lines().zip(text.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| current.lines().count().min(text.lines().count())) + 1;
    assert!(current == text, "{}:{line}: the file is not current: {ADVICE}", path.display());
}

/// One test, because the header is generated from the table.
#[test]
fn the_status_table_and_the_header_are_current() {
    let folder = crate_folder();
    let status = folder.join("src/status.rs");
    let catalogue = read(&folder.join("../model/src/error.rs"));
    let entries = catalogue::entries(&catalogue, &read(&status));
    compare(&status, &catalogue::table(&entries));

    let settings = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("settings");
    let mut header = Vec::new();
    cbindgen::Builder::new()
        .with_config(settings)
        .with_src(folder.join("src/lib.rs"))
        .generate()
        .expect("a header")
        .write(&mut header);
    let header = String::from_utf8(header).expect("text");
    compare(&folder.join("include/nearstate.h"), &header);
}

#[test]
fn a_new_error_gets_a_new_number_and_existing_numbers_do_not_change() {
    let old = "pub enum Error {\n    /// One.\n    One,\n    /// Two.\n    Two {\n        \
               /// X.\n        bytes: usize,\n    },\n}\n";
    let first = catalogue::entries(old, "");
    let table = catalogue::table(&first);
    assert!(table.contains("NS_ONE = 16,") && table.contains("NS_TWO = 17,"), "{table}");
    let new = old.replace("    /// One.", "    /// Half.\n    OneHalf,\n    /// One.");
    let table = catalogue::table(&catalogue::entries(&new, &table));
    for line in ["NS_ONE = 16,", "NS_TWO = 17,", "NS_ONE_HALF = 18,"] {
        assert!(table.contains(line), "{table}");
    }
    assert!(table.contains("Error::Two { .. } => Self::NS_TWO,"), "{table}");
    assert!(table.contains("Error::OneHalf => Self::NS_ONE_HALF,"), "{table}");
}

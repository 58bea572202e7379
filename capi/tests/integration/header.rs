//! What is generated is what the code says: `src/status.rs` is the catalogue of
//! `model/src/error.rs`, and `include/nearstate.h` is the functions of this crate. With
//! `NEARSTATE_HEADER_WRITE=1` both are written anew (`cargo xtask header --write`).

mod catalogue;

use std::fs;
use std::path::{Path, PathBuf};

const ADVICE: &str = "run `cargo xtask header --write` and commit what it wrote";

fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Compares a file with what it should be, or writes it.
fn hold(path: &Path, text: &str) {
    if std::env::var_os("NEARSTATE_HEADER_WRITE").is_some_and(|word| word == "1") {
        fs::write(path, text).expect("the file can be written");
    }
    let there = read(path);
    let differs = there.lines().zip(text.lines()).position(|(there, made)| there != made);
    let line = differs.unwrap_or_else(|| there.lines().count().min(text.lines().count())) + 1;
    assert!(there == text, "{}:{line}: not what the code says: {ADVICE}", path.display());
}

/// One test, because the header is made of the table.
#[test]
fn the_table_and_the_header_are_what_the_code_says() {
    let folder = crate_folder();
    let status = folder.join("src/status.rs");
    let catalogue = read(&folder.join("../model/src/error.rs"));
    let answers = catalogue::answers(&catalogue, &read(&status));
    hold(&status, &catalogue::table(&answers));

    let settings = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("settings");
    let mut header = Vec::new();
    cbindgen::Builder::new()
        .with_config(settings)
        .with_src(folder.join("src/lib.rs"))
        .generate()
        .expect("a header")
        .write(&mut header);
    let header = String::from_utf8(header).expect("text");
    hold(&folder.join("include/nearstate.h"), &header);
}

#[test]
fn a_new_failure_gets_a_new_number_and_the_old_ones_keep_theirs() {
    let old = "pub enum Error {\n    /// One.\n    One,\n    /// Two.\n    Two {\n        \
               /// X.\n        bytes: usize,\n    },\n}\n";
    let first = catalogue::answers(old, "");
    let table = catalogue::table(&first);
    assert!(table.contains("NS_ONE = 16,") && table.contains("NS_TWO = 17,"), "{table}");
    let new = old.replace("    /// One.", "    /// Half.\n    OneHalf,\n    /// One.");
    let table = catalogue::table(&catalogue::answers(&new, &table));
    for line in ["NS_ONE = 16,", "NS_TWO = 17,", "NS_ONE_HALF = 18,"] {
        assert!(table.contains(line), "{table}");
    }
    assert!(table.contains("Error::Two { .. } => Self::NS_TWO,"), "{table}");
    assert!(table.contains("Error::OneHalf => Self::NS_ONE_HALF,"), "{table}");
}

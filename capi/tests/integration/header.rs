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

/// The comment before the declaration of a function.
fn doc_of<'h>(header: &'h str, function: &str) -> &'h str {
    let at = header.find(&format!(" {function}(")).unwrap_or_else(|| panic!("no {function}"));
    let before = header.get(..at).expect("a position in the text");
    let begin = before.rfind("/**").expect("a documented function");
    before.get(begin..).expect("a position in the text")
}

#[test]
fn each_rule_that_a_function_names_is_in_the_header() {
    let header = read(&crate_folder().join("include/nearstate.h"));
    let rules: Vec<u32> =
        (1..20).filter(|rule| header.contains(&format!("\n * {rule}. "))).collect();
    let last = rules.last().copied().expect("the header has rules");
    assert_eq!(rules, (1..=last).collect::<Vec<u32>>());
    for (at, _) in header.match_indices("rule ") {
        let rest = header.get(at + 5..).expect("a position in the text");
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let is_known = number.parse().map_or(true, |number: u32| number <= last);
        assert!(is_known, "the header names rule {number}, and has {last}");
    }
    let count = ["five", "six", "seven", "eight"][last as usize - 5];
    let readme = read(&crate_folder().join("../clients/c/README.md"));
    assert!(readme.contains(&format!("with {count} rules at its top")), "the README of C");
}

/// Statuses after which the commit was made, and refusals of a cluster and of limits.
#[test]
fn calls_that_commit_name_what_their_commit_can_return() {
    let header = read(&crate_folder().join("include/nearstate.h"));
    let made = ["NS_NOT_REPLICATED", "NS_LOST", "NS_OUTCOME_UNKNOWN"];
    let refused = ["NS_NOT_OWNER", "NS_FENCED", "NS_BEHIND", "NS_TRANSACTION_TOO_LARGE"];
    for function in ["ns_put", "ns_delete", "ns_patch", "ns_txn_commit"] {
        let doc = doc_of(&header, function);
        for status in made.iter().chain(&refused) {
            assert!(doc.contains(status), "{function} does not name {status}");
        }
    }
    for function in ["ns_put", "ns_patch", "ns_txn_commit", "ns_counter_add"] {
        assert!(doc_of(&header, function).contains("NS_LIMIT_REACHED"), "{function}");
    }
    for (function, same) in [
        ("ns_put_if_absent", "as `ns_put`"),
        ("ns_put_if_version", "as `ns_put`"),
        ("ns_put_if_value", "as `ns_put`"),
        ("ns_put_with_metadata", "as `ns_put`"),
        ("ns_put_keeping_metadata", "as `ns_put_with_metadata`"),
        ("ns_patch_if_absent", "as `ns_patch`"),
        ("ns_patch_if_version", "as `ns_patch`"),
        ("ns_delete_if_version", "as\n * `ns_delete`"),
        ("ns_delete_if_value", "as `ns_delete`"),
        ("ns_record_for_update_put", "as `ns_put`"),
        ("ns_record_for_update_patch", "as `ns_patch`"),
        ("ns_transact", "`ns_txn_commit`"),
    ] {
        assert!(doc_of(&header, function).contains(same), "{function} does not fail {same}");
    }
    for function in
        ["ns_view_release", "ns_record_for_update_release", "ns_txn_commit", "ns_txn_abort"]
    {
        assert!(doc_of(&header, function).contains("NS_SESSION_BUSY"), "{function}");
    }
}

//! The rules for each file: size, opening comment, leftovers, mode, places of `unsafe`, retired
//! words, links. And for all files together: no type name with two meanings, and enough assertions
//! in `memory` and `store`.

mod rust_file;
mod invariants;
mod retired;
mod type_names;
mod pages;
mod any_file;
mod machine;
mod exceptions;

use crate::finding::Finding;
use crate::workspace;
use exceptions::Exceptions;
use invariants::AssertionRates;
use retired::RetiredWords;
use std::fs;
use std::path::Path;
use type_names::TypeNames;

/// Checks every file of the workspace at `root`. Also says what was seen.
pub(crate) fn check(root: &Path) -> Result<(Vec<Finding>, String), String> {
    let files = workspace::files(root)?;
    let members = workspace::members(root)?;
    let mut exceptions = Exceptions::read(root);
    let places = machine::Places::of(root);
    let retired = RetiredWords::read(root);
    let mut type_names = TypeNames::default();
    let mut rates = AssertionRates::default();
    let mut findings = retired.errors();
    for name in &files {
        findings.extend(any_file::check(root, name, &mut exceptions));
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        findings.extend(any_file::check_words(name, &text));
        findings.extend(places.check(name, &text));
        findings.extend(retired.check(name, &text));
        match any_file::extension(name) {
            "rs" => {
                findings.extend(rust_file::check(name, &text, &mut exceptions));
                type_names.collect(&members, name, &text);
                rates.collect(name, &text);
            }
            "md" => findings.extend(pages::check(root, name, &text, &mut exceptions)),
            _ => {}
        }
    }
    for member in &members {
        findings.extend(rust_file::check_roots(root, member, &exceptions));
    }
    findings.extend(type_names.check(root));
    findings.extend(rates.check());
    findings.extend(exceptions.unused());
    findings.sort();
    let (exceptions, types) = (exceptions.count(), type_names.count());
    Ok((findings, format!("{} files, {types} types, {exceptions} exceptions", files.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::Planted;
    use std::fmt::Write as _;
    use std::os::unix::fs::PermissionsExt;

    const EXCEPTIONS: &str = "xtask/exceptions.txt";

    fn workspace() -> Planted {
        Planted::workspace(&[("model", &[]), ("memory", &[])])
    }

    fn found(planted: &Planted) -> Vec<String> {
        let (findings, _) = check(planted.root()).unwrap();
        findings.iter().map(|f| format!("{}:{}: {}", f.file, f.line, f.what)).collect()
    }

    /// The only finding, which must begin with this.
    #[track_caller]
    fn assert_only(planted: &Planted, begins: &str) {
        let found = found(planted);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(begins), "{found:?}");
    }

    fn lines(count: usize) -> String {
        format!("//! Long.\n{}", "// line\n".repeat(count - 1))
    }

    #[test]
    fn a_tidy_workspace_has_no_findings() {
        assert_eq!(found(&workspace()), Vec::<String>::new());
    }

    #[test]
    fn a_file_without_an_opening_is_found() {
        let planted = workspace();
        planted.file("model/src/words.rs", "// Not an opening.\n");
        assert_only(&planted, "model/src/words.rs:1: the file does not open with `//!`");
    }

    #[test]
    fn a_file_of_601_lines_is_found_and_one_of_600_is_not() {
        let planted = workspace();
        planted.file("model/src/fits.rs", &lines(600));
        planted.file("model/src/long.rs", &lines(601));
        assert_only(&planted, "model/src/long.rs:601: 601 lines");
    }

    #[test]
    fn a_line_of_101_columns_is_found() {
        let planted = workspace();
        let wide = format!("//! Wide.\n// {}é\n// {}\n", "x".repeat(96), "x".repeat(98));
        planted.file("model/src/wide.rs", &wide);
        assert_only(&planted, "model/src/wide.rs:3: 101 columns");
    }

    #[test]
    fn a_function_of_71_lines_is_found() {
        let planted = workspace();
        let mut text = "//! Long.\nfn fits() {\n".to_owned();
        text.push_str(&"    a();\n".repeat(70));
        write!(text, "}}\nfn long() {{\n{}}}\n", "    a();\n\n".repeat(71)).unwrap();
        planted.file("model/src/words.rs", &text);
        assert_only(&planted, "model/src/words.rs:74: `long` has 71 lines");
    }

    #[test]
    fn an_exception_is_a_ratchet() {
        let planted = workspace();
        planted.file("model/src/long.rs", &lines(610));
        planted.file(EXCEPTIONS, "# why\nlines model/src/long.rs 610 a table of one subject\n");
        assert_eq!(found(&planted), Vec::<String>::new());
        planted.file("model/src/long.rs", &lines(611));
        assert_only(&planted, "model/src/long.rs:611: 611 lines, and its exception allows 610");
        planted.file("model/src/long.rs", &lines(605));
        assert_only(&planted, "xtask/exceptions.txt:2: allows 610, and 605 are needed");
        planted.file("model/src/long.rs", &lines(600));
        assert_only(&planted, "xtask/exceptions.txt:2: no longer needed");
    }

    #[test]
    fn an_exception_without_a_reason_is_found() {
        let planted = workspace();
        planted.file("model/src/long.rs", &lines(610));
        planted.file(EXCEPTIONS, "lines model/src/long.rs 610\n");
        let found = found(&planted);
        assert!(found.iter().any(|f| f.starts_with("xtask/exceptions.txt:1: not an")), "{found:?}");
    }

    #[test]
    fn unsafe_outside_its_places_is_found() {
        let planted = workspace();
        let text = "//! Words.\n// unsafe in a comment\nfn f() { unsafe { g() } }\n";
        planted.file("memory/src/words.rs", text);
        planted.file("model/src/words.rs", text);
        assert_only(&planted, "model/src/words.rs:3: `unsafe`");
    }

    #[test]
    fn an_exception_for_unsafe_points_to_a_decision() {
        let planted = workspace();
        planted.file("model/src/words.rs", "//! Words.\nfn f() { unsafe { g() } }\n");
        planted.file("model/src/lib.rs", "//! A crate.\n#![deny(unsafe_code)]\n");
        planted.file(EXCEPTIONS, "unsafe model/src/words.rs 1 because it is fine\n");
        assert_only(&planted, "xtask/exceptions.txt:1: names no page of docs/decisions");
        planted.file(EXCEPTIONS, "unsafe model/src/words.rs 1 docs/decisions/009-it.md\n");
        assert_only(&planted, "xtask/exceptions.txt:1: docs/decisions/009-it.md is not there");
        planted.file("docs/decisions/009-it.md", "It.\n");
        assert_eq!(found(&planted), Vec::<String>::new());
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_is_found() {
        let planted = workspace();
        planted.file("memory/src/lib.rs", "//! May be unsafe.\n");
        planted.file("model/src/lib.rs", "//! May not.\n");
        assert_only(&planted, "model/src/lib.rs:1: the crate does not forbid unsafe code");
    }

    #[test]
    fn leftovers_are_found() {
        let planted = workspace();
        let mark = ["FIX", "ME"].concat();
        let mut text = format!("//! Words.\n// {mark}: later\n// a{mark}, XXXX\n");
        writeln!(text, "fn f() {{ {}(1) }}", ["dbg", "!"].concat()).unwrap();
        planted.file("model/src/words.rs", &text);
        let found = found(&planted);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("model/src/words.rs:2"), "{found:?}");
        assert!(found[1].starts_with("model/src/words.rs:4"), "{found:?}");
    }

    #[test]
    fn wrong_modes_are_found() {
        let planted = workspace();
        planted.file("go.sh", "#!/bin/sh\n");
        assert_only(&planted, "go.sh:1: begins with `#!` and cannot be started");
        let mode = |name: &str, mode| {
            let path = planted.root().join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode("go.sh", 0o755);
        assert_eq!(found(&planted), Vec::<String>::new());
        mode("Cargo.toml", 0o755);
        assert_only(&planted, "Cargo.toml:1: marked as a program");
    }

    #[test]
    fn a_link_is_found() {
        let planted = workspace();
        std::os::unix::fs::symlink("Cargo.toml", planted.root().join("link.toml")).unwrap();
        assert_only(&planted, "link.toml:1: a symbolic link");
    }

    #[test]
    fn large_and_unknown_files_are_found() {
        let planted = workspace();
        planted.bytes("large.txt", &vec![b'a'; 256 * 1024]);
        assert_only(&planted, "large.txt:1: 262144 bytes");
        planted.file("large.txt", "small\n");
        planted.file("thing.exe", "");
        assert_only(&planted, "thing.exe:1: a kind of file");
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let planted = workspace();
        let home = ["see /ho", "me/user/x"].concat();
        let here = planted.root().display().to_string();
        planted.file("a.md", &format!("{home}\nfine: a/ho\nat {here}/x\n"));
        let found = found(&planted);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.md:1: "), "{found:?}");
        assert!(found[1].starts_with("a.md:3: "), "{found:?}");
    }
}

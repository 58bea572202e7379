//! One name, one meaning: two crates define a type with the same name, or one crate defines two
//! types with it that other modules see, only if `xtask/shared_names.txt` says what it means in
//! both. xtask itself is not part of the product, and is not read.

use crate::finding::Finding;
use crate::rust_source::{self, each_level, line_of, word};
use crate::workspace::Member;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const LIST: &str = "xtask/shared_names.txt";

/// The crate that is not read.
const OUTSIDE: &str = "xtask";

/// The words that begin the definition of a type.
const DEFINES: &[&str] = &["struct", "enum", "union", "trait", "type"];

/// Where a type is defined.
struct Definition {
    member: String,
    file: String,
    line: usize,
    /// Other modules of its crate see it.
    is_visible: bool,
}

/// The types of all crates by name, associated types and tests excluded.
#[derive(Default)]
pub(crate) struct TypeNames {
    defined: BTreeMap<String, Vec<Definition>>,
}

impl TypeNames {
    /// Collects the types that one Rust source file of a crate defines. Integration tests and
    /// examples are not read: their names meet nothing else.
    pub(crate) fn collect(&mut self, members: &[Member], name: &str, text: &str) {
        let is_in =
            |folder: &str| name.strip_prefix(folder).is_some_and(|r| r.starts_with("/src/"));
        let Some(member) = members.iter().find(|member| is_in(&member.folder)) else { return };
        let is_test = name.ends_with("/tests.rs") || name.contains("/tests/");
        if is_test || member.folder == OUTSIDE {
            return;
        }
        let Ok(tokens) = rust_source::tokens(text) else { return };
        let tokens = rust_source::without_tests(tokens);
        let level: Vec<_> = tokens.into_iter().collect();
        self.collect_level(&member.folder, name, &level);
    }

    /// Reads the items of one level and of the modules that are written inside it. Functions,
    /// implementations and traits are left out: what they define is not visible beside them.
    fn collect_level(&mut self, member: &str, file: &str, level: &[proc_macro2::TokenTree]) {
        for (at, token) in level.iter().enumerate() {
            let Some(first) = word(Some(token)).map(ToString::to_string) else { continue };
            let Some(second) = word(level.get(at + 1)).map(ToString::to_string) else { continue };
            if first == "mod"
                && let Some(body) =
                    rust_source::group(level.get(at + 2), proc_macro2::Delimiter::Brace)
            {
                let mut inner = Vec::new();
                each_level(&body.stream(), &mut |tokens| {
                    if inner.is_empty() {
                        inner = tokens.to_vec();
                    }
                });
                self.collect_level(member, file, &inner);
            }
            if DEFINES.contains(&first.as_str()) {
                self.defined.entry(second).or_default().push(Definition {
                    member: member.to_owned(),
                    file: file.to_owned(),
                    line: line_of(token),
                    is_visible: is_visible(level, at),
                });
            }
        }
    }

    /// Names that two crates define, or two modules of one crate for others, and that the list does
    /// not explain; and entries of the list that are not needed.
    pub(crate) fn check(&self, root: &Path) -> Vec<Finding> {
        let text = fs::read_to_string(root.join(LIST)).unwrap_or_default();
        let mut findings = Vec::new();
        let mut shared = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_once(' ') {
                Some((name, meaning)) if !meaning.trim().is_empty() => {
                    shared.insert(name, index + 1);
                }
                Some(_) | None => {
                    let advice = "write `NAME what it means in every crate`";
                    findings.push(Finding::new(LIST, index + 1, "not an entry", advice));
                }
            }
        }
        for (name, definitions) in &self.defined {
            let Some((first, other)) = same_name(definitions) else { continue };
            if shared.remove(name.as_str()).is_none() {
                let what = format!(
                    "the type `{name}` is also defined in {} (line {})",
                    other.file, other.line
                );
                let advice = format!(
                    "qualify one of them by its subject; if both mean the same, say so in {LIST}"
                );
                findings.push(Finding::new(&first.file, first.line, what, advice));
            }
        }
        for (name, line) in shared {
            let what = format!("`{name}` is not defined twice");
            findings.push(Finding::new(LIST, line, what, "delete the line"));
        }
        findings
    }

    /// How many names there are.
    pub(crate) fn count(&self) -> usize {
        self.defined.len()
    }
}

/// True if the definition whose first word is at `at` has a `pub` of any kind before it.
fn is_visible(level: &[proc_macro2::TokenTree], at: usize) -> bool {
    let is_pub = |back: usize| {
        let token = at.checked_sub(back).and_then(|before| level.get(before));
        word(token).is_some_and(|ident| ident == "pub")
    };
    let is_restricted = at.checked_sub(1).is_some_and(|before| {
        rust_source::group(level.get(before), proc_macro2::Delimiter::Parenthesis).is_some()
    });
    is_pub(1) || is_restricted && is_pub(2)
}

/// The first definition of a name that another one contradicts: of another crate, or of another
/// file of the same crate if other modules see both. Two of one file are alternatives (`cfg`).
fn same_name(definitions: &[Definition]) -> Option<(&Definition, &Definition)> {
    definitions.iter().enumerate().find_map(|(at, first)| {
        let later = definitions.get(at + 1..)?;
        let other = later.iter().find(|other| {
            other.member != first.member
                || other.file != first.file && other.is_visible && first.is_visible
        })?;
        Some((first, other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::Planted;
    use crate::workspace;

    fn found(store: &str, node: &str, list: &str) -> Vec<String> {
        let planted = Planted::workspace(&[("store", &[]), ("node", &[])]);
        planted.file(LIST, list);
        let members = workspace::members(planted.root()).unwrap();
        let mut names = TypeNames::default();
        names.collect(&members, "store/src/lib.rs", store);
        names.collect(&members, "node/src/lib.rs", node);
        names.check(planted.root()).iter().map(|f| format!("{}: {}", f.file, f.what)).collect()
    }

    #[test]
    fn a_name_of_two_crates_is_found() {
        let found = found("//! A.\npub struct Entry;", "mod a { enum Entry {} }", "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("store/src/lib.rs: the type `Entry` is also"), "{found:?}");
    }

    #[test]
    fn a_name_of_two_modules_of_a_crate_is_found_if_others_see_both() {
        let of_store = |other: &str| {
            let planted = Planted::workspace(&[("store", &[])]);
            let members = workspace::members(planted.root()).unwrap();
            let mut names = TypeNames::default();
            let first = "pub(crate) struct Part; #[cfg(a)] pub struct A; #[cfg(b)] pub struct A;";
            names.collect(&members, "store/src/first.rs", first);
            names.collect(&members, "store/src/other.rs", other);
            names.check(planted.root()).iter().map(|f| f.what.clone()).collect::<Vec<_>>()
        };
        let both = ["the type `Part` is also defined in store/src/other.rs (line 1)"];
        assert_eq!(of_store("pub(super) enum Part {}"), both);
        assert_eq!(of_store("pub struct Part;"), both);
        assert_eq!(of_store("struct Part;"), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_is_explained_is_not_found() {
        let list = "# why\nError what an operation of the crate fails with\n";
        assert_eq!(found("enum Error {}", "struct Error;", list), Vec::<String>::new());
    }

    #[test]
    fn tests_and_the_inside_of_functions_and_impls_do_not_count() {
        let store = "struct A; impl Iterator for A { type Item = u8; } fn f() { struct B; }";
        let node = "struct C; impl Iterator for C { type Item = u8; } struct B;\n\
                    #[cfg(test)] mod tests { struct A; }";
        assert_eq!(found(store, node, ""), Vec::<String>::new());
    }

    #[test]
    fn an_entry_that_is_not_needed_is_found() {
        let found = found("struct A;", "struct B;", "A the same\nB\n");
        assert_eq!(found.len(), 2, "{found:?}");
    }
}

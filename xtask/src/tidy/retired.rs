//! Retired words: names and phrases that a standard term has replaced (`xtask/retired_words.txt`).
//!
//! | kind | where it is searched |
//! |---|---|
//! | `name` | an identifier of Rust or C code, whole: `Seat` does not match `SeatCount` |
//! | `part` | a part of an identifier between underscores or capitals: `herd` matches `HerdSize` |
//! | `phrase` | any text: comments, messages, pages. Whole words, in any case |
//!
//! A `name` that some folders still have is rejected elsewhere: `| except FOLDER ..` follows it.

use crate::finding::Finding;
use crate::rust_source;
use crate::tidy::any_file::extension;
use proc_macro2::TokenTree;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const LIST: &str = "xtask/retired_words.txt";

/// Files that name retired words on purpose: the list, and the table of renamed names.
const EXEMPT: &[&str] = &[LIST, "CHANGELOG.md"];

/// Kinds of files that are read for phrases.
const PROSE: &[&str] =
    &["rs", "md", "toml", "txt", "c", "h", "cpp", "hpp", "sh", "py", "go", "java", "html", "css"];

/// What replaces a name, and the folders that still have it.
struct RetiredName {
    replacement: String,
    except: Vec<String>,
}

/// The retired words, with what replaces each.
pub(crate) struct RetiredWords {
    names: BTreeMap<String, RetiredName>,
    parts: BTreeMap<String, String>,
    phrases: Vec<(String, String)>,
    errors: Vec<Finding>,
}

impl RetiredWords {
    /// Reads the list of the workspace at `root`. Without the file, no word is retired.
    pub(crate) fn read(root: &Path) -> Self {
        let text = fs::read_to_string(root.join(LIST)).unwrap_or_default();
        let mut words = Self {
            names: BTreeMap::new(),
            parts: BTreeMap::new(),
            phrases: Vec::new(),
            errors: Vec::new(),
        };
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = line.split_once('|').and_then(|(left, replacement)| {
                let (kind, word) = left.trim().split_once(' ')?;
                Some((kind, word.trim().to_owned(), replacement.trim().to_owned()))
            });
            match parsed {
                Some(("name", word, replacement)) => {
                    words.names.insert(word, RetiredName::parse(&replacement));
                }
                Some(("part", word, replacement)) => {
                    words.parts.insert(word, replacement);
                }
                Some(("phrase", word, replacement)) => {
                    words.phrases.push((word.to_lowercase(), replacement));
                }
                Some(_) | None => {
                    let advice = "write `KIND WORD | REPLACEMENT`, KIND one of name, part, phrase";
                    words.errors.push(Finding::new(LIST, index + 1, "not an entry", advice));
                }
            }
        }
        words
    }

    /// Lines of the list that cannot be read.
    pub(crate) fn errors(&self) -> Vec<Finding> {
        self.errors.clone()
    }

    /// Retired words in one file.
    pub(crate) fn check(&self, name: &str, text: &str) -> Vec<Finding> {
        let extension = extension(name);
        if EXEMPT.contains(&name) || !PROSE.contains(&extension) {
            return Vec::new();
        }
        let mut findings = self.check_phrases(name, text);
        if extension == "rs"
            && let Ok(tokens) = rust_source::tokens(text)
        {
            rust_source::each_level(&tokens, &mut |level| {
                for token in level {
                    if let TokenTree::Ident(ident) = token {
                        let line = rust_source::line_of(token);
                        findings.extend(self.check_identifier(name, line, &ident.to_string()));
                    }
                }
            });
        }
        findings
    }

    fn check_phrases(&self, name: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for (phrase, replacement) in &self.phrases {
                if is_whole_in(&lower, phrase) {
                    let what = format!("the retired phrase `{phrase}`");
                    findings.push(Finding::new(name, index + 1, what, advice(replacement)));
                }
            }
        }
        findings
    }

    fn check_identifier(&self, name: &str, line: usize, identifier: &str) -> Option<Finding> {
        let whole = self.names.get(identifier).filter(|retired| !retired.is_excepted(name));
        let replacement = whole
            .map(|retired| &retired.replacement)
            .or_else(|| parts_of(identifier).iter().find_map(|part| self.parts.get(part)))?;
        let what = format!("the retired name `{identifier}`");
        Some(Finding::new(name, line, what, advice(replacement)))
    }
}

impl RetiredName {
    fn parse(text: &str) -> Self {
        let (replacement, folders) = text.split_once("| except ").unwrap_or((text, ""));
        Self {
            replacement: replacement.trim().to_owned(),
            except: folders.split_whitespace().map(str::to_owned).collect(),
        }
    }

    fn is_excepted(&self, file: &str) -> bool {
        self.except.iter().any(|folder| Path::new(file).starts_with(folder))
    }
}

fn advice(replacement: &str) -> String {
    format!("use `{replacement}` ({LIST})")
}

/// Whether `line` contains `phrase`, and not as a part of longer words.
fn is_whole_in(line: &str, phrase: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(phrase).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + phrase.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// The parts of an identifier, in lower case: `NearRing` and `near_ring` have `near` and `ring`.
fn parts_of(identifier: &str) -> BTreeSet<String> {
    let mut parts = BTreeSet::new();
    for word in identifier.split('_') {
        let mut part = String::new();
        let mut was_lower = false;
        for letter in word.chars() {
            if letter.is_uppercase() && was_lower {
                parts.insert(std::mem::take(&mut part));
            }
            was_lower = letter.is_lowercase() || letter.is_numeric();
            part.extend(letter.to_lowercase());
        }
        parts.insert(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::Planted;

    fn found(name: &str, text: &str) -> Vec<String> {
        let planted = Planted::new();
        planted.file(
            LIST,
            "# why\nname Seat | Worker\npart herd | ClientPool\nphrase in between | inside\n",
        );
        let words = RetiredWords::read(planted.root());
        words.check(name, text).iter().map(|f| format!("{}:{}", f.line, f.what)).collect()
    }

    #[test]
    fn a_retired_name_is_found_as_a_whole_identifier() {
        assert_eq!(found("a.rs", "struct Seat;"), ["1:the retired name `Seat`"]);
        assert_eq!(found("a.rs", "struct SeatCount; fn seat() {}"), Vec::<String>::new());
    }

    #[test]
    fn a_retired_name_is_found_outside_the_folders_that_still_have_it() {
        let planted = Planted::new();
        planted.file(LIST, "name turn | step | except node/src/peer cluster\n");
        let words = RetiredWords::read(planted.root());
        let found = |name| words.check(name, "let turn = 1;").len();
        assert_eq!(["node/src/peer/group.rs", "cluster/src/a.rs"].map(found), [0, 0]);
        assert_eq!(["node/src/peers.rs", "store/src/a.rs"].map(found), [1, 1]);
        let advice = &words.check("store/src/a.rs", "let turn = 1;")[0].advice;
        assert!(advice.starts_with("use `step` ("), "{advice}");
    }

    #[test]
    fn a_retired_part_is_found_in_both_cases() {
        assert_eq!(
            found("a.rs", "fn herd_size() -> Herd {}\nstruct ShepherdDog;"),
            ["1:the retired name `herd_size`", "1:the retired name `Herd`"]
        );
    }

    #[test]
    fn a_retired_phrase_is_found_in_code_and_pages() {
        assert_eq!(found("a.rs", "// 64 In between\n"), ["1:the retired phrase `in between`"]);
        assert_eq!(
            found("a.md", "upin betweenside\nin between."),
            ["2:the retired phrase `in between`"]
        );
        assert_eq!(found("a.csv", "in between"), Vec::<String>::new());
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_found() {
        let planted = Planted::new();
        planted.file(LIST, "name Seat\nword x | y\n");
        assert_eq!(RetiredWords::read(planted.root()).errors().len(), 2);
    }
}

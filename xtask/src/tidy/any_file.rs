//! What every file must keep to: its kind, size and mode, the width of its lines, no leftovers.

use super::exceptions::Exceptions;
use crate::finding::Finding;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const BYTES_MAX: u64 = 256 * 1024;
const COLUMNS_MAX: usize = 100;

/// Kinds of text that the workspace is made of.
const EXTENSIONS: &[&str] = &[
    "rs", "toml", "lock", "md", "txt", // the workspace itself
    "c", "h", "cpp", "hpp", "in", "pc", "sh", // the C face, and what starts things
    "py", "go", "mod", "sum", "mjs", // clients
    "json", "yaml", "yml", "csv", "xml", // contracts and the machines that tests carry
    "html", "css", "js", "svg",  // the report
    "java", // the front door of Apache Geode
];

/// Files that are known by their name.
const NAMES: &[&str] =
    &["LICENSE", "NOTICE", ".gitignore", ".gitattributes", "Makefile", ".ci/run"];

/// Kinds that are code, whose lines have a bound. Generated headers keep it too.
const CODE: &[&str] = &["rs", "c", "h", "cpp", "hpp", "sh", "java"];

/// Words that mark unfinished work. Written in two halves, so that this file has none.
const LEFTOVERS: &[&str] =
    &[concat!("FIX", "ME"), concat!("TO", "DO"), concat!("X", "XX"), concat!("dbg", "!")];

/// The part of a file's name after its last dot; nothing if there is none.
pub(crate) fn extension(name: &str) -> &str {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// Checks a file's kind, size and mode.
pub(crate) fn check(root: &Path, name: &str, exceptions: &mut Exceptions) -> Vec<Finding> {
    let path = root.join(name);
    let Ok(facts) = fs::symlink_metadata(&path) else { return Vec::new() };
    let mut findings = Vec::new();
    let mut say = |what: String, advice: &str| {
        findings.push(Finding::new(name, 1, what, advice));
    };
    if facts.is_symlink() {
        say("a symbolic link".to_owned(), "put the file itself there, or name it where it is used");
        return findings;
    }
    if facts.is_dir() {
        say("another repository inside this one".to_owned(), "take it out with `git rm --cached`");
        return findings;
    }
    let base = name.rsplit('/').next().unwrap_or(name);
    let is_named = NAMES.contains(&name) || NAMES.contains(&base);
    if !is_named && !EXTENSIONS.contains(&extension(name)) {
        let advice = "remove it, or enter its kind in EXTENSIONS of xtask/src/tidy/any_file.rs";
        say("a kind of file that the workspace does not know".to_owned(), advice);
    }
    let bytes = facts.len();
    if bytes >= BYTES_MAX && exceptions.allow("bytes", name, bytes).is_none_or(|most| bytes > most)
    {
        let advice = "make it where it is needed, or give it a line with the reason in \
                      xtask/exceptions.txt";
        say(format!("{bytes} bytes, and the limit is less than {BYTES_MAX}"), advice);
    }
    let is_program = facts.permissions().mode() & 0o111 != 0;
    match (is_script(&path), is_program) {
        (true, false) => {
            say("begins with `#!` and cannot be started".to_owned(), "run `chmod 755` on it");
        }
        (false, true) => {
            say("marked as a program and does not begin with `#!`".to_owned(), "run `chmod 644`");
        }
        (true, true) | (false, false) => {}
    }
    findings
}

fn is_script(path: &Path) -> bool {
    let mut first = [0; 3];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first == *b"#!/"
}

/// Checks a file's text: leftovers, and the width of code.
pub(crate) fn check_words(name: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_code = CODE.contains(&extension(name));
    for (index, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if is_code && columns > COLUMNS_MAX {
            let what = format!("{columns} columns, and the limit is {COLUMNS_MAX}");
            findings.push(Finding::new(name, index + 1, what, "break the line"));
        }
        for word in LEFTOVERS.iter().filter(|word| is_word_of(line, word)) {
            let advice = "do it now, or write in docs/decisions why it is not done";
            findings.push(Finding::new(name, index + 1, format!("a leftover `{word}`"), advice));
        }
    }
    findings
}

/// Does the line hold this word, not as a part of a longer one?
fn is_word_of(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(is_part) && (word.ends_with('!') || !after.is_some_and(is_part))
    })
}

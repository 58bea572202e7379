//! `xtask/exceptions.txt`: files and functions above the limits, their sizes, and the reasons.
//!
//! A number there may only fall: a file that grows past its own exception fails the gate, and one
//! that shrinks asks for the smaller number.

use crate::finding::Finding;
use std::fs;
use std::path::Path;

const FILE: &str = "xtask/exceptions.txt";
const KINDS: &[&str] = &["lines", "function", "unsafe", "bytes"];

/// The lines of the file.
pub(crate) struct Exceptions {
    entries: Vec<Entry>,
    faults: Vec<Finding>,
}

struct Entry {
    line: usize,
    kind: String,
    subject: String,
    allowed: u64,
    /// The largest amount that a check asked for; `None` if no check asked.
    needed: Option<u64>,
}

impl Exceptions {
    /// Reads the exceptions of the workspace at `root`; none where there is no such file.
    pub(crate) fn read(root: &Path) -> Self {
        let text = fs::read_to_string(root.join(FILE)).unwrap_or_default();
        let mut read = Self { entries: Vec::new(), faults: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(first) = words.first().filter(|word| !word.starts_with('#')) else { continue };
            let number = words.get(2).and_then(|word| word.parse().ok());
            let (Some(subject), Some(allowed), Some(_)) = (words.get(1), number, words.get(3))
            else {
                read.fault(line_number, "not an exception");
                continue;
            };
            if !KINDS.contains(first) {
                read.fault(line_number, "not a kind of exception");
                continue;
            }
            if *first == "unsafe" {
                read.check_decision(root, line_number, words.get(3..).unwrap_or_default());
            }
            let (kind, subject) = ((*first).to_owned(), (*subject).to_owned());
            read.entries.push(Entry { line: line_number, kind, subject, allowed, needed: None });
        }
        read
    }

    fn fault(&mut self, line: usize, what: &str) {
        let advice =
            format!("write `KIND SUBJECT NUMBER reason`, KIND one of {}", KINDS.join(", "));
        self.faults.push(Finding::new(FILE, line, what, advice));
    }

    fn check_decision(&mut self, root: &Path, line: usize, reason: &[&str]) {
        let page = reason.iter().find(|word| word.starts_with("docs/decisions/"));
        let what = match page {
            None => "names no page of docs/decisions".to_owned(),
            Some(page) if !root.join(page).is_file() => format!("{page} is not there"),
            Some(_) => return,
        };
        let advice = "unsafe outside memory and capi needs a decision page with its argument";
        self.faults.push(Finding::new(FILE, line, what, advice));
    }

    /// The size that an exception allows for a subject. Records the use of the exception.
    pub(crate) fn allow(&mut self, kind: &str, subject: &str, needed: u64) -> Option<u64> {
        let is_it = |entry: &&mut Entry| entry.kind == kind && entry.subject == subject;
        let entry = self.entries.iter_mut().find(is_it)?;
        entry.needed = entry.needed.max(Some(needed));
        Some(entry.allowed)
    }

    /// Is any subject with this beginning excepted?
    pub(crate) fn has(&self, kind: &str, beginning: &str) -> bool {
        self.entries.iter().any(|entry| entry.kind == kind && entry.subject.starts_with(beginning))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Lines that are invalid, that are no longer needed, or that allow more than is needed.
    pub(crate) fn unused(&self) -> Vec<Finding> {
        let mut findings = self.faults.clone();
        for entry in &self.entries {
            let found = match entry.needed {
                None => ("no longer needed".to_owned(), "delete the line".to_owned()),
                Some(needed) if needed < entry.allowed => (
                    format!("allows {}, and {needed} are needed", entry.allowed),
                    format!("write {needed}: an exception may only shrink"),
                ),
                Some(_) => continue,
            };
            findings.push(Finding::new(FILE, entry.line, found.0, found.1));
        }
        findings
    }
}

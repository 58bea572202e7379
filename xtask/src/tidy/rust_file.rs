//! Rules for Rust files: the opening, sizes, and places of `unsafe`.

use super::exceptions::Exceptions;
use crate::finding::Finding;
use crate::rust_source;
use crate::workspace::Member;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// The folders whose crates may say `unsafe`.
const UNSAFE_IN: &[&str] = &["memory", "capi"];

/// Checks one Rust file.
pub(crate) fn check(name: &str, text: &str, exceptions: &mut Exceptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !text.starts_with("//!") {
        let what = "the file does not open with `//!`";
        let advice = "say in its first lines what it is and what it promises";
        findings.push(Finding::new(name, 1, what, advice));
    }
    let lines = text.lines().count();
    if let Some(what) = too_many(lines, LINES_MAX, exceptions, ("lines", name)) {
        let advice = "split it by subject, or give it a line with the reason in \
                      xtask/exceptions.txt";
        findings.push(Finding::new(name, lines, format!("{lines} lines{what}"), advice));
    }
    match rust_source::tokens(text) {
        Ok(tokens) => {
            findings.extend(check_functions(name, &tokens, exceptions));
            findings.extend(check_unsafe(name, &tokens, exceptions));
        }
        Err(what) => findings.push(Finding::new(name, 1, what, "run cargo check")),
    }
    findings
}

/// What to say if there are more than `bound` and more than an exception allows.
fn too_many(
    count: usize,
    bound: usize,
    exceptions: &mut Exceptions,
    (kind, subject): (&str, &str),
) -> Option<String> {
    if count <= bound {
        return None;
    }
    match exceptions.allow(kind, subject, count as u64) {
        Some(allowed) if count as u64 <= allowed => None,
        Some(allowed) => Some(format!(", and its exception allows {allowed}")),
        None => Some(format!(", and the limit is {bound}")),
    }
}

fn check_functions(
    name: &str,
    tokens: &proc_macro2::TokenStream,
    exceptions: &mut Exceptions,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for function in rust_source::functions(tokens) {
        let subject = format!("{name}::{}", function.name);
        let key = ("function", subject.as_str());
        if let Some(what) = too_many(function.lines, FUNCTION_LINES_MAX, exceptions, key) {
            let what = format!("`{}` has {} lines of code{what}", function.name, function.lines);
            let advice = format!(
                "name its phases and call them, or add `function {subject} {} reason` to \
                 xtask/exceptions.txt",
                function.lines
            );
            findings.push(Finding::new(name, function.line, what, advice));
        }
    }
    findings
}

fn check_unsafe(
    name: &str,
    tokens: &proc_macro2::TokenStream,
    exceptions: &mut Exceptions,
) -> Vec<Finding> {
    if UNSAFE_IN.iter().any(|folder| is_in(name, folder)) {
        return Vec::new();
    }
    let mut lines: BTreeMap<usize, usize> = BTreeMap::new();
    rust_source::each_level(tokens, &mut |level| {
        for token in level {
            if rust_source::word(Some(token)).is_some_and(|word| word == "unsafe") {
                *lines.entry(rust_source::line_of(token)).or_default() += 1;
            }
        }
    });
    let Some(what) = too_many(lines.values().sum(), 0, exceptions, ("unsafe", name)) else {
        return Vec::new();
    };
    let what = format!("`unsafe` outside {}{what}", UNSAFE_IN.join(" and "));
    let advice = "move the operation into crate memory behind a safe function";
    lines.keys().map(|line| Finding::new(name, *line, what.clone(), advice)).collect()
}

/// Checks that the roots of a crate forbid unsafe code, unless the crate may have it.
pub(crate) fn check_roots(root: &Path, member: &Member, exceptions: &Exceptions) -> Vec<Finding> {
    if UNSAFE_IN.contains(&member.folder.as_str()) {
        return Vec::new();
    }
    let is_excepted = exceptions.has("unsafe", &format!("{}/", member.folder));
    let wanted = if is_excepted { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
    let mut findings = Vec::new();
    for file in &member.roots {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        if !text.lines().any(|line| line.trim() == wanted) {
            let what = "the crate does not forbid unsafe code";
            let advice = format!("write `{wanted}` below the opening comment");
            findings.push(Finding::new(file, 1, what, advice));
        }
    }
    findings
}

fn is_in(name: &str, folder: &str) -> bool {
    name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

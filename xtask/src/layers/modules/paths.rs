//! The paths that a module's tokens name, as names from the crate's root.

use crate::rust_source::{each_level, group, is_mark, line_of, word};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeMap;

/// A use of something in the same crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// The names from the crate's root; a final `*` is left out.
    pub parts: Vec<String>,
    /// The line of the last name.
    pub line: usize,
    /// True for a macro call. Macros are at the root, independent of their file.
    pub is_macro: bool,
    /// The name that a `use` gives to it.
    name: String,
}

/// Every path that begins with `crate::` or `super::`, seen from the module at `here`.
pub(crate) fn used(stream: &TokenStream, here: &[String]) -> Vec<Path> {
    let mut found = Vec::new();
    each_level(stream, &mut |level| {
        for (at, token) in level.iter().enumerate() {
            let before = |steps: usize| at.checked_sub(steps).and_then(|index| level.get(index));
            let is_inside = is_mark(before(1), ':') && is_mark(before(2), ':');
            let is_visibility = word(before(1)).is_some_and(|word| word == "in");
            if is_inside || is_visibility || !is_step(level, at + 1) {
                continue;
            }
            match word(Some(token)).map(ToString::to_string).as_deref() {
                Some("crate") => names(level, at + 3, &[], &mut found),
                Some("super") => {
                    let (at, start) = climb(level, at, here);
                    names(level, at, start, &mut found);
                }
                Some(_) | None => {}
            }
        }
    });
    found
}

/// The words that a module's `use` lines take from elsewhere in the crate: name here -> path.
pub(crate) fn taken(
    stream: &TokenStream,
    here: &[String],
    children: &[String],
) -> BTreeMap<String, Vec<String>> {
    let level: Vec<TokenTree> = stream.clone().into_iter().collect();
    let mut found = Vec::new();
    for (at, token) in level.iter().enumerate() {
        if word(Some(token)).is_none_or(|word| word != "use") {
            continue;
        }
        match word(level.get(at + 1)).map(ToString::to_string).as_deref() {
            Some("crate") => names(&level, at + 4, &[], &mut found),
            Some("self") => names(&level, at + 4, here, &mut found),
            Some("super") => {
                let (at, start) = climb(&level, at + 1, here);
                names(&level, at, start, &mut found);
            }
            Some(first) if children.iter().any(|child| child == first) => {
                names(&level, at + 1, here, &mut found);
            }
            Some(_) | None => {}
        }
    }
    found.into_iter().map(|path| (path.name, path.parts)).collect()
}

/// Whether `::` is at this position.
fn is_step(level: &[TokenTree], at: usize) -> bool {
    is_mark(level.get(at), ':') && is_mark(level.get(at + 1), ':')
}

/// Follows `super::super::` from `at`: the index after it, and the module it leads to.
fn climb<'a>(level: &[TokenTree], mut at: usize, mut here: &'a [String]) -> (usize, &'a [String]) {
    while word(level.get(at)).is_some_and(|word| word == "super") && is_step(level, at + 1) {
        here = here.split_last().map_or(&[], |(_, parent)| parent);
        at += 3;
    }
    (at, here)
}

/// Collects the paths that begin at `at`, each with the prefix `start`.
fn names(level: &[TokenTree], mut at: usize, start: &[String], found: &mut Vec<Path>) {
    let mut parts = start.to_vec();
    let mut line = level.get(at).map_or(1, line_of);
    loop {
        if let Some(list) = group(level.get(at), Delimiter::Brace) {
            let inner: Vec<TokenTree> = list.stream().into_iter().collect();
            for entry in inner.split(|token| is_mark(Some(token), ',')) {
                if !entry.is_empty() {
                    names(entry, 0, &parts, found);
                }
            }
            return;
        }
        let Some(next) = word(level.get(at)) else { break };
        line = level.get(at).map_or(line, line_of);
        if next != "self" {
            parts.push(next.to_string());
        }
        at += 1;
        if !is_step(level, at) {
            break;
        }
        at += 2;
    }
    let is_renamed = word(level.get(at)).is_some_and(|word| word == "as");
    let given = word(level.get(at + 1)).filter(|_| is_renamed).map(ToString::to_string);
    let name = given.or_else(|| parts.last().cloned()).unwrap_or_default();
    let is_macro = is_mark(level.get(at), '!');
    found.push(Path { parts, line, is_macro, name });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust_source::tokens;

    fn parts(text: &str) -> Vec<String> {
        let here = ["a".to_owned(), "b".to_owned()];
        let found = used(&tokens(text).unwrap(), &here);
        found.iter().map(|path| path.parts.join("::")).collect()
    }

    #[test]
    fn paths_are_resolved_from_the_root() {
        assert_eq!(
            parts("use crate::x::{self, Y, z::{W as V, *}};"),
            ["x", "x::Y", "x::z::W", "x::z"]
        );
        assert_eq!(parts("fn f() -> super::T { super::super::c::g::<u8>() }"), ["a::T", "c::g"]);
        assert_eq!(parts("pub(in crate::a) fn f() {} pub(crate) mod m {}"), Vec::<String>::new());
    }

    #[test]
    fn an_import_is_known_by_its_local_name() {
        let stream = tokens("pub use below::{Word as Term, two::Other}; use std::fmt;").unwrap();
        let taken = taken(&stream, &["a".to_owned()], &["below".to_owned()]);
        let told: Vec<String> =
            taken.iter().map(|(k, v)| format!("{k}={}", v.join("::"))).collect();
        assert_eq!(told, ["Other=a::below::two::Other", "Term=a::below::Word"]);
    }
}

//! Rust sources as tokens: comments gone, strings closed, every token with its line.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::str::FromStr;

/// Tokens of a source text. The error says why it is not Rust.
pub(crate) fn tokens(text: &str) -> Result<TokenStream, String> {
    TokenStream::from_str(text).map_err(|error| format!("not Rust: {error}"))
}

/// The line, counted from 1, on which a token begins.
pub(crate) fn line_of(token: &TokenTree) -> usize {
    token.span().start().line
}

/// The token as a word, if it is one.
pub(crate) fn word(token: Option<&TokenTree>) -> Option<&Ident> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident),
        Some(TokenTree::Group(_) | TokenTree::Punct(_) | TokenTree::Literal(_)) | None => None,
    }
}

/// The token as a group with these brackets, if it is one.
pub(crate) fn group(token: Option<&TokenTree>, brackets: Delimiter) -> Option<&Group> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == brackets => Some(group),
        Some(_) | None => None,
    }
}

/// Is the token this mark?
pub(crate) fn is_mark(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

/// Calls `see` with the tokens of every level, outermost first.
pub(crate) fn each_level(stream: &TokenStream, see: &mut impl FnMut(&[TokenTree])) {
    let level: Vec<TokenTree> = stream.clone().into_iter().collect();
    see(&level);
    for token in &level {
        if let TokenTree::Group(inner) = token {
            each_level(&inner.stream(), see);
        }
    }
}

/// The tokens without test-only code.
pub(crate) fn without_tests(stream: TokenStream) -> TokenStream {
    let level: Vec<TokenTree> = stream.into_iter().collect();
    if is_test_file(&level) {
        return TokenStream::new();
    }
    let mut kept = Vec::with_capacity(level.len());
    let mut at = 0;
    while let Some(token) = level.get(at) {
        if is_test_attribute(&level, at) {
            at = after_item(&level, at);
            continue;
        }
        kept.push(match token {
            TokenTree::Group(inner) => {
                let mut outer = Group::new(inner.delimiter(), without_tests(inner.stream()));
                outer.set_span(inner.span());
                TokenTree::Group(outer)
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => token.clone(),
        });
        at += 1;
    }
    kept.into_iter().collect()
}

/// Does the file begin with `#![cfg(test)]`?
fn is_test_file(level: &[TokenTree]) -> bool {
    level.windows(3).any(|window| {
        is_mark(window.first(), '#')
            && is_mark(window.get(1), '!')
            && group(window.get(2), Delimiter::Bracket).is_some_and(says_test)
    })
}

/// Does `#[test]` or `#[cfg(.. test ..)]` begin here?
fn is_test_attribute(level: &[TokenTree], at: usize) -> bool {
    is_mark(level.get(at), '#')
        && group(level.get(at + 1), Delimiter::Bracket).is_some_and(says_test)
}

fn says_test(attribute: &Group) -> bool {
    let inner: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match word(inner.first()).map(ToString::to_string).as_deref() {
        Some("test") => inner.len() == 1,
        Some("cfg") => group(inner.get(1), Delimiter::Parenthesis)
            .is_some_and(|predicate| asks_for_test(&predicate.stream())),
        _ => false,
    }
}

/// Does a `cfg` predicate name `test` outside of `not(..)`?
fn asks_for_test(predicate: &TokenStream) -> bool {
    let level: Vec<TokenTree> = predicate.clone().into_iter().collect();
    let is_negated = |at: usize| {
        at.checked_sub(1).and_then(|before| word(level.get(before))).is_some_and(|w| w == "not")
    };
    level.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Ident(ident) => ident == "test",
        TokenTree::Group(inner) => !is_negated(at) && asks_for_test(&inner.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// The index after the item whose attributes begin at `at`.
fn after_item(level: &[TokenTree], mut at: usize) -> usize {
    while is_mark(level.get(at), '#') {
        at += 2;
    }
    let begins = word(level.get(at)).map(ToString::to_string).unwrap_or_default();
    let is_item = [
        "pub",
        "fn",
        "mod",
        "use",
        "struct",
        "enum",
        "union",
        "impl",
        "static",
        "const",
        "type",
        "trait",
        "unsafe",
        "async",
        "extern",
        "macro_rules",
        "let",
    ]
    .contains(&begins.as_str());
    while let Some(token) = level.get(at) {
        at += 1;
        let ends = group(Some(token), Delimiter::Brace).is_some()
            || is_mark(Some(token), ';')
            || (!is_item && is_mark(Some(token), ','));
        if ends {
            break;
        }
    }
    at
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name.
    pub name: String,
    /// Where it begins.
    pub line: usize,
    /// Lines of its body that hold code: no blank lines, no comments.
    pub lines: usize,
}

/// Every function with a body, tests and nested ones too.
pub(crate) fn functions(stream: &TokenStream) -> Vec<Function> {
    let mut found = Vec::new();
    each_level(stream, &mut |level| {
        for (at, token) in level.iter().enumerate() {
            if word(Some(token)).is_none_or(|w| w != "fn") {
                continue;
            }
            let Some(name) = word(level.get(at + 1)) else { continue };
            let rest = level.iter().skip(at + 2);
            let mut until_end = rest.take_while(|token| !is_mark(Some(token), ';'));
            if let Some(body) = until_end.find_map(|token| group(Some(token), Delimiter::Brace)) {
                let mut lines = BTreeSet::new();
                code_lines(&body.stream(), &mut lines);
                let line = line_of(token);
                found.push(Function { name: name.to_string(), line, lines: lines.len() });
            }
        }
    });
    found
}

fn code_lines(stream: &TokenStream, lines: &mut BTreeSet<usize>) {
    for token in stream.clone() {
        if let TokenTree::Group(inner) = &token {
            lines.insert(inner.span_open().start().line);
            code_lines(&inner.stream(), lines);
            lines.insert(inner.span_close().end().line);
        } else {
            lines.extend(token.span().start().line..=token.span().end().line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> String {
        without_tests(tokens(text).unwrap()).to_string()
    }

    #[test]
    fn test_only_code_is_removed() {
        let text = "use a; #[cfg(test)] mod tests { use secret; } #[cfg(all(test, loom))] \
                    #[path = \"x\"] mod more; fn f() { #[cfg(test)] hidden(); kept() }";
        let cut = cut(text);
        assert!(cut.contains("use a"), "{cut}");
        assert!(cut.contains("kept"), "{cut}");
        assert!(!cut.contains("secret") && !cut.contains("more"), "{cut}");
        assert!(!cut.contains("hidden"), "{cut}");
    }

    #[test]
    fn other_code_is_kept() {
        assert!(cut("#[cfg(not(test))] mod real;").contains("real"));
        assert!(cut("#[cfg(feature = \"test\")] mod real;").contains("real"));
        assert!(cut("struct S { #[cfg(test)] a: u8, b: u8 }").contains('b'));
    }

    #[test]
    fn a_test_only_file_is_empty() {
        assert!(cut("#![cfg(test)] fn f() {}").is_empty());
    }

    #[test]
    fn a_function_is_as_long_as_its_code() {
        let text = "fn f() {\n\n    // words\n    a();\n    b(\n        c,\n    );\n}\nfn g();\n\
                    type F = fn(u8);";
        let found = functions(&tokens(text).unwrap());
        assert_eq!(found, [Function { name: "f".to_owned(), line: 1, lines: 4 }]);
    }
}

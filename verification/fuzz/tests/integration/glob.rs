//! Glob patterns: matching always terminates and agrees with a plain recursive matcher.

use crate::fixture::config;
use nearstate_store::glob::matches;
use proptest::prelude::*;

const CASES: u32 = 50_000;

/// The same rules in the plainest form, without regard to time.
fn matches_recursively(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            matches_recursively(rest, text)
                || matches!(text, [_, left @ ..] if matches_recursively(pattern, left))
        }
        ([b'?', rest @ ..], [_, left @ ..]) => matches_recursively(rest, left),
        ([b'[', rest @ ..], [byte, left @ ..]) => {
            let (is_in, rest) = class(rest, *byte);
            is_in && matches_recursively(rest, left)
        }
        ([b'\\', literal, rest @ ..] | [literal, rest @ ..], [byte, left @ ..]) => {
            literal == byte && matches_recursively(rest, left)
        }
        _ => false,
    }
}

/// A class after its bracket, item by item.
fn class(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let (wanted, mut rest) = match pattern {
        [b'^', rest @ ..] => (false, rest),
        _ => (true, pattern),
    };
    let mut is_in = false;
    loop {
        (is_in, rest) = match rest {
            [] => return (is_in == wanted, rest),
            [b']', rest @ ..] => return (is_in == wanted, rest),
            [b'\\', one, rest @ ..] => (is_in || *one == byte, rest),
            [low, b'-', high, rest @ ..] => {
                (is_in || (low <= &byte && &byte <= high) || (high <= &byte && &byte <= low), rest)
            }
            [one, rest @ ..] => (is_in || *one == byte, rest),
        };
    }
}

/// Bytes that are special in a pattern, and few others, so that they collide.
fn special_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"**?[]^-\\abcd\x00\xff".to_vec()), 0..most)
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn a_glob_agrees_with_a_recursive_matcher(
        pattern in special_bytes(12), text in special_bytes(10)
    ) {
        prop_assert_eq!(matches(&pattern, &text), matches_recursively(&pattern, &text));
    }

    #[test]
    fn matching_any_bytes_terminates(
        pattern in prop::collection::vec(any::<u8>(), 0..80),
        text in prop::collection::vec(any::<u8>(), 0..80)
    ) {
        std::hint::black_box(matches(&pattern, &text));
    }
}

//! Globs: any pattern over any text ends, and says what a plain recursive matcher says.

use nearstate_store::glob::matches;
use proptest::prelude::*;

const CASES: u32 = 50_000;

fn config() -> ProptestConfig {
    let cases = ProptestConfig::default().cases.max(CASES);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// The same rules as slowly and plainly as they can be said.
fn plainly(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            plainly(rest, text) || matches!(text, [_, left @ ..] if plainly(pattern, left))
        }
        ([b'?', rest @ ..], [_, left @ ..]) => plainly(rest, left),
        ([b'[', rest @ ..], [byte, left @ ..]) => {
            let (is_in, rest) = class(rest, *byte);
            is_in && plainly(rest, left)
        }
        ([b'\\', literal, rest @ ..] | [literal, rest @ ..], [byte, left @ ..]) => {
            literal == byte && plainly(rest, left)
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

/// Bytes that mean something in a pattern, and few others, so that they meet.
fn telling(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"**?[]^-\\abcd\x00\xff".to_vec()), 0..most)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_glob_says_what_a_plain_matcher_says(pattern in telling(12), text in telling(10)) {
        prop_assert_eq!(matches(&pattern, &text), plainly(&pattern, &text));
    }

    #[test]
    fn any_bytes_end(
        pattern in prop::collection::vec(any::<u8>(), 0..80),
        text in prop::collection::vec(any::<u8>(), 0..80)
    ) {
        std::hint::black_box(matches(&pattern, &text));
    }
}

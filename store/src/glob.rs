//! Globs as Redis' KEYS has them (contracts of the SDL clients, `listKeys`): `*` any run, `?` any
//! byte, `[abc]`, `[a-z]`, `[^a]`, `\x` the byte x. Bytes, not characters.

/// True if the whole of `text` matches `pattern`.
///
/// Complexity: at most pattern x text steps, however many stars (a backtrack goes back to the last
/// star only).
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, text);
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        let stepped = match rest.split_first() {
            Some((b'*', after)) => {
                star = Some((after, left));
                rest = after;
                continue;
            }
            Some(_) => step(rest, left),
            None if left.is_empty() => return true,
            None => None,
        };
        if let Some(next) = stepped {
            (rest, left) = next;
            continue;
        }
        // The last star takes one byte more.
        match star {
            Some((after, from)) if !from.is_empty() => {
                let (_, shorter) = from.split_at(1);
                star = Some((after, shorter));
                (rest, left) = (after, shorter);
            }
            _ => return false,
        }
    }
}

/// Matches one item of the pattern with one byte.
fn step<'a>(pattern: &'a [u8], text: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (&byte, left) = text.split_first()?;
    let (&item, rest) = pattern.split_first()?;
    match item {
        b'?' => Some((rest, left)),
        b'[' => {
            let (is_in, rest) = class(rest, byte);
            is_in.then_some((rest, left))
        }
        b'\\' if !rest.is_empty() => {
            let (&literal, rest) = rest.split_first()?;
            (literal == byte).then_some((rest, left))
        }
        _ => (item == byte).then_some((rest, left)),
    }
}

/// A class after its bracket: whether the byte is in it, and the pattern after it. A class that is
/// not closed ends with the pattern, as in Redis.
fn class(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let (is_negated, mut rest) = match pattern.split_first() {
        Some((b'^', rest)) => (true, rest),
        _ => (false, pattern),
    };
    let mut is_in = false;
    loop {
        match rest {
            [b'\\', literal, after @ ..] => {
                is_in |= *literal == byte;
                rest = after;
            }
            [b']', after @ ..] => return (is_in != is_negated, after),
            [low, b'-', high, after @ ..] => {
                is_in |= (*low.min(high)..=*low.max(high)).contains(&byte);
                rest = after;
            }
            [one, after @ ..] => {
                is_in |= *one == byte;
                rest = after;
            }
            [] => return (is_in != is_negated, &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::matches;

    #[test]
    fn globs_match_as_redis_has_them() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("\\*x", "*x", true),
            ("\\*x", "ax", false),
            ("[abc", "a", true),
            ("*a*b*", "xxaxxbxx", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(200);
        assert!(!matches(format!("{pattern}b").as_bytes(), "a".repeat(5000).as_bytes()));
    }

    proptest! {
        #[test]
        fn any_pattern_ends(pattern in prop::collection::vec(any::<u8>(), 0..40),
                            text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = matches(&pattern, &text);
        }

        #[test]
        fn a_text_matches_itself_escaped(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let escaped: Vec<u8> = text.iter().flat_map(|b| [b'\\', *b]).collect();
            prop_assert!(matches(&escaped, &text));
        }
    }
}

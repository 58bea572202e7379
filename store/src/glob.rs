//! Globs as of Redis' KEYS (contracts of the SDL clients, `listKeys`): `*` any bytes, `?` any byte,
//! `[abc]`, `[a-z]`, `[^a]`, `\x` the byte x. Bytes, not characters.
//!
//! The stars divide a pattern into runs, each of which matches as many bytes as it has items. The
//! first run matches at the start of the text, the last at its end, and each other one at its first
//! occurrence, which leaves the most text for the runs behind it. So there is no backtracking
//! except within the search for one run, which reads the text once.

use memchr::memmem;
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;

/// The largest number of items of a run that is searched in one pass over the text: the bits of a
/// word.
pub const RUN_ITEMS_MAX: usize = 64;
const _: () = assert!(RUN_ITEMS_MAX <= u64::BITS as usize, "a run's items are bits of one word");

/// A run is compared at each position if that takes at most this many steps: a table would take
/// longer to build.
const SIMPLE_STEPS_MAX: usize = 1024;

/// A run of up to this many bytes is compared at each position of a text of any length: a table for
/// each of a thousand short runs would cost more than the comparison.
const SIMPLE_RUN_MAX: usize = 16;

/// True if the whole of `text` matches `pattern`.
///
/// Complexity: linear in the text and in the pattern, if [`is_linear`]; else at most pattern x
/// text.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (first, rest) = cut(pattern);
    let Some(mut left) = consume(first, text) else { return false };
    let Some(mut rest) = rest else { return left.is_empty() };
    loop {
        let (run, after) = cut(rest);
        let Some(after) = after else { return ends_with(run, left) };
        let Some(found) = search(run, left) else { return false };
        (left, rest) = (found, after);
    }
}

/// True if matching a text against this pattern takes time linear in both. False if a run between
/// two stars contains `?` or `[` and has more than [`RUN_ITEMS_MAX`] items. Servers check this
/// before they match keys against a pattern of an unauthenticated client.
pub fn is_linear(pattern: &[u8]) -> bool {
    let (_, mut rest) = cut(pattern);
    while let Some(left) = rest {
        let (run, after) = cut(left);
        if after.is_some() && is_wild(run) && items(run).count() > RUN_ITEMS_MAX {
            return false;
        }
        rest = after;
    }
    true
}

/// The bytes with which every matching text starts; at most the first `most` of them.
pub fn literal_begin(pattern: &[u8], most: usize) -> Vec<u8> {
    let (run, _) = cut(pattern);
    items(run).map_while(Item::literal).take(most).collect()
}

/// An item of a pattern, which matches one byte.
#[derive(Clone, Copy, Debug)]
enum Item<'p> {
    Any,
    Byte(u8),
    /// The content of the brackets.
    Class(&'p [u8]),
}

impl Item<'_> {
    /// The byte that it matches, if it matches only one.
    const fn literal(self) -> Option<u8> {
        match self {
            Self::Byte(byte) => Some(byte),
            Self::Any | Self::Class(_) => None,
        }
    }

    fn takes(self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::Byte(own) => own == byte,
            Self::Class(body) => Class::of(body).has(byte),
        }
    }
}

/// The first item of a pattern that does not start with a star, and the rest.
fn first_item(pattern: &[u8]) -> Option<(Item<'_>, &[u8])> {
    let (byte, rest) = pattern.split_first()?;
    Some(match (byte, rest.split_first()) {
        (b'?', _) => (Item::Any, rest),
        (b'[', _) => {
            let (body, rest) = cut_class(rest);
            (Item::Class(body), rest)
        }
        (b'\\', Some((literal, rest))) => (Item::Byte(*literal), rest),
        (byte, _) => (Item::Byte(*byte), rest),
    })
}

/// The items of a run.
fn items(run: &[u8]) -> impl Iterator<Item = Item<'_>> {
    let mut rest = run;
    std::iter::from_fn(move || {
        let (item, after) = first_item(rest)?;
        rest = after;
        Some(item)
    })
}

/// The run before the first star, and the rest behind that star; `None` without a star.
fn cut(pattern: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut rest = pattern;
    while let Some((byte, after)) = rest.split_first() {
        if *byte == b'*' {
            let run = pattern.get(..pattern.len() - rest.len());
            return (guaranteed(run, "the rest is the end of the pattern"), Some(after));
        }
        let Some((_, after)) = first_item(rest) else { break };
        rest = after;
    }
    (pattern, None)
}

/// The content of the brackets, and the rest behind them. An unclosed class ends with the pattern,
/// as in Redis.
fn cut_class(pattern: &[u8]) -> (&[u8], &[u8]) {
    let mut rest = pattern.strip_prefix(b"^").unwrap_or(pattern);
    loop {
        let body = || {
            let body = pattern.get(..pattern.len() - rest.len());
            guaranteed(body, "the rest is the end of the pattern")
        };
        rest = match rest {
            [b']', after @ ..] => return (body(), after),
            // The first that fits: an escape, a range, a byte.
            [b'\\', _, after @ ..] | [_, b'-', _, after @ ..] | [_, after @ ..] => after,
            [] => return (pattern, &[]),
        };
    }
}

/// The bytes that a class matches, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    words: [u64; 4],
}

impl Class {
    fn of(body: &[u8]) -> Self {
        let (is_negated, mut rest) = match body.strip_prefix(b"^") {
            Some(rest) => (true, rest),
            None => (false, body),
        };
        let mut class = Self::default();
        loop {
            rest = match rest {
                [b'\\', literal, after @ ..] => {
                    class.add(*literal, *literal);
                    after
                }
                [low, b'-', high, after @ ..] => {
                    class.add(*low.min(high), *low.max(high));
                    after
                }
                [one, after @ ..] => {
                    class.add(*one, *one);
                    after
                }
                [] => break,
            };
        }
        if is_negated {
            class.words = class.words.map(|word| !word);
        }
        class
    }

    fn add(&mut self, low: u8, high: u8) {
        for (number, word) in (0_u32..).zip(&mut self.words) {
            let (begin, end) = (number * 64, number * 64 + 63);
            let (from, to) = (u32::from(low).max(begin), u32::from(high).min(end));
            if from <= to {
                *word |= (u64::MAX >> (63 - (to - from))) << (from - begin);
            }
        }
    }

    fn has(self, byte: u8) -> bool {
        let word = *guaranteed(self.words.get(usize::from(byte / 64)), "a class has 256 bits");
        word >> (byte % 64) & 1 == 1
    }
}

/// Matches a run at the start of a text; returns the rest.
fn consume<'t>(run: &[u8], text: &'t [u8]) -> Option<&'t [u8]> {
    let mut left = text;
    for item in items(run) {
        let (byte, after) = left.split_first()?;
        if !item.takes(*byte) {
            return None;
        }
        left = after;
    }
    Some(left)
}

/// True if a text ends with a run.
fn ends_with(run: &[u8], text: &[u8]) -> bool {
    let end = text.len().checked_sub(items(run).count()).and_then(|at| text.get(at..));
    end.is_some_and(|end| consume(run, end).is_some())
}

/// True if a run has items that are not one byte each.
fn is_wild(run: &[u8]) -> bool {
    items(run).any(|item| !matches!(item, Item::Byte(_)))
}

/// Finds the first occurrence of a run in a text; returns the rest behind it.
fn search<'t>(run: &[u8], text: &'t [u8]) -> Option<&'t [u8]> {
    if run.is_empty() {
        return Some(text);
    }
    let is_short = run.len() <= SIMPLE_RUN_MAX;
    if is_short || run.len().saturating_mul(text.len()) <= SIMPLE_STEPS_MAX {
        return (0..text.len()).find_map(|at| consume(run, text.get(at..)?));
    }
    if is_wild(run) {
        return search_wild(run, text);
    }
    let literal: Vec<u8> = items(run).filter_map(Item::literal).collect();
    let at = memmem::find(text, &literal)?;
    text.get(at + literal.len()..)
}

/// Reads the text once: for each item, a bit of a word is set if the bytes so far end with the run
/// up to this item. The rest of a longer run is compared wherever its start is found.
fn search_wild<'t>(run: &[u8], text: &'t [u8]) -> Option<&'t [u8]> {
    // For each byte the items that match it.
    let mut takers = [0_u64; 256];
    let mut rest = run;
    let mut last = 0;
    for number in 0..RUN_ITEMS_MAX {
        let Some((item, after)) = first_item(rest) else { break };
        (rest, last) = (after, 1_u64 << number);
        match item {
            Item::Any => takers.iter_mut().for_each(|taker| *taker |= last),
            Item::Byte(byte) => {
                *guaranteed(takers.get_mut(usize::from(byte)), "a taker for each byte") |= last;
            }
            Item::Class(body) => {
                let class = Class::of(body);
                let taking = (0..=u8::MAX).zip(&mut takers).filter(|(byte, _)| class.has(*byte));
                taking.for_each(|(_, taker)| *taker |= last);
            }
        }
    }
    let mut found = 0;
    invariant!(last != 0, "a run with no items is no search");
    for (at, byte) in text.iter().enumerate() {
        let taker = *guaranteed(takers.get(usize::from(*byte)), "a taker for each byte");
        found = (found << 1 | 1) & taker;
        if found & last != 0
            && let Some(left) = consume(rest, text.get(at + 1..)?)
        {
            return Some(left);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The simplest implementation: each star is tried at each position. For short texts only.
    fn plainly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| plainly(rest, &text[at..])),
            Some(_) => match (first_item(pattern), text.split_first()) {
                (Some((item, rest)), Some((byte, left))) => {
                    item.takes(*byte) && plainly(rest, left)
                }
                _ => false,
            },
        }
    }

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
            ("[", "a", false),
            ("[^", "a", true),
            ("[]a", "a", false),
            ("[\\]]", "]", true),
            ("[a-]", "-", false),
            ("[*]x", "*x", true),
            ("*[*]", "a*", true),
            ("x\\", "x\\", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*ab*b", "ab", false),
            ("a*a", "a", false),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_that_were_made_to_be_slow_are_not() {
        let text = vec![b'a'; 4 << 20];
        let run = "a".repeat(4000);
        let wild = "?[ab]a[^b]".repeat(16);
        for pattern in [
            format!("{}b", "a*".repeat(2000)),
            format!("*{run}b*"),
            format!("*{wild}b*").replacen('?', "", 1),
            format!("*{}*", "[^b]*".repeat(500)) + "b",
            format!("*{}", "?a*".repeat(500)) + "b",
        ] {
            assert!(is_linear(pattern.as_bytes()), "{pattern}");
            // Pattern x text would be hours.
            assert!(!matches(pattern.as_bytes(), &text), "{pattern}");
        }
    }

    #[test]
    fn a_run_with_more_items_than_a_word_has_bits_is_found_and_known() {
        let long = "a?".repeat(40);
        let pattern = format!("*{long}*x");
        assert!(!is_linear(pattern.as_bytes()));
        let text = "b".repeat(3000) + &"ab".repeat(40);
        assert!(matches(pattern.as_bytes(), format!("{text}yx").as_bytes()));
        assert!(!matches(pattern.as_bytes(), format!("{text}y").as_bytes()));
        let without = "b".repeat(3000) + &"ab".repeat(39);
        assert!(!matches(pattern.as_bytes(), format!("{without}yx").as_bytes()));
        for linear in [format!("{long}*{long}"), format!("*{}*", "a".repeat(100)), long] {
            assert!(is_linear(linear.as_bytes()), "{linear}");
        }
    }

    #[test]
    fn a_pattern_begins_with_what_is_no_wildcard() {
        for (pattern, most, begin) in [
            ("", 9, ""),
            ("*a", 9, ""),
            ("abc", 9, "abc"),
            ("abc", 2, "ab"),
            ("a\\*b*c", 9, "a*b"),
            ("a?c", 9, "a"),
            ("a[b]c", 9, "a"),
            ("x\\", 9, "x\\"),
        ] {
            assert_eq!(literal_begin(pattern.as_bytes(), most), begin.as_bytes(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn what_matches_begins_as_the_pattern_does(
            pattern in "[ab*?\\[\\]\\\\]{0,6}", text in "[ab*\\\\\\[]{0,6}",
        ) {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            if matches(pattern, text) {
                prop_assert!(text.starts_with(&literal_begin(pattern, 9)));
            }
        }

        #[test]
        fn any_pattern_ends(pattern in prop::collection::vec(any::<u8>(), 0..40),
                            text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = matches(&pattern, &text);
        }

        #[test]
        fn the_result_equals_that_of_brute_force(
            pattern in "[ab*?\\[\\]\\^\\\\-]{0,12}", text in "[ab\\^*-]{0,10}",
        ) {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text), plainly(pattern, text));
        }

        #[test]
        fn a_run_is_found_at_the_same_place_however_it_is_searched_for(
            run in "[ab?]{1,20}", text in "[ab]{0,100}",
        ) {
            let (run, text) = (run.as_bytes(), text.as_bytes());
            let plain = (0..text.len()).find_map(|at| consume(run, &text[at..]));
            prop_assert_eq!(search_wild(run, text), plain);
            prop_assert_eq!(search(run, text), plain);
        }

        #[test]
        fn a_class_takes_what_its_bytes_say(body in "[\\^a-d\\\\-]{0,8}", byte in 0x5a..0x66_u8) {
            let listed = |body: &[u8]| {
                let mut rest = body;
                let mut is_in = false;
                while let Some((first, after)) = rest.split_first() {
                    (is_in, rest) = match (first, after) {
                        (b'\\', [one, after @ ..]) => (is_in || *one == byte, after),
                        (low, [b'-', high, after @ ..]) => {
                            let range = *low.min(high)..=*low.max(high);
                            (is_in || range.contains(&byte), after)
                        }
                        (one, _) => (is_in || *one == byte, after),
                    };
                }
                is_in
            };
            let body = body.as_bytes();
            let wanted = body.strip_prefix(b"^").map_or_else(|| listed(body), |body| !listed(body));
            prop_assert_eq!(Class::of(body).has(byte), wanted);
        }

        #[test]
        fn a_text_matches_itself_escaped(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let escaped: Vec<u8> = text.iter().flat_map(|b| [b'\\', *b]).collect();
            prop_assert!(matches(&escaped, &text));
        }
    }
}

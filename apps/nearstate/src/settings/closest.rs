//! The known name that is closest to a mistyped one.

/// Longer input is not compared: it was not meant to be a name.
const TYPED_CHARS_MAX: usize = 80;

/// Returns the name that was most likely meant: the same name in another section, or the name with
/// the smallest edit distance, if that is small.
pub(crate) fn closest<'n>(typed: &str, names: &'n [String]) -> Option<&'n str> {
    let typed: Vec<char> =
        typed.chars().take(TYPED_CHARS_MAX).flat_map(char::to_lowercase).collect();
    let start_of_last =
        |name: &[char]| name.iter().rposition(|c| *c == '.').map_or(0, |dot| dot + 1);
    let last = typed.get(start_of_last(&typed)..).unwrap_or_default();
    let allowed = (typed.len() / 3).clamp(1, 6);
    let rank = |name: &'n String| {
        let letters: Vec<char> = name.chars().flat_map(char::to_lowercase).collect();
        let letters_last = letters.get(start_of_last(&letters)..).unwrap_or_default();
        let is_same_in_section = distance(last, letters_last) == 0;
        let edits = if is_same_in_section { 0 } else { distance(&typed, &letters) };
        (edits, name.as_str())
    };
    let (edits, name) = names.iter().map(rank).min()?;
    (edits <= allowed).then_some(name)
}

/// The Levenshtein distance: insertions, deletions and replacements of letters.
fn distance(left: &[char], right: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (number, one) in (1..).zip(left) {
        let mut last = number;
        let mut next = vec![number];
        for (other, above) in right.iter().zip(row.windows(2)) {
            let &[diagonal, over] = above else { continue };
            last = (diagonal + usize::from(one != other)).min(over + 1).min(last + 1);
            next.push(last);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_and_missing_sections_are_recognized_and_other_words_are_not() {
        let names = ["listen", "cores", "limits.tcp_backlog", "limits.reply_timeout"];
        let names = names.map(str::to_owned);
        assert_eq!(closest("lissen", &names), Some("listen"));
        assert_eq!(closest("tcp_backlog", &names), Some("limits.tcp_backlog"));
        assert_eq!(closest("limit.reply_timout", &names), Some("limits.reply_timeout"));
        assert_eq!(closest("frobnicate", &names), None);
        assert_eq!(closest("", &names), None);
        assert_eq!(closest(&"x".repeat(1 << 20), &names), None);
    }
}

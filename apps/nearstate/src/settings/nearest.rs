//! The name that somebody may have meant.

/// What is longer was not meant to be a name.
const TYPED_CHARS_MAX: usize = 80;

/// The one of `names` that is nearest to what was typed: the same word in another section, or one
/// that a few slips of the pen away.
pub(crate) fn nearest<'n>(typed: &str, names: &'n [String]) -> Option<&'n str> {
    let typed: Vec<char> =
        typed.chars().take(TYPED_CHARS_MAX).flat_map(char::to_lowercase).collect();
    let own = |name: &[char]| name.iter().rposition(|c| *c == '.').map_or(0, |dot| dot + 1);
    let last = typed.get(own(&typed)..).unwrap_or_default();
    let allowed = (typed.len() / 3).clamp(1, 6);
    let judge = |name: &'n String| {
        let letters: Vec<char> = name.chars().flat_map(char::to_lowercase).collect();
        let letters_last = letters.get(own(&letters)..).unwrap_or_default();
        let elsewhere = distance(last, letters_last);
        let steps = if elsewhere == 0 { 0 } else { distance(&typed, &letters) };
        (steps, name.as_str())
    };
    let (steps, name) = names.iter().map(judge).min()?;
    (steps <= allowed).then_some(name)
}

/// How many letters must be put in, left out or replaced.
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
    fn a_slip_of_the_pen_and_a_forgotten_section_are_understood_and_nonsense_is_not() {
        let names = ["listen", "cores", "limits.backlog", "limits.unread_max"].map(str::to_owned);
        assert_eq!(nearest("lissen", &names), Some("listen"));
        assert_eq!(nearest("backlog", &names), Some("limits.backlog"));
        assert_eq!(nearest("limit.unread_mx", &names), Some("limits.unread_max"));
        assert_eq!(nearest("frobnicate", &names), None);
        assert_eq!(nearest("", &names), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), &names), None);
    }
}

//! Which namespace a key stands in: `{ns},key` is key `key` of namespace `ns`; any other key
//! stands, whole, in a namespace that no client can name (`docs/decisions/007-node.md`).

use nearstate_model::limits::NAMESPACE_NAME_BYTES_MAX;

/// The namespace of the keys that name none.
pub const PLAIN_NAMESPACE: &str = "{}";

/// A key as clients say it, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyName<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its key there.
    pub key: &'a [u8],
}

impl<'a> KeyName<'a> {
    /// Takes a key apart.
    #[inline]
    pub fn of(key: &'a [u8]) -> Self {
        match split(key) {
            Some((namespace, key)) => Self { namespace, key },
            None => Self { namespace: PLAIN_NAMESPACE, key },
        }
    }
}

/// The only namespace whose keys can match a pattern, and what of the pattern is left for its
/// keys; `None` if the pattern may match keys of several.
pub fn pattern_namespace(pattern: &[u8]) -> Option<KeyName<'_>> {
    let (namespace, key) = split(pattern)?;
    is_literal(namespace).then_some(KeyName { namespace, key })
}

/// Whether a pattern can say this namespace: its name has nothing that stands for other letters.
pub fn is_literal(namespace: &str) -> bool {
    !namespace.bytes().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
}

/// Whether a namespace that clients can name may have this name.
pub fn is_nameable(namespace: &[u8]) -> bool {
    (1..=NAMESPACE_NAME_BYTES_MAX).contains(&namespace.len())
        && !namespace.iter().any(|byte| matches!(byte, b'{' | b'}' | b',' | 0))
        && std::str::from_utf8(namespace).is_ok()
}

/// What stands before the keys of a namespace where clients say them; `None` if they cannot.
pub fn prefix_of(namespace: &str) -> Option<Vec<u8>> {
    if namespace == PLAIN_NAMESPACE {
        return Some(Vec::new());
    }
    is_nameable(namespace.as_bytes()).then(|| format!("{{{namespace}}},").into_bytes())
}

#[inline]
fn split(key: &[u8]) -> Option<(&str, &[u8])> {
    let rest = key.strip_prefix(b"{")?;
    // A longer name is none, so no more than this is searched, however long the key is.
    let end = rest.iter().take(NAMESPACE_NAME_BYTES_MAX + 1).position(|byte| *byte == b'}')?;
    let (namespace, rest) = rest.split_at_checked(end)?;
    let key = rest.strip_prefix(b"},")?;
    if !is_nameable(namespace) {
        return None;
    }
    Some((std::str::from_utf8(namespace).ok()?, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_in_the_namespace_that_it_names() {
        let long = format!("{{{}}},k", "n".repeat(256));
        for (said, namespace, key) in [
            ("{ns},a", "ns", "a"),
            ("{ns},", "ns", ""),
            ("{ns},a},b,{c}", "ns", "a},b,{c}"),
            ("{n s},x", "n s", "x"),
            ("{\u{e9}},x", "\u{e9}", "x"),
            ("a", PLAIN_NAMESPACE, "a"),
            ("", PLAIN_NAMESPACE, ""),
            ("{},a", PLAIN_NAMESPACE, "{},a"),
            ("{ns}a", PLAIN_NAMESPACE, "{ns}a"),
            ("{ns", PLAIN_NAMESPACE, "{ns"),
            ("{a,b},c", PLAIN_NAMESPACE, "{a,b},c"),
            ("{{a},c", PLAIN_NAMESPACE, "{{a},c"),
            ("{a\0},c", PLAIN_NAMESPACE, "{a\0},c"),
            (" {ns},a", PLAIN_NAMESPACE, " {ns},a"),
            (long.as_str(), PLAIN_NAMESPACE, long.as_str()),
        ] {
            let name = KeyName::of(said.as_bytes());
            assert_eq!(name, KeyName { namespace, key: key.as_bytes() }, "{said:?}");
        }
        assert_eq!(KeyName::of(b"{\xff},a").namespace, PLAIN_NAMESPACE);
        let longest = format!("{{{}}},k", "n".repeat(255));
        assert_eq!(KeyName::of(longest.as_bytes()).key, b"k");
    }

    #[test]
    fn a_pattern_is_held_to_a_namespace_only_if_that_is_literal() {
        assert_eq!(pattern_namespace(b"{ns},*").map(|name| name.key), Some(&b"*"[..]));
        for wide in ["*", "{n*},a", "{n?},a", "{[n]},a", "{n\\a},a", "[{]ns},a", "{},a"] {
            assert_eq!(pattern_namespace(wide.as_bytes()), None, "{wide}");
        }
    }
}

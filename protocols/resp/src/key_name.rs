//! Names of keys: `{ns},key` is the key `key` of the namespace `ns`. All other keys are stored
//! unchanged in a namespace that clients cannot name (`docs/decisions/007-node.md`).

use nearstate_model::limits::NAMESPACE_NAME_BYTES_MAX;

/// The namespace of the keys without a namespace.
pub const PLAIN_NAMESPACE: &str = "{}";

/// A parsed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyName<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Key in the namespace.
    pub key: &'a [u8],
}

impl<'a> KeyName<'a> {
    /// Parses a key.
    #[inline]
    pub fn of(key: &'a [u8]) -> Self {
        match split(key) {
            Some((namespace, key)) => Self { namespace, key },
            None => Self { namespace: PLAIN_NAMESPACE, key },
        }
    }
}

/// The only namespace with matching keys, and the rest of the pattern; `None` if keys of several
/// namespaces may match.
pub fn pattern_namespace(pattern: &[u8]) -> Option<KeyName<'_>> {
    let (namespace, key) = split(pattern)?;
    is_literal(namespace).then_some(KeyName { namespace, key })
}

/// Whether the namespace of a pattern is literal.
pub fn is_literal(namespace: &str) -> bool {
    !namespace.bytes().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
}

/// Whether clients can name a namespace with this name.
pub fn is_nameable(namespace: &[u8]) -> bool {
    (1..=NAMESPACE_NAME_BYTES_MAX).contains(&namespace.len())
        && !namespace.iter().any(|byte| matches!(byte, b'{' | b'}' | b',' | 0))
        && std::str::from_utf8(namespace).is_ok()
}

/// Prefix of the keys of a namespace as clients write them; `None` if clients cannot name it.
pub fn prefix_of(namespace: &str) -> Option<Vec<u8>> {
    if namespace == PLAIN_NAMESPACE {
        return Some(Vec::new());
    }
    is_nameable(namespace.as_bytes()).then(|| format!("{{{namespace}}},").into_bytes())
}

#[inline]
fn split(key: &[u8]) -> Option<(&str, &[u8])> {
    let rest = key.strip_prefix(b"{")?;
    // Limits the search: namespace names are not longer, whatever the length of the key.
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
    fn a_key_belongs_to_the_namespace_in_its_prefix() {
        let long = format!("{{{}}},k", "n".repeat(256));
        for (text, namespace, key) in [
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
            let name = KeyName::of(text.as_bytes());
            assert_eq!(name, KeyName { namespace, key: key.as_bytes() }, "{text:?}");
        }
        assert_eq!(KeyName::of(b"{\xff},a").namespace, PLAIN_NAMESPACE);
        let longest = format!("{{{}}},k", "n".repeat(255));
        assert_eq!(KeyName::of(longest.as_bytes()).key, b"k");
    }

    #[test]
    fn a_pattern_is_limited_to_a_namespace_only_if_its_prefix_is_literal() {
        assert_eq!(pattern_namespace(b"{ns},*").map(|name| name.key), Some(&b"*"[..]));
        for wide in ["*", "{n*},a", "{n?},a", "{[n]},a", "{n\\a},a", "[{]ns},a", "{},a"] {
            assert_eq!(pattern_namespace(wide.as_bytes()), None, "{wide}");
        }
    }
}

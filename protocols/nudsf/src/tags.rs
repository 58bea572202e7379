//! The tags of a meta: each name with one value or more. All texts are in one buffer, because a
//! record has ten tags or more and each write parses them.

use std::fmt;

use serde_json::{Map, Value};

use crate::plain_json::PlainJson;

/// The first byte of the names of tags and blocks that the protocol keeps for itself. Clients
/// cannot use such names.
pub(crate) const RESERVED: char = '\u{1}';

/// True for a name that clients cannot use.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// True for the name of a tag that a client writes.
pub(crate) fn is_tag_name(name: &str) -> bool {
    !name.is_empty() && !is_reserved(name)
}

/// True for a text that needs no escape in JSON. Most do not. Without an early end, several bytes
/// are examined at once.
pub(crate) fn is_plain(text: &str) -> bool {
    let is_plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    text.bytes().fold(true, |all, byte| all & is_plain(byte))
}

/// Pairs of a name and a value, ascending once they are [sorted](Self::sort).
#[derive(Clone, Default)]
pub(crate) struct MetaTags {
    text: String,
    pairs: Vec<TagPlace>,
}

/// Where a pair is: the name, and directly behind it the value.
#[derive(Clone, Copy)]
struct TagPlace {
    begin: usize,
    name_bytes: usize,
    value_bytes: usize,
}

impl TagPlace {
    fn pair(self, text: &str) -> (&str, &str) {
        let value = self.begin + self.name_bytes;
        let found = text.get(self.begin..value).zip(text.get(value..value + self.value_bytes));
        debug_assert!(found.is_some(), "a place is inside of its text");
        found.unwrap_or_default()
    }
}

impl MetaTags {
    /// Reads valid tags. `None`: they are not, or a name occurs twice, or the text is unusual.
    pub(crate) fn read(json: &mut PlainJson<'_>) -> Option<Self> {
        let (text, pairs) = (String::with_capacity(512), Vec::with_capacity(16));
        let (mut tags, mut names) = (Self { text, pairs }, 0);
        json.members(|json, name| {
            let before = tags.len();
            json.elements(|json| {
                tags.push(name, json.string()?);
                Some(())
            })?;
            names += 1;
            (is_tag_name(name) && tags.len() > before).then_some(())
        })?;
        (tags.sort() && tags.names() == names).then_some(tags)
    }

    /// True if no text needs an escape in JSON.
    pub(crate) fn is_plain(&self) -> bool {
        is_plain(&self.text)
    }

    /// Adds a pair behind all others.
    pub(crate) fn push(&mut self, name: &str, value: &str) {
        let begin = self.text.len();
        self.text.push_str(name);
        self.text.push_str(value);
        let (name_bytes, value_bytes) = (name.len(), value.len());
        self.pairs.push(TagPlace { begin, name_bytes, value_bytes });
    }

    /// Sorts the pairs by name and value. False: two are equal.
    pub(crate) fn sort(&mut self) -> bool {
        let Self { text, pairs } = self;
        pairs.sort_unstable_by(|a, b| a.pair(text).cmp(&b.pair(text)));
        self.iter().zip(self.iter().skip(1)).all(|(before, after)| before != after)
    }

    /// The number of names of sorted pairs.
    fn names(&self) -> usize {
        let mut before = None;
        self.iter().filter(|(name, _)| before.replace(*name) != Some(*name)).count()
    }

    /// All pairs.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.pairs.iter().map(|place| place.pair(&self.text))
    }

    /// The values of a tag.
    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.iter().filter(move |(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The number of pairs.
    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// As JSON: an object of arrays.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        for (name, value) in self.iter() {
            let values = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(values) = values {
                values.push(Value::from(value));
            }
        }
        object
    }
}

impl PartialEq for MetaTags {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for MetaTags {}

impl fmt::Debug for MetaTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

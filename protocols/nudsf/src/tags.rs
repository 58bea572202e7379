//! The tags of a meta: each name with one value or more. All texts are in one buffer, because a
//! record has ten tags or more and each write parses them.

use std::cmp::Ordering;
use std::fmt;

use nearstate_model::limits::{TAG_NAME_BYTES_MAX, TAG_VALUE_BYTES_MAX};
use serde_json::{Map, Value};

use crate::plain_json::PlainJson;

/// The first byte of the names of tags and blocks that the protocol keeps for itself. Clients
/// cannot use such names.
const RESERVED: u8 = 1;

/// True for a name that clients cannot use.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.as_bytes().first() == Some(&RESERVED)
}

/// True for the name of a tag that a client writes.
pub(crate) fn is_tag_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= TAG_NAME_BYTES_MAX && !is_reserved(name)
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
    /// A text needs an escape in JSON.
    is_special: bool,
}

/// Where a pair is in the text: begins and bytes.
#[derive(Clone, Copy)]
struct TagPlace {
    /// The first bytes of the name: most names differ in them.
    prefix: u64,
    name: (usize, usize),
    value: (usize, usize),
}

impl TagPlace {
    fn pair(self, text: &str) -> (&str, &str) {
        let part = |(begin, bytes): (usize, usize)| text.get(begin..begin + bytes);
        let found = part(self.name).zip(part(self.value));
        debug_assert!(found.is_some(), "a place is inside of its text");
        found.unwrap_or_default()
    }

    fn cmp(self, other: Self, text: &str) -> Ordering {
        let prefixes = self.prefix.cmp(&other.prefix);
        prefixes.then_with(|| self.pair(text).cmp(&other.pair(text)))
    }
}

/// The first eight bytes of a text, in an order of which that of texts is a refinement.
fn prefix_of(text: &str) -> u64 {
    if let Some(first) = text.as_bytes().first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    for (place, byte) in first.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    u64::from_be_bytes(first)
}

impl MetaTags {
    /// Reads valid tags. `None`: they are not, or a name occurs twice, or the text is unusual.
    pub(crate) fn read(json: &mut PlainJson<'_>) -> Option<Self> {
        let (begin, mut pairs, mut names) = (json.at(), Vec::with_capacity(16), 0);
        json.members(|json, name| {
            let (before, prefix) = (pairs.len(), prefix_of(name));
            let name_at = json.place_of(name).checked_sub(begin)?;
            json.elements(|json| {
                let value = json.string()?;
                let value_at = json.place_of(value).checked_sub(begin)?;
                let (name, value) = ((name_at, name.len()), (value_at, value.len()));
                pairs.push(TagPlace { prefix, name, value });
                (value.1 <= TAG_VALUE_BYTES_MAX).then_some(())
            })?;
            names += 1;
            (is_tag_name(name) && pairs.len() > before).then_some(())
        })?;
        // One copy: the pairs are parts of the text of the object, in which nothing is escaped.
        let text = json.text_from(begin)?.to_owned();
        let mut tags = Self { text, pairs, is_special: false };
        (tags.sort() == Some(names)).then_some(tags)
    }

    /// True if no text needs an escape in JSON.
    pub(crate) fn is_plain(&self) -> bool {
        !self.is_special
    }

    /// Appends the tags as an object of arrays, none of whose texts needs an escape. A name and its
    /// first value are copied together if the client has written them so: each write of a record
    /// makes this text for its entity tag.
    pub(crate) fn push_plain(&self, out: &mut String) {
        const BETWEEN: &str = "\":[\"";
        let part = |begin: usize, end: usize| self.text.get(begin..end).unwrap_or_default();
        let mut before: Option<&TagPlace> = None;
        out.push_str("{\"");
        for place in &self.pairs {
            let (name_end, value_end) =
                (place.name.0 + place.name.1, place.value.0 + place.value.1);
            let is_same = before.is_some_and(|before| {
                before.prefix == place.prefix
                    && part(before.name.0, before.name.0 + before.name.1)
                        == part(place.name.0, name_end)
            });
            if is_same {
                out.push_str("\",\"");
                out.push_str(part(place.value.0, value_end));
            } else {
                out.push_str(if before.is_some() { "\"],\"" } else { "" });
                if part(name_end, place.value.0) == BETWEEN {
                    out.push_str(part(place.name.0, value_end));
                } else {
                    out.push_str(part(place.name.0, name_end));
                    out.push_str(BETWEEN);
                    out.push_str(part(place.value.0, value_end));
                }
            }
            before = Some(place);
        }
        out.push_str("\"]}");
    }

    /// Adds a pair behind all others.
    pub(crate) fn push(&mut self, name: &str, value: &str) {
        let begin = self.text.len();
        self.text.push_str(name);
        self.text.push_str(value);
        self.is_special |= !(is_plain(name) && is_plain(value));
        let (prefix, name) = (prefix_of(name), (begin, name.len()));
        let value = (begin + name.1, value.len());
        self.pairs.push(TagPlace { prefix, name, value });
    }

    /// Sorts the pairs by name and value. Returns the number of names; `None`: two pairs are equal.
    pub(crate) fn sort(&mut self) -> Option<usize> {
        let Self { text, pairs, .. } = self;
        pairs.sort_unstable_by(|one, other| one.cmp(*other, text));
        let mut names = usize::from(!pairs.is_empty());
        for (before, after) in pairs.iter().zip(pairs.iter().skip(1)) {
            if before.prefix != after.prefix {
                names += 1;
                continue;
            }
            let (before, after) = (before.pair(text), after.pair(text));
            if before == after {
                return None;
            }
            names += usize::from(before.0 != after.0);
        }
        Some(names)
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

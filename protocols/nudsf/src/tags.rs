//! The tags of a meta: each name with one value or more. All texts are in one buffer, because a
//! record has ten tags or more and each write parses them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

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

/// A string of a JSON text, without a copy unless it has escapes.
#[derive(Deserialize)]
pub(crate) struct JsonText<'t>(#[serde(borrow)] pub(crate) Cow<'t, str>);

/// Reads valid tags. An error says only that they are not, or that a name occurs twice.
impl<'de> Deserialize<'de> for MetaTags {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(TagsVisitor)
    }
}

struct TagsVisitor;

impl<'de> Visitor<'de> for TagsVisitor {
    type Value = MetaTags;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tag names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MetaTags, A::Error> {
        let (text, pairs) = (String::with_capacity(512), Vec::with_capacity(16));
        let (mut tags, mut names) = (MetaTags { text, pairs }, 0);
        while let Some(JsonText(name)) = map.next_key()? {
            let before = tags.len();
            map.next_value_seed(ValuesSeed { name: &name, tags: &mut tags })?;
            names += 1;
            if !is_tag_name(&name) || tags.len() == before {
                return Err(A::Error::custom("an invalid tag"));
            }
        }
        let is_distinct = tags.sort() && tags.names() == names;
        if is_distinct { Ok(tags) } else { Err(A::Error::custom("a tag that occurs twice")) }
    }
}

/// Adds the values of an array.
struct ValuesSeed<'a> {
    name: &'a str,
    tags: &'a mut MetaTags,
}

impl<'de> DeserializeSeed<'de> for ValuesSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ValuesSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(JsonText(value)) = seq.next_element()? {
            self.tags.push(self.name, &value);
        }
        Ok(())
    }
}

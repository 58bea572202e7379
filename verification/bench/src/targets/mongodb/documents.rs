//! How records and commands are documents.
//!
//! A table is a collection. Its key is `_id`, the parts are binary fields `p0`, `p1` .., the tags
//! text fields `t0`, `t1` .. with an index each. Keys and tags are any bytes, and MongoDB orders
//! binary values by their length first. So they are texts: a byte is the letter of its number, and
//! texts are ordered as the bytes are. Bytes 0 and 1 are two letters each: some servers end a text
//! at a letter 0.

use crate::access::{Change, Entry, PARTS_MAX, Part, Parts, TAGS_MAX, TableSchema, Tag};
use bson::raw::{CStr, RawArrayBuf, RawBinaryRef, RawDocumentBuf, cstr};
use bson::spec::BinarySubtype;
use nearstate_model::{Error, Result};

use super::messages::{DOCUMENT_BYTES_MAX, too_large};

/// The database that holds all tables.
pub(super) const DATABASE: &str = "nearstate";

/// The field of the key.
pub(super) const ID: &CStr = cstr!("_id");

/// The fields of parts.
pub(super) static PARTS: [&CStr; PARTS_MAX] = [
    cstr!("p0"),
    cstr!("p1"),
    cstr!("p2"),
    cstr!("p3"),
    cstr!("p4"),
    cstr!("p5"),
    cstr!("p6"),
    cstr!("p7"),
    cstr!("p8"),
    cstr!("p9"),
    cstr!("p10"),
    cstr!("p11"),
    cstr!("p12"),
    cstr!("p13"),
    cstr!("p14"),
    cstr!("p15"),
];

/// The fields of tags.
static TAGS: [&CStr; TAGS_MAX] = [
    cstr!("t0"),
    cstr!("t1"),
    cstr!("t2"),
    cstr!("t3"),
    cstr!("t4"),
    cstr!("t5"),
    cstr!("t6"),
    cstr!("t7"),
];

/// The letter that byte 0 and byte 1 begin with.
const LOW: char = '\u{1}';

/// Bytes as a text in the same order.
#[inline]
pub(super) fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            0 => text.extend([LOW, '\u{1}']),
            1 => text.extend([LOW, '\u{2}']),
            letter => text.push(char::from(*letter)),
        }
    }
    text
}

/// The bytes of such a text.
pub(super) fn bytes_of(text: &str, bytes: &mut Vec<u8>) -> Option<()> {
    bytes.clear();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        bytes.push(match letter {
            LOW => match letters.next()? {
                '\u{1}' => 0,
                '\u{2}' => 1,
                _ => return None,
            },
            letter => u8::try_from(letter).ok().filter(|byte| *byte != 0)?,
        });
    }
    Some(())
}

/// A table, with what is the same in all of its commands.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) schema: &'static TableSchema,
    find: RawDocumentBuf,
    pub(super) update: RawDocumentBuf,
    pub(super) delete: RawDocumentBuf,
}

fn command(name: &CStr, schema: &TableSchema) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(name, schema.name);
    document.append(cstr!("$db"), DATABASE);
    document
}

/// A write is acknowledged when it is visible, and no journal is waited for: no target of the bench
/// waits for a disk.
fn write_command(name: &CStr, schema: &TableSchema) -> RawDocumentBuf {
    let mut concern = RawDocumentBuf::new();
    concern.append(cstr!("w"), 1);
    concern.append(cstr!("j"), false);
    let mut document = command(name, schema);
    document.append(cstr!("writeConcern"), concern);
    document
}

impl Place {
    pub(super) fn new(schema: &'static TableSchema) -> Result<Self> {
        if schema.parts.len() > PARTS_MAX || schema.tags.len() > TAGS_MAX {
            return Err(Error::BadArgument {
                detail: format!("table {} has more parts or tags than a table has", schema.name),
            });
        }
        let mut find = command(cstr!("find"), schema);
        find.append(cstr!("limit"), 1);
        find.append(cstr!("singleBatch"), true);
        Ok(Self {
            schema,
            find,
            update: write_command(cstr!("update"), schema),
            delete: write_command(cstr!("delete"), schema),
        })
    }

    /// Makes the collection.
    pub(super) fn create(&self) -> RawDocumentBuf {
        command(cstr!("create"), self.schema)
    }

    /// Makes the indexes; none if there are no tags. A record without a tag is in no index: else a
    /// unique one would take two of them for the same.
    pub(super) fn create_indexes(&self) -> Option<RawDocumentBuf> {
        let mut indexes = RawArrayBuf::new();
        for (rule, name) in self.schema.tags.iter().zip(TAGS) {
            let mut key = RawDocumentBuf::new();
            key.append(name, 1);
            let mut index = RawDocumentBuf::new();
            index.append(cstr!("key"), key);
            index.append(cstr!("name"), name.as_str());
            index.append(cstr!("unique"), rule.is_unique);
            index.append(cstr!("sparse"), true);
            indexes.push(index);
        }
        let mut document = command(cstr!("createIndexes"), self.schema);
        document.append(cstr!("indexes"), indexes);
        (!self.schema.tags.is_empty()).then_some(document)
    }

    fn is_all(&self, wanted: Parts) -> bool {
        (0..self.schema.parts.len()).all(|part| wanted.has(part))
    }

    /// Searches one record by its key.
    #[inline]
    pub(super) fn find_key(&self, key: &[u8], wanted: Parts) -> RawDocumentBuf {
        let mut document = self.find.clone();
        document.append(cstr!("filter"), by_key(key));
        if !self.is_all(wanted) {
            document.append(cstr!("projection"), self.projection(wanted, wanted.is_empty()));
        }
        document
    }

    /// Searches one record by a tag.
    pub(super) fn find_tag(&self, (tag, value): Tag<'_>, wanted: Parts) -> Result<RawDocumentBuf> {
        if !self.schema.tags.get(tag).is_some_and(|rule| rule.is_unique) {
            let detail = format!("tag {tag} of table {} is not unique", self.schema.name);
            return Err(Error::BadArgument { detail });
        }
        let mut filter = RawDocumentBuf::new();
        filter.append(tag_field(tag)?, text_of(value));
        let mut document = self.find.clone();
        document.append(cstr!("filter"), filter);
        if !self.is_all(wanted) {
            document.append(cstr!("projection"), self.projection(wanted, true));
        }
        Ok(document)
    }

    fn projection(&self, wanted: Parts, with_key: bool) -> RawDocumentBuf {
        let mut projection = RawDocumentBuf::new();
        projection.append(ID, i32::from(with_key));
        for (part, name) in PARTS.iter().enumerate().take(self.schema.parts.len()) {
            if wanted.has(part) {
                projection.append(name, 1);
            }
        }
        projection
    }

    /// Searches records in the order of their keys: key and first part. The batch has room for one
    /// more, so that the server sees that it has come to the end, and keeps no cursor.
    pub(super) fn scan(&self, from: &[u8], count: i32) -> RawDocumentBuf {
        let (mut least, mut filter) = (RawDocumentBuf::new(), RawDocumentBuf::new());
        least.append(cstr!("$gte"), text_of(from));
        filter.append(ID, least);
        let mut sort = RawDocumentBuf::new();
        sort.append(ID, 1);
        let mut document = command(cstr!("find"), self.schema);
        document.append(cstr!("filter"), filter);
        document.append(cstr!("sort"), sort);
        document.append(cstr!("projection"), self.projection(Parts::one(0), true));
        document.append(cstr!("limit"), count);
        document.append(cstr!("batchSize"), count.saturating_add(1));
        document
    }

    /// The next records of a cursor.
    pub(super) fn more(&self, cursor: i64) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("getMore"), cursor);
        document.append(cstr!("collection"), self.schema.name);
        document.append(cstr!("$db"), DATABASE);
        document
    }

    /// Ends a cursor.
    pub(super) fn end(&self, cursor: i64) -> RawDocumentBuf {
        let mut cursors = RawArrayBuf::new();
        cursors.push(cursor);
        let mut document = command(cstr!("killCursors"), self.schema);
        document.append(cstr!("cursors"), cursors);
        document
    }
}

/// A command that has no words.
pub(super) fn plain(name: &CStr) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(name, 1);
    document.append(cstr!("$db"), "admin");
    document
}

fn tag_field(tag: usize) -> Result<&'static CStr> {
    TAGS.get(tag).copied().ok_or_else(|| Error::BadArgument {
        detail: format!("tag {tag}: a record has {TAGS_MAX} tags at the most"),
    })
}

fn part_field(part: usize) -> Result<&'static CStr> {
    PARTS.get(part).copied().ok_or_else(|| Error::BadArgument {
        detail: format!("part {part}: a record has {PARTS_MAX} parts at the most"),
    })
}

fn by_key(key: &[u8]) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(ID, text_of(key));
    document
}

/// Lengths within a document are 32 bits wide; one that is too large is not even begun.
fn must_fit(parts: &[Part<'_>]) -> Result<()> {
    let bytes = parts.iter().fold(0_usize, |sum, (_, bytes)| sum.saturating_add(bytes.len()));
    if bytes > DOCUMENT_BYTES_MAX { Err(too_large(bytes)) } else { Ok(()) }
}

fn append_parts(document: &mut RawDocumentBuf, parts: &[Part<'_>]) -> Result<()> {
    must_fit(parts)?;
    for (part, bytes) in parts {
        let value = RawBinaryRef { subtype: BinarySubtype::Generic, bytes };
        document.append(part_field(*part)?, value);
    }
    Ok(())
}

/// One value of a tag is a text, and several are an array of them: a field stands in a document
/// once, and servers refuse it a second time or break the connection.
fn append_tags<'t>(
    document: &mut RawDocumentBuf,
    tags: &(impl Iterator<Item = Tag<'t>> + Clone),
) -> Result<()> {
    for (place, (tag, value)) in tags.clone().enumerate() {
        let same = || tags.clone().filter(|(other, _)| *other == tag);
        if tags.clone().take(place).any(|(other, _)| other == tag) {
            continue;
        }
        if same().count() == 1 {
            document.append(tag_field(tag)?, text_of(value));
            continue;
        }
        let mut values = RawArrayBuf::new();
        same().for_each(|(_, value)| values.push(text_of(value)));
        document.append(tag_field(tag)?, values);
    }
    Ok(())
}

/// Whether a tag has other values than before.
fn differs(before: &[Tag<'_>], after: &[Tag<'_>], tag: usize) -> bool {
    let of = |(other, _): &&Tag<'_>| *other == tag;
    !before.iter().filter(of).eq(after.iter().filter(of))
}

/// A record in the place of one that is there, or a new one.
#[inline]
pub(super) fn put(entry: &Entry<'_>) -> Result<RawDocumentBuf> {
    let key = by_key(entry.key);
    let mut record = key.clone();
    append_parts(&mut record, entry.parts)?;
    append_tags(&mut record, &entry.tags.iter().copied())?;
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("q"), key);
    document.append(cstr!("u"), record);
    document.append(cstr!("upsert"), true);
    Ok(document)
}

/// Whether a change changes nothing: servers refuse such a one, so the record is looked for.
pub(super) fn is_empty(change: &Change<'_>) -> bool {
    let has_tags = change.tags.is_some_and(|(before, after)| {
        before.iter().chain(after).any(|(tag, _)| differs(before, after, *tag))
    });
    change.parts.is_empty() && !has_tags
}

/// The parts and the tags that change, and nothing else.
#[inline]
pub(super) fn change(change: &Change<'_>) -> Result<RawDocumentBuf> {
    let (mut set, mut unset) = (RawDocumentBuf::new(), RawDocumentBuf::new());
    append_parts(&mut set, change.parts)?;
    if let Some((before, after)) = change.tags {
        let others = after.iter().copied().filter(|(tag, _)| differs(before, after, *tag));
        append_tags(&mut set, &others)?;
        let goes = |tag: usize| after.iter().all(|(other, _)| *other != tag);
        for tag in (0..TAGS_MAX).filter(|tag| before.iter().any(|(other, _)| other == tag)) {
            if goes(tag) {
                unset.append(tag_field(tag)?, "");
            }
        }
    }
    let mut update = RawDocumentBuf::new();
    for (name, fields) in [(cstr!("$set"), set), (cstr!("$unset"), unset)] {
        if !fields.is_empty() {
            update.append(name, fields);
        }
    }
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("q"), by_key(change.key));
    document.append(cstr!("u"), update);
    Ok(document)
}

pub(super) fn delete(key: &[u8]) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("q"), by_key(key));
    document.append(cstr!("limit"), 1);
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_ordered_as_the_bytes_are_and_lead_back_to_them() {
        let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
        for first in [0, 1, 2, 9, b'a', 0x7f, 0x80, 0xff] {
            keys.push(vec![first]);
            keys.extend([0, 1, 2, 0x80, 0xff].map(|second| vec![first, second]));
            keys.push(vec![first, 0, 0]);
        }
        keys.sort();
        let texts: Vec<_> = keys.iter().map(|key| text_of(key)).collect();
        assert!(texts.is_sorted() && texts.iter().all(|text| !text.contains('\0')));
        let mut bytes = b"left over".to_vec();
        for (key, text) in keys.iter().zip(&texts) {
            bytes_of(text, &mut bytes).unwrap();
            assert_eq!(&bytes, key);
        }
        assert_eq!(text_of(b"imsi-262011234567890"), "imsi-262011234567890");
        for bad in ["\0", "\u{1}", "\u{1}\u{3}", "\u{100}", "a\u{1}"] {
            assert_eq!(bytes_of(bad, &mut bytes), None, "{bad:?}");
        }
    }

    #[test]
    fn a_change_sets_what_differs_and_takes_away_what_is_gone() {
        let before: [Tag<'_>; 3] = [(0, b"same"), (1, b"old"), (2, b"gone")];
        let after: [Tag<'_>; 2] = [(0, b"same"), (1, b"new")];
        let parts: [Part<'_>; 1] = [(3, b"x")];
        let asked = Change { key: b"k", parts: &parts, tags: Some((&before, &after)) };
        let document = change(&asked).unwrap();
        let update = document.get_document("u").unwrap();
        let set = update.get_document("$set").unwrap();
        let names: Vec<_> = set.iter().map(|field| field.unwrap().0.as_str()).collect();
        assert_eq!(names, ["p3", "t1"]);
        assert_eq!(set.get_str("t1").unwrap(), "new");
        let unset = update.get_document("$unset").unwrap();
        assert_eq!(unset.iter().map(|field| field.unwrap().0.as_str()).collect::<Vec<_>>(), ["t2"]);
        assert!(is_empty(&Change { key: b"k", parts: &[], tags: Some((&after, &after)) }));
        assert!(is_empty(&Change { key: b"k", parts: &[], tags: None }));
        assert!(!is_empty(&asked));
    }

    /// A UE has an IPv4 address and an IPv6 prefix, and two ends of each tunnel.
    #[test]
    fn several_values_of_a_tag_are_one_field() {
        let before: [Tag<'_>; 5] = [(0, b"id"), (1, b"a"), (1, b"b"), (2, b"x"), (2, b"y")];
        let entry = Entry { key: b"k", parts: &[], tags: &before, tags_before: &[] };
        let record = put(&entry).unwrap();
        let record = record.get_document("u").unwrap();
        let names: Vec<_> = record.iter().map(|field| field.unwrap().0.as_str()).collect();
        assert_eq!(names, ["_id", "t0", "t1", "t2"]);
        let texts = |of: &bson::RawDocument, name| {
            let values = of.get_array(name).unwrap().into_iter();
            let texts = values.map(|value| value.unwrap().as_str().unwrap().to_owned());
            texts.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(record.get_str("t0").unwrap(), "id");
        assert_eq!([texts(record, "t1"), texts(record, "t2")], ["a b", "x y"]);
        // One value of two is another, and both of the other tag are gone.
        let after: [Tag<'_>; 3] = [(0, b"id"), (1, b"a"), (1, b"c")];
        let asked = Change { key: b"k", parts: &[], tags: Some((&before, &after)) };
        let document = change(&asked).unwrap();
        let update = document.get_document("u").unwrap();
        let set = update.get_document("$set").unwrap();
        assert_eq!((set.iter().count(), texts(set, "t1").as_str()), (1, "a c"));
        let unset = update.get_document("$unset").unwrap();
        assert_eq!(unset.iter().map(|field| field.unwrap().0.as_str()).collect::<Vec<_>>(), ["t2"]);
        // In another order they are the same: an update without words would replace the record.
        let turned: [Tag<'_>; 5] = [(1, b"a"), (0, b"id"), (1, b"b"), (2, b"x"), (2, b"y")];
        assert!(is_empty(&Change { key: b"k", parts: &[], tags: Some((&before, &turned)) }));
    }

    #[test]
    fn what_no_document_has_room_for_is_refused_before_it_is_written() {
        let large = vec![0; DOCUMENT_BYTES_MAX + 1];
        let parts: [Part<'_>; 1] = [(0, &large)];
        let entry = Entry { key: b"k", parts: &parts, tags: &[], tags_before: &[] };
        assert!(matches!(put(&entry), Err(Error::BadArgument { .. })));
        let parts: [Part<'_>; 1] = [(PARTS_MAX, b"x")];
        let entry = Entry { parts: &parts, ..entry };
        assert!(matches!(put(&entry), Err(Error::BadArgument { .. })));
        let tags: [Tag<'_>; 1] = [(TAGS_MAX, b"x")];
        let entry = Entry { parts: &[], tags: &tags, ..entry };
        assert!(matches!(put(&entry), Err(Error::BadArgument { .. })));
    }
}

//! An event: one change of one record, reported to watches as bytes in a ring.
//!
//! ```text
//! kind u8 | flags u8 | key bytes u16 | blocks u16 | tags before u16 | tags after u16 | version u64
//! key | blocks x { bytes u8, name } | tags x { name bytes u8, value bytes u16, name, value }
//! ```
//!
//! Flags: 1 names and tags were left out; 2 and 4 the record's form, as in the flags of a cell; 8
//! the key was left out as well, and watches report the event as lost.
//!
//! All numbers are little-endian. The tags before the change and after it travel along, so that a
//! watcher determines whether a record has entered, stayed in, or left the set that it watches.

use nearstate_memory::Corruption;
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{EVENT_BYTES_MAX, KEY_BYTES_MAX, RING_BYTES_MIN};

use crate::record::Form;

/// The offset of the version in an event's bytes.
pub(crate) const VERSION_AT: usize = 10;
const HEAD: usize = VERSION_AT + 8;
const _: () = assert!(VERSION_AT == 1 + 1 + 2 + 3 * 2, "kind, flags, key bytes, three counts");
const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize, "an event counts its key in 16 bits");
const _: () = assert!(HEAD + KEY_BYTES_MAX <= EVENT_BYTES_MAX, "a truncated event fits");

/// The longest name in an event, in bytes: its length is one byte.
pub(crate) const NAME_BYTES_MAX: usize = u8::MAX as usize;

/// Flag: names and tags were left out, because the event would have been too large.
const TRUNCATED: u8 = 1;

/// Flags: the record's form.
const FORM: u8 = 3 << 1;

/// Flag: the key was left out, because it does not fit into an entry of the ring.
const OMITTED: u8 = 8;
const _: () = assert!(TRUNCATED | FORM | OMITTED == 15, "the flags of an event do not overlap");
const _: () = assert!(
    HEAD as u64 <= RING_BYTES_MIN / 8,
    "an event without a key fits into a quarter of the smallest ring"
);
const _: () = assert!(Form::Set.flags() & !FORM == 0, "a form fits into its flags");

const SHORT: Corruption = Corruption("an event is cut short");

/// A tag and one of its values.
pub type TagValue<'a> = (&'a str, &'a [u8]);

/// What happened to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was created.
    Created,
    /// It was changed.
    Updated,
    /// A session deleted it.
    Deleted,
    /// It was removed because its expiry time had passed.
    Expired,
}

impl EventKind {
    const fn code(self) -> u8 {
        match self {
            Self::Created => 1,
            Self::Updated => 2,
            Self::Deleted => 3,
            Self::Expired => 4,
        }
    }

    const fn of(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Created),
            2 => Some(Self::Updated),
            3 => Some(Self::Deleted),
            4 => Some(Self::Expired),
            _ => None,
        }
    }
}

/// A change that a writer encodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) kind: EventKind,
    /// The form of the record; its last form if it was deleted.
    pub(crate) form: Form,
    /// The record's version after the change; its last version if it was deleted.
    pub(crate) version: u64,
    pub(crate) key: &'a [u8],
    /// Names of the changed blocks; none for a record with one unnamed block.
    pub(crate) blocks: &'a [&'a str],
    /// True if a name is left out that no block can have: the event is truncated.
    pub(crate) is_cut: bool,
    pub(crate) before: &'a [TagValue<'a>],
    pub(crate) after: &'a [TagValue<'a>],
}

impl Change<'_> {
    /// Appends the event's bytes to `out`, for a ring with entries of at most `bytes_max` bytes. An
    /// event that would be larger, or has a name or a value that no record can have, is encoded
    /// without names and tags and marked as truncated. If the key does not fit either, it is left
    /// out, and watches report the event as lost.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, bytes_max: usize) {
        let (from, bytes_max) = (out.len(), bytes_max.min(EVENT_BYTES_MAX));
        if self.is_cut || self.encode_whole(out).is_none() || out.len() - from > bytes_max {
            out.truncate(from);
            self.head(TRUNCATED, [0; 3], out);
        }
        if out.len() - from > bytes_max {
            out.truncate(from);
            Change { key: &[], ..*self }.head(TRUNCATED | OMITTED, [0; 3], out);
        }
        let bytes = out.len() - from;
        invariant!((HEAD..=bytes_max).contains(&bytes), "an event of {bytes} bytes");
    }

    fn head(&self, flags: u8, counts: [u16; 3], out: &mut Vec<u8>) {
        out.extend([self.kind.code(), flags | self.form.flags()]);
        let key = self.key;
        invariant!(key.len() <= KEY_BYTES_MAX, "an event of a key of {} bytes", key.len());
        invariant!(flags & FORM == 0, "the form is a flag of its own");
        let key_bytes = u16::try_from(key.len()).ok();
        let key_bytes = guaranteed(key_bytes, "KEY_BYTES_MAX fits into 16 bits");
        let from = out.len() - 2;
        out.extend_from_slice(&key_bytes.to_le_bytes());
        for count in counts {
            out.extend_from_slice(&count.to_le_bytes());
        }
        invariant!(out.len() - from == VERSION_AT, "the version stands at {}", out.len() - from);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(key);
    }

    fn encode_whole(&self, out: &mut Vec<u8>) -> Option<()> {
        let [blocks, before, after] = [self.blocks.len(), self.before.len(), self.after.len()];
        let count = |count: usize| u16::try_from(count).ok();
        self.head(0, [count(blocks)?, count(before)?, count(after)?], out);
        for name in self.blocks {
            out.push(u8::try_from(name.len()).ok()?);
            out.extend_from_slice(name.as_bytes());
        }
        for (name, value) in self.before.iter().chain(self.after) {
            out.push(u8::try_from(name.len()).ok()?);
            out.extend_from_slice(&u16::try_from(value.len()).ok()?.to_le_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(value);
        }
        Some(())
    }
}

/// A change of one record, as a watch returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// What happened.
    pub kind: EventKind,
    /// The form of the record; its last form if it was deleted.
    pub form: Form,
    /// The record's key.
    pub key: &'a [u8],
    /// Its version after the change; its last version if it was deleted.
    pub version: u64,
    /// True if the names of blocks and the tags were too long for an event, or a name is one that
    /// no block can have: read the record.
    pub is_truncated: bool,
    blocks: &'a [u8],
    before: &'a [u8],
    after: &'a [u8],
}

impl<'a> Event<'a> {
    /// Reads an event. Total: any bytes are an event or damage.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, Corruption> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(SHORT)?;
        let [kind, flags, k0, k1, b0, b1, o0, o1, n0, n1, version @ ..] = *head;
        let kind =
            EventKind::of(kind).ok_or(Corruption("an event of a kind that does not exist"))?;
        if flags & !(TRUNCATED | FORM | OMITTED) != 0 {
            return Err(Corruption("an event has a flag that does not exist"));
        }
        let form = Form::of_flags(flags & FORM)
            .ok_or(Corruption("an event of a record of a form that does not exist"))?;
        let key_bytes = usize::from(u16::from_le_bytes([k0, k1]));
        let (key, rest) = rest.split_at_checked(key_bytes).ok_or(SHORT)?;
        let (blocks, rest) = split(rest, [b0, b1], name)?;
        let (before, rest) = split(rest, [o0, o1], tag)?;
        let (after, rest) = split(rest, [n0, n1], tag)?;
        if !rest.is_empty() {
            return Err(Corruption("an event is longer than it says"));
        }
        let version = u64::from_le_bytes(version);
        let is_truncated = flags & TRUNCATED != 0;
        Ok(Self { kind, form, key, version, is_truncated, blocks, before, after })
    }

    /// True if the bytes are an event without its key.
    pub(crate) fn is_omitted(bytes: &[u8]) -> bool {
        bytes.get(1).is_some_and(|flags| flags & OMITTED != 0)
    }

    /// The names of the blocks that changed; none of a record with one block without a name.
    pub fn blocks(&self) -> impl Iterator<Item = &'a str> {
        each(self.blocks, name)
    }

    /// The tags that the record had before: each value with its tag's name.
    pub fn tags_before(&self) -> impl Iterator<Item = TagValue<'a>> {
        each(self.before, tag)
    }

    /// Its current tags; none if it was deleted.
    pub fn tags_after(&self) -> impl Iterator<Item = TagValue<'a>> {
        each(self.after, tag)
    }
}

/// Takes one item from the front of some bytes.
type Take<'a, T> = fn(&'a [u8]) -> Result<(T, &'a [u8]), Corruption>;

/// Splits off `count` items after checking each of them.
fn split<'a, T>(
    bytes: &'a [u8],
    count: [u8; 2],
    take: Take<'a, T>,
) -> Result<(&'a [u8], &'a [u8]), Corruption> {
    let mut rest = bytes;
    for _ in 0..u16::from_le_bytes(count) {
        (_, rest) = take(rest)?;
    }
    bytes.split_at_checked(bytes.len() - rest.len()).ok_or(SHORT)
}

/// The items of bytes that [`split`] has checked.
fn each<'a, T>(mut bytes: &'a [u8], take: Take<'a, T>) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || {
        let (item, rest) = take(bytes).ok()?;
        bytes = rest;
        Some(item)
    })
}

fn name(bytes: &[u8]) -> Result<(&str, &[u8]), Corruption> {
    let (length, rest) = bytes.split_first().ok_or(SHORT)?;
    text(rest, *length)
}

fn tag(bytes: &[u8]) -> Result<(TagValue<'_>, &[u8]), Corruption> {
    let ([length, v0, v1], rest) = bytes.split_first_chunk::<3>().ok_or(SHORT)?;
    let (name, rest) = text(rest, *length)?;
    let value_bytes = usize::from(u16::from_le_bytes([*v0, *v1]));
    let (value, rest) = rest.split_at_checked(value_bytes).ok_or(SHORT)?;
    Ok(((name, value), rest))
}

fn text(bytes: &[u8], length: u8) -> Result<(&str, &[u8]), Corruption> {
    let (name, rest) = bytes.split_at_checked(usize::from(length)).ok_or(SHORT)?;
    let name = str::from_utf8(name).map_err(|_| Corruption("a name in an event is not UTF-8"))?;
    Ok((name, rest))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn tags() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
        vec(("[a-zé]{0,9}", vec(any::<u8>(), 0..300)), 0..6)
    }

    fn lent(tags: &[(String, Vec<u8>)]) -> Vec<TagValue<'_>> {
        tags.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    proptest! {
        #[test]
        fn an_event_reads_back_as_it_was_written(
            code in 1..5_u8, form in 0..3_usize, version: u64, key in vec(any::<u8>(), 1..100),
            blocks in vec("[a-z]{1,20}", 0..20), before in tags(), after in tags(),
        ) {
            let kind = EventKind::of(code).unwrap();
            let form = [Form::Value, Form::Blocks, Form::Set][form];
            let blocks: Vec<&str> = blocks.iter().map(String::as_str).collect();
            let (before, after) = (lent(&before), lent(&after));
            let (before, after) = (before.as_slice(), after.as_slice());
            let mut bytes = b"before".to_vec();
            let (blocks_of, is_cut, key) = (&blocks, false, key.as_slice());
            let change =
                Change { kind, form, version, key, blocks: blocks_of, is_cut, before, after };
            change.encode(&mut bytes, EVENT_BYTES_MAX);
            prop_assert_eq!(&bytes[..6], b"before", "earlier bytes stay");
            let event = Event::decode(&bytes[6..]).unwrap();
            prop_assert_eq!((event.kind, event.version, event.key), (kind, version, key));
            prop_assert_eq!((event.form, event.is_truncated), (form, false));
            prop_assert_eq!(event.blocks().collect::<Vec<_>>(), blocks);
            prop_assert_eq!(event.tags_before().collect::<Vec<_>>(), before);
            prop_assert_eq!(event.tags_after().collect::<Vec<_>>(), after);
            // Truncated and extended bytes are damage.
            for end in 6..bytes.len() {
                prop_assert!(Event::decode(&bytes[6..end]).is_err());
            }
            bytes.push(0);
            prop_assert!(Event::decode(&bytes[6..]).is_err());
        }

        #[test]
        fn any_bytes_are_an_event_or_damage_and_never_a_panic(
            mut bytes in vec(any::<u8>(), 0..200), is_likely: bool,
        ) {
            if let (true, Some(head)) = (is_likely, bytes.first_chunk_mut::<10>()) {
                let [kind, flags, _, k1, b0, b1, o0, o1, n0, n1] = head;
                (*kind, *flags) = (*kind % 4 + 1, *flags % 6);
                (*k1, *b1, *o1, *n1) = (0, 0, 0, 0);
                (*b0, *o0, *n0) = (*b0 % 3, *o0 % 3, *n0 % 3);
            }
            if let Ok(event) = Event::decode(&bytes) {
                let names: usize = event.blocks().map(str::len).sum();
                let tags = event.tags_before().chain(event.tags_after());
                let tags: usize = tags.map(|(name, value)| name.len() + value.len()).sum();
                prop_assert!(HEAD + event.key.len() + names + tags <= bytes.len());
            }
        }
    }

    #[test]
    fn an_event_that_is_too_large_is_reported_without_names_and_tags() {
        let names: Vec<String> = (0..1024).map(|number| format!("{number:0>255}")).collect();
        let blocks: Vec<&str> = names.iter().map(String::as_str).collect();
        let (kind, version, key) = (EventKind::Updated, 7, [9; KEY_BYTES_MAX]);
        let long = vec![0; 70_000];
        let form = Form::Blocks;
        let whole = Change {
            kind,
            form,
            version,
            key: &key,
            blocks: &[],
            is_cut: false,
            before: &[],
            after: &[],
        };
        let cut = [
            Change { blocks: &blocks, ..whole },
            Change { before: &[("tag", &long)], ..whole },
            Change { after: &[(&"n".repeat(256), b"")], ..whole },
        ];
        for change in cut {
            let mut bytes = Vec::new();
            change.encode(&mut bytes, EVENT_BYTES_MAX);
            assert!(bytes.len() <= EVENT_BYTES_MAX);
            let event = Event::decode(&bytes).unwrap();
            assert_eq!((event.kind, event.version, event.key), (kind, version, &key[..]));
            assert!(event.is_truncated && event.form == form);
            assert_eq!(event.blocks().count() + event.tags_before().count(), 0);
        }
        // The largest event that fits is not truncated.
        let mut bytes = Vec::new();
        Change { blocks: &blocks[..900], ..whole }.encode(&mut bytes, EVENT_BYTES_MAX);
        let event = Event::decode(&bytes).unwrap();
        assert_eq!((event.is_truncated, event.blocks().count()), (false, 900));
    }

    #[test]
    fn in_a_small_ring_names_and_tags_are_left_out_first_and_then_the_key() {
        let bytes_max = usize::try_from(RING_BYTES_MIN).unwrap() / 4 - 16;
        let (kind, form, version) = (EventKind::Created, Form::Value, 3);
        let (none, is_cut): (&[TagValue<'_>], _) = (&[], false);
        let tags = vec![0; bytes_max];
        for key_bytes in [1, bytes_max - HEAD, bytes_max - HEAD + 1, KEY_BYTES_MAX] {
            for after in [none, &[("tag", &tags)]] {
                let (key, blocks, before) = (&vec![7; key_bytes], &[], none);
                let change = Change { kind, form, version, key, blocks, is_cut, before, after };
                let mut bytes = Vec::new();
                change.encode(&mut bytes, bytes_max);
                assert!(bytes.len() <= bytes_max, "{key_bytes}");
                let fits = key_bytes + HEAD <= bytes_max;
                assert_eq!(Event::is_omitted(&bytes), !fits, "{key_bytes}");
                let event = Event::decode(&bytes).unwrap();
                assert_eq!((event.key.len(), event.version), (key_bytes * usize::from(fits), 3));
                assert_eq!(event.is_truncated, !fits || !after.is_empty());
            }
        }
    }
}

//! Lookups of records by their tags, in any process: one more access to an index than a lookup by
//! key.

use std::ops::Bound;

use nearstate_memory::Corruption;
use nearstate_model::limits::{TAG_VALUE_BYTES_MAX, TRANSACTION_TRIES};
use nearstate_model::{Error, Result};

use crate::index::internal::{STRIPES, count_key, posting_key, tag_root};
use crate::index::ordered::{Cursor, ReadMode, composite_range, split_composite};
use crate::index::schema::{Tag, TagState};
use crate::record::meta::{is_past, split};
use crate::record::view::View;
use crate::session::{Namespace, Session};
use crate::tags::lists::ListWalk;
use crate::tags::maintain::{read_count, values};
use crate::txn::Txn;
use crate::txn::for_update::RecordForUpdate;
use crate::txn::write_set::WriteSet;

/// The values of a tag that a lookup accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<'a> {
    /// This value.
    Equal(&'a [u8]),
    /// Values that start with these bytes. The tag must be ordered.
    Prefix(&'a [u8]),
    /// Values in a range, in byte order. The tag must be ordered.
    Range(Bound<&'a [u8]>, Bound<&'a [u8]>),
}

impl Session {
    /// True if the namespace has a tag of this name, even if its index is still being built.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn has_tag(&self, namespace: Namespace, tag: &str) -> Result<bool> {
        Ok(self.tag_set(namespace.index)?.tag(tag).is_some())
    }

    /// The record that has this value of a unique tag, as a zero-copy view, or `None`; also `None`
    /// if it has expired.
    ///
    /// Linearizable. Takes no lock. Cost: twice that of [`Session::get`].
    /// Repeated if the value moves to another record between the two accesses, at most
    /// [`TRANSACTION_TRIES`] times.
    ///
    /// # Errors
    /// `BadArgument`: no such tag, not unique, or still being built; `Conflict` if the value moved
    /// during each attempt; `Damaged`, `Forked`.
    pub fn find(&self, namespace: Namespace, tag: &str, value: &[u8]) -> Result<Option<View<'_>>> {
        let read = |key: &[u8]| self.get_whole(namespace, key);
        self.find_holder(namespace, (tag, value), read, |view| view.has_tag(tag, value))
    }

    /// As [`Session::find`], in order to change the record ([`RecordForUpdate`]): the record is
    /// searched once.
    ///
    /// ```
    /// use nearstate_store::{BlockLayout, Outcome};
    /// # use nearstate_store::{BlockChange, CreateOptions, Kind, Metadata, Region, Schema};
    /// # use nearstate_store::TagSchema;
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("amf"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// # let guti = TagSchema { name: "guti".to_owned(), is_unique: true, ..TagSchema::default() };
    /// # let schema = Schema { kind: Kind::Blocks, tags: vec![guti] };
    /// # let ue = session.namespace("ue", &schema)?;
    /// # session.transact(|txn| {
    /// #     txn.patch(ue, b"imsi-1", &[BlockChange { name: "location", bytes: Some(b"tac 1") }])?;
    /// #     let tags = Metadata { tags: &[("guti", b"5G-GUTI 1")], ..Metadata::default() };
    /// #     txn.set_metadata(ue, b"imsi-1", tags)
    /// # })?;
    /// let names = BlockLayout::new(&["location"])?; // once for each session
    /// while let Some(context) = session.find_for_update(ue, "guti", b"5G-GUTI 1")? {
    ///     match context.patch(&names, &[(0, b"tac 2")])? {
    ///         Outcome::Done { .. } => break,
    ///         Outcome::Refused { .. } => {} // another session has changed the record: find again
    ///     }
    /// }
    /// # let context = session.get(ue, b"imsi-1")?.expect("a record");
    /// # assert_eq!(context.block("location"), Some(&b"tac 2"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::find`]; as [`Session::get_for_update`].
    pub fn find_for_update(
        &self,
        namespace: Namespace,
        tag: &str,
        value: &[u8],
    ) -> Result<Option<RecordForUpdate<'_>>> {
        // Before the pin of the search, under which nothing comes free.
        self.prepare_update(namespace)?;
        let read = |key: &[u8]| self.read_for_update(namespace, key);
        self.find_holder(namespace, (tag, value), read, |record| record.view().has_tag(tag, value))
    }

    /// What `read` returns for the key of the record that has this value of a unique tag. `has_tag`
    /// is true if what was read has the value.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    fn find_holder<T>(
        &self,
        namespace: Namespace,
        (tag, value): (&str, &[u8]),
        read: impl Fn(&[u8]) -> Result<Option<T>>,
        has_tag: impl Fn(&T) -> bool,
    ) -> Result<Option<T>> {
        let known = self.with_tag_set(namespace.index, |tags| {
            ready(tags.tag(tag), tag).map(|known| (known.id, known.is_unique))
        })?;
        let (id, is_unique) = known?;
        if !is_unique {
            return Err(Error::BadArgument {
                detail: format!("the tag {tag:?} is not unique: find all records that have it"),
            });
        }
        if value.len() > TAG_VALUE_BYTES_MAX {
            return Ok(None);
        }
        // Kept until the return: an answer that is moved travels through memory once more.
        let mut key = self.internal.posting_key.borrow_mut();
        posting_key(namespace.index, id, value, &mut key);
        let internal = self.member.table(self.internal_table()?)?;
        let hash = self.hash(&key);
        for _ in 0..TRANSACTION_TRIES {
            let _held = self.member.pin()?;
            let posting = self.member.lookup_small(internal, hash, &key)?;
            let Some((_, record)) = posting.record else { return Ok(None) };
            if let Some(found) = read(record)? {
                if has_tag(&found) {
                    return Ok(Some(found));
                }
            } else if self.has_expired(namespace, record, (tag, value))? {
                return Ok(None);
            }
            // The value moved to another record, or was removed, between the two accesses.
        }
        Err(Error::Conflict { detail: format!("the record with this value of {tag:?}") })
    }

    /// The key of the record that an entry of the index names for this value of a unique tag, also
    /// if the record has expired, and while the index is being built.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub(crate) fn holder_in_index(
        &self,
        namespace: Namespace,
        tag: &str,
        value: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let id = self.with_tag_set(namespace.index, |tags| tags.tag(tag).map(|known| known.id))?;
        let Some(id) = id.filter(|_| value.len() <= TAG_VALUE_BYTES_MAX) else { return Ok(None) };
        let mut key = self.internal.posting_key.borrow_mut();
        posting_key(namespace.index, id, value, &mut key);
        let internal = self.member.table(self.internal_table()?)?;
        let _held = self.member.pin()?;
        let posting = self.member.lookup_small(internal, self.hash(&key), &key)?;
        Ok(posting.record.map(|(_, record)| record.to_vec()))
    }

    /// True if the record of a key has this value and has expired.
    fn has_expired(
        &self,
        namespace: Namespace,
        key: &[u8],
        (tag, value): (&str, &[u8]),
    ) -> Result<bool> {
        let found = self.member.find(self.table(namespace)?, self.hash(key), key)?;
        self.member.check_namespace(namespace.index)?;
        let Some((cell, bytes)) = found else { return Ok(false) };
        let (_, meta) = split(cell, bytes)?;
        Ok(is_past(cell, meta)? && values(meta, tag).any(|found| found == value))
    }

    /// Calls `each` with every record that has one of these values of a tag, in the order of the
    /// values, until it returns false. A record may be returned once for each of its values.
    /// Expired records are omitted. No lock is taken; a pin is held until the call returns.
    ///
    /// A record that has the value during the whole call is returned; one that changes during the
    /// call may be omitted. Each view shows the record at one moment.
    ///
    /// # Errors
    /// `BadArgument`: no such tag, not ordered (for prefixes and ranges), or still being built;
    /// `Conflict` if the index changes faster than it can be read; `Damaged`, `Forked`.
    pub fn find_all(
        &self,
        namespace: Namespace,
        tag: &str,
        values: Values<'_>,
        each: impl FnMut(&View<'_>) -> bool,
    ) -> Result<()> {
        self.find_some(namespace, (tag, values), u64::MAX, each).map(drop)
    }

    /// As [`Session::find_all`], but reads at most `limit` entries of the index, which include
    /// those of expired records that are not collected yet. False if there are more.
    ///
    /// # Errors
    /// As [`Session::find_all`].
    pub fn find_some(
        &self,
        namespace: Namespace,
        (tag, values): (&str, Values<'_>),
        limit: u64,
        mut each: impl FnMut(&View<'_>) -> bool,
    ) -> Result<bool> {
        let tags = self.tag_set(namespace.index)?;
        let known = ready(tags.tag(tag), tag)?;
        if let (Values::Equal(value), true) = (values, known.is_unique && !known.is_ordered) {
            if let Some(view) = self.find(namespace, tag, value)? {
                each(&view);
            }
            return Ok(true);
        }
        let mut read = 0;
        let mut has_more = false;
        self.walk_index(namespace, known, values, |walk| {
            if read == limit {
                has_more = true;
                return Ok(false);
            }
            read += 1;
            let Some(view) = self.get(namespace, &walk.record)? else { return Ok(true) };
            let is_it = view.tags().any(|(name, found)| name == tag && found == walk.value);
            Ok(!is_it || each(&view))
        })?;
        Ok(!has_more)
    }

    /// Calls `each` with the keys that the index has for these values of a tag, in the order of the
    /// values, until it returns false. No record is read: one may have changed or expired, so the
    /// caller reads each in the transaction that it makes of it.
    ///
    /// # Errors
    /// As [`Session::find_all`].
    pub fn find_keys(
        &self,
        namespace: Namespace,
        (tag, values): (&str, Values<'_>),
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let tags = self.tag_set(namespace.index)?;
        let known = ready(tags.tag(tag), tag)?;
        if let (Values::Equal(value), true) = (values, known.is_unique && !known.is_ordered) {
            if let Some(key) = self.holder_in_index(namespace, tag, value)? {
                each(&key);
            }
            return Ok(());
        }
        self.walk_index(namespace, known, values, |walk| Ok(each(&walk.record)))
    }

    /// Calls `each` at each entry of an index until it returns false.
    fn walk_index(
        &self,
        namespace: Namespace,
        tag: &Tag,
        values: Values<'_>,
        mut each: impl FnMut(&IndexWalk) -> Result<bool>,
    ) -> Result<()> {
        let mut set = WriteSet::new(self)?;
        let mut walk = IndexWalk::new(namespace, tag, values, ReadMode::Untracked)?;
        while walk.step(&mut set)? {
            if !each(&walk)? {
                break;
            }
        }
        Ok(())
    }

    /// The number of records that have a value of a tag. For a counted tag, eight records of the
    /// index are read as one snapshot, and an expired record counts until it is collected. For any
    /// other tag, the records are read, and expired ones do not count.
    ///
    /// # Errors
    /// As [`Session::find_all`]; `Deadline` if the count changes faster than it can be read.
    pub fn count_tagged(&self, namespace: Namespace, tag: &str, value: &[u8]) -> Result<u64> {
        let tags = self.tag_set(namespace.index)?;
        let known = ready(tags.tag(tag), tag)?;
        if !known.is_counted {
            let mut count = 0;
            self.find_all(namespace, tag, Values::Equal(value), |_| {
                count += 1;
                true
            })?;
            return Ok(count);
        }
        self.transact(|txn| {
            let mut key = Vec::new();
            let mut count = 0;
            for stripe in 0..STRIPES {
                count_key(namespace.index, known.id, stripe, value, &mut key);
                let mut set = txn.set.borrow_mut();
                count += set.internal_value(&key, read_count)?.unwrap_or(0);
            }
            // The stripes are one snapshot, so only damage makes their sum negative.
            u64::try_from(count)
                .map_err(|_| Corruption("the count of a tag's value is below zero").into())
        })
    }
}

impl Txn<'_> {
    /// The key and the record that has this value of a unique tag, or `None`. The result is part of
    /// the read set of the transaction.
    ///
    /// The commit updates the index: until then, a value that this transaction has set is not
    /// found, and a record from which it has removed the value still is. The record is returned as
    /// the transaction has written it.
    ///
    /// # Errors
    /// As [`Session::find`]; `Conflict`: an earlier read is no longer valid; `TransactionTooLarge`.
    pub fn find(
        &self,
        namespace: Namespace,
        tag: &str,
        value: &[u8],
    ) -> Result<Option<(Vec<u8>, View<'_>)>> {
        let key = {
            let mut set = self.set.borrow_mut();
            let tags = set.session.tag_set(namespace.index)?;
            let known = ready(tags.tag(tag), tag)?;
            if !known.is_unique {
                return Err(Error::BadArgument {
                    detail: format!("the tag {tag:?} is not unique: find all records that have it"),
                });
            }
            let mut key = set.session.internal.posting_key.borrow_mut();
            posting_key(namespace.index, known.id, value, &mut key);
            set.internal_value(&key, <[u8]>::to_vec)?
        };
        let Some(key) = key else { return Ok(None) };
        Ok(self.get(namespace, &key)?.map(|record| (key, record)))
    }

    /// Calls `each` with the key of every record that has one of these values of a tag, in the
    /// order of the values, until it returns false. The whole result is part of the read set of the
    /// transaction: a part of a list, or a leaf of the index, for about ten keys.
    ///
    /// Expired records are omitted. Each record that is read, also an expired one, is part of the
    /// read set. The index does not contain the transaction's own writes yet, see [`Txn::find`].
    /// For many keys, call this within [`Txn::validated_once`].
    ///
    /// # Errors
    /// As [`Session::find_all`]; `Conflict`: an earlier read is no longer valid;
    /// `TransactionTooLarge`.
    pub fn find_all(
        &self,
        namespace: Namespace,
        tag: &str,
        values: Values<'_>,
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let set = self.set.borrow();
        let tags = set.session.tag_set(namespace.index)?;
        let known = ready(tags.tag(tag), tag)?;
        if let (Values::Equal(value), true) = (values, known.is_unique && !known.is_ordered) {
            drop(set);
            if let Some((key, _)) = self.find(namespace, tag, value)? {
                each(&key);
            }
            return Ok(());
        }
        drop(set);
        let mut walk = IndexWalk::new(namespace, known, values, ReadMode::Tracked)?;
        loop {
            // `each` may use the transaction, so the write set is not borrowed during its call.
            let has_more = walk.step(&mut self.set.borrow_mut())?;
            if !has_more {
                return Ok(());
            }
            // `None` if the record has expired.
            if self.get(namespace, &walk.record)?.is_some() && !each(&walk.record) {
                return Ok(());
            }
        }
    }
}

/// The tag, if its index is ready.
fn ready<'t>(known: Option<&'t Tag>, name: &str) -> Result<&'t Tag> {
    match known {
        Some(tag) if tag.state == TagState::Ready => Ok(tag),
        Some(_) => Err(Error::BadArgument {
            detail: format!(
                "the index of the tag {name:?} is still being built: retry when its declaration \
                 has finished, or declare it again if the declaring process died"
            ),
        }),
        None => Err(Error::BadArgument {
            detail: format!("the namespace has no tag {name:?}: declare it in its schema"),
        }),
    }
}

/// The position of a scan in an index.
#[derive(Debug)]
enum IndexCursor {
    Ordered(Cursor),
    List(ListWalk),
}

/// An iterator over the entries of an index.
#[derive(Debug)]
pub(crate) struct IndexWalk {
    cursor: IndexCursor,
    /// The value of the current entry.
    value: Vec<u8>,
    /// The key of its record.
    pub(crate) record: Vec<u8>,
    prefix: Vec<u8>,
}

impl IndexWalk {
    fn new(namespace: Namespace, tag: &Tag, values: Values<'_>, mode: ReadMode) -> Result<Self> {
        if !tag.is_ordered && !matches!(values, Values::Equal(_)) {
            return Err(Error::BadArgument {
                detail: format!(
                    "the tag {:?} is not ordered: find one value, or declare the tag ordered",
                    tag.name
                ),
            });
        }
        Ok(Self::of_tag(namespace, tag, values, mode))
    }

    /// As [`IndexWalk::new`], for a tag that supports these values.
    pub(crate) fn of_tag(
        namespace: Namespace,
        tag: &Tag,
        values: Values<'_>,
        mode: ReadMode,
    ) -> Self {
        if let (Values::Equal(value), false) = (values, tag.is_ordered) {
            let list = ListWalk::new(namespace.index, tag.id, value, mode);
            let (value, record, prefix) = (value.to_vec(), Vec::new(), Vec::new());
            return Self { cursor: IndexCursor::List(list), value, record, prefix };
        }
        let (from, to) = match values {
            Values::Equal(value) => (Bound::Included(value), Bound::Included(value)),
            Values::Prefix(prefix) => (Bound::Included(prefix), Bound::Unbounded),
            Values::Range(from, to) => (from, to),
        };
        let prefix = if let Values::Prefix(prefix) = values { prefix } else { &[] };
        let (from, to) = composite_range(from, to);
        let mut cursor = Cursor::default();
        let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        cursor.begin(tag_root(namespace.index, tag.id), range, mode);
        let (cursor, prefix) = (IndexCursor::Ordered(cursor), prefix.to_vec());
        Self { cursor, value: Vec::new(), record: Vec::new(), prefix }
    }

    /// Moves to the next entry. False at the end.
    pub(crate) fn step(&mut self, set: &mut WriteSet<'_>) -> Result<bool> {
        let cursor = match &mut self.cursor {
            IndexCursor::Ordered(cursor) => cursor,
            IndexCursor::List(list) => return list.next(set, &mut self.record),
        };
        let Some(key) = cursor.next(set)? else { return Ok(false) };
        self.value.clear();
        let record = split_composite(key, &mut self.value)?;
        self.record.clear();
        self.record.extend_from_slice(record);
        Ok(self.value.starts_with(&self.prefix))
    }
}

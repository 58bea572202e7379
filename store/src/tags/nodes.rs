//! The internal namespace within a transaction: its records, and the nodes of ordered indexes.

use std::sync::Arc;

use nearstate_memory::Corruption;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::KEY_BYTES_MAX;
use nearstate_model::{Result, invariant};

use crate::index::internal::{NAME, ROOT, node_key, schema_key};
use crate::index::ordered::Nodes;
use crate::index::schema::TagSet;
use crate::record::Kind;
use crate::session::Session;
use crate::session::buffers::Write;
use crate::txn::write_set::WriteSet;

/// From this number of cached schemas on, those of removed namespaces are dropped.
const KNOWN_MIN: usize = 64;

impl Session {
    /// The number of the internal namespace, which is created if it does not exist. The session has
    /// no pending cell.
    pub(crate) fn internal_table(&self) -> Result<u32> {
        if let Some(table) = self.internal.table.get() {
            return Ok(table);
        }
        let table = self.member.open_namespace(NAME, Kind::Value.code())?.0;
        self.internal.table.set(Some(table));
        Ok(table)
    }

    /// The same, if there is one.
    fn known_internal_table(&self) -> Result<Option<u32>> {
        if self.internal.table.get().is_none() {
            self.internal.table.set(self.member.find_namespace(NAME)?.map(|found| found.0));
        }
        Ok(self.internal.table.get())
    }

    /// The tags of a namespace at the current generation of its flags. `BadArgument` if it was
    /// removed.
    pub(crate) fn tag_set(&self, namespace: u32) -> Result<Arc<TagSet>> {
        self.with_tag_set(namespace, Arc::clone)
    }

    /// As [`Session::tag_set`], of which `read` takes what it needs. It must not open a namespace
    /// or declare a tag. Saves the two locked instructions of a clone.
    #[inline]
    pub(crate) fn with_tag_set<T>(
        &self,
        namespace: u32,
        read: impl FnOnce(&Arc<TagSet>) -> T,
    ) -> Result<T> {
        self.member.check_namespace(namespace)?;
        let now = self.member.namespace_flags(namespace)? / namespace_flags::GENERATION;
        if let Some((seen, tags)) = self.internal.tags.borrow().get(&namespace)
            && *seen == now
        {
            return Ok(read(tags));
        }
        Ok(read(&self.read_tag_set(namespace, now)?))
    }

    #[cold]
    fn read_tag_set(&self, namespace: u32, now: u64) -> Result<Arc<TagSet>> {
        let key = schema_key(namespace);
        // Nothing is created to read what no declaration has stored: a promotion reads the tags,
        // perhaps in a full heap.
        let Some(table) = self.known_internal_table()? else {
            let tags = Arc::default();
            self.remember_tags(namespace, now, &tags)?;
            return Ok(tags);
        };
        let table = self.member.table(table)?;
        let _held = self.member.pin()?;
        let tags = match self.member.find(table, self.hash(&key), &key)? {
            Some((_, bytes)) => Arc::new(TagSet::decode(bytes)?),
            None => Arc::default(),
        };
        self.remember_tags(namespace, now, &tags)?;
        Ok(tags)
    }

    /// Remembers tags that were read after the generation of the flags was `now`.
    pub(crate) fn remember_tags(&self, namespace: u32, now: u64, tags: &Arc<TagSet>) -> Result<()> {
        if now < tags.generation {
            // After this no session can commit with older tags. The flags can have a higher
            // generation by now, of tags that were stored after these: they are read by the next
            // call.
            self.raise_to(namespace, tags)?;
        }
        let mut known = self.internal.tags.borrow_mut();
        if known.len() >= KNOWN_MIN && known.len().is_power_of_two() {
            known.retain(|number, _| self.member.check_namespace(*number).is_ok());
        }
        known.insert(namespace, (now.max(tags.generation), Arc::clone(tags)));
        Ok(())
    }

    /// Raises the generation of a namespace's flags to that of these tags.
    pub(crate) fn raise_to(&self, namespace: u32, tags: &TagSet) -> Result<()> {
        // The generation is read from shared memory: a damaged one saturates.
        let wanted = tags.generation.saturating_mul(namespace_flags::GENERATION);
        let word = self.member.update_namespace_flags(namespace, |word| {
            let flags = (word | namespace_flags::TAGGED) % namespace_flags::GENERATION;
            (word - word % namespace_flags::GENERATION).max(wanted) | flags
        })?;
        invariant!(word >= wanted, "the count of schema changes rises: {word:#x}, {wanted:#x}");
        invariant!(word & namespace_flags::TAGGED != 0, "a namespace with tags has the flag");
        Ok(())
    }

    /// A random name for a node. The caller checks that it is unused.
    fn name_node(&self) -> u64 {
        let [last, now] = [self.internal.named.get(), nearstate_memory::now_ms_coarse()];
        let words = [last, now, u64::from(self.member.index())];
        let mut seed = [0; 24];
        for (to, word) in seed.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let name = self.hash(&seed) & (ROOT - 1);
        invariant!(name & ROOT == 0, "only a root has the name {name:#x}");
        self.internal.named.set(name);
        name
    }
}

/// The transaction's own write of a record of the internal namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnWrite {
    None,
    Written,
    Deleted,
}

impl WriteSet<'_> {
    /// The transaction's own write of a record.
    pub(crate) fn own(&self, index: Option<usize>) -> OwnWrite {
        match index.map(|index| &self.entry_at(index).write) {
            Some(Write::Put { .. }) => OwnWrite::Written,
            Some(Write::Patch { .. } | Write::Elements(_) | Write::Object { .. }) => {
                invariant!("a record of the internal namespace is put whole")
            }
            Some(Write::Delete) => OwnWrite::Deleted,
            Some(Write::None) | None => OwnWrite::None,
        }
    }

    /// The value that the transaction has put.
    pub(crate) fn own_value(&self, index: Option<usize>) -> &[u8] {
        match index.map(|index| &self.entry_at(index).write) {
            Some(Write::Put { value }) => self.buffers.bytes(*value),
            other => invariant!("the transaction has not put the record: {other:?}"),
        }
    }

    /// The entry of a record of the internal namespace. The record is read and tracked, unless the
    /// transaction has written it.
    #[inline]
    pub(crate) fn internal_entry(&mut self, key: &[u8]) -> Result<usize> {
        let hash = self.session.hash(key);
        self.internal_entry_of(hash, key)
    }

    /// As [`WriteSet::internal_entry`], with the hash of the key.
    #[inline]
    pub(crate) fn internal_entry_of(&mut self, hash: u64, key: &[u8]) -> Result<usize> {
        let table = self.session.internal_table()?;
        let index = self.find_entry(table, hash, key);
        if let Some(index) = index
            && (self.entry_at(index).seen.is_some() || self.is_written(index))
        {
            return Ok(index);
        }
        let internal = self.session.member.table(table)?;
        let seen = self.session.member.lookup_small(internal, hash, key)?.token;
        self.track(index, (table, hash, key), seen)
    }

    /// As [`WriteSet::internal_entry_of`]; also, whether the record has this value.
    pub(crate) fn internal_entry_with(
        &mut self,
        (hash, key): (u64, &[u8]),
        value: &[u8],
    ) -> Result<(usize, bool)> {
        let session = self.session;
        let table = session.internal_table()?;
        let index = self.find_entry(table, hash, key);
        if let Some(index) = index
            && (self.entry_at(index).seen.is_some() || self.is_written(index))
        {
            return Ok((index, self.internal_at(index)? == Some(value)));
        }
        let found = session.member.lookup_small(session.member.table(table)?, hash, key)?;
        let has_value = found.record.is_some_and(|(_, stored)| stored == value);
        Ok((self.track(index, (table, hash, key), found.token)?, has_value))
    }

    /// The value of an entry as the transaction sees it; `None` if the record does not exist.
    #[inline]
    pub(crate) fn internal_at(&self, index: usize) -> Result<Option<&[u8]>> {
        match self.own(Some(index)) {
            OwnWrite::Written => Ok(Some(self.own_value(Some(index)))),
            OwnWrite::Deleted => Ok(None),
            OwnWrite::None => {
                let seen = guaranteed(self.entry_at(index).seen, "an internal record was read");
                Ok(self.session.stored(seen)?.map(|(_, value)| value))
            }
        }
    }

    /// Reads a record of the internal namespace, tracked: calls `read` with its value as the
    /// transaction sees it.
    pub(crate) fn internal_value<R>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let index = self.internal_entry(key)?;
        Ok(self.internal_at(index)?.map(read))
    }

    /// Puts a record of the internal namespace.
    pub(crate) fn put_internal(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        // The value in the key may come from a record's damaged metadata.
        if key.len() > KEY_BYTES_MAX {
            return Err(Corruption("a record has a tag value that no record can have").into());
        }
        let table = self.session.internal_table()?;
        let hash = self.session.hash(key);
        let index = self.entry(table, hash, key)?;
        self.put(index, value, &[])
    }

    /// Deletes a record of the internal namespace.
    pub(crate) fn delete_internal(&mut self, key: &[u8]) -> Result<()> {
        let table = self.session.internal_table()?;
        let hash = self.session.hash(key);
        let index = self.entry(table, hash, key)?;
        self.delete(index);
        Ok(())
    }
}

impl Nodes for WriteSet<'_> {
    fn peek<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let key = node_key(node);
        let table = self.session.internal_table()?;
        let hash = self.session.hash(&key);
        let index = self.find_entry(table, hash, &key);
        match self.own(index) {
            OwnWrite::Written => return Ok(Some(read(self.own_value(index)))),
            OwnWrite::Deleted => return Ok(None),
            OwnWrite::None => {}
        }
        let found = self.session.member.find(self.session.member.table(table)?, hash, &key)?;
        Ok(found.map(|(_, value)| read(value)))
    }

    fn read<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.internal_value(&node_key(node), read)
    }

    fn write(&mut self, node: u64, bytes: &[u8]) -> Result<()> {
        self.put_internal(&node_key(node), bytes)
    }

    fn create(&mut self, bytes: &[u8]) -> Result<u64> {
        loop {
            let node = self.session.name_node();
            // Tracked, so that the commit fails if another session creates this node first.
            if self.internal_value(&node_key(node), |_| ())?.is_none() {
                self.put_internal(&node_key(node), bytes)?;
                return Ok(node);
            }
        }
    }

    fn free(&mut self, node: u64) -> Result<()> {
        self.delete_internal(&node_key(node))
    }
}

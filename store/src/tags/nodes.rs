//! The internal namespace inside a transaction: its records, and the nodes of ordered indexes.

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
    /// Number of the internal namespace. Nothing may be pending.
    pub(crate) fn internal_table(&self) -> Result<u32> {
        if let Some(table) = self.internal.table.get() {
            return Ok(table);
        }
        let table = self.member.open_namespace(NAME, Kind::Value.code())?.0;
        self.internal.table.set(Some(table));
        Ok(table)
    }

    /// The tags of a namespace at the generation that its flags have now. `BadArgument` if it was
    /// removed.
    pub(crate) fn tag_set(&self, namespace: u32) -> Result<Arc<TagSet>> {
        self.member.check_namespace(namespace)?;
        let now = self.member.namespace_flags(namespace)? / namespace_flags::GENERATION;
        if let Some((seen, tags)) = self.internal.tags.borrow().get(&namespace)
            && *seen == now
        {
            return Ok(Arc::clone(tags));
        }
        let key = schema_key(namespace);
        let table = self.member.table(self.internal_table()?)?;
        let _held = self.member.pin()?;
        let tags = match self.member.find(table, self.hash(&key), &key)? {
            Some((_, bytes)) => Arc::new(TagSet::decode(bytes)?),
            None => Arc::default(),
        };
        // Raising the generation keeps every session from committing by older tags.
        let now = if now < tags.generation { self.raise_to(namespace, &tags)? } else { now };
        let mut known = self.internal.tags.borrow_mut();
        if known.len() >= KNOWN_MIN && known.len().is_power_of_two() {
            known.retain(|number, _| self.member.check_namespace(*number).is_ok());
        }
        known.insert(namespace, (now, Arc::clone(&tags)));
        Ok(tags)
    }

    /// Raises the count of schema changes to that of these tags. Returns it.
    pub(crate) fn raise_to(&self, namespace: u32, tags: &TagSet) -> Result<u64> {
        // The generation is read from shared memory: a damaged one saturates.
        let wanted = tags.generation.saturating_mul(namespace_flags::GENERATION);
        let word = self.member.update_namespace_flags(namespace, |word| {
            let flags = (word | namespace_flags::TAGGED) % namespace_flags::GENERATION;
            (word - word % namespace_flags::GENERATION).max(wanted) | flags
        })?;
        invariant!(word >= wanted, "the count of schema changes rises: {word:#x}, {wanted:#x}");
        invariant!(word & namespace_flags::TAGGED != 0, "a namespace with tags has the flag");
        Ok(word / namespace_flags::GENERATION)
    }

    /// A name for a node, probably unused. The caller checks.
    fn name_node(&self) -> u64 {
        let [last, now] = [self.internal.named.get(), nearstate_memory::now_ms_coarse()];
        let words = [last, now, u64::from(self.member.index())];
        let mut seed = [0; 24];
        for (place, word) in seed.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let name = self.hash(&seed) & (ROOT - 1);
        invariant!(name & ROOT == 0, "only a root has the name {name:#x}");
        self.internal.named.set(name);
        name
    }
}

/// The state of a record of the internal namespace within a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnWrite {
    /// It was deleted in this transaction.
    Gone,
    /// It was written in this transaction.
    Written,
    /// Neither.
    Not,
}

impl WriteSet<'_> {
    /// What this transaction has done with a record.
    pub(crate) fn own(&self, place: Option<usize>) -> OwnWrite {
        match place.map(|place| &self.entry_at(place).write) {
            Some(Write::Put { .. }) => OwnWrite::Written,
            Some(Write::Patch { .. } | Write::Object { .. }) => {
                invariant!("a record of the internal namespace is put whole")
            }
            Some(Write::Delete) => OwnWrite::Gone,
            Some(Write::None) | None => OwnWrite::Not,
        }
    }

    /// The value that this transaction has put.
    pub(crate) fn own_value(&self, place: Option<usize>) -> &[u8] {
        match place.map(|place| &self.entry_at(place).write) {
            Some(Write::Put { value }) => self.buffers.bytes(*value),
            other => invariant!("the transaction has not put the record: {other:?}"),
        }
    }

    /// The entry of a record of the internal namespace that this transaction has written, or has
    /// read just now.
    #[inline]
    pub(crate) fn internal_place(&mut self, key: &[u8]) -> Result<usize> {
        let hash = self.session.hash(key);
        self.internal_place_of(hash, key)
    }

    /// As [`WriteSet::internal_place`], of a key whose hash is known.
    #[inline]
    pub(crate) fn internal_place_of(&mut self, hash: u64, key: &[u8]) -> Result<usize> {
        let table = self.session.internal_table()?;
        let place = self.place_of(table, hash, key);
        if let Some(place) = place
            && (self.entry_at(place).seen.is_some() || self.is_written(place))
        {
            return Ok(place);
        }
        let index = self.session.member.table(table)?;
        let seen = self.session.member.lookup_small(index, hash, key)?.token;
        self.track(place, (table, hash, key), seen)
    }

    /// The value of a record that is in the transaction, as the transaction has it.
    #[inline]
    pub(crate) fn internal_at(&self, place: usize) -> Result<Option<&[u8]>> {
        match self.own(Some(place)) {
            OwnWrite::Written => Ok(Some(self.own_value(Some(place)))),
            OwnWrite::Gone => Ok(None),
            OwnWrite::Not => {
                let seen = guaranteed(self.entry_at(place).seen, "an internal record was read");
                Ok(self.session.stored(seen)?.map(|(_, value)| value))
            }
        }
    }

    /// A record of the internal namespace as this transaction has it, tracked: `read` sees its
    /// value.
    pub(crate) fn internal_value<R>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let place = self.internal_place(key)?;
        Ok(self.internal_at(place)?.map(read))
    }

    /// Puts a record of the internal namespace.
    pub(crate) fn put_internal(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        // The value in the key may come from a record's damaged metadata.
        if key.len() > KEY_BYTES_MAX {
            return Err(Corruption("a record has a tag value that no record can have").into());
        }
        let table = self.session.internal_table()?;
        let hash = self.session.hash(key);
        let place = self.entry(table, hash, key)?;
        self.put(place, value, &[])
    }

    /// Deletes a record of the internal namespace.
    pub(crate) fn delete_internal(&mut self, key: &[u8]) -> Result<()> {
        let table = self.session.internal_table()?;
        let hash = self.session.hash(key);
        let place = self.entry(table, hash, key)?;
        self.delete(place);
        Ok(())
    }
}

impl Nodes for WriteSet<'_> {
    fn peek<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let key = node_key(node);
        let table = self.session.internal_table()?;
        let hash = self.session.hash(&key);
        let place = self.place_of(table, hash, &key);
        match self.own(place) {
            OwnWrite::Written => return Ok(Some(read(self.own_value(place)))),
            OwnWrite::Gone => return Ok(None),
            OwnWrite::Not => {}
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
            // Tracked: that there is none must still be so at the commit.
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

//! Keeping the indexes of tags: what the commit of a transaction adds for the tags of its records.
//! The postings and nodes are records of the same transaction, so an index always agrees with its
//! records.

use nearstate_memory::layout::traits;
use nearstate_model::{Error, Result};

use crate::hidden::{STRIPES, count_key, expiry_root, posting_key, tag_root};
use crate::meta::{Meta, Tags, is_past, split};
use crate::ordered::composite;
use crate::schema::Tag;
use crate::workshop::Workshop;
use crate::writeset::WriteSet;

/// Tags are taken away from all records of a transaction before any is given, so that a value can
/// go from one record to another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Taking,
    Giving,
}

impl<'s> WriteSet<'s> {
    /// Adds to the transaction what the tags and the expiry of its records need. Returns how many
    /// records it had before that.
    ///
    /// # Errors
    /// `TagTaken`, `BadArgument` (a required tag is missing), `TransactionTooLarge`, `Conflict`.
    #[inline]
    pub(crate) fn index_all(&mut self) -> Result<usize> {
        let written = self.buffers.entries.len();
        self.buffers.is_committing = true;
        let mut seen = 0;
        for place in 0..written {
            seen |= self.see_traits(place)?;
        }
        if seen & (traits::TAGGED | traits::EXPIRING) == 0 {
            return Ok(written);
        }
        let mut shop = std::mem::take(&mut self.buffers.workshop);
        let done = self.index_written(written, &mut shop);
        self.buffers.workshop = shop;
        match done {
            Ok(()) => Ok(written),
            Err(error @ Error::Conflict { .. }) => Err(error),
            // What was read for the indexes was not of one moment: the answer may be wrong.
            Err(error) => Err(self.torn_or(error)?),
        }
    }

    /// The traits of a written record's namespace.
    fn see_traits(&mut self, place: usize) -> Result<u64> {
        let Some(entry) = self.buffers.entries.get(place) else { return Ok(0) };
        if entry.write.is_none() {
            return Ok(0);
        }
        let (table, meta) = (entry.table, entry.meta);
        let mut seen = self.session.member.traits(table)?;
        let expires = meta.is_some_and(|span| ends(self.buffers.bytes(span)) != 0);
        if expires && seen & traits::EXPIRING == 0 {
            let raised = |word| word | traits::EXPIRING;
            seen = self.session.member.change_traits(table, raised)?;
        }
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.traits = seen;
        }
        Ok(seen)
    }

    fn index_written(&mut self, written: usize, shop: &mut Workshop) -> Result<()> {
        for round in [Round::Taking, Round::Giving] {
            for place in 0..written {
                self.index_record(place, round, shop)?;
            }
        }
        Ok(())
    }

    fn index_record(&mut self, place: usize, round: Round, shop: &mut Workshop) -> Result<()> {
        let Some(entry) = self.buffers.entries.get(place) else { return Ok(()) };
        let (table, meta, seen) = (entry.table, entry.meta, entry.traits);
        let is_write = !entry.write.is_none();
        let is_delete = entry.write.is_delete();
        if !is_write || seen & (traits::TAGGED | traits::EXPIRING) == 0 {
            return Ok(());
        }
        // `None`: a patch, which keeps what the record has; a new one has nothing.
        if meta.is_none() && self.read_again(place)?.is_some() {
            return Ok(());
        }
        let old = self.old_meta(place)?;
        shop.meta.clear();
        shop.meta.extend_from_slice(self.buffers.bytes(meta.unwrap_or_default()));
        shop.record.clear();
        shop.record.extend_from_slice(self.key(place));
        if !is_delete && !shop.meta.is_empty() && old == shop.meta {
            return Ok(()); // The same tags and the same end: everything is where it belongs.
        }
        let new = std::mem::take(&mut shop.meta);
        let done = self.index_change(table, (old, &new), (round, is_delete), shop);
        shop.meta = new;
        done
    }

    /// What the record has beside its value as the region has it; empty if nothing or no record.
    pub(crate) fn old_meta(&mut self, place: usize) -> Result<&'s [u8]> {
        let stored = self.read_again(place)?;
        Ok(match stored {
            Some((cell, bytes)) => split(cell, bytes)?.1,
            None => &[],
        })
    }

    fn index_change(
        &mut self,
        table: u32,
        (old, new): (&[u8], &[u8]),
        (round, is_delete): (Round, bool),
        shop: &mut Workshop,
    ) -> Result<()> {
        if round == Round::Giving && !is_delete {
            let (was, is) = (ends(old), ends(new));
            if is != 0 && (was == 0 || was > is) {
                self.order_expiry(table, is, shop)?;
            }
        }
        let set = self.session.tag_set(table)?;
        for tag in set.tags().filter(|tag| tag.is_kept()) {
            if round == Round::Giving && tag.is_required && !is_delete && !has(new, &tag.name) {
                return Err(Error::BadArgument {
                    detail: format!("the tag {:?} is required: give the record one", tag.name),
                });
            }
            let (from, to) = if round == Round::Taking { (old, new) } else { (new, old) };
            for value in values(from, &tag.name) {
                if values(to, &tag.name).any(|other| other == value) {
                    continue;
                }
                match round {
                    Round::Taking => self.take(table, tag, value, shop)?,
                    Round::Giving => self.give(table, tag, value, shop)?,
                }
            }
        }
        Ok(())
    }

    /// Enters a record's value of a tag.
    pub(crate) fn give(
        &mut self,
        table: u32,
        tag: &Tag,
        value: &[u8],
        shop: &mut Workshop,
    ) -> Result<()> {
        let mut is_new = true;
        if tag.is_unique {
            posting_key(table, tag.id, value, &mut shop.key);
            let holder = self.hidden_value(&shop.key, <[u8]>::to_vec)?;
            is_new = holder.as_ref() != Some(&shop.record);
            if let Some(holder) = holder
                && is_new
                && !self.evict(table, &holder, shop)?
            {
                return Err(Error::TagTaken {
                    tag: tag.name.clone(),
                    value: String::from_utf8_lossy(value).into_owned(),
                    holder: String::from_utf8_lossy(&holder).into_owned(),
                });
            }
            posting_key(table, tag.id, value, &mut shop.key);
            if !nearstate_memory::crash::is_planted("forget-posting") {
                self.put_hidden(&shop.key, &shop.record)?;
            }
        }
        if tag.has_order() {
            shop.key.clear();
            composite(value, &shop.record, &mut shop.key);
            is_new = shop.ordered.insert(self, tag_root(table, tag.id), &shop.key)?;
        }
        if tag.is_counted && is_new {
            self.count((table, tag.id), value, 1, shop)?;
        }
        Ok(())
    }

    /// Takes a record's value of a tag away.
    pub(crate) fn take(
        &mut self,
        table: u32,
        tag: &Tag,
        value: &[u8],
        shop: &mut Workshop,
    ) -> Result<()> {
        let mut is_there = true;
        if tag.is_unique {
            posting_key(table, tag.id, value, &mut shop.key);
            let is_ours = self.hidden_value(&shop.key, |holder| holder == shop.record)?;
            is_there = is_ours == Some(true);
            if is_there {
                self.delete_hidden(&shop.key)?;
            }
        }
        if tag.has_order() {
            shop.key.clear();
            composite(value, &shop.record, &mut shop.key);
            is_there = shop.ordered.remove(self, tag_root(table, tag.id), &shop.key)?;
        }
        if tag.is_counted && is_there {
            self.count((table, tag.id), value, -1, shop)?;
        }
        Ok(())
    }

    /// A holder of a unique value whose time has passed gives way: it is deleted with all its tags.
    /// False if it is there by right.
    fn evict(&mut self, table: u32, holder: &[u8], shop: &mut Workshop) -> Result<bool> {
        let hash = self.session.hash(holder);
        let (place, stored) = self.read(table, hash, holder)?;
        let meta = match stored {
            Some((cell, bytes)) => split(cell, bytes)?.1,
            None => return Ok(false),
        };
        let is_untouched =
            self.buffers.entries.get(place).is_some_and(|entry| entry.write.is_none());
        if !is_untouched || !is_past(meta)? {
            return Ok(false);
        }
        self.delete(place);
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.is_expiry = true;
        }
        self.see_traits(place)?;
        let ours = std::mem::replace(&mut shop.record, holder.to_vec());
        let set = self.session.tag_set(table)?;
        for tag in set.tags().filter(|tag| tag.is_kept()) {
            for value in values(meta, &tag.name) {
                self.take(table, tag, value, shop)?;
            }
        }
        shop.record = ours;
        Ok(true)
    }

    fn count(
        &mut self,
        (table, tag): (u32, u8),
        value: &[u8],
        change: i64,
        shop: &mut Workshop,
    ) -> Result<()> {
        let [stripe, ..] = (self.session.member.index() % u32::from(STRIPES)).to_le_bytes();
        count_key(table, tag, stripe, value, &mut shop.key);
        let before = self.hidden_value(&shop.key, read_count)?.unwrap_or(0);
        // One stripe alone may be below zero: who takes a value away is not who gave it.
        match before.wrapping_add(change) {
            0 => self.delete_hidden(&shop.key),
            after => self.put_hidden(&shop.key, &after.to_le_bytes()),
        }
    }

    fn order_expiry(&mut self, table: u32, expires_ms: u64, shop: &mut Workshop) -> Result<()> {
        let root = expiry_root(u64::from(self.session.member.index()));
        shop.key.clear();
        expiry_key(expires_ms, table, &shop.record, &mut shop.key);
        shop.ordered.insert(self, root, &shop.key)?;
        let expiring = &self.session.hidden.expiring;
        expiring.set(expiring.get().saturating_add(1));
        Ok(())
    }
}

/// The key of a record in the order of expiry.
pub(crate) fn expiry_key(expires_ms: u64, table: u32, record: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&expires_ms.to_be_bytes());
    out.extend_from_slice(&table.to_be_bytes());
    out.extend_from_slice(record);
}

/// The number in a stripe of a count.
pub(crate) fn read_count(bytes: &[u8]) -> i64 {
    bytes.first_chunk::<8>().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// When a record with this meta ends; 0: never.
pub(crate) fn ends(meta: &[u8]) -> u64 {
    if meta.is_empty() { 0 } else { Meta::split(meta).map_or(0, |(_, meta)| meta.expires_ms) }
}

/// The values of a tag.
pub(crate) fn values<'m>(meta: &'m [u8], name: &'m str) -> impl Iterator<Item = &'m [u8]> {
    let meta = if meta.is_empty() { None } else { Meta::split(meta).ok() };
    let tags = meta.map_or(Tags::none(), |(_, meta)| meta.tags());
    tags.filter_map(move |tag| tag.ok().filter(|(found, _)| *found == name).map(|(_, value)| value))
}

fn has(meta: &[u8], name: &str) -> bool {
    values(meta, name).next().is_some()
}

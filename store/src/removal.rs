//! Removes empty namespaces (`docs/decisions/016-namespaces.md`).

use std::collections::BTreeSet;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{NamespaceEntry, RemovalDecision};
use nearstate_model::{Error, Result, invariant};

use crate::index::internal::{NAME, node_key, schema_key, tag_root};
use crate::index::schema::TagSet;
use crate::record::Kind;
use crate::session::{Namespace, Session, is_internal};

/// Empty namespaces that one creation in a full catalog removes: the next creations need not
/// search.
pub(crate) const REMOVED_AT_ONCE: usize = 256;

/// Keys that one transaction removes from the internal index.
const KEYS_AT_ONCE: usize = 32;

/// Flags of namespaces that are only removed on request: their tags, their stream or their limits
/// were declared. So was the policy `local`, which is no flag.
const DECLARED: u64 = namespace_flags::TAGGED
    | namespace_flags::LOGGED
    | namespace_flags::LIMITED
    | namespace_flags::FOLLOWED;

/// The number of the namespace to which a record of the internal index belongs. The nodes of
/// ordered indexes have names of their own.
fn number_in(key: &[u8]) -> Option<u32> {
    match key {
        [b'u' | b'p' | b'c' | b's', a, b, c, d, ..] => Some(u32::from_be_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

impl Session {
    /// Removes a namespace that has no record, with its tags. Handles of it answer `BadArgument`
    /// from then on, in every process; a namespace that is created with its name is another one.
    /// Its watches return its last events and end with an error. False if it has a record, also an
    /// expired one that was not collected, or is written to meanwhile; nothing has changed then.
    ///
    /// The memory of its index serves the next namespace that is created. If its name is created
    /// again, the versions of its keys go on.
    ///
    /// Complexity: linear in the buckets of its index; if it has tags, also in the records of all
    /// indexes.
    ///
    /// # Errors
    /// `BadArgument`: it was removed before, or no number or too few versions would be left for the
    /// next one (after 65,534 removals in one catalog entry, or 2 * 10^12 changes of one record);
    /// `Stalled`, `Full`, `Damaged`, `Forked`.
    pub fn remove_namespace(&self, namespace: Namespace) -> Result<bool> {
        self.finish_removals()?;
        self.member.check_namespace(namespace.index)?;
        let mut flags = self.member.namespace_flags(namespace.index)?;
        self.check_may_remove(namespace, flags)?;
        let is_removed = self.member.remove_namespace(namespace.index, |now| {
            flags = now;
            self.decide_requested(namespace, now)
        })?;
        if !is_removed {
            // It may belong to another host meanwhile.
            return self.check_may_remove(namespace, flags).map(|()| false);
        }
        self.internal.tags.borrow_mut().remove(&namespace.index);
        self.finish_removals()?;
        if flags & namespace_flags::LOSSLESS != 0 {
            self.relax_streams()?;
        }
        Ok(true)
    }

    /// Why a namespace with these flags is not removed on request. The caller has no lock.
    fn check_may_remove(&self, namespace: Namespace, flags: u64) -> Result<()> {
        if flags & namespace_flags::FOLLOWED != 0 {
            self.check_may_write(namespace.index)?;
        }
        if flags & namespace_flags::LOGGED != 0 {
            self.check_not_fenced_now(namespace.index)?;
        }
        Ok(())
    }

    /// As [`Self::check_may_remove`], with the namespaces lock held: a hand-over that has refused
    /// writers waits for it.
    fn decide_requested(&self, namespace: Namespace, flags: u64) -> Result<RemovalDecision> {
        let is_others = flags & namespace_flags::FOLLOWED != 0 && !self.member.is_follower();
        if is_others || flags & namespace_flags::LOGGED != 0 && self.member.is_fenced_off_now()? {
            return Ok(RemovalDecision::Keep);
        }
        Ok(RemovalDecision::Remove { has_index: self.has_schema(namespace.index)? })
    }

    /// Whether a namespace without records goes when there is no room for another one: unless
    /// something of it was declared.
    fn decide_for_room(&self, namespace: Namespace, flags: u64) -> Result<RemovalDecision> {
        let is_declared = flags & DECLARED != 0
            || self.member.is_kept_local(namespace.index)?
            || self.has_schema(namespace.index)?;
        Ok(if is_declared {
            RemovalDecision::Keep
        } else {
            RemovalDecision::Remove { has_index: false }
        })
    }

    /// True if a namespace has declared tags, and so perhaps records in indexes.
    fn has_schema(&self, number: u32) -> Result<bool> {
        let Some((internal, _)) = self.member.find_namespace(NAME)? else { return Ok(false) };
        let (table, key) = (self.member.table(internal)?, schema_key(number));
        let _held = self.member.pin()?;
        Ok(self.member.find(table, self.hash(&key), &key)?.is_some())
    }

    /// Removes empty namespaces, at most so many, except those that have tags, a commit stream or
    /// limits, or whose policy was set to `local`: also if that is declared meanwhile. Returns how
    /// many. A creation that finds no room does this itself.
    ///
    /// # Errors
    /// As [`Session::remove_namespace`].
    pub fn remove_empty_namespaces(&self, most: usize) -> Result<usize> {
        let mut count = self.finish_removals()?;
        for entry in self.member.removal_candidates()? {
            if count >= most {
                break;
            }
            let is_candidate = !is_internal(&entry.name)
                && self.member.namespace_flags(entry.index)? & DECLARED == 0
                && !self.member.is_kept_local(entry.index)?;
            let Some(kind) = Kind::of(entry.kind).filter(|_| is_candidate) else { continue };
            let namespace = Namespace { index: entry.index, kind };
            if self.is_empty(namespace)? && self.remove_unless_gone(namespace)? {
                count += 1;
                self.member.set_removal_cursor(entry.index);
            }
        }
        Ok(count)
    }

    /// Removes a namespace unless it was declared; false if another session was faster.
    pub(crate) fn remove_unless_gone(&self, namespace: Namespace) -> Result<bool> {
        let decide = |flags| self.decide_for_room(namespace, flags);
        match self.member.remove_namespace(namespace.index, decide) {
            Err(Error::BadArgument { .. }) => Ok(false),
            other => other,
        }
    }

    /// True if no record was found. Takes no lock.
    pub(crate) fn is_empty(&self, namespace: Namespace) -> Result<bool> {
        let Ok(table) = self.table(namespace) else { return Ok(false) };
        let buckets = self.member.bucket_count(table)?;
        let mut cells = Vec::new();
        for bucket in 0..buckets {
            let _held = self.member.pin()?;
            self.member.collect_bucket(table, bucket, buckets, &mut cells)?;
            if !cells.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes what removed namespaces have left in indexes: the removal of one with tags ends
    /// here, also if the process that began it was killed. Returns the number of namespaces.
    fn finish_removals(&self) -> Result<usize> {
        let numbers = self.member.unfinished_removals()?;
        if numbers.is_empty() {
            return Ok(0);
        }
        if self.member.find_namespace(NAME)?.is_some() {
            numbers.iter().try_for_each(|number| self.empty_trees(*number))?;
            let keys = self.keys_of(&numbers)?;
            for keys in keys.chunks(KEYS_AT_ONCE) {
                self.transact(|txn| {
                    let mut set = txn.set.borrow_mut();
                    keys.iter().try_for_each(|key| set.delete_internal(key))
                })?;
            }
        }
        for number in &numbers {
            self.member.finish_removal(*number)?;
        }
        Ok(numbers.len())
    }

    /// Removes the keys of the ordered indexes of a namespace. Those of a tag that was being
    /// removed may be left.
    fn empty_trees(&self, number: u32) -> Result<()> {
        let tags = self.transact(|txn| {
            let mut set = txn.set.borrow_mut();
            let tags = set.internal_value(&schema_key(number), TagSet::decode)?;
            Ok::<_, Error>(tags.transpose()?)
        })?;
        for tag in tags.iter().flat_map(TagSet::tags).filter(|tag| tag.is_ordered) {
            let root = tag_root(number, tag.id);
            while self.transact(|txn| {
                let set = &mut *txn.set.borrow_mut();
                let mut scratch = set.buffers.take_scratch();
                let mut key = Vec::new();
                let is_removed = scratch
                    .ordered
                    .first(set, root, &mut key)
                    .and_then(|is_there| Ok(is_there && scratch.ordered.remove(set, root, &key)?));
                set.buffers.give_scratch(scratch);
                is_removed
            })? {}
        }
        Ok(())
    }

    /// The numbers of namespaces that do not exist, whose removal is complete, and that still have
    /// records in indexes.
    pub(crate) fn orphaned_numbers(&self, namespaces: &[NamespaceEntry]) -> Result<Vec<u32>> {
        let mut known: BTreeSet<u32> = namespaces.iter().map(|entry| entry.index).collect();
        known.extend(self.member.unfinished_removals()?);
        let internal = Namespace { index: self.internal_table()?, kind: Kind::Value };
        let mut orphaned = BTreeSet::new();
        self.each_stored(internal, &mut |cell| {
            orphaned.extend(number_in(cell.key()?).filter(|number| !known.contains(number)));
            Ok(())
        })?;
        Ok(orphaned.into_iter().collect())
    }

    /// The keys of all records of the internal namespace that belong to these namespaces.
    fn keys_of(&self, numbers: &[u32]) -> Result<Vec<Vec<u8>>> {
        let internal = Namespace { index: self.internal_table()?, kind: Kind::Value };
        let numbers: BTreeSet<u32> = numbers.iter().copied().collect();
        let mut keys = Vec::new();
        self.each_stored(internal, &mut |cell| {
            let key = cell.key()?;
            if number_in(key).is_some_and(|number| numbers.contains(&number)) {
                keys.push(key.to_vec());
            }
            Ok(())
        })?;
        // An ordered index without keys has at most its root.
        for number in numbers {
            invariant!(schema_key(number).len() == 5, "a namespace's key has its number");
            keys.extend((0..=u8::MAX).map(|tag| node_key(tag_root(number, tag)).to_vec()));
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests;

//! The catalog of a region: which entries are in use, and a process's table of the names in it.
//!
//! ```text
//! changer, under the namespaces lock         table of names
//! C1  changes := odd                         T1  n := changes           (acquire)
//! C2  the store that commits                 T2  read the entries
//! C3  changes := next even  (release)        T3  n is even: the table is valid for n
//! ```
//!
//! A table that is valid for n is complete as long as `changes` is n. T1 synchronizes with the C3
//! that stored n, so T2 sees each change up to it. Each later change stores an odd number before
//! its commit. The holder of the namespaces lock therefore knows all names if the number is still
//! that of its table. A changer that dies before C3 leaves an odd number. No table is valid for it:
//! the next holder of the lock makes it even and reads the entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::NAMESPACES_MAX;
use nearstate_model::{Error, invariant};

use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::layout::{
    CATALOG_BUCKETS, CATALOG_CHECK, CATALOG_FLAGS, CATALOG_GENERATION, CATALOG_STATE, Corruption,
    NAMESPACE_LIVE, NAMESPACE_NUMBER_BITS, SUPER_CATALOG_CHANGES, SUPER_NAMESPACES,
    SUPER_STAMP_FLOOR, catalog_at, seal, unseal,
};
use crate::region::catalog_use::{EntryUse, is_current, namespace_removed, parse_use};
use crate::region::index_table::{NamespaceIdentity, number_in, parse_flags};
use crate::region::map::Map;

/// The number of catalog entries that were ever used.
pub(crate) fn entries_used(map: &Map) -> Result<u32, Corruption> {
    let word = map.word(SUPER_NAMESPACES)?.load(Ordering::Acquire);
    let used = unseal(word, "the count of namespaces has a flipped bit")?;
    match u32::try_from(used) {
        Ok(used) if used as usize <= NAMESPACES_MAX => Ok(used),
        _ => Err(Corruption("more namespaces than a region can have")),
    }
}

/// The flags of a namespace.
#[inline]
pub(crate) fn flags_of(map: &Map, number: u32) -> Result<u64, Corruption> {
    parse_flags(map.word(catalog_at(number) + CATALOG_FLAGS)?)
}

/// The sealed word of a number that only grows. That of a new region is 0.
const fn count_word(count: u64) -> u64 {
    seal(count) ^ seal(0)
}

/// The number in a [`count_word`].
pub(crate) const fn parse_count(word: u64) -> Result<u64, Corruption> {
    unseal(word ^ seal(0), "a count in the superblock has a flipped bit")
}

/// T1. An odd number stands for a change in progress, or one whose process died.
pub(crate) fn changes(word: &AtomicU64) -> Result<u64, Corruption> {
    parse_count(word.load(Ordering::Acquire))
}

/// The highest stamp in the indexes of removed namespaces: the stamps of a new namespace begin
/// there, so that no key gets a version again that it had in a removed namespace of the same name.
pub(crate) fn stamp_floor(map: &Map) -> Result<u64, Corruption> {
    parse_count(map.word(SUPER_STAMP_FLOOR)?.load(Ordering::Acquire))
}

/// Raises [`stamp_floor`]. The caller holds the namespaces lock, and has not yet committed the
/// removal.
pub(crate) fn raise_stamp_floor(map: &Map, stamp: u64) -> Result<(), Corruption> {
    let floor = stamp_floor(map)?.max(stamp);
    map.word(SUPER_STAMP_FLOOR)?.store(count_word(floor), Ordering::Release);
    Ok(())
}

/// True if no change was in progress: T3.
pub(crate) fn is_settled(changes: u64) -> bool {
    changes.is_multiple_of(2) || mutant("names-odd-valid")
}

/// C1, by the holder of the namespaces lock. Returns the number of changes before it.
pub(crate) fn begin_change(word: &AtomicU64) -> Result<u64, Corruption> {
    let before = changes(word)?;
    if !mutant("names-no-odd") {
        word.store(count_word(before | 1), Ordering::Release);
    }
    Ok(before)
}

/// C3. Returns the number of changes after it.
pub(crate) fn end_change(word: &AtomicU64, before: u64) -> u64 {
    let after = (before | 1) + 1;
    debug_assert!(after.is_multiple_of(2) && after > before, "a change ends with an even number");
    let release = if mutant("names-end-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.store(count_word(after), release);
    after
}

/// What a catalog entry is used for, and by which of its namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// The creation of its first namespace was interrupted.
    Interrupted,
    /// It has the namespace of this generation.
    Live(u32),
    /// Its namespace was removed, and may have left records in indexes.
    Removed(u32),
    /// It can serve another namespace, of this generation.
    Free(u32),
}

/// True if an entry that was used has only zeros, as no creation, removal or repair leaves it: an
/// entry without a state has the name of its creator, or a generation that a repair has marked as
/// free.
pub(crate) fn is_zero_entry(map: &Map, index: u32) -> Result<bool, Corruption> {
    debug_assert!(index < entries_used(map)?, "an entry that was never used has only zeros");
    for which in [CATALOG_STATE, CATALOG_GENERATION, CATALOG_CHECK] {
        // Acquire: a creator stores them in the opposite order.
        if map.word(catalog_at(index) + which)?.load(Ordering::Acquire) != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The state of an entry.
pub(crate) fn entry_state(map: &Map, index: u32) -> Result<EntryState, Corruption> {
    let at = catalog_at(index);
    match map.word(at + CATALOG_STATE)?.load(Ordering::Acquire) {
        NAMESPACE_LIVE => {}
        0 => return Ok(EntryState::Interrupted),
        _ => return Err(Corruption("the state of a namespace has a flipped bit")),
    }
    let (generation, is) = parse_use(map.word(at + CATALOG_GENERATION)?.load(Ordering::Acquire))?;
    Ok(match is {
        EntryUse::Live | EntryUse::Leaving => EntryState::Live(generation),
        EntryUse::Removed => EntryState::Removed(generation),
        EntryUse::Free => EntryState::Free(generation),
    })
}

/// Checks that a namespace was not removed. After that, what the caller has read before is of this
/// namespace.
///
/// # Errors
/// `BadArgument`: it was removed; `Damaged`.
pub(crate) fn check_namespace(map: &Map, number: u32) -> Result<(), Error> {
    let word = map.word(catalog_at(number) + CATALOG_GENERATION)?;
    if is_current(word, number >> NAMESPACE_NUMBER_BITS) {
        return Ok(());
    }
    Err(namespace_removed(number))
}

/// An entry as a process has read it.
#[derive(Clone, Debug, Default)]
struct KnownEntry {
    /// `None`: it changed while it was read.
    state: Option<EntryState>,
    /// The name of its namespace, if it has one.
    name: Arc<[u8]>,
    kind: u64,
    /// Buckets of its index, if it is free: its next creator visits each of them.
    buckets: u64,
}

/// The names of a region's namespaces, as far as a process has read them.
#[derive(Debug, Default)]
pub(crate) struct NameTable {
    /// The number of changes for which the table is complete.
    valid_for: Option<u64>,
    entries: Vec<KnownEntry>,
    live: BTreeMap<Arc<[u8]>, u32>,
    /// With the numbers of their buckets: those with few come first.
    free: BTreeSet<(u64, u32)>,
    interrupted: BTreeSet<u32>,
}

impl NameTable {
    /// Reads the entries that have changed since they were last read. A name that a namespace has
    /// during the whole call is in the table afterwards.
    pub(crate) fn refresh(&mut self, map: &Map) -> Result<(), Corruption> {
        let now = changes(map.word(SUPER_CATALOG_CHANGES)?)?;
        if self.valid_for == Some(now) {
            return Ok(());
        }
        self.valid_for = None;
        for index in 0..entries_used(map)? {
            self.read_entry(map, index)?;
        }
        self.valid_for = is_settled(now).then_some(now);
        Ok(())
    }

    /// As [`NameTable::refresh`], by the holder of the namespaces lock: the table is complete
    /// afterwards.
    pub(crate) fn complete(&mut self, map: &Map) -> Result<(), Corruption> {
        let word = map.word(SUPER_CATALOG_CHANGES)?;
        let now = changes(word)?;
        if !is_settled(now) {
            end_change(word, now);
        }
        self.refresh(map)?;
        invariant!(self.valid_for.is_some(), "the catalog changes without the namespaces lock");
        Ok(())
    }

    fn read_entry(&mut self, map: &Map, index: u32) -> Result<(), Corruption> {
        let state = entry_state(map, index)?;
        if self.known(index).is_some_and(|known| known.state == Some(state)) {
            return Ok(());
        }
        let (name, kind) = match state {
            EntryState::Live(generation) => {
                let read = NamespaceIdentity::load(map, index);
                // If the namespace was removed meanwhile, the next name may be half written.
                fence(Ordering::Acquire);
                if entry_state(map, index)? != state {
                    self.set(index, KnownEntry::default());
                    return Ok(());
                }
                let NamespaceIdentity { name, kind, generation: read } = read?;
                debug_assert!(read == u64::from(generation), "a generation never falls");
                (name, kind)
            }
            // Its number would be given to another namespace.
            EntryState::Interrupted if is_zero_entry(map, index)? => {
                return Err(Corruption("the catalog entry of a namespace is zeros"));
            }
            EntryState::Interrupted | EntryState::Removed(_) | EntryState::Free(_) => {
                (Vec::new(), 0)
            }
        };
        let buckets = buckets_of(map, index, state);
        self.set(index, KnownEntry { state: Some(state), name: name.into(), kind, buckets });
        Ok(())
    }

    fn known(&self, index: u32) -> Option<&KnownEntry> {
        self.entries.get(index as usize)
    }

    fn set(&mut self, index: u32, entry: KnownEntry) {
        invariant!((index as usize) < NAMESPACES_MAX, "entry {index} of the catalog");
        if self.known(index).is_none() {
            self.entries.resize_with(index as usize + 1, KnownEntry::default);
        }
        let known = guaranteed(self.entries.get_mut(index as usize), "the table has each entry");
        let old = std::mem::replace(known, entry.clone());
        match old.state {
            Some(EntryState::Live(_)) => {
                // Another entry may have the name by now.
                if self.live.get(&old.name) == Some(&index) {
                    self.live.remove(&old.name);
                }
            }
            Some(EntryState::Free(_)) => {
                self.free.remove(&(old.buckets, index));
            }
            Some(EntryState::Interrupted) => {
                self.interrupted.remove(&index);
            }
            Some(EntryState::Removed(_)) | None => {}
        }
        match entry.state {
            Some(EntryState::Live(_)) => {
                self.live.insert(entry.name, index);
            }
            Some(EntryState::Free(_)) => {
                self.free.insert((entry.buckets, index));
            }
            Some(EntryState::Interrupted) => {
                self.interrupted.insert(index);
            }
            Some(EntryState::Removed(_)) | None => {}
        }
    }

    /// The number and the kind of the namespace with a name.
    pub(crate) fn find(&self, map: &Map, name: &[u8]) -> Result<Option<(u32, u64)>, Corruption> {
        let Some(index) = self.live.get(name).copied() else { return Ok(None) };
        let Some(KnownEntry { state: Some(EntryState::Live(generation)), kind, .. }) =
            self.known(index)
        else {
            invariant!("entry {index} has a name and no namespace");
        };
        let number = *generation << NAMESPACE_NUMBER_BITS | index;
        // The number is that of one namespace only, which may have been removed since.
        Ok((number_in(map, index)? == Some(number)).then_some((number, *kind)))
    }

    /// An entry for a new namespace: one whose creation was interrupted, or the free one with the
    /// fewest buckets.
    pub(crate) fn free_entry(&self) -> Option<u32> {
        self.interrupted.first().copied().or_else(|| self.free_index())
    }

    /// The free entry with the fewest buckets: its creator holds the namespaces lock for a short
    /// time.
    pub(crate) fn free_index(&self) -> Option<u32> {
        self.free.first().map(|(_, index)| *index)
    }

    /// Records the caller's own change of an entry, which changed the number of changes so.
    pub(crate) fn record(
        &mut self,
        map: &Map,
        index: u32,
        state: EntryState,
        (name, kind): (&[u8], u64),
        (before, after): (u64, u64),
    ) {
        invariant!(before < after, "the count of changes goes from {before} to {after}");
        if self.valid_for == Some(before) {
            let buckets = buckets_of(map, index, state);
            self.set(index, KnownEntry { state: Some(state), name: name.into(), kind, buckets });
            self.valid_for = Some(after);
        }
    }
}

/// The number of buckets of a free entry, 0 for others. A damaged number is found when the entry is
/// used: it comes last.
fn buckets_of(map: &Map, index: u32, state: EntryState) -> u64 {
    if !matches!(state, EntryState::Free(_)) {
        return 0;
    }
    let word = map.word(catalog_at(index) + CATALOG_BUCKETS);
    word.and_then(|word| unseal(word.load(Ordering::Relaxed), "")).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_count_begins_with_zero_and_a_flipped_bit_is_found() {
        assert_eq!(count_word(0), 0, "as in a region without namespaces");
        for count in [0, 1, 2, 77, 1 << 47] {
            assert_eq!(parse_count(count_word(count)), Ok(count));
            for bit in 0..64 {
                assert!(parse_count(count_word(count) ^ 1 << bit).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_change_that_was_not_ended_is_counted_by_the_next_one() {
        let word = AtomicU64::new(0);
        assert_eq!(begin_change(&word), Ok(0));
        assert!(!is_settled(changes(&word).unwrap()), "its process died here");
        let before = begin_change(&word).unwrap();
        assert_eq!(end_change(&word, before), 2);
        assert!(is_settled(changes(&word).unwrap()));
    }
}

//! The entry that a follower applies. Its commit and the store of its position are two steps, so a
//! follower stores first what shows that the commit has happened: a kill between the two leaves a
//! copy that has the entry, and a copy reports everything that it has.
//!
//! ```text
//! E1  position, check value and witness of the entry     check value of these words last
//! E2  the entry is committed
//! E3  the position                                       from here on E1 counts for nothing
//! ```
//!
//! The witness is one record of the entry, which is one transaction: behind E2, and not before, it
//! has the version that the entry gives, or it is absent.

use nearstate_model::{Result, invariant};

use super::{FollowPosition, check_of, check_stored, load, store};
use crate::crash::crash_point;
use crate::layout::{Corruption, FOLLOW_COMING, NAMESPACE_NUMBER_BITS, entry_of};
use crate::member::Member;
use crate::region::index_table::{IndexTable, NO_NAMESPACE};
use crate::region::map::Map;

/// The check value of E1, behind its words.
pub(super) const CHECK: u64 = FOLLOW_COMING + 32;

/// The entry that a follower applies, and the record that shows that it was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComingEntry {
    /// Its position and check value.
    pub place: FollowPosition,
    /// The namespace of the record. Its generation is not stored ([`ComingEntry::is_of`]).
    pub namespace: u32,
    /// The hash of its key.
    pub hash: u64,
    /// The version that the entry gives it; 0 if the entry deletes it.
    pub version: u64,
}

impl ComingEntry {
    /// True if the record is one of a namespace with this number, which is live.
    pub const fn is_of(&self, number: u32) -> bool {
        entry_of(number) == entry_of(self.namespace)
    }
}

fn words_of(map: &Map) -> Result<[u64; 4], Corruption> {
    let mut words = [0; 4];
    for (word, at) in words.iter_mut().zip((FOLLOW_COMING..).step_by(8)) {
        *word = load(map, at)?;
    }
    Ok(words)
}

/// There is no coming entry.
pub(super) fn clear(map: &Map) -> Result<(), Corruption> {
    store(map, CHECK, 0)
}

/// For the check.
pub(super) fn check(map: &Map) -> Result<(), Corruption> {
    check_stored(map, CHECK, &words_of(map)?, "the coming entry of a follower has a flipped bit")
}

impl Member {
    /// The version of the record whose key has this hash, also of an expired one. The caller holds
    /// a pin. Of two keys with one hash it is either: a chance of 2^-64 for each record of a
    /// bucket.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn version_of_hash(&self, table: &IndexTable, hash: u64) -> Result<Option<u64>> {
        let found = self.find_selected(table, hash, |cell| {
            let (key, value) = cell.key_and_value()?;
            Ok((self.hash(key) == hash).then_some((cell, value)))
        })?;
        self.check_not_truncated()?;
        Ok(found.map(|(cell, _)| cell.version()))
    }

    /// E1. The caller has the follower's lock. Cost: six stores to one line.
    ///
    /// # Errors
    /// `Damaged`: also of a position that no log has.
    pub fn set_coming_entry(&self, coming: &ComingEntry) -> Result<()> {
        const TOO_HIGH: Corruption = Corruption("an entry has a position that no log has");
        let FollowPosition { position, check } = coming.place;
        if position >> (u64::BITS - NAMESPACE_NUMBER_BITS) != 0 {
            return Err(TOO_HIGH.into());
        }
        invariant!(coming.namespace != NO_NAMESPACE, "the record of an entry has a namespace");
        let map = self.map();
        let place = position << NAMESPACE_NUMBER_BITS | u64::from(entry_of(coming.namespace));
        let words = [place, check, coming.hash, coming.version];
        clear(map)?;
        for (word, at) in words.into_iter().zip((FOLLOW_COMING..).step_by(8)) {
            store(map, at, word)?;
        }
        store(map, CHECK, check_of(&words))?;
        crash_point!("follow.coming");
        Ok(())
    }

    /// What E1 has stored, if it was stored completely.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn coming_entry(&self) -> Result<Option<ComingEntry>> {
        let words = words_of(self.map())?;
        if load(self.map(), CHECK)? != check_of(&words) {
            return Ok(None);
        }
        let [place, check, hash, version] = words;
        let position = place >> NAMESPACE_NUMBER_BITS;
        let namespace = entry_of(place as u32);
        Ok(Some(ComingEntry {
            place: FollowPosition { position, check },
            namespace,
            hash,
            version,
        }))
    }

    /// The coming entry was applied, or it will not be. The caller has the follower's lock.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn clear_coming_entry(&self) -> Result<()> {
        Ok(clear(self.map())?)
    }
}

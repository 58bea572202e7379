//! A follower changes from one log to that of its successor: at the last position of the old one,
//! which is a position of the new one (`docs/decisions/026-cluster.md`).
//!
//! ```text
//! W1  the number of each namespace at the new source, beside the present one
//! W2  the new log and the position in it
//! W3  state := switching          from here on the region follows the new log
//! W4  the numbers, the log and the position take their places
//! W5  state := full
//! ```
//!
//! A kill before W3 leaves the old log. One behind it leaves the new log: W4 is repeated by the
//! next follower.
//!
//! A region that has all records of a log up to a position, and is no copy yet, *returns* to be one
//! in the same way: an owner's whose log ends at the seal, and a copy whose promotion was killed.
//! Its state is *returning* then, and the position that it has reached is stored before W3.

use nearstate_model::{Result, invariant};

use super::{
    FollowPosition, FollowState, LogIdentity, check_of, check_stored, demotion_seal, load,
    name_source, store, store_place,
};
use crate::crash::crash_point;
use crate::layout::{
    CATALOG_NEXT_SOURCE, CATALOG_SOURCE, Corruption, DEMOTION_SEAL, FOLLOW_PLACES, FOLLOW_REACHED,
    FOLLOW_STATE, FOLLOW_SWITCH, catalog_at, entry_of, seal, unseal,
};
use crate::member::Member;
use crate::region::map::Map;

/// The check value of W2, behind its words.
pub(super) const TARGET_CHECK: u64 = FOLLOW_SWITCH + 48;

const DAMAGED: &str = "the log that a follower changes to has a flipped bit";

fn target_words(map: &Map) -> Result<[u64; 6], Corruption> {
    let mut words = [0; 6];
    for (word, at) in words.iter_mut().zip((FOLLOW_SWITCH..).step_by(8)) {
        *word = load(map, at)?;
    }
    Ok(words)
}

/// For the check, also when no follower switches.
pub(super) fn check_target(map: &Map) -> Result<(), Corruption> {
    check_stored(map, TARGET_CHECK, &target_words(map)?, DAMAGED)
}

/// What a region follows between W3 and W5, and the position that it has reached.
pub(super) fn begun(map: &Map) -> Result<Option<(LogIdentity, FollowPosition, u64)>, Corruption> {
    let is_returning = is_returning(map)?;
    if !is_returning && !is_switching(map)? {
        return Ok(None);
    }
    let (source, place) = target(map)?;
    let reached = if is_returning { demotion_seal(map)? } else { None };
    Ok(Some((source, place, reached.unwrap_or(0).max(place.position))))
}

/// Where a follower that switches continues.
pub(super) fn target(map: &Map) -> Result<(LogIdentity, FollowPosition), Corruption> {
    let words = target_words(map)?;
    if load(map, TARGET_CHECK)? != check_of(&words) {
        return Err(Corruption(DAMAGED));
    }
    let [one, other, incarnation, origin, position, check] = words;
    let source = LogIdentity { region: [one, other], incarnation, origin };
    Ok((source, FollowPosition { position, check }))
}

/// True between W3 and W5.
pub(super) fn is_switching(map: &Map) -> Result<bool, Corruption> {
    Ok(load(map, FOLLOW_STATE)? == seal(FollowState::SWITCHING))
}

/// True between W3 and W5 of a region that returns.
fn is_returning(map: &Map) -> Result<bool, Corruption> {
    Ok(load(map, FOLLOW_STATE)? == seal(FollowState::RETURNING))
}

impl Member {
    /// W1: the number of a followed namespace at the new source, `None` if it has none there. The
    /// caller has the follower's lock.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_next_source_number(&self, namespace: u32, number: Option<u32>) -> Result<()> {
        let at = catalog_at(entry_of(namespace)) + CATALOG_NEXT_SOURCE;
        // A number that no namespace has: a namespace of this name is another one.
        let number = number.map_or(u64::from(u32::MAX) + 1, u64::from);
        Ok(store(self.map(), at, seal(number + 1))?)
    }

    /// W2 and W3. The caller has the follower's lock.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn begin_switch(&self, to: LogIdentity, place: FollowPosition) -> Result<()> {
        self.store_target(to, place)?;
        store(self.map(), FOLLOW_STATE, seal(FollowState::SWITCHING))?;
        crash_point!("switch.begun");
        self.check_not_truncated()
    }

    /// W2 and W3 of a region that has everything of a log up to `reached`, the last entry of which
    /// is at `place`. The caller has the follower's lock, and no writer of a logged namespace is
    /// left.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn begin_return(&self, to: LogIdentity, place: FollowPosition, reached: u64) -> Result<()> {
        invariant!(reached >= place.position, "a copy has reached its last entry");
        self.store_target(to, place)?;
        store(self.map(), DEMOTION_SEAL, seal(reached + 1))?;
        crash_point!("return.named");
        store(self.map(), FOLLOW_STATE, seal(FollowState::RETURNING))?;
        crash_point!("return.begun");
        self.check_not_truncated()
    }

    fn store_target(&self, to: LogIdentity, place: FollowPosition) -> Result<()> {
        self.check_usable()?;
        let map = self.map();
        let [one, other] = to.region;
        let words = [one, other, to.incarnation, to.origin, place.position, place.check];
        store(map, TARGET_CHECK, 0)?;
        for (word, at) in words.into_iter().zip((FOLLOW_SWITCH..).step_by(8)) {
            store(map, at, word)?;
        }
        store(map, TARGET_CHECK, check_of(&words))?;
        crash_point!("switch.named");
        Ok(())
    }

    /// True if a follower was killed behind W3: its successor completes the switch before it does
    /// anything else.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_switching(&self) -> Result<bool> {
        Ok(is_switching(self.map())?)
    }

    /// True if a process was killed behind W3 of a return: the next one completes it before it does
    /// anything else.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_returning(&self) -> Result<bool> {
        Ok(is_returning(self.map())?)
    }

    /// W4: the number of a namespace. Can be repeated.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn take_next_source_number(&self, namespace: u32) -> Result<()> {
        let (map, at) = (self.map(), catalog_at(entry_of(namespace)));
        let next = load(map, at + CATALOG_NEXT_SOURCE)?;
        if next == 0 {
            return Ok(()); // It was taken before the kill.
        }
        unseal(next, "the number of a namespace at its next source has a flipped bit")?;
        store(map, at + CATALOG_SOURCE, next)?;
        crash_point!("switch.numbered");
        Ok(store(map, at + CATALOG_NEXT_SOURCE, 0)?)
    }

    /// The rest of W4, and W5. Can be repeated.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn end_switch(&self) -> Result<()> {
        self.check_usable()?;
        let map = self.map();
        let Some((source, place, reached)) = begun(map)? else {
            return Err(Corruption("a region that changes to no other log has changed").into());
        };
        name_source(map, source)?;
        let [one, other] = FOLLOW_PLACES;
        store(map, other + 16, 0)?;
        store_place(map, one, place)?;
        if reached > place.position {
            store(map, FOLLOW_REACHED, seal(reached))?;
        }
        crash_point!("switch.placed");
        store(map, FOLLOW_STATE, seal(FollowState::Full.code()))?;
        crash_point!("switch.ended");
        self.check_not_truncated()
    }
}

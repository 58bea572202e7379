//! Places in a log: positions with the incarnation of the log that gave them
//! (`docs/decisions/036-receipts.md`).
//!
//! Positions of one region are never used twice, so within it a position is enough. A receipt can
//! outlive that: its holder asks at another host after a fail-over, or the file was replaced by an
//! older copy of itself.

use std::time::{Duration, Instant};

use nearstate_model::Result;

use crate::atomic::Ordering;
use crate::follow::left::has_left;
use crate::follow::{FollowState, LogIdentity, following, identity, reached};
use crate::layout::{Corruption, LOG_BEGINS_MAX, LOG_REPLICATED, LOG_TAIL, LOG_WAKE};
use crate::log::begins::begin_of;
use crate::log::reader::{LogWaiter, PositionState, SLEEP_MAX, position_state};
use crate::log::wake::{must_wake_sleepers, register_sleeper};
use crate::member::Member;
use crate::region::map::Map;
use crate::system::{futex_wait, futex_wake};
use crate::takeover::takeover;

/// A position, and the log that gave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace {
    /// The position; 0 stands for nothing.
    pub position: u64,
    /// The log ([`LogIdentity::number`]).
    pub log: u64,
}

/// What a place is for this region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// A position of its own log, or as good as that one.
    Own(u64),
    /// One of the log that it follows: what the group has of it, the owner knows.
    Followed,
    /// Behind the end of the log that it has taken over.
    Lost,
    /// One that this region has not given, of a log of which it knows nothing.
    Unknown,
}

#[inline]
fn standing(map: &Map, place: LogPlace) -> Result<Standing, Corruption> {
    let own = identity(map)?;
    if place.log != own.number() {
        return if place.position == 0 {
            Ok(Standing::Own(0))
        } else {
            standing_of(map, own, place)
        };
    }
    // The end is behind what is replicated, and its line belongs to the writers.
    let is_given = [LOG_REPLICATED, LOG_TAIL].into_iter().try_fold(false, |is_given, at| {
        Ok(is_given || place.position <= map.word(at)?.load(Ordering::Acquire))
    });
    Ok(if is_given? { Standing::Own(place.position) } else { Standing::Unknown })
}

#[cold]
fn standing_of(map: &Map, own: LogIdentity, place: LogPlace) -> Result<Standing, Corruption> {
    debug_assert!(place.log != own.number(), "the present incarnation is looked up elsewhere");
    let age = own.number().wrapping_sub(place.log);
    if age < LOG_BEGINS_MAX && age <= own.incarnation {
        let end = begin_of(map, own.incarnation, own.incarnation - age + 1)?;
        let is_given = end.is_some_and(|end| place.position <= end);
        return Ok(if is_given { Standing::Own(place.position) } else { Standing::Unknown });
    }
    if let Some(takeover) = takeover(map, own)?
        && takeover.old.number() == place.log
    {
        // Positions behind its last entry have none: the seal of the group is where it had reached.
        let sealed = takeover.seal.position.max(reached(map)?);
        let is_kept = place.position <= sealed;
        return Ok(if is_kept { Standing::Own(takeover.position) } else { Standing::Lost });
    }
    match following(map)? {
        Some(following) if following.source.number() == place.log => Ok(Standing::Followed),
        Some(_) | None => Ok(Standing::Unknown),
    }
}

#[inline]
fn place_state(map: &Map, place: LogPlace) -> Result<PositionState, Corruption> {
    match standing(map, place)? {
        Standing::Own(position) => position_state(map, position),
        Standing::Followed => followed_state(map),
        Standing::Lost => Ok(PositionState::Lost),
        Standing::Unknown => Ok(PositionState::Unknown),
    }
}

/// Of the log that a region follows, the owner decides; of a host that has left the group, no
/// owner that it hears does.
fn followed_state(map: &Map) -> Result<PositionState, Corruption> {
    Ok(if has_left(map)? { PositionState::Unknown } else { PositionState::Pending })
}

/// Whether a region has what a place stands for; `None`: not yet.
fn is_applied(map: &Map, place: LogPlace) -> Result<Option<bool>, Corruption> {
    let standing = standing(map, place)?;
    let followed = following(map)?;
    let is_copy = followed.is_some_and(|copy| copy.state != FollowState::Promoting);
    match (standing, followed) {
        (Standing::Lost | Standing::Unknown, _) => Ok(Some(false)),
        (Standing::Own(position), _) => match position_state(map, position)? {
            PositionState::Lost | PositionState::Unknown => Ok(Some(false)),
            // A copy that was the owner discards its records, and has them again when it is whole:
            // then what the group has of its log counts as replicated.
            PositionState::Pending => Ok((!is_copy).then_some(true)),
            PositionState::Acknowledged => {
                let is_whole = followed.is_none_or(|copy| is_prefix(copy.state));
                Ok(is_whole.then_some(true))
            }
        },
        (Standing::Followed, Some(copy)) => {
            let has_it = is_prefix(copy.state) && copy.reached >= place.position;
            // A host that has left the group gets no more than it has.
            Ok((has_it || has_left(map)?).then_some(has_it))
        }
        (Standing::Followed, None) => Ok(None),
    }
}

/// True if a copy in this state is what its source was at a position.
const fn is_prefix(state: FollowState) -> bool {
    match state {
        FollowState::Full | FollowState::Extending | FollowState::Promoting => true,
        FollowState::Joining | FollowState::Demoting => false,
    }
}

impl Member {
    /// A position of the region's own log, with the incarnation that gave it.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn place_of(&self, position: u64) -> Result<LogPlace> {
        if position == 0 {
            return Ok(LogPlace::default());
        }
        self.checked(self.loaded_place_of(position)?)
    }

    #[inline]
    fn loaded_place_of(&self, position: u64) -> Result<LogPlace, Corruption> {
        debug_assert!(position != 0, "nothing has no incarnation");
        let own = identity(self.map())?;
        let begin = begin_of(self.map(), own.incarnation, own.incarnation)?;
        if position > begin.unwrap_or(0) {
            return Ok(LogPlace { position, log: own.number() });
        }
        self.place_before(own, position)
    }

    #[cold]
    fn place_before(&self, own: LogIdentity, position: u64) -> Result<LogPlace, Corruption> {
        let mut age = 1;
        // Of a position that is older than all that is known, the oldest one known says that this
        // region has given it.
        while age < LOG_BEGINS_MAX - 1
            && own.incarnation.checked_sub(age).map_or(Ok(None), |incarnation| {
                begin_of(self.map(), own.incarnation, incarnation)
            })? >= Some(position)
        {
            age += 1;
        }
        debug_assert!(age < LOG_BEGINS_MAX, "an incarnation of which nothing is known");
        Ok(LogPlace { position, log: own.number().wrapping_sub(age) })
    }

    /// What has become of a place. Cost: six loads, if it is one of the present incarnation and the
    /// consumer has lost nothing.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn place_state(&self, place: LogPlace) -> Result<PositionState> {
        self.checked(place_state(self.map(), place)?)
    }

    /// As [`Member::wait_for_position`]. A place of the log that the region follows is waited for
    /// until the region has taken it over.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn wait_for_place(&self, place: LogPlace, timeout: Duration) -> Result<PositionState> {
        let mut begin = None;
        loop {
            let left =
                begin.map_or(timeout, |begin: Instant| timeout.saturating_sub(begin.elapsed()));
            debug_assert!(left <= timeout, "a wait gets longer");
            match self.checked(standing(self.map(), place)?)? {
                Standing::Own(position) => return self.wait_for_position(position, left),
                Standing::Lost => return Ok(PositionState::Lost),
                Standing::Unknown => return Ok(PositionState::Unknown),
                Standing::Followed => {
                    let state = self.checked(followed_state(self.map())?)?;
                    if left.is_zero() || state != PositionState::Pending {
                        return Ok(state);
                    }
                }
            }
            self.check_usable()?;
            begin.get_or_insert_with(Instant::now);
            let word = self.map().word(LOG_WAKE)?;
            let seen = register_sleeper(word);
            futex_wait(word, seen, left.min(SLEEP_MAX))?;
        }
    }

    /// Waits until the region has what a place stands for, for at most `timeout`. False if it has
    /// not, or never will.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn wait_until_applied(&self, place: LogPlace, timeout: Duration) -> Result<bool> {
        self.check_usable()?;
        if let Some(known) = self.checked(is_applied(self.map(), place)?)? {
            return Ok(known);
        }
        let begin = Instant::now();
        let word = self.map().word(LOG_WAKE)?;
        loop {
            let seen = register_sleeper(word);
            if let Some(known) = self.checked(is_applied(self.map(), place)?)? {
                return Ok(known);
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            futex_wait(word, seen, left.min(SLEEP_MAX))?;
            self.check_usable()?;
        }
    }

    /// Wakes those that wait until the region has applied something. A load, if there are none.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn wake_readers(&self) -> Result<()> {
        let word = self.map().word(LOG_WAKE)?;
        if must_wake_sleepers(word) {
            futex_wake(word);
        }
        Ok(())
    }
}

impl LogWaiter {
    /// As [`Member::place_state`].
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn place_state(&self, place: LogPlace) -> Result<PositionState> {
        self.checked(place_state(&self.shared.map, place)?)
    }

    /// As [`Member::position_state`].
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn position_state(&self, position: u64) -> Result<PositionState> {
        self.checked(position_state(&self.shared.map, position)?)
    }

    /// The position of the region's own log that a place stands for; `None`: it is of another log,
    /// and nothing that its consumer does decides it.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn own_position(&self, place: LogPlace) -> Result<Option<u64>> {
        match self.checked(standing(&self.shared.map, place)?)? {
            Standing::Own(position) => Ok(Some(position)),
            Standing::Followed | Standing::Lost | Standing::Unknown => Ok(None),
        }
    }
}

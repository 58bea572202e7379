//! A region that becomes the owner in place of the one that it followed, and one whose host learns
//! that it is the owner no longer: the words of the cluster page, and the end of its log
//! (`docs/decisions/026-cluster.md`).

use nearstate_model::Result;
use xxhash_rust::xxh3::xxh3_64;

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::follow::{FollowPosition, LogIdentity};
use crate::layout::{
    CATALOG_LOGGED_SINCE, Corruption, FOLLOW_SWITCH, LOG_FLOOR, LOG_GAP_UNKNOWN, LOG_REPLICATED,
    LOG_WAKE, TAKEOVER, catalog_at, entry_of,
};
use crate::log::wake::must_wake_sleepers;
use crate::member::Member;
use crate::region::map::Map;
use crate::system::futex_wake;

/// How a region became the successor of the one that it followed: the last position of the old log,
/// and the position of its own log that has the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The log that it followed.
    pub old: LogIdentity,
    /// The last entry of it that it has.
    pub seal: FollowPosition,
    /// Its own log.
    pub own: LogIdentity,
    /// The position of its own log at which nothing is changed behind the seal.
    pub position: u64,
}

const WORDS: usize = 8;

fn check_of(words: &[u64; WORDS]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    xxh3_64(&bytes) | 1
}

/// The check value, behind the words.
const CHECK_AT: u64 = TAKEOVER + 8 * WORDS as u64;

fn stored(map: &Map) -> Result<([u64; WORDS], u64), Corruption> {
    let mut words = [0; WORDS];
    for (word, at) in words.iter_mut().zip((TAKEOVER..).step_by(8)) {
        *word = map.word(at)?.load(Ordering::Acquire);
    }
    Ok((words, map.word(CHECK_AT)?.load(Ordering::Acquire)))
}

/// For the check. A check value of 0 was left by a process that was killed, or no takeover was
/// stored.
pub(crate) fn check_takeover(map: &Map) -> Result<(), Corruption> {
    let (words, check) = stored(map)?;
    if check == 0 || check == check_of(&words) {
        return Ok(());
    }
    Err(Corruption("the record of the last takeover has a flipped bit"))
}

/// For the repair: a damaged record is none, so members that follow its log join again. True if it
/// was damaged.
pub(crate) fn repair_takeover(map: &Map) -> Result<bool, Corruption> {
    if check_takeover(map).is_ok() {
        return Ok(false);
    }
    map.word(CHECK_AT)?.store(0, Ordering::Release);
    debug_assert!(check_takeover(map).is_ok(), "a damaged takeover is left");
    Ok(true)
}

/// The record of the last takeover. The id of the own region is not part of it.
pub(crate) fn takeover(map: &Map, own: LogIdentity) -> Result<Option<Takeover>, Corruption> {
    let (words, check) = stored(map)?;
    let [one, other, old_incarnation, old_origin, seal, seal_check, incarnation, position] = words;
    // One that was not stored completely was not relied on; one of an earlier log is not of use.
    let is_present = check == check_of(&words) && incarnation == own.incarnation;
    Ok(is_present.then_some(Takeover {
        old: LogIdentity { region: [one, other], incarnation: old_incarnation, origin: old_origin },
        seal: FollowPosition { position: seal, check: seal_check },
        own,
        position,
    }))
}

impl Member {
    /// How the region became the owner, if it has done so with its present log.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn takeover(&self) -> Result<Option<Takeover>> {
        Ok(takeover(self.map(), self.log_identity()?)?)
    }

    /// Stores how the region becomes the owner. The caller has the follower's lock, and its
    /// namespaces are logged and are not written yet.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_takeover(&self, takeover: &Takeover) -> Result<()> {
        self.check_usable()?;
        let map = self.map();
        let Takeover { old, seal, own, position } = *takeover;
        let [one, other] = old.region;
        let (seal, check) = (seal.position, seal.check);
        let words =
            [one, other, old.incarnation, old.origin, seal, check, own.incarnation, position];
        const { assert!(CHECK_AT + 8 <= FOLLOW_SWITCH, "words overlap") };
        map.word(CHECK_AT)?.store(0, Ordering::Release);
        for (word, at) in words.iter().zip((TAKEOVER..).step_by(8)) {
            map.word(at)?.store(*word, Ordering::Release);
        }
        map.word(CHECK_AT)?.store(check_of(&words), Ordering::Release);
        crash_point!("takeover.stored");
        self.check_not_truncated()
    }

    /// With no writer of a logged namespace left: what the log has behind a position is lost. Its
    /// receipts answer so, and those that wait for them are woken. Can be repeated. Returns how
    /// many positions are lost, and how many of them had counted as replicated.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn lose_log_behind(&self, position: u64) -> Result<(u64, u64)> {
        self.check_usable()?;
        let (map, tail) = (self.map(), self.log_tail()?);
        let replicated = map.word(LOG_REPLICATED)?.load(Ordering::Acquire);
        if tail > position && self.last_gap()? != Some((position + 1, tail)) {
            self.record_gap(position + 1, tail)?;
        }
        let word = map.word(LOG_WAKE)?;
        if must_wake_sleepers(word) {
            futex_wake(word);
        }
        self.check_not_truncated()?;
        Ok((tail.saturating_sub(position), replicated.saturating_sub(position)))
    }

    /// With no writer of a logged namespace left, if it is not known what the group has of the log
    /// behind what was acknowledged, and will not be: the receipts of that answer so, whatever is
    /// acknowledged later, and those that wait for them are woken. Can be repeated. Returns how
    /// many positions that are.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn leave_log_open(&self) -> Result<u64> {
        self.check_usable()?;
        let (tail, replicated) = (self.log_tail()?, self.log_acknowledged()?);
        if tail > replicated {
            let open = ((replicated + 1) | LOG_GAP_UNKNOWN, tail);
            if self.last_gap()? != Some(open) {
                self.store_gap(open)?;
            }
        }
        let word = self.map().word(LOG_WAKE)?;
        if must_wake_sleepers(word) {
            futex_wake(word);
        }
        self.check_not_truncated()?;
        Ok(tail.saturating_sub(replicated))
    }

    /// With no writer of a logged namespace left: the log forgets all its entries.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn forget_log(&self) -> Result<()> {
        self.check_usable()?;
        let tail = self.log_tail()?;
        self.map().word(LOG_FLOOR)?.fetch_max(tail + 1, Ordering::AcqRel);
        crash_point!("demote.forgotten");
        self.check_not_truncated()
    }

    /// The commits of a namespace go to no log from now on. It has no writer, and the log has
    /// forgotten its entries. The caller has cleared its flag.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn clear_logged_since(&self, namespace: u32) -> Result<()> {
        let at = catalog_at(entry_of(namespace)) + CATALOG_LOGGED_SINCE;
        self.map().word(at)?.store(0, Ordering::Release);
        Ok(())
    }
}

//! A region that follows the log of another one, and one that was promoted: the words of the
//! cluster page that belong to it (`docs/decisions/025-follow.md`; `spec/region.md`, section 11).
//!
//! Only the process with the follower's lock ([`Member::lock_follower`]) changes them. A kill
//! between any two stores leaves them usable: the state is stored last when a copy begins, and of
//! the two places for the position the one with the lower position is overwritten.

mod verification;
mod coming;
mod switch;
mod promotion;
pub(crate) mod left;

pub use coming::ComingEntry;
use nearstate_model::{Result, invariant};
pub(crate) use verification::{check_follower, repair_follower};
use xxhash_rust::xxh3::xxh3_64;

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::index::bucket::VERSION_MAX;
use crate::layout::{
    CATALOG_SOURCE, Corruption, DEMOTION_SEAL, FOLLOW_CHECK, FOLLOW_ID, FOLLOW_INCARNATION,
    FOLLOW_ORIGIN, FOLLOW_PLACES, FOLLOW_REACHED, FOLLOW_STATE, LOG_INCARNATION, LOG_ORIGIN,
    LOG_SHIPPED, PROMOTION_STAMP, SUPER_ID, SUPER_NAMESPACES_LOCK, catalog_at, entry_of, seal,
    unseal,
};
use crate::log::begins::store_begin;
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::region::catalog::{raise_stamp_floor, stamp_floor};
use crate::region::index_table::NO_NAMESPACE;
use crate::region::map::Map;

/// Which log a position belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogIdentity {
    /// The id of the region.
    pub region: [u64; 2],
    /// How often the log has lost all its entries: its positions are those of this incarnation.
    pub incarnation: u64,
    /// In a cluster, the view in which the log became that of its partition.
    pub origin: u64,
}

impl LogIdentity {
    /// One number for region and incarnation, which receipts carry. Those of successive
    /// incarnations of one log are successive; those of two regions are random.
    #[inline]
    pub const fn number(&self) -> u64 {
        let [one, other] = self.region;
        (one ^ other.rotate_left(32)).wrapping_add(self.incarnation)
    }
}

/// How far a region is with the log that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowState {
    /// It gets the records that existed when it began. It is a copy of no moment yet.
    Joining,
    /// It is a copy of what the other region was at its position.
    Full,
    /// It was full at its position, and gets the records of further namespaces.
    Extending,
    /// It becomes a region of its own.
    Promoting,
    /// It was the owner's region, and becomes a copy of nothing.
    Demoting,
}

/// The last entry that was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowPosition {
    /// Its position; 0 if there is none.
    pub position: u64,
    /// Its check value.
    pub check: u64,
}

/// What a region follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// How far it is.
    pub state: FollowState,
    /// The log that it follows.
    pub source: LogIdentity,
    /// What it has applied.
    pub applied: FollowPosition,
    /// The position up to which it has everything: not below that of `applied`, behind which there
    /// is no entry up to here.
    pub reached: u64,
}

impl FollowState {
    /// Full, and between two logs, or not yet a copy in all its words (`switch.rs`).
    const SWITCHING: u64 = 5;
    const RETURNING: u64 = 7;
    /// Full, or extending (`left.rs`).
    const LEFT_FULL: u64 = 8;
    const LEFT_EXTENDING: u64 = 9;

    const fn code(self) -> u64 {
        match self {
            Self::Joining => 1,
            Self::Full => 2,
            Self::Promoting => 3,
            Self::Extending => 4,
            Self::Demoting => 6,
        }
    }

    /// The state of a word; `None` if the region follows no other one.
    fn of_word(word: u64) -> Result<Option<Self>, Corruption> {
        if word == 0 {
            return Ok(None);
        }
        match unseal(word, "the state of a follower has a flipped bit")? {
            0 => Ok(None),
            1 => Ok(Some(Self::Joining)),
            2 | Self::SWITCHING | Self::RETURNING | Self::LEFT_FULL => Ok(Some(Self::Full)),
            3 => Ok(Some(Self::Promoting)),
            4 | Self::LEFT_EXTENDING => Ok(Some(Self::Extending)),
            6 => Ok(Some(Self::Demoting)),
            _ => Err(Corruption("a follower has an unknown state")),
        }
    }
}

/// The words that name a log.
const SOURCE_WORDS: [u64; 4] = [FOLLOW_ID, FOLLOW_ID + 8, FOLLOW_INCARNATION, FOLLOW_ORIGIN];

/// The most words with one check value.
const WORDS_MAX: usize = 6;

/// The check value of some words.
fn check_of(words: &[u64]) -> u64 {
    let mut bytes = [[0; 8]; WORDS_MAX];
    for (of_word, word) in bytes.iter_mut().zip(words) {
        *of_word = word.to_le_bytes();
    }
    let Some(bytes) = bytes.get(..words.len()) else {
        invariant!("a check value of {} words", words.len())
    };
    // Not 0, so that words that were never stored have no valid check value.
    xxh3_64(bytes.as_flattened()) | 1
}

fn load(map: &Map, at: u64) -> Result<u64, Corruption> {
    Ok(map.word(at)?.load(Ordering::Acquire))
}

fn store(map: &Map, at: u64, value: u64) -> Result<(), Corruption> {
    map.word(at)?.store(value, Ordering::Release);
    Ok(())
}

/// A place for a position; `None` if it has none, or one that was not stored completely.
fn place_at(map: &Map, at: u64) -> Result<Option<FollowPosition>, Corruption> {
    let (position, check) = (load(map, at)?, load(map, at + 8)?);
    let is_whole = load(map, at + 16)? == check_of(&[position, check]);
    Ok(is_whole.then_some(FollowPosition { position, check }))
}

/// Returns what was stored.
fn store_place(map: &Map, at: u64, place: FollowPosition) -> Result<StoredPlace, Corruption> {
    let FollowPosition { position, check } = place;
    store(map, at + 16, 0)?;
    store(map, at, position)?;
    store(map, at + 8, check)?;
    crash_point!("follow.placed");
    let words = [position, check, check_of(&[position, check])];
    store(map, at + 16, words[2])?;
    Ok((at, words))
}

/// Where a position was stored, and the words of its place.
type StoredPlace = (u64, [u64; 3]);

/// True if a place is as it was stored.
fn stands(map: &Map, (at, words): StoredPlace) -> Result<bool, Corruption> {
    Ok([load(map, at)?, load(map, at + 8)?, load(map, at + 16)?] == words)
}

fn applied(map: &Map) -> Result<FollowPosition, Corruption> {
    let [one, other] = FOLLOW_PLACES;
    let (one, other) = (place_at(map, one)?, place_at(map, other)?);
    Ok(one.into_iter().chain(other).max_by_key(|place| place.position).unwrap_or_default())
}

pub(crate) fn reached(map: &Map) -> Result<u64, Corruption> {
    match load(map, FOLLOW_REACHED)? {
        0 => Ok(0),
        word => unseal(word, "the position that a follower has reached has a flipped bit"),
    }
}

/// What a region follows, if it follows another one.
pub(crate) fn following(map: &Map) -> Result<Option<Following>, Corruption> {
    let Some(state) = FollowState::of_word(load(map, FOLLOW_STATE)?)? else { return Ok(None) };
    if let Some((source, applied, reached)) = switch::begun(map)? {
        return Ok(Some(Following { state, source, applied, reached }));
    }
    let mut words = [0; 4];
    for (word, at) in words.iter_mut().zip(SOURCE_WORDS) {
        *word = load(map, at)?;
    }
    let [one, other, incarnation, origin] = words;
    let source = if load(map, FOLLOW_CHECK)? == check_of(&words) {
        LogIdentity { region: [one, other], incarnation, origin }
    } else if matches!(state, FollowState::Joining | FollowState::Demoting) {
        // A process was killed while it began to follow another log, or it has followed none.
        LogIdentity::default()
    } else {
        return Err(Corruption("the log that a region follows has a flipped bit"));
    };
    let (applied, reached) = (applied(map)?, reached(map)?);
    Ok(Some(Following { state, source, applied, reached: reached.max(applied.position) }))
}

/// A check value of words is 0 (they were given up, or their writer was killed), or theirs.
fn check_stored(
    map: &Map,
    check_at: u64,
    words: &[u64],
    what: &'static str,
) -> Result<(), Corruption> {
    let stored = load(map, check_at)?;
    if stored == 0 || stored == check_of(words) { Ok(()) } else { Err(Corruption(what)) }
}

fn stored_stamp(map: &Map) -> Result<u64, Corruption> {
    match load(map, PROMOTION_STAMP)? {
        0 => Ok(0),
        word => unseal(word, "the stamp of a promotion has a flipped bit"),
    }
}

/// The identity of the region's log.
pub(crate) fn identity(map: &Map) -> Result<LogIdentity, Corruption> {
    let region = [load(map, SUPER_ID)?, load(map, SUPER_ID + 8)?];
    let (incarnation, origin) = (incarnation(map)?, origin(map)?);
    Ok(LogIdentity { region, incarnation, origin })
}

/// The incarnation of the region's log.
pub(crate) fn incarnation(map: &Map) -> Result<u64, Corruption> {
    match load(map, LOG_INCARNATION)? {
        0 => Ok(0),
        word => unseal(word, "the incarnation of the log has a flipped bit"),
    }
}

/// The view in which the region's log became that of its partition.
pub(crate) fn origin(map: &Map) -> Result<u64, Corruption> {
    match load(map, LOG_ORIGIN)? {
        0 => Ok(0),
        word => unseal(word, "the origin of the log has a flipped bit"),
    }
}

/// The entries of the log are lost as a whole: its positions are those of another incarnation now.
pub(crate) fn raise_incarnation(map: &Map) -> Result<(), Corruption> {
    // A damaged one is replaced by one that no log of this region has had.
    let next = incarnation(map).unwrap_or(1 << 32) + 1;
    // It is an entry of the log before: taken for one of the next log, it would be the last entry
    // of a copy that joins, and equal copies would differ.
    store(map, LOG_SHIPPED + 16, 0)?;
    store_begin(map, next)?;
    store(map, LOG_INCARNATION, seal(next))
}

/// For the repair: a follower whose words are damaged has nothing, and joins again. True if they
/// were damaged.
pub(crate) fn rejoin_if_damaged(map: &Map) -> Result<bool, Corruption> {
    if following(map).is_ok() {
        return Ok(false);
    }
    rejoin(map)?;
    Ok(true)
}

/// For the repair: a follower has nothing, and joins again.
pub(crate) fn rejoin(map: &Map) -> Result<(), Corruption> {
    for place in FOLLOW_PLACES {
        store(map, place + 16, 0)?;
    }
    for at in SOURCE_WORDS.into_iter().chain([FOLLOW_REACHED]) {
        store(map, at, 0)?;
    }
    coming::clear(map)?;
    store(map, FOLLOW_CHECK, check_of(&[0; 4]))?;
    store(map, FOLLOW_STATE, seal(FollowState::Joining.code()))
}

/// Stores which log is followed. With a check value of nothing in between.
fn name_source(map: &Map, source: LogIdentity) -> Result<(), Corruption> {
    let [one, other] = source.region;
    let words = [one, other, source.incarnation, source.origin];
    // It is an entry of the log before.
    coming::clear(map)?;
    store(map, FOLLOW_CHECK, 0)?;
    store(map, FOLLOW_REACHED, 0)?;
    crash_point!("follow.unnamed");
    for (word, at) in words.into_iter().zip(SOURCE_WORDS) {
        store(map, at, word)?;
    }
    store(map, FOLLOW_CHECK, check_of(&words))
}

/// What a demotion that is under way knows of the log that it ends.
pub(crate) fn demotion_seal(map: &Map) -> Result<Option<u64>, Corruption> {
    match load(map, DEMOTION_SEAL)? {
        0 => Ok(None),
        word => Ok(unseal(word, "the seal of a demotion has a flipped bit")?.checked_sub(1)),
    }
}

impl Member {
    /// The identity of the region's log.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn log_identity(&self) -> Result<LogIdentity> {
        Ok(identity(self.map())?)
    }

    /// The region's log is that of its partition since a view.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_log_origin(&self, view: u64) -> Result<()> {
        self.check_usable()?;
        store(self.map(), LOG_ORIGIN, seal(view))?;
        crash_point!("log.origin");
        Ok(())
    }

    /// What the region follows, if it follows another one.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn following(&self) -> Result<Option<Following>> {
        Ok(following(self.map())?)
    }

    /// The region follows this log from now on, and has nothing of it. The caller has the
    /// follower's lock.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn begin_following(&self, source: LogIdentity) -> Result<()> {
        self.check_usable()?;
        let map = self.map();
        // A kill from here on leaves a copy of nothing, not one that is said to be full.
        if load(map, FOLLOW_STATE)? != 0 {
            store(map, FOLLOW_STATE, seal(FollowState::Joining.code()))?;
        }
        for place in FOLLOW_PLACES {
            store(map, place + 16, 0)?;
        }
        crash_point!("follow.cleared");
        name_source(map, source)?;
        crash_point!("follow.named");
        store(map, FOLLOW_STATE, seal(FollowState::Joining.code()))?;
        self.check_not_truncated()
    }

    /// The region was the owner's, and becomes a copy of nothing. The caller has the follower's
    /// lock. `kept`: the last position of its log that the group has, if it is known. A kill from
    /// here on is completed by another demotion, which gets what this one knows: the log has
    /// another incarnation by then, perhaps, and its caller does not find its seal.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn begin_demotion(&self, kept: Option<u64>) -> Result<Option<u64>> {
        self.check_usable()?;
        let map = self.map();
        let is_repeated = load(map, FOLLOW_STATE)? == seal(FollowState::Demoting.code());
        let stored = if is_repeated { demotion_seal(map)? } else { None };
        let kept = stored.or(kept);
        // Before the state: what an earlier demotion has stored never counts in this one.
        store(map, DEMOTION_SEAL, kept.map_or(0, |position| seal(position + 1)))?;
        crash_point!("demote.sealed");
        store(map, FOLLOW_STATE, seal(FollowState::Demoting.code()))?;
        crash_point!("demote.begun");
        self.check_not_truncated()?;
        Ok(kept)
    }

    /// Changes how far the copy is; `None` ends it. The caller has the follower's lock.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_follow_state(&self, state: Option<FollowState>) -> Result<()> {
        self.check_usable()?;
        let map = self.map();
        if load(map, FOLLOW_STATE)? == 0 {
            return Err(Corruption("a region that follows no other one gets a state").into());
        }
        store(map, FOLLOW_STATE, seal(state.map_or(0, FollowState::code)))?;
        crash_point!("follow.state");
        self.check_not_truncated()
    }

    /// The number that a followed namespace has at its source, `None` if it is not known.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn source_number(&self, namespace: u32) -> Result<Option<u32>> {
        let at = catalog_at(entry_of(namespace)) + CATALOG_SOURCE;
        match load(self.map(), at)? {
            0 => Ok(None),
            word => Ok(unseal(word, "the number of a namespace at its source has a flipped bit")?
                .checked_sub(1)
                .and_then(|number| u32::try_from(number).ok())),
        }
    }

    /// Stores the number that a followed namespace has at its source. The caller has the
    /// follower's lock.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_source_number(&self, namespace: u32, number: u32) -> Result<()> {
        // It comes from another host.
        if number == NO_NAMESPACE {
            return Err(Corruption("a namespace of the source has a number that none has").into());
        }
        let at = catalog_at(entry_of(namespace)) + CATALOG_SOURCE;
        Ok(store(self.map(), at, seal(u64::from(number) + 1))?)
    }

    /// The namespace has no number at the source. The caller has the follower's lock.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn clear_source_number(&self, namespace: u32) -> Result<()> {
        Ok(store(self.map(), catalog_at(entry_of(namespace)) + CATALOG_SOURCE, 0)?)
    }

    /// Everything up to this position was applied. The caller has the follower's lock. Cost: three
    /// stores to one line.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_follow_position(&self, applied: FollowPosition) -> Result<()> {
        let map = self.map();
        crash_point!("follow.applied");
        let [one, other] = FOLLOW_PLACES;
        let position_at = |at| Ok::<_, Corruption>(place_at(map, at)?.map(|place| place.position));
        let at = match self.log.follow_place.get() {
            // What this session has stored last is the place that counts.
            Some(last) if stands(map, last)? => one + other - last.0,
            // `None` is lower than any position.
            Some(_) | None if position_at(one)? <= position_at(other)? => one,
            Some(_) | None => other,
        };
        debug_assert!(
            position_at(at)? <= position_at(one + other - at)?,
            "the place that counts is overwritten"
        );
        self.log.follow_place.set(Some(store_place(map, at, applied)?));
        Ok(())
    }

    /// Behind the last applied entry there is none up to this position, which the copy has
    /// therefore reached. The caller has the follower's lock.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_follow_reached(&self, position: u64) -> Result<()> {
        const TOO_HIGH: Corruption = Corruption("a position that no log has");
        if position >> 48 != 0 {
            return Err(TOO_HIGH.into());
        }
        Ok(store(self.map(), FOLLOW_REACHED, seal(position))?)
    }

    /// The last entry that a follower of this region has acknowledged; of an owner's region, the
    /// one up to which the log is released. Position 0: not known.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn shipped_position(&self) -> Result<FollowPosition> {
        Ok(place_at(self.map(), LOG_SHIPPED)?.unwrap_or_default())
    }

    /// A follower of this region has acknowledged an entry: of several, the last one counts. A kill
    /// between two stores leaves none: the follower then joins again if the log has forgotten the
    /// entry.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_shipped_position(&self, place: FollowPosition) -> Result<()> {
        if place.position <= self.shipped_position()?.position {
            return Ok(());
        }
        store_place(self.map(), LOG_SHIPPED, place)?;
        Ok(())
    }

    /// The log of an owner is released up to this entry: members whose last entry it is continue
    /// behind it. Unlike [`Member::set_shipped_position`] it may be an earlier one than before. A
    /// kill between two stores leaves none.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_released_entry(&self, place: FollowPosition) -> Result<()> {
        if place == self.shipped_position()? {
            return Ok(());
        }
        store_place(self.map(), LOG_SHIPPED, place)?;
        Ok(())
    }

    /// The versions of the followed log may be as high as this stamp: later generations begin
    /// behind it.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`.
    pub fn note_stamp(&self, stamp: u64) -> Result<()> {
        self.check_usable()?;
        if stamp > VERSION_MAX {
            return Err(Corruption("a stamp that no bucket has").into());
        }
        // The floor only rises. So a process that was stopped with the lock stops no connection.
        if stamp_floor(self.map())? >= stamp {
            return Ok(());
        }
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let done = raise_stamp_floor(self.map(), stamp);
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            Ok(done?)
        })
    }

    /// A stamp that is not lower than any that was noted ([`Member::note_stamp`]), than those of
    /// removed namespaces, and than that of the last promotion.
    ///
    /// Cost: one load.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn noted_stamp(&self) -> Result<u64> {
        Ok(stamp_floor(self.map())?)
    }

    /// The log loses all its entries: receipts and positions of followers are those of another
    /// incarnation from now on.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn raise_log_incarnation(&self) -> Result<()> {
        self.check_usable()?;
        raise_incarnation(self.map())?;
        crash_point!("log.incarnation");
        Ok(())
    }
}

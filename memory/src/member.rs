//! A member: one attached session. It owns a pin, an arena and a note, and is what other processes
//! see of a thread that uses the region.

pub(crate) mod presence;
pub(crate) mod arena;
pub(crate) mod pin;
pub(crate) mod lock;

use std::cell::Cell as Private;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearstate_model::limits::MEMBERS_MAX;
use nearstate_model::{Error, Holder, Result};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::layout::{
    ARENA_BYTES, Corruption, MEMBER_BYTES, MEMBER_LIVENESS_LOCK, MEMBER_NAME, MEMBER_PID,
    MEMBER_PIN, MEMBER_SINCE, MEMBER_STATE, SUPER_EPOCH, SUPER_MEMBERS, arena_at, member_at, seal,
};
use crate::member::arena::{Arena, slot, undo};
use crate::region::file::{Region, Shared};
use crate::region::liveness::{is_locked, now_ms};
use crate::region::map::Map;
use crate::region::member_table::{identity_of, member_slots_used, state};
use crate::system::barrier_everywhere;

/// How long a writer waits for a lock of a living process before it names it in `Stalled`. A lock
/// is held for less than a microsecond of running, so a second means that its holder is not
/// running.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

/// How often a waiting writer asks whether the holder of a lock still lives (a probe costs less
/// than a microsecond): a death is noticed within this time, well below the 10 ms that are
/// promised.
const PROBE_EVERY: Duration = Duration::from_micros(200);

/// A pin that is this many epochs old is asked about: its process may be dead. A view that is used
/// as meant is over long before.
const EPOCHS_HELD: u64 = 8;

/// How long a writer waits for a living holder of a lock that it can do without: ten probes.
pub(crate) const LOCK_WAIT_SHORT: Duration = Duration::from_millis(2);

/// Spins before a waiting writer yields its processor: about a microsecond, ten times a lock's
/// hold.
const SPINS: u32 = 64;

/// One session's place in the region. Not `Sync`: a thread has its own.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    index: u32,
    pins: Private<u32>,
    /// The words that every pin touches, found once.
    pin: NonNull<AtomicU64>,
    epoch: NonNull<AtomicU64>,
    /// The last line of the record that was found last: the next one probably ends there, too.
    pub(crate) lines: Private<u64>,
    /// Cells retired before this epoch may be used again, as far as this member knows.
    pub(crate) safe: Private<u64>,
    /// Cells retired, or asked for in vain, since this member last moved the epoch on.
    pub(crate) pressure: Private<u64>,
}

// SAFETY: the two words are shared memory, reached through atomics only, and `shared` keeps them
// mapped.
unsafe impl Send for Member {}

/// Keeps what the member reads from reuse until dropped.
#[derive(Debug)]
pub struct Pin<'m> {
    member: &'m Member,
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        let pins = self.member.pins.get() - 1;
        self.member.pins.set(pins);
        // A forked child that drops what it inherited must leave its parent's pin alone.
        if pins == 0 && self.member.map().is_usable() {
            pin::unpin(self.member.pin_word());
        }
    }
}

impl Region {
    /// Opens a session. Dead members that it finds are recovered.
    ///
    /// # Errors
    /// `Full` above [`MEMBERS_MAX`] sessions, `Damaged`, `System`.
    pub fn member(&self) -> Result<Member> {
        if self.shared.map.is_forked() {
            return Err(Error::Forked);
        }
        let lock = self.shared.lock_attach()?;
        let claimed = claim(&self.shared);
        drop(lock);
        let member = claimed?;
        member.recover_the_dead()?;
        Ok(member)
    }
}

/// Takes the lowest free slot. Under the attach lock.
fn claim(shared: &Arc<Shared>) -> Result<Member> {
    let map = &shared.map;
    let high = member_slots_used(map)?;
    let hint = u32::try_from(shared.hint.load(Ordering::Relaxed)).unwrap_or(0);
    let is_free = |index: &u32| {
        map.word(member_at(*index) + MEMBER_STATE)
            .is_ok_and(|word| state::of(word.load(Ordering::Acquire)) == state::FREE)
    };
    if let Some(index) = (hint..high).chain(0..hint.min(high)).find(is_free) {
        shared.hint.store(u64::from(index) + 1, Ordering::Relaxed);
        return Ok(claim_slot(shared, index)?);
    }
    if (high as usize) < MEMBERS_MAX {
        map.commit(member_at(high), MEMBER_BYTES)?;
        map.commit(arena_at(high), ARENA_BYTES)?;
        map.word(SUPER_MEMBERS)?.store(seal(u64::from(high) + 1), Ordering::Release);
        crash_point!("attach.raised");
        shared.hint.store(u64::from(high) + 1, Ordering::Relaxed);
        return Ok(claim_slot(shared, high)?);
    }
    Err(Error::Full { detail: format!("{MEMBERS_MAX} sessions are attached: let some detach") })
}

/// Makes a free slot ours. Under the attach lock.
pub(crate) fn claim_slot(shared: &Arc<Shared>, index: u32) -> Result<Member, Corruption> {
    let map = &shared.map;
    let at = member_at(index);
    let me = &shared.identity;
    let set = |which: u64, value: u64| -> Result<(), Corruption> {
        map.word(at + which)?.store(value, Ordering::Relaxed);
        Ok(())
    };
    set(MEMBER_PIN, 0)?;
    crash_point!("attach.unpinned");
    set(MEMBER_PID, u64::from(me.pid))?;
    set(MEMBER_LIVENESS_LOCK, shared.anchor.number())?;
    for (half, chunk) in (0_u64..).zip(me.name.chunks_exact(8)) {
        let word = chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        set(MEMBER_NAME + 8 * half, word)?;
    }
    set(MEMBER_SINCE, now_ms())?;
    crash_point!("attach.identity");
    let word = map.word(at + MEMBER_STATE)?;
    let incarnation = state::incarnation(word.load(Ordering::Acquire)) + 1;
    word.store(state::make(state::ALIVE, 0, incarnation), Ordering::Release);
    crash_point!("attach.alive");
    Ok(Member {
        shared: Arc::clone(shared),
        index,
        pins: Private::new(0),
        lines: Private::new(1),
        pin: map.address(at + MEMBER_PIN)?,
        epoch: map.address(SUPER_EPOCH)?,
        safe: Private::new(0),
        pressure: Private::new(0),
    })
}

/// Bits of a number that name the arena, and those that a sealed word has for the count.
const NUMBER_MEMBER_BITS: u32 = 14;
const NUMBER_COUNT_BITS: u32 = 48;
const _: () = assert!(MEMBERS_MAX <= 1 << NUMBER_MEMBER_BITS);
const _: () = assert!(NUMBER_MEMBER_BITS + NUMBER_COUNT_BITS <= u64::BITS);

impl Member {
    /// The region that it is a member of.
    pub fn region(&self) -> Region {
        Region { shared: Arc::clone(&self.shared) }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[inline]
    pub(crate) fn map(&self) -> &Map {
        &self.shared.map
    }

    /// The seed of the region's key hash.
    #[inline]
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// Number of this member in the region's table.
    #[inline]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// A number that nobody in the life of the region was given before; never 0. It is made of the
    /// arena's count, which outlives the member, and of the arena's own number.
    ///
    /// Cost: a load and a store of the member's own line. A kill, or a caller that does not use the
    /// number, leaves a gap.
    ///
    /// # Errors
    /// `Forked`, `Damaged`, `Full` after 2^48 numbers.
    pub fn next_unique_id(&self) -> Result<u64> {
        self.check_usable()?;
        let arena = self.arena()?;
        let count = arena.numbers()? + 1;
        if count >> NUMBER_COUNT_BITS != 0 {
            let detail = format!("session {} has no numbers left: open another", self.index);
            return Err(Error::Full { detail });
        }
        arena.set(undo::NUMBERS, seal(count));
        Ok(count << NUMBER_MEMBER_BITS | u64::from(self.index))
    }

    /// How many sessions the region has had at once: their numbers are below.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn member_slots(&self) -> Result<u32> {
        Ok(member_slots_used(self.map())?)
    }

    /// The owner that this member writes into lock words.
    #[inline]
    pub(crate) const fn lock_owner(&self) -> u64 {
        self.index as u64 + 1
    }

    #[inline]
    pub(crate) fn arena(&self) -> Result<Arena<'_>, Corruption> {
        Arena::new(&self.shared.map, self.index, self.shared.is_fenced)
    }

    #[inline]
    pub(crate) fn epoch(&self) -> &AtomicU64 {
        // SAFETY: a word of the map, which `shared` keeps for as long as this member lives.
        unsafe { self.epoch.as_ref() }
    }

    #[inline]
    fn pin_word(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { self.pin.as_ref() }
    }

    /// Refuses a forked child and a region whose file lost pages.
    ///
    /// # Errors
    /// `Forked`, `Damaged`.
    #[inline]
    pub fn check_usable(&self) -> Result<()> {
        if self.map().is_usable() { Ok(()) } else { Err(self.unusable()) }
    }

    /// Refuses what was read or written while the file lost pages.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn check_not_truncated(&self) -> Result<()> {
        if self.map().is_damaged() {
            return Err(self.unusable());
        }
        Ok(())
    }

    #[cold]
    fn unusable(&self) -> Error {
        if self.map().is_forked() {
            return Error::Forked;
        }
        Error::Damaged { detail: "its file was truncated while it was attached".to_owned() }
    }

    /// Pins: nothing that is read from now on is used again before the pin is dropped. Pins nest.
    ///
    /// Cost: one load and one store of the member's own line; no fence (`spec/region.md`, section
    /// 6).
    ///
    /// # Errors
    /// `Forked`, `Damaged`.
    #[inline]
    pub fn pin(&self) -> Result<Pin<'_>> {
        self.check_usable()?;
        let pins = self.pins.get();
        if pins == 0 {
            pin::pin(self.epoch(), self.pin_word(), self.shared.is_fenced);
        }
        self.pins.set(pins + 1);
        Ok(Pin { member: self })
    }

    /// Moves the epoch on and learns what is safe. Cost: one `membarrier(2)` (1 to 5 us) and a line
    /// for each member.
    pub(crate) fn advance(&self) -> Result<()> {
        let map = self.map();
        let is_fenced = self.shared.is_fenced;
        let now = pin::advance(self.epoch(), || {
            if is_fenced {
                crate::atomic::fence(Ordering::SeqCst);
                return true;
            }
            barrier_everywhere()
        })?;
        let high = member_slots_used(map)?;
        let pins = (0..high).filter_map(|index| map.word(member_at(index) + MEMBER_PIN).ok());
        self.safe.set(pin::safe(now, pins));
        self.pressure.set(0);
        if self.safe.get().saturating_add(EPOCHS_HELD) < now {
            self.recover_dead_readers(now)?;
        }
        Ok(())
    }

    /// A reader that was killed with a view must not hold memory back for ever.
    #[cold]
    fn recover_dead_readers(&self, now: u64) -> Result<()> {
        for index in 0..member_slots_used(self.map())? {
            let pin = self.map().word(member_at(index) + MEMBER_PIN)?.load(Ordering::Acquire);
            if pin != 0 && pin.saturating_add(EPOCHS_HELD) < now {
                self.recover_if_dead(index)?;
            }
        }
        Ok(())
    }

    /// Takes a lock word and notes it in slot `slot` of the note. Returns the payload.
    #[inline]
    pub(crate) fn acquire(&self, at: u64, slot: usize) -> Result<u64> {
        self.acquire_within(at, slot, LOCK_WAIT_MAX)
    }

    /// Takes a lock word as [`Member::take`] does, but waits no longer than `bound` for a living
    /// holder: for work that can be left.
    #[inline]
    pub(crate) fn acquire_within(&self, at: u64, slot: usize, bound: Duration) -> Result<u64> {
        let arena = self.arena()?;
        let word = self.map().word(at)?;
        arena.set(undo::LOCKS + slot, at);
        crash_point!("lock.noted");
        match lock::try_take(word, self.lock_owner()) {
            Ok(payload) => {
                crash_point!("lock.taken");
                Ok(payload)
            }
            Err(_) => self.wait_for(word, slot, bound),
        }
    }

    /// Takes a lock word if nobody who lives has it: for work that others do as well. A dead holder
    /// is recovered. Returns the payload.
    pub(crate) fn try_acquire(&self, at: u64, slot: usize) -> Result<Option<u64>> {
        let arena = self.arena()?;
        let word = self.map().word(at)?;
        arena.set(undo::LOCKS + slot, at);
        for _ in 0..2 {
            match lock::try_take(word, self.lock_owner()) {
                Ok(payload) => return Ok(Some(payload)),
                Err(0) => {}
                Err(owner) => {
                    if !self.recover_if_dead(u32::try_from(owner - 1).unwrap_or(u32::MAX))? {
                        break;
                    }
                }
            }
        }
        arena.set(undo::LOCKS + slot, 0);
        Ok(None)
    }

    /// Gives back a lock that [`Member::take`] took.
    #[inline]
    pub(crate) fn release(&self, at: u64, slot: usize, payload: u64) -> Result<(), Corruption> {
        lock::release(self.map().word(at)?, payload);
        crash_point!("lock.released");
        self.arena()?.set(undo::LOCKS + slot, 0);
        Ok(())
    }

    /// As [`Member::release`] of a bucket after a commit (`lock::release_before_reads`).
    #[inline]
    pub(crate) fn release_bucket(&self, at: u64, payload: u64) -> Result<(), Corruption> {
        lock::release_before_reads(self.map().word(at)?, payload);
        crash_point!("lock.released");
        self.arena()?.set(undo::LOCKS + slot::BUCKET, 0);
        Ok(())
    }

    #[cold]
    pub(crate) fn wait_for(&self, word: &AtomicU64, slot: usize, bound: Duration) -> Result<u64> {
        let since = Instant::now();
        let mut probed = since;
        let mut spins = 0;
        loop {
            let owner = match lock::try_take(word, self.lock_owner()) {
                Ok(payload) => return Ok(payload),
                Err(owner) => owner,
            };
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            std::thread::yield_now();
            let now = Instant::now();
            if owner == 0 || now.duration_since(probed) < PROBE_EVERY {
                continue;
            }
            if owner == self.lock_owner() {
                return Err(Error::from(Corruption(
                    "a lock is held by the member that waits for it",
                )));
            }
            probed = now;
            let index = u32::try_from(owner - 1).unwrap_or(u32::MAX);
            if self.recover_if_dead(index)? {
                self.check_lock_owner(word, owner)?;
                continue;
            }
            if now.duration_since(since) > bound {
                self.arena()?.set(undo::LOCKS + slot, 0);
                return Err(Error::Stalled { holder: self.holder(index)? });
            }
        }
    }

    /// Damage if a lock is owned by a slot that nobody had from before the look at the lock to
    /// after it: a slot becomes free only after its locks are. Without this a waiter would wait for
    /// ever.
    fn check_lock_owner(&self, word: &AtomicU64, owner: u64) -> Result<(), Corruption> {
        let index = u32::try_from(owner - 1).unwrap_or(u32::MAX);
        let slot = self.map().word(member_at(index) + MEMBER_STATE)?;
        let before = slot.load(Ordering::Acquire);
        let is_owned = lock::owner_of(word.load(Ordering::Acquire)) == owner;
        if state::of(before) == state::FREE && is_owned && slot.load(Ordering::Acquire) == before {
            return Err(Corruption("a lock is held by a member that there is not"));
        }
        Ok(())
    }

    /// Who a member is, for people.
    pub(crate) fn holder(&self, index: u32) -> Result<Holder, Corruption> {
        let identity = identity_of(self.map(), index)?;
        Ok(Holder { pid: identity.pid, name: identity.text() })
    }
}

/// True if the process of a member has ended: the kernel has let its anchor go
/// (`spec/region.md`, section 7).
pub(crate) fn is_dead(shared: &Shared, index: u32) -> Result<bool> {
    let anchor = shared.map.word(member_at(index) + MEMBER_LIVENESS_LOCK)?.load(Ordering::Acquire);
    if !(1..=MEMBERS_MAX as u64).contains(&anchor) {
        return Err(Error::from(Corruption("a member's anchor is one that no process has")));
    }
    if anchor == shared.anchor.number() {
        return Ok(false);
    }
    shared.map.with_file(|file| Ok(!is_locked(file, anchor)?))
}

impl Drop for Member {
    /// Detaches: free cells go to the pools, the slot becomes free.
    fn drop(&mut self) {
        if self.map().is_forked() {
            return;
        }
        if !self.map().is_damaged() {
            // What cannot be given stays in the arena, for the next member in this slot.
            let _ = self.queues_to_pools();
        }
        let at = member_at(self.index);
        if let (Ok(word), Ok(pin)) =
            (self.map().word(at + MEMBER_STATE), self.map().word(at + MEMBER_PIN))
        {
            pin.store(0, Ordering::Release);
            crash_point!("detach.unpinned");
            state::free(word, word.load(Ordering::Acquire));
            crash_point!("detach.free");
            self.shared.hint.fetch_min(u64::from(self.index), Ordering::Relaxed);
        }
    }
}

//! A member: one attached session. It owns a pin and an arena with an undo record. Other processes
//! see it as the representative of one thread that uses the region.

pub(crate) mod operation;
pub(crate) mod idle;
mod expiry_clock;
pub(crate) mod claim;
pub(crate) mod locking;
pub(crate) mod stalled;
pub(crate) mod advisory_lock;
pub(crate) mod arena;
pub(crate) mod held_since;
pub(crate) mod pin_slot;
pub(crate) mod pin;
pub(crate) mod refusals;
pub(crate) mod evacuated;
pub(crate) mod lock;

use std::cell::{Cell as Private, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as StaticWord;
use std::time::{Duration, Instant};

use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::MEMBERS_MAX;
use nearstate_model::{Error, Holder, Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::layout::{ARENA_WORDS, Corruption, MEMBER_PIN, QUEUES, member_at, seal};
use crate::member::arena::{Arena, undo};
use crate::member::evacuated::EvacuatedParts;
use crate::member::held_since::note_stalled;
use crate::member::pin::{STALLED_EPOCHS, SafeEpochs};
use crate::member::pin_slot::{clear_pin, pin_words};
use crate::member::refusals::Refusals;
use crate::member::stalled::StallHooks;
use crate::region::file::{Region, Shared, truncated};
use crate::region::index_table::IndexTable;
use crate::region::liveness::is_process_alive;
use crate::region::map::Map;
use crate::region::member_table::{clear_copy, identity_of, member_slots_used, state, state_of};
use crate::region::page_fault::USABLE;
use crate::system::barrier_everywhere;

/// How long a writer waits for a lock that one living process keeps before it reports `Stalled`. A
/// lock is held for less than a microsecond of running time, so after a second its holder is not
/// running. A lock that several processes keep in turn is waited for at most four times as long.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long a writer waits in all for locks that change hands: four times the bound for one holder.
/// The caller must answer some time. A fair share of a lock comes much earlier unless several
/// holders are stopped in turn.
pub(crate) const LOCK_WAIT_TOTAL: Duration = LOCK_WAIT_MAX.saturating_mul(4);

/// The stalled pins have changed: all cells that were set aside are to be looked at again.
pub(crate) const ALL_ASIDE: u64 = u64::MAX;

/// How long a writer waits for a lock that it can do without: ten probes.
pub(crate) const LOCK_WAIT_SHORT: Duration = Duration::from_millis(2);

/// What `Member::usable` points to once a session was stopped. Any value except [`USABLE`].
static STOPPED: StaticWord = StaticWord::new(!USABLE);

/// How far a session is from normal operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Running,
    /// A panic interrupted an operation; recovery has finished its work.
    Stopped,
    /// As `Stopped`, but recovery failed. The slot keeps its locks until the process ends, so that
    /// another process recovers it.
    Unrecovered,
}

/// What follows if an operation finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFull {
    /// The error, after everything was tried.
    Error,
    /// The operation runs again, after everything was tried.
    Retry,
    /// The operation runs again, after records were moved away from behind a free cell. That is
    /// tried so many times.
    Join(u32),
    /// As `Join`, and no room was found for a small cell.
    JoinDue(u32),
}

/// Handles of namespaces that a member finds without a search: a session uses a few namespaces.
const TABLES_KNOWN: usize = 16;

/// What a member knows of the log of its region.
#[derive(Debug, Default)]
pub(crate) struct KnownLog {
    /// The cell that has the words of the log, and the words, once they were verified.
    pub(crate) ring: Private<Option<(u64, NonNull<[AtomicU64]>)>>,
    /// A floor of the log, and the units that the log had ever held before its first entry.
    pub(crate) floor: Private<(u64, u64)>,
    /// Units of its commits that the log holds, since it last looked at what the log holds.
    pub(crate) units: Private<u64>,
    /// When it looked at the end of the owner's lease, by the time of its commits. 0: it is due.
    pub(crate) lease_looked_ms: Private<u64>,
    /// As the follower: where it has stored its last position, and the words that it has stored.
    pub(crate) follow_place: Private<Option<(u64, [u64; 3])>>,
    /// The mean of its waits for acknowledgements in nanoseconds, the last ones most. 0: not known.
    pub(crate) mean_wait_ns: Private<u64>,
}

/// One session in the region. Not `Sync`: each thread has its own.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    index: u32,
    pins: Private<u32>,
    /// The words that every pin touches, resolved once.
    pin: NonNull<AtomicU64>,
    epoch: NonNull<AtomicU64>,
    /// Its arena, which every write touches.
    arena: NonNull<[AtomicU64; ARENA_WORDS]>,
    /// The handles of the namespaces that were used last, by the low bits of their numbers.
    known_tables: [Private<Option<NonNull<IndexTable>>>; TABLES_KNOWN],
    /// Holds [`USABLE`] while operations are allowed: the mapping's word, or [`STOPPED`].
    usable: Private<NonNull<AtomicU64>>,
    health: Private<Health>,
    /// True while this member carries out an operation.
    is_active: Private<bool>,
    /// The locks that the undo record names, one bit for each `LockSlot`.
    locks: Private<u8>,
    /// Last line of the record that was read last as a whole: the next one probably ends there too.
    pub(crate) lines: Private<u64>,
    /// The same of the last record whose start was read and that has metadata at its end. 0: none.
    pub(crate) meta_line: Private<u64>,
    /// Cells retired before this epoch may be reused, as far as this member knows.
    pub(crate) safe: Private<u64>,
    /// What else may be reused if stalled readers are left out.
    pub(crate) safe_epochs: RefCell<SafeEpochs>,
    /// Cells that were set aside and are to be looked at again, or [`ALL_ASIDE`].
    pub(crate) aside_to_revisit: Private<u64>,
    /// The epoch's word when this member last pinned it or extended its pin.
    seen_epoch: Private<u64>,
    /// Cells retired, or requested in vain, since this member last advanced the epoch.
    pub(crate) pressure: Private<u64>,
    /// The most cells of one class that it collects before it advances the epoch. 0: not known.
    pub(crate) pressure_cells: Private<u64>,
    /// The average cost of its last barriers in nanoseconds.
    pub(crate) barrier_nanos: Private<u64>,
    /// The longest that each queue may become, once it is known. 0: not known.
    pub(crate) queue_limits: Box<[Private<u64>; QUEUES]>,
    /// Cells that it has retired since it last allocated one.
    pub(crate) retired_in_a_row: Private<u64>,
    /// True while it retires cells and allocates none.
    pub(crate) only_retires: Private<bool>,
    /// Writes that could have looked at the queue of another class.
    pub(crate) trim_looks: Private<u64>,
    /// The class that this member looked at last for cells that it does not need.
    pub(crate) stale_class: Private<u8>,
    /// The heads of its queues when it looked at them, and how often it has seen them since.
    pub(crate) queue_heads: Box<[Private<(u64, u32)>; QUEUES]>,
    /// True while an operation may use the reserve of the heap.
    pub(crate) may_use_reserve: Private<bool>,
    /// True while its session applies the log of another region.
    pub(crate) is_follower: Private<bool>,
    /// True while others may wait for a lock of this member: a full heap is not searched again.
    pub(crate) is_brief: Private<bool>,
    /// Inserts during which this member does not try to grow an index.
    pub(crate) growth_pause: Private<u32>,
    /// Units of the cell for which there was no room last.
    pub(crate) wanted_units: Private<u64>,
    /// How the chunks were filled when a background evacuation could move nothing, or 0; and for
    /// how many looks at it that counts.
    pub(crate) settled_heap: Private<(u64, u32)>,
    /// How far evacuations have come.
    pub(crate) evacuated: EvacuatedParts,
    /// Moving records would make room, and waits until this member has no pin.
    pub(crate) is_evacuation_due: Private<bool>,
    /// The least class of small cells for which no chunk had room, and the refills for which that
    /// is taken as known.
    pub(crate) vain_search: Private<(u8, u32)>,
    /// True while an allocation that finds no room is followed by another attempt.
    pub(crate) tries_again: Private<bool>,
    /// Refills that first split what this member keeps, because no chunk near the last one had
    /// room.
    pub(crate) scarce_refills: Private<u32>,
    /// What follows if the current operation finds no room.
    pub(crate) after_full: Private<AfterFull>,
    /// The chunk that this member took memory from last.
    pub(crate) chunk: Private<u64>,
    /// Its bump ranges as it stored them last.
    pub(crate) bumps: [Private<(u64, u64)>; 2],
    /// What it knows of searches for memory that were in vain.
    pub(crate) refusals: Refusals,
    /// The chunk in which its last cell that stays was placed, and the number of such cells that
    /// are placed without a search.
    pub(crate) fixed_chunk: Private<(u64, u32)>,
    /// The chunk in which its last large cell ends.
    pub(crate) span_chunk: Private<u64>,
    /// What it knows of the log.
    pub(crate) log: KnownLog,
    /// Decides about waits for locks that one process keeps.
    pub(crate) stall_hook: StallHooks,
}

// SAFETY: the words are shared memory or static, accessed through atomics only; `shared` keeps the
// mapping alive.
unsafe impl Send for Member {}

/// Prevents the reuse of what the member reads, until it is dropped.
#[derive(Debug)]
pub struct Pin<'m> {
    member: &'m Member,
}

impl Pin<'_> {
    /// True if it is a pin of this member.
    pub(crate) fn is_of(&self, member: &Member) -> bool {
        std::ptr::eq(self.member, member)
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(self.member.pins.get() > 0, "each pin is dropped once");
        let pins = self.member.pins.get() - 1;
        self.member.pins.set(pins);
        // A forked child that drops an inherited pin must not change the pin of its parent.
        if pins == 0 && self.member.map().is_usable() {
            pin::unpin(self.member.pin_word());
        }
    }
}

/// Bits of a unique id that name the arena, and bits that a sealed word has for the count.
const UNIQUE_ID_MEMBER_BITS: u32 = 14;
const UNIQUE_ID_COUNT_BITS: u32 = 48;
const _: () = assert!(MEMBERS_MAX <= 1 << UNIQUE_ID_MEMBER_BITS);
const _: () = assert!(UNIQUE_ID_MEMBER_BITS + UNIQUE_ID_COUNT_BITS <= u64::BITS);

impl Member {
    /// The region that this session is attached to.
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
        self.shared.seed.seed
    }

    /// The hash of a key, as [`hash`](crate::hash) with the seed of the region.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.shared.seed.hash(key)
    }

    /// Number of this member in the member table.
    #[inline]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// A number that is unique in the lifetime of the region and never 0. It consists of the
    /// arena's count, which outlives the member, and of the arena's index.
    ///
    /// Cost: a load and a store in the member's own cache line. A kill, or a caller that does not
    /// use the number, leaves a gap.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`, `Full` after 2^48 numbers.
    pub fn next_unique_id(&self) -> Result<u64> {
        self.check_usable()?;
        let arena = self.arena();
        let count = arena.unique_ids()? + 1;
        if count >> UNIQUE_ID_COUNT_BITS != 0 {
            let detail =
                format!("session {} has no unique ids left: open another session", self.index);
            return Err(Error::Full { detail, heap: None });
        }
        arena.set(undo::UNIQUE_IDS, seal(count));
        let id = count << UNIQUE_ID_MEMBER_BITS | u64::from(self.index);
        invariant!(
            id >> UNIQUE_ID_MEMBER_BITS == count,
            "unique id {id:#x} lost bits of {count:#x}"
        );
        Ok(id)
    }

    /// The number of member slots that were ever used. The index of every session is below it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn member_slots(&self) -> Result<u32> {
        Ok(member_slots_used(self.map())?)
    }

    /// The owner that this member writes into lock words.
    #[inline]
    pub(crate) const fn lock_owner(&self) -> u64 {
        debug_assert!((self.index as usize) < MEMBERS_MAX, "a member has one of the slots");
        self.index as u64 + 1
    }

    #[inline]
    pub(crate) fn arena(&self) -> Arena<'_> {
        // SAFETY: words of the map, which `shared` keeps mapped while this member exists.
        let words = unsafe { self.arena.as_ref() };
        Arena::of_words(&self.shared.map, words, self.shared.is_fenced)
    }

    /// The handle of a namespace, if this member has used it lately.
    #[inline]
    pub(crate) fn known_table(&self, index: u32) -> Option<&IndexTable> {
        let table = self.known_tables.get(index as usize % TABLES_KNOWN)?.get()?;
        // SAFETY: a boxed handle of `shared`, which this member keeps, and which never drops or
        // replaces a handle before its own end.
        let table = unsafe { table.as_ref() };
        (table.number() == index).then_some(table)
    }

    /// Remembers the handle of a namespace, which is one of `shared`.
    pub(crate) fn remember_table(&self, table: &IndexTable) {
        let known = self.known_tables.get(table.index() as usize % TABLES_KNOWN);
        guaranteed(known, "each namespace has a place").set(Some(NonNull::from(table)));
    }

    #[inline]
    pub(crate) fn epoch(&self) -> &AtomicU64 {
        // SAFETY: a word of the map, which `shared` keeps mapped while this member exists.
        unsafe { self.epoch.as_ref() }
    }

    /// True if this member holds a pin.
    #[inline]
    pub fn has_pin(&self) -> bool {
        self.pins.get() != 0
    }

    #[inline]
    fn pin_word(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { self.pin.as_ref() }
    }

    /// Fails in a forked child, in a stopped session, and once the region's file lost pages.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`.
    #[inline]
    pub fn check_usable(&self) -> Result<()> {
        // SAFETY: the mapping's word, which `shared` keeps, or a static.
        let usable = unsafe { self.usable.get().as_ref() };
        if usable.load(Ordering::Relaxed) == USABLE { Ok(()) } else { Err(self.unusable()) }
    }

    /// True in a child that was forked after the region was attached. Cost: one load.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.map().is_forked()
    }

    /// Fails once the region's file lost pages: what was read or written meanwhile is not valid.
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
        if !self.map().is_damaged() && self.health.get() != Health::Running {
            return Error::SessionStopped;
        }
        truncated()
    }

    /// Ends this session's work after a panic inside an operation. Every later operation fails with
    /// `SessionStopped`. The undo record and the locks are handled as those of a dead member.
    #[cold]
    pub(crate) fn stop_session(&self) {
        if self.health.get() != Health::Running || self.map().is_forked() {
            return;
        }
        self.health.set(Health::Unrecovered);
        self.usable.set(NonNull::from(&STOPPED).cast());
        // A second violated invariant must not end the process.
        let recovered = catch_unwind(AssertUnwindSafe(|| self.recover_self()));
        if matches!(recovered, Ok(Ok(()))) {
            self.locks.set(0);
            self.health.set(Health::Stopped);
            self.end_operation();
        }
    }

    /// Pins the current epoch: nothing that is read from now on is reused before the pin is
    /// dropped. Pins nest.
    ///
    /// Cost: one load and one store in the member's own cache line, and no fence
    /// (`spec/region.md`, section 6).
    ///
    /// # Errors
    /// `Forked`, `Damaged`.
    #[inline]
    pub fn pin(&self) -> Result<Pin<'_>> {
        self.check_usable()?;
        let pins = self.pins.get();
        if pins == 0 {
            self.seen_epoch.set(pin::pin(self.epoch(), self.pin_word(), self.shared.is_fenced));
        }
        debug_assert!(pins < u32::MAX, "a session has more views than it can count");
        self.pins.set(pins + 1);
        Ok(Pin { member: self })
    }

    /// True if the cells to which the entries loaded so far lead are protected by the pin. If not,
    /// the pin must be extended, and the entries loaded again.
    #[inline]
    pub(crate) fn is_protected(&self) -> bool {
        pin::is_within(self.epoch(), self.seen_epoch.get())
    }

    /// Extends the pin, if there is one, to the current epoch. A caller without a pin holds the
    /// lock of the bucket, which protects its cells.
    #[cold]
    pub(crate) fn extend_pin(&self) {
        let seen = if self.pins.get() == 0 {
            self.epoch().load(Ordering::Acquire)
        } else {
            let Ok(words) = pin_words(self.map(), self.index) else {
                // The table was in the mapping when the slot was claimed, and mappings do not
                // shrink.
                invariant!("slot {} lies outside the region", self.index)
            };
            pin::extend(self.epoch(), words, self.shared.is_fenced)
        };
        self.seen_epoch.set(seen);
    }

    /// Advances the epoch and determines which cells are safe to reuse. Cost: one `membarrier(2)`
    /// (1 to 5 us) and one cache line for each member.
    pub(crate) fn advance(&self) -> Result<()> {
        let map = self.map();
        let is_fenced = self.shared.is_fenced;
        let now = pin::advance(self.epoch(), || {
            if is_fenced {
                crate::atomic::fence(Ordering::SeqCst);
                return true;
            }
            let begin = Instant::now();
            let is_done = barrier_everywhere();
            self.set_pressure(begin.elapsed());
            is_done
        })?;
        // A pin that is skipped would let a cell be reused under its reader.
        let mut unreadable = None;
        let pins = (0..member_slots_used(map)?).filter_map(|index| {
            pin_words(map, index).map_err(|error| unreadable = Some(error)).ok()
        });
        let safe = SafeEpochs::scan(now, pins);
        if let Some(error) = unreadable {
            return Err(error.into());
        }
        invariant!(safe.all <= now, "epoch {} is safe before epoch {now} has begun", safe.all);
        self.safe.set(safe.all);
        self.pressure.set(0);
        let is_stalled = !safe.stalled.is_empty();
        if self.safe_epochs.borrow().stalled != safe.stalled {
            self.aside_to_revisit.set(ALL_ASIDE);
        }
        self.safe_epochs.replace(safe);
        if is_stalled {
            self.recover_dead_readers(now)?;
        }
        Ok(())
    }

    /// Recovers readers that were killed while they had a view: their pins would keep memory from
    /// reuse forever. Not one from which a living process takes cells, which may be stopped: the
    /// caller needs the epoch, and a later advance recovers the reader.
    #[cold]
    fn recover_dead_readers(&self, now: u64) -> Result<()> {
        for index in 0..member_slots_used(self.map())? {
            let pin = self.map().word(member_at(index) + MEMBER_PIN)?.load(Ordering::Acquire);
            let is_stalled = |start: &u64| start.saturating_add(STALLED_EPOCHS) < now;
            let Some(start) = pin::start_of(pin).filter(is_stalled) else { continue };
            note_stalled(self.map(), index, start)?;
            if !self.is_taken(index)? {
                match self.recover_if_dead(index) {
                    Ok(_) => {}
                    Err(error) if self.leaves_one_member(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// True if a living process takes cells of a member.
    fn is_taken(&self, index: u32) -> Result<bool> {
        let taker = Arena::new(self.map(), index, self.shared.is_fenced)?.get(undo::TAKER);
        match lock::owner_of(taker) {
            0 => Ok(false),
            owner if owner == self.lock_owner() => Ok(true),
            owner => match self.recover_if_dead(lock::member_of(owner)) {
                Ok(is_recovered) => Ok(!is_recovered),
                Err(error) if self.leaves_one_member(&error) => Ok(true),
                Err(error) => Err(error),
            },
        }
    }

    /// The process that has to act before what a member holds is released: its own, or that of the
    /// member that recovers it. For error messages.
    pub(crate) fn holder(&self, index: u32) -> Result<Holder, Corruption> {
        let identity = identity_of(self.map(), self.responsible_for(index)?)?;
        Ok(Holder { pid: identity.pid, name: identity.text() })
    }
}

/// True if a slot belongs to no living process.
pub(crate) fn is_dead(shared: &Shared, index: u32) -> Result<bool> {
    let word = state_of(&shared.map, index)?.load(Ordering::Acquire);
    Ok(!state::is_owned(word) || is_process_dead(shared, state::process(word))?)
}

/// True if the process with this liveness number has ended: the kernel has released its lock
/// (`spec/region.md`, section 7).
pub(crate) fn is_process_dead(shared: &Shared, number: u64) -> Result<bool> {
    if number == shared.liveness.number() {
        return Ok(false);
    }
    shared.map.with_file(|file| Ok(!is_process_alive(file, number)?))
}

impl Drop for Member {
    /// Detaches: frees the member's memory, and then its slot.
    fn drop(&mut self) {
        if self.map().is_forked() || self.health.get() == Health::Unrecovered {
            // A parent's member stays with the parent. An unrecovered one keeps its slot until this
            // process ends; then another process recovers it.
            return;
        }
        if !self.map().is_damaged() {
            // Cells that cannot be moved stay in the arena, for the next member in this slot. A
            // panic in here must not end a process that is unwinding already.
            let moved = catch_unwind(AssertUnwindSafe(|| {
                // An operation of the caller that panicked between two calls left pending cells.
                self.last_operation(|| {
                    self.recover_self()?;
                    if self.health.get() == Health::Running { self.free_all() } else { Ok(()) }
                })
            }));
            if matches!(moved, Ok(Err(Error::Stalled { .. }))) && self.arena().has_open_record() {
                // A stopped process takes cells of this slot. Another process recovers the slot
                // when this one has ended.
                return;
            }
            if moved.is_err() {
                self.stop_session();
                if self.health.get() == Health::Unrecovered {
                    return;
                }
            }
        }
        let (Ok(word), Ok(())) =
            (state_of(self.map(), self.index), clear_pin(self.map(), self.index))
        else {
            // As for the extension of the pin.
            invariant!("slot {} lies outside the region", self.index)
        };
        // The table was in the mapping, as above.
        let _ = clear_copy(self.map(), self.index);
        crash_point!("detach.unpinned");
        state::free(word, word.load(Ordering::Acquire));
        crash_point!("detach.free");
        self.shared.hint.fetch_min(u64::from(self.index), Ordering::Relaxed);
    }
}

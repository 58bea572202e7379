//! What a member knows about a heap that has no room (`docs/decisions/015-evacuation.md`).

use std::cell::{Cell as Private, RefCell};
use std::time::Instant;

use nearstate_model::HeapUsage;

/// A member's memory of searches that were in vain.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// The watch that this member began last.
    pub(crate) watch: Private<Option<WatchStart>>,
    /// The units of `known`, or 0.
    pub(crate) known_units: Private<u64>,
    /// What must not have changed for a refusal without a search.
    pub(crate) known: RefCell<KnownRefusal>,
    /// The last allocation was refused without a search.
    pub(crate) is_known: Private<bool>,
    /// Units of the cell for which the operation that is being refused found no room.
    pub(crate) refused_units: Private<u64>,
    /// A search since the beginning of the watch met a lock, or a file system without pages.
    pub(crate) is_incomplete: Private<bool>,
    /// Members in an operation, from which searches since then have taken nothing.
    pub(crate) skipped: RefCell<Vec<u32>>,
    /// The classes of the cells that the reserve has lent to the current operation.
    pub(crate) lent_classes: RefCell<Vec<u8>>,
    /// The records that it has lent to earlier ones.
    pub(crate) lent: LentRecords,
    /// What the heap was used for when it was full.
    pub(crate) usage: RefCell<Option<KnownUsage>>,
}

/// The beginning of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchStart {
    /// The count of the watched word.
    pub(crate) count: u64,
    pub(crate) epoch: u64,
    /// The floor of the log.
    pub(crate) floor: u64,
}

/// A moment, to find out whether memory has come free since
/// ([`Member::has_freed`](crate::Member::has_freed)).
#[derive(Clone, Copy, Debug)]
pub struct FreeWatch {
    /// None: the barrier failed, so nothing is known.
    pub(crate) watch: Option<WatchStart>,
    /// The states of all members and the starts of their pins.
    pub(crate) members: u64,
}

/// The waits for readers on behalf of one operation that a full heap has refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReaderWaits {
    /// The operation has run again this many times.
    pub(crate) runs: u32,
    /// All waits end then.
    pub(crate) until: Option<Instant>,
    /// A wait after which no more was free.
    pub(crate) was_vain: bool,
}

/// What a search in vain depends on.
#[derive(Debug, Default)]
pub(crate) struct KnownRefusal {
    /// The count of the watched word.
    pub(crate) count: u64,
    /// The floor of the log.
    pub(crate) floor: u64,
    /// The member had a pin: without one it can do more.
    pub(crate) is_pinned: bool,
    /// The units that the reserve had lent.
    pub(crate) lent: u64,
    /// Readers that may hold retired memory: the members and the starts of their pins.
    pub(crate) readers: Vec<(u32, u64)>,
    /// Members in an operation that have memory, and their state words.
    pub(crate) active: Vec<(u32, u64)>,
    /// The refusals until the next search.
    pub(crate) left: u32,
}

/// What the heap was used for when it was full.
#[derive(Debug)]
pub(crate) struct KnownUsage {
    pub(crate) at: Instant,
    /// Numbers that change when the usage does.
    pub(crate) state: [u64; 3],
    pub(crate) usage: Box<HeapUsage>,
}

/// What a member knows of the records in the reserve.
#[derive(Debug, Default)]
pub(crate) struct LentRecords {
    /// They are moved elsewhere: what they take, the reserve gets back.
    pub(crate) is_returning: Private<bool>,
    /// They are to be moved when this member has no pin, or when a reader has ended.
    pub(crate) is_due: Private<bool>,
    /// A chunk is compacted: the reserve lends its last chunk to that.
    pub(crate) is_compacting: Private<bool>,
    /// The current operation only deletes: the reserve lends its last chunk to it.
    pub(crate) is_deletion: Private<bool>,
    /// The units that must be lent before a chunk is compacted again.
    pub(crate) compacted_at: Private<u64>,
    /// The reserve got something back since the last operation that needed it began.
    pub(crate) has_returned: Private<bool>,
    /// Returns that are left out, because the last one was in vain.
    pub(crate) vain_left: Private<u32>,
    /// Writes until the next look at the readers of a return in vain, and how many there were
    /// before the last one.
    pub(crate) writes_left: Private<(u32, u32)>,
    /// The starts of the pins that were stalled then.
    pub(crate) vain_readers: RefCell<Vec<u64>>,
    /// The current operation was refused the reserve, because it makes the content larger.
    pub(crate) is_growth: Private<bool>,
    /// An operation that may use the reserve was refused while this member had a pin: it waits for
    /// readers when that has ended.
    pub(crate) is_wait_due: Private<bool>,
    /// The units that were lent, and those that were free, after a wait that was in vain.
    pub(crate) vain_wait: Private<Option<(u64, u64)>>,
    /// The starts of the pins for which an operation has waited in vain.
    pub(crate) waited_for: RefCell<Vec<u64>>,
}

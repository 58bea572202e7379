//! Layer 1: data that outlives its writer. A region is shared memory that any process can attach:
//! its file, members, heap and index, and the recovery of dead members. `spec/region.md` defines
//! every byte. All `unsafe` code of the engine is in this crate.
//!
//! Modules are listed in layer order: each uses only the modules below it.

#![expect(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of 64-bit words by casts; usize has 64 bits (see below)"
)]

const _: () = assert!(usize::BITS == 64, "a region is mapped whole: a 64-bit machine is needed");

pub mod repair;
pub mod check;
mod removal;
pub mod inspect;
mod namespace;
mod recovery;
mod evacuation;
mod txn;
mod receipt;
mod takeover;
mod cluster;
mod follow;
mod log;
mod usage;
mod index;
mod counter;
mod ring;
mod heap;
mod pipe;
mod member;
mod region;
pub mod crash;
mod thread_guard;
mod numa_policy;
mod system;
mod clock;
mod allocator;
pub mod layout;
mod atomic;

#[cfg(loom)]
#[cfg(test)]
mod models;

#[cfg(not(loom))]
#[cfg(test)]
mod fixture;

#[cfg(not(loom))]
#[cfg(test)]
mod without_fallocate;

pub use allocator::release_allocator_memory;
pub use clock::{
    lease_clock, lease_clock_ms, now_ms, now_ms_coarse, since_boot, thread_time, wall_ahead_ms,
    without_expiry,
};
pub use cluster::{OwnerLease, VIEW_MAX};
pub use counter::Counter;
pub use evacuation::Evacuation;
pub use follow::{ComingEntry, FollowPosition, FollowState, Following, LogIdentity};
pub use heap::cell::{
    CELL_HEADER_BYTES, Cell, CellHeader, CellKind, FLAG_META, FLAGS_FORM, checksum_of,
};
pub use index::batch::{BucketLine, BucketPlace, Probe};
pub use index::bucket::{PROMOTIONS_MAX, is_record_version};
pub use index::known_slot::{KnownSlot, WriteTarget};
pub use index::lookup::{LookupResult, ReadToken, hash};
pub use inspect::{HeapSpace, Inspection, MemberEntry};
pub use layout::Corruption;
pub use log::entry::{LogEntry, LoggedRecord, OldRecord, log_mark};
pub use log::reader::{LogProgress, LogRead, LogReader, LogWaiter, PositionState};
pub use member::advisory_lock::AdvisoryLock;
pub use member::refusals::{FreeWatch, ReaderWaits};
pub use member::stalled::{HeldLock, StallDecision, StallHook, StalledHolder};
pub use member::{LOCK_WAIT_MAX, Member, Pin};
pub use namespace::NamespaceEntry;
pub use namespace::removal::RemovalDecision;
pub use namespace::rules::{NewPolicy, ReplicationPolicy};
pub use numa_policy::{NumaPolicy, PagesByNode};
pub use pipe::{PIPE_BYTES, PipeEnd, PipeInterest, PipeTransfer, RING_FORMAT};
pub use receipt::LogPlace;
pub use region::catalog_use::{is_end_of_namespace, namespace_place, namespace_removed};
pub use region::expiry_clock::{CLOCK_SHIFT_MAX_MS, SHIFT_KEPT_MS};
pub use region::file::{AttachOptions, CreateOptions, PageSize, PinMode, Region, RegionFiles};
pub use region::index_table::IndexTable;
pub use region::map::CellWriter;
pub use region::owner::{
    check_socket_path, check_socket_peer, create_user_directory, user_directory,
};
pub use region::prefetch::prefetch;
pub use region::superblock::{Superblock, validate_superblock};
pub use removal::RemovedRegion;
pub use ring::{RingRead, RingReader, RingStart, RingWaiter, wait_any};
pub use system::{barrier_everywhere, create_eventfd, with_signals_blocked};
pub use takeover::Takeover;
pub use thread_guard::{ThreadCall, ThreadGuard};
pub use txn::events::{TxnEvent, TxnEvents};
pub use txn::fill::PendingCell;
pub use txn::plan::{
    CellChange, CommitOutcome, CommitPlan, Expectation, RecordAccess, UsageChanges,
};
pub use txn::publish::{WriteDecision, WriteOutcome};
pub use txn::single_logged::{LogRequest, LoggedOutcome};
pub use usage::{NamespaceLimits, NamespaceUsage};

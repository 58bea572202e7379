//! Layer 1: bytes that outlive their writer. A region of shared memory that any process may attach:
//! its file, its members, its heap, its index, and what puts a dead member's work in order.
//! `spec/region.md` draws every byte; this crate is the home of `unsafe`.
//!
//! Modules stand in the order of layers: each uses only those below it.

#![expect(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of 64-bit words by casts; usize has 64 bits (see below)"
)]

const _: () = assert!(usize::BITS == 64, "a region is mapped whole: a 64-bit machine is needed");

pub mod check;
pub mod inspect;
mod namespace;
mod recovery;
mod txn;
mod index;
mod counter;
mod ring;
mod heap;
mod pipe;
mod member;
mod region;
pub mod crash;
mod system;
pub mod layout;
mod atomic;

#[cfg(all(test, loom))]
mod models;

pub use counter::Counter;
pub use heap::cell::{CELL_HEADER_BYTES, Cell, CellHeader, CellKind, FLAG_META, FLAGS_FORM};
pub use index::lookup::{LookupResult, ReadToken, hash};
pub use inspect::{Inspection, MemberEntry};
pub use layout::Corruption;
pub use member::presence::AdvisoryLock;
pub use member::{LOCK_WAIT_MAX, Member, Pin};
pub use namespace::NamespaceEntry;
pub use pipe::{PIPE_BYTES, PipeEnd, PipeInterest, PipeTransfer, RING_FORMAT};
pub use region::file::{
    CreateOptions, NumaPolicy, PageSize, PinMode, Region, RegionFiles, Superblock,
    validate_superblock,
};
pub use region::index_table::IndexTable;
pub use region::map::prefetch;
pub use ring::{RingRead, RingReader, RingStart, RingWaiter, wait_any};
pub use system::{create_eventfd, now_ms_coarse, since_boot, with_signals_blocked};
pub use txn::events::{TxnEvent, TxnEvents};
pub use txn::plan::{CommitOutcome, CommitPlan, Expectation, RecordAccess, RecordChange};
pub use txn::publish::{PendingCell, WriteDecision, WriteOutcome, WriteTarget};

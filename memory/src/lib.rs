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
pub use heap::cell::{Cell, FLAG_META, FLAGS_FORM, HEADER, Head, Kind};
pub use index::lookup::{Placed, Seen, hash};
pub use inspect::{Inspection, MemberEntry};
pub use member::presence::Presence;
pub use member::{Member, Pin, WAIT_MAX};
pub use namespace::NamespaceEntry;
pub use pipe::{Moved, PIPE_BYTES, PipeEnd, RING_FORMAT, Wants};
pub use recovery::{Decision, Fact, decide};
pub use region::directory::Table;
pub use region::file::{
    CreateOptions, NumaPolicy, PageSize, PinMode, Region, RegionFiles, Superblock, judge_superblock,
};
pub use region::map::prefetch;
pub use ring::{Next, RingReader, RingWaiter, Start, wait_any};
pub use system::{event_descriptor, now_ms_coarse, since_boot, without_signals};
pub use txn::announce::{Announcement, Announcements};
pub use txn::plan::{Access, Change, Committed, Expect, Plan};
pub use txn::publish::{Changed, Draft, Target, Verdict};

//! Floor 1: bytes that outlive their writer. A region of shared memory that any process may attach:
//! its file, its members, its heap, its index, and what puts a dead member's work in order.
//! `spec/region.md` draws every byte; this crate is the home of `unsafe`.
//!
//! Modules stand in the order of floors: each uses only those below it.

#![cfg_attr(loom, expect(dead_code, reason = "models use the small lock-free parts only"))]
#![cfg_attr(
    not(loom),
    expect(
        clippy::cast_possible_truncation,
        reason = "fields are cut out of 64-bit words by casts; usize has 64 bits (see below)"
    )
)]

const _: () = assert!(usize::BITS == 64, "a region is mapped whole: a 64-bit machine is needed");

#[cfg(not(loom))]
pub mod check;
#[cfg(not(loom))]
pub mod inspect;
#[cfg(not(loom))]
mod namespace;
#[cfg(not(loom))]
mod recover;
#[cfg(not(loom))]
mod transaction;
#[cfg(not(loom))]
mod plan;
#[cfg(not(loom))]
mod announce;
#[cfg(not(loom))]
mod publish;
#[cfg(not(loom))]
mod split;
#[cfg(not(loom))]
mod index;
#[cfg(not(loom))]
mod intent;
#[cfg(not(loom))]
mod counter;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod heap;
#[cfg(not(loom))]
mod presence;
#[cfg(not(loom))]
mod member;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod roster;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod cell;
#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod pipe;
#[cfg(not(loom))]
mod life;
#[cfg(not(loom))]
mod fault;
mod ring_words;
mod pipe_words;
pub mod bucket;
mod state;
mod pin;
mod lock;
#[cfg(not(loom))]
pub mod crash;
#[cfg(not(loom))]
mod system;
#[cfg(not(loom))]
pub mod class;
pub mod layout;
mod atomic;

#[cfg(loom)]
#[cfg(test)]
mod models;

#[cfg(not(loom))]
pub use announce::{Announcement, Announcements};
#[cfg(not(loom))]
pub use cell::{Cell, FLAG_META, FLAGS_FORM, HEADER, Head, Kind};
#[cfg(not(loom))]
pub use counter::Counter;
#[cfg(not(loom))]
pub use index::{Placed, Seen, hash};
#[cfg(not(loom))]
pub use inspect::{Inspection, MemberEntry};
#[cfg(not(loom))]
pub use map::prefetch;
#[cfg(not(loom))]
pub use member::{Member, Pin, WAIT_MAX};
#[cfg(not(loom))]
pub use namespace::NamespaceEntry;
#[cfg(not(loom))]
pub use pipe::{Moved, PIPE_BYTES, PipeEnd, RING_FORMAT, Wants};
#[cfg(not(loom))]
pub use plan::{Access, Change, Committed, Expect, Plan};
#[cfg(not(loom))]
pub use presence::Presence;
#[cfg(not(loom))]
pub use publish::{Changed, Draft, Target, Verdict};
#[cfg(not(loom))]
pub use recover::{Decision, Fact, decide};
#[cfg(not(loom))]
pub use region::{
    CreateOptions, NumaPolicy, PageSize, PinMode, Region, RegionFiles, Superblock, judge_superblock,
};
#[cfg(not(loom))]
pub use ring::{Next, RingReader, RingWaiter, Start, wait_any};
#[cfg(not(loom))]
pub use system::{event_descriptor, now_ms_coarse, since_boot, without_signals};
#[cfg(not(loom))]
pub use table::Table;

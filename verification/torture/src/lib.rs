//! Layer 5: proves that a killed process loses, tears and leaks nothing. Real processes use one
//! region and are killed: at random instants ([`run`]), at every named point of every write path
//! (`points`, built with the feature `crash-points`), and after single instructions ([`step`],
//! [`sweep`], which also stops them there). After each kill, another process verifies the region
//! against an oracle that knows the acknowledged writes ([`oracle`]). A checker of histories
//! examines what the processes read of each other ([`histories`]). A node that serves the region is
//! killed under its clients as well ([`node_kills`]), and so are the hosts of a cluster
//! ([`failovers`]).
//!
//! A module uses only modules that are listed below it.

#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "only the program and its tests use this crate: an error is a violation that was \
              found, or an error of the system"
)]

pub mod run;
pub mod child;
pub mod node_kills;
pub mod failovers;
pub mod flips;
pub mod report;
pub mod tags;
pub mod sweep;
#[cfg(feature = "crash-points")]
pub mod points;
pub mod repairs;
pub mod histories;
pub mod step;
pub mod scenario;
mod reader;
pub mod idle_memory;
pub mod limits;
pub mod removals;
mod stops;
pub mod verify;
mod snapshot;
mod stream_check;
mod writer;
pub mod trace;
pub mod spawn;
mod region_access;
mod report_lines;
pub mod oracle;
pub mod journal;
pub mod content;
pub mod rng;
pub mod wait_watch;
pub mod clock;
pub mod times;
mod error_context;

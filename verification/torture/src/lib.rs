//! Floor 5: the proof of the death promise. Real processes use one region and are killed: at random
//! instants ([`run`]), at every named point of every write path (`points`, built with the feature
//! `crash-points`), and at single instructions ([`step`]). Each time another process
//! verifies the region against an oracle that knows what was acknowledged ([`oracle`]). What the
//! processes saw of each other meanwhile is judged by a checker of histories ([`histories`]).
//! A node that serves the region is killed under its clients as well ([`served`]).
//!
//! Modules stand in the order of floors: each uses only those below it.

#![forbid(unsafe_code)]

pub mod run;
pub mod report;
pub mod child;
pub mod node_kills;
pub mod tags;
#[cfg(feature = "crash-points")]
pub mod points;
pub mod histories;
pub mod step;
pub mod scenario;
mod reader;
pub mod verify;
mod stream_check;
mod writer;
pub mod spawn;
pub mod oracle;
pub mod journal;
pub mod content;
pub mod rng;
pub mod clock;

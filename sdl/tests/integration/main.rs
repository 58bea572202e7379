//! Integration tests of the SDL API: the conformance suite on every back-end, tests of single
//! back-ends, and watches in event loops.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[cfg(feature = "redis")]
mod conformance;
#[cfg(feature = "redis")]
mod redis;
mod region;
mod replicated;
mod watch_fd;
#[cfg(feature = "redis")]
mod promises;
#[cfg(feature = "redis")]
mod fixture;

//! Integration tests of the SDL API: one suite of promises on every back-end, what is particular
//! to one back-end, and watches in event loops.

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
mod watch_fd;
#[cfg(feature = "redis")]
mod promises;
#[cfg(feature = "redis")]
mod fixture;

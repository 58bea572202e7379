//! Engines of several hosts in one process, over loopback connections.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints why it was skipped"
)]

mod fixture;
mod etcd;
mod failures;
mod hostile;
mod raft;
mod slow;

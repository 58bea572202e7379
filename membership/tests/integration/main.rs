//! Engines of several hosts in one process, over loopback connections.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, prints why it was skipped, and its peers are threads"
)]

mod fixture;
mod directories;
mod etcd;
mod etcd_failures;
mod etcd_gateway;
mod etcd_process;
mod etcd_restored;
mod failures;
mod hostile;
mod raft;
mod reports;
mod slow;

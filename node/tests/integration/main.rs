//! Integration tests of the node: real sockets, with a protocol of lines.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and clients are threads"
)]

mod cluster_driver;
mod copied_file;
mod declared_position;
mod drain;
mod ended_driver;
mod first_lease;
mod fixture;
mod full_member;
mod hostile_driver;
mod hostile_peers;
mod joining;
mod late_welcome;
mod left_group;
mod log_watch;
mod lost_after_seal;
mod never_owner;
mod older_owner;
mod owner_heard;
mod partition;
mod repaired_region;
mod restarted_owner;
mod sockets;
mod stopped_owner;
mod stopped_writers;
mod unstored_record;

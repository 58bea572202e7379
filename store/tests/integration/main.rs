//! Tests of `nearstate-store` through its public interface.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::panic_in_result_fn,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints why it was skipped"
)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of tests are small"
)]

mod announced_stamps;
mod attach_files;
#[cfg(feature = "crash-points")]
mod clock_jumps;
mod collections;
mod commit_waits;
mod concurrent_tag_declaration;
mod contention;
mod copied_file;
mod counters;
#[cfg(feature = "crash-points")]
mod expired_records;
mod expiry_clock;
mod fixture;
mod fenced_declarations;
mod find_for_update;
mod follow;
mod followed_namespaces;
mod followers;
mod generations;
mod for_update;
mod full_log;
mod full_region;
mod reserve;
mod growing_records;
mod scattered_memory;
mod hostile;
#[cfg(feature = "crash-points")]
mod killed_apply;
#[cfg(feature = "crash-points")]
mod killed_collection;
#[cfg(feature = "crash-points")]
mod killed_policy;
mod killed_tag_declaration;
#[cfg(feature = "crash-points")]
mod kept_copies;
#[cfg(feature = "crash-points")]
mod killed_takeover;
mod large_collections;
mod log;
mod mixed_namespaces;
mod namespace_limits;
mod namespace_removal;
mod notifications;
mod objects;
#[cfg(feature = "crash-points")]
mod pid_namespaces;
mod policies;
mod readme;
mod read_levels;
mod receipts;
mod records;
mod removed_namespaces;
mod scans;
#[cfg(feature = "crash-points")]
mod stopped_readers;
#[cfg(feature = "crash-points")]
mod stopped_writers;
mod tag_declaration;
mod tags;
mod takeover;
mod time_namespaces;
mod transactions;
mod whole_hashes;

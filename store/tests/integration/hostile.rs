//! Damaged files, truncated files, and exhausted resources. Each ends in an error that says what to
//! do, never in a crash, a hang or a lost record.

mod bad_files;
mod creation;
mod exhaustion;
mod flip_rates;
mod flips;
mod member_flips;
mod repairs;
mod truncated;
mod two_corrections;
mod zeroed;

//! Processes that use one region are killed, and what they leave is verified.
//!
//! `cargo xtask soak` runs the same proofs for longer. The feature `crash-points` adds the tests
//! that kill at named points or inject faults into the store.

#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a test fails by panicking and prints what it measured"
)]

mod fixture;
mod flips;
mod histories;
mod random_kills;
mod sentinel;
mod single_steps;
mod tag_stress;

#[cfg(feature = "crash-points")]
mod crash_points;
#[cfg(feature = "crash-points")]
mod injected_faults;
#[cfg(feature = "crash-points")]
mod sweep_faults;
#[cfg(feature = "crash-points")]
mod waiting;

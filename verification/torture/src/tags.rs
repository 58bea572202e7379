//! Indexes, counts, the order of expiry, events, the commit stream, counters and objects under
//! kills.
//!
//! There are two proofs. `points`: one process executes a script and is killed at named points; a
//! model ([`model`]) knows the result of each prefix of the script. [`stress`]: many processes at
//! the same time, killed at random; the content of the rings is replayed and compared with the
//! records.
//!
//! A module uses only modules that are listed below it.

pub mod stress;
#[cfg(feature = "crash-points")]
pub mod log_kills;
#[cfg(feature = "crash-points")]
pub mod points;
#[cfg(feature = "crash-points")]
mod verifier;
pub mod script_process;
pub mod scripts;
pub mod model;

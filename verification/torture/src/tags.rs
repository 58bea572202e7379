//! What follows from a record's tags, its end and its watchers, under kills: indexes, counts, the
//! order of expiry, events, the commit stream; counters and objects beside them.
//!
//! Two proofs. `points`: one process plays a script and is killed at named points; a model
//! ([`world`]) knows what each prefix of the script comes to. [`crowd`]: many processes at once,
//! killed at random; what the rings told is replayed and compared with what is there.
//!
//! Modules stand in the order of floors: each uses only those below it.

pub mod stress;
#[cfg(feature = "crash-points")]
pub mod points;
#[cfg(feature = "crash-points")]
mod verifier;
pub mod script_process;
pub mod scripts;
pub mod model;

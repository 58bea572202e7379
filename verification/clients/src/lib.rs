//! Layer 5: clients of other projects, and random commands, against the node.
//!
//! The tests beside this file start the built `nearstate` and use it with `ricsdl`, redis-py,
//! go-redis, `redis-cli` and `redis-benchmark`. They also send the same commands to the node and to
//! Debian's Redis and compare every byte of the replies. The program of this crate runs the long
//! tests: ten clients, Redis' Tcl units, and the clients of Nudsf.
//!
//! A module uses only modules that are listed below it.

#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "only tests use this crate: an error is a difference that was found, or an error of \
              the system"
)]
#![expect(clippy::print_stdout, reason = "a long test prints its progress")]

pub mod nudsf;
mod nudsf_timers;
pub mod tcl_units;
pub mod redis_source;
pub mod soak;
pub mod client_programs;
pub mod differential;
pub mod sequence;
pub mod known_differences;
pub mod command_forms;
pub mod python;
pub mod programs;

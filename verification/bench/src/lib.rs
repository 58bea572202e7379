//! Layer 5: the workloads of the papers against interchangeable stores, and the one program that
//! runs, saves, compares and shows them. See ARCHITECTURE.md.

#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "only the program and its tests use this crate: names that say it all have no \
              comment, and errors are those of the store or of the system"
)]

#[macro_use]
mod errors;
pub mod peer_commands;
pub mod conformance;
pub mod code;
pub mod run_command;
pub mod commands;
pub mod own_run;
pub mod presets;
pub mod compare;
pub mod replication;
pub mod numap;
pub mod nudsf;
pub mod run_frame;
pub mod report;
pub mod outputs;
pub mod saved;
pub mod figures;
pub mod run;
pub mod options;
pub mod client_pool;
pub mod client;
pub mod schedule;
mod wait;
pub mod meter;
pub mod targets;
pub mod space;
pub mod peers;
pub mod processes;
pub mod workloads;
pub mod protocol;
#[cfg(test)]
mod sample;
pub mod noise;
pub mod result;
pub mod parameters;
pub mod access;
pub mod operations;
pub mod spread;
pub mod random;
pub mod html;
pub mod reaper;
pub mod progress;
pub mod table;
pub mod machine;
pub mod stat;
pub mod cpus;
pub mod clock;

//! Floor 5: the workloads of the papers against interchangeable stores. See ARCHITECTURE.md.

#![forbid(unsafe_code)]

pub mod deliver;
pub mod run;
pub mod options;
pub mod herd;
pub mod processes;
pub mod client;
pub mod schedule;
pub mod meter;
pub mod targets;
pub mod workloads;
pub mod protocol;
pub mod result;
pub mod parameters;
pub mod access;
pub mod chance;

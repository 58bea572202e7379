//! Floor 5: the workloads of the papers against interchangeable stores. See ARCHITECTURE.md.

#![forbid(unsafe_code)]

pub mod conformance;
pub mod client;
pub mod meter;
pub mod targets;
pub mod workloads;
pub mod protocol;
pub mod result;
pub mod access;

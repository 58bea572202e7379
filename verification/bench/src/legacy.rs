//! The older measuring programs, until workloads of the one runner replace them.

pub mod transactions;
pub mod micro;
pub mod access;
pub mod node;
pub mod targets;
pub mod protocol;
pub mod content;
pub mod place;

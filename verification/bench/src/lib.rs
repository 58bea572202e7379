//! Floor 5: the experiments of paper 1 against interchangeable targets, and what any benchmark here
//! is reported with. See ARCHITECTURE.md.

#![forbid(unsafe_code)]

pub mod transactions;
pub mod micro;
pub mod server;
pub mod access;
pub mod node;
pub mod targets;
pub mod keeper;
pub mod protocol;
pub mod content;
pub mod report;
pub mod table;
pub mod stat;
pub mod place;
pub mod machine;

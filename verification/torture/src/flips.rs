//! Single flipped bits in a region that processes use. Two processes are attached and read, write,
//! delete and commit; a bit of the metadata or of a cell's header is flipped; a third process
//! attaches. No process may crash, make no progress, or return something else than what was stored
//! in a record that the flip does not concern. Afterwards the offline check looks for the flip, and
//! the repair must leave a region without faults.

pub mod run;
pub mod totals;
pub(crate) mod verifier;
pub(crate) mod target;
pub(crate) mod worker;
mod frozen;

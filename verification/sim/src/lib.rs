//! A simulator of a cluster: the rules of `nearstate-cluster`, exactly as the product runs them, on
//! simulated hosts, regions, clocks, links and consensus. All choices follow from a seed, so one
//! seed gives one trace. What must hold is checked after every step.
//!
//! Simulated are: delay, loss, duplication and reordering of messages; cuts of links, also of one
//! direction; kills between any two effects; restarts with an older applied state; pauses longer
//! than a lease; lost regions, and older copies of their files; clocks that are 2 % fast or slow;
//! hosts that consensus does not reach; proposals that are lost, late or repeated; writers that
//! ignore the lease. Not simulated: bytes, heaps and floors of real regions, and faults within
//! consensus.

#![forbid(unsafe_code)]
#![expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the simulator's own indices; a panic is a failed run"
)]

pub use nearstate_cluster::Switch;
pub use options::{Faults, SimulationOptions};
pub use world::{RunReport, run};

mod operate;
mod drain;
mod execute;
mod replicate;
mod faults;
mod check;
mod world;
mod ledger;
mod event;
mod node;
mod region;
mod options;

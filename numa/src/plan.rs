//! Places network slices on processors by NUMAP (paper 5, Figure 6), for any number of slices and
//! machines.

mod baseline;
mod kubernetes;
mod pack;
mod replan;
mod place;
mod candidate;
mod machine;
mod request;

pub use baseline::{Baseline, baseline};
pub use kubernetes::KubernetesPolicy;
pub use pack::plan;
pub use request::{
    PlanOptions, Scheme, SliceLoad, SlicePin, SliceRequest, Thresholds, TrafficLevel,
};

use crate::cpu_set::CpuSet;
use crate::topology::Proximity;

/// The processors of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The slice.
    pub slice: String,
    /// The index of its machine.
    pub machine: usize,
    /// The level of its traffic that was planned for.
    pub traffic: TrafficLevel,
    /// Pairs, then at most one pin.
    pub units: Vec<SliceUnit>,
    /// The nodes of its processors, and the node for its memory.
    pub nodes: CpuSet,
    /// The node with memory that is nearest to most of its processors.
    pub memory_node: Option<u32>,
    /// Why this machine and this memory node, and the next best ones. Empty if no reasons were
    /// requested.
    pub reason: String,
}

impl Assignment {
    /// Its processors, in the order of its threads.
    pub fn cpus_in_order(&self) -> Vec<u32> {
        self.units.iter().flat_map(|unit| unit.cpus.iter().copied()).collect()
    }

    /// Its processors.
    pub fn cpus(&self) -> CpuSet {
        self.units.iter().flat_map(|unit| unit.cpus.iter().copied()).collect()
    }
}

/// A pair of processors, or a single one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceUnit {
    /// One or two processors.
    pub cpus: Vec<u32>,
    /// How near the two are. `None` for one.
    pub proximity: Option<Proximity>,
    /// Why these were chosen, and the next best choice. Empty if no reasons were requested.
    pub reason: String,
}

/// A slice that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSlice {
    /// Its name.
    pub slice: String,
    /// Why, and what to do.
    pub reason: String,
}

/// A slice of an earlier plan that gets other processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its name.
    pub slice: String,
    /// The machine and the processors of the earlier plan.
    pub from: (usize, CpuSet),
    /// The machine and the processors of this plan.
    pub to: (usize, CpuSet),
    /// Why it moves.
    pub reason: String,
}

/// The placement of slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlicePlan {
    /// Placed slices, in the order of the requests.
    pub assignments: Vec<Assignment>,
    /// Slices that do not fit, in the order of the requests.
    pub refused: Vec<RefusedSlice>,
    /// Slices of the earlier plan that move.
    pub moves: Vec<Move>,
}

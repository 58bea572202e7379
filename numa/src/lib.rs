//! The processors and the memory of a machine, and the placement of network slices on them.
//!
//! [`Topology`] describes a machine: cores, caches, NUMA nodes and their distances. It is read from
//! this machine, from a copy of another machine's `/sys`, or from an XML file of hwloc. Reading is
//! the only input and output of this crate; everything else is pure.
//!
//! ```
//! use nearstate_numa::CpuSet;
//!
//! let cpus: CpuSet = "0-3,24".parse()?;
//! assert_eq!((cpus.len(), cpus.to_string().as_str()), (5, "0-3,24"));
//! # Ok::<(), nearstate_model::Error>(())
//! ```

#![forbid(unsafe_code)]

mod tools;
mod draw;
mod plan;
mod discover;
mod sysfs;
mod cgroup;
mod hwloc_xml;
mod xml_limits;
mod activity;
mod topology;
mod text_file;
mod cpu_set;

pub use activity::Activity;
pub use cpu_set::{CPUS_MAX, CpuSet};
pub use discover::discover;
pub use draw::{CpuMarks, svg, svg_marked, text};
pub use plan::{
    Assignment, Baseline, KubernetesPolicy, Move, PlanOptions, RefusedSlice, Scheme, SliceLoad,
    SlicePin, SlicePlan, SliceRequest, SliceUnit, Thresholds, TrafficLevel, baseline, plan,
};
pub use tools::{PlacementTool, ToolOptions, for_tool};
pub use topology::{
    Cache, CacheKind, Cpu, CpuQuota, Nic, NumaNode, Proximity, Topology, TopologyParts,
    architecture_name,
};

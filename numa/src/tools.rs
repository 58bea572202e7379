//! An assignment in the notation of other tools.

use std::fmt::Write as _;

use nearstate_model::{Error, Result};

use crate::cpu_set::CpuSet;
use crate::plan::Assignment;
use crate::topology::Proximity;

/// DPDK numbers nodes below this unless it is built with another `max_numa_nodes`
/// (`RTE_MAX_NUMA_NODES`).
const DPDK_NODES_MAX: u32 = 32;

/// A tool that starts or places programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementTool {
    /// `taskset`.
    Taskset,
    /// `numactl`.
    Numactl,
    /// A drop-in file of a systemd service.
    Systemd,
    /// `vcpupin`, `numatune`, and the processors and the node of the guest, of a libvirt domain.
    Libvirt,
    /// Lists for the resources of a container (CRI), as Kubernetes' CPU manager writes them.
    Kubernetes,
    /// Arguments of DPDK's environment abstraction layer (EAL).
    Dpdk,
}

/// What tools need besides the assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOptions {
    /// Processors for threads that are not the slice's own: libvirt's emulator. Those of the slice
    /// are left out.
    pub housekeeping: CpuSet,
    /// Memory of a guest (libvirt), huge pages of the node (DPDK), in MiB.
    pub memory_mib: u32,
}

impl Default for ToolOptions {
    fn default() -> Self {
        Self { housekeeping: std::iter::once(0).collect(), memory_mib: 1024 }
    }
}

/// The text for a tool.
///
/// # Errors
/// `BadArgument` if the tool needs a memory node and the assignment has none, or one with a number
/// that the tool does not support.
pub fn for_tool(one: &Assignment, tool: PlacementTool, options: &ToolOptions) -> Result<String> {
    let (name, cpus) = (&one.slice, one.cpus());
    let node = || {
        one.memory_node.ok_or_else(|| Error::BadArgument {
            detail: format!("slice {name} has no node with memory; use taskset"),
        })
    };
    Ok(match tool {
        PlacementTool::Taskset => format!("taskset --cpu-list {cpus} PROGRAM  # slice {name}\n"),
        PlacementTool::Numactl => {
            format!("numactl --physcpubind={cpus} --membind={} PROGRAM  # slice {name}\n", node()?)
        }
        PlacementTool::Systemd => format!(
            "# /etc/systemd/system/{name}.service.d/placement.conf\n[Service]\n\
             CPUAffinity={cpus}\nAllowedCPUs={cpus}\nAllowedMemoryNodes={node}\n\
             NUMAPolicy=bind\nNUMAMask={node}\n",
            node = node()?
        ),
        PlacementTool::Libvirt => libvirt(one, node()?, options),
        PlacementTool::Kubernetes => format!(
            "# container resources of slice {name} (CRI LinuxContainerResources)\n\
             cpuset_cpus: \"{cpus}\"\ncpuset_mems: \"{}\"\n",
            node()?
        ),
        PlacementTool::Dpdk => dpdk(one, node()?, options)?,
    })
}

/// Hyper-thread pairs become cores of the guest with two threads, other processors cores with one:
/// the guest's scheduler knows which ones share a core.
fn libvirt(one: &Assignment, node: u32, options: &ToolOptions) -> String {
    let in_order = one.cpus_in_order();
    let count = in_order.len();
    let is_pair = |near: Option<Proximity>| near == Some(Proximity::Core);
    let threads = if one.units.iter().all(|unit| is_pair(unit.proximity)) { 2 } else { 1 };
    let (memory, slice) = (options.memory_mib, &one.slice);
    let mut text = format!(
        "<!-- domain {slice} -->\n<memory unit='MiB'>{memory}</memory>\n\
         <vcpu placement='static'>{count}</vcpu>\n<cputune>\n"
    );
    for (vcpu, cpu) in in_order.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  <vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>");
    }
    let emulator = options.housekeeping.difference(&one.cpus());
    if !emulator.is_empty() {
        let _ = writeln!(text, "  <emulatorpin cpuset='{emulator}'/>");
    }
    let _ = write!(
        text,
        "</cputune>\n<numatune>\n  <memory mode='strict' nodeset='{node}'/>\n  \
         <memnode cellid='0' mode='strict' nodeset='{node}'/>\n</numatune>\n\
         <cpu mode='host-passthrough'>\n  \
         <topology sockets='1' cores='{}' threads='{threads}'/>\n  <numa>\n    \
         <cell id='0' cpus='0-{}' memory='{memory}' unit='MiB'/>\n  </numa>\n</cpu>\n",
        count / threads,
        count.saturating_sub(1)
    );
    text
}

fn dpdk(one: &Assignment, node: u32, options: &ToolOptions) -> Result<String> {
    let name = &one.slice;
    if node >= DPDK_NODES_MAX {
        return Err(Error::BadArgument {
            detail: format!(
                "slice {name} has its memory on node {node}; DPDK supports nodes 0 to {}; start it \
                 with the output for numactl",
                DPDK_NODES_MAX - 1
            ),
        });
    }
    let lcores = one.cpus_in_order().into_iter().enumerate();
    let lcores: Vec<String> = lcores.map(|(lcore, cpu)| format!("{lcore}@{cpu}")).collect();
    // Memory of the nodes before this one is 0.
    let zeros = "0,".repeat(node as usize);
    let memory = options.memory_mib;
    Ok(format!("--lcores={} --socket-mem={zeros}{memory}  # slice {name}\n", lcores.join(",")))
}

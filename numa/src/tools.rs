//! An assignment in the notation of other tools.

use std::fmt::Write as _;

use nearstate_model::{Error, Result};

use crate::plan::Assignment;

/// A tool that starts or places programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementTool {
    /// `taskset`.
    Taskset,
    /// `numactl`.
    Numactl,
    /// A drop-in file of a systemd service.
    Systemd,
    /// `vcpupin` and `numatune` of a libvirt domain.
    Libvirt,
    /// Lists for the resources of a container (CRI), as Kubernetes' CPU manager writes them.
    Kubernetes,
    /// Arguments of DPDK's environment.
    Dpdk,
}

/// The text for a tool.
///
/// # Errors
/// `BadArgument` if the tool needs a memory node and the assignment has none.
pub fn for_tool(one: &Assignment, tool: PlacementTool) -> Result<String> {
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
        PlacementTool::Libvirt => {
            let in_order = one.cpus_in_order();
            let mut text = format!(
                "<!-- domain {name} -->\n<vcpu placement='static' cpuset='{cpus}'>{}</vcpu>\n\
                 <cputune>\n",
                in_order.len()
            );
            for (vcpu, cpu) in in_order.iter().enumerate() {
                // Writing to a string does not fail.
                let _ = writeln!(text, "  <vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>");
            }
            let _ = write!(
                text,
                "  <emulatorpin cpuset='{cpus}'/>\n</cputune>\n\
                 <numatune>\n  <memory mode='strict' nodeset='{}'/>\n</numatune>\n",
                node()?
            );
            text
        }
        PlacementTool::Kubernetes => format!(
            "# container resources of slice {name} (CRI LinuxContainerResources)\n\
             cpuset_cpus: \"{cpus}\"\ncpuset_mems: \"{}\"\n",
            node()?
        ),
        PlacementTool::Dpdk => {
            let lcores = one.cpus_in_order().into_iter().enumerate();
            let lcores: Vec<String> = lcores.map(|(lcore, cpu)| format!("{lcore}@{cpu}")).collect();
            // Memory of the nodes before this one is 0.
            let zeros = "0,".repeat(node()? as usize);
            format!("--lcores={} --socket-mem={zeros}1024  # slice {name}\n", lcores.join(","))
        }
    })
}

//! `nearstate numa apply`: a slice's processors and memory node, given to a process or a control
//! group and read back, or printed for another tool.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use nearstate_model::{Error, Result};
use nearstate_numa::{Assignment, CpuSet, PlacementTool, ToolOptions, discover, for_tool};
use rustix::process::Pid;
use rustix::thread::{CpuSet as AffinityMask, sched_getaffinity, sched_setaffinity};

use super::plan_file::{self, PlanFile, PlannedMachine};
use super::{parse_cpus, print};

/// The options of `nearstate numa apply`.
#[derive(Debug, Args)]
#[command(group(
    ArgGroup::new("target").args(["pid", "cgroup", "print"]).required(true).multiple(true)
))]
#[command(after_help = "Examples:
  nearstate numa apply plan.json --slice upf --pid 4711 --each-thread
  nearstate numa apply plan.json --slice upf --cgroup /sys/fs/cgroup/upf --pid 4711
  nearstate numa apply plan.json --slice upf --print systemd")]
pub(crate) struct ApplyArgs {
    /// A plan (`nearstate numa plan --save FILE`)
    plan: PathBuf,
    /// The slice [default: all slices, with --print only]
    #[arg(long, value_name = "NAME", required_unless_present = "print")]
    slice: Option<String>,
    /// Give the processors to all threads of this process; with --cgroup, move it into the group
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Pin each thread to its own processor, in the order of the pairs
    #[arg(long, requires = "pid", conflicts_with = "cgroup")]
    each_thread: bool,
    /// Give processors and memory node to this control group; it is created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    cgroup: Option<PathBuf>,
    /// Change nothing; print what another tool needs
    #[arg(long, value_enum, value_name = "TOOL", conflicts_with_all = ["pid", "cgroup"])]
    print: Option<ToolArg>,
    /// With --print libvirt: processors for the emulator's own threads; those of the slice are left
    /// out
    #[arg(long, value_name = "CPUS", default_value = "0", value_parser = parse_cpus)]
    housekeeping: CpuSet,
    /// With --print libvirt: memory of the guest; with dpdk: huge pages on the slice's node
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ToolArg {
    /// The start of a program with taskset
    Taskset,
    /// The start of a program with numactl
    Numactl,
    /// A drop-in file of a systemd service
    Systemd,
    /// Elements of a libvirt domain: vcpupin, emulatorpin, numatune, the guest's cores and node
    Libvirt,
    /// Resources of a container (CRI)
    Kubernetes,
    /// Arguments of DPDK's environment abstraction layer (EAL)
    Dpdk,
}

pub(super) fn run(args: &ApplyArgs, out: &mut dyn Write) -> Result<()> {
    let file = plan_file::read(&args.plan)?;
    let chosen: Vec<&Assignment> = match &args.slice {
        None => file.assignments.iter().collect(),
        Some(name) => vec![find(&file, name)?],
    };
    if let Some(tool) = args.print {
        let options =
            ToolOptions { housekeeping: args.housekeeping.clone(), memory_mib: args.memory };
        for one in chosen {
            print(out, &for_tool(one, tool.into(), &options)?)?;
        }
        return Ok(());
    }
    let Some(one) = chosen.first() else { return Ok(()) };
    let mut text = check_machine(&file, one)?;
    if let Some(folder) = &args.cgroup {
        text += &apply_to_group(one, folder, args.pid)?;
    } else if let Some(pid) = args.pid {
        text += &apply_to_process(one, pid, args.each_thread)?;
    }
    print(out, &text)
}

impl From<ToolArg> for PlacementTool {
    fn from(tool: ToolArg) -> Self {
        match tool {
            ToolArg::Taskset => Self::Taskset,
            ToolArg::Numactl => Self::Numactl,
            ToolArg::Systemd => Self::Systemd,
            ToolArg::Libvirt => Self::Libvirt,
            ToolArg::Kubernetes => Self::Kubernetes,
            ToolArg::Dpdk => Self::Dpdk,
        }
    }
}

fn find<'a>(file: &'a PlanFile, name: &str) -> Result<&'a Assignment> {
    let names: Vec<&str> = file.assignments.iter().map(|one| one.slice.as_str()).collect();
    file.assignments.iter().find(|one| one.slice == name).ok_or_else(|| Error::BadArgument {
        detail: format!("the plan places no slice {name:?}; it places {}", names.join(", ")),
    })
}

/// A plan is applied only on a machine of the same architecture with the same nodes and processors.
/// Returns what could not be compared.
fn check_machine(file: &PlanFile, one: &Assignment) -> Result<String> {
    let here = discover(None)?;
    let nodes = plan_file::nodes_of(&here);
    let kind = here.architecture().unwrap_or_default();
    match file.machines.get(one.machine) {
        Some(PlannedMachine { origin, architecture: Some(other), .. }) if other != kind => {
            let detail = format!(
                "slice {} is planned for {origin}, whose architecture is {other}; this machine is \
                 {kind}; plan for this machine, or print the plan with --print",
                one.slice
            );
            Err(Error::BadArgument { detail })
        }
        Some(machine) if machine.nodes == nodes && machine.architecture.is_some() => {
            Ok(String::new())
        }
        Some(machine) if machine.nodes == nodes => Ok(format!(
            "note: the plan does not tell the architecture of {} (a copy of /sys has none); only \
             its nodes and processors were compared\n",
            machine.origin
        )),
        Some(machine) => Err(Error::BadArgument {
            detail: format!(
                "slice {} is planned for {} with nodes {}; this machine has {nodes}; plan for \
                 this machine, or print the plan with --print",
                one.slice, machine.origin, machine.nodes
            ),
        }),
        None => Err(Error::BadArgument {
            detail: format!("slice {} is on a machine that the plan does not list", one.slice),
        }),
    }
}

fn failed(what: String) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |errno| Error::System { detail: what, errno: errno.raw_os_error() }
}

/// Sets the affinity of every thread, until no new thread appears, and reads it back.
fn apply_to_process(one: &Assignment, pid: i32, each_thread: bool) -> Result<String> {
    let in_order = one.cpus_in_order();
    if let Some(cpu) = in_order.iter().find(|cpu| **cpu as usize >= AffinityMask::MAX_CPU) {
        let detail = format!(
            "processor {cpu} is above {}, the maximum of an affinity; use --cgroup",
            AffinityMask::MAX_CPU - 1
        );
        return Err(Error::BadArgument { detail });
    }
    let mut done = Vec::new();
    loop {
        let threads = threads(pid)?;
        let new: Vec<i32> = threads.into_iter().filter(|thread| !done.contains(thread)).collect();
        if new.is_empty() {
            break;
        }
        for thread in new {
            let own = in_order.get(done.len() % in_order.len().max(1)).copied();
            let wanted: CpuSet = match own {
                Some(cpu) if each_thread => std::iter::once(cpu).collect(),
                _ => one.cpus(),
            };
            set_affinity(thread, &wanted)?;
            done.push(thread);
        }
    }
    let how = if each_thread { ", one processor each" } else { "" };
    let count = done.len();
    Ok(format!("{count} threads of process {pid} run on processors {}{how}\n", one.cpus()))
}

fn threads(pid: i32) -> Result<Vec<i32>> {
    let gone = |errno| Error::System {
        detail: format!(
            "process {pid} has no threads to place; it has ended, or is another user's"
        ),
        errno,
    };
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.map_err(|e| gone(e.raw_os_error().unwrap_or(0)))?;
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<i32>().ok()
    };
    let mut threads: Vec<i32> = entries.filter_map(number).collect();
    threads.sort_unstable();
    if threads.is_empty() { Err(gone(0)) } else { Ok(threads) }
}

fn set_affinity(thread: i32, wanted: &CpuSet) -> Result<()> {
    let Some(id) = Pid::from_raw(thread) else {
        let detail = format!("{thread} is no process; give the number of one with --pid");
        return Err(Error::BadArgument { detail });
    };
    let mut mask = AffinityMask::new();
    wanted.iter().for_each(|cpu| mask.set(cpu as usize));
    match sched_setaffinity(Some(id), &mask) {
        // The thread ended in between.
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        other => other.map_err(failed(format!(
            "cannot place thread {thread} on processors {wanted}: a control group may exclude \
             them, or the process belongs to another user"
        )))?,
    }
    let seen = match sched_getaffinity(Some(id)) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        other => other.map_err(failed(format!("cannot read the affinity of thread {thread}")))?,
    };
    let numbers = (0..AffinityMask::MAX_CPU).filter(|number| seen.is_set(*number));
    let seen: CpuSet = numbers.filter_map(|number| u32::try_from(number).ok()).collect();
    if seen == *wanted {
        return Ok(());
    }
    Err(Error::System {
        detail: format!(
            "thread {thread} runs on processors {seen} instead of {wanted}; a control group \
             excludes the others"
        ),
        errno: 0,
    })
}

/// Writes processors and memory node into a control group, reads them back, moves the process.
fn apply_to_group(one: &Assignment, folder: &Path, pid: Option<i32>) -> Result<String> {
    let node = one.memory_node.ok_or_else(|| Error::BadArgument {
        detail: format!("slice {} has no node with memory", one.slice),
    })?;
    let failed = |path: &Path, e: &std::io::Error| Error::System {
        detail: format!(
            "cannot use {}: it must be a control group with the controller cpuset (version 2: \
             echo +cpuset > {}/cgroup.subtree_control)",
            path.display(),
            folder.parent().unwrap_or(folder).display()
        ),
        errno: e.raw_os_error().unwrap_or(0),
    };
    if !folder.exists() {
        std::fs::create_dir(folder).map_err(|e| failed(folder, &e))?;
    }
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        // Only files of the kernel: a folder elsewhere has none, and gets none.
        let file = std::fs::OpenOptions::new().write(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|e| failed(&path, &e))
    };
    // Version 2, version 1 with parents that limit, version 1.
    let read = |names: [&str; 3]| -> Result<CpuSet> {
        let [.., last] = names;
        let known = names.into_iter().find(|name| folder.join(name).exists());
        let path = folder.join(known.unwrap_or(last));
        std::fs::read_to_string(&path).map_err(|e| failed(&path, &e))?.parse()
    };
    let cpus = one.cpus();
    write("cpuset.cpus", &cpus.to_string())?;
    write("cpuset.mems", &node.to_string())?;
    let seen = read(["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"])?;
    let nodes = read(["cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"])?;
    if seen != cpus || nodes != std::iter::once(node).collect() {
        let detail = format!(
            "control group {} has processors {seen} and nodes {nodes} instead of {cpus} and \
             {node}; a group above excludes the others",
            folder.display()
        );
        return Err(Error::System { detail, errno: 0 });
    }
    let mut text = format!(
        "control group {} has processors {cpus} and memory node {node}\n",
        folder.display()
    );
    if let Some(pid) = pid {
        write("cgroup.procs", &pid.to_string())?;
        text.push_str("process ");
        text.push_str(&pid.to_string());
        text.push_str(" is in the group\n");
    }
    Ok(text)
}

//! `nearstate numa plan`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nearstate_model::{Error, Result};
use nearstate_numa::{
    Assignment, Baseline, CpuSet, KubernetesPolicy, PlanOptions, Scheme, SlicePin, SlicePlan,
    SliceRequest, Thresholds, Topology, baseline, discover, plan,
};
use serde_json::Value;

use super::{busy, parse_window, plan_file, print, save};

/// How long the processors of this machine are watched by default: paper 5 pins to idle cores.
const WINDOW: Duration = Duration::from_millis(500);

/// The options of `nearstate numa plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nearstate numa plan --slice upf:4:high --slice amf:3:low --explain
  nearstate numa plan --from a.xml --from b.xml --slices slices.txt --save plan.json
  nearstate numa plan --current plan.json --slice upf:4:350 --slice amf:3:low
  nearstate numa plan --from a.xml --slice upf:4:high --baseline kubernetes")]
pub(crate) struct PlanArgs {
    /// A slice: its name, its number of logical processors, its traffic as low, medium, high or in
    /// Mbit/s
    #[arg(long = "slice", value_name = "NAME:CORES:TRAFFIC", value_parser = parse::<SliceRequest>)]
    slice: Vec<SliceRequest>,
    /// A file with one slice per line; empty lines and lines with # are ignored
    #[arg(long, value_name = "FILE")]
    slices: Option<PathBuf>,
    /// A machine: an XML file of hwloc or a copy of /sys; several are filled together [default:
    /// this machine]
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Plan for this many machines like each one given
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    copies: u32,
    /// An earlier plan: slices in it move only if a processor or the machine is gone, if they grow,
    /// if a larger slice needs the place, or if their level of traffic changes
    #[arg(long, value_name = "FILE")]
    current: Option<PathBuf>,
    /// Processors that a slice or another program has already, on the first machine or on machine
    /// number INDEX
    #[arg(long, value_name = "NAME:CPUS[@INDEX]", value_parser = parse_pin)]
    pin: Vec<SlicePin>,
    /// Processors that no slice gets
    #[arg(long, value_name = "CPUS", default_value = "", value_parser = parse::<CpuSet>)]
    reserve: CpuSet,
    /// Processors whose cores are used last, because the kernel works on them
    #[arg(long, value_name = "CPUS", default_value = "0", value_parser = parse::<CpuSet>)]
    housekeeping: CpuSet,
    /// Prefer the node of this network interface, or this node
    #[arg(long, value_name = "NAME|NODE")]
    nic: Option<String>,
    /// Highest rate of low traffic, in Mbit/s
    #[arg(long, value_name = "MBPS", default_value_t = 200)]
    low_max: u32,
    /// Highest rate of medium traffic, in Mbit/s
    #[arg(long, value_name = "MBPS", default_value_t = 399)]
    medium_max: u32,
    /// With --current, change the level of traffic only this far beyond a threshold
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    hysteresis: u32,
    /// Which pairs are used
    #[arg(long, value_enum, default_value_t = SchemeArg::Adaptive)]
    scheme: SchemeArg,
    /// Use the fewest physical cores: hyper-threads at every level of traffic
    #[arg(long)]
    power_saving: bool,
    /// Show what another method would choose on the first machine
    #[arg(long, value_enum, conflicts_with_all = ["current", "pin", "save"])]
    baseline: Option<BaselineArg>,
    /// Seed of the baseline `random`
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Give the reason of each choice, and the next best one
    #[arg(long)]
    explain: bool,
    /// Measure for this time how busy the processors of this machine are; those of --current do not
    /// count [default: 500ms]
    #[arg(long, value_name = "TIME", value_parser = parse_window)]
    #[arg(conflicts_with_all = ["from", "baseline"])]
    window: Option<Duration>,
    /// Processors that are busier than this are not idle, and are not used
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    busy_max: u32,
    /// Write the plan to this file, for `numa apply` and --current
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write a drawing (SVG) of the first machine to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SchemeArg {
    /// By the level of traffic
    Adaptive,
    /// Hyper-thread pairs (`NUMAP_h`)
    HyperThread,
    /// Two cores of a node (`NUMAP_c`)
    Collocated,
    /// Two nodes (`NUMAP_n`)
    NonCollocated,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BaselineArg {
    /// No pinning: all processors
    None,
    /// Kubernetes' static CPU manager
    Kubernetes,
    /// The same with full-pcpus-only
    KubernetesFullCores,
    /// The same with distribute-cpus-across-cores
    KubernetesAcrossCores,
    /// The same with distribute-cpus-across-numa
    KubernetesAcrossNodes,
    /// The same with distribute-cpus-across-numa and full-pcpus-only
    KubernetesAcrossNodesFullCores,
    /// The same with prefer-align-cpus-by-uncorecache
    KubernetesAlignedCaches,
    /// The same with prefer-align-cpus-by-uncorecache and full-pcpus-only
    KubernetesAlignedCachesFullCores,
    /// Random processors
    Random,
}

fn parse<T: std::str::FromStr<Err = Error>>(text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|e: Error| e.to_string())
}

fn parse_pin(text: &str) -> std::result::Result<SlicePin, String> {
    let expected = || format!("{text:?} is no pin: expected NAME:CPUS or NAME:CPUS@INDEX");
    let (name, rest) = text.split_once(':').ok_or_else(expected)?;
    let (cpus, machine) = rest.split_once('@').unwrap_or((rest, "0"));
    let cpus: CpuSet = parse(cpus)?;
    if cpus.is_empty() {
        return Err(format!("{text:?} names no processor: expected NAME:CPUS, such as upf:2-5"));
    }
    let machine = machine.parse().map_err(|_| expected())?;
    Ok(SlicePin { name: name.to_owned(), machine, cpus })
}

pub(super) fn run(args: &PlanArgs, out: &mut dyn Write) -> Result<()> {
    let requests = requests(args)?;
    let machines = machines(args)?;
    let current = current(args, &machines)?;
    let options = options(args, &machines, &current)?;
    let made = if let (Some(method), Some(first)) = (args.baseline, machines.first()) {
        baseline(first, &requests, &options, method_of(method, args.seed))
    } else {
        plan(&machines, &requests, &args.pin, &current, &options)?
    };
    let json = plan_file::to_json(&made, &machines);
    if let Some(path) = &args.save {
        save(path, &format!("{json:#}\n"))?;
    }
    if let (Some(path), Some(first)) = (&args.svg, machines.first()) {
        save(path, &nearstate_numa::svg(first, &names(&made)))?;
    }
    let text = if args.json { format!("{json}\n") } else { text(&made, &machines, args.explain) };
    print(out, &text)?;
    if made.refused.is_empty() {
        return Ok(());
    }
    let count = made.refused.len();
    Err(Error::BadArgument { detail: format!("{count} of {} slices do not fit", requests.len()) })
}

/// The largest file of slices: 100,000 of them have 8 MB.
const SLICES_BYTES_MAX: u64 = 16 << 20;

fn requests(args: &PlanArgs) -> Result<Vec<SliceRequest>> {
    let mut requests = args.slice.clone();
    if let Some(path) = &args.slices {
        let text = plan_file::regular_text(path, SLICES_BYTES_MAX)?.map_err(|why| {
            let detail = format!("{} lists no slices: {why}", path.display());
            Error::BadArgument { detail }
        })?;
        let lines = text.lines().map(str::trim).enumerate();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let request = line.parse().map_err(|e: Error| Error::BadArgument {
                detail: format!("{}, line {}: {e}", path.display(), index + 1),
            })?;
            requests.push(request);
        }
    }
    if requests.is_empty() {
        let detail = "no slice: give --slice NAME:CORES:TRAFFIC or --slices FILE".to_owned();
        return Err(Error::BadArgument { detail });
    }
    Ok(requests)
}

fn machines(args: &PlanArgs) -> Result<Vec<Topology>> {
    let given = if args.from.is_empty() {
        vec![discover(None)?]
    } else {
        args.from.iter().map(|path| discover(Some(path))).collect::<Result<_>>()?
    };
    let copies = args.copies as usize;
    Ok(given.into_iter().flat_map(|one| std::iter::repeat_n(one, copies)).collect())
}

fn options(args: &PlanArgs, machines: &[Topology], current: &[Assignment]) -> Result<PlanOptions> {
    let mut options = PlanOptions {
        thresholds: Thresholds {
            low_max_mbps: args.low_max,
            medium_max_mbps: args.medium_max,
            hysteresis_percent: args.hysteresis,
        },
        scheme: match args.scheme {
            SchemeArg::Adaptive => Scheme::Adaptive,
            SchemeArg::HyperThread => Scheme::HyperThread,
            SchemeArg::Collocated => Scheme::Collocated,
            SchemeArg::NonCollocated => Scheme::NonCollocated,
        },
        is_power_saving: args.power_saving,
        is_explained: args.explain,
        reserved: args.reserve.clone(),
        housekeeping: args.housekeeping.clone(),
        nic_nodes: BTreeMap::new(),
        busy: BTreeMap::new(),
    };
    if let Some(nic) = &args.nic {
        for (index, machine) in machines.iter().enumerate() {
            options.nic_nodes.insert(index, machine.nic_node(nic)?);
        }
    }
    if args.from.is_empty() && args.baseline.is_none() {
        // What an earlier plan placed makes its own processors busy.
        let own: CpuSet = current
            .iter()
            .filter(|one| one.machine == 0)
            .flat_map(Assignment::cpus_in_order)
            .collect();
        let busy = busy(args.window.unwrap_or(WINDOW))?;
        let limit = f64::from(args.busy_max) / 100.0;
        let above = busy.into_iter().filter(|(_, share)| *share > limit).map(|(cpu, _)| cpu);
        options.busy.insert(0, above.filter(|cpu| !own.contains(*cpu)).collect());
    }
    Ok(options)
}

/// The earlier plan, with the numbers of the present machines. A machine is the one with the same
/// origin and nodes; otherwise one with the same nodes, first the one with its number. Slices of a
/// machine that is not among the present ones lose their place.
fn current(args: &PlanArgs, machines: &[Topology]) -> Result<Vec<Assignment>> {
    let Some(path) = &args.current else { return Ok(Vec::new()) };
    let mut file = plan_file::read(path)?;
    let nodes: Vec<Value> = machines.iter().map(plan_file::nodes_of).collect();
    let mut free: BTreeSet<usize> = (0..machines.len()).collect();
    let mut found = BTreeMap::new();
    // Machines with the same number first, so that copies of one machine keep theirs.
    for (is_origin, is_number) in [(true, true), (true, false), (false, true), (false, false)] {
        for (old, planned) in file.machines.iter().enumerate() {
            let is_same = |new: &&usize| {
                (nodes.get(**new) == Some(&planned.nodes))
                    && (!is_number || **new == old)
                    && (!is_origin
                        || machines.get(**new).is_some_and(|one| one.origin() == planned.origin))
            };
            if found.contains_key(&old) {
                continue;
            }
            if let Some(new) = free.iter().find(is_same).copied() {
                free.remove(&new);
                found.insert(old, new);
            }
        }
    }
    for one in &mut file.assignments {
        one.machine = found.get(&one.machine).copied().unwrap_or(usize::MAX);
    }
    Ok(file.assignments)
}

const fn method_of(method: BaselineArg, seed: u64) -> Baseline {
    use KubernetesPolicy as Policy;
    let policy = match method {
        BaselineArg::None => return Baseline::NoPinning,
        BaselineArg::Random => return Baseline::Random(seed),
        BaselineArg::Kubernetes => Policy::Packed,
        BaselineArg::KubernetesFullCores => Policy::FullCores,
        BaselineArg::KubernetesAcrossCores => Policy::AcrossCores,
        BaselineArg::KubernetesAcrossNodes => Policy::AcrossNodes,
        BaselineArg::KubernetesAcrossNodesFullCores => Policy::AcrossNodesFullCores,
        BaselineArg::KubernetesAlignedCaches => Policy::AlignedCaches,
        BaselineArg::KubernetesAlignedCachesFullCores => Policy::AlignedCachesFullCores,
    };
    Baseline::Kubernetes(policy)
}

/// The slices of the first machine by processor.
fn names(made: &SlicePlan) -> BTreeMap<u32, String> {
    let on_first = made.assignments.iter().filter(|one| one.machine == 0);
    on_first
        .flat_map(|one| one.cpus_in_order().into_iter().map(|cpu| (cpu, one.slice.clone())))
        .collect()
}

// Writing to a string does not fail.
fn text(made: &SlicePlan, machines: &[Topology], is_explained: bool) -> String {
    let mut out = String::new();
    for (index, machine) in machines.iter().enumerate() {
        let own: Vec<&Assignment> =
            made.assignments.iter().filter(|one| one.machine == index).collect();
        if own.is_empty() {
            continue;
        }
        let _ = writeln!(out, "machine {index}: {}", machine.origin());
        for one in own {
            let units: Vec<String> = one.units.iter().map(|unit| list(&unit.cpus)).collect();
            let memory = one.memory_node.map_or("none".to_owned(), |node| node.to_string());
            let _ = writeln!(
                out,
                "  {:16} {:7} processors {}  nodes {}  memory node {memory}",
                one.slice,
                one.traffic.to_string(),
                units.join(" "),
                one.nodes
            );
            if is_explained && !one.reason.is_empty() {
                let _ = writeln!(out, "    {:12} {}", "place", one.reason);
            }
            for unit in one.units.iter().filter(|_| is_explained) {
                let _ = writeln!(out, "    {:12} {}", list(&unit.cpus), unit.reason);
            }
        }
    }
    for one in &made.moves {
        let (from, to) = (&one.from, &one.to);
        let machine = |number: usize| match number {
            usize::MAX => "a machine that is gone".to_owned(),
            number => format!("machine {number}"),
        };
        let _ = writeln!(
            out,
            "move {}: from {} of {} to {} of {}, because {}",
            one.slice,
            from.1,
            machine(from.0),
            to.1,
            machine(to.0),
            one.reason
        );
    }
    for no in &made.refused {
        let _ = writeln!(out, "refused {}: {}", no.slice, no.reason);
    }
    out
}

/// `0,24`, in the order of threads.
fn list(cpus: &[u32]) -> String {
    let numbers: Vec<String> = cpus.iter().map(u32::to_string).collect();
    numbers.join(",")
}

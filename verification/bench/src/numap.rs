//! `bench run numap`: the latency of a slice of two threads against cross traffic, for each pairing
//! of its cores and without pinning (paper 5, Figure 11).
//!
//! ```text
//! H1, H2, H3 (left)  --veth--  slice: thread A | thread B  --veth--  H4, H5, H6 (right)
//! ```
//!
//! A probe goes from the left hosts through the slice to the right hosts and back. Two UDP flows
//! with a constant rate go from left to right. Each thread of the slice owns one side, so every
//! packet crosses from one core to the other. The network is made of namespaces, which end with
//! this process; no packet can leave them.

mod report;
mod trial;
mod slice;
mod traffic;
mod network;
mod pairing;
pub mod result;
mod drawing;

pub use report::{page, text};

use crate::cpus;
use crate::machine::Machine;
use crate::options::Options;
use crate::progress::Display;
use crate::run_frame::RunFrame;
use crate::stat::as_f64;
use nearstate_model::Result;
use network::Network;
use pairing::Pairing;
use result::{FORMAT, NumapRun, PairingResult, Point, PointRound};
use std::sync::atomic::{AtomicBool, Ordering};
use trial::NumapTrial;

/// The word of the command line.
pub const NAME: &str = "numap";

/// Its entry in the list of workloads.
pub const ABOUT: &str = "numap: latency of a two-thread slice under cross traffic, for each \
    pairing of cores (paper 5, Figure 11); needs network namespaces; options: --targets \
    (pairings), --ops (probes of a point), --rounds, --save, --report, --json";

/// Cross traffic of both flows together, in Mbit/s: the levels of Figure 11.
const LEVELS_MBPS: [u32; 6] = [0, 100, 200, 300, 400, 500];

/// Probes of a point and round: those of Figure 11.
const PROBES: u64 = 1000;

/// A point takes about a millisecond for a probe: a minute and a half.
const PROBES_MAX: u64 = 100_000;

/// The options that have a meaning here.
pub const OPTIONS: [&str; 6] = ["--targets", "--ops", "--rounds", "--save", "--report", "--json"];

/// Measures every pairing that this machine has at every level, once in each round.
///
/// # Errors
/// `BadArgument`: an unknown pairing. `System`: no namespaces, or no network in them.
pub fn measure(options: &Options, command: &str, stop: &'static AtomicBool) -> Result<NumapRun> {
    let topology = nearstate_numa::discover(None)?;
    let (all, mut missing) = pairing::pairings_of(&topology);
    let chosen = pairing::chosen(&all, &options.targets, &missing)?;
    let probes = options.ops.unwrap_or(PROBES).min(PROBES_MAX);
    let host_cpus = pairing::host_cpus(&topology, &all);
    let machine = Machine::detect();
    let network = Network::new()?;
    let rounds = usize::try_from(options.rounds).unwrap_or(1);
    let display = Display::new(rounds * LEVELS_MBPS.len() * chosen.len());
    display.print(&format!("{NAME} on {}", machine.line()));
    for why in &missing {
        display.print(&format!("  not measured: {why}"));
    }
    let mut frame = RunFrame::begin(command, &machine);
    let mut pairings: Vec<PairingResult> = chosen.iter().map(|one| empty(one)).collect();
    for round in 0..rounds {
        for (level, mbps) in LEVELS_MBPS.into_iter().enumerate() {
            for (one, result) in chosen.iter().zip(&mut pairings) {
                let trial = NumapTrial { network: &network, pairing: one, host_cpus: &host_cpus };
                let title = format!("{}, {mbps} Mbit/s, round {}", one.name, round + 1);
                let progress = display.begin(title, probes);
                let Some(measured) = trial.run(mbps, probes, &progress, stop)? else { break };
                progress.finish_run(&outcome(&measured));
                if let Some(point) = result.points.get_mut(level) {
                    point.rounds.push(measured);
                }
            }
        }
    }
    display.finish();
    frame.caveats.extend(caveats(&topology, &host_cpus, &machine));
    frame.invalid = invalid(&pairings);
    frame.is_partial = stop.load(Ordering::Relaxed);
    missing.retain(|_| options.targets.is_empty());
    Ok(NumapRun {
        numap_format: FORMAT,
        frame,
        topology: nearstate_numa::text(&topology, &nearstate_numa::CpuMarks::default()),
        drawing: drawing::of(
            &topology,
            pairings.iter().map(|one| (one.name.as_str(), one.cpus.as_slice())),
        ),
        probes,
        pairings,
        missing,
        plan: pairing::plan_rows(&topology, &LEVELS_MBPS)?,
    })
}

fn empty(one: &Pairing) -> PairingResult {
    let point = |offered_mbps| Point { offered_mbps, rounds: Vec::new() };
    PairingResult {
        name: one.name.clone(),
        what: one.what.clone(),
        cpus: one.cpus.clone(),
        points: LEVELS_MBPS.map(point).to_vec(),
    }
}

fn outcome(measured: &PointRound) -> String {
    let mean = crate::table::latency_text(measured.mean_ns());
    format!("mean {mean}, {} lost, {:.0} Mbit/s", measured.lost, measured.achieved_mbps)
}

fn caveats(topology: &nearstate_numa::Topology, hosts: &[usize], machine: &Machine) -> Vec<String> {
    let mut out = vec![
        "namespaces and veth pairs replace the virtual machines of the paper, and the slice \
         forwards UDP datagrams in user space: compare pairings with each other, not with the \
         paper's milliseconds"
            .to_owned(),
    ];
    let allowed = topology.allowed().len();
    if hosts.len() == allowed {
        out.push(format!(
            "the probe and the traffic share the processors of the slice: this machine has \
             {allowed}"
        ));
    }
    if cpus::allowed().is_none() {
        out.push("the kernel does not say which processors may be used".to_owned());
    }
    if !machine.governor.starts_with("performance") {
        let governor = &machine.governor;
        out.push(format!("processors may change their clock (frequency governor: {governor})"));
    }
    out
}

/// Points without any reply have no latency.
fn invalid(pairings: &[PairingResult]) -> Vec<String> {
    let mut out = Vec::new();
    for one in pairings {
        for point in &one.points {
            let replies: f64 = point.rounds.iter().map(|round| as_f64(round.replies())).sum();
            if !point.rounds.is_empty() && replies < 1.0 {
                let mbps = point.offered_mbps;
                out.push(format!("{} at {mbps} Mbit/s: no probe was answered", one.name));
            }
        }
    }
    out
}

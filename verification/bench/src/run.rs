//! The orchestrator: starts targets and clients, runs one trial of each target in every round, has
//! all records verified, and collects the results.

mod target_run;
mod ramp;

use crate::clock::monotonic_ns;
use crate::cpus;
use crate::machine::Machine;
use crate::noise;
use crate::options::Options;
use crate::processes;
use crate::progress::Display;
use crate::result::{About, FORMAT, LoadSettings, Run, TargetResult};
use crate::space;
use crate::stat::as_f64;
use crate::table::counted;
use crate::targets::region::on_node;
use crate::targets::{self, Capabilities, DatabaseSpec, Support, Target};
use crate::workloads::{self, Parameters, Requirements, WorkloadKind};
use nearstate_model::Result;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use target_run::TargetRun;

/// The default targets, as far as they are installed.
const DEFAULT_TARGETS: [&str; 3] = ["region", "node", "redis"];

/// Executes the run that the options describe. A failure of one target marks its results and the
/// run as invalid; the other targets continue. `stop` ends the run early: the trials that were
/// complete by then are returned, marked as partial.
pub fn run(options: &Options, command: &str, stop: &'static AtomicBool) -> Result<Run> {
    let kind = workloads::named(options.workload.as_deref().unwrap_or_default())?;
    let parameters = parameters(options, kind.as_ref())?;
    let options = &with_background(options, kind.as_ref(), &parameters);
    check_rate(options)?;
    let targets = on_node::expanded(&options.targets)?;
    let is_on_nodes = targets.iter().any(|name| name.starts_with(on_node::PREFIX));
    let options = &Options { targets, ..options.clone() };
    let (chosen, mut missing) = choose(options, kind.as_ref())?;
    if let Some(name) = &options.kill {
        let victim = chosen.iter().find(|one| one.target.name() == name);
        let victim = victim.ok_or_else(|| {
            bad_argument!("--kill {name}: it is not among the targets of this run")
        })?;
        targets::can_be_killed(victim.target.as_ref())?;
    }
    let dir = space::folder(&options.dir)?;
    let machine = Machine::detect();
    let mut pinning = pinning(options)?;
    if is_on_nodes {
        // Near and far are seen from one node. These targets have no servers.
        let (cpus, note) = on_node::compute_node()?;
        pinning = pinning.map(|(_, servers)| (cpus, servers));
        missing.push(note);
    }
    let load = load_settings(options, pinning.clone());
    let display = Display::new(chosen.len() * (load.rounds + 2));
    let context =
        BenchContext { options, kind: kind.as_ref(), parameters, dir, pinning, display, stop };
    let block_ops = kind.block_ops(&context.parameters);
    let load = LoadSettings { background: context.background(), block_ops, ..load };
    context.fits(&chosen)?;
    context.display.print(&format!("{} on {}", kind.spec().title, machine.line()));
    let began_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut run = Run {
        format: FORMAT,
        command: command.to_owned(),
        began_s,
        machine: machine.rows().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        noise: noise::measure(monotonic_ns),
        workload: About {
            name: kind.name().to_owned(),
            title: kind.spec().title.to_owned(),
            source: kind.spec().source.to_owned(),
            parameters: context.parameters.clone(),
            paper_figures: kind.paper_figures(),
        },
        load,
        targets: Vec::new(),
        caveats: kind.caveats(&context.parameters),
        invalid: Vec::new(),
        is_partial: false,
    };
    let (targets, unbound) = context.measure(&chosen, &run.load);
    for (target, unfinished) in targets {
        run.targets.push(target);
        run.caveats.extend(unfinished);
    }
    run.caveats.extend(missing);
    note_unbound(&mut run, unbound);
    note_bound(&mut run);
    run.is_partial = stop.load(Ordering::Relaxed);
    run.caveats.extend(context.caveats(&machine));
    for target in &run.targets {
        let faults = target.invalid.iter().map(|why| format!("{}: {why}", target.name));
        run.invalid.extend(faults);
    }
    context.display.finish();
    Ok(run)
}

/// The state that all steps of a run need.
struct BenchContext<'a> {
    options: &'a Options,
    kind: &'a dyn WorkloadKind,
    parameters: Parameters,
    /// The absolute path of the directory for targets' files.
    dir: PathBuf,
    /// Processors of clients, and of servers.
    pinning: Option<(Vec<usize>, Vec<usize>)>,
    display: Display,
    stop: &'static AtomicBool,
}

impl BenchContext<'_> {
    /// Checks the space for the files of all targets, which are loaded before the first round.
    fn fits(&self, chosen: &[Chosen]) -> Result<()> {
        let spec = self.database_spec();
        let layout = self.options.layout.as_deref();
        let takes_part = chosen
            .iter()
            .filter(|one| self.declined(&one.target.capabilities_in(layout)).is_none());
        let sizes: Vec<(&str, u64)> =
            takes_part.map(|one| (one.target.name(), one.target.folder_bytes(&spec))).collect();
        space::fits(&self.dir, &sizes, spec.records, space::free_bytes(&self.dir)?)
    }

    /// The outcome of each target, and the clients that could not be bound to their processors.
    fn measure(&self, chosen: &[Chosen], load: &LoadSettings) -> (Vec<TargetOutcome>, Vec<String>) {
        let mut target_runs: Vec<TargetRun<'_>> =
            chosen.iter().map(|one| self.set_up(one)).collect();
        for target_run in &mut target_runs {
            target_run.load();
        }
        for round in 0..load.rounds {
            for target_run in &mut target_runs {
                target_run.run_trial(round, load);
            }
        }
        if let Some(bound_ns) = self.options.ramp {
            for target_run in &mut target_runs {
                target_run.find_rate(load, bound_ns);
            }
        }
        for target_run in &mut target_runs {
            target_run.verify();
        }
        let unbound =
            target_runs.iter_mut().flat_map(|target_run| target_run.unbound.drain(..)).collect();
        (target_runs.into_iter().map(TargetRun::close).collect(), unbound)
    }

    fn set_up<'s>(&'s self, chosen: &'s Chosen) -> TargetRun<'s> {
        let mut target_run = TargetRun::new(self, &chosen.target, &chosen.version);
        if let Some(why) =
            self.declined(&chosen.target.capabilities_in(self.options.layout.as_deref()))
        {
            target_run.result.declined = Some(why);
        } else if !self.stop.load(Ordering::Relaxed) {
            target_run.start(&self.database_spec());
        }
        target_run
    }

    fn database_spec(&self) -> DatabaseSpec {
        let (records, record_bytes) = self.kind.size(&self.parameters);
        let server_cpus = self.pinning.as_ref().map(|(_, servers)| servers.clone());
        DatabaseSpec {
            schema: self.kind.schema(&self.parameters),
            records,
            record_bytes,
            clients: usize::try_from(self.options.clients.saturating_mul(self.options.connections))
                .unwrap_or(usize::MAX),
            is_busy_polling: self.options.busy_poll,
            folder: self.dir.clone(),
            server_cpus: server_cpus.unwrap_or_default(),
            layout: self.options.layout.clone(),
            stop: Some(self.stop),
        }
    }

    /// Number of clients that are not measured.
    fn background(&self) -> usize {
        let clients = usize::try_from(self.options.clients).unwrap_or(1);
        self.kind.background_clients(&self.parameters, clients)
    }

    /// Why a target of these capabilities cannot take part.
    fn declined(&self, capabilities: &Capabilities) -> Option<String> {
        let requirements = self.kind.requirements(&self.parameters);
        for (name, way) in needed(requirements, capabilities) {
            if let Support::Declined(why) = way {
                return Some(format!("{name}: {why}"));
            }
        }
        None
    }

    fn caveats(&self, machine: &Machine) -> Vec<String> {
        let mut out = Vec::new();
        if self.pinning.is_none() && !self.options.unpinned {
            let why = if cpus::allowed().is_some() {
                "one processor: clients and servers share it"
            } else {
                "the kernel does not say which processors may be used: no process is bound to one"
            };
            out.push(why.to_owned());
        }
        let clients = self.options.clients;
        if clients > machine.cores as u64 {
            let cores = counted(machine.cores as u64, "processor");
            out.push(format!("{clients} clients share {cores}"));
        }
        if !machine.governor.starts_with("performance") {
            out.push(format!(
                "processors may change their clock meanwhile (frequency governor: {})",
                machine.governor
            ));
        }
        if let Some(name) = &self.options.kill {
            out.push(format!(
                "the server of {name} was killed (SIGKILL) half way through the middle round, and \
                 started again"
            ));
        }
        if let Some(fault) = self.options.fault {
            out.push(format!("a fault was planted on purpose: {fault}"));
        }
        out
    }
}

/// If one client was not bound, the clients and servers of the run were not separated.
fn note_unbound(run: &mut Run, unbound: Vec<String>) {
    if !unbound.is_empty() {
        run.load.pinning = None;
        run.caveats.extend(unbound);
    }
}

/// Caveats of binding the participants to processors.
fn note_bound(run: &mut Run) {
    let Some((_, servers)) = &run.load.pinning else { return };
    for result in run.targets.iter().filter(|result| result.declined.is_none()) {
        let target = targets::named(&result.name).ok();
        let why = target.and_then(|target| target.bound_caveat(servers.len()));
        run.caveats.extend(why.map(|why| format!("{}: {why}", result.name)));
    }
}

/// The requirements of a workload, and how a target supports each.
fn needed(requirements: Requirements, capabilities: &Capabilities) -> Vec<(&'static str, Support)> {
    [
        (requirements.delta, "changes of parts", &capabilities.delta),
        (requirements.unique_tag, "unique tags", &capabilities.unique_tag),
        (requirements.transaction, "transactions", &capabilities.transaction),
        (requirements.scan, "scans", &capabilities.scan),
        (requirements.walk, "walks over all records", &capabilities.walk),
        (requirements.counter, "counters", &capabilities.counter),
        (requirements.set, "sets", &capabilities.set),
    ]
    .into_iter()
    .filter(|(is_wished, ..)| *is_wished)
    .map(|(_, name, way)| (name, way.clone()))
    .collect()
}

/// The results of a target, and its trial that is not shown.
type TargetOutcome = (TargetResult, Option<String>);

struct Chosen {
    target: Box<dyn Target>,
    version: String,
}

/// The targets of `--targets`, otherwise the installed ones of the default list; and why others
/// were left out.
fn choose(options: &Options, kind: &dyn WorkloadKind) -> Result<(Vec<Chosen>, Vec<String>)> {
    let names: Vec<&str> = options.targets.iter().map(String::as_str).collect();
    let of_workload = kind.default_targets();
    let defaults = if of_workload.is_empty() { &DEFAULT_TARGETS[..] } else { of_workload };
    let or_default = if names.is_empty() { defaults } else { &names };
    targets::can_be_laid_out(options.layout.as_deref(), or_default)?;
    if let Some(twice) = (1..names.len()).find_map(|at| {
        let (before, name) = (names.get(..at)?, names.get(at)?);
        before.contains(name).then_some(name)
    }) {
        return Err(bad_argument!(
            "--targets: {twice} is named twice, and tables and `bench compare` go by names: \
                 give each target once, and compare two runs to see how far one differs from itself"
        ));
    }
    let (mut chosen, mut missing) = (Vec::new(), Vec::new());
    let leaves_out = names.is_empty() || options.leaves_out_missing;
    for name in or_default {
        let target = targets::named(name)?;
        match target.version() {
            Ok(version) => chosen.push(Chosen { target, version }),
            Err(e) if leaves_out => missing.push(format!("{name} was not measured: {e}")),
            Err(e) => return Err(e),
        }
    }
    Ok((chosen, missing))
}

fn parameters(options: &Options, kind: &dyn WorkloadKind) -> Result<Parameters> {
    let variants = kind.variants();
    let variant = match (&options.variant, variants.first()) {
        (Some(wanted), _) => {
            if !variants.iter().any(|(name, _)| name == wanted) {
                let names: Vec<&str> = variants.iter().map(|(name, _)| *name).collect();
                return Err(bad_argument!(
                    "{} has no variant {wanted:?}: give one of {}",
                    kind.name(),
                    names.join(", ")
                ));
            }
            wanted.clone()
        }
        (None, Some((name, _))) => (*name).to_owned(),
        (None, None) => String::new(),
    };
    if options.depth > 1 && !kind.spec().is_pipelined {
        return Err(bad_argument!(
            "operations of {} cannot be sent together: omit --depth {}",
            kind.name(),
            options.depth
        ));
    }
    let records = options.records.unwrap_or_else(|| kind.spec().records);
    if records < options.clients * options.depth {
        return Err(bad_argument!(
            "{} with {} in flight for each spec that many records of their own: give more \
                 --records than {records}",
            counted(options.clients, "client"),
            counted(options.depth, "operation")
        ));
    }
    let Options { spread, seed, value_bytes, own_records: has_own_records, .. } = *options;
    Ok(Parameters { records, variant, spread, seed, value_bytes, has_own_records })
}

/// The options, with an additional client if the variant needs one in the background.
fn with_background(options: &Options, kind: &dyn WorkloadKind, parameters: &Parameters) -> Options {
    let clients = usize::try_from(options.clients).unwrap_or(usize::MAX);
    let background = kind.background_clients(parameters, clients) as u64;
    Options { clients: options.clients.max(background + 1), ..options.clone() }
}

/// Rejects a rate that leaves a client idle for so long that its target would count as stuck.
fn check_rate(options: &Options) -> Result<()> {
    let clients = options.clients;
    if options.rate.is_none_or(|rate| rate >= as_f64(clients)) {
        return Ok(());
    }
    Err(bad_argument!(
        "--rate: {clients} clients share the rate: give at least one operation per second for \
             each"
    ))
}

fn load_settings(options: &Options, pinning: Option<(Vec<usize>, Vec<usize>)>) -> LoadSettings {
    LoadSettings {
        clients: usize::try_from(options.clients).unwrap_or(1),
        depth: usize::try_from(options.depth).unwrap_or(1),
        ops: options.client_ops(),
        warm_up: options.warm_up.unwrap_or(options.client_ops() / 10),
        rounds: usize::try_from(options.rounds).unwrap_or(1),
        rate: options.rate,
        arrivals: options.arrivals,
        think_us: options.think_us,
        pinning,
        layout: options.layout.clone(),
        kill: options.kill.clone(),
        fault: options.fault,
        round_time_s: options.round_time,
        ramp_p99_ns: options.ramp,
        is_unsettled: options.no_settle,
        connections: usize::try_from(options.connections).unwrap_or(1),
        is_busy_polling: options.busy_poll,
        ..LoadSettings::default()
    }
}

/// Processors of clients, and of servers; `None` if the machine has only one.
fn pinning(options: &Options) -> Result<Option<(Vec<usize>, Vec<usize>)>> {
    let cpus = cpus::allowed().filter(|_| !options.unpinned);
    let Some(cpus) = cpus else { return Ok(None) };
    divide_cpus(&cpus, usize::try_from(options.server_cpus).unwrap_or(usize::MAX))
}

/// Divides the processors: the first ones for servers, the others for clients.
fn divide_cpus(cpus: &[usize], servers: usize) -> Result<Option<(Vec<usize>, Vec<usize>)>> {
    if servers < cpus.len()
        && let Some((first, others)) = cpus.split_at_checked(servers)
    {
        return Ok(Some((others.to_vec(), first.to_vec())));
    }
    if servers == 1 {
        return Ok(None);
    }
    Err(bad_argument!(
        "--server-cpus {servers}: there are {} processors, and clients spec one: give fewer",
        cpus.len()
    ))
}

/// Memory of a target: its own report, otherwise that of its processes.
fn memory_bytes(database: &mut dyn targets::Database) -> Option<u64> {
    database.memory_bytes().or_else(|| {
        let own = database.processes();
        (!own.is_empty()).then(|| processes::memory_bytes(&own))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunCommand;
    use clap::Parser as _;

    #[test]
    fn a_workload_without_pipelines_refuses_a_depth() {
        for (workload, is_refused) in [("micro-tx", true), ("tatp", false)] {
            let given = RunCommand::try_parse_from(["run", workload, "--depth", "16"]).unwrap();
            let kind = workloads::named(workload).unwrap();
            let found = parameters(&given.options, kind.as_ref());
            assert_eq!(found.is_err(), is_refused, "{workload}: {found:?}");
        }
    }

    #[test]
    fn clients_keep_at_least_one_processor() {
        let out = |servers| divide_cpus(&[2, 3, 5, 7], servers);
        assert_eq!(out(1), Ok(Some((vec![3, 5, 7], vec![2]))));
        assert_eq!(out(3), Ok(Some((vec![7], vec![2, 3, 5]))));
        assert!(out(4).unwrap_err().to_string().contains("give fewer"));
        assert_eq!(divide_cpus(&[0], 1), Ok(None));
    }

    #[test]
    fn caveats_of_pinning_name_only_targets_that_took_part() {
        let mut run = crate::sample::run();
        run.targets[1].name = "node-ring".to_owned();
        let before = run.caveats.len();
        note_bound(&mut run);
        let more = run.caveats.split_off(before);
        assert!(more.iter().any(|why| why.starts_with("geode: ") && why.contains("one processor")));
        assert!(
            more.iter().any(|why| why.starts_with("node-ring: ") && why.contains("--unpinned"))
        );
        run.load.pinning = Some((vec![2, 3], vec![0, 1]));
        run.targets[1].declined = Some("no".to_owned());
        note_bound(&mut run);
        let more = run.caveats.split_off(before);
        assert_eq!(more.len(), 1, "{more:?}");
        assert!(more[0].starts_with("geode: ") && more[0].contains("2 processors"), "{more:?}");
        run.load.pinning = None;
        note_bound(&mut run);
        assert_eq!(run.caveats.len(), before);
    }

    #[test]
    fn a_run_with_an_unbound_client_does_not_count_as_pinned() {
        let bound = crate::sample::run();
        let mut run = bound.clone();
        note_unbound(&mut run, Vec::new());
        assert!(run.load.pinning.is_some());
        note_unbound(&mut run, vec!["redis: client 1: not bound to processor 7".to_owned()]);
        let text = crate::report::text(&run);
        let caveats = text.split_once("Keep in mind").expect("there are caveats").1;
        assert!(caveats.contains("redis: client 1: not bound to processor 7"), "{text}");
        let obstacles = crate::compare::compare(&bound, &run).obstacles;
        assert!(obstacles.iter().any(|why| why.starts_with("processor pinning")));
    }
}

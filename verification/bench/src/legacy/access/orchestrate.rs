//! The orchestrator: starts the simulator nodes, lets them begin at one moment, and gathers what
//! they measured. Paper 1's orchestrator (§4.2.2).

use super::display::{Display, Step};
use super::options::Options;
use super::setting::Setting;
use crate::keeper::system;
use crate::legacy::protocol::{Kind, Mode, Plan, Said, monotonic_ns};
use crate::legacy::targets::{Database, Need, Target};
use crate::machine::Machine;
use crate::stat::{Latencies, Summary, sequence_average};
use crate::table::latency_text;
use nearstate_model::{Error, Result};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time for all nodes to hear when to begin: so much for a start, and so much for each of them.
const GO_NS: u64 = 20_000_000;
const GO_NS_NODE: u64 = 200_000;

/// Nodes tell about every few hundred slow operations. When all are silent for so long, the target
/// is stuck, and waiting longer would tell nobody anything.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// One experiment and what each target did in it.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// What was done.
    pub setting: Setting,
    /// One for each target and kind of access, in the order of the targets.
    pub runs: Vec<Run>,
}

/// The nodes of one target doing one kind of access.
#[derive(Clone, Debug)]
pub struct Run {
    /// Name of the target.
    pub target: String,
    /// Kind of access.
    pub kind: Kind,
    /// One for each sequence of each node.
    pub samples: Vec<Sample>,
    /// Single operations of all nodes.
    pub latencies: Latencies,
    /// Operations of all nodes in the timed sequences.
    pub ops: u64,
    /// From the first node's start to the last one's end, in nanoseconds.
    pub wall_ns: u64,
    /// Values that were read and proved to be whole.
    pub verified: u64,
}

/// One sequence of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The node, from 0.
    pub node: u64,
    /// Which of its sequences, from 0.
    pub number: u64,
    /// Total latency divided by the sequence's size, in nanoseconds.
    pub average_ns: f64,
}

impl Run {
    /// All sequence averages, in nanoseconds.
    pub fn averages(&self) -> Vec<f64> {
        self.samples.iter().map(|s| s.average_ns).collect()
    }

    /// The numbers of a table.
    pub fn summary(&self) -> Summary {
        Summary::new(&self.averages(), &self.latencies, self.ops, self.wall_ns)
    }
}

/// Runs one experiment against every target, one after the other.
///
/// # Errors
/// The first thing that went wrong; nothing of the databases is left.
pub fn experiment(
    setting: Setting,
    targets: &[Box<dyn Target>],
    options: &Options,
    display: &Display,
) -> Result<Experiment> {
    display.say(&setting.line());
    let mut runs = Vec::new();
    for target in targets {
        let desk = Desk { setting: &setting, target: target.as_ref(), options, display };
        runs.extend(desk.measure()?);
    }
    Ok(Experiment { setting, runs })
}

/// One target in one experiment.
struct Desk<'a> {
    setting: &'a Setting,
    target: &'a dyn Target,
    options: &'a Options,
    display: &'a Display,
}

impl Desk<'_> {
    fn measure(&self) -> Result<Vec<Run>> {
        let kinds = self.target.kinds(self.setting.mode).iter().copied();
        let mut runs = Vec::new();
        let mut database: Option<Box<dyn Database>> = None;
        for kind in kinds.filter(|k| self.options.wants(*k)) {
            // Paper 1 §5.1: every write simulation starts with an empty database. The old one goes
            // first, so that there are never two.
            if self.setting.mode == Mode::Write {
                drop(database.take());
            }
            let ready = match database.take() {
                Some(database) => database,
                None => self.open()?,
            };
            runs.push(self.run(ready.as_ref(), kind)?);
            database = Some(ready);
        }
        Ok(runs)
    }

    fn open(&self) -> Result<Box<dyn Database>> {
        let is_read = self.setting.mode == Mode::Read;
        let records = if is_read { self.setting.records() } else { 0 };
        let need = Need {
            records,
            record_bytes: usize::try_from(self.setting.record_bytes).unwrap_or(usize::MAX),
            db_bytes: self.setting.db_bytes,
            seed: self.options.seed,
            numa_node: self.numa_node(),
            folder: self.options.dir.clone(),
        };
        let step = self.display.begin(format!("{}, loading", self.target.name()), records);
        let database = self.target.open(&need, &mut |loaded| step.done(loaded));
        step.finish();
        database
    }

    /// The NUMA node that was asked for, where it makes a difference.
    fn numa_node(&self) -> Option<u32> {
        self.options.numa_node.filter(|_| Machine::look().numa_nodes > 1)
    }

    /// A simulator node's program. When the database's memory is placed, the nodes are too: on NUMA
    /// node 0, the thesis's compute node (§5.2).
    fn node_program(&self, database: &dyn Database) -> Result<Command> {
        let program = database.node_program()?;
        if self.numa_node().is_none() {
            return Ok(program);
        }
        let mut placed = Command::new("numactl");
        placed.args(["--cpunodebind=0", "--"]).arg(program.get_program()).args(program.get_args());
        Ok(placed)
    }

    fn run(&self, database: &dyn Database, kind: Kind) -> Result<Run> {
        let total = self.setting.nodes * self.setting.loops * self.setting.ops;
        let title = format!("{}, {}", self.target.name(), kind.title());
        let step = self.display.begin(title, total);
        let (tell, heard) = channel();
        step.phase("starting nodes");
        let mut nodes = Nodes::default();
        for node in 0..self.setting.nodes {
            nodes.start(self.node_program(database)?, &self.plan(database, kind, node), &tell)?;
        }
        drop(tell);
        let mut gathering = Gathering::new(self, kind);
        gathering.until_ready(&heard)?;
        step.phase("running");
        nodes.go()?;
        gathering.until_done(&heard, &step)?;
        drop(nodes);
        let run = gathering.run;
        let summary = run.summary();
        step.finish_run(&format!(
            "mean {:>9}  p99 {:>9}",
            latency_text(summary.mean_ns),
            latency_text(to_f64(summary.p99_ns))
        ));
        Ok(run)
    }

    fn plan(&self, database: &dyn Database, kind: Kind, node: u64) -> Plan {
        let setting = self.setting;
        Plan {
            target: self.target.name().to_owned(),
            address: database.address(),
            prefix: database.prefix(),
            kind,
            touch: self.options.touch(),
            node,
            first: setting.first(node),
            count: setting.ops,
            ops: setting.ops,
            loops: setting.loops,
            interval_us: self.options.interval_time,
            record_bytes: setting.record_bytes,
            seed: self.options.seed,
            warm_up: !self.options.cold,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn to_f64(ns: u64) -> f64 {
    ns as f64
}

type Heard = (u64, Result<Said>);

/// The node processes of one run; those that still live are killed when this is dropped.
#[derive(Default)]
struct Nodes {
    processes: Vec<Child>,
    inputs: Vec<ChildStdin>,
    ears: Vec<JoinHandle<()>>,
}

impl Nodes {
    fn start(&mut self, mut command: Command, plan: &Plan, tell: &Sender<Heard>) -> Result<()> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|e| system("starting a simulator node", &e))?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        self.processes.push(process);
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(Error::Backend { detail: "a simulator node has no pipes".to_owned() });
        };
        writeln!(input, "{plan}").map_err(|e| system("sending a plan to a node", &e))?;
        self.inputs.push(input);
        let (node, tell) = (plan.node, tell.clone());
        self.ears.push(std::thread::spawn(move || listen(node, output, &tell)));
        Ok(())
    }

    fn go(&mut self) -> Result<()> {
        let nodes = self.inputs.len() as u64;
        let at_ns = monotonic_ns() + GO_NS + nodes * GO_NS_NODE;
        for input in &mut self.inputs {
            writeln!(input, "go {at_ns}").map_err(|e| system("telling a node to begin", &e))?;
        }
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.inputs.clear();
        for process in &mut self.processes {
            if !matches!(process.try_wait(), Ok(Some(_))) {
                // One that said `done` is just leaving; killing it then loses nothing.
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        for ear in self.ears.drain(..) {
            let _ = ear.join();
        }
    }
}

/// Passes on what a node says, until it has said everything.
fn listen(node: u64, output: std::process::ChildStdout, tell: &Sender<Heard>) {
    let mut output = BufReader::new(output);
    let mut line = String::new();
    loop {
        line.clear();
        let said = match output.read_line(&mut line) {
            Ok(0) => {
                Err(Error::Backend { detail: format!("node {node} ended before its work did") })
            }
            Ok(_) => Said::parse(&line),
            Err(e) => Err(system(&format!("listening to node {node}"), &e)),
        };
        let is_last = said.is_err() || said == Ok(Said::Done);
        if tell.send((node, said)).is_err() || is_last {
            return;
        }
    }
}

/// What the nodes of one run have said so far.
struct Gathering {
    nodes: u64,
    ops: u64,
    run: Run,
    start_ns: u64,
    end_ns: u64,
}

impl Gathering {
    fn new(desk: &Desk<'_>, kind: Kind) -> Self {
        let run = Run {
            target: desk.target.name().to_owned(),
            kind,
            samples: Vec::new(),
            latencies: Latencies::new(),
            ops: 0,
            wall_ns: 0,
            verified: 0,
        };
        let setting = desk.setting;
        Self { nodes: setting.nodes, ops: setting.ops, run, start_ns: u64::MAX, end_ns: 0 }
    }

    fn until_ready(&mut self, heard: &Receiver<Heard>) -> Result<()> {
        let mut ready = 0;
        while ready < self.nodes {
            let (node, said) = next(heard)?;
            match said? {
                Said::Ready => ready += 1,
                Said::Error(detail) => return Err(failed(node, &detail)),
                Said::Progress(_) => {} // of the unmeasured sequence
                other @ (Said::Sequence(..)
                | Said::Span(..)
                | Said::Histogram(_)
                | Said::Verified(..)
                | Said::Done) => return Err(failed(node, &format!("{other} before it was ready"))),
            }
        }
        Ok(())
    }

    fn until_done(&mut self, heard: &Receiver<Heard>, step: &Step<'_>) -> Result<()> {
        let mut done = 0;
        let nodes = usize::try_from(self.nodes).unwrap_or(usize::MAX);
        // Slow nodes tell about parts of a sequence; those are not counted again at its end.
        let mut told = vec![0; nodes];
        while done < self.nodes {
            let (node, said) = next(heard)?;
            let told = usize::try_from(node).ok().and_then(|n| told.get_mut(n));
            match said? {
                Said::Progress(ops) => {
                    step.done(ops);
                    if let Some(told) = told {
                        *told += ops;
                    }
                }
                Said::Sequence(number, total_ns) => {
                    let average_ns = sequence_average(total_ns, self.ops);
                    self.run.samples.push(Sample { node, number, average_ns });
                    self.run.ops += self.ops;
                    let before = told.map_or(0, std::mem::take);
                    step.done(self.ops.saturating_sub(before));
                }
                Said::Span(start_ns, end_ns) => {
                    self.start_ns = self.start_ns.min(start_ns);
                    self.end_ns = self.end_ns.max(end_ns);
                }
                Said::Histogram(pairs) => {
                    for (ns, count) in &pairs {
                        self.run.latencies.record(*ns, *count);
                    }
                }
                Said::Verified(values, _) => self.run.verified += values,
                Said::Done => done += 1,
                Said::Error(detail) => return Err(failed(node, &detail)),
                Said::Ready => return Err(failed(node, "ready twice")),
            }
        }
        self.run.wall_ns = self.end_ns.saturating_sub(self.start_ns);
        self.run.samples.sort_by_key(|s| (s.node, s.number));
        Ok(())
    }
}

fn next(heard: &Receiver<Heard>) -> Result<Heard> {
    heard.recv_timeout(SILENCE_MAX).map_err(|e| Error::Backend {
        detail: match e {
            RecvTimeoutError::Disconnected => "all simulator nodes are gone".to_owned(),
            RecvTimeoutError::Timeout => format!(
                "no simulator node has said anything for {} s: give a smaller --scale or fewer \
                 --num-procs",
                SILENCE_MAX.as_secs()
            ),
        },
    })
}

fn failed(node: u64, detail: &str) -> Error {
    Error::Backend { detail: format!("simulator node {node}: {detail}") }
}

//! Messages between the orchestrator and a client process: one JSON object per line, over the
//! client's standard input and output. So a client may be a program in another language.

pub use crate::parameters::Fault;

use crate::parameters::{Arrivals, Parameters};
use crate::reaper::system;
use crate::result::{Check, RecordVerification, Round};
use nearstate_model::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read as _, Write};

/// The longest line, in bytes: a result has sixteen histograms of some thousand pairs each.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// A command to a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCommand {
    /// The first command: the client's plan. The client connects and replies
    /// [`ClientReport::Ready`].
    Plan(Plan),
    /// Load your records; [`ClientReport::Loaded`].
    Load,
    /// Do a number of operations at a depth, without measuring them. The reply is
    /// [`ClientReport::Ready`].
    WarmUp(u64, usize),
    /// Run; [`ClientReport::Finished`]. A background client runs until [`ClientCommand::Stop`].
    Run(Trial),
    /// End the run; for background clients.
    Stop,
    /// Compare your records with your model; [`ClientReport::Verified`].
    Verify,
}

/// The plan of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The workload's name.
    pub workload: String,
    pub parameters: Parameters,
    /// The target's name.
    pub target: String,
    /// Where it is.
    pub address: String,
    /// This client's number, from 0.
    pub client: usize,
    pub clients: usize,
    /// The number of background clients, the last ones, which are not measured; see
    /// [`crate::workloads::WorkloadKind::background_clients`].
    #[serde(default)]
    pub background: usize,
    /// Connections of this client.
    #[serde(default)]
    pub connections: usize,
    /// The processor to stay on.
    pub cpu: Option<usize>,
    /// Number of reconnections after which the client gives up.
    pub reconnects: u64,
    /// An injected fault, which the run must detect.
    pub fault: Option<Fault>,
}

/// One trial of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Operations.
    pub ops: u64,
    /// The largest number of operations that are sent together.
    pub depth: usize,
    /// Operations per second that this client offers; `None`: a closed loop.
    pub rate: Option<f64>,
    /// How the intended starts of an open loop follow each other.
    pub arrivals: Arrivals,
    /// The seed, which is combined with the numbers of the client and of the trial.
    pub seed: u64,
    /// The number of this trial of the target, from 0: first the rounds, then the points of a ramp.
    pub number: u64,
    /// Pause between operations of a closed loop, in microseconds.
    pub think_us: u64,
    /// The start of all clients on the machine's monotonic clock, in nanoseconds; 0: at once. In an
    /// open loop intervals are counted from it, and each client has its own phase.
    pub at_ns: u64,
}

/// A report of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientReport {
    /// Why the client does not run on its processor; sent before the first [`ClientReport::Ready`].
    Unbound(String),
    /// Connected.
    Ready,
    /// Operations or records since the last report, and their p99 in nanoseconds.
    Progress(u64, u64),
    /// All records are loaded: their number, and the nanoseconds.
    Loaded(u64, u64),
    /// The trial has ended.
    Finished(Box<ClientResult>),
    /// The result of the comparison, and the figures of the generator.
    Verified(RecordVerification, Vec<Check>),
    /// The client cannot continue.
    Failed(String),
}

/// A client's results in a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientResult {
    /// Its part of the round. Wall time and server time are 0.
    pub round: Round,
    /// When the measured operations began, on the monotonic clock.
    pub began_ns: u64,
    /// When they ended.
    pub ended_ns: u64,
    /// Connections that were lost and restored.
    pub reconnects: u64,
}

/// Writes one line.
pub fn send(output: &mut impl Write, word: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(word).map_err(|e| garbled(&e))?;
    line.push('\n');
    output.write_all(line.as_bytes()).and_then(|()| output.flush()).map_err(|e| lost(&e))
}

/// Reads one line; `None` if the other side has ended.
pub fn receive<T: DeserializeOwned>(input: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = Vec::new();
    input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(|e| lost(&e))?;
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&line).map(Some).map_err(|e| garbled(&e))
}

/// The text of an error in a report, without the prefix that each process on its way would add.
pub fn error_text(e: &Error) -> String {
    if let Error::Backend { detail } = e { detail.clone() } else { e.to_string() }
}

/// The error of a run that was stopped.
pub const STOPPED: &str = "stopped before its end";

fn garbled(e: &serde_json::Error) -> Error {
    backend_error!("a benchmark's process said something unexpected: {e}")
}

fn lost(e: &std::io::Error) -> Error {
    system("talking with a process of the benchmark", e)
}

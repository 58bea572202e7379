//! The client processes of one target: started, told what to do, listened to, and stopped whatever
//! becomes of the orchestrator.

use crate::clock::monotonic_ns;
use crate::protocol::{ClientCommand, ClientReport, Plan, Ran, STOPPED, Turn, receive, say};
use crate::reaper::{ended, own_program};
use crate::result::{Check, Verdict};
use nearstate_model::{Error, Result};
use std::io::BufReader;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When no client of a target has said anything for so long, the target is stuck: clients tell of
/// progress ten times a second.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How often the orchestrator looks whether it was asked to stop.
const LOOK: Duration = Duration::from_millis(100);

/// How long is waited until a client that says no more has ended: it does as soon as its pipe is
/// closed.
const DEATH_LOOKS: u32 = 50;
const DEATH_LOOK: Duration = Duration::from_millis(10);

/// Time for clients to receive when to begin: so much for all, and so much for each.
const GO_NS: u64 = 20_000_000;
const GO_NS_EACH: u64 = 200_000;

/// What the orchestrator hears while clients work.
pub trait Listener {
    /// So many more operations or records are done, the last of them with this p99.
    fn progress(&mut self, more: u64, p99_ns: u64);

    /// Called now and then: may end the work by an error, or do something to the target.
    fn look(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Client processes; those that still live are killed when this is dropped.
#[derive(Debug)]
pub struct ClientPool {
    processes: Vec<Child>,
    inputs: Vec<ChildStdin>,
    ears: Vec<JoinHandle<()>>,
    /// How many are not measured: the last ones.
    background: usize,
    message: Receiver<ClientMessage>,
    stop: &'static AtomicBool,
    /// Clients that run elsewhere than they were told to, and why.
    pub unbound: Vec<String>,
}

type ClientMessage = (usize, Result<ClientReport>);

impl ClientPool {
    /// Starts `plan.clients` clients, all after the same plan. `stop` is looked at while waiting.
    pub fn start(
        plan: &Plan,
        (cpus, background_cpus): (&[usize], &[usize]),
        stop: &'static AtomicBool,
    ) -> Result<Self> {
        let (tell, message) = channel();
        let mut all = Self {
            processes: Vec::new(),
            inputs: Vec::new(),
            ears: Vec::new(),
            background: plan.background,
            message,
            stop,
            unbound: Vec::new(),
        };
        for client in 0..plan.clients {
            let is_measured = client + plan.background < plan.clients;
            let cpus = if is_measured { cpus } else { background_cpus };
            let cpu = cpus.get(client % cpus.len().max(1)).copied();
            all.start_one(&Plan { client, cpu, ..plan.clone() }, &tell)?;
        }
        drop(tell);
        all.until_ready(&mut Deaf)?;
        Ok(all)
    }

    fn start_one(&mut self, plan: &Plan, tell: &Sender<ClientMessage>) -> Result<()> {
        let mut command = Command::new(own_program()?);
        // Its own group: the terminal's Ctrl-C is for the orchestrator, which then ends it.
        command.args(["bench", "workload-client"]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Large pages for what the generator keeps of each record, whatever the target.
        if std::env::var_os(TUNABLES).is_none() {
            command.env(TUNABLES, LARGE_PAGES);
        }
        let mut process = command.spawn().map_err(|e| Error::System {
            detail: "starting a client of the benchmark".to_owned(),
            errno: e.raw_os_error().unwrap_or(0),
        })?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        self.processes.push(process);
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(Error::Backend { detail: "a client has no pipes".to_owned() });
        };
        say(&mut input, &ClientCommand::Plan(plan.clone()))?;
        self.inputs.push(input);
        let (client, tell) = (plan.client, tell.clone());
        self.ears.push(std::thread::spawn(move || listen(client, output, &tell)));
        Ok(())
    }

    /// Process ids of the clients.
    pub fn processes(&self) -> Vec<u32> {
        self.processes.iter().map(Child::id).collect()
    }

    fn ask(&mut self, ask: &ClientCommand) -> Result<()> {
        let said = |(client, input)| say(input, ask).map_err(|e| (client, e));
        let outcome = self.inputs.iter_mut().enumerate().try_for_each(said);
        outcome.map_err(|(client, e)| self.with_death(client, e))
    }

    /// What went wrong with a client, and how it ended if it has.
    fn with_death(&mut self, client: usize, e: Error) -> Error {
        let Some(process) = self.processes.get_mut(client) else { return e };
        for _ in 0..DEATH_LOOKS {
            match process.try_wait() {
                Ok(None) => std::thread::sleep(DEATH_LOOK),
                Ok(Some(status)) => {
                    let how = ended(status.code(), status.signal());
                    let detail = format!("client {client} ended before its work did: {how}");
                    return Error::Backend { detail };
                }
                Err(_) => return e,
            }
        }
        e
    }

    /// Loads every client's records; how many, and the nanoseconds of the slowest.
    pub fn load(&mut self, listener: &mut impl Listener) -> Result<(u64, u64)> {
        self.ask(&ClientCommand::Load)?;
        let (mut records, mut slowest_ns) = (0, 0);
        self.until(listener, |said| {
            let ClientReport::Loaded(more, ns) = said else { return unexpected(&said) };
            records += more;
            slowest_ns = slowest_ns.max(ns);
            Ok(true)
        })?;
        Ok((records, slowest_ns))
    }

    /// Has every client do operations that are not measured.
    pub fn warm_up(&mut self, ops: u64, depth: usize, listener: &mut impl Listener) -> Result<()> {
        if ops == 0 {
            return Ok(());
        }
        self.ask(&ClientCommand::WarmUp(ops, depth))?;
        self.until_ready(listener)
    }

    fn until_ready(&mut self, listener: &mut impl Listener) -> Result<()> {
        self.until(listener, |said| {
            if matches!(said, ClientReport::Ready) { Ok(true) } else { unexpected(&said) }
        })
    }

    /// Has every client run, all from the same moment on.
    pub fn run(&mut self, turn: &Turn, listener: &mut impl Listener) -> Result<Vec<Ran>> {
        let clients = self.inputs.len() as u64;
        let at_ns = monotonic_ns() + GO_NS + clients * GO_NS_EACH;
        self.ask(&ClientCommand::Run(Turn { at_ns, ..turn.clone() }))?;
        let mut all = Vec::new();
        let measured = self.inputs.len().saturating_sub(self.background);
        self.until_all(measured, listener, |said| {
            let ClientReport::Ran(ran) = said else { return unexpected(&said) };
            all.push(*ran);
            Ok(true)
        })?;
        if self.background > 0 {
            for input in self.inputs.iter_mut().skip(measured) {
                say(input, &ClientCommand::Stop)?;
            }
            self.until_all(self.background, listener, |said| {
                if matches!(said, ClientReport::Ran(_)) { Ok(true) } else { unexpected(&said) }
            })?;
        }
        Ok(all)
    }

    /// Has every client compare its records with its model.
    pub fn verify(&mut self, listener: &mut impl Listener) -> Result<(Verdict, Vec<Check>)> {
        self.ask(&ClientCommand::Verify)?;
        let (mut verdict, mut checks) = (Verdict::default(), Vec::new());
        self.until(listener, |said| {
            let ClientReport::Verified(more, some) = said else { return unexpected(&said) };
            verdict.add(more);
            add_checks(&mut checks, some);
            Ok(true)
        })?;
        Ok((verdict, checks))
    }

    /// Hears all clients until each has said its last word on what it was asked.
    fn until(
        &mut self,
        listener: &mut impl Listener,
        last: impl FnMut(ClientReport) -> Result<bool>,
    ) -> Result<()> {
        self.until_all(self.inputs.len(), listener, last)
    }

    /// Hears clients until so many of them have said their last word.
    fn until_all(
        &mut self,
        mut left: usize,
        listener: &mut impl Listener,
        mut last: impl FnMut(ClientReport) -> Result<bool>,
    ) -> Result<()> {
        let mut silent_since = Instant::now();
        while left > 0 {
            match self.message.recv_timeout(LOOK) {
                Ok((client, said)) => {
                    silent_since = Instant::now();
                    match said.map_err(|e| self.with_death(client, e))? {
                        ClientReport::Progress(more, p99_ns) => listener.progress(more, p99_ns),
                        ClientReport::Unbound(why) => {
                            self.unbound.push(format!("client {client}: {why}"));
                        }
                        ClientReport::Failed(detail) => {
                            let detail = format!("client {client}: {detail}");
                            return Err(Error::Backend { detail });
                        }
                        other @ (ClientReport::Ready
                        | ClientReport::Loaded(..)
                        | ClientReport::Ran(_)
                        | ClientReport::Verified(..)) => left -= usize::from(last(other)?),
                    }
                }
                Err(RecvTimeoutError::Timeout) if silent_since.elapsed() > SILENCE_MAX => {
                    return Err(silent());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let detail = "all clients are gone".to_owned();
                    return Err(Error::Backend { detail });
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Backend { detail: STOPPED.to_owned() });
            }
            listener.look()?;
        }
        Ok(())
    }
}

impl Drop for ClientPool {
    fn drop(&mut self) {
        self.inputs.clear();
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        for ear in self.ears.drain(..) {
            let _ = ear.join();
        }
    }
}

/// Ignores reports of progress.
struct Deaf;

impl Listener for Deaf {
    fn progress(&mut self, _: u64, _: u64) {}
}

/// Figures of several clients: averages, each weighed by the draws that it was found of.
fn add_checks(all: &mut Vec<Check>, more: Vec<Check>) {
    for check in more {
        match all.iter_mut().find(|known| known.name == check.name) {
            Some(known) if known.weight + check.weight > 0.0 => {
                let weight = known.weight + check.weight;
                known.found = (known.found * known.weight + check.found * check.weight) / weight;
                known.weight = weight;
                known.tolerance = known.tolerance.min(check.tolerance);
            }
            Some(_) => {}
            None => all.push(check),
        }
    }
}

fn unexpected(said: &ClientReport) -> Result<bool> {
    Err(Error::Backend { detail: format!("a client said {said:?} when it was not asked for it") })
}

fn silent() -> Error {
    Error::Backend {
        detail: format!(
            "no client has said anything for {} s: the target is stuck, or much slower than the \
             others (give fewer --ops)",
            SILENCE_MAX.as_secs()
        ),
    }
}

/// How glibc's allocator is told to ask for large pages where the system gives them on request.
const TUNABLES: &str = "GLIBC_TUNABLES";
const LARGE_PAGES: &str = "glibc.malloc.hugetlb=1";

/// Passes on what a client says, until it ends.
fn listen(client: usize, output: ChildStdout, tell: &Sender<ClientMessage>) {
    let mut output = BufReader::new(output);
    loop {
        let said = match receive(&mut output) {
            Ok(Some(said)) => Ok(said),
            Ok(None) => {
                Err(Error::Backend { detail: format!("client {client} ended before its work did") })
            }
            Err(e) => Err(e),
        };
        let is_last = said.is_err() || matches!(said, Ok(ClientReport::Failed(_)));
        if tell.send((client, said)).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_clients_are_weighed_by_their_draws() {
        let check = |found, weight| Check {
            name: "share".to_owned(),
            expected: 0.5,
            found,
            tolerance: 0.01,
            weight,
        };
        let mut all = Vec::new();
        add_checks(&mut all, vec![check(0.5, 300.0)]);
        add_checks(&mut all, vec![check(0.9, 100.0)]);
        assert_eq!(all.len(), 1);
        assert!((all[0].found - 0.6).abs() < 1e-9);
        assert!(!all[0].holds());
    }
}

//! The client processes of one target. They receive commands and return reports, and are stopped
//! also if the orchestrator fails.

use crate::clock::monotonic_ns;
use crate::protocol::{
    ClientCommand, ClientReport, ClientResult, Plan, STOPPED, Trial, receive, send,
};
use crate::reaper::{exit_text, own_program, system};
use crate::result::{Check, RecordVerification};
use nearstate_model::{Error, Result};
use std::io::BufReader;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A target whose clients report nothing for this time is stuck.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The interval at which the orchestrator checks for a request to stop.
const POLL: Duration = Duration::from_millis(100);

/// The wait for the exit of a client that has closed its output, in polls.
const EXIT_POLLS: u32 = 50;
const EXIT_POLL: Duration = Duration::from_millis(10);

/// The delay of the common start, so that all clients have received the command by then.
const START_DELAY_NS: u64 = 20_000_000;
const START_DELAY_PER_CLIENT_NS: u64 = 200_000;

/// Receives the progress of clients while they work.
pub trait ProgressListener {
    /// `more` operations or records are done; their latest p99 is `p99_ns`.
    fn progress(&mut self, more: u64, p99_ns: u64);

    /// Called at least every 100 ms: may end the work by an error, or kill the target.
    fn poll(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Client processes. Those that still run are killed when this is dropped.
#[derive(Debug)]
pub struct ClientPool {
    processes: Vec<Child>,
    inputs: Vec<ChildStdin>,
    reader_threads: Vec<JoinHandle<()>>,
    /// The number of clients that are not measured: the last ones.
    background: usize,
    reports: Receiver<ClientMessage>,
    stop: &'static AtomicBool,
    /// Clients that could not be bound to their processor, and why.
    pub unbound: Vec<String>,
}

type ClientMessage = (usize, Result<ClientReport>);

impl ClientPool {
    /// Starts `plan.clients` clients with the same plan. `stop` is checked during every wait.
    pub fn start(
        plan: &Plan,
        (cpus, background_cpus): (&[usize], &[usize]),
        stop: &'static AtomicBool,
    ) -> Result<Self> {
        let (sender, reports) = channel();
        let mut all = Self {
            processes: Vec::new(),
            inputs: Vec::new(),
            reader_threads: Vec::new(),
            background: plan.background,
            reports,
            stop,
            unbound: Vec::new(),
        };
        for client in 0..plan.clients {
            let is_measured = client + plan.background < plan.clients;
            let cpus = if is_measured { cpus } else { background_cpus };
            let cpu = cpus.get(client % cpus.len().max(1)).copied();
            all.start_one(&Plan { client, cpu, ..plan.clone() }, &sender)?;
        }
        drop(sender);
        all.wait_until_ready(&mut NoProgress)?;
        Ok(all)
    }

    fn start_one(&mut self, plan: &Plan, sender: &Sender<ClientMessage>) -> Result<()> {
        let mut command = Command::new(own_program()?);
        // Its own process group: Ctrl-C reaches only the orchestrator, which then ends the client.
        command.args(["bench", "workload-client"]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Large pages for the generator's state of each record, with every target.
        if std::env::var_os(TUNABLES).is_none() {
            command.env(TUNABLES, LARGE_PAGES);
        }
        let starting = "starting a client of the benchmark";
        let mut process = command.spawn().map_err(|e| system(starting, &e))?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        self.processes.push(process);
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(backend_error!("a client has no pipes"));
        };
        send(&mut input, &ClientCommand::Plan(plan.clone()))?;
        self.inputs.push(input);
        let (client, sender) = (plan.client, sender.clone());
        self.reader_threads.push(std::thread::spawn(move || listen(client, output, &sender)));
        Ok(())
    }

    fn broadcast(&mut self, command: &ClientCommand) -> Result<()> {
        let send_to = |(client, input)| send(input, command).map_err(|e| (client, e));
        let outcome = self.inputs.iter_mut().enumerate().try_for_each(send_to);
        outcome.map_err(|(client, e)| self.exit_error(client, e))
    }

    /// The error of a client, or its exit status if it has exited.
    fn exit_error(&mut self, client: usize, e: Error) -> Error {
        let Some(process) = self.processes.get_mut(client) else { return e };
        for _ in 0..EXIT_POLLS {
            match process.try_wait() {
                Ok(None) => std::thread::sleep(EXIT_POLL),
                Ok(Some(status)) => {
                    let how = exit_text(status.code(), status.signal());
                    let detail = format!("client {client} ended before its work did: {how}");
                    return Error::Backend { detail };
                }
                Err(_) => return e,
            }
        }
        e
    }

    /// Loads the records of every client. Returns their number and the nanoseconds of the slowest.
    pub fn load(&mut self, listener: &mut impl ProgressListener) -> Result<(u64, u64)> {
        self.broadcast(&ClientCommand::Load)?;
        let (mut records, mut slowest_ns) = (0, 0);
        self.wait_for_all(listener, |report| {
            let ClientReport::Loaded(more, ns) = report else { return unexpected(&report) };
            records += more;
            slowest_ns = slowest_ns.max(ns);
            Ok(())
        })?;
        Ok((records, slowest_ns))
    }

    /// Runs operations of every client that are not measured.
    pub fn warm_up(
        &mut self,
        ops: u64,
        depth: usize,
        listener: &mut impl ProgressListener,
    ) -> Result<()> {
        if ops == 0 {
            return Ok(());
        }
        self.broadcast(&ClientCommand::WarmUp(ops, depth))?;
        self.wait_until_ready(listener)
    }

    fn wait_until_ready(&mut self, listener: &mut impl ProgressListener) -> Result<()> {
        self.wait_for_all(listener, |report| {
            if matches!(report, ClientReport::Ready) { Ok(()) } else { unexpected(&report) }
        })
    }

    /// Runs a trial of every client; all start at the same time.
    pub fn run(
        &mut self,
        trial: &Trial,
        listener: &mut impl ProgressListener,
    ) -> Result<Vec<ClientResult>> {
        let clients = self.inputs.len() as u64;
        let at_ns = monotonic_ns() + START_DELAY_NS + clients * START_DELAY_PER_CLIENT_NS;
        self.broadcast(&ClientCommand::Run(Trial { at_ns, ..trial.clone() }))?;
        let mut all = Vec::new();
        let measured = self.inputs.len().saturating_sub(self.background);
        self.wait_for(measured, listener, |report| {
            let ClientReport::Finished(result) = report else { return unexpected(&report) };
            all.push(*result);
            Ok(())
        })?;
        if self.background > 0 {
            for input in self.inputs.iter_mut().skip(measured) {
                send(input, &ClientCommand::Stop)?;
            }
            self.wait_for(self.background, listener, |report| {
                if matches!(report, ClientReport::Finished(_)) {
                    Ok(())
                } else {
                    unexpected(&report)
                }
            })?;
        }
        Ok(all)
    }

    /// Compares the records of every client with its model.
    pub fn verify(
        &mut self,
        listener: &mut impl ProgressListener,
    ) -> Result<(RecordVerification, Vec<Check>)> {
        self.broadcast(&ClientCommand::Verify)?;
        let (mut verdict, mut checks) = (RecordVerification::default(), Vec::new());
        self.wait_for_all(listener, |report| {
            let ClientReport::Verified(more, some) = report else { return unexpected(&report) };
            verdict.add(more);
            add_checks(&mut checks, some);
            Ok(())
        })?;
        Ok((verdict, checks))
    }

    /// Receives reports until each client has sent its final one.
    fn wait_for_all(
        &mut self,
        listener: &mut impl ProgressListener,
        last: impl FnMut(ClientReport) -> Result<()>,
    ) -> Result<()> {
        self.wait_for(self.inputs.len(), listener, last)
    }

    /// Receives reports until `left` clients have sent their final one.
    fn wait_for(
        &mut self,
        mut left: usize,
        listener: &mut impl ProgressListener,
        mut last: impl FnMut(ClientReport) -> Result<()>,
    ) -> Result<()> {
        let mut last_report_at = Instant::now();
        while left > 0 {
            match self.reports.recv_timeout(POLL) {
                Ok((client, report)) => {
                    last_report_at = Instant::now();
                    match report.map_err(|e| self.exit_error(client, e))? {
                        ClientReport::Progress(more, p99_ns) => listener.progress(more, p99_ns),
                        ClientReport::Unbound(why) => {
                            self.unbound.push(format!("client {client}: {why}"));
                        }
                        ClientReport::Failed(detail) => {
                            return Err(backend_error!("client {client}: {detail}"));
                        }
                        other @ (ClientReport::Ready
                        | ClientReport::Loaded(..)
                        | ClientReport::Finished(_)
                        | ClientReport::Verified(..)) => {
                            last(other)?;
                            left -= 1;
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) if last_report_at.elapsed() > SILENCE_MAX => {
                    return Err(backend_error!(
                        "no client has reported progress for {} s: the target is stuck, or much \
                         slower than the others (give fewer --ops)",
                        SILENCE_MAX.as_secs()
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(backend_error!("all clients have ended"));
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(backend_error!("{STOPPED}"));
            }
            listener.poll()?;
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
        for thread in self.reader_threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Ignores reports of progress.
#[derive(Debug)]
pub struct NoProgress;

impl ProgressListener for NoProgress {
    fn progress(&mut self, _: u64, _: u64) {}
}

/// Figures of several clients: averages, weighted by the number of draws.
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

fn unexpected(report: &ClientReport) -> Result<()> {
    Err(backend_error!("unexpected report of a client: {report:?}"))
}

/// The environment variable by which glibc's allocator requests large pages.
const TUNABLES: &str = "GLIBC_TUNABLES";
const LARGE_PAGES: &str = "glibc.malloc.hugetlb=1";

/// Passes on the reports of a client, until it ends.
fn listen(client: usize, output: ChildStdout, sender: &Sender<ClientMessage>) {
    let mut output = BufReader::new(output);
    loop {
        let report = match receive(&mut output) {
            Ok(Some(report)) => Ok(report),
            Ok(None) => Err(backend_error!("client {client} ended before its work did")),
            Err(e) => Err(e),
        };
        let is_last = report.is_err() || matches!(report, Ok(ClientReport::Failed(_)));
        if sender.send((client, report)).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_clients_are_weighted_by_their_draws() {
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

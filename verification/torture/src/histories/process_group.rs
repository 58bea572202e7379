//! The processes of the rounds: started, killed, restarted and stopped.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::model::HistoryModel;
use super::options::{Detector, HistoryOptions, Violation, first_value};
use super::process::path_of;
use crate::clock::now_ns;
use crate::rng::{Rng, percent, seeded};
use crate::spawn::{ChildCommand, ChildProcess, ChildRole, was_killed};

/// Without a message for this long, a process hangs.
const SILENCE_NS: u64 = 30_000_000_000;

/// Between the command and the start of a round: every process has received the command by then.
const HEAD_START_NS: u64 = 150_000;

/// Kills of one round occur within this time after its start.
const KILLS_WITHIN_NS: u64 = 4_000_000;

/// Starts of one process in one round.
const STARTS_MAX: u64 = 60;

/// A message of a process: the end of a round, or its exit.
#[derive(Clone, Copy, Debug)]
enum ProcessMessage {
    Done(u64),
    Exited,
}

struct HistoryProcess {
    number: u16,
    start: u64,
    child: ChildProcess,
    is_done: bool,
    deaths: Vec<u64>,
    read: u64,
}

/// What the processes of one number recorded in a round.
pub(crate) struct ProcessRecord {
    pub(crate) process: u16,
    pub(crate) text: String,
    pub(crate) deaths: Vec<u64>,
}

pub(crate) struct ProcessGroup<'r> {
    options: &'r HistoryOptions,
    starter: &'r ChildCommand,
    processes: Vec<HistoryProcess>,
    messages: Receiver<(u16, u64, ProcessMessage)>,
    sender: Sender<(u16, u64, ProcessMessage)>,
    starts: u64,
    rng: Rng,
    pub(crate) kills: u64,
}

impl<'r> ProcessGroup<'r> {
    pub(crate) fn new(options: &'r HistoryOptions, starter: &'r ChildCommand) -> Self {
        let (sender, messages) = channel();
        let rng = seeded(&[options.seed, 4 << 32]);
        Self { options, starter, processes: Vec::new(), messages, sender, starts: 0, rng, kills: 0 }
    }

    pub(crate) fn start_all(&mut self) -> Result<(), Violation> {
        for number in 0..self.options.processes {
            // The files of the last batch have been read.
            let _ = fs::remove_file(path_of(&self.options.folder, number));
            let (start, child) = self.start(number, false)?;
            let deaths = Vec::new();
            self.processes.push(HistoryProcess {
                number,
                start,
                child,
                is_done: true,
                deaths,
                read: 0,
            });
        }
        Ok(())
    }

    fn start(
        &mut self,
        number: u16,
        has_crash_plan: bool,
    ) -> Result<(u64, ChildProcess), Violation> {
        self.starts += 1;
        let start = self.starts;
        let folder = &self.options.folder;
        let jitter = self.options.jitter.to_string();
        let mut settings = vec![("NEARSTATE_JITTER", jitter.as_str())];
        let plan = if has_crash_plan { crash_plan(&mut self.rng) } else { String::new() };
        if !plan.is_empty() {
            settings.push(("NEARSTATE_CRASH_AT", &plan));
        }
        let role = ChildRole {
            role: "history",
            number: number.into(),
            settings: &settings,
            has_pipes: true,
            ..ChildRole::default()
        };
        let mut child = self.starter.start(folder, &role).map_err(violation)?;
        let out = child.process.stdout.take().ok_or_else(|| violation("no pipe".to_owned()))?;
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let round = line.strip_prefix("done ").and_then(|round| round.parse().ok());
                let _ =
                    sender.send((number, start, ProcessMessage::Done(round.unwrap_or(u64::MAX))));
            }
            let _ = sender.send((number, start, ProcessMessage::Exited));
        });
        Ok((start, child))
    }

    /// Executes a round.
    pub(crate) fn play(
        &mut self,
        model: HistoryModel,
        round: u64,
        rng: &mut Rng,
    ) -> Result<Vec<ProcessRecord>, Violation> {
        if self.processes.len() != usize::from(self.options.processes) {
            // A round without all processes would prove nothing.
            return Err(violation(format!("{} processes are running", self.processes.len())));
        }
        let start_ns = now_ns() + HEAD_START_NS;
        let seed = rng.u64(..);
        for process in &mut self.processes {
            (process.is_done, process.deaths) = (false, Vec::new());
            let command =
                command_for(process, (model, round), seed, self.options.operations, start_ns);
            send(process, &command);
        }
        let mut kills: Vec<(u64, u16)> = Vec::new();
        if percent(rng, self.options.kills_percent) {
            for _ in 0..=rng.u64(..2) {
                let victim = rng.u16(..self.options.processes);
                kills.push((start_ns + rng.u64(..KILLS_WITHIN_NS), victim));
            }
            kills.sort_unstable_by(|a, b| b.cmp(a));
        }
        let mut played = Ok(());
        while played.is_ok() && self.processes.iter().any(|process| !process.is_done) {
            let due = kills.last().copied();
            let now = now_ns();
            let until = due.map_or(now + SILENCE_NS, |(at, _)| at);
            let wait = Duration::from_nanos(until.saturating_sub(now));
            played = match (self.messages.recv_timeout(wait), due) {
                (Ok((number, start, message)), _) => {
                    self.on_message(number, start, message, (model, round))
                }
                (Err(RecvTimeoutError::Timeout), Some((_, victim))) => {
                    kills.pop();
                    self.kill(victim, (model, round))
                }
                (Err(_), _) => Err(violation("no process sends a message any more".to_owned())),
            };
        }
        match played {
            Ok(()) => self.collect(),
            Err(found) => {
                // What the other processes still write must not become part of the next round.
                // Errors of this do not matter: the first violation is reported.
                let _ = self.end_all(true);
                self.start_all()?;
                Err(found)
            }
        }
    }

    fn on_message(
        &mut self,
        number: u16,
        start: u64,
        message: ProcessMessage,
        round: (HistoryModel, u64),
    ) -> Result<(), Violation> {
        let Some(process) = self.processes.iter_mut().find(|process| process.number == number)
        else {
            return Ok(());
        };
        match message {
            _ if process.start != start => Ok(()), // From a killed process.
            ProcessMessage::Done(done) => {
                process.is_done |= done == round.1;
                Ok(())
            }
            ProcessMessage::Exited => {
                let status = process.child.wait().map_err(violation)?;
                let died = if was_killed(status) {
                    self.kills += 1;
                    Ok(())
                } else {
                    Err(violation(process.child.exit_error(status)))
                };
                self.replace(number, round, false)?;
                died
            }
        }
    }

    /// Kills a process that has not finished the round.
    fn kill(&mut self, victim: u16, round: (HistoryModel, u64)) -> Result<(), Violation> {
        let process = self.processes.iter_mut().find(|process| process.number == victim);
        let Some(process) = process.filter(|process| !process.is_done) else { return Ok(()) };
        let _ = process.child.process.kill();
        if !was_killed(process.child.wait().map_err(violation)?) {
            return Ok(()); // It had exited before; `Exited` follows.
        }
        self.kills += 1;
        let has_crash_plan = percent(&mut self.rng, 50);
        self.replace(victim, round, has_crash_plan)
    }

    /// Restarts a dead process with half of its work.
    fn replace(
        &mut self,
        number: u16,
        round: (HistoryModel, u64),
        has_crash_plan: bool,
    ) -> Result<(), Violation> {
        let died = now_ns();
        let (start, child) = self.start(number, has_crash_plan)?;
        let operations = self.options.operations / 2;
        let seed = self.rng.u64(..);
        let Some(process) = self.processes.iter_mut().find(|process| process.number == number)
        else {
            return Ok(());
        };
        process.deaths.push(died);
        (process.start, process.child) = (start, child);
        if process.deaths.len() as u64 > STARTS_MAX {
            return Err(violation(format!("process {number} was killed too often")));
        }
        let command = command_for(process, round, seed, operations, 0);
        send(process, &command);
        Ok(())
    }

    /// What all processes recorded since the last round.
    fn collect(&mut self) -> Result<Vec<ProcessRecord>, Violation> {
        let mut all = Vec::new();
        for process in &mut self.processes {
            let path = path_of(&self.options.folder, process.number);
            let mut text = String::new();
            let read = File::open(&path).and_then(|mut file| {
                file.seek(SeekFrom::Start(process.read))?;
                file.read_to_string(&mut text)
            });
            read.map_err(|e| violation(format!("{}: {e}", path.display())))?;
            process.read += text.len() as u64;
            let deaths = std::mem::take(&mut process.deaths);
            all.push(ProcessRecord { process: process.number, text, deaths });
        }
        Ok(all)
    }

    /// Ends all processes by a kill or by the end of their standard input.
    pub(crate) fn end_all(&mut self, is_killed: bool) -> Result<(), Violation> {
        let mut ended = Ok(());
        for mut process in std::mem::take(&mut self.processes) {
            if is_killed {
                let _ = process.child.process.kill();
                self.kills += 1;
            }
            drop(process.child.process.stdin.take());
            let status = process.child.wait().map_err(violation)?;
            if !status.success() && !was_killed(status) {
                ended = Err(violation(format!("process {} exited with {status}", process.number)));
            }
        }
        ended
    }
}

fn violation(text: String) -> Violation {
    Violation(Detector::Process, text)
}

fn command_for(
    process: &HistoryProcess,
    (model, round): (HistoryModel, u64),
    seed: u64,
    operations: u64,
    start_ns: u64,
) -> String {
    let first = first_value(round, u64::from(process.number), process.deaths.len() as u64);
    format!("{round} {} {seed} {operations} {start_ns} {first}\n", model.name())
}

/// A dead process does not read: `Exited` reports it.
fn send(process: &mut HistoryProcess, command: &str) {
    if let Some(questions) = &mut process.child.process.stdin {
        let _ = questions.write_all(command.as_bytes());
    }
}

/// Where a process kills itself: in a commit, or while it recovers another process.
#[cfg(feature = "crash-points")]
fn crash_plan(rng: &mut Rng) -> String {
    let is_it = |point: &&&str| {
        let parts = ["txn.", "line.", "lock.", "publish.", "recover.", "append."];
        parts.iter().any(|part| point.starts_with(part))
    };
    let points: Vec<&&str> = nearstate_store::crash::POINTS.iter().filter(is_it).collect();
    let number = rng.usize(..points.len());
    let point = points.get(number).copied();
    let nth = if point.is_some_and(|point| point.starts_with("recover.")) {
        1
    } else {
        1 + rng.u64(..40)
    };
    point.map_or_else(String::new, |point| format!("{point}:{nth}"))
}

#[cfg(not(feature = "crash-points"))]
const fn crash_plan(_: &mut Rng) -> String {
    String::new()
}

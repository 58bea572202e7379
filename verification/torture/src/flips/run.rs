//! The run: for each flip a new region, two processes that use it, the flip while they are stopped
//! between two instructions, a third process, and the verifier.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::frozen::FrozenRegion;
use super::target::{FlipTarget, area_names, choose};
use super::totals::{AreaTotals, FlipTotals};
use super::verifier::NUMBER as VERIFIER;
use super::worker::{SPACES, WORKERS, flipped_path, namespace_name, progress_path, report_path};
use crate::error_context::ErrorContext as _;
use crate::region_access::{create_folder, create_region};
use crate::rng::{Rng, seeded};
use crate::spawn::{ChildCommand, ChildProcess, ChildRole};

/// Processor time without a single answer after which a process counts as one without progress.
/// Each wait of the store ends after a second, or after four for a lock that changes hands.
const HANG_CPU_TICKS: u64 = 15 * 100;

/// Looks at a process that neither runs nor answers, after which it counts as one without progress.
const HANG_LOOKS: u64 = 30_000;

/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Answers of each process before the flip.
const WARM_UP: u64 = 250;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct FlipOptions {
    pub flips: u64,
    /// A folder of its own on the file system to test. It is created, and removed afterwards.
    pub folder: PathBuf,
    /// Seed of all random choices.
    pub seed: u64,
    /// Only the flip with this number, as often as `flips` says. Part, word and bit are drawn
    /// alike; what the word contains depends on the processes.
    pub only: Option<u64>,
}

/// A process of the run.
struct Watched {
    number: u16,
    child: ChildProcess,
    progress: PathBuf,
    answers: u64,
    /// Its processor time when it answered last, and the looks since then.
    ticks: u64,
    looks: u64,
}

/// How a process ended.
enum ProcessEnd {
    Exited,
    Crashed(String),
    Hung,
}

impl Watched {
    fn start(
        run: &FlipOptions,
        starter: &ChildCommand,
        role: &str,
        number: u16,
        flip: u64,
    ) -> Result<Self, String> {
        let role = ChildRole {
            role,
            number: number.into(),
            seed: run.seed,
            round: flip,
            settings: &[("NEARSTATE_JITTER", "200")],
            ..ChildRole::default()
        };
        let child = starter.start(&run.folder, &role)?;
        let progress = progress_path(&run.folder, number);
        Ok(Self { number, child, progress, answers: 0, ticks: 0, looks: 0 })
    }

    fn answers(&self) -> u64 {
        let bytes = std::fs::read(&self.progress).unwrap_or_default();
        bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// True if it has answered nothing for too long.
    fn is_hung(&mut self) -> bool {
        let (answers, ticks) = (self.answers(), cpu_ticks(self.child.process.id()));
        if answers != self.answers || self.ticks == 0 {
            (self.answers, self.ticks, self.looks) = (answers, ticks.max(1), 0);
        }
        self.looks += 1;
        ticks.saturating_sub(self.ticks) > HANG_CPU_TICKS || self.looks > HANG_LOOKS
    }

    /// Waits until it has answered often enough, or has ended.
    fn wait_for_answers(&mut self, answers: u64) -> Result<(), String> {
        while self.answers() < answers {
            let has_ended = self.child.process.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || self.is_hung() {
                return Err(format!("process {} does not begin", self.number));
            }
            std::thread::sleep(LOOK_EVERY / 4);
        }
        Ok(())
    }

    /// Waits until it ends.
    fn wait(&mut self) -> Result<ProcessEnd, String> {
        loop {
            if let Some(status) = self.child.process.try_wait().context("wait")? {
                return Ok(if status.success() {
                    ProcessEnd::Exited
                } else {
                    ProcessEnd::Crashed(status.to_string())
                });
            }
            if self.is_hung() {
                let _ = self.child.kill();
                return Ok(ProcessEnd::Hung);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.process.id().cast_signed())
    }

    /// Stops it between two instructions. False if it has ended.
    fn stop(&self) -> Result<bool, String> {
        nix::sys::signal::kill(self.pid(), Signal::SIGSTOP).context("stop")?;
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED));
        Ok(matches!(status.context("wait")?, WaitStatus::Stopped(..)))
    }

    fn resume(&self) -> Result<(), String> {
        nix::sys::signal::kill(self.pid(), Signal::SIGCONT).context("resume")
    }
}

/// The processor time of a process in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Runs, and calls `tick` after every flip.
pub fn run(
    options: &FlipOptions,
    starter: &ChildCommand,
    tick: &mut dyn FnMut(&FlipTotals),
) -> Result<FlipTotals, String> {
    create_folder(&options.folder)?;
    let begin = Instant::now();
    let mut totals = FlipTotals { seed: options.seed, ..FlipTotals::default() };
    for name in area_names() {
        totals.areas.insert(name.to_owned(), AreaTotals::default());
    }
    for time in 0..options.flips {
        let flip = options.only.unwrap_or(time);
        let mut rng = seeded(&[options.seed, flip]);
        one(options, starter, flip, &mut rng, &mut totals)
            .map_err(|error| format!("flip {flip} of seed {}: {error}", options.seed))?;
        totals.flips += 1;
        totals.seconds = begin.elapsed().as_secs_f64();
        tick(&totals);
    }
    std::fs::remove_dir_all(&options.folder).context("cannot clean up")?;
    Ok(totals)
}

fn one(
    options: &FlipOptions,
    starter: &ChildCommand,
    flip: u64,
    rng: &mut Rng,
    totals: &mut FlipTotals,
) -> Result<(), String> {
    let folder = &options.folder;
    let _ = std::fs::remove_file(flipped_path(folder));
    let path = create_region(folder)?;
    for number in 0..=VERIFIER {
        let _ = std::fs::remove_file(progress_path(folder, number));
        let _ = std::fs::remove_file(report_path(folder, number));
    }
    let start = |role: &str, number| Watched::start(options, starter, role, number, flip);
    let mut processes = vec![start("flip-worker", 0)?, start("flip-worker", 1)?];
    for process in &mut processes {
        process.wait_for_answers(WARM_UP + rng.u64(..100))?;
    }
    for process in &processes {
        if !process.stop()? {
            return Err("a process ended before the flip".to_owned());
        }
    }
    let region = FrozenRegion::open(&path)?;
    let target = choose(&region, rng);
    region.flip(target.at, target.bit)?;
    File::create(flipped_path(folder)).map_err(|e| e.to_string())?;
    for process in &processes {
        process.resume()?;
    }
    processes.push(start("flip-worker", WORKERS - 1)?);
    let mut context = FlipContext { folder, target: &target, flip, totals };
    for process in &mut processes {
        context.ended(process)?;
    }
    drop(processes);
    context.ended(&mut start("flip-check", VERIFIER)?)?;
    context.count();
    Ok(())
}

/// One flip, and where its results go.
struct FlipContext<'c> {
    folder: &'c Path,
    target: &'c FlipTarget,
    flip: u64,
    totals: &'c mut FlipTotals,
}

impl FlipContext<'_> {
    fn violation(&mut self, text: &str) {
        let FlipTarget { area, at, bit, place, .. } = self.target;
        let text = format!("flip {}: {area}, {place} ({at:#x}), bit {bit}: {text}", self.flip);
        self.totals.violation(text);
    }

    fn ended(&mut self, process: &mut Watched) -> Result<(), String> {
        let number = process.number;
        match process.wait()? {
            ProcessEnd::Exited => {}
            ProcessEnd::Crashed(status) => {
                let errors = process.child.error_output();
                self.totals.crashes += 1;
                self.violation(&format!("process {number}: {status}: {}", errors.trim()));
            }
            ProcessEnd::Hung => {
                self.totals.hangs += 1;
                self.violation(&format!("process {number} makes no progress"));
            }
        }
        Ok(())
    }

    /// Evaluates the reports.
    fn count(&mut self) {
        let (mut has_errors, mut is_found) = (false, false);
        let (mut concerned, mut others) = (BTreeSet::new(), BTreeSet::new());
        for number in 0..=VERIFIER {
            let report = std::fs::read_to_string(report_path(self.folder, number));
            for line in report.unwrap_or_default().lines() {
                let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
                match what {
                    "refused" => {
                        has_errors = true;
                        *self.totals.errors.entry("refused to attach".to_owned()).or_default() += 1;
                    }
                    "errors" => has_errors |= self.errors(rest),
                    "found" => is_found = true,
                    "unrepaired" => {
                        self.totals.unrepaired += 1;
                        self.violation(rest);
                    }
                    "wrong" => {
                        if self.is_concerned(rest) {
                            concerned.insert(rest.to_owned());
                        } else {
                            others.insert(format!("process {number}: {rest}"));
                        }
                    }
                    _ => {}
                }
            }
        }
        for other in &others {
            self.violation(other);
        }
        let area = self.totals.areas.entry(self.target.area.to_owned()).or_default();
        area.flips += 1;
        area.found += u64::from(is_found);
        area.with_errors += u64::from(has_errors);
        area.concerned += u64::from(!concerned.is_empty());
        area.others += u64::from(!others.is_empty());
    }

    /// Counts errors that a process got: `NAME COUNT NAME COUNT`. True if there are any.
    fn errors(&mut self, text: &str) -> bool {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (pairs, _) = words.as_chunks();
        for [name, count] in pairs {
            let count: u64 = count.parse().unwrap_or(0);
            *self.totals.errors.entry((*name).to_owned()).or_default() += count;
        }
        !pairs.is_empty()
    }

    /// True if a wrong read (`SPACE KEY PROBLEM`) is of a record that the flip concerns.
    fn is_concerned(&self, text: &str) -> bool {
        let mut words = text.split(' ');
        let space = words.next().and_then(|space| space.parse().ok()).unwrap_or(SPACES);
        let key = words.next().unwrap_or_default().as_bytes().to_vec();
        debug_assert!(!namespace_name(space).is_empty(), "a report names a space");
        self.target.concerned.contains(&(space, key))
    }
}

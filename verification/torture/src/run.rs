//! The torture run: writers, readers, random kills, and an oracle that knows the acknowledged
//! writes.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearstate_store::{CreateOptions, Region};

use crate::clock::now_ns;
use crate::content::KeySpace;
use crate::error_context::ErrorContext as _;
use crate::journal::{self, EntryKind, JournalEntry};
use crate::oracle::Oracle;
use crate::reader;
use crate::region_access::{clean_up, create_folder, open_session};
use crate::report::{FullRegionTotals, TortureReport};
use crate::report_lines::HAS_POINTS;
use crate::rng::{Rng, percent, seeded};
use crate::spawn::{ChildCommand, ChildProcess, ChildRole};
use crate::stops::{StopLog, StoppedProcess};
use crate::verify::{check_clean, compare, heap_usage};
use crate::writer::{EXPIRES_MS_MAX, FULL_ROUND, KeySpaces};

/// The size of the region, including the arenas of dead members: a leak ends in `Full`, which ends
/// the run.
const BYTES_MAX: u64 = 1 << 30;

/// The size of a region that the writers keep full.
const FULL_BYTES_MAX: u64 = 64 << 20;

/// Stops in a full region, as a share of all events in percent; the others are kills.
const STOPS_PERCENT: u64 = 30;

/// A write is attributed to a kill if it was in flight, or began this soon after it.
const AFTER_KILL_NS: u64 = 5_000_000;

/// A write that takes longer than this is slow: the bound for one holder of a lock.
const SLOW_NS: u64 = 1_000_000_000;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct TortureOptions {
    /// Processes to kill.
    pub kills: u64,
    /// Kills between two checks.
    pub kills_per_check: u64,
    /// Processes that write.
    pub writers: u16,
    /// Processes that read.
    pub readers: u16,
    /// A folder of its own on the file system to test. It is created, and removed after a run
    /// without violations.
    pub folder: PathBuf,
    /// Seed of all random choices.
    pub seed: u64,
    /// The longest pause between two kills.
    pub pause_us_max: u64,
    /// A small region that is kept full, and processes that are also stopped.
    pub full_region: Option<FullRegion>,
}

/// A run in a region that is nearly full all the time. Free memory is scattered, records are moved,
/// and reserves are used while processes are killed and stopped.
#[derive(Clone, Copy, Debug)]
pub struct FullRegion {
    /// The longest stop of a process. The shortest is a fiftieth of it.
    pub stop_ms_max: u64,
    /// The run continues for so long, also after the last of its kills.
    pub seconds_min: u64,
}

struct ChildSlot {
    is_writer: bool,
    number: u16,
    child: ChildProcess,
    stopped: Option<StoppedProcess>,
}

/// A run in progress.
struct TortureRun<'r> {
    options: &'r TortureOptions,
    starter: &'r ChildCommand,
    rng: Rng,
    oracle: Oracle,
    report: TortureReport,
    log: File,
    slots: Vec<ChildSlot>,
    round: u64,
    kills_ns: Vec<u64>,
    stops: StopLog,
    begin: Instant,
}

/// Runs, and calls `tick` after every kill.
pub fn run(
    options: &TortureOptions,
    starter: &ChildCommand,
    tick: &mut dyn FnMut(&TortureReport),
) -> Result<TortureReport, String> {
    create_folder(&options.folder)?;
    let log = File::create(options.folder.join("log")).context("log")?;
    let mut run = TortureRun {
        options,
        starter,
        rng: seeded(&[options.seed, 1 << 32]),
        oracle: Oracle::default(),
        report: TortureReport {
            seed: options.seed,
            has_crash_points: HAS_POINTS,
            bytes_taken_bound: options.full_region.map_or(BYTES_MAX, |_| FULL_BYTES_MAX),
            full_region: options.full_region.map(|_| FullRegionTotals::default()),
            ..TortureReport::default()
        },
        log,
        slots: Vec::new(),
        round: 0,
        kills_ns: Vec::new(),
        stops: StopLog::default(),
        begin: Instant::now(),
    };
    let done = run.all(tick);
    run.slots.clear();
    run.report.seconds = run.begin.elapsed().as_secs_f64();
    clean_up(done, &options.folder, |error| {
        let (kills, round, seed) = (run.report.kills, run.round, options.seed);
        let folder = options.folder.display();
        let text =
            format!("{error}\n(after {kills} kills, round {round}, seed {seed}; files: {folder})");
        let _ = writeln!(run.log, "{text}");
        text
    })?;
    Ok(run.report)
}

impl TortureRun<'_> {
    fn all(&mut self, tick: &mut dyn FnMut(&TortureReport)) -> Result<(), String> {
        let path = self.region();
        let bytes_max = self.report.bytes_taken_bound;
        let options = CreateOptions { bytes_max, ..CreateOptions::default() };
        drop(Region::create(&path, &options).context("create")?);
        for writer in 0..self.options.writers {
            self.begin_journal(writer, 0)?;
        }
        let seconds_min = self.options.full_region.map_or(0, |full| full.seconds_min);
        let kills = self.options.kills;
        while self.report.kills < kills || self.begin.elapsed().as_secs() < seconds_min {
            self.start_all()?;
            let part = self.options.kills_per_check;
            let left = kills.saturating_sub(self.report.kills);
            let until = self.report.kills + if left == 0 { part } else { part.min(left) };
            while self.report.kills < until {
                let pause = self.rng.u64(..=self.options.pause_us_max);
                std::thread::sleep(Duration::from_micros(pause));
                if !self.stop_or_resume()? {
                    self.kill_one()?;
                }
                tick(&self.report);
            }
            self.stop_all()?;
            self.check()?;
            tick(&self.report);
            self.round += 1;
        }
        Ok(())
    }

    fn region(&self) -> PathBuf {
        self.options.folder.join("region")
    }

    /// The round that determines the growing namespace.
    const fn name_of_round(&self) -> u64 {
        if self.options.full_region.is_some() { FULL_ROUND } else { self.round }
    }

    fn begin_journal(&self, writer: u16, base: u64) -> Result<(), String> {
        journal::begin(&journal::path_of(&self.options.folder, writer), base).context("journal")
    }

    fn start(&mut self, is_writer: bool, number: u16) -> Result<ChildProcess, String> {
        let seed = self.rng.u64(..);
        // With crash points, half of the children yield the processor at one in so many points, so
        // that kills and reads fall between any two stores.
        let jitter = if percent(&mut self.rng, 50) { "400" } else { "0" };
        let role = ChildRole {
            role: if is_writer { "writer" } else { "reader" },
            number: number.into(),
            seed,
            round: self.name_of_round(),
            more: &self.options.writers.to_string(),
            settings: &[("NEARSTATE_JITTER", jitter)],
            has_pipes: false,
        };
        self.starter.start(&self.options.folder, &role)
    }

    fn start_all(&mut self) -> Result<(), String> {
        let writers = (0..self.options.writers).map(|number| (true, number));
        let readers = (0..self.options.readers).map(|number| (false, number));
        for (is_writer, number) in writers.chain(readers) {
            let child = self.start(is_writer, number)?;
            self.slots.push(ChildSlot { is_writer, number, child, stopped: None });
        }
        Ok(())
    }

    /// In a full region: lets processes continue whose time is over, and sometimes stops one. At
    /// least half of the processes run. False if a process should be killed instead.
    fn stop_or_resume(&mut self) -> Result<bool, String> {
        let Some(full) = self.options.full_region else { return Ok(false) };
        for slot in &mut self.slots {
            if let Some(stopped) = slot.stopped.take_if(|stopped| stopped.is_due()) {
                stopped.resume(&mut self.stops)?;
            }
        }
        if !percent(&mut self.rng, STOPS_PERCENT) {
            return Ok(false);
        }
        let stopped = self.slots.iter().filter(|slot| slot.stopped.is_some()).count();
        let victim = self.rng.usize(..self.slots.len());
        let ms =
            (self.rng.u64(..=full.stop_ms_max) >> self.rng.u32(..5)).max(full.stop_ms_max / 50);
        if let Some(slot) = self.slots.get_mut(victim)
            && slot.stopped.is_none()
            && stopped < self.options.writers.midpoint(self.options.readers).into()
        {
            let pid = slot.child.process.id();
            let writer = slot.is_writer.then_some(slot.number);
            slot.stopped = Some(StoppedProcess::stop(pid, writer, ms)?);
            writeln!(self.log, "{} stop {} pid {pid} for {ms} ms", now_ns(), slot.child.name())
                .context("log")?;
            if let Some(totals) = &mut self.report.full_region {
                totals.stops += 1;
            }
        }
        Ok(true)
    }

    fn kill_one(&mut self) -> Result<(), String> {
        let victim = self.rng.usize(..self.slots.len());
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if index == victim {
                slot.kill(&mut self.stops)?;
            } else {
                slot.child.check_running()?;
            }
        }
        let Some(slot) = self.slots.get(victim) else { return Ok(()) };
        let (is_writer, number) = (slot.is_writer, slot.number);
        let now = now_ns();
        self.kills_ns.push(now);
        self.report.kills += 1;
        self.report.kills_of_writers += u64::from(is_writer);
        let (name, pid) = (slot.child.name(), slot.child.process.id());
        writeln!(self.log, "{now} kill {} {name} pid {pid}", self.report.kills).context("log")?;
        let child = self.start(is_writer, number)?;
        if let Some(slot) = self.slots.get_mut(victim) {
            slot.child = child;
        }
        Ok(())
    }

    fn stop_all(&mut self) -> Result<(), String> {
        for mut slot in std::mem::take(&mut self.slots) {
            slot.kill(&mut self.stops)?;
            self.report.stops_before_checks += 1;
        }
        Ok(())
    }

    /// Runs the offline check and compares all records with the oracle.
    fn check(&mut self) -> Result<(), String> {
        writeln!(self.log, "{} check {}", now_ns(), self.round).context("log")?;
        let path = self.region();
        let inspection =
            Region::attach(&path).and_then(|region| region.inspect()).context("inspect")?;
        self.report.recoveries_by_check += inspection.members.len() as u64;
        let checked = check_clean(&path)?;
        self.report.checks += 1;
        self.report.records_compared += checked.records;
        self.report.bytes_leaked += checked.bytes_leaked;
        self.report.bytes_taken_max = self.report.bytes_taken_max.max(checked.bytes_taken);
        let used = checked.bytes_live + checked.bytes_index;
        self.report.bytes_used_max = self.report.bytes_used_max.max(used);
        let mut worst = vec![0; self.kills_ns.len()];
        for writer in 0..self.options.writers {
            let file = journal::path_of(&self.options.folder, writer);
            let entries = journal::read(&file).context("journal")?;
            self.oracle.replay(writer, &entries)?;
            self.measure(writer, &entries, &mut worst)?;
            if let Some(totals) = &mut self.report.full_region {
                totals.refused_for_a_running_process += self.stops.unexplained(&entries);
            }
            let base = journal::next_base(&entries);
            self.begin_journal(writer, base)?;
        }
        for ns in worst.into_iter().filter(|ns| *ns > 0) {
            self.report.longest_write_after_a_kill.0.saturating_record(ns);
        }
        self.kills_ns.clear();
        self.stops.clear();
        if self.options.full_region.is_some() {
            self.measure_memory()?;
            // Whatever can expire has expired. Any process must be able to collect it.
            std::thread::sleep(Duration::from_millis(EXPIRES_MS_MAX));
            open_session(&path)?.collect_expired(usize::MAX).context("collect")?;
        }
        compare(&path, self.name_of_round(), &mut self.oracle)?;
        self.delete_grown()?;
        check_clean(&path)?;
        self.sum_up();
        Ok(())
    }

    /// All processes were killed, and their sessions recovered.
    fn measure_memory(&mut self) -> Result<(), String> {
        let heap = heap_usage(&self.region())?;
        if let Some(totals) = &mut self.report.full_region {
            let least = &mut totals.free_percent_min;
            let percent = (heap.total - heap.live) * 100 / heap.total;
            *least = if totals.checks == 0 { percent } else { percent.min(*least) };
            totals.checks += 1;
            totals.free_largest = heap.free_largest;
            totals.free = heap.total - heap.live;
        }
        Ok(())
    }

    fn sum_up(&mut self) {
        self.report.counts = self.oracle.counts;
        self.report.recoveries = self.oracle.counts.attached;
        (
            self.report.views_verified,
            self.report.pairs_verified,
            self.report.pairs_verified_in_transactions,
        ) = (0, 0, 0);
        for number in 0..self.options.readers {
            let read = reader::counts(&reader::path_of(&self.options.folder, number));
            self.report.views_verified += read.views;
            self.report.recoveries += read.attached;
            self.report.pairs_verified += read.pairs;
            self.report.pairs_verified_in_transactions += read.snapshots;
        }
    }

    /// Records the duration of each write, and the longest for each kill. The time in which the
    /// writer itself was stopped does not count.
    fn measure(
        &mut self,
        writer: u16,
        entries: &[JournalEntry],
        worst: &mut [u64],
    ) -> Result<(), String> {
        let mut started = None;
        for entry in entries {
            match entry.tag {
                EntryKind::Intent => started = Some(entry.at_ns),
                EntryKind::Base | EntryKind::Attached => started = None,
                EntryKind::Ack => {
                    let Some(from) = started.take() else { continue };
                    let stopped = self.stops.own_ns(writer, from, entry.at_ns);
                    let took = entry.at_ns.saturating_sub(from + stopped);
                    self.report.writes.0.saturating_record(took);
                    if took > SLOW_NS {
                        self.slow(writer, entry, from, took)?;
                    }
                    let first = from.saturating_sub(AFTER_KILL_NS);
                    let start = self.kills_ns.partition_point(|kill| *kill < first);
                    let kills = self.kills_ns.iter().zip(worst.iter_mut()).skip(start);
                    for (_, longest) in kills.take_while(|(kill, _)| **kill <= entry.at_ns) {
                        *longest = took.max(*longest);
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells what a slow write has met.
    fn slow(
        &mut self,
        writer: u16,
        entry: &JournalEntry,
        from: u64,
        took: u64,
    ) -> Result<(), String> {
        let slow = &mut self.report.slow_writes;
        let has_other = self.stops.has_other(writer, from, entry.at_ns);
        let met = if entry.is_stalled() {
            &mut slow.refused
        } else if has_other {
            &mut slow.beside_stopped
        } else {
            &mut slow.others
        };
        *met += 1;
        if !has_other {
            slow.longest_of_others_ms = slow.longest_of_others_ms.max(took / 1_000_000);
        }
        let (ms, is_stalled) = (took / 1_000_000, entry.is_stalled());
        let to = entry.at_ns;
        writeln!(
            self.log,
            "slow: writer {writer}, {:?} of {:?} took {ms} ms, from {from} to {to}, refused \
             {is_stalled}, another stopped {has_other}, mask {:#x}",
            entry.op, entry.key.space, entry.mask
        )
        .context("log")
    }

    /// Deletes the records of this round's growing namespace. The next round uses another one.
    fn delete_grown(&mut self) -> Result<(), String> {
        let session = open_session(&self.region())?;
        let spaces = KeySpaces::open(&session, self.name_of_round())?;
        for key in self.oracle.keys(KeySpace::Grow) {
            session
                .delete(spaces.of(KeySpace::Grow), &key.bytes())
                .map_err(|e| format!("{key:?}: delete: {e}"))?;
        }
        let left = session.count(spaces.of(KeySpace::Grow)).context("count")?;
        if left != 0 {
            return Err(format!("{left} records are left after all were deleted"));
        }
        self.oracle.forget(KeySpace::Grow);
        Ok(())
    }
}

impl ChildSlot {
    fn kill(&mut self, stops: &mut StopLog) -> Result<(), String> {
        if let Some(stopped) = self.stopped.take() {
            stops.add(stopped);
        }
        self.child.kill()
    }
}

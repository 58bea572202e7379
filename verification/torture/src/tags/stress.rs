//! The stress test: processes create and delete sessions with contended tags, collect expired
//! records and search; they are killed at random. The content of the rings is replayed and compared
//! with the writers' results and with the records ([`replay`]).

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearstate_store::{
    CommitStream, CreateOptions, Filter, Notice, Region, StreamItem, Watch, WhenFull,
};
use serde::Serialize;

use crate::error_context::ErrorContext as _;
use crate::region_access::{clean_up, create_folder};
use crate::rng::{Rng, seeded};
use crate::spawn::{ChildCommand, ChildProcess, ChildRole};
use crate::tags::stress::replay::StreamReplay;
use crate::tags::stress::worker::{open, path_of};
use crate::verify::check_clean;

mod replay;
pub(crate) mod worker;

/// The size of the region: each session that ever wrote has 4 MiB of it for its stream.
const BYTES_MAX: u64 = 1 << 30;

/// Parameters of a stress test.
#[derive(Clone, Debug)]
pub struct TagStressOptions {
    /// Processes to kill.
    pub kills: u64,
    /// Kills between two checks.
    pub kills_per_check: u64,
    /// Processes that write.
    pub writers: u16,
    /// Processes that collect expired records.
    pub collectors: u16,
    /// Processes that search.
    pub readers: u16,
    /// A folder of its own. It is created, and removed after a run without violations.
    pub folder: PathBuf,
    /// Seed of all random choices.
    pub seed: u64,
    /// The longest pause between two kills.
    pub pause_us_max: u64,
}

/// Results.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TagStressTotals {
    /// Processes killed.
    pub kills: u64,
    /// Acknowledged transactions, each found in the stream once.
    pub transactions_acknowledged: u64,
    /// Transactions refused because another record had the unique value.
    pub transactions_refused_for_a_tag: u64,
    /// Transactions that a kill cut short.
    pub transactions_cut_short: u64,
    /// Of these, transactions that committed.
    pub transactions_cut_short_committed: u64,
    /// Expired records that were collected, each once.
    pub records_collected: u64,
    /// Lookups by tag.
    pub lookups: u64,
    /// Events, each delivered once.
    pub events: u64,
    /// True if watchers lost events.
    pub events_were_lost: bool,
    /// Offline checks.
    pub checks: u64,
    /// Records compared.
    pub records_compared: u64,
    /// Duration of the run.
    pub seconds: f64,
}

impl TagStressTotals {
    /// As a table.
    pub fn lines(&self) -> [(&'static str, String); 4] {
        let lost = if self.events_were_lost { "; some lost by a slow watcher" } else { "" };
        [
            (
                "transactions with tags",
                format!(
                    "{} ({} refused for a tag; {} cut short, {} of them committed)",
                    self.transactions_acknowledged,
                    self.transactions_refused_for_a_tag,
                    self.transactions_cut_short,
                    self.transactions_cut_short_committed
                ),
            ),
            ("records collected", self.records_collected.to_string()),
            ("lookups by tag", self.lookups.to_string()),
            (
                "events delivered once each",
                format!(
                    "{}{lost} ({} kills, {} checks, {:.1} seconds)",
                    self.events, self.kills, self.checks, self.seconds
                ),
            ),
        ]
    }
}

struct ChildSlot {
    role: &'static str,
    number: u16,
    child: ChildProcess,
}

struct TagStress<'c> {
    options: &'c TagStressOptions,
    starter: &'c ChildCommand,
    rng: Rng,
    replay: StreamReplay,
    totals: TagStressTotals,
    slots: Vec<ChildSlot>,
}

/// Runs a stress test, and calls `tick` after every kill.
pub fn run(
    options: &TagStressOptions,
    starter: &ChildCommand,
    tick: &mut dyn FnMut(&TagStressTotals),
) -> Result<TagStressTotals, String> {
    let begin = Instant::now();
    let folder = &options.folder;
    create_folder(folder)?;
    let mut stress = TagStress {
        options,
        starter,
        rng: seeded(&[options.seed, 1 << 33]),
        replay: StreamReplay::default(),
        totals: TagStressTotals::default(),
        slots: Vec::new(),
    };
    let done = stress.all(tick);
    stress.slots.clear();
    stress.totals.seconds = begin.elapsed().as_secs_f64();
    clean_up(done, folder, |error| {
        let (kills, seed) = (stress.totals.kills, options.seed);
        format!("{error}\n(after {kills} kills, seed {seed}; files: {})", folder.display())
    })?;
    Ok(stress.totals)
}

impl TagStress<'_> {
    fn all(&mut self, tick: &mut dyn FnMut(&TagStressTotals)) -> Result<(), String> {
        let path = self.options.folder.join("region");
        let options = CreateOptions { bytes_max: BYTES_MAX, ..CreateOptions::default() };
        let region = Region::create(&path, &options).context("create")?;
        let session = region.session().context("session")?;
        let ns = open(&session)?;
        let mut watch = session.watch(ns, Filter::Namespace).context("watch")?;
        session.stream(ns, WhenFull::Refuse).context("stream")?;
        drop(session);
        while self.totals.kills < self.options.kills {
            self.round(&region, &mut watch, tick)?;
            // The check recovers the dead sessions, which appends the events of decided
            // transactions.
            check_clean(&path)?;
            self.verify(&region, &mut watch)?;
            check_clean(&path)?;
            self.totals.checks += 2;
            tick(&self.totals);
        }
        Ok(())
    }

    /// Kills until the next check, then stops all processes.
    fn round(
        &mut self,
        region: &Region,
        watch: &mut Watch,
        tick: &mut dyn FnMut(&TagStressTotals),
    ) -> Result<(), String> {
        let session = region.session().context("session")?;
        let mut stream = session.commit_stream().context("stream")?;
        let TagStressOptions { writers, collectors, readers, .. } = *self.options;
        for (role, count) in [
            ("tagged-writer", writers),
            ("tagged-collector", collectors),
            ("tagged-reader", readers),
        ] {
            for number in 0..count {
                let child = self.start(role, number)?;
                self.slots.push(ChildSlot { role, number, child });
            }
        }
        let until = self.options.kills.min(self.totals.kills + self.options.kills_per_check);
        while self.totals.kills < until {
            let pause = Duration::from_micros(self.rng.u64(..=self.options.pause_us_max));
            let begin = Instant::now();
            while begin.elapsed() < pause {
                self.drain(&mut stream, watch)?;
                std::thread::sleep(Duration::from_micros(500));
            }
            self.kill_one()?;
            tick(&self.totals);
        }
        for mut slot in std::mem::take(&mut self.slots) {
            slot.child.kill()?;
        }
        self.drain(&mut stream, watch)
    }

    fn start(&mut self, role: &str, number: u16) -> Result<ChildProcess, String> {
        let (number, seed) = (number.into(), self.rng.u64(..));
        let role = ChildRole { role, number, seed, ..ChildRole::default() };
        self.starter.start(&self.options.folder, &role)
    }

    fn kill_one(&mut self) -> Result<(), String> {
        let victim = self.rng.usize(..self.slots.len());
        let mut slot = self.slots.swap_remove(victim);
        slot.child.kill()?;
        slot.child = self.start(slot.role, slot.number)?;
        self.slots.push(slot);
        self.totals.kills += 1;
        self.slots.iter_mut().try_for_each(|slot| slot.child.check_running())
    }

    /// Reads the rings and acknowledges the stream.
    fn drain(&mut self, stream: &mut CommitStream<'_>, watch: &mut Watch) -> Result<(), String> {
        // The watchers' ring first: it is the smaller one.
        while let Some(notice) = watch.next().context("watch")? {
            match notice {
                Notice::Event(event) if !self.replay.has_lost_events => {
                    self.replay.add_event(&event)?;
                }
                Notice::Event(_) => {}
                Notice::Lost { .. } => self.replay.has_lost_events = true,
            }
        }
        // Limited, so that the watchers' ring is read again soon.
        for _ in 0..2000 {
            match stream.next().context("stream")? {
                None => break,
                Some(StreamItem::Transaction(entry)) => self.replay.add_entry(&entry)?,
                Some(StreamItem::Lost { transactions }) => {
                    return Err(format!(
                        "{transactions} transactions lost, in a stream that keeps everything"
                    ));
                }
            }
        }
        stream.acknowledge().context("acknowledge")
    }

    /// No process is writing: compares the rings with the records.
    fn verify(&mut self, region: &Region, watch: &mut Watch) -> Result<(), String> {
        let session = region.session().context("session")?;
        let ns = open(&session)?;
        let mut stream = session.commit_stream().context("stream")?;
        for has_collected in [false, true] {
            if has_collected {
                session.collect_expired(usize::MAX).context("collect")?;
            }
            // Two full rings contain less than this many batches.
            for _ in 0..100 {
                self.drain(&mut stream, watch)?;
            }
            self.replay.apply_round()?;
            self.totals.records_compared += self.replay.compare(&session, ns)?;
        }
        let mut sums = [0; 4];
        for writer in 0..self.options.writers {
            let path = path_of(&self.options.folder, "writer", writer);
            let journal = fs::read_to_string(path).unwrap_or_default();
            let checked = self.replay.check_writer(writer, &journal)?;
            for (sum, part) in sums.iter_mut().zip(checked) {
                *sum += part;
            }
        }
        let totals = &mut self.totals;
        [
            totals.transactions_acknowledged,
            totals.transactions_refused_for_a_tag,
            totals.transactions_cut_short,
            totals.transactions_cut_short_committed,
        ] = sums;
        totals.records_collected = self.replay.collected;
        totals.events = self.replay.events;
        totals.events_were_lost = self.replay.has_lost_events;
        totals.lookups = 0;
        for reader in 0..self.options.readers {
            let text = fs::read_to_string(path_of(&self.options.folder, "reader", reader));
            let lines = text.unwrap_or_default();
            totals.lookups +=
                lines.lines().filter_map(|line| line.parse::<u64>().ok()).sum::<u64>();
        }
        Ok(())
    }
}

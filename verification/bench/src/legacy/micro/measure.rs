//! The measures, taken in turns: target A, B, C, then A again, so that a machine that is slow for a
//! while is slow for all of them.

use super::calls;
use super::clock::Clock;
use super::companion::{Companion, Terms, writers};
use super::findings::{Goal, OURS, Row, Unit};
use super::listing;
use super::loops::Job;
use super::options::{Group, Options};
use super::peers::region::{Loaded as RegionLoaded, RegionStore, room};
use super::peers::{Need, Subject, open};
use super::role::Role;
use super::whitedb;
use super::work::Material;
use crate::keeper::Keeper;
use crate::legacy::access::display::Display;
use crate::legacy::place::{Places, pin};
use crate::stat::sequence_average;
use crate::table::latency_text;
use nearstate_model::Result;
use nearstate_store::{CreateOptions, Region};

/// Processes that write at once (paper 1, Table 2, row 1), and the records of each.
pub const WRITERS: u64 = 10;
const WRITES: u64 = 10_000;

/// Operations of an unmeasured turn before each measured one: what the targets before it have
/// driven out of the caches comes back.
const WARM_UP: u64 = 100_000;

/// Records of the region whose reads are traced, and how many reads.
const TRACED_RECORDS: u64 = 1000;
const TRACED_READS: u64 = 20_000;

/// Jobs on loaded databases: the group, the words, the job, whether only from the middle size on.
const KEYED: [(Group, &str, Job, bool); 7] = [
    (Group::Reads, "keyed view", Job::View, false),
    (Group::Reads, "keyed copy", Job::Copy, false),
    (Group::Batch, "batch of 16, view, per key", Job::BatchView, true),
    (Group::Batch, "batch of 16, copy, per key", Job::BatchCopy, true),
    (Group::Chain, "dependent chain of views", Job::Chain, false),
    (Group::Puts, "put, alone", Job::Put, true),
    (Group::Scan, "step to the next record", Job::Step, true),
];

fn is_due(options: &Options, keyed: &(Group, &str, Job, bool), records: u64) -> bool {
    let (group, _, _, is_late) = keyed;
    options.wants(*group) && (!is_late || records >= options.keys_middle())
}

/// How many lines of progress there will be.
pub fn steps(options: &Options) -> usize {
    let keyed = |records| KEYED.iter().filter(move |k| is_due(options, k, records)).count();
    options.keys().into_iter().map(keyed).sum::<usize>() + options.sizes().len()
}

/// One turn of a round.
#[derive(Clone, Copy, Debug)]
struct Turn<'a> {
    job: Job,
    material: &'a Material,
    round: u64,
    records: u64,
}

/// What the measures share.
#[derive(Debug)]
pub struct Desk<'a> {
    /// The command line.
    pub options: &'a Options,
    /// Names of the targets that are here.
    pub targets: &'a [String],
    /// Where processes run.
    pub places: Places,
    /// Progress.
    pub display: &'a Display,
    /// What is measured so far.
    pub rows: Vec<Row>,
    /// What a reader has to know.
    pub caveats: Vec<String>,
}

impl Desk<'_> {
    /// Takes all measures but the curve of growth.
    ///
    /// # Errors
    /// The first thing that went wrong.
    pub fn measure(&mut self) -> Result<()> {
        for records in self.options.keys() {
            self.keyed(records)?;
        }
        if self.wants(Group::Writers) {
            self.writers()?;
        }
        if self.wants(Group::Calls) {
            self.calls()?;
        }
        if self.wants(Group::Listing) {
            self.listing();
        }
        Ok(())
    }

    fn wants(&self, group: Group) -> bool {
        self.options.wants(group)
    }

    fn has(&self, target: &str) -> bool {
        self.targets.iter().any(|t| t == target)
    }

    /// Everything that needs a loaded database of this size.
    fn keyed(&mut self, records: u64) -> Result<()> {
        let is_middle = records == self.options.keys_middle();
        let due: Vec<_> = KEYED.into_iter().filter(|k| is_due(self.options, k, records)).collect();
        let has_bytes = self.wants(Group::Bytes) && records >= self.options.keys_middle();
        let has_pairs = is_middle && (self.wants(Group::Slowed) || self.wants(Group::Puts));
        if due.is_empty() && !has_bytes && !has_pairs {
            return Ok(());
        }
        let mut subjects = self.load(records)?;
        let value_bytes = usize::try_from(self.options.value_bytes).unwrap_or(usize::MAX);
        let material = Material::new(records, value_bytes, self.options.seed);
        if has_bytes {
            self.bytes(&mut subjects, records)?;
        }
        pin(self.places.measuring);
        for (group, title, job, _) in due {
            let mut row = Row::new(group, title, records, Unit::Ns);
            row.goals = self.goals(job, records);
            self.turns(&mut row, &mut subjects, job, &material)?;
            self.rows.push(row);
        }
        if is_middle && self.wants(Group::Puts) {
            self.put_beside_a_reader(&mut subjects, &material, records)?;
        }
        if is_middle && self.wants(Group::Slowed) {
            self.slowed(&mut subjects, &material, records)?;
        }
        drop(subjects);
        if is_middle && self.has("whitedb") {
            self.whitedb(records)?;
        }
        self.places.unpin();
        Ok(())
    }

    /// The goals of issue 2 for a job at this many records.
    fn goals(&self, job: Job, records: u64) -> Vec<Goal> {
        let is_middle = records == self.options.keys_middle();
        let is_most = records == self.options.keys_most();
        match job {
            Job::View if records <= 1000 => vec![Goal::AtMost(12.0)],
            Job::View if is_middle => vec![Goal::Ahead("lmdb", 14.0)],
            Job::Copy if is_middle => vec![Goal::Ahead("lmdb", 7.0)],
            Job::BatchView | Job::BatchCopy if is_most => vec![Goal::Ahead("lmdb", 7.0)],
            Job::Put if is_middle => vec![Goal::Ahead("lmdb", 6.0)],
            Job::Step => vec![Goal::AtMost(10.0)],
            Job::View | Job::Copy | Job::BatchView | Job::BatchCopy | Job::Chain | Job::Put => {
                Vec::new()
            }
        }
    }

    /// Loads all targets with the same records. Servers that are started stay beside us.
    fn load(&mut self, records: u64) -> Result<Vec<Box<dyn Subject>>> {
        pin(self.places.companion);
        let need = Need {
            records,
            value_bytes: usize::try_from(self.options.value_bytes).unwrap_or(usize::MAX),
            seed: self.options.seed,
            folder: self.options.dir.clone(),
            collapse: !self.options.no_collapse,
        };
        let mut subjects = Vec::new();
        for name in self.targets.iter().filter(|t| *t != "whitedb") {
            let step = self.display.begin(format!("{name}, loading {records} records"), records);
            let subject = open(name, &need, &mut |loaded| step.done(loaded))?;
            step.finish();
            if let Some(remark) = subject.remark() {
                let line = format!("{name}, {records} records: {remark}");
                self.display.say(&line);
                self.caveats.push(line);
            }
            subjects.push(subject);
        }
        Ok(subjects)
    }

    /// All rounds of a job.
    fn turns(
        &self,
        row: &mut Row,
        subjects: &mut [Box<dyn Subject>],
        job: Job,
        material: &Material,
    ) -> Result<()> {
        let rounds = self.options.rounds();
        let step =
            self.display.begin(format!("{}, {} records", row.title, row.records), rounds * 8);
        for round in 0..rounds {
            for subject in subjects.iter_mut().filter(|s| s.can(job)) {
                step.phase(subject.name());
                let ns = self.sample(
                    subject.as_mut(),
                    Turn { job, material, round, records: row.records },
                )?;
                row.add(subject.name(), ns);
            }
            step.done(8);
        }
        step.finish_run(&summary(row));
        Ok(())
    }

    /// One turn, warmed up.
    fn sample(&self, subject: &mut dyn Subject, turn: Turn<'_>) -> Result<f64> {
        let Turn { job, material, round, records } = turn;
        // A server's work is not this thread's.
        let clock = if subject.is_server() { Clock::Wall } else { self.options.clock };
        let start = round * self.options.ops() % records;
        let ops = self.options.ops().min(subject.ops_max());
        if job != Job::Step {
            let warm_up = WARM_UP.min(records).min(ops);
            subject.run(job, &material.work((start + ops) % records, warm_up, clock))?;
        }
        subject.run(job, &material.work(start, ops, clock))
    }

    fn bytes(&mut self, subjects: &mut [Box<dyn Subject>], records: u64) -> Result<()> {
        let mut row = Row::new(Group::Bytes, "memory in all, per record", records, Unit::Bytes);
        if self.options.value_bytes == 1024 {
            row.goals = vec![Goal::AtMost(1150.0)];
        }
        for subject in subjects {
            if let Some(bytes) = subject.bytes()? {
                row.add(subject.name(), sequence_average(bytes, records));
            }
        }
        self.rows.push(row);
        Ok(())
    }

    fn terms(&self, records: u64) -> Terms {
        Terms {
            records,
            ops: 0,
            value_bytes: self.options.value_bytes,
            cpu: Some(self.places.companion),
            seed: self.options.seed + 1,
        }
    }

    /// One turn while a process in `role` is at work on the same database.
    fn beside(&self, subject: &mut dyn Subject, role: Role, turn: Turn<'_>) -> Result<Option<f64>> {
        let Some(path) = subject.path().map(std::path::Path::to_owned) else { return Ok(None) };
        let companion = Companion::start(role, subject.name(), &path, &self.terms(turn.records))?;
        let ns = self.sample(subject, turn)?;
        companion.finish()?;
        Ok(Some(ns))
    }

    fn put_beside_a_reader(
        &mut self,
        subjects: &mut [Box<dyn Subject>],
        material: &Material,
        records: u64,
    ) -> Result<()> {
        let title = "put, beside a reader process";
        let mut row = Row::new(Group::Puts, title, records, Unit::Ns);
        row.goals = vec![Goal::Ahead("lmdb", 15.0)];
        let step = self.display.begin(title.to_owned(), self.options.rounds());
        for round in 0..self.options.rounds() {
            for subject in subjects.iter_mut() {
                let turn = Turn { job: Job::Put, material, round, records };
                if let Some(ns) = self.beside(subject.as_mut(), Role::Read, turn)? {
                    row.add(subject.name(), ns);
                }
            }
            step.done(1);
        }
        step.finish_run(&summary(&row));
        self.rows.push(row);
        Ok(())
    }

    /// Views alone, beside a process that writes the same records, and, to tell what only comes
    /// from sharing a processor's caches, beside one that writes as much memory of its own.
    fn slowed(
        &mut self,
        subjects: &mut [Box<dyn Subject>],
        material: &Material,
        records: u64,
    ) -> Result<()> {
        let of = |title: &str| Row::new(Group::Slowed, title, records, Unit::Times);
        let mut writer = of("view beside a writer process / alone");
        let mut elsewhere = of("view beside a writer of other memory / alone");
        writer.goals = vec![Goal::AtMost(1.3)];
        let step = self.display.begin(writer.title.clone(), self.options.rounds());
        for round in 0..self.options.rounds() {
            for subject in subjects.iter_mut() {
                let subject = subject.as_mut();
                if subject.path().is_none() {
                    continue;
                }
                let turn = Turn { job: Job::View, material, round, records };
                let alone = self.sample(subject, turn)?;
                for (row, role) in [(&mut writer, Role::Write), (&mut elsewhere, Role::Elsewhere)] {
                    if let Some(ns) = self.beside(subject, role, turn)? {
                        row.add(subject.name(), ns / alone);
                    }
                }
            }
            step.done(1);
        }
        step.finish_run(&summary(&writer));
        self.rows.extend([writer, elsewhere]);
        Ok(())
    }

    /// `WhiteDB`'s figures go into the rows that are there.
    fn whitedb(&mut self, records: u64) -> Result<()> {
        let mut runs = Vec::new();
        let reads = [Group::Reads, Group::Chain, Group::Scan];
        if reads.into_iter().any(|group| self.wants(group)) {
            runs = whitedb::reads(self.options, records, self.display)?;
        }
        if self.wants(Group::Puts) {
            runs.extend(whitedb::appends(self.options, records, self.display)?);
        }
        for run in runs {
            let title = match run.kind.name() {
                "view" => "keyed view",
                "copy" => "keyed copy",
                "chain" => "dependent chain of views",
                "step" => "step to the next record",
                _ => "put, alone",
            };
            let row = self.rows.iter_mut().find(|r| r.title == title && r.records == records);
            if let Some(row) = row {
                for ns in run.averages() {
                    row.add("whitedb", ns);
                }
            }
        }
        Ok(())
    }

    /// Ten processes that insert at the same time.
    fn writers(&mut self) -> Result<()> {
        let title = format!("{WRITERS} writer processes, wall time per write");
        let mut row = Row::new(Group::Writers, &title, WRITERS * WRITES, Unit::Ns);
        row.goals = vec![Goal::Ahead("whitedb", 40.0)];
        let words = "the same, processor time per write";
        let mut processor = Row::new(Group::Writers, words, WRITERS * WRITES, Unit::Ns);
        let step = self.display.begin(title, self.options.rounds());
        for _ in 0..self.options.rounds() {
            if self.has(OURS) {
                let [wall, used] = self.region_writers()?;
                row.add(OURS, wall);
                processor.add(OURS, used);
            }
            if self.has("whitedb") {
                let ns = whitedb::writers(self.options, WRITERS, WRITES, self.display)?;
                row.add("whitedb", ns);
            }
            step.done(1);
        }
        step.finish_run(&summary(&row));
        self.rows.extend([row, processor]);
        Ok(())
    }

    fn region_writers(&self) -> Result<[f64; 2]> {
        let keeper = Keeper::start(&self.options.dir, None, |_| Vec::new())?;
        let path = keeper.folder().join("region");
        let bytes_max = room(WRITERS * WRITES, self.options.value_bytes);
        // WhiteDB's segment has its pages before the writers begin, so ours has, too.
        let options = CreateOptions { bytes_max, populate: true, ..CreateOptions::default() };
        let region = Region::create(&path, &options)?;
        RegionStore::of(&region)?;
        let terms = Terms { ops: WRITES, cpu: None, ..self.terms(0) };
        writers(OURS, &path, WRITERS, &terms)
    }

    fn calls(&mut self) -> Result<()> {
        if !self.has(OURS) {
            return Ok(());
        }
        let need = Need {
            records: TRACED_RECORDS,
            value_bytes: 64,
            seed: self.options.seed,
            folder: self.options.dir.clone(),
            collapse: false,
        };
        let region = RegionLoaded::open(&need, &mut |_| ())?;
        let Some(path) = region.path() else { return Ok(()) };
        let folder = path.parent().unwrap_or(&self.options.dir);
        match calls::count(path, folder, TRACED_RECORDS, TRACED_READS) {
            Ok(counts) => {
                let title = format!("system calls of {TRACED_READS} more reads");
                let mut row = Row::new(Group::Calls, &title, TRACED_RECORDS, Unit::Count);
                row.goals = vec![Goal::AtMost(0.0)];
                row.add(OURS, sequence_average(counts.twice.abs_diff(counts.once), 1));
                self.rows.push(row);
                self.caveats.push(format!(
                    "system calls of a whole reader process (strace -f -c): {} with \
                     {TRACED_READS} reads, {} with twice as many",
                    counts.once, counts.twice
                ));
            }
            Err(e) => self.caveats.push(format!("system calls were not counted: {e}")),
        }
        Ok(())
    }

    fn listing(&mut self) {
        match listing::look() {
            Ok(listings) => {
                for seen in listings {
                    let title = format!("locked instructions, {}", seen.what);
                    let mut row = Row::new(Group::Listing, &title, 0, Unit::Count);
                    row.goals = vec![Goal::AtMost(0.0)];
                    row.add(OURS, sequence_average(seen.locked + seen.fences, 1));
                    self.rows.push(row);
                    self.caveats.push(format!(
                        "{} (objdump): {} instructions, {} locked, {} full fences; its {} rare \
                         branches out of line: {} locked, {} full fences",
                        seen.what,
                        seen.instructions,
                        seen.locked,
                        seen.fences,
                        seen.others,
                        seen.others_locked,
                        seen.others_fences
                    ));
                }
            }
            Err(e) => self.caveats.push(format!("locked instructions were not counted: {e}")),
        }
    }
}

/// A row in a few words.
fn summary(row: &Row) -> String {
    let text = |median: f64| match row.unit {
        Unit::Ns => latency_text(median),
        Unit::Times => format!("{median:.2} x"),
        Unit::Bytes | Unit::Count => format!("{median:.0}"),
    };
    let words: Vec<String> =
        row.cells.iter().map(|c| format!("{} {}", c.target, text(c.median()))).collect();
    words.join(", ")
}

//! What the measures of transactions share: arms that take turns, and a region of contexts.

use super::findings::{Row, Sheet, Unit};
use super::options::Options;
use crate::keeper::Keeper;
use crate::legacy::access::display::Display;
use crate::legacy::content::Source;
use crate::legacy::micro::work::{Material, Work, key_of};
use crate::legacy::place::Places;
use crate::machine::bytes_text;
use crate::stat::sequence_average;
use crate::table::{latency_text, rate_text};
use nearstate_model::{Error, Result};
use nearstate_store::{CreateOptions, Namespace, Region, Schema, Session};
use std::path::PathBuf;

/// Bytes of a context: 4,596 bits (paper 1, Table II).
pub const CONTEXT_BYTES: usize = 575;

/// Operations of an unmeasured turn before each measured one.
const WARM_UP: u64 = 20_000;

/// Room for what is replaced while somebody sits on a pin without running.
const HELD_BACK: u64 = 2 << 30;

/// What the measures share.
#[derive(Debug)]
pub struct Desk<'a> {
    /// The command line.
    pub options: &'a Options,
    /// Where threads run.
    pub places: Places,
    /// Progress.
    pub display: &'a Display,
    /// What is measured so far.
    pub rows: Vec<Row>,
    /// Tables of their own.
    pub sheets: Vec<Sheet>,
    /// What a reader has to know.
    pub caveats: Vec<String>,
}

/// A way to do it: its name, and what it does with a turn's keys. It answers how many operations
/// that was.
pub type Way<'a> = (&'static str, &'a mut dyn FnMut(&Work<'_>) -> Result<u64>);

impl Desk<'_> {
    /// All rounds of a row: in each, every arm has its turn, after an unmeasured one.
    ///
    /// # Errors
    /// What an arm said.
    pub fn turns(&mut self, mut row: Row, material: &Material, ways: &mut [Way<'_>]) -> Result<()> {
        let (rounds, ops) = (self.options.rounds(), self.options.ops());
        let clock = self.options.clock;
        let records = material.len();
        let step = self.display.begin(format!("{}, {} records", row.title, row.records), rounds);
        for round in 0..rounds {
            let start = round * ops % records.max(1);
            for (name, run) in ways.iter_mut() {
                let warm_up =
                    material.work((start + ops) % records.max(1), WARM_UP.min(ops), clock);
                run(&warm_up)?;
                let work = material.work(start, ops, clock);
                let begin_ns = clock.now_ns();
                let done = run(&work)?;
                let ns = sequence_average(clock.now_ns() - begin_ns, done);
                row.add(name, if row.unit == Unit::Rate { 1e9 / ns } else { ns });
            }
            step.done(1);
        }
        step.finish_run(&summary(&row));
        self.rows.push(row);
        Ok(())
    }

    /// A region with so much room in a folder of its own.
    ///
    /// # Errors
    /// What the file system or the region said.
    pub fn place(&self, bytes: u64) -> Result<Place> {
        let keeper = Keeper::start(&self.options.dir, None, |_| Vec::new())?;
        let path = keeper.folder().join("region");
        let options =
            CreateOptions { bytes_max: HELD_BACK.saturating_add(bytes), ..Default::default() };
        let region = Region::create(&path, &options)?;
        Ok(Place { region, path, _keeper: keeper })
    }

    /// A region of contexts.
    ///
    /// # Errors
    /// What the region said.
    pub fn contexts(&mut self, records: u64) -> Result<Contexts> {
        let place = self.place(records.saturating_mul(CONTEXT_BYTES as u64 * 2))?;
        let session = place.region.session()?;
        let namespace = session.namespace("ue-context", &Schema::default())?;
        let step = self.display.begin(format!("loading {records} contexts"), records);
        let mut source = Source::new(self.options.seed, 0, CONTEXT_BYTES);
        for record in 0..records {
            session.put(namespace, &key_of(record), source.value(record))?;
            if record % 1024 == 1023 {
                step.done(1024);
            }
        }
        step.finish();
        self.collapse(&place, &format!("{records} contexts"))?;
        Ok(Contexts { session, namespace, place })
    }

    /// Asks for 2 MiB pages, and notes what became of it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn collapse(&mut self, place: &Place, what: &str) -> Result<()> {
        let words = if self.options.no_collapse {
            "on 4 KiB pages (--no-collapse)".to_owned()
        } else {
            match place.region.collapse()? {
                0 => "the kernel gave no 2 MiB pages".to_owned(),
                bytes => format!("{} on 2 MiB pages after collapse()", bytes_text(bytes)),
            }
        };
        self.caveats.push(format!("{what}: {words}"));
        Ok(())
    }
}

/// A region of a measure; its file goes with it.
#[derive(Debug)]
pub struct Place {
    /// The region.
    pub region: Region,
    /// Its file.
    pub path: PathBuf,
    _keeper: Keeper,
}

impl Place {
    /// Ends the measure: nobody is attached any more, and every byte of the region is verified.
    ///
    /// # Errors
    /// `Damaged`, with what the check found.
    pub fn close_and_check(self) -> Result<()> {
        let Self { region, path, _keeper } = self;
        drop(region);
        let report = nearstate_store::check(&path)?;
        if report.is_clean() {
            Ok(())
        } else {
            Err(Error::Damaged { detail: report.faults.join("; ") })
        }
    }
}

/// A region with contexts under the keys of [`key_of`].
#[derive(Debug)]
pub struct Contexts {
    /// The way in.
    pub session: Session,
    /// Where they are.
    pub namespace: Namespace,
    /// The region.
    pub place: Place,
}

/// A record that must be there is not.
#[cold]
pub fn missing() -> Error {
    wrong("a record that was loaded is not there")
}

/// The region does not hold what it must.
#[cold]
pub fn wrong(detail: &str) -> Error {
    Error::Backend { detail: detail.to_owned() }
}

/// A row in a few words.
fn summary(row: &Row) -> String {
    let text = |median: f64| match row.unit {
        Unit::Ns => latency_text(median),
        Unit::Rate => format!("{}/s", rate_text(median)),
        Unit::Times => format!("{median:.2} x"),
        Unit::Count => format!("{median:.0}"),
    };
    let words: Vec<String> =
        row.arms.iter().map(|a| format!("{} {}", a.name, text(a.median()))).collect();
    words.join(", ")
}

//! Short, fixed workloads that reach every path of a write. A child runs one of them while it is
//! killed at a named point or after some instructions.

use std::path::Path;

use nearstate_store::{Error, Filter, Region, WhenFull};

use crate::content::{KeySpace, TortureKey};
use crate::error_context::ErrorContext as _;
use crate::journal::{self, WriteKind};
use crate::oracle::Oracle;
use crate::region_access::{create_region, open_session};
use crate::spawn::{ChildCommand, ChildRole, EnvSetting, was_killed};
use crate::stream_check::{self, STREAMED};
use crate::verify::{check_clean, compare};
use crate::writer::{JournaledWriter, KeySpaces, PlannedWrite};

/// A workload.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// Written first, by a process that is not killed.
    before: FillScript,
    /// Written by the child.
    work: FillScript,
    /// The region is filled completely first.
    pub(crate) is_full: bool,
    /// The records are streamed: their changes are in the log.
    is_streamed: bool,
    /// The records are watched, so that each change is a transaction.
    is_watched: bool,
    /// The prefixes of the points at which it is killed; empty: at all points.
    #[cfg(feature = "crash-points")]
    prefixes: &'static [&'static str],
    event: ScenarioEvent,
}

/// What happens during a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScenarioEvent {
    Nothing,
    /// Another session holds a view during the first three quarters of the work.
    StalledReader,
    /// Free memory is given back to the host before the work, and pages are got ahead of it.
    Release,
}

#[cfg(feature = "crash-points")]
impl Scenario {
    /// True if the scenario is killed at a point. One that takes long is only killed at its own.
    pub(crate) fn has_point(&self, point: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| point.starts_with(prefix))
    }
}

/// Writes; those in one list are one transaction.
#[derive(Debug, Default)]
pub(crate) struct WriteScript(pub(crate) Vec<Vec<PlannedWrite>>);

impl WriteScript {
    pub(crate) fn each(
        &mut self,
        op: WriteKind,
        space: KeySpace,
        numbers: std::ops::Range<u32>,
        len: u32,
    ) {
        for number in numbers {
            let key = TortureKey { space, writer: 0, number };
            self.0.push(vec![PlannedWrite { op, key, len, mask: 0 }]);
        }
    }

    pub(crate) fn patch(&mut self, number: u32, mask: u32) {
        let key = TortureKey { space: KeySpace::Blocks, writer: 0, number };
        self.0.push(vec![PlannedWrite { op: WriteKind::Patch, key, len: 0, mask }]);
    }

    /// Adds the writes of `fill` as one transaction.
    pub(crate) fn together(&mut self, fill: impl FnOnce(&mut Self)) {
        let mut parts = Self::default();
        fill(&mut parts);
        self.0.push(parts.0.into_iter().flatten().collect());
    }
}

/// A mask that sets all six blocks, and masks that set or delete some.
const ALL: u32 = 0b01_01_01_01_01_01;
pub(crate) const SET_SECOND: u32 = 0b00_00_00_00_01_00;
const SET_FIRST: u32 = 0b00_00_00_00_00_01;
const TAKE_FIRST: u32 = 0b00_00_00_01_00_10;

/// Pairs of records that fill what large ones leave of the region.
const SCATTERED: u32 = 1600;

/// Pairs of records of 1,500 bytes, more than that memory has room for.
const PAIRS: u32 = 2600;

/// Pairs of records that fill a chunk.
const HOLES: u32 = 1100;

type FillScript = fn(&mut WriteScript);

const fn scenario(name: &'static str, before: FillScript, work: FillScript) -> Scenario {
    Scenario {
        name,
        before,
        work,
        is_full: false,
        is_streamed: false,
        is_watched: false,
        event: ScenarioEvent::Nothing,
        #[cfg(feature = "crash-points")]
        prefixes: &[],
    }
}

/// All scenarios. Together they reach every point.
pub const SCENARIOS: &[Scenario] = &[
    scenario(
        "insert",
        |s| s.each(WriteKind::Put, KeySpace::Own, 0..40, 100),
        |s| s.each(WriteKind::PutAbsent, KeySpace::Own, 40..60, 300),
    ),
    scenario(
        "replace",
        |s| s.each(WriteKind::Put, KeySpace::Own, 0..20, 700),
        |s| {
            for len in [700, 30, 5000] {
                s.each(WriteKind::PutVersion, KeySpace::Own, 0..6, len);
            }
            s.each(WriteKind::PutStale, KeySpace::Own, 0..2, 700);
        },
    ),
    scenario(
        "delete",
        |s| s.each(WriteKind::Put, KeySpace::Own, 0..40, 200),
        |s| {
            s.each(WriteKind::DeleteVersion, KeySpace::Own, 0..10, 0);
            s.each(WriteKind::Put, KeySpace::Own, 0..5, 200);
        },
    ),
    scenario(
        "patch",
        |s| {
            for number in 0..4 {
                s.patch(number, ALL);
            }
        },
        |s| {
            s.patch(0, SET_SECOND);
            s.patch(1, SET_FIRST);
            s.patch(2, TAKE_FIRST);
            s.patch(5, ALL);
            s.each(WriteKind::Delete, KeySpace::Blocks, 3..4, 0);
        },
    ),
    scenario("grow", |_| {}, |s| s.each(WriteKind::Put, KeySpace::Grow, 0..400, 20)),
    scenario(
        "free",
        |s| s.each(WriteKind::Put, KeySpace::Own, 0..40, 60_000),
        |s| {
            s.each(WriteKind::Delete, KeySpace::Own, 0..36, 0);
            s.each(WriteKind::Put, KeySpace::Own, 0..36, 60_000);
        },
    ),
    Scenario {
        event: ScenarioEvent::Release,
        ..scenario(
            "released",
            |s| {
                // The process that deletes them ends, so that their chunks are free.
                s.each(WriteKind::Put, KeySpace::Own, 0..40, 60_000);
                s.each(WriteKind::Delete, KeySpace::Own, 0..40, 0);
            },
            |s| s.each(WriteKind::Put, KeySpace::Own, 0..10, 60_000),
        )
    },
    Scenario {
        event: ScenarioEvent::StalledReader,
        ..scenario(
            "stalled",
            |s| s.each(WriteKind::Put, KeySpace::Own, 0..8, 60_000),
            |s| {
                for len in [60_000, 61_000, 60_000, 62_000, 60_000, 61_000, 60_000, 62_000] {
                    s.each(WriteKind::Put, KeySpace::Own, 0..8, len);
                }
            },
        )
    },
    scenario(
        "chunk",
        |_| {},
        |s| {
            s.each(WriteKind::Put, KeySpace::Own, 0..8, 90_000);
            s.each(WriteKind::Put, KeySpace::Own, 8..40, 12_000);
        },
    ),
    scenario(
        "holes",
        |s| {
            // Every second cell of the first chunk is freed.
            for number in 0..HOLES {
                s.each(WriteKind::Put, KeySpace::Own, number..number + 1, 60);
                s.each(WriteKind::Put, KeySpace::Grow, number..number + 1, 60);
            }
            s.each(WriteKind::Delete, KeySpace::Own, 0..HOLES, 0);
        },
        |s| {
            s.each(WriteKind::Put, KeySpace::Own, 0..60, 60);
            // Long chains of the index lose their lines.
            s.each(WriteKind::Delete, KeySpace::Grow, 0..HOLES, 0);
        },
    ),
    scenario("transaction", before_transactions, transactions),
    scenario(
        "transaction-grow",
        |_| {},
        |s| {
            for first in 0..16 {
                s.together(|s| {
                    s.each(WriteKind::Put, KeySpace::Grow, 20 * first..20 * first + 20, 20);
                    s.each(WriteKind::Put, KeySpace::Own, first..first + 1, 50);
                });
            }
        },
    ),
    Scenario {
        is_streamed: true,
        #[cfg(feature = "crash-points")]
        prefixes: &["txn.", "log.", "hold.", "line."],
        ..scenario("logged", before_transactions, |s| {
            // Single records: inserted, replaced and deleted.
            s.each(WriteKind::Put, KeySpace::Own, 20..24, 300);
            s.each(WriteKind::PutVersion, KeySpace::Own, 20..22, 5000);
            s.each(WriteKind::PutStale, KeySpace::Own, 22..23, 700);
            s.each(WriteKind::Delete, KeySpace::Own, 20..22, 0);
        })
    },
    Scenario {
        is_streamed: true,
        is_watched: true,
        ..scenario("streamed", before_transactions, |s| {
            s.each(WriteKind::Put, KeySpace::Own, 20..22, 300);
            transactions(s);
            s.each(WriteKind::Delete, KeySpace::Own, 20..21, 0);
        })
    },
    Scenario {
        is_full: true,
        #[cfg(feature = "crash-points")]
        prefixes: &["evacuate.", "lines."],
        ..scenario(
            "scattered",
            |s| {
                s.each(WriteKind::Put, KeySpace::Hot, 0..14, 4 << 20);
                // Every second record between small ones is deleted.
                for number in 0..SCATTERED {
                    s.each(WriteKind::Put, KeySpace::Own, 1000 + number..1001 + number, 2000);
                    s.each(WriteKind::Put, KeySpace::Grow, number..number + 1, 2000);
                    if number % 8 == 0 {
                        s.patch(number, ALL);
                    }
                }
                s.each(WriteKind::Delete, KeySpace::Own, 1000..1000 + SCATTERED, 0);
            },
            |s| {
                s.each(WriteKind::Put, KeySpace::Own, 0..30, 60_000);
            },
        )
    },
    Scenario {
        is_full: true,
        #[cfg(feature = "crash-points")]
        prefixes: &["open.", "join.", "pop.", "append.", "free.", "chunk.", "publish."],
        ..scenario(
            "kept",
            |s| {
                s.each(WriteKind::Put, KeySpace::Hot, 0..14, 4 << 20);
                // Pairs fill what is left, and then the chunks that have room for one record more.
                for number in 0..PAIRS {
                    s.each(WriteKind::Put, KeySpace::Own, 1000 + number..1001 + number, 1500);
                    s.each(WriteKind::Put, KeySpace::Grow, number..number + 1, 1500);
                }
                s.each(WriteKind::Put, KeySpace::Hot, 1000..1100, 60);
            },
            |s| {
                // Fewer than after which a session frees what it deletes.
                s.each(WriteKind::Delete, KeySpace::Own, 1000..1040, 0);
                // The free cells between the others are split for some, and for some the record
                // behind one is moved into another one.
                s.each(WriteKind::Put, KeySpace::Own, 0..6, 200);
                s.each(WriteKind::Put, KeySpace::Own, 6..12, 2900);
                s.each(WriteKind::Put, KeySpace::Own, 12..16, 600);
            },
        )
    },
    Scenario {
        is_full: true,
        ..scenario(
            "full",
            |s| {
                s.each(WriteKind::Put, KeySpace::Own, 0..50, 60_000);
                s.each(WriteKind::Put, KeySpace::Hot, 0..15, 4 << 20);
                s.each(WriteKind::Put, KeySpace::Hot, 15..400, 60_000);
                s.each(WriteKind::Delete, KeySpace::Own, 0..40, 0);
            },
            |s| {
                s.each(WriteKind::Put, KeySpace::Own, 100..103, 500);
                s.each(WriteKind::Put, KeySpace::Own, 103..140, 20_000);
            },
        )
    },
];

/// The records that [`transactions`] replaces, deletes and patches.
fn before_transactions(s: &mut WriteScript) {
    s.each(WriteKind::Put, KeySpace::Own, 0..30, 300);
    for number in 0..3 {
        s.patch(number, ALL);
    }
    s.together(|s| s.each(WriteKind::Put, KeySpace::Pair, 0..2, 100));
}

/// Inserts, replacements, deletions and patches in transactions.
pub(crate) fn transactions(s: &mut WriteScript) {
    s.together(|s| {
        s.each(WriteKind::Put, KeySpace::Own, 0..2, 300);
        s.each(WriteKind::Put, KeySpace::Own, 40..42, 700);
        s.each(WriteKind::Delete, KeySpace::Own, 2..4, 0);
    });
    s.together(|s| s.each(WriteKind::Put, KeySpace::Pair, 0..2, 200));
    s.together(|s| {
        s.patch(0, SET_SECOND);
        s.patch(1, TAKE_FIRST);
        s.patch(5, ALL);
        s.each(WriteKind::Delete, KeySpace::Blocks, 2..3, 0);
        s.each(WriteKind::Put, KeySpace::Own, 4..5, 5000);
    });
    s.together(|s| {
        s.each(WriteKind::Put, KeySpace::Hot, 0..2, 100);
        s.each(WriteKind::Raise, KeySpace::Count, 0..2, 0);
        s.each(WriteKind::Delete, KeySpace::Own, 40..41, 0);
    });
    s.together(|s| s.each(WriteKind::Delete, KeySpace::Pair, 0..2, 0));
}

/// As "free", with values that take fewer instructions to write. Used by single steps only.
const STEPPED: &[Scenario] = &[scenario(
    "free-4k",
    |s| s.each(WriteKind::Put, KeySpace::Own, 0..400, 4000),
    |s| s.each(WriteKind::Put, KeySpace::Own, 380..400, 4000),
)];

/// The scenario of this name.
pub fn named(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().chain(STEPPED).find(|scenario| scenario.name == name)
}

pub(crate) const WRITER: u16 = 0;

/// Creates a region with the records that a scenario needs, and returns the oracle's knowledge.
pub fn prepare(folder: &Path, scenario: &Scenario) -> Result<Oracle, String> {
    let path = create_region(folder)?;
    let mut oracle = Oracle::default();
    let mut script = WriteScript::default();
    (scenario.before)(&mut script);
    work(folder, &mut oracle, 0, script, scenario.is_full)?;
    if scenario.is_streamed {
        stream(&path, scenario.is_watched).context("stream")?;
    }
    Ok(oracle)
}

/// From now on, each change of these records is an event of the commit stream, and of a watch.
fn stream(path: &Path, is_watched: bool) -> Result<(), String> {
    let context = |e: Error| e.to_string();
    let session = open_session(path)?;
    let spaces = KeySpaces::open(&session, 0)?;
    for space in [KeySpace::Own, KeySpace::Pair, KeySpace::Blocks] {
        if is_watched {
            drop(session.watch(spaces.of(space), Filter::Namespace).map_err(context)?);
        }
    }
    STREAMED
        .into_iter()
        .try_for_each(|space| session.stream(spaces.of(space), WhenFull::LoseOldest))
        .map_err(context)
}

/// The records of scenario "streamed" that exist before the commit stream begins.
fn is_before_stream(key: TortureKey) -> bool {
    match key.space {
        KeySpace::Own => key.number < 30,
        KeySpace::Pair => key.number < 2,
        KeySpace::Blocks | KeySpace::Grow | KeySpace::Hot | KeySpace::Count => false,
    }
}

/// Executes a script in this process and reports it to the oracle.
pub(crate) fn work(
    folder: &Path,
    oracle: &mut Oracle,
    base: u64,
    script: WriteScript,
    is_full: bool,
) -> Result<(), String> {
    let file = journal::path_of(folder, WRITER);
    journal::begin(&file, base).context("journal")?;
    // A process that writes nothing does not open a namespace either: the child does.
    if !script.0.is_empty() {
        let mut writer = JournaledWriter::open(folder, WRITER, 0)?;
        writer.may_be_full = is_full;
        for orders in script.0 {
            writer.work(&orders)?;
        }
    }
    report_journal(folder, oracle)
}

/// Reports the journal to the oracle and starts a new journal.
pub(crate) fn report_journal(folder: &Path, oracle: &mut Oracle) -> Result<(), String> {
    let file = journal::path_of(folder, WRITER);
    let entries = journal::read(&file).context("journal")?;
    oracle.replay(WRITER, &entries)?;
    let base = journal::next_base(&entries);
    journal::begin(&file, base).context("journal")
}

/// A child's role: executes a scenario.
pub fn play(folder: &Path, name: &str) -> Result<(), String> {
    let scenario = named(name).ok_or_else(|| format!("unknown scenario {name:?}"))?;
    let mut writer = JournaledWriter::open(folder, WRITER, 0)?;
    writer.may_be_full = scenario.is_full;
    let mut script = WriteScript::default();
    (scenario.work)(&mut script);
    if scenario.event == ScenarioEvent::StalledReader {
        let last = script.0.split_off(script.0.len() * 3 / 4);
        let reader = open_session(&folder.join("region"))?;
        let spaces = KeySpaces::open(&reader, 0)?;
        let key = TortureKey { space: KeySpace::Own, writer: WRITER, number: 0 };
        let view = reader.get(spaces.of(key.space), &key.bytes()).map_err(|e| e.to_string())?;
        for orders in std::mem::replace(&mut script.0, last) {
            writer.work(&orders)?;
        }
        drop(view);
    }
    if scenario.event == ScenarioEvent::Release {
        writer.release_free_memory()?;
    }
    for orders in script.0 {
        writer.work(&orders)?;
    }
    Ok(())
}

/// A child's role: puts the key with this number, unknown to any oracle.
pub fn put_one(folder: &Path, number: u16) -> Result<(), String> {
    let key = TortureKey { space: KeySpace::Own, writer: WRITER, number: u32::from(number) };
    let session = open_session(&folder.join("region"))?;
    let spaces = KeySpaces::open(&session, 0)?;
    let put = session.put(spaces.of(key.space), &key.bytes(), &[7; 500]);
    put.map(drop).context("put")
}

/// Runs a child with a role, a number and a word. True if it was killed as planned; false if it has
/// completed its work without reaching the point often enough.
pub fn child(
    starter: &ChildCommand,
    folder: &Path,
    words: (&str, usize, &str),
    crash_at: Option<&str>,
) -> Result<bool, String> {
    let settings: Vec<EnvSetting<'_>> =
        crash_at.iter().map(|plan| ("NEARSTATE_CRASH_AT", *plan)).collect();
    child_with(starter, folder, words, &settings)
}

/// As [`child`], with environment variables.
pub(crate) fn child_with(
    starter: &ChildCommand,
    folder: &Path,
    (role, number, more): (&str, usize, &str),
    settings: &[EnvSetting<'_>],
) -> Result<bool, String> {
    let number = number as u64;
    let role = ChildRole { role, number, more, settings, ..ChildRole::default() };
    let mut child = starter.start(folder, &role)?;
    let status = child.wait()?;
    if !was_killed(status) && !status.success() {
        return Err(child.exit_error(status));
    }
    Ok(was_killed(status))
}

/// Verifies the region after a kill, continues to write, and verifies it again.
pub fn verify(folder: &Path, scenario: &Scenario, oracle: &mut Oracle) -> Result<(), String> {
    report_journal(folder, oracle)?;
    check_all(folder, scenario, oracle).context("after recovery")?;
    continue_writing(folder, scenario, oracle).context("continuing")?;
    check_all(folder, scenario, oracle).context("after continuing")
}

fn check_all(folder: &Path, scenario: &Scenario, oracle: &mut Oracle) -> Result<(), String> {
    let path = folder.join("region");
    check_clean(&path)?;
    compare(&path, 0, oracle)?;
    if scenario.is_streamed {
        stream_check::compare(&path, is_before_stream)?;
    }
    Ok(())
}

/// Writes some more records of every kind, including the keys of the scenario.
fn continue_writing(folder: &Path, scenario: &Scenario, oracle: &mut Oracle) -> Result<(), String> {
    let mut script = WriteScript::default();
    (scenario.work)(&mut script);
    // Of many writes some; of few, which are transactions, all.
    let step = if script.0.len() < 20 { 1 } else { 7 };
    let mut script = WriteScript(script.0.into_iter().step_by(step).take(12).collect());
    for order in script.0.iter_mut().flatten() {
        order.op = match order.key.space {
            KeySpace::Blocks => WriteKind::Patch,
            KeySpace::Count => WriteKind::Raise,
            KeySpace::Own | KeySpace::Grow | KeySpace::Hot | KeySpace::Pair => WriteKind::Put,
        };
        order.mask = SET_SECOND;
        order.len = order.len.clamp(40, 1000);
    }
    script.each(WriteKind::Put, KeySpace::Own, 1000..1012, 64);
    script.each(WriteKind::Delete, KeySpace::Own, 1000..1004, 0);
    let file = journal::path_of(folder, WRITER);
    let entries = journal::read(&file).context("journal")?;
    let base = journal::next_base(&entries);
    work(folder, oracle, base, script, scenario.is_full)
}

/// A child's role: attaches, which recovers dead sessions, and detaches.
pub fn attach(folder: &Path) -> Result<(), String> {
    drop(open_session(&folder.join("region"))?);
    Ok(())
}

/// A child's role: drops the region.
pub fn remove(folder: &Path) -> Result<(), String> {
    Region::remove(&folder.join("region")).map(drop).context("drop")
}

//! The offline repair: a child repairs a damaged region and is killed at every store. The next
//! repair completes it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nearstate_store::{AttachOptions, Schema, repair_with};
use serde::Serialize;

use crate::error_context::ErrorContext as _;
use crate::limits;
use crate::region_access::{create_folder, open_session};
use crate::report_lines::{HAS_POINTS, table};
use crate::rng::seeded;
use crate::scenario::child;
use crate::spawn::ChildCommand;
use crate::verify::check_clean;

const CATALOG: u64 = 0x40_0000;
const ARENAS: u64 = 0x440_0000;

/// A file that is damaged.
struct DamagedFile(std::fs::File);

impl DamagedFile {
    fn word(&self, at: u64) -> Result<u64, String> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at).map_err(|e| format!("read {at:#x}: {e}"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.0.write_all_at(bytes, at).map_err(|e| format!("write {at:#x}: {e}"))
    }
}

/// Creates a region with records in two namespaces, one of them with limits. Their indexes, the
/// usage, the memory of a session and the chunks' words are damaged.
pub fn prepare(folder: &Path) -> Result<(), String> {
    limits::prepare(folder)?;
    limits::limit_first(folder)?;
    let file = OpenOptions::new().read(true).write(true).open(folder.join("region"));
    let file = DamagedFile(file.context("open")?);
    for entry in [CATALOG, CATALOG + 1024] {
        let buckets = (file.word(entry + 512)? >> 16) * 64 + 64;
        for bucket in 0..8 {
            // Records to which nothing leads, and entries with a flipped bit.
            let at = buckets + 64 * bucket;
            if bucket % 2 == 0 {
                file.write(at + 8, &[0; 56])?;
            } else {
                let first = file.word(at + 8)?;
                file.write(at + 8, &(first ^ 1 << 20).to_le_bytes())?;
            }
        }
    }
    let usage = file.word(CATALOG + 896)?;
    file.write(CATALOG + 896, &(usage ^ 1 << 9).to_le_bytes())?;
    // The queues of a session. With an open undo record no record without an entry is restored.
    file.write(ARENAS + 256, &[0x77; 900])
}

/// Parameters of a run of [`kills`].
#[derive(Clone, Debug)]
pub struct RepairKillOptions {
    pub kills: u64,
    /// A folder of its own. It is created, and removed after a run without violations.
    pub folder: PathBuf,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Results of a run of [`kills`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RepairKillTotals {
    pub seed: u64,
    /// Repairs that were killed.
    pub kills: u64,
    /// Stores of a whole repair.
    pub stores: u64,
    /// Damaged regions, each repaired to its end and verified.
    pub regions: u64,
    pub seconds: f64,
}

impl RepairKillTotals {
    pub fn table(&self) -> String {
        table([
            ("seed", self.seed.to_string()),
            ("repairs killed", self.kills.to_string()),
            ("stores of a repair", self.stores.to_string()),
            ("regions verified", self.regions.to_string()),
            ("seconds", format!("{:.1}", self.seconds)),
        ])
    }
}

/// Kills repairs at random stores, up to four in a row, and lets the next one complete. Needs the
/// crash points.
pub fn kills(
    options: &RepairKillOptions,
    starter: &ChildCommand,
    tick: &mut dyn FnMut(&RepairKillTotals),
) -> Result<RepairKillTotals, String> {
    if !HAS_POINTS {
        return Err("crash points are not built in: cargo build --features crash-points".to_owned());
    }
    let folder = &options.folder;
    create_folder(folder)?;
    let begin = Instant::now();
    let mut rng = seeded(&[options.seed, 2 << 32]);
    let mut totals = RepairKillTotals { seed: options.seed, ..RepairKillTotals::default() };
    let is_killed = |store: u64| -> Result<bool, String> {
        let plan = format!("repair.stored:{store}");
        child(starter, folder, ("repair", 0, ""), Some(&plan))
    };
    while totals.kills < options.kills {
        prepare(folder)?;
        let mut stores = Vec::new();
        for _ in 0..rng.u32(1..=4) {
            // The stores of a whole repair are known as far as kills have reached.
            let store = rng.u64(1..=totals.stores + totals.stores / 8 + 16);
            stores.push(store);
            if !is_killed(store)? {
                break;
            }
            totals.kills += 1;
            totals.stores = totals.stores.max(store);
        }
        verify(folder).map_err(|error| {
            format!("repairs killed at the stores {stores:?}, seed {}: {error}", options.seed)
        })?;
        totals.regions += 1;
        totals.seconds = begin.elapsed().as_secs_f64();
        tick(&totals);
    }
    std::fs::remove_dir_all(folder).context("cannot clean up")?;
    Ok(totals)
}

/// A child's role.
pub fn play(folder: &Path) -> Result<(), String> {
    let report = repair_with(&folder.join("region"), &AttachOptions::default());
    report.map(drop).map_err(|error| error.to_string())
}

/// Repairs the region, and verifies that every record is there.
pub fn verify(folder: &Path) -> Result<(), String> {
    let path = folder.join("region");
    let report = repair_with(&path, &AttachOptions::default()).context("repair")?;
    let lost: Vec<&String> =
        report.lost.iter().filter(|text| !text.contains("member slot")).collect();
    if !lost.is_empty() {
        return Err(format!("the repair has lost {lost:?}"));
    }
    check_clean(&path)?;
    let session = open_session(&path)?;
    for name in limits::NAMES {
        let schema = Schema { kind: nearstate_store::Kind::Mixed, ..Schema::default() };
        let namespace = session.namespace(name, &schema).context(name)?;
        for number in 0..limits::RECORDS {
            let view = session.get(namespace, &number.to_be_bytes()).context("get")?;
            if view.is_none_or(|view| view.bytes() != vec![1; number as usize]) {
                return Err(format!("record {number} of {name} is lost"));
            }
        }
    }
    Ok(())
}

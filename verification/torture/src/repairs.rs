//! The offline repair: a child repairs a damaged region and is killed at every store. The next
//! repair completes it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nearstate_store::{AttachOptions, Schema, repair_with};

use crate::limits;
use crate::region_access::open_session;
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
///
/// # Errors
/// The store's error.
pub fn prepare(folder: &Path) -> Result<(), String> {
    limits::prepare(folder)?;
    limits::limit_first(folder)?;
    let file = OpenOptions::new().read(true).write(true).open(folder.join("region"));
    let file = DamagedFile(file.map_err(|e| format!("open: {e}"))?);
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

/// A child's role.
///
/// # Errors
/// The repair's error.
pub fn play(folder: &Path) -> Result<(), String> {
    let report = repair_with(&folder.join("region"), &AttachOptions::default());
    report.map(drop).map_err(|error| error.to_string())
}

/// Repairs the region, and verifies that every record is there.
///
/// # Errors
/// The violation.
pub fn verify(folder: &Path) -> Result<(), String> {
    let path = folder.join("region");
    let report =
        repair_with(&path, &AttachOptions::default()).map_err(|e| format!("repair: {e}"))?;
    let lost: Vec<&String> =
        report.lost.iter().filter(|text| !text.contains("member slot")).collect();
    if !lost.is_empty() {
        return Err(format!("the repair has lost {lost:?}"));
    }
    check_clean(&path)?;
    let session = open_session(&path)?;
    for name in limits::NAMES {
        let schema = Schema { kind: nearstate_store::Kind::Mixed, ..Schema::default() };
        let namespace = session.namespace(name, &schema).map_err(|e| format!("{name}: {e}"))?;
        for number in 0..limits::RECORDS {
            let view =
                session.get(namespace, &number.to_be_bytes()).map_err(|e| format!("get: {e}"))?;
            if view.is_none_or(|view| view.bytes() != vec![1; number as usize]) {
                return Err(format!("record {number} of {name} is lost"));
            }
        }
    }
    Ok(())
}

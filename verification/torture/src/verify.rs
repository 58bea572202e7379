//! Verification by another process: the offline check, and the comparison of every record with the
//! oracle.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::{CheckReport, HeapUsage, Region, Session, check};

use crate::content::{KeySpace, TortureKey};
use crate::error_context::ErrorContext as _;
use crate::oracle::{ObservedRecord, Oracle, observe};
use crate::region_access::open_session;
use crate::writer::KeySpaces;

/// Runs the offline check. The bytes that it reached, and the bytes that are free according to the
/// bitmaps and queues, must be all bytes.
pub fn check_clean(path: &Path) -> Result<CheckReport, String> {
    let report = check(path).context("check")?;
    if !report.is_clean() || report.bytes_leaked != 0 {
        return Err(format!(
            "check: {} faults, {} bytes leaked: {}",
            report.faults_count,
            report.bytes_leaked,
            report.faults.join("; ")
        ));
    }
    let heap = heap_usage(path)?;
    let free = heap.free + heap.retired + heap.kept;
    let live = report.bytes_live + report.bytes_index;
    if live + free != heap.total {
        return Err(format!("{live} bytes in use and {free} free bytes are not all: {heap:?}"));
    }
    Ok(report)
}

/// What the bitmaps and the queues of the heap say. No session is open.
pub(crate) fn heap_usage(path: &Path) -> Result<HeapUsage, String> {
    let region = Region::attach(path).context("attach")?;
    Ok(region.inspect().context("inspect")?.heap)
}

/// Reads every record of every space.
pub fn collect(
    session: &Session,
    spaces: &KeySpaces,
) -> Result<BTreeMap<TortureKey, ObservedRecord>, String> {
    let mut records = BTreeMap::new();
    for space in KeySpace::ALL {
        let context = |e| format!("scan of {space:?}: {e}");
        let mut scan = session.scan(spaces.of(space)).map_err(context)?;
        while let Some(view) = scan.next().map_err(context)? {
            let key = TortureKey::parse(view.key())
                .filter(|key| key.space == space)
                .ok_or_else(|| format!("{space:?}: the key {:x?} was never written", view.key()))?;
            if records.insert(key, observe(key, &view)?).is_some() {
                return Err(format!("{key:?}: returned twice by one scan"));
            }
        }
    }
    Ok(records)
}

/// Attaches (which recovers dead sessions), and compares all records with the oracle, by scan and
/// by key.
pub fn compare(path: &Path, round: u64, oracle: &mut Oracle) -> Result<(), String> {
    let session = open_session(path)?;
    let spaces = KeySpaces::open(&session, round)?;
    let records = collect(&session, &spaces)?;
    oracle.compare(&records)?;
    for (key, record) in &records {
        let view = session
            .get(spaces.of(key.space), &key.bytes())
            .map_err(|e| format!("{key:?}: get: {e}"))?;
        if view.map(|view| view.version()) != Some(record.version) {
            return Err(format!("{key:?}: returned by the scan, but not records by its key"));
        }
    }
    Ok(())
}

//! Verification by another process: the offline check, and the comparison of every record with the
//! oracle.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::{CheckReport, Region, Session, check};

use crate::content::{KeySpace, RecordKey};
use crate::oracle::{ObservedRecord, Oracle, observe};
use crate::writer::KeySpaces;

/// Runs the offline check.
///
/// # Errors
/// The faults that it found.
pub fn check_clean(path: &Path) -> Result<CheckReport, String> {
    let report = check(path).map_err(|e| format!("check: {e}"))?;
    if !report.is_clean() || report.bytes_leaked != 0 {
        return Err(format!(
            "check: {} faults, {} bytes leaked: {}",
            report.faults_count,
            report.bytes_leaked,
            report.faults.join("; ")
        ));
    }
    Ok(report)
}

/// Reads every record of every space.
///
/// # Errors
/// What is torn.
pub fn collect(
    session: &Session,
    spaces: &KeySpaces,
) -> Result<BTreeMap<RecordKey, ObservedRecord>, String> {
    let mut found = BTreeMap::new();
    for space in KeySpace::ALL {
        let words = |e| format!("scan of {space:?}: {e}");
        let mut scan = session.scan(spaces.of(space)).map_err(words)?;
        while let Some(view) = scan.next().map_err(words)? {
            let key = RecordKey::parse(view.key())
                .filter(|key| key.space == space)
                .ok_or_else(|| format!("{space:?}: nobody wrote the key {:x?}", view.key()))?;
            if found.insert(key, observe(key, &view)?).is_some() {
                return Err(format!("{key:?}: met twice in one walk"));
            }
        }
    }
    Ok(found)
}

/// Attaches (which recovers dead sessions), and compares all records with the oracle, by scan and
/// by key.
///
/// # Errors
/// What differs.
pub fn compare(path: &Path, round: u64, oracle: &mut Oracle) -> Result<(), String> {
    let region = Region::attach(path).map_err(|e| format!("attach: {e}"))?;
    let session = region.session().map_err(|e| format!("session: {e}"))?;
    let spaces = KeySpaces::open(&session, round)?;
    let found = collect(&session, &spaces)?;
    oracle.compare(&found)?;
    for (key, there) in &found {
        let view = session.get(spaces.of(key.space), &key.bytes());
        let view = view.map_err(|e| format!("{key:?}: get: {e}"))?;
        if view.map(|view| view.version()) != Some(there.version) {
            return Err(format!("{key:?}: met in the walk, and not found by its key"));
        }
    }
    Ok(())
}

//! Kills in a log that loses its oldest entries: a child writes more than the log may hold, reads
//! it, and acknowledges what it has read and lost.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::{
    Error, Namespace, Region, Schema, Session, StreamItem, StreamedChange, WhenFull,
};

use crate::error_context::ErrorContext as _;
use crate::points::{CrashTest, ReachedPoints, points_with};
use crate::region_access::{create_region, open_session};
use crate::verify::check_clean;

const NAME: &str = "lossy";
const KEYS: u64 = 3;
/// Replaced values of a round: more than a log of a small region may hold, which is 4 MiB.
const ROUND: u64 = 24;
const VALUE_BYTES: usize = 300_000;

fn open(session: &Session) -> Result<Namespace, Error> {
    session.namespace(NAME, &Schema::default())
}

/// The point of a recovery that aborts a transaction with a position.
const GIVEN_BACK: &str = "log.given_back";

/// A child's role: three rounds of writes, each followed by a reader that acknowledges.
pub(crate) fn lose(folder: &Path) -> Result<(), String> {
    let context = |e: Error| format!("log: {e}");
    let session = open_session(&folder.join("region"))?;
    let ns = open(&session).map_err(context)?;
    let mut value = vec![7; VALUE_BYTES];
    for round in 0..3 {
        for number in 0..ROUND {
            let [low, ..] = (round * ROUND + number).to_le_bytes();
            value.fill(low);
            let key = (number % KEYS).to_le_bytes();
            session.put(ns, &key, &value).map_err(context)?;
        }
        let mut stream = session.commit_stream().map_err(context)?;
        while stream.next().map_err(context)?.is_some() {}
        stream.acknowledge().map_err(context)?;
    }
    Ok(())
}

/// Kills a child at each point of the log, and lets the next one continue.
pub fn losses(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    for point in points_with(&["log.", "hold.", "aside.released"]) {
        for occurrence in [1, 2, 30] {
            let plan = format!("{point}:{occurrence}");
            killed_loss(test, point, &plan, &mut reached)
                .map_err(|e| format!("log killed at {plan}: {e}"))?;
        }
    }
    Ok(reached)
}

fn killed_loss(
    test: &CrashTest<'_>,
    point: &'static str,
    plan: &str,
    reached: &mut ReachedPoints,
) -> Result<(), String> {
    let path = create_region(test.folder)?;
    begin(&path).context("begin")?;
    if reached.count(point, test.is_killed("lose", plan)?) {
        // The next process recovers it. It is killed there, if it gives a position back.
        reached.count(GIVEN_BACK, test.is_killed("attach", &format!("{GIVEN_BACK}:1"))?);
    }
    verify(&path)?;
    test.complete("lose")?;
    verify(&path)?;
    check_clean(&path).map(drop)
}

fn begin(path: &Path) -> Result<(), Error> {
    let session = Region::attach(path)?.session()?;
    session.stream(open(&session)?, WhenFull::LoseOldest)
}

/// In the log the versions of a key follow each other, and the last one is that of the record,
/// unless it was acknowledged.
fn verify(path: &Path) -> Result<(), String> {
    let context = |e: Error| format!("log: {e}");
    let session = open_session(path)?;
    let ns = open(&session).map_err(context)?;
    let mut last: BTreeMap<Vec<u8>, (u64, u8)> = BTreeMap::new();
    let mut stream = session.commit_stream().map_err(context)?;
    while let Some(item) = stream.next().map_err(context)? {
        let StreamItem::Transaction(entry) = item else {
            last.clear();
            continue;
        };
        for record in entry.records() {
            let record = record.map_err(|e| format!("{entry:?}: {e:?}"))?;
            let StreamedChange::Put { value, .. } = record.change else {
                return Err(format!("{entry:?}: no put"));
            };
            let first = value.first().copied().unwrap_or_default();
            if value.len() != VALUE_BYTES || value.iter().any(|byte| *byte != first) {
                return Err(format!("{entry:?}: a torn value"));
            }
            let before = last.insert(record.key.to_vec(), (record.version, first));
            if before.is_some_and(|(before, _)| record.version != before + 1) {
                return Err(format!("{entry:?}: version {} follows {before:?}", record.version));
            }
        }
    }
    for (key, (version, first)) in last {
        let view = session.get(ns, &key).map_err(context)?.ok_or("no record")?;
        if view.version() != version || view.bytes().first() != Some(&first) {
            return Err(format!("version {} of a record, {version} in the log", view.version()));
        }
    }
    Ok(())
}

//! What the writers were told that it is replicated, compared with the records.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::{Namespace, Session};

use super::shared_files::{
    AppendedLines, SLOTS, acknowledged_file, count_key, slot_key, slot_number,
};

/// The last replicated transaction of each record of a writer.
#[derive(Debug, Default)]
pub(super) struct AcknowledgedNumbers {
    /// By host and record.
    last: BTreeMap<(u16, u64), u64>,
    lines: AppendedLines,
    /// Replicated transactions so far.
    pub(super) count: u64,
}

impl AcknowledgedNumbers {
    /// Reads what a writer has noted since the last call.
    pub(super) fn read(&mut self, folder: &Path, host: u16) -> Result<(), String> {
        for line in self.lines.next(acknowledged_file(folder, host))? {
            let Ok(number) = line.parse::<u64>() else { continue };
            self.count += 1;
            let last = self.last.entry((host, number % SLOTS)).or_default();
            *last = number.max(*last);
        }
        Ok(())
    }

    /// Compares the records of a writer. Returns how many were compared.
    pub(super) fn check(
        &self,
        session: &Session,
        load: Namespace,
        host: u16,
    ) -> Result<u64, String> {
        let failed = |error: nearstate_store::Error| format!("writer {host}: {error}");
        let mut compared = 0;
        let mut newest = 0;
        for slot in 0..SLOTS {
            let view = session.get(load, slot_key(host, slot).as_bytes()).map_err(failed)?;
            let found = view.map_or(Ok(0), |view| slot_number(host, view.bytes()))?;
            let least = self.last.get(&(host, slot)).copied().unwrap_or(0);
            if found < least {
                return Err(format!(
                    "LOST: transaction {least:x} of the writer of host {host} was replicated, and \
                     record {slot} has {found:x}"
                ));
            }
            newest = newest.max(found);
            compared += 1;
        }
        // Both records of a transaction, or none.
        let view = session.get(load, count_key(host).as_bytes()).map_err(failed)?;
        let count = view.and_then(|view| view.bytes().first_chunk().copied());
        let count = count.map_or(0, u64::from_le_bytes);
        if count == newest {
            Ok(compared)
        } else {
            Err(format!(
                "TORN: the last record of the writer of host {host} is of transaction {newest:x}, \
                 and its count says {count:x}"
            ))
        }
    }
}

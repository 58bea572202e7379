//! What the runs and their processes share: names of namespaces and keys, and files in the run's
//! folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearstate_local_cluster::wait_until;
use nearstate_store::{Kind, Schema, Session};

use crate::error_context::ErrorContext as _;

/// The namespace of the keys whose histories are checked.
pub(super) const HISTORY: &str = "history";

/// The namespace of the writers' records.
pub(super) const LOAD: &str = "load";

/// Records of a writer; each of its transactions writes one of them, and its count.
pub(super) const SLOTS: u64 = 64;

/// The key of a register of a round.
pub(super) fn history_key(round: u64, key: u32) -> String {
    format!("{round}:{key}")
}

/// The key of a record of a writer.
pub(super) fn slot_key(host: u16, slot: u64) -> String {
    format!("w{host}:{slot}")
}

/// The key of the number of a writer's last transaction.
pub(super) fn count_key(host: u16) -> String {
    format!("w{host}:count")
}

/// The value of a record of the writer of a host in transaction `number`.
pub(super) fn slot_value(host: u16, number: u64) -> Vec<u8> {
    let seed = crate::rng::mix(number ^ u64::from(host) << 56);
    let words = 2 + usize::try_from(seed % 40).unwrap_or(0);
    let content = (1..words as u64).map(|index| crate::rng::mix(seed ^ index));
    [number].into_iter().chain(content).flat_map(u64::to_le_bytes).collect()
}

/// The number in a value of [`slot_value`], every byte verified.
pub(super) fn slot_number(host: u16, bytes: &[u8]) -> Result<u64, String> {
    let number = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    if slot_value(host, number) == bytes {
        Ok(number)
    } else {
        Err(format!("a value of writer {host} is torn: {} bytes of {number:x}", bytes.len()))
    }
}

/// The file with the number of the present round; 0: writers pause.
pub(super) fn round_file(folder: &Path) -> PathBuf {
    folder.join("round")
}

/// The file in which a writer says that it pauses, and what it has seen last.
pub(super) fn seen_file(folder: &Path, host: u16) -> PathBuf {
    folder.join(format!("seen-{host}"))
}

/// The file with the numbers of a writer's transactions that were replicated.
pub(super) fn acknowledged_file(folder: &Path, host: u16) -> PathBuf {
    folder.join(format!("acknowledged-{host}"))
}

/// The file with what a writer did in a round.
pub(super) fn history_file(folder: &Path, host: u16, round: u64) -> PathBuf {
    folder.join(format!("history-{host}-{round}"))
}

/// The number in a file; 0 if it has none.
pub(super) fn number_in(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// How much of the files was read to which processes append lines.
#[derive(Debug, Default)]
pub(super) struct AppendedLines(BTreeMap<PathBuf, u64>);

impl AppendedLines {
    /// The complete lines of a file since the last call, without their ends ` .`. A process that
    /// was killed has left a part of a line: it was not told.
    pub(super) fn next(&mut self, path: PathBuf) -> Result<Vec<String>, String> {
        let Ok(mut file) = File::open(&path) else { return Ok(Vec::new()) };
        let mut text = String::new();
        let from = self.0.get(&path).copied().unwrap_or(0);
        file.seek(SeekFrom::Start(from))
            .and_then(|_| file.read_to_string(&mut text))
            .context(path.display())?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        text.truncate(whole);
        self.0.insert(path, from + whole as u64);
        Ok(text.lines().filter_map(|line| line.strip_suffix(" .")).map(str::to_owned).collect())
    }
}

/// Creates a namespace, and waits until its changes are logged.
pub(super) fn create_logged(
    session: &Session,
    name: &str,
    kind: Kind,
    wait_max: Duration,
) -> Result<(), String> {
    let schema = Schema { kind, ..Schema::default() };
    let namespace = session.namespace(name, &schema).context(name)?;
    wait_until("the namespace is logged", wait_max, || session.is_logged(namespace).context(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_whole_line_is_read_once_and_a_part_of_one_is_not() {
        let folder = std::env::temp_dir().join(format!("nearstate-lines-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = acknowledged_file(&folder, 1);
        let mut lines = AppendedLines::default();
        assert_eq!(lines.next(path.clone()), Ok(Vec::new()), "no file");
        std::fs::write(&path, "1 .\n2 .\n3").unwrap();
        assert_eq!(lines.next(path.clone()).unwrap(), ["1", "2"]);
        // The writer was killed, and the next one appends to the file.
        std::fs::write(&path, "1 .\n2 .\n34 .\n5\n").unwrap();
        assert_eq!(lines.next(path).unwrap(), ["34"]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

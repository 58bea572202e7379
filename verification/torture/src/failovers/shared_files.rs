//! What the run and its writers share: names of namespaces and keys, and files in the run's folder.

use std::path::{Path, PathBuf};

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

//! What was promised in a run, and what happened to the copies.

use std::collections::BTreeMap;

/// What was promised, and what happened to the copies.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The longest history of which output was released: its length and check value.
    pub(crate) released: (usize, u64),
    /// Where each sealed log ends.
    pub(crate) sealed: BTreeMap<u64, u64>,
    /// Which transaction has which place in which log.
    pub(crate) places: BTreeMap<(u64, u64), u64>,
    /// Hosts whose copy of everything that was released was lost, since n full members had one.
    pub(crate) losses: usize,
    /// The last copy of something released is lost, by n losses or more.
    pub(crate) is_disaster: bool,
    /// How often an operator had to accept a loss.
    pub(crate) accepted: u32,
    /// How often the region of an earlier owner became a copy with its records.
    pub(crate) kept: u32,
    /// How often a process started with an older copy of its region.
    pub(crate) restored: u32,
    /// How often another host owned the partition at the end of a drain.
    pub(crate) drained: u32,
    /// How often a host was added to the group, and how often one was removed.
    pub(crate) changes: (u32, u32),
    /// How often a host began to leave the group.
    pub(crate) leaving: u32,
    /// How often one copy began to suffice.
    pub(crate) degraded: u32,
    pub(crate) violation: Option<String>,
}

//! Nodes in memory, with peeks that may return older content and a log of all operations.

use std::collections::{BTreeMap, BTreeSet};

use nearstate_model::Result;

use crate::index::ordered::Nodes;

#[derive(Debug, Default)]
pub(super) struct MemoryNodes {
    nodes: BTreeMap<u64, Vec<u8>>,
    /// What each node was at some times, and that it was not there.
    older: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
    free: Vec<u64>,
    named: u64,
    stale_percent: u64,
    rng: u64,
    pub(super) peeked: usize,
    pub(super) read: BTreeSet<u64>,
    pub(super) written: BTreeSet<u64>,
}

impl MemoryNodes {
    pub(super) fn new(stale_percent: u64, seed: u64) -> Self {
        Self { stale_percent, rng: seed | 1, ..Self::default() }
    }

    /// The same nodes, seen as they are.
    pub(super) fn fresh(&self) -> Self {
        Self { nodes: self.nodes.clone(), ..Self::default() }
    }

    pub(super) fn forget(&mut self) {
        self.peeked = 0;
        self.read.clear();
        self.written.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn bytes_largest(&self) -> usize {
        self.nodes.values().map(Vec::len).max().unwrap_or(0)
    }

    pub(super) fn names(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub(super) fn node_mut(&mut self, name: u64) -> &mut Vec<u8> {
        self.nodes.entry(name).or_default()
    }

    fn roll(&mut self) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng
    }

    fn set(&mut self, name: u64, bytes: Option<Vec<u8>>) {
        let old = self.nodes.remove(&name);
        if self.stale_percent > 0 {
            self.older.entry(name).or_default().push(old);
        }
        if let Some(bytes) = bytes {
            self.nodes.insert(name, bytes);
        }
    }
}

impl Nodes for MemoryNodes {
    fn peek<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.peeked += 1;
        if self.stale_percent > 0 && self.roll() % 100 < self.stale_percent {
            let pick = self.roll();
            let older = self.older.get(&node).filter(|older| !older.is_empty());
            if let Some(older) = older {
                let pick = usize::try_from(pick).unwrap() % older.len();
                return Ok(older[pick].as_deref().map(read));
            }
        }
        Ok(self.nodes.get(&node).map(|bytes| read(bytes)))
    }

    fn read<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.read.insert(node);
        Ok(self.nodes.get(&node).map(|bytes| read(bytes)))
    }

    fn write(&mut self, node: u64, bytes: &[u8]) -> Result<()> {
        self.written.insert(node);
        self.set(node, Some(bytes.to_vec()));
        Ok(())
    }

    fn create(&mut self, bytes: &[u8]) -> Result<u64> {
        let name = self.free.pop().unwrap_or_else(|| {
            self.named += 1;
            100 + self.named
        });
        assert!(!self.nodes.contains_key(&name));
        self.written.insert(name);
        self.set(name, Some(bytes.to_vec()));
        Ok(name)
    }

    fn free(&mut self, node: u64) -> Result<()> {
        assert!(self.nodes.contains_key(&node), "a node is freed once");
        self.written.insert(node);
        self.set(node, None);
        self.free.push(node);
        Ok(())
    }
}

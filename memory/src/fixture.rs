//! A region file, and records in it, for tests that create one.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

use nearstate_model::Result;

use crate::atomic::Ordering;
use crate::heap::cell::{CellHeader, CellKind};
use crate::index::lookup::hash;
use crate::layout::SUPER_EPOCH;
use crate::member::Member;
use crate::member::arena::{op, write_undo};
use crate::region::index_table::IndexTable;
use crate::region::member_table::{clear_copy, state, state_of};
use crate::txn::fill::PendingCell;
use crate::txn::publish::WriteDecision;

/// The path of a region in memory, which dropping removes.
pub(crate) struct TestRegionPath(PathBuf);

impl TestRegionPath {
    /// A path of this process with `name` in it, on `/dev/shm` if there is one.
    pub(crate) fn new(name: &str) -> Self {
        // Tests of one program that share a function run at the same time.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(Path::new(base).join(format!("nearstate-{name}-{pid}-{count}")))
    }

    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestRegionPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Stores a record that has no value.
pub(crate) fn put_key(member: &Member, table: &IndexTable, key: &[u8]) -> Result<()> {
    let hash = hash(member.seed(), key);
    let header = CellHeader {
        kind: CellKind::Record,
        flags: 0,
        namespace: table.index(),
        body: key.len() as u32,
        key: key.len() as u16,
        children: 0,
        hash,
    };
    member.operation(|| {
        let at = member.allocate_cell(&header)?;
        member.write_body(at, 0, key)?;
        let cell = PendingCell { at, body_crc: crc32fast::hash(key) };
        member.write_record(table, hash, key, Some(cell), |_| Ok(WriteDecision::Publish)).map(drop)
    })
}

/// Removes a record.
pub(crate) fn remove_key(member: &Member, table: &IndexTable, key: &[u8]) -> Result<()> {
    let hash = hash(member.seed(), key);
    member.write_record(table, hash, key, None, |_| Ok(WriteDecision::Remove)).map(drop)
}

/// True if the key has a record.
pub(crate) fn has_key(member: &Member, table: &IndexTable, key: &[u8]) -> Result<bool> {
    let _pin = member.pin()?;
    Ok(member.find(table, hash(member.seed(), key), key)?.is_some())
}

/// A session as a kill of its process leaves it. Returns its slot.
pub(crate) fn kill(member: Member) -> u32 {
    let (index, map) = (member.index(), member.map());
    clear_copy(map, index).unwrap();
    let slot = state_of(map, index).unwrap();
    let incarnation = state::incarnation(slot.load(Ordering::Relaxed));
    slot.store(state::make(state::ALIVE, state::NO_PROCESS, incarnation), Ordering::Relaxed);
    std::mem::forget(member);
    index
}

/// Opens the undo record of a session with a word that has neither its old nor its new value.
pub(crate) fn damage_undo_record(member: &Member) {
    let arena = member.arena();
    let seen = member.map().word(SUPER_EPOCH).unwrap().load(Ordering::Relaxed);
    write_undo(&arena, SUPER_EPOCH, seen + 1, seen + 2, op::RECORD);
}

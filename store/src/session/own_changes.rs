//! The changes that a session has reported to watches, recorded on request. A server that reads a
//! watch can thereby leave out the changes of one of its clients.

use std::cell::RefCell;

use nearstate_memory::RecordAccess;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::invariant;

use crate::session::buffers::{Buffers, Write};

/// A change as its [`Event`](crate::Event) describes it. No two changes of a region are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnChange {
    /// [`Namespace::number`](crate::Namespace::number).
    pub namespace: u32,
    /// The record's key.
    pub key: Vec<u8>,
    /// Its version after the change; its last version if it was deleted.
    pub version: u64,
    /// True if it was deleted.
    pub is_deleted: bool,
}

/// `None` unless changes are recorded.
#[derive(Debug, Default)]
pub(crate) struct OwnChanges(RefCell<Option<Vec<OwnChange>>>);

impl OwnChanges {
    pub(crate) fn begin(&self) {
        *self.0.borrow_mut() = Some(Vec::new());
    }

    pub(crate) fn end(&self) -> Vec<OwnChange> {
        self.0.take().unwrap_or_default()
    }

    /// Adds the changes of a commit that has events.
    #[inline]
    pub(crate) fn add(&self, buffers: &Buffers) {
        if let Some(recorded) = &mut *self.0.borrow_mut() {
            record(recorded, buffers);
        }
    }
}

#[cold]
fn record(recorded: &mut Vec<OwnChange>, buffers: &Buffers) {
    invariant!(
        buffers.entries.len() == buffers.plan.accesses.len(),
        "a plan of {} records for {} entries",
        buffers.plan.accesses.len(),
        buffers.entries.len()
    );
    for (entry, access) in buffers.entries.iter().zip(&buffers.plan.accesses) {
        // An expiry is no change of this session: its event says so.
        if entry.write.is_none() || entry.is_expiry || entry.flags & namespace_flags::WATCHED == 0 {
            continue;
        }
        recorded.push(OwnChange {
            namespace: entry.table,
            key: entry.key.of(&buffers.bytes).to_vec(),
            version: version_of(access),
            is_deleted: matches!(entry.write, Write::Delete),
        });
    }
}

fn version_of(access: &RecordAccess) -> u64 {
    // 0: a record that did not exist was deleted. It has no event.
    access.version_after.or(access.version_before).unwrap_or(0)
}

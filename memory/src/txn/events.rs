//! The events of a transaction. They are encoded before the decision and appended to the rings
//! after it, by the writer or by its recoverer (`spec/region.md`, section 9).

use nearstate_model::{Error, Result, invariant};

use crate::crash::crash_point;
use crate::heap::cell::{CELL_HEADER_BYTES, Cell, CellHeader, CellKind};
use crate::index::intent::{LINE_LOCK, LINE_RING, LINE_SLOT, LINE_SOURCE, LINE_TAIL, TxnCell};
use crate::layout::Corruption;
use crate::member::Member;
use crate::member::arena::Arena;
use crate::ring;
use crate::ring::words::entry_words;

/// Bytes that are appended to a ring if the transaction commits.
#[derive(Clone, Copy, Debug)]
pub struct TxnEvent {
    /// Offset of the ring.
    pub ring_at: u64,
    /// Where these bytes are in [`TxnEvents::bytes`].
    pub span: (usize, usize),
}

/// All events of a transaction, in ascending order of the offsets of their rings.
#[derive(Debug, Default)]
pub struct TxnEvents {
    /// One for each entry of a ring.
    pub all: Vec<TxnEvent>,
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// Where in the bytes the new version of an access is inserted: eight bytes, little-endian. For
    /// a deleted record it is the last version.
    pub versions: Vec<(usize, usize)>,
}

impl TxnEvents {
    /// Removes everything, and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.all.clear();
        self.bytes.clear();
        self.versions.clear();
    }

    /// Inserts a version.
    pub(crate) fn set_version(&mut self, at: usize, version: u64) {
        let Some(place) = self.bytes.get_mut(at..at + 8) else {
            invariant!("a version at {at} lies outside the events")
        };
        place.copy_from_slice(&version.to_le_bytes());
    }
}

impl Member {
    /// With all locks held, before the decision: copies each event to a cell of the transaction,
    /// and records its position in its ring.
    pub(crate) fn prepare_events(
        &self,
        events: &TxnEvents,
        txn: TxnCell<'_>,
        first: u64,
    ) -> Result<()> {
        let (mut ring_at, mut tail) = (0, 0);
        for (index, event) in (first..).zip(&events.all) {
            let Some(bytes) = events.bytes.get(event.span.0..event.span.1) else {
                invariant!("an event at {:?} of {} bytes", event.span, events.bytes.len())
            };
            invariant!(event.ring_at >= ring_at, "the events are not in the order of their rings");
            if event.ring_at != ring_at {
                ring_at = event.ring_at;
                tail = ring::tail(self.map(), ring_at)?;
            }
            let length = bytes.len() as u64;
            invariant!(length != 0, "an event has no bytes");
            if !ring::fits(self.map(), ring_at, length)? {
                return Err(Error::TransactionTooLarge {
                    detail: format!("an event of {length} bytes"),
                });
            }
            let source = self.event_cell(bytes)?;
            txn.set(index, LINE_TAIL, tail)?;
            txn.set(index, LINE_SOURCE, source)?;
            txn.set(index, LINE_RING, ring_at)?;
            crash_point!("event.placed");
            tail += entry_words(length);
        }
        crash_point!("txn.prepared");
        Ok(())
    }

    /// Allocates a pending cell with the bytes of an event.
    fn event_cell(&self, bytes: &[u8]) -> Result<u64> {
        let body =
            u32::try_from(bytes.len()).map_err(|_| Error::ValueTooLarge { bytes: bytes.len() })?;
        let (kind, flags, namespace, key, children, hash) = (CellKind::Block, 0, 0, 0, 0, 0);
        let at =
            self.allocate_cell(&CellHeader { kind, flags, namespace, body, key, children, hash })?;
        self.write_body(at, 0, bytes)?;
        self.seal_block(at, 0)?;
        crash_point!("event.sealed");
        Ok(at)
    }
}

/// Records the locks of the rings in the lines from `first` on.
pub(crate) fn record_ring_locks(events: &TxnEvents, txn: TxnCell<'_>, first: u64) -> Result<()> {
    let mut before = 0;
    for (index, event) in (first..).zip(&events.all) {
        invariant!(event.ring_at >= before, "the events are not in the order of their rings");
        let is_same = event.ring_at == before;
        txn.set(index, LINE_LOCK, if is_same { 0 } else { ring::lock_at(event.ring_at) })?;
        txn.set(index, LINE_SLOT, 0)?;
        txn.set(index, LINE_RING, 0)?;
        before = event.ring_at;
    }
    Ok(())
}

/// After the decision: appends the events that are not in their rings yet.
pub(crate) fn append_all(txn: TxnCell<'_>) -> Result<(), Corruption> {
    for index in txn.event_lines()? {
        let ring_at = txn.get(index, LINE_RING)?;
        if ring_at != 0 {
            let source = txn.get(index, LINE_SOURCE)?;
            let bytes = Cell::new(txn.map(), source)?.value()?.len() as u64;
            let from = source.saturating_add(CELL_HEADER_BYTES);
            ring::append(txn.map(), ring_at, txn.get(index, LINE_TAIL)?, from, bytes)?;
            crash_point!("txn.appended");
        }
    }
    Ok(())
}

/// Retires the cells of the events. Idempotent.
pub(crate) fn retire_all(arena: &Arena<'_>, txn: TxnCell<'_>) -> Result<(), Corruption> {
    for index in txn.event_lines()? {
        if txn.get(index, LINE_RING)? != 0 {
            arena.retire(txn.get(index, LINE_SOURCE)?)?;
            crash_point!("event.retired");
        }
    }
    Ok(())
}

/// Wakes the readers that wait for the rings of a transaction.
pub(crate) fn wake_all(txn: TxnCell<'_>) -> Result<(), Corruption> {
    let mut before = 0;
    for index in txn.event_lines()? {
        let ring_at = txn.get(index, LINE_RING)?;
        if ring_at != 0 && ring_at != before {
            crash_point!("txn.waking");
            ring::wake(txn.map(), ring_at)?;
            before = ring_at;
        }
    }
    Ok(())
}

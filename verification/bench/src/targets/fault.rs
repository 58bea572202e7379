//! Faults of a store, planted between a client and its target, to see whether they are noticed.

use crate::access::{
    BatchSink, Body, PartSet, ReplySink, Request, ScanRange, ScanSink, StoreAccess,
    StoreConnection, StoreReply, TableId, perform_each,
};
use crate::protocol::Fault;
use nearstate_model::Result;
use std::time::Duration;

/// Operations of the planted kind before the one that goes wrong: past warming up, and within a
/// short run.
const AFTER: u64 = 300;

/// How long a stall lasts.
const STALL: Duration = Duration::from_millis(400);

/// A connection with a fault.
pub struct Faulty {
    inner: Box<dyn StoreConnection>,
    fault: Fault,
    left: u64,
    again: u64,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulty").field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl Faulty {
    /// Plants a fault that happens once.
    pub const fn new(inner: Box<dyn StoreConnection>, fault: Fault) -> Self {
        Self { inner, fault, left: AFTER, again: 0 }
    }

    /// Plants a fault that happens again and again, but for a stall: in a long run a single lost
    /// update may be written over before any client could see that it was lost.
    pub const fn often(inner: Box<dyn StoreConnection>, fault: Fault) -> Self {
        let again = if matches!(fault, Fault::Stall) { 0 } else { AFTER };
        Self { inner, fault, left: AFTER, again }
    }
}

/// Counts down; true once.
fn is_now(left: &mut u64) -> bool {
    let is_now = *left == 1;
    *left = left.saturating_sub(1);
    is_now
}

/// Bytes that no client wrote.
fn garbled(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ 0x55).collect()
}

/// A store whose operations go wrong when their time has come.
struct Bent<'a> {
    inner: &'a mut dyn StoreAccess,
    fault: Fault,
    left: &'a mut u64,
    again: u64,
}

impl Bent<'_> {
    /// Whether this write is to be answered but not done. One that would change nothing cannot be
    /// lost: then it is the next one's turn.
    fn loses(
        &mut self,
        changes: impl FnOnce(&mut dyn StoreAccess) -> Result<bool>,
    ) -> Result<bool> {
        Ok(match self.fault {
            Fault::LostUpdate if *self.left == 1 => {
                let loses = changes(self.inner)?;
                if loses {
                    *self.left = self.again;
                }
                loses
            }
            Fault::LostUpdate => is_now(self.left),
            Fault::Stall => {
                if is_now(self.left) {
                    std::thread::sleep(STALL);
                }
                false
            }
            Fault::WrongAnswer => false,
        })
    }
}

/// Whether a record has other parts than these, or is not there.
fn differs(
    access: &mut dyn StoreAccess,
    table: TableId,
    key: &[u8],
    parts: &[(usize, &[u8])],
) -> Result<bool> {
    let mut same = 0;
    access.read(table, key, PartSet::ALL, &mut |part, bytes| {
        same += usize::from(parts.contains(&(part, bytes)));
    })?;
    Ok(same != parts.len())
}

impl StoreAccess for Bent<'_> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let is_lost = match request {
            Request::Read { .. } => {
                if self.fault == Fault::WrongAnswer {
                    return self.read_wrongly(request, receive);
                }
                false
            }
            Request::Put { table, entry } => {
                self.loses(|access| differs(access, *table, entry.key, entry.parts))?
            }
            Request::Change { table, change } => {
                self.loses(|access| differs(access, *table, change.key, change.parts))?
            }
            Request::Delete { table, key, .. } => {
                self.loses(|access| access.read(*table, key, PartSet::ALL, &mut |_, _| {}))?
            }
            Request::Find { .. } => false,
        };
        if is_lost { Ok(true) } else { self.inner.perform(request, receive) }
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        self.inner.scan(range, receive)
    }
}

impl Bent<'_> {
    /// A read, with wrong bytes when its time has come. If the record does not exist, the next read
    /// delivers wrong bytes.
    fn read_wrongly(&mut self, read: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        if *self.left != 1 {
            *self.left = self.left.saturating_sub(1);
            return self.inner.perform(read, receive);
        }
        let (left, again) = (&mut *self.left, self.again);
        self.inner.perform(read, &mut |reply| match reply {
            StoreReply::Part(part, bytes) => {
                *left = again;
                receive(StoreReply::Part(part, &garbled(bytes)));
            }
            StoreReply::Key(_) | StoreReply::Done(_) => receive(reply),
        })
    }
}

impl Faulty {
    fn bent(&mut self) -> Bent<'_> {
        let Self { inner, fault, left, again } = self;
        Bent { inner: &mut **inner, fault: *fault, left, again: *again }
    }
}

impl StoreAccess for Faulty {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        self.bent().perform(request, receive)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        self.inner.scan(range, receive)
    }
}

impl StoreConnection for Faulty {
    fn is_null(&self) -> bool {
        self.inner.is_null()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    /// A fault is the store's: it goes on where it was.
    fn renewed(&mut self, fresh: Box<dyn StoreConnection>) -> Box<dyn StoreConnection> {
        let Self { inner, fault, left, again } = self;
        let inner = inner.renewed(fresh);
        Box::new(Faulty { inner, fault: *fault, left: *left, again: *again })
    }

    /// Steps overlap as they do without a fault, so that what notices it is the same. Nothing
    /// leaves before its turn: then each request is done by itself, and may meet the fault.
    fn sends_ahead(&self) -> bool {
        self.inner.sends_ahead()
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        self.inner.walk(table)
    }

    fn add(&mut self, counter: &[u8], times: u64) -> Result<()> {
        self.inner.add(counter, times)
    }

    fn counter(&mut self, counter: &[u8]) -> Result<i64> {
        self.inner.counter(counter)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        let Self { inner, fault, left, again } = self;
        let before = *left;
        inner.transact(&mut |access| {
            // A body that is run again meets the same fault.
            *left = before;
            body(&mut Bent { inner: access, fault: *fault, left, again: *again })
        })
    }

    /// One by one while the fault is still to come, so that it meets a single request.
    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        if self.left == 0 {
            return self.inner.pipeline(requests, receive);
        }
        perform_each(&mut self.bent(), requests, receive)
    }
}

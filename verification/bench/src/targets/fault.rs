//! Faults of a store, planted between a client and its target, to see whether they are noticed.

use crate::access::{
    Body, PartReceiver, PartSet, PartsChange, RecordEntry, RecordTag, Request, StoreAccess,
    StoreConnection, StoreReply, TableId, one_by_one,
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
#[derive(Debug)]
pub struct Faulty<C> {
    inner: C,
    fault: Fault,
    left: u64,
    again: u64,
}

impl<C: StoreConnection> Faulty<C> {
    /// Plants a fault that happens once.
    pub const fn new(inner: C, fault: Fault) -> Self {
        Self { inner, fault, left: AFTER, again: 0 }
    }

    /// Plants a fault that happens again and again, but for a stall: in a long run a single lost
    /// update may be written over before any client could see that it was lost.
    pub const fn often(inner: C, fault: Fault) -> Self {
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
    fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        if self.fault != Fault::WrongAnswer || *self.left != 1 {
            if self.fault == Fault::WrongAnswer {
                *self.left = self.left.saturating_sub(1);
            }
            return self.inner.read(table, key, wanted, receive);
        }
        // A read that finds nothing has nothing to get wrong: then the next one.
        let (left, again) = (&mut *self.left, self.again);
        self.inner.read(table, key, wanted, &mut |part, bytes| {
            *left = again;
            receive(part, &garbled(bytes));
        })
    }

    fn put(&mut self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        if self.loses(|access| differs(access, table, entry.key, entry.parts))? {
            return Ok(());
        }
        self.inner.put(table, entry)
    }

    fn change(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        if self.loses(|access| differs(access, table, change.key, change.parts))? {
            return Ok(true);
        }
        self.inner.change(table, change)
    }

    fn delete(&mut self, table: TableId, key: &[u8], tags: &[RecordTag<'_>]) -> Result<bool> {
        if self.loses(|access| access.read(table, key, PartSet::ALL, &mut |_, _| {}))? {
            return Ok(true);
        }
        self.inner.delete(table, key, tags)
    }

    fn find(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        key: &mut Vec<u8>,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        self.inner.find(table, tag, wanted, key, receive)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        count: usize,
        receive: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        self.inner.scan(table, from, count, receive)
    }
}

impl<C: StoreConnection> Faulty<C> {
    fn bent(&mut self) -> Bent<'_> {
        let Self { inner, fault, left, again } = self;
        Bent { inner, fault: *fault, left, again: *again }
    }
}

impl<C: StoreConnection> StoreAccess for Faulty<C> {
    fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        self.bent().read(table, key, wanted, receive)
    }

    fn put(&mut self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        self.bent().put(table, entry)
    }

    fn change(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        self.bent().change(table, change)
    }

    fn delete(&mut self, table: TableId, key: &[u8], tags: &[RecordTag<'_>]) -> Result<bool> {
        self.bent().delete(table, key, tags)
    }

    fn find(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        key: &mut Vec<u8>,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        self.inner.find(table, tag, wanted, key, receive)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        count: usize,
        receive: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        self.inner.scan(table, from, count, receive)
    }
}

impl<C: StoreConnection> StoreConnection for Faulty<C> {
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
    fn pipeline(
        &mut self,
        requests: &[Request<'_>],
        receive: &mut dyn FnMut(usize, StoreReply<'_>),
    ) -> Result<()> {
        if self.left == 0 {
            return self.inner.pipeline(requests, receive);
        }
        for (number, request) in requests.iter().enumerate() {
            let done = one_by_one(&mut self.bent(), request, &mut |reply| receive(number, reply))?;
            receive(number, StoreReply::Done(done));
        }
        Ok(())
    }
}

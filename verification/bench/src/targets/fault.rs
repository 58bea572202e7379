//! Faults of a store, planted between a client and its target, to prove that they are detected.

use crate::access::{
    BatchSink, Body, PartSet, ReplySink, Request, ScanRange, ScanSink, StoreAccess,
    StoreConnection, StoreReply, TableId, perform_each,
};
use crate::protocol::Fault;
use nearstate_model::Result;
use std::time::Duration;

/// Operations of the affected kind up to the fault: after the warm-up, and within a short run.
const AFTER: u64 = 300;

/// How long a stall lasts.
const STALL: Duration = Duration::from_millis(400);

/// A fault, and when it happens.
#[derive(Clone, Copy, Debug)]
struct FaultPlan {
    fault: Fault,
    /// Operations until the fault happens; 0 if it does not happen again.
    left: u64,
    /// What `left` becomes after the fault; 0 for a fault that happens once.
    period: u64,
}

impl FaultPlan {
    /// Counts an operation down; true if the fault happens at this one.
    const fn is_now(&mut self) -> bool {
        let is_now = self.left == 1;
        self.left = self.left.saturating_sub(1);
        is_now
    }
}

/// A connection with a fault.
pub struct FaultyConnection {
    inner: Box<dyn StoreConnection>,
    plan: FaultPlan,
}

impl std::fmt::Debug for FaultyConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyConnection").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl FaultyConnection {
    /// Plants a fault that happens once.
    pub const fn once(inner: Box<dyn StoreConnection>, fault: Fault) -> Self {
        Self { inner, plan: FaultPlan { fault, left: AFTER, period: 0 } }
    }

    /// Plants a fault that happens periodically, except for a stall: in a long run, a single lost
    /// update may be overwritten before any client could detect it.
    pub const fn periodic(inner: Box<dyn StoreConnection>, fault: Fault) -> Self {
        let period = if matches!(fault, Fault::Stall) { 0 } else { AFTER };
        Self { inner, plan: FaultPlan { fault, left: AFTER, period } }
    }

    fn access(&mut self) -> FaultyAccess<'_> {
        FaultyAccess { inner: &mut *self.inner, plan: &mut self.plan }
    }
}

/// Bytes that no client wrote.
fn garbled(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ 0x55).collect()
}

/// A store that applies the fault to its operations.
struct FaultyAccess<'a> {
    inner: &'a mut dyn StoreAccess,
    plan: &'a mut FaultPlan,
}

impl FaultyAccess<'_> {
    /// True if this write is acknowledged but not executed. A write without an effect is not lost.
    fn loses(
        &mut self,
        changes: impl FnOnce(&mut dyn StoreAccess) -> Result<bool>,
    ) -> Result<bool> {
        Ok(match self.plan.fault {
            Fault::LostUpdate if self.plan.left == 1 => {
                let loses = changes(self.inner)?;
                if loses {
                    self.plan.left = self.plan.period;
                }
                loses
            }
            Fault::LostUpdate => self.plan.is_now(),
            Fault::Stall => {
                if self.plan.is_now() {
                    std::thread::sleep(STALL);
                }
                false
            }
            Fault::WrongAnswer => false,
        })
    }

    /// A read, with wrong bytes when the fault happens. If the record does not exist, the next read
    /// delivers wrong bytes.
    fn read_wrongly(&mut self, read: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        if self.plan.left != 1 {
            self.plan.left = self.plan.left.saturating_sub(1);
            return self.inner.perform(read, receive);
        }
        let plan = &mut *self.plan;
        self.inner.perform(read, &mut |reply| match reply {
            StoreReply::Part(part, bytes) => {
                plan.left = plan.period;
                receive(StoreReply::Part(part, &garbled(bytes)));
            }
            StoreReply::Key(_) | StoreReply::Done(_) => receive(reply),
        })
    }
}

/// Whether a record has other parts than these, or does not exist.
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

impl StoreAccess for FaultyAccess<'_> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let is_lost = match request {
            Request::Read { .. } => {
                if self.plan.fault == Fault::WrongAnswer {
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

impl StoreAccess for FaultyConnection {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        self.access().perform(request, receive)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        self.inner.scan(range, receive)
    }
}

impl StoreConnection for FaultyConnection {
    fn is_null(&self) -> bool {
        self.inner.is_null()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    /// The fault belongs to the store: its plan continues.
    fn renewed(&mut self, fresh: Box<dyn StoreConnection>) -> Box<dyn StoreConnection> {
        Box::new(Self { inner: self.inner.renewed(fresh), plan: self.plan })
    }

    /// Steps overlap as they do without a fault, so that the same checks detect it. No request is
    /// sent ahead: each is executed by itself, and may meet the fault.
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

    fn add_member(&mut self, set: &[u8], member: &[u8]) -> Result<bool> {
        let is_lost = self.access().loses(|_| Ok(true))?;
        if is_lost { Ok(true) } else { self.inner.add_member(set, member) }
    }

    fn members(&mut self, set: &[u8], receive: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.inner.members(set, receive)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        let Self { inner, plan } = self;
        let before = *plan;
        inner.transact(&mut |access| {
            // A body that is run again meets the same fault.
            *plan = before;
            body(&mut FaultyAccess { inner: access, plan })
        })
    }

    fn prefetch(&mut self, requests: &[Request<'_>]) {
        self.inner.prefetch(requests);
    }

    /// One by one until the fault has happened, so that it meets a single request.
    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        if self.plan.left == 0 {
            return self.inner.pipeline(requests, receive);
        }
        perform_each(&mut self.access(), requests, receive)
    }
}

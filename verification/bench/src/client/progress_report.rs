//! Reports progress, however long the target takes: while records are loaded or verified, and
//! within a step that takes long.
//!
//! Workloads count what they have done in batches, and a slow target may need minutes for one: a
//! store that searches a whole table for each tag, say. The orchestrator must not take
//! that for a target that is stuck. So progress may be reported at each answer of the store.
//!
//! That reads the clock for each answer, which is much of what an operation of a region takes. So
//! while operations are measured it is done only where it is small beside them: after a step that
//! took [`SLOW_STEP_NS`], and until one has told how long they take.

use crate::access::{
    BatchSink, Body, PartSet, ReplySink, Request, ScanRange, ScanSink, StoreAccess,
    StoreConnection, StoreReply, TableId, Work,
};
use crate::clock::monotonic_ns;
use crate::operations::{KeyBlock, Operation};
use crate::protocol::{ClientReport, say};
use nearstate_model::Result;
use std::cell::RefCell;
use std::io::Write;

/// During steps that last so long, progress is reported at each answer. The next one would have to
/// last six thousand times as long to be silent for the minute that ends a target's part; and a
/// progress report costs less than a thousandth of it, with as many answers as a step of 256
/// operations has.
pub(super) const SLOW_STEP_NS: u64 = 10_000_000;

/// Whether progress is reported at each answer of the next step.
pub(super) struct Pace {
    slow_ns: u64,
    is_slow: bool,
}

impl Pace {
    /// Nothing is known yet: as if it were slow.
    pub(super) const fn new(slow_ns: u64) -> Self {
        Self { slow_ns, is_slow: true }
    }

    /// A step took so long.
    #[inline]
    pub(super) const fn took(&mut self, ns: u64) {
        self.is_slow = ns >= self.slow_ns;
    }

    #[inline]
    pub(super) const fn is_slow(&self) -> bool {
        self.is_slow
    }
}

/// Tells of progress now and then.
pub(super) struct ProgressReporter {
    every_ns: u64,
    next_ns: u64,
    more: u64,
}

impl ProgressReporter {
    /// Tells no more often than this.
    pub(super) fn new(every_ns: u64) -> Self {
        Self { every_ns, next_ns: monotonic_ns() + every_ns, more: 0 }
    }

    #[inline]
    pub(super) const fn add(&mut self, more: u64) {
        self.more += more;
    }

    #[inline]
    pub(super) const fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    pub(super) fn tell(
        &mut self,
        output: &mut impl Write,
        p99_ns: impl FnOnce() -> u64,
    ) -> Result<()> {
        let now_ns = monotonic_ns();
        if self.is_due(now_ns) {
            say(output, &ClientReport::Progress(std::mem::take(&mut self.more), p99_ns()))?;
            self.next_ns = now_ns + self.every_ns;
        }
        Ok(())
    }
}

/// A reporter that several hold: the workload counts records, the connection answers.
pub(super) struct ReportedAccess<'o>(RefCell<ReportState<'o>>);

struct ReportState<'o> {
    reporter: ProgressReporter,
    output: &'o mut dyn Write,
    outcome: Result<()>,
}

impl<'o> ReportedAccess<'o> {
    pub(super) fn new(reporter: ProgressReporter, output: &'o mut dyn Write) -> Self {
        Self(RefCell::new(ReportState { reporter, output, outcome: Ok(()) }))
    }

    /// So many more records are done: none, if it is only known that the target still answers.
    pub(super) fn more(&self, more: u64) {
        // Nothing that is called below comes back to here.
        let ReportState { reporter, output, outcome } = &mut *self.0.borrow_mut();
        reporter.add(more);
        if outcome.is_ok() {
            *outcome = reporter.tell(output, || 0);
        }
    }

    /// Whether all of it could be told.
    pub(super) fn end(self) -> Result<()> {
        self.0.into_inner().outcome
    }
}

/// A store each answer of which is an occasion to tell.
pub(super) struct Answering<'t, 'o, A: ?Sized> {
    inner: &'t mut A,
    told: &'t ReportedAccess<'o>,
}

impl<'t, 'o, A: ?Sized> Answering<'t, 'o, A> {
    pub(super) const fn new(inner: &'t mut A, told: &'t ReportedAccess<'o>) -> Self {
        Self { inner, told }
    }

    fn answered<T>(&self, answer: T) -> T {
        self.told.more(0);
        answer
    }
}

impl<A: StoreAccess + ?Sized> StoreAccess for Answering<'_, '_, A> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let answer = self.inner.perform(request, receive);
        self.answered(answer)
    }

    fn update(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        work: &mut dyn Work,
    ) -> Result<bool> {
        let answer = self.inner.update(table, key, wanted, work);
        self.answered(answer)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        let told = self.told;
        let answer = self.inner.scan(range, &mut |key, bytes| {
            told.more(0);
            receive(key, bytes);
        });
        self.answered(answer)
    }
}

impl StoreConnection for Answering<'_, '_, dyn StoreConnection + '_> {
    fn is_null(&self) -> bool {
        self.inner.is_null()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<u64> {
        let answer = self.inner.run_block(operation, block);
        self.answered(answer)
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        let answer = self.inner.walk(table);
        self.answered(answer)
    }

    fn add(&mut self, counter: &[u8], times: u64) -> Result<()> {
        let answer = self.inner.add(counter, times);
        self.answered(answer)
    }

    fn counter(&mut self, counter: &[u8]) -> Result<i64> {
        let answer = self.inner.counter(counter);
        self.answered(answer)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        let told = self.told;
        let answer = self.inner.transact(&mut |access| body(&mut Answering::new(access, told)));
        self.answered(answer)
    }

    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        let told = self.told;
        let answer = self.inner.pipeline(requests, &mut |number, reply| {
            if matches!(reply, StoreReply::Done(_)) {
                told.more(0);
            }
            receive(number, reply);
        });
        self.answered(answer)
    }

    fn sends_ahead(&self) -> bool {
        self.inner.sends_ahead()
    }

    fn send_ahead(&mut self, requests: &[Request<'_>]) -> Result<()> {
        self.inner.send_ahead(requests)
    }

    fn receive_ahead(
        &mut self,
        requests: &[Request<'_>],
        receive: &mut BatchSink<'_>,
    ) -> Result<()> {
        let told = self.told;
        let answer = self.inner.receive_ahead(requests, &mut |number, reply| {
            if matches!(reply, StoreReply::Done(_)) {
                told.more(0);
            }
            receive(number, reply);
        });
        self.answered(answer)
    }
}

//! Reports progress, however long the target takes: while records are loaded or verified, and
//! within a step that takes long.
//!
//! Workloads count completed work in batches, and a slow target may need minutes for one batch. The
//! orchestrator must not take it for a stuck one. So progress can be reported at each reply.
//!
//! This reads the clock at each reply, which takes a large part of an operation's time on a region.
//! So while operations are measured, it is only done after a step of [`SLOW_STEP_NS`] or more.

use crate::access::{
    BatchSink, Body, PartWrite, RecordRead, RecordTag, ReplySink, Request, ScanRange, ScanSink,
    StoreAccess, StoreConnection, StoreReply, TableId, Work,
};
use crate::clock::monotonic_ns;
use crate::operations::{BlockOutcome, KeyBlock, Operation};
use crate::protocol::{ClientReport, send};
use nearstate_model::Result;
use std::cell::RefCell;
use std::io::Write;

/// During steps of this length and more, progress is reported at each reply, at a cost of less than
/// a thousandth of a step of 256 operations. Shorter steps are far from the limit of a minute.
pub(super) const SLOW_STEP_NS: u64 = 10_000_000;

/// Whether progress is reported at each reply of the next step.
pub(super) struct StepPace {
    slow_ns: u64,
    is_slow: bool,
}

impl StepPace {
    /// The first step counts as slow.
    pub(super) const fn new(slow_ns: u64) -> Self {
        Self { slow_ns, is_slow: true }
    }

    /// Takes the duration of the last step.
    #[inline]
    pub(super) const fn update(&mut self, ns: u64) {
        self.is_slow = ns >= self.slow_ns;
    }

    #[inline]
    pub(super) const fn is_slow(&self) -> bool {
        self.is_slow
    }
}

/// Reports progress at most once per interval.
pub(super) struct ProgressReporter {
    interval_ns: u64,
    next_ns: u64,
    /// Completed since the last report.
    completed: u64,
}

impl ProgressReporter {
    pub(super) fn new(interval_ns: u64) -> Self {
        Self { interval_ns, next_ns: monotonic_ns() + interval_ns, completed: 0 }
    }

    #[inline]
    pub(super) const fn add(&mut self, completed: u64) {
        self.completed += completed;
    }

    #[inline]
    pub(super) const fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Writes a report if one is due.
    pub(super) fn report(
        &mut self,
        output: &mut impl Write,
        p99_ns: impl FnOnce() -> u64,
    ) -> Result<()> {
        let now_ns = monotonic_ns();
        if self.is_due(now_ns) {
            let completed = std::mem::take(&mut self.completed);
            send(output, &ClientReport::Progress(completed, p99_ns()))?;
            self.next_ns = now_ns + self.interval_ns;
        }
        Ok(())
    }
}

/// A reporter that the workload and the connection share: the workload counts records, the
/// connection replies.
pub(super) struct SharedProgress<'o>(RefCell<ReportState<'o>>);

struct ReportState<'o> {
    reporter: ProgressReporter,
    output: &'o mut dyn Write,
    outcome: Result<()>,
}

impl<'o> SharedProgress<'o> {
    pub(super) fn new(reporter: ProgressReporter, output: &'o mut dyn Write) -> Self {
        Self(RefCell::new(ReportState { reporter, output, outcome: Ok(()) }))
    }

    /// Adds completed records; 0 if only a reply arrived.
    pub(super) fn add(&self, completed: u64) {
        // Nothing that is called below calls this method.
        let ReportState { reporter, output, outcome } = &mut *self.0.borrow_mut();
        reporter.add(completed);
        if outcome.is_ok() {
            *outcome = reporter.report(output, || 0);
        }
    }

    /// The first error of a report, if any.
    pub(super) fn finish(self) -> Result<()> {
        self.0.into_inner().outcome
    }
}

/// A store that reports progress at each of its replies.
pub(super) struct ReportingStore<'t, 'o, A: ?Sized> {
    inner: &'t mut A,
    progress: &'t SharedProgress<'o>,
}

impl<'t, 'o, A: ?Sized> ReportingStore<'t, 'o, A> {
    pub(super) const fn new(inner: &'t mut A, progress: &'t SharedProgress<'o>) -> Self {
        Self { inner, progress }
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut A) -> T) -> T {
        let reply = call(self.inner);
        self.progress.add(0);
        reply
    }
}

/// Reports progress at the end of each request of a batch.
fn reporting<'s>(
    progress: &'s SharedProgress<'_>,
    sink: &'s mut BatchSink<'_>,
) -> impl FnMut(usize, StoreReply<'_>) + 's {
    move |number, reply| {
        if matches!(reply, StoreReply::Done(_)) {
            progress.add(0);
        }
        sink(number, reply);
    }
}

impl<A: StoreAccess + ?Sized> StoreAccess for ReportingStore<'_, '_, A> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        self.call(|inner| inner.perform(request, receive))
    }

    fn find_and_change(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        parts: &[PartWrite<'_>],
        key: &mut Vec<u8>,
    ) -> Result<bool> {
        self.call(|inner| inner.find_and_change(table, tag, parts, key))
    }

    fn update(&mut self, read: RecordRead<'_>, work: &mut dyn Work) -> Result<bool> {
        self.call(|inner| inner.update(read, work))
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        let progress = self.progress;
        self.call(|inner| {
            inner.scan(range, &mut |key, bytes| {
                progress.add(0);
                receive(key, bytes);
            })
        })
    }
}

impl StoreConnection for ReportingStore<'_, '_, dyn StoreConnection + '_> {
    fn is_null(&self) -> bool {
        self.inner.is_null()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<BlockOutcome> {
        self.call(|inner| inner.run_block(operation, block))
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        self.call(|inner| inner.walk(table))
    }

    fn add(&mut self, counter: &[u8], times: u64) -> Result<()> {
        self.call(|inner| inner.add(counter, times))
    }

    fn counter(&mut self, counter: &[u8]) -> Result<i64> {
        self.call(|inner| inner.counter(counter))
    }

    fn add_member(&mut self, set: &[u8], member: &[u8]) -> Result<bool> {
        self.call(|inner| inner.add_member(set, member))
    }

    fn members(&mut self, set: &[u8], receive: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.call(|inner| inner.members(set, receive))
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        let progress = self.progress;
        self.call(|inner| {
            inner.transact(&mut |access| body(&mut ReportingStore::new(access, progress)))
        })
    }

    fn pipeline(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        let progress = self.progress;
        self.call(|inner| inner.pipeline(requests, &mut reporting(progress, sink)))
    }

    fn prefetch(&mut self, requests: &[Request<'_>]) {
        self.inner.prefetch(requests);
    }

    fn sends_ahead(&self) -> bool {
        self.inner.sends_ahead()
    }

    fn send_ahead(&mut self, requests: &[Request<'_>]) -> Result<()> {
        self.inner.send_ahead(requests)
    }

    fn receive_ahead(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        let progress = self.progress;
        self.call(|inner| inner.receive_ahead(requests, &mut reporting(progress, sink)))
    }
}

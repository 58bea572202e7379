//! Named crash points: places between two stores of a write path at which a test kills a process.

/// Passes the named crash point. Does nothing unless the crate is built with `crash-points`.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        $crate::crash::pass($name);
        #[cfg(test)]
        $crate::crash::injected_panic::pass($name);
    };
}
pub(crate) use crash_point;

/// Every crash point, in the order in which a write passes them. The crash test kills at each.
pub const POINTS: &[&str] = &[
    "pop.recorded",
    "pop.unlinked",
    "pop.counted",
    "pop.chained",
    "cut.classed",
    "pop.linked",
    "pop.pending",
    "alloc.done",
    "fill.header",
    "fill.part",
    "fill.block",
    "arena.stored",
    "append.recorded",
    "append.cleared",
    "append.stamped",
    "append.tail",
    "append.linked",
    "append.done",
    "aside.recorded",
    "aside.unlinked",
    "aside.cleared",
    "aside.released",
    "aside.done",
    "aside.moved",
    "operation.begun",
    "take.locked",
    "take.moved",
    "take.recorded",
    "take.cut",
    "take.done",
    "lock.recorded",
    "lock.taken",
    "lock.released",
    "publish.sealed",
    "publish.fields",
    "publish.recorded",
    "publish.committed",
    "publish.retired",
    "publish.unpended",
    "publish.cleared",
    "remove.stamped",
    "txn.line",
    "txn.named",
    "txn.locking",
    "txn.ring_locked",
    "txn.locked",
    "line.recorded",
    "line.linked",
    "line.finished",
    "txn.sealed",
    "event.sealed",
    "event.placed",
    "txn.prepared",
    "usage.locking",
    "usage.measured",
    "txn.recorded",
    "usage.reserved",
    "txn.intending",
    "txn.intended",
    "log.drawn",
    "log.placed",
    "log.claimed",
    "txn.decided",
    "txn.replacing",
    "txn.replaced",
    "entry.oldest",
    "entry.reserved",
    "entry.headed",
    "entry.written",
    "entry.numbered",
    "entry.appended",
    "txn.appended",
    "usage.settled",
    "txn.unpended",
    "hold.recorded",
    "hold.cleared",
    "hold.stamped",
    "hold.done",
    "event.retired",
    "txn.retired",
    "txn.cell_retired",
    "txn.unlocking",
    "txn.unlocked",
    "log.given_back",
    "txn.undone",
    "hold.released",
    "log.raised",
    "log.recorded",
    "log.published",
    "log.gap_stored",
    "log.gap_counted",
    "log.acknowledged",
    "txn.waking",
    "counter.sealed",
    "counter.adding",
    "counter.added",
    "flags.changed",
    "flags.drained",
    "count.named",
    "count.recorded",
    "count.committed",
    "count.added",
    "limits.cleared",
    "limits.drained",
    "limits.zeroed",
    "limits.begun",
    "limits.stored",
    "limits.flagged",
    "ring.sealed",
    "ring.recorded",
    "ring.published",
    "ring.finished",
    "frontier.tables",
    "frontier.raised",
    "chunk.locked",
    "chunk.paged",
    "chunk.recorded",
    "chunk.marked",
    "chunk.bumped",
    "chunk.done",
    "span.recorded",
    "span.extended",
    "span.bumped",
    "harvest.recorded",
    "harvest.marked",
    "harvest.cleared",
    "harvest.tail",
    "harvest.linked",
    "harvest.done",
    "open.recorded",
    "open.unlinked",
    "open.opened",
    "open.done",
    "free.recorded",
    "free.cut",
    "free.unstamped",
    "free.marked",
    "free.done",
    "join.freed",
    "join.recorded",
    "join.stamped",
    "join.linked",
    "join.retired",
    "join.moved",
    "evacuate.closed",
    "evacuate.copied",
    "evacuate.moved",
    "lines.recorded",
    "lines.replaced",
    "lines.retired",
    "evacuate.opened",
    "release.noted",
    "release.done",
    "split.locked",
    "split.recorded",
    "split.filling",
    "split.built",
    "split.committed",
    "split.zeroing",
    "split.zeroed",
    "split.doubling",
    "split.doubled",
    "split.stamped",
    "split.cut",
    "split.counted",
    "split.unlocked",
    "compact.recorded",
    "compact.done",
    "segment.published",
    "segment.committed",
    "recover.won",
    "recover.chunk",
    "recover.batch",
    "recover.free",
    "recover.transit",
    "recover.record",
    "recover.split",
    "recover.undone",
    "recover.line",
    "recover.compacted",
    "recover.unlocked",
    "recover.idle",
    "recover.unpinned",
    "attach.numbered",
    "attach.raised",
    "attach.claimed",
    "attach.unpinned",
    "attach.adopted",
    "attach.identity",
    "attach.alive",
    "attach.recovered",
    "attach.released",
    "detach.unpinned",
    "detach.free",
    "drop.marked",
    "drop.removed",
    "epoch.moved",
    "namespace.cleared",
    "namespace.filled",
    "namespace.named",
    "namespace.live",
    "namespace.counted",
    "namespace.reused",
    "namespace.changing",
    "namespace.changed",
    "removal.begun",
    "removal.walked",
    "removal.committed",
    "removal.finished",
    "repair.stored",
];

/// True if `NEARSTATE_PLANT` names this fault. Tests inject faults to check that they detect them.
/// Always false unless the crate is built with `crash-points`.
#[inline]
pub fn is_planted(fault: &str) -> bool {
    #[cfg(feature = "crash-points")]
    {
        use std::sync::OnceLock;
        static PLANTED: OnceLock<Option<String>> = OnceLock::new();
        let planted = PLANTED.get_or_init(|| std::env::var("NEARSTATE_PLANT").ok());
        planted.as_deref() == Some(fault)
    }
    #[cfg(not(feature = "crash-points"))]
    {
        let _ = fault;
        false
    }
}

/// Shifts the clock that decides when records expire, in this process only. `ms` is the total
/// difference to the machine's clock.
#[cfg(feature = "crash-points")]
pub fn shift_clock(ms: i64) {
    crate::clock::CLOCK_SHIFT_MS.store(ms, std::sync::atomic::Ordering::Relaxed);
}

/// Kills this process with SIGKILL if `NEARSTATE_CRASH_AT=name:n` names this point and it is passed
/// for the n-th time. With `name:n:stop` it stops the process with SIGSTOP. With
/// `NEARSTATE_JITTER=n` it yields the processor at one point in n, so that other processes run
/// between any two stores.
#[cfg(feature = "crash-points")]
pub(crate) fn pass(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    static PLAN: OnceLock<Option<(String, AtomicI64, bool)>> = OnceLock::new();
    let plan = PLAN.get_or_init(|| {
        let text = std::env::var("NEARSTATE_CRASH_AT").ok()?;
        let mut parts = text.split(':');
        let (point, nth) = (parts.next()?, parts.next()?);
        let is_stop = parts.next() == Some("stop");
        Some((point.to_owned(), AtomicI64::new(nth.parse().ok()?), is_stop))
    });
    if let Some((point, left, is_stop)) = plan
        && point == name
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        crate::system::signal_self(*is_stop);
    }
    trace(name);
    jitter();
}

/// How often the trace names a point, at most.
pub const TRACED_MAX: u32 = 4;

/// Appends the name of the point to the file that `NEARSTATE_CRASH_TRACE` names, the first
/// [`TRACED_MAX`] times. So a test learns which points a workload passes, without a kill at each.
#[cfg(feature = "crash-points")]
fn trace(name: &str) {
    use std::collections::BTreeMap;
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::sync::{Mutex, OnceLock, PoisonError};
    type Passed = (File, BTreeMap<String, u32>);
    static TRACE: OnceLock<Option<Mutex<Passed>>> = OnceLock::new();
    let trace = TRACE.get_or_init(|| {
        let path = std::env::var_os("NEARSTATE_CRASH_TRACE")?;
        let file = OpenOptions::new().create(true).append(true).open(path).ok()?;
        Some(Mutex::new((file, BTreeMap::new())))
    });
    if let Some(trace) = trace {
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, passed) = &mut *trace;
        let passed = passed.entry(name.to_owned()).or_default();
        *passed += 1;
        if *passed <= TRACED_MAX {
            // The test misses the point if this fails, and says so.
            let _ = writeln!(file, "{name}");
        }
    }
}

#[cfg(feature = "crash-points")]
fn jitter() {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static ONE_IN: OnceLock<u64> = OnceLock::new();
    static STATE: AtomicU64 = AtomicU64::new(0);
    let one_in = *ONE_IN.get_or_init(|| {
        STATE.store(u64::from(std::process::id()), Ordering::Relaxed);
        std::env::var("NEARSTATE_JITTER").ok().and_then(|n| n.parse().ok()).unwrap_or(0)
    });
    if one_in == 0 {
        return;
    }
    // SplitMix64: each process has its own stream.
    let mut word = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20;
    if word.is_multiple_of(one_in) {
        if (word / one_in).is_multiple_of(4) {
            std::thread::sleep(std::time::Duration::from_micros(30));
        } else {
            std::thread::yield_now();
        }
    }
}

/// Lets unit tests violate an invariant at any crash point.
#[cfg(test)]
pub(crate) mod injected_panic {
    use std::cell::RefCell;

    use nearstate_model::invariant;

    thread_local! {
        static PLAN: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
    }

    /// The next operations of this thread panic when they pass the point for the `nth` time.
    pub(crate) fn plan(point: &str, nth: u32) {
        PLAN.set(Some((point.to_owned(), nth)));
    }

    /// Cancels the plan. Returns true if it was executed.
    pub(crate) fn cancel() -> bool {
        PLAN.take().is_some_and(|(_, left)| left == 0)
    }

    pub(crate) fn pass(name: &str) {
        let is_due = PLAN.with_borrow_mut(|plan| match plan {
            Some((point, left)) if point == name && *left > 0 => {
                *left -= 1;
                *left == 0
            }
            _ => false,
        });
        invariant!(!is_due, "a test injected a violation at {name}");
    }
}

//! Background task that keeps the memory of the region usable for any size: it moves scattered
//! records together, and gives memory that stays free back to the host. It runs on one core, in
//! parts of some microseconds, and takes at most 2 % of its time ([`UpkeepPace`]).
//!
//! Every ten seconds it looks at the words of the chunks. A region in which it found nothing to do
//! for a minute, and in which no memory has come free since, is not looked at.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use nearstate_model::Result;
use nearstate_node::clock::Clock;
use nearstate_node::executor::{is_due, sleep, yield_now};
use nearstate_store::{FreeWatch, NamespaceUsage, OwnerLease, Session, since_boot};

use crate::purge_request::PurgeRequest;
use crate::server::RespServer;

/// How often the task looks at the region. Other processes change it without telling the node, so
/// a timer is needed. `MEMORY PURGE` wakes the task.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The share of the time that passes by which the clock of expiry moves towards that of the host,
/// so that no time to live is wrong by more.
const CLOCK_SHARE: u128 = 100;

/// The percentage of free memory in partly used chunks from which records are moved. Below it a
/// move would free less than it copies.
const FREE_SHARE_MIN: u64 = 50;

/// As [`FREE_SHARE_MIN`], after `MEMORY PURGE`.
const FREE_SHARE_MIN_PURGE: u64 = 10;

/// Units of 64 bytes between two looks at the clock: some tens of microseconds.
const UNITS_AT_ONCE: u64 = 64;

/// Work after which the task pauses, and the pause: 2 % of a core.
const BUSY_MAX: Duration = Duration::from_millis(1);
const BUSY_SHARE: u32 = 50;

/// The share of the region that stays with it, so that a burst of writes needs no pages.
const KEPT_SHARE: u64 = 16;

/// Looks after which memory that was free at each of them goes back to the host: a minute.
const LOOKS_FREE: u32 = 6;

/// Chunks that one call releases: about a millisecond.
const CHUNKS_AT_ONCE: u64 = 16;

/// Keeps the memory usable for the lifetime of the core.
pub(crate) async fn run(server: Arc<RespServer>, session: Rc<Session>, clock: Clock) {
    let mut upkeep = MemoryUpkeep::new(&session, clock, &server.upkeep_nanos);
    let mut soft_limits = SoftLimits::default();
    let mut moved = since_boot();
    loop {
        let is_purge = wait_for_look(&server.purge_request, LOOK_INTERVAL).await;
        // What fails now is tried again at the next look. A damaged region is reported by the
        // commands of clients.
        let _ = upkeep.look(is_purge).await;
        let _ = soft_limits.look(&session, server.settings.on_soft_limit);
        // Also after a look that a client has asked for: by the time that has passed.
        let step = since_boot().saturating_sub(moved).as_millis() / CLOCK_SHARE;
        if step > 0 {
            moved = since_boot();
            let _ = keep_clock(&session, u64::try_from(step).unwrap_or(u64::MAX));
        }
    }
}

/// Moves the clock of expiry of an owner that was a copy towards that of its host. In a cluster its
/// driver does so.
fn keep_clock(session: &Session, step_ms: u64) -> Result<()> {
    let is_clustered = session.owner_lease()? != OwnerLease::Unclustered;
    if session.following()?.is_none() && !is_clustered {
        session.approach_host_clock(step_ms)?;
    }
    Ok(())
}

/// Waits until a look is due. True: it is for `MEMORY PURGE`.
async fn wait_for_look(purge_request: &PurgeRequest, interval: Duration) -> bool {
    let mut tick = sleep(interval);
    poll_fn(|cx| match purge_request.poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => Pin::new(&mut tick).poll(cx).map(|()| false),
    })
    .await
}

/// The namespaces that exceed their soft limits.
#[derive(Debug, Default)]
struct SoftLimits {
    /// The numbers of those that were reported.
    exceeded: BTreeSet<u32>,
}

impl SoftLimits {
    /// Reports the namespaces that exceed their soft limits and did not before.
    fn look(&mut self, session: &Session, report: fn(&str, NamespaceUsage)) -> Result<()> {
        let mut exceeded = session.limited_namespaces()?;
        exceeded.retain(|(_, _, usage)| usage.is_above_soft_limit());
        for (name, number, usage) in &exceeded {
            if !self.exceeded.contains(number) {
                report(name, *usage);
            }
        }
        self.exceeded = exceeded.into_iter().map(|(_, number, _)| number).collect();
        Ok(())
    }
}

/// Work and pauses: of any time, at most one part in `BUSY_SHARE + 1` is work, and [`BUSY_MAX`]. An
/// idle node wakes at each look, every ten seconds: it reads one word, the words of the members and
/// the names of namespaces with limits, some microseconds.
#[derive(Debug, Default)]
struct UpkeepPace {
    /// Work since the last pause.
    busy: Duration,
}

impl UpkeepPace {
    /// The pause that is due after this work.
    fn pause_after(&mut self, work: Duration) -> Option<Duration> {
        self.busy += work;
        (self.busy >= BUSY_MAX).then(|| std::mem::take(&mut self.busy) * BUSY_SHARE)
    }
}

struct MemoryUpkeep<'s> {
    session: &'s Session,
    clock: Clock,
    pace: UpkeepPace,
    /// All work, in nanoseconds.
    nanos: &'s AtomicU64,
    /// The least number of bytes that were free as a whole since memory was given back.
    free_least: u64,
    looks: u32,
    /// Since the first of these looks.
    watch: Option<FreeWatch>,
    /// The work of these looks.
    steps: u64,
    /// Since then nothing was to do.
    idle_since: Option<FreeWatch>,
}

impl<'s> MemoryUpkeep<'s> {
    fn new(session: &'s Session, clock: Clock, nanos: &'s AtomicU64) -> Self {
        let pace = UpkeepPace::default();
        let (watch, steps, idle_since) = (None, 0, None);
        let (free_least, looks) = (u64::MAX, 0);
        Self { session, clock, pace, nanos, free_least, looks, watch, steps, idle_since }
    }

    /// Looks whether there is work and does it. Returns its steps: 0 if there was none.
    async fn look(&mut self, is_purge: bool) -> Result<u64> {
        if !is_purge && self.is_idle()? {
            return Ok(0);
        }
        if self.looks == 0 {
            self.watch = Some(self.session.watch_free()?);
            self.steps = 0;
        }
        let share = if is_purge { FREE_SHARE_MIN_PURGE } else { FREE_SHARE_MIN };
        let mut steps = self.defragment(share).await?;
        let free = self.session.free_chunk_bytes()?;
        (self.free_least, self.looks) = (self.free_least.min(free), self.looks + 1);
        if is_purge || self.looks >= LOOKS_FREE {
            let kept = self.session.region().inspect()?.bytes_max / KEPT_SHARE;
            // What was used in between may be used again soon.
            let keep = if is_purge { kept } else { kept.max(free - self.free_least) };
            steps += self.release(keep).await?;
            (self.free_least, self.looks) = (u64::MAX, 0);
            let is_idle = !is_purge && self.steps + steps == 0;
            self.idle_since = if is_idle { self.watch.take() } else { None };
        }
        self.steps += steps;
        Ok(steps)
    }

    /// True if nothing was to do, and nothing has come free since.
    fn is_idle(&mut self) -> Result<bool> {
        let Some(watch) = &self.idle_since else { return Ok(false) };
        let has_freed = self.session.has_freed(watch)?;
        if has_freed {
            self.idle_since = None;
        }
        Ok(!has_freed)
    }

    async fn defragment(&mut self, share: u64) -> Result<u64> {
        let mut since = self.clock.now();
        let Some(mut work) = self.session.defragment(share)? else {
            self.count(since);
            return Ok(0);
        };
        let mut steps = 1;
        while !work.step(UNITS_AT_ONCE)? {
            steps += 1;
            self.rest(since).await;
            since = self.clock.now();
        }
        self.count(since);
        Ok(steps)
    }

    async fn release(&mut self, keep: u64) -> Result<u64> {
        let mut steps = 0;
        loop {
            let since = self.clock.now();
            if self.session.release_free_memory(keep, CHUNKS_AT_ONCE)? == 0 {
                self.count(since);
                return Ok(steps);
            }
            steps += 1;
            self.rest(since).await;
        }
    }

    /// Pauses after work that began at this time, or lets others run whose turn it is.
    async fn rest(&mut self, since: u64) {
        let work = self.count(since);
        if let Some(pause) = self.pace.pause_after(work) {
            sleep(pause).await;
        } else if is_due() {
            yield_now().await;
        }
    }

    /// Counts the work that began at this time, and returns its duration.
    fn count(&self, since: u64) -> Duration {
        let work = self.clock.time(self.clock.now().saturating_sub(since));
        let nanos = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_node::executor::{Executor, ExecutorConfig};
    use nearstate_store::{CreateOptions, NamespaceLimits, Region, Schema};
    use std::cell::Cell;
    use std::io::Read as _;
    use std::path::Path;

    thread_local! {
        static REPORTS: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn a_namespace_above_its_soft_limit_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        let ns = session.namespace("tenant", &Schema::default()).unwrap();
        let limits = NamespaceLimits { soft_bytes: 1 << 10, hard_bytes: 1 << 20 };
        session.set_limits(ns, limits).unwrap();
        let mut soft = SoftLimits::default();
        let mut reports = || {
            soft.look(&session, |name, usage| {
                assert!(name == "tenant" && usage.used_bytes > 1 << 10);
                REPORTS.set(REPORTS.get() + 1);
            })
            .unwrap();
            REPORTS.take()
        };
        assert_eq!(reports(), 0);
        session.put(ns, b"k", &[1; 2000]).unwrap();
        assert_eq!((reports(), reports()), (1, 0));
        session.delete(ns, b"k").unwrap();
        assert_eq!(reports(), 0);
        session.put(ns, b"k", &[1; 2000]).unwrap();
        assert_eq!(reports(), 1, "it was below the limit in between");
    }

    /// Looks in a row without work after which a region is idle: the memory that is free as a whole
    /// is given back at every sixth.
    const LOOKS_IDLE: u32 = 2 * LOOKS_FREE;

    /// The parts of a file that are not zero.
    fn content(path: &Path) -> Vec<(u64, Vec<u8>)> {
        let (mut file, zeros) = (std::fs::File::open(path).unwrap(), vec![0; 1 << 16]);
        let (mut content, mut part) = (Vec::new(), zeros.clone());
        for number in 0.. {
            match file.read(&mut part).unwrap() {
                0 => break,
                count if part.get(..count) == zeros.get(..count) => {}
                _ => content.push((number, part.clone())),
            }
        }
        content
    }

    #[test]
    fn a_region_in_which_nothing_changes_is_looked_at_and_nothing_is_moved_or_stored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&path, &options).unwrap();
        let session = region.session().unwrap();
        let ns = session.namespace("ns", &Schema::default()).unwrap();
        for number in 0..8000_u32 {
            session.put(ns, &number.to_le_bytes(), &[1; 1000]).unwrap();
        }
        for number in (0..8000_u32).filter(|number| number % 10 != 0) {
            session.delete(ns, &number.to_le_bytes()).unwrap();
        }
        Executor::new(&ExecutorConfig::default()).unwrap().run(async move {
            let nanos = AtomicU64::new(0);
            let mut upkeep = MemoryUpkeep::new(&session, Clock::new_virtual(), &nanos);
            let (mut steps, mut idle) = (0, 0);
            while idle < LOOKS_IDLE {
                let work = upkeep.look(false).await.unwrap();
                (steps, idle) = (steps + work, if work == 0 { idle + 1 } else { 0 });
                assert!(steps < 100_000, "there is no end to it");
            }
            assert!(steps > 0, "nine of ten records were deleted");
            let before = content(&path);
            for look in 0..40 {
                assert_eq!(upkeep.look(false).await.unwrap(), 0, "look {look}");
            }
            assert!(content(&path) == before, "something was stored");
            // After a minute without work it costs nothing.
            let work = nanos.load(Ordering::Relaxed);
            for _ in 0..256 {
                assert_eq!(upkeep.look(false).await.unwrap(), 0);
            }
            assert!(upkeep.idle_since.is_some(), "it looks although nothing came free");
            assert_eq!(nanos.load(Ordering::Relaxed), work);
            let before = content(&path);
            session.put(ns, b"k", b"v").unwrap();
            assert!(content(&path) != before, "a change is seen");
            for number in (0..8000_u32).step_by(20) {
                session.delete(ns, &number.to_le_bytes()).unwrap();
            }
            assert!(!upkeep.is_idle().unwrap(), "records were deleted");
        });
    }

    /// The task sleeps for an hour, and is woken by the request of another thread.
    #[test]
    fn a_purge_wakes_the_task_that_waits_for_its_next_look() {
        let hour = Duration::from_secs(3600);
        Executor::new(&ExecutorConfig::default()).unwrap().run(async move {
            let request = Arc::new(PurgeRequest::default());
            request.set();
            assert!(wait_for_look(&request, hour).await, "requested before");
            let other = Arc::clone(&request);
            let thread = std::thread::Builder::new().spawn(move || other.set()).unwrap();
            assert!(wait_for_look(&request, hour).await);
            thread.join().unwrap();
            assert!(!wait_for_look(&request, Duration::ZERO).await, "each request counts once");
        });
    }

    #[test]
    fn the_time_of_a_look_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        Executor::new(&ExecutorConfig::default()).unwrap().run(async move {
            let nanos = AtomicU64::new(0);
            let mut upkeep = MemoryUpkeep::new(&session, Clock::new(), &nanos);
            assert_eq!(upkeep.look(false).await.unwrap(), 0, "there is no work");
            let first = nanos.load(Ordering::Relaxed);
            upkeep.look(false).await.unwrap();
            assert!(first > 0 && nanos.load(Ordering::Relaxed) > first);
        });
    }

    /// Steps from a microsecond to 20 ms, as a stopped or preempted task has them.
    #[test]
    fn work_takes_two_percent_of_a_core_at_most() {
        let (mut pace, mut random) = (UpkeepPace::default(), 88_172_645_463_325_252_u64);
        let (mut busy, mut time) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..100_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let largest = 1 << ((random >> 32) % 15);
            let work = Duration::from_micros(1 + (random >> 8) % largest);
            (busy, time) = (busy + work, time + work);
            time += pace.pause_after(work).unwrap_or_default();
            let since_pause = pace.busy;
            assert!(since_pause < BUSY_MAX);
            assert!(busy * 50 <= time + since_pause * 50, "{busy:?} of {time:?}");
        }
        assert!(busy * 52 > time, "it does not pause longer than it must");
    }
}

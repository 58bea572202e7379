//! Background task that keeps the memory of the region usable for any size: it moves scattered
//! records together, and gives memory that stays free back to the host. It runs on one core, in
//! parts of some microseconds, and takes at most [`BUSY_SHARE`] of its time.
//!
//! A region without scattered or free memory costs a look at the words of its chunks every ten
//! seconds.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nearstate_model::Result;
use nearstate_node::clock::Clock;
use nearstate_node::executor::{is_due, sleep, yield_now};
use nearstate_store::{NamespaceUsage, Session};

use crate::server::RespServer;

/// How often the task looks whether `MEMORY PURGE` was called.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Number of these after which it checks the region: every ten seconds.
const LOOK_POLLS: u32 = 10;

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
    let mut upkeep = MemoryUpkeep { session: &session, clock, free_least: u64::MAX, looks: 0 };
    let mut soft_limits = SoftLimits::default();
    let mut polls = 0;
    loop {
        sleep(POLL_INTERVAL).await;
        polls += 1;
        let is_purge = server.purge_requested.swap(false, Ordering::Relaxed);
        if is_purge || polls >= LOOK_POLLS {
            // What fails now is tried again at the next look. A damaged region is reported by the
            // commands of clients.
            let _ = upkeep.look(is_purge).await;
            let _ = soft_limits.look(&session, server.settings.on_soft_limit);
            polls = 0;
        }
    }
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

struct MemoryUpkeep<'s> {
    session: &'s Session,
    clock: Clock,
    /// The least number of bytes that were free as a whole since memory was given back.
    free_least: u64,
    looks: u32,
}

impl MemoryUpkeep<'_> {
    async fn look(&mut self, is_purge: bool) -> Result<()> {
        let share = if is_purge { FREE_SHARE_MIN_PURGE } else { FREE_SHARE_MIN };
        self.defragment(share).await?;
        let free = self.session.free_chunk_bytes()?;
        (self.free_least, self.looks) = (self.free_least.min(free), self.looks + 1);
        if is_purge || self.looks >= LOOKS_FREE {
            let kept = self.session.region().inspect()?.bytes_max / KEPT_SHARE;
            // What was used in between may be used again soon.
            let keep = if is_purge { kept } else { kept.max(free - self.free_least) };
            self.release(keep).await?;
            (self.free_least, self.looks) = (u64::MAX, 0);
        }
        Ok(())
    }

    async fn defragment(&self, share: u64) -> Result<()> {
        let Some(mut work) = self.session.defragment(share)? else { return Ok(()) };
        let mut since = self.clock.now();
        while !work.step(UNITS_AT_ONCE)? {
            let busy = self.since(since);
            if busy >= BUSY_MAX {
                sleep(busy * BUSY_SHARE).await;
                since = self.clock.now();
            } else if is_due() {
                yield_now().await;
            }
        }
        Ok(())
    }

    async fn release(&self, keep: u64) -> Result<()> {
        loop {
            let since = self.clock.now();
            if self.session.release_free_memory(keep, CHUNKS_AT_ONCE)? == 0 {
                return Ok(());
            }
            sleep(self.since(since) * BUSY_SHARE).await;
        }
    }

    fn since(&self, ticks: u64) -> Duration {
        self.clock.time(self.clock.now().saturating_sub(ticks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_store::{CreateOptions, NamespaceLimits, Region, Schema};
    use std::cell::Cell;

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
}

//! Background task that gets pages from the host before writers need them, so that a new record
//! needs no system call. It runs on one core, in calls of some 100 us, which are 2 % of its time at
//! most while the region grows.
//!
//! In a region that does not grow it reads some words of the heap once a second.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nearstate_model::Result;
use nearstate_node::clock::Clock;
use nearstate_node::executor::sleep;
use nearstate_store::Session;

use crate::server::RespServer;

/// Pause while writers use what is ahead.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);

/// The longest pause while they do not. It doubles from look to look.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Chunks of 256 KiB that get pages in one look: 50 MiB a second. Faster writers use up what is
/// ahead, and then get pages for themselves.
const CHUNKS_AT_ONCE: u64 = 2;

/// Chunks ahead in a region that has not grown yet.
const AHEAD_AT_FIRST: u64 = 4;

/// Gets pages for the lifetime of the core.
pub(crate) async fn run(server: Arc<RespServer>, session: Rc<Session>, clock: Clock) {
    let mut pages = PagesAhead::default();
    loop {
        sleep(pages.interval).await;
        let since = clock.now();
        // A failure is tried again at the next look. The writes of clients report it.
        let _ = pages.look(&session);
        let work = clock.time(clock.now().saturating_sub(since));
        let nanos = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
        server.upkeep_nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// What the looks have found.
#[derive(Debug)]
struct PagesAhead {
    /// The pause before the next look.
    interval: Duration,
    /// Chunks that are kept ahead.
    ahead: u64,
    /// True once there were as many.
    is_complete: bool,
}

impl Default for PagesAhead {
    fn default() -> Self {
        Self { interval: BUSY_INTERVAL, ahead: AHEAD_AT_FIRST, is_complete: false }
    }
}

impl PagesAhead {
    /// Replaces some of what writers have used since the last look. Returns the number of chunks
    /// that got pages.
    fn look(&mut self, session: &Session) -> Result<u64> {
        let done = session.commit_ahead(self.ahead, CHUNKS_AT_ONCE);
        if let Ok(1..) = done {
            self.interval = BUSY_INTERVAL;
            if self.is_complete {
                // The region grows: as much as a region may have ahead.
                self.ahead = u64::MAX;
            }
        } else {
            self.interval = (2 * self.interval).min(IDLE_INTERVAL);
            self.is_complete = true;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_store::{CreateOptions, Region, Schema};

    #[test]
    fn a_region_that_grows_has_more_pages_ahead_and_one_that_does_not_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let options = CreateOptions { bytes_max: 256 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("r"), &options).unwrap();
        let session = region.session().unwrap();
        let ns = session.namespace("ns", &Schema::default()).unwrap();
        let mut pages = PagesAhead::default();
        let until_idle = |pages: &mut PagesAhead| {
            let mut done = 0;
            loop {
                match pages.look(&session).unwrap() {
                    0 => return done,
                    some => done += some,
                }
                assert_eq!(pages.interval, BUSY_INTERVAL);
            }
        };
        let before = session.free_chunk_bytes().unwrap() >> 18;
        assert_eq!(until_idle(&mut pages) + before, AHEAD_AT_FIRST);
        let on_disk = || region.inspect().unwrap().bytes_on_disk;
        let idle = on_disk();
        for _ in 0..20 {
            assert_eq!(pages.look(&session).unwrap(), 0);
        }
        assert_eq!((pages.interval, on_disk()), (IDLE_INTERVAL, idle));
        // Some chunks are used: now the region grows.
        for number in 0..2000_u32 {
            session.put(ns, &number.to_le_bytes(), &[1; 1000]).unwrap();
        }
        assert!(until_idle(&mut pages) > AHEAD_AT_FIRST);
        let ahead = session.free_chunk_bytes().unwrap();
        assert!((8 << 20..=16 << 20).contains(&ahead), "{ahead} bytes are ahead");
        // The upkeep of memory keeps as much.
        assert!(ahead <= options.bytes_max / 16);
    }
}

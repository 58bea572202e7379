//! Background task that gives the memory of freed buffers back to the system. Clients that do not
//! read can make the node buffer gigabytes, of which the allocator would keep most when they are
//! gone.

use std::sync::Arc;
use std::time::Duration;

use nearstate_node::executor::sleep;
use nearstate_store::release_allocator_memory;

use crate::server::RespServer;

/// How often the task looks at the buffered bytes, while more than [`RELEASED_MIN`] are or were
/// buffered, and otherwise. The peak since the last look is counted, so no burst is missed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// A smaller decrease stays with the allocator, for the next burst.
const RELEASED_MIN: u64 = 32 << 20;

/// Looks at which the buffered bytes must be that much lower. Buffers that are in use again a
/// moment later are not given back.
const LOOKS_BELOW: u32 = 2;

/// Releases the memory of freed buffers for the lifetime of the core.
pub(crate) async fn run(server: Arc<RespServer>) {
    let mut watch = BufferedBytes::default();
    loop {
        sleep(watch.interval()).await;
        let (stats, budget) = (&server.stats, &server.pubsub.budget);
        let peak = stats.take_bytes_buffered_peak() + budget.take_peak() as u64;
        if watch.look(peak, stats.bytes_buffered() + budget.bytes() as u64) {
            // Takes some tens of milliseconds per gigabyte, which no core should wait for. Without
            // the thread the memory stays with the allocator.
            let thread = std::thread::Builder::new().name("ns-trim".to_owned());
            let _ = thread.spawn(release_allocator_memory);
        }
    }
}

/// The bytes that clients make the node buffer, as the task saw them.
#[derive(Debug, Default)]
struct BufferedBytes {
    /// The most bytes since memory was given back.
    peak: u64,
    looks_below: u32,
}

impl BufferedBytes {
    /// The time until the next look.
    const fn interval(&self) -> Duration {
        if self.peak < RELEASED_MIN { IDLE_INTERVAL } else { POLL_INTERVAL }
    }

    /// Returns true if memory is to be given back: far fewer bytes are buffered than before.
    /// `peak` is the most bytes since the last look, and `bytes` the bytes now.
    fn look(&mut self, peak: u64, bytes: u64) -> bool {
        self.peak = self.peak.max(peak).max(bytes);
        if self.peak - bytes < RELEASED_MIN {
            self.looks_below = 0;
            return false;
        }
        self.looks_below += 1;
        if self.looks_below < LOOKS_BELOW {
            return false;
        }
        *self = Self { peak: bytes, looks_below: 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_after_much_was_freed_and_stays_free() {
        let mut watch = BufferedBytes::default();
        let mebibytes = |all: &[u64], watch: &mut BufferedBytes| -> Vec<bool> {
            all.iter().map(|mib| watch.look(0, mib << 20)).collect()
        };
        assert!(!mebibytes(&[0, 10, 30, 0, 0, 0], &mut watch).contains(&true));
        assert_eq!(watch.interval(), IDLE_INTERVAL);
        assert!(!watch.look(100 << 20, 0), "a short burst between two looks");
        assert_eq!(watch.interval(), POLL_INTERVAL);
        assert!(watch.look(0, 0));
        assert_eq!(watch.interval(), IDLE_INTERVAL);
        assert!(!mebibytes(&[1000, 0, 990, 0, 980, 1000], &mut watch).contains(&true));
        assert_eq!(
            mebibytes(&[500, 500, 500, 10, 5, 0], &mut watch),
            [false, true, false, false, true, false]
        );
    }
}

//! Background task that deletes expired records, so that their memory comes back although no
//! command reads or writes them. It runs on one core, in calls of some tens of microseconds,
//! between which the core serves clients.
//!
//! In a region without records that expire, it reads sixteen empty trees once a second. A deletion
//! is published only if clients have asked for events: then the notifier collects as well, sooner.
//! Expired records of a copy stay until the host that it follows has deleted them, so there is
//! nothing to do in a region that is one.
//!
//! How soon an expired record is collected: within [`IDLE_INTERVAL`] here, within 100 ms by
//! `keyspace_notifier.rs` if a client has asked for events or tracks keys, and by the notifier of
//! Nudsf in its namespaces. Before that, each write collects some of those that are due.

use std::rc::Rc;
use std::time::Duration;

use nearstate_node::executor::{sleep, yield_now};
use nearstate_store::{Error, Session};

/// Pause after a round that found no more. A record that expires meanwhile keeps its memory for
/// this time; no command returns it.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Pause after a round that left some.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);

/// Pause after a failure other than a full log or region. While a stopped process holds the locks
/// of expired records, a call may occupy the core for four seconds.
const FAILURE_INTERVAL: Duration = Duration::from_secs(60);

/// Records deleted per call: some tens of microseconds.
const COLLECTED: usize = 8;

/// Calls per round: ten thousand records a second, some percent of a core.
const CALLS: usize = 128;

/// Collects for the lifetime of the core.
pub(crate) async fn run(session: Rc<Session>) {
    loop {
        sleep(collect(&session).await).await;
    }
}

/// One round. Returns the pause until the next one.
async fn collect(session: &Session) -> Duration {
    // A copy: one call could look at each record that has expired, and delete none.
    if session.following().is_ok_and(|following| following.is_some()) {
        return IDLE_INTERVAL;
    }
    for _ in 0..CALLS {
        let collected = session.collect_expired(COLLECTED);
        // No reply waits for the deletion of an expired record.
        session.take_owed_receipt();
        match collected {
            Ok(collected) if collected.has_more => yield_now().await,
            // The errors are of a follower that is behind, or a reader: over in milliseconds.
            Ok(_) | Err(Error::Behind { .. } | Error::Full { .. }) => return IDLE_INTERVAL,
            // Reported by the commands that fail in the same way.
            Err(_) => return FAILURE_INTERVAL,
        }
    }
    BUSY_INTERVAL
}

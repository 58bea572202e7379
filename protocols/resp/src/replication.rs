//! Followers of the region, as `WAIT`, `ROLE` and `INFO replication` show them.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nearstate_store::{FollowState, Receipt};

/// The pauses of a client that waits for a follower. The first one is as long as a round trip on
/// one host. They double up to the second one, and are then a quarter of the time that it has
/// waited: its reply is late by that at most.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_SHORT_MAX: Duration = Duration::from_millis(1);
const PAUSE_SHARE: u32 = 4;

/// The longest pause. Five thousand clients whose `WAIT` never ends use a few per cent of a core.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A follower of the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its address.
    pub address: SocketAddr,
    /// The last position of the log that it has acknowledged.
    pub position: u64,
    /// True while it gets all records.
    pub is_joining: bool,
    /// Seconds since its last acknowledgement.
    pub lag_seconds: u64,
}

/// Where the followers are listed.
pub trait ReplicaSource: Debug + Send + Sync {
    /// The followers at this moment.
    fn replicas(&self) -> Vec<Replica>;
}

/// The followers of the region, once the node serves some.
#[derive(Debug, Default)]
pub struct Replicas(OnceLock<Arc<dyn ReplicaSource>>);

impl Replicas {
    /// Sets where they are listed. A second call has no effect.
    pub fn set(&self, source: Arc<dyn ReplicaSource>) {
        let _ = self.0.set(source);
    }

    /// The followers at this moment.
    pub fn list(&self) -> Vec<Replica> {
        self.0.get().map_or_else(Vec::new, |source| source.replicas())
    }

    /// The number of followers that have a position of the log.
    pub fn count_with(&self, position: u64) -> usize {
        let has = |one: &Replica| !one.is_joining && one.position >= position;
        self.list().iter().filter(|one| has(one)).count()
    }
}

/// A master that clients of a Sentinel can ask for: a partition of a cluster, and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// The name of the partition.
    pub name: String,
    /// The name or address where clients reach the owner.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Rises whenever another host may own the partition.
    pub epoch: u64,
    /// True if nothing shows that it may still serve: its lease has ended, or it is not heard.
    pub is_down: bool,
}

/// Where the masters are listed.
pub trait MasterSource: Debug + Send + Sync {
    /// The masters at this moment. A partition without an owner is not among them.
    fn masters(&self) -> Vec<Master>;
}

/// The masters of a cluster. Without a source, the server itself is the only master.
#[derive(Debug, Default)]
pub struct Masters(OnceLock<Arc<dyn MasterSource>>);

impl Masters {
    /// Sets where they are listed. A second call has no effect.
    pub fn set(&self, source: Arc<dyn MasterSource>) {
        let _ = self.0.set(source);
    }

    /// The masters at this moment; `None`: the server is the only one.
    pub fn list(&self) -> Option<Vec<Master>> {
        self.0.get().map(|source| source.masters())
    }
}

/// A `WAIT` that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaWait {
    /// What is waited for.
    pub receipt: Receipt,
    /// When it began, since the machine's start.
    pub begun: Duration,
    pause: Duration,
}

impl ReplicaWait {
    /// Waits for a receipt from this moment on.
    pub const fn new(receipt: Receipt, begun: Duration) -> Self {
        Self { receipt, begun, pause: PAUSE_MIN }
    }

    /// How long the next pause is, at this moment, of which at most `left` is left.
    pub fn next_pause(&mut self, now: Duration, left: Option<Duration>) -> Duration {
        let waited = now.saturating_sub(self.begun);
        let pause = self.pause.max((waited / PAUSE_SHARE).min(PAUSE_MAX));
        self.pause = (self.pause * 2).min(PAUSE_SHORT_MAX);
        left.map_or(pause, |left| pause.min(left))
    }
}

/// The word of `ROLE` for how far a replica is.
pub const fn state_word(state: FollowState) -> &'static str {
    match state {
        FollowState::Joining | FollowState::Extending | FollowState::Demoting => "sync",
        FollowState::Full => "connected",
        FollowState::Promoting => "handshake",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_does_not_end_looks_ten_times_a_second() {
        let begun = Duration::from_secs(1000);
        let mut wait = ReplicaWait::new(Receipt::NONE, begun);
        let (mut now, mut looks) = (begun, 0);
        while now < begun + Duration::from_secs(60) {
            let waited = now.saturating_sub(begun);
            let pause = wait.next_pause(now, None);
            assert!(pause <= PAUSE_SHORT_MAX.max(waited / PAUSE_SHARE), "{pause:?} at {waited:?}");
            now += pause;
            looks += 1;
        }
        assert!(looks < 650, "{looks} looks in a minute");
        let left = Duration::from_micros(10);
        assert_eq!(wait.next_pause(now, Some(left)), left);
    }
}

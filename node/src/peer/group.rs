//! What the connections of one partition share with the driver of its group
//! (`docs/decisions/026-cluster.md`): the view, the promise, the freeze, and what a successor needs.
//!
//! ```text
//! follower's thread, for what has arrived       driver
//! A1  take the turn                             F1  take the turn
//! A2  view seen > view of the connection: end   F2  the promise has not ended: refuse
//! A3  apply                                     F3  view seen := view, in the region
//! A4  promise := now + lease                    F4  read what was applied, give the turn back
//! A5  send the acknowledgement
//! ```
//!
//! A4 and F2 cannot overlap, so no acknowledgement is sent behind a freeze, and none is sent whose
//! promise the freeze does not know.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearstate_store::{Takeover, lease_clock};
use nearstate_wire::Place;

use super::kept::KeptLog;

/// What happens to the connections of a partition. The driver of the group decides what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionInput {
    /// Owner: a member is connected.
    MemberConnected {
        /// Its name.
        host: String,
        /// The view of the connection.
        view: u64,
        /// True if it gets all records first.
        joins: bool,
    },
    /// Owner: a member has everything up to a position of the owner's log, in its region. It has
    /// promised, if `sent_at` is present.
    MemberAcknowledged {
        /// Its name.
        host: String,
        /// The view of the connection.
        view: u64,
        /// The position.
        position: u64,
        /// When the position message that it answers was sent, by the owner's clock of leases.
        sent_at: Option<Duration>,
    },
    /// Owner: a member that answers a position message does not have everything yet.
    MemberJoins {
        /// Its name.
        host: String,
        /// The view of the connection.
        view: u64,
    },
    /// Owner: the connection of a member has ended.
    MemberLeft {
        /// Its name.
        host: String,
        /// The view of the connection.
        view: u64,
        /// The reason.
        reason: String,
    },
    /// Member: a position message of the owner has arrived, and is answered. This host has promised
    /// until `promised_until`.
    OwnerHeard {
        /// The view of the connection.
        view: u64,
        /// The end of the promise, by this host's clock of leases.
        promised_until: Duration,
        /// What counts as replicated at the owner.
        replicated: u64,
        /// What this host has applied.
        applied: u64,
    },
    /// Member: the connection to the owner has ended. It connects again.
    OwnerLost {
        /// The view of the connection.
        view: u64,
        /// The reason.
        reason: String,
    },
    /// Member: no further connection helps, for the reason.
    FollowFailed {
        /// The view of the connection.
        view: u64,
        /// The reason.
        reason: String,
    },
    /// A host that is in a higher view has said so.
    HigherView {
        /// Its view.
        view: u64,
    },
}

/// Takes what happens. It is called on the threads of the connections, so it does not wait.
pub type PartitionInputs = Arc<dyn Fn(PartitionInput) + Send + Sync>;

/// What a promoted host needs to bring members from the old log to its own.
#[derive(Debug)]
pub(crate) struct CatchUp {
    pub(crate) takeover: Takeover,
    /// The number of each namespace in the old log and in the own one.
    pub(crate) numbers: Vec<(u32, u32)>,
    /// What it has kept of the old log. Empty after a restart of the process.
    pub(crate) kept: KeptLog,
}

/// What the connections of a partition share.
pub(crate) struct Group {
    pub(crate) cluster_id: [u8; 16],
    pub(crate) partition: u32,
    pub(crate) lease: Duration,
    pub(crate) inputs: PartitionInputs,
    /// The view in which members are served, 0 if none are.
    served_view: AtomicU64,
    promise: Mutex<Duration>,
    /// How many threads want to freeze: the follower lets them go first.
    freezing: AtomicUsize,
    kept: Mutex<KeptLog>,
    catch_up: Mutex<Option<Arc<CatchUp>>>,
    is_settled: AtomicBool,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("partition", &self.partition).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The turn of a thread that applies, or that freezes, and the end of the promise.
pub(crate) struct Turn<'g> {
    promise: MutexGuard<'g, Duration>,
    lease: Duration,
}

impl Turn<'_> {
    /// A4. Returns the end of the promise.
    pub(crate) fn promise(&mut self) -> Duration {
        *self.promise = (*self.promise).max(lease_clock() + self.lease);
        *self.promise
    }

    /// F2: the end of the promise, if it has not come.
    pub(crate) fn promised(&self) -> Option<Duration> {
        Some(*self.promise).filter(|until| lease_clock() < *until)
    }
}

impl Group {
    /// A host that has started promises for one lease: what it has promised before is unknown.
    pub(crate) fn new(
        (cluster_id, partition): ([u8; 16], u32),
        lease: Duration,
        inputs: PartitionInputs,
    ) -> Self {
        Self {
            cluster_id,
            partition,
            lease,
            inputs,
            served_view: AtomicU64::new(0),
            promise: Mutex::new(lease_clock() + lease),
            freezing: AtomicUsize::new(0),
            kept: Mutex::new(KeptLog::default()),
            catch_up: Mutex::new(None),
            is_settled: AtomicBool::new(false),
        }
    }

    pub(crate) const fn place(&self, view: u64) -> Place {
        Place { cluster_id: self.cluster_id, partition: self.partition, view }
    }

    pub(crate) fn tell(&self, input: PartitionInput) {
        (self.inputs)(input);
    }

    pub(crate) fn served_view(&self) -> u64 {
        self.served_view.load(Ordering::Acquire)
    }

    pub(crate) fn set_served_view(&self, view: u64) {
        self.served_view.store(view, Ordering::Release);
    }

    /// A1.
    pub(crate) fn turn_to_apply(&self) -> Turn<'_> {
        while self.is_freezing() {
            std::thread::yield_now();
        }
        Turn { promise: locked(&self.promise), lease: self.lease }
    }

    /// True if a thread wants to freeze: the follower gives the turn back.
    pub(crate) fn is_freezing(&self) -> bool {
        self.freezing.load(Ordering::Acquire) > 0
    }

    /// F1. Waits at most until what is applied at present is applied.
    pub(crate) fn turn_to_freeze(&self) -> Turn<'_> {
        self.freezing.fetch_add(1, Ordering::AcqRel);
        let turn = Turn { promise: locked(&self.promise), lease: self.lease };
        self.freezing.fetch_sub(1, Ordering::AcqRel);
        turn
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, KeptLog> {
        locked(&self.kept)
    }

    pub(crate) fn catch_up(&self) -> Option<Arc<CatchUp>> {
        locked(&self.catch_up).clone()
    }

    pub(crate) fn set_catch_up(&self, catch_up: Option<CatchUp>) {
        *locked(&self.catch_up) = catch_up.map(Arc::new);
    }

    /// True at the first call since [`Group::unsettle`].
    pub(crate) fn settles(&self) -> bool {
        !self.is_settled.swap(true, Ordering::AcqRel)
    }

    /// The receipts of the region's own log are open again.
    pub(crate) fn unsettle(&self) {
        self.is_settled.store(false, Ordering::Release);
    }
}

/// The numbers of a switch, by the number in the old log.
pub(crate) fn by_old_number(numbers: &[(u32, u32)]) -> BTreeMap<u32, u32> {
    numbers.iter().copied().collect()
}

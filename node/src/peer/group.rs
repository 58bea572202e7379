//! What the connections of one partition share with the driver of its group
//! (`docs/decisions/026-cluster.md`): the view, the stamps, the freeze, and what a successor needs.
//!
//! ```text
//! follower's thread, for what has arrived            driver
//! A1  take the turn                                  F1  take the turn
//! A2  view seen > view of the connection: end        F2  view seen := view, in the region
//! A3  apply, give the turn back                      F3  read what was applied, give the turn back
//! A4  tell the driver of position messages
//! A5  acknowledge, with the stamp that it may answer
//! ```
//!
//! F2 precedes every later A2, so nothing is applied behind F3. What A5 acknowledges was applied
//! before, so F3 has read it. The driver has promised before it lets a stamp be answered, and
//! freezes after the promise.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearstate_store::Takeover;
use nearstate_wire::{PartitionPlace, SharedSettings};

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
        /// The number of the connection: later ones have higher numbers.
        connection: u64,
    },
    /// Owner: a member has acknowledged.
    MemberAcknowledged {
        /// Its name.
        host: String,
        /// The view of the connection.
        view: u64,
        /// The number of the connection.
        connection: u64,
        /// The position of the owner's log up to which the member has everything in its region.
        /// `None`: it has gaps.
        position: Option<u64>,
        /// The time of the owner's clock of leases before it sent the position message that is
        /// answered, in nanoseconds; 0 if none is.
        stamp: u64,
    },
    /// Owner: the log cannot keep what a member lacks. It joins when it connects again.
    MemberBehind {
        /// Its name.
        host: String,
        /// The view of the connection.
        view: u64,
        /// The number of the connection.
        connection: u64,
    },
    /// Owner: a member has an entry of this very log that the region has not. Its hello was
    /// refused. It is a claim: the name is proven by a certificate, or by nothing.
    MemberAhead {
        /// Its name.
        host: String,
        /// The view of the hello, which is the one that is served.
        view: u64,
    },
    /// Owner: the connection of a member has ended.
    MemberLeft {
        /// Its name.
        host: String,
        /// The view of the connection.
        view: u64,
        /// The number of the connection.
        connection: u64,
        /// The reason.
        reason: String,
    },
    /// Owner whose copy suffices: everything up to a position of its log is decided.
    LogWritten {
        /// The view in which it was asked for.
        view: u64,
        /// The position.
        position: u64,
    },
    /// Member: a position message has arrived. It may be answered after
    /// [`Partition::answer`](crate::Partition::answer).
    PositionReceived {
        /// The view of the connection.
        view: u64,
        /// The time of the owner's clock before it was sent.
        stamp: u64,
        /// The highest stamp that was answered, as far as the owner knows.
        answered: u64,
        /// True if the owner has a lease.
        is_leased: bool,
        /// What counts as replicated at the owner.
        replicated: u64,
        /// The position that this host has applied; 0 while it joins.
        applied: u64,
    },
    /// Member: the copy has all records of a moment from now on.
    Joined {
        /// The view of the connection.
        view: u64,
        /// The position.
        position: u64,
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
    /// Member: the owner of the view is not yet done with its promotion.
    OwnerPromotes {
        /// The view.
        view: u64,
        /// The steps of the promotion that are done.
        steps: u64,
    },
    /// A host that is in a higher view has said so.
    HigherView {
        /// Its view.
        view: u64,
    },
    /// A thread of the copy has ended by a panic: nothing follows, or reads the log, any more.
    Panicked {
        /// The name of the thread.
        thread: &'static str,
    },
}

/// Tells the driver that its thread has ended by a panic.
pub(crate) struct PanicInput {
    pub(crate) thread: &'static str,
    pub(crate) inputs: PartitionInputs,
}

impl Drop for PanicInput {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.inputs)(PartitionInput::Panicked { thread: self.thread });
        }
    }
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
pub(crate) struct PartitionGroup {
    pub(crate) cluster_id: [u8; 16],
    pub(crate) partition: u32,
    pub(crate) lease: Duration,
    /// Hosts with other ones are refused.
    pub(crate) settings: SharedSettings,
    pub(crate) inputs: PartitionInputs,
    /// The view in which members are served, 0 if none are.
    served_view: AtomicU64,
    /// The number of the last connection.
    connections: AtomicU64,
    /// What every full member has applied, as the driver says.
    floor: AtomicU64,
    /// The highest view in which the own copy suffices, or did: while it is served, the floor may
    /// be ahead of followers. It never falls, so an order of an earlier view that is carried out
    /// late takes nothing back.
    watched_view: AtomicU64,
    /// When the driver has worked last, by the clock of leases in nanoseconds.
    worked_at: AtomicU64,
    /// The highest stamp of each member that the driver has counted.
    counted: Mutex<BTreeMap<String, u64>>,
    /// The highest stamp that may be answered, with its view.
    answer: Mutex<(u64, u64)>,
    turn: Mutex<()>,
    /// How many threads want to freeze: the follower lets them go first.
    freezing: AtomicUsize,
    kept: Mutex<KeptLog>,
    catch_up: Mutex<Option<Arc<CatchUp>>>,
    promotion: Mutex<PromotionProgress>,
    is_settled: AtomicBool,
}

/// A promotion that goes on, for members that wait for its end.
#[derive(Default)]
struct PromotionProgress {
    /// Its view, and the number of its steps.
    present: Option<(u64, Arc<AtomicU64>)>,
    /// The view in which one has failed: what is done again there is no progress.
    failed: u64,
}

impl fmt::Debug for PartitionGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionGroup").field("partition", &self.partition).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The turn of a thread that applies, or that freezes.
pub(crate) struct Turn<'g>(
    #[expect(dead_code, reason = "held until it is dropped")] MutexGuard<'g, ()>,
);

impl PartitionGroup {
    pub(crate) fn new(
        (cluster_id, partition): ([u8; 16], u32),
        (lease, settings): (Duration, SharedSettings),
        inputs: PartitionInputs,
    ) -> Self {
        Self {
            cluster_id,
            partition,
            lease,
            settings,
            inputs,
            served_view: AtomicU64::new(0),
            worked_at: AtomicU64::new(0),
            counted: Mutex::default(),
            answer: Mutex::new((0, 0)),
            connections: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            watched_view: AtomicU64::new(0),
            turn: Mutex::new(()),
            freezing: AtomicUsize::new(0),
            kept: Mutex::new(KeptLog::default()),
            catch_up: Mutex::new(None),
            promotion: Mutex::default(),
            is_settled: AtomicBool::new(false),
        }
    }

    pub(crate) const fn place(&self, view: u64) -> PartitionPlace {
        PartitionPlace { cluster_id: self.cluster_id, partition: self.partition, view }
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

    pub(crate) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    /// The own copy suffices in a view.
    pub(crate) fn watch_in(&self, view: u64) {
        self.watched_view.fetch_max(view, Ordering::AcqRel);
    }

    /// Does the own copy suffice in the view that is served, or did it?
    pub(crate) fn is_watched(&self) -> bool {
        let served = self.served_view();
        served != 0 && self.watched_view.load(Ordering::Acquire) == served
    }

    /// It never falls, until the log is another one.
    pub(crate) fn raise_floor(&self, floor: u64) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
    }

    pub(crate) fn clear_floor(&self) {
        self.floor.store(0, Ordering::Release);
    }

    /// When the driver has worked last. It keeps the lease and counts the answers of members, so an
    /// owner says only up to here that it hears them.
    pub(crate) fn worked_at(&self) -> u64 {
        self.worked_at.load(Ordering::Acquire)
    }

    pub(crate) fn set_worked_at(&self, at_ns: u64) {
        self.worked_at.fetch_max(at_ns, Ordering::AcqRel);
    }

    /// The highest stamp that a member has sent back, as the driver counts it. An answer on a
    /// connection that does not count extends no lease, so the member is not heard by it.
    pub(crate) fn counted(&self, host: &str) -> u64 {
        locked(&self.counted).get(host).copied().unwrap_or(0)
    }

    pub(crate) fn set_counted(&self, host: &str, stamp: u64) {
        let mut counted = locked(&self.counted);
        match counted.get_mut(host) {
            Some(known) => *known = stamp,
            None => drop(counted.insert(host.to_owned(), stamp)),
        }
    }

    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// A stamp may be answered on a connection of this view.
    pub(crate) fn answer(&self, view: u64, stamp: u64) {
        let mut answer = locked(&self.answer);
        *answer = (*answer).max((view, stamp));
    }

    /// The highest stamp that may be answered in a view.
    pub(crate) fn answerable(&self, view: u64) -> Option<u64> {
        let (answered, stamp) = *locked(&self.answer);
        (answered == view).then_some(stamp)
    }

    /// A1.
    pub(crate) fn turn_to_apply(&self) -> Turn<'_> {
        while self.is_freezing() {
            std::thread::yield_now();
        }
        Turn(locked(&self.turn))
    }

    /// True if a thread wants to freeze: the follower gives the turn back.
    pub(crate) fn is_freezing(&self) -> bool {
        self.freezing.load(Ordering::Acquire) > 0
    }

    /// F1. Waits at most until what is applied at present is applied.
    pub(crate) fn turn_to_freeze(&self) -> Turn<'_> {
        self.freezing.fetch_add(1, Ordering::AcqRel);
        let turn = Turn(locked(&self.turn));
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

    /// A promotion has begun in a view.
    pub(crate) fn begin_promotion(&self, view: u64, steps: Arc<AtomicU64>) {
        let mut promotion = locked(&self.promotion);
        if promotion.failed != view {
            promotion.present = Some((view, steps));
        }
    }

    /// The promotion has failed.
    pub(crate) fn fail_promotion(&self, view: u64) {
        *locked(&self.promotion) = PromotionProgress { present: None, failed: view };
    }

    /// The host serves, or does not become the owner.
    pub(crate) fn end_promotion(&self) {
        locked(&self.promotion).present = None;
    }

    /// How many steps a promotion in this view has made.
    pub(crate) fn promotion_steps(&self, view: u64) -> Option<u64> {
        let promotion = locked(&self.promotion);
        let (of, steps) = promotion.present.as_ref()?;
        (*of == view).then(|| steps.load(Ordering::Relaxed))
    }

    /// True at the first call since [`PartitionGroup::unsettle`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_to_stop_that_comes_late_does_not_end_the_watch_of_the_next_view() {
        let inputs: PartitionInputs = Arc::new(|_| ());
        let group =
            PartitionGroup::new(([1; 16], 1), (Duration::from_secs(1), <_>::default()), inputs);
        group.set_served_view(1);
        group.watch_in(1);
        assert!(group.is_watched());
        // The driver orders the watch at once; the copy's thread stops and serves some time later.
        group.watch_in(2);
        group.set_served_view(0);
        assert!(!group.is_watched());
        group.set_served_view(2);
        assert!(group.is_watched());
        // In the next view two copies are needed.
        group.set_served_view(0);
        group.set_served_view(3);
        assert!(!group.is_watched());
    }
}

//! What the driver and the copies' threads tell the program.

use std::sync::Arc;

use nearstate_cluster::{ClusterEvent, ClusterLevel, PartitionId};

use crate::partition::StoppedHolder;

/// Tells what happens. It is called on several threads and must not block.
pub(super) type Notices = Arc<dyn Fn(&ClusterNotice) + Send + Sync>;

/// What the log of the host says, and what starts and stops serving clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterNotice {
    /// Something has happened to a partition.
    Event(ClusterEvent),
    /// A region could not be used. It is tried again.
    Failed {
        /// Of which partition.
        partition: PartitionId,
        /// The reason.
        reason: String,
    },
    /// The region's file is a copy of the one that was bound, so the region counts as lost.
    CopiedFile {
        /// Of which partition.
        partition: PartitionId,
    },
    /// A process was stopped while it held a lock for which a change of the region's role, or the
    /// copy, waited.
    StoppedHolder {
        /// Of which partition.
        partition: PartitionId,
        /// What was done.
        stopped: StoppedHolder,
    },
    /// A drain has ended before the membership has decided it: writers are refused until it has.
    DrainUndecided {
        /// Of which partition.
        partition: PartitionId,
        /// What was not decided, and why.
        reason: String,
    },
    /// The wall clock of this host was stepped.
    ClockStepped {
        /// By so many milliseconds: forward, or back if it is negative.
        by_ms: i64,
    },
    /// The membership has stopped on this host.
    EngineFailed {
        /// The reason.
        reason: String,
    },
    /// The membership works again.
    EngineRecovered,
    /// A thread has ended by a panic: this host does not decide any more, or does not carry out
    /// what it decides. The process is to end, so that other hosts take over and a supervisor
    /// starts it again.
    Panicked {
        /// The name of the thread.
        thread: &'static str,
    },
    /// The members have decided a level that this program cannot do: it acts for no partition any
    /// more. The process is to end.
    LevelTooHigh {
        /// The decided level.
        decided: ClusterLevel,
        /// The highest one that this program can do.
        highest: ClusterLevel,
    },
    /// This host was added to the group of a partition of which it has no copy open
    /// ([`ClusterDriver::open_copy`](crate::ClusterDriver::open_copy)).
    CopyWanted {
        /// Of which partition.
        partition: PartitionId,
    },
    /// The host acts for no partition any more, because the membership has removed it; or it does
    /// again.
    Removed {
        /// Whether it is removed.
        is_removed: bool,
    },
}

/// Tells that its thread has ended by a panic.
pub(super) struct PanicNotice {
    pub(super) thread: &'static str,
    pub(super) notices: Notices,
}

impl Drop for PanicNotice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.notices)(&ClusterNotice::Panicked { thread: self.thread });
        }
    }
}

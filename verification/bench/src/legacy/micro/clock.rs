//! Which time a measurement counts.

use crate::legacy::protocol::monotonic_ns;
use clap::ValueEnum;

/// Which time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Clock {
    /// All of it.
    Wall,
    /// Only that in which the measuring thread ran. Says nothing of a server in another process,
    /// which is always measured by the wall.
    Thread,
}

impl Clock {
    /// Nanoseconds of it.
    pub fn now_ns(self) -> u64 {
        match self {
            Self::Wall => monotonic_ns(),
            Self::Thread => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
                seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
            }
        }
    }
}

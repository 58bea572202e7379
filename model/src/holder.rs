//! The process that holds something.

use std::fmt;

/// The process that holds what a caller waits for, so that an operator can act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id in the pid namespace of the holder.
    pub pid: u32,
    /// Command name of the holder (`/proc/PID/comm`) at the time when it attached.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

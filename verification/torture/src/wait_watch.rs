//! Whether an operation has waited for a lock. A loaded machine can delay any single operation. One
//! counts as delayed only if it used the processor meanwhile, as one that waits for a lock does.

use std::time::{Duration, Instant};

use crate::clock::thread_cpu;

/// A wait of nearly the store's bound for one lock, a second.
const STALL: Duration = Duration::from_millis(900);

/// The processor time that such a wait takes at least, also beside ten busy processes. An operation
/// that waits for nothing takes a thousandth of it.
const STALL_CPU: Duration = Duration::from_millis(30);

/// An operation of this thread that began.
#[derive(Debug)]
pub struct WaitWatch {
    begun: Instant,
    cpu: Duration,
}

impl WaitWatch {
    pub fn start() -> Self {
        Self { begun: Instant::now(), cpu: thread_cpu() }
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// True if the operation has waited for a lock.
    pub fn has_stalled(&self) -> bool {
        self.elapsed() > STALL && thread_cpu().saturating_sub(self.cpu) > STALL_CPU
    }
}

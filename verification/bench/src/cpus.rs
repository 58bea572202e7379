//! Where processes run: the one that measures on the last processor, its companion on the first.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    all: CpuSet,
    /// Where is measured.
    pub measuring: usize,
    /// Where companions and servers run.
    pub companion: usize,
}

impl Places {
    /// What the kernel allows this process; `None` where it does not say.
    pub fn look() -> Option<Self> {
        let all = sched_getaffinity(None).ok()?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        let companion = allowed.next()?;
        Some(Self { all, measuring: allowed.next_back().unwrap_or(companion), companion })
    }

    /// Every processor that this process may use, in ascending order.
    pub fn all(&self) -> Vec<usize> {
        (0..CpuSet::MAX_CPU).filter(|cpu| self.all.is_set(*cpu)).collect()
    }

    /// Lets this process, and those that it starts from now on, run anywhere again.
    pub fn unpin(&self) {
        // A refusal leaves it where it was, which costs accuracy only.
        let _ = sched_setaffinity(None, &self.all);
    }
}

/// Keeps this process, and those that it starts from now on, on one processor. False if the kernel
/// refuses.
pub fn pin(cpu: usize) -> bool {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).is_ok()
}

//! The processors on which processes and threads may run.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors on which this process may run, in ascending order; `None` if they are unknown.
pub fn allowed() -> Option<Vec<usize>> {
    let set = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Restricts this thread, and processes that it starts from now on, to these processors.
pub fn bind(cpus: &[usize]) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL);
        }
        set.set(*cpu);
    }
    sched_setaffinity(None, &set)
}

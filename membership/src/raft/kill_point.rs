//! The end of a process behind one of its writes, for tests.

/// Names the write behind which the process kills itself.
pub(super) const KILL_AT_WRITE: &str = "NEARSTATE_KILL_AT_WRITE";

/// Kills the process with SIGKILL behind the write that [`KILL_AT_WRITE`] names.
pub(super) fn pass_write() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static WRITES: AtomicU32 = AtomicU32::new(0);
    let at = std::env::var(KILL_AT_WRITE).ok().and_then(|at| at.parse::<u32>().ok());
    let Some(at) = at else { return };
    if WRITES.fetch_add(1, Ordering::AcqRel) + 1 == at {
        let id = std::process::id().to_string();
        let killed = std::process::Command::new("kill").args(["-9", &id]).status();
        panic!("not killed: {killed:?}");
    }
}

//! What the threads that keep a cluster together ask of the kernel, so that a busy machine or a
//! lack of memory does not delay them (`docs/decisions/043-lease-thread.md`).

use nearstate_model::Result;
use nearstate_store::{become_realtime, lock_program, raise_share};

/// The nice value of the thread of the membership. Its work comes from other hosts, so it is not
/// allowed to keep ordinary threads from running.
const MEMBERSHIP_NICE: i32 = -10;

/// Whether the threads ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RealtimeMode {
    /// They do not.
    #[default]
    Off,
    /// They run without what is refused.
    Auto,
    /// The host does not start without it.
    Require,
}

/// For the calling thread, which keeps leases. Both are asked for, also if one is refused.
///
/// # Errors
/// What is missing.
pub(crate) fn keep_leases() -> std::result::Result<u64, String> {
    let scheduled = granted(become_realtime(), "CAP_SYS_NICE or LimitRTPRIO=1");
    let locked = lock_program();
    let bytes = locked.as_ref().map_or(0, |bytes| *bytes);
    let locked = granted(locked.map(drop), "CAP_IPC_LOCK or a higher LimitMEMLOCK=");
    let missing: Vec<_> =
        [scheduled, locked].into_iter().filter_map(std::result::Result::err).collect();
    if missing.is_empty() { Ok(bytes) } else { Err(missing.join("; ")) }
}

/// For the calling thread, which orders the decisions of the cluster. If it is refused, the thread
/// runs as others do.
pub fn keep_membership() {
    let _ = raise_share(MEMBERSHIP_NICE);
}

/// Whether this process gets everything, on a thread that ends afterwards. Pages that were locked
/// stay locked. Returns their bytes.
///
/// # Errors
/// What is missing, and what grants it.
pub fn check_realtime() -> std::result::Result<u64, String> {
    let ask = || {
        let share = granted(raise_share(MEMBERSHIP_NICE), "CAP_SYS_NICE or LimitNICE=-10");
        match (keep_leases(), share) {
            (Ok(bytes), Ok(())) => Ok(bytes),
            (Err(missing), Ok(())) | (Ok(_), Err(missing)) => Err(missing),
            (Err(missing), Err(share)) => Err(format!("{missing}; {share}")),
        }
    };
    let thread = std::thread::Builder::new().name("ns-realtime".to_owned()).spawn(ask);
    let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    thread.join().unwrap_or_else(|_| Err("the thread has panicked".to_owned()))
}

fn granted(outcome: Result<()>, grant: &str) -> std::result::Result<(), String> {
    outcome.map_err(|error| format!("{error}: grant {grant}"))
}

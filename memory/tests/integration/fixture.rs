//! Processes and records for the tests of this program.

#![expect(clippy::unwrap_used, reason = "functions that tests share")]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearstate_memory::{CellHeader, CellKind, Member, Region, WriteDecision};
use nearstate_model::Error;

/// Excludes the other tests of this program: a fork copies the thread that calls it only, and locks
/// of other threads stay locked in the child.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn place(name: &str) -> PathBuf {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    Path::new(base).join(format!("nearstate-{name}-{}", std::process::id()))
}

/// Runs `work` in a forked child that ends without running anything of the parent's; its exit
/// status as `waitpid(2)` has it.
pub(crate) fn forked(work: impl FnOnce() -> bool) -> i32 {
    ended(started(work))
}

pub(crate) fn started(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: no other thread holds a lock that the child needs: the harness only waits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork");
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let code = i32::from(!matches!(done, Ok(true)));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    child
}

pub(crate) fn ended(child: i32) -> i32 {
    let mut status = -1;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status
}

pub(crate) fn put(region: &Region, key: &[u8]) -> Result<(), Error> {
    let member = region.member()?;
    let table = member.namespace(b"ue", 1)?;
    let hash = nearstate_memory::hash(region.seed(), key);
    let length = u16::try_from(key.len()).unwrap();
    let (kind, body) = (CellKind::Record, u32::from(length));
    let header = CellHeader {
        kind,
        flags: 0,
        namespace: table.index(),
        body,
        key: length,
        children: 0,
        hash,
    };
    member.operation(|| {
        let at = member.allocate_cell(&header)?;
        member.write_body(at, 0, key)?;
        let draft = nearstate_memory::PendingCell { at, body_crc: crc32fast::hash(key) };
        member.write_record(table, hash, key, Some(draft), |_| Ok(WriteDecision::Publish)).map(drop)
    })
}

pub(crate) fn has(region: &Region, key: &[u8]) -> Result<bool, Error> {
    let member = region.member()?;
    let table = member.namespace(b"ue", 1)?;
    let _pin = member.pin()?;
    Ok(member.find(table, nearstate_memory::hash(region.seed(), key), key)?.is_some())
}

pub(crate) fn remove(member: &Member, namespace: u32, key: &[u8]) {
    let hash = nearstate_memory::hash(member.seed(), key);
    let table = member.table(namespace).unwrap();
    let removed = member.write_record(table, hash, key, None, |_| Ok(WriteDecision::Remove));
    removed.unwrap();
}

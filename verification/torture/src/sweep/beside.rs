//! What other processes do while one is stopped in the middle of its operation: they attach, read
//! everything and write, also the records that the process is changing. Nothing waits, except a
//! write that needs a lock which the stopped process holds: it is refused within its bound, and the
//! refusal names the process.

use std::path::Path;

use nearstate_store::{Error, Region, Schema, Session};

use crate::error_context::ErrorContext as _;
use crate::sweep::cases::{
    KEPT, OTHER_RECORDS, OTHERS, SweptOperation, SweptRegion, plain, verify_kept,
};
use crate::wait_watch::WaitWatch;

/// Writes beside one stop: each is a new record and its deletion. The index of the namespace has
/// eight buckets or more, so that few of them need what one process holds.
const WRITES: u32 = 4;

/// Fails if an operation that succeeded has waited.
fn check(watch: &WaitWatch, what: &str) -> Result<(), String> {
    if watch.has_stalled() {
        return Err(format!("{what} waited {:?} for a lock", watch.elapsed()));
    }
    Ok(())
}

/// Works beside a stopped process. Returns how many operations were refused.
pub(crate) fn work_beside(
    folder: &Path,
    operation: &SweptOperation,
    stopped: u32,
    place: u64,
) -> Result<u64, String> {
    let watch = WaitWatch::start();
    let region = Region::attach(&folder.join("region"));
    if operation.region == SweptRegion::Damaged {
        // Whether it is damaged, held for the repair, or sound again: the answer comes at once.
        return check(&watch, "attaching").map(|()| 0);
    }
    let session = region.and_then(|region| region.session()).context("attach")?;
    verify_kept(&session)?;
    check(&watch, "attaching and reading")?;
    let mut refused = 0;
    for number in 0..WRITES {
        let is_done = write(&session, number, stopped)?;
        refused += u64::from(!is_done);
        // Each refusal takes a second.
        if !is_done {
            break;
        }
    }
    let is_created = create(&session, place, stopped)?;
    let are_rewritten = rewrite(&session, stopped)?;
    Ok(refused + u64::from(!is_created) + u64::from(!are_rewritten))
}

/// Stores each record that the stopped process may be changing once more as it is. False if that is
/// refused.
fn rewrite(session: &Session, stopped: u32) -> Result<bool, String> {
    let Some(others) = session.known_namespace(OTHERS).context("look up")? else {
        return Ok(true);
    };
    for number in 0..OTHER_RECORDS {
        let view = session.get(others, &[number]).context("get")?;
        let Some(value) = view.map(|view| view.bytes().to_vec()) else { continue };
        let watch = WaitWatch::start();
        let done = session.put(others, &[number], &value).map(drop);
        if !answered(done, &watch, &format!("rewriting record {number}"), stopped)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts and deletes a record. False if that is refused.
fn write(session: &Session, number: u32, stopped: u32) -> Result<bool, String> {
    let kept = plain(session, KEPT)?;
    let key = format!("beside-{number}").into_bytes();
    let watch = WaitWatch::start();
    let done = match session.put(kept, &key, &[3; 100]) {
        // A full heap is an answer.
        Ok(_) | Err(Error::Full { .. }) => session.delete(kept, &key),
        Err(error) => Err(error),
    };
    answered(done.map(drop), &watch, &format!("write {number}"), stopped)
}

/// Creates and removes a namespace.
fn create(session: &Session, place: u64, stopped: u32) -> Result<bool, String> {
    let watch = WaitWatch::start();
    let name = format!("beside-{place}");
    let done = match session.namespace(&name, &Schema::default()) {
        Ok(namespace) => session.remove_namespace(namespace).map(drop),
        Err(error) => Err(error),
    };
    answered(done, &watch, "creating a namespace", stopped)
}

/// True if an operation is done, without a wait; false if it is refused as it should be.
fn answered(
    done: Result<(), Error>,
    watch: &WaitWatch,
    what: &str,
    stopped: u32,
) -> Result<bool, String> {
    match done {
        Ok(()) => check(watch, what).map(|()| true),
        Err(Error::Stalled { holder }) if holder.pid == stopped => Ok(false),
        Err(Error::Full { .. }) => Ok(false),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

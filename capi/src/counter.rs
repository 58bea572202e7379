//! Counters: numbers that several processes can add to concurrently.

use crate::bytes::ns_bytes;
use crate::ffi::{Out, guard};
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;

/// Adds `delta` to a counter in a namespace of kind `NS_KIND_COUNTERS`. Creates the counter with
/// value 0 if it does not exist. Takes no lock, cannot conflict, and wraps around at 64 bits. When
/// the call has returned, every later read includes the addition, even if this process dies. It is
/// not part of any transaction. `ns_delete` deletes a counter.
///
/// Fails with `NS_WRONG_KIND` in another namespace, `NS_KEY_TOO_LARGE`, `NS_DAMAGED`, `NS_FORKED`,
/// `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`; if the counter is created also with `NS_FULL`,
/// `NS_STALLED`, `NS_LIMIT_REACHED`, `NS_DEADLINE`. A failed call adds nothing.
///
/// # Safety
/// Rules 1 and 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_counter_add(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    delta: i64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        session.store().add(session.namespace(namespace)?, key, delta)?;
        Ok(ns_status::NS_OK)
    })
}

/// Reads the value of a counter: `NS_NOT_FOUND` if it does not exist. The value includes all
/// additions that returned before the call, and possibly some that run concurrently.
///
/// Fails with `NS_WRONG_KIND`, `NS_KEY_TOO_LARGE`, `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_counter_read(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    sum: *mut i64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(sum, "the sum") }?;
        let Some(sum) = session.store().read_counter(session.namespace(namespace)?, key)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        out.put(sum);
        Ok(ns_status::NS_OK)
    })
}

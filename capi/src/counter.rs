//! Counters: numbers that any number of processes add to at once.

use crate::border::{Out, borrow, guard};
use crate::bytes::ns_bytes;
use crate::session::{ns_namespace, ns_session};
use crate::status::ns_status;

/// Adds to a counter, in a namespace of `NS_KIND_COUNTERS`; creates it at zero first if there is
/// none. No lock and no conflict; wraps round beyond 64 bits. Once this has returned, the add is in
/// every later read, whatever becomes of this process. It is no part of a transaction; `ns_delete`
/// takes a counter away.
///
/// Fails with `NS_WRONG_KIND` in another namespace, `NS_KEY_TOO_LARGE`, `NS_FULL`, `NS_STALLED`,
/// `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`; nothing was added then.
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
        let session = unsafe { borrow(session, "the session") }?;
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        session.store().add(session.namespace(namespace)?, key, delta)?;
        Ok(ns_status::NS_OK)
    })
}

/// What a counter stands at: `NS_NOT_FOUND` if there is none. Every add that returned before is in
/// it; of those that run meanwhile some are.
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
        let session = unsafe { borrow(session, "the session") }?;
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

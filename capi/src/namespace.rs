//! Removing namespaces, and their limits.

use nearstate_store::NamespaceLimits;

use crate::ffi::{Out, guard};
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;

/// What the records of a namespace with limits take, in bytes of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_namespace_usage {
    /// Bytes of the memory that its records occupy, index entries not included.
    pub used_bytes: u64,
    /// Its soft limit; 0 if it has none.
    pub soft_bytes: u64,
    /// Its hard limit; 0 if it has none.
    pub hard_bytes: u64,
    /// False while its records are being counted for the first time.
    pub is_complete: bool,
}

/// Removes a namespace that has no record, with its tags. Calls with its handles fail with
/// `NS_BAD_ARGUMENT` from then on, in every process, and its watches end after its last events.
///
/// `NS_REFUSED`: it has a record, which may be an expired one that was not collected, or it is
/// written to meanwhile; nothing was changed. Fails with `NS_BAD_ARGUMENT` if it was removed
/// before, `NS_NOT_OWNER`, `NS_FENCED`, `NS_STALLED`, `NS_FULL`, `NS_DAMAGED`, `NS_FORKED`,
/// `NS_SESSION_BUSY`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_remove(
    session: *mut ns_session,
    namespace: ns_namespace,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let is_removed = session.store().remove_namespace(session.namespace(namespace)?)?;
        Ok(if is_removed { ns_status::NS_OK } else { ns_status::NS_REFUSED })
    })
}

/// Sets the limits of a namespace for all processes, in bytes of memory. 0 is no limit. Above the
/// hard limit a write fails with `NS_LIMIT_REACHED`, unless it takes no more memory than what it
/// replaces; deletes are always executed. The soft limit is reported and refuses nothing.
///
/// In a namespace with limits every write is a transaction. With the first limit its records are
/// counted, while others write: about 300 ns each.
///
/// Fails with `NS_BAD_ARGUMENT` if the soft limit is above the hard one or the namespace was
/// removed, `NS_STALLED` (the limits may be set; call it again), `NS_DAMAGED`, `NS_FORKED`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_set_limits(
    session: *mut ns_session,
    namespace: ns_namespace,
    soft_bytes: u64,
    hard_bytes: u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let limits = NamespaceLimits { soft_bytes, hard_bytes };
        session.store().set_limits(session.namespace(namespace)?, limits)?;
        Ok(ns_status::NS_OK)
    })
}

/// Gets what the records of a namespace take, and its limits. `NS_NOT_FOUND`: it has no limits, so
/// nothing is counted.
///
/// Fails with `NS_BAD_ARGUMENT` if it was removed, `NS_DAMAGED`, `NS_FORKED`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_get_usage(
    session: *mut ns_session,
    namespace: ns_namespace,
    usage: *mut ns_namespace_usage,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 3.
        let out = unsafe { Out::new(usage, "the usage") }?;
        let Some(usage) = session.store().usage(session.namespace(namespace)?)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        out.put(ns_namespace_usage {
            used_bytes: usage.used_bytes,
            soft_bytes: usage.limits.soft_bytes,
            hard_bytes: usage.limits.hard_bytes,
            is_complete: usage.is_complete,
        });
        Ok(ns_status::NS_OK)
    })
}

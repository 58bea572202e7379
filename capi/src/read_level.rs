//! How much a read has to see, at the owner of a partition and at a copy of it.

use std::time::Duration;

use crate::ffi::guard;
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::stream::ns_receipt;

/// Waits until this host has the commit of a receipt, for at most `limit_ms` milliseconds:
/// the owner has it, a copy when it has applied it. Reads that follow see it. So a client that
/// takes the receipt of its write with it reads its own write at each host. A signal does not end
/// the wait: a thread that has to do more calls it again, each time with a short limit.
///
/// Fails with `NS_BEHIND` if a copy has not applied it in time, `NS_LOST`, `NS_OUTCOME_UNKNOWN` if
/// nothing is known of it here, `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_read_wait_applied(
    session: *mut ns_session,
    receipt: ns_receipt,
    limit_ms: u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        call.session().store().wait_applied(receipt.receipt(), Duration::from_millis(limit_ms))?;
        Ok(ns_status::NS_OK)
    })
}

/// Says whether what was read of a namespace before this call was read at its owner. Call it after
/// the reads and before anything that rests on them leaves the host. Without it a read sees a
/// prefix of the owner's commits, which at a copy may be behind.
///
/// Fails with `NS_NOT_OWNER` if this host has a copy, `NS_FENCED` if it has no lease at present,
/// `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_read_check_owner(
    session: *mut ns_session,
    namespace: ns_namespace,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        session.store().check_owner(session.namespace(namespace)?)?;
        Ok(ns_status::NS_OK)
    })
}

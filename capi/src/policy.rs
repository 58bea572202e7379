//! How commits are replicated: the policy of a namespace, which commits of a session wait, and a
//! file descriptor for receipts.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_sdl::{ReceiptFd, ReceiptNotifier};
use nearstate_store::{CommitWait, ReplicationPolicy};

use crate::bytes::ns_bytes;
use crate::ffi::{Out, borrow, guard};
use crate::session::{enter, kind_of, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::stream::{code_of, ns_receipt};

/// The commits of the namespace stay in this region.
pub const NS_POLICY_LOCAL: u32 = 1;
/// They go to the log. A commit does not wait for other hosts.
pub const NS_POLICY_ASYNC: u32 = 2;
/// They go to the log. A commit returns when it is replicated.
pub const NS_POLICY_REPLICATED: u32 = 3;

/// Commits that change a namespace with `NS_POLICY_REPLICATED` wait.
pub const NS_WAIT_BY_NAMESPACE: u32 = 1;
/// No commit waits.
pub const NS_WAIT_NEVER: u32 = 2;
/// Every commit that changes a logged namespace waits.
pub const NS_WAIT_ALWAYS: u32 = 3;

fn policy_of(policy: u32) -> Result<ReplicationPolicy> {
    match policy {
        NS_POLICY_LOCAL => Ok(ReplicationPolicy::Local),
        NS_POLICY_ASYNC => Ok(ReplicationPolicy::Async),
        NS_POLICY_REPLICATED => Ok(ReplicationPolicy::Replicated),
        _ => {
            let detail = format!("unknown policy {policy}: expected one of NS_POLICY_..");
            Err(Error::BadArgument { detail })
        }
    }
}

/// Opens a namespace as `ns_namespace_open`, with one of `NS_POLICY_..`: a new one has the policy
/// from its first write on, one that exists gets it as by `ns_namespace_set_policy`.
///
/// Fails as the two.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_open_with_policy(
    session: *mut ns_session,
    name: ns_bytes,
    kind: u32,
    policy: u32,
    out: *mut ns_namespace,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        // SAFETY: rule 2.
        let name = unsafe { name.name() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(out, "the namespace") }?;
        let (kind, policy) = (kind_of(kind)?, policy_of(policy)?);
        out.put(call.session().open_namespace(name, kind, Some(policy))?);
        Ok(ns_status::NS_OK)
    })
}

/// Gets how the commits of a namespace are replicated: one of `NS_POLICY_..`.
///
/// Fails with `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_get_policy(
    session: *mut ns_session,
    namespace: ns_namespace,
    policy: *mut u32,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(policy, "the policy") }?;
        let session = call.session();
        out.put(match session.store().replication_policy(session.namespace(namespace)?)? {
            ReplicationPolicy::Local => NS_POLICY_LOCAL,
            ReplicationPolicy::Async => NS_POLICY_ASYNC,
            ReplicationPolicy::Replicated => NS_POLICY_REPLICATED,
        });
        Ok(ns_status::NS_OK)
    })
}

/// Changes how the commits of a namespace are replicated, for all processes. A namespace that is
/// logged stays so. Commits that have begun before may follow the policy before.
///
/// Fails with `NS_BAD_ARGUMENT` if a logged namespace is to be local or it was removed,
/// `NS_NOT_OWNER`, `NS_FENCED`, `NS_WRONG_KIND` for counters, `NS_FULL`, `NS_STALLED`,
/// `NS_DAMAGED`, `NS_FORKED`, `NS_SESSION_BUSY`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_set_policy(
    session: *mut ns_session,
    namespace: ns_namespace,
    policy: u32,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let (session, policy) = (call.session(), policy_of(policy)?);
        session.store().set_replication_policy(session.namespace(namespace)?, policy)?;
        Ok(ns_status::NS_OK)
    })
}

/// Chooses which of the session's next commits return only when they are replicated: one of
/// `NS_WAIT_..`, and for how long at most, in milliseconds. A session begins with
/// `NS_WAIT_BY_NAMESPACE` and 1,000 ms. A signal does not end the wait of a commit: a thread that
/// has to do more commits with `NS_WAIT_NEVER` and gives the receipt to a set
/// (`ns_receipt_set_open`).
///
/// A call whose commit has waited in vain returns `NS_NOT_REPLICATED`: the commit is made in this
/// region, `ns_receipt_of_commit` has its receipt, and it must not be repeated. `NS_LOST`: another
/// host owns the records without it. `NS_OUTCOME_UNKNOWN`: another host owns the records, and this
/// one cannot tell.
///
/// Fails with `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_session_set_commit_wait(
    session: *mut ns_session,
    wait: u32,
    limit_ms: u32,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let wait = match wait {
            NS_WAIT_BY_NAMESPACE => CommitWait::ByNamespace,
            NS_WAIT_NEVER => CommitWait::Never,
            NS_WAIT_ALWAYS => CommitWait::Always,
            _ => {
                let detail = format!("unknown wait {wait}: expected one of NS_WAIT_..");
                return Err(Error::BadArgument { detail });
            }
        };
        let limit = Duration::from_millis(limit_ms.into());
        call.session().store().set_commit_wait(wait, limit);
        Ok(ns_status::NS_OK)
    })
}

/// Receipts that are waited for, with a file descriptor. It is independent of the session that
/// opened it, which may be closed. It is used by one thread at a time.
#[derive(Debug)]
pub struct ns_receipt_set {
    receipts: RefCell<ReceiptFd>,
}

impl ns_receipt_set {
    /// The set of a handle, in the process that opened it.
    ///
    /// # Safety
    /// Rule 1, for the lifetime `'a`.
    unsafe fn of<'a>(set: *const Self) -> Result<&'a Self> {
        // SAFETY: rule 1.
        let set = unsafe { borrow(set, "the set") }?;
        // A child shares the descriptor with its parent, which would be signalled.
        if set.receipts.borrow().is_forked() { Err(Error::Forked) } else { Ok(set) }
    }
}

/// Opens an empty set of receipts of the session's region. It has a thread in this process, which
/// sleeps and blocks all signals; `ns_receipt_set_close` ends it. One set serves any number of
/// receipts. A forked child cannot use it.
///
/// Fails with `NS_SYSTEM` if the process cannot create a thread or a descriptor,
/// `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_set_open(
    session: *mut ns_session,
    set: *mut *mut ns_receipt_set,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(set, "the set") }?;
        let notifier = ReceiptNotifier::new(call.session().store()).map_err(|error| error.cause)?;
        let receipts = RefCell::new(notifier.receipt_fd().map_err(|error| error.cause)?);
        out.put(Box::into_raw(Box::new(ns_receipt_set { receipts })));
        Ok(ns_status::NS_OK)
    })
}

/// Gets the descriptor of a set, for `poll` and `epoll`. It is readable while receipts of the set
/// may be decided. When it is readable, call `ns_receipt_set_next` until it returns another status
/// than `NS_OK`. It belongs to the set: do not read, write or close it.
///
/// Fails with `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_set_fd(set: *mut ns_receipt_set, fd: *mut c_int) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let set = unsafe { ns_receipt_set::of(set) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(fd, "the descriptor") }?;
        out.put(set.receipts.borrow().as_raw_fd());
        Ok(ns_status::NS_OK)
    })
}

/// Adds a receipt to a set.
///
/// Fails with `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_set_add(
    set: *mut ns_receipt_set,
    receipt: ns_receipt,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let set = unsafe { ns_receipt_set::of(set) }?;
        set.receipts.borrow_mut().add(receipt.receipt());
        Ok(ns_status::NS_OK)
    })
}

/// Takes a receipt out of a set before it is decided, for example after a time-out: while too few
/// hosts of the group live, nothing decides it. Fails with `NS_NOT_FOUND` if it is not in the set,
/// `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_set_remove(
    set: *mut ns_receipt_set,
    receipt: ns_receipt,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let set = unsafe { ns_receipt_set::of(set) }?;
        let removed = set.receipts.borrow_mut().remove(receipt.receipt());
        Ok(if removed == 0 { ns_status::NS_NOT_FOUND } else { ns_status::NS_OK })
    })
}

/// Takes a receipt that is decided out of the set: `state` becomes `NS_RECEIPT_REPLICATED`,
/// `NS_RECEIPT_LOST` or `NS_RECEIPT_UNKNOWN`. `NS_NOT_FOUND`: none is, and the descriptor is not
/// readable until one may be.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_set_next(
    set: *mut ns_receipt_set,
    receipt: *mut ns_receipt,
    state: *mut u32,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let set = unsafe { ns_receipt_set::of(set) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(receipt, "the receipt") }?;
        // SAFETY: rule 3.
        let known = unsafe { Out::new(state, "the state") }?;
        let next = set.receipts.borrow_mut().next().map_err(|error| error.cause)?;
        let Some((receipt, state)) = next else { return Ok(ns_status::NS_NOT_FOUND) };
        out.put(ns_receipt::of(receipt));
        known.put(code_of(state));
        Ok(ns_status::NS_OK)
    })
}

/// Closes a set, its descriptor, which must be removed from an `epoll` instance before, and its
/// thread. NULL is ignored.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_set_close(set: *mut ns_receipt_set) -> ns_status {
    guard(|| {
        if set.is_null() {
            return Ok(ns_status::NS_OK);
        }
        // SAFETY: rule 1.
        unsafe { borrow(set, "the set") }?;
        // SAFETY: rule 1: `ns_receipt_set_open` created it from a box, and the caller no longer
        // uses it.
        drop(unsafe { Box::from_raw(set) });
        Ok(ns_status::NS_OK)
    })
}

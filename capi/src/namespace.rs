//! Listing and removing namespaces, and their limits.

use std::ffi::c_void;

use nearstate_model::{Error, Result};
use nearstate_store::{Kind, Namespace, NamespaceLimits, NamespaceUsage};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, guard};
use crate::session::{
    NS_KIND_BLOCKS, NS_KIND_COUNTERS, NS_KIND_VALUE, enter, ns_namespace, ns_session,
};
use crate::status::ns_status;

/// What the records of a namespace with limits take, in bytes of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_namespace_usage {
    /// Bytes of the memory that its records occupy, index entries not included. With what commits
    /// in progress add, also those that are about to be refused: for a moment it can be above the
    /// hard limit, by what at most 16 commits add. The records never are, unless the limit was set
    /// to less than they took.
    pub used_bytes: u64,
    /// Its soft limit; 0 if it has none.
    pub soft_bytes: u64,
    /// Its hard limit; 0 if it has none.
    pub hard_bytes: u64,
    /// False while its records are being counted for the first time.
    pub is_complete: bool,
}

impl ns_namespace_usage {
    const NONE: Self = Self { used_bytes: 0, soft_bytes: 0, hard_bytes: 0, is_complete: false };

    const fn of(usage: &NamespaceUsage) -> Self {
        Self {
            used_bytes: usage.used_bytes,
            soft_bytes: usage.limits.soft_bytes,
            hard_bytes: usage.limits.hard_bytes,
            is_complete: usage.is_complete,
        }
    }
}

/// A namespace, as `ns_namespace_list` reports it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_namespace_info {
    /// Its name.
    pub name: ns_bytes,
    /// The number of its records, as `ns_count` counts them.
    pub records: u64,
    /// Its limits, and what its records take. All 0 and false if it has no limits.
    pub usage: ns_namespace_usage,
    /// `NS_KIND_VALUE`, `NS_KIND_BLOCKS` or `NS_KIND_COUNTERS`. 0: another kind, such as that of
    /// the namespaces of Redis clients, which this library does not open.
    pub kind: u32,
    /// It has limits. Only then the memory of its records is counted.
    pub is_limited: bool,
}

/// Receives each namespace. The name is valid until the callback returns.
pub type ns_namespace_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, info: *const ns_namespace_info) -> bool>;

/// Calls `each` for every namespace of the region, also for those that the session has not opened.
/// Those of the library itself, and those whose names are not UTF-8, are left out.
///
/// The names are read before the first callback: one that is created during the call is not
/// reported, one that is removed meanwhile may be. The callback may open, write to and remove
/// namespaces. The cost is that of `ns_count` for each namespace that is reported.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_list(
    session: *mut ns_session,
    each: ns_namespace_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let each = each.ok_or_else(|| null("the callback"))?;
        session.while_open(|| {
            for (name, namespace) in session.store().namespaces()? {
                let Some(info) = info_of(session, &name, namespace)? else { continue };
                // SAFETY: rule 4: it takes these arguments and returns.
                if !unsafe { each(context, &raw const info) } {
                    break;
                }
            }
            Ok(ns_status::NS_OK)
        })
    })
}

/// What is reported of a namespace; `None` if it was removed.
fn info_of(
    session: &ns_session,
    name: &str,
    namespace: Namespace,
) -> Result<Option<ns_namespace_info>> {
    let counted = session.store().count(namespace);
    let (records, usage) = match counted
        .and_then(|records| session.store().usage(namespace).map(|usage| (records, usage)))
    {
        Ok(found) => found,
        Err(Error::BadArgument { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let kind = match namespace.kind() {
        Kind::Value => NS_KIND_VALUE,
        Kind::Blocks => NS_KIND_BLOCKS,
        Kind::Counters => NS_KIND_COUNTERS,
        Kind::Mixed => 0,
    };
    let is_limited = usage.is_some();
    let usage = usage.as_ref().map_or(ns_namespace_usage::NONE, ns_namespace_usage::of);
    let name = ns_bytes::of(name.as_bytes());
    Ok(Some(ns_namespace_info { name, records, usage, kind, is_limited }))
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
        out.put(ns_namespace_usage::of(&usage));
        Ok(ns_status::NS_OK)
    })
}

//! Iteration over a namespace: records in slot order, keys by prefix or glob, and counting.

use std::ffi::c_void;

use nearstate_model::Result;
use nearstate_store::glob;

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, guard};
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::view::ns_view;

/// Receives each record of an iteration. The view ends with the callback and must not be released.
pub type ns_record_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, view: *const ns_view) -> bool>;

/// Receives each key.
pub type ns_key_fn = Option<unsafe extern "C" fn(context: *mut c_void, key: ns_bytes) -> bool>;

/// Calls `each` for every record of a namespace, in slot order. A record that exists during the
/// whole call is reported exactly once, one that is written or deleted during the call at most
/// once. Writers are never blocked.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`. `each` may have been called before a
/// failure; so it is with `ns_list_prefix` and `ns_list_glob`.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_scan(
    session: *mut ns_session,
    namespace: ns_namespace,
    each: ns_record_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let each = each.ok_or_else(|| null("the callback"))?;
        let namespace = session.namespace(namespace)?;
        session.while_open(|| {
            let mut scan = session.store().scan(namespace)?;
            while let Some(view) = scan.next()? {
                // SAFETY: rule 4: it takes these arguments and returns.
                if !ns_view::lend(view, |view| unsafe { each(context, view) }) {
                    break;
                }
            }
            // A lost page reads as zeros, which are no records.
            session.store().check_not_truncated()?;
            Ok(ns_status::NS_OK)
        })
    })
}

/// # Safety
/// Rules 1 and 4.
unsafe fn list(
    session: *mut ns_session,
    namespace: ns_namespace,
    is_asked: impl Fn(&[u8]) -> bool,
    each: ns_key_fn,
    context: *mut c_void,
) -> Result<ns_status> {
    // SAFETY: rule 1.
    let call = unsafe { enter(session) }?;
    let session = call.session();
    let each = each.ok_or_else(|| null("the callback"))?;
    let namespace = session.namespace(namespace)?;
    session.while_open(|| {
        let mut scan = session.store().scan(namespace)?;
        while let Some(view) = scan.next()? {
            if !is_asked(view.key()) {
                continue;
            }
            // SAFETY: rule 4: it takes these arguments and returns.
            if !unsafe { each(context, ns_bytes::of(view.key())) } {
                break;
            }
        }
        // As in `ns_scan`.
        session.store().check_not_truncated()?;
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` with every key that starts with `prefix`; with all keys if it is empty. The cost is
/// linear in the number of records of the namespace.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1, 2 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_list_prefix(
    session: *mut ns_session,
    namespace: ns_namespace,
    prefix: ns_bytes,
    each: ns_key_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let prefix = unsafe { prefix.pattern() }?;
        let is_asked = |key: &[u8]| key.starts_with(prefix);
        // SAFETY: the same rules.
        unsafe { list(session, namespace, is_asked, each, context) }
    })
}

/// Calls `each` with every key that matches a glob pattern in the syntax of Redis KEYS: `*`, `?`,
/// `[a-z]`, `[^a]`, and a backslash to escape a byte. The cost is linear in the number of records
/// of the namespace.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1, 2 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_list_glob(
    session: *mut ns_session,
    namespace: ns_namespace,
    pattern: ns_bytes,
    each: ns_key_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let pattern = unsafe { pattern.pattern() }?;
        let is_asked = |key: &[u8]| glob::matches(pattern, key);
        // SAFETY: the same rules.
        unsafe { list(session, namespace, is_asked, each, context) }
    })
}

/// Counts the records of a namespace. Reads the index, not the records.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_count(
    session: *mut ns_session,
    namespace: ns_namespace,
    records: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 3.
        let out = unsafe { Out::new(records, "the number of records") }?;
        out.put(session.store().count(session.namespace(namespace)?)?);
        Ok(ns_status::NS_OK)
    })
}

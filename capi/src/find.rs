//! Lookups of records by their tags.

use std::ffi::c_void;
use std::ops::Bound;

use nearstate_model::{Error, Result};
use nearstate_store::Values;

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::metadata::ns_tag;
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::txn::ns_txn;
use crate::view::ns_view;
use crate::walk::{ns_key_fn, ns_record_fn};

/// Records with this value.
pub const NS_LOOKUP_EQUAL: u32 = 1;
/// Records with a value that starts with this prefix. The tag must be ordered.
pub const NS_LOOKUP_PREFIX: u32 = 2;
/// Records with a value in a range. The tag must be ordered.
pub const NS_LOOKUP_RANGE: u32 = 3;

/// No bound.
pub const NS_BOUND_NONE: u32 = 0;
/// The bound is part of the range.
pub const NS_BOUND_INCLUDED: u32 = 1;
/// The bound is not part of the range.
pub const NS_BOUND_EXCLUDED: u32 = 2;

/// One end of a range. All bytes 0: no bound.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_bound {
    /// One of `NS_BOUND_..`.
    pub kind: u32,
    /// The value. Ignored if there is no bound.
    pub value: ns_bytes,
}

impl ns_bound {
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    unsafe fn read<'a>(self) -> Result<Bound<&'a [u8]>> {
        Ok(match self.kind {
            NS_BOUND_NONE => Bound::Unbounded,
            // SAFETY: rule 2.
            NS_BOUND_INCLUDED => Bound::Included(unsafe { self.value.value() }?),
            // SAFETY: rule 2.
            NS_BOUND_EXCLUDED => Bound::Excluded(unsafe { self.value.value() }?),
            kind => {
                let detail = format!("unknown kind of bound {kind}: expected one of NS_BOUND_..");
                return Err(Error::BadArgument { detail });
            }
        })
    }
}

/// The values of a tag to look up. Values are compared as byte strings, so numbers must be encoded
/// in big-endian order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_lookup {
    /// The name of the tag.
    pub tag: ns_bytes,
    /// `NS_LOOKUP_EQUAL`, `NS_LOOKUP_PREFIX` or `NS_LOOKUP_RANGE`.
    pub kind: u32,
    /// The value or the prefix. Ignored for a range.
    pub value: ns_bytes,
    /// The start of the range.
    pub from: ns_bound,
    /// The end of the range.
    pub to: ns_bound,
}

impl ns_lookup {
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    unsafe fn read<'a>(self) -> Result<(&'a str, Values<'a>)> {
        // SAFETY: rule 2.
        let tag = unsafe { self.tag.name() }?;
        let values = match self.kind {
            // SAFETY: rule 2.
            NS_LOOKUP_EQUAL => Values::Equal(unsafe { self.value.value() }?),
            // SAFETY: rule 2.
            NS_LOOKUP_PREFIX => Values::Prefix(unsafe { self.value.value() }?),
            NS_LOOKUP_RANGE => {
                // SAFETY: rule 2.
                let from = unsafe { self.from.read() }?;
                // SAFETY: rule 2.
                Values::Range(from, unsafe { self.to.read() }?)
            }
            kind => {
                let detail = format!("unknown kind of lookup {kind}: expected one of NS_LOOKUP_..");
                return Err(Error::BadArgument { detail });
            }
        };
        Ok((tag, values))
    }
}

/// Gets the record with this value of a unique tag, as a view: `NS_NOT_FOUND` if there is none. The
/// result was correct at one moment during the call. Takes no lock. Release the view with
/// `ns_view_release`. If the status is not `NS_OK`, the view is empty and need not be released.
///
/// Fails with `NS_BAD_ARGUMENT` if the namespace has no such tag, the tag is not unique, or its
/// index is still being built; `NS_CONFLICT` if the value is reassigned too often during the call;
/// `NS_DAMAGED`, `NS_FORKED`.
///
/// # Safety
/// Rules 1 to 3. The previous contents of `view` are not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_find(
    session: *mut ns_session,
    namespace: ns_namespace,
    tag: ns_tag,
    view: *mut ns_view,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 3.
        let out = unsafe { Out::new(view, "the view") }?;
        out.put(ns_view::empty());
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let (name, value) = unsafe { tag.read() }?;
        let namespace = session.namespace(namespace)?;
        let Some(view_found) = session.store().find(namespace, name, value)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        out.put(ns_view::owned(view_found, session));
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` once for every record that has a matching value of a tag, in the order of the
/// values. A record that matches during the whole call is reported. A record that changes during
/// the call may be reported or not. Writers are never blocked.
///
/// Fails with `NS_BAD_ARGUMENT` if the namespace has no such tag, the tag is not ordered (for
/// prefixes and ranges), or its index is still being built; `NS_CONFLICT` if the index changes too
/// often during the call; `NS_DAMAGED`, `NS_FORKED`. `each` may have been called before a failure.
///
/// # Safety
/// Rules 1, 2 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_find_all(
    session: *mut ns_session,
    namespace: ns_namespace,
    lookup: ns_lookup,
    each: ns_record_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let (tag, values) = unsafe { lookup.read() }?;
        let each = each.ok_or_else(|| null("the callback"))?;
        let namespace = session.namespace(namespace)?;
        session.while_open(|| {
            session.store().find_all(namespace, tag, values, |view| {
                // SAFETY: rule 4: it takes these arguments and returns.
                ns_view::show(view, |view| unsafe { each(context, view) })
            })
        })?;
        // A lost page reads as zeros, which are no records.
        session.store().check_not_truncated()?;
        Ok(ns_status::NS_OK)
    })
}

/// Counts the records with this value of a tag. The count of a counted tag is stored; for other
/// tags the records are iterated.
///
/// Fails as `ns_find_all`, and with `NS_DEADLINE` if the count changes too often during the call.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_count_tagged(
    session: *mut ns_session,
    namespace: ns_namespace,
    tag: ns_tag,
    records: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let (name, value) = unsafe { tag.read() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(records, "the number of records") }?;
        out.put(session.store().count_tagged(session.namespace(namespace)?, name, value)?);
        Ok(ns_status::NS_OK)
    })
}

/// Gets the record with this value of a unique tag within a transaction: `NS_NOT_FOUND` if there is
/// none. The result, including `NS_NOT_FOUND`, becomes part of the transaction's read set. `key`
/// and `view` are valid until the transaction ends; either may be NULL. The view need not be
/// released.
///
/// Indexes are updated by the commit. A value that this transaction has written is therefore not
/// found.
///
/// Fails as `ns_find` and `ns_txn_get`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_find(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    tag: ns_tag,
    key: *mut ns_bytes,
    view: *mut ns_view,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 2.
        let (name, value) = unsafe { tag.read() }?;
        // SAFETY: rule 3.
        let out_key = unsafe { Out::optional(key, "the key") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::optional(view, "the view") }?;
        out.put(ns_view::empty());
        let namespace = txn.session().namespace(namespace)?;
        let Some((key, value)) = txn.store().find(namespace, name, value)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        out.put(txn.keep(value)?);
        out_key.put(txn.keep_key(key));
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` with the key of every record that has a matching value of a tag, in the order of
/// the values. The set of records becomes part of the transaction's read set.
///
/// Fails as `ns_find_all` and `ns_txn_get`.
///
/// # Safety
/// Rules 1, 2 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_find_all(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    lookup: ns_lookup,
    each: ns_key_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 2.
        let (tag, values) = unsafe { lookup.read() }?;
        let each = each.ok_or_else(|| null("the callback"))?;
        let namespace = txn.session().namespace(namespace)?;
        let walk = || {
            // SAFETY: rule 4: it takes these arguments and returns.
            let call = |key: &[u8]| unsafe { each(context, ns_bytes::of(key)) };
            txn.store().find_all(namespace, tag, values, call)
        };
        txn.while_open(walk)?;
        Ok(ns_status::NS_OK)
    })
}

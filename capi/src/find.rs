//! Finding records by their tags, in shared memory.

use std::ffi::c_void;
use std::ops::Bound;

use nearstate_model::{Error, Result};
use nearstate_store::Values;

use crate::border::{Out, borrow, guard};
use crate::bytes::{ns_bytes, null};
use crate::metadata::ns_tag;
use crate::session::{ns_namespace, ns_session};
use crate::status::ns_status;
use crate::txn::ns_txn;
use crate::view::ns_view;
use crate::walk::{ns_key_fn, ns_record_fn};

/// Records that have this value.
pub const NS_LOOKUP_EQUAL: u32 = 1;
/// Records with a value that begins so; the tag must be ordered.
pub const NS_LOOKUP_PREFIX: u32 = 2;
/// Records with a value within bounds; the tag must be ordered.
pub const NS_LOOKUP_RANGE: u32 = 3;

/// No bound.
pub const NS_BOUND_NONE: u32 = 0;
/// The value itself is within.
pub const NS_BOUND_INCLUDED: u32 = 1;
/// The value itself is not.
pub const NS_BOUND_EXCLUDED: u32 = 2;

/// One end of a range. All bytes 0: none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_bound {
    /// One of `NS_BOUND_..`.
    pub kind: u32,
    /// The value; not looked at if there is no bound.
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
                let detail = format!("a bound {kind}: give one of NS_BOUND_..");
                return Err(Error::BadArgument { detail });
            }
        })
    }
}

/// Which values of a tag are looked for. Values compare as strings of bytes, so numbers are written
/// with the greatest byte first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_lookup {
    /// The tag's name.
    pub tag: ns_bytes,
    /// `NS_LOOKUP_EQUAL`, `NS_LOOKUP_PREFIX` or `NS_LOOKUP_RANGE`.
    pub kind: u32,
    /// The value, or with what it begins. Not looked at in a range.
    pub value: ns_bytes,
    /// Where a range begins.
    pub from: ns_bound,
    /// Where it ends.
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
                let detail = format!("a lookup {kind}: give one of NS_LOOKUP_..");
                return Err(Error::BadArgument { detail });
            }
        };
        Ok((tag, values))
    }
}

/// Gets the record that has this value of a unique tag, as a view: `NS_NOT_FOUND` if there is none.
/// The answer held at one moment of the call. No lock. Release the view with `ns_view_release`;
/// unless the answer is `NS_OK` it is empty and need not be released.
///
/// Fails with `NS_BAD_ARGUMENT` if the namespace has no such tag, it is not unique, or its index is
/// still being built; `NS_CONFLICT` if the value moves faster than it can be followed;
/// `NS_DAMAGED`, `NS_FORKED`.
///
/// # Safety
/// Rules 1 to 3. What `view` held before is not released.
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
        let session = unsafe { borrow(session, "the session") }?;
        // SAFETY: rule 2.
        let (name, value) = unsafe { tag.read() }?;
        let namespace = session.namespace(namespace)?;
        let Some(found) = session.store().find(namespace, name, value)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        out.put(ns_view::owned(found, session));
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` with every record that has such a value of a tag, in the order of the values; once
/// for each of them. One that has it from the beginning to the end is met; what changes meanwhile
/// may be met or not. Writers are never blocked.
///
/// Fails with `NS_BAD_ARGUMENT` if the namespace has no such tag, it is not ordered (for prefixes
/// and ranges), or its index is still being built; `NS_CONFLICT` if the index changes faster than
/// it can be walked; `NS_DAMAGED`, `NS_FORKED`. `each` may have been called then.
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
        let session = unsafe { borrow(session, "the session") }?;
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
        Ok(ns_status::NS_OK)
    })
}

/// How many records have a value of a tag. A counted tag knows; of another one the records are
/// walked.
///
/// Fails as `ns_find_all`, and with `NS_DEADLINE` if the count changes faster than it can be read.
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
        let session = unsafe { borrow(session, "the session") }?;
        // SAFETY: rule 2.
        let (name, value) = unsafe { tag.read() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(records, "the number of records") }?;
        out.put(session.store().count_tagged(session.namespace(namespace)?, name, value)?);
        Ok(ns_status::NS_OK)
    })
}

/// Gets the record that has this value of a unique tag, as part of what the transaction has read:
/// `NS_NOT_FOUND` if there is none, which is part of it too. `key` and `view` are good until the
/// transaction ends; either may be NULL. The view need not be released.
///
/// Indexes are kept by the commit: a value that this transaction itself has given is not found yet.
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
        // SAFETY: rule 2.
        let (name, value) = unsafe { tag.read() }?;
        // SAFETY: rule 3.
        let out_key = unsafe { Out::optional(key, "the key") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::optional(view, "the view") }?;
        out.put(ns_view::empty());
        let namespace = txn.session().namespace(namespace)?;
        let Some((key, found)) = txn.store().find(namespace, name, value)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        out.put(txn.keep(found)?);
        out_key.put(txn.keep_key(key));
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` with the key of every record that has such a value of a tag, in the order of the
/// values. That there are these and no others is part of what the transaction has read.
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

//! Records by key in a transaction: got, put, patched, labelled, deleted.

use nearstate_store::Metadata;

use crate::bytes::ns_bytes;
use crate::ffi::{Out, borrow, guard};
use crate::metadata::ns_metadata;
use crate::patch::ns_block_change_list;
use crate::session::ns_namespace;
use crate::status::ns_status;
use crate::txn::ns_txn;
use crate::view::ns_view;

/// Gets a record: what the transaction has written, else what is in the region. `NS_NOT_FOUND` if
/// it does not exist; that too is part of what the transaction has read. The view is good until the
/// transaction ends, and need not be released. Its version is 0 if the transaction itself has
/// written the record.
///
/// Fails with `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE` above `NS_TRANSACTION_RECORDS_MAX`,
/// `NS_WRONG_KIND`, `NS_KEY_TOO_LARGE`, `NS_DAMAGED`, `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_get(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    key: ns_bytes,
    view: *mut ns_view,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(view, "the view") }?;
        out.put(ns_view::empty());
        let namespace = txn.session().namespace(namespace)?;
        let Some(found) = txn.store().get(namespace, key)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        out.put(txn.keep(found)?);
        Ok(ns_status::NS_OK)
    })
}

/// Puts a record at the commit: this value, without tags and expiry, regardless of its former ones.
///
/// Fails with `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`,
/// `NS_TRANSACTION_TOO_LARGE` above `NS_TRANSACTION_BYTES_MAX`, `NS_SESSION_BUSY`,
/// `NS_BAD_ARGUMENT`. What the commit refuses, such as the records of another host, it reports.
///
/// # Safety
/// Rules 1 and 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_put(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    key: ns_bytes,
    value: ns_bytes,
) -> ns_status {
    let metadata = ns_metadata { tags: std::ptr::null(), tags_len: 0, expires_ms: 0 };
    // SAFETY: the same rules.
    unsafe { ns_txn_put_with_metadata(txn, namespace, key, value, metadata) }
}

/// Puts a record with tags and an expiry at the commit. Fails as `ns_txn_put`.
///
/// # Safety
/// Rules 1 and 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_put_with_metadata(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    key: ns_bytes,
    value: ns_bytes,
    metadata: ns_metadata,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        // SAFETY: rule 2.
        let value = unsafe { value.value() }?;
        // SAFETY: rule 2.
        let tags = unsafe { metadata.read() }?;
        let metadata = Metadata { tags: &tags, expires_ms: metadata.expires_ms };
        let namespace = txn.session().namespace(namespace)?;
        txn.store().put_with_metadata(namespace, key, value, metadata)?;
        Ok(ns_status::NS_OK)
    })
}

/// Gives a record other tags and another expiry at the commit; its value or blocks stay as they
/// are. `NS_NOT_FOUND` if there is none. Fails as `ns_txn_get` and `ns_txn_put`.
///
/// # Safety
/// Rules 1 and 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_set_metadata(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    key: ns_bytes,
    metadata: ns_metadata,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        // SAFETY: rule 2.
        let tags = unsafe { metadata.read() }?;
        let metadata = Metadata { tags: &tags, expires_ms: metadata.expires_ms };
        let namespace = txn.session().namespace(namespace)?;
        let is_there = txn.store().set_metadata(namespace, key, metadata)?;
        Ok(if is_there { ns_status::NS_OK } else { ns_status::NS_NOT_FOUND })
    })
}

/// Changes some named blocks of a record at the commit; the others, its tags and its expiry stay.
/// Creates the record if there is none.
///
/// Fails with `NS_CONFLICT`, `NS_WRONG_KIND` in a namespace of values, `NS_BAD_NAME`,
/// `NS_TOO_MANY_BLOCKS`, `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_TRANSACTION_TOO_LARGE`,
/// `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_patch(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    key: ns_bytes,
    changes: ns_block_change_list,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        // SAFETY: rule 2.
        let changes = unsafe { changes.read() }?;
        let namespace = txn.session().namespace(namespace)?;
        txn.store().patch(namespace, key, &changes)?;
        Ok(ns_status::NS_OK)
    })
}

/// Deletes a record at the commit: `NS_NOT_FOUND` if there is none. Fails as `ns_txn_get`.
///
/// # Safety
/// Rules 1 and 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_delete(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    key: ns_bytes,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        let namespace = txn.session().namespace(namespace)?;
        let is_there = txn.store().delete(namespace, key)?;
        Ok(if is_there { ns_status::NS_OK } else { ns_status::NS_NOT_FOUND })
    })
}

//! Records by key in a transaction: got, put, patched, labelled, deleted.

use std::ffi::c_void;

use nearstate_model::Result;
use nearstate_store::{Metadata, Record};

use crate::bytes::ns_bytes;
use crate::ffi::{Out, borrow, guard};
use crate::metadata::ns_metadata;
use crate::patch::ns_block_change_list;
use crate::session::ns_namespace;
use crate::status::ns_status;
use crate::txn::ns_txn;
use crate::view::{call_each, ns_block_fn};

/// A record as a transaction has it; good until the transaction ends.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_record {
    /// The value; empty in a namespace of named blocks.
    pub value: ns_bytes,
    /// The version that was read; 0 for what the transaction itself has written.
    pub version: u64,
    /// When the record ends by itself, in milliseconds since 1970; 0: never.
    pub expires_ms: u64,
    /// Private.
    held: *const c_void,
}

impl ns_record {
    /// A record that a transaction has read, and keeps until it ends.
    pub(crate) fn keep(txn: &ns_txn, record: Record<'_>) -> Result<Self> {
        let (version, expires_ms) = (record.version().unwrap_or(0), record.expires_ms());
        let held = txn.keep(record);
        // SAFETY: `keep` has just made it.
        let value = ns_bytes::of(unsafe { borrow(held, "the record") }?.bytes());
        Ok(Self { value, version, expires_ms, held: held.cast() })
    }

    /// # Safety
    /// Rule 1: a call of this library has filled it, or its bytes are 0.
    unsafe fn held<'a>(record: *const Self) -> Result<&'a Record<'a>> {
        // SAFETY: rule 1.
        let held = unsafe { borrow(record, "the record") }?.held;
        // SAFETY: rule 1: NULL, or a record that the transaction keeps until its end.
        unsafe { borrow(held.cast(), "the record's blocks and tags") }
    }
}

/// Gets a record: what the transaction has written, else what is in the region. `NS_NOT_FOUND` if
/// there is none; that too is something that was read.
///
/// Fails with `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE` above 4,096 records, `NS_WRONG_KIND`,
/// `NS_KEY_TOO_LARGE`, `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_get(
    txn: *mut ns_txn,
    namespace: ns_namespace,
    key: ns_bytes,
    record: *mut ns_record,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(record, "the record") }?;
        let namespace = txn.session().namespace(namespace)?;
        let Some(found) = txn.store().get(namespace, key)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        out.put(ns_record::keep(txn, found)?);
        Ok(ns_status::NS_OK)
    })
}

/// The bytes of a named block of a record: `NS_NOT_FOUND` if it has none of this name. They are
/// good until the transaction ends.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_record_block(
    record: *const ns_record,
    name: ns_bytes,
    block: *mut ns_bytes,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let held = unsafe { ns_record::held(record) }?;
        // SAFETY: rule 2.
        let name = unsafe { name.name() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(block, "the block") }?;
        let Some(found) = held.block(name) else { return Ok(ns_status::NS_NOT_FOUND) };
        out.put(ns_bytes::of(found));
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` with every named block of a record. None in a namespace of values.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_record_blocks(
    record: *const ns_record,
    each: ns_block_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let held = unsafe { ns_record::held(record) }?;
        // SAFETY: rule 4.
        unsafe { call_each(held.blocks(), each, context) }
    })
}

/// Calls `each` with every tag of a record, in ascending order: its name and a value.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_record_tags(
    record: *const ns_record,
    each: ns_block_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let held = unsafe { ns_record::held(record) }?;
        // SAFETY: rule 4.
        unsafe { call_each(held.tags(), each, context) }
    })
}

/// Puts a record at the commit: this value, no tags, no expiry, whatever it had before.
///
/// Fails with `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`,
/// `NS_TRANSACTION_TOO_LARGE` above 256 MiB, `NS_BAD_ARGUMENT`.
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
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        // SAFETY: rule 2.
        let tags = unsafe { metadata.read() }?;
        let metadata = Metadata { tags: &tags, expires_ms: metadata.expires_ms };
        let namespace = txn.session().namespace(namespace)?;
        let is_there = txn.store().label(namespace, key, metadata)?;
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
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        let namespace = txn.session().namespace(namespace)?;
        let is_there = txn.store().delete(namespace, key)?;
        Ok(if is_there { ns_status::NS_OK } else { ns_status::NS_NOT_FOUND })
    })
}

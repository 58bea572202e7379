//! Transactional memory: objects with addresses, for programs whose state consists of structures
//! linked by pointers (paper 4, figure 4).

use std::ffi::c_void;
use std::ops::Range;

use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result};
use nearstate_store::{Address, Objects};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::session::{enter, ns_session};
use crate::status::ns_status;
use crate::txn::ns_txn;

/// The address of an object. It replaces pointers in objects and records, and is the same in every
/// process. Never 0, and never reused during the life of a region.
pub type ns_address = u64;

/// Converts an address from C. 0 is invalid.
fn address(bits: ns_address) -> Result<Address> {
    Address::from_bits(bits).ok_or(Error::NoObject { address: 0 })
}

/// A byte range within the maximum size of an object.
fn part(offset: usize, bytes: usize) -> Result<Range<usize>> {
    match offset.checked_add(bytes) {
        Some(to) if to <= VALUE_BYTES_MAX => Ok(offset..to),
        _ => Err(Error::BadArgument {
            detail: format!(
                "{bytes} bytes at offset {offset} exceed the maximum object size of \
                 {VALUE_BYTES_MAX}"
            ),
        }),
    }
}

/// Allocates an object of `bytes` zero bytes. It exists once the transaction commits. Open it to
/// write it.
///
/// Fails with `NS_VALUE_TOO_LARGE` above 128 MiB, `NS_TRANSACTION_TOO_LARGE` above 4,096 records
/// and objects or 256 MiB, `NS_FORKED`, `NS_DAMAGED`, `NS_BAD_ARGUMENT`; for the first object of a
/// region also as `ns_namespace_open`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_alloc(
    txn: *mut ns_txn,
    bytes: usize,
    address: *mut ns_address,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(address, "the address") }?;
        out.put(txn.store().alloc(bytes)?.bits());
        Ok(ns_status::NS_OK)
    })
}

/// # Safety
/// Rules 1 and 3.
unsafe fn open_read(
    txn: *mut ns_txn,
    bits: ns_address,
    part: Result<Range<usize>>,
    data: *mut *const c_void,
) -> Result<ns_status> {
    // SAFETY: rule 1.
    let txn = unsafe { borrow(txn, "the transaction") }?;
    let _call = txn.session().enter()?;
    // SAFETY: rule 3.
    let out = unsafe { Out::new(data, "the address of the bytes") }?;
    out.put(txn.store().lend_read(address(bits)?, part?)?.cast());
    Ok(ns_status::NS_OK)
}

/// # Safety
/// Rules 1 and 3.
unsafe fn open_write(
    txn: *mut ns_txn,
    bits: ns_address,
    part: Result<Range<usize>>,
    data: *mut *mut c_void,
) -> Result<ns_status> {
    // SAFETY: rule 1.
    let txn = unsafe { borrow(txn, "the transaction") }?;
    let _call = txn.session().enter()?;
    // SAFETY: rule 3.
    let out = unsafe { Out::new(data, "the address of the bytes") }?;
    out.put(txn.store().lend_write(address(bits)?, part?)?.cast());
    Ok(ns_status::NS_OK)
}

/// Opens the first `bytes` bytes of an object for reading; the object must have that many. `object`
/// receives their address: in the region, or in the transaction's copy if the transaction opened
/// the object for writing. The address is aligned to 16 bytes and valid until the transaction ends;
/// bytes in the region do not change until then. The cost is one lookup, without a copy.
///
/// Fails with `NS_NO_OBJECT`, `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE`, `NS_DAMAGED`,
/// `NS_BAD_ARGUMENT` if the object is smaller.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_open_read(
    txn: *mut ns_txn,
    address: ns_address,
    bytes: usize,
    object: *mut *const c_void,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { open_read(txn, address, part(0, bytes), object) })
}

/// Like `ns_txn_open_read`, for the `bytes` bytes from `offset`. Conflicts are still detected for
/// the whole object.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_open_read_range(
    txn: *mut ns_txn,
    address: ns_address,
    offset: usize,
    bytes: usize,
    data: *mut *const c_void,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { open_read(txn, address, part(offset, bytes), data) })
}

/// Opens the first `bytes` bytes of an object for writing; the object must have that many. `object`
/// receives the address of a private copy, aligned to 16 bytes, that may be read and written. The
/// commit publishes the copy. Its address does not change if the object is opened again, and is
/// valid until the transaction ends. Only opened ranges may be written.
///
/// Fails with `NS_NO_OBJECT`, `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE`, `NS_DAMAGED`,
/// `NS_BAD_ARGUMENT` if the object is smaller.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_open_write(
    txn: *mut ns_txn,
    address: ns_address,
    bytes: usize,
    object: *mut *mut c_void,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { open_write(txn, address, part(0, bytes), object) })
}

/// Like `ns_txn_open_write`, for the `bytes` bytes from `offset`. Only these are copied; the commit
/// takes the other bytes from the region. Conflicts are still detected for the whole object.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_open_write_range(
    txn: *mut ns_txn,
    address: ns_address,
    offset: usize,
    bytes: usize,
    data: *mut *mut c_void,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { open_write(txn, address, part(offset, bytes), data) })
}

/// Gets the size of an object, as requested at its allocation. Fails as `ns_txn_open_read`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_object_size(
    txn: *mut ns_txn,
    address: ns_address,
    bytes: *mut usize,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(bytes, "the size") }?;
        out.put(txn.store().object_size(self::address(address)?)?);
        Ok(ns_status::NS_OK)
    })
}

/// Frees an object when the transaction commits. Its address is never reused; later accesses return
/// `NS_NO_OBJECT`. Ranges opened in this transaction stay readable until it ends.
///
/// Fails with `NS_NO_OBJECT`, `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE`, `NS_DAMAGED`,
/// `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_free(txn: *mut ns_txn, address: ns_address) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let txn = unsafe { borrow(txn, "the transaction") }?;
        let _call = txn.session().enter()?;
        txn.store().free(self::address(address)?)?;
        Ok(ns_status::NS_OK)
    })
}

/// Receives each object of a region.
pub type ns_object_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, address: ns_address, object: ns_bytes) -> bool,
>;

/// Calls `each` for every object, for example to count objects or to find unreachable ones. An
/// object that exists during the whole call is reported exactly once, one that is allocated or
/// freed during the call at most once. Writers are never blocked.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_object_scan(
    session: *mut ns_session,
    each: ns_object_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let each = each.ok_or_else(|| null("the callback"))?;
        session.while_open(|| {
            session.store().walk_objects(|address, object| {
                // SAFETY: rule 4: it takes these arguments and returns.
                unsafe { each(context, address.bits(), ns_bytes::of(object)) }
            })
        })?;
        Ok(ns_status::NS_OK)
    })
}

/// Counts the objects of a region and the bytes requested for them; `bytes` may be NULL. Reads the
/// header of each object.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_object_count(
    session: *mut ns_session,
    objects: *mut u64,
    bytes: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 3.
        let out = unsafe { Out::new(objects, "the number of objects") }?;
        // SAFETY: rule 3.
        let out_bytes = unsafe { Out::optional(bytes, "the bytes of the objects") }?;
        let Objects { count, bytes } = session.store().objects()?;
        out.put(count);
        out_bytes.put(bytes);
        Ok(ns_status::NS_OK)
    })
}

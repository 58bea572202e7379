//! Reads: a view, a copy, a batch. Reads do not allocate.

use std::ffi::c_void;
use std::ptr;

use nearstate_model::{Error, Result};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::view::ns_view;

/// Keys looked up together: as many as the store prefetches at once.
const ROUND: usize = 16;

/// Maximum number of keys in a batch. A million keys take about a second; a larger number is a
/// mistake.
const BATCH_KEYS_MAX: usize = 1 << 20;

/// Gets a record as a view: `NS_NOT_FOUND` if it does not exist. Takes no lock, makes no system
/// call and no copy. Release the view with `ns_view_release`. If the status is not `NS_OK`, the
/// view is empty and need not be released. The cache lines of the start of the value are requested:
/// for a caller that reads some of the value. `ns_get_whole` requests all of them. If the file of
/// the region was truncated, bytes of the view may read as zeros: `ns_session_check` tells.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3. The previous contents of `view` are not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_get(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    view: *mut ns_view,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 3.
        let out = unsafe { Out::new(view, "the view") }?;
        // SAFETY: rules 1 and 2.
        out.put_or_empty(unsafe { get::<false>(session, namespace, key) }, ns_view::empty())
    })
}

/// As `ns_get`, for a caller that reads the whole value: its cache lines are requested together.
/// With values of 1 KB that are not in the cache, reading all of them takes about a sixth less
/// time.
///
/// Fails as `ns_get`.
///
/// # Safety
/// As `ns_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_get_whole(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    view: *mut ns_view,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 3.
        let out = unsafe { Out::new(view, "the view") }?;
        // SAFETY: rules 1 and 2.
        out.put_or_empty(unsafe { get::<true>(session, namespace, key) }, ns_view::empty())
    })
}

/// # Safety
/// Rules 1 and 2.
#[inline]
unsafe fn get<const WHOLE: bool>(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
) -> Result<Option<ns_view>> {
    // SAFETY: rule 1.
    let call = unsafe { enter(session) }?;
    let session = call.session();
    // SAFETY: rule 2.
    let key = unsafe { key.key() }?;
    let namespace = session.namespace(namespace)?;
    let store = session.store();
    let view = if WHOLE { store.get_whole(namespace, key)? } else { store.get(namespace, key)? };
    Ok(view.map(|view| ns_view::owned(view, session)))
}

/// Memory of the caller that receives a copy.
#[repr(C)]
#[derive(Debug)]
pub struct ns_buffer {
    /// In: the destination. NULL only if `capacity` is 0.
    pub data: *mut u8,
    /// In: the size of the destination, in bytes.
    pub capacity: usize,
    /// Out: the size of the value, even if it did not fit.
    pub len: usize,
    /// Out: the version of the record.
    pub version: u64,
}

/// Copies the value of a record: `NS_NOT_FOUND` if it does not exist; `NS_TOO_SMALL` if the value
/// does not fit. In that case `len` and `version` are set and nothing is copied: enlarge the buffer
/// and call again. For named blocks, use `ns_get`.
///
/// Fails with `NS_DAMAGED` (what was copied is not the value then), `NS_FORKED`,
/// `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3; `buffer->data` points to `capacity` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_get_copy(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    buffer: *mut ns_buffer,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let key = unsafe { key.key() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(buffer, "the buffer") }?;
        // SAFETY: neither NULL nor misaligned (checked above); the caller has set this field.
        let data = unsafe { (*buffer).data };
        // SAFETY: as above. Other fields may be uninitialized, so the structure is not borrowed.
        let capacity = unsafe { (*buffer).capacity };
        if data.is_null() && capacity > 0 {
            return Err(null("the buffer's data"));
        }
        let namespace = session.namespace(namespace)?;
        let Some(view) = session.store().get_whole(namespace, key)? else {
            return Ok(ns_status::NS_NOT_FOUND);
        };
        let (bytes, version) = (view.bytes(), view.version());
        let is_room = bytes.len() <= capacity;
        if is_room && !bytes.is_empty() {
            // SAFETY: the destination is large enough and does not overlap the region.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
        }
        // A lost page reads as zeros, which are not the value.
        session.store().check_not_truncated()?;
        out.put(ns_buffer { data, capacity, len: bytes.len(), version });
        Ok(if is_room { ns_status::NS_OK } else { ns_status::NS_TOO_SMALL })
    })
}

/// A list of keys.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_key_list {
    /// The first key. NULL only if `len` is 0.
    pub items: *const ns_bytes,
    /// The number of keys: at most 1,048,576.
    pub len: usize,
}

/// Receives each record of a batch with the index of its key; `view` is NULL if the record does not
/// exist. The view ends with the callback and must not be released.
pub type ns_batch_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, index: usize, view: *const ns_view) -> bool>;

/// Reads many keys. The cache misses of 16 keys at a time overlap. Calls `each` for every key, in
/// order.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`. `each` may have
/// been called before a failure.
///
/// # Safety
/// Rules 1, 2 (also for the keys) and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_get_batch(
    session: *mut ns_session,
    namespace: ns_namespace,
    keys: ns_key_list,
    each: ns_batch_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let each = each.ok_or_else(|| null("the callback"))?;
        // SAFETY: rule 2.
        let keys = unsafe { keys.slice() }?;
        session.while_open(|| {
            for (round, keys) in keys.chunks(ROUND).enumerate() {
                let mut is_continuing = true;
                let mut call = |index: usize, view: *const ns_view| {
                    let index = round * ROUND + index;
                    // SAFETY: rule 4: it takes these arguments and returns.
                    is_continuing = is_continuing && unsafe { each(context, index, view) };
                };
                // SAFETY: rule 2.
                unsafe { get_round(session, namespace, keys, &mut call) }?;
                if !is_continuing {
                    break;
                }
            }
            Ok(ns_status::NS_OK)
        })
    })
}

impl ns_key_list {
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    pub(crate) unsafe fn slice<'a>(self) -> Result<&'a [ns_bytes]> {
        if self.len == 0 {
            return Ok(&[]);
        }
        if self.len > BATCH_KEYS_MAX {
            return Err(Error::BadArgument {
                detail: format!(
                    "batch of {} keys is too large: the maximum is {BATCH_KEYS_MAX}",
                    self.len
                ),
            });
        }
        // SAFETY: rule 2.
        unsafe { borrow(self.items, "the keys") }?;
        // SAFETY: neither NULL nor misaligned (checked above), within a limit; rule 2 guarantees
        // the items.
        Ok(unsafe { std::slice::from_raw_parts(self.items, self.len) })
    }
}

/// Up to [`ROUND`] keys, on the stack.
///
/// # Safety
/// Rule 2, for every key.
unsafe fn get_round(
    session: &ns_session,
    namespace: ns_namespace,
    keys: &[ns_bytes],
    each: &mut dyn FnMut(usize, *const ns_view),
) -> Result<()> {
    let mut slices: [&[u8]; ROUND] = [&[]; ROUND];
    for (slice, key) in slices.iter_mut().zip(keys) {
        // SAFETY: the caller's promise for every key.
        *slice = unsafe { key.key() }?;
    }
    let asked = slices.get(..keys.len()).unwrap_or_default();
    let namespace = session.namespace(namespace)?;
    session.store().get_batch(namespace, asked, |index, view| match view {
        Some(view) => ns_view::lend(view, |view| each(index, view)),
        None => each(index, ptr::null()),
    })
}

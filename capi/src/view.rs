//! A record lent to C: the bytes in the region themselves.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::{ManuallyDrop, MaybeUninit, align_of, size_of};
use std::ptr;

use nearstate_model::{Error, Result};
use nearstate_store::View;

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::session::{enter_to_release, ns_session};
use crate::status::ns_status;

/// Words that a view keeps for itself. (The generator of the header wants the number itself below.)
const HELD_WORDS: usize = 16;

/// Nothing is held.
const EMPTY: u32 = 0;
/// The caller holds it, and releases it.
const OWNED: u32 = 0x6e73_7631;
/// A callback was lent it.
const LENT: u32 = 0x6e73_7632;

/// A version of a record, zero-copy: `value` and `key` point into the region. It stays as it is
/// however often the record is changed or deleted meanwhile. While it is held, memory that is
/// retired in the region is not used again: release it when the work at hand is done. It may be
/// moved, but only one copy of it is released. All bytes 0 is a view that holds nothing.
#[repr(C)]
#[derive(Debug)]
pub struct ns_view {
    /// The value; empty in a namespace of named blocks.
    pub value: ns_bytes,
    /// The key.
    pub key: ns_bytes,
    /// Greater with every change of the record, also across deletion and re-creation. Never 0.
    pub version: u64,
    /// Private.
    session: *const ns_session,
    /// Private.
    state: u32,
    /// Private.
    iterations: Cell<u32>,
    /// Private.
    held: MaybeUninit<[u64; 16]>,
}

const _: () = assert!(
    size_of::<View<'_>>() <= HELD_WORDS * 8 && align_of::<View<'_>>() <= 8,
    "a view does not fit into the words that C keeps for it: raise HELD_WORDS"
);

impl ns_view {
    /// None. In C: all bytes 0.
    pub(crate) const fn empty() -> Self {
        Self {
            value: ns_bytes::EMPTY,
            key: ns_bytes::EMPTY,
            version: 0,
            session: ptr::null(),
            state: EMPTY,
            iterations: Cell::new(0),
            held: MaybeUninit::uninit(),
        }
    }

    #[inline]
    fn new(view: View<'_>, session: *const ns_session, state: u32) -> Self {
        let (value, key) = (ns_bytes::of(view.bytes()), ns_bytes::of(view.key()));
        let version = view.version();
        let mut held = MaybeUninit::<[u64; HELD_WORDS]>::uninit();
        let slot = held.as_mut_ptr().cast::<View<'_>>();
        // SAFETY: the assertion above guarantees size and alignment for a view.
        unsafe { slot.write(view) };
        let iterations = Cell::new(0);
        Self { value, key, version, session, state, iterations, held }
    }

    /// A view that the caller will release. The session counts it and stays open until then.
    #[inline]
    pub(crate) fn owned(view: View<'_>, session: &ns_session) -> Self {
        session.hold();
        Self::new(view, session, OWNED)
    }

    /// Passes a view to a callback and releases it afterwards.
    #[inline]
    pub(crate) fn lend<T>(view: View<'_>, call: impl FnOnce(&Self) -> T) -> T {
        let mut lent = Self::new(view, ptr::null(), LENT);
        let result = call(&lent);
        lent.release_view();
        result
    }

    /// A copy of a view that another owner holds for longer than the copy is used. Releasing the
    /// copy has no effect.
    pub(crate) fn shown(view: &View<'_>) -> Self {
        // SAFETY: the bits do not change while the view is borrowed. The copy is never dropped:
        // `ns_view_release` ignores a view in state LENT, and nothing else drops it.
        let copy = unsafe { ptr::read(view) };
        Self::new(copy, ptr::null(), LENT)
    }

    /// Passes a copy of a view that another owner holds to a callback.
    pub(crate) fn show<T>(view: &View<'_>, call: impl FnOnce(&Self) -> T) -> T {
        let mut shown = ManuallyDrop::new(Self::shown(view));
        let result = call(&shown);
        shown.state = EMPTY;
        result
    }

    /// The view in the held words.
    fn view(&self) -> Result<&View<'_>> {
        if self.state != OWNED && self.state != LENT {
            return Err(null("the view holds no record (it was released, or never filled)"));
        }
        if self.state == OWNED {
            // SAFETY: the session stays open while it counts this view.
            unsafe { borrow(self.session, "the session") }?.check_not_forked()?;
        }
        let slot = self.held.as_ptr().cast::<View<'_>>();
        // SAFETY: `new` wrote a view there. It is initialised in these two states only.
        Ok(unsafe { &*slot })
    }

    pub(crate) const fn is_iterated(&self) -> bool {
        self.iterations.get() != 0
    }

    /// Fails within a callback of an iteration over the blocks or tags of this view.
    pub(crate) fn check_idle(&self) -> Result<()> {
        if !self.is_iterated() {
            return Ok(());
        }
        Err(Error::BadArgument {
            detail: "an iteration over the record is in progress: end it first".to_owned(),
        })
    }

    /// Calls `walk`, whose callbacks cannot release this view. They do not unwind.
    fn while_iterated<T>(&self, walk: impl FnOnce() -> T) -> T {
        self.iterations.set(self.iterations.get() + 1);
        let result = walk();
        self.iterations.set(self.iterations.get() - 1);
        result
    }

    fn release_view(&mut self) {
        self.state = EMPTY;
        let slot = self.held.as_mut_ptr().cast::<View<'_>>();
        // SAFETY: callers checked that the state was OWNED or LENT, so the words hold a view. The
        // state is EMPTY now, so the view is dropped once.
        unsafe { slot.drop_in_place() };
        (self.value, self.key, self.version) = (ns_bytes::EMPTY, ns_bytes::EMPTY, 0);
    }
}

/// Releases a view. Its bytes must not be read afterwards. NULL and a view that was already
/// released are ignored.
///
/// Fails with `NS_SESSION_BUSY` while another thread is inside a call of the session, and with
/// `NS_BAD_ARGUMENT` in callbacks of `ns_view_blocks` and `ns_view_tags` with this view: the view
/// is kept, and with it the memory that it holds. Release it again.
///
/// # Safety
/// Rule 1: NULL, or a view that a call of this library has filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_view_release(view: *mut ns_view) -> ns_status {
    guard(|| {
        // SAFETY: rule 1: NULL, or a view that no other call uses now.
        if let Some(view) = unsafe { view.as_mut() }
            && view.state == OWNED
        {
            // SAFETY: the session stays open while it counts this view.
            let call = unsafe { enter_to_release(view.session) }?;
            // Another thread may have released it before this one was let in.
            if view.state != OWNED {
                return Ok(ns_status::NS_OK);
            }
            if call.must_leak(view.is_iterated()) {
                *view = ns_view::empty();
            } else {
                view.check_idle()?;
                view.session = ptr::null();
                view.release_view();
            }
            call.session().release();
        }
        Ok(ns_status::NS_OK)
    })
}

/// The bytes of a named block of a record, or `NS_NOT_FOUND` if no block has this name. They are
/// valid until the view is released. Linear in the number of blocks.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_view_block(
    view: *const ns_view,
    name: ns_bytes,
    block: *mut ns_bytes,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let view = unsafe { borrow(view, "the view") }?;
        // SAFETY: rule 2.
        let name = unsafe { name.name() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(block, "the block") }?;
        Ok(match view.view()?.block(name) {
            Some(bytes) => {
                out.put(ns_bytes::of(bytes));
                ns_status::NS_OK
            }
            None => ns_status::NS_NOT_FOUND,
        })
    })
}

/// Gets the blocks of a record, one by one.
pub type ns_block_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, name: ns_bytes, block: ns_bytes) -> bool>;

/// Calls `each` with every named block of a record, in the order in which they were first written.
/// None in a namespace of values.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_view_blocks(
    view: *const ns_view,
    each: ns_block_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let view = unsafe { borrow(view, "the view") }?;
        let blocks = view.view()?.blocks();
        // SAFETY: rule 4.
        view.while_iterated(|| unsafe { call_each(blocks, each, context) })
    })
}

/// Calls `each` with pairs of a name and bytes.
///
/// # Safety
/// Rule 4.
pub(crate) unsafe fn call_each<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a [u8])>,
    each: ns_block_fn,
    context: *mut c_void,
) -> Result<ns_status> {
    let each = each.ok_or_else(|| null("the callback"))?;
    for (name, bytes) in pairs {
        let (name, bytes) = (ns_bytes::of(name.as_bytes()), ns_bytes::of(bytes));
        // SAFETY: rule 4: it takes these arguments and returns.
        if !unsafe { each(context, name, bytes) } {
            break;
        }
    }
    Ok(ns_status::NS_OK)
}

/// Calls `each` with every tag of a record, in ascending order: its name and a value.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_view_tags(
    view: *const ns_view,
    each: ns_block_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let view = unsafe { borrow(view, "the view") }?;
        let tags = view.view()?.tags();
        // SAFETY: rule 4.
        view.while_iterated(|| unsafe { call_each(tags, each, context) })
    })
}

/// When a record ends by itself, in milliseconds since 1970; 0: never.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_view_expires(view: *const ns_view, expires_ms: *mut u64) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let view = unsafe { borrow(view, "the view") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(expires_ms, "the time") }?;
        out.put(view.view()?.expires_ms());
        Ok(ns_status::NS_OK)
    })
}

//! The boundary between C and Rust: pointers are checked before use, and panics are caught.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nearstate_model::{Error, Result};

use crate::bytes::null;
use crate::last_error::{remember, remember_session_busy};
use crate::status::ns_status;

/// Runs a call. An error becomes a status and a message; a panic becomes `NS_BUG`.
#[inline]
pub(crate) fn guard(call: impl FnOnce() -> Result<ns_status>) -> ns_status {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => failed(&error),
        Err(panic) => panicked(panic),
    }
}

#[cold]
fn failed(error: &Error) -> ns_status {
    if matches!(error, Error::SessionBusy) {
        remember_session_busy();
    } else {
        remember(&error.to_string());
    }
    ns_status::of(error)
}

#[cold]
fn panicked(panic: Box<dyn Any + Send>) -> ns_status {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    remember(&format!(
        "bug in nearstate: {}: close the session and report this message",
        text.unwrap_or("no message")
    ));
    // Dropping the panic payload could panic again.
    std::mem::forget(panic);
    ns_status::NS_BUG
}

/// Borrows what a handle or an in-parameter points to.
///
/// # Safety
/// NULL, or points to a valid `T` that is not modified elsewhere during the lifetime `'a`.
#[inline]
pub(crate) unsafe fn borrow<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    if pointer.is_null() {
        return Err(null(what));
    }
    if !pointer.is_aligned() {
        return Err(Error::BadArgument { detail: format!("{what}: the pointer is not aligned") });
    }
    // SAFETY: neither NULL nor misaligned, and the caller guarantees a valid `T`.
    Ok(unsafe { &*pointer })
}

/// An out-parameter. It is checked before the call does any work.
#[derive(Debug)]
pub(crate) struct Out<T> {
    /// NULL if the caller does not need the result.
    pointer: *mut T,
}

impl<T> Out<T> {
    /// An out-parameter that must not be NULL.
    ///
    /// # Safety
    /// NULL, or points to memory for a `T` that is writable until this is dropped.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Result<Self> {
        if pointer.is_null() {
            return Err(null(what));
        }
        // SAFETY: the same promise.
        unsafe { Self::optional(pointer, what) }
    }

    /// An out-parameter that may be NULL.
    ///
    /// # Safety
    /// As for `new`.
    #[inline]
    pub(crate) unsafe fn optional(pointer: *mut T, what: &str) -> Result<Self> {
        if !pointer.is_null() && !pointer.is_aligned() {
            return Err(Error::BadArgument {
                detail: format!("{what}: the pointer is not aligned"),
            });
        }
        Ok(Self { pointer })
    }

    /// Writes the value of a lookup. Without a value it writes `empty` and returns `NS_NOT_FOUND`;
    /// on an error it writes `empty` too.
    #[inline]
    pub(crate) fn put_or_empty(&self, value: Result<Option<T>>, empty: T) -> Result<ns_status> {
        match value {
            Ok(Some(value)) => {
                self.put(value);
                Ok(ns_status::NS_OK)
            }
            none => {
                self.put(empty);
                none.map(|_| ns_status::NS_NOT_FOUND)
            }
        }
    }

    /// Writes the value. The previous contents are not read.
    #[inline]
    pub(crate) fn put(&self, value: T) {
        if !self.pointer.is_null() {
            // SAFETY: aligned, and the caller of `new` guarantees writable memory.
            unsafe { self.pointer.write(value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::last_error::ns_last_error;

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        assert_eq!(guard(|| panic!("unexpected state")), ns_status::NS_BUG);
        // SAFETY: the function returns a text that ends with a NUL.
        let message = unsafe { CStr::from_ptr(ns_last_error()) };
        assert!(message.to_str().unwrap().contains("unexpected state"), "{message:?}");
    }

    #[test]
    fn a_misaligned_pointer_is_rejected() {
        let words = [0_u64; 2];
        let misaligned = words.as_ptr().wrapping_byte_add(1);
        // SAFETY: it is refused before anything is read.
        assert!(unsafe { borrow(misaligned, "it") }.is_err());
        // SAFETY: rejected before anything is written.
        assert!(unsafe { Out::new(misaligned.cast_mut(), "it") }.is_err());
    }
}

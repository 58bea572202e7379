//! The message of the last error of each thread.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
    /// A constant message that came after `LAST`.
    static CONSTANT: Cell<Option<&'static CStr>> = const { Cell::new(None) };
}

/// The message of `Error::SessionBusy`.
const SESSION_BUSY: &CStr = c"another thread, or the call that a signal handler interrupted, uses \
                              this session: open one session for each thread, and call nothing \
                              from signal handlers";

/// Stores the message of `Error::SessionBusy`. A signal handler that interrupted the allocator can
/// be the caller, so nothing is allocated and nothing is freed.
pub(crate) fn remember_session_busy() {
    let _ = CONSTANT.try_with(|constant| constant.set(Some(SESSION_BUSY)));
}

/// Stores the message for this thread. A NUL in it (from a caller's name) would truncate it.
pub(crate) fn remember(message: &str) {
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    let _ = CONSTANT.try_with(|constant| constant.set(None));
    // If the thread is exiting, the message is dropped: no caller can read it.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = message));
}

/// Returns the message of the last failed call of this thread: what failed, why, and what to do.
/// Never NULL; empty if no call has failed. Successful calls do not change it, nor do
/// `NS_NOT_FOUND`, `NS_REFUSED` and `NS_TOO_SMALL`. It is valid until the next failure in this
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn ns_last_error() -> *const c_char {
    let empty: &'static CStr = c"";
    if let Ok(Some(constant)) = CONSTANT.try_with(Cell::get) {
        return constant.as_ptr();
    }
    LAST.try_with(|last| last.try_borrow().map_or(empty.as_ptr(), |last| last.as_ptr()))
        .unwrap_or(empty.as_ptr())
}

#[cfg(test)]
mod tests {
    use nearstate_model::Error;

    use super::*;

    #[test]
    fn the_constant_message_is_that_of_its_error() {
        assert_eq!(SESSION_BUSY.to_str().unwrap(), Error::SessionBusy.to_string());
        remember("another");
        remember_session_busy();
        assert_eq!(ns_last_error(), SESSION_BUSY.as_ptr());
        remember("a later one");
        assert_ne!(ns_last_error(), SESSION_BUSY.as_ptr());
    }
}

//! The message of the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Stores the message for this thread. A NUL in it (from a caller's name) would truncate it.
pub(crate) fn remember(message: &str) {
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
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
    LAST.try_with(|last| last.try_borrow().map_or(empty.as_ptr(), |last| last.as_ptr()))
        .unwrap_or(empty.as_ptr())
}

//! The sentence behind the last failure of this thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Remembers a sentence for this thread. A NUL in it (from a caller's name) would cut it short.
pub(crate) fn remember(sentence: &str) {
    let sentence = CString::new(sentence.replace('\0', "\\0")).unwrap_or_default();
    // In a thread that is ending there is nobody left to ask.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = sentence));
}

/// What was wrong in the last call of this thread that failed, and what to do about it: one
/// sentence, never NULL, empty if none failed. Calls that succeed, and `NS_NOT_FOUND`, `NS_REFUSED`
/// and `NS_TOO_SMALL`, leave it as it is. It is good until the next failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn ns_last_error() -> *const c_char {
    let empty: &'static CStr = c"";
    LAST.try_with(|last| last.try_borrow().map_or(empty.as_ptr(), |last| last.as_ptr()))
        .unwrap_or(empty.as_ptr())
}

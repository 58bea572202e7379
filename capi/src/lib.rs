//! Layer 4: the C API of regions and records, directly on `nearstate-store`. A C network function
//! links only this library; there is no server.
//!
//! `cargo xtask header --write` generates the header `include/nearstate.h` and the status table
//! `src/status.rs`. Types and functions have their C names.
//!
//! # Rules of the API
//!
//! 1. **Handles.** A handle comes from this library and is invalid after its `close`, `detach`,
//!    `release`, `commit` or `abort`. The library cannot detect the use of an invalid handle.
//!    Several
//!    threads may use a region concurrently. A session, with its views, records for update, block
//!    layouts, transactions and streams, and a watch, are used by one thread at a time. A second
//!    thread in a session is noticed: its call fails with `NS_SESSION_BUSY` and changes nothing. A
//!    call that ends or releases a handle and fails with it leaves the handle valid: repeat it.
//! 2. **Bytes.** `data` points to `len` bytes that do not change during the call. It is NULL only
//!    if
//!    `len` is 0. Text ends with a NUL.
//! 3. **Out-parameters** come last and point to writable memory, which may be uninitialized. They
//!    are
//!    written if the status is `NS_OK`, and otherwise only where documented. NULL is rejected
//!    unless
//!    documented otherwise.
//! 4. **Callbacks** run in the calling thread before the call returns. Their arguments are valid
//!    until
//!    they return. They return `true` to continue and `false` to end the iteration, which is not an
//!    error. (The callback of `ns_transact` returns a status.) They may call this library,
//!    but not release, abort or close what they iterate over. They must not throw or `longjmp`:
//!    that aborts the process.
//! 5. **Signal handlers** may call `ns_status_name` and nothing else. A handler interrupts a call
//!    between two stores, so another call through the same session would damage the operation in
//!    progress. It is refused with `NS_SESSION_BUSY` where the library can tell: not in handlers
//!    that interrupt an iteration with callbacks. A handler must not leave a call by `siglongjmp`
//!    or by an exception, and a thread must not be cancelled or ended within a call: the session
//!    keeps its locks until the process ends, and every later call fails with `NS_SESSION_BUSY`.
//!
//! 6. **What a failed call changed.** Nothing, with these exceptions. `NS_NOT_REPLICATED`,
//!    `NS_LOST` and `NS_OUTCOME_UNKNOWN` mean that the commit was made in this region: other
//!    processes see it, and it must not be repeated blindly. `ns_receipt_of_commit` tells what
//!    becomes of it. Each call that commits can return them if its session waits
//!    (`ns_session_set_commit_wait`). Calls that make several commits (`ns_namespace_add_tags`,
//!    `ns_namespace_set_limits`, `ns_collect_expired`) may have made some of them. `NS_BUG` and
//!    `NS_SESSION_STOPPED` say nothing about the call that was in progress: read the records in
//!    another session.
//! 7. **Statuses of any call**, which the lists below need not repeat: `NS_BAD_ARGUMENT` (NULL, a
//!    handle of another session, a removed namespace), `NS_SESSION_BUSY` and `NS_SESSION_STOPPED`
//!    (a call with a session or something of it), `NS_BUG`.
//! 8. **`SIGBUS`.** The first call that creates, attaches or checks a region installs a handler for
//!    the process, once. A region whose file was truncated then answers `NS_DAMAGED` instead of
//!    ending the process. Bytes of a view may be zeros then: `ns_session_check` tells. At any other
//!    address it calls the handler that was there before. A program that has one installs it before
//!    that call, or calls the previous handler from it. Do not unload the library: its handler
//!    stays.
//!
//! Lengths above a limit and NULL are rejected before anything is read. A panic in this library
//! becomes `NS_BUG`. Reading a record allocates nothing. After a `fork`, the child must attach
//! again; calls with inherited handles return `NS_FORKED`, except those that close, abort or
//! release one. Those succeed also if another thread of the parent was inside a call at the fork;
//! what it was using stays in the memory of the child.

#![expect(non_camel_case_types, reason = "types have their C names")]

pub mod object;
pub mod find;
pub mod txn_record;
pub mod txn;
pub mod read_level;
pub mod policy;
pub mod stream;
pub mod watch;
pub mod search;
pub mod counter;
pub mod schema;
pub mod metadata;
pub mod walk;
pub mod for_update;
pub mod patch;
pub mod write;
pub mod read;
pub mod view;
pub mod namespace;
pub mod session;
pub mod region;
mod ffi;
pub mod bytes;
pub mod last_error;
pub mod status;
pub mod version;

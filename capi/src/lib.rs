//! Floor 4: regions and their records in C, straight over `nearstate-store`. A C network function
//! links this library and nothing else; there is no server.
//!
//! The header `include/nearstate.h` and the table of answers `src/status.rs` are generated
//! (`cargo xtask header --write`); types and functions have the names that C sees.
//!
//! # The rules of this border
//!
//! 1. **Handles.** A handle comes from this library and is not used after its `close`, `detach`,
//!    `release`, `commit` or `abort`: nobody can check that for a pointer. A region may be used by
//!    several threads at once; a session, with its views, records to change, names, transactions
//!    and streams, and a watch, by one thread at a time.
//! 2. **Bytes.** `data` points to `len` bytes that stay as they are during the call; it is NULL
//!    only with `len` 0. Text ends with a NUL.
//! 3. **Out-parameters** stand last, point to memory that may be written and need not hold
//!    anything. They are written if the answer is `NS_OK`, and otherwise only where it is said.
//!    NULL is refused, except where it is said that it may be NULL.
//! 4. **Callbacks** run in the calling thread before the call returns. What they are given is valid
//!    until they return. They return `true` to go on and `false` to end the walk, which is no
//!    failure (that of `ns_transact` answers a status). They may call this library. They neither
//!    throw nor `longjmp`: the process would be aborted.
//!
//! Lengths beyond a limit and NULL are refused before anything is touched. A panic in this library
//! does not cross the border: it becomes `NS_BUG`. Reading allocates nothing. After a `fork` the
//! child attaches again; handles that it inherited answer `NS_FORKED`.

#![expect(non_camel_case_types, reason = "types have the names that C sees")]

pub mod object;
pub mod find;
pub mod txn_record;
pub mod txn;
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
pub mod session;
pub mod region;
mod border;
pub mod bytes;
pub mod last_error;
pub mod status;

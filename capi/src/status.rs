//! The status codes of the C API. `cargo xtask header --write` generates this file from the error
//! catalogue in `model/src/error.rs`; a manual edit fails the gate. Numbers never change.

use std::ffi::{CStr, c_char};

use nearstate_model::Error;

/// The result of a call. Numbers from 16 are errors; `ns_last_error` returns a message for them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ns_status {
    /// Success.
    NS_OK = 0,
    /// The record or block does not exist, or no event is pending.
    NS_NOT_FOUND = 1,
    /// The condition did not hold. Nothing was changed.
    NS_REFUSED = 2,
    /// The buffer is too small: enlarge it and call again.
    NS_TOO_SMALL = 3,
    /// A bug in this library: close the session and report the message of `ns_last_error`.
    NS_BUG = 15,
    /// The key has more bytes than `NS_KEY_BYTES_MAX`.
    NS_KEY_TOO_LARGE = 16,
    /// The value or block is larger than `NS_VALUE_BYTES_MAX`.
    NS_VALUE_TOO_LARGE = 17,
    /// More blocks than `NS_BLOCKS_MAX`.
    NS_TOO_MANY_BLOCKS = 18,
    /// A name (of a namespace or a block) is empty or too long.
    NS_BAD_NAME = 19,
    /// The record is not of the kind the operation needs, or the namespace was created with another
    /// schema.
    NS_WRONG_KIND = 20,
    /// The region's heap, its file system, or one of its tables is full.
    NS_FULL = 21,
    /// A living process has held a lock that this operation needs for a second, or several
    /// processes in turn for four seconds.
    NS_STALLED = 22,
    /// The file is not a region, is of another format, is truncated or is damaged.
    NS_NOT_A_REGION = 23,
    /// Bytes in the region contradict each other. Stop writing; run the offline check.
    NS_DAMAGED = 24,
    /// The region already exists.
    NS_ALREADY_EXISTS = 25,
    /// Sessions of living processes are attached.
    NS_IN_USE = 26,
    /// This process is a fork of the one that attached: attach again.
    NS_FORKED = 27,
    /// A system call failed.
    NS_SYSTEM = 28,
    /// A back-end on a network failed or returned an unexpected response.
    NS_BACKEND = 29,
    /// An argument (a URL, an option) is invalid.
    NS_BAD_ARGUMENT = 30,
    /// Another writer changed a record that the transaction has read: run the transaction again.
    NS_CONFLICT = 31,
    /// A transaction did not commit within its number of attempts and its deadline.
    NS_DEADLINE = 32,
    /// A transaction touches more records than `NS_TRANSACTION_RECORDS_MAX`, or
    /// writes more bytes than `NS_TRANSACTION_BYTES_MAX`.
    NS_TRANSACTION_TOO_LARGE = 33,
    /// Another record has this value of a unique tag.
    NS_TAG_TAKEN = 34,
    /// No object of the transactional memory has this address: it was freed or never allocated.
    NS_NO_OBJECT = 35,
    /// The commit stream of this writer is full, and rejects commits until its consumer has
    /// acknowledged entries.
    NS_BEHIND = 36,
    /// An internal error stopped this session: close it, open another and report the error.
    NS_SESSION_STOPPED = 37,
    /// Another thread is inside a call of this session: give each thread a session of its own.
    NS_SESSION_BUSY = 38,
    /// The records of a namespace would take more memory than its hard limit. Deletes, and writes
    /// that take no more memory than what they replace, are still executed.
    NS_LIMIT_REACHED = 39,
    /// The records of this namespace are those of another host, which this region follows. Write
    /// there, or promote the region.
    NS_NOT_OWNER = 40,
    /// This host owns the namespace no longer, or cannot know at present whether it does, or its
    /// node was stopped: nothing was changed. Try again, or write at the host that owns it.
    NS_FENCED = 41,
    /// The commit is made in this region, and not enough other hosts have it yet: the time limit
    /// for waiting is over. It may be replicated later, or be lost with this host.
    NS_NOT_REPLICATED = 42,
    /// The commit was made in this region, and its log has lost it: another host has become the
    /// owner without it, or a full log has given it up before its followers had it.
    NS_LOST = 43,
    /// The commit was made in this region, and whether the other hosts have it is not known and
    /// will not be: another one has become the owner. Read the records before it is repeated.
    NS_OUTCOME_UNKNOWN = 44,
}

/// All status codes with their names.
const NAMES: &[(ns_status, &CStr)] = &[
    (ns_status::NS_OK, c"NS_OK"),
    (ns_status::NS_NOT_FOUND, c"NS_NOT_FOUND"),
    (ns_status::NS_REFUSED, c"NS_REFUSED"),
    (ns_status::NS_TOO_SMALL, c"NS_TOO_SMALL"),
    (ns_status::NS_BUG, c"NS_BUG"),
    (ns_status::NS_KEY_TOO_LARGE, c"NS_KEY_TOO_LARGE"),
    (ns_status::NS_VALUE_TOO_LARGE, c"NS_VALUE_TOO_LARGE"),
    (ns_status::NS_TOO_MANY_BLOCKS, c"NS_TOO_MANY_BLOCKS"),
    (ns_status::NS_BAD_NAME, c"NS_BAD_NAME"),
    (ns_status::NS_WRONG_KIND, c"NS_WRONG_KIND"),
    (ns_status::NS_FULL, c"NS_FULL"),
    (ns_status::NS_STALLED, c"NS_STALLED"),
    (ns_status::NS_NOT_A_REGION, c"NS_NOT_A_REGION"),
    (ns_status::NS_DAMAGED, c"NS_DAMAGED"),
    (ns_status::NS_ALREADY_EXISTS, c"NS_ALREADY_EXISTS"),
    (ns_status::NS_IN_USE, c"NS_IN_USE"),
    (ns_status::NS_FORKED, c"NS_FORKED"),
    (ns_status::NS_SYSTEM, c"NS_SYSTEM"),
    (ns_status::NS_BACKEND, c"NS_BACKEND"),
    (ns_status::NS_BAD_ARGUMENT, c"NS_BAD_ARGUMENT"),
    (ns_status::NS_CONFLICT, c"NS_CONFLICT"),
    (ns_status::NS_DEADLINE, c"NS_DEADLINE"),
    (ns_status::NS_TRANSACTION_TOO_LARGE, c"NS_TRANSACTION_TOO_LARGE"),
    (ns_status::NS_TAG_TAKEN, c"NS_TAG_TAKEN"),
    (ns_status::NS_NO_OBJECT, c"NS_NO_OBJECT"),
    (ns_status::NS_BEHIND, c"NS_BEHIND"),
    (ns_status::NS_SESSION_STOPPED, c"NS_SESSION_STOPPED"),
    (ns_status::NS_SESSION_BUSY, c"NS_SESSION_BUSY"),
    (ns_status::NS_LIMIT_REACHED, c"NS_LIMIT_REACHED"),
    (ns_status::NS_NOT_OWNER, c"NS_NOT_OWNER"),
    (ns_status::NS_FENCED, c"NS_FENCED"),
    (ns_status::NS_NOT_REPLICATED, c"NS_NOT_REPLICATED"),
    (ns_status::NS_LOST, c"NS_LOST"),
    (ns_status::NS_OUTCOME_UNKNOWN, c"NS_OUTCOME_UNKNOWN"),
];

impl ns_status {
    /// The status of an error.
    pub(crate) const fn of(error: &Error) -> Self {
        match error {
            Error::KeyTooLarge { .. } => Self::NS_KEY_TOO_LARGE,
            Error::ValueTooLarge { .. } => Self::NS_VALUE_TOO_LARGE,
            Error::TooManyBlocks { .. } => Self::NS_TOO_MANY_BLOCKS,
            Error::BadName { .. } => Self::NS_BAD_NAME,
            Error::WrongKind { .. } => Self::NS_WRONG_KIND,
            Error::Full { .. } => Self::NS_FULL,
            Error::Stalled { .. } => Self::NS_STALLED,
            Error::NotARegion { .. } => Self::NS_NOT_A_REGION,
            Error::Damaged { .. } => Self::NS_DAMAGED,
            Error::AlreadyExists { .. } => Self::NS_ALREADY_EXISTS,
            Error::InUse { .. } => Self::NS_IN_USE,
            Error::Forked => Self::NS_FORKED,
            Error::System { .. } => Self::NS_SYSTEM,
            Error::Backend { .. } => Self::NS_BACKEND,
            Error::BadArgument { .. } => Self::NS_BAD_ARGUMENT,
            Error::Conflict { .. } => Self::NS_CONFLICT,
            Error::Deadline { .. } => Self::NS_DEADLINE,
            Error::TransactionTooLarge { .. } => Self::NS_TRANSACTION_TOO_LARGE,
            Error::TagTaken { .. } => Self::NS_TAG_TAKEN,
            Error::NoObject { .. } => Self::NS_NO_OBJECT,
            Error::Behind { .. } => Self::NS_BEHIND,
            Error::SessionStopped => Self::NS_SESSION_STOPPED,
            Error::SessionBusy => Self::NS_SESSION_BUSY,
            Error::LimitReached { .. } => Self::NS_LIMIT_REACHED,
            Error::NotOwner { .. } => Self::NS_NOT_OWNER,
            Error::Fenced { .. } => Self::NS_FENCED,
            Error::NotReplicated { .. } => Self::NS_NOT_REPLICATED,
            Error::Lost { .. } => Self::NS_LOST,
            Error::OutcomeUnknown { .. } => Self::NS_OUTCOME_UNKNOWN,
            // Variants added since this table was generated.
            _ => Self::NS_BUG,
        }
    }
}

impl ns_status {
    /// The status with this number.
    pub(crate) fn of_number(number: i32) -> Option<Self> {
        NAMES.iter().map(|(known, _)| *known).find(|known| *known as i32 == number)
    }
}

/// Returns the name of a status, such as `NS_FULL`, or `?` for an unknown number. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ns_status_name(status: i32) -> *const c_char {
    let named = NAMES.iter().find(|(known, _)| *known as i32 == status);
    named.map_or(c"?", |(_, name)| *name).as_ptr()
}

//! The errors of the engine. Each protocol translates this one table.

use std::fmt;
use std::path::PathBuf;

use crate::heap_usage::HeapUsage;
use crate::holder::Holder;

/// Why an operation was not executed. Callers can react to each variant in a different way. Unless
/// a variant says otherwise, nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The key has more bytes than [`crate::limits::KEY_BYTES_MAX`].
    KeyTooLarge {
        /// Bytes given.
        bytes: usize,
    },
    /// The value or block is larger than [`crate::limits::VALUE_BYTES_MAX`].
    ValueTooLarge {
        /// Bytes given.
        bytes: usize,
    },
    /// More blocks than [`crate::limits::BLOCKS_MAX`].
    TooManyBlocks {
        /// Blocks given.
        blocks: usize,
    },
    /// A name (of a namespace or a block) is empty or too long.
    BadName {
        /// Bytes given.
        bytes: usize,
    },
    /// The record is not of the kind the operation needs, or the namespace was created with another
    /// schema.
    WrongKind {
        /// What was expected and what is there.
        detail: String,
    },
    /// The region's heap, its file system, or one of its tables is full.
    Full {
        /// What is full, and what would help.
        detail: String,
        /// What the memory is used for, if the heap is full.
        heap: Option<Box<HeapUsage>>,
    },
    /// The records of a namespace would take more memory than its hard limit. Deletes, and writes
    /// that take no more memory than what they replace, are still executed.
    LimitReached {
        /// The name of the namespace, as text if it is UTF-8.
        namespace: String,
        /// Bytes that its records take.
        used_bytes: u64,
        /// Its hard limit.
        limit_bytes: u64,
    },
    /// Another writer changed a record that the transaction has read: run the transaction again.
    Conflict {
        /// What was changed.
        detail: String,
    },
    /// A transaction did not commit within its number of attempts and its deadline.
    Deadline {
        /// Number of attempts.
        tries: u32,
    },
    /// A transaction touches more records than [`crate::limits::TRANSACTION_RECORDS_MAX`], or
    /// writes more bytes than [`crate::limits::TRANSACTION_BYTES_MAX`].
    TransactionTooLarge {
        /// What exceeds its limit, and the limit.
        detail: String,
    },
    /// Another record has this value of a unique tag.
    TagTaken {
        /// Name of the tag.
        tag: String,
        /// The value, as text if it is UTF-8.
        value: String,
        /// Key of the record that has the value, as text if it is UTF-8.
        holder: String,
    },
    /// No object of the transactional memory has this address: it was freed or never allocated.
    NoObject {
        /// The address.
        address: u64,
    },
    /// The commit stream of this writer is full, and rejects commits until its consumer has
    /// acknowledged entries.
    Behind {
        /// What is full, and what would help.
        detail: String,
    },
    /// The records of this namespace are those of another host, which this region follows. Write
    /// there, or promote the region.
    NotOwner {
        /// The name of the namespace, as text if it is UTF-8.
        namespace: String,
        /// Where the other host is, if the region knows.
        address: Option<String>,
    },
    /// This host owns the namespace no longer, or cannot know at present whether it does, or its
    /// node was stopped: nothing was changed. Try again, or write at the host that owns it.
    Fenced {
        /// The name of the namespace, as text if it is UTF-8.
        namespace: String,
    },
    /// The commit is made in this region, and not enough other hosts have it yet: the time limit
    /// for waiting is over. It may be replicated later, or be lost with this host.
    NotReplicated {
        /// Its position in the log: the receipt to ask for later.
        position: u64,
        /// The time limit in milliseconds.
        waited_ms: u64,
    },
    /// The commit was made in this region, and its log has lost it: another host has become the
    /// owner without it, or a full log has given it up before its followers had it.
    Lost {
        /// Its position in the log.
        position: u64,
    },
    /// The commit was made in this region, and whether the other hosts have it is not known and
    /// will not be: another one has become the owner. Read the records before it is repeated.
    OutcomeUnknown {
        /// Its position in the log.
        position: u64,
    },
    /// A living process has held a lock that this operation needs for a second, or several
    /// processes in turn for four seconds.
    Stalled {
        /// The process that holds it.
        holder: Holder,
    },
    /// The file is not a region, is of another format, is truncated or is damaged.
    NotARegion {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        detail: String,
    },
    /// Bytes in the region contradict each other. Stop writing; run the offline check.
    Damaged {
        /// What was found.
        detail: String,
    },
    /// The region already exists.
    AlreadyExists {
        /// The file.
        path: PathBuf,
    },
    /// Sessions of living processes are attached.
    InUse {
        /// One of them.
        holder: Holder,
    },
    /// This process is a fork of the one that attached: attach again.
    Forked,
    /// An internal error stopped this session: close it, open another and report the error.
    SessionStopped,
    /// Another thread is inside a call of this session: give each thread a session of its own.
    SessionBusy,
    /// A system call failed.
    System {
        /// What failed, and what the caller can do about it.
        detail: String,
        /// The `errno` value.
        errno: i32,
    },
    /// A back-end on a network failed or returned an unexpected response.
    Backend {
        /// Its error or response.
        detail: String,
    },
    /// An argument (a URL, an option) is invalid.
    BadArgument {
        /// What is invalid, and what is valid.
        detail: String,
    },
}

/// The reason and the remedy for an address without an object.
const NO_OBJECT: &str = "it was freed, or this region never assigned it; use only addresses from \
                         records and objects that the same transaction has read";

/// The reason and the remedy for a forked child.
const FORKED: &str =
    "this process was forked after it attached: attach to the region again in the child";

/// The reason and the remedy for a session that a violated invariant has stopped.
const STOPPED: &str = "this session was stopped by an internal error (an invariant was violated, \
                       see the message on stderr): close it, open another and report the error";

/// The reason and the remedy for a second thread in a session.
const BUSY: &str = "another thread, or the call that a signal handler interrupted, uses this \
                    session: open one session for each thread, and call nothing from signal \
                    handlers";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::limits::{
            BLOCK_NAME_BYTES_MAX, BLOCKS_MAX, KEY_BYTES_MAX, NAMESPACE_NAME_BYTES_MAX,
            VALUE_BYTES_MAX,
        };
        match self {
            Self::KeyTooLarge { bytes } => {
                write!(f, "a key of {bytes} bytes: give one of at most {KEY_BYTES_MAX} bytes")
            }
            Self::ValueTooLarge { bytes } => {
                write!(f, "a value of {bytes} bytes: at most {VALUE_BYTES_MAX} fit in one record")
            }
            Self::TooManyBlocks { blocks } => {
                write!(f, "{blocks} blocks: a record has at most {BLOCKS_MAX}")
            }
            Self::BadName { bytes } => write!(
                f,
                "a name of {bytes} bytes: a namespace has 1 to {NAMESPACE_NAME_BYTES_MAX} bytes, \
                 a block 1 to {BLOCK_NAME_BYTES_MAX}, neither with a NUL"
            ),
            Self::WrongKind { detail } => write!(f, "wrong kind: {detail}"),
            Self::Full { detail, .. } => write!(f, "full: {detail}"),
            Self::LimitReached { namespace, used_bytes, limit_bytes } => {
                limit_reached(f, namespace, *used_bytes, *limit_bytes)
            }
            Self::Conflict { detail } => {
                write!(f, "{detail} was changed meanwhile: run the transaction again")
            }
            Self::Deadline { tries } => write!(
                f,
                "the transaction had conflicts in {tries} attempts: try again later, or allow more \
                 attempts"
            ),
            Self::TransactionTooLarge { detail } => {
                write!(f, "{detail}: commit in smaller parts")
            }
            Self::TagTaken { tag, value, holder } => write!(
                f,
                "the unique tag {tag:?} has the value {value:?} in record {holder:?} already: \
                 delete that record or take the value from it first"
            ),
            Self::NoObject { address } => {
                write!(f, "no object has the address {address:#x}: {NO_OBJECT}")
            }
            Self::Stalled { holder } => stalled(f, holder),
            Self::NotOwner { namespace, address } => not_owner(f, namespace, address.as_deref()),
            Self::Fenced { namespace } => fenced(f, namespace),
            Self::NotReplicated { position, waited_ms } => not_replicated(f, *position, *waited_ms),
            Self::Lost { position } => lost(f, *position),
            Self::OutcomeUnknown { position } => outcome_unknown(f, *position),
            Self::NotARegion { path, detail } => write!(f, "{}: {detail}", path.display()),
            Self::Damaged { detail } => write!(
                f,
                "the region is damaged ({detail}): stop its writers and run \
                 `nearstate region check`"
            ),
            Self::AlreadyExists { path } => write!(
                f,
                "{}: a region exists already: attach to it, or drop it first",
                path.display()
            ),
            Self::InUse { holder } => {
                write!(f, "{holder} is still attached: let it detach or end it first")
            }
            Self::Forked => f.write_str(FORKED),
            Self::SessionStopped => f.write_str(STOPPED),
            Self::SessionBusy => f.write_str(BUSY),
            Self::System { detail, errno } => refused(f, detail, *errno),
            Self::Backend { detail } => write!(f, "back-end: {detail}"),
            Self::Behind { detail } | Self::BadArgument { detail } => f.write_str(detail),
        }
    }
}

/// Writes the reason and the remedy for a namespace at its limit.
fn limit_reached(
    f: &mut fmt::Formatter<'_>,
    namespace: &str,
    used: u64,
    limit: u64,
) -> fmt::Result {
    write!(
        f,
        "namespace {namespace:?} is full: its records take {used} bytes and its limit is {limit}: \
         delete records of it, or raise its limit"
    )
}

/// Writes the reason and the remedy for a write at a follower.
fn stalled(f: &mut fmt::Formatter<'_>, holder: &Holder) -> fmt::Result {
    write!(
        f,
        "{holder} is alive but stopped while it holds a lock that this write needs: let it run \
         (kill -CONT) or end it (kill -KILL), then try again"
    )
}

fn not_replicated(f: &mut fmt::Formatter<'_>, position: u64, waited_ms: u64) -> fmt::Result {
    write!(
        f,
        "the commit at position {position} is made on this host, and was not replicated within \
         {waited_ms} ms: ask for its receipt again, and do not repeat it"
    )
}

fn lost(f: &mut fmt::Formatter<'_>, position: u64) -> fmt::Result {
    write!(
        f,
        "the commit at position {position} is lost: another host owns the records without it, or \
         the log gave it up. Read them again, then repeat it"
    )
}

fn outcome_unknown(f: &mut fmt::Formatter<'_>, position: u64) -> fmt::Result {
    write!(
        f,
        "whether the commit at position {position} is replicated is not known: another host owns \
         the records, and this one cannot tell. Read them there before it is repeated"
    )
}

fn fenced(f: &mut fmt::Formatter<'_>, namespace: &str) -> fmt::Result {
    write!(
        f,
        "namespace {namespace:?} is not served: this host has no lease of it at present, is being \
         drained, or its node was stopped. Try again, or ask the host that owns it \
         (`nearstate cluster status`)"
    )
}

fn not_owner(f: &mut fmt::Formatter<'_>, namespace: &str, address: Option<&str>) -> fmt::Result {
    if let Some(address) = address {
        return write!(f, "namespace {namespace:?} belongs to another host: write at {address}");
    }
    write!(
        f,
        "namespace {namespace:?} follows another host: write there, or make this region its \
         successor with `nearstate region promote`"
    )
}

/// Writes a failed system call. An `errno` of 0 means that the failure has no number.
fn refused(f: &mut fmt::Formatter<'_>, detail: &str, errno: i32) -> fmt::Result {
    if errno == 0 {
        return f.write_str(detail);
    }
    write!(f, "{detail}: {}", std::io::Error::from_raw_os_error(errno))
}

impl std::error::Error for Error {}

/// Shorthand for a result with the catalogue's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

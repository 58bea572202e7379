//! Layer 2: records on one host. Put, get, patch and delete, also with conditions; batches and
//! scans; transactions, tags, counters, watches and the commit stream. `nearstate-memory` defines
//! the bytes.
//!
//! ```
//! use nearstate_store::{Condition, CreateOptions, Outcome, Region, Schema};
//! # fn main() -> nearstate_store::Result<()> {
//! # let dir = tempfile::tempdir().expect("a folder");
//! # let path = dir.path().join("ue");
//! let region = Region::create(&path, &CreateOptions::default())?;
//! let session = region.session()?; // one per thread
//! let ue = session.namespace("ue-context", &Schema::default())?;
//!
//! session.put(ue, b"imsi-262011234567890", b"registered")?;
//! let view = session.get(ue, b"imsi-262011234567890")?.expect("put above");
//! assert_eq!(view.bytes(), b"registered"); // the bytes in the region themselves, not a copy
//!
//! let stale = Condition::Version(view.version() + 1);
//! let outcome = session.put_if(ue, b"imsi-262011234567890", b"idle", stale)?;
//! assert_eq!(outcome, Outcome::Refused { current: Some(view.version()) });
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod repair;
pub mod check;
mod defragmentation;
mod read_level;
mod takeover;
mod policy;
mod follow;
mod tags;
mod removal;
mod feed;
mod watch;
mod counter;
mod txn;
mod scan;
mod prefetch;
mod read;
mod log;
mod expiry_clock;
mod usage;
mod session;
mod index;
mod record;
mod namespace_rules;
pub mod glob;

pub use check::{CheckReport, check, check_with};
pub use defragmentation::{Defragmentation, FreeWatch};
pub use expiry_clock::{CLOCK_DIFFERENCE_MIN_MS, SourceClock};
pub use feed::{
    AcknowledgedPlace, FeedItem, FeedSink, FeedStart, FeedStep, FollowedNamespace, FollowedRecord,
    LogFeed,
};
pub use follow::{Follower, Promotion};
pub use index::schema::{Tag, TagSchema, TagState};
pub use index::{ordered, search};
pub use log::consumer::{CommitStream, StreamEntry, StreamItem, WhenFull};
pub use log::entry::{StreamedChange, StreamedRecord, StreamedVersions};
pub use log::receipt::{Receipt, ReceiptState};
pub use log::waits::{ReceiptWait, ReceiptWaits};
pub use namespace_rules::NamespaceRules;
pub use nearstate_memory::{
    AttachOptions, CreateOptions, FollowPosition, FollowState, Following, HeapSpace, HeldLock,
    Inspection, LogIdentity, MemberEntry, NamespaceLimits, NamespaceUsage, NumaPolicy, OwnerLease,
    PROMOTIONS_MAX, PageSize, PagesByNode, PinMode, RegionFiles, RemovedRegion, ReplicationPolicy,
    StallDecision, StallHook, StalledHolder, Takeover, ThreadCall, ThreadGuard, VIEW_MAX,
    barrier_everywhere, check_socket_path, crash, create_eventfd, create_user_directory,
    lease_clock, now_ms, now_ms_coarse, prefetch, release_allocator_memory, since_boot,
    thread_time, user_directory, wall_ahead_ms, with_signals_blocked,
};
pub use nearstate_model::{Error, HeapUsage, HeldBack, Holder, KeptInOperation, Result, limits};
pub use prefetch::Prefetch;
pub use read::ReadScope;
pub use read_level::ReadLevel;
pub use record::builder::CollectionBuilder;
pub use record::fields::Fields;
pub use record::layout::BlockLayout;
pub use record::members::Members;
pub use record::meta;
pub use record::view::{Blocks, View};
pub use record::{BlockChange, Form, Kind};
pub use repair::{RepairReport, repair_with};
pub use scan::{Buckets, Pattern, RecordCounts, Scan};
pub use session::buffers::Metadata;
pub use session::own_changes::OwnChange;
pub use session::{CommitWait, Namespace, REPLICATION_WAIT_MAX, Region, Schema, Session};
pub use tags::declare::PendingTagDeclaration;
pub use tags::expiry::Collected;
pub use tags::lookup::Values;
pub use takeover::Demotion;
pub use txn::address::Address;
pub use txn::for_update::RecordForUpdate;
pub use txn::object::Objects;
pub use txn::write::{Condition, Outcome};
pub use txn::{RUNS_MIN, RetryPolicy, Txn};
pub use watch::event::{Event, EventKind, TagValue};
pub use watch::{Filter, Notice, Waiter, Watch, WatchPosition};

//! Floor 2: records on one host. What a record is, and what an operation on one record does: put,
//! get, patch, delete, their conditional forms, batches, walks; counters; watches. The bytes are
//! `nearstate-memory`'s.
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

pub mod check;
mod object;
mod searching;
mod scan;
mod lookup;
mod prefetch;
mod declare;
mod for_update;
mod single;
mod txn;
mod expiry;
mod stream;
mod telling;
mod tagging;
mod lists;
mod nodes;
mod found;
mod writeset;
mod watch;
mod counter;
mod patch;
mod write;
mod read;
mod session;
mod buffers;
mod copies;
mod address;
mod workshop;
mod view;
pub mod meta;
mod members;
mod event;
mod commit;
pub mod search;
mod layout;
mod splice;
mod record;
pub mod ordered;
mod postings;
mod hidden;
mod schema;
pub mod glob;

pub use address::Address;
pub use buffers::Metadata;
pub use check::{CheckReport, check};
pub use commit::{Committed, Step};
pub use declare::Declaring;
pub use event::{Event, EventKind, TagValue};
pub use expiry::Collected;
pub use for_update::RecordForUpdate;
pub use found::Record;
pub use layout::BlockLayout;
pub use lookup::Values;
pub use members::Members;
pub use nearstate_memory::{
    CreateOptions, Inspection, MemberEntry, NumaPolicy, PageSize, PinMode, RegionFiles, crash,
    event_descriptor, now_ms_coarse, prefetch, since_boot, without_signals,
};
pub use nearstate_model::{Error, Holder, Result, limits};
pub use object::Objects;
pub use prefetch::Prefetch;
pub use record::{BlockChange, Form, Kind};
pub use scan::{Buckets, Counted, Pattern, Scan};
pub use schema::{Tag, TagSchema, TagState};
pub use session::{Namespace, Region, Schema, Session};
pub use stream::{CommitStream, Entry, StreamItem, WhenFull};
pub use txn::{RetryPolicy, Txn};
pub use view::{Blocks, View};
pub use watch::{Filter, Notice, Waiter, Watch, WatchPosition};
pub use write::{Condition, Outcome};

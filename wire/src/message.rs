//! The messages. They borrow names, keys and values: a message that is written from the region's
//! bytes copies none of them, and one that was read has slices of what was received.

use nearstate_model::OneOrMany;

use crate::refusal::RefusalReason;
use crate::settings::SettingsSummary;

/// A message between hosts. The comments name its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Follower: the first message of a connection.
    Hello(Hello<'a>),
    /// Source: the answer to a hello.
    Welcome(Welcome<'a>),
    /// Both: the sender closes the connection.
    Refusal(Refusal<'a>),
    /// Source: a namespace, before the first record of it.
    Namespace(NamespaceMessage<'a>),
    /// Source: a namespace was removed.
    Removed {
        /// The number of its namespace message.
        number: u32,
    },
    /// Source, while the follower joins: a record as it is now.
    Record(RecordMessage<'a>),
    /// Source, while the follower joins: a record that was deleted.
    Absent(AbsentMessage<'a>),
    /// Source: the follower has everything up to this position.
    Joined {
        /// A position of the source's log.
        position: u64,
        /// The check value of its entry.
        check: u64,
    },
    /// Source: one transaction of the log.
    Entry(EntryMessage<'a>),
    /// Source: nothing happened between the last entry and this position.
    Position(PositionMessage),
    /// Follower: what it has applied.
    Acknowledge(Acknowledgement),
    /// Source: the old log ends, and this one follows.
    Switch(SwitchMessage),
}

/// Which copy of which partition a connection is for, in a cluster. All zero without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionPlace {
    /// The id of the cluster.
    pub cluster_id: [u8; 16],
    /// The number of the partition.
    pub partition: u32,
    /// The view of its group.
    pub view: u64,
}

/// What a follower says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The cluster, the partition and the view of the follower.
    pub place: PartitionPlace,
    /// Id of the source whose log the region has applied. All zero: none yet.
    pub source_id: [u8; 16],
    /// Incarnation of that source's region.
    pub incarnation: u64,
    /// The view in which that log became that of the partition; 0 without a cluster.
    pub origin: u64,
    /// Position of the last entry that was applied. 0: none.
    pub position: u64,
    /// Check value of that entry. 0: none.
    pub check: u64,
    /// Bytes of the follower's heap.
    pub heap_bytes: u64,
    /// The settings that all hosts of a cluster share.
    pub settings: SettingsSummary<'a>,
    /// Name of the follower: 1 to [`crate::limits::HOST_NAME_BYTES_MAX`] bytes.
    pub name: &'a str,
}

/// What a source answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    /// The cluster, the partition and the view of the source.
    pub place: PartitionPlace,
    /// Id of the source's region. Not all zero.
    pub source_id: [u8; 16],
    /// Incarnation of that region.
    pub incarnation: u64,
    /// The view in which that log became that of the partition; 0 without a cluster.
    pub origin: u64,
    /// Where the source begins.
    pub start: Start,
    /// Bytes of the source's heap.
    pub heap_bytes: u64,
    /// Name of the source: 1 to [`crate::limits::HOST_NAME_BYTES_MAX`] bytes.
    pub name: &'a str,
}

/// Where a source begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Behind the position of the hello.
    Continue,
    /// With all records: the follower discards its own.
    Join,
    /// Behind the position of the hello in the old log, then a switch to the source's own.
    Switch,
}

/// Why a connection is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// The reason.
    pub reason: RefusalReason,
    /// Details for the operator of the other host: at most
    /// [`crate::limits::REFUSAL_TEXT_BYTES_MAX`] bytes.
    pub text: &'a str,
}

/// A replicated namespace. Sent again when tags were added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceMessage<'a> {
    /// The number that later messages use for it.
    pub number: u32,
    /// The kind of its records.
    pub kind: NamespaceKind,
    /// The highest stamp of its index.
    pub stamp: u64,
    /// Its name.
    pub name: &'a str,
    /// A commit returns when it is replicated.
    pub commits_wait: bool,
    /// Its declared tags.
    pub tags: Vec<ReplicatedTag<'a>>,
}

/// The kind of the records of a namespace, with the numbers of its catalog entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NamespaceKind {
    /// One value.
    Value = 1,
    /// Named blocks.
    Blocks = 2,
    /// Counters.
    Counters = 3,
    /// Values, hashes and sets.
    Mixed = 4,
}

impl NamespaceKind {
    /// The number in the message.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    pub fn of_code(code: u8) -> Option<Self> {
        [Self::Value, Self::Blocks, Self::Counters, Self::Mixed]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// A declared tag of a replicated namespace.
#[expect(
    clippy::struct_excessive_bools,
    reason = "four properties that exclude none of each other"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedTag<'a> {
    /// Its name.
    pub name: &'a str,
    /// At most one record has a value.
    pub is_unique: bool,
    /// It can be searched by range.
    pub is_ordered: bool,
    /// The number of records with a value is kept.
    pub is_counted: bool,
    /// Each record has it.
    pub is_required: bool,
}

/// A record as it is while the follower joins. The first message of a record is anew. Others of the
/// same version, which are not anew, continue it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordMessage<'a> {
    /// The number of the namespace.
    pub namespace: u32,
    /// The version of the record.
    pub version: u64,
    /// The time by which the source judged its expiry, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its key.
    pub key: &'a [u8],
    /// Its content. Never [`Change::Deleted`]: that is an [`AbsentMessage`].
    pub change: Change<'a>,
}

/// A record that was deleted, while the follower joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentMessage<'a> {
    /// The number of the namespace.
    pub namespace: u32,
    /// The last version of the record.
    pub version: u64,
    /// Its key.
    pub key: &'a [u8],
}

/// One transaction of the source's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMessage<'a> {
    /// Its position in the log.
    pub position: u64,
    /// Its check value in the log.
    pub check: u64,
    /// The time by which the source judged expiry, in milliseconds since 1970.
    pub time_ms: u64,
    /// What it changed in replicated namespaces, at most [`crate::limits::ENTRY_RECORDS_MAX`].
    pub records: OneOrMany<RecordChange<'a>>,
}

/// The change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChange<'a> {
    /// The number of the namespace.
    pub namespace: u32,
    /// The version that the change replaced. 0: none.
    pub base_version: u64,
    /// The version of the record with the change. Of a deleted one: the last one it had.
    pub version: u64,
    /// The key.
    pub key: &'a [u8],
    /// What changed.
    pub change: Change<'a>,
}

/// A name, and its value or `None` if it was removed.
pub type ChangedPart<'a> = (&'a [u8], Option<&'a [u8]>);

/// What changed in a record. `meta` has the bytes of the record's cell, and is empty if the record
/// has no metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A whole value.
    Value {
        /// The value.
        value: &'a [u8],
        /// Tags and expiry.
        meta: &'a [u8],
    },
    /// A whole set.
    Set {
        /// The members as they are in the cell.
        value: &'a [u8],
        /// Tags and expiry.
        meta: &'a [u8],
    },
    /// Blocks of a record, or fields of a flat hash.
    Blocks {
        /// Other blocks are removed.
        is_anew: bool,
        /// Tags and expiry, if they changed.
        meta: Option<&'a [u8]>,
        /// The changed blocks.
        blocks: Vec<ChangedPart<'a>>,
    },
    /// Elements of a divided set or hash.
    Elements {
        /// A set, else a hash. The elements of a set have empty values.
        is_set: bool,
        /// Other elements are removed.
        is_anew: bool,
        /// Tags and expiry, if they changed.
        meta: Option<&'a [u8]>,
        /// The changed elements.
        elements: Vec<ChangedPart<'a>>,
    },
    /// The record was deleted.
    Deleted {
        /// Because it had expired.
        is_expiry: bool,
    },
}

/// The source has nothing else to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionMessage {
    /// No change of a replicated namespace is between the last entry and this position.
    pub position: u64,
    /// The check value of the entry at the position.
    pub check: u64,
    /// The end of the source's log.
    pub tail: u64,
    /// A rising number that the follower returns: in a cluster the time of the source's clock
    /// before the message was sent, in nanoseconds.
    pub stamp: u64,
    /// The position up to which the log counts as replicated.
    pub replicated: u64,
    /// The position up to which every full member has applied the log.
    pub floor: u64,
    /// The highest stamp that this follower has returned, as far as the source knows.
    pub answered: u64,
    /// True if the source has a lease.
    pub is_leased: bool,
    /// The source's clock of expiry when the message was written, in milliseconds since 1970. 0: it
    /// is not told, because the follower is behind and gets the message late.
    pub clock_ms: u64,
}

/// The log that the follower has of an old owner ends. It has everything of it that the group has
/// kept, and follows the log of the sender from a position on at which nothing is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchMessage {
    /// Id of the sender's region. Not all zero.
    pub source_id: [u8; 16],
    /// Incarnation of that region.
    pub incarnation: u64,
    /// The view in which that log became that of the partition; 0 without a cluster.
    pub origin: u64,
    /// The position in its log.
    pub position: u64,
    /// The check value there; 0: there is no entry.
    pub check: u64,
    /// Of each namespace its number in the old log, and its number in this one. At most
    /// [`crate::limits::SWITCHED_NAMESPACES_MAX`].
    pub numbers: Vec<(u32, u32)>,
}

/// What the follower has applied. It is in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The last applied position.
    pub position: u64,
    /// The stamp of the last position message, in a cluster the highest one that the follower may
    /// answer. 0: none.
    pub stamp: u64,
}

/// The kind of a message, with its number in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Hello = 1,
    Welcome = 2,
    Refusal = 3,
    Namespace = 4,
    Removed = 5,
    Record = 6,
    Absent = 7,
    Joined = 8,
    Entry = 9,
    Position = 10,
    Acknowledge = 11,
    Switch = 12,
}

/// All kinds with their names in messages for operators.
const KINDS: [(FrameKind, &str); 12] = [
    (FrameKind::Hello, "hello"),
    (FrameKind::Welcome, "welcome"),
    (FrameKind::Refusal, "refusal"),
    (FrameKind::Namespace, "namespace"),
    (FrameKind::Removed, "removed"),
    (FrameKind::Record, "record"),
    (FrameKind::Absent, "absent"),
    (FrameKind::Joined, "joined"),
    (FrameKind::Entry, "entry"),
    (FrameKind::Position, "position"),
    (FrameKind::Acknowledge, "acknowledge"),
    (FrameKind::Switch, "switch"),
];

impl FrameKind {
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        KINDS.iter().map(|(kind, _)| *kind).find(|kind| kind.code() == code)
    }

    pub(crate) fn name(self) -> &'static str {
        let row = KINDS.iter().find(|(kind, _)| *kind == self);
        nearstate_model::invariant::guaranteed(row, "each kind has a name").1
    }

    /// True for the kinds whose messages contain values of records.
    pub(crate) const fn has_values(self) -> bool {
        matches!(self, Self::Record | Self::Entry)
    }

    /// True for the kinds whose messages may be large: only a source sends these.
    pub(crate) const fn may_be_large(self) -> bool {
        self.has_values() || matches!(self, Self::Switch)
    }
}

impl Message<'_> {
    pub(crate) const fn kind(&self) -> FrameKind {
        match self {
            Self::Hello(_) => FrameKind::Hello,
            Self::Welcome(_) => FrameKind::Welcome,
            Self::Refusal(_) => FrameKind::Refusal,
            Self::Namespace(_) => FrameKind::Namespace,
            Self::Removed { .. } => FrameKind::Removed,
            Self::Record(_) => FrameKind::Record,
            Self::Absent(_) => FrameKind::Absent,
            Self::Joined { .. } => FrameKind::Joined,
            Self::Entry(_) => FrameKind::Entry,
            Self::Position(_) => FrameKind::Position,
            Self::Acknowledge(_) => FrameKind::Acknowledge,
            Self::Switch(_) => FrameKind::Switch,
        }
    }
}

/// Numbers and flags of the parts of messages, for both directions.
pub(crate) mod code {
    /// Kinds of changes.
    pub(crate) const VALUE: u8 = 1;
    pub(crate) const SET: u8 = 2;
    pub(crate) const BLOCKS: u8 = 3;
    pub(crate) const ELEMENTS: u8 = 4;
    pub(crate) const DELETED: u8 = 5;

    /// Flags of blocks and elements.
    pub(crate) const ANEW: u8 = 1;
    pub(crate) const HAS_META: u8 = 2;
    /// A flag of elements.
    pub(crate) const IS_SET: u8 = 4;

    /// The flag of a deletion.
    pub(crate) const EXPIRY: u8 = 1;

    /// Flags of a tag.
    pub(crate) const UNIQUE: u8 = 1;
    pub(crate) const ORDERED: u8 = 2;
    pub(crate) const COUNTED: u8 = 4;
    pub(crate) const REQUIRED: u8 = 8;
    /// Beside the kind of a namespace.
    pub(crate) const COMMITS_WAIT: u8 = 0x80;

    /// Starts of a welcome.
    pub(crate) const CONTINUE: u8 = 0;
    pub(crate) const JOIN: u8 = 1;
    pub(crate) const SWITCH: u8 = 2;
}

//! Why a host refuses another one.

use std::fmt;

/// Why a host refuses another one. The texts are those of `spec/wire.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum RefusalReason {
    /// The other side speaks another format.
    Format = 1,
    /// The follower's heap is smaller than the source's, and neither is of a cluster.
    Heap = 2,
    /// The follower has applied a position that the source never gave it.
    Fork = 3,
    /// The source's region follows another host itself.
    Follower = 4,
    /// The source has as many followers as it takes.
    Busy = 5,
    /// A failure at the sender, described by the text.
    Failed = 6,
    /// A follower of its own region.
    Itself = 7,
    /// The other side is of another view of the group.
    View = 8,
    /// The other side belongs to another cluster, or to none, or the partition is not here.
    Cluster = 9,
    /// The source becomes the owner in this view; the text is a number of steps.
    Promoting = 10,
    /// A setting that all hosts of a cluster share differs, as the text says.
    Settings = 11,
}

/// Reason, name, meaning, remedy.
const REASONS: [(RefusalReason, &str, &str, &str); 11] = [
    (
        RefusalReason::Format,
        "format",
        "the other side speaks another format",
        "the same release on both hosts",
    ),
    (
        RefusalReason::Heap,
        "heap",
        "the follower's heap is smaller than the source's, and neither is of a cluster",
        "a larger region",
    ),
    (
        RefusalReason::Fork,
        "fork",
        "the follower has applied a position that the source never gave it",
        "a new region for the follower",
    ),
    (
        RefusalReason::Follower,
        "follower",
        "the source's region follows another host itself",
        "follow that one",
    ),
    (
        RefusalReason::Busy,
        "busy",
        "the source has as many followers as it takes",
        "`peer.followers_max`",
    ),
    (
        RefusalReason::Failed,
        "failed",
        "a failure at the sender, described by the text",
        "as the text says",
    ),
    (RefusalReason::Itself, "itself", "a follower of its own region", "another region"),
    (
        RefusalReason::View,
        "view",
        "the other side is of another view of the group",
        "none: the membership tells both sides the present one",
    ),
    (
        RefusalReason::Cluster,
        "cluster",
        "the other side belongs to another cluster, or to none, or the partition is not here",
        "the same cluster file on both hosts",
    ),
    (
        RefusalReason::Promoting,
        "promoting",
        "the source becomes the owner in this view; the text is the number of steps so far",
        "none: it serves when it is done",
    ),
    (
        RefusalReason::Settings,
        "settings",
        "a setting that all hosts of a cluster share differs, as the text says",
        "the same cluster file on all hosts, and a restart of the nodes that had another one",
    ),
];

impl RefusalReason {
    /// All reasons, in the order of their codes.
    pub fn all() -> impl Iterator<Item = Self> {
        REASONS.iter().map(|(reason, ..)| *reason)
    }

    /// The number in the message.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The reason with this number.
    pub fn of_code(code: u16) -> Option<Self> {
        Self::all().find(|reason| reason.code() == code)
    }

    /// One word, for metrics and logs.
    pub fn name(self) -> &'static str {
        self.texts().0
    }

    /// What it means.
    pub fn meaning(self) -> &'static str {
        self.texts().1
    }

    /// What helps.
    pub fn remedy(self) -> &'static str {
        self.texts().2
    }

    fn texts(self) -> (&'static str, &'static str, &'static str) {
        let row = REASONS.iter().find(|(reason, ..)| *reason == self);
        let (_, name, meaning, remedy) =
            nearstate_model::invariant::guaranteed(row, "each reason has a row of texts");
        (name, meaning, remedy)
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (remedy: {})", self.meaning(), self.remedy())
    }
}

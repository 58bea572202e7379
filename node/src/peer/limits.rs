//! Limits of connections between hosts.

use std::num::NonZeroU64;
use std::time::Duration;

/// A follower says hello within this time, or its connection is closed: as long as a TLS handshake
/// over a slow link takes.
pub(crate) const HELLO_MAX: Duration = Duration::from_secs(2);

/// A peer that is silent for longer is gone. The other side sends at least every
/// [`BEAT_INTERVAL`].
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The kernel ends a connection when the other host has acknowledged nothing, or takes nothing, for
/// this long: as long as a follower needs to discard or to index ten million records.
pub(crate) const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// The most connections whose hello was not admitted yet, beside one for each member that may
/// follow: all members return at once after a cut. A further one takes the place of an older one.
/// Each has a thread, and each that has lost its place until it sees that.
pub(crate) const UNGREETED_MAX: usize = 64;

/// The most of them of one address, beside one for each member: hosts may share an address.
pub(crate) const UNGREETED_OF_ADDRESS_MAX: usize = 8;

/// Connections that are accepted at one address before the others are looked at.
pub(crate) const ACCEPTED_AT_ONCE: usize = 64;

/// How long the log keeps the entries for a follower that has left, if it keeps entries: as long as
/// a process takes to start again.
pub(crate) const LEFT_MAX: Duration = Duration::from_secs(10);

/// The longest time between two messages of a source that has nothing to send.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_millis(100);

/// The interval of looks at the catalog, for new namespaces.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes that a source has not yet sent before it stops reading its log: a few milliseconds of a
/// 10 Gb/s link.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// How long a source spins after an acknowledgement of everything that it has sent, if processes
/// wait for acknowledgements: as long as a process that was woken by it takes to commit again. It
/// does not yield meanwhile: the kernel takes a slice from a thread that yields to another one, and
/// runs it milliseconds later. Writers that wait for nothing have no source that spins: it would
/// take the line of the log's tail from them at each commit.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(30);

/// How long a source spins for more behind the last entry that it has read: a writer that commits
/// several times before it waits needs a tenth of it between two commits.
pub(crate) const QUIET_MAX: Duration = Duration::from_micros(10);

/// Between two looks at the tail of the log while a source spins: the line travels once for some
/// commits. That a process waits it sees at once, by another line.
pub(crate) const TAIL_INTERVAL: Duration = Duration::from_micros(4);

/// The sleep between two looks of a source at its log: an eighth of the time since it has sent or
/// received something, within these bounds. A writer makes no system call, so it wakes no source:
/// the first commit after a pause waits for the rest of a sleep. A process that waits wakes it. At
/// the upper bound a source takes 1 % of a core.
pub(crate) const LOOK_SLEEP_MIN: Duration = Duration::from_micros(20);
pub(crate) const LOOK_SLEEP_MAX: Duration = Duration::from_millis(1);

/// The lower bound while the follower has not acknowledged everything. Its acknowledgement ends the
/// sleep, and what was committed meanwhile is sent together: a message costs each side some
/// microseconds in the kernel, an entry one. A follower that is further away than this delays no
/// commit by more.
pub(crate) const FLIGHT_SLEEP_MIN: Duration = Duration::from_micros(100);

/// How long entries that no process waits for gather before they are sent, if nothing is
/// outstanding: as long as a writer takes for a hundred commits or two. Without it the first one
/// would leave alone, and the others behind its acknowledgement.
pub(crate) const GATHER_MAX: Duration = Duration::from_micros(250);

/// Bytes that gather at most: as many as one message of the kernel's loopback and a follower's read
/// take.
pub(crate) const GATHER_BYTES_MAX: usize = 256 << 10;

/// A member is told of the floor at least each time when it has risen by this many positions: what
/// it keeps of the log stays in the caches of its processor, and its memory is used again. A
/// message for so many entries costs nothing that can be measured.
pub(crate) const FLOOR_STEP: u64 = 256;

/// How much longer than asked for the kernel may let a source sleep, in nanoseconds.
pub(crate) const LOOK_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1000);

/// The first and the longest pause of a follower before it connects again.
pub(crate) const RETRY_MIN: Duration = Duration::from_millis(100);
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(5);

/// The longest time that a follower waits for a connection to be accepted.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The interval in which a member of a group looks whether it is to end: a small part of the time
/// that a change of the owner may take.
pub(crate) const MEMBER_LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A source tells its clock of expiry while a follower lacks at most this many positions, which it
/// applies in some milliseconds: with a longer backlog the message arrives late, and the follower
/// would take the delay for a difference of the clocks.
pub(crate) const CLOCK_LAG_MAX: u64 = 1024;

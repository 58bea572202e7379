//! Limits of the membership.

use std::time::Duration;

use nearstate_cluster::limits::HOSTS_MAX;
use nearstate_node::UngreetedLimits;

/// The largest message between two members, in bytes: 32 entries with commands of 4 KiB, or a part
/// of a snapshot, as text.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The largest message of a connection that has not said hello.
pub(crate) const HELLO_BYTES_MAX: usize = 4 << 10;

/// A member says hello within this time, or its connection is closed.
pub(crate) const HELLO_MAX: Duration = Duration::from_secs(2);

/// A connection without a request for this long is closed. A member that needs it connects again.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(60);

/// The most connections of one host that have said hello: the engine, a report and
/// [`LEADER_CALLS_MAX`] need six. A further one takes the place of the one that was used longest
/// ago, and a member whose connection was closed connects again.
pub(crate) const CONNECTIONS_OF_HOST_MAX: usize = 8;

/// The most connections from other members that have said hello: all of the largest cluster, so no
/// host is refused because others are connected. The share of this host is for displaced ones that
/// have not ended. Further ones are closed.
pub(crate) const CONNECTIONS_MAX: usize = HOSTS_MAX * CONNECTIONS_OF_HOST_MAX;

/// Connections that have not said hello: all of all hosts may come at once after a cut, and five
/// hosts may share an address. A further one takes the place of an older one.
pub(crate) const UNGREETED: UngreetedLimits =
    UngreetedLimits { of_address: 32, all: CONNECTIONS_MAX + 32 };

/// Connections that wait to be accepted, in the kernel: more than have a place. It drops the first
/// packet of further ones, and the other side waits a second before it sends it again, which is
/// longer than an election.
pub(crate) const ACCEPT_QUEUE_MAX: u32 = 1024;
const _: () = assert!(ACCEPT_QUEUE_MAX as usize > UNGREETED.all, "the queue holds all at once");

/// The commands of this host that are at the leader at the same time, each on a connection of its
/// own, so that one whose reply is slow does not delay the others. Further ones wait.
pub(crate) const LEADER_CALLS_MAX: usize = 4;

/// The most commands of this host that wait for the leader. Further ones are dropped, and their
/// callers propose them again.
pub(crate) const PROPOSALS_MAX: usize = 256;

/// A cluster that was not created within this time is not, and an etcd that does not answer for so
/// long has failed.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A change of a vote that is not done after this time is given up.
pub(crate) const VOTE_CHANGE_MAX: Duration = Duration::from_secs(4);

/// How long a leader waits until a host that it removes has learned that. A lost one does not.
pub(crate) const REMOVAL_LEARNED_MAX: Duration = Duration::from_secs(1);

/// A leader that has asked an empty directory so often for what is behind the same command knows
/// that it had it. A request that is repeated because its reply was late is none.
pub(crate) const LOST_ASKED_MIN: u32 = 8;

/// Commands after which a snapshot is written: some hundred kilobytes of log.
pub(crate) const SNAPSHOT_INTERVAL: u64 = 500;

/// Commands that are kept in front of a snapshot, for members that are a little behind.
pub(crate) const ENTRIES_KEPT: u64 = 100;

/// Entries in one message to another member.
pub(crate) const ENTRIES_SENT_MAX: u64 = 32;

/// Bytes of a snapshot in one message: four times as many as text.
pub(crate) const SNAPSHOT_PART_BYTES: u64 = 64 << 10;

/// The log file is written anew when it has more bytes than this, and most of them are of no use.
pub(crate) const LOG_BYTES_MIN: u64 = 1 << 20;

/// A host whose disk has failed tries again after this time.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Commands that one read of etcd returns.
pub(crate) const ENTRIES_READ_MAX: u64 = 64;

/// The largest reply of etcd: 64 commands of 4 KiB and a snapshot of 1 MiB, as text.
pub(crate) const ETCD_REPLY_BYTES_MAX: usize = 4 << 20;

/// What is read of an error of etcd, in bytes. It has some hundred.
pub(crate) const ETCD_ERROR_BYTES_MAX: usize = 4 << 10;

/// A request to etcd takes at least this long before the next endpoint is asked.
pub(crate) const ETCD_CALL_MIN: Duration = Duration::from_millis(200);

/// How long the replies of all endpoints are waited for before the cluster is created: one that is
/// not compared may be a wrong one. The other half of [`ANSWER_MAX`] is left for the creation.
pub(crate) const ETCD_COMPARED_MAX: Duration = Duration::from_secs(1);
const _: () = assert!(ETCD_COMPARED_MAX.as_millis() * 2 <= ANSWER_MAX.as_millis(), "half of it");

/// Threads of the etcd engine for work that blocks: the names of its endpoints are looked up, and
/// the last command is noted in a file. A look-up that hangs must not delay the note.
pub(crate) const ETCD_BLOCKING_MAX: usize = 8;

/// How often a host reads from etcd while its watch says nothing.
pub(crate) const ETCD_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A watch of etcd that says nothing for this long is begun anew.
pub(crate) const ETCD_WATCH_MAX: Duration = Duration::from_secs(5);

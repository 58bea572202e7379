//! The limits of the protocol: each with its reason, and the behaviour when it is reached.

use std::time::Duration;

use nearstate_model::limits::VALUE_BYTES_MAX;

/// The longest body of a request, in bytes: the largest block, and 1 MiB for the rest of the
/// record. A longer body is answered with 413.
pub const BODY_BYTES_MAX: usize = VALUE_BYTES_MAX + (1 << 20);

/// Bytes for which a body gets room at once, if it is not announced to be shorter. Then its room
/// doubles, up to what was announced.
pub const BODY_STEP_BYTES: usize = 1 << 20;

/// The longest JSON text (meta, patch, filter, subscription, schema), in bytes. A record has at
/// most 64 tag values of 1 KiB. A longer text is answered with 413.
pub const JSON_BYTES_MAX: usize = 1 << 20;

/// The largest head of a request, in bytes: a filter of some hundred comparisons fits into the
/// query. A larger one is answered with 431 (HTTP/1.1, where one that arrives at once may have
/// twice this size), or its stream is reset (HTTP/2).
pub const HEAD_BYTES_MAX: u32 = 64 << 10;

/// The most parameters of a query: no operation has more than ten, and each is compared with all
/// before it, ahead of the control of overload and of the access token. More are answered with 400.
pub const QUERY_PARAMETERS_MAX: usize = 32;

/// The most header fields of a request or of a part. More are answered with 431 and 400.
pub const HEADERS_MAX: usize = 64;

/// The most requests in progress of one HTTP/2 connection. Further streams are refused, and the
/// client sends them again.
pub const STREAMS_MAX: u32 = 128;

/// Streams that a client has reset and that are not cleaned up yet. A client that opens and resets
/// streams faster is disconnected.
pub const RESET_STREAMS_MAX: usize = 20;

/// Bytes of a request body that a client may send on one HTTP/2 stream before the node has read
/// them. Bodies are read at once, so that the window only bounds what is in flight.
pub const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// The same for all streams of a connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Bytes of input that the connection hands to HTTP before it stops reading from the socket: four
/// reads. A client that sends faster than its requests are answered waits.
pub const INPUT_HIGH_WATER_BYTES: usize = 256 << 10;

/// The most bytes that the request bodies of one connection hold, and the most of its response
/// bodies that it has not read. A request that exceeds one of them is answered with 503 and
/// `Retry-After`; a response is sent if the connection has no other.
pub const CONNECTION_BODY_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

/// What a stream takes beside its bodies, measured with 100,000 of them: tasks, heads, and what
/// HTTP keeps of it. It counts towards `limits.core_bytes_max`, so that many clients that read
/// nothing are bounded although each keeps its own limits.
pub const STREAM_BYTES: usize = 4608;

/// Bytes of a response that HTTP takes at once.
pub const REPLY_FRAME_BYTES: usize = 64 << 10;

/// The least rate at which a client of HTTP/2 takes a response that waits for it, in bytes per
/// second, averaged over `limits.reply_timeout`. A client that takes single bytes would hold the
/// stream and its response for days. It is a 64th of `limits.request_bytes_per_second_min`, because
/// many streams share the connection. A slower stream is reset.
pub const REPLY_BYTES_PER_SECOND_MIN: usize = 1 << 10;

/// The bytes of a response that a client takes in this time at least, if so many are left.
pub(crate) fn reply_bytes_min(period: Duration) -> usize {
    let millis = usize::try_from(period.as_millis()).unwrap_or(usize::MAX);
    (REPLY_BYTES_PER_SECOND_MIN.saturating_mul(millis) / 1000).max(1)
}

/// Bytes of a response that HTTP/2 holds for a stream whose client does not read.
pub const STREAM_SEND_BYTES: usize = 400 << 10;

/// How long a client of HTTP/2 may take to notice that the node ends (GOAWAY). After it, and when
/// its requests are answered, the connection is closed although the client may send others.
pub const GOAWAY_TIME_MAX: Duration = Duration::from_secs(1);

/// The longest content type, transfer encoding or id of a part, in bytes. A longer one is answered
/// with 400.
pub const PART_HEADER_BYTES_MAX: usize = 255;

/// The most items of a patch. Each may copy the document. More are answered with 400.
pub const PATCH_ITEMS_MAX: usize = 256;

/// The most bytes of documents that the items of a patch copy together, as JSON text. All are
/// copied, written and checked in one transaction, in which the core serves no other request: some
/// tenths of a second. Further items fail; those of documents below 64 KiB never do.
pub const PATCH_COPIED_BYTES_MAX: usize = 16 << 20;

/// The longest callback URI, in bytes. A longer one is answered with 400.
pub const URI_BYTES_MAX: usize = 2048;

/// The most records that a search returns with their content if `limit-range` is absent. The others
/// are listed as references.
pub const RECORDS_RETURNED_MAX: usize = 10_000;

/// The most bytes of records that a search returns, if `max-payload-size` allows more. The others
/// are listed as references.
pub const SEARCH_BYTES_MAX: usize = 64 << 20;

/// Bytes by which a search grows before the node compares the memory of the core with
/// `limits.core_bytes_max` again: each search in progress may exceed it by as much, and by what one
/// slice of it finds.
pub const SEARCH_COUNTED_BYTES: usize = 256 << 10;

/// The most references that a search returns. The count is not limited by it.
pub const REFERENCES_MAX: usize = 100_000;

/// The most bytes of a list of timers or subscriptions. The client filters, or deletes, to see the
/// others. Of timers, at most [`REFERENCES_MAX`] are listed.
pub const LIST_BYTES_MAX: usize = 16 << 20;

/// The most subscriptions of a storage: the notifier has them in memory and matches each change
/// with all of them. Another one is answered with 500 `INSUFFICIENT_RESOURCES`.
pub const SUBSCRIPTIONS_MAX: usize = 10_000;

/// The most bytes of the subscriptions of a storage. Another one is answered likewise.
pub const SUBSCRIPTIONS_BYTES_MAX: usize = 64 << 20;

/// The most records that one request deletes by a filter. The client repeats the request for the
/// rest.
pub const DELETED_MAX: usize = 100_000;

/// Records that a search, or a read of all subscriptions, examines between two checks of the time.
pub const SCAN_STEPS: u32 = 64;

/// Attempts of a transaction that has conflicts, before 503 is answered.
pub const TRIES_MAX: u32 = 1000;

/// What the outbox holds at most. Without room a timer waits, and other notifications are dropped
/// and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Entries for one target (scheme and authority): 100,000.
    pub target_entries: usize,
    /// Bytes for one target: 64 MiB.
    pub target_bytes: usize,
    /// Bytes for all targets: 256 MiB. Four that are gone do not take what the others need.
    pub bytes: usize,
}

impl Default for OutboxLimits {
    fn default() -> Self {
        Self { target_entries: 100_000, target_bytes: 64 << 20, bytes: 256 << 20 }
    }
}

/// The least time, in milliseconds, after which a timer is looked at again for whose notification
/// the outbox had no room: a target takes some thousand notifications meanwhile.
pub const DEFERRED_MS_MIN: u64 = 100;

/// The most such timers of one target that are looked at in a millisecond. Each is a commit's part
/// of some 10 us, so that they take a tenth of a core.
pub const DEFERRED_PER_MS: u64 = 10;

/// The longest time until such a timer is looked at again, however many there are.
pub const DEFERRED_MS_MAX: u64 = UNDELIVERED_MS_MAX;

/// The most targets to which a node delivers at the same time, each with a task and a connection.
/// Others wait until one of these is idle.
pub const TARGETS_MAX: usize = 1024;

/// Notifications of one target that are sent at the same time. After a kill, at most these arrive
/// twice.
pub const BATCH_MAX: usize = 64;

/// The first pause after a target has failed. It doubles with each failure.
pub const RETRY_MIN: Duration = Duration::from_millis(50);

/// The longest pause: a target that is back gets its notifications this much later.
pub const RETRY_MAX: Duration = Duration::from_secs(10);

/// Failures after which the circuit of a target is open: only one notification probes it.
pub const FAILURES_MAX: u32 = 5;

/// How long a target or a callback may fail, in milliseconds. Then notifications that became due
/// longer ago are dropped and counted.
pub const UNDELIVERED_MS_MAX: u64 = 3_600_000;

/// The fewest attempts before a notification is dropped: a node that was suspended tries again.
pub const ATTEMPTS_MIN: u32 = 5;

/// The most callbacks, and records of callbacks, of one target that wait after a failure while
/// others are delivered. With more, the others wait as well.
pub const LANES_WAITING_MAX: usize = 256;

/// How long the connection to a target stays open without notifications.
pub const TARGET_IDLE_MAX: Duration = Duration::from_secs(30);

/// The largest body of a notification with blocks. A larger one has only the descriptor and the
/// meta: the receiver reads the blocks.
pub const NOTIFICATION_BYTES_MAX: usize = 1 << 20;

/// The same for a record that has expired or was deleted, which no receiver can read any more. A
/// larger one has only the descriptor and the meta.
pub const LAST_NOTIFICATION_BYTES_MAX: usize = 16 << 20;

/// How often the notifier looks for changes, and for what is due: timers are this late at most on
/// an idle node.
pub const NOTIFIER_INTERVAL: Duration = Duration::from_millis(10);

/// The pause between two looks at whether the tasks of all targets have ended.
pub const END_INTERVAL: Duration = Duration::from_millis(10);

/// The pause between two looks at whether notifications of a cluster's partition are replicated:
/// some round trips between hosts.
pub const RELEASE_INTERVAL: Duration = Duration::from_millis(1);

/// The pause between two looks at the lease of the host while notifications are in flight: they are
/// cancelled this much after its end.
pub const LEASE_INTERVAL: Duration = Duration::from_millis(10);

/// The most repetitions of a timer that are notified late, because no node ran or because its time
/// is long past: the last hour of one per second, after which a notification is dropped anyway.
/// Earlier ones are dropped and counted.
pub const REPETITIONS_MISSED_MAX: u64 = 4096;

/// The shortest time between two reports that the notifier has failed.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/* nearstate: the state layer for 5G network functions, C API. Generated; do not edit.
 *
 * Records in shared memory that the processes of a host read and write concurrently, without a
 * server, and that survive the death of any of them. Link with
 * `pkg-config --cflags --libs nearstate`.
 *
 * Rules of the API. The documentation of each function refers to them as "Safety".
 *
 * 1. Handles. A handle comes from this library and is invalid after its close, detach, release,
 *    commit or abort. The library cannot detect the use of an invalid handle. Several threads may
 *    use a region concurrently. A session, with its views, records for update, block layouts,
 *    transactions and streams, and a watch, are used by one thread at a time. A second thread in a
 *    session is noticed: its call fails with NS_SESSION_BUSY and changes nothing. A call that ends
 *    or releases a handle and fails with NS_SESSION_BUSY leaves it valid: repeat it.
 * 2. Bytes. `data` points to `len` bytes that do not change during the call. It is NULL only if
 *    `len` is 0. Text ends with a NUL.
 * 3. Out-parameters come last and point to writable memory, which may be uninitialized. They are
 *    written if the status is NS_OK, and otherwise only where documented. NULL is rejected unless
 *    documented otherwise.
 * 4. Callbacks run in the calling thread before the call returns. Their arguments are valid until
 *    they return. They return true to continue and false to end the iteration, which is not an
 *    error. (The callback of ns_transact returns a status.) They may call this library, but
 *    not release, abort or close what they iterate over. They must not throw or longjmp: that
 *    aborts the process.
 * 5. Signal handlers may call ns_status_name and nothing else. A handler interrupts a call between
 *    two stores, so another call through the same session would damage the operation in progress.
 *    A handler must not leave a call by siglongjmp or by an exception, and a thread must not be
 *    cancelled or ended within a call: the session would keep its locks until the process ends.
 * 6. What a failed call changed: nothing, with these exceptions. NS_NOT_REPLICATED, NS_LOST and
 *    NS_OUTCOME_UNKNOWN mean that the commit was made in this region: other processes see it, and
 *    it must not be repeated blindly. ns_receipt_of_commit tells what becomes of it. Each call that
 *    commits can return them if its session waits (ns_session_set_commit_wait). Calls that make
 *    several commits (ns_namespace_add_tags, ns_namespace_set_limits, ns_collect_expired) may have
 *    made some of them. NS_BUG and NS_SESSION_STOPPED say nothing about the call that was in
 *    progress: read the records in another session.
 * 7. Statuses of any call, which the lists below need not repeat: NS_BAD_ARGUMENT (NULL, a handle
 *    of another session, a removed namespace), NS_SESSION_BUSY and NS_SESSION_STOPPED (a call with
 *    a session or something of it), NS_BUG.
 * 8. SIGBUS. The first call that creates, attaches or checks a region installs a handler for the
 *    process, once. A region whose file was truncated then answers NS_DAMAGED instead of ending the
 *    process. Bytes of a view may be zeros then: ns_session_check tells. At any other address it
 *    calls the handler that was there before. A program that has one installs it before that call,
 *    or calls the previous handler from it. Do not unload the library: its handler stays.
 *
 * Lengths above a limit and NULL are rejected before anything is read. Reading a record allocates
 * nothing. After a fork, the child must attach again; calls with inherited handles return
 * NS_FORKED, except those that close, abort or release one. Those succeed also if another thread
 * of the parent was inside a call at the fork; what it was using stays in the memory of the child.
 */


#ifndef NEARSTATE_H
#define NEARSTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Records with this value.
 */
#define NS_LOOKUP_EQUAL 1

/**
 * Records with a value that starts with this prefix. The tag must be ordered.
 */
#define NS_LOOKUP_PREFIX 2

/**
 * Records with a value in a range. The tag must be ordered.
 */
#define NS_LOOKUP_RANGE 3

/**
 * No bound.
 */
#define NS_BOUND_NONE 0

/**
 * The bound is part of the range.
 */
#define NS_BOUND_INCLUDED 1

/**
 * The bound is not part of the range.
 */
#define NS_BOUND_EXCLUDED 2

/**
 * The commits of the namespace stay in this region.
 */
#define NS_POLICY_LOCAL 1

/**
 * They go to the log. A commit does not wait for other hosts.
 */
#define NS_POLICY_ASYNC 2

/**
 * They go to the log. A commit returns when it is replicated.
 */
#define NS_POLICY_REPLICATED 3

/**
 * Commits that change a namespace with `NS_POLICY_REPLICATED` wait.
 */
#define NS_WAIT_BY_NAMESPACE 1

/**
 * No commit waits.
 */
#define NS_WAIT_NEVER 2

/**
 * Every commit that changes a logged namespace waits.
 */
#define NS_WAIT_ALWAYS 3

/**
 * The oldest transactions are overwritten; the consumer learns how many were lost. Writers never
 * wait.
 */
#define NS_STREAM_FULL_OVERWRITE 1

/**
 * Commits fail with `NS_BEHIND` until the consumer acknowledges older transactions.
 */
#define NS_STREAM_FULL_REFUSE 2

/**
 * The record was replaced by this value, tags and expiry.
 */
#define NS_STREAM_OP_PUT 1

/**
 * Some blocks of the record were changed.
 */
#define NS_STREAM_OP_PATCHED 2

/**
 * The record was deleted.
 */
#define NS_STREAM_OP_DELETED 3

/**
 * The record expired and was deleted.
 */
#define NS_STREAM_OP_EXPIRED 4

/**
 * Some members of a large set or some fields of a large hash were changed.
 */
#define NS_STREAM_OP_ELEMENTS 5

/**
 * The consumer has not acknowledged it yet.
 */
#define NS_RECEIPT_PENDING 1

/**
 * The consumer has acknowledged it.
 */
#define NS_RECEIPT_REPLICATED 2

/**
 * Another host owns the partition without it, or the log has given it up before the consumer read
 * it.
 */
#define NS_RECEIPT_LOST 3

/**
 * Nothing is known of it here, and will not be: it is of a log that this region has neither
 * written nor taken over, or the host has left the group before it was decided. Read the record
 * before the commit is repeated.
 */
#define NS_RECEIPT_UNKNOWN 4

/**
 * Events of all records of the namespace.
 */
#define NS_FILTER_ALL 0

/**
 * Events of the record with this key.
 */
#define NS_FILTER_KEY 1

/**
 * Events of records whose keys start with this prefix.
 */
#define NS_FILTER_PREFIX 2

/**
 * Events of records that have this value of a tag, before or after the change.
 */
#define NS_FILTER_TAG 3

/**
 * The record was created.
 */
#define NS_EVENT_CREATED 1

/**
 * The record was changed.
 */
#define NS_EVENT_UPDATED 2

/**
 * The record was deleted.
 */
#define NS_EVENT_DELETED 3

/**
 * The record expired.
 */
#define NS_EVENT_EXPIRED 4

/**
 * The watcher was too slow and events were lost: read the watched records again.
 */
#define NS_EVENT_LOST 5

/**
 * All conditions in `units` hold.
 */
#define NS_SEARCH_AND 1

/**
 * At least one condition in `units` holds.
 */
#define NS_SEARCH_OR 2

/**
 * The one condition in `units` does not hold.
 */
#define NS_SEARCH_NOT 3

/**
 * The key is one of `records`.
 */
#define NS_SEARCH_RECORDS 4

/**
 * A value of the tag equals the given one.
 */
#define NS_SEARCH_EQ 5

/**
 * The tag has values, and none equals the given one.
 */
#define NS_SEARCH_NEQ 6

/**
 * A value of the tag is greater than the given one.
 */
#define NS_SEARCH_GT 7

/**
 * A value of the tag is greater than or equal to the given one.
 */
#define NS_SEARCH_GTE 8

/**
 * A value of the tag is less than the given one.
 */
#define NS_SEARCH_LT 9

/**
 * A value of the tag is less than or equal to the given one.
 */
#define NS_SEARCH_LTE 10

/**
 * No two records have the same value. A commit that violates this fails with `NS_TAG_TAKEN`.
 */
#define NS_TAG_UNIQUE 1

/**
 * Supports lookups by range and prefix.
 */
#define NS_TAG_ORDERED 2

/**
 * The number of records with each value is stored.
 */
#define NS_TAG_COUNTED 4

/**
 * Every record must have the tag. A commit that violates this fails.
 */
#define NS_TAG_REQUIRED 8

/**
 * The index is being built: writers maintain it, and existing records are being added. Lookups
 * fail.
 */
#define NS_TAG_BUILDING 1

/**
 * The index is complete.
 */
#define NS_TAG_READY 2

/**
 * Each record has one value.
 */
#define NS_KIND_VALUE 1

/**
 * Each record has named blocks.
 */
#define NS_KIND_BLOCKS 2

/**
 * Each record is a counter (`ns_counter_add`).
 */
#define NS_KIND_COUNTERS 3

/**
 * Pages of 4 KiB.
 */
#define NS_PAGE_SMALL 0

/**
 * Pages of 2 MiB. The path must be on a hugetlbfs mount.
 */
#define NS_PAGE_HUGE_2M 1

/**
 * Memory is allocated on the node of the processor that first touches it.
 */
#define NS_NUMA_DEFAULT 0

/**
 * Memory is allocated on the given nodes only.
 */
#define NS_NUMA_BIND 1

/**
 * Memory is interleaved over the given nodes, page by page.
 */
#define NS_NUMA_INTERLEAVE 2

/**
 * On the nodes while they have free memory, then on others.
 */
#define NS_NUMA_PREFERRED 3

/**
 * Asymmetric if the kernel supports `membarrier(2)`, otherwise fenced.
 */
#define NS_PIN_AUTO 0

/**
 * Reads need no fence. Every attaching process needs `membarrier(2)`.
 */
#define NS_PIN_ASYMMETRIC 1

/**
 * Every read executes a full fence (about 10 ns).
 */
#define NS_PIN_FENCED 2

/**
 * Maximum length of a key, in bytes. A key may be empty.
 */
#define NS_KEY_BYTES_MAX 4096

/**
 * Maximum size of a value or block, in bytes.
 */
#define NS_VALUE_BYTES_MAX 134217728

/**
 * Maximum number of blocks of a record.
 */
#define NS_BLOCKS_MAX 1024

/**
 * Maximum number of records and objects of a transaction, index records included.
 */
#define NS_TRANSACTION_RECORDS_MAX 4096

/**
 * Maximum number of bytes that a transaction writes.
 */
#define NS_TRANSACTION_BYTES_MAX 268435456

/**
 * Maximum number of tag values of a record, over all its tags.
 */
#define NS_TAGS_MAX 64

/**
 * Maximum length of the name of a tag, in bytes.
 */
#define NS_TAG_NAME_BYTES_MAX 255

/**
 * Maximum length of a value of a tag, in bytes.
 */
#define NS_TAG_VALUE_BYTES_MAX 1024

/**
 * Maximum number of tags that a namespace declares.
 */
#define NS_TAGS_DECLARED_MAX 32

/**
 * The version of this header: incompatible changes.
 */
#define NS_VERSION_MAJOR 0

/**
 * The version of this header: additions, and before 1.0 also incompatible changes.
 */
#define NS_VERSION_MINOR 1

/**
 * The version of this header: corrections.
 */
#define NS_VERSION_PATCH 0

/**
 * The result of a call. Numbers from 16 are errors; `ns_last_error` returns a message for them.
 */
typedef enum ns_status {
    /**
     * Success.
     */
    NS_OK = 0,
    /**
     * The record or block does not exist, or no event is pending.
     */
    NS_NOT_FOUND = 1,
    /**
     * The condition did not hold. Nothing was changed.
     */
    NS_REFUSED = 2,
    /**
     * The buffer is too small: enlarge it and call again.
     */
    NS_TOO_SMALL = 3,
    /**
     * A bug in this library: close the session and report the message of `ns_last_error`.
     */
    NS_BUG = 15,
    /**
     * The key has more bytes than `NS_KEY_BYTES_MAX`.
     */
    NS_KEY_TOO_LARGE = 16,
    /**
     * The value or block is larger than `NS_VALUE_BYTES_MAX`.
     */
    NS_VALUE_TOO_LARGE = 17,
    /**
     * More blocks than `NS_BLOCKS_MAX`.
     */
    NS_TOO_MANY_BLOCKS = 18,
    /**
     * A name (of a namespace or a block) is empty or too long.
     */
    NS_BAD_NAME = 19,
    /**
     * The record is not of the kind the operation needs, or the namespace was created with another
     * schema.
     */
    NS_WRONG_KIND = 20,
    /**
     * The region's heap, its file system, or one of its tables is full.
     */
    NS_FULL = 21,
    /**
     * A living process has held a lock that this operation needs for a second, or several
     * processes in turn for four seconds.
     */
    NS_STALLED = 22,
    /**
     * The file is not a region, is of another format, is truncated or is damaged.
     */
    NS_NOT_A_REGION = 23,
    /**
     * Bytes in the region contradict each other. Stop writing; run the offline check.
     */
    NS_DAMAGED = 24,
    /**
     * The region already exists.
     */
    NS_ALREADY_EXISTS = 25,
    /**
     * Sessions of living processes are attached.
     */
    NS_IN_USE = 26,
    /**
     * This process is a fork of the one that attached: attach again.
     */
    NS_FORKED = 27,
    /**
     * A system call failed.
     */
    NS_SYSTEM = 28,
    /**
     * A back-end on a network failed or returned an unexpected response.
     */
    NS_BACKEND = 29,
    /**
     * An argument (a URL, an option) is invalid.
     */
    NS_BAD_ARGUMENT = 30,
    /**
     * Another writer changed a record that the transaction has read: run the transaction again.
     */
    NS_CONFLICT = 31,
    /**
     * A transaction did not commit within its number of attempts and its deadline.
     */
    NS_DEADLINE = 32,
    /**
     * A transaction touches more records than `NS_TRANSACTION_RECORDS_MAX`, or
     * writes more bytes than `NS_TRANSACTION_BYTES_MAX`.
     */
    NS_TRANSACTION_TOO_LARGE = 33,
    /**
     * Another record has this value of a unique tag.
     */
    NS_TAG_TAKEN = 34,
    /**
     * No object of the transactional memory has this address: it was freed or never allocated.
     */
    NS_NO_OBJECT = 35,
    /**
     * The commit stream of this writer is full, and rejects commits until its consumer has
     * acknowledged entries.
     */
    NS_BEHIND = 36,
    /**
     * An internal error stopped this session: close it, open another and report the error.
     */
    NS_SESSION_STOPPED = 37,
    /**
     * Another thread is inside a call of this session: give each thread a session of its own.
     */
    NS_SESSION_BUSY = 38,
    /**
     * The records of a namespace would take more memory than its hard limit. Deletes, and writes
     * that take no more memory than what they replace, are still executed.
     */
    NS_LIMIT_REACHED = 39,
    /**
     * The records of this namespace are those of another host, which this region follows. Write
     * there, or promote the region.
     */
    NS_NOT_OWNER = 40,
    /**
     * This host owns the namespace no longer, or cannot know at present whether it does, or its
     * node was stopped: nothing was changed. Try again, or write at the host that owns it.
     */
    NS_FENCED = 41,
    /**
     * The commit is made in this region, and not enough other hosts have it yet: the time limit
     * for waiting is over. It may be replicated later, or be lost with this host.
     */
    NS_NOT_REPLICATED = 42,
    /**
     * The commit was made in this region, and its log has lost it: another host has become the
     * owner without it, or a full log has given it up before its followers had it.
     */
    NS_LOST = 43,
    /**
     * The commit was made in this region, and whether the other hosts have it is not known and
     * will not be: another one has become the owner. Read the records before it is repeated.
     */
    NS_OUTCOME_UNKNOWN = 44,
} ns_status;

/**
 * The names of the blocks that a program reads and changes. Calls refer to them by index, starting
 * at 0. The layout caches the positions of the blocks in the last record, so use one layout per
 * kind of record and session. It is used by the thread of its session.
 */
typedef struct ns_block_layout ns_block_layout;

/**
 * Receipts that are waited for, with a file descriptor. It is independent of the session that
 * opened it, which may be closed. It is used by one thread at a time.
 */
typedef struct ns_receipt_set ns_receipt_set;

/**
 * An attached region: a file of shared memory that several processes read and write concurrently.
 */
typedef struct ns_region ns_region;

/**
 * A session gives a thread access to a region. It is used by one thread at a time: a call while
 * another thread is inside a call of the same session, or from a signal handler that interrupted
 * one, fails with `NS_SESSION_BUSY` and changes nothing. Between two calls a session may move to
 * another thread, which costs some microseconds.
 */
typedef struct ns_session ns_session;

/**
 * A consumer of the commits of all writers. It belongs to its session and is used by the same
 * thread.
 */
typedef struct ns_stream ns_stream;

/**
 * An open transaction. Its changes of records and objects become visible to all processes at one
 * instant, or not at all. Its reads are consistent: a call that detects a change of something that
 * the transaction has read fails with `NS_CONFLICT`. The transaction then cannot commit: end it
 * and begin another one, or use `ns_transact`. While it is open, memory freed in the region is not
 * reused: keep it short. It belongs to its session and is used by the same thread.
 */
typedef struct ns_txn ns_txn;

/**
 * A watch on some records. It is independent of the session that opened it, which may be closed.
 * It is used by one thread at a time: a call while another thread is inside a call of the same
 * watch, or from a signal handler that interrupted one, fails with `NS_SESSION_BUSY` and changes
 * nothing. Between two calls it may move to another thread, which costs some microseconds.
 */
typedef struct ns_watch ns_watch;

/**
 * The address of an object. It replaces pointers in objects and records, and is the same in every
 * process. Never 0, and never reused during the life of a region.
 */
typedef uint64_t ns_address;

/**
 * A range of bytes, which may contain NULs. Passed by value. It neither copies nor owns the bytes.
 */
typedef struct ns_bytes {
    /**
     * The first byte. NULL only if `len` is 0.
     */
    const uint8_t *data;
    /**
     * The number of bytes.
     */
    size_t len;
} ns_bytes;

/**
 * Receives each object of a region.
 */
typedef bool (*ns_object_fn)(void *context, ns_address address, struct ns_bytes object);

/**
 * The handle of a namespace, valid only in the session that opened it. Passed by value.
 */
typedef struct ns_namespace {
    /**
     * The number of the session and the number of the namespace in it. Never 0.
     */
    uint64_t id;
} ns_namespace;

/**
 * A tag: a name and one of its values.
 */
typedef struct ns_tag {
    /**
     * The name, 1 to 255 bytes of UTF-8.
     */
    struct ns_bytes name;
    /**
     * The value, at most 1,024 bytes.
     */
    struct ns_bytes value;
} ns_tag;

/**
 * A version of a record, zero-copy: `value` and `key` point into the region. It stays as it is
 * however often the record is changed or deleted meanwhile. While it is held, memory that is
 * retired in the region is not used again: release it when the work at hand is done. It may be
 * moved, but only one copy of it is released. All bytes 0 is a view that holds nothing.
 */
typedef struct ns_view {
    /**
     * The value; empty in a namespace of named blocks.
     */
    struct ns_bytes value;
    /**
     * The key.
     */
    struct ns_bytes key;
    /**
     * Greater with every change of the record, also across deletion and re-creation. Never 0.
     */
    uint64_t version;
    /**
     * Private.
     */
    const struct ns_session *session;
    /**
     * Private.
     */
    uint32_t state;
    /**
     * Private.
     */
    uint32_t iterations;
    /**
     * Private.
     */
    uint64_t held[16];
} ns_view;

/**
 * One end of a range. All bytes 0: no bound.
 */
typedef struct ns_bound {
    /**
     * One of `NS_BOUND_..`.
     */
    uint32_t kind;
    /**
     * The value. Ignored if there is no bound.
     */
    struct ns_bytes value;
} ns_bound;

/**
 * The values of a tag to look up. Values are compared as byte strings, so numbers must be encoded
 * in big-endian order.
 */
typedef struct ns_lookup {
    /**
     * The name of the tag.
     */
    struct ns_bytes tag;
    /**
     * `NS_LOOKUP_EQUAL`, `NS_LOOKUP_PREFIX` or `NS_LOOKUP_RANGE`.
     */
    uint32_t kind;
    /**
     * The value or the prefix. Ignored for a range.
     */
    struct ns_bytes value;
    /**
     * The start of the range.
     */
    struct ns_bound from;
    /**
     * The end of the range.
     */
    struct ns_bound to;
} ns_lookup;

/**
 * Receives each record of an iteration. The view ends with the callback and must not be released.
 */
typedef bool (*ns_record_fn)(void *context, const struct ns_view *view);

/**
 * Receives each key.
 */
typedef bool (*ns_key_fn)(void *context, struct ns_bytes key);

/**
 * The metadata of a record. All bytes 0: none.
 */
typedef struct ns_metadata {
    /**
     * The first tag; a name may occur several times. NULL only if `tags_len` is 0.
     */
    const struct ns_tag *tags;
    /**
     * The number of tags: at most 64.
     */
    size_t tags_len;
    /**
     * When the record expires, in milliseconds since 1970. 0: never. A record whose time is not
     * after `ns_session_now_ms` expires immediately.
     */
    uint64_t expires_ms;
} ns_metadata;

/**
 * A change of one block.
 */
typedef struct ns_block_change {
    /**
     * The block's name, 1 to 255 bytes of UTF-8 without a NUL.
     */
    struct ns_bytes name;
    /**
     * The new contents. Ignored if `is_removal`.
     */
    struct ns_bytes bytes;
    /**
     * Removes the block.
     */
    bool is_removal;
} ns_block_change;

/**
 * A list of changes that are made in one step.
 */
typedef struct ns_block_change_list {
    /**
     * The first change. NULL only if `len` is 0.
     */
    const struct ns_block_change *items;
    /**
     * The number of changes: at most 1,024, each of a different block.
     */
    size_t len;
} ns_block_change_list;

/**
 * The function of a transaction. Returns an `ns_status`: `NS_OK` to commit, `NS_CONFLICT` (as
 * returned by a call that it made) to be run again, anything else to abort. After a call in it has
 * returned `NS_CONFLICT`, it is run again whatever it returns but `NS_OK`.
 */
typedef int32_t (*ns_txn_fn)(void *context, struct ns_txn *txn);

/**
 * A position in the log, and the incarnation of the log that gave it. What it stands for is
 * replicated when the consumer of the stream has acknowledged it. It can be kept and asked for at
 * the host that has taken the partition over. Positions of one region can be compared.
 */
typedef struct ns_receipt {
    /**
     * The position; 0: nothing, which is replicated at any time.
     */
    uint64_t position;
    /**
     * The incarnation: a number for the region and for how often its log has begun anew.
     */
    uint64_t incarnation;
} ns_receipt;

/**
 * A committed transaction, or a gap.
 */
typedef struct ns_stream_entry {
    /**
     * The number of lost transactions, at most: read the records again. 0: this is a transaction,
     * and `ns_stream_records` iterates over its records.
     */
    uint64_t lost;
    /**
     * The position of the transaction in the log. Positions rise, with gaps where a commit was
     * given up. 0 for a gap.
     */
    uint64_t number;
    /**
     * The number of the writer's session. A later session may reuse it. 0 for a gap.
     */
    uint32_t writer;
} ns_stream_entry;

/**
 * A record of a committed transaction.
 */
typedef struct ns_stream_record {
    /**
     * The handle of the record's namespace; its `id` is 0 if the session has not opened it.
     */
    struct ns_namespace handle;
    /**
     * The namespace's number in the region, which is the same for every session.
     */
    uint32_t namespace_number;
    /**
     * The change: one of `NS_STREAM_OP_..`.
     */
    uint32_t op;
    /**
     * The record's key.
     */
    struct ns_bytes key;
    /**
     * The version after the change. For a deleted record, its last version.
     */
    uint64_t version;
    /**
     * The value, for `NS_STREAM_OP_PUT`.
     */
    struct ns_bytes value;
    /**
     * When the record expires, in milliseconds since 1970. 0: never, or unchanged.
     */
    uint64_t expires_ms;
    /**
     * The transaction set the tags that `ns_stream_record_tags` reports and this expiry. If false,
     * a patched record keeps its previous ones.
     */
    bool has_metadata;
    /**
     * For a patched record, and for changed elements: all previous ones were removed.
     */
    bool is_replacement;
    /**
     * Private.
     */
    const void *record_pointer;
} ns_stream_record;

/**
 * Receives each record of a transaction. The record is valid until the callback returns.
 */
typedef bool (*ns_stream_record_fn)(void *context, const struct ns_stream_record *record);

/**
 * Receives each changed block of a record; `block` is NULL if the block was removed.
 */
typedef bool (*ns_patch_fn)(void *context, struct ns_bytes name, const struct ns_bytes *block);

/**
 * Gets the blocks of a record, one by one.
 */
typedef bool (*ns_block_fn)(void *context, struct ns_bytes name, struct ns_bytes block);

/**
 * Selects the events of a watch. All bytes 0: events of all records.
 */
typedef struct ns_watch_filter {
    /**
     * One of `NS_FILTER_..`.
     */
    uint32_t kind;
    /**
     * The key or the prefix.
     */
    struct ns_bytes key;
    /**
     * The tag and its value.
     */
    struct ns_tag tag;
} ns_watch_filter;

/**
 * A change of a record, or a gap.
 */
typedef struct ns_watch_event {
    /**
     * One of `NS_EVENT_..`.
     */
    uint32_t kind;
    /**
     * The block names and tags did not fit into the event: read the record.
     */
    bool is_truncated;
    /**
     * The record's key, valid until the next call with the watch.
     */
    struct ns_bytes key;
    /**
     * The version after the change. For a deleted or expired record, its last version.
     */
    uint64_t version;
    /**
     * For `NS_EVENT_LOST`: the number of lost events, including those that the filter would have
     * dropped.
     */
    uint64_t lost;
} ns_watch_event;

/**
 * A list of keys.
 */
typedef struct ns_key_list {
    /**
     * The first key. NULL only if `len` is 0.
     */
    const struct ns_bytes *items;
    /**
     * The number of keys: at most 1,048,576.
     */
    size_t len;
} ns_key_list;

/**
 * A condition on records, as in the search expressions of TS 29.598. Conditions refer to each
 * other by pointers, so they can be written as local variables, and nothing must be freed:
 *
 * `ns_search_condition both[] = {{.kind = NS_SEARCH_EQ, .tag = dnn},`
 * `                              {.kind = NS_SEARCH_LT, .tag = end}};`
 * `ns_search_condition all = {.kind = NS_SEARCH_AND, .units = both, .units_len = 2};`
 *
 * At most 16 levels, and 1,024 conditions and keys. Only the fields of its `kind` are read.
 */
typedef struct ns_search_condition {
    /**
     * One of `NS_SEARCH_..`.
     */
    uint32_t kind;
    /**
     * `NS_SEARCH_AND`, `_OR` and `_NOT`: the first nested condition.
     */
    const struct ns_search_condition *units;
    /**
     * The number of nested conditions; 1 for `NS_SEARCH_NOT`.
     */
    size_t units_len;
    /**
     * Comparisons: the tag's name, and the value to compare with. Values are compared as byte
     * strings.
     */
    struct ns_tag tag;
    /**
     * `NS_SEARCH_RECORDS`: the keys.
     */
    struct ns_key_list records;
} ns_search_condition;

/**
 * The declaration of a tag.
 */
typedef struct ns_tag_schema {
    /**
     * The name, 1 to 255 bytes of UTF-8 without a NUL.
     */
    struct ns_bytes name;
    /**
     * A sum of `NS_TAG_UNIQUE`, `NS_TAG_ORDERED`, `NS_TAG_COUNTED`, `NS_TAG_REQUIRED`; 0: lookups
     * by equality only.
     */
    uint32_t properties;
} ns_tag_schema;

/**
 * A list of tag declarations.
 */
typedef struct ns_tag_schema_list {
    /**
     * The first declaration. NULL only if `len` is 0.
     */
    const struct ns_tag_schema *items;
    /**
     * The number of declarations: at most 32.
     */
    size_t len;
} ns_tag_schema_list;

/**
 * Receives each tag of a namespace with its state, `NS_TAG_BUILDING` or `NS_TAG_READY`.
 */
typedef bool (*ns_tag_fn)(void *context, const struct ns_tag_schema *tag, uint32_t state);

/**
 * A list of block names.
 */
typedef struct ns_name_list {
    /**
     * The first name: 1 to 255 bytes of UTF-8 without a NUL. NULL only if `len` is 0.
     */
    const struct ns_bytes *items;
    /**
     * The number of names: at most 1,024, without duplicates.
     */
    size_t len;
} ns_name_list;

/**
 * A record that was read for update. `view` shows the version that was read; it ends with the
 * record, and releasing it has no effect. A change succeeds only if that version is still current;
 * no lock is held in between. While the record is held, memory freed in the region is not reused:
 * release it as soon as possible. The structure may be moved, but only one copy may be changed or
 * released. All bytes 0: an empty structure.
 */
typedef struct ns_record_for_update {
    /**
     * The version that was read.
     */
    struct ns_view view;
    /**
     * Private.
     */
    const struct ns_session *session;
    /**
     * Private.
     */
    uint32_t state;
    /**
     * Private.
     */
    uint64_t held[32];
} ns_record_for_update;

/**
 * New contents of a block.
 */
typedef struct ns_indexed_change {
    /**
     * The index of the block's name in the layout.
     */
    size_t index;
    /**
     * The new contents.
     */
    struct ns_bytes bytes;
} ns_indexed_change;

/**
 * A list of changes that are made in one step.
 */
typedef struct ns_indexed_change_list {
    /**
     * The first change. NULL only if `len` is 0.
     */
    const struct ns_indexed_change *items;
    /**
     * The number of changes: at most 1,024, with different indexes.
     */
    size_t len;
} ns_indexed_change_list;

/**
 * Memory of the caller that receives a copy.
 */
typedef struct ns_buffer {
    /**
     * In: the destination. NULL only if `capacity` is 0.
     */
    uint8_t *data;
    /**
     * In: the size of the destination, in bytes.
     */
    size_t capacity;
    /**
     * Out: the size of the value, even if it did not fit.
     */
    size_t len;
    /**
     * Out: the version of the record.
     */
    uint64_t version;
} ns_buffer;

/**
 * Receives each record of a batch with the index of its key; `view` is NULL if the record does not
 * exist. The view ends with the callback and must not be released.
 */
typedef bool (*ns_batch_fn)(void *context, size_t index, const struct ns_view *view);

/**
 * What the records of a namespace with limits take, in bytes of memory.
 */
typedef struct ns_namespace_usage {
    /**
     * Bytes of the memory that its records occupy, index entries not included. With what commits
     * in progress add, also those that are about to be refused: for a moment it can be above the
     * hard limit, by what at most 16 commits add. The records never are, unless the limit was set
     * to less than they took.
     */
    uint64_t used_bytes;
    /**
     * Its soft limit; 0 if it has none.
     */
    uint64_t soft_bytes;
    /**
     * Its hard limit; 0 if it has none.
     */
    uint64_t hard_bytes;
    /**
     * False while its records are being counted for the first time.
     */
    bool is_complete;
} ns_namespace_usage;

/**
 * A namespace, as `ns_namespace_list` reports it.
 */
typedef struct ns_namespace_info {
    /**
     * Its name.
     */
    struct ns_bytes name;
    /**
     * The number of its records, as `ns_count` counts them.
     */
    uint64_t records;
    /**
     * Its limits, and what its records take. All 0 and false if it has no limits.
     */
    struct ns_namespace_usage usage;
    /**
     * `NS_KIND_VALUE`, `NS_KIND_BLOCKS` or `NS_KIND_COUNTERS`. 0: another kind, such as that of
     * the namespaces of Redis clients, which this library does not open.
     */
    uint32_t kind;
    /**
     * It has limits. Only then the memory of its records is counted.
     */
    bool is_limited;
} ns_namespace_info;

/**
 * Receives each namespace. The name is valid until the callback returns.
 */
typedef bool (*ns_namespace_fn)(void *context, const struct ns_namespace_info *info);

/**
 * Options for attaching, checking and deleting a region. Initialize them with
 * `ns_attach_options_default`, then change fields.
 */
typedef struct ns_attach_options {
    /**
     * The size of this structure. A later library uses it to detect which fields an older program
     * knows.
     */
    size_t struct_bytes;
    /**
     * Also accepts a file, a directory or a symbolic link that belongs to a user other than this
     * one and root. That user can read and write the region.
     */
    bool any_owner;
} ns_attach_options;

/**
 * Options of a new region. Initialize them with `ns_create_options_default`, then change fields.
 */
typedef struct ns_create_options {
    /**
     * The size of this structure. A later library uses it to detect which fields an older program
     * knows.
     */
    size_t struct_bytes;
    /**
     * Maximum size of records and index, in bytes: 64 MiB to 16 TiB. Memory is allocated on
     * demand.
     */
    uint64_t bytes_max;
    /**
     * `NS_PAGE_SMALL` or `NS_PAGE_HUGE_2M`.
     */
    uint32_t page;
    /**
     * `NS_PIN_AUTO`, `NS_PIN_ASYMMETRIC` or `NS_PIN_FENCED`.
     */
    uint32_t pin;
    /**
     * `NS_NUMA_DEFAULT`, `NS_NUMA_BIND`, `NS_NUMA_INTERLEAVE` or `NS_NUMA_PREFERRED`.
     */
    uint32_t numa;
    /**
     * The file mode, as for `chmod`.
     */
    uint32_t mode;
    /**
     * The nodes of the NUMA policy. NULL only if `nodes_len` is 0.
     */
    const uint32_t *nodes;
    /**
     * The number of nodes.
     */
    size_t nodes_len;
    /**
     * Allocates all memory now.
     */
    bool populate;
    /**
     * Also attaches a region, or follows a symbolic link, that belongs to another user than this
     * one and root.
     */
    bool any_owner;
} ns_create_options;

/**
 * How much of the free memory is usable for records of a size.
 */
typedef struct ns_usable {
    /**
     * The size, in bytes.
     */
    uint64_t size;
    /**
     * Free bytes in ranges of at least that size.
     */
    uint64_t bytes;
} ns_usable;

/**
 * Statistics of a region.
 */
typedef struct ns_region_stats {
    /**
     * A random id, as two words.
     */
    uint64_t id[2];
    /**
     * The creation time, in milliseconds since 1970.
     */
    uint64_t created_ms;
    /**
     * Maximum size of records and index, in bytes: the heap. While no process changes the region,
     * it is the sum of `bytes_live`, `bytes_retired`, `bytes_kept` and `bytes_free`.
     */
    uint64_t bytes_max;
    /**
     * Bytes of the heap that are allocated: records, index, and what sessions keep for reuse.
     */
    uint64_t bytes_taken;
    /**
     * Bytes of records, blocks, indexes and rings.
     */
    uint64_t bytes_live;
    /**
     * Bytes of deleted and replaced records that are not free yet.
     */
    uint64_t bytes_retired;
    /**
     * Bytes that sessions keep to allocate from.
     */
    uint64_t bytes_kept;
    /**
     * Free bytes.
     */
    uint64_t bytes_free;
    /**
     * The largest range of free bytes.
     */
    uint64_t bytes_free_largest;
    /**
     * Free bytes that are usable for records of some sizes, in ascending order. Records take 44
     * bytes more than their key, value and tags, in steps of 64 bytes.
     */
    struct ns_usable usable[5];
    /**
     * Retired bytes that the views of one session hold, if it holds the most. See `holder_pid`.
     */
    uint64_t bytes_held_back;
    /**
     * Bytes that the file occupies on its file system.
     */
    uint64_t bytes_on_disk;
    /**
     * The page size, in bytes.
     */
    uint64_t page_bytes;
    /**
     * The epoch of memory reclamation.
     */
    uint64_t epoch;
    /**
     * The format number.
     */
    uint32_t format;
    /**
     * The number of namespaces.
     */
    uint32_t namespaces;
    /**
     * The number of sessions of running processes.
     */
    uint32_t members_alive;
    /**
     * The number of sessions of dead processes that are not recovered yet.
     */
    uint32_t members_dead;
    /**
     * The process whose views hold `bytes_held_back`; 0 if no view holds retired memory.
     */
    uint32_t holder_pid;
    /**
     * Reads execute a fence.
     */
    bool is_fenced;
} ns_region_stats;

/**
 * A session attached to a region.
 */
typedef struct ns_member {
    /**
     * The command name of its process.
     */
    struct ns_bytes name;
    /**
     * The time of the attach, in milliseconds since 1970.
     */
    uint64_t since_ms;
    /**
     * The epoch that its views pin; 0 if it pins none.
     */
    uint64_t pinned_epoch;
    /**
     * The process id, as seen in that process's own pid namespace.
     */
    uint32_t pid;
    /**
     * False if its process has ended and the session is not recovered yet.
     */
    bool is_alive;
} ns_member;

/**
 * Receives each session of a region.
 */
typedef bool (*ns_member_fn)(void *context, const struct ns_member *member);

/**
 * Receives each inconsistency as a message.
 */
typedef bool (*ns_check_error_fn)(void *context, struct ns_bytes error);

/**
 * The result of an offline check.
 */
typedef struct ns_check_report {
    /**
     * The number of inconsistencies. 0: the region is consistent.
     */
    uint64_t errors;
    /**
     * Namespaces checked.
     */
    uint64_t namespaces;
    /**
     * Records checked.
     */
    uint64_t records;
    /**
     * Bytes of records and their blocks.
     */
    uint64_t bytes_live;
    /**
     * Bytes of the index.
     */
    uint64_t bytes_index;
    /**
     * Free bytes.
     */
    uint64_t bytes_free;
    /**
     * Bytes of replaced versions that the log holds.
     */
    uint64_t bytes_held;
    /**
     * Bytes that are neither in use nor free.
     */
    uint64_t bytes_leaked;
    /**
     * Bytes of the heap. Without inconsistencies it is the sum of `bytes_live`, `bytes_index`,
     * `bytes_free`, `bytes_held` and `bytes_leaked`.
     */
    uint64_t bytes_total;
    /**
     * Bytes of the heap that are allocated.
     */
    uint64_t bytes_taken;
} ns_check_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Allocates an object of `bytes` zero bytes. It exists once the transaction commits. Open it to
 * write it.
 *
 * Fails with `NS_VALUE_TOO_LARGE` above 128 MiB, `NS_TRANSACTION_TOO_LARGE` above 4,096 records
 * and objects or 256 MiB, `NS_FORKED`, `NS_DAMAGED`, `NS_BAD_ARGUMENT`; for the first object of a
 * region also as `ns_namespace_open`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_alloc(struct ns_txn *txn, size_t bytes, ns_address *address);

/**
 * Opens the first `bytes` bytes of an object for reading; the object must have that many. `object`
 * receives their address: in the region, or in the transaction's copy if the transaction opened
 * the object for writing. The address is aligned to 16 bytes and valid until the transaction ends;
 * bytes in the region do not change until then. The cost is one lookup, without a copy.
 *
 * Fails with `NS_NO_OBJECT`, `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE`, `NS_DAMAGED`,
 * `NS_BAD_ARGUMENT` if the object is smaller.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_open_read(struct ns_txn *txn,
                                ns_address address,
                                size_t bytes,
                                const void **object);

/**
 * Like `ns_txn_open_read`, for the `bytes` bytes from `offset`. Conflicts are still detected for
 * the whole object.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_open_read_range(struct ns_txn *txn,
                                      ns_address address,
                                      size_t offset,
                                      size_t bytes,
                                      const void **data);

/**
 * Opens the first `bytes` bytes of an object for writing; the object must have that many. `object`
 * receives the address of a private copy, aligned to 16 bytes, that may be read and written. The
 * commit publishes the copy. Its address does not change if the object is opened again, and is
 * valid until the transaction ends. Only opened ranges may be written.
 *
 * Fails with `NS_NO_OBJECT`, `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE`, `NS_DAMAGED`,
 * `NS_BAD_ARGUMENT` if the object is smaller.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_open_write(struct ns_txn *txn,
                                 ns_address address,
                                 size_t bytes,
                                 void **object);

/**
 * Like `ns_txn_open_write`, for the `bytes` bytes from `offset`. Only these are copied; the commit
 * takes the other bytes from the region. Conflicts are still detected for the whole object.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_open_write_range(struct ns_txn *txn,
                                       ns_address address,
                                       size_t offset,
                                       size_t bytes,
                                       void **data);

/**
 * Gets the size of an object, as requested at its allocation. Fails as `ns_txn_open_read`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_object_size(struct ns_txn *txn, ns_address address, size_t *bytes);

/**
 * Frees an object when the transaction commits. Its address is never reused; later accesses return
 * `NS_NO_OBJECT`. Ranges opened in this transaction stay readable until it ends.
 *
 * Fails with `NS_NO_OBJECT`, `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE`, `NS_DAMAGED`,
 * `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_txn_free(struct ns_txn *txn, ns_address address);

/**
 * Calls `each` for every object, for example to count objects or to find unreachable ones. An
 * object that exists during the whole call is reported exactly once, one that is allocated or
 * freed during the call at most once. Writers are never blocked.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_object_scan(struct ns_session *session, ns_object_fn each, void *context);

/**
 * Counts the objects of a region and the bytes requested for them; `bytes` may be NULL. Reads the
 * header of each object.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_object_count(struct ns_session *session, uint64_t *objects, uint64_t *bytes);

/**
 * Gets the record with this value of a unique tag, as a view: `NS_NOT_FOUND` if there is none. The
 * result was correct at one moment during the call. Takes no lock. Release the view with
 * `ns_view_release`. If the status is not `NS_OK`, the view is empty and need not be released.
 *
 * Fails with `NS_BAD_ARGUMENT` if the namespace has no such tag, the tag is not unique, or its
 * index is still being built; `NS_CONFLICT` if the value is reassigned too often during the call;
 * `NS_DAMAGED`, `NS_FORKED`.
 *
 * # Safety
 * Rules 1 to 3. The previous contents of `view` are not released.
 */
enum ns_status ns_find(struct ns_session *session,
                       struct ns_namespace namespace_,
                       struct ns_tag tag,
                       struct ns_view *view);

/**
 * Calls `each` once for every record that has a matching value of a tag, in the order of the
 * values. A record that matches during the whole call is reported. A record that changes during
 * the call may be reported or not. Writers are never blocked.
 *
 * Fails with `NS_BAD_ARGUMENT` if the namespace has no such tag, the tag is not ordered (for
 * prefixes and ranges), or its index is still being built; `NS_CONFLICT` if the index changes too
 * often during the call; `NS_DAMAGED`, `NS_FORKED`. `each` may have been called before a failure.
 *
 * # Safety
 * Rules 1, 2 and 4.
 */
enum ns_status ns_find_all(struct ns_session *session,
                           struct ns_namespace namespace_,
                           struct ns_lookup lookup,
                           ns_record_fn each,
                           void *context);

/**
 * Counts the records with this value of a tag. The count of a counted tag is stored; for other
 * tags the records are iterated.
 *
 * Fails as `ns_find_all`, and with `NS_DEADLINE` if the count changes too often during the call.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_count_tagged(struct ns_session *session,
                               struct ns_namespace namespace_,
                               struct ns_tag tag,
                               uint64_t *records);

/**
 * Gets the record with this value of a unique tag within a transaction: `NS_NOT_FOUND` if there is
 * none. The result, including `NS_NOT_FOUND`, becomes part of the transaction's read set. `key`
 * and `view` are valid until the transaction ends; either may be NULL. The view need not be
 * released.
 *
 * Indexes are updated by the commit. A value that this transaction has written is therefore not
 * found.
 *
 * Fails as `ns_find` and `ns_txn_get`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_txn_find(struct ns_txn *txn,
                           struct ns_namespace namespace_,
                           struct ns_tag tag,
                           struct ns_bytes *key,
                           struct ns_view *view);

/**
 * Calls `each` with the key of every record that has a matching value of a tag, in the order of
 * the values. The set of records becomes part of the transaction's read set.
 *
 * Fails as `ns_find_all` and `ns_txn_get`.
 *
 * # Safety
 * Rules 1, 2 and 4.
 */
enum ns_status ns_txn_find_all(struct ns_txn *txn,
                               struct ns_namespace namespace_,
                               struct ns_lookup lookup,
                               ns_key_fn each,
                               void *context);

/**
 * Gets a record: what the transaction has written, else what is in the region. `NS_NOT_FOUND` if
 * it does not exist; that too is part of what the transaction has read. The view is good until the
 * transaction ends, and need not be released. Its version is 0 if the transaction itself has
 * written the record.
 *
 * Fails with `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE` above `NS_TRANSACTION_RECORDS_MAX`,
 * `NS_WRONG_KIND`, `NS_KEY_TOO_LARGE`, `NS_DAMAGED`, `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_txn_get(struct ns_txn *txn,
                          struct ns_namespace namespace_,
                          struct ns_bytes key,
                          struct ns_view *view);

/**
 * Puts a record at the commit: this value, without tags and expiry, regardless of its former ones.
 *
 * Fails with `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`,
 * `NS_TRANSACTION_TOO_LARGE` above `NS_TRANSACTION_BYTES_MAX`, `NS_SESSION_BUSY`,
 * `NS_BAD_ARGUMENT`. What the commit refuses, such as the records of another host, it reports.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_txn_put(struct ns_txn *txn,
                          struct ns_namespace namespace_,
                          struct ns_bytes key,
                          struct ns_bytes value);

/**
 * Puts a record with tags and an expiry at the commit. Fails as `ns_txn_put`.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_txn_put_with_metadata(struct ns_txn *txn,
                                        struct ns_namespace namespace_,
                                        struct ns_bytes key,
                                        struct ns_bytes value,
                                        struct ns_metadata metadata);

/**
 * Gives a record other tags and another expiry at the commit; its value or blocks stay as they
 * are. `NS_NOT_FOUND` if there is none. Fails as `ns_txn_get` and `ns_txn_put`.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_txn_set_metadata(struct ns_txn *txn,
                                   struct ns_namespace namespace_,
                                   struct ns_bytes key,
                                   struct ns_metadata metadata);

/**
 * Changes some named blocks of a record at the commit; the others, its tags and its expiry stay.
 * Creates the record if there is none.
 *
 * Fails with `NS_CONFLICT`, `NS_WRONG_KIND` in a namespace of values, `NS_BAD_NAME`,
 * `NS_TOO_MANY_BLOCKS`, `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_TRANSACTION_TOO_LARGE`,
 * `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_txn_patch(struct ns_txn *txn,
                            struct ns_namespace namespace_,
                            struct ns_bytes key,
                            struct ns_block_change_list changes);

/**
 * Deletes a record at the commit: `NS_NOT_FOUND` if there is none. Fails as `ns_txn_get`.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_txn_delete(struct ns_txn *txn,
                             struct ns_namespace namespace_,
                             struct ns_bytes key);

/**
 * Begins a transaction. A session can have several open transactions. End it with `ns_txn_commit`
 * or `ns_txn_abort`; a session with an open transaction cannot be closed.
 *
 * Fails with `NS_FORKED`, `NS_DAMAGED`, `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_begin(struct ns_session *session, struct ns_txn **txn);

/**
 * Commits a transaction. After `NS_OK`, all of its changes are visible to every process and
 * survive the death of this one. After another status none is, with the exceptions of rule 6.
 *
 * The handle, and everything read through it, becomes invalid, whatever is returned, with two
 * exceptions: after `NS_SESSION_BUSY`, and after `NS_BAD_ARGUMENT` in the function of
 * `ns_transact` and in callbacks of the transaction, it stays open and is ended later.
 *
 * Fails with `NS_CONFLICT` if something that the transaction had read was changed, `NS_TAG_TAKEN`,
 * `NS_LIMIT_REACHED`, `NS_FULL`, `NS_BEHIND`, `NS_NOT_OWNER`, `NS_FENCED`,
 * `NS_TRANSACTION_TOO_LARGE`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`,
 * `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT` (also for a record without a required tag). With
 * `NS_NOT_REPLICATED`, `NS_LOST` and `NS_OUTCOME_UNKNOWN` the commit was made (rule 6).
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_txn_commit(struct ns_txn *txn);

/**
 * Aborts a transaction: none of its changes happens. NULL is ignored. Fails with `NS_BAD_ARGUMENT`
 * in the function of `ns_transact` and in callbacks of the transaction, and with
 * `NS_SESSION_BUSY`; the transaction stays open then.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_txn_abort(struct ns_txn *txn);

/**
 * Runs `body` in a transaction and commits it. After a conflict it runs `body` again in a new
 * transaction, at most 1,000 times, with increasing pauses. Each conflict means that another
 * transaction committed. `body` must therefore have no side effects except through the
 * transaction. Addresses and records from an earlier run are invalid.
 *
 * A commit that finds no room also makes it run again, if moving live records can make some.
 *
 * Returns the status of `body` if that is neither `NS_OK` nor `NS_CONFLICT`; nothing was changed
 * then. Fails with `NS_DEADLINE` after the last run, as `ns_txn_begin` and `ns_txn_commit` (also
 * with the statuses after which the commit was made, rule 6), and with `NS_BAD_ARGUMENT` if the
 * result of `body` is not an `ns_status`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_transact(struct ns_session *session, ns_txn_fn body, void *context);

/**
 * Waits until this host has the commit of a receipt, for at most `limit_ms` milliseconds:
 * the owner has it, a copy when it has applied it. Reads that follow see it. So a client that
 * takes the receipt of its write with it reads its own write at each host. A signal does not end
 * the wait: a thread that has to do more calls it again, each time with a short limit.
 *
 * Fails with `NS_BEHIND` if a copy has not applied it in time, `NS_LOST`, `NS_OUTCOME_UNKNOWN` if
 * nothing is known of it here, `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_read_wait_applied(struct ns_session *session,
                                    struct ns_receipt receipt,
                                    uint64_t limit_ms);

/**
 * Says whether what was read of a namespace before this call was read at its owner. Call it after
 * the reads and before anything that rests on them leaves the host. Without it a read sees a
 * prefix of the owner's commits, which at a copy may be behind.
 *
 * Fails with `NS_NOT_OWNER` if this host has a copy, `NS_FENCED` if it has no lease at present,
 * `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_read_check_owner(struct ns_session *session, struct ns_namespace namespace_);

/**
 * Opens a namespace as `ns_namespace_open`, with one of `NS_POLICY_..`: a new one has the policy
 * from its first write on, one that exists gets it as by `ns_namespace_set_policy`.
 *
 * Fails as the two.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_namespace_open_with_policy(struct ns_session *session,
                                             struct ns_bytes name,
                                             uint32_t kind,
                                             uint32_t policy,
                                             struct ns_namespace *out);

/**
 * Gets how the commits of a namespace are replicated: one of `NS_POLICY_..`.
 *
 * Fails with `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_namespace_get_policy(struct ns_session *session,
                                       struct ns_namespace namespace_,
                                       uint32_t *policy);

/**
 * Changes how the commits of a namespace are replicated, for all processes. A namespace that is
 * logged stays so. Commits that have begun before may follow the policy before.
 *
 * Fails with `NS_BAD_ARGUMENT` if a logged namespace is to be local or it was removed,
 * `NS_NOT_OWNER`, `NS_FENCED`, `NS_WRONG_KIND` for counters, `NS_FULL`, `NS_STALLED`,
 * `NS_DAMAGED`, `NS_FORKED`, `NS_SESSION_BUSY`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_namespace_set_policy(struct ns_session *session,
                                       struct ns_namespace namespace_,
                                       uint32_t policy);

/**
 * Chooses which of the session's next commits return only when they are replicated: one of
 * `NS_WAIT_..`, and for how long at most, in milliseconds. A session begins with
 * `NS_WAIT_BY_NAMESPACE` and 1,000 ms. A signal does not end the wait of a commit: a thread that
 * has to do more commits with `NS_WAIT_NEVER` and gives the receipt to a set
 * (`ns_receipt_set_open`).
 *
 * A call whose commit has waited in vain returns `NS_NOT_REPLICATED`: the commit is made in this
 * region, `ns_receipt_of_commit` has its receipt, and it must not be repeated. `NS_LOST`: another
 * host owns the records without it. `NS_OUTCOME_UNKNOWN`: another host owns the records, and this
 * one cannot tell.
 *
 * Fails with `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_session_set_commit_wait(struct ns_session *session,
                                          uint32_t wait,
                                          uint32_t limit_ms);

/**
 * Opens an empty set of receipts of the session's region. It has a thread in this process, which
 * sleeps and blocks all signals; `ns_receipt_set_close` ends it. One set serves any number of
 * receipts. A forked child cannot use it.
 *
 * Fails with `NS_SYSTEM` if the process cannot create a thread or a descriptor,
 * `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_receipt_set_open(struct ns_session *session, struct ns_receipt_set **set);

/**
 * Gets the descriptor of a set, for `poll` and `epoll`. It is readable while receipts of the set
 * may be decided. When it is readable, call `ns_receipt_set_next` until it returns another status
 * than `NS_OK`. It belongs to the set: do not read, write or close it.
 *
 * Fails with `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_receipt_set_fd(struct ns_receipt_set *set, int *fd);

/**
 * Adds a receipt to a set.
 *
 * Fails with `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_receipt_set_add(struct ns_receipt_set *set, struct ns_receipt receipt);

/**
 * Takes a receipt out of a set before it is decided, for example after a time-out: while too few
 * hosts of the group live, nothing decides it. Fails with `NS_NOT_FOUND` if it is not in the set,
 * `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_receipt_set_remove(struct ns_receipt_set *set, struct ns_receipt receipt);

/**
 * Takes a receipt that is decided out of the set: `state` becomes `NS_RECEIPT_REPLICATED`,
 * `NS_RECEIPT_LOST` or `NS_RECEIPT_UNKNOWN`. `NS_NOT_FOUND`: none is, and the descriptor is not
 * readable until one may be.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_receipt_set_next(struct ns_receipt_set *set,
                                   struct ns_receipt *receipt,
                                   uint32_t *state);

/**
 * Closes a set, its descriptor, which must be removed from an `epoll` instance before, and its
 * thread. NULL is ignored.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_receipt_set_close(struct ns_receipt_set *set);

/**
 * Logs the commits of a namespace from now on; a namespace that is logged stays so. `when_full` is
 * one of `NS_STREAM_FULL_..`. The region has one log for all namespaces; it refuses commits if any
 * namespace is set to `NS_STREAM_FULL_REFUSE`. The log permanently takes a 64th of the region's
 * heap, from 512 KiB to 8 MiB, and holds what its transactions have replaced: at most a sixteenth
 * of the heap. A transaction that replaces more than an eighth of that fails with `NS_BEHIND`
 * while the log holds more than half of it.
 *
 * Fails with `NS_WRONG_KIND` for counters, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`,
 * `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_namespace_enable_stream(struct ns_session *session,
                                          struct ns_namespace namespace_,
                                          uint32_t when_full);

/**
 * Opens a consumer, which starts after the last acknowledged transaction. One consumer
 * acknowledges; others may read at the same time. A session with an open consumer cannot be
 * closed.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_stream_open(struct ns_session *session, struct ns_stream **stream);

/**
 * Gets the next transaction, or `NS_NOT_FOUND` if there is none at present. Waits at most 100 us,
 * for a writer that is in its commit. All transactions arrive in the order of their commits. The
 * current transaction holds memory of the region until the next call.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT` (also within a callback of this stream).
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_stream_next(struct ns_stream *stream, struct ns_stream_entry *entry);

/**
 * Calls `each` for every record of the current transaction that is in a streamed namespace.
 *
 * Fails with `NS_DAMAGED` (`each` may have been called before), `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_stream_records(const struct ns_stream *stream,
                                 ns_stream_record_fn each,
                                 void *context);

/**
 * Calls `each` for every changed block of a patched record, or for every changed member or field
 * of a large set or hash. A member has an empty value. Other changes have none.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_stream_record_blocks(const struct ns_stream_record *record,
                                       ns_patch_fn each,
                                       void *context);

/**
 * Calls `each` with the name and value of every tag that the record has after the change, in
 * ascending order.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_stream_record_tags(const struct ns_stream_record *record,
                                     ns_block_fn each,
                                     void *context);

/**
 * Acknowledges all transactions read so far: they are replicated (`ns_receipt_wait`), and a log
 * that refuses commits when it is full may forget them.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_stream_acknowledge(struct ns_stream *stream);

/**
 * Closes a consumer. The next consumer receives the transactions that were not acknowledged. NULL
 * is ignored. Fails with `NS_BAD_ARGUMENT`, without closing it, within a callback of this stream.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_stream_close(struct ns_stream *stream);

/**
 * Gets the receipt of the session's last commit in a logged namespace; position 0 before the first
 * one.
 *
 * Fails with `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_receipt_of_commit(struct ns_session *session, struct ns_receipt *receipt);

/**
 * Gets a receipt that covers everything that the session has read so far, absent records included.
 * Output that depends on it may leave the host when the receipt is replicated.
 *
 * Fails with `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_receipt_of_reads(struct ns_session *session, struct ns_receipt *receipt);

/**
 * Waits until what a receipt stands for is not pending any more, for at most `timeout_ms`
 * milliseconds; with 0 it does not wait. `state` becomes one of `NS_RECEIPT_..`. A signal does not
 * end the wait: a thread that has to do more polls the descriptor of a set
 * (`ns_receipt_set_open`).
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_receipt_wait(struct ns_session *session,
                               struct ns_receipt receipt,
                               uint64_t timeout_ms,
                               uint32_t *state);

/**
 * Watches records of a namespace. Every change that begins after the call has returned is
 * reported, in the order of the changes. To follow records from a known state, open the watch
 * first and read the records afterwards. The first watch of a namespace permanently takes memory
 * (4 KiB to 1 MiB: a thirty-second of the heap divided by the number of the namespace), and its
 * writers publish events from then on.
 *
 * Fails with `NS_WRONG_KIND` for counters, `NS_KEY_TOO_LARGE`, `NS_FULL`, `NS_STALLED`,
 * `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_watch_open(struct ns_session *session,
                             struct ns_namespace namespace_,
                             struct ns_watch_filter filter,
                             struct ns_watch **watch);

/**
 * Gets the next event, or `NS_NOT_FOUND` if there is none at present. Never waits.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT` (also within a
 * callback of this watch).
 * After `NS_DAMAGED`, open a new watch and read the watched records again.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_watch_next(struct ns_watch *watch, struct ns_watch_event *event);

/**
 * Calls `each` with the name of every block that the current event changed. In a namespace of
 * values there are none.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_watch_blocks(const struct ns_watch *watch, ns_key_fn each, void *context);

/**
 * Calls `each` with the name and value of every tag that the record had before the current event.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_watch_tags_before(const struct ns_watch *watch, ns_block_fn each, void *context);

/**
 * Calls `each` with the name and value of every tag that the record has after the current event. A
 * deleted record has none.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_watch_tags_after(const struct ns_watch *watch, ns_block_fn each, void *context);

/**
 * Gets a file descriptor for `poll` and `epoll` that is readable while events may be pending. When
 * it is readable, call `ns_watch_next` until it returns another status than `NS_OK`. After
 * `NS_NOT_FOUND` the descriptor is not readable until the next event of the namespace, which the
 * filter may drop. After an error other than `NS_SESSION_BUSY` it stays readable: close the watch.
 * If the namespace was removed (`NS_BAD_ARGUMENT`), open it and a new watch. The descriptor
 * belongs to the watch: do not read, write or close it. Every call returns the same descriptor.
 *
 * The first call starts a thread in this process, which sleeps and blocks all signals;
 * `ns_watch_close` ends it. The work of writers does not depend on it. A forked child cannot use
 * the descriptor.
 *
 * Fails with `NS_SYSTEM` if the process cannot create a thread or a descriptor, `NS_FORKED`,
 * `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_watch_fd(struct ns_watch *watch, int *fd);

/**
 * Blocks until events may be pending, for at most `timeout_ms`: `NS_NOT_FOUND` after the timeout.
 * The filter may drop the pending events. A signal does not end the wait: a thread that has to do
 * more polls the descriptor of `ns_watch_fd`.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_watch_wait(struct ns_watch *watch, uint32_t timeout_ms);

/**
 * Closes a watch and its descriptor, which must be removed from an `epoll` instance before. NULL
 * is ignored. Fails with `NS_BAD_ARGUMENT`, without closing it, within a callback of this watch.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_watch_close(struct ns_watch *watch);

/**
 * Calls `each` once with the key of every matching record, in unspecified order, until it returns
 * false. A record that matches during the whole call is reported; a record that changes during the
 * call may be reported or not. The most selective index provides candidates, and each candidate is
 * checked. Without a suitable index, every record is checked.
 *
 * Fails with `NS_BAD_ARGUMENT` if the search is too deep, too large or empty, `NS_KEY_TOO_LARGE`,
 * `NS_CONFLICT` if an index changes too often during the call, `NS_DAMAGED`, `NS_FORKED`. `each`
 * may have been called before a failure.
 *
 * # Safety
 * Rules 1, 2 (for every nested condition) and 4.
 */
enum ns_status ns_search(struct ns_session *session,
                         struct ns_namespace namespace_,
                         const struct ns_search_condition *condition,
                         ns_key_fn each,
                         void *context);

/**
 * Counts the matching records. Fails as `ns_search`.
 *
 * # Safety
 * Rules 1, 2 (for every nested condition) and 3.
 */
enum ns_status ns_search_count(struct ns_session *session,
                               struct ns_namespace namespace_,
                               const struct ns_search_condition *condition,
                               uint64_t *records);

/**
 * Adds `delta` to a counter in a namespace of kind `NS_KIND_COUNTERS`. Creates the counter with
 * value 0 if it does not exist. Takes no lock, cannot conflict, and wraps around at 64 bits. When
 * the call has returned, every later read includes the addition, even if this process dies. It is
 * not part of any transaction. `ns_delete` deletes a counter.
 *
 * Fails with `NS_WRONG_KIND` in another namespace, `NS_KEY_TOO_LARGE`, `NS_DAMAGED`, `NS_FORKED`,
 * `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`; if the counter is created also with `NS_FULL`,
 * `NS_STALLED`, `NS_LIMIT_REACHED`, `NS_DEADLINE`. A failed call adds nothing.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_counter_add(struct ns_session *session,
                              struct ns_namespace namespace_,
                              struct ns_bytes key,
                              int64_t delta);

/**
 * Reads the value of a counter: `NS_NOT_FOUND` if it does not exist. The value includes all
 * additions that returned before the call, and possibly some that run concurrently.
 *
 * Fails with `NS_WRONG_KIND`, `NS_KEY_TOO_LARGE`, `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_counter_read(struct ns_session *session,
                               struct ns_namespace namespace_,
                               struct ns_bytes key,
                               int64_t *sum);

/**
 * Declares tags of a namespace and indexes its existing records while writers continue. Tags that
 * already exist with the same properties are not changed, so every process can declare the tags
 * that it needs at its start. Tags cannot be removed. The cost is linear in the number of records
 * if a tag is new.
 *
 * Fails with `NS_TAG_TAKEN` if two records have the same value of a tag declared unique, and with
 * `NS_BAD_ARGUMENT` if a record lacks a tag declared required, or if a tag exists with other
 * properties. After such a failure none of the new tags of this call exists, unless another
 * process declares them at the same time or had started to. Also fails with `NS_WRONG_KIND` for
 * counters, `NS_BAD_NAME`, `NS_CONFLICT`, `NS_DEADLINE`, `NS_NOT_OWNER`, `NS_FENCED`, `NS_BEHIND`,
 * `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`, `NS_SESSION_BUSY`.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_namespace_add_tags(struct ns_session *session,
                                     struct ns_namespace namespace_,
                                     struct ns_tag_schema_list tags);

/**
 * Calls `each` for every tag declared for a namespace.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_namespace_tags(struct ns_session *session,
                                 struct ns_namespace namespace_,
                                 ns_tag_fn each,
                                 void *context);

/**
 * Writes a record with tags and an expiry time, in its own transaction. Within a larger
 * transaction, use `ns_txn_put_with_metadata`. The previous value and metadata are replaced.
 * `version` receives the new version; it may be NULL.
 *
 * Fails as `ns_put`; with `NS_TAG_TAKEN` if another record has the value of a unique tag (the
 * message names it); with `NS_BAD_ARGUMENT` if a required tag is missing; with `NS_DEADLINE`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_put_with_metadata(struct ns_session *session,
                                    struct ns_namespace namespace_,
                                    struct ns_bytes key,
                                    struct ns_bytes value,
                                    struct ns_metadata metadata,
                                    uint64_t *version);

/**
 * Writes a record and keeps its tags and its expiry time; `ns_put` removes them. A record that
 * does not exist is created without any. `version` receives the new version; it may be NULL.
 *
 * The cost is that of a transaction that reads the record. Fails as `ns_put_with_metadata`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_put_keeping_metadata(struct ns_session *session,
                                       struct ns_namespace namespace_,
                                       struct ns_bytes key,
                                       struct ns_bytes value,
                                       uint64_t *version);

/**
 * Returns the clock of this host: milliseconds since 1970, with the resolution of the kernel's
 * tick (1 to 10 ms). Expiry times refer to the clock of the region, `ns_session_now_ms`, which
 * differs in a region that is or was a copy of one on a host with another clock.
 */
uint64_t ns_now_ms(void);

/**
 * Returns the clock by which the records of the region expire: milliseconds since 1970, with the
 * resolution of the kernel's tick (1 to 10 ms). A record whose expiry time is this and a time to
 * live ends after that time also after a fail-over between hosts whose clocks differ. Fails with
 * `NS_DAMAGED`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_session_now_ms(struct ns_session *session, uint64_t *now_ms);

/**
 * Deletes up to `limit` expired records with their tags. Watchers receive one expiry event per
 * record, even if several processes collect. Reads never return an expired record, so this call
 * only frees memory and triggers the events. Any process may call it periodically. `records`
 * receives the number of deleted records, `has_more` whether more may exist; either may be NULL.
 *
 * Records that cannot be deleted at present do not hold back others. Those of a namespace whose
 * writers are refused (`NS_FENCED`) are left until writers are admitted, without an error.
 *
 * Fails with `NS_FULL`, `NS_STALLED`, `NS_BEHIND`, `NS_TRANSACTION_TOO_LARGE` if a record failed
 * and none was deleted; `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_collect_expired(struct ns_session *session,
                                  size_t limit,
                                  size_t *records,
                                  bool *has_more);

/**
 * Calls `each` for every record of a namespace, in slot order. A record that exists during the
 * whole call is reported exactly once, one that is written or deleted during the call at most
 * once. Writers are never blocked.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`. `each` may have been called before a
 * failure; so it is with `ns_list_prefix` and `ns_list_glob`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_scan(struct ns_session *session,
                       struct ns_namespace namespace_,
                       ns_record_fn each,
                       void *context);

/**
 * Calls `each` with every key that starts with `prefix`; with all keys if it is empty. The cost is
 * linear in the number of records of the namespace.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1, 2 and 4.
 */
enum ns_status ns_list_prefix(struct ns_session *session,
                              struct ns_namespace namespace_,
                              struct ns_bytes prefix,
                              ns_key_fn each,
                              void *context);

/**
 * Calls `each` with every key that matches a glob pattern in the syntax of Redis KEYS: `*`, `?`,
 * `[a-z]`, `[^a]`, and a backslash to escape a byte. The cost is linear in the number of records
 * of the namespace.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1, 2 and 4.
 */
enum ns_status ns_list_glob(struct ns_session *session,
                            struct ns_namespace namespace_,
                            struct ns_bytes pattern,
                            ns_key_fn each,
                            void *context);

/**
 * Counts the records of a namespace. Reads the index, not the records.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_count(struct ns_session *session,
                        struct ns_namespace namespace_,
                        uint64_t *records);

/**
 * Creates a block layout from a list of names. Close it with `ns_block_layout_close`; its session
 * may be closed before.
 *
 * Fails with `NS_BAD_NAME`, `NS_TOO_MANY_BLOCKS`, `NS_BAD_ARGUMENT` (also for duplicate names).
 *
 * # Safety
 * Rules 1 to 3, rule 2 for every name.
 */
enum ns_status ns_block_layout_open(struct ns_session *session,
                                    struct ns_name_list list,
                                    struct ns_block_layout **names);

/**
 * Closes a block layout. NULL is ignored.
 *
 * # Safety
 * Rule 1.
 */
void ns_block_layout_close(struct ns_block_layout *names);

/**
 * Gets a record for update: `NS_NOT_FOUND` if it does not exist. Takes no lock, makes no system
 * call and no copy. Release it with `ns_record_for_update_release`, changed or not. If the status
 * is not `NS_OK`, the structure is empty and need not be released. After a change that failed with
 * `NS_FULL` it makes room first: get the record and change it once more.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_WRONG_KIND` in a namespace of
 * counters, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3. The previous contents of `record` are not released.
 */
enum ns_status ns_get_for_update(struct ns_session *session,
                                 struct ns_namespace namespace_,
                                 struct ns_bytes key,
                                 struct ns_record_for_update *record);

/**
 * Releases a record for update, changed or not. Its bytes must not be read afterwards. NULL and a
 * released record are ignored.
 *
 * Fails with `NS_SESSION_BUSY` while another thread is inside a call of the session, and with
 * `NS_BAD_ARGUMENT` in callbacks of `ns_view_blocks` and `ns_view_tags` with its view: the record
 * is kept, and with it the memory that it holds. Release it again.
 *
 * # Safety
 * Rule 1: NULL, or a record that a call of this library has filled.
 */
enum ns_status ns_record_for_update_release(struct ns_record_for_update *record);

/**
 * Gets the first `len` blocks of a layout. `blocks[i]` receives the block with the layout's name
 * `i`; its `data` is NULL if the record has no such block, and not NULL for an empty block. The
 * blocks are valid while the record is held. The cost is one comparison if the record is laid out
 * like the previous one of this layout, otherwise linear in the number of blocks. It allocates
 * only when it learns a new layout. In a namespace of values, no block exists.
 *
 * Fails with `NS_BAD_ARGUMENT`, also if `len` exceeds the number of names or if the layout belongs
 * to another session.
 *
 * # Safety
 * Rules 1 and 3, with memory for `len` at `blocks`; it may be NULL only with `len` 0.
 */
enum ns_status ns_record_for_update_blocks(const struct ns_record_for_update *record,
                                           const struct ns_block_layout *names,
                                           size_t len,
                                           struct ns_bytes *blocks);

/**
 * Replaces the value that was read. `NS_REFUSED` if the record has changed since, by another
 * writer or through this structure: get it again. The tags and the expiry of the record are
 * removed. `version` receives the new version, or the current one (0: no record) with
 * `NS_REFUSED`; it may be NULL.
 *
 * Fails as `ns_put`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_record_for_update_put(const struct ns_record_for_update *record,
                                        struct ns_bytes value,
                                        uint64_t *version);

/**
 * Changes some blocks of the record that was read. `NS_REFUSED` if the record has changed since,
 * by another writer or through this structure: get it again. Other blocks, the tags and the expiry
 * are kept; a block that does not exist is added. `version` receives the new version, or the
 * current one (0: no record) with `NS_REFUSED`; it may be NULL. To remove a block, use
 * `ns_patch_if_version`.
 *
 * Fails as `ns_patch`; with `NS_BAD_ARGUMENT` also for an index without a name and for the layout
 * of another session.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_record_for_update_patch(const struct ns_record_for_update *record,
                                          const struct ns_block_layout *names,
                                          struct ns_indexed_change_list changes,
                                          uint64_t *version);

/**
 * Changes some blocks of a record in one step and keeps the others. Creates the record if it does
 * not exist. Unchanged blocks above 512 bytes are not copied. `version` receives the new version;
 * it may be NULL.
 *
 * Fails with `NS_WRONG_KIND` in a namespace of values, `NS_BAD_NAME`, `NS_TOO_MANY_BLOCKS`,
 * `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`,
 * `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT` (also for a block that is named twice), `NS_DEADLINE` if
 * others change the record all the time; in a namespace
 * with tags, limits or watches also with `NS_LIMIT_REACHED`,
 * `NS_TRANSACTION_TOO_LARGE`; in a logged or followed one also with `NS_NOT_OWNER`, `NS_FENCED`,
 * `NS_BEHIND`, `NS_TRANSACTION_TOO_LARGE`. Nothing was changed then. With `NS_NOT_REPLICATED`,
 * `NS_LOST` and `NS_OUTCOME_UNKNOWN` the commit was made (rule 6).
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_patch(struct ns_session *session,
                        struct ns_namespace namespace_,
                        struct ns_bytes key,
                        struct ns_block_change_list changes,
                        uint64_t *version);

/**
 * Like `ns_patch` if the record does not exist, otherwise `NS_REFUSED`. `version` receives the new
 * version, or the current one with `NS_REFUSED`; it may be NULL. Fails as `ns_patch`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_patch_if_absent(struct ns_session *session,
                                  struct ns_namespace namespace_,
                                  struct ns_bytes key,
                                  struct ns_block_change_list changes,
                                  uint64_t *version);

/**
 * Like `ns_patch` if the record has the version `expected`, otherwise `NS_REFUSED`. `version`
 * receives the new version, or the current one (0: no record) with `NS_REFUSED`; it may be NULL.
 * Fails as `ns_patch`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_patch_if_version(struct ns_session *session,
                                   struct ns_namespace namespace_,
                                   struct ns_bytes key,
                                   struct ns_block_change_list changes,
                                   uint64_t expected,
                                   uint64_t *version);

/**
 * Writes a record; an existing one is replaced. When the call returns, the record is visible to
 * every process and survives the death of this one. It has no tags and no expiry: those of an
 * existing record are removed. `ns_put_keeping_metadata` keeps them, and `ns_put_with_metadata`
 * sets them. `version` receives the new version; it may be NULL.
 *
 * Fails with `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`, `NS_FULL`, `NS_STALLED`,
 * `NS_DAMAGED`, `NS_FORKED`, `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`; in a namespace
 * with tags, limits or watches also with `NS_LIMIT_REACHED`, `NS_DEADLINE`,
 * `NS_TRANSACTION_TOO_LARGE`; in a logged or followed one also with `NS_NOT_OWNER`, `NS_FENCED`,
 * `NS_BEHIND`, `NS_TRANSACTION_TOO_LARGE`. Nothing was changed then. With `NS_NOT_REPLICATED`,
 * `NS_LOST` and `NS_OUTCOME_UNKNOWN` the commit was made (rule 6).
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_put(struct ns_session *session,
                      struct ns_namespace namespace_,
                      struct ns_bytes key,
                      struct ns_bytes value,
                      uint64_t *version);

/**
 * Writes a record if it does not exist, otherwise `NS_REFUSED`. `version` receives the new
 * version, or the current one with `NS_REFUSED`; it may be NULL. Fails as `ns_put`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_put_if_absent(struct ns_session *session,
                                struct ns_namespace namespace_,
                                struct ns_bytes key,
                                struct ns_bytes value,
                                uint64_t *version);

/**
 * Writes a record if its current version is `expected`, otherwise `NS_REFUSED`. As with `ns_put`,
 * its tags and its expiry are removed. `version` receives the new version, or the current one (0:
 * no record) with `NS_REFUSED`; it may be NULL. Fails as `ns_put`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_put_if_version(struct ns_session *session,
                                 struct ns_namespace namespace_,
                                 struct ns_bytes key,
                                 struct ns_bytes value,
                                 uint64_t expected,
                                 uint64_t *version);

/**
 * Writes a record if its current value equals `expected` byte for byte, otherwise `NS_REFUSED`. As
 * with `ns_put`, its tags and its expiry are removed. `version` receives the new version, or the
 * current one (0: no record) with `NS_REFUSED`; it may be NULL. Fails as `ns_put`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_put_if_value(struct ns_session *session,
                               struct ns_namespace namespace_,
                               struct ns_bytes key,
                               struct ns_bytes value,
                               struct ns_bytes expected,
                               uint64_t *version);

/**
 * Deletes a record: `NS_NOT_FOUND` if it does not exist.
 *
 * Fails with `NS_KEY_TOO_LARGE`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_SESSION_BUSY`,
 * `NS_BAD_ARGUMENT`; in a namespace with tags, limits or watches also with `NS_FULL`,
 * `NS_DEADLINE`, `NS_TRANSACTION_TOO_LARGE`; in a logged or followed one also with `NS_FULL`,
 * `NS_NOT_OWNER`, `NS_FENCED`, `NS_BEHIND`, `NS_TRANSACTION_TOO_LARGE`. Nothing was changed then.
 * With `NS_NOT_REPLICATED`, `NS_LOST` and `NS_OUTCOME_UNKNOWN` the commit was made (rule 6).
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_delete(struct ns_session *session,
                         struct ns_namespace namespace_,
                         struct ns_bytes key);

/**
 * Deletes a record if its version is `expected`, otherwise `NS_REFUSED`. `version` receives the
 * deleted version, or the current one (0: no record) with `NS_REFUSED`; it may be NULL. Fails as
 * `ns_delete`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_delete_if_version(struct ns_session *session,
                                    struct ns_namespace namespace_,
                                    struct ns_bytes key,
                                    uint64_t expected,
                                    uint64_t *version);

/**
 * Deletes a record if its value equals `expected` byte for byte, otherwise `NS_REFUSED`. `version`
 * receives the deleted version, or the current one (0: no record) with `NS_REFUSED`; it may be
 * NULL. Fails as `ns_delete`, and with `NS_WRONG_KIND` in a namespace of named blocks.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_delete_if_value(struct ns_session *session,
                                  struct ns_namespace namespace_,
                                  struct ns_bytes key,
                                  struct ns_bytes expected,
                                  uint64_t *version);

/**
 * Gets a record as a view: `NS_NOT_FOUND` if it does not exist. Takes no lock, makes no system
 * call and no copy. Release the view with `ns_view_release`. If the status is not `NS_OK`, the
 * view is empty and need not be released. The cache lines of the start of the value are requested:
 * for a caller that reads some of the value. `ns_get_whole` requests all of them. If the file of
 * the region was truncated, bytes of the view may read as zeros: `ns_session_check` tells.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3. The previous contents of `view` are not released.
 */
enum ns_status ns_get(struct ns_session *session,
                      struct ns_namespace namespace_,
                      struct ns_bytes key,
                      struct ns_view *view);

/**
 * As `ns_get`, for a caller that reads the whole value: its cache lines are requested together.
 * With values of 1 KB that are not in the cache, reading all of them takes about a sixth less
 * time.
 *
 * Fails as `ns_get`.
 *
 * # Safety
 * As `ns_get`.
 */
enum ns_status ns_get_whole(struct ns_session *session,
                            struct ns_namespace namespace_,
                            struct ns_bytes key,
                            struct ns_view *view);

/**
 * Copies the value of a record: `NS_NOT_FOUND` if it does not exist; `NS_TOO_SMALL` if the value
 * does not fit. In that case `len` and `version` are set and nothing is copied: enlarge the buffer
 * and call again. For named blocks, use `ns_get`.
 *
 * Fails with `NS_DAMAGED` (what was copied is not the value then), `NS_FORKED`,
 * `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3; `buffer->data` points to `capacity` writable bytes.
 */
enum ns_status ns_get_copy(struct ns_session *session,
                           struct ns_namespace namespace_,
                           struct ns_bytes key,
                           struct ns_buffer *buffer);

/**
 * Reads many keys. The cache misses of 16 keys at a time overlap. Calls `each` for every key, in
 * order.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`. `each` may have
 * been called before a failure.
 *
 * # Safety
 * Rules 1, 2 (also for the keys) and 4.
 */
enum ns_status ns_get_batch(struct ns_session *session,
                            struct ns_namespace namespace_,
                            struct ns_key_list keys,
                            ns_batch_fn each,
                            void *context);

/**
 * Releases a view. Its bytes must not be read afterwards. NULL and a view that was already
 * released are ignored.
 *
 * Fails with `NS_SESSION_BUSY` while another thread is inside a call of the session, and with
 * `NS_BAD_ARGUMENT` in callbacks of `ns_view_blocks` and `ns_view_tags` with this view: the view
 * is kept, and with it the memory that it holds. Release it again.
 *
 * # Safety
 * Rule 1: NULL, or a view that a call of this library has filled.
 */
enum ns_status ns_view_release(struct ns_view *view);

/**
 * The bytes of a named block of a record, or `NS_NOT_FOUND` if no block has this name. They are
 * valid until the view is released. Linear in the number of blocks.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_view_block(const struct ns_view *view,
                             struct ns_bytes name,
                             struct ns_bytes *block);

/**
 * Calls `each` with every named block of a record, in the order in which they were first written.
 * None in a namespace of values.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_view_blocks(const struct ns_view *view, ns_block_fn each, void *context);

/**
 * Calls `each` with every tag of a record, in ascending order: its name and a value.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_view_tags(const struct ns_view *view, ns_block_fn each, void *context);

/**
 * When a record ends by itself, in milliseconds since 1970; 0: never.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_view_expires(const struct ns_view *view, uint64_t *expires_ms);

/**
 * Calls `each` for every namespace of the region, also for those that the session has not opened.
 * Those of the library itself, and those whose names are not UTF-8, are left out.
 *
 * The names are read before the first callback: one that is created during the call is not
 * reported, one that is removed meanwhile may be. The callback may open, write to and remove
 * namespaces. The cost is that of `ns_count` for each namespace that is reported.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_namespace_list(struct ns_session *session, ns_namespace_fn each, void *context);

/**
 * Removes a namespace that has no record, with its tags. Calls with its handles fail with
 * `NS_BAD_ARGUMENT` from then on, in every process, and its watches end after its last events.
 *
 * `NS_REFUSED`: it has a record, which may be an expired one that was not collected, or it is
 * written to meanwhile; nothing was changed. Fails with `NS_BAD_ARGUMENT` if it was removed
 * before, `NS_NOT_OWNER`, `NS_FENCED`, `NS_STALLED`, `NS_FULL`, `NS_DAMAGED`, `NS_FORKED`,
 * `NS_SESSION_BUSY`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_namespace_remove(struct ns_session *session, struct ns_namespace namespace_);

/**
 * Sets the limits of a namespace for all processes, in bytes of memory. 0 is no limit. Above the
 * hard limit a write fails with `NS_LIMIT_REACHED`, unless it takes no more memory than what it
 * replaces; deletes are always executed. The soft limit is reported and refuses nothing.
 *
 * In a namespace with limits every write is a transaction. With the first limit its records are
 * counted, while others write: about 300 ns each.
 *
 * Fails with `NS_BAD_ARGUMENT` if the soft limit is above the hard one or the namespace was
 * removed, `NS_STALLED` (the limits may be set; call it again), `NS_DAMAGED`, `NS_FORKED`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_namespace_set_limits(struct ns_session *session,
                                       struct ns_namespace namespace_,
                                       uint64_t soft_bytes,
                                       uint64_t hard_bytes);

/**
 * Gets what the records of a namespace take, and its limits. `NS_NOT_FOUND`: it has no limits, so
 * nothing is counted.
 *
 * Fails with `NS_BAD_ARGUMENT` if it was removed, `NS_DAMAGED`, `NS_FORKED`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_namespace_get_usage(struct ns_session *session,
                                      struct ns_namespace namespace_,
                                      struct ns_namespace_usage *usage);

/**
 * Opens a session. This takes some microseconds: open one per thread and keep it. Sessions of dead
 * processes are recovered.
 *
 * Fails with `NS_FULL` if 16,384 sessions of all processes are open, `NS_FORKED`, `NS_DAMAGED`,
 * `NS_SYSTEM`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_session_open(const struct ns_region *region, struct ns_session **session);

/**
 * Fails with `NS_DAMAGED` if the file of the region was truncated and something of the lost part
 * was read or written: bytes that were read through views until now may be zeros instead of what
 * was stored. Call it between reading a view and using what was read. The calls that copy bytes,
 * iterate or commit do that themselves. Cost: one load.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_session_check(struct ns_session *session);

/**
 * Closes a session. NULL is ignored. The session stays open, and the call fails with
 * `NS_BAD_ARGUMENT`, while a view or a record for update is held, while a transaction or a stream
 * is open, and within callbacks of the session. Its watches stay open; its block layouts are
 * closed separately.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_session_close(struct ns_session *session);

/**
 * Opens a namespace, and creates it if it does not exist. The name is 1 to 255 bytes of UTF-8
 * without a NUL. `kind` is `NS_KIND_VALUE`, `NS_KIND_BLOCKS` or `NS_KIND_COUNTERS`. Call it once
 * and keep the handle.
 *
 * A region has at most 65,536 namespaces. When a creation finds no room, it removes empty ones
 * that have no tags and no commit stream. A call with the handle of a removed namespace fails with
 * `NS_BAD_ARGUMENT`: open it again.
 *
 * Fails with `NS_WRONG_KIND` if the namespace has another kind, `NS_BAD_NAME`, `NS_FULL`,
 * `NS_DAMAGED`, `NS_SYSTEM`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_namespace_open(struct ns_session *session,
                                 struct ns_bytes name,
                                 uint32_t kind,
                                 struct ns_namespace *out);

/**
 * Sets the default options: files of this user and root only.
 *
 * # Safety
 * Rule 3.
 */
enum ns_status ns_attach_options_default(struct ns_attach_options *options);

/**
 * Sets the default options: maximum 1 GiB, small pages, file mode 0600.
 *
 * # Safety
 * Rule 3.
 */
enum ns_status ns_create_options_default(struct ns_create_options *options);

/**
 * Creates a region and attaches it. `options` may be NULL for the defaults.
 *
 * Fails with `NS_ALREADY_EXISTS`, `NS_BAD_ARGUMENT` (size, page, nodes), `NS_FULL`, `NS_SYSTEM`.
 *
 * # Safety
 * Rules 2 and 3.
 */
enum ns_status ns_region_create(const char *path,
                                const struct ns_create_options *options,
                                struct ns_region **region);

/**
 * Attaches a region, and creates it first if it does not exist. `options` may be NULL for the
 * defaults. If several processes call it at the same time, one creates the region and the others
 * attach it.
 *
 * Fails as `ns_region_create` and `ns_region_attach`.
 *
 * # Safety
 * Rules 2 and 3.
 */
enum ns_status ns_region_attach_or_create(const char *path,
                                          const struct ns_create_options *options,
                                          struct ns_region **region);

/**
 * Attaches a region. `options` may be NULL for the defaults.
 *
 * Fails with `NS_NOT_A_REGION` (another file, a newer format, truncated, damaged),
 * `NS_BAD_ARGUMENT` (it belongs to another user), `NS_SYSTEM` (the file does not exist, or
 * permission is denied).
 *
 * # Safety
 * Rules 2 and 3.
 */
enum ns_status ns_region_attach(const char *path,
                                const struct ns_attach_options *options,
                                struct ns_region **region);

/**
 * Detaches a region. Its sessions remain usable; the memory is unmapped when the last one closes.
 * NULL is ignored.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_region_detach(struct ns_region *region);

/**
 * Deletes a region: its file and all records. `options` may be NULL for the defaults.
 *
 * Fails with `NS_IN_USE` while a running process has a session, `NS_NOT_A_REGION`,
 * `NS_BAD_ARGUMENT` (it belongs to another user), `NS_SYSTEM`.
 *
 * # Safety
 * Rule 2.
 */
enum ns_status ns_region_remove(const char *path, const struct ns_attach_options *options);

/**
 * Gets the statistics of a region. See also `ns_region_members`.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_region_get_stats(const struct ns_region *region, struct ns_region_stats *stats);

/**
 * Calls `each` for every attached session, for example to find readers that delay memory
 * reclamation, or dead processes.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_region_members(const struct ns_region *region, ns_member_fn each, void *context);

/**
 * Checks every byte of a region that no process has attached. `NS_OK` means that the check was
 * completed; `report` has its result. `options` may be NULL for the defaults. `each` receives the
 * first hundred inconsistencies; it may be NULL.
 *
 * Fails with `NS_NOT_A_REGION`, `NS_IN_USE` while a running process has a session,
 * `NS_BAD_ARGUMENT` (it belongs to another user), `NS_SYSTEM`.
 *
 * # Safety
 * Rules 2 to 4.
 */
enum ns_status ns_region_check(const char *path,
                               const struct ns_attach_options *options,
                               ns_check_error_fn each,
                               void *context,
                               struct ns_check_report *report);

/**
 * Returns the bytes of a text without its NUL, or an empty range if `text` is NULL.
 *
 * # Safety
 * Rule 2: NULL, or a text that ends with a NUL. The result points into it.
 */
struct ns_bytes ns_text(const char *text);

/**
 * Returns the message of the last failed call of this thread: what failed, why, and what to do.
 * Never NULL; empty if no call has failed. Successful calls do not change it, nor do
 * `NS_NOT_FOUND`, `NS_REFUSED` and `NS_TOO_SMALL`. It is valid until the next failure in this
 * thread.
 */
const char *ns_last_error(void);

/**
 * Returns the name of a status, such as `NS_FULL`, or `?` for an unknown number. Never NULL.
 */
const char *ns_status_name(int32_t status);

/**
 * Returns the version of the library that is loaded, such as `0.1.0`. Never NULL. A program that
 * was compiled against a header of another version compares it with the `NS_VERSION_..` macros.
 */
const char *ns_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NEARSTATE_H */

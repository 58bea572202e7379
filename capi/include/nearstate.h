/* nearstate: the state layer for 5G network functions, in C. Generated; do not edit.
 *
 * Records in shared memory that any process of this host reads and writes at once, without a
 * server, and that survive any of them. Link with `pkg-config --cflags --libs nearstate`.
 *
 * The rules, to which every function refers:
 *
 * 1. Handles. A handle comes from this library and is not used after its close, detach, release,
 *    commit or abort: nobody can check that for a pointer. A region may be used by several threads
 *    at once; a session, with its views, records to change, names, transactions and streams, and a
 *    watch, by one thread at a time.
 * 2. Bytes. `data` points to `len` bytes that stay as they are during the call; it is NULL only
 *    with `len` 0. Text ends with a NUL.
 * 3. Out-parameters stand last, point to memory that may be written and need not hold anything.
 *    They are written if the answer is NS_OK, and otherwise only where it is said. NULL is refused,
 *    except where it is said that it may be NULL.
 * 4. Callbacks run in the calling thread before the call returns. What they are given is valid
 *    until they return. They return true to go on and false to end the walk, which is no failure
 *    (that of ns_transact answers a status). They may call this library. They neither throw nor
 *    longjmp: the process would be aborted.
 *
 * Lengths beyond a limit and NULL are refused before anything is touched. Reading a record
 * allocates nothing. After a fork the child attaches again; handles that it inherited answer
 * NS_FORKED.
 */


#ifndef NEARSTATE_H
#define NEARSTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Records that have this value.
 */
#define NS_LOOKUP_EQUAL 1

/**
 * Records with a value that begins so; the tag must be ordered.
 */
#define NS_LOOKUP_PREFIX 2

/**
 * Records with a value within bounds; the tag must be ordered.
 */
#define NS_LOOKUP_RANGE 3

/**
 * No bound.
 */
#define NS_BOUND_NONE 0

/**
 * The value itself is within.
 */
#define NS_BOUND_INCLUDED 1

/**
 * The value itself is not.
 */
#define NS_BOUND_EXCLUDED 2

/**
 * The oldest transactions are lost, and the consumer is told how many. Writers never wait.
 */
#define NS_STREAM_FULL_OVERWRITE 1

/**
 * Commits are refused with `NS_BEHIND` until the consumer has acknowledged some.
 */
#define NS_STREAM_FULL_REFUSE 2

/**
 * The record has this value, tags and expiry, and nothing of before.
 */
#define NS_STREAM_OP_PUT 1

/**
 * Some blocks of the record changed.
 */
#define NS_STREAM_OP_PATCHED 2

/**
 * The record was deleted.
 */
#define NS_STREAM_OP_DELETED 3

/**
 * The record is gone because its time had passed.
 */
#define NS_STREAM_OP_EXPIRED 4

/**
 * Events of all records of the namespace.
 */
#define NS_FILTER_ALL 0

/**
 * Of the record with this key.
 */
#define NS_FILTER_KEY 1

/**
 * Of the records whose keys begin so.
 */
#define NS_FILTER_PREFIX 2

/**
 * Of the records that have this value of a tag, before the change or after it.
 */
#define NS_FILTER_TAG 3

/**
 * There was no such record, and now there is.
 */
#define NS_EVENT_CREATED 1

/**
 * There was one, and it changed.
 */
#define NS_EVENT_UPDATED 2

/**
 * Somebody deleted it.
 */
#define NS_EVENT_DELETED 3

/**
 * It ended by itself.
 */
#define NS_EVENT_EXPIRED 4

/**
 * The watcher was too slow, and events are gone: read what is watched anew.
 */
#define NS_EVENT_LOST 5

/**
 * All units hold.
 */
#define NS_SEARCH_AND 1

/**
 * One of the units holds.
 */
#define NS_SEARCH_OR 2

/**
 * The one unit does not hold.
 */
#define NS_SEARCH_NOT 3

/**
 * The key is one of `records`.
 */
#define NS_SEARCH_RECORDS 4

/**
 * Some value of the tag is equal.
 */
#define NS_SEARCH_EQ 5

/**
 * There are values of the tag, and none is equal.
 */
#define NS_SEARCH_NEQ 6

/**
 * Some value of the tag is above.
 */
#define NS_SEARCH_GT 7

/**
 * Some value of the tag is above or equal.
 */
#define NS_SEARCH_GTE 8

/**
 * Some value of the tag is below.
 */
#define NS_SEARCH_LT 9

/**
 * Some value of the tag is below or equal.
 */
#define NS_SEARCH_LTE 10

/**
 * No two records have the same value: a commit that would make it so answers `NS_TAG_TAKEN`.
 */
#define NS_TAG_UNIQUE 1

/**
 * Found by ranges and prefixes too.
 */
#define NS_TAG_ORDERED 2

/**
 * How many records have a value is known without looking at them.
 */
#define NS_TAG_COUNTED 4

/**
 * A record must have it: a commit that leaves one without is refused.
 */
#define NS_TAG_REQUIRED 8

/**
 * Writers keep the index, and records from before are being entered: lookups are refused.
 */
#define NS_TAG_BUILDING 1

/**
 * The index is complete.
 */
#define NS_TAG_READY 2

/**
 * Records of a namespace have one value.
 */
#define NS_KIND_VALUE 1

/**
 * Records of a namespace have named blocks.
 */
#define NS_KIND_BLOCKS 2

/**
 * Records of a namespace are counters (`ns_counter_add`).
 */
#define NS_KIND_COUNTERS 3

/**
 * Pages of 4 KiB.
 */
#define NS_PAGE_SMALL 0

/**
 * Pages of 2 MiB: the path must lie on a hugetlbfs mount.
 */
#define NS_PAGE_HUGE_2M 1

/**
 * Memory comes from where it is touched first.
 */
#define NS_NUMA_DEFAULT 0

/**
 * Memory comes from the named nodes only.
 */
#define NS_NUMA_BIND 1

/**
 * Memory comes from the named nodes in turn, page by page.
 */
#define NS_NUMA_INTERLEAVE 2

/**
 * Asymmetric where the kernel has `membarrier(2)`, else fenced.
 */
#define NS_PIN_AUTO 0

/**
 * A read costs no fence; every attaching process needs `membarrier(2)`.
 */
#define NS_PIN_ASYMMETRIC 1

/**
 * A full fence with every read (about 10 ns).
 */
#define NS_PIN_FENCED 2

/**
 * The longest key, in bytes. The shortest has one.
 */
#define NS_KEY_BYTES_MAX 4096

/**
 * The largest value or block, in bytes.
 */
#define NS_VALUE_BYTES_MAX 134217728

/**
 * The most blocks of a record.
 */
#define NS_BLOCKS_MAX 1024

/**
 * What a call answers. Numbers from 16 on are failures, behind which `ns_last_error` says more.
 */
typedef enum ns_status {
    /**
     * Done.
     */
    NS_OK = 0,
    /**
     * There is no such record or block, or nothing to tell at present.
     */
    NS_NOT_FOUND = 1,
    /**
     * The condition did not hold, and nothing was changed.
     */
    NS_REFUSED = 2,
    /**
     * The caller's memory is too small: make room and ask again.
     */
    NS_TOO_SMALL = 3,
    /**
     * A bug in this library: close the session and report it with `ns_last_error`.
     */
    NS_BUG = 15,
    /**
     * The key has no bytes, or more than `NS_KEY_BYTES_MAX`.
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
     * A live process has held a lock that this operation needs for longer than the wait bound.
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
     * A region is there already.
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
     * The operating system refused.
     */
    NS_SYSTEM = 28,
    /**
     * A back-end that is reached over a network failed or answered something unexpected.
     */
    NS_BACKEND = 29,
    /**
     * The caller's words are off (a URL, an option).
     */
    NS_BAD_ARGUMENT = 30,
    /**
     * What a transaction read was changed by somebody else before it could commit: run it again.
     */
    NS_CONFLICT = 31,
    /**
     * A transaction did not get through within the tries and the time that it was given.
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
     * No object of the transactional memory has this address: it was freed, or never given.
     */
    NS_NO_OBJECT = 35,
    /**
     * The commit stream of this writer is full, and refuses more until its consumer has
     * acknowledged some.
     */
    NS_BEHIND = 36,
} ns_status;

/**
 * The names of the blocks that a program reads and changes, which go by their places from then on:
 * 0 for the first. They remember how the last record was laid out, so keep them for each kind of
 * record and each session, whose thread uses them.
 */
typedef struct ns_block_layout ns_block_layout;

/**
 * An attached region: a file of shared memory that any number of processes read and write at once.
 */
typedef struct ns_region ns_region;

/**
 * A thread's way into a region. One thread at a time uses it.
 */
typedef struct ns_session ns_session;

/**
 * A consumer of all writers' commits. It is its session's, and used by the same thread.
 */
typedef struct ns_stream ns_stream;

/**
 * An open transaction: changes of records and objects that happen all at one instant, for every
 * process and every reader, or not at all. What it has read stands still for it; a call that finds
 * something changed answers `NS_CONFLICT`, and the transaction is over then: end it and begin
 * again, or let `ns_transact` do that. Memory that is retired in the region is not used again
 * while it is open, so keep it short. It is its session's, and used by the same thread.
 */
typedef struct ns_txn ns_txn;

/**
 * A wish to be told what happens to some records. It owes nothing to the session that made it,
 * which may be closed. One thread at a time uses it.
 */
typedef struct ns_watch ns_watch;

/**
 * The name of an object: it stands where a program had a pointer, in objects and in records. The
 * same in every process. Never 0, and never given to another object in the life of a region.
 */
typedef uint64_t ns_address;

/**
 * Some bytes, NULs included. Passed by value; nothing is copied and nothing is owned.
 */
typedef struct ns_bytes {
    /**
     * The first of them. NULL only if there are none.
     */
    const uint8_t *data;
    /**
     * How many.
     */
    size_t len;
} ns_bytes;

/**
 * Gets the objects of a region, one by one.
 */
typedef bool (*ns_object_fn)(void *context, ns_address address, struct ns_bytes object);

/**
 * A namespace, as one session knows it: of no use to another session. Passed by value.
 */
typedef struct ns_namespace {
    /**
     * The session's number and the namespace's number in it. Never 0.
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
    uint64_t held[16];
} ns_view;

/**
 * One end of a range. All bytes 0: none.
 */
typedef struct ns_bound {
    /**
     * One of `NS_BOUND_..`.
     */
    uint32_t kind;
    /**
     * The value; not looked at if there is no bound.
     */
    struct ns_bytes value;
} ns_bound;

/**
 * Which values of a tag are looked for. Values compare as strings of bytes, so numbers are written
 * with the greatest byte first.
 */
typedef struct ns_lookup {
    /**
     * The tag's name.
     */
    struct ns_bytes tag;
    /**
     * `NS_LOOKUP_EQUAL`, `NS_LOOKUP_PREFIX` or `NS_LOOKUP_RANGE`.
     */
    uint32_t kind;
    /**
     * The value, or with what it begins. Not looked at in a range.
     */
    struct ns_bytes value;
    /**
     * Where a range begins.
     */
    struct ns_bound from;
    /**
     * Where it ends.
     */
    struct ns_bound to;
} ns_lookup;

/**
 * Gets the records of a walk. The view is lent: it ends with the callback and is not released.
 */
typedef bool (*ns_record_fn)(void *context, const struct ns_view *view);

/**
 * Gets the keys of a listing.
 */
typedef bool (*ns_key_fn)(void *context, struct ns_bytes key);

/**
 * What a record carries beside its value. All bytes 0: nothing.
 */
typedef struct ns_metadata {
    /**
     * The first of the tags; a name may stand several times. NULL only if there are none.
     */
    const struct ns_tag *tags;
    /**
     * How many; at most 64.
     */
    size_t tags_len;
    /**
     * When the record ends by itself, in milliseconds since 1970; 0: never. One that is not after
     * `ns_now_ms` is over at once.
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
     * The new bytes. Not looked at if `is_removal`.
     */
    struct ns_bytes bytes;
    /**
     * Take the block away.
     */
    bool is_removal;
} ns_block_change;

/**
 * Changes that are made in one step.
 */
typedef struct ns_block_change_list {
    /**
     * The first of them. NULL only if there are none.
     */
    const struct ns_block_change *items;
    /**
     * How many; at most 1,024, no block twice.
     */
    size_t len;
} ns_block_change_list;

/**
 * What is done in a transaction. Answers an `ns_status`: `NS_OK` to commit, `NS_CONFLICT` (as a
 * call that it made has answered) to be run again, anything else to give up.
 */
typedef int32_t (*ns_txn_fn)(void *context, struct ns_txn *txn);

/**
 * A committed transaction of a writer, or how many of its transactions are lost.
 */
typedef struct ns_stream_entry {
    /**
     * How many transactions of this writer are lost: read anew what they may have changed. 0: this
     * is a transaction, and `ns_stream_records` walks it.
     */
    uint64_t lost;
    /**
     * Number of the transaction in its writer's stream: one more than that of the one before.
     */
    uint64_t number;
    /**
     * Number of the writer's session. One that attaches later may have the same.
     */
    uint32_t writer;
} ns_stream_entry;

/**
 * What became of a record in a committed transaction.
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
     * One of `NS_STREAM_OP_..`.
     */
    uint32_t op;
    /**
     * The record's key.
     */
    struct ns_bytes key;
    /**
     * The version that it has since; of one that is gone, the last that it had.
     */
    uint64_t version;
    /**
     * The value that was put.
     */
    struct ns_bytes value;
    /**
     * When it ends by itself, in milliseconds since 1970; 0: never, or as before.
     */
    uint64_t expires_ms;
    /**
     * It has the tags that `ns_stream_record_tags` walks and this expiry. If not, a patched record has
     * those that it had.
     */
    bool has_metadata;
    /**
     * Of a patched record: all blocks of before are gone.
     */
    bool is_replacement;
    /**
     * Private.
     */
    const void *held;
} ns_stream_record;

/**
 * Gets the records of a transaction, which end with the callback.
 */
typedef bool (*ns_stream_record_fn)(void *context, const struct ns_stream_record *record);

/**
 * Gets the blocks of a patched record; `block` is NULL if the block is gone.
 */
typedef bool (*ns_block_change_fn)(void *context, struct ns_bytes name, const struct ns_bytes *block);

/**
 * Gets the blocks of a record, one by one.
 */
typedef bool (*ns_block_fn)(void *context, struct ns_bytes name, struct ns_bytes block);

/**
 * Which events a watch gives. All bytes 0: those of all records.
 */
typedef struct ns_watch_filter {
    /**
     * One of `NS_FILTER_..`.
     */
    uint32_t kind;
    /**
     * The key, or with what keys begin.
     */
    struct ns_bytes key;
    /**
     * The tag and its value.
     */
    struct ns_tag tag;
} ns_watch_filter;

/**
 * A change of a record, or that some are lost.
 */
typedef struct ns_watch_event {
    /**
     * One of `NS_EVENT_..`.
     */
    uint32_t kind;
    /**
     * The names of blocks and the tags were too much for an event: read the record.
     */
    bool is_truncated;
    /**
     * The record's key; good until the next call with the watch.
     */
    struct ns_bytes key;
    /**
     * Its version after the change; the last one it had, if it is gone.
     */
    uint64_t version;
    /**
     * Of `NS_EVENT_LOST`: how many, whether the filter would have let them through or not.
     */
    uint64_t lost;
} ns_watch_event;

/**
 * Keys to be read together.
 */
typedef struct ns_key_list {
    /**
     * The first of them. NULL only if there are none.
     */
    const struct ns_bytes *items;
    /**
     * How many; at most 1,048,576.
     */
    size_t len;
} ns_key_list;

/**
 * A condition on records, as the search expressions of TS 29.598 have it. Conditions stand in each
 * other by pointers, so one is written down where it is used, and nothing is freed:
 *
 * `ns_search_condition both[] = {{.kind = NS_SEARCH_EQ, .tag = dnn}, {.kind = NS_SEARCH_LT, .tag = end}};`
 * `ns_search_condition all = {.kind = NS_SEARCH_AND, .units = both, .units_len = 2};`
 *
 * At most 16 levels and 1,024 conditions and keys. Of the fields only those of its `how` are
 * looked at.
 */
typedef struct ns_search_condition {
    /**
     * One of `NS_SEARCH_..`.
     */
    uint32_t kind;
    /**
     * And, or, not: the first of the conditions within.
     */
    const struct ns_search_condition *units;
    /**
     * How many; 1 of not.
     */
    size_t units_len;
    /**
     * Comparisons: the tag's name, and the value that its values are compared with, as strings of
     * bytes.
     */
    struct ns_tag tag;
    /**
     * Records: their keys.
     */
    struct ns_key_list records;
} ns_search_condition;

/**
 * What is declared of a tag.
 */
typedef struct ns_tag_schema {
    /**
     * Its name, 1 to 255 bytes of UTF-8 without a NUL.
     */
    struct ns_bytes name;
    /**
     * The sum of some of `NS_TAG_UNIQUE`, `NS_TAG_ORDERED`, `NS_TAG_COUNTED`, `NS_TAG_REQUIRED`;
     * 0: found by equality.
     */
    uint32_t properties;
} ns_tag_schema;

/**
 * Tags to be declared together.
 */
typedef struct ns_tag_schema_list {
    /**
     * The first of them. NULL only if there are none.
     */
    const struct ns_tag_schema *items;
    /**
     * How many; at most 32.
     */
    size_t len;
} ns_tag_schema_list;

/**
 * Gets the tags of a namespace, each with `NS_TAG_BUILDING` or `NS_TAG_READY`.
 */
typedef bool (*ns_tag_fn)(void *context, const struct ns_tag_schema *tag, uint32_t state);

/**
 * Names of blocks.
 */
typedef struct ns_name_list {
    /**
     * The first of them, each 1 to 255 bytes of UTF-8 without a NUL. NULL only if there are none.
     */
    const struct ns_bytes *items;
    /**
     * How many; at most 1,024, no name twice.
     */
    size_t len;
} ns_name_list;

/**
 * A record that was read to be changed. `view` shows what was read, to the functions of views as
 * well; it ends with the record, and releasing it does nothing. The change is made if the record
 * is still that one: nothing is locked meanwhile. While it is held, memory that is retired in the
 * region is not used again: release it when the work at hand is done. It may be moved, but only
 * one copy of it is changed or released. All bytes 0 is a record that holds nothing.
 */
typedef struct ns_record_for_update {
    /**
     * What was read.
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
 * New bytes of a block.
 */
typedef struct ns_indexed_change {
    /**
     * The place of the block's name, from 0.
     */
    size_t index;
    /**
     * The new bytes.
     */
    struct ns_bytes bytes;
} ns_indexed_change;

/**
 * Changes that are made in one step.
 */
typedef struct ns_indexed_change_list {
    /**
     * The first of them. NULL only if there are none.
     */
    const struct ns_indexed_change *items;
    /**
     * How many; at most 1,024, no place twice.
     */
    size_t len;
} ns_indexed_change_list;

/**
 * A caller's own memory for a copy.
 */
typedef struct ns_buffer {
    /**
     * In: where the copy goes. NULL only with `capacity` 0.
     */
    uint8_t *data;
    /**
     * In: how many bytes there is room for.
     */
    size_t capacity;
    /**
     * Out: how many bytes the value has, also if they did not fit.
     */
    size_t len;
    /**
     * Out: the record's version.
     */
    uint64_t version;
} ns_buffer;

/**
 * Gets the records of a batch, each with the number of its key; `view` is NULL if there is no
 * record. The view is lent: it ends with the callback and is not released.
 */
typedef bool (*ns_batch_fn)(void *context, size_t index, const struct ns_view *view);

/**
 * How a region is created. Fill it with `ns_create_options_default` first, then change what is to
 * be other.
 */
typedef struct ns_create_options {
    /**
     * Bytes of this structure, so that a later library knows what an earlier program filled.
     */
    size_t struct_bytes;
    /**
     * The most bytes that records and index may fill: 64 MiB to 16 TiB. Memory is taken as it is
     * needed.
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
     * `NS_NUMA_DEFAULT`, `NS_NUMA_BIND` or `NS_NUMA_INTERLEAVE`.
     */
    uint32_t numa;
    /**
     * File mode, as for chmod.
     */
    uint32_t mode;
    /**
     * Nodes of the NUMA policy. NULL only if there are none.
     */
    const uint32_t *nodes;
    /**
     * How many.
     */
    size_t nodes_len;
    /**
     * Take all memory now.
     */
    bool populate;
} ns_create_options;

/**
 * A region at one moment.
 */
typedef struct ns_region_stats {
    /**
     * Random id, as two words.
     */
    uint64_t id[2];
    /**
     * Created at, milliseconds since 1970.
     */
    uint64_t created_ms;
    /**
     * The most bytes that records and index may fill.
     */
    uint64_t bytes_max;
    /**
     * Bytes that were ever taken: records, index, free cells.
     */
    uint64_t bytes_taken;
    /**
     * Bytes that the file occupies on its file system now.
     */
    uint64_t bytes_on_disk;
    /**
     * Bytes of a page.
     */
    uint64_t page_bytes;
    /**
     * The epoch of reclamation.
     */
    uint64_t epoch;
    /**
     * Format number.
     */
    uint32_t format;
    /**
     * How many namespaces there are.
     */
    uint32_t namespaces;
    /**
     * How many sessions of living processes are attached.
     */
    uint32_t members_alive;
    /**
     * How many sessions of dead processes wait for recovery.
     */
    uint32_t members_dead;
    /**
     * Reads are fenced.
     */
    bool is_fenced;
} ns_region_stats;

/**
 * An attached session.
 */
typedef struct ns_member {
    /**
     * Its process's command name.
     */
    struct ns_bytes name;
    /**
     * Attached at, milliseconds since 1970.
     */
    uint64_t since_ms;
    /**
     * The epoch that its views hold; 0 if it holds none.
     */
    uint64_t pinned_epoch;
    /**
     * Its process, as seen in that process's own pid namespace.
     */
    uint32_t pid;
    /**
     * False if its process has ended and it waits for recovery.
     */
    bool is_alive;
} ns_member;

/**
 * Gets the sessions of a region.
 */
typedef bool (*ns_member_fn)(void *context, const struct ns_member *member);

/**
 * Gets the faults of a region, one sentence each.
 */
typedef bool (*ns_check_error_fn)(void *context, struct ns_bytes error);

/**
 * What the offline verifier found.
 */
typedef struct ns_check_report {
    /**
     * Contradictions. 0: the region is clean.
     */
    uint64_t errors;
    /**
     * Namespaces walked.
     */
    uint64_t namespaces;
    /**
     * Records walked.
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
     * Bytes that are free.
     */
    uint64_t bytes_free;
    /**
     * Bytes that nothing reaches.
     */
    uint64_t bytes_leaked;
    /**
     * Bytes of the heap that were taken.
     */
    uint64_t bytes_taken;
} ns_check_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes an object of `bytes` bytes, all of them 0. It is there with the commit, and nothing of it
 * remains without one. Open it to write it.
 *
 * Fails with `NS_VALUE_TOO_LARGE` above 128 MiB, `NS_TRANSACTION_TOO_LARGE` above 4,096 records
 * and objects or 256 MiB, `NS_FORKED`, `NS_DAMAGED`, `NS_BAD_ARGUMENT`; with the first object of a
 * region also as `ns_namespace_open`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_alloc(struct ns_txn *txn, size_t bytes, ns_address *address);

/**
 * Opens an object to be read: the first `bytes` bytes of it, which it must have. `object` gets
 * their place: in the region itself, or in the transaction's copy if it has opened the object to
 * write it. It is aligned to 16 and good until the transaction ends; what lies in the region stays
 * as it is until then. Costs a lookup and no copy.
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
 * As `ns_txn_open_read`, for the `bytes` bytes from `offset` on. A conflict is still one about the
 * whole object.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_open_read_range(struct ns_txn *txn,
                                      ns_address address,
                                      size_t offset,
                                      size_t bytes,
                                      const void **place);

/**
 * Opens an object to be written: the first `bytes` bytes of it, which it must have. `object` gets
 * their place in a copy that only this transaction has, aligned to 16. Read and write there; the
 * commit publishes it. It does not move, is the same if the object is opened again, and is good
 * until the transaction ends. Only what was opened may be written.
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
 * As `ns_txn_open_write`, for the `bytes` bytes from `offset` on: only they are copied, and the
 * commit takes the rest from the region. A conflict is still one about the whole object.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_open_write_range(struct ns_txn *txn,
                                       ns_address address,
                                       size_t offset,
                                       size_t bytes,
                                       void **place);

/**
 * The size of an object, as it was asked for. Fails as `ns_txn_open_read`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_object_size(struct ns_txn *txn, ns_address address, size_t *bytes);

/**
 * Frees an object at the commit. Its address is never given again: whoever still has it gets
 * `NS_NO_OBJECT`. Places that were opened in this transaction stay readable until it ends.
 *
 * Fails with `NS_NO_OBJECT`, `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE`, `NS_DAMAGED`,
 * `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_txn_free(struct ns_txn *txn, ns_address address);

/**
 * Calls `each` with every object: to count them, or to look for those that nothing leads to. One
 * that is there from the beginning to the end is met exactly once; one that comes or goes
 * meanwhile at most once. Writers are never blocked.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_object_scan(struct ns_session *session, ns_object_fn each, void *context);

/**
 * How many objects a region has, and the bytes that were asked for with them; `bytes` may be NULL.
 * Reads the header of each.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_object_count(struct ns_session *session, uint64_t *objects, uint64_t *bytes);

/**
 * Gets the record that has this value of a unique tag, as a view: `NS_NOT_FOUND` if there is none.
 * The answer held at one moment of the call. No lock. Release the view with `ns_view_release`;
 * unless the answer is `NS_OK` it is empty and need not be released.
 *
 * Fails with `NS_BAD_ARGUMENT` if the namespace has no such tag, it is not unique, or its index is
 * still being built; `NS_CONFLICT` if the value moves faster than it can be followed;
 * `NS_DAMAGED`, `NS_FORKED`.
 *
 * # Safety
 * Rules 1 to 3. What `view` held before is not released.
 */
enum ns_status ns_find(struct ns_session *session,
                       struct ns_namespace namespace_,
                       struct ns_tag tag,
                       struct ns_view *view);

/**
 * Calls `each` with every record that has such a value of a tag, in the order of the values; once
 * for each of them. One that has it from the beginning to the end is met; what changes meanwhile
 * may be met or not. Writers are never blocked.
 *
 * Fails with `NS_BAD_ARGUMENT` if the namespace has no such tag, it is not ordered (for prefixes
 * and ranges), or its index is still being built; `NS_CONFLICT` if the index changes faster than
 * it can be walked; `NS_DAMAGED`, `NS_FORKED`. `each` may have been called then.
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
 * How many records have a value of a tag. A counted tag knows; of another one the records are
 * walked.
 *
 * Fails as `ns_find_all`, and with `NS_DEADLINE` if the count changes faster than it can be read.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_count_tagged(struct ns_session *session,
                               struct ns_namespace namespace_,
                               struct ns_tag tag,
                               uint64_t *records);

/**
 * Gets the record that has this value of a unique tag, as part of what the transaction has read:
 * `NS_NOT_FOUND` if there is none, which is part of it too. `key` and `view` are good until the
 * transaction ends; either may be NULL. The view need not be released.
 *
 * Indexes are kept by the commit: a value that this transaction itself has given is not found yet.
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
 * Calls `each` with the key of every record that has such a value of a tag, in the order of the
 * values. That there are these and no others is part of what the transaction has read.
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
 * Fails with `NS_CONFLICT`, `NS_TRANSACTION_TOO_LARGE` above 4,096 records, `NS_WRONG_KIND`,
 * `NS_KEY_TOO_LARGE`, `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_txn_get(struct ns_txn *txn,
                          struct ns_namespace namespace_,
                          struct ns_bytes key,
                          struct ns_view *view);

/**
 * Puts a record at the commit: this value, no tags, no expiry, whatever it had before.
 *
 * Fails with `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`,
 * `NS_TRANSACTION_TOO_LARGE` above 256 MiB, `NS_BAD_ARGUMENT`.
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
 * Begins a transaction. Several may be open in one session. It ends with `ns_txn_commit` or
 * `ns_txn_abort`; a session that has an open one does not close.
 *
 * Fails with `NS_FORKED`, `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_txn_begin(struct ns_session *session, struct ns_txn **txn);

/**
 * Commits a transaction: with `NS_OK` all of it is there, for every process, and survives this
 * one; with any other answer nothing was changed. One that only read has nothing to do. In each
 * case the transaction is over, and neither it nor what it gave out must be used any more.
 *
 * Fails with `NS_CONFLICT` if something that it had read was changed meanwhile, `NS_TAG_TAKEN`,
 * `NS_FULL`, `NS_BEHIND`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`; with `NS_BAD_ARGUMENT`, and
 * without an end, for NULL, in the function of `ns_transact` and in callbacks of its walks.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_txn_commit(struct ns_txn *txn);

/**
 * Gives a transaction up: nothing of it happens. NULL is left alone. `NS_BAD_ARGUMENT` in the
 * function of `ns_transact`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_txn_abort(struct ns_txn *txn);

/**
 * Runs `body` in a transaction and commits it. If others have changed what it had read it is run
 * again in a new one, with growing pauses, at most 1,000 times: each conflict means that another
 * one went through. So it does nothing that must not happen twice, but through the transaction.
 * What it has allocated, opened or got is over with each run.
 *
 * Answers what `body` does, if that is neither `NS_OK` nor `NS_CONFLICT`; nothing was changed
 * then. Fails with `NS_DEADLINE` after the last run, as `ns_txn_begin` and `ns_txn_commit`, and
 * with `NS_BAD_ARGUMENT` if `body` answers what is no `ns_status`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_transact(struct ns_session *session, ns_txn_fn body, void *context);

/**
 * Streams the commits of a namespace from now on. `when_full` is one of `NS_STREAM_FULL_..`; a
 * writer's stream is one for all namespaces, and refuses as long as one of them asks for it. Each
 * session that writes takes 4 MiB of the region for it, for good. A transaction of more than a MiB
 * is refused with `NS_TRANSACTION_TOO_LARGE` then.
 *
 * Fails with `NS_WRONG_KIND` for counters, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`,
 * `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_namespace_enable_stream(struct ns_session *session,
                                          struct ns_namespace namespace_,
                                          uint32_t when_full);

/**
 * Opens a consumer, from what was last acknowledged on. One consumer acknowledges; others may read
 * along. A session that has an open one does not close.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_stream_open(struct ns_session *session, struct ns_stream **stream);

/**
 * The next transaction of any writer, or `NS_NOT_FOUND` if there is none at present. Never waits.
 * A writer's transactions come in the order of its commits; of two writers' the versions of the
 * records tell.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT` (also within a walk over this stream's
 * transaction).
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_stream_next(struct ns_stream *stream, struct ns_stream_entry *entry);

/**
 * Calls `each` with every record of the transaction that was told last, as far as it is of
 * streamed namespaces.
 *
 * Fails with `NS_DAMAGED` (some may have been told then), `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_stream_records(const struct ns_stream *stream,
                                 ns_stream_record_fn each,
                                 void *context);

/**
 * Calls `each` with every block that changed; none of a record that was not patched.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_stream_record_blocks(const struct ns_stream_record *record,
                                       ns_block_change_fn each,
                                       void *context);

/**
 * Calls `each` with every tag that the record has since, in ascending order: its name and a value.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_stream_record_tags(const struct ns_stream_record *record,
                                     ns_block_fn each,
                                     void *context);

/**
 * Acknowledges everything that was told: a stream that refuses when it is full may overwrite it.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_stream_acknowledge(struct ns_stream *stream);

/**
 * Ends a consumer. What was not acknowledged is told again to the next one. NULL is left alone.
 * `NS_BAD_ARGUMENT`, and no end, within a walk over its transaction.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_stream_close(struct ns_stream *stream);

/**
 * Watches records of a namespace: every change that begins after this has returned is told, in the
 * order in which the changes were made. To follow records from a known state on, watch first and
 * read them then. The first watch of a namespace takes a MiB of the region for good, and its
 * writers tell from then on.
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
 * The next event, or `NS_NOT_FOUND` if there is none at present. Never waits.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT` (also within a walk over this watch's
 * event). After damage open a new watch, and read what is watched anew.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_watch_next(struct ns_watch *watch, struct ns_watch_event *event);

/**
 * Calls `each` with the name of every block that changed in the event that was told last; none in
 * a namespace of values.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_watch_blocks(const struct ns_watch *watch, ns_key_fn each, void *context);

/**
 * Calls `each` with every tag that the record had before the event that was told last: name and
 * value.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_watch_tags_before(const struct ns_watch *watch, ns_block_fn each, void *context);

/**
 * Calls `each` with every tag that the record has since the event that was told last: name and
 * value. None if it is gone.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_watch_tags_after(const struct ns_watch *watch, ns_block_fn each, void *context);

/**
 * A descriptor for `poll` and `epoll` that is readable as long as there may be something to tell.
 * When it is, call `ns_watch_next` until the answer is `NS_NOT_FOUND`; then it is not readable
 * until the next event of the namespace, which the filter may hold back. It is the watch's: do not
 * read, write or close it. The same at each call.
 *
 * The first call starts a thread of this process, which sleeps and takes no signals;
 * `ns_watch_close` ends it. Writers do the same work with it and without it. A forked child cannot
 * use it.
 *
 * Fails with `NS_SYSTEM` if the process may have no further thread or descriptor, `NS_FORKED`,
 * `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_watch_fd(struct ns_watch *watch, int *fd);

/**
 * Waits without a descriptor until there may be something to tell, `timeout_ms` at the most:
 * `NS_NOT_FOUND` if there is nothing then. What there is, the filter may hold back.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_watch_wait(struct ns_watch *watch, uint32_t timeout_ms);

/**
 * Ends a watch, with its descriptor, which the caller has taken out of its `epoll` before. NULL is
 * left alone. `NS_BAD_ARGUMENT`, and no end, within a walk over its event.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_watch_close(struct ns_watch *watch);

/**
 * Calls `each` once with the key of every record that matches, in no promised order, until it
 * answers false. A record that matches during the whole call is found; what changes meanwhile may
 * be found or not. The best index gives candidates, each of which is judged; where no index helps,
 * every record is.
 *
 * Fails with `NS_BAD_ARGUMENT` for a search that is too deep, too large or empty,
 * `NS_KEY_TOO_LARGE`, `NS_CONFLICT` if an index changes faster than it can be walked,
 * `NS_DAMAGED`, `NS_FORKED`. `each` may have been called then.
 *
 * # Safety
 * Rules 1, 2 (for every condition within) and 4.
 */
enum ns_status ns_search(struct ns_session *session,
                         struct ns_namespace namespace_,
                         const struct ns_search_condition *condition,
                         ns_key_fn each,
                         void *context);

/**
 * How many records match. Fails as `ns_search`.
 *
 * # Safety
 * Rules 1, 2 (for every condition within) and 3.
 */
enum ns_status ns_search_count(struct ns_session *session,
                               struct ns_namespace namespace_,
                               const struct ns_search_condition *condition,
                               uint64_t *records);

/**
 * Adds to a counter, in a namespace of `NS_KIND_COUNTERS`; creates it at zero first if there is
 * none. No lock and no conflict; wraps round beyond 64 bits. Once this has returned, the add is in
 * every later read, whatever becomes of this process. It is no part of a transaction; `ns_delete`
 * takes a counter away.
 *
 * Fails with `NS_WRONG_KIND` in another namespace, `NS_KEY_TOO_LARGE`, `NS_FULL`, `NS_STALLED`,
 * `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`; nothing was added then.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_counter_add(struct ns_session *session,
                              struct ns_namespace namespace_,
                              struct ns_bytes key,
                              int64_t delta);

/**
 * What a counter stands at: `NS_NOT_FOUND` if there is none. Every add that returned before is in
 * it; of those that run meanwhile some are.
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
 * Declares tags of a namespace and enters the records that it has, while writers go on. Tags that
 * are there already in the same form are left as they are, so every process may declare what it
 * needs when it starts. A tag is for good. Linear in the records if a tag is new.
 *
 * Fails with `NS_TAG_TAKEN` if two records have the same value of a tag that is to be unique, and
 * `NS_BAD_ARGUMENT` if a record lacks a tag that is to be required, or a tag is there in another
 * form: of what this call declared nothing is there then, unless others are declaring it as well
 * or had begun it. Also with `NS_WRONG_KIND` for counters, `NS_BAD_NAME`,
 * `NS_CONFLICT`, `NS_DEADLINE`, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_namespace_add_tags(struct ns_session *session,
                                     struct ns_namespace namespace_,
                                     struct ns_tag_schema_list tags);

/**
 * Calls `each` with every tag that is declared of a namespace.
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
 * Puts a record with tags and an expiry, in a transaction of its own; `ns_txn_put_with_metadata` does
 * it in a larger one. What the record had before is gone.
 *
 * Fails as `ns_put`, with `NS_TAG_TAKEN` if another record has the value of a unique tag (the
 * sentence names it), with `NS_BAD_ARGUMENT` if a required tag is missing, `NS_DEADLINE`,
 * `NS_BEHIND`.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_put_with_metadata(struct ns_session *session,
                                    struct ns_namespace namespace_,
                                    struct ns_bytes key,
                                    struct ns_bytes value,
                                    struct ns_metadata metadata);

/**
 * The clock by which records end: milliseconds since 1970, at the kernel's tick (1 to 10 ms).
 */
uint64_t ns_now_ms(void);

/**
 * Deletes at most `limit` records whose time has passed, with their tags; watchers are told once
 * that they expired, however many collect. No read returns a record from its time on, so this only
 * frees memory and tells; any process may do it, now and then. `records` gets how many it was,
 * `has_more` whether there may be more; either may be NULL.
 *
 * Fails with `NS_FULL`, `NS_STALLED`, `NS_BEHIND`, `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`;
 * some may have been deleted then.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_collect_expired(struct ns_session *session,
                                  size_t limit,
                                  size_t *records,
                                  bool *has_more);

/**
 * Calls `each` with every record of a namespace, in the order of their slots. A record that is
 * there from the beginning to the end is met exactly once; one that is put or deleted meanwhile at
 * most once. Writers are never blocked.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_scan(struct ns_session *session,
                       struct ns_namespace namespace_,
                       ns_record_fn each,
                       void *context);

/**
 * Calls `each` with every key that begins with `prefix`, taken literally; all keys if it is empty.
 * Linear in the records of the namespace.
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
 * Calls `each` with every key that matches a glob, as Redis' KEYS has it: `*`, `?`, `[a-z]`,
 * `[^a]`, and a backslash before a byte that means itself. Linear in the records of the namespace.
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
 * How many records a namespace has. Walks the index, not the records.
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
 * Names blocks. They are closed with `ns_block_layout_close`; their session may be closed before.
 *
 * Fails with `NS_BAD_NAME` (also for one that is there twice), `NS_TOO_MANY_BLOCKS`,
 * `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3, rule 2 for every name.
 */
enum ns_status ns_block_layout_open(struct ns_session *session,
                                    struct ns_name_list list,
                                    struct ns_block_layout **names);

/**
 * Closes names; they must not be used any more. NULL is left alone.
 *
 * # Safety
 * Rule 1.
 */
void ns_block_layout_close(struct ns_block_layout *names);

/**
 * Gets a record to change it: `NS_NOT_FOUND` if there is none. No lock, no system call, no copy.
 * Release it with `ns_record_for_update_release`, changed or not; unless the answer is `NS_OK` it is empty
 * and need not be released.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_WRONG_KIND` in a namespace of
 * counters, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3. What `record` held before is not released.
 */
enum ns_status ns_get_for_update(struct ns_session *session,
                                 struct ns_namespace namespace_,
                                 struct ns_bytes key,
                                 struct ns_record_for_update *record);

/**
 * Gives a record back, changed or not. Its bytes must not be read any more. NULL, and a record
 * that is released already, are left alone.
 *
 * # Safety
 * Rule 1: NULL, or a record that a call of this library has filled.
 */
void ns_record_for_update_release(struct ns_record_for_update *record);

/**
 * Shows the first `len` of the named blocks of a record: `blocks` gets as many, each at the place
 * of its name, with `data` NULL if the record has no such block (an empty one has other `data`).
 * They are good for as long as the record is held. One comparison if the record is laid out as the
 * last one that these names met, else linear in the number of blocks; it allocates only where it
 * learns a layout. None in a namespace of values.
 *
 * Fails with `NS_BAD_ARGUMENT`, also for more than there are names and for names of another
 * session.
 *
 * # Safety
 * Rules 1 and 3, with memory for `len` at `blocks`; it may be NULL only with `len` 0.
 */
enum ns_status ns_record_for_update_blocks(const struct ns_record_for_update *record,
                                           const struct ns_block_layout *names,
                                           size_t len,
                                           struct ns_bytes *blocks);

/**
 * Puts a value in the place of what was read, if that is still there, else `NS_REFUSED`: somebody
 * was faster, or this record has made its change already. Get it again then. Tags and an expiry
 * are gone with the old value. `version` gets the new one, or the one that is there (0: no
 * record); it may be NULL.
 *
 * Fails with `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`,
 * `NS_FORKED`, `NS_BAD_ARGUMENT`; nothing was changed then.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_record_for_update_put(const struct ns_record_for_update *record,
                                        struct ns_bytes value,
                                        uint64_t *version);

/**
 * Changes some blocks of what was read, if that is still there, else `NS_REFUSED`: somebody was
 * faster, or this record has made its change already. Get it again then. Other blocks, tags and
 * the expiry stay as they are; a block that is not there is added. `version` gets the new one, or
 * the one that is there (0: no record); it may be NULL. To take a block away see
 * `ns_patch_if_version`.
 *
 * Fails with `NS_WRONG_KIND` in a namespace of values, `NS_TOO_MANY_BLOCKS`, `NS_VALUE_TOO_LARGE`,
 * `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`, also for a place without
 * a name and for names of another session; nothing was changed then.
 *
 * # Safety
 * Rules 1 to 3.
 */
enum ns_status ns_record_for_update_patch(const struct ns_record_for_update *record,
                                          const struct ns_block_layout *names,
                                          struct ns_indexed_change_list changes,
                                          uint64_t *version);

/**
 * Changes some named blocks of a record in one step; the others stay as they are. Creates the
 * record if there is none. Blocks above 512 bytes are copied only if they change. `version`, the
 * new one, may be NULL.
 *
 * Fails with `NS_WRONG_KIND` in a namespace of values, `NS_BAD_NAME`, `NS_TOO_MANY_BLOCKS`,
 * `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`,
 * `NS_BAD_ARGUMENT`; nothing was changed then.
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
 * As `ns_patch`, if there is no record, else `NS_REFUSED`. `version` gets the new one, or the one
 * that is there; it may be NULL.
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
 * As `ns_patch`, if the record has the version `expected`, else `NS_REFUSED`. `version` gets the
 * new one, or the one that is there (0: no record); it may be NULL.
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
 * Puts a record, over what may be there. When the call returns every process sees it, and it
 * survives this one. `version`, the new one, may be NULL.
 *
 * Fails with `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`, `NS_FULL`, `NS_STALLED`,
 * `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`; nothing was changed then.
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
 * Puts a record if there is none, else `NS_REFUSED`. `version` gets the new one, or the one that
 * is there; it may be NULL. Fails as `ns_put`.
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
 * Puts a record if the present one has the version `expected`, else `NS_REFUSED`. `version` gets
 * the new one, or the one that is there (0: no record); it may be NULL. Fails as `ns_put`.
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
 * Puts a record if the value of the present one is `expected`, every byte of it, else
 * `NS_REFUSED`. `version` gets the new one, or the one that is there (0: no record); it may be
 * NULL. Fails as `ns_put`.
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
 * Deletes a record: `NS_NOT_FOUND` if there is none.
 *
 * Fails with `NS_KEY_TOO_LARGE`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`;
 * nothing was changed then.
 *
 * # Safety
 * Rules 1 and 2.
 */
enum ns_status ns_delete(struct ns_session *session,
                         struct ns_namespace namespace_,
                         struct ns_bytes key);

/**
 * Deletes a record if it has the version `expected`, else `NS_REFUSED`. `version` gets the one
 * that was deleted, or the one that is there (0: no record); it may be NULL. Fails as `ns_delete`.
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
 * Deletes a record if its value is `expected`, every byte of it, else `NS_REFUSED`. `version` gets
 * the one that was deleted, or the one that is there (0: no record); it may be NULL. Fails as
 * `ns_delete`, and with `NS_WRONG_KIND` in a namespace of named blocks.
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
 * Gets a record as a view: `NS_NOT_FOUND` if there is none. No lock, no system call, no copy.
 * Release the view with `ns_view_release`; unless the answer is `NS_OK` it is empty and need not
 * be released.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3. What `view` held before is not released.
 */
enum ns_status ns_get(struct ns_session *session,
                      struct ns_namespace namespace_,
                      struct ns_bytes key,
                      struct ns_view *view);

/**
 * Copies the value of a record into the caller's memory: `NS_NOT_FOUND` if there is no record;
 * `NS_TOO_SMALL` if the value does not fit (`len` and `version` are set and nothing is copied:
 * make room and ask again). Of named blocks see `ns_get`.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`.
 *
 * # Safety
 * Rules 1 to 3; `buffer->data` points to `capacity` bytes that may be written.
 */
enum ns_status ns_get_copy(struct ns_session *session,
                           struct ns_namespace namespace_,
                           struct ns_bytes key,
                           struct ns_buffer *buffer);

/**
 * Reads many keys: the cache misses of 16 keys at a time overlap. Calls `each` for every key, in
 * order.
 *
 * Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_BAD_ARGUMENT`; `each` may have
 * been called for some keys then.
 *
 * # Safety
 * Rules 1, 2 (for the keys too) and 4.
 */
enum ns_status ns_get_batch(struct ns_session *session,
                            struct ns_namespace namespace_,
                            struct ns_key_list keys,
                            ns_batch_fn each,
                            void *context);

/**
 * Gives a view back. Its bytes must not be read any more. NULL, and a view that is released
 * already, are left alone.
 *
 * # Safety
 * Rule 1: NULL, or a view that a call of this library has filled.
 */
void ns_view_release(struct ns_view *view);

/**
 * The bytes of a named block of a record: `NS_NOT_FOUND` if it has none of this name. They are
 * good for as long as the view is held. Linear in the number of blocks.
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
 * Opens a session. Costs some microseconds: open one for each thread and keep it. Members whose
 * process died are recovered.
 *
 * Fails with `NS_FULL` above 16,384 sessions of all processes, `NS_FORKED`, `NS_DAMAGED`,
 * `NS_SYSTEM`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_session_open(const struct ns_region *region, struct ns_session **session);

/**
 * Closes a session; it must not be used any more. NULL is left alone. While a view or a record of
 * it is held or a transaction or a stream is open, or from within its callbacks, it stays open and
 * the answer is `NS_BAD_ARGUMENT`. Its watches go on; its names are closed for themselves.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_session_close(struct ns_session *session);

/**
 * Opens a namespace, and creates it first if there is none of this name (1 to 255 bytes of UTF-8
 * without a NUL). `kind` is `NS_KIND_VALUE`, `NS_KIND_BLOCKS` or `NS_KIND_COUNTERS`. Linear in the
 * number of namespaces: call it once and keep the answer.
 *
 * Fails with `NS_WRONG_KIND` if it was created with another kind, `NS_BAD_NAME`, `NS_FULL`,
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
 * Fills options with what most want: 1 GiB at most, small pages, file mode 0600.
 *
 * # Safety
 * Rule 3.
 */
enum ns_status ns_create_options_default(struct ns_create_options *options);

/**
 * Creates a region and attaches to it. `options` may be NULL: the defaults.
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
 * Attaches to a region, and creates it first if there is none. `options` may be NULL: the
 * defaults. Of several creators at once one creates and the others attach.
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
 * Attaches to a region.
 *
 * Fails with `NS_NOT_A_REGION` (another file, a newer format, truncated, damaged), `NS_SYSTEM` (no
 * such file, no permission).
 *
 * # Safety
 * Rules 2 and 3.
 */
enum ns_status ns_region_attach(const char *path, struct ns_region **region);

/**
 * Detaches from a region. Its sessions may go on; its memory is unmapped with the last of them.
 * NULL is left alone.
 *
 * # Safety
 * Rule 1.
 */
enum ns_status ns_region_detach(struct ns_region *region);

/**
 * Drops a region: its file and all records are gone.
 *
 * Fails with `NS_IN_USE` while a living process has a session, `NS_NOT_A_REGION`, `NS_SYSTEM`.
 *
 * # Safety
 * Rule 2.
 */
enum ns_status ns_region_remove(const char *path);

/**
 * Tells an operator of a region. See also `ns_region_members`.
 *
 * Fails with `NS_DAMAGED`, `NS_SYSTEM`.
 *
 * # Safety
 * Rules 1 and 3.
 */
enum ns_status ns_region_get_stats(const struct ns_region *region, struct ns_region_stats *stats);

/**
 * Calls `each` with every session that is attached: who holds memory back, who died.
 *
 * Fails with `NS_DAMAGED`, `NS_SYSTEM`.
 *
 * # Safety
 * Rules 1 and 4.
 */
enum ns_status ns_region_members(const struct ns_region *region, ns_member_fn each, void *context);

/**
 * Verifies a region that nobody is attached to: walks every byte. `NS_OK` says that the walk was
 * made; whether the region is clean stands in `report`. `each` gets the first hundred faults; it
 * may be NULL.
 *
 * Fails with `NS_NOT_A_REGION`, `NS_IN_USE` while a living process has a session, `NS_SYSTEM`.
 *
 * # Safety
 * Rules 2 to 4.
 */
enum ns_status ns_region_check(const char *path,
                               ns_check_error_fn each,
                               void *context,
                               struct ns_check_report *report);

/**
 * The bytes of a text without its NUL; none if it is NULL.
 *
 * # Safety
 * Rule 2: NULL, or a text that ends with a NUL. The result points into it.
 */
struct ns_bytes ns_text(const char *text);

/**
 * What was wrong in the last call of this thread that failed, and what to do about it: one
 * sentence, never NULL, empty if none failed. Calls that succeed, and `NS_NOT_FOUND`, `NS_REFUSED`
 * and `NS_TOO_SMALL`, leave it as it is. It is good until the next failure in this thread.
 */
const char *ns_last_error(void);

/**
 * The name of an answer, such as `NS_FULL`; `?` for a number that is none. Never NULL.
 */
const char *ns_status_name(int32_t status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NEARSTATE_H */

//! The limits of the system: each with its reason, and the behaviour when it is reached.

/// The longest key, in bytes. A 3GPP record identity (`SUPI`, `smContextRef`, a resource URI) fits
/// in a few hundred bytes. 4 KiB allows composed keys, and a key still fits in one page. A longer
/// key is rejected with [`crate::Error::KeyTooLarge`].
pub const KEY_BYTES_MAX: usize = 4096;

/// The largest value or block, in bytes. Applications need 64 MiB. 128 MiB is the next power of
/// two, and one record stays within the largest size class. A larger value is rejected with
/// [`crate::Error::ValueTooLarge`]. The number is also in texts for users: search for `128 MiB`.
pub const VALUE_BYTES_MAX: usize = 128 << 20;

/// The most blocks of a record. TS 29.598 has no limit. A UE context has tens of groups. More
/// blocks are rejected with [`crate::Error::TooManyBlocks`].
pub const BLOCKS_MAX: usize = 1024;

/// The longest name of a block, in bytes.
pub const BLOCK_NAME_BYTES_MAX: usize = 255;

/// The longest name of a namespace, in bytes: its catalog entry has room for it.
pub const NAMESPACE_NAME_BYTES_MAX: usize = 255;

/// The most namespaces of a region. The catalog is a fixed array, and unused entries need no
/// memory.
pub const NAMESPACES_MAX: usize = 65_536;

/// The most sessions that are attached to a region at the same time, in all processes. A lock word
/// has 16 bits for its owner, and 0 means no owner.
pub const MEMBERS_MAX: usize = 16_384;

/// The deepest nesting of conditions in a search. Typical searches have two or three levels. The
/// limit prevents network input from exhausting the stack. A deeper search is rejected with
/// [`crate::Error::BadArgument`].
pub const SEARCH_DEPTH_MAX: usize = 16;

/// The most conditions, comparisons and record ids of one search. Each candidate record may be
/// compared with all of them. More are rejected with [`crate::Error::BadArgument`].
pub const SEARCH_UNITS_MAX: usize = 1024;

/// The smallest region, in bytes: the fixed tables and a few records.
pub const REGION_BYTES_MIN: u64 = 64 << 20;

/// The largest region, in bytes. An entry has 42 bits for an offset in units of 64 bytes, which is
/// more than 16 TiB. A user address space of 47 bits can map several such regions.
pub const REGION_BYTES_MAX: u64 = 16 << 40;

/// The most records of one transaction. A procedure accesses about ten, and their index entries.
/// The commit holds a lock for each record, so the limit keeps that time below some milliseconds.
pub const TRANSACTION_RECORDS_MAX: usize = 4096;

/// The most records of a transaction that applies one of another host. The indexes of a copy have
/// other nodes than those of the source: all expiry times lie in one tree, not in sixteen. A record
/// changes a node for its expiry, and splits few. Nothing else writes these records, so the locks
/// delay no writer.
pub const APPLIED_RECORDS_MAX: usize = 4 * TRANSACTION_RECORDS_MAX;

/// The most bytes that one transaction writes. They are buffered in the process until the commit.
pub const TRANSACTION_BYTES_MAX: usize = 256 << 20;

/// The default number of attempts of a transaction before its conflicts are reported. Each conflict
/// means that another transaction has committed, and the pauses between attempts grow.
pub const TRANSACTION_TRIES: u32 = 1000;

/// The most tag values of one record, over all its tags. TS 29.598 has no limit. A UE context is
/// found by about ten identities. 64 of the longest names and values have 80 KiB, and a change of
/// the smallest block of the record still copies them. More are rejected with
/// [`crate::Error::BadArgument`].
pub const TAGS_MAX: usize = 64;

/// The longest name of a tag, in bytes: its length is stored in one byte.
pub const TAG_NAME_BYTES_MAX: usize = 255;

/// The longest value of a tag, in bytes. An identity or a URI is much shorter. The value is a part
/// of index keys, and each of its bytes is stored in every node that it bounds.
pub const TAG_VALUE_BYTES_MAX: usize = 1024;

/// The smallest ring, in bytes. Its largest entry is a quarter of it, enough for the event of a
/// record with a short key and a few names.
pub const RING_BYTES_MIN: u64 = 4 << 10;

/// The largest ring, in bytes: a million events of a hundred bytes. It is one cell of the heap.
pub const RING_BYTES_MAX: u64 = 128 << 20;

/// The longest key of an ordered index, in bytes: a tag value of which every byte is escaped (2 x
/// 1024), the longest record key (4096), and the bytes between and before them. A longer key is
/// rejected with [`crate::Error::BadArgument`].
pub const INDEX_KEY_BYTES_MAX: usize = 7 << 10;

/// The most tags that a namespace declares. Each write of a record that has the tag writes an index
/// entry. A UE context is found by about ten identities.
pub const TAGS_DECLARED_MAX: usize = 32;

/// The largest watch ring of a namespace, in bytes: about ten thousand events, or the changes of a
/// tenth of a second at a hundred thousand changes per second. A watcher that is further behind
/// gets the number of events that it missed.
pub const WATCH_RING_BYTES_MAX: u64 = 1 << 20;

/// The share of the heap that the watch rings of namespaces begin with: a thirty-second, divided by
/// the number of the namespace. So watched namespaces are counted by memory like all others: of a
/// heap of 64 MiB, the rings of ten thousand take 50 MiB. With rings of one size, 60 filled it.
pub const WATCH_RING_SHARE: u64 = 32;

/// The largest event, in bytes: the largest entry of a ring of [`WATCH_RING_BYTES_MAX`], which is a
/// quarter of the ring and has a header of 16 bytes. A larger event is sent without the names of
/// blocks and without tags, also in a smaller ring for its own largest entry.
pub const EVENT_BYTES_MAX: usize = (256 << 10) - 16;

/// The stack of the thread of a watch descriptor, in bytes. Its calls are not deep, and a process
/// that locks its memory (`mlockall`) allocates all of it.
pub const WATCH_FD_STACK_BYTES: usize = 128 << 10;

/// The longest name of a field of a hash, in bytes: what the payload of `DUMP` counts in 16 bits. A
/// longer name is rejected with [`crate::Error::BadName`].
pub const FIELD_NAME_BYTES_MAX: usize = u16::MAX as usize;

/// The longest name of a channel, or of a pattern of channels, in a subscription, in bytes: the
/// limit of a key. Without a limit a few subscriptions could exhaust the memory of the node. A
/// longer name is rejected.
pub const CHANNEL_BYTES_MAX: usize = KEY_BYTES_MAX;

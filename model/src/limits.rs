//! Every bound of the system, with its reason and with what happens at it.

/// The longest key, in bytes. A 3GPP record identity (`SUPI`, `smContextRef`, a resource URI) fits
/// in a few hundred bytes; 4 KiB leaves room for composed keys while a key still fits in one page.
/// A longer key is refused with [`crate::Error::KeyTooLarge`].
pub const KEY_BYTES_MAX: usize = 4096;

/// The largest value or block, in bytes. The issue asks for 64 MiB; 128 MiB is the next power of
/// two and keeps one record within the largest size class. A larger one is refused with
/// [`crate::Error::ValueTooLarge`].
pub const VALUE_BYTES_MAX: usize = 128 << 20;

/// The most blocks a record may have. TS 29.598 sets no bound; a UE context has tens of groups.
/// More are refused with [`crate::Error::TooManyBlocks`].
pub const BLOCKS_MAX: usize = 1024;

/// The longest name of a block, in bytes.
pub const BLOCK_NAME_BYTES_MAX: usize = 255;

/// The longest name of a namespace, in bytes: what fits in its descriptor beside the schema.
pub const NAMESPACE_NAME_BYTES_MAX: usize = 255;

/// The most namespaces of one region: the catalog is a fixed array, sparse until used.
pub const NAMESPACES_MAX: usize = 4096;

/// The most sessions attached to one region at once, over all processes. The owner of a bucket is
/// named by 16 bits, of which 0 means no owner.
pub const MEMBERS_MAX: usize = 16_384;

/// How deep conditions of a search may stand in each other. People write two or three levels; the
/// bound keeps input from a network from using up the stack. A deeper one is refused with
/// [`crate::Error::BadArgument`].
pub const SEARCH_DEPTH_MAX: usize = 16;

/// The most conditions, comparisons and record ids of one search. Every candidate record may be
/// judged by all of them. More are refused with [`crate::Error::BadArgument`].
pub const SEARCH_UNITS_MAX: usize = 1024;

/// The smallest region, in bytes: the fixed tables and a few records.
pub const REGION_BYTES_MIN: u64 = 64 << 20;

/// The largest region, in bytes: offsets are 42 bits of 64-byte units; 16 TiB leaves room to spare
/// and is what a 47-bit user address space can map several of.
pub const REGION_BYTES_MAX: u64 = 16 << 40;

/// The most records that one transaction may touch. A procedure touches some ten and their index
/// entries; a lock is held for each at commit, so the bound keeps that time below some
/// milliseconds.
pub const TRANSACTION_RECORDS_MAX: usize = 4096;

/// The most bytes that one transaction may write: they are buffered in the process until commit.
pub const TRANSACTION_BYTES_MAX: usize = 256 << 20;

/// How often a transaction is run before conflicts are reported, unless the caller says otherwise.
/// Each conflict means that another one committed, and the pauses between tries grow.
pub const TRANSACTION_TRIES: u32 = 1000;

/// The most tag values of one record, over all its tags. TS 29.598 sets no bound; a UE context is
/// found by some ten identities. 64 of the longest names and values are 80 KiB, which a change of a
/// record's smallest block still copies along. More are refused with [`crate::Error::BadArgument`].
pub const TAGS_MAX: usize = 64;

/// The longest name of a tag, in bytes: its length is one byte wherever a tag is written down.
pub const TAG_NAME_BYTES_MAX: usize = 255;

/// The longest value of a tag, in bytes. An identity or a URI fits many times; the value becomes a
/// part of index keys, where every byte is paid for in each node that it bounds.
pub const TAG_VALUE_BYTES_MAX: usize = 1024;
/// The smallest ring, in bytes: its largest entry, a quarter of it, holds the event of a record
/// with a short key and a few names.
pub const RING_BYTES_MIN: u64 = 4 << 10;

/// The largest ring, in bytes: at a hundred bytes an event, a million events; it comes from the
/// heap in one piece.
pub const RING_BYTES_MAX: u64 = 128 << 20;

/// The longest key of an ordered index, in bytes: a tag's value of which every byte is escaped
/// (2 x 1024), the longest record key (4096), and what stands between and before them. A longer one
/// is refused with [`crate::Error::BadArgument`].
pub const INDEX_KEY_BYTES_MAX: usize = 7 << 10;

/// The most tags that a namespace declares in its life: each costs every write of a record that has
/// it an index entry. A UE context is found by some ten identities.
pub const TAGS_DECLARED_MAX: usize = 32;
/// What the ring of a namespace's watchers holds, in bytes: some ten thousand events, a tenth of a
/// second of changes at a hundred thousand a second. A watcher that is further behind is told how
/// many it missed.
pub const WATCH_RING_BYTES: u64 = 1 << 20;

/// The largest event, in bytes: the largest entry of a ring of [`WATCH_RING_BYTES`], which is a
/// quarter of it with 16 bytes of head. A larger one goes without names of blocks and tags.
pub const EVENT_BYTES_MAX: usize = (256 << 10) - 16;

/// What the commit stream of one writer holds, in bytes; a transaction takes at most a quarter of
/// it. A hundred sessions that write take 400 MiB.
pub const STREAM_RING_BYTES: u64 = 4 << 20;

/// The stack of a bell's thread, in bytes: it calls nothing deep, and a process that locks its
/// memory (`mlockall`) pays for all of it.
pub const WATCH_FD_STACK_BYTES: usize = 128 << 10;

/// The most members of one set. A change of a set copies it: a hundred thousand members of 20 bytes
/// are some 3 MB, a millisecond. SDL's groups have tens. More are refused with
/// [`crate::Error::BadArgument`].
pub const MEMBERS_OF_SET_MAX: usize = 1 << 20;

/// The longest name of a channel or of a pattern of channels that a client may hear, in bytes: that
/// of a key. Without a bound a few subscriptions would take the node's memory. A longer one is
/// refused.
pub const CHANNEL_BYTES_MAX: usize = KEY_BYTES_MAX;

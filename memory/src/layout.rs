//! The layout of a region: the constants of `spec/region.md`, section 1.

use nearstate_model::limits::{MEMBERS_MAX, NAMESPACES_MAX};

/// Bytes of a region that contradict the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption(pub &'static str);

impl From<Corruption> for nearstate_model::Error {
    #[cold]
    fn from(damage: Corruption) -> Self {
        Self::Damaged { detail: damage.0.to_owned() }
    }
}

/// The first eight bytes of a region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"NEARSTAT");
/// The format that this code reads and writes.
pub const FORMAT: u32 = 3;
/// Flag of the superblock: pins are followed by a full fence.
pub const FLAG_FENCED: u32 = 1;

/// A cache line: the size of a bucket, and the unit of offsets.
pub const LINE: u64 = 64;

// Superblock.
pub(crate) const SUPER_MAGIC: u64 = 0;
pub(crate) const SUPER_FORMAT: u64 = 8;
pub(crate) const SUPER_LENGTH: u64 = 16;
pub(crate) const SUPER_HEAP: u64 = 24;
pub(crate) const SUPER_SEED: u64 = 32;
pub(crate) const SUPER_PAGE: u64 = 40;
pub(crate) const SUPER_CREATED: u64 = 48;
pub(crate) const SUPER_ID: u64 = 56;
/// Number of chunks of the heap.
pub(crate) const SUPER_CHUNKS: u64 = 72;
pub(crate) const SUPER_CHECK: u64 = 120;
pub(crate) const SUPER_EPOCH: u64 = 0x200;
pub(crate) const SUPER_FRONTIER: u64 = 0x240;
pub(crate) const SUPER_MEMBERS: u64 = 0x2c0;
pub(crate) const SUPER_NAMESPACES: u64 = 0x300;
/// Number of changes of the catalog: `region/catalog.rs`.
pub(crate) const SUPER_CATALOG_CHANGES: u64 = 0x308;
/// The highest stamp of a removed namespace's index: `region/catalog.rs`.
pub(crate) const SUPER_STAMP_FLOOR: u64 = 0x310;
pub(crate) const SUPER_NAMESPACES_LOCK: u64 = 0x340;
/// The drop mark: the process that drops the region, sealed, or [`DROPPED`].
pub(crate) const SUPER_DROP: u64 = 0x380;
/// The watched word: whether memory came free since a search in vain (`heap/watched.rs`).
pub(crate) const SUPER_WATCHED: u64 = 0x3c0;
/// Words of the superblock that can be nonzero: static words, sealed words, locks.
pub(crate) const SUPER_WORDS: &[u64] = &[
    0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 120, 0x200, 0x240, 0x2c0, 0x300, 0x308, 0x310, 0x340,
    0x380, 0x3c0,
];
pub(crate) const SUPER_BYTES: u64 = 4096;
/// The cluster page, between the superblock and the member table. It has the words of the log.
pub(crate) const CLUSTER_PAGE: u64 = SUPER_BYTES;
pub(crate) const CLUSTER_BYTES: u64 = 4096;
// The words of the cluster page, in the order of their offsets.
/// The cluster that the region belongs to, and the boot in which it was bound to it, sealed.
pub(crate) const CLUSTER_ID: u64 = CLUSTER_PAGE;
pub(crate) const CLUSTER_BOOT: u64 = CLUSTER_PAGE + 0x010;
/// Which file was bound, sealed: the content of another one is a copy of an earlier moment. 0: an
/// earlier version has bound it.
pub(crate) const CLUSTER_FILE: u64 = CLUSTER_PAGE + 0x018;
/// Check value of the cluster id. 0: an earlier version has stored the id.
pub(crate) const CLUSTER_CHECK: u64 = CLUSTER_PAGE + 0x020;
/// The highest position of the log that was drawn.
pub(crate) const LOG_TAIL: u64 = CLUSTER_PAGE + 0x080;
/// The highest position of the log that its consumer has acknowledged.
pub(crate) const LOG_REPLICATED: u64 = CLUSTER_PAGE + 0x0c0;
/// The lowest position that the log keeps.
pub(crate) const LOG_FLOOR: u64 = CLUSTER_PAGE + 0x100;
/// The highest floor that a writer gives a full log that keeps entries. 0: it is not known, and is
/// behind what was acknowledged.
pub(crate) const LOG_FLOOR_LIMIT: u64 = CLUSTER_PAGE + 0x108;
/// The end of the owner's lease in microseconds of `CLOCK_BOOTTIME`, and the boot whose clock
/// that is, both sealed (`cluster.rs`).
pub(crate) const LEASE_END: u64 = CLUSTER_PAGE + 0x140;
pub(crate) const LEASE_BOOT: u64 = CLUSTER_PAGE + 0x148;
/// Sealed: 1 while writers of logged namespaces are refused. 0 stands for 0.
pub(crate) const FENCED: u64 = CLUSTER_PAGE + 0x180;
/// The units that entries of the log have held since the region was created.
pub(crate) const LOG_UNITS: u64 = CLUSTER_PAGE + 0x200;
/// How far the clock of expiry is ahead of that of the host, sealed (`region/expiry_clock.rs`). 0
/// stands for 0.
pub(crate) const EXPIRY_CLOCK: u64 = CLUSTER_PAGE + 0x240;
/// How far the clock of expiry is ahead of `CLOCK_BOOTTIME`, and the boot whose clock that is, both
/// sealed. 0 of the boot: no step of the host's clock is undone.
pub(crate) const EXPIRY_ANCHOR: u64 = CLUSTER_PAGE + 0x248;
pub(crate) const EXPIRY_BOOT: u64 = CLUSTER_PAGE + 0x250;
/// The offset of the log's words, or 0.
pub(crate) const LOG_WORDS: u64 = CLUSTER_PAGE + 0x280;
/// The highest view that the host has seen, sealed. 0 stands for 0.
pub(crate) const VIEW_SEEN: u64 = CLUSTER_PAGE + 0x300;
/// Of a member that its owner does not count any more: `revision:32 | host:16`, sealed. 0: none.
pub(crate) const EVICTING: u64 = CLUSTER_PAGE + 0x308;
/// Behind which positions the last incarnations of the log began, sealed: incarnation i in word
/// i mod 16. 0: not known.
pub(crate) const LOG_BEGINS: u64 = CLUSTER_PAGE + 0x340;
pub(crate) const LOG_BEGINS_MAX: u64 = 16;
/// The processor on which a source of the log runs, + 1 (`log/wait.rs`). 0: not known.
pub(crate) const LOG_SOURCE_CPU: u64 = CLUSTER_PAGE + 0x3c0;
/// The futex word of sources that have sent everything (`log/wake.rs`).
pub(crate) const LOG_DOORBELL: u64 = CLUSTER_PAGE + 0x3c8;
/// The last gaps: the first and the last position of entries that the consumer has lost.
pub(crate) const LOG_GAPS: u64 = CLUSTER_PAGE + 0x400;
pub(crate) const LOG_GAPS_MAX: u64 = 16;
/// In the first word of a gap: whether the group has its positions is not known.
pub(crate) const LOG_GAP_UNKNOWN: u64 = 1 << 63;
/// `changes:63 | keeps:1`: 1 while the log loses no entry that was not acknowledged.
pub(crate) const LOG_KEEPS: u64 = CLUSTER_PAGE + 0x500;
/// The number of gaps that were recorded.
pub(crate) const LOG_GAP_COUNT: u64 = CLUSTER_PAGE + 0x508;
/// How often a namespace became a logged one.
pub(crate) const LOG_DECLARATIONS: u64 = CLUSTER_PAGE + 0x510;
/// The last position that the group has of the log that a demotion ends, + 1, sealed. 0: not known.
pub(crate) const DEMOTION_SEAL: u64 = CLUSTER_PAGE + 0x518;
/// The futex word of those that wait for an acknowledgement (`log/wake.rs`).
pub(crate) const LOG_WAKE: u64 = CLUSTER_PAGE + 0x540;
/// The incarnation of the log, sealed: how often its entries were lost as a whole. 0 stands for 0.
pub(crate) const LOG_INCARNATION: u64 = CLUSTER_PAGE + 0x580;
/// The view in which the log became that of its partition, sealed. 0 stands for 0.
pub(crate) const LOG_ORIGIN: u64 = CLUSTER_PAGE + 0x588;
/// What the region follows: state, sealed; id of the other log and its incarnation, with a check
/// value (`follow.rs`).
pub(crate) const FOLLOW_STATE: u64 = CLUSTER_PAGE + 0x5c0;
pub(crate) const FOLLOW_ID: u64 = CLUSTER_PAGE + 0x5c8;
pub(crate) const FOLLOW_INCARNATION: u64 = CLUSTER_PAGE + 0x5d8;
pub(crate) const FOLLOW_CHECK: u64 = CLUSTER_PAGE + 0x5e0;
pub(crate) const FOLLOW_ORIGIN: u64 = CLUSTER_PAGE + 0x5e8;
/// The position up to which nothing behind the last applied entry exists, sealed. 0: not known.
pub(crate) const FOLLOW_REACHED: u64 = CLUSTER_PAGE + 0x5f0;
/// The stamp to which a promotion raises all buckets, sealed. 0: none was chosen.
pub(crate) const PROMOTION_STAMP: u64 = CLUSTER_PAGE + 0x5f8;
/// Two places for the last applied position: position, check value of its entry, check value of
/// both.
pub(crate) const FOLLOW_PLACES: [u64; 2] = [CLUSTER_PAGE + 0x600, CLUSTER_PAGE + 0x640];
/// The entry that a follower applies, and what shows that it was applied.
pub(crate) const FOLLOW_COMING: u64 = CLUSTER_PAGE + 0x618;
/// The last entry that a follower has acknowledged: position, check value of the entry, check value
/// of both.
pub(crate) const LOG_SHIPPED: u64 = CLUSTER_PAGE + 0x680;
/// How the region became the successor of the one that it followed (`takeover.rs`): nine words.
pub(crate) const TAKEOVER: u64 = CLUSTER_PAGE + 0x6c0;
/// The log that a follower changes to, and its position in it: seven words (`follow/switch.rs`).
pub(crate) const FOLLOW_SWITCH: u64 = CLUSTER_PAGE + 0x710;
/// The address of the owner of a followed region: check value, bytes, text (`cluster.rs`).
pub(crate) const OWNER_ADDRESS: u64 = CLUSTER_PAGE + 0x780;
/// The most bytes of that text.
pub(crate) const OWNER_ADDRESS_BYTES_MAX: u64 = 112;
/// Two places for the rules by which new namespaces are replicated: `namespace/rules.rs`.
pub(crate) const NAMESPACE_RULES: [u64; 2] = [CLUSTER_PAGE + 0x800, CLUSTER_PAGE + 0xc00];
/// The most bytes of their text.
pub const NAMESPACE_RULES_BYTES_MAX: u64 = 1000;
/// The words of following and being followed: the first one, and how many.
const FOLLOW_WORDS: [(u64, u64); 9] = [
    (LOG_INCARNATION, 2),
    (FOLLOW_STATE, 8),
    (FOLLOW_PLACES[0], 3),
    (FOLLOW_COMING, 5),
    (FOLLOW_PLACES[1], 3),
    (LOG_SHIPPED, 3),
    (TAKEOVER, 9),
    (FOLLOW_SWITCH, 7),
    (OWNER_ADDRESS, 2 + OWNER_ADDRESS_BYTES_MAX / 8),
];
const _: () = assert!(LOG_ORIGIN == LOG_INCARNATION + 8);
const _: () = assert!(PROMOTION_STAMP == FOLLOW_STATE + 7 * 8);
/// True if a word of the cluster page can be nonzero.
pub(crate) const fn is_cluster_word(at: u64) -> bool {
    matches!(
        at,
        LOG_TAIL
            | LOG_REPLICATED
            | LOG_FLOOR
            | LOG_FLOOR_LIMIT
            | LOG_UNITS
            | LOG_WORDS
            | LOG_KEEPS
            | LOG_GAP_COUNT
            | LOG_DECLARATIONS
            | DEMOTION_SEAL
            | LOG_WAKE
            | LOG_SOURCE_CPU
            | LOG_DOORBELL
            | CLUSTER_BOOT
            | CLUSTER_FILE
            | CLUSTER_CHECK
            | EVICTING
            | LEASE_END
            | LEASE_BOOT
            | FENCED
            | EXPIRY_CLOCK
            | EXPIRY_ANCHOR
            | EXPIRY_BOOT
            | VIEW_SEEN
    ) || at >= CLUSTER_ID && at < CLUSTER_ID + 16
        || at >= LOG_BEGINS && at < LOG_BEGINS + 8 * LOG_BEGINS_MAX
        || at >= LOG_GAPS && at < LOG_GAPS + 16 * LOG_GAPS_MAX
        || is_follow_word(at)
        || at >= NAMESPACE_RULES[0]
}

const fn is_follow_word(at: u64) -> bool {
    let mut words: &[(u64, u64)] = &FOLLOW_WORDS;
    while let [(first, count), rest @ ..] = words {
        if at >= *first && at < *first + 8 * *count {
            return true;
        }
        words = rest;
    }
    false
}

/// The region's file was removed: no session opens.
pub(crate) const DROPPED: u64 = u64::MAX;

// Members.
pub(crate) const MEMBERS: u64 = 0x2000;
pub(crate) const MEMBER_BYTES: u64 = 128;
pub(crate) const MEMBER_PIN: u64 = 0;
/// The end of a pin for whose reach its word has no room.
pub(crate) const MEMBER_FAR_END: u64 = 8;
pub(crate) const MEMBER_STATE: u64 = 64;
pub(crate) const MEMBER_PID: u64 = 72;
/// A copy of holder and incarnation while a session owns the slot (`region/member_table.rs`).
pub(crate) const MEMBER_COPY: u64 = 80;
/// A check value over the state, the process id and its namespace (`region/liveness.rs`).
pub(crate) const MEMBER_PROCESS_CHECK: u64 = 88;
pub(crate) const MEMBER_NAME: u64 = 96;
pub(crate) const MEMBER_SINCE: u64 = 112;
/// Since when its oldest view is seen to hold back memory. Written by other members.
pub(crate) const MEMBER_HELD_SINCE: u64 = 120;

// Catalog.
pub(crate) const CATALOG: u64 = 0x40_0000;
pub(crate) const CATALOG_BYTES: u64 = 1024;
pub(crate) const CATALOG_STATE: u64 = 0;
pub(crate) const CATALOG_KIND: u64 = 8;
/// Flags that the writers of the namespace handle, sealed; see [`namespace_flags`].
pub(crate) const CATALOG_FLAGS: u64 = 16;
pub(crate) const CATALOG_RING: u64 = 24;
/// Of a followed namespace: one more than its number at the source, sealed. 0: none.
pub(crate) const CATALOG_SOURCE: u64 = 32;
/// The position of the log from which it has all commits of the namespace, sealed; 0: not known.
pub(crate) const CATALOG_LOGGED_SINCE: u64 = 40;
/// Of a followed namespace: as [`CATALOG_SOURCE`], in the log that the follower changes to.
pub(crate) const CATALOG_NEXT_SOURCE: u64 = 48;
/// Which of the namespaces that have used the entry it belongs to: `region/catalog_use.rs`.
pub(crate) const CATALOG_GENERATION: u64 = 56;
pub(crate) const CATALOG_BUCKETS: u64 = 64;
/// Soft and hard limit of the namespace in units, sealed; 0 if it has none.
pub(crate) const CATALOG_SOFT_LIMIT: u64 = 72;
pub(crate) const CATALOG_HARD_LIMIT: u64 = 80;
/// Up to where the records of a namespace with limits are counted: `region/usage.rs`.
pub(crate) const CATALOG_COUNTED: u64 = 88;
/// 1, sealed: the namespace is never logged, whatever the rules say. Else 0.
pub(crate) const CATALOG_POLICY: u64 = 96;
/// The word at [`CATALOG_LOGGED_SINCE`], if it was stored before the namespace was live.
pub(crate) const CATALOG_BORN_LOGGED: u64 = 104;
pub(crate) const CATALOG_SPLIT: u64 = 128;
/// Number of buckets that have pages, sealed.
pub(crate) const CATALOG_COMMITTED: u64 = 136;
pub(crate) const CATALOG_NAME_BYTES: u64 = 192;
pub(crate) const CATALOG_NAME: u64 = 200;
/// Check value of the fields that never change: number, kind, generation and name.
pub(crate) const CATALOG_CHECK: u64 = 464;
pub(crate) const CATALOG_SEGMENTS: u64 = 512;
pub(crate) const SEGMENTS: usize = 40;
/// What the records of a namespace with limits take, in [`USAGE_STRIPES`] words.
pub(crate) const CATALOG_USAGE: u64 = 896;
pub(crate) const USAGE_STRIPES: usize = 16;
/// The state of a catalog entry in use. No single flipped bit makes it or 0 of the other.
pub(crate) const NAMESPACE_LIVE: u64 = seal(1);

/// Words of a catalog entry that are sealed, or 0.
pub(crate) const SEALED_OR_ZERO: [u64; 5] = [
    CATALOG_LOGGED_SINCE,
    CATALOG_SOURCE,
    CATALOG_NEXT_SOURCE,
    CATALOG_POLICY,
    CATALOG_BORN_LOGGED,
];

// Arenas.
pub(crate) const ARENAS: u64 = 0x440_0000;
pub(crate) const ARENA_BYTES: u64 = 4096;
pub(crate) const ARENA_WORDS: usize = 512;

/// The offset of the heap.
pub const HEAP: u64 = 0x840_0000;

/// Bytes of a chunk: the part of the heap that one lock and one bitmap describe. Large enough that
/// a session rarely needs another one (every 240 records of 1 KiB), small enough that a session
/// that is stopped inside a claim keeps little from the others.
pub(crate) const CHUNK_BYTES: u64 = 256 << 10;
/// Units of a chunk: cells begin at units and are measured in them.
pub(crate) const CHUNK_UNITS: u64 = CHUNK_BYTES / LINE;
/// Bit of a chunk's word: all of the chunk has pages.
pub(crate) const CHUNK_HAS_PAGES: u64 = 1 << 47;
/// Bit of a chunk's word: its records are being moved elsewhere.
pub(crate) const CHUNK_IS_CLOSING: u64 = 1 << 46;
/// Bit of a chunk's word: a member found that its bitmap has lost a bit. Nothing is taken from it
/// until the repair.
pub(crate) const CHUNK_IS_GIVEN_UP: u64 = 1 << 32;
/// Bit of a chunk's word, a hint: it keeps cells that cannot be moved, so that others are put
/// elsewhere.
pub(crate) const CHUNK_HAS_FIXED: u64 = 1 << 33;
/// The word of a chunk of free units that has pages, with its check bits.
pub(crate) const CHUNK_NEW_WITH_PAGES: u64 = CHUNK_HAS_PAGES | 0x80 << 38;
/// Bytes of a chunk's bitmap.
pub(crate) const BITMAP_BYTES: u64 = CHUNK_UNITS / 8;

/// The part of the heap that only operations which do not grow the region's content may use.
const RESERVE_SHARE: u64 = 64;
/// The least and the most chunks of the reserve: 1 MiB and 8 MiB. Its pages exist from creation on.
const RESERVE_CHUNKS_MIN: u64 = 4;
const RESERVE_CHUNKS_MAX: u64 = 32;

/// The number of chunks that ordinary allocations use. The others, at the end, are the reserve.
pub(crate) const fn ordinary_chunks(chunks: u64) -> u64 {
    let share = chunks / RESERVE_SHARE;
    let reserve = if share < RESERVE_CHUNKS_MIN {
        RESERVE_CHUNKS_MIN
    } else if share > RESERVE_CHUNKS_MAX {
        RESERVE_CHUNKS_MAX
    } else {
        share
    };
    chunks.saturating_sub(reserve)
}

/// Queues of one arena: one for each class, the last for extents.
pub(crate) const QUEUES: usize = 128;

/// The class of extents (index segments), which have no fixed size.
pub(crate) const CLASS_EXTENT: u8 = 127;

const _: () = assert!(MEMBERS + MEMBER_BYTES * MEMBERS_MAX as u64 <= CATALOG);
const _: () = assert!(CATALOG + CATALOG_BYTES * NAMESPACES_MAX as u64 <= ARENAS);
const _: () = assert!(ARENAS + ARENA_BYTES * MEMBERS_MAX as u64 <= HEAP);
const _: () = assert!(CLUSTER_PAGE + CLUSTER_BYTES == MEMBERS);
const _: () = assert!(HEAP.is_multiple_of(CHUNK_BYTES), "chunks are aligned");
const _: () = assert!(CATALOG_SEGMENTS + 8 * SEGMENTS as u64 <= CATALOG_USAGE);
const _: () = assert!(CATALOG_USAGE + 8 * USAGE_STRIPES as u64 == CATALOG_BYTES);
const _: () = assert!(MEMBERS_MAX < u16::MAX as usize);
const _: () = assert!(NAMESPACES_MAX == 1 << NAMESPACE_NUMBER_BITS);
const _: () = assert!(SUPER_CHECK.is_multiple_of(8) && SUPER_CHECK < SUPER_EPOCH);
const _: () = assert!(SUPER_WATCHED + LINE <= SUPER_BYTES, "the superblock is one page");
const _: () =
    assert!(SUPER_NAMESPACES_LOCK.is_multiple_of(LINE) && SUPER_DROP.is_multiple_of(LINE));
const _: () = assert!(SUPER_EPOCH.is_multiple_of(LINE), "pins read the epoch's line");
const _: () = assert!(SUPER_FRONTIER.is_multiple_of(LINE));
const _: () = assert!(SUPER_MEMBERS.is_multiple_of(LINE) && SUPER_NAMESPACES.is_multiple_of(LINE));
const _: () = assert!(MEMBER_BYTES.is_multiple_of(LINE), "members share no line");
const _: () = assert!(MEMBER_STATE == LINE, "the pin has a line of its own");
const _: () = assert!(MEMBER_PIN + 8 == MEMBER_FAR_END, "both words of a pin are read together");
const _: () = assert!(MEMBER_SINCE + 8 <= MEMBER_HELD_SINCE);
const _: () = assert!(MEMBER_HELD_SINCE + 8 <= MEMBER_BYTES);
const _: () = assert!(MEMBER_NAME + 16 <= MEMBER_SINCE, "a name has 16 bytes");
const _: () = assert!(CATALOG_NAME + 256 <= CATALOG_CHECK, "a name has 255 bytes");
const _: () =
    assert!(CATALOG_CHECK < CATALOG_SEGMENTS && CATALOG_LOGGED_SINCE + 8 == CATALOG_NEXT_SOURCE);
const _: () = assert!(CATALOG_COUNTED + 8 == CATALOG_POLICY && CATALOG_BORN_LOGGED < CATALOG_SPLIT);
const _: () = assert!(
    NAMESPACE_RULES[0] + 24 + NAMESPACE_RULES_BYTES_MAX <= NAMESPACE_RULES[1]
        && NAMESPACE_RULES[1] + 24 + NAMESPACE_RULES_BYTES_MAX <= CLUSTER_PAGE + CLUSTER_BYTES
);
const _: () = assert!(OWNER_ADDRESS + 16 + OWNER_ADDRESS_BYTES_MAX <= NAMESPACE_RULES[0]);
// The words of the cluster page do not overlap, in their order.
const _: () = assert!(CLUSTER_ID + 16 == CLUSTER_BOOT && CLUSTER_BOOT + 8 == CLUSTER_FILE);
const _: () = assert!(CLUSTER_FILE + 8 == CLUSTER_CHECK && CLUSTER_CHECK + 8 <= LOG_TAIL);
const _: () = assert!(LOG_TAIL.is_multiple_of(LINE) && LOG_REPLICATED.is_multiple_of(LINE));
const _: () = assert!(LOG_REPLICATED - LOG_TAIL >= LINE && LOG_FLOOR - LOG_REPLICATED >= LINE);
const _: () = assert!(LOG_FLOOR + 8 == LOG_FLOOR_LIMIT && LOG_FLOOR_LIMIT + 8 <= LEASE_END);
const _: () = assert!(LEASE_END + 8 == LEASE_BOOT, "an end has a boot");
const _: () = assert!(LEASE_BOOT + 8 <= FENCED && FENCED + 8 <= LOG_UNITS);
const _: () = assert!(LOG_UNITS + LINE <= EXPIRY_CLOCK && EXPIRY_CLOCK + LINE <= LOG_WORDS);
const _: () = assert!(EXPIRY_CLOCK + 8 == EXPIRY_ANCHOR && EXPIRY_ANCHOR + 8 == EXPIRY_BOOT);
const _: () = assert!(LOG_WORDS + 8 <= VIEW_SEEN);
const _: () = assert!(VIEW_SEEN + 8 == EVICTING && EVICTING + 8 <= LOG_BEGINS);
const _: () = assert!(LOG_BEGINS + 8 * LOG_BEGINS_MAX <= LOG_SOURCE_CPU, "one word for each");
const _: () = assert!(LOG_SOURCE_CPU.is_multiple_of(LINE) && LOG_SOURCE_CPU + LINE <= LOG_GAPS);
const _: () = assert!(LOG_DOORBELL == LOG_SOURCE_CPU + 8, "both are words of sources");
const _: () = assert!(LOG_GAPS + 16 * LOG_GAPS_MAX <= LOG_KEEPS, "a gap has two words");
const _: () = assert!(LOG_KEEPS + 8 == LOG_GAP_COUNT && LOG_GAP_COUNT + 8 == LOG_DECLARATIONS);
const _: () = assert!(LOG_DECLARATIONS + 8 == DEMOTION_SEAL && DEMOTION_SEAL + 8 <= LOG_WAKE);
const _: () = assert!(LOG_WAKE.is_multiple_of(LINE) && LOG_WAKE + LINE <= LOG_INCARNATION);
const _: () = assert!(LOG_INCARNATION + 8 == LOG_ORIGIN && LOG_ORIGIN + 8 <= FOLLOW_STATE);
const _: () = assert!(FOLLOW_STATE + 8 == FOLLOW_ID && FOLLOW_ID + 16 == FOLLOW_INCARNATION);
const _: () = assert!(FOLLOW_INCARNATION + 8 == FOLLOW_CHECK && FOLLOW_CHECK + 8 == FOLLOW_ORIGIN);
const _: () = assert!(FOLLOW_ORIGIN + 8 == FOLLOW_REACHED && FOLLOW_REACHED < FOLLOW_PLACES[0]);
const _: () = assert!(FOLLOW_PLACES[0] + 24 == FOLLOW_COMING, "a place has three words");
const _: () = assert!(FOLLOW_COMING + 8 * 5 <= FOLLOW_PLACES[1], "the coming entry has five words");
const _: () = assert!(FOLLOW_PLACES[1] + 24 <= LOG_SHIPPED && LOG_SHIPPED + 24 <= TAKEOVER);
const _: () = assert!(TAKEOVER + 8 * 9 <= FOLLOW_SWITCH, "a takeover has nine words");
const _: () = assert!(FOLLOW_SWITCH + 8 * 7 <= OWNER_ADDRESS, "a switch has seven words");
const _: () = assert!(OWNER_ADDRESS + 16 + OWNER_ADDRESS_BYTES_MAX <= NAMESPACE_RULES[0]);
const _: () = assert!(OWNER_ADDRESS_BYTES_MAX.is_multiple_of(8), "texts are stored by words");
const _: () = assert!(NAMESPACE_RULES_BYTES_MAX.is_multiple_of(8), "texts are stored by words");
const _: () = assert!(MEMBER_STATE + 8 == MEMBER_PID && MEMBER_COPY + 8 == MEMBER_PROCESS_CHECK);
const _: () = assert!(MEMBER_PROCESS_CHECK + 8 <= MEMBER_NAME);
const _: () = assert!(SUPER_CATALOG_CHANGES + 8 == SUPER_STAMP_FLOOR, "both lie in one line");
const _: () = assert!(BITMAP_BYTES * 8 == CHUNK_UNITS, "a unit has one bit");
const _: () = assert!(RESERVE_CHUNKS_MIN <= RESERVE_CHUNKS_MAX && ordinary_chunks(4) == 0);
const _: () = assert!(ordinary_chunks(1 << 20) + RESERVE_CHUNKS_MAX == 1 << 20);
const _: () = assert!(CATALOG_SPLIT.is_multiple_of(LINE) && CATALOG_BUCKETS.is_multiple_of(LINE));
const _: () = assert!(ARENA_BYTES == 8 * ARENA_WORDS as u64);
const _: () = assert!((CLASS_EXTENT as usize) < QUEUES, "extents have a queue");
const _: () = assert!(HEAP.is_multiple_of(LINE), "cells begin at lines");

/// Flags of a namespace. The bits above count its schemas.
pub mod namespace_flags {
    /// Its records have tags.
    pub const TAGGED: u64 = 1;
    /// It has watchers.
    pub const WATCHED: u64 = 2;
    /// Its commits go to the log.
    pub const LOGGED: u64 = 4;
    /// Some of its records may expire.
    pub const EXPIRING: u64 = 8;
    /// A full log rejects commits instead of losing its oldest entries.
    pub const LOSSLESS: u64 = 16;
    /// What its records take is counted, and has limits.
    pub const LIMITED: u64 = 32;
    /// Its records are those of another host. Only the session that follows it may write.
    pub const FOLLOWED: u64 = 64;
    /// A commit returns when it is replicated.
    pub const REPLICATED: u64 = 128;
    /// The lowest bit of the count of schemas.
    pub const GENERATION: u64 = 1 << 8;
}

/// Seals a value of at most 48 bits: `value << 16 | check16`.
#[inline]
pub(crate) const fn seal(value: u64) -> u64 {
    (value << 16) | check16(value)
}

/// Opens a sealed word.
///
/// # Errors
/// A flipped bit.
#[inline]
pub(crate) const fn unseal(word: u64, what: &'static str) -> Result<u64, Corruption> {
    let value = word >> 16;
    if word & 0xffff == check16(value) { Ok(value) } else { Err(Corruption(what)) }
}

/// Sixteen bits that differ for any two values that differ in one bit (a test checks this).
#[inline]
const fn check16(value: u64) -> u64 {
    let mixed = (value ^ 0x5bd1_e995_a5a5).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 48
}

/// Offset of a member's slot.
#[inline]
pub(crate) const fn member_at(index: u32) -> u64 {
    MEMBERS + MEMBER_BYTES * index as u64
}

/// Offset of a member's arena.
#[inline]
pub(crate) const fn arena_at(index: u32) -> u64 {
    ARENAS + ARENA_BYTES * index as u64
}

/// Bits of a namespace's number that are the number of its catalog entry. Those above are the
/// generation of the entry, so that no two namespaces of a region have one number.
pub(crate) const NAMESPACE_NUMBER_BITS: u32 = 16;

/// The number of the catalog entry of a namespace.
#[inline]
pub(crate) const fn entry_of(namespace: u32) -> u32 {
    namespace & ((1 << NAMESPACE_NUMBER_BITS) - 1)
}

/// Offset of a namespace's catalog entry.
#[inline]
pub(crate) const fn catalog_at(namespace: u32) -> u64 {
    CATALOG + CATALOG_BYTES * entry_of(namespace) as u64
}

/// Offset of the table of chunk words of a heap with this many chunks.
pub(crate) const fn chunk_words_at(chunks: u64) -> u64 {
    HEAP + CHUNK_BYTES * chunks
}

/// Offset of the table of bitmaps of a heap with this many chunks.
pub(crate) const fn bitmaps_at(chunks: u64) -> u64 {
    chunk_words_at(chunks) + (8 * chunks).next_multiple_of(4096)
}

/// Bytes of a region with this many chunks and pages of this size.
pub(crate) const fn region_bytes(chunks: u64, page: u64) -> u64 {
    (bitmaps_at(chunks) + (BITMAP_BYTES * chunks).next_multiple_of(4096)).next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_single_flipped_bit_of_a_sealed_word_is_found() {
        let mut value = 1_u64;
        for round in 0..2000_u64 {
            value = (value ^ round).wrapping_mul(0x2545_f491_4f6c_dd1d) >> (16 + round % 40);
            let word = seal(value & 0xffff_ffff_ffff);
            assert_eq!(unseal(word, ""), Ok(value & 0xffff_ffff_ffff));
            for bit in 0..64 {
                assert!(unseal(word ^ (1 << bit), "").is_err(), "bit {bit} of {value:#x}");
            }
        }
    }

    #[test]
    fn a_gap_between_words_of_the_cluster_page_is_no_word() {
        let follow = (0x580..0x800).step_by(8).map(|at| CLUSTER_PAGE + at);
        let (words, gaps): (Vec<u64>, Vec<u64>) = follow.partition(|at| is_cluster_word(*at));
        assert_eq!((words.len(), gaps.len()), (56, 24));
        let lines = [0x590, 0x658, 0x698, 0x708, 0x748, 0x778];
        for at in lines.map(|at| CLUSTER_PAGE + at) {
            assert!(gaps.contains(&at), "{at:#x}");
        }
        for at in [0x5f8, 0x610, 0x618, 0x638, 0x650, 0x690, 0x700, 0x710, 0x740, 0x780, 0x7f8] {
            assert!(words.contains(&(CLUSTER_PAGE + at)), "{at:#x}");
        }
    }
}

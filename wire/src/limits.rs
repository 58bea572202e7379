//! The limits of messages, each with its reason. A writer and a reader apply the same ones, so a
//! reader accepts what a writer has written. What exceeds a limit is an error
//! ([`WireError::TooLarge`](crate::WireError::TooLarge)), never cut.

use nearstate_model::limits::{
    BLOCKS_MAX, KEY_BYTES_MAX, NAMESPACES_MAX, TAG_NAME_BYTES_MAX, TAG_VALUE_BYTES_MAX, TAGS_MAX,
    TRANSACTION_BYTES_MAX,
};

/// The format of the protocol. A change of the bytes is another format.
pub const FORMAT: u16 = 4;

/// Bytes of the header of a frame.
pub const HEADER_BYTES: usize = 24;

/// The largest payload of a frame: 1 MiB. A receiver buffers one incomplete frame, so this is what
/// a peer that sends slowly can make it keep for each connection.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The largest message: 320 MiB, a transaction of 256 MiB with names and versions.
pub const MESSAGE_BYTES_MAX: usize = 320 << 20;

/// The largest message that is neither a record nor an entry nor a switch: 64 KiB. The largest of
/// these declares 32 tags with names of 255 bytes, in 8.5 KiB. A peer cannot make a host that waits
/// for a hello buffer 320 MiB.
pub const SMALL_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The most namespaces of a switch: those of a region.
pub const SWITCHED_NAMESPACES_MAX: usize = NAMESPACES_MAX;

/// The largest switch: the most namespaces with two numbers each, and where the log is.
pub const SWITCH_BYTES_MAX: usize = 52 + 8 * SWITCHED_NAMESPACES_MAX;

/// The longest name of a host, in bytes: as that of a namespace, for logs and metrics.
pub const HOST_NAME_BYTES_MAX: usize = 255;

/// The longest text of a refusal, in bytes: one line of a log.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 4096;

/// The longest text of shared settings, in bytes: those of a dozen hosts and partitions. Others are
/// compared by their digest alone.
pub const SETTINGS_TEXT_BYTES_MAX: usize = 2048;

/// What a host repeats of a name or a value of a setting, in bytes: it may come from another host.
pub(crate) const SETTING_SHOWN_BYTES_MAX: usize = 64;

/// The most records of an entry: they are counted in 16 bits. A transaction has at most
/// [`nearstate_model::limits::TRANSACTION_RECORDS_MAX`].
pub const ENTRY_RECORDS_MAX: usize = u16::MAX as usize;

/// The most blocks of a change: it removes every block of a full record, and sets as many others.
pub const CHANGED_BLOCKS_MAX: usize = 2 * BLOCKS_MAX;

/// The most elements of a change: 33,554,432, those of the largest collection that a transaction
/// writes, in which each takes its hash and its size, of 4 bytes each. A message has room for twice
/// as many without names, which a receiver would decode to 2 GiB.
pub const CHANGED_ELEMENTS_MAX: usize = TRANSACTION_BYTES_MAX / (4 + 4);

/// The largest metadata: the most tags, each with the longest name and value, three bytes of sizes
/// for each, and twelve bytes of expiry time and size.
pub const META_BYTES_MAX: usize = 12 + TAGS_MAX * (3 + TAG_NAME_BYTES_MAX + TAG_VALUE_BYTES_MAX);

const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize, "a key counts in 16 bits");
const _: () = assert!(REFUSAL_TEXT_BYTES_MAX <= u16::MAX as usize, "a text counts in 16 bits");
const _: () = assert!(SETTINGS_TEXT_BYTES_MAX <= u16::MAX as usize, "a text counts in 16 bits");
const _: () = assert!(MESSAGE_BYTES_MAX <= u32::MAX as usize, "each size in a message has 32 bits");
const _: () = assert!(FRAME_PAYLOAD_BYTES_MAX >= SWITCH_BYTES_MAX, "in one frame");
const _: () = assert!(FRAME_PAYLOAD_BYTES_MAX >= SMALL_MESSAGE_BYTES_MAX, "in one frame");

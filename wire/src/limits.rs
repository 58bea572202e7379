//! The limits of messages, each with its reason. A writer and a reader apply the same ones, so a
//! reader accepts what a writer has written. What exceeds a limit is an error
//! ([`WireError::TooLarge`]), never cut.

use nearstate_model::limits::{
    BLOCK_NAME_BYTES_MAX, BLOCKS_MAX, FIELD_NAME_BYTES_MAX, KEY_BYTES_MAX, TAG_NAME_BYTES_MAX,
    TAG_VALUE_BYTES_MAX, TAGS_MAX, VALUE_BYTES_MAX,
};

use crate::error::WireError;

/// The format of the protocol. A change of the bytes is another format.
pub const FORMAT: u16 = 1;

/// Bytes of the header of a frame.
pub const HEADER_BYTES: usize = 24;

/// The largest payload of a frame: 1 MiB. A receiver buffers one incomplete frame, so this is what
/// a peer that sends slowly can make it keep for each connection.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The largest message: 320 MiB, a transaction of 256 MiB with names and versions.
pub const MESSAGE_BYTES_MAX: usize = 320 << 20;

/// The largest message that is neither a record nor an entry: 64 KiB. The largest of these declares
/// 32 tags with names of 255 bytes, in 8.5 KiB. A peer cannot make a host that waits for a hello
/// buffer 320 MiB.
pub const SMALL_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The longest name of a host, in bytes: as that of a namespace, for logs and metrics.
pub const HOST_NAME_BYTES_MAX: usize = 255;

/// The longest text of a refusal, in bytes: one line of a log.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 4096;

/// The most records of an entry: they are counted in 16 bits. A transaction has at most
/// [`nearstate_model::limits::TRANSACTION_RECORDS_MAX`].
pub const ENTRY_RECORDS_MAX: usize = u16::MAX as usize;

/// The most blocks of a change: it removes every block of a full record, and sets as many others.
pub const CHANGED_BLOCKS_MAX: usize = 2 * BLOCKS_MAX;

/// The largest metadata: the most tags, each with the longest name and value, three bytes of sizes
/// for each, and twelve bytes of expiry time and size.
pub const META_BYTES_MAX: usize = 12 + TAGS_MAX * (3 + TAG_NAME_BYTES_MAX + TAG_VALUE_BYTES_MAX);

const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize, "a key counts in 16 bits");
const _: () = assert!(REFUSAL_TEXT_BYTES_MAX <= u16::MAX as usize, "a text counts in 16 bits");
const _: () = assert!(MESSAGE_BYTES_MAX <= u32::MAX as usize, "each size in a message has 32 bits");
const _: () = assert!(FRAME_PAYLOAD_BYTES_MAX >= SMALL_MESSAGE_BYTES_MAX, "in one frame");

/// Refuses more of something than its limit.
pub(crate) const fn check_limit(
    what: &'static str,
    size: usize,
    limit: usize,
) -> Result<(), WireError> {
    if size > limit {
        return Err(WireError::TooLarge { what, size, limit });
    }
    Ok(())
}

/// Refuses an empty and a too long key.
pub(crate) fn check_key(key: &[u8]) -> Result<(), WireError> {
    if key.is_empty() {
        let detail = format!("a key of 0 bytes: a key has 1 to {KEY_BYTES_MAX}");
        return Err(WireError::invalid(detail));
    }
    check_limit("bytes of a key", key.len(), KEY_BYTES_MAX)
}

/// Refuses a name that is empty, too long, or contains a NUL.
pub(crate) fn check_name(
    what: &'static str,
    name: &[u8],
    bytes_max: usize,
) -> Result<(), WireError> {
    if name.is_empty() || name.contains(&0) {
        let kind = if name.is_empty() { "is empty" } else { "contains a NUL" };
        let detail =
            format!("a name ({what}) {kind}: it has 1 to {bytes_max} bytes, none of them 0");
        return Err(WireError::invalid(detail));
    }
    check_limit(what, name.len(), bytes_max)
}

/// Refuses a source without an id: a follower could not name it when it connects again.
pub(crate) fn check_source_id(id: [u8; 16]) -> Result<(), WireError> {
    if id == [0; 16] {
        let detail = "a welcome with a source id of 0: a region has another one".to_owned();
        return Err(WireError::invalid(detail));
    }
    Ok(())
}

/// Refuses the name of a block that no record can have.
pub(crate) fn check_block_name(name: &[u8]) -> Result<(), WireError> {
    check_name("bytes of the name of a block", name, BLOCK_NAME_BYTES_MAX)
}

/// Refuses a value, a block or a member of a set that no record can have.
pub(crate) const fn check_value(value: &[u8]) -> Result<(), WireError> {
    check_limit("bytes of a value", value.len(), VALUE_BYTES_MAX)
}

/// Refuses metadata that no record can have. The content is checked where it is applied.
pub(crate) const fn check_meta(meta: &[u8]) -> Result<(), WireError> {
    check_limit("bytes of metadata", meta.len(), META_BYTES_MAX)
}

/// Refuses an element that no collection can have: a long name, or a value in a set.
pub(crate) fn check_element(
    is_set: bool,
    (name, value): (&[u8], Option<&[u8]>),
) -> Result<(), WireError> {
    let value = value.unwrap_or_default();
    if !is_set {
        check_limit("bytes of the name of a field", name.len(), FIELD_NAME_BYTES_MAX)?;
        return check_value(value);
    }
    if !value.is_empty() {
        let bytes = value.len();
        let detail = format!("an element of a set has a value of {bytes} bytes: it has none");
        return Err(WireError::invalid(detail));
    }
    check_value(name)
}

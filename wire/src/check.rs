//! What both directions refuse in a message: so a reader accepts what a writer has written.

use nearstate_model::limits::{
    BLOCK_NAME_BYTES_MAX, FIELD_NAME_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX,
};

use crate::error::WireError;
use crate::limits::META_BYTES_MAX;

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

//! Validation of requests, the same for every back-end and before anything is sent. An application
//! that was tested with one back-end gets the same refusals from the others.

use nearstate_model::Error as Cause;
use nearstate_model::limits::{
    KEY_BYTES_MAX, NAMESPACE_NAME_BYTES_MAX, TRANSACTION_RECORDS_MAX, VALUE_BYTES_MAX,
};

use crate::error::{Error, Result};

/// The most keys of one read: the limit that O-RAN's SDL documents. (A Redis accepts at most 2^20
/// arguments of one command, and a pair is two.)
pub(crate) const READ_KEYS_MAX: usize = 524_287;

/// The most records of one `set` or `remove`: the records of one transaction of a region, because
/// all of them are written together or not at all. Further records are refused, and nothing is
/// written.
pub const WRITE_RECORDS_MAX: usize = TRANSACTION_RECORDS_MAX;

/// The most bytes of keys and values of a `set` of several records: half of the largest value. With
/// the protocol's overhead for each key this stays below the request limit of a node (256 MiB) and
/// the transaction limit of a region (256 MiB). A `set` of one record has the limits of that record
/// only. Larger ones are refused, and nothing is written.
pub const WRITE_BYTES_MAX: usize = VALUE_BYTES_MAX / 2;

/// The most bytes of the old and the new value of one `set_if`: with 1 MiB for the key and the
/// protocol, the request limit of a node (256 MiB).
pub(crate) const COMPARED_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX - (1 << 20);

/// Refuses namespace names that SDL clients may not use.
pub(crate) fn namespace(name: &str) -> Result<()> {
    let bytes = name.len();
    if bytes == 0 || bytes > NAMESPACE_NAME_BYTES_MAX || name.contains([',', '{', '}', '\0']) {
        return Err(Error::refused(format!(
            "{name:?} is not a valid namespace; give 1 to {NAMESPACE_NAME_BYTES_MAX} bytes without \
             a comma, braces or NUL"
        )));
    }
    Ok(())
}

/// Refuses reads of too many keys.
pub(crate) fn read(keys: usize) -> Result<()> {
    if keys > READ_KEYS_MAX {
        return Err(Error::refused(format!(
            "{keys} keys in one read exceed the limit of {READ_KEYS_MAX}; read them in parts"
        )));
    }
    Ok(())
}

/// Refuses a `set` that some back-end could not carry out as one transaction.
pub(crate) fn set(pairs: &[(&[u8], &[u8])]) -> Result<()> {
    write_count(pairs.len())?;
    let mut bytes = 0;
    for (key, value) in pairs {
        record(key, value)?;
        bytes += key.len() + value.len();
    }
    if pairs.len() > 1 && bytes > WRITE_BYTES_MAX {
        return Err(Error::refused(format!(
            "{} records of {bytes} bytes exceed the limit of {WRITE_BYTES_MAX} bytes for one set; \
             set them in parts",
            pairs.len()
        )));
    }
    Ok(())
}

/// Refuses a `remove` that some back-end could not carry out as one transaction.
pub(crate) fn remove(keys: &[&[u8]]) -> Result<()> {
    write_count(keys.len())
}

fn write_count(records: usize) -> Result<()> {
    if records > WRITE_RECORDS_MAX {
        return Err(Error::refused(format!(
            "{records} records exceed the limit of {WRITE_RECORDS_MAX} records for one set or \
             remove; write them in parts"
        )));
    }
    Ok(())
}

/// Refuses a `set_if` that some back-end could not carry out.
pub(crate) fn compared(key: &[u8], old: &[u8], new: &[u8]) -> Result<()> {
    record(key, old)?;
    record(key, new)?;
    let bytes = old.len() + new.len();
    if bytes > COMPARED_BYTES_MAX {
        return Err(Error::refused(format!(
            "an old and a new value of {bytes} bytes together exceed the limit of \
             {COMPARED_BYTES_MAX} bytes for one set_if; split the record"
        )));
    }
    Ok(())
}

/// Refuses records that some back-end could not keep.
pub(crate) fn record(key: &[u8], value: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Cause::KeyTooLarge { bytes: key.len() }.into());
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(Cause::ValueTooLarge { bytes: value.len() }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn namespace_names_with_commas_braces_or_a_wrong_length_are_rejected() {
        for good in ["a", "go-ns", "a*", "ün icode", &"n".repeat(255)] {
            assert_eq!(namespace(good), Ok(()), "{good}");
        }
        for bad in ["", "a,b", "{a", "a}", "a\0b", &"n".repeat(256)] {
            assert_eq!(namespace(bad).unwrap_err().kind, ErrorKind::RejectedBySdl, "{bad}");
        }
    }

    #[test]
    fn the_record_limits_of_the_model_hold() {
        assert_eq!(record(&[0; KEY_BYTES_MAX], b""), Ok(()));
        assert_eq!(record(b"", b""), Ok(()));
        assert!(record(&[0; KEY_BYTES_MAX + 1], b"").is_err());
        assert!(record(b"k", &vec![0; VALUE_BYTES_MAX + 1]).is_err());
        assert_eq!(read(READ_KEYS_MAX), Ok(()));
        assert!(read(READ_KEYS_MAX + 1).is_err());
    }

    #[test]
    fn a_comparison_is_limited_by_both_of_its_values() {
        let value = vec![0; VALUE_BYTES_MAX + 1];
        let (largest, half) = (&value[1..], &value[..VALUE_BYTES_MAX / 2]);
        assert_eq!(compared(b"k", half, largest), Ok(()));
        assert_eq!(compared(b"k", largest, half), Ok(()));
        assert_eq!(compared(b"k", largest, &largest[1 << 20..]), Ok(()));
        for (old, new) in [(&*value, half), (half, &*value), (largest, largest)] {
            assert_eq!(compared(b"k", old, new).unwrap_err().kind, ErrorKind::RejectedBySdl);
        }
    }

    #[test]
    fn one_record_has_only_the_limit_of_its_own_size() {
        let value = vec![0; VALUE_BYTES_MAX];
        assert_eq!(set(&[(b"k", &value)]), Ok(()));
        assert!(set(&[(b"k", &value), (b"l", b"")]).is_err());
        let half = &value[..WRITE_BYTES_MAX / 2 - 1];
        assert_eq!(set(&[(b"k", half), (b"l", half)]), Ok(()));
        assert!(set(&[(b"k", half), (b"lm", half)]).is_err(), "keys count");
    }
}

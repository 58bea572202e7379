//! What may be asked, the same on every back-end, checked before anything is sent: an application
//! that is tested against one back-end is not surprised by the other.

use nearstate_model::Error as Cause;
use nearstate_model::limits::{KEY_BYTES_MAX, NAMESPACE_NAME_BYTES_MAX, VALUE_BYTES_MAX};

use crate::error::{Error, Result};

/// The most keys of one request: the bound that O-RAN's SDL documents (a Redis reads at most 2^20
/// words of one command, and a pair is two).
pub(crate) const KEYS_MAX: usize = 524_287;

/// Refuses names that no SDL client may use.
pub(crate) fn namespace(name: &str) -> Result<()> {
    let bytes = name.len();
    if bytes == 0 || bytes > NAMESPACE_NAME_BYTES_MAX || name.contains([',', '{', '}', '\0']) {
        return Err(Error::refused(format!(
            "{name:?} is no namespace: give 1 to {NAMESPACE_NAME_BYTES_MAX} bytes without a comma, \
             braces or NUL"
        )));
    }
    Ok(())
}

/// Refuses requests of too many keys.
pub(crate) fn count(keys: usize) -> Result<()> {
    if keys > KEYS_MAX {
        return Err(Error::refused(format!("{keys} keys in one request: give at most {KEYS_MAX}")));
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
    fn namespaces_have_no_comma_no_braces_and_a_length() {
        for good in ["a", "go-ns", "a*", "ün icode", &"n".repeat(255)] {
            assert_eq!(namespace(good), Ok(()), "{good}");
        }
        for bad in ["", "a,b", "{a", "a}", "a\0b", &"n".repeat(256)] {
            assert_eq!(namespace(bad).unwrap_err().kind, ErrorKind::RejectedBySdl, "{bad}");
        }
    }

    #[test]
    fn records_keep_to_the_limits_of_the_house() {
        assert_eq!(record(&[0; KEY_BYTES_MAX], b""), Ok(()));
        assert_eq!(record(b"", b""), Ok(()));
        assert!(record(&[0; KEY_BYTES_MAX + 1], b"").is_err());
        assert!(record(b"k", &vec![0; VALUE_BYTES_MAX + 1]).is_err());
        assert_eq!(count(KEYS_MAX), Ok(()));
        assert!(count(KEYS_MAX + 1).is_err());
    }
}

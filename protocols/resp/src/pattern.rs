//! Glob patterns of clients, with limits of the matching cost.

use crate::reply::error_reply::ErrorReply;
use nearstate_model::limits::{KEY_BYTES_MAX, NAMESPACE_NAME_BYTES_MAX};
use nearstate_store::glob;

/// Maximum length: the longest key with every byte escaped, plus a star. A longer pattern matches
/// nothing that a shorter one would not match.
pub const PATTERN_BYTES_MAX: usize = 2 * (KEY_BYTES_MAX + NAMESPACE_NAME_BYTES_MAX + 3) + 1;

/// Rejects a pattern whose matching time is not linear in the lengths of pattern and name.
///
/// # Errors
/// The pattern is too long, or has too long a run with wildcards between two stars.
pub fn validate(pattern: &[u8]) -> Result<(), ErrorReply> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(ErrorReply::new(format!(
            "ERR pattern of {} bytes is too long: the limit is {PATTERN_BYTES_MAX}",
            pattern.len()
        )));
    }
    if glob::is_linear(pattern) {
        return Ok(());
    }
    Err(ErrorReply::new(format!(
        "ERR pattern is too complex: a part between two stars has ? or [ and more than {} \
         characters; shorten it or use literal characters",
        glob::RUN_ITEMS_MAX
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_with_nonlinear_cost_are_rejected() {
        for pattern in ["", "*", "{ue},imsi-26201*", "*a*a*a*a*b", "*[0-9]??x*", "[a-z]*[^x]"] {
            assert_eq!(validate(pattern.as_bytes()), Ok(()), "{pattern}");
        }
        let long = "x".repeat(PATTERN_BYTES_MAX);
        assert_eq!(validate(long.as_bytes()), Ok(()));
        let why = validate((long + "x").as_bytes()).unwrap_err();
        assert!(why.text().contains("the limit is 8709"), "{why}");
        let why = validate(format!("*{}*", "?a".repeat(33)).as_bytes()).unwrap_err();
        assert!(why.text().contains("more than 64 characters"), "{why}");
    }
}

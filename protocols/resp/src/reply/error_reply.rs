//! Error replies of commands.

use nearstate_model::Error;
use std::borrow::Cow;
use std::fmt;

/// The result of every command.
pub type CommandResult = Result<(), ErrorReply>;

/// Text of an error reply, starting with its code. Nothing was changed unless the command documents
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply(Cow<'static, str>);

impl ErrorReply {
    /// The record has another type.
    pub const WRONG_TYPE: Self =
        Self::fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// Invalid option or order of options.
    pub const SYNTAX: Self = Self::fixed("ERR syntax error");
    /// Not a 64-bit integer.
    pub const NOT_INTEGER: Self = Self::fixed("ERR value is not an integer or out of range");
    /// Not a number.
    pub const NOT_FLOAT: Self = Self::fixed("ERR value is not a valid float");
    /// The field to increment is not an integer.
    pub const HASH_NOT_INTEGER: Self = Self::fixed("ERR hash value is not an integer");
    /// The field to increment is not a number.
    pub const HASH_NOT_FLOAT: Self = Self::fixed("ERR hash value is not a float");
    /// The sum exceeds 64 bits.
    pub const OVERFLOW: Self = Self::fixed("ERR increment or decrement would overflow");
    /// The sum is not a number.
    pub const NAN_OR_INFINITY: Self = Self::fixed("ERR increment would produce NaN or Infinity");
    /// The key does not exist.
    pub const NO_KEY: Self = Self::fixed("ERR no such key");
    /// The key exists and is not replaced.
    pub const BUSY_KEY: Self = Self::fixed("BUSYKEY Target key name already exists.");
    /// The cursor is not a number.
    pub const CURSOR: Self = Self::fixed("ERR invalid cursor");
    /// An index or count is negative or too large.
    pub const OUT_OF_RANGE: Self = Self::fixed("ERR value is out of range");
    /// A negative offset.
    pub const OFFSET: Self = Self::fixed("ERR offset is out of range");
    /// A script that is not supported.
    pub const NO_SCRIPT: Self = Self::fixed("NOSCRIPT No matching script. Please use EVAL.");
    /// The client is not authenticated.
    pub const NO_AUTH: Self = Self::fixed("NOAUTH Authentication required.");
    /// Wrong name or password. The text does not say which.
    pub const WRONG_PASS: Self =
        Self::fixed("WRONGPASS invalid username-password pair or user is disabled.");

    /// A constant text that starts with its code.
    pub const fn fixed(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// A text that starts with its code (`ERR`, `OOM`).
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self(text.into())
    }

    /// `ERR wrong number of arguments for 'get' command`
    pub fn arity(name: &str) -> Self {
        Self::new(format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// `ERR invalid expire time in 'set' command`
    pub fn expire_time(name: &str) -> Self {
        Self::new(format!("ERR invalid expire time in '{name}' command"))
    }

    /// The reply would exceed the limit of its bytes. Nothing was changed.
    pub fn too_long(bytes_max: usize) -> Self {
        Self::new(format!(
            "ERR reply exceeds {bytes_max} bytes: request less at once or raise \
             limits.output_bytes_max"
        ))
    }

    /// True if it tells what is stored, as a reply to a read does.
    pub fn tells_of_records(&self) -> bool {
        self.0.starts_with("TAGTAKEN ") || self.0.starts_with("WRONGTYPE ")
    }

    /// True if a conflict was the reason and a retry may succeed.
    pub fn is_conflict(&self) -> bool {
        self.0.starts_with("TRYAGAIN ")
    }

    /// The error of a request that was executed partially: what is done and what is left. Clients
    /// must not retry it automatically, nor take it for a refusal: the code `PARTIAL` precedes that
    /// of the cause.
    #[must_use]
    pub fn after_partial_execution(self, done: &str) -> Self {
        Self::new(format!("PARTIAL {}; {done}", self.0))
    }

    /// Text of the reply without type byte and line end.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ErrorReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ErrorReply {}

/// A client of RESP has no receipts: it reads what the commit has written.
fn not_replicated(position: u64, waited_ms: u64) -> ErrorReply {
    ErrorReply::new(format!(
        "NOTREPLICATED the commit at position {position} is made on this host, and was not \
         replicated within {waited_ms} ms: do not repeat it, read the key. The value is answered \
         when the commit is replicated"
    ))
}

/// The code decides how clients react. Clients retry `TRYAGAIN` automatically, so it is used only
/// if nothing was changed.
impl From<Error> for ErrorReply {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::WrongKind { .. } => return Self::WRONG_TYPE,
            Error::NotReplicated { position, waited_ms } => {
                return not_replicated(*position, *waited_ms);
            }
            Error::Full { .. } | Error::LimitReached { .. } => "OOM",
            Error::Conflict { .. } => "TRYAGAIN",
            Error::Deadline { .. }
            | Error::Stalled { .. }
            | Error::Behind { .. }
            | Error::InUse { .. } => "BUSY",
            Error::TagTaken { .. } => "TAGTAKEN",
            // Clients with a list of servers look for another one.
            Error::NotOwner { .. } | Error::Fenced { .. } => "READONLY",
            Error::Lost { .. } => "LOST",
            Error::OutcomeUnknown { .. } => "OUTCOMEUNKNOWN",
            Error::KeyTooLarge { .. }
            | Error::ValueTooLarge { .. }
            | Error::TooManyBlocks { .. }
            | Error::BadName { .. }
            | Error::TransactionTooLarge { .. }
            | Error::NoObject { .. }
            | Error::NotARegion { .. }
            | Error::Damaged { .. }
            | Error::AlreadyExists { .. }
            | Error::Forked
            | Error::System { .. }
            | Error::Backend { .. }
            | Error::BadArgument { .. }
            | _ => "ERR",
        };
        Self::new(format!("{code} {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_model::Holder;

    #[test]
    fn errors_of_the_store_have_the_codes_of_redis() {
        let detail = || "x".to_owned();
        let holder = || Holder { pid: 7, name: "cu".to_owned() };
        for (error, begins) in [
            (Error::WrongKind { detail: detail() }, "WRONGTYPE Operation against a key holding"),
            (Error::Full { detail: detail(), heap: None }, "OOM full: x"),
            (
                Error::LimitReached { namespace: "ue".into(), used_bytes: 3, limit_bytes: 4 },
                "OOM namespace \"ue\" is full: its records take 3 bytes and its limit is 4: delete",
            ),
            (Error::Conflict { detail: detail() }, "TRYAGAIN x was changed"),
            (Error::Deadline { tries: 3 }, "BUSY the transaction had conflicts in 3 attempts"),
            (Error::Stalled { holder: holder() }, "BUSY process 7 (cu) is alive but stopped"),
            (Error::Behind { detail: detail() }, "BUSY x"),
            (
                Error::NotOwner { namespace: "ue".into(), address: None },
                "READONLY namespace \"ue\" follows another host: write there",
            ),
            (
                Error::NotOwner { namespace: "ue".into(), address: Some("b:6379".into()) },
                "READONLY namespace \"ue\" belongs to another host: write at b:6379",
            ),
            (
                Error::Fenced { namespace: "ue".into() },
                "READONLY namespace \"ue\" is not served: this host has no lease",
            ),
            (
                Error::NotReplicated { position: 7, waited_ms: 1000 },
                "NOTREPLICATED the commit at position 7 is made on this host, and was not \
                 replicated within 1000 ms: do not repeat it, read the key",
            ),
            (Error::Lost { position: 7 }, "LOST the commit at position 7 is lost"),
            (
                Error::OutcomeUnknown { position: 7 },
                "OUTCOMEUNKNOWN whether the commit at position 7 is replicated is not known",
            ),
            (Error::KeyTooLarge { bytes: 5000 }, "ERR a key of 5000 bytes"),
            (Error::Damaged { detail: detail() }, "ERR the region is damaged (x)"),
        ] {
            let error = ErrorReply::from(error);
            assert!(error.text().starts_with(begins), "{error}");
        }
    }

    #[test]
    fn a_partially_executed_request_is_not_marked_as_retryable() {
        let conflict = ErrorReply::from(Error::Conflict { detail: "x".to_owned() });
        assert!(conflict.is_conflict());
        let half = conflict.after_partial_execution("one of two is done");
        assert!(!half.is_conflict() && half.text().starts_with("PARTIAL TRYAGAIN x was"), "{half}");
        let full = ErrorReply::new("OOM full").after_partial_execution("one of two is done");
        assert_eq!(full.text(), "PARTIAL OOM full; one of two is done");
    }

    #[test]
    fn errors_with_a_name_have_the_texts_of_redis() {
        let arity = "ERR wrong number of arguments for 'client|setname' command";
        assert_eq!(ErrorReply::arity("client|setname").text(), arity);
        let time = "ERR invalid expire time in 'set' command";
        assert_eq!(ErrorReply::expire_time("set").text(), time);
    }
}

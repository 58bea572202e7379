//! Why an operation failed, in the five words of the SDL API, each with what is known of the
//! records: a caller decides by the kind alone whether it may try again.

use std::fmt;

use nearstate_model::Error as Cause;

/// What kind of failure it was (the error conditions of O-RAN's SDL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The back-end could not be reached or cannot serve now. Nothing was altered: try again later,
    /// with [`crate::SyncStorage::wait_ready`] if it is a server.
    NotConnected,
    /// The request was sent and no answer came. It may have been carried out.
    OperationInterrupted,
    /// The back-end failed while it worked. A part of the request may have been carried out.
    BackendFailure,
    /// The back-end refused the request. Nothing was altered; the same request fails again until
    /// something else changes (room is made, a namespace is another's).
    RejectedByBackend,
    /// This API refused the request before it was sent (a namespace, a key, a value, a URL).
    /// Nothing was altered.
    RejectedBySdl,
}

impl ErrorKind {
    /// Is it certain that nothing was altered?
    pub const fn is_unaltered(self) -> bool {
        match self {
            Self::NotConnected | Self::RejectedByBackend | Self::RejectedBySdl => true,
            Self::OperationInterrupted | Self::BackendFailure => false,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotConnected => "not connected",
            Self::OperationInterrupted => "interrupted",
            Self::BackendFailure => "the back-end failed",
            Self::RejectedByBackend => "refused by the back-end",
            Self::RejectedBySdl => "refused",
        })
    }
}

/// A failure: its kind, and what exactly it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What a caller decides by.
    pub kind: ErrorKind,
    /// What it was, in the house's own catalogue; it says what to do.
    pub cause: Cause,
}

/// Shorthand for a result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A refusal of this API, with what is wrong and what would be right.
    pub(crate) fn refused(detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::RejectedBySdl, cause: Cause::BadArgument { detail: detail.into() } }
    }

    /// A failure of a back-end that is a server.
    pub(crate) fn backend(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, cause: Cause::Backend { detail: detail.into() } }
    }

    /// The same failure, after an earlier part of the request was carried out.
    pub(crate) fn half_way(self) -> Self {
        Self { kind: ErrorKind::BackendFailure, ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.cause)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// What a region answers, sorted into the five kinds. The one table of this translation.
impl From<Cause> for Error {
    fn from(cause: Cause) -> Self {
        let kind = match &cause {
            Cause::KeyTooLarge { .. }
            | Cause::ValueTooLarge { .. }
            | Cause::TooManyBlocks { .. }
            | Cause::BadName { .. }
            | Cause::TransactionTooLarge { .. }
            | Cause::BadArgument { .. } => ErrorKind::RejectedBySdl,
            Cause::WrongKind { .. }
            | Cause::Full { .. }
            | Cause::Conflict { .. }
            | Cause::Deadline { .. }
            | Cause::TagTaken { .. }
            | Cause::NoObject { .. }
            | Cause::Behind { .. }
            | Cause::NotARegion { .. }
            | Cause::AlreadyExists { .. }
            | Cause::InUse { .. } => ErrorKind::RejectedByBackend,
            // A stopped holder goes on or ends, a fork attaches again, a file can be made.
            Cause::Stalled { .. } | Cause::Forked | Cause::System { .. } => ErrorKind::NotConnected,
            // And what the catalogue may get later: promise nothing.
            Cause::Damaged { .. } | Cause::Backend { .. } | _ => ErrorKind::BackendFailure,
        };
        Self { kind, cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_says_whether_records_may_have_changed() {
        let full = Error::from(Cause::Full { detail: "the heap".to_owned() });
        assert_eq!(full.kind, ErrorKind::RejectedByBackend);
        assert!(full.kind.is_unaltered());
        assert!(!full.half_way().kind.is_unaltered());
        let damaged = Error::from(Cause::Damaged { detail: "a cell".to_owned() });
        assert!(!damaged.kind.is_unaltered());
        assert!(Error::from(Cause::Forked).kind.is_unaltered());
        for cause in [
            Cause::Conflict { detail: "record \"a\"".to_owned() },
            Cause::Deadline { tries: 1000 },
            Cause::NoObject { address: 7 },
            Cause::Behind { detail: "the commit stream is full".to_owned() },
        ] {
            let error = Error::from(cause);
            assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
            assert!(error.kind.is_unaltered());
        }
    }

    #[test]
    fn a_failure_reads_as_kind_and_cause() {
        let error = Error::refused("give a namespace");
        assert_eq!(error.to_string(), "refused: give a namespace");
    }
}

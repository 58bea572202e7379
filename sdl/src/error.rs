//! Errors: the five kinds of the SDL API. The kind alone tells a caller whether records may have
//! changed and whether it may try again.

use std::fmt;

use nearstate_model::Error as Cause;

/// The kind of an error (the error conditions of O-RAN's SDL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The back-end is not reachable or cannot serve now. Nothing was changed. Try again later;
    /// [`crate::SyncStorage::wait_ready`] waits for a server.
    NotConnected,
    /// The request was sent and no reply arrived. It may have been executed.
    OperationInterrupted,
    /// The back-end failed during the request. A part of it may have been executed.
    BackendFailure,
    /// The back-end refused the request. Nothing was changed. The same request fails again until
    /// the state changes (memory is freed, a namespace has another kind).
    RejectedByBackend,
    /// This API refused the request before it was sent (an invalid namespace, key, value or URL).
    /// Nothing was changed.
    RejectedBySdl,
}

impl ErrorKind {
    /// True if it is certain that nothing was changed.
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

/// An error: its kind and its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Tells whether to try again.
    pub kind: ErrorKind,
    /// What failed, and what to do.
    pub cause: Cause,
}

/// Shorthand for a result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An invalid request, with the reason and a valid form.
    pub(crate) fn refused(detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::RejectedBySdl, cause: Cause::BadArgument { detail: detail.into() } }
    }

    /// A failure of a server.
    pub(crate) fn backend(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, cause: Cause::Backend { detail: detail.into() } }
    }

    /// The same error, after an earlier part of the request was executed.
    pub(crate) fn after_partial_execution(self) -> Self {
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

/// Maps the errors of a region to the five kinds.
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
            | Cause::LimitReached { .. }
            | Cause::Conflict { .. }
            | Cause::Deadline { .. }
            | Cause::TagTaken { .. }
            | Cause::NoObject { .. }
            | Cause::Behind { .. }
            | Cause::NotARegion { .. }
            | Cause::NotOwner { .. }
            | Cause::SessionBusy
            | Cause::AlreadyExists { .. }
            | Cause::InUse { .. } => ErrorKind::RejectedByBackend,
            // The cause can end: a stalled process continues or ends, a fork attaches again, a file
            // is created, a lease is renewed.
            Cause::Stalled { .. } | Cause::Forked | Cause::Fenced { .. } | Cause::System { .. } => {
                ErrorKind::NotConnected
            }
            // It may be replicated yet, or have been.
            Cause::NotReplicated { .. } | Cause::OutcomeUnknown { .. } => {
                ErrorKind::OperationInterrupted
            }
            // Unknown causes promise nothing.
            Cause::Damaged { .. } | Cause::Backend { .. } | Cause::Lost { .. } | _ => {
                ErrorKind::BackendFailure
            }
        };
        Self { kind, cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_kind_tells_whether_records_may_have_changed() {
        let full = Error::from(Cause::Full { detail: "the heap".to_owned(), heap: None });
        assert_eq!(full.kind, ErrorKind::RejectedByBackend);
        assert!(full.kind.is_unaltered());
        assert!(!full.after_partial_execution().kind.is_unaltered());
        let damaged = Error::from(Cause::Damaged { detail: "a cell".to_owned() });
        assert!(!damaged.kind.is_unaltered());
        assert!(Error::from(Cause::Forked).kind.is_unaltered());
        for cause in [
            Cause::Conflict { detail: "record \"a\"".to_owned() },
            Cause::Deadline { tries: 1000 },
            Cause::NoObject { address: 7 },
            Cause::Behind { detail: "the commit stream is full".to_owned() },
            Cause::NotOwner { namespace: "ue".into(), address: None },
            Cause::SessionBusy,
        ] {
            let error = Error::from(cause);
            assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
            assert!(error.kind.is_unaltered());
        }
    }

    #[test]
    fn an_error_displays_kind_and_cause() {
        let error = Error::refused("give a namespace");
        assert_eq!(error.to_string(), "refused: give a namespace");
    }
}

//! Why a message was not written or not read.

use std::fmt;

use crate::limits::FORMAT;

/// Why a message was not written or not read. After an error of a reader the connection has to be
/// closed: the place of the next frame is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// A part of a message exceeds its limit. A writer has written nothing.
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        size: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// The other host speaks another format. The answer is
    /// [`RefusalReason::Format`](crate::RefusalReason::Format).
    OtherFormat {
        /// The format that it named.
        format: u16,
    },
    /// The message contains a value that the format does not allow, or the frames of a connection
    /// are damaged. A writer has written nothing.
    Invalid {
        /// What is invalid, with its value, and what is valid.
        detail: String,
    },
}

impl WireError {
    pub(crate) const fn invalid(detail: String) -> Self {
        Self::Invalid { detail }
    }

    /// A record message with a deletion.
    pub(crate) fn deleted_record() -> Self {
        Self::invalid("a record message with a deletion: it is an absent message".to_owned())
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { what, size, limit } => write!(
                f,
                "{size} {what} (at most {limit} are allowed): send less in one message, or close \
                 the connection that it came from"
            ),
            Self::OtherFormat { format } => write!(
                f,
                "the other host speaks format {format} of the protocol between hosts, and this one \
                 format {FORMAT}: install the same release on both hosts"
            ),
            Self::Invalid { detail } => write!(
                f,
                "{detail}: correct the message, or close the connection that it came from"
            ),
        }
    }
}

impl std::error::Error for WireError {}

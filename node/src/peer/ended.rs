//! Why the connection of a follower ends, and what follows.

use std::io;

use nearstate_model::Error;
use nearstate_wire::{Refusal, RefusalReason};

/// Why a connection has ended.
pub(super) enum Ended {
    /// The follower was told to end.
    Over,
    /// Another connection may succeed.
    Retry(String),
    /// The region of a member has no room for an entry. Each connection tries again, and grants a
    /// lease before.
    Full(Error),
    /// No other connection will.
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        // Another process is in the way.
        let is_temporary =
            matches!(error, Error::Stalled { .. } | Error::Deadline { .. } | Error::Behind { .. });
        if is_temporary { Self::Retry(error.to_string()) } else { Self::Failed(error) }
    }
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Retry(error.to_string())
    }
}

/// What follows from a refusal of the source.
pub(super) fn refused(refusal: &Refusal<'_>) -> Ended {
    let text = format!("the source refuses ({}): {}", refusal.reason.name(), refusal.text);
    match refusal.reason {
        RefusalReason::Busy
        | RefusalReason::Failed
        | RefusalReason::View
        | RefusalReason::Promoting => Ended::Retry(text),
        RefusalReason::Format
        | RefusalReason::Heap
        | RefusalReason::Fork
        | RefusalReason::Follower
        | RefusalReason::Cluster
        | RefusalReason::Settings
        | RefusalReason::Itself => {
            let detail = format!("{text}: {}", refusal.reason.remedy());
            Ended::Failed(Error::BadArgument { detail })
        }
    }
}

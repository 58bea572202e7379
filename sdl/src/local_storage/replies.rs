//! The kinds of errors of a node on this host, from the codes of its replies.

use crate::error::{Error, ErrorKind};
use crate::remote::kind_of_code;

/// A part of the refusal of a node whose clients are as many as it may have.
const TOO_MANY_CLIENTS: &str = "max number of clients reached";

/// Maps an error reply to one of the five kinds.
pub(super) fn error_reply(text: &str) -> Error {
    let code = text.split(' ').next().unwrap_or_default();
    let kind = kind_of_code(code).unwrap_or(ErrorKind::BackendFailure);
    Error::backend(kind, text.to_owned())
}

/// The kind of the answer to a client that asks for the region or for a ring.
pub(super) fn refusal_kind(text: &str) -> ErrorKind {
    // It ends when another client leaves. A region that is mapped stays in use until then.
    if text.contains(TOO_MANY_CLIENTS) {
        ErrorKind::NotConnected
    } else {
        ErrorKind::RejectedByBackend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_an_error_reply_tells_whether_records_may_have_changed() {
        for (text, kind) in [
            ("BUSY process 7 (cu) is alive but stopped", ErrorKind::NotConnected),
            ("OOM full: the heap", ErrorKind::RejectedByBackend),
            ("READONLY namespace \"ue\" follows another host", ErrorKind::RejectedByBackend),
            ("TRYAGAIN record \"a\" was changed", ErrorKind::RejectedByBackend),
            ("NOTREPLICATED after 1000 ms", ErrorKind::OperationInterrupted),
            ("PARTIAL OOM full: the heap; the first 2 are done", ErrorKind::BackendFailure),
            ("PARTIAL BUSY x; the first 2 are done", ErrorKind::BackendFailure),
            ("LOST a fail-over discarded it", ErrorKind::BackendFailure),
        ] {
            assert_eq!(error_reply(text).kind, kind, "{text}");
        }
    }

    #[test]
    fn a_node_with_too_many_clients_may_be_tried_again() {
        let full = "ERR max number of clients reached: raise `--max-clients`";
        assert_eq!(refusal_kind(full), ErrorKind::NotConnected);
        assert_eq!(refusal_kind("NOPERM no region for this user"), ErrorKind::RejectedByBackend);
    }
}

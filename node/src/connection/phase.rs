//! The phases of a connection, and the table of their transitions.

use nearstate_model::invariant;

/// What a connection does once its output is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// Polls the handler's messages, then reads and handles requests.
    Reading,
    /// Polls the handler's background work. No request is handled.
    Working,
    /// Sends a reply with file descriptors. No request is handled.
    SendingDescriptors,
    /// Shuts the write side of the stream down.
    Closing,
    /// Discards input until the client closes its side, so that the last reply arrives: unread
    /// input would make the kernel reset the connection and drop that reply.
    Lingering,
}

/// Declares one function per transition, and the text of the table.
macro_rules! transitions {
    ($($event:ident($($from:ident)|+ => $to:ident);)+) => {
        impl ConnectionPhase {
            $(
                /// See `TABLE`.
                #[inline]
                pub(super) fn $event(self) -> Self {
                    invariant!(
                        matches!(self, $(Self::$from)|+),
                        "{} is no transition of phase {self:?}", stringify!($event)
                    );
                    Self::$to
                }
            )+
        }

        /// The transitions: event, phases before, phase after.
        #[cfg(test)]
        const TABLE: &[(&str, &[ConnectionPhase], ConnectionPhase)] = &[
            $((
                stringify!($event),
                &[$(ConnectionPhase::$from),+],
                ConnectionPhase::$to,
            ),)+
        ];
    };
}

transitions! {
    work_started(Reading => Working);
    work_finished(Working => Reading);
    descriptors_requested(Reading | Working => SendingDescriptors);
    descriptors_finished(SendingDescriptors => Reading);
    close_requested(Reading | Working => Closing);
    limit_exceeded(Reading | Working | SendingDescriptors => Closing);
    shutdown_sent(Closing => Lingering);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_table_has_exactly_these_rows() {
        let line = |(event, before, after): &(&str, &[ConnectionPhase], ConnectionPhase)| {
            let before: Vec<_> = before.iter().map(|phase| format!("{phase:?}")).collect();
            format!("{event}({} => {after:?});\n", before.join(" | "))
        };
        let text: String = TABLE.iter().map(line).collect();
        let expected = "\
work_started(Reading => Working);
work_finished(Working => Reading);
descriptors_requested(Reading | Working => SendingDescriptors);
descriptors_finished(SendingDescriptors => Reading);
close_requested(Reading | Working => Closing);
limit_exceeded(Reading | Working | SendingDescriptors => Closing);
shutdown_sent(Closing => Lingering);
";
        assert_eq!(text, expected);
    }

    #[test]
    fn no_transition_leads_from_closing_back_to_requests() {
        use ConnectionPhase::{Closing, Lingering};
        for (event, before, after) in TABLE {
            let is_from_end = before.iter().any(|phase| matches!(phase, Closing | Lingering));
            assert!(!is_from_end || *after == Lingering, "{event}");
        }
    }

    #[test]
    #[should_panic(expected = "invariant violated: work_finished is no transition")]
    fn a_transition_missing_from_the_table_violates_an_invariant() {
        let _ = ConnectionPhase::Reading.work_finished();
    }
}

//! What the applied state says about the logs of earlier owners.

use crate::group::AcceptedLoss;
use crate::position::LogPosition;

/// Where the logs of earlier owners have ended, as far as the applied state says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogEnds {
    /// The end of the log before the present one.
    pub seal: Option<LogPosition>,
    /// What an operator gave up last.
    pub loss: Option<AcceptedLoss>,
}

impl LogEnds {
    /// Does the partition have everything that an earlier owner's log had replicated?
    /// `replicated`: the log, and the position up to which it was replicated.
    ///
    /// A fail-over keeps what was replicated. Only an operator gives it up, and the first loss that
    /// is accepted behind the begin of a log ends that log.
    pub fn have(&self, replicated: &LogPosition) -> bool {
        let is_within = |end: &LogPosition| {
            let is_same = (end.origin, end.log, end.incarnation)
                == (replicated.origin, replicated.log, replicated.incarnation);
            is_same && replicated.position <= end.position
        };
        let is_sealed = self.seal.as_ref().is_some_and(is_within);
        is_sealed
            || self.loss.is_none_or(|loss| {
                loss.view <= replicated.origin || loss.sealed.as_ref().is_some_and(is_within)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ViewNumber;

    fn log(name: u8, origin: u64, position: u64) -> LogPosition {
        let origin = ViewNumber(origin);
        LogPosition { origin, log: [name; 16], incarnation: 1, position, check: 0 }
    }

    fn loss(view: u64, sealed: Option<LogPosition>) -> AcceptedLoss {
        AcceptedLoss { view: ViewNumber(view), longest: None, sealed }
    }

    #[test]
    fn only_an_accepted_loss_gives_up_what_a_log_had_replicated() {
        let own = log(1, 3, 100);
        let rows = [
            ("no loss", None, None, true),
            ("a fail-over", Some(log(1, 3, 100)), None, true),
            ("two fail-overs", Some(log(2, 4, 7)), None, true),
            ("a loss before the log began", Some(log(1, 3, 120)), Some(loss(3, None)), true),
            ("a loss that gave up less", None, Some(loss(5, Some(log(1, 3, 100)))), true),
            ("a loss that gave up one entry", None, Some(loss(5, Some(log(1, 3, 99)))), false),
            ("its seal", Some(log(1, 3, 99)), Some(loss(5, Some(log(1, 3, 99)))), false),
            (
                "another incarnation",
                None,
                Some(loss(5, Some(LogPosition { incarnation: 2, ..own }))),
                false,
            ),
            ("a partition that began anew", None, Some(loss(5, None)), false),
            ("a loss of a later log", Some(log(2, 4, 7)), Some(loss(5, Some(log(2, 4, 7)))), false),
            ("a fail-over before a loss", Some(log(1, 3, 100)), Some(loss(2, None)), true),
        ];
        for (name, seal, loss, has_all) in rows {
            assert_eq!(LogEnds { seal, loss }.have(&own), has_all, "{name}");
        }
    }
}

//! Collects expired records continuously, so that their expiry is notified.

use std::time::Duration;

use nearstate_store::{Session, since_boot};

use crate::limits::REPORT_INTERVAL;
use crate::settings::{NotifierEvent, NotifierLog};

/// Rounds without a pause of which one looks for expired records: some milliseconds at most.
const COLLECT_ROUNDS: u32 = 8;

/// Expired records of which one round takes care.
const COLLECTED_MAX: usize = 256;

/// Collects expired records, which go to the log. While timers are fired, rounds follow each other
/// without a pause, and not each looks for some.
#[derive(Debug)]
pub(crate) struct ExpiryCollector {
    log: NotifierLog,
    /// Rounds until the next one that looks.
    skipped: u32,
    /// When a failure was reported, in time since the boot.
    reported: Option<Duration>,
}

impl ExpiryCollector {
    pub(crate) fn new(log: NotifierLog) -> Self {
        Self { log, skipped: 0, reported: None }
    }

    /// The next round looks.
    pub(crate) fn look_next(&mut self) {
        self.skipped = 0;
    }

    /// True if there may be more. A failure of one record does not stop the others, and is
    /// reported.
    pub(crate) fn round(&mut self, session: &Session) -> bool {
        if let Some(left) = self.skipped.checked_sub(1) {
            self.skipped = left;
            return false;
        }
        let has_more = match session.collect_expired(COLLECTED_MAX) {
            Ok(collected) => collected.has_more,
            Err(error) => {
                let now = since_boot();
                if self.reported.is_none_or(|at| now >= at + REPORT_INTERVAL) {
                    self.reported = Some(now);
                    self.log.emit(&NotifierEvent::Failed { reason: error.to_string() });
                }
                false
            }
        };
        self.skipped = if has_more { 0 } else { COLLECT_ROUNDS - 1 };
        has_more
    }
}

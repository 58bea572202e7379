//! What a process has stored in its directory. When the directory is opened again, after a failure,
//! it must still have that: one that was removed, or replaced by an older copy, would let this host
//! vote a second time in a term, or acknowledge entries and lose them.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearstate_model::{Error, Result};
use tokio::sync::watch;

use crate::limits::LOST_ASKED_MIN;

use super::types::{LogId, Vote};

/// What the operator does with a directory that lacks something.
const ADVICE: &str = "stop this node, remove this host from the cluster, empty its directory, \
     start the node, and add the host again";

/// What the openings of one directory share.
#[derive(Debug, Default)]
pub(crate) struct StoredBefore {
    marks: Mutex<StoredMarks>,
    /// The place that a leader has asked an empty directory for, and how often.
    asked: Mutex<(Option<LogId>, u32)>,
    contradiction: watch::Sender<Option<String>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct StoredMarks {
    vote: Option<Vote>,
    last: Option<LogId>,
}

impl StoredBefore {
    fn marks(&self) -> MutexGuard<'_, StoredMarks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_vote(&self, vote: Vote) {
        self.marks().vote = Some(vote);
    }

    pub(crate) fn has_vote(&self) -> bool {
        self.marks().vote.is_some()
    }

    pub(crate) fn note_last(&self, last: Option<LogId>) {
        self.marks().last = last;
    }

    /// Entries from this index on are about to be dropped, or were.
    pub(crate) fn forget_from(&self, from: u64) {
        let mut marks = self.marks();
        marks.last = marks.last.filter(|last| last.index < from);
    }

    /// False if openraft rejects messages with this vote.
    pub(crate) fn is_accepted(&self, vote: &Vote) -> bool {
        self.marks().vote.is_none_or(|own| *vote >= own)
    }

    /// Notes that this host must not go on, and why. Returns the reason.
    pub(crate) fn contradicted(&self, reason: String) -> String {
        self.contradiction.send_replace(Some(reason.clone()));
        reason
    }

    /// An empty directory is asked for what is behind this entry, which it does not have. Returns
    /// why this host must not go on, if the leader knows that it had it.
    pub(crate) fn lost_before(&self, previous: LogId) -> Option<String> {
        let count = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let count = if asked.0 == Some(previous) { asked.1 + 1 } else { 1 };
            *asked = (Some(previous), count);
            count
        };
        (count >= LOST_ASKED_MIN).then(|| {
            self.contradicted(format!(
                "the directory of a voter is lost: the leader knows that this host had command {}, \
                 and the directory is empty; {ADVICE}",
                previous.index
            ))
        })
    }

    /// Waits until this host must not go on.
    pub(crate) async fn until_contradicted(&self) -> String {
        let mut receiver = self.contradiction.subscribe();
        let found = receiver.wait_for(Option::is_some).await;
        found.ok().and_then(|reason| reason.clone()).unwrap_or_default()
    }

    /// Refuses a directory that was removed, and one that is not to be used again.
    ///
    /// # Errors
    /// `Damaged`: why.
    pub(crate) fn check_exists(&self, directory: &Path) -> Result<()> {
        let contradiction = self.contradiction.borrow().clone();
        if let Some(reason) = contradiction {
            return Err(Error::Damaged { detail: reason });
        }
        let marks = *self.marks();
        let is_used = marks.vote.is_some() || marks.last.is_some();
        if is_used && !directory.is_dir() {
            let detail = format!("{}: it was removed; {ADVICE}", directory.display());
            return Err(Error::Damaged { detail });
        }
        Ok(())
    }

    /// Compares what a directory has with what was stored in it.
    ///
    /// # Errors
    /// What it lacks.
    pub(crate) fn check(
        &self,
        vote: Option<Vote>,
        last: Option<LogId>,
    ) -> std::result::Result<(), String> {
        let marks = *self.marks();
        let has_vote = marks.vote.is_none_or(|stored| vote.is_some_and(|vote| vote >= stored));
        if has_vote && last >= marks.last {
            return Ok(());
        }
        let term = |vote: Option<Vote>| vote.map_or(0, |vote| vote.leader_id.term);
        let index = |last: Option<LogId>| {
            last.map_or_else(|| "none".to_owned(), |last| last.index.to_string())
        };
        Err(format!(
            "it lacks what this node has stored in it (the vote of term {}, last command {}; it \
             has term {}, last command {}): it was emptied, or replaced by a copy",
            term(marks.vote),
            index(marks.last),
            term(vote),
            index(last)
        ))
    }
}

//! When other hosts were heard by the membership, for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine_thread::lock;

/// When each other host was heard, and since when this host leads.
#[derive(Debug, Default)]
pub(crate) struct HeardHosts(Mutex<HeardTimes>);

#[derive(Debug, Default)]
struct HeardTimes {
    /// The last message.
    messages: BTreeMap<u64, Instant>,
    /// The last answer to a leader, which this host is or was.
    answers: BTreeMap<u64, Instant>,
    leads_since: Option<Instant>,
}

impl HeardHosts {
    pub(crate) fn note_message(&self, host: u64) {
        lock(&self.0).note_message(host, Instant::now());
    }

    /// The host has answered this one, its leader.
    pub(crate) fn note_answer(&self, host: u64) {
        lock(&self.0).note_answer(host, Instant::now());
    }

    /// Whether this host leads now.
    pub(crate) fn note_leading(&self, leads: bool) {
        lock(&self.0).note_leading(leads, Instant::now());
    }

    /// Milliseconds since the last message of each host that was heard.
    pub(crate) fn silent_ms(&self) -> BTreeMap<u64, u64> {
        lock(&self.0).silent_ms(Instant::now())
    }

    /// Milliseconds for which each other voter has not answered this host, the leader: since its
    /// last answer, or since this host leads. Empty if it does not lead.
    pub(crate) fn unanswered_ms(&self, own: u64, voters: &BTreeSet<u64>) -> BTreeMap<u64, u64> {
        lock(&self.0).unanswered_ms((own, voters), Instant::now())
    }
}

impl HeardTimes {
    fn note_message(&mut self, host: u64, now: Instant) {
        self.messages.insert(host, now);
    }

    fn note_answer(&mut self, host: u64, now: Instant) {
        self.note_message(host, now);
        self.answers.insert(host, now);
    }

    fn note_leading(&mut self, leads: bool, now: Instant) {
        self.leads_since = leads.then(|| self.leads_since.unwrap_or(now));
    }

    fn silent_ms(&self, now: Instant) -> BTreeMap<u64, u64> {
        let messages = self.messages.iter();
        messages.map(|(host, at)| (*host, millis(now.saturating_duration_since(*at)))).collect()
    }

    fn unanswered_ms(
        &self,
        (own, voters): (u64, &BTreeSet<u64>),
        now: Instant,
    ) -> BTreeMap<u64, u64> {
        let Some(leads_since) = self.leads_since else { return BTreeMap::new() };
        let others = voters.iter().filter(|host| **host != own);
        let since =
            |host| self.answers.get(host).map_or(leads_since, |answer| leads_since.max(*answer));
        others.map(|host| (*host, millis(now.saturating_duration_since(since(host))))).collect()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voter_is_silent_since_its_last_answer_or_since_this_host_leads() {
        let mut heard = HeardTimes::default();
        let voters = BTreeSet::from([1, 2, 3]);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        heard.note_answer(2, at(0));
        assert_eq!(heard.unanswered_ms((1, &voters), at(9)), BTreeMap::new(), "it does not lead");
        heard.note_leading(true, at(9));
        heard.note_leading(true, at(11));
        // What another leader was told is not waited for.
        let silent = heard.unanswered_ms((1, &voters), at(11));
        assert_eq!(silent, BTreeMap::from([(2, 2000), (3, 2000)]));
        heard.note_answer(2, at(11));
        heard.note_message(3, at(11));
        let silent = heard.unanswered_ms((1, &voters), at(12));
        assert_eq!(silent, BTreeMap::from([(2, 1000), (3, 3000)]));
        assert_eq!(heard.silent_ms(at(12)), BTreeMap::from([(2, 1000), (3, 1000)]));
    }
}

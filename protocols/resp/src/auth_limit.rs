//! Limit of failed authentications, so that passwords cannot be guessed at the speed of the
//! network.
//!
//! After a few failures each attempt from the same source waits before its password is checked, and
//! the attempts of a source wait one after the other. The wait is before the check: if only the
//! error reply were delayed, a client could close the connection as soon as the reply is late. A
//! success does not reduce the failures of its source: a client with one valid password could
//! otherwise guess others without a delay.
//!
//! Authenticated connections are not affected. New connections of the same source wait as well, for
//! at most [`WAIT_MAX`], and are then told to try again.

use nearstate_node::PeerAddress;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Failures of a source or a connection without a delay: typing errors.
pub const FREE_FAILURES: u32 = 5;

/// Delay after the first failure that is not free. Each further failure doubles it.
pub const DELAY_FIRST: Duration = Duration::from_millis(100);

/// The longest delay. A source then guesses 43,200 passwords a day.
pub const DELAY_MAX: Duration = Duration::from_secs(2);

/// Time after which one failure of a source is forgotten.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// Failures of a source that count. After this many times [`FORGOTTEN_AFTER`] all are forgotten.
pub const FAILURES_MAX: u32 = 16;

/// The longest wait of an attempt behind those of the same source. Further ones are refused without
/// a check, so that an attack does not make other clients of the source wait for an hour.
pub const WAIT_MAX: Duration = Duration::from_secs(5);

/// Sources with failures that are distinguished: 400 KB. Further ones count as one source.
pub const SOURCES_MAX: usize = 4096;

/// Interval of the searches for forgotten sources while the table is full.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Where an attempt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthSource {
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address. A client usually has all addresses behind them.
    Ipv6([u16; 4]),
    /// A user of this host, over a Unix socket.
    User(u32),
    /// All sources that the table has no room for.
    Others,
}

impl AuthSource {
    /// The source of a connection.
    pub fn of(address: &PeerAddress) -> Self {
        match address {
            PeerAddress::Unix { uid, .. } => Self::User(*uid),
            PeerAddress::Tcp { remote, .. } => match remote.ip().to_canonical() {
                IpAddr::V4(address) => Self::Ipv4(address),
                IpAddr::V6(address) => {
                    let [one, two, three, four, ..] = address.segments();
                    Self::Ipv6([one, two, three, four])
                }
            },
        }
    }
}

/// What happens with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthDecision {
    /// The password is checked now.
    Check,
    /// The password is checked after this time.
    CheckAfter(Duration),
    /// The password is not checked. The client may try again after this time.
    Refuse(Duration),
}

/// The failures of all sources.
#[derive(Debug, Default)]
pub struct AuthLimit {
    sources: Mutex<SourceTable>,
    failures: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct SourceTable {
    entries: BTreeMap<AuthSource, SourceFailures>,
    swept: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct SourceFailures {
    failures: u32,
    /// When the last failure was forgotten, or the first one happened.
    since: Duration,
    /// The earliest time of the next check.
    next_check: Duration,
}

/// The delay after this many failures.
fn delay_after(failures: u32) -> Duration {
    match failures.checked_sub(FREE_FAILURES + 1) {
        None => Duration::ZERO,
        Some(doublings) => DELAY_FIRST
            .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
            .min(DELAY_MAX),
    }
}

impl SourceFailures {
    fn forget(&mut self, now: Duration) {
        while self.failures > 0 && now.saturating_sub(self.since) >= FORGOTTEN_AFTER {
            self.failures -= 1;
            self.since += FORGOTTEN_AFTER;
        }
    }

    fn is_forgotten(&self, now: Duration) -> bool {
        self.failures == 0 && self.next_check <= now
    }
}

impl SourceTable {
    /// The entry that counts for a source, if it has failed before.
    fn entry(&mut self, source: AuthSource) -> Option<&mut SourceFailures> {
        let source = if self.entries.contains_key(&source) { source } else { AuthSource::Others };
        self.entries.get_mut(&source)
    }

    /// The entry of a source that has failed.
    fn entry_or_new(&mut self, source: AuthSource, now: Duration) -> &mut SourceFailures {
        let is_full = self.entries.len() >= SOURCES_MAX && !self.entries.contains_key(&source);
        if is_full && now.saturating_sub(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.entries.retain(|_, entry| {
                entry.forget(now);
                !entry.is_forgotten(now)
            });
        }
        let has_room = self.entries.len() < SOURCES_MAX || self.entries.contains_key(&source);
        let source = if has_room { source } else { AuthSource::Others };
        self.entries.entry(source).or_insert(SourceFailures { since: now, ..Default::default() })
    }
}

impl AuthLimit {
    fn lock(&self) -> MutexGuard<'_, SourceTable> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about an attempt on a connection with this many failures. `now` is the time since
    /// any fixed moment. An attempt that waits has its place in the order of its source.
    pub fn decide(
        &self,
        source: AuthSource,
        connection_failures: u32,
        now: Duration,
    ) -> AuthDecision {
        let mut wait = delay_after(connection_failures);
        let mut table = self.lock();
        if let Some(entry) = table.entry(source) {
            entry.forget(now);
            let delay = delay_after(entry.failures);
            let check_at = entry.next_check.max(now);
            let queued = check_at.saturating_sub(now);
            if queued > WAIT_MAX {
                drop(table);
                self.refused.fetch_add(1, Ordering::Relaxed);
                return AuthDecision::Refuse(queued);
            }
            if !delay.is_zero() {
                entry.next_check = check_at + delay;
            }
            wait = wait.max(queued);
        }
        if wait.is_zero() { AuthDecision::Check } else { AuthDecision::CheckAfter(wait) }
    }

    /// Counts a failure. Returns the number of failures of the source that are not forgotten.
    pub fn count_failure(&self, source: AuthSource, now: Duration) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut table = self.lock();
        let entry = table.entry_or_new(source, now);
        entry.forget(now);
        if entry.failures == 0 {
            entry.since = now;
        }
        entry.failures = (entry.failures + 1).min(FAILURES_MAX);
        entry.next_check = entry.next_check.max(now + delay_after(entry.failures));
        entry.failures
    }

    /// Counts an attempt that was refused for another reason than the queue of its source.
    pub(crate) fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of failures.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Number of attempts that were refused without a check.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: AuthSource = AuthSource::User(1);
    const TWO: AuthSource = AuthSource::User(2);

    fn fail(limit: &AuthLimit, source: AuthSource, count: u32, now: Duration) {
        for _ in 0..count {
            limit.count_failure(source, now);
        }
    }

    #[test]
    fn the_delay_doubles_from_the_first_to_the_longest() {
        let millis: Vec<u128> = (0..13).map(|count| delay_after(count).as_millis()).collect();
        assert_eq!(millis, [0, 0, 0, 0, 0, 0, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(delay_after(u32::MAX), DELAY_MAX);
    }

    #[test]
    fn a_source_with_failures_guesses_at_most_once_per_delay() {
        let limit = AuthLimit::default();
        let mut now = Duration::from_secs(100);
        let mut checks = 0_u32;
        // As many connections as there can be, each with a new attempt every 10 ms.
        for _ in 0..6000 {
            for _ in 0..20 {
                // Waiting attempts are counted as checked: each gets a place of its own.
                match limit.decide(ONE, 0, now) {
                    AuthDecision::Check | AuthDecision::CheckAfter(_) => {
                        checks += 1;
                        limit.count_failure(ONE, now);
                    }
                    AuthDecision::Refuse(_) => {}
                }
            }
            now += Duration::from_millis(10);
        }
        // A minute: the free ones, the growing delays, then one in two seconds.
        assert!((30..=46).contains(&checks), "{checks}");
        assert!(limit.refused() > 100_000);
        assert_eq!(limit.decide(TWO, 0, now), AuthDecision::Check, "others are not affected");
    }

    #[test]
    fn failures_are_forgotten_and_successes_do_not_erase_them() {
        let limit = AuthLimit::default();
        let begin = Duration::from_secs(50);
        fail(&limit, ONE, FREE_FAILURES, begin);
        assert_eq!(limit.decide(ONE, 0, begin), AuthDecision::Check);
        fail(&limit, ONE, 1, begin);
        let wait = AuthDecision::CheckAfter(DELAY_FIRST);
        assert_eq!(limit.decide(ONE, 0, begin), wait);
        let next = AuthDecision::CheckAfter(2 * DELAY_FIRST);
        assert_eq!(limit.decide(ONE, 0, begin), next, "behind the first one");
        let later = begin + FORGOTTEN_AFTER;
        assert_eq!(limit.decide(ONE, 0, later), AuthDecision::Check);
        assert_eq!(limit.decide(ONE, 0, later), AuthDecision::Check, "one failure is forgotten");
        fail(&limit, ONE, 99, later);
        let end = later + FORGOTTEN_AFTER * (FAILURES_MAX - FREE_FAILURES);
        assert_eq!(limit.decide(ONE, 0, end), AuthDecision::Check);
    }

    #[test]
    fn a_connection_with_failures_waits_even_if_its_source_is_unknown() {
        let limit = AuthLimit::default();
        let wait = AuthDecision::CheckAfter(DELAY_MAX);
        assert_eq!(limit.decide(ONE, 20, Duration::ZERO), wait);
    }

    #[test]
    fn sources_beyond_the_table_count_as_one_until_others_are_forgotten() {
        let limit = AuthLimit::default();
        let now = Duration::from_secs(1000);
        for user in 0..u32::try_from(SOURCES_MAX).unwrap_or_default() {
            limit.count_failure(AuthSource::User(user), now);
        }
        for user in 100_000..100_006 {
            limit.count_failure(AuthSource::User(user), now);
        }
        assert_eq!(limit.lock().entries.len(), SOURCES_MAX + 1);
        let unknown = AuthSource::User(7_777_777);
        assert_eq!(limit.decide(unknown, 0, now), AuthDecision::CheckAfter(DELAY_FIRST));
        assert_eq!(limit.decide(ONE, 0, now), AuthDecision::Check, "it has an entry of its own");
        let later = now + FORGOTTEN_AFTER * FAILURES_MAX;
        limit.count_failure(unknown, later);
        assert_eq!(limit.lock().entries.len(), 1);
    }

    #[test]
    fn the_source_of_a_client_is_what_it_cannot_change_easily() {
        let source = |remote: &str| {
            let local = "127.0.0.1:1".parse().unwrap_or_else(|_| unreachable!("an address"));
            let remote = remote.parse().unwrap_or_else(|_| unreachable!("an address"));
            AuthSource::of(&PeerAddress::Tcp { remote, local })
        };
        assert_eq!(source("10.0.0.1:5"), source("[::ffff:10.0.0.1]:6"));
        assert_ne!(source("10.0.0.1:5"), source("10.0.0.2:5"));
        assert_eq!(source("[2001:db8:1:2::1]:5"), source("[2001:db8:1:2:3::9]:5"));
        assert_ne!(source("[2001:db8:1:2::1]:5"), source("[2001:db8:1:3::1]:5"));
        let unix = PeerAddress::Unix { pid: Some(1), uid: 7, gid: 8 };
        assert_eq!(AuthSource::of(&unix), AuthSource::User(7));
    }
}

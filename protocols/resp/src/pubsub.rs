//! Who hears which channel, on all cores, and who is connected.

mod patterns;
pub mod mailbox;

use crate::pubsub::mailbox::{Delivery, Mailbox, Message, MessageBudget};
use patterns::{PatternIndex, PatternSubscribers, Subscribers};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most different patterns of all clients. A comparison takes some ten nanoseconds where the
/// begin of the channel differs behind what the patterns are found by, and some microseconds if
/// both were made to be slow: then a message keeps the core of its sender for 50 ms, and nobody
/// else.
pub const PATTERNS_MAX: usize = 16_384;

/// While nobody hears any, one client may have one part in so many of them; when half are free, a
/// quarter of that, and so on with the square of what is free, but one as long as there is any.
/// Sixteen clients that take all they can leave half, and it takes some thousand to leave none.
const SHARES: usize = 16;

/// How many patterns a client may hear that wishes for a new one, of those that are free.
const fn share_of(free: usize) -> usize {
    let share = free.saturating_mul(free) / (PATTERNS_MAX * SHARES);
    if share == 0 && free > 0 { 1 } else { share }
}

/// Channels, patterns, and the mailboxes of those that hear them.
#[derive(Debug)]
pub struct PubSub {
    /// Where messages count while they wait.
    pub budget: Arc<MessageBudget>,
    state: Mutex<PubSubState>,
    /// How many wishes there are: where none is, publishing takes no lock.
    subscription_count: AtomicUsize,
}

#[derive(Debug, Default)]
struct PubSubState {
    channels: BTreeMap<Vec<u8>, Subscribers>,
    /// Copied by who changes it while somebody compares a channel with it.
    patterns: Arc<PatternIndex>,
}

/// Why a client may not hear more patterns: other clients hear too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternShareExceeded {
    /// How many different ones all clients hear.
    pub heard: usize,
    /// How many a client may hear that wishes for a new one.
    pub share: usize,
}

impl PubSub {
    /// In which nobody hears anything; messages wait within this bound.
    pub fn new(messages_bytes_max: usize) -> Self {
        let budget = Arc::new(MessageBudget::new(messages_bytes_max));
        Self { budget, state: Mutex::default(), subscription_count: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, PubSubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection wishes to hear a channel. False if it does already.
    pub fn subscribe(&self, channel: &[u8], id: u64, mailbox: &Arc<Mailbox>) -> bool {
        let mut state = self.lock();
        let subscribers = state.channels.entry(channel.to_vec()).or_default();
        self.count(subscribers.insert(id, Arc::clone(mailbox)).is_none(), true)
    }

    /// A connection that hears `held` patterns wishes to hear all channels that match some more.
    ///
    /// # Errors
    /// It would hear more than its share, and some of them are new: it hears none of them. What
    /// others hear as well costs no further comparison, and is no matter of shares.
    pub fn subscribe_patterns(
        &self,
        more: &BTreeSet<&[u8]>,
        held: usize,
        (id, mailbox): (u64, &Arc<Mailbox>),
    ) -> Result<(), PatternShareExceeded> {
        let raw: Vec<_> =
            more.iter().map(|pattern| Arc::new(PatternSubscribers::new(pattern))).collect();
        let mut state = self.lock();
        let mut fresh = Vec::with_capacity(raw.len());
        let mut known = Vec::new();
        for heard in raw {
            match state.patterns.get(&heard.pattern) {
                Some(there) => known.push(Arc::clone(there)),
                None => fresh.push(heard),
            }
        }
        let heard = state.patterns.len();
        let share = share_of(PATTERNS_MAX.saturating_sub(heard));
        if !fresh.is_empty() && held.saturating_add(more.len()) > share {
            return Err(PatternShareExceeded { heard, share });
        }
        for heard in known.iter().chain(&fresh) {
            let is_new = heard.subscribers().insert(id, Arc::clone(mailbox)).is_none();
            self.count(is_new, true);
        }
        if !fresh.is_empty() {
            Arc::make_mut(&mut state.patterns).add(fresh);
        }
        Ok(())
    }

    /// A connection does not wish to hear a channel any more.
    pub fn unsubscribe(&self, channel: &[u8], id: u64) -> bool {
        let mut state = self.lock();
        let Some(subscribers) = state.channels.get_mut(channel) else { return false };
        let was_present = subscribers.remove(&id).is_some();
        if subscribers.is_empty() {
            state.channels.remove(channel);
        }
        self.count(was_present, false)
    }

    /// A connection does not wish to hear a pattern's channels any more.
    pub fn unsubscribe_pattern(&self, pattern: &[u8], id: u64) -> bool {
        let mut state = self.lock();
        let Some(heard) = state.patterns.get(pattern) else { return false };
        let mut subscribers = heard.subscribers();
        let was_present = subscribers.remove(&id).is_some();
        let is_last = subscribers.is_empty();
        drop(subscribers);
        if is_last {
            Arc::make_mut(&mut state.patterns).remove(pattern);
        }
        self.count(was_present, false)
    }

    /// As [`PubSub::unsubscribe_pattern`] of many: while somebody compares patterns they are copied once,
    /// not for each.
    pub fn unsubscribe_patterns<'p>(&self, patterns: impl Iterator<Item = &'p [u8]>, id: u64) {
        let mut state = self.lock();
        let mut gone = Vec::new();
        for pattern in patterns {
            let Some(heard) = state.patterns.get(pattern) else { continue };
            let mut subscribers = heard.subscribers();
            self.count(subscribers.remove(&id).is_some(), false);
            if subscribers.is_empty() {
                gone.push(pattern);
            }
        }
        if gone.is_empty() {
            return;
        }
        let patterns = Arc::make_mut(&mut state.patterns);
        for pattern in gone {
            patterns.remove(pattern);
        }
    }

    fn count(&self, is_change: bool, is_more: bool) -> bool {
        match (is_change, is_more) {
            (false, _) => {}
            (true, true) => drop(self.subscription_count.fetch_add(1, Ordering::Release)),
            (true, false) => drop(self.subscription_count.fetch_sub(1, Ordering::Release)),
        }
        is_change
    }

    /// True if somebody hears something.
    #[inline]
    pub fn has_subscribers(&self) -> bool {
        self.subscription_count.load(Ordering::Acquire) > 0
    }

    /// The patterns that a channel matches, and the state. They are compared while nobody waits for
    /// the lock: one that comes meanwhile has come behind the message, and one that goes has no
    /// hearers any more. All letters of a message are sent under one lock, so that all clients hear
    /// messages in one order.
    fn matching_patterns(
        &self,
        channel: &[u8],
    ) -> (MutexGuard<'_, PubSubState>, Vec<Arc<PatternSubscribers>>) {
        self.matching_by(|patterns| patterns.matching(channel))
    }

    fn matching_by(
        &self,
        matching: impl FnOnce(&PatternIndex) -> Vec<Arc<PatternSubscribers>>,
    ) -> (MutexGuard<'_, PubSubState>, Vec<Arc<PatternSubscribers>>) {
        let state = self.lock();
        if state.patterns.is_empty() {
            return (state, Vec::new());
        }
        let patterns = Arc::clone(&state.patterns);
        drop(state);
        let found = matching(&patterns);
        // Who changes the patterns while somebody has them must copy all.
        drop(patterns);
        (self.lock(), found)
    }

    /// Sends a message to everybody who hears the channel; how many letters that were.
    pub fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        if !self.has_subscribers() {
            return 0;
        }
        let message = Arc::new(Message::new(&self.budget, channel, payload));
        let (state, matching) = self.matching_patterns(channel);
        let mut sent = 0;
        for mailbox in state.channels.get(channel).into_iter().flat_map(BTreeMap::values) {
            mailbox.put(Delivery { message: Arc::clone(&message), pattern: None });
            sent += 1;
        }
        for heard in &matching {
            for mailbox in heard.subscribers().values() {
                let pattern = Some(Arc::clone(&heard.pattern));
                mailbox.put(Delivery { message: Arc::clone(&message), pattern });
                sent += 1;
            }
        }
        sent
    }

    /// How many letters a message in this channel would be.
    pub fn count_receivers(&self, channel: &[u8]) -> usize {
        if !self.has_subscribers() {
            return 0;
        }
        let (state, matching) = self.matching_patterns(channel);
        let itself = state.channels.get(channel).map_or(0, BTreeMap::len);
        itself + matching.iter().map(|heard| heard.subscribers().len()).sum::<usize>()
    }

    /// How many channels somebody hears.
    pub fn channel_count(&self) -> usize {
        self.lock().channels.len()
    }

    /// The channels that somebody hears, in the order of their names: so many at the most, those
    /// behind `last`.
    pub fn channels(&self, last: Option<&[u8]>, bytes_max: usize) -> Vec<Vec<u8>> {
        let state = self.lock();
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = state.channels.range::<[u8], _>((behind, Bound::Unbounded));
        names.take(bytes_max).map(|(name, _)| name.clone()).collect()
    }

    /// How many hear a channel itself.
    pub fn subscribers(&self, channel: &[u8]) -> usize {
        self.lock().channels.get(channel).map_or(0, BTreeMap::len)
    }

    /// How many patterns somebody hears.
    pub fn patterns(&self) -> usize {
        self.lock().patterns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_to_who_hears_the_channel_and_to_who_hears_a_pattern() {
        let pubsub = PubSub::new(usize::MAX);
        let mailbox = || Arc::new(Mailbox::new(9999, &pubsub.budget));
        let (one, two) = (mailbox(), mailbox());
        assert_eq!(pubsub.publish(b"{ns},c", b"m"), 0);
        assert!(pubsub.subscribe(b"{ns},c", 1, &one));
        assert!(!pubsub.subscribe(b"{ns},c", 1, &one), "once is enough");
        let patterns = BTreeSet::from([&b"{ns},*"[..]]);
        assert_eq!(pubsub.subscribe_patterns(&patterns, 0, (2, &two)), Ok(()));
        assert!(pubsub.subscribe(b"", 2, &two), "sdlgo begins with the empty channel");
        assert_eq!((pubsub.count_receivers(b"{ns},c"), pubsub.count_receivers(b"other")), (2, 0));
        assert_eq!(pubsub.publish(b"{ns},c", b"m"), 2);
        assert_eq!(pubsub.publish(b"other", b"m"), 0);
        assert_eq!(pubsub.channel_count(), 2);
        assert_eq!((pubsub.subscribers(b"{ns},c"), pubsub.patterns()), (1, 1));
        assert_eq!(pubsub.channels(None, 9), [b"".to_vec(), b"{ns},c".to_vec()]);
        assert_eq!(pubsub.channels(Some(b""), 9), [b"{ns},c".to_vec()]);
        assert_eq!(pubsub.channels(None, 1), [b"".to_vec()]);
        assert!(pubsub.unsubscribe(b"{ns},c", 1) && !pubsub.unsubscribe(b"{ns},c", 1));
        assert!(pubsub.unsubscribe_pattern(b"{ns},*", 2) && pubsub.unsubscribe(b"", 2));
        assert!(!pubsub.has_subscribers());
        assert!(pubsub.channels(None, 9).is_empty());
    }

    /// As clients do who take all that they may: how many that is.
    fn take_all(pubsub: &PubSub, id: u64, mailbox: &Arc<Mailbox>) -> usize {
        for held in 0.. {
            let pattern = format!("{id}-{held}*");
            let more = BTreeSet::from([pattern.as_bytes()]);
            if pubsub.subscribe_patterns(&more, held, (id, mailbox)).is_err() {
                return held;
            }
        }
        0
    }

    #[test]
    fn however_many_clients_take_all_they_can_there_is_room_for_another() {
        let pubsub = PubSub::new(usize::MAX);
        let mailbox = Arc::new(Mailbox::new(9999, &pubsub.budget));
        let taken: Vec<usize> = (0..16).map(|id| take_all(&pubsub, id, &mailbox)).collect();
        assert!(taken.is_sorted_by(|one, next| one >= next) && taken[0] > 900, "{taken:?}");
        assert!(pubsub.patterns() < PATTERNS_MAX * 5 / 9, "{taken:?}");
        assert!(take_all(&pubsub, 16, &mailbox) > 200);
        for id in 17..900 {
            assert!(take_all(&pubsub, id, &mailbox) > 0, "client {id}");
        }
        // There is an end, and it is the bound.
        for id in 900..2000 {
            take_all(&pubsub, id, &mailbox);
        }
        assert_eq!((pubsub.patterns(), share_of(0)), (PATTERNS_MAX, 0));
    }

    #[test]
    fn what_others_hear_already_is_no_matter_of_shares_and_all_or_none_are_taken() {
        let pubsub = PubSub::new(usize::MAX);
        let mailbox = Arc::new(Mailbox::new(9999, &pubsub.budget));
        let names: Vec<String> = (0..1024).map(|number| format!("a{number}*")).collect();
        let all: BTreeSet<&[u8]> = names.iter().map(String::as_bytes).collect();
        for id in 0..20 {
            assert_eq!(pubsub.subscribe_patterns(&all, 0, (id, &mailbox)), Ok(()), "client {id}");
        }
        assert_eq!(pubsub.patterns(), 1024);
        let one_more: BTreeSet<&[u8]> = all.iter().copied().chain([&b"b*"[..]]).collect();
        let crowded = pubsub.subscribe_patterns(&one_more, 0, (20, &mailbox)).unwrap_err();
        assert_eq!(crowded, PatternShareExceeded { heard: 1024, share: 900 });
        assert_eq!(
            (pubsub.patterns(), pubsub.count_receivers(b"a7"), pubsub.count_receivers(b"b")),
            (1024, 20, 0)
        );
        for id in 0..19 {
            pubsub.unsubscribe_patterns(one_more.iter().copied(), id);
            assert_eq!(
                (pubsub.patterns(), pubsub.count_receivers(b"a7")),
                (1024, 19 - usize::try_from(id).unwrap())
            );
        }
        assert!(names.iter().skip(1).all(|name| pubsub.unsubscribe_pattern(name.as_bytes(), 19)));
        pubsub.unsubscribe_patterns(all.iter().copied(), 19);
        assert!(!pubsub.has_subscribers() && pubsub.patterns() == 0);
    }

    #[test]
    fn who_comes_or_goes_does_not_wait_for_the_comparisons_of_a_message() {
        let pubsub = PubSub::new(usize::MAX);
        let mailbox = Arc::new(Mailbox::new(9999, &pubsub.budget));
        let subscribe = |pattern: &str, id| {
            let more = BTreeSet::from([pattern.as_bytes()]);
            assert_eq!(pubsub.subscribe_patterns(&more, 0, (id, &mailbox)), Ok(()));
        };
        subscribe("c*", 1);
        subscribe("*", 2);
        let (state, found) = pubsub.matching_by(|patterns| {
            assert!(
                pubsub.state.try_lock().is_ok(),
                "the lock is held while patterns are compared"
            );
            subscribe("c?", 3);
            assert!(pubsub.unsubscribe_pattern(b"*", 2));
            patterns.matching(b"cc")
        });
        drop(state);
        let deliveries: usize = found.iter().map(|heard| heard.subscribers().len()).sum();
        assert_eq!((found.len(), deliveries), (2, 1), "who has gone gets nothing");
        assert_eq!((pubsub.count_receivers(b"cc"), pubsub.patterns()), (2, 2));
    }
}

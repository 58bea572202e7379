//! Subscriptions of all clients on all cores, and the delivery of messages.

mod patterns;
pub mod mailbox;

use crate::pubsub::mailbox::{Delivery, Mailbox, Message, MessageBudget};
use patterns::{PatternIndex, PatternSubscribers, Subscribers};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limit of different patterns of all clients. A comparison takes some tens of nanoseconds if the
/// channel differs from the pattern after the search prefix, and some microseconds for the worst
/// patterns. At the limit a message occupies the core of its sender for at most 50 ms, and no other
/// core.
pub const PATTERNS_MAX: usize = 16_384;

/// With no pattern in use, one client may use one in `SHARES` of them. With half of them in use the
/// share is a quarter of that: it decreases with the square of the free patterns, and is at least
/// one while any is free. Sixteen clients that use their full share leave half of them free; it
/// takes some thousand clients to use all.
const SHARES: usize = 16;

/// Number of patterns that a client may have when it adds a new one, with `free` free patterns.
const fn share_of(free: usize) -> usize {
    let share = free.saturating_mul(free) / (PATTERNS_MAX * SHARES);
    if share == 0 && free > 0 { 1 } else { share }
}

/// Channels, patterns and their subscribers.
#[derive(Debug)]
pub struct PubSub {
    /// Accounts for the memory of queued messages.
    pub budget: Arc<MessageBudget>,
    state: Mutex<PubSubState>,
    /// Number of subscriptions. If it is zero, publishing takes no lock.
    subscription_count: AtomicUsize,
}

#[derive(Debug, Default)]
struct PubSubState {
    channels: BTreeMap<Vec<u8>, Subscribers>,
    /// Copied on a change while a message is compared with the patterns.
    patterns: Arc<PatternIndex>,
}

/// The error of a client that would exceed its share of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternShareExceeded {
    /// Number of different patterns of all clients.
    pub in_use: usize,
    /// Number of patterns that a client may have when it adds a new one.
    pub share: usize,
}

impl PubSub {
    /// Without subscriptions. Queued messages of all clients have at most `messages_bytes_max`
    /// bytes.
    pub fn new(messages_bytes_max: usize) -> Self {
        let budget = Arc::new(MessageBudget::new(messages_bytes_max));
        Self { budget, state: Mutex::default(), subscription_count: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, PubSubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes a connection to a channel. Returns false if it was subscribed.
    pub fn subscribe(&self, channel: &[u8], id: u64, mailbox: &Arc<Mailbox>) -> bool {
        let mut state = self.lock();
        let subscribers = state.channels.entry(channel.to_vec()).or_default();
        self.count(subscribers.insert(id, Arc::clone(mailbox)).is_none(), true)
    }

    /// Subscribes a connection that has `held` patterns to more patterns.
    ///
    /// # Errors
    /// The client would exceed its share and some patterns are new: it is subscribed to none.
    /// Patterns that other clients have cost no further comparison and are not limited by the
    /// share.
    pub fn subscribe_patterns(
        &self,
        more: &BTreeSet<&[u8]>,
        held: usize,
        (id, mailbox): (u64, &Arc<Mailbox>),
    ) -> Result<(), PatternShareExceeded> {
        let entries: Vec<_> =
            more.iter().map(|pattern| Arc::new(PatternSubscribers::new(pattern))).collect();
        let mut state = self.lock();
        let mut new_entries = Vec::with_capacity(entries.len());
        let mut known = Vec::new();
        for entry in entries {
            match state.patterns.get(&entry.pattern) {
                Some(existing) => known.push(Arc::clone(existing)),
                None => new_entries.push(entry),
            }
        }
        let in_use = state.patterns.len();
        let share = share_of(PATTERNS_MAX.saturating_sub(in_use));
        if !new_entries.is_empty() && held.saturating_add(more.len()) > share {
            return Err(PatternShareExceeded { in_use, share });
        }
        for entry in known.iter().chain(&new_entries) {
            let is_new = entry.subscribers().insert(id, Arc::clone(mailbox)).is_none();
            self.count(is_new, true);
        }
        if !new_entries.is_empty() {
            Arc::make_mut(&mut state.patterns).add(new_entries);
        }
        Ok(())
    }

    /// Unsubscribes a connection from a channel.
    pub fn unsubscribe(&self, channel: &[u8], id: u64) -> bool {
        let mut state = self.lock();
        let Some(subscribers) = state.channels.get_mut(channel) else { return false };
        let was_present = subscribers.remove(&id).is_some();
        if subscribers.is_empty() {
            state.channels.remove(channel);
        }
        self.count(was_present, false)
    }

    /// Unsubscribes a connection from a pattern.
    pub fn unsubscribe_pattern(&self, pattern: &[u8], id: u64) -> bool {
        let mut state = self.lock();
        let Some(entry) = state.patterns.get(pattern) else { return false };
        let mut subscribers = entry.subscribers();
        let was_present = subscribers.remove(&id).is_some();
        let is_last = subscribers.is_empty();
        drop(subscribers);
        if is_last {
            Arc::make_mut(&mut state.patterns).remove(pattern);
        }
        self.count(was_present, false)
    }

    /// As [`PubSub::unsubscribe_pattern`] for several patterns: a concurrent comparison causes one
    /// copy of the index, not one for each pattern.
    pub fn unsubscribe_patterns<'p>(&self, patterns: impl Iterator<Item = &'p [u8]>, id: u64) {
        let mut state = self.lock();
        let mut gone = Vec::new();
        for pattern in patterns {
            let Some(entry) = state.patterns.get(pattern) else { continue };
            let mut subscribers = entry.subscribers();
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

    /// True if there is a subscription.
    #[inline]
    pub fn has_subscribers(&self) -> bool {
        self.subscription_count.load(Ordering::Acquire) > 0
    }

    /// The patterns that a channel matches, and the locked state. The comparison runs without the
    /// lock. A pattern added meanwhile counts as added after the message, and a removed one has no
    /// subscribers. All deliveries of a message are made under one lock, so that all clients
    /// receive messages in the same order.
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
        // A change of the patterns while they are referenced copies all of them.
        drop(patterns);
        (self.lock(), found)
    }

    /// Delivers a message to all subscribers of a channel. Returns the number of deliveries.
    pub fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        if !self.has_subscribers() {
            return 0;
        }
        let message = Arc::new(Message::new(&self.budget, channel, payload));
        let (state, matching) = self.matching_patterns(channel);
        let mut sent = 0;
        for mailbox in state.channels.get(channel).into_iter().flat_map(BTreeMap::values) {
            let delivery = Delivery { message: Arc::clone(&message), pattern: None };
            sent += usize::from(mailbox.put(delivery));
        }
        for entry in &matching {
            for mailbox in entry.subscribers().values() {
                let pattern = Some(Arc::clone(&entry.pattern));
                let delivery = Delivery { message: Arc::clone(&message), pattern };
                sent += usize::from(mailbox.put(delivery));
            }
        }
        sent
    }

    /// Number of deliveries that a message to this channel would cause.
    pub fn count_receivers(&self, channel: &[u8]) -> usize {
        if !self.has_subscribers() {
            return 0;
        }
        let (state, matching) = self.matching_patterns(channel);
        let itself = state.channels.get(channel).map_or(0, BTreeMap::len);
        itself + matching.iter().map(|entry| entry.subscribers().len()).sum::<usize>()
    }

    /// Number of channels with subscribers.
    pub fn channel_count(&self) -> usize {
        self.lock().channels.len()
    }

    /// Channels with subscribers after `last` in the order of their names, at most `most`.
    pub fn channels(&self, last: Option<&[u8]>, limit: usize) -> Vec<Vec<u8>> {
        let state = self.lock();
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = state.channels.range::<[u8], _>((behind, Bound::Unbounded));
        names.take(limit).map(|(name, _)| name.clone()).collect()
    }

    /// Number of subscribers of a channel, without patterns.
    pub fn subscribers(&self, channel: &[u8]) -> usize {
        self.lock().channels.get(channel).map_or(0, BTreeMap::len)
    }

    /// Number of different patterns.
    pub fn patterns(&self) -> usize {
        self.lock().patterns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reaches_subscribers_of_the_channel_and_of_matching_patterns() {
        let pubsub = PubSub::new(usize::MAX);
        let mailbox = || Arc::new(Mailbox::new(9999, &pubsub.budget));
        let (one, two) = (mailbox(), mailbox());
        assert_eq!(pubsub.publish(b"{ns},c", b"m"), 0);
        assert!(pubsub.subscribe(b"{ns},c", 1, &one));
        assert!(!pubsub.subscribe(b"{ns},c", 1, &one), "once is enough");
        let patterns = BTreeSet::from([&b"{ns},*"[..]]);
        assert_eq!(pubsub.subscribe_patterns(&patterns, 0, (2, &two)), Ok(()));
        assert!(pubsub.subscribe(b"", 2, &two), "sdlgo starts with the empty channel");
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

    /// Number of patterns that clients get which each take their full share.
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
    fn one_client_at_all_its_limits_does_not_exhaust_the_core() {
        let pubsub = PubSub::new(usize::MAX);
        let mailbox = Arc::new(Mailbox::new(9999, &pubsub.budget));
        let taken: Vec<usize> = (0..16).map(|id| take_all(&pubsub, id, &mailbox)).collect();
        assert!(taken.is_sorted_by(|one, next| one >= next) && taken[0] > 900, "{taken:?}");
        assert!(pubsub.patterns() < PATTERNS_MAX * 5 / 9, "{taken:?}");
        assert!(take_all(&pubsub, 16, &mailbox) > 200);
        for id in 17..900 {
            assert!(take_all(&pubsub, id, &mailbox) > 0, "client {id}");
        }
        // The limit is reached eventually.
        for id in 900..2000 {
            take_all(&pubsub, id, &mailbox);
        }
        assert_eq!((pubsub.patterns(), share_of(0)), (PATTERNS_MAX, 0));
    }

    #[test]
    fn known_patterns_use_no_share_and_subscribing_is_all_or_nothing() {
        let pubsub = PubSub::new(usize::MAX);
        let mailbox = Arc::new(Mailbox::new(9999, &pubsub.budget));
        let names: Vec<String> = (0..1024).map(|number| format!("a{number}*")).collect();
        let all: BTreeSet<&[u8]> = names.iter().map(String::as_bytes).collect();
        for id in 0..20 {
            assert_eq!(pubsub.subscribe_patterns(&all, 0, (id, &mailbox)), Ok(()), "client {id}");
        }
        assert_eq!(pubsub.patterns(), 1024);
        let one_more: BTreeSet<&[u8]> = all.iter().copied().chain([&b"b*"[..]]).collect();
        let error = pubsub.subscribe_patterns(&one_more, 0, (20, &mailbox)).unwrap_err();
        assert_eq!(error, PatternShareExceeded { in_use: 1024, share: 900 });
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
    fn subscribing_does_not_wait_for_pattern_matching() {
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
        let deliveries: usize = found.iter().map(|entry| entry.subscribers().len()).sum();
        assert_eq!((found.len(), deliveries), (2, 1), "who has gone gets nothing");
        assert_eq!((pubsub.count_receivers(b"cc"), pubsub.patterns()), (2, 2));
    }
}

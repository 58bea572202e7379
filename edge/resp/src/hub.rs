//! Who hears which channel, on all cores, and who is connected.

use crate::mailbox::{Letter, Mailbox, Message, Post};
use nearstate_store::glob;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Channels, patterns, and the mailboxes of those that hear them.
#[derive(Debug)]
pub struct Hub {
    /// Where messages count while they wait.
    pub post: Arc<Post>,
    state: Mutex<State>,
    /// How many wishes there are: where none is, publishing takes no lock.
    wishes: AtomicUsize,
}

type Hearers = BTreeMap<u64, Arc<Mailbox>>;

#[derive(Debug, Default)]
struct State {
    channels: BTreeMap<Vec<u8>, Hearers>,
    patterns: BTreeMap<Arc<[u8]>, Hearers>,
}

impl Hub {
    /// In which nobody hears anything; messages wait within this bound.
    pub fn new(messages_bytes_max: usize) -> Self {
        let post = Arc::new(Post::new(messages_bytes_max));
        Self { post, state: Mutex::default(), wishes: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection wishes to hear a channel. False if it does already.
    pub fn hear(&self, channel: &[u8], id: u64, mailbox: &Arc<Mailbox>) -> bool {
        let mut state = self.lock();
        let hearers = state.channels.entry(channel.to_vec()).or_default();
        self.count(hearers.insert(id, Arc::clone(mailbox)).is_none(), true)
    }

    /// A connection wishes to hear all channels that match a pattern. False if it does already.
    pub fn hear_matching(&self, pattern: &[u8], id: u64, mailbox: &Arc<Mailbox>) -> bool {
        let mut state = self.lock();
        let hearers = state.patterns.entry(Arc::from(pattern)).or_default();
        self.count(hearers.insert(id, Arc::clone(mailbox)).is_none(), true)
    }

    /// A connection does not wish to hear a channel any more.
    pub fn leave(&self, channel: &[u8], id: u64) -> bool {
        let mut state = self.lock();
        let Some(hearers) = state.channels.get_mut(channel) else { return false };
        let was_there = hearers.remove(&id).is_some();
        if hearers.is_empty() {
            state.channels.remove(channel);
        }
        self.count(was_there, false)
    }

    /// A connection does not wish to hear a pattern's channels any more.
    pub fn leave_matching(&self, pattern: &[u8], id: u64) -> bool {
        let mut state = self.lock();
        let Some(hearers) = state.patterns.get_mut(pattern) else { return false };
        let was_there = hearers.remove(&id).is_some();
        if hearers.is_empty() {
            state.patterns.remove(pattern);
        }
        self.count(was_there, false)
    }

    fn count(&self, is_change: bool, is_more: bool) -> bool {
        match (is_change, is_more) {
            (false, _) => {}
            (true, true) => drop(self.wishes.fetch_add(1, Ordering::Release)),
            (true, false) => drop(self.wishes.fetch_sub(1, Ordering::Release)),
        }
        is_change
    }

    /// True if somebody hears something.
    #[inline]
    pub fn has_hearers(&self) -> bool {
        self.wishes.load(Ordering::Acquire) > 0
    }

    /// Sends a message to everybody who hears the channel; how many letters that were.
    pub fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        if !self.has_hearers() {
            return 0;
        }
        let message = Arc::new(Message::new(&self.post, channel, payload));
        let state = self.lock();
        let mut sent = 0;
        for mailbox in state.channels.get(channel).into_iter().flat_map(BTreeMap::values) {
            mailbox.put(Letter { message: Arc::clone(&message), pattern: None });
            sent += 1;
        }
        for (pattern, hearers) in &state.patterns {
            if !glob::matches(pattern, channel) {
                continue;
            }
            for mailbox in hearers.values() {
                let pattern = Some(Arc::clone(pattern));
                mailbox.put(Letter { message: Arc::clone(&message), pattern });
                sent += 1;
            }
        }
        sent
    }

    /// How many letters a message in this channel would be.
    pub fn reach(&self, channel: &[u8]) -> usize {
        if !self.has_hearers() {
            return 0;
        }
        let state = self.lock();
        let itself = state.channels.get(channel).map_or(0, BTreeMap::len);
        let matching = state.patterns.iter().filter(|(one, _)| glob::matches(one, channel));
        itself + matching.map(|(_, hearers)| hearers.len()).sum::<usize>()
    }

    /// How many channels somebody hears.
    pub fn channel_count(&self) -> usize {
        self.lock().channels.len()
    }

    /// The channels that somebody hears, in the order of their names: so many at the most, those
    /// behind `last`.
    pub fn channels(&self, last: Option<&[u8]>, most: usize) -> Vec<Vec<u8>> {
        let state = self.lock();
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = state.channels.range::<[u8], _>((behind, Bound::Unbounded));
        names.take(most).map(|(name, _)| name.clone()).collect()
    }

    /// How many hear a channel itself.
    pub fn hearers(&self, channel: &[u8]) -> usize {
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
        let hub = Hub::new(usize::MAX);
        let mailbox = || Arc::new(Mailbox::new(9999, &hub.post));
        let (one, two) = (mailbox(), mailbox());
        assert_eq!(hub.publish(b"{ns},c", b"m"), 0);
        assert!(hub.hear(b"{ns},c", 1, &one));
        assert!(!hub.hear(b"{ns},c", 1, &one), "once is enough");
        assert!(hub.hear_matching(b"{ns},*", 2, &two));
        assert!(hub.hear(b"", 2, &two), "sdlgo begins with the empty channel");
        assert_eq!((hub.reach(b"{ns},c"), hub.reach(b"other")), (2, 0));
        assert_eq!(hub.publish(b"{ns},c", b"m"), 2);
        assert_eq!(hub.publish(b"other", b"m"), 0);
        assert_eq!(hub.channel_count(), 2);
        assert_eq!((hub.hearers(b"{ns},c"), hub.patterns()), (1, 1));
        assert_eq!(hub.channels(None, 9), [b"".to_vec(), b"{ns},c".to_vec()]);
        assert_eq!(hub.channels(Some(b""), 9), [b"{ns},c".to_vec()]);
        assert_eq!(hub.channels(None, 1), [b"".to_vec()]);
        assert!(hub.leave(b"{ns},c", 1) && !hub.leave(b"{ns},c", 1));
        assert!(hub.leave_matching(b"{ns},*", 2) && hub.leave(b"", 2));
        assert!(!hub.has_hearers());
        assert!(hub.channels(None, 9).is_empty());
    }
}

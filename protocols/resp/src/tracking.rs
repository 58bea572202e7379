//! `CLIENT TRACKING`: clients that cache records are told which keys have changed.
//!
//! The changes come from the watches of the region, so that changes by embedded processes and other
//! nodes are reported as well. A key is tracked *before* it is read: a change after the read is
//! later in the watch than the tracking. What is uncertain (a watch that lost events, a namespace
//! that was not watched from its first record on) invalidates everything. A client may therefore be
//! told too much, and never too little.

use crate::acl::User;
use crate::pubsub::mailbox::{Delivery, Mailbox, Message, MessageBudget, MessageKind};
use nearstate_store::OwnChange;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pairs of a key and a client that are tracked: some 16 MiB, and the keys. Above it, tracked keys
/// are invalidated as if they had changed.
pub const TRACKED_MAX: usize = 65_536;

/// Bytes of tracked keys.
pub const TRACKED_BYTES_MAX: usize = 16 << 20;

/// Prefixes of all clients in broadcasting mode. Each change is compared with all of them, which
/// takes some microseconds.
pub const PREFIXES_MAX: usize = 1024;

/// Changes of one client with `NOLOOP` whose events have not arrived: two of the largest
/// transactions. Above it, the client is told about its own changes.
const OWN_CHANGES_MAX: usize = 8192;

/// The tracking clients.
#[derive(Debug, Default)]
pub struct Tracking {
    /// True if there are any. Written under the lock.
    is_any: AtomicBool,
    state: Mutex<TrackingState>,
}

#[derive(Debug, Default)]
struct TrackingState {
    clients: BTreeMap<u64, TrackingClient>,
    /// The clients that may have cached a key. Ids of connections that are closed may remain.
    keys: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// Number of pairs in `keys`.
    pairs: usize,
    key_bytes: usize,
    /// The clients in broadcasting mode, by prefix.
    prefixes: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// The clients with `NOLOOP`.
    no_loop: BTreeMap<u64, OwnRequests>,
}

/// The changes by a client with `NOLOOP`.
#[derive(Debug, Default)]
struct OwnRequests {
    /// A request is running. What it changes is known at its end.
    is_running: bool,
    /// Changes whose events have not arrived.
    changes: BTreeSet<OwnChange>,
    /// Events that have arrived during the request, with the keys as clients write them.
    held: Vec<(OwnChange, Vec<u8>)>,
}

/// Which connection receives the invalidations of a client.
#[derive(Clone, Debug)]
pub enum InvalidationReceiver {
    /// Its own one.
    Own,
    /// Another one (`REDIRECT`), by its id.
    Other(u64, Arc<Mailbox>),
    /// The other one is closed: none does.
    Broken,
}

/// A client that tracks.
#[derive(Clone, Debug)]
pub struct TrackingClient {
    /// Receives only keys that this user may access.
    pub user: Option<Arc<User>>,
    /// Its own messages.
    pub mailbox: Arc<Mailbox>,
    /// Which connection receives its invalidations.
    pub receiver: InvalidationReceiver,
    /// Prefixes in broadcasting mode; empty in default mode.
    pub prefixes: BTreeSet<Vec<u8>>,
    /// It is not told about its own changes.
    pub is_no_loop: bool,
}

impl TrackingClient {
    /// Queues an invalidation, if a connection receives it.
    fn put(&self, message: &Arc<Message>) {
        let mailbox = match &self.receiver {
            InvalidationReceiver::Own => &self.mailbox,
            InvalidationReceiver::Other(_, mailbox) => mailbox,
            InvalidationReceiver::Broken => return,
        };
        mailbox.put(Delivery { message: Arc::clone(message), pattern: None });
    }
}

impl Tracking {
    fn lock(&self) -> MutexGuard<'_, TrackingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a client tracks. Takes no lock.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Adds or replaces a client. `false`: all clients together would have too many prefixes.
    pub fn add(&self, id: u64, client: TrackingClient) -> bool {
        let mut state = self.lock();
        let fresh = client.prefixes.iter().filter(|one| !state.prefixes.contains_key(*one)).count();
        if state.prefixes.len() + fresh > PREFIXES_MAX {
            return false;
        }
        for prefix in &client.prefixes {
            state.prefixes.entry(prefix.clone()).or_default().insert(id);
        }
        if client.is_no_loop {
            state.no_loop.entry(id).or_default();
        } else {
            state.no_loop.remove(&id);
        }
        state.clients.insert(id, client);
        self.is_any.store(true, Ordering::Release);
        true
    }

    /// Removes a client. Returns true if none is left.
    pub fn remove(&self, id: u64) -> bool {
        let mut state = self.lock();
        state.no_loop.remove(&id);
        if let Some(client) = state.clients.remove(&id) {
            for prefix in &client.prefixes {
                if let Some(ids) = state.prefixes.get_mut(prefix) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        state.prefixes.remove(prefix);
                    }
                }
            }
        }
        if !state.clients.is_empty() {
            return false;
        }
        *state = TrackingState::default();
        self.is_any.store(false, Ordering::Release);
        true
    }

    /// A connection is closed: the clients that redirect to it are told, and receive nothing more.
    pub fn close_redirections(&self, target: u64, budget: &Arc<MessageBudget>) {
        let mut state = self.lock();
        let is_redirecting = |client: &&mut TrackingClient| match &client.receiver {
            InvalidationReceiver::Other(id, _) => *id == target,
            InvalidationReceiver::Own | InvalidationReceiver::Broken => false,
        };
        for client in state.clients.values_mut().filter(is_redirecting) {
            client.receiver = InvalidationReceiver::Broken;
            let payload = target.to_string();
            let kind = MessageKind::RedirectBroken;
            let message = Arc::new(Message::of_kind(budget, kind, payload.as_bytes()));
            client.mailbox.put(Delivery { message, pattern: None });
        }
    }

    /// The user of a connection has changed.
    pub fn set_user(&self, id: u64, user: Option<&Arc<User>>) {
        if let Some(client) = self.lock().clients.get_mut(&id) {
            client.user = user.cloned();
        }
    }

    /// Tracks keys that a client is about to read.
    pub fn track<'k>(
        &self,
        id: u64,
        keys: impl Iterator<Item = &'k [u8]>,
        budget: &Arc<MessageBudget>,
    ) {
        let mut state = self.lock();
        for key in keys {
            if !state.keys.contains_key(key) {
                state.keys.insert(key.to_vec(), BTreeSet::new());
                state.key_bytes += key.len();
            }
            let is_new = state.keys.get_mut(key).is_some_and(|ids| ids.insert(id));
            state.pairs += usize::from(is_new);
            while state.pairs > TRACKED_MAX || state.key_bytes > TRACKED_BYTES_MAX {
                let Some((key, ids)) = state.pop_first() else { break };
                state.send(&key, &ids, budget);
            }
        }
    }

    /// A client with `NOLOOP` begins a request. Events are held back until its end.
    pub fn begin_request(&self, id: u64) {
        if let Some(own) = self.lock().no_loop.get_mut(&id) {
            own.is_running = true;
        }
    }

    /// A request of a client with `NOLOOP` has made these changes.
    pub fn end_request(&self, id: u64, changes: Vec<OwnChange>, budget: &Arc<MessageBudget>) {
        let mut state = self.lock();
        let Some(own) = state.no_loop.get_mut(&id) else { return };
        own.is_running = false;
        if own.changes.len() + changes.len() > OWN_CHANGES_MAX {
            own.changes.clear();
        }
        own.changes.extend(changes.into_iter().take(OWN_CHANGES_MAX));
        let mut held = std::mem::take(&mut own.held);
        held.retain(|(change, _)| !own.changes.remove(change));
        for (_, key) in held {
            state.send(&key, &BTreeSet::from([id]), budget);
        }
    }

    /// A key was created, changed or deleted. `change` is `None` if it has expired.
    pub fn invalidate(&self, key: &[u8], change: Option<&OwnChange>, budget: &Arc<MessageBudget>) {
        let mut state = self.lock();
        let mut ids = state.take(key);
        let readers = if state.no_loop.is_empty() { BTreeSet::new() } else { ids.clone() };
        // A prefix of a key is not greater than the key.
        let prefixes = state.prefixes.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        for (_, more) in prefixes.filter(|(prefix, _)| key.starts_with(prefix)) {
            ids.extend(more);
        }
        if let Some(change) = change.filter(|_| !state.no_loop.is_empty()) {
            state.hold_back(key, change, &mut ids, &readers);
        }
        state.send(key, &ids, budget);
    }

    /// Everything may have changed. Clients that have nothing cached are not told.
    pub fn invalidate_all(&self, budget: &Arc<MessageBudget>) {
        let mut state = self.lock();
        for own in state.no_loop.values_mut() {
            own.changes.clear();
            own.held.clear();
        }
        let keys = std::mem::take(&mut state.keys);
        (state.pairs, state.key_bytes) = (0, 0);
        let mut ids: BTreeSet<u64> = keys.into_values().flatten().collect();
        ids.extend(state.prefixes.values().flatten());
        let message = Arc::new(Message::of_kind(budget, MessageKind::InvalidateAll, b""));
        for client in ids.iter().filter_map(|id| state.clients.get(id)) {
            client.put(&message);
        }
    }

    /// Number of tracking clients, of tracked keys, and of prefixes.
    pub fn counts(&self) -> [usize; 3] {
        let state = self.lock();
        [state.clients.len(), state.keys.len(), state.prefixes.len()]
    }
}

impl TrackingState {
    /// Removes a key. Returns the clients that may have cached it.
    fn take(&mut self, key: &[u8]) -> BTreeSet<u64> {
        let Some((key, ids)) = self.keys.remove_entry(key) else { return BTreeSet::new() };
        self.uncount(&key, &ids);
        ids
    }

    /// Removes the clients that made the change themselves, or may have made it in the request that
    /// they are running. Those of `readers` remain interested in the key.
    fn hold_back(
        &mut self,
        key: &[u8],
        change: &OwnChange,
        ids: &mut BTreeSet<u64>,
        readers: &BTreeSet<u64>,
    ) {
        for (id, own) in &mut self.no_loop {
            let is_own = own.changes.remove(change);
            let is_held = own.is_running && own.held.len() < OWN_CHANGES_MAX;
            if !(is_own || is_held) || !ids.remove(id) {
                continue;
            }
            if !is_own {
                own.held.push((change.clone(), key.to_vec()));
            }
            if readers.contains(id) {
                if !self.keys.contains_key(key) {
                    self.keys.insert(key.to_vec(), BTreeSet::new());
                    self.key_bytes += key.len();
                }
                let is_new = self.keys.get_mut(key).is_some_and(|ids| ids.insert(*id));
                self.pairs += usize::from(is_new);
            }
        }
    }

    fn pop_first(&mut self) -> Option<(Vec<u8>, BTreeSet<u64>)> {
        let (key, ids) = self.keys.pop_first()?;
        self.uncount(&key, &ids);
        Some((key, ids))
    }

    fn uncount(&mut self, key: &[u8], ids: &BTreeSet<u64>) {
        self.pairs -= ids.len();
        self.key_bytes -= key.len();
    }

    fn send(&self, key: &[u8], ids: &BTreeSet<u64>, budget: &Arc<MessageBudget>) {
        if ids.is_empty() {
            return;
        }
        let message = Arc::new(Message::of_kind(budget, MessageKind::Invalidate, key));
        for client in ids.iter().filter_map(|id| self.clients.get(id)) {
            if client.user.as_ref().is_some_and(|user| user.may_touch(key)) {
                client.put(&message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::Users;
    use crate::table::TABLE;

    fn budget() -> Arc<MessageBudget> {
        Arc::new(MessageBudget::new(usize::MAX))
    }

    fn client(lines: &str, prefixes: &[&str]) -> TrackingClient {
        let users = Users::parse(lines, &TABLE).unwrap_or_else(|_| Users::open(&TABLE));
        let prefixes = prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
        let mailbox = Arc::new(Mailbox::new(1 << 20, &budget()));
        TrackingClient {
            user: users.initial_user().cloned(),
            mailbox,
            receiver: InvalidationReceiver::Own,
            prefixes,
            is_no_loop: false,
        }
    }

    fn keys(client: &TrackingClient) -> Vec<String> {
        let text = |delivery: Delivery| String::from_utf8_lossy(&delivery.message.payload).into();
        client.mailbox.take_all().into_iter().map(text).collect()
    }

    #[test]
    fn a_change_is_sent_once_to_the_clients_that_have_read_the_key() {
        let (tracking, budget) = (Tracking::default(), budget());
        let [one, two] = [client("", &[]), client("", &[])];
        assert!(tracking.add(1, one.clone()) && tracking.add(2, two.clone()));
        tracking.track(1, [&b"k"[..], b"l", b"k"].into_iter(), &budget);
        tracking.track(2, [&b"k"[..]].into_iter(), &budget);
        tracking.track(3, [&b"k"[..]].into_iter(), &budget);
        for key in [&b"k"[..], b"k", b"other"] {
            tracking.invalidate(key, None, &budget);
        }
        assert_eq!((keys(&one), keys(&two)), (vec!["k".to_owned()], vec!["k".to_owned()]));
        tracking.invalidate_all(&budget);
        assert_eq!((keys(&one).len(), keys(&two).len()), (1, 0), "two has nothing cached");
        assert!(!tracking.remove(1) && tracking.is_any());
        assert!(tracking.remove(2) && !tracking.is_any());
        assert_eq!(tracking.counts(), [0; 3]);
    }

    #[test]
    fn broadcasting_clients_receive_the_keys_of_their_prefixes_that_they_may_read() {
        let (tracking, budget) = (Tracking::default(), budget());
        let every = client("", &[""]);
        let some = client("", &["{a},", "x"]);
        let limited = client("user default on nopass +@all ~{a},*", &[""]);
        for (id, client) in [(1, &every), (2, &some), (3, &limited)] {
            assert!(tracking.add(id, client.clone()));
        }
        for key in [&b"{a},k"[..], b"{b},k", b"x", b"xy", b""] {
            tracking.invalidate(key, None, &budget);
        }
        assert_eq!(keys(&every).len(), 5);
        assert_eq!(keys(&some), ["{a},k", "x", "xy"]);
        assert_eq!(keys(&limited), ["{a},k"]);
        let many: Vec<String> = (0..PREFIXES_MAX).map(|number| format!("{number}:")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(!tracking.add(4, client("", &many)));
        tracking.remove(2);
        tracking.invalidate(b"x", None, &budget);
        assert!(keys(&some).is_empty());
    }

    #[test]
    fn above_the_limit_tracked_keys_are_invalidated() {
        let (tracking, budget) = (Tracking::default(), budget());
        let one = client("", &[]);
        tracking.add(1, TrackingClient { mailbox: Arc::clone(&one.mailbox), ..client("", &[]) });
        let large = vec![b'k'; 4096];
        for number in 0..=u32::try_from(TRACKED_BYTES_MAX / 4100).unwrap_or_default() + 10 {
            let key = [&number.to_be_bytes()[..], &large].concat();
            tracking.track(1, std::iter::once(&key[..]), &budget);
        }
        let [_, tracked, _] = tracking.counts();
        assert!(tracked * 4100 <= TRACKED_BYTES_MAX, "{tracked}");
        assert!(!one.mailbox.take_all().is_empty());
    }

    #[test]
    fn a_client_with_noloop_is_told_about_the_changes_of_others_only() {
        let (tracking, budget) = (Tracking::default(), budget());
        let [own, other] = [client("", &[]), client("", &[""])];
        let own = TrackingClient { is_no_loop: true, ..own };
        assert!(tracking.add(1, own.clone()) && tracking.add(2, other.clone()));
        let change = |version: u64, is_deleted: bool| OwnChange {
            namespace: 1,
            key: b"k".to_vec(),
            version,
            is_deleted,
        };
        let event = |change: OwnChange| tracking.invalidate(b"k", Some(&change), &budget);
        tracking.track(1, std::iter::once(&b"k"[..]), &budget);
        // The event arrives after the request.
        tracking.begin_request(1);
        tracking.end_request(1, vec![change(1, false), change(1, true)], &budget);
        event(change(1, false));
        event(change(1, true));
        assert_eq!((keys(&own).len(), keys(&other).len()), (0, 2));
        // It arrives during the request, and so does that of another client.
        tracking.begin_request(1);
        event(change(2, false));
        event(change(3, false));
        assert!(keys(&own).is_empty(), "held until the end of the request");
        tracking.end_request(1, vec![change(3, false)], &budget);
        assert_eq!((keys(&own), keys(&other).len()), (vec!["k".to_owned()], 2));
        // The key is still tracked after an own change.
        event(change(4, false));
        assert_eq!(keys(&own), ["k"]);
        event(change(5, false));
        assert!(keys(&own).is_empty(), "not tracked any more");
        tracking.track(1, std::iter::once(&b"k"[..]), &budget);
        tracking.invalidate(b"k", None, &budget);
        assert_eq!(keys(&own), ["k"], "an expiry is told");
    }
}

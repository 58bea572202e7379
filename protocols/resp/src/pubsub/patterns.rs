//! Index of subscribed patterns by literal prefix: a channel is compared only with the patterns
//! whose prefixes it starts with.

use crate::pubsub::mailbox::Mailbox;
use nearstate_store::glob;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum bytes of a search prefix: enough to distinguish namespaces and the first parts of keys.
/// The comparison decides about the rest.
const BEGIN_BYTES_MAX: usize = 64;

/// From this number on, new patterns are merged into the index: sorting sixteen thousand patterns
/// takes as long as inserting some tens of them one by one.
const MERGED_MIN: usize = 32;

/// Subscribers by connection id.
pub(super) type Subscribers = BTreeMap<u64, Arc<Mailbox>>;

/// A pattern and its subscribers.
#[derive(Debug)]
pub(super) struct PatternSubscribers {
    pub(super) pattern: Arc<[u8]>,
    /// Prefix of every matching channel, truncated to the maximum.
    prefix: Box<[u8]>,
    subscribers: Mutex<Subscribers>,
}

impl PatternSubscribers {
    pub(super) fn new(pattern: &[u8]) -> Self {
        let prefix = glob::literal_begin(pattern, BEGIN_BYTES_MAX).into_boxed_slice();
        Self { pattern: Arc::from(pattern), prefix, subscribers: Mutex::default() }
    }

    /// The subscribers; empty if the pattern was removed from the index in the meantime.
    pub(super) fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sort_key(&self) -> (&[u8], &[u8]) {
        (&self.prefix, &self.pattern)
    }
}

/// All patterns. Copying copies one pointer for each.
#[derive(Clone, Debug, Default)]
pub(super) struct PatternIndex {
    /// Ascending by prefix, then by pattern.
    sorted: Vec<Arc<PatternSubscribers>>,
}

impl PatternIndex {
    pub(super) const fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    fn position(&self, pattern: &[u8]) -> Option<usize> {
        let prefix = glob::literal_begin(pattern, BEGIN_BYTES_MAX);
        let target = (prefix.as_slice(), pattern);
        self.sorted.binary_search_by(|entry| entry.sort_key().cmp(&target)).ok()
    }

    pub(super) fn get(&self, pattern: &[u8]) -> Option<&Arc<PatternSubscribers>> {
        self.position(pattern).and_then(|at| self.sorted.get(at))
    }

    /// Adds patterns that are not in the index.
    pub(super) fn add(&mut self, new_entries: Vec<Arc<PatternSubscribers>>) {
        if new_entries.len() < MERGED_MIN {
            for entry in new_entries {
                let at =
                    self.sorted.partition_point(|existing| existing.sort_key() < entry.sort_key());
                self.sorted.insert(at, entry);
            }
            return;
        }
        self.sorted.extend(new_entries);
        // Two sorted runs: a merge.
        self.sorted.sort_by(|one, other| one.sort_key().cmp(&other.sort_key()));
    }

    pub(super) fn remove(&mut self, pattern: &[u8]) {
        if let Some(at) = self.position(pattern) {
            self.sorted.remove(at);
        }
    }

    /// The patterns that a channel matches.
    pub(super) fn matching(&self, channel: &[u8]) -> Vec<Arc<PatternSubscribers>> {
        let mut found = Vec::new();
        self.each_with_prefix(channel, |entry| {
            if glob::matches(&entry.pattern, channel) {
                found.push(Arc::clone(entry));
            }
        });
        found
    }

    /// Calls `each` with the patterns whose prefixes the channel starts with.
    fn each_with_prefix(&self, channel: &[u8], mut each: impl FnMut(&Arc<PatternSubscribers>)) {
        // Patterns whose prefixes start with the first `depth` bytes of the channel.
        let mut candidates = self.sorted.as_slice();
        for depth in 0..=BEGIN_BYTES_MAX {
            let ended = candidates.partition_point(|entry| entry.prefix.len() == depth);
            candidates.iter().take(ended).for_each(&mut each);
            let (longer, byte) = (candidates.get(ended..).unwrap_or_default(), channel.get(depth));
            if longer.is_empty() || byte.is_none() {
                return;
            }
            let from = longer.partition_point(|entry| entry.prefix.get(depth) < byte);
            let until = longer.partition_point(|entry| entry.prefix.get(depth) <= byte);
            candidates = longer.get(from..until).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(pattern: &[u8]) -> Arc<PatternSubscribers> {
        Arc::new(PatternSubscribers::new(pattern))
    }

    fn candidates(patterns: &PatternIndex, channel: &[u8]) -> usize {
        let mut count = 0;
        patterns.each_with_prefix(channel, |_| count += 1);
        count
    }

    #[test]
    fn a_channel_is_matched_only_against_patterns_with_its_prefix() {
        let mut patterns = PatternIndex::default();
        let named = (0..10_000).map(|number| entry(format!("{{ns{number}}},*").as_bytes()));
        patterns.add(named.collect());
        assert_eq!(candidates(&patterns, b"{ns77},k"), 1);
        assert_eq!(candidates(&patterns, b"{ns},k"), 0);
        let all = ["*", "?ns77*", "{ns77},k*", "{ns77},k", "\\{ns77},[k]"];
        patterns.add(all.map(|pattern| entry(pattern.as_bytes())).to_vec());
        assert_eq!(candidates(&patterns, b"{ns77},k"), 6);
        assert_eq!(patterns.matching(b"{ns77},k").len(), 6);
        assert_eq!((candidates(&patterns, b""), patterns.matching(b"").len()), (2, 1));
        // Patterns with equal prefixes of the maximum length are distinguished by the comparison.
        let long = |last: &str| format!("{}{last}*", "x".repeat(BEGIN_BYTES_MAX));
        patterns.add(["a", "b"].map(|last| entry(long(last).as_bytes())).to_vec());
        let channel = long("a").into_bytes();
        assert_eq!((candidates(&patterns, &channel), patterns.matching(&channel).len()), (4, 2));
    }

    proptest! {
        #[test]
        fn the_patterns_that_match_are_found(
            names in prop::collection::btree_set("[ab*?\\[\\]\\\\]{0,6}", 0..40),
            channels in prop::collection::vec("[ab*\\\\\\[]{0,6}", 1..10),
            gone in 0_usize..40,
        ) {
            let mut patterns = PatternIndex::default();
            for name in &names {
                patterns.add(vec![entry(name.as_bytes())]);
            }
            let left: Vec<&String> =
                names.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, n)| n).collect();
            if let Some(name) = names.iter().nth(gone) {
                patterns.remove(name.as_bytes());
                prop_assert!(patterns.get(name.as_bytes()).is_none());
            }
            prop_assert_eq!(patterns.len(), left.len());
            for channel in &channels {
                let mut found: Vec<_> = patterns.matching(channel.as_bytes()).iter()
                    .map(|entry| entry.pattern.to_vec()).collect();
                found.sort();
                let target: Vec<_> = left.iter().map(|name| name.as_bytes().to_vec())
                    .filter(|name| glob::matches(name, channel.as_bytes())).collect();
                prop_assert_eq!(found, target);
            }
        }
    }
}

//! Removal of the indexes of abandoned tags.

use nearstate_model::{Error, Result, invariant};

use super::walk::BucketWalk;
use super::{LOCKS_PER_BUCKET, PendingTagDeclaration, TrackedTags};
use crate::index::internal::{count_key, list_prefix, posting_key, schema_key, tag_root};
use crate::index::schema::{Tag, TagSet, TagState};
use crate::record::Kind;
use crate::session::{Namespace, Session};
use crate::txn::write_set::WriteSet;

/// The number of keys that one transaction removes from an ordered index.
const KEYS_REMOVED: usize = 32;

/// Buckets of the internal namespace that a part searches, per bucket whose records it would add to
/// an index: few of their keys belong to an abandoned tag.
const SEARCHED_PER_BUCKET: u64 = 4;

/// The removal of the indexes of abandoned tags.
#[derive(Debug)]
pub(super) struct Clearing {
    leaving: Vec<Tag>,
    /// Every lock is waited for first: a writer may still maintain the tags.
    locks: BucketWalk,
    /// The index in `leaving` of the current tag.
    tag: usize,
    /// The search for the tag's postings in the internal namespace; `None` while its ordered index,
    /// if it has one, is emptied.
    postings: Option<BucketWalk>,
    /// The numbers of the tags.
    tracked: TrackedTags,
    /// Why this declaration has abandoned them; `None` if they were abandoned before.
    pub(super) why: Option<Error>,
}

impl Session {
    /// Starts the removal of the indexes of abandoned tags, of any declaration; `None` if there are
    /// none.
    pub(super) fn clearing(
        &self,
        namespace: Namespace,
        why: Option<Error>,
    ) -> Result<Option<Clearing>> {
        let tags = self.tag_set(namespace.index)?;
        let leaving: Vec<Tag> =
            tags.tags().filter(|tag| tag.state == TagState::Leaving).cloned().collect();
        if leaving.is_empty() {
            return Ok(None);
        }
        let ids: Vec<u8> = leaving.iter().map(|tag| tag.id).collect();
        invariant!(ids.is_sorted_by(|one, next| one < next), "tags are in the order of numbers");
        let tracked = TrackedTags { ids, generation: tags.generation };
        let locks = self.locks_of(namespace)?;
        Ok(Some(Clearing { leaving, locks, tag: 0, postings: None, tracked, why }))
    }

    /// Removes a part of the indexes. At the end it frees the tags' numbers and returns false.
    ///
    /// It reads the indexes, not the records, which may have changed since they were indexed.
    pub(super) fn clear_some(
        &self,
        declaring: &mut PendingTagDeclaration,
        clearing: &mut Clearing,
        buckets: u64,
    ) -> Result<bool> {
        let namespace = declaring.namespace;
        if !self.is_unchanged(declaring, &mut clearing.tracked, TagState::Leaving)? {
            return self.restart_clearing(namespace, clearing);
        }
        if !clearing.locks.is_done() {
            let part = clearing.locks.take(buckets.saturating_mul(LOCKS_PER_BUCKET));
            self.member.drain_buckets(self.table(namespace)?, part)?;
            return Ok(true);
        }
        invariant!(
            clearing.tag <= clearing.leaving.len(),
            "tag {} of {} is emptied",
            clearing.tag,
            clearing.leaving.len()
        );
        let Some(tag) = clearing.leaving.get(clearing.tag) else {
            return self.end_clearing(declaring, clearing);
        };
        let Some(postings) = &mut clearing.postings else {
            let has_more = tag.is_ordered && self.remove_some_keys(declaring, tag)?;
            if !has_more {
                let internal = Namespace { index: self.internal_table()?, kind: Kind::Value };
                clearing.postings = Some(self.part_of(internal)?);
            }
            return Ok(true);
        };
        self.restart_if_grown(
            Namespace { index: self.internal_table()?, kind: Kind::Value },
            postings,
        )?;
        let searched = buckets.saturating_mul(SEARCHED_PER_BUCKET);
        self.remove_some_postings(declaring, tag, (postings, searched))?;
        if postings.is_done() {
            invariant!(clearing.locks.is_done(), "locks are waited for before an index is emptied");
            (clearing.tag, clearing.postings) = (clearing.tag + 1, None);
        }
        Ok(true)
    }

    /// Frees the numbers of the tags, whose indexes are empty. True if other tags have been
    /// abandoned since.
    fn end_clearing(
        &self,
        declaring: &PendingTagDeclaration,
        clearing: &mut Clearing,
    ) -> Result<bool> {
        let states = (TagState::Leaving, TagState::Gone);
        if self.move_tags(declaring, states, &clearing.tracked)? {
            return Ok(false);
        }
        self.restart_clearing(declaring.namespace, clearing)
    }

    /// Restarts after another session has changed the abandoned tags. False if there are none.
    fn restart_clearing(&self, namespace: Namespace, clearing: &mut Clearing) -> Result<bool> {
        let Some(again) = self.clearing(namespace, None)? else { return Ok(false) };
        *clearing = Clearing { why: clearing.why.take(), ..again };
        Ok(true)
    }

    /// Removes the first keys of a tag's ordered index. False if it is empty.
    fn remove_some_keys(&self, declaring: &PendingTagDeclaration, tag: &Tag) -> Result<bool> {
        let namespace = declaring.namespace;
        let root = tag_root(namespace.index, tag.id);
        self.run(declaring, |txn| {
            let mut set = txn.set.borrow_mut();
            if !set.is_in(namespace, tag.id, TagState::Leaving)? {
                return Ok(false); // Another session has finished it.
            }
            let mut scratch = set.buffers.take_scratch();
            let mut key = Vec::new();
            let mut step = |set: &mut WriteSet<'_>| {
                let has_key = scratch.ordered.first(set, root, &mut key)?;
                Ok(has_key && scratch.ordered.remove(set, root, &key)?)
            };
            let mut has_more = Ok(true);
            for _ in 0..KEYS_REMOVED {
                has_more = step(&mut set);
                if !matches!(has_more, Ok(true)) {
                    break;
                }
            }
            set.buffers.give_scratch(scratch);
            has_more
        })
    }

    /// Removes a tag's postings and counts from some buckets of the internal namespace.
    fn remove_some_postings(
        &self,
        declaring: &PendingTagDeclaration,
        tag: &Tag,
        part: (&mut BucketWalk, u64),
    ) -> Result<()> {
        let namespace = declaring.namespace;
        let internal = Namespace { index: self.internal_table()?, kind: Kind::Value };
        let mut prefixes = [Vec::new(), Vec::new(), Vec::new()];
        let [postings, lists, counts] = &mut prefixes;
        posting_key(namespace.index, tag.id, &[], postings);
        list_prefix(namespace.index, tag.id, lists);
        // In the key of a count, the stripe follows the tag.
        count_key(namespace.index, tag.id, 0, &[], counts);
        let stripe = counts.pop();
        invariant!(stripe == Some(0), "the stripe ends the prefix of a count");
        let is_of_tag = |key: &[u8]| prefixes.iter().any(|prefix| key.starts_with(prefix));
        self.each_key(internal, part, is_of_tag, |key| {
            self.run(declaring, |txn| {
                let mut set = txn.set.borrow_mut();
                if set.is_in(namespace, tag.id, TagState::Leaving)? {
                    set.delete_internal(key)?;
                }
                Ok(())
            })
        })
    }
}

impl WriteSet<'_> {
    /// True if a tag is in this state. The state is part of the read set.
    fn is_in(&mut self, namespace: Namespace, id: u8, state: TagState) -> Result<bool> {
        let tags =
            self.internal_value(&schema_key(namespace.index), TagSet::decode)?.transpose()?;
        let is_in = |tag: &Tag| tag.id == id && tag.state == state;
        Ok(tags.is_some_and(|tags| tags.tags().any(is_in)))
    }
}

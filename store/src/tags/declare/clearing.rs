//! Taking away the indexes of tags that were given up.

use nearstate_model::{Error, Result, invariant};

use super::walk::BucketWalk;
use super::{LOCKS_FOR_EACH, PendingTagDeclaration, TrackedTags};
use crate::index::internal::{count_key, list_prefix, posting_key, schema_key, tag_root};
use crate::index::schema::{Tag, TagSet, TagState};
use crate::record::Kind;
use crate::session::{Namespace, Session};
use crate::txn::write_set::WriteSet;

/// Keys that one transaction takes out of an index that is being emptied.
const KEYS_TAKEN: usize = 32;

/// Buckets of the internal index that are looked through for each bucket whose records would be
/// entered: few of their keys are an emptied tag's.
const LOOKS_FOR_EACH: u64 = 4;

/// The indexes of tags that were given up, while they are emptied.
#[derive(Debug)]
pub(super) struct Clearing {
    leaving: Vec<Tag>,
    /// Locks are passed first: a writer may still keep them.
    locks: BucketWalk,
    /// Which of the tags is being emptied.
    tag: usize,
    /// Where the internal index is looked through for its postings; `None`: its ordered index, if
    /// it has one, is emptied before.
    postings: Option<BucketWalk>,
    /// Their numbers.
    tracked: TrackedTags,
    /// Why they were given up just now; `None`: they were found so.
    pub(super) why: Option<Error>,
}

impl Session {
    /// Where to start emptying the indexes of abandoned tags, of any declaration; `None` if there
    /// are none.
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

    /// Empties a part of those indexes, and frees the tags' numbers at the end: false then. By the
    /// indexes themselves: records may have changed since they were entered.
    pub(super) fn clear_some(
        &self,
        declaring: &mut PendingTagDeclaration,
        clearing: &mut Clearing,
        buckets: u64,
    ) -> Result<bool> {
        let namespace = declaring.namespace;
        if !self.is_unchanged(declaring, &mut clearing.tracked, TagState::Leaving)? {
            return self.clear_anew(namespace, clearing);
        }
        if !clearing.locks.is_done() {
            let part = clearing.locks.take(buckets.saturating_mul(LOCKS_FOR_EACH));
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
            let has_more = tag.is_ordered && self.take_some_keys(declaring, tag)?;
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
        let looks = buckets.saturating_mul(LOOKS_FOR_EACH);
        self.take_some_postings(declaring, tag, (postings, looks))?;
        if postings.is_done() {
            invariant!(clearing.locks.is_done(), "the locks are passed before an index is emptied");
            (clearing.tag, clearing.postings) = (clearing.tag + 1, None);
        }
        Ok(true)
    }

    /// The indexes are empty: the numbers of their tags are free. True if there is something to be
    /// emptied all the same.
    fn end_clearing(
        &self,
        declaring: &PendingTagDeclaration,
        clearing: &mut Clearing,
    ) -> Result<bool> {
        let states = (TagState::Leaving, TagState::Gone);
        if self.move_tags(declaring, states, &clearing.tracked)? {
            return Ok(false);
        }
        self.clear_anew(declaring.namespace, clearing)
    }

    /// Another session has emptied those indexes. True if there are others to be emptied by now.
    fn clear_anew(&self, namespace: Namespace, clearing: &mut Clearing) -> Result<bool> {
        let Some(again) = self.clearing(namespace, None)? else { return Ok(false) };
        *clearing = Clearing { why: clearing.why.take(), ..again };
        Ok(true)
    }

    /// Takes the first keys out of a tag's ordered index. False if it is empty.
    fn take_some_keys(&self, declaring: &PendingTagDeclaration, tag: &Tag) -> Result<bool> {
        let namespace = declaring.namespace;
        let root = tag_root(namespace.index, tag.id);
        self.run(declaring, |txn| {
            let mut set = txn.set.borrow_mut();
            if !set.is_in(namespace, tag.id, TagState::Leaving)? {
                return Ok(false); // Another session has finished it.
            }
            let mut ordered = std::mem::take(&mut set.buffers.scratch.ordered);
            let mut key = Vec::new();
            let mut step = |set: &mut WriteSet<'_>| {
                let is_there = ordered.first(set, root, &mut key)?;
                Ok(is_there && ordered.remove(set, root, &key)?)
            };
            let mut has_more = Ok(true);
            for _ in 0..KEYS_TAKEN {
                has_more = step(&mut set);
                if !matches!(has_more, Ok(true)) {
                    break;
                }
            }
            set.buffers.scratch.ordered = ordered;
            has_more
        })
    }

    /// Takes a tag's postings and counts away, of some buckets of the internal index.
    fn take_some_postings(
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
        // A count's key has its stripe behind the tag.
        count_key(namespace.index, tag.id, 0, &[], counts);
        let stripe = counts.pop();
        invariant!(stripe == Some(0), "the stripe ends the prefix of a count");
        let is_its = |key: &[u8]| prefixes.iter().any(|prefix| key.starts_with(prefix));
        self.each_key(internal, part, is_its, |key| {
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
    /// True if a tag is in this state, and still is when the transaction commits.
    fn is_in(&mut self, namespace: Namespace, id: u8, state: TagState) -> Result<bool> {
        let tags =
            self.internal_value(&schema_key(namespace.index), TagSet::decode)?.transpose()?;
        let is_it = |tag: &Tag| tag.id == id && tag.state == state;
        Ok(tags.is_some_and(|tags| tags.tags().any(is_it)))
    }
}

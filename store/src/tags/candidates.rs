//! Searches in a namespace: `index/search.rs` defines and plans them, this module executes them.

use std::ops::Bound;

use nearstate_model::{Error, Result};

use crate::index::ordered::ReadMode;
use crate::index::schema::TagState;
use crate::index::search::{self, Access, Candidates, Lookup, Search, SearchWalk};
use crate::record::view::View;
use crate::scan::Scan;
use crate::session::{Namespace, Session};
use crate::tags::lookup::{IndexWalk, Values};
use crate::txn::write_set::WriteSet;

impl Session {
    /// Calls `each` once with the key of every matching record, at most `limit` times and until it
    /// returns false, in no defined order. Returns the number of calls.
    ///
    /// A record that matches during the whole call is found; one that changes during the call may
    /// be found or not. Cost: one record is read for each candidate of the best index; without a
    /// suitable index, every record.
    ///
    /// ```
    /// # use nearstate_store::{CreateOptions, Metadata, Region, Schema, TagSchema};
    /// # use nearstate_store::search::{Op, Search};
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// let tag = TagSchema { name: "ueId".to_owned(), is_unique: true, ..TagSchema::default() };
    /// let schema = Schema { tags: vec![tag], ..Schema::default() };
    /// let records = session.namespace("records", &schema)?;
    /// let metadata = Metadata { tags: &[("ueId", b"455345")], expires_ms: 0 };
    /// session.transact(|txn| txn.put_with_metadata(records, b"r1", b"block", metadata))?;
    ///
    /// let ue = Search::Compare { op: Op::Eq, tag: "ueId".to_owned(), value: b"455345".to_vec() };
    /// let mut found = Vec::new();
    /// session.search(records, &ue, 10, |key| {
    ///     found.push(key.to_vec());
    ///     true
    /// })?;
    /// assert_eq!(found, [b"r1"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `BadArgument` for a search that is too deep, too large or empty; `KeyTooLarge`; `Conflict`
    /// if an index changes faster than it can be walked; `Damaged`, `Forked`.
    pub fn search(
        &self,
        namespace: Namespace,
        search: &Search,
        limit: u64,
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> Result<u64> {
        let mut lookups = Lookups { session: self, namespace, set: WriteSet::new(self)? };
        search::find(search, &mut lookups, limit, |key| Ok(each(key)))
    }

    /// The number of matching records.
    ///
    /// # Errors
    /// As [`Session::search`].
    pub fn search_count(&self, namespace: Namespace, search: &Search) -> Result<u64> {
        self.search(namespace, search, u64::MAX, |_| true)
    }

    /// Begins a search that its caller continues in slices, such as one that serves other requests
    /// in between. Between two slices it holds no memory of the region, or that of a [`Scan`] if it
    /// reads all records.
    ///
    /// # Errors
    /// As [`Session::search`].
    pub fn search_slices<'s>(
        &'s self,
        namespace: Namespace,
        search: &'s Search,
    ) -> Result<SearchSlices<'s>> {
        let mut lookups = Lookups { session: self, namespace, set: WriteSet::new(self)? };
        let walk = SearchWalk::new(search, &mut lookups)?;
        Ok(SearchSlices { session: self, namespace, search, walk })
    }
}

/// A search in progress. As [`Session::search`], a record that matches during the whole search is
/// found once; one that changes during the search may be found or not.
#[derive(Debug)]
pub struct SearchSlices<'s> {
    session: &'s Session,
    namespace: Namespace,
    search: &'s Search,
    walk: SearchWalk<'s, Keys<'s>>,
}

impl<'s> SearchSlices<'s> {
    /// The memory of what was found so far, in bytes: the keys, if the sources of the search may
    /// repeat them. At most 8 MiB and a key.
    pub fn memory_bytes(&self) -> usize {
        self.walk.seen_bytes()
    }

    /// Reads at most so many candidates, and calls `each` once with those that match and their
    /// tags in ascending order, until it returns false. Returns whether there may be more
    /// candidates and `each` has not returned false.
    ///
    /// # Errors
    /// As [`Session::search`], and what `each` returns.
    pub fn next<E: From<Error>>(
        &mut self,
        candidates: u32,
        mut each: impl FnMut(&View<'_>, &[(&str, &[u8])]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let set = WriteSet::new(self.session)?;
        let mut lookups = Lookups { session: self.session, namespace: self.namespace, set };
        self.read(&mut lookups, candidates, &mut each)
    }

    fn read<E: From<Error>>(
        &mut self,
        lookups: &mut Lookups<'s>,
        candidates: u32,
        each: &mut impl FnMut(&View<'_>, &[(&str, &[u8])]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        for _ in 0..candidates {
            let Some(is_new) = self.walk.step(lookups)? else { return Ok(false) };
            if !is_new {
                continue;
            }
            let key = self.walk.key();
            let Some(view) = self.session.get_whole(self.namespace, key)? else { continue };
            let tags: Vec<(&str, &[u8])> = view.tags().collect();
            if self.search.matches(key, &tags) {
                self.walk.mark_found();
                if !each(&view, &tags)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The indexes of a namespace, for a search.
struct Lookups<'s> {
    session: &'s Session,
    namespace: Namespace,
    set: WriteSet<'s>,
}

/// A lookup in progress.
#[derive(Debug)]
enum Keys<'s> {
    One(Option<Vec<u8>>),
    Entries(Box<IndexWalk>),
    All(Box<Scan<'s>>),
}

impl<'s> Candidates for Lookups<'s> {
    type Keys = Keys<'s>;

    fn access(&mut self, tag: &str) -> Access {
        let Ok(tags) = self.session.tag_set(self.namespace.index) else { return Access::default() };
        match tags.tag(tag) {
            Some(known) if known.state == TagState::Ready => {
                let (by_posting, by_order) = (known.is_unique, known.is_ordered);
                Access { by_posting, by_value: known.has_lists(), by_order }
            }
            _ => Access::default(),
        }
    }

    fn estimate(&mut self, lookup: &Lookup<'_>, up_to: u64) -> Result<u64> {
        match lookup {
            Lookup::All => Ok(up_to),
            Lookup::Posting { .. } => Ok(1.min(up_to)),
            Lookup::Range { .. } => {
                let mut keys = self.open(lookup)?;
                let (mut count, mut key) = (0, Vec::new());
                while count < up_to && self.next(&mut keys, &mut key)? {
                    count += 1;
                }
                Ok(count)
            }
        }
    }

    fn open(&mut self, lookup: &Lookup<'_>) -> Result<Keys<'s>> {
        match lookup {
            Lookup::All => Ok(Keys::All(Box::new(self.session.scan(self.namespace)?))),
            Lookup::Posting { tag, value } => {
                let view = self.session.find(self.namespace, tag, value)?;
                Ok(Keys::One(view.map(|view| view.key().to_vec())))
            }
            Lookup::Range { tag, from, to } => {
                let tags = self.session.tag_set(self.namespace.index)?;
                let Some(known) = tags.tag(tag) else { return Ok(Keys::One(None)) };
                let values = match (*from, *to) {
                    (Bound::Included(from), Bound::Included(to)) if from == to => {
                        Values::Equal(from)
                    }
                    (from, to) => Values::Range(from, to),
                };
                let walk = IndexWalk::of_tag(self.namespace, known, values, ReadMode::Untracked);
                Ok(Keys::Entries(Box::new(walk)))
            }
        }
    }

    fn next(&mut self, keys: &mut Keys<'s>, key: &mut Vec<u8>) -> Result<bool> {
        key.clear();
        match keys {
            Keys::One(one) => match one.take() {
                Some(found) => key.extend_from_slice(&found),
                None => return Ok(false),
            },
            Keys::Entries(walk) => {
                if !walk.step(&mut self.set)? {
                    return Ok(false);
                }
                key.extend_from_slice(&walk.record);
            }
            Keys::All(scan) => match scan.next()? {
                Some(view) => key.extend_from_slice(view.key()),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn evaluate(
        &mut self,
        key: &[u8],
        evaluate: impl FnOnce(&[(&str, &[u8])]) -> bool,
    ) -> Result<bool> {
        let Some(view) = self.session.get(self.namespace, key)? else { return Ok(false) };
        let tags: Vec<(&str, &[u8])> = view.tags().collect();
        Ok(evaluate(&tags))
    }
}

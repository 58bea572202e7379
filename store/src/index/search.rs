//! Searches for records by their tags: the search expressions of TS 29.598.
//!
//! A tag may have several values. A comparison is defined as follows:
//!
//! | comparison | holds for a record if |
//! |---|---|
//! | `Eq`, `Gt`, `Gte`, `Lt`, `Lte` | some value of the tag compares so |
//! | `Neq` | it has the tag, and no value of it is equal |
//!
//! `Eq` and `Neq` exclude each other, and a record without a tag satisfies no comparison of it. To
//! include records without the tag, use `Not(Eq)`. `Gt 1 and Lt 5` may hold because of two
//! different values, such as 9 and 0: the comparisons of an `And` are independent and do not form a
//! range.
//!
//! Values are compared as byte strings, as in the public implementations: `"10" < "9"`.
//!
//! The plan (`search/plan.rs`) selects a part of the expression that an index can answer. It gives
//! the *candidates*, which include all matching records. Each candidate is checked against the
//! whole expression. So indexes affect the duration of a search, never its result.

mod plan;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Bound;

use nearstate_model::limits::{
    KEY_BYTES_MAX, SEARCH_DEPTH_MAX, SEARCH_UNITS_MAX, TAG_NAME_BYTES_MAX, TAG_VALUE_BYTES_MAX,
};
use nearstate_model::{Error, Result, invariant};

use plan::{Source, plan};

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Some value is equal.
    Eq,
    /// There are values, and none is equal.
    Neq,
    /// Some value is above.
    Gt,
    /// Some value is above or equal.
    Gte,
    /// Some value is below.
    Lt,
    /// Some value is below or equal.
    Lte,
}

/// A search expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Search {
    /// All of these expressions; at least one.
    And(Vec<Search>),
    /// Any of these expressions; at least one.
    Or(Vec<Search>),
    /// Not this expression.
    Not(Box<Search>),
    /// A comparison of a tag's values.
    Compare {
        /// The operator.
        op: Op,
        /// The tag's name.
        tag: String,
        /// The value that it is compared with.
        value: Vec<u8>,
    },
    /// The record's key is one of these.
    Records(Vec<Vec<u8>>),
}

impl Search {
    /// Validates an expression. [`find`] and [`count`] call it. Call it before [`Search::matches`]
    /// of an untrusted expression.
    ///
    /// # Errors
    /// `BadArgument`: too deep, too many units, an empty `And` or `Or`, or a name or value that is
    /// too long; `KeyTooLarge`.
    pub fn check(&self) -> Result<()> {
        let refused = |detail: String| Err(Error::BadArgument { detail });
        let mut units = 0;
        // Not recursive, because the expression may be too deep.
        let mut open = vec![(self, 1)];
        while let Some((search, depth)) = open.pop() {
            units += 1;
            invariant!(depth <= SEARCH_DEPTH_MAX + 1, "deeper parts are not visited: {depth}");
            if depth > SEARCH_DEPTH_MAX {
                return refused(format!(
                    "a search of more than {SEARCH_DEPTH_MAX} levels: nest its conditions less"
                ));
            }
            match search {
                Self::And(within) | Self::Or(within) => {
                    if within.is_empty() {
                        return refused(
                            "an empty list of conditions: give at least one".to_owned(),
                        );
                    }
                    open.extend(within.iter().map(|unit| (unit, depth + 1)));
                }
                Self::Not(within) => open.push((within, depth + 1)),
                Self::Compare { tag, value, .. } => check_comparison(tag, value)?,
                Self::Records(keys) => {
                    units += keys.len();
                    if let Some(key) = keys.iter().find(|key| key.len() > KEY_BYTES_MAX) {
                        return Err(Error::KeyTooLarge { bytes: key.len() });
                    }
                }
            }
            if units + open.len() > SEARCH_UNITS_MAX {
                return refused(format!(
                    "a search of more than {SEARCH_UNITS_MAX} units: search in several steps"
                ));
            }
        }
        Ok(())
    }

    /// True if a record matches. `tags` are its (name, value) pairs in ascending order.
    pub fn matches(&self, key: &[u8], tags: &[(&str, &[u8])]) -> bool {
        match self {
            Self::And(within) => within.iter().all(|unit| unit.matches(key, tags)),
            Self::Or(within) => within.iter().any(|unit| unit.matches(key, tags)),
            Self::Not(within) => !within.matches(key, tags),
            Self::Records(keys) => keys.iter().any(|wanted| wanted == key),
            Self::Compare { op, tag, value } => {
                let from = tags.partition_point(|(name, _)| *name < tag.as_str());
                let values = tags.iter().skip(from).take_while(|(name, _)| name == tag);
                let mut values = values.map(|(_, found)| found).peekable();
                let value = &value.as_slice();
                match op {
                    Op::Eq => values.any(|found| found == value),
                    Op::Neq => values.peek().is_some() && values.all(|found| found != value),
                    Op::Gt => values.any(|found| found > value),
                    Op::Gte => values.any(|found| found >= value),
                    Op::Lt => values.any(|found| found < value),
                    Op::Lte => values.any(|found| found <= value),
                }
            }
        }
    }
}

fn check_comparison(tag: &str, value: &[u8]) -> Result<()> {
    let detail = if tag.is_empty() || tag.len() > TAG_NAME_BYTES_MAX {
        format!("a tag's name of {} bytes: give one of 1 to {TAG_NAME_BYTES_MAX}", tag.len())
    } else if value.len() > TAG_VALUE_BYTES_MAX {
        format!(
            "a comparison of tag {tag:?} with {} bytes: values have at most {TAG_VALUE_BYTES_MAX}",
            value.len()
        )
    } else {
        return Ok(());
    };
    Err(Error::BadArgument { detail })
}

/// A lookup in an index, or a scan of all records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<'s> {
    /// All records.
    All,
    /// The record with this value of a unique tag.
    Posting {
        /// The tag's name.
        tag: &'s str,
        /// The value.
        value: &'s [u8],
    },
    /// The records with a value of this tag in a range.
    Range {
        /// The tag's name.
        tag: &'s str,
        /// The start of the range.
        from: Bound<&'s [u8]>,
        /// The end of the range.
        to: Bound<&'s [u8]>,
    },
}

/// The lookups that the index of a tag supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The one record with a value, in one step.
    pub by_posting: bool,
    /// All records with a value.
    pub by_value: bool,
    /// All records with a value in a range.
    pub by_order: bool,
}

/// Access to the candidates of a search.
///
/// A search within a transaction is consistent if `next` and `evaluate` track their reads.
/// `estimate` need not.
pub trait Candidates {
    /// A lookup in progress.
    type Keys;

    /// The lookups that a tag supports; none if the tag has no index, or the index is not ready.
    fn access(&mut self, tag: &str) -> Access;

    /// Estimates the number of records of a lookup. Counting may stop at `up_to`.
    ///
    /// # Errors
    /// What the store returns.
    fn estimate(&mut self, lookup: &Lookup<'_>, up_to: u64) -> Result<u64>;

    /// Starts a lookup.
    ///
    /// # Errors
    /// What the store returns.
    fn open(&mut self, lookup: &Lookup<'_>) -> Result<Self::Keys>;

    /// Writes the key of the next record of a lookup to `key`, cleared first; false at the end. A
    /// record with several values in a range may be returned several times.
    ///
    /// # Errors
    /// What the store returns.
    fn next(&mut self, keys: &mut Self::Keys, key: &mut Vec<u8>) -> Result<bool>;

    /// Calls `evaluate` with the tags of a record in ascending order and returns its result. False
    /// if the record does not exist.
    ///
    /// # Errors
    /// What the store returns.
    fn evaluate(
        &mut self,
        key: &[u8],
        evaluate: impl FnOnce(&[(&str, &[u8])]) -> bool,
    ) -> Result<bool>;
}

/// Calls `each` once with the key of every matching record, at most `limit` times and until it
/// returns false, in no defined order. Returns the number of calls.
///
/// Cost: one record is read for each candidate; without a suitable index, for each record.
///
/// # Errors
/// As [`Search::check`], and what the store and `each` return.
pub fn find<C: Candidates>(
    search: &Search,
    candidates: &mut C,
    limit: u64,
    mut each: impl FnMut(&[u8]) -> Result<bool>,
) -> Result<u64> {
    let mut walk = SearchWalk::new(search, candidates)?;
    let mut found = 0;
    while found < limit
        && let Some(is_new) = walk.step(candidates)?
    {
        if !is_new || !candidates.evaluate(&walk.key, |tags| search.matches(&walk.key, tags))? {
            continue;
        }
        walk.mark_found();
        found += 1;
        if !each(&walk.key)? {
            break;
        }
    }
    invariant!(found <= limit, "{found} records of {limit}");
    Ok(found)
}

/// The number of matching records.
///
/// # Errors
/// As [`find`].
pub fn count<C: Candidates>(search: &Search, candidates: &mut C) -> Result<u64> {
    find(search, candidates, u64::MAX, |_| Ok(true))
}

/// The candidates of a search, one after the other. It holds no part of an index, so that records
/// and indexes may change between two steps.
#[derive(Debug)]
pub struct SearchWalk<'s, K> {
    /// The sources that were not begun, the next one last.
    sources: Vec<Source<'s>>,
    open: OpenSource<'s, K>,
    /// The matching keys, if the sources may repeat a key.
    seen: Option<SeenKeys>,
    /// The key of the candidate.
    key: Vec<u8>,
}

/// The memory of the keys that one search has found, in bytes: some 80,000 keys. A search that
/// finds more reads all records from then on, without those that it has found. That takes as long
/// as a scan of the namespace.
const SEEN_BYTES_MAX: usize = 8 << 20;

/// What a stored key takes beside its bytes: its place in the set, and an allocation.
const SEEN_KEY_BYTES: usize = 80;

/// The keys that a search has found. Candidates that do not match are not stored but returned
/// again.
#[derive(Debug)]
struct SeenKeys {
    keys: BTreeSet<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl Default for SeenKeys {
    fn default() -> Self {
        Self { keys: BTreeSet::new(), bytes: 0, bytes_max: SEEN_BYTES_MAX }
    }
}

impl SeenKeys {
    /// No further key is stored.
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }
}

/// A source in progress.
#[derive(Debug)]
enum OpenSource<'s, K> {
    None,
    Records(std::slice::Iter<'s, Vec<u8>>),
    Lookup(K),
}

impl<'s, K> SearchWalk<'s, K> {
    /// Plans a search.
    ///
    /// # Errors
    /// As [`Search::check`], and what the store returns.
    pub fn new<C: Candidates<Keys = K>>(search: &'s Search, candidates: &mut C) -> Result<Self> {
        search.check()?;
        let mut sources = plan(search, candidates)?;
        let seen = plan::may_repeat(&sources).then(SeenKeys::default);
        sources.reverse();
        Ok(Self { sources, open: OpenSource::None, seen, key: Vec::new() })
    }

    /// Moves to the next candidate. Returns whether it is a new one, or was marked before; `None`
    /// at the end.
    ///
    /// # Errors
    /// What the store returns.
    pub fn step<C: Candidates<Keys = K>>(&mut self, candidates: &mut C) -> Result<Option<bool>> {
        loop {
            let is_at_candidate = match &mut self.open {
                OpenSource::None => false,
                OpenSource::Records(keys) => match keys.next() {
                    Some(key) => {
                        self.key.clear();
                        self.key.extend_from_slice(key);
                        true
                    }
                    None => false,
                },
                OpenSource::Lookup(keys) => candidates.next(keys, &mut self.key)?,
            };
            if is_at_candidate {
                let is_new = self.seen.as_ref().is_none_or(|seen| !seen.keys.contains(&self.key));
                return Ok(Some(is_new));
            }
            self.open = match self.sources.pop() {
                Some(Source::Records(keys)) => OpenSource::Records(keys.iter()),
                Some(Source::Lookup(lookup)) => OpenSource::Lookup(candidates.open(&lookup)?),
                None => return Ok(None),
            };
        }
    }

    /// The key of the candidate.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The memory of the keys that were marked, in bytes: at most 8 MiB and a key.
    pub fn seen_bytes(&self) -> usize {
        self.seen.as_ref().map_or(0, |seen| seen.bytes)
    }

    /// The candidate matches: if it is returned again, it is no new one.
    pub fn mark_found(&mut self) {
        let Some(seen) = &mut self.seen else { return };
        if seen.is_full() {
            return; // A scan of all records repeats none.
        }
        seen.bytes += self.key.len() + SEEN_KEY_BYTES;
        let is_new = seen.keys.insert(self.key.clone());
        invariant!(is_new, "a key that was found before is no new candidate");
        if seen.is_full() {
            self.sources = vec![Source::Lookup(Lookup::All)];
            self.open = OpenSource::None;
        }
    }
}

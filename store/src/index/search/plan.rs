//! The plan of a search: the sources of its candidates.
//!
//! Sources are *complete* for an expression if they contain all matching records:
//!
//! | expression | complete sources |
//! |---|---|
//! | comparison | the result of an index of its tag; for `Neq`, all records with the tag |
//! | `Records` | these keys |
//! | `And` | those of any unit: the unit with the fewest records is chosen |
//! | `Or` | those of all units |
//! | `Not` of `Not` | those of the inner expression |
//! | `Not` of `And`, of `Or` | those of `Or`, of `And`, of the negated units |
//! | `Not` of a comparison or of `Records` | all records, because records without the tag match |
//!
//! The comparisons of an `And` are not merged into one range: `Gt 1` and `Lt 5` may hold because of
//! different values of the tag.

use std::ops::Bound;

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use super::{Candidates, Lookup, Op, Search};

/// The limit for counting the records of a lookup, when lookups are compared. The choice between
/// two lookups with more records is not worth more counting.
const WEIGHED_MAX: u64 = 256;

/// A source of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source<'s> {
    Lookup(Lookup<'s>),
    Records(&'s [Vec<u8>]),
}

/// The sources of a search. Its depth was checked, so the recursion is limited.
pub(super) fn plan<'s, C: Candidates>(
    search: &'s Search,
    candidates: &mut C,
) -> Result<Vec<Source<'s>>> {
    let sources = sources(search, false, candidates)?;
    Ok(sources.unwrap_or_else(|| vec![Source::Lookup(Lookup::All)]))
}

/// True if the sources may return a record more than once.
pub(super) fn may_repeat(sources: &[Source<'_>]) -> bool {
    match sources {
        [Source::Lookup(Lookup::All | Lookup::Posting { .. })] => false,
        [Source::Lookup(Lookup::Range { from, to, .. })] => match (from, to) {
            (Bound::Included(from), Bound::Included(to)) => from != to,
            _ => true,
        },
        _ => true,
    }
}

/// Complete sources of an expression, or of its negation; `None`: only all records are complete.
fn sources<'s, C: Candidates>(
    search: &'s Search,
    is_negated: bool,
    candidates: &mut C,
) -> Result<Option<Vec<Source<'s>>>> {
    match (search, is_negated) {
        (Search::Not(within), _) => sources(within, !is_negated, candidates),
        (Search::And(within), false) | (Search::Or(within), true) => {
            let mut choices = Vec::new();
            for unit in within {
                choices.extend(sources(unit, is_negated, candidates)?);
            }
            lightest(choices, candidates)
        }
        (Search::Or(within), false) | (Search::And(within), true) => {
            let mut all = Vec::new();
            for unit in within {
                match sources(unit, is_negated, candidates)? {
                    Some(more) => all.extend(more),
                    None => return Ok(None),
                }
            }
            Ok(Some(all))
        }
        (Search::Records(keys), false) => Ok(Some(vec![Source::Records(keys)])),
        (Search::Compare { op, tag, value }, false) => {
            Ok(lookup(*op, tag, value, candidates).map(|lookup| vec![Source::Lookup(lookup)]))
        }
        (Search::Records(_) | Search::Compare { .. }, true) => Ok(None),
    }
}

/// The lookup for a comparison, if the tag's index supports one.
fn lookup<'s, C: Candidates>(
    op: Op,
    tag: &'s str,
    value: &'s [u8],
    candidates: &mut C,
) -> Option<Lookup<'s>> {
    let access = candidates.access(tag);
    if op == Op::Eq && access.by_posting {
        return Some(Lookup::Posting { tag, value });
    }
    let (from, to) = match op {
        Op::Eq => (Bound::Included(value), Bound::Included(value)),
        Op::Neq => (Bound::Unbounded, Bound::Unbounded),
        Op::Gt => (Bound::Excluded(value), Bound::Unbounded),
        Op::Gte => (Bound::Included(value), Bound::Unbounded),
        Op::Lt => (Bound::Unbounded, Bound::Excluded(value)),
        Op::Lte => (Bound::Unbounded, Bound::Included(value)),
    };
    let is_supported = access.by_order || (op == Op::Eq && access.by_value);
    is_supported.then_some(Lookup::Range { tag, from, to })
}

/// The choice with the fewest records. A single choice is not counted.
fn lightest<'s, C: Candidates>(
    mut choices: Vec<Vec<Source<'s>>>,
    candidates: &mut C,
) -> Result<Option<Vec<Source<'s>>>> {
    if choices.len() < 2 {
        return Ok(choices.pop());
    }
    let mut best = None;
    let mut fewest = WEIGHED_MAX;
    // Choices with a known bound come first: they limit the counting of the others.
    choices.sort_by_key(|sources| known(sources).unwrap_or(u64::MAX));
    for sources in choices {
        let records = match known(&sources) {
            Some(records) => records,
            None => estimate(&sources, fewest, candidates)?,
        };
        if best.is_none() || records < fewest {
            (best, fewest) = (Some(sources), records.min(WEIGHED_MAX));
        }
        if fewest <= 1 {
            break;
        }
    }
    invariant!(best.is_some(), "one of several choices is the lightest");
    invariant!(fewest <= WEIGHED_MAX, "{fewest} records were counted");
    Ok(best)
}

/// The largest number of records of these sources, if it is known without access to an index.
fn known(sources: &[Source<'_>]) -> Option<u64> {
    sources.iter().try_fold(0_u64, |sum, source| match source {
        Source::Lookup(Lookup::Posting { .. }) => Some(sum + 1),
        Source::Lookup(Lookup::All | Lookup::Range { .. }) => None,
        Source::Records(keys) => Some(sum + keys.len() as u64),
    })
}

fn estimate<C: Candidates>(sources: &[Source<'_>], up_to: u64, candidates: &mut C) -> Result<u64> {
    let mut sum = 0_u64;
    for source in sources {
        if sum >= up_to {
            break;
        }
        sum = sum.saturating_add(match source {
            Source::Lookup(lookup @ (Lookup::All | Lookup::Range { .. })) => {
                candidates.estimate(lookup, up_to - sum)?
            }
            Source::Lookup(Lookup::Posting { .. }) | Source::Records(_) => {
                guaranteed(known(std::slice::from_ref(source)), "its records are known")
            }
        });
    }
    Ok(sum)
}

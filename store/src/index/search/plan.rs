//! Choosing where a search gets its candidates from.
//!
//! A source is *sound* for an expression if all matching records come from it:
//!
//! | expression | sources that are sound |
//! |---|---|
//! | comparison | what an index of its tag gives; for `Neq` all records with the tag |
//! | `Records` | these keys |
//! | `And` | that of any one of its units: the one with the fewest records is taken |
//! | `Or` | those of all its units together |
//! | `Not` | of `Not`: the inner one; of `And` and `Or`: as the other one of their opposites |
//! | opposite of a comparison or of `Records` | all records: those without the tag match too |
//!
//! The comparisons of an `And` are not joined to one range: with several values in a tag, `Gt 1`
//! and `Lt 5` may hold by different ones.

use std::ops::Bound;

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use super::{Candidates, Lookup, Op, Search};

/// How far a lookup is counted when two are compared. Beyond this many records, looking at them
/// costs so much that the choice between two such lookups is not worth more counting.
const WEIGHED_MAX: u64 = 256;

/// Where candidates come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source<'s> {
    Lookup(Lookup<'s>),
    Records(&'s [Vec<u8>]),
}

/// The sources of a search, whose depth was checked.
pub(super) fn plan<'s, C: Candidates>(
    search: &'s Search,
    candidates: &mut C,
) -> Result<Vec<Source<'s>>> {
    let sources = sources(search, false, candidates)?;
    Ok(sources.unwrap_or_else(|| vec![Source::Lookup(Lookup::All)]))
}

/// May a record come from these more than once?
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

/// Sound sources of an expression or of its opposite; `None`: only all records are.
fn sources<'s, C: Candidates>(
    search: &'s Search,
    is_opposite: bool,
    candidates: &mut C,
) -> Result<Option<Vec<Source<'s>>>> {
    match (search, is_opposite) {
        (Search::Not(within), _) => sources(within, !is_opposite, candidates),
        (Search::And(within), false) | (Search::Or(within), true) => {
            let mut best = Vec::new();
            for unit in within {
                best.extend(sources(unit, is_opposite, candidates)?);
            }
            lightest(best, candidates)
        }
        (Search::Or(within), false) | (Search::And(within), true) => {
            let mut all = Vec::new();
            for unit in within {
                match sources(unit, is_opposite, candidates)? {
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

/// What an index gives for a comparison.
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
    let is_answered = access.by_order || (op == Op::Eq && access.by_value);
    is_answered.then_some(Lookup::Range { tag, from, to })
}

/// The sources with the fewest records. With no choice nothing is weighed.
fn lightest<'s, C: Candidates>(
    mut choices: Vec<Vec<Source<'s>>>,
    candidates: &mut C,
) -> Result<Option<Vec<Source<'s>>>> {
    if choices.len() < 2 {
        return Ok(choices.pop());
    }
    let mut best = None;
    let mut least = WEIGHED_MAX;
    // Those that are known without counting first: they bound the counting of the others.
    choices.sort_by_key(|sources| known(sources).unwrap_or(u64::MAX));
    for sources in choices {
        let weight = match known(&sources) {
            Some(weight) => weight,
            None => estimate(&sources, least, candidates)?,
        };
        if best.is_none() || weight < least {
            (best, least) = (Some(sources), weight.min(WEIGHED_MAX));
        }
        if least <= 1 {
            break;
        }
    }
    invariant!(best.is_some(), "one of several choices is the lightest");
    invariant!(least <= WEIGHED_MAX, "a weight of {least} was counted");
    Ok(best)
}

/// How many records these give at most, if no index must be asked.
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

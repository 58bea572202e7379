//! Set commands.

use super::arg;
use super::random::{RandomCount, below, bounded, sample};
use super::scan_options::{self, ScanKind, ScanOptions};
use crate::command_context::{CommandContext, CommandTxn};
use crate::number::integer;
use crate::parse::{ARGS_MAX, Args};
use crate::records::{ChangeError, KeptMetadata, RecordRef, ResolvedKey, put_set};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_model::limits::MEMBERS_OF_SET_MAX;
use nearstate_store::{Kind, Members};
use std::collections::BTreeSet;

const _: () = assert!(ARGS_MAX <= MEMBERS_OF_SET_MAX, "a set has room for what one request adds");

/// The members of a set; none if the key does not exist.
fn members<'f>(found: Option<&'f RecordRef<'_>>) -> Result<Members<'f>, ErrorReply> {
    found.map_or(Ok(Members::default()), RecordRef::members)
}

/// Distinct members in ascending order.
fn ordered(args: Args<'_>) -> Vec<&[u8]> {
    let mut all: Vec<&[u8]> = args.iter().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The union of two sorted lists.
fn merged<'m>(members: Members<'m>, new: &[&'m [u8]]) -> Vec<&'m [u8]> {
    let mut all = Vec::with_capacity(members.len() + new.len());
    let mut new = new.iter().copied().peekable();
    for member in members {
        while let Some(before) = new.next_if(|new| *new < member) {
            all.push(before);
        }
        all.push(member);
    }
    all.extend(new);
    all
}

/// Writes the remaining members of a set, or deletes an empty set.
fn put_rest(
    change: &CommandTxn<'_, '_>,
    resolved: ResolvedKey<'_>,
    found: &RecordRef<'_>,
    rest: &[&[u8]],
) -> Result<(), ChangeError> {
    if rest.is_empty() {
        change.txn.delete(resolved.namespace, resolved.key)?;
    } else {
        put_set(change.txn, resolved, rest, &KeptMetadata::of(found))?;
    }
    Ok(())
}

/// `SADD key member [member ...]`
pub(crate) fn sadd(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let given = ordered(args.from(2));
    let bytes = given.iter().map(|member| member.len()).sum();
    let new = ctx.change(|change| {
        let resolved = change.resolved(arg(args, 1), bytes)?;
        let found = change.read_at(resolved)?;
        add(change, resolved, found.as_ref(), &given)
    })?;
    reply.count(new);
    Ok(())
}

/// Adds members in ascending order. Returns the number of new ones.
fn add(
    change: &CommandTxn<'_, '_>,
    resolved: ResolvedKey<'_>,
    found: Option<&RecordRef<'_>>,
    given: &[&[u8]],
) -> Result<usize, ChangeError> {
    let members = members(found)?;
    let new: Vec<&[u8]> = given.iter().copied().filter(|given| !members.contains(given)).collect();
    if !new.is_empty() {
        let kept = found.map(KeptMetadata::of).unwrap_or_default();
        put_set(change.txn, resolved, &merged(members, &new), &kept)?;
    }
    Ok(new.len())
}

/// `SREM key member [member ...]`
pub(crate) fn srem(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let given = ordered(args.from(2));
    let gone = ctx.change(|change| {
        let Some(resolved) = change.records.resolve(arg(args, 1))? else { return Ok(0) };
        let Some(found) = change.read_at(resolved)? else { return Ok(0) };
        remove(change, resolved, &found, &given)
    })?;
    reply.count(gone);
    Ok(())
}

/// Removes members in ascending order. Returns how many existed.
fn remove(
    change: &CommandTxn<'_, '_>,
    resolved: ResolvedKey<'_>,
    found: &RecordRef<'_>,
    given: &[&[u8]],
) -> Result<usize, ChangeError> {
    let members = found.members()?;
    let gone = given.iter().filter(|given| members.contains(given)).count();
    if gone > 0 {
        let rest: Vec<&[u8]> =
            members.filter(|member| given.binary_search(member).is_err()).collect();
        put_rest(change, resolved, found, &rest)?;
    }
    Ok(gone)
}

/// `SMEMBERS key`
pub(crate) fn smembers(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let members = members(found.as_ref())?;
    reply.set(members.len());
    members.for_each(|member| reply.bulk(member));
    Ok(())
}

/// `SISMEMBER key member`
pub(crate) fn sismember(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    reply.int(members(found.as_ref())?.contains(arg(args, 2)).into());
    Ok(())
}

/// `SMISMEMBER key member [member ...]`
pub(crate) fn smismember(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let members = members(found.as_ref())?;
    let candidates = args.from(2);
    reply.array(candidates.len());
    candidates.iter().for_each(|member| reply.int(members.contains(member).into()));
    Ok(())
}

/// `SCARD key`
pub(crate) fn scard(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    reply.count(members(found.as_ref())?.len());
    Ok(())
}

/// `SPOP key [count]`
pub(crate) fn spop(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len() > 3 {
        return Err(ErrorReply::SYNTAX);
    }
    let count = match args.get(2) {
        None => None,
        Some(text) => {
            let count = integer(text).and_then(|count| usize::try_from(count).ok());
            let error = ErrorReply::fixed("ERR value is out of range, must be positive");
            Some(count.ok_or(error)?)
        }
    };
    let begun = reply.mark();
    ctx.change(|change| {
        reply.rewind(begun);
        let resolved = change.records.resolve(arg(args, 1))?;
        let found = resolved.map(|resolved| change.read_at(resolved)).transpose()?.flatten();
        let members = members(found.as_ref())?;
        let mut places = sample(members.len(), count.unwrap_or(1));
        if count.is_some() {
            reply.set(places.len());
        } else if places.is_empty() {
            reply.nil();
        }
        for place in &places {
            reply.bulk(members.at(*place).unwrap_or_default());
        }
        places.sort_unstable();
        if let (Some(resolved), Some(found), false) = (resolved, &found, places.is_empty()) {
            let rest: Vec<&[u8]> = (0..members.len())
                .filter(|place| places.binary_search(place).is_err())
                .filter_map(|place| members.at(place))
                .collect();
            put_rest(change, resolved, found, &rest)?;
        }
        Ok(())
    })
}

/// `SRANDMEMBER key [count]`
pub(crate) fn srandmember(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len() > 3 {
        return Err(ErrorReply::SYNTAX);
    }
    let wanted = args.get(2).map(RandomCount::read).transpose()?;
    let found = ctx.read(arg(args, 1))?;
    let members = members(found.as_ref())?;
    let Some(wanted) = wanted else {
        reply.bulk_or_nil(members.at(below(members.len())));
        return Ok(());
    };
    let places = wanted.places(members.len())?;
    let begun = reply.mark();
    reply.array(places.len());
    for place in places {
        reply.bulk(members.at(place).unwrap_or_default());
        if wanted.allows_repeats() {
            bounded(reply.written(begun))?;
        }
    }
    Ok(())
}

/// `SMOVE source destination member`
pub(crate) fn smove(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let (from, to, member) = (arg(args, 1), arg(args, 2), arg(args, 3));
    let is_moved = ctx.change(|change| {
        let Some(source) = change.read(from)? else { return Ok(false) };
        let target = change.read(to)?;
        let exists = source.members()?.contains(member);
        members(target.as_ref())?;
        if from == to || !exists {
            return Ok(exists);
        }
        let resolved = change.resolved(to, member.len())?;
        if resolved.namespace.kind() != Kind::Mixed {
            return Err(ErrorReply::WRONG_TYPE.into());
        }
        add(change, resolved, target.as_ref(), &[member])?;
        remove(change, change.resolved(from, 0)?, &source, &[member])?;
        Ok(true)
    })?;
    reply.int(is_moved.into());
    Ok(())
}

/// Operation on several sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetOperation {
    Intersection,
    Union,
    Difference,
}

impl SetOperation {
    /// Calls `each` with every member of the result in ascending order until it returns false. The
    /// sets are in the order of the request; missing ones are empty.
    fn each<'m>(self, sets: &[Members<'m>], each: impl FnMut(&'m [u8]) -> bool) {
        let Some((first, others)) = sets.split_first() else { return };
        match self {
            Self::Intersection => {
                let smallest = sets.iter().min_by_key(|set| set.len()).unwrap_or(first);
                smallest
                    .clone()
                    .filter(|member| sets.iter().all(|set| set.contains(member)))
                    .all(each);
            }
            Self::Difference => {
                first
                    .clone()
                    .filter(|member| !others.iter().any(|other| other.contains(member)))
                    .all(each);
            }
            Self::Union => {
                let all: BTreeSet<&[u8]> = sets.iter().cloned().flatten().collect();
                all.into_iter().all(each);
            }
        }
    }
}

/// Replies with the result of an operation, on sets read at one instant.
fn combine(
    ctx: &CommandContext<'_>,
    keys: Args<'_>,
    mut answer: impl FnMut(&[Members<'_>]),
) -> Result<(), ErrorReply> {
    ctx.change(|change| {
        // A repeated set changes nothing, except the first one, from which others may be
        // subtracted.
        let mut named = BTreeSet::new();
        let found = keys
            .iter()
            .enumerate()
            .filter(|(place, key)| *place == 0 || named.insert(*key))
            .map(|(_, key)| change.read(key))
            .collect::<Result<Vec<_>, _>>()?;
        let sets =
            found.iter().map(|found| members(found.as_ref())).collect::<Result<Vec<_>, _>>()?;
        answer(&sets);
        Ok(())
    })
}

fn reply_operation(
    ctx: &CommandContext<'_>,
    keys: Args<'_>,
    algebra: SetOperation,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let begun = reply.mark();
    combine(ctx, keys, |sets| {
        reply.rewind(begun);
        let mut count = 0;
        algebra.each(sets, |member| {
            reply.bulk(member);
            count += 1;
            true
        });
        reply.close_set(begun, count);
    })
}

/// `SINTER key [key ...]`
pub(crate) fn sinter(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply_operation(ctx, args.from(1), SetOperation::Intersection, reply)
}

/// `SUNION key [key ...]`
pub(crate) fn sunion(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply_operation(ctx, args.from(1), SetOperation::Union, reply)
}

/// `SDIFF key [key ...]`
pub(crate) fn sdiff(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply_operation(ctx, args.from(1), SetOperation::Difference, reply)
}

/// `SINTERCARD numkeys key [key ...] [LIMIT limit]`
pub(crate) fn sintercard(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let keys = integer(arg(args, 1)).filter(|keys| *keys > 0).map(usize::try_from);
    let Some(Ok(keys)) = keys else {
        return Err(ErrorReply::fixed("ERR numkeys should be greater than 0"));
    };
    if keys > args.len() - 2 {
        return Err(ErrorReply::fixed("ERR Number of keys can't be greater than number of args"));
    }
    let mut limit = usize::MAX;
    let mut rest = args.from(2 + keys);
    while let Some(option) = rest.get(0) {
        let (b"limit", Some(number)) = (option.to_ascii_lowercase().as_slice(), rest.get(1)) else {
            return Err(ErrorReply::SYNTAX);
        };
        let number = integer(number).and_then(|number| usize::try_from(number).ok());
        let error = ErrorReply::fixed("ERR LIMIT can't be negative");
        limit = Some(number.ok_or(error)?).filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        rest = rest.from(2);
    }
    let mut count = 0;
    combine(ctx, args.from(2).first(keys), |sets| {
        count = 0;
        SetOperation::Intersection.each(sets, |_| {
            count += 1;
            count < limit
        });
    })?;
    reply.count(count);
    Ok(())
}

/// `SSCAN key cursor [MATCH pattern] [COUNT count]`
pub(crate) fn sscan(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    scan_options::read_cursor(arg(args, 2))?;
    let Some(found) = ctx.read(arg(args, 1))? else {
        scan_options::write_single_page(reply, |_| 0);
        return Ok(());
    };
    let members = found.members()?;
    let options = ScanOptions::read(args.from(3), ScanKind::Members)?;
    scan_options::write_single_page(reply, |reply| {
        let chosen = members.filter(|member| options.matches(member));
        chosen.map(|member| reply.bulk(member)).count()
    });
    Ok(())
}

//! Set commands.

use super::collection_read::{
    CollectionKey, DIRECT_MAX, Selection, SetOperation, members, write_all,
};
use super::collection_store::{StoreAction, StoreCommand};
use super::collection_task::{CollectionTask, ReplyForm};
use super::random::{RandomCount, below, bounded, sample_to_remove};
use super::scan_options::{self, ScanKind, ScanOptions};
use super::{arg, check_key_count};
use crate::command_context::{CommandContext, CommandTxn};
use crate::number::integer;
use crate::parse::Args;
use crate::records::{ChangeError, RecordRef, ResolvedKey};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_store::{Kind, Members};
use std::collections::BTreeSet;

/// `SADD key member [member ...]`
pub(crate) fn sadd(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let given: Vec<&[u8]> = args.from(2).iter().collect();
    let bytes = given.iter().map(|member| member.len()).max().unwrap_or_default();
    let new = ctx.change(|change| {
        let resolved = change.resolved(arg(args, 1), bytes)?;
        Ok(change.txn.add_members(resolved.namespace, resolved.key, &given)?)
    })?;
    reply.count(new);
    Ok(())
}

/// `SREM key member [member ...]`
pub(crate) fn srem(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let given: Vec<&[u8]> = args.from(2).iter().collect();
    let gone = ctx.change(|change| {
        let Some(resolved) = change.records.resolve(arg(args, 1))? else { return Ok(0) };
        remove(change, resolved, &given)
    })?;
    reply.count(gone);
    Ok(())
}

/// Removes members. Returns how many existed.
fn remove(
    change: &CommandTxn<'_, '_>,
    resolved: ResolvedKey<'_>,
    given: &[&[u8]],
) -> Result<usize, ChangeError> {
    if resolved.namespace.kind() != Kind::Mixed {
        // A namespace without sets: only a record of another type is an error.
        let found = change.read_at(resolved)?;
        members(found.as_ref())?;
        return Ok(0);
    }
    Ok(change.txn.remove_members(resolved.namespace, resolved.key, given)?)
}

/// `SMEMBERS key`
pub(crate) fn smembers(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let members = members(found.as_ref())?;
    reply_all(ctx, (arg(args, 1), ReplyForm::Members), members, reply)
}

/// Replies with all members of the set of a key, in slices if they are many.
fn reply_all(
    ctx: &mut CommandContext<'_>,
    (key, form): (&[u8], ReplyForm),
    members: Members<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let counted = members.len();
    if counted > DIRECT_MAX && ctx.txn.is_none() {
        return begin_task(ctx, std::iter::once(key), (SetOperation::Union, form), reply);
    }
    if form == ReplyForm::Members {
        reply.set(counted);
    } else {
        reply.array(counted);
    }
    write_all((counted, members), &|| ctx.check_deadline(), |member| reply.bulk(member))
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
        found.as_ref().map_or(Ok(()), RecordRef::check_count)?;
        let members = members(found.as_ref())?;
        let places = sample_to_remove(members.len(), count.unwrap_or(1))?;
        let popped = members.select(&places);
        if count.is_some() {
            reply.set(popped.len());
        } else if popped.is_empty() {
            reply.nil();
        }
        for member in &popped {
            reply.bulk(member);
        }
        reply.check_complete()?;
        if let (Some(resolved), false) = (resolved, popped.is_empty()) {
            // A damaged count must not delete what remains.
            if members.clone().nth(popped.len()).is_none() {
                change.txn.delete(resolved.namespace, resolved.key)?;
            } else {
                remove(change, resolved, &popped)?;
            }
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
    found.as_ref().map_or(Ok(()), RecordRef::check_count)?;
    let members = members(found.as_ref())?;
    let Some(wanted) = wanted else {
        reply.bulk_or_nil(members.select(&[below(members.len())]).first().copied());
        return Ok(());
    };
    if wanted.is_all_of(members.len()) {
        return reply_all(ctx, (arg(args, 1), ReplyForm::Names), members, reply);
    }
    let picked = members.select(&wanted.places(members.len())?);
    let begun = reply.mark();
    reply.array(picked.len());
    for member in picked {
        reply.bulk(member);
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
        change.txn.add_members(resolved.namespace, resolved.key, &[member])?;
        remove(change, change.resolved(from, 0)?, &[member])?;
        Ok(true)
    })?;
    reply.int(is_moved.into());
    Ok(())
}

/// Starts a task that replies in slices.
fn begin_task<'k>(
    ctx: &mut CommandContext<'_>,
    keys: impl Iterator<Item = &'k [u8]>,
    (operation, form): (SetOperation, ReplyForm),
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let keys = keys.map(|key| CollectionKey::of(ctx.records, key));
    let keys = keys.collect::<Result<Vec<_>, ErrorReply>>()?;
    let selection = Selection::Members(operation);
    ctx.begin(CollectionTask::new(selection, form, keys, reply.bytes_max()), reply)
}

/// The keys of sets. A repeated set changes nothing, except the first one, from which others may be
/// subtracted.
fn distinct(keys: Args<'_>) -> impl Iterator<Item = &[u8]> {
    let mut named = BTreeSet::new();
    keys.iter()
        .enumerate()
        .filter(move |(place, key)| *place == 0 || named.insert(*key))
        .map(|(_, key)| key)
}

/// Whether the sets of an operation are so large that it runs in slices.
fn is_long(ctx: &CommandContext<'_>, keys: Args<'_>) -> Result<bool, ErrorReply> {
    check_key_count(keys.iter())?;
    if ctx.txn.is_some() {
        return Ok(false);
    }
    let mut all = 0;
    for key in distinct(keys) {
        let Some(resolved) = ctx.records.resolve(key)? else { continue };
        let found = ctx.session().get(resolved.namespace, resolved.key)?.map(RecordRef);
        all += members(found.as_ref())?.len();
    }
    Ok(all > DIRECT_MAX)
}

/// Replies with the result of an operation, on sets read at one instant.
fn combine(
    ctx: &CommandContext<'_>,
    keys: Args<'_>,
    mut answer: impl FnMut(&[Members<'_>]) -> CommandResult,
) -> Result<(), ErrorReply> {
    ctx.change(|change| {
        let found = distinct(keys).map(|key| change.read(key)).collect::<Result<Vec<_>, _>>()?;
        let sets =
            found.iter().map(|found| members(found.as_ref())).collect::<Result<Vec<_>, _>>()?;
        Ok(answer(&sets)?)
    })
}

fn reply_operation(
    ctx: &mut CommandContext<'_>,
    keys: Args<'_>,
    algebra: SetOperation,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if is_long(ctx, keys)? {
        return begin_task(ctx, distinct(keys), (algebra, ReplyForm::Members), reply);
    }
    let ctx = &*ctx;
    let begun = reply.mark();
    combine(ctx, keys, |sets| {
        reply.rewind(begun);
        let mut count = 0;
        algebra.each(sets, &|| ctx.check_deadline(), |member| {
            reply.bulk(member);
            count += 1;
            true
        })?;
        reply.close_set(begun, count);
        Ok(())
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

/// Stores the result of an operation.
fn store_operation(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    operation: SetOperation,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check_key_count(args.from(1).iter())?;
    let sources = distinct(args.from(2)).map(<[u8]>::to_vec).collect();
    let (target, action) = (arg(args, 1).to_vec(), StoreAction::Operation(operation));
    StoreCommand { sources, target, action }.begin(ctx, reply)
}

/// `SINTERSTORE destination key [key ...]`
pub(crate) fn sinterstore(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    store_operation(ctx, args, SetOperation::Intersection, reply)
}

/// `SUNIONSTORE destination key [key ...]`
pub(crate) fn sunionstore(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    store_operation(ctx, args, SetOperation::Union, reply)
}

/// `SDIFFSTORE destination key [key ...]`
pub(crate) fn sdiffstore(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    store_operation(ctx, args, SetOperation::Difference, reply)
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
    let keys = args.from(2).first(keys);
    if is_long(ctx, keys)? {
        let what = (SetOperation::Intersection, ReplyForm::Count(limit));
        return begin_task(ctx, distinct(keys), what, reply);
    }
    let ctx = &*ctx;
    let mut count = 0;
    combine(ctx, keys, |sets| {
        count = 0;
        SetOperation::Intersection.each(sets, &|| ctx.check_deadline(), |_| {
            count += 1;
            count < limit
        })
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
    let cursor = scan_options::read_cursor(arg(args, 2))?;
    let Some(found) = ctx.read(arg(args, 1))? else {
        scan_options::write_single_page(reply, |_| 0);
        return Ok(());
    };
    let members = found.members()?;
    let options = ScanOptions::read(args.from(3), ScanKind::Members)?;
    let mut page = Vec::new();
    let next = members.scan_from(cursor, options.elements(), |member| {
        if options.matches(member) {
            page.push(member);
        }
    });
    scan_options::write_page(reply, next, |reply| {
        for member in &page {
            reply.bulk(member);
        }
        page.len()
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_context::DeadlineTxn;
    use crate::core_context::test_core::TestCore;
    use crate::parse::OwnedArgs;
    use crate::reply::RespVersion;
    use crate::table::TABLE;
    use nearstate_node::clock::Clock;
    use nearstate_store::since_boot;
    use std::time::Duration;

    #[test]
    fn an_operation_in_exec_ends_at_the_deadline() {
        let test = TestCore::new(&Clock::new_virtual());
        let (records, mut connection) = (&test.core.records, test.connection());
        let session = records.session();
        let numbers: Vec<[u8; 4]> = (0..6000_u32).map(u32::to_le_bytes).collect();
        for key in [&b"{n},a"[..], b"{n},b"] {
            let resolved = records.resolve_or_create(key, 1).unwrap();
            for some in numbers.chunks(1000) {
                let some: Vec<&[u8]> = some.iter().map(|number| &number[..]).collect();
                session
                    .transact(|txn| txn.add_members(resolved.namespace, resolved.key, &some))
                    .unwrap();
            }
        }
        let hash = records.resolve_or_create(b"{n},h", 1).unwrap();
        for some in numbers.chunks(1000) {
            let some: Vec<_> = some.iter().map(|number| (&number[..], &b"v"[..])).collect();
            session.transact(|txn| txn.set_fields(hash.namespace, hash.key, &some)).unwrap();
        }
        for (deadline, is_late) in
            [(since_boot() + Duration::MAX / 2, false), (Duration::ZERO, true)]
        {
            let txn = session.begin().unwrap();
            let exec = DeadlineTxn { txn: &txn, deadline };
            for request in [
                &["SUNION", "{n},a", "{n},b"][..],
                &["SINTER", "{n},a", "{n},b"],
                &["SDIFF", "{n},a", "{n},b"],
                &["SINTERCARD", "2", "{n},a", "{n},b"],
                &["SUNIONSTORE", "{n},c", "{n},a", "{n},b"],
                &["SMEMBERS", "{n},a"],
                &["SRANDMEMBER", "{n},a", "6000"],
                &["HGETALL", "{n},h"],
                &["HKEYS", "{n},h"],
                &["HVALS", "{n},h"],
                &["HRANDFIELD", "{n},h", "6000", "WITHVALUES"],
            ] {
                let args: OwnedArgs = request.iter().map(|word| word.as_bytes()).collect();
                let mut ctx = CommandContext {
                    table: &TABLE,
                    server: &test.server,
                    records,
                    connection: &mut connection,
                    txn: Some(&exec),
                };
                let command = TABLE.lookup(args.args()).unwrap();
                let mut out = Vec::new();
                let mut reply = ReplyWriter::new(&mut out, RespVersion::Resp2);
                let done = (command.run)(&mut ctx, args.args(), &mut reply);
                let late = done.is_err_and(|error| error.text().contains("time limit of EXEC"));
                assert_eq!(late, is_late, "{request:?}");
            }
        }
    }
}

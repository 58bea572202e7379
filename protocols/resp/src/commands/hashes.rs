//! Hash commands. A hash is a record of named blocks; a field is a block.

use super::arg;
use super::random::{RandomCount, below, bounded};
use super::scan_options::{self, ScanKind, ScanOptions};
use crate::command_context::{CommandContext, CommandTxn};
use crate::dump_payload::BytesPair;
use crate::number::long_double::LongDouble;
use crate::number::{integer, integer_or_refuse};
use crate::parse::Args;
use crate::records::{ChangeError, RecordRef, ResolvedKey};
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::reply::{ReplyWriter, RespVersion};
use nearstate_model::invariant;
use nearstate_model::limits::{BLOCK_NAME_BYTES_MAX, BLOCKS_MAX};
use nearstate_store::BlockChange;
use std::collections::{BTreeMap, BTreeSet};

/// A field and its value.
pub(super) type Field<'a> = (&'a str, &'a [u8]);

/// The increment is not a number.
const INFINITE: ErrorReply = ErrorReply::fixed("ERR value is NaN or Infinity");

/// Up to this many fields are searched one by one, without allocation.
const LINEAR_MAX: usize = 8;

/// The name of a field, if the region can store it.
fn name_of(field: &[u8]) -> Result<&str, ErrorReply> {
    let name = str::from_utf8(field).ok();
    let is_right = |name: &&str| !name.is_empty() && !name.contains('\0');
    name.filter(is_right).filter(|name| name.len() <= BLOCK_NAME_BYTES_MAX).ok_or_else(|| {
        ErrorReply::new(format!(
            "ERR invalid field name: it must have 1 to {BLOCK_NAME_BYTES_MAX} bytes of UTF-8 \
             without NUL"
        ))
    })
}

/// The fields of a hash; none if the key does not exist.
pub(super) fn fields<'f>(found: Option<&'f RecordRef<'_>>) -> Result<Vec<Field<'f>>, ErrorReply> {
    found.map_or(Ok(Vec::new()), RecordRef::fields)
}

/// The names that a hash does not have.
fn missing(existing: &[Field<'_>], changes: &[BlockChange<'_>]) -> usize {
    if changes.len() <= LINEAR_MAX {
        let exists = |name: &str| existing.iter().any(|(known, _)| *known == name);
        return changes.iter().filter(|change| !exists(change.name)).count();
    }
    let existing: BTreeSet<&str> = existing.iter().map(|(name, _)| *name).collect();
    changes.iter().filter(|change| !existing.contains(change.name)).count()
}

/// Rejects more fields than a hash may have.
fn check_field_count(fields: usize) -> CommandResult {
    if fields <= BLOCKS_MAX {
        return Ok(());
    }
    Err(ErrorReply::new(format!("ERR {fields} fields exceed the limit of {BLOCKS_MAX} per hash")))
}

/// Resolves the key of a hash that is about to be written with these distinct fields. Rejects
/// fields that no hash accepts before its namespace is created.
pub(super) fn resolve_hash<'a>(
    change: &CommandTxn<'_, '_>,
    key: &'a [u8],
    changes: &[BlockChange<'_>],
) -> Result<ResolvedKey<'a>, ChangeError> {
    check_field_count(changes.len())?;
    let bytes = changes.iter().filter_map(|field| field.bytes).map(<[u8]>::len);
    change.resolved(key, bytes.max().unwrap_or_default())
}

/// Sets distinct fields. Returns the number of new ones. Errors are detected before anything is
/// written.
pub(super) fn set_fields(
    change: &CommandTxn<'_, '_>,
    resolved: ResolvedKey<'_>,
    existing: &[Field<'_>],
    changes: &[BlockChange<'_>],
) -> Result<usize, ChangeError> {
    let new = missing(existing, changes);
    check_field_count(existing.len() + new)?;
    change.txn.patch(resolved.namespace, resolved.key, changes)?;
    Ok(new)
}

/// Fields with their values. If a field is repeated, the last value counts.
pub(super) fn pairs(args: Args<'_>) -> Result<Vec<BlockChange<'_>>, ErrorReply> {
    let mut changes: Vec<BlockChange<'_>> = Vec::with_capacity(args.len() / 2);
    let mut places = BTreeMap::new();
    for at in (0..args.len()).step_by(2) {
        let (name, bytes) = (name_of(arg(args, at))?, args.get(at + 1));
        // One field is the most frequent case.
        let place = if args.len() == 2 { 0 } else { *places.entry(name).or_insert(changes.len()) };
        match changes.get_mut(place) {
            Some(change) => change.bytes = bytes,
            None => changes.push(BlockChange { name, bytes }),
        }
    }
    Ok(changes)
}

/// The fields of a payload of `RESTORE`, which a client may have made up.
pub(super) fn pairs_of<'a>(fields: &[BytesPair<'a>]) -> Result<Vec<BlockChange<'a>>, ErrorReply> {
    let mut names = BTreeSet::new();
    let changes = fields.iter().map(|(name, value)| {
        let name = name_of(name)?;
        let is_new = names.insert(name);
        let repeated = ErrorReply::fixed("ERR Bad data format");
        if is_new { Ok(BlockChange { name, bytes: Some(value) }) } else { Err(repeated) }
    });
    let changes = changes.collect::<Result<Vec<_>, ErrorReply>>()?;
    if changes.is_empty() { Err(ErrorReply::fixed("ERR Bad data format")) } else { Ok(changes) }
}

fn set_pairs(ctx: &CommandContext<'_>, args: Args<'_>, name: &str) -> Result<usize, ErrorReply> {
    if args.len() % 2 == 1 {
        return Err(ErrorReply::arity(name));
    }
    let changes = pairs(args.from(2))?;
    ctx.change(|change| {
        let resolved = resolve_hash(change, arg(args, 1), &changes)?;
        let found = change.read_at(resolved)?;
        set_fields(change, resolved, &fields(found.as_ref())?, &changes)
    })
}

/// `HSET key field value [field value ...]`
pub(crate) fn hset(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.count(set_pairs(ctx, args, "hset")?);
    Ok(())
}

/// `HMSET key field value [field value ...]`
pub(crate) fn hmset(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    set_pairs(ctx, args, "hmset")?;
    reply.ok();
    Ok(())
}

/// `HSETNX key field value`
pub(crate) fn hsetnx(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let changes = pairs(args.from(2))?;
    let is_set = ctx.change(|change| {
        let resolved = resolve_hash(change, arg(args, 1), &changes)?;
        let found = change.read_at(resolved)?;
        let existing = fields(found.as_ref())?;
        if missing(&existing, &changes) == 0 {
            return Ok(false);
        }
        set_fields(change, resolved, &existing, &changes)?;
        Ok(true)
    })?;
    reply.int(is_set.into());
    Ok(())
}

/// `HGET key field`
pub(crate) fn hget(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    match ctx.read(arg(args, 1))? {
        Some(found) => reply.bulk_or_nil(found.field(arg(args, 2))?),
        None => reply.nil(),
    }
    Ok(())
}

/// `HMGET key field [field ...]`
pub(crate) fn hmget(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let existing = fields(found.as_ref())?;
    let requested = args.from(2);
    reply.array(requested.len());
    if requested.len() <= LINEAR_MAX {
        for field in requested.iter() {
            let value = existing.iter().find(|(name, _)| name.as_bytes() == field);
            reply.bulk_or_nil(value.map(|(_, value)| *value));
        }
        return Ok(());
    }
    let existing: BTreeMap<&[u8], &[u8]> =
        existing.into_iter().map(|(name, value)| (name.as_bytes(), value)).collect();
    requested.iter().for_each(|field| reply.bulk_or_nil(existing.get(field).copied()));
    Ok(())
}

/// `HGETALL key`
pub(crate) fn hgetall(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let existing = fields(found.as_ref())?;
    reply.map(existing.len());
    for (name, value) in existing {
        reply.bulk(name.as_bytes());
        reply.bulk(value);
    }
    Ok(())
}

/// `HKEYS key`
pub(crate) fn hkeys(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let existing = fields(found.as_ref())?;
    reply.array(existing.len());
    for (name, _) in existing {
        reply.bulk(name.as_bytes());
    }
    Ok(())
}

/// `HVALS key`
pub(crate) fn hvals(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let existing = fields(found.as_ref())?;
    reply.array(existing.len());
    for (_, value) in existing {
        reply.bulk(value);
    }
    Ok(())
}

/// `HLEN key`
pub(crate) fn hlen(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    reply.count(fields(found.as_ref())?.len());
    Ok(())
}

/// `HEXISTS key field`
pub(crate) fn hexists(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let exists = match ctx.read(arg(args, 1))? {
        Some(found) => found.field(arg(args, 2))?.is_some(),
        None => false,
    };
    reply.int(exists.into());
    Ok(())
}

/// `HSTRLEN key field`
pub(crate) fn hstrlen(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let bytes = match ctx.read(arg(args, 1))? {
        Some(found) => found.field(arg(args, 2))?.map_or(0, <[u8]>::len),
        None => 0,
    };
    reply.count(bytes);
    Ok(())
}

/// `HDEL key field [field ...]`
pub(crate) fn hdel(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let gone = ctx.change(|change| {
        let Some(resolved) = change.records.resolve(arg(args, 1))? else { return Ok(0) };
        let Some(found) = change.read_at(resolved)? else { return Ok(0) };
        let existing = found.fields()?;
        let requested: BTreeSet<&[u8]> = args.from(2).iter().collect();
        let gone: Vec<BlockChange<'_>> = existing
            .iter()
            .filter(|(name, _)| requested.contains(name.as_bytes()))
            .map(|(name, _)| BlockChange { name, bytes: None })
            .collect();
        if gone.len() == existing.len() {
            change.txn.delete(resolved.namespace, resolved.key)?;
        } else if !gone.is_empty() {
            change.txn.patch(resolved.namespace, resolved.key, &gone)?;
        }
        Ok(gone.len())
    })?;
    reply.count(gone);
    Ok(())
}

/// Replaces the value of a field with the result of `edit`.
fn edit<T: AsRef<[u8]>>(
    ctx: &CommandContext<'_>,
    args: Args<'_>,
    edit: impl Fn(Option<&[u8]>) -> Result<T, ErrorReply>,
) -> Result<T, ErrorReply> {
    let name = name_of(arg(args, 2))?;
    ctx.change(|change| {
        let resolved = if let Some(resolved) = change.records.resolve(arg(args, 1))? {
            resolved
        } else {
            // An error for a missing field is detected before the namespace is created.
            let new = edit(None)?;
            resolve_hash(change, arg(args, 1), &[BlockChange { name, bytes: Some(new.as_ref()) }])?
        };
        let found = change.read_at(resolved)?;
        let existing = fields(found.as_ref())?;
        let known = existing.iter().find(|(known, _)| *known == name);
        let new = edit(known.map(|(_, value)| *value))?;
        set_fields(
            change,
            resolved,
            &existing,
            &[BlockChange { name, bytes: Some(new.as_ref()) }],
        )?;
        Ok(new)
    })
}

/// `HINCRBY key field increment`
pub(crate) fn hincrby(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let delta = integer_or_refuse(arg(args, 3))?;
    let sum = edit(ctx, args, |value| {
        let number = value.map_or(Some(0), integer).ok_or(ErrorReply::HASH_NOT_INTEGER)?;
        let sum = number.checked_add(delta).ok_or(ErrorReply::OVERFLOW)?;
        Ok(sum.to_string())
    })?;
    let Some(sum) = integer(sum.as_bytes()) else { invariant!("a sum is an integer") };
    reply.int(sum);
    Ok(())
}

/// `HINCRBYFLOAT key field increment`
pub(crate) fn hincrbyfloat(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let delta = LongDouble::parse(arg(args, 3)).ok_or(ErrorReply::NOT_FLOAT)?;
    if !delta.is_finite() {
        return Err(INFINITE);
    }
    let sum = edit(ctx, args, |value| {
        let number = LongDouble::parse(value.unwrap_or(b"0")).ok_or(ErrorReply::HASH_NOT_FLOAT)?;
        Ok(number.plus(delta).ok_or(ErrorReply::NAN_OR_INFINITY)?.text())
    })?;
    reply.bulk(sum.as_bytes());
    Ok(())
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count]`
pub(crate) fn hscan(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    scan_options::read_cursor(arg(args, 2))?;
    let Some(found) = ctx.read(arg(args, 1))? else {
        scan_options::write_single_page(reply, |_| 0);
        return Ok(());
    };
    let existing = found.fields()?;
    let options = ScanOptions::read(args.from(3), ScanKind::Fields)?;
    scan_options::write_single_page(reply, |reply| {
        let mut elements = 0;
        for (name, value) in existing.iter().filter(|(name, _)| options.matches(name.as_bytes())) {
            reply.bulk(name.as_bytes());
            elements += 1;
            if !options.is_without_values {
                reply.bulk(value);
                elements += 1;
            }
        }
        elements
    });
    Ok(())
}

/// `HRANDFIELD key [count [WITHVALUES]]`
pub(crate) fn hrandfield(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let Some(count) = args.get(2) else {
        let found = ctx.read(arg(args, 1))?;
        let existing = fields(found.as_ref())?;
        reply.bulk_or_nil(existing.get(below(existing.len())).map(|(name, _)| name.as_bytes()));
        return Ok(());
    };
    let wanted = RandomCount::read(count)?;
    let has_values = match (args.get(3), args.len()) {
        (None, _) => false,
        (Some(word), 4) if word.eq_ignore_ascii_case(b"withvalues") => true,
        (Some(_), _) => return Err(ErrorReply::SYNTAX),
    };
    if has_values && integer(count).is_some_and(|count| count.unsigned_abs() > i64::MAX as u64 / 2)
    {
        return Err(ErrorReply::OUT_OF_RANGE);
    }
    let found = ctx.read(arg(args, 1))?;
    let existing = fields(found.as_ref())?;
    let places = wanted.places(existing.len())?;
    let begun = reply.mark();
    let is_nested = has_values && reply.protocol() == RespVersion::Resp3;
    reply.array(places.len() * if has_values && !is_nested { 2 } else { 1 });
    for (name, value) in places.iter().filter_map(|place| existing.get(*place)) {
        if is_nested {
            reply.array(2);
        }
        reply.bulk(name.as_bytes());
        if has_values {
            reply.bulk(value);
        }
        if wanted.allows_repeats() {
            bounded(reply.written(begun))?;
        }
    }
    Ok(())
}

//! Hash commands. A small hash is a record of named blocks; a large one is divided into parts.

use super::arg;
use super::collection_read::{CollectionKey, DIRECT_MAX, Selection, fields, write_all};
use super::collection_task::{CollectionTask, ReplyForm};
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
use nearstate_model::limits::FIELD_NAME_BYTES_MAX;
use nearstate_store::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// A field and its value.
pub(super) type Field<'a> = (&'a [u8], &'a [u8]);

/// The increment is not a number.
const INFINITE: ErrorReply = ErrorReply::fixed("ERR value is NaN or Infinity");

/// Up to this many fields are searched one by one, without allocation.
const LINEAR_MAX: usize = 8;

/// Up to this many fields are read at once to search many of them.
const INDEXED_MAX: usize = 1024;

/// Rejects a name that no hash accepts.
fn check_name(field: &[u8]) -> Result<&[u8], ErrorReply> {
    if field.len() <= FIELD_NAME_BYTES_MAX {
        return Ok(field);
    }
    let bytes = field.len();
    Err(ErrorReply::new(format!(
        "ERR field name of {bytes} bytes: it may have at most {FIELD_NAME_BYTES_MAX}"
    )))
}

/// Resolves the key of a hash that is about to be written with these fields. Rejects values that no
/// hash accepts before its namespace is created.
pub(super) fn resolve_hash<'a>(
    change: &CommandTxn<'_, '_>,
    key: &'a [u8],
    changes: &[Field<'_>],
) -> Result<ResolvedKey<'a>, ChangeError> {
    let bytes = changes.iter().map(|(name, value)| name.len() + value.len());
    change.resolved(key, bytes.max().unwrap_or_default())
}

/// Sets fields. Returns the number of new ones. Errors are detected before anything is written.
pub(super) fn set_fields(
    change: &CommandTxn<'_, '_>,
    resolved: ResolvedKey<'_>,
    changes: &[Field<'_>],
) -> Result<usize, ChangeError> {
    Ok(change.txn.set_fields(resolved.namespace, resolved.key, changes)?)
}

/// Fields with their values. If a field is repeated, the last value counts.
pub(super) fn pairs(args: Args<'_>) -> Result<Vec<Field<'_>>, ErrorReply> {
    let pair = |at| Ok((check_name(arg(args, at))?, arg(args, at + 1)));
    (0..args.len()).step_by(2).map(pair).collect()
}

/// The fields of a payload of `RESTORE`, which a client may have made up.
pub(super) fn check_restored(fields: &[BytesPair<'_>]) -> CommandResult {
    let mut names = BTreeSet::new();
    let is_right = !fields.is_empty() && fields.iter().all(|(name, _)| names.insert(*name));
    if is_right { Ok(()) } else { Err(ErrorReply::fixed("ERR Bad data format")) }
}

fn set_pairs(ctx: &CommandContext<'_>, args: Args<'_>, name: &str) -> Result<usize, ErrorReply> {
    if args.len() % 2 == 1 {
        return Err(ErrorReply::arity(name));
    }
    let changes = pairs(args.from(2))?;
    ctx.change(|change| {
        let resolved = resolve_hash(change, arg(args, 1), &changes)?;
        set_fields(change, resolved, &changes)
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
        if change.txn.field(resolved.namespace, resolved.key, arg(args, 2))?.is_some() {
            return Ok(false);
        }
        set_fields(change, resolved, &changes)?;
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
    if requested.len() <= LINEAR_MAX || existing.len() > INDEXED_MAX {
        requested.iter().for_each(|field| reply.bulk_or_nil(existing.get(field)));
        return Ok(());
    }
    let existing: BTreeMap<&[u8], &[u8]> = existing.collect();
    requested.iter().for_each(|field| reply.bulk_or_nil(existing.get(field).copied()));
    Ok(())
}

/// Starts a task that replies in slices.
fn begin_task(
    ctx: &mut CommandContext<'_>,
    key: &[u8],
    form: ReplyForm,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let keys = vec![CollectionKey::of(ctx.records, key)?];
    ctx.begin(CollectionTask::new(Selection::Fields, form, keys, reply.bytes_max()), reply)
}

/// `HGETALL key`
pub(crate) fn hgetall(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let existing = fields(found.as_ref())?;
    if existing.len() > DIRECT_MAX && ctx.txn.is_none() {
        return begin_task(ctx, arg(args, 1), ReplyForm::Fields, reply);
    }
    let counted = existing.len();
    reply.map(counted);
    write_all((counted, existing), &|| ctx.check_deadline(), |(name, value)| {
        reply.bulk(name);
        reply.bulk(value);
    })
}

/// `HKEYS key`
pub(crate) fn hkeys(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let existing = fields(found.as_ref())?;
    if existing.len() > DIRECT_MAX && ctx.txn.is_none() {
        return begin_task(ctx, arg(args, 1), ReplyForm::Names, reply);
    }
    let counted = existing.len();
    reply.array(counted);
    write_all((counted, existing), &|| ctx.check_deadline(), |(name, _)| reply.bulk(name))
}

/// `HVALS key`
pub(crate) fn hvals(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    let existing = fields(found.as_ref())?;
    if existing.len() > DIRECT_MAX && ctx.txn.is_none() {
        return begin_task(ctx, arg(args, 1), ReplyForm::Values, reply);
    }
    let counted = existing.len();
    reply.array(counted);
    write_all((counted, existing), &|| ctx.check_deadline(), |(_, value)| reply.bulk(value))
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
        let names: Vec<&[u8]> = args.from(2).iter().collect();
        match resolved.namespace.kind() {
            Kind::Mixed | Kind::Blocks => {
                Ok(change.txn.remove_fields(resolved.namespace, resolved.key, &names)?)
            }
            // A namespace without hashes: only a record of another type is an error.
            Kind::Value | Kind::Counters => {
                let found = change.read_at(resolved)?;
                fields(found.as_ref())?;
                Ok(0)
            }
        }
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
    let name = check_name(arg(args, 2))?;
    ctx.change(|change| {
        let resolved = if let Some(resolved) = change.records.resolve(arg(args, 1))? {
            resolved
        } else {
            // An error for a missing field is detected before the namespace is created.
            let new = edit(None)?;
            resolve_hash(change, arg(args, 1), &[(name, new.as_ref())])?
        };
        let found = change.txn.field(resolved.namespace, resolved.key, name)?;
        let new = edit(found.as_deref())?;
        set_fields(change, resolved, &[(name, new.as_ref())])?;
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
    let cursor = scan_options::read_cursor(arg(args, 2))?;
    let Some(found) = ctx.read(arg(args, 1))? else {
        scan_options::write_single_page(reply, |_| 0);
        return Ok(());
    };
    let existing = found.fields()?;
    let options = ScanOptions::read(args.from(3), ScanKind::Fields)?;
    let mut page = Vec::new();
    let next = existing.scan_from(cursor, options.elements(), |name, value| {
        if options.matches(name) {
            page.push((name, value));
        }
    });
    scan_options::write_page(reply, next, |reply| {
        for (name, value) in &page {
            reply.bulk(name);
            if !options.is_without_values {
                reply.bulk(value);
            }
        }
        page.len() * if options.is_without_values { 1 } else { 2 }
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
        let picked = existing.select(&[below(existing.len())]);
        reply.bulk_or_nil(picked.first().map(|(name, _)| *name));
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
    found.as_ref().map_or(Ok(()), RecordRef::check_count)?;
    let existing = fields(found.as_ref())?;
    let counted = existing.len();
    let form = match (has_values, reply.protocol()) {
        (false, _) => ReplyForm::Names,
        (true, RespVersion::Resp2) => ReplyForm::Pairs { is_nested: false },
        (true, RespVersion::Resp3) => ReplyForm::Pairs { is_nested: true },
    };
    if wanted.is_all_of(counted) {
        if counted > DIRECT_MAX && ctx.txn.is_none() {
            return begin_task(ctx, arg(args, 1), form, reply);
        }
        write_pairs_head(counted, form, reply);
        return write_all((counted, existing), &|| ctx.check_deadline(), |pair| {
            write_pair(pair, form, reply);
        });
    }
    let places = wanted.places(counted)?;
    let begun = reply.mark();
    write_pairs_head(places.len(), form, reply);
    for pair in existing.select(&places) {
        write_pair(pair, form, reply);
        if wanted.allows_repeats() {
            bounded(reply.written(begun))?;
        }
    }
    Ok(())
}

/// The header of so many fields in a form of `HRANDFIELD`.
fn write_pairs_head(count: usize, form: ReplyForm, reply: &mut ReplyWriter<'_>) {
    let is_flat = form == ReplyForm::Pairs { is_nested: false };
    reply.array(count * if is_flat { 2 } else { 1 });
}

/// A field in a form of `HRANDFIELD`.
fn write_pair((name, value): Field<'_>, form: ReplyForm, reply: &mut ReplyWriter<'_>) {
    if form == (ReplyForm::Pairs { is_nested: true }) {
        reply.array(2);
    }
    reply.bulk(name);
    if form != ReplyForm::Names {
        reply.bulk(value);
    }
}

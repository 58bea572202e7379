//! String commands.

use super::string_edit::{edit, text};
use super::{arg, check_key_count};
use crate::command_context::{CommandContext, CommandTxn};
use crate::expiry_options::ExpiryUnit;
use crate::number::long_double::LongDouble;
use crate::number::{integer, integer_or_refuse};
use crate::parse::Args;
use crate::records::{
    ChangeError, KeyedRecords, RecordRef, ResolvedKey, RetainedMetadata, put_string, validate,
};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_store::{Condition, Error, Outcome};

/// Redis' error for a string that is too long, with the limit of the region.
const TOO_LONG: ErrorReply =
    ErrorReply::fixed("ERR string exceeds maximum allowed size (134217728 bytes)");
const _: () = assert!(VALUE_BYTES_MAX == 134_217_728, "the text above says it");

/// `GET key`
pub(crate) fn get(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read_inline(arg(args, 1))?;
    reply.bulk_or_nil(found.as_ref().map(RecordRef::string).transpose()?);
    ctx.session().check_not_truncated()?;
    Ok(())
}

/// `MGET key ..`: null for keys of other types. All at one instant, as in Redis.
pub(crate) fn mget(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.array(args.len() - 1);
    let mark = reply.mark();
    ctx.read_together(args.from(1).iter(), |number, found| {
        if number == 0 {
            reply.rewind(mark);
        }
        reply.bulk_or_nil(found.and_then(|found| found.string().ok()));
    })?;
    ctx.session().check_not_truncated()?;
    Ok(())
}

/// `STRLEN key`
pub(crate) fn strlen(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let found = ctx.read(arg(args, 1))?;
    reply.count(text(found.as_ref())?.len());
    Ok(())
}

/// `GETRANGE key start end`
pub(crate) fn getrange(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let (start, end) = (integer_or_refuse(arg(args, 2))?, integer_or_refuse(arg(args, 3))?);
    let found = ctx.read(arg(args, 1))?;
    let bytes = text(found.as_ref())?;
    reply.bulk(part(bytes, start, end));
    ctx.session().check_not_truncated()?;
    Ok(())
}

/// From start to end inclusive; negative positions count from the end.
fn part(bytes: &[u8], start: i64, end: i64) -> &[u8] {
    let len = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let from_end = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end || len == 0 {
        return &[];
    }
    let place = |at: i64| usize::try_from(at).unwrap_or(usize::MAX);
    bytes.get(place(start)..=place(end)).unwrap_or_default()
}

/// An expiration option, validated after all options are parsed. A repeated unit is allowed as in
/// Redis; the last one counts.
#[derive(Clone, Copy, Debug, Default)]
struct ExpiryOption<'a>(Option<(ExpiryUnit, &'a [u8])>);

impl<'a> ExpiryOption<'a> {
    const fn is_empty(self) -> bool {
        self.0.is_none()
    }

    /// Reads a unit and its number. Returns false for another word or a second unit.
    fn take(&mut self, option: &[u8], number: Option<&'a [u8]>) -> bool {
        let (Some(unit), Some(number)) = (ExpiryUnit::of(option), number) else { return false };
        if self.0.is_some_and(|(given, _)| given != unit) {
            return false;
        }
        self.0 = Some((unit, number));
        true
    }

    /// Expiration time in Unix milliseconds.
    fn end(self, name: &str, records: &KeyedRecords) -> Result<Option<u64>, ErrorReply> {
        let Some((unit, number)) = self.0 else { return Ok(None) };
        unit.end(number, name, records.now_ms()?).map(Some)
    }
}

/// Whether a time has passed; 0 never passes.
fn has_passed(expires_ms: u64, records: &KeyedRecords) -> Result<bool, Error> {
    Ok(expires_ms != 0 && expires_ms <= records.now_ms()?)
}

/// Options of SET.
#[expect(clippy::struct_excessive_bools, reason = "four words that a client may give")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetOptions {
    expires_ms: u64,
    is_keeping: bool,
    is_absent: bool,
    is_present: bool,
    has_get: bool,
}

impl SetOptions {
    pub(crate) fn read(options: Args<'_>, records: &KeyedRecords) -> Result<Self, ErrorReply> {
        let mut read = Self::default();
        let mut until = ExpiryOption::default();
        let mut rest = options;
        while let Some(option) = rest.get(0) {
            let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
            let mut taken = 1;
            if is("nx") && !read.is_present {
                read.is_absent = true;
            } else if is("xx") && !read.is_absent {
                read.is_present = true;
            } else if is("get") {
                read.has_get = true;
            } else if is("keepttl") && until.is_empty() {
                read.is_keeping = true;
            } else if !read.is_keeping && until.take(option, rest.get(1)) {
                taken = 2;
            } else {
                return Err(ErrorReply::SYNTAX);
            }
            rest = rest.from(taken);
        }
        read.expires_ms = until.end("set", records)?.unwrap_or_default();
        Ok(read)
    }

    /// Whether one operation of the store suffices: the old record is neither returned nor kept,
    /// and the new one does not expire.
    const fn is_one_step(self) -> bool {
        self.expires_ms == 0 && !self.is_keeping && !self.has_get
    }

    /// Writes the reply of SET.
    pub(crate) fn answer(self, (is_set, before): &SetOutcome, reply: &mut ReplyWriter<'_>) {
        match (self.has_get, is_set) {
            (true, _) => reply.bulk_or_nil(before.as_deref()),
            (false, true) => reply.ok(),
            (false, false) => reply.nil(),
        }
    }
}

/// Whether the key was set, and the previous value if requested.
pub(crate) type SetOutcome = (bool, Option<Vec<u8>>);

/// `SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`
pub(crate) fn set(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len() == 3 {
        put(ctx, arg(args, 1), arg(args, 2))?;
        reply.ok();
        return Ok(());
    }
    let options = SetOptions::read(args.from(3), ctx.records)?;
    set_with(ctx, (arg(args, 1), arg(args, 2)), options, reply)
}

/// Sets a key and writes the reply of SET.
fn set_with(
    ctx: &CommandContext<'_>,
    pair: (&[u8], &[u8]),
    options: SetOptions,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let begun = reply.mark();
    set_accepted(ctx, pair, options, |outcome| {
        reply.rewind(begun);
        options.answer(outcome, reply);
        reply.check_complete()
    })
}

/// Sets a key if `accept` takes what was found. It is called in each run of the transaction.
fn set_accepted(
    ctx: &CommandContext<'_>,
    (key, value): (&[u8], &[u8]),
    options: SetOptions,
    mut accept: impl FnMut(&SetOutcome) -> CommandResult,
) -> CommandResult {
    if ctx.txn.is_none() && options.is_one_step() {
        // It returns no value, which could be too long.
        return accept(&set_at_once(ctx, key, value, options)?);
    }
    ctx.change(|change| Ok(accept(&set_in(change, key, value, options)?)?))
}

/// SET as one operation of the store, which checks the condition under its lock.
fn set_at_once(
    ctx: &CommandContext<'_>,
    key: &[u8],
    value: &[u8],
    options: SetOptions,
) -> Result<SetOutcome, ErrorReply> {
    let condition = match options {
        SetOptions { is_absent: true, .. } => Condition::Absent,
        SetOptions { is_present: true, .. } => Condition::Present,
        SetOptions { .. } => Condition::Always,
    };
    let resolved = if options.is_present {
        ctx.records.resolve(key)?
    } else {
        Some(ctx.records.resolve_or_create(key, value.len())?)
    };
    let Some(ResolvedKey { namespace, key }) = resolved else { return Ok((false, None)) };
    let outcome = ctx.session().put_if(namespace, key, value, condition)?;
    Ok((matches!(outcome, Outcome::Done { .. }), None))
}

/// SET as a part of a transaction.
pub(crate) fn set_in(
    change: &CommandTxn<'_, '_>,
    key: &[u8],
    value: &[u8],
    options: SetOptions,
) -> Result<SetOutcome, ChangeError> {
    if options.is_present && change.records.resolve(key)?.is_none() {
        return Ok((false, None));
    }
    let resolved = change.resolved(key, value.len())?;
    let found = change.read_at(resolved)?;
    let before = match &found {
        Some(found) if options.has_get => Some(found.string()?.to_vec()),
        _ => None,
    };
    let exists = found.is_some();
    if options.is_absent && exists || options.is_present && !exists {
        return Ok((false, before));
    }
    let expires_ms = match &found {
        Some(found) if options.is_keeping => found.expires_ms(),
        _ => options.expires_ms,
    };
    drop(found);
    if has_passed(expires_ms, change.records)? {
        change.txn.delete(resolved.namespace, resolved.key)?;
    } else {
        put_string(change.txn, resolved, value, &RetainedMetadata::with_expiry(expires_ms))?;
    }
    Ok((true, before))
}

/// Sets a key unconditionally.
fn put(ctx: &CommandContext<'_>, key: &[u8], value: &[u8]) -> CommandResult {
    let ResolvedKey { namespace, key } = ctx.records.resolve_or_create(key, value.len())?;
    match ctx.txn {
        Some(txn) => txn.put(namespace, key, value)?,
        None => drop(ctx.session().put(namespace, key, value)?),
    }
    Ok(())
}

/// `SETNX key value`
pub(crate) fn setnx(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let options = SetOptions { is_absent: true, ..SetOptions::default() };
    let begun = reply.mark();
    set_accepted(ctx, (arg(args, 1), arg(args, 2)), options, |(is_set, _)| {
        reply.rewind(begun);
        reply.int((*is_set).into());
        Ok(())
    })
}

/// `SETEX key seconds value`
pub(crate) fn setex(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let unit = ExpiryUnit { is_seconds: true, is_absolute: false };
    set_until(ctx, args, unit.end(arg(args, 2), "setex", ctx.records.now_ms()?)?, reply)
}

/// `PSETEX key milliseconds value`
pub(crate) fn psetex(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let unit = ExpiryUnit { is_seconds: false, is_absolute: false };
    set_until(ctx, args, unit.end(arg(args, 2), "psetex", ctx.records.now_ms()?)?, reply)
}

fn set_until(
    ctx: &CommandContext<'_>,
    args: Args<'_>,
    expires_ms: u64,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let options = SetOptions { expires_ms, ..SetOptions::default() };
    set_with(ctx, (arg(args, 1), arg(args, 3)), options, reply)
}

/// `GETSET key value`
pub(crate) fn getset(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let options = SetOptions { has_get: true, ..SetOptions::default() };
    set_with(ctx, (arg(args, 1), arg(args, 2)), options, reply)
}

/// `GETDEL key`
pub(crate) fn getdel(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let begun = reply.mark();
    ctx.change(|change| {
        reply.rewind(begun);
        let Some(found) = change.read(arg(args, 1))? else {
            reply.nil();
            return Ok(());
        };
        reply.bulk(found.string()?);
        reply.check_complete()?;
        drop(found);
        change.delete(arg(args, 1))?;
        Ok(())
    })
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`
pub(crate) fn getex(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let mut until = ExpiryOption::default();
    let mut is_persisting = false;
    let mut rest = args.from(2);
    while let Some(option) = rest.get(0) {
        if option.eq_ignore_ascii_case(b"persist") && until.is_empty() {
            is_persisting = true;
            rest = rest.from(1);
        } else if !is_persisting && until.take(option, rest.get(1)) {
            rest = rest.from(2);
        } else {
            return Err(ErrorReply::SYNTAX);
        }
    }
    if !is_persisting && until.is_empty() {
        return get(ctx, args, reply);
    }
    let begun = reply.mark();
    ctx.change(|change| {
        reply.rewind(begun);
        let resolved = change.records.resolve(arg(args, 1))?;
        let found = resolved.map(|resolved| change.read_at(resolved)).transpose()?.flatten();
        let (Some(resolved), Some(found)) = (resolved, found) else {
            reply.nil();
            return Ok(());
        };
        let value = found.string()?.to_vec();
        reply.bulk(&value);
        reply.check_complete()?;
        let expires_ms = until.end("getex", change.records)?.unwrap_or_default();
        if found.expires_ms() == expires_ms {
            // No write, which would be visible to clients that watch the key.
            return Ok(());
        }
        let kept = RetainedMetadata { expires_ms, ..RetainedMetadata::of(&found) };
        drop(found);
        if has_passed(expires_ms, change.records)? {
            change.txn.delete(resolved.namespace, resolved.key)?;
        } else {
            put_string(change.txn, resolved, &value, &kept)?;
        }
        Ok(())
    })
}

/// `MSET key value ..`
pub(crate) fn mset(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(ErrorReply::arity("mset"));
    }
    if args.len() == 3 {
        put(ctx, arg(args, 1), arg(args, 2))?;
    } else {
        ctx.change(|change| put_all(change, args.from(1)))?;
    }
    reply.ok();
    Ok(())
}

/// Writes keys with values. Rejects invalid ones before the first namespace is created.
pub(crate) fn put_all(change: &CommandTxn<'_, '_>, pairs: Args<'_>) -> Result<(), ChangeError> {
    let pairs = || (0..pairs.len()).step_by(2).map(|at| (arg(pairs, at), arg(pairs, at + 1)));
    check_key_count(pairs().map(|(key, _)| key))?;
    for (key, value) in pairs() {
        validate(key, value.len())?;
    }
    for (key, value) in pairs() {
        let ResolvedKey { namespace, key } = change.resolved(key, value.len())?;
        change.txn.put(namespace, key, value)?;
    }
    Ok(())
}

/// `MSETNX key value ..`
pub(crate) fn msetnx(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(ErrorReply::arity("msetnx"));
    }
    check_key_count((1..args.len()).step_by(2).map(|at| arg(args, at)))?;
    let is_set = ctx.change(|change| {
        for at in (1..args.len()).step_by(2) {
            if change.read(arg(args, at))?.is_some() {
                return Ok(false);
            }
        }
        put_all(change, args.from(1)).map(|()| true)
    })?;
    reply.int(is_set.into());
    Ok(())
}

/// `APPEND key value`
pub(crate) fn append(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let more = arg(args, 2);
    let bytes = edit(ctx, arg(args, 1), |bytes, _| {
        if bytes.len().saturating_add(more.len()) > VALUE_BYTES_MAX {
            return Err(TOO_LONG);
        }
        bytes.extend_from_slice(more);
        Ok(bytes.len())
    })?;
    reply.count(bytes);
    Ok(())
}

/// `SETRANGE key offset value`
pub(crate) fn setrange(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let offset = integer_or_refuse(arg(args, 2))?;
    let offset = usize::try_from(offset).map_err(|_| ErrorReply::OFFSET)?;
    let part = arg(args, 3);
    if part.is_empty() {
        return strlen(ctx, args, reply);
    }
    if offset.saturating_add(part.len()) > VALUE_BYTES_MAX {
        return Err(TOO_LONG);
    }
    let bytes = edit(ctx, arg(args, 1), |bytes, _| {
        let end = offset + part.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(place) = bytes.get_mut(offset..end) {
            place.copy_from_slice(part);
        }
        Ok(bytes.len())
    })?;
    reply.count(bytes);
    Ok(())
}

/// `INCR key`
pub(crate) fn incr(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    add(ctx, arg(args, 1), 1, reply)
}

/// `DECR key`
pub(crate) fn decr(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    add(ctx, arg(args, 1), -1, reply)
}

/// `INCRBY key increment`
pub(crate) fn incrby(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    add(ctx, arg(args, 1), integer_or_refuse(arg(args, 2))?, reply)
}

/// `DECRBY key decrement`
pub(crate) fn decrby(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let decrement = integer_or_refuse(arg(args, 2))?;
    let delta = decrement.checked_neg().ok_or(ErrorReply::fixed("ERR decrement would overflow"))?;
    add(ctx, arg(args, 1), delta, reply)
}

fn add(
    ctx: &CommandContext<'_>,
    key: &[u8],
    delta: i64,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let sum = edit(ctx, key, |bytes, exists| {
        let number = if exists { integer(bytes) } else { Some(0) };
        let number = number.ok_or(ErrorReply::NOT_INTEGER)?;
        let sum = number.checked_add(delta).ok_or(ErrorReply::OVERFLOW)?;
        bytes.clear();
        bytes.extend_from_slice(sum.to_string().as_bytes());
        Ok(sum)
    })?;
    reply.int(sum);
    Ok(())
}

/// `INCRBYFLOAT key increment`
pub(crate) fn incrbyfloat(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let sum = edit(ctx, arg(args, 1), |bytes, exists| {
        let number = LongDouble::parse(if exists { bytes } else { b"0" });
        let number = number.ok_or(ErrorReply::NOT_FLOAT)?;
        let delta = LongDouble::parse(arg(args, 2)).ok_or(ErrorReply::NOT_FLOAT)?;
        let sum = number.plus(delta).ok_or(ErrorReply::NAN_OR_INFINITY)?.text();
        bytes.clear();
        bytes.extend_from_slice(sum.as_bytes());
        Ok(sum)
    })?;
    reply.bulk(sum.as_bytes());
    Ok(())
}

//! Expiration commands: `EXPIRE`, `TTL` and their variants.

use super::arg;
use crate::command_context::CommandContext;
use crate::expiry_options::ExpiryUnit;
use crate::number::integer_or_refuse;
use crate::parse::Args;
use crate::records::RetainedMetadata;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};

const AFTER_SECONDS: ExpiryUnit = ExpiryUnit { is_seconds: true, is_absolute: false };
const AFTER_MS: ExpiryUnit = ExpiryUnit { is_seconds: false, is_absolute: false };
const AT_SECONDS: ExpiryUnit = ExpiryUnit { is_seconds: true, is_absolute: true };
const AT_MS: ExpiryUnit = ExpiryUnit { is_seconds: false, is_absolute: true };

/// Condition on the current expiration time: `NX`, `XX`, `GT`, `LT`.
#[expect(clippy::struct_excessive_bools, reason = "four words that a client may give together")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ExpireCondition {
    none: bool,
    some: bool,
    earlier: bool,
    later: bool,
}

impl ExpireCondition {
    fn read(options: Args<'_>) -> Result<Self, ErrorReply> {
        let mut given = Self::default();
        for option in options.iter() {
            match option.to_ascii_lowercase().as_slice() {
                b"nx" => given.none = true,
                b"xx" => given.some = true,
                b"gt" => given.earlier = true,
                b"lt" => given.later = true,
                _ => {
                    let shown = String::from_utf8_lossy(option);
                    return Err(ErrorReply::new(format!("ERR Unsupported option {shown}")));
                }
            }
        }
        if given.none && (given.some || given.earlier || given.later) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(ErrorReply::fixed(text));
        }
        if given.earlier && given.later {
            let text = "ERR GT and LT options at the same time are not compatible";
            return Err(ErrorReply::fixed(text));
        }
        Ok(given)
    }

    /// Whether the expiration time may change from `present` (0 for none) to `new`.
    fn allows(self, present: u64, new: i64) -> bool {
        // No expiration time is later than any other.
        let present = i64::try_from(present).ok().filter(|present| *present != 0);
        let is_none = !self.none || present.is_none();
        let is_some = !self.some || present.is_some();
        let is_earlier = !self.earlier || present.is_some_and(|present| present < new);
        let is_later = !self.later || present.is_none_or(|present| present > new);
        is_none && is_some && is_earlier && is_later
    }
}

/// Sets the expiration time of a key. Deletes the key if the time has passed.
fn end(
    ctx: &CommandContext<'_>,
    args: Args<'_>,
    unit: ExpiryUnit,
    name: &str,
) -> Result<bool, ErrorReply> {
    let given = ExpireCondition::read(args.from(3))?;
    let number = integer_or_refuse(arg(args, 2))?;
    let now_ms = ctx.records.now_ms()?;
    let new = unit.end_of(number, now_ms).ok_or_else(|| ErrorReply::expire_time(name))?;
    ctx.change(|change| {
        let Some(resolved) = change.records.resolve(arg(args, 1))? else { return Ok(false) };
        let Some(found) = change.read_at(resolved)? else { return Ok(false) };
        if !given.allows(found.expires_ms(), new) {
            return Ok(false);
        }
        let mut kept = RetainedMetadata::of(&found);
        drop(found);
        match u64::try_from(new).ok().filter(|new| *new > now_ms) {
            Some(new) => {
                kept.expires_ms = new;
                let tags = kept.tags();
                change.txn.set_metadata(resolved.namespace, resolved.key, kept.metadata(&tags))?;
            }
            None => drop(change.txn.delete(resolved.namespace, resolved.key)?),
        }
        Ok(true)
    })
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`
pub(crate) fn expire(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.int(end(ctx, args, AFTER_SECONDS, "expire")?.into());
    Ok(())
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`
pub(crate) fn pexpire(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.int(end(ctx, args, AFTER_MS, "pexpire")?.into());
    Ok(())
}

/// `EXPIREAT key unix-time-seconds [NX | XX | GT | LT]`
pub(crate) fn expireat(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.int(end(ctx, args, AT_SECONDS, "expireat")?.into());
    Ok(())
}

/// `PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]`
pub(crate) fn pexpireat(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.int(end(ctx, args, AT_MS, "pexpireat")?.into());
    Ok(())
}

/// `PERSIST key`
pub(crate) fn persist(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let has_ended = ctx.change(|change| {
        let Some(resolved) = change.records.resolve(arg(args, 1))? else { return Ok(false) };
        let Some(found) = change.read_at(resolved)? else { return Ok(false) };
        if found.expires_ms() == 0 {
            return Ok(false);
        }
        let mut kept = RetainedMetadata::of(&found);
        drop(found);
        kept.expires_ms = 0;
        let tags = kept.tags();
        Ok(change.txn.set_metadata(resolved.namespace, resolved.key, kept.metadata(&tags))?)
    })?;
    reply.int(has_ended.into());
    Ok(())
}

/// Replies -2 if the key does not exist, -1 if it has no expiration time, otherwise the result of
/// `triple`.
fn reply_time(
    ctx: &CommandContext<'_>,
    args: Args<'_>,
    triple: impl Fn(u64) -> u64,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let key = arg(args, 1);
    reply.int(match ctx.read(key)? {
        None => -2,
        Some(found) if found.expires_ms() == 0 => -1,
        Some(found) => i64::try_from(triple(found.expires_ms())).unwrap_or(i64::MAX),
    });
    Ok(())
}

/// Seconds, rounded.
const fn seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

/// `TTL key`
pub(crate) fn ttl(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let now_ms = ctx.records.now_ms()?;
    reply_time(ctx, args, |end| seconds(end.saturating_sub(now_ms)), reply)
}

/// `PTTL key`
pub(crate) fn pttl(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let now_ms = ctx.records.now_ms()?;
    reply_time(ctx, args, |end| end.saturating_sub(now_ms), reply)
}

/// `EXPIRETIME key`
pub(crate) fn expiretime(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply_time(ctx, args, seconds, reply)
}

/// `PEXPIRETIME key`
pub(crate) fn pexpiretime(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply_time(ctx, args, |end| end, reply)
}

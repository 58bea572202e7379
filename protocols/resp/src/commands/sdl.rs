//! Commands of the SDL module: conditional writes that compare whole values, with messages that are
//! sent if and only if the write happened, in the order of the arguments.

mod pattern;

pub(crate) use pattern::{ndel_atomic, nget_atomic, nget_noatomic};

use super::arg;
use super::strings::{SetOptions, put_all, set_in};
use crate::command_context::{CommandContext, CommandTxn};
use crate::connection_state::PublishCost;
use crate::number::integer;
use crate::parse::Args;
use crate::records::{ChangeError, RetainedMetadata, put_string};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_store::since_boot;

const SET_COUNTS: [ErrorReply; 2] = [
    ErrorReply::fixed("ERR SET_PAIR_COUNT and PUB_PAIR_COUNT must be greater than zero"),
    ErrorReply::fixed("ERR SET_PAIR_COUNT or PUB_PAIR_COUNT do not match the total pair count"),
];
const DEL_COUNTS: [ErrorReply; 2] = [
    ErrorReply::fixed("ERR DEL_COUNT and PUB_PAIR_COUNT must be greater than zero"),
    ErrorReply::fixed("ERR DEL_COUNT or PUB_PAIR_COUNT do not match the total pair count"),
];

/// Limit of messages per command. SDL's clients publish one or a few with a write; more would delay
/// other clients of the core.
const MESSAGES_MAX: usize = 1024;

/// Up to this many messages are sent without a cost estimate: with the slowest patterns
/// (`pubsub.rs`, 50 ms) they take less than [`EXEC_MAX`](crate::server::EXEC_MAX).
const UNWEIGHED_MAX: usize = 16;

/// Condition on the string of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueCondition<'a> {
    /// It has this value.
    Equal(&'a [u8]),
    /// It has another value or does not exist.
    Different(&'a [u8]),
    /// It exists.
    Present,
    /// It does not exist.
    Absent,
}

impl ValueCondition<'_> {
    /// Checks the condition for a key. Compares whole values.
    fn holds(self, change: &CommandTxn<'_, '_>, key: &[u8]) -> Result<bool, ChangeError> {
        let found = change.read(key)?;
        let value = found.as_ref().map(|found| found.string()).transpose()?;
        Ok(match self {
            Self::Equal(old) => value == Some(old),
            Self::Different(old) => value != Some(old),
            Self::Present => value.is_some(),
            Self::Absent => value.is_none(),
        })
    }
}

/// `SETIE key new old [options of SET]`
pub(crate) fn setie(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    set_if(ctx, args, ValueCondition::Equal(arg(args, 3)), reply)
}

/// `SETNE key new old [options of SET]`
pub(crate) fn setne(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    set_if(ctx, args, ValueCondition::Different(arg(args, 3)), reply)
}

fn set_if(
    ctx: &CommandContext<'_>,
    args: Args<'_>,
    when: ValueCondition<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let options = SetOptions::read(args.from(4), ctx.records)?;
    let (key, new) = (arg(args, 1), arg(args, 2));
    let begun = reply.mark();
    ctx.change(|change| {
        reply.rewind(begun);
        if when.holds(change, key)? {
            options.answer(&set_in(change, key, new, options)?, reply);
        } else {
            reply.nil();
        }
        Ok(reply.check_complete()?)
    })
}

/// `DELIE key old`
pub(crate) fn delie(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    del_if_pub(ctx, args, ValueCondition::Equal(arg(args, 2)), reply)
}

/// `DELNE key old`
pub(crate) fn delne(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    del_if_pub(ctx, args, ValueCondition::Different(arg(args, 2)), reply)
}

/// `MSETPUB key value [key value ..] channel message`
pub(crate) fn msetpub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(ErrorReply::arity("msetpub"));
    }
    let message = args.len() - 2;
    set_all_pub(ctx, args.first(message).from(1), args.from(message), reply)
}

/// `MSETMPUB pairs messages key value .. channel message ..`
pub(crate) fn msetmpub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(ErrorReply::arity("msetmpub"));
    }
    let messages = counted(args, 2, &SET_COUNTS)?;
    set_all_pub(ctx, args.first(messages).from(3), args.from(messages), reply)
}

/// `SETXXPUB key value channel message`
pub(crate) fn setxxpub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    set_if_pub(ctx, args, (ValueCondition::Present, 3), reply)
}

/// `SETNXPUB key value channel message`
pub(crate) fn setnxpub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    set_if_pub(ctx, args, (ValueCondition::Absent, 3), reply)
}

/// `SETNXMPUB key value channel message [channel message ..]`
pub(crate) fn setnxmpub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(ErrorReply::arity("setnxmpub"));
    }
    set_if_pub(ctx, args, (ValueCondition::Absent, 3), reply)
}

/// `SETIEPUB key new old channel message`
pub(crate) fn setiepub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    set_if_pub(ctx, args, (ValueCondition::Equal(arg(args, 3)), 4), reply)
}

/// `SETIEMPUB key new old channel message [channel message ..]`
pub(crate) fn setiempub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(ErrorReply::arity("setiempub"));
    }
    set_if_pub(ctx, args, (ValueCondition::Equal(arg(args, 3)), 4), reply)
}

/// `SETNEPUB key new old channel message`
pub(crate) fn setnepub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    set_if_pub(ctx, args, (ValueCondition::Different(arg(args, 3)), 4), reply)
}

/// `DELPUB key [key ..] channel message`
pub(crate) fn delpub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let message = args.len() - 2;
    del_all_pub(ctx, args.first(message).from(1), args.from(message), reply)
}

/// `DELMPUB keys messages key .. channel message ..`
pub(crate) fn delmpub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let messages = counted(args, 1, &DEL_COUNTS)?;
    del_all_pub(ctx, args.first(messages).from(3), args.from(messages), reply)
}

/// `DELIEPUB key old channel message`
pub(crate) fn deliepub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    del_if_pub(ctx, args, ValueCondition::Equal(arg(args, 2)), reply)
}

/// `DELIEMPUB key old channel message [channel message ..]`
pub(crate) fn deliempub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(ErrorReply::arity("deliempub"));
    }
    del_if_pub(ctx, args, ValueCondition::Equal(arg(args, 2)), reply)
}

/// `DELNEPUB key old channel message`
pub(crate) fn delnepub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    del_if_pub(ctx, args, ValueCondition::Different(arg(args, 2)), reply)
}

/// Position of the first message in a request that counts its keys, each with `step` arguments, and
/// its messages.
fn counted(args: Args<'_>, step: usize, refusals: &[ErrorReply; 2]) -> Result<usize, ErrorReply> {
    let [too_small, mismatch] = refusals;
    let count = |at| integer(arg(args, at)).filter(|count| *count > 0);
    let (Some(keys), Some(messages)) = (count(1), count(2)) else { return Err(too_small.clone()) };
    let sized = |count: i64, each: usize| usize::try_from(count).ok()?.checked_mul(each);
    let first = sized(keys, step).and_then(|keys| keys.checked_add(3));
    let all = first.zip(sized(messages, 2)).and_then(|(first, rest)| first.checked_add(rest));
    match (first, all) {
        (Some(first), Some(all)) if all == args.len() => Ok(first),
        _ => Err(mismatch.clone()),
    }
}

/// Rejects messages that would occupy the core for too long. The check is before the write, which
/// cannot be undone. `EXEC` has its own check.
fn check_publish_cost(ctx: &CommandContext<'_>, messages: Args<'_>) -> CommandResult {
    let count = messages.len() / 2;
    if count > MESSAGES_MAX {
        return Err(ErrorReply::new(format!(
            "ERR {count} messages exceed the limit of {MESSAGES_MAX} per command: send several \
             commands; nothing was changed or sent"
        )));
    }
    if ctx.txn.is_some() || count <= UNWEIGHED_MAX {
        return Ok(());
    }
    let (limit, mut weight) = (ctx.server.settings.exec_max, PublishCost::default());
    // Finding the subscribers takes time as well, now and when the messages are sent.
    let until = since_boot().saturating_add(limit);
    for at in (0..messages.len()).step_by(2) {
        let (channel, payload) = (arg(messages, at), arg(messages, at + 1));
        let (subscribers, finding) = ctx.count_receivers(channel);
        weight.add(channel.len() + payload.len(), subscribers, finding);
        if weight.takes > until.saturating_sub(since_boot()) {
            return Err(ErrorReply::new(format!(
                "ERR sending {count} messages, the first {} of them to {} subscribers, would \
                 exceed the time limit of {limit:?}: publish fewer messages or raise \
                 resp.exec_max; nothing was changed or sent",
                weight.messages, weight.deliveries
            )));
        }
    }
    Ok(())
}

/// Publishes messages given as pairs of channel and message.
fn publish(ctx: &mut CommandContext<'_>, messages: Args<'_>) -> CommandResult {
    for at in (0..messages.len()).step_by(2) {
        // The subscribers are counted immediately, also between MULTI and EXEC.
        ctx.check_deadline()?;
        ctx.publish(arg(messages, at), arg(messages, at + 1));
    }
    Ok(())
}

fn set_all_pub(
    ctx: &mut CommandContext<'_>,
    pairs: Args<'_>,
    messages: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check_publish_cost(ctx, messages)?;
    ctx.change(|change| put_all(change, pairs))?;
    publish(ctx, messages)?;
    reply.ok();
    Ok(())
}

/// Sets argument 1 to argument 2 under a condition. `messages` is the position of the first
/// message.
fn set_if_pub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    (when, messages): (ValueCondition<'_>, usize),
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check_publish_cost(ctx, args.from(messages))?;
    let is_set = ctx.change(|change| {
        let is_so = when.holds(change, arg(args, 1))?;
        if is_so {
            let resolved = change.resolved(arg(args, 1), arg(args, 2).len())?;
            put_string(change.txn, resolved, arg(args, 2), &RetainedMetadata::default())?;
        }
        Ok(is_so)
    })?;
    if !is_set {
        reply.nil();
        return Ok(());
    }
    publish(ctx, args.from(messages))?;
    reply.ok();
    Ok(())
}

fn del_all_pub(
    ctx: &mut CommandContext<'_>,
    keys: Args<'_>,
    messages: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check_publish_cost(ctx, messages)?;
    let deleted = ctx.change(|change| {
        let mut deleted = 0_usize;
        for key in keys.iter() {
            deleted += usize::from(change.delete(key)?);
        }
        Ok(deleted)
    })?;
    if deleted > 0 {
        publish(ctx, messages)?;
    }
    reply.count(deleted);
    Ok(())
}

/// Deletes argument 1 under a condition. Messages follow the value.
fn del_if_pub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    when: ValueCondition<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check_publish_cost(ctx, args.from(3))?;
    let is_deleted =
        ctx.change(|change| Ok(when.holds(change, arg(args, 1))? && change.delete(arg(args, 1))?))?;
    if is_deleted {
        publish(ctx, args.from(3))?;
    }
    reply.int(is_deleted.into());
    Ok(())
}

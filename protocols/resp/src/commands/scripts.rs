//! `EVAL` and its variants for the supported scripts.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command_context::{CommandContext, CommandTxn};
use crate::expiry_options::ExpiryUnit;
use crate::number::{integer, integer_or_refuse};
use crate::parse::Args;
use crate::records::{ChangeError, RecordRef, RetainedMetadata};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::script::Script;

const UNKNOWN: ErrorReply = ErrorReply::fixed(
    "ERR unsupported script: only the lock scripts of redis-py, ricsdl and sdlgo are supported. \
     Use SETIE, DELIE, or MULTI with WATCH",
);

/// Results of ricsdl's validity script if the lock does not exist or has another token.
const NO_LOCK: i64 = -10;
const NOT_MINE: i64 = -11;

/// `EVAL script keys [key ..] [arg ..]`
pub(crate) fn eval(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let call = ScriptCall::read(args)?;
    call.run(ctx, Script::of_text(arg(args, 1)).ok_or(UNKNOWN)?, reply)
}

/// `EVALSHA sha1 keys [key ..] [arg ..]`
pub(crate) fn evalsha(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let call = ScriptCall::read(args)?;
    call.run(ctx, Script::of_sha(arg(args, 1)).ok_or(ErrorReply::NO_SCRIPT)?, reply)
}

/// `EVAL_RO script keys [key ..] [arg ..]`
pub(crate) fn eval_ro(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let call = ScriptCall::read(args)?;
    call.run_reading(ctx, Script::of_text(arg(args, 1)).ok_or(UNKNOWN)?, reply)
}

/// `EVALSHA_RO sha1 keys [key ..] [arg ..]`
pub(crate) fn evalsha_ro(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let call = ScriptCall::read(args)?;
    call.run_reading(ctx, Script::of_sha(arg(args, 1)).ok_or(ErrorReply::NO_SCRIPT)?, reply)
}

/// `SCRIPT LOAD script`
pub(crate) fn load(
    _: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let script = Script::of_text(arg(args, 2)).ok_or(UNKNOWN)?;
    reply.bulk(script.sha().as_bytes());
    Ok(())
}

/// `SCRIPT EXISTS sha1 ..`
pub(crate) fn exists(
    _: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let shas = args.from(2);
    reply.array(shas.len());
    for sha in shas.iter() {
        reply.int(Script::of_sha(sha).is_some().into());
    }
    Ok(())
}

/// `SCRIPT FLUSH [ASYNC|SYNC]`
pub(crate) fn flush(
    _: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let is = |word: &str| arg(args, 2).eq_ignore_ascii_case(word.as_bytes());
    if args.len() > 3 || args.len() == 3 && !is("async") && !is("sync") {
        return Err(ErrorReply::fixed("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    reply.ok();
    Ok(())
}

/// Arguments of a script.
#[derive(Clone, Copy)]
struct ScriptCall<'a> {
    key: Option<&'a [u8]>,
    argv: Args<'a>,
}

impl<'a> ScriptCall<'a> {
    fn read(args: Args<'a>) -> Result<Self, ErrorReply> {
        let keys = integer_or_refuse(arg(args, 2))?;
        let keys = usize::try_from(keys)
            .map_err(|_| ErrorReply::fixed("ERR Number of keys can't be negative"))?;
        if keys > args.len() - 3 {
            let text = "ERR Number of keys can't be greater than number of args";
            return Err(ErrorReply::fixed(text));
        }
        let key = if keys > 0 { args.get(3) } else { None };
        Ok(Self { key, argv: args.from(3 + keys) })
    }

    fn run(
        self,
        ctx: &CommandContext<'_>,
        script: Script,
        reply: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        let wanted = match script {
            Script::Release | Script::Validity => 1,
            Script::Refresh | Script::Reacquire => 2,
            Script::Extend => 3,
        };
        let Some(key) = self.key.filter(|_| self.argv.len() >= wanted) else {
            return Err(ErrorReply::new(format!(
                "ERR wrong number of arguments: the script requires a key and {wanted} \
                 arguments"
            )));
        };
        let answer = match script {
            Script::Validity => self.validity(ctx, key)?,
            Script::Refresh | Script::Release | Script::Reacquire | Script::Extend => {
                ctx.change(|change| self.change(change, key, script))?
            }
        };
        reply.int(answer);
        Ok(())
    }

    fn run_reading(
        self,
        ctx: &CommandContext<'_>,
        script: Script,
        reply: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        if script != Script::Validity {
            let text = "ERR Write commands are not allowed from read-only scripts.";
            return Err(ErrorReply::fixed(text));
        }
        self.run(ctx, script, reply)
    }

    fn token(self) -> &'a [u8] {
        arg(self.argv, 0)
    }

    fn validity(self, ctx: &CommandContext<'_>, key: &[u8]) -> Result<i64, ErrorReply> {
        let Some(found) = ctx.read(key)? else { return Ok(NO_LOCK) };
        let answer = if found.string()? == self.token() {
            left_ms(&found, ctx.records.now_ms()?)
        } else {
            NOT_MINE
        };
        ctx.session().check_not_truncated()?;
        Ok(answer)
    }

    /// The scripts that change a lock if the token matches.
    fn change(
        self,
        change: &CommandTxn<'_, '_>,
        key: &[u8],
        script: Script,
    ) -> Result<i64, ChangeError> {
        let Some(found) = change.read(key)? else { return Ok(0) };
        if found.string()? != self.token() {
            return Ok(0);
        }
        let (left, kept) =
            (left_ms(&found, change.records.now_ms()?), RetainedMetadata::of(&found));
        drop(found);
        let ms = || integer(arg(self.argv, 1)).ok_or(ErrorReply::NOT_INTEGER);
        match script {
            Script::Release | Script::Validity => {
                change.delete(key)?;
            }
            Script::Refresh | Script::Reacquire => end_in(change, key, kept, Some(ms()?))?,
            Script::Extend if left < 0 => return Ok(0),
            Script::Extend => {
                let is_more = arg(self.argv, 2) == b"0";
                end_in(change, key, kept, ms()?.checked_add(if is_more { left } else { 0 }))?;
            }
        }
        Ok(1)
    }
}

/// `PTTL` of an existing record.
fn left_ms(found: &RecordRef<'_>, now_ms: u64) -> i64 {
    match found.expires_ms() {
        0 => -1,
        end => i64::try_from(end.saturating_sub(now_ms)).unwrap_or(i64::MAX),
    }
}

/// `PEXPIRE`: sets the time to live in milliseconds. Deletes the record if it is not positive.
fn end_in(
    change: &CommandTxn<'_, '_>,
    key: &[u8],
    mut kept: RetainedMetadata,
    ms: Option<i64>,
) -> Result<(), ChangeError> {
    let unit = ExpiryUnit { is_seconds: false, is_absolute: false };
    let now_ms = change.records.now_ms()?;
    let end = ms
        .and_then(|ms| unit.end_of(ms, now_ms))
        .ok_or_else(|| ErrorReply::expire_time("pexpire"))?;
    match u64::try_from(end) {
        Ok(end) if end > now_ms => {
            kept.expires_ms = end;
            let resolved = change.resolved(key, 0)?;
            let tags = kept.tags();
            change.txn.set_metadata(resolved.namespace, resolved.key, kept.metadata(&tags))?;
        }
        _ => drop(change.delete(key)?),
    }
    Ok(())
}

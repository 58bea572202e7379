//! `MULTI` to `EXEC`: the queued commands run in one transaction of the store, so that all of them,
//! and what `WATCH` has seen, are of one instant.
//!
//! A conflict runs them anew, which nobody sees: replies are taken back, and messages are sent only
//! behind the commit. A command that fails has its error as its reply and leaves nothing; if it had
//! written something before it failed, all are run anew without it.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command::CommandFlags;
use crate::command_context::{Command, CommandContext, DeadlineTxn, ExecTxn};
use crate::connection_state::{
    CommandQueue, ConnectionState, DeferredMessages, WatchedRecords, WatchedTag,
};
use crate::parse::Args;
use crate::records::{Records, ResolvedKey, validate as judge_record};
use crate::reply::Reply;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::sliced_task::TaskProgress;
use nearstate_model::limits::{TRANSACTION_RECORDS_MAX, TRANSACTION_TRIES};
use nearstate_model::{Error, Result as Stored};
use nearstate_store::{RetryPolicy, Txn, since_boot};
use std::collections::{BTreeMap, BTreeSet};

const ABORTED: ErrorReply =
    ErrorReply::fixed("EXECABORT Transaction discarded because of previous errors.");

/// How many commands of one `EXEC` may fail after they have written something. Each costs another
/// run of all; one more refuses all.
const HALF_DONE_MAX: usize = 16;

/// `MULTI`
pub(crate) fn multi(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if ctx.connection.queue.is_some() {
        return Err(ErrorReply::fixed("ERR MULTI calls can not be nested"));
    }
    ctx.connection.queue = Some(CommandQueue::default());
    reply.ok();
    Ok(())
}

/// `DISCARD`
pub(crate) fn discard(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if ctx.connection.queue.take().is_none() {
        return Err(ErrorReply::fixed("ERR DISCARD without MULTI"));
    }
    ctx.connection.watched = WatchedRecords::default();
    reply.ok();
    Ok(())
}

/// `WATCH key ..`
pub(crate) fn watch(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if ctx.connection.queue.is_some() {
        return Err(ErrorReply::fixed("ERR WATCH inside MULTI is not allowed"));
    }
    let keys = args.from(1);
    if keys.len() > TRANSACTION_RECORDS_MAX {
        return Err(too_many_watched());
    }
    let watched = &ctx.connection.watched;
    let fresh: BTreeSet<&[u8]> = keys.iter().filter(|key| !watched.has(key)).collect();
    check_watched(ctx.connection, fresh.len())?;
    fresh.iter().try_for_each(|key| judge_record(key, 0))?;
    let mut seen = Vec::with_capacity(fresh.len());
    for key in fresh {
        seen.push((key, ctx.read(key)?.and_then(|found| found.version())));
    }
    for (key, version) in seen {
        ctx.connection.watched.add(key, version);
    }
    ctx.session().whole()?;
    reply.ok();
    Ok(())
}

/// Refuses to watch `more` records when a transaction does not take them: `EXEC` reads them all.
pub(super) fn check_watched(connection: &ConnectionState, more: usize) -> CommandResult {
    if connection.watched.records() + more <= TRANSACTION_RECORDS_MAX {
        return Ok(());
    }
    Err(too_many_watched())
}

#[cold]
fn too_many_watched() -> ErrorReply {
    ErrorReply::new(format!(
        "ERR a client watches at most {TRANSACTION_RECORDS_MAX} keys, as many as a transaction \
         takes (a value of a tag counts twice): UNWATCH, and watch fewer"
    ))
}

/// `UNWATCH`
pub(crate) fn unwatch(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    ctx.connection.watched = WatchedRecords::default();
    reply.ok();
    Ok(())
}

/// `EXEC`
pub(crate) fn exec(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let Some(queue) = ctx.connection.queue.take() else {
        return Err(ErrorReply::fixed("ERR EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut ctx.connection.watched);
    if queue.is_dirty {
        return Err(ABORTED);
    }
    let mut execution = ExecRun { queue, watched, refused: BTreeMap::new() };
    let done = execution.carry_out(ctx, reply);
    let deferred_messages = std::mem::take(&mut ctx.connection.deferred_messages);
    done?;
    for (channel, payload) in deferred_messages.messages {
        ctx.server.publish(&channel, &payload);
    }
    Ok(())
}

/// The commands of one `EXEC`.
struct ExecRun {
    queue: CommandQueue,
    watched: WatchedRecords,
    /// Those that failed half way in an earlier run, by their place: they are left out.
    refused: BTreeMap<usize, ErrorReply>,
}

/// How a run ended.
enum ExecEnd {
    /// Every command has its reply; a watched key that has changed has made it nil.
    Whole,
    /// A command failed after it had written something.
    Partial(usize, ErrorReply),
    /// They took too long, or answered too much: nothing of it is to be.
    Stopped(ErrorReply),
}

impl ExecRun {
    fn carry_out(&mut self, ctx: &mut CommandContext<'_>, reply: &mut Reply<'_>) -> CommandResult {
        let (session, mark) = (ctx.session(), reply.mark());
        // This core serves nobody else until then, however often all are run.
        let until = since_boot().saturating_add(ctx.server.settings.exec_max);
        loop {
            let left = until.saturating_sub(since_boot());
            let retry_policy = RetryPolicy { tries: TRANSACTION_TRIES, within: Some(left) };
            let mut cut = None;
            let done = session.transact_within(retry_policy, |txn| {
                reply.rewind(mark);
                ctx.connection.deferred_messages = DeferredMessages::default();
                // With each read they would cost the square of their number. What the commands do
                // until then is the transaction's, the reply's, or the outbox'.
                match txn.validated_once(|| {
                    self.run(ctx, &DeadlineTxn { txn, deadline: until }, reply)
                })? {
                    // Behind the commit it would be too late to refuse.
                    ExecEnd::Whole => return session.whole(),
                    ExecEnd::Partial(place, refusal) => cut = Some((Some(place), refusal)),
                    ExecEnd::Stopped(refusal) => cut = Some((None, refusal)),
                }
                // Ends the transaction; nobody reads this.
                Err(Error::BadArgument { detail: String::new() })
            });
            match (done, cut) {
                (Ok(()), _) => return Ok(()),
                (Err(error), None) => return Err(error.into()),
                (Err(_), Some((Some(place), refusal))) if self.refused.len() < HALF_DONE_MAX => {
                    self.refused.insert(place, refusal);
                }
                (Err(_), Some((_, refusal))) => return Err(refusal),
            }
        }
    }

    /// Runs every command once.
    fn run(
        &self,
        ctx: &mut CommandContext<'_>,
        lent: &DeadlineTxn<'_, '_>,
        reply: &mut Reply<'_>,
    ) -> Stored<ExecEnd> {
        let txn = lent.txn;
        let commands = ctx.table.commands();
        let is_writing = self.queue.requests.iter().any(|(number, _)| {
            let command = commands.get(usize::from(*number));
            command.is_some_and(|command| command.flags.has(CommandFlags::WRITE))
        });
        if self.watched.records() > 0 {
            let stands = self.stands(ctx.records, lent, is_writing)?;
            if let Some(why) = validate(ctx, lent, reply) {
                return Ok(ExecEnd::Stopped(why));
            }
            if !stands {
                reply.nil_array();
                return Ok(ExecEnd::Whole);
            }
        }
        reply.array(self.queue.requests.len());
        for (place, (number, kept)) in self.queue.requests.iter().enumerate() {
            let Some(command) = commands.get(usize::from(*number)) else { continue };
            let (mark, changes) = (reply.mark(), txn.changes());
            let done = match self.refused.get(&place) {
                Some(refusal) => Err(refusal.clone()),
                None => run_one(ctx, (command, kept.args()), lent, reply),
            };
            if let Some(why) = validate(ctx, lent, reply) {
                return Ok(ExecEnd::Stopped(why));
            }
            let Err(refusal) = done else { continue };
            if refusal.is_conflict() {
                return Err(Error::Conflict { detail: "what a command had read".to_owned() });
            }
            if txn.changes() != changes {
                return Ok(ExecEnd::Partial(place, refusal));
            }
            reply.rewind(mark);
            reply.error(refusal.text());
        }
        Ok(ExecEnd::Whole)
    }

    /// Whether all that is watched is as it was. It looks no further once no time is left: who asks
    /// judges that as well.
    fn stands(
        &self,
        records: &Records,
        lent: &DeadlineTxn<'_, '_>,
        is_writing: bool,
    ) -> Stored<bool> {
        for tag in self.watched.tags() {
            if !tag_stands(records, lent.txn, tag)? {
                return Ok(false);
            }
            if lent.is_late() {
                return Ok(true);
            }
        }
        for (key, seen) in self.watched.keys() {
            // Made if need be: what is not there yet is watched as well, if something is written.
            let resolved = if is_writing {
                Some(records.resolve_or_create(key, 0)?)
            } else {
                records.resolve(key)?
            };
            let version = match resolved {
                Some(ResolvedKey { namespace, key }) => {
                    lent.txn.get(namespace, key)?.map(|record| record.version())
                }
                None => None,
            };
            if version != seen {
                return Ok(false);
            }
            if lent.is_late() {
                return Ok(true);
            }
        }
        Ok(true)
    }
}

/// Whether a watched tag still leads to the same record in the same version, in a transaction.
fn tag_stands(records: &Records, txn: &Txn<'_>, tag: &WatchedTag) -> Stored<bool> {
    let Some(ResolvedKey { namespace, key }) = records.resolve(&tag.key)? else {
        return Ok(tag.version.is_none());
    };
    Ok(match (txn.find(namespace, &tag.name, &tag.value)?, tag.version) {
        (Some((found, record)), Some(version)) => found == key && record.version() == version,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    })
}

/// Why the commands are to stop here, if they are.
fn validate(ctx: &CommandContext<'_>, lent: &dyn ExecTxn, reply: &Reply<'_>) -> Option<ErrorReply> {
    if reply.is_over() {
        return Some(ErrorReply::new(format!(
            "EXECABORT the answers have more than {} bytes: ask for less at once, or raise \
             limits.output_bytes_max; nothing was changed",
            reply.bytes_max()
        )));
    }
    let (bytes_max, rest) = (ctx.server.settings.exec_max, lent.left());
    if rest.is_zero() {
        return Some(ErrorReply::new(format!(
            "EXECABORT the commands took longer than {bytes_max:?}, and nobody else was served: send \
             fewer, walk outside of MULTI, or raise resp.exec_max; nothing was changed"
        )));
    }
    let weight = ctx.connection.deferred_messages.weight;
    (weight.takes > rest).then(|| {
        ErrorReply::new(format!(
            "EXECABORT with {} messages for {} hearers it would take longer than {bytes_max:?}, and \
             nobody else would be served: publish fewer at once, or outside of MULTI, or raise \
             resp.exec_max; nothing was changed and nothing sent",
            weight.messages, weight.deliveries
        ))
    })
}

fn run_one(
    ctx: &mut CommandContext<'_>,
    (command, args): (&'static Command, Args<'_>),
    txn: &dyn ExecTxn,
    reply: &mut Reply<'_>,
) -> CommandResult {
    // An AUTH among them may have changed who this is.
    if let Some(user) = &ctx.connection.user {
        user.check(command, args)?;
    }
    let mut inner = CommandContext {
        table: ctx.table,
        server: ctx.server,
        records: ctx.records,
        connection: &mut *ctx.connection,
        txn: Some(txn),
    };
    let done = (command.run)(&mut inner, args, reply);
    let work = ctx.connection.task.take();
    done?;
    let Some(mut work) = work else { return Ok(()) };
    if command.flags.has(CommandFlags::WRITE) {
        let name = command.name.to_ascii_uppercase();
        return Err(ErrorReply::new(format!(
            "ERR {name} walks over all keys and cannot be a part of a transaction: send it alone"
        )));
    }
    while work.step(ctx.records, ctx.server, reply)? == TaskProgress::More {
        reply.check_room_for(work.collected());
        if reply.is_over() || txn.is_late() {
            break;
        }
    }
    Ok(())
}

/// Refuses what cannot be undone or run twice.
pub(crate) fn reject_in_exec(ctx: &CommandContext<'_>, args: Args<'_>) -> CommandResult {
    if ctx.txn.is_none() {
        return Ok(());
    }
    let name = String::from_utf8_lossy(arg(args, 0)).to_ascii_uppercase();
    Err(ErrorReply::new(format!("ERR {name} is not allowed between MULTI and EXEC")))
}
#[cfg(test)]
mod tests;

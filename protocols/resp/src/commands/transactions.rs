//! Transaction commands. `EXEC` runs the queued commands in one transaction of the store, together
//! with the check of the watched keys.
//!
//! After a conflict all commands run again, invisibly: replies are discarded, and messages are sent
//! only after the commit. A command that fails replies with its error and has no effect. If it
//! failed after a write, all commands run again without it.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use crate::command::CommandFlags;
use crate::command_context::{CommandContext, DeadlineTxn, ExecTxn, RespCommand};
use crate::connection_state::{
    CommandQueue, ConnectionState, DeferredMessages, WatchedRecords, WatchedTag,
};
use crate::parse::Args;
use crate::records::{KeyedRecords, ResolvedKey, validate as judge_record};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::sliced_task::TaskProgress;
use nearstate_model::limits::{TRANSACTION_RECORDS_MAX, TRANSACTION_TRIES};
use nearstate_model::{Error, Result as Stored};
use nearstate_store::{RetryPolicy, Txn, since_boot};
use std::collections::{BTreeMap, BTreeSet};

const ABORTED: ErrorReply =
    ErrorReply::fixed("EXECABORT Transaction discarded because of previous errors.");

/// Limit of commands of one `EXEC` that fail after a write. Each costs another run; one more fails
/// the `EXEC`.
const HALF_DONE_MAX: usize = 16;

/// `MULTI`
pub(crate) fn multi(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
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
    reply: &mut ReplyWriter<'_>,
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
    reply: &mut ReplyWriter<'_>,
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
    ctx.session().check_not_truncated()?;
    reply.ok();
    Ok(())
}

/// Rejects `more` watched records beyond the limit of a transaction: `EXEC` reads all of them.
pub(super) fn check_watched(connection: &ConnectionState, more: usize) -> CommandResult {
    if connection.watched.records() + more <= TRANSACTION_RECORDS_MAX {
        return Ok(());
    }
    Err(too_many_watched())
}

#[cold]
fn too_many_watched() -> ErrorReply {
    ErrorReply::new(format!(
        "ERR too many watched keys: a transaction holds at most {TRANSACTION_RECORDS_MAX} (a \
         tag value counts as two); send UNWATCH and watch fewer keys"
    ))
}

/// `UNWATCH`
pub(crate) fn unwatch(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    ctx.connection.watched = WatchedRecords::default();
    reply.ok();
    Ok(())
}

/// `EXEC`
pub(crate) fn exec(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let Some(queue) = ctx.connection.queue.take() else {
        return Err(ErrorReply::fixed("ERR EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut ctx.connection.watched);
    if queue.is_dirty {
        return Err(ABORTED);
    }
    if ctx.connection.tracking.is_some() {
        for (number, kept) in &queue.requests {
            if let Some(command) = ctx.table.commands().get(usize::from(*number)) {
                ctx.connection.track_keys(ctx.server, command, kept.args());
            }
        }
    }
    let mut execution = ExecRun { queue, watched, refused: BTreeMap::new() };
    let done = execution.carry_out(ctx, reply);
    let deferred_messages = std::mem::take(&mut ctx.connection.deferred_messages);
    done?;
    if ctx.server.monitors.is_any() {
        execution.monitor(ctx);
    }
    for (channel, payload) in deferred_messages.messages {
        ctx.publish_committed(&channel, &payload);
    }
    Ok(())
}

/// The commands of one `EXEC`.
struct ExecRun {
    queue: CommandQueue,
    watched: WatchedRecords,
    /// Commands, by index, that failed after a write in an earlier run. They are skipped.
    refused: BTreeMap<usize, ErrorReply>,
}

/// Result of a run.
enum ExecEnd {
    /// Every command has a reply. If a watched key changed, the reply is null.
    Whole,
    /// A command failed after a write.
    Partial(usize, ErrorReply),
    /// Time or reply limit exceeded: nothing is changed.
    Stopped(ErrorReply),
}

impl ExecRun {
    /// Shows the executed commands to `MONITOR`.
    #[cold]
    fn monitor(&self, ctx: &CommandContext<'_>) {
        for (number, kept) in &self.queue.requests {
            if ctx.table.commands().get(usize::from(*number)).is_some_and(RespCommand::is_monitored)
            {
                ctx.server.monitor(&ctx.connection.address, kept.args());
            }
        }
    }

    fn carry_out(
        &mut self,
        ctx: &mut CommandContext<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        let (session, mark) = (ctx.session(), reply.mark());
        // Limits the total time of all runs, in which the core serves no other client.
        let until = since_boot().saturating_add(ctx.server.settings.exec_max);
        loop {
            let left = until.saturating_sub(since_boot());
            let retry_policy = RetryPolicy { tries: TRANSACTION_TRIES, within: Some(left) };
            let mut cut = None;
            let done = session.transact_within(retry_policy, |txn| {
                reply.rewind(mark);
                ctx.connection.deferred_messages = DeferredMessages::default();
                // Validation at each read has quadratic cost. Until the validation at the end, the
                // commands affect only the transaction, the reply and the deferred messages.
                match txn.validated_once(|| {
                    self.run(ctx, &DeadlineTxn { txn, deadline: until }, reply)
                })? {
                    // Checked before the commit, which cannot be undone.
                    ExecEnd::Whole => return session.check_not_truncated(),
                    ExecEnd::Partial(place, error) => cut = Some((Some(place), error)),
                    ExecEnd::Stopped(error) => cut = Some((None, error)),
                }
                // Ends the transaction; the text is not used.
                Err(Error::BadArgument { detail: String::new() })
            });
            match (done, cut) {
                (Ok(()), _) => return Ok(()),
                (Err(error), None) => return Err(error.into()),
                (Err(_), Some((Some(place), error))) if self.refused.len() < HALF_DONE_MAX => {
                    self.refused.insert(place, error);
                }
                (Err(_), Some((_, error))) => return Err(error),
            }
        }
    }

    /// Runs every command once.
    fn run(
        &self,
        ctx: &mut CommandContext<'_>,
        exec_txn: &DeadlineTxn<'_, '_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Stored<ExecEnd> {
        let txn = exec_txn.txn;
        let commands = ctx.table.commands();
        let is_writing = self.queue.requests.iter().any(|(number, _)| {
            let command = commands.get(usize::from(*number));
            command.is_some_and(RespCommand::may_write)
        });
        if self.watched.records() > 0 {
            let is_unchanged = self.is_unchanged(ctx.records, exec_txn, is_writing)?;
            if let Some(why) = validate(ctx, exec_txn, reply) {
                return Ok(ExecEnd::Stopped(why));
            }
            if !is_unchanged {
                reply.nil_array();
                return Ok(ExecEnd::Whole);
            }
        }
        reply.array(self.queue.requests.len());
        for (place, (number, kept)) in self.queue.requests.iter().enumerate() {
            let Some(command) = commands.get(usize::from(*number)) else { continue };
            let (mark, changes) = (reply.mark(), txn.changes());
            let done = match self.refused.get(&place) {
                Some(error) => Err(error.clone()),
                None => run_one(ctx, (command, kept.args()), exec_txn, reply),
            };
            if let Some(why) = validate(ctx, exec_txn, reply) {
                return Ok(ExecEnd::Stopped(why));
            }
            let accesses = command.may_write() || command.flags.has(CommandFlags::READONLY);
            if accesses && done.as_ref().err().is_none_or(ErrorReply::tells_of_records) {
                // Nothing is owed for a commit yet. One that follows is behind this position.
                let args = kept.args();
                ctx.records.owe_keys(command.keys.of(args).filter_map(|at| args.get(at)))?;
                // Before the commit, after which no error may say that nothing was changed.
                ctx.records.check_leases(command.keys.of(args).filter_map(|at| args.get(at)))?;
            }
            let Err(error) = done else { continue };
            if error.is_conflict() {
                return Err(Error::Conflict { detail: "what a command had read".to_owned() });
            }
            if txn.changes() != changes {
                return Ok(ExecEnd::Partial(place, error));
            }
            reply.rewind(mark);
            reply.error(error.text());
        }
        Ok(ExecEnd::Whole)
    }

    /// Whether all watched keys are unchanged. Stops at the time limit, which the caller checks.
    fn is_unchanged(
        &self,
        records: &KeyedRecords,
        exec_txn: &DeadlineTxn<'_, '_>,
        is_writing: bool,
    ) -> Stored<bool> {
        for tag in self.watched.tags() {
            if !is_tag_unchanged(records, exec_txn.txn, tag)? {
                return Ok(false);
            }
            if exec_txn.is_late() {
                return Ok(true);
            }
        }
        for (key, seen) in self.watched.keys() {
            // Created if necessary, because missing keys are watched as well if something is
            // written.
            let resolved = if is_writing {
                Some(records.resolve_or_create(key, 0)?)
            } else {
                records.resolve(key)?
            };
            let version = match resolved {
                Some(ResolvedKey { namespace, key }) => {
                    exec_txn.txn.get(namespace, key)?.map(|record| record.version())
                }
                None => None,
            };
            if version != seen {
                return Ok(false);
            }
            if exec_txn.is_late() {
                return Ok(true);
            }
        }
        Ok(true)
    }
}

/// Whether a watched tag value still leads to the same version of the same record.
fn is_tag_unchanged(records: &KeyedRecords, txn: &Txn<'_>, tag: &WatchedTag) -> Stored<bool> {
    let Some(ResolvedKey { namespace, key }) = records.resolve(&tag.key)? else {
        return Ok(tag.version.is_none());
    };
    Ok(match (txn.find(namespace, &tag.name, &tag.value)?, tag.version) {
        (Some((found, record)), Some(version)) => found == key && record.version() == version,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    })
}

/// The reason to stop the commands here, if there is one.
fn validate(
    ctx: &CommandContext<'_>,
    exec_txn: &dyn ExecTxn,
    reply: &ReplyWriter<'_>,
) -> Option<ErrorReply> {
    if reply.is_over() {
        return Some(ErrorReply::new(format!(
            "EXECABORT replies exceed {} bytes: request less at once or raise \
             limits.output_bytes_max; nothing was changed",
            reply.bytes_max()
        )));
    }
    let (limit, rest) = (ctx.server.settings.exec_max, exec_txn.left());
    if rest.is_zero() {
        return Some(ErrorReply::new(format!(
            "EXECABORT commands exceed the time limit of {limit:?}: queue fewer commands, scan \
             keys outside MULTI, or raise resp.exec_max; nothing was changed"
        )));
    }
    let weight = ctx.connection.deferred_messages.weight;
    (weight.takes > rest).then(|| {
        ErrorReply::new(format!(
            "EXECABORT sending {} messages to {} subscribers would exceed the time limit of \
             {limit:?}: publish fewer messages, publish outside MULTI, or raise resp.exec_max; \
             nothing was changed or sent",
            weight.messages, weight.deliveries
        ))
    })
}

fn run_one(
    ctx: &mut CommandContext<'_>,
    (command, args): (&'static RespCommand, Args<'_>),
    txn: &dyn ExecTxn,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    // A preceding AUTH may have changed the user.
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
            "ERR {name} scans all keys and is not allowed between MULTI and EXEC: send it alone"
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

/// Rejects commands that cannot be undone or run twice.
pub(crate) fn reject_in_exec(ctx: &CommandContext<'_>, args: Args<'_>) -> CommandResult {
    if ctx.txn.is_none() {
        return Ok(());
    }
    let name = ctx.table.find_requested(args).map_or("", |command| command.name);
    let name = name.replace('|', " ").to_ascii_uppercase();
    Err(ErrorReply::new(format!("ERR {name} is not allowed between MULTI and EXEC")))
}
#[cfg(test)]
mod tests;

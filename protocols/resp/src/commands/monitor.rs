//! `MONITOR`.

use super::transactions::reject_in_exec;
use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::CommandResult;

/// `MONITOR`
pub(crate) fn monitor(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    let connection = &*ctx.connection;
    ctx.server.monitors.add(connection.id, &connection.mailbox);
    ctx.server.update_client(connection.id, |client_entry| client_entry.is_monitor = true);
    reply.ok();
    Ok(())
}

//! `MONITOR`.

use super::transactions::reject_in_exec;
use crate::command::CommandFlags;
use crate::command_context::{CommandContext, RespCommand};
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

/// Whether `MONITOR` shows a command: no administrative ones, as in Redis, and no passwords.
pub(crate) fn is_shown(command: &RespCommand) -> bool {
    let hidden = [CommandFlags::SKIP_MONITOR, CommandFlags::ADMIN, CommandFlags::SECRET];
    !hidden.iter().any(|flag| command.flags.has(*flag))
}

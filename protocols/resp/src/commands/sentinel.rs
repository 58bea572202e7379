//! `SENTINEL` on the port of the server, which is the only master.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};

/// Default master names: those of O-RAN's Helm chart and of Redis' example.
const USUAL_MASTERS: [&str; 2] = ["dbaasmaster", "mymaster"];

const NO_MASTER: ErrorReply = ErrorReply::fixed("ERR No such master with that name");

/// `SENTINEL GET-MASTER-ADDR-BY-NAME name`
pub(crate) fn get_master_addr(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if check(ctx, arg(args, 2)).is_err() {
        reply.nil_array();
        return Ok(());
    }
    let (host, port) = address(ctx);
    reply.array(2);
    reply.bulk(host.as_bytes());
    reply.bulk(port.to_string().as_bytes());
    Ok(())
}

/// `SENTINEL MASTERS`
pub(crate) fn masters(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let masters = &ctx.server.settings.masters;
    let names: Vec<&str> = if masters.is_empty() {
        USUAL_MASTERS.to_vec()
    } else {
        masters.iter().map(String::as_str).collect()
    };
    reply.array(names.len());
    for name in &names {
        record(ctx, name.as_bytes(), reply);
    }
    Ok(())
}

/// `SENTINEL MASTER name`
pub(crate) fn master(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check(ctx, arg(args, 2))?;
    record(ctx, arg(args, 2), reply);
    Ok(())
}

/// `SENTINEL SLAVES|REPLICAS|SENTINELS name`: none exist.
pub(crate) fn others(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check(ctx, arg(args, 2))?;
    reply.array(0);
    Ok(())
}

/// Checks the name of a master.
fn check(ctx: &CommandContext<'_>, name: &[u8]) -> CommandResult {
    let masters = &ctx.server.settings.masters;
    let is_ours = masters.is_empty() || masters.iter().any(|master| master.as_bytes() == name);
    if is_ours { Ok(()) } else { Err(NO_MASTER) }
}

/// Address for clients: the local address of the connection, unless configured.
fn address(ctx: &CommandContext<'_>) -> (String, u16) {
    let settings = &ctx.server.settings;
    if let Some(host) = &settings.announced_host {
        return (host.clone(), settings.port);
    }
    let host = &ctx.connection.local_host;
    // An IPv4-mapped IPv6 address, which not every client can parse.
    let host = host.strip_prefix("::ffff:").filter(|rest| rest.contains('.')).unwrap_or(host);
    let port =
        if ctx.connection.local_port == 0 { settings.port } else { ctx.connection.local_port };
    (host.to_owned(), port)
}

/// The fields of a master that clients read.
fn record(ctx: &CommandContext<'_>, name: &[u8], reply: &mut ReplyWriter<'_>) {
    let (host, port) = address(ctx);
    let port = port.to_string();
    let fields: [(&str, &[u8]); 9] = [
        ("name", name),
        ("ip", host.as_bytes()),
        ("port", port.as_bytes()),
        ("flags", b"master"),
        ("role-reported", b"master"),
        ("config-epoch", b"0"),
        ("num-slaves", b"0"),
        ("num-other-sentinels", b"0"),
        ("quorum", b"1"),
    ];
    reply.map(fields.len());
    for (field, value) in fields {
        reply.bulk(field.as_bytes());
        reply.bulk(value);
    }
}

//! `SENTINEL`. The server is the only master. In a cluster each partition is one, at its owner.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command_context::CommandContext;
use crate::connection_state::ConnectionState;
use crate::parse::Args;
use crate::replication::Master;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use std::fmt::Write as _;

/// Master names without configuration: that of O-RAN's Helm chart and that of Redis' example.
const USUAL_MASTERS: [&str; 2] = ["dbaasmaster", "mymaster"];

/// With several databases in `DBAAS_CLUSTER_ADDR_LIST`, O-RAN's Helm chart names their masters
/// `dbaasmaster-cluster-0`, `dbaasmaster-cluster-1` and so on, and ricsdl searches its own in the
/// list of all masters. A deployment has a few databases.
const CLUSTER_MASTERS: usize = 16;

/// What an address of the Sentinel serves, with all subcommands: nothing that uses records. As a
/// Sentinel of Redis does, apart from its own administration.
const SERVED: [&[u8]; 14] = [
    b"auth",
    b"client",
    b"command",
    b"hello",
    b"info",
    b"ping",
    b"psubscribe",
    b"punsubscribe",
    b"quit",
    b"reset",
    b"role",
    b"sentinel",
    b"subscribe",
    b"unsubscribe",
];

const NO_MASTER: ErrorReply = ErrorReply::fixed("ERR No such master with that name");

/// The masters that an error names. A host of a cluster has a few.
const NAMED_MAX: usize = 4;

/// Bytes of an unknown command's name in an error, as in Redis.
const NAME_BYTES_MAX: usize = 128;

/// Refuses what an address of the Sentinel does not serve, and names the addresses of records. In a
/// cluster, the region behind it may be of no partition, and what is written there would be lost.
///
/// # Errors
/// The command is not one for Sentinels.
pub(crate) fn check_served(
    server: &RespServer,
    connection: &ConnectionState,
    args: Args<'_>,
) -> CommandResult {
    let name = arg(args, 0);
    if SERVED.iter().any(|served| served.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let name = String::from_utf8_lossy(name.get(..NAME_BYTES_MAX).unwrap_or(name)).into_owned();
    let mut text = format!(
        "ERR unknown command '{}': this is an address of a Sentinel, which has no records. ",
        name.escape_debug()
    );
    let mut masters: Vec<Master> = match server.masters.list() {
        Some(listed) => listed,
        None => vec![this_server((server, connection), String::new())],
    };
    masters.retain(|master| !master.is_down);
    // Writing to a `String` cannot fail.
    if masters.is_empty() {
        text.push_str("It knows no master at present: ask another Sentinel, or this one again");
    }
    for (number, Master { name, host, port, .. }) in masters.iter().take(NAMED_MAX).enumerate() {
        let before = if number == 0 { "Connect to " } else { ", or to " };
        let _ = write!(text, "{before}{host}:{port}");
        if !name.is_empty() {
            let _ = write!(text, " (master {name})");
        }
    }
    if masters.len() > NAMED_MAX {
        text.push_str(", or to another one of SENTINEL MASTERS");
    }
    Err(ErrorReply::new(text))
}

/// `SENTINEL GET-MASTER-ADDR-BY-NAME name`. Nil for one that is down: then clients ask the next
/// Sentinel. Most of them read no flags.
pub(crate) fn get_master_addr(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let known = find(ctx, arg(args, 2)).filter(|master| !master.is_down);
    let Some(Master { host, port, .. }) = known else {
        reply.nil_array();
        return Ok(());
    };
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
    let masters = masters_of(ctx);
    reply.array(masters.len());
    for master in &masters {
        record(master, reply);
    }
    Ok(())
}

/// The masters in lists. Other names are answered as well if none is configured.
fn masters_of(ctx: &CommandContext<'_>) -> Vec<Master> {
    if let Some(listed) = ctx.server.masters.list() {
        return listed;
    }
    let masters = &ctx.server.settings.masters;
    let names = if masters.is_empty() { usual_names() } else { masters.clone() };
    names.into_iter().map(|name| this_server((ctx.server, ctx.connection), name)).collect()
}

/// The names without configuration.
fn usual_names() -> Vec<String> {
    let [usual, ..] = USUAL_MASTERS;
    let clusters = (0..CLUSTER_MASTERS).map(|number| format!("{usual}-cluster-{number}"));
    USUAL_MASTERS.map(str::to_owned).into_iter().chain(clusters).collect()
}

/// The server as the master with this name.
fn this_server(here: (&RespServer, &ConnectionState), name: String) -> Master {
    let (host, port) = address(here);
    Master { name, host, port, epoch: 0, is_down: false }
}

/// The master with this name.
fn find(ctx: &CommandContext<'_>, name: &[u8]) -> Option<Master> {
    if let Some(listed) = ctx.server.masters.list() {
        return listed.into_iter().find(|master| master.name.as_bytes() == name);
    }
    let masters = &ctx.server.settings.masters;
    let is_ours = masters.is_empty() || masters.iter().any(|master| master.as_bytes() == name);
    let here = (ctx.server.as_ref(), &*ctx.connection);
    is_ours.then(|| this_server(here, String::from_utf8_lossy(name).into_owned()))
}

/// `ROLE` of a client that connected to an address of the Sentinel.
pub(super) fn role(ctx: &CommandContext<'_>, reply: &mut ReplyWriter<'_>) {
    let masters = masters_of(ctx);
    reply.array(2);
    reply.bulk(b"sentinel");
    reply.array(masters.len());
    for master in masters {
        reply.bulk(master.name.as_bytes());
    }
}

/// `SENTINEL MASTER name`
pub(crate) fn master(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let master = find(ctx, arg(args, 2)).ok_or(NO_MASTER)?;
    record(&master, reply);
    Ok(())
}

/// `SENTINEL SLAVES|REPLICAS|SENTINELS name`: none exist.
pub(crate) fn others(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    find(ctx, arg(args, 2)).ok_or(NO_MASTER)?;
    reply.array(0);
    Ok(())
}

/// Address for clients: the local address of the connection, unless configured.
fn address((server, connection): (&RespServer, &ConnectionState)) -> (String, u16) {
    let announced_port = server.port();
    if let Some(host) = &server.settings.announced_host {
        return (host.clone(), announced_port);
    }
    let host = &connection.local_host;
    // An IPv4-mapped IPv6 address, which not every client can parse.
    let host = host.strip_prefix("::ffff:").filter(|rest| rest.contains('.')).unwrap_or(host);
    let is_own = !connection.is_sentinel && connection.local_port != 0;
    let port = if is_own { connection.local_port } else { announced_port };
    (host.to_owned(), port)
}

/// The fields of a master that clients read.
fn record(master: &Master, reply: &mut ReplyWriter<'_>) {
    let (port, epoch) = (master.port.to_string(), master.epoch.to_string());
    let flags: &[u8] = if master.is_down { b"s_down,master" } else { b"master" };
    let fields: [(&str, &[u8]); 9] = [
        ("name", master.name.as_bytes()),
        ("ip", master.host.as_bytes()),
        ("port", port.as_bytes()),
        ("flags", flags),
        ("role-reported", b"master"),
        ("config-epoch", epoch.as_bytes()),
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

//! `ACL`: the users of the configuration.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command::AclCategories;
use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};

/// `ACL WHOAMI`
pub(crate) fn whoami(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let name = ctx.connection.user.as_ref().map_or("", |user| user.name());
    reply.bulk(name.as_bytes());
    Ok(())
}

/// `ACL LIST`
pub(crate) fn list(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let users = ctx.server.settings.users.iter();
    reply.array(users.len());
    users.for_each(|user| reply.bulk(user.line().as_bytes()));
    Ok(())
}

/// `ACL USERS`
pub(crate) fn users(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let users = ctx.server.settings.users.iter();
    reply.array(users.len());
    users.for_each(|user| reply.bulk(user.name().as_bytes()));
    Ok(())
}

/// `ACL CAT [category]`
pub(crate) fn cat(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let Some(name) = args.get(2) else {
        let every = AclCategories::iter();
        reply.array(every.len());
        every.for_each(|(_, word)| reply.bulk(word.as_bytes()));
        return Ok(());
    };
    if args.len() > 3 {
        return Err(ErrorReply::fixed(
            "ERR unknown subcommand or wrong number of arguments for 'cat'. Try ACL HELP.",
        ));
    }
    let Some(category) = AclCategories::find(name) else {
        let shown = String::from_utf8_lossy(name.get(..32).unwrap_or(name)).into_owned();
        return Err(ErrorReply::new(format!("ERR Unknown category '{shown}'")));
    };
    let all = ctx.table.commands().iter();
    let chosen = all.filter(|command| command.categories().has(category));
    reply.array(chosen.clone().count());
    chosen.for_each(|command| reply.bulk(command.name.as_bytes()));
    Ok(())
}

/// `ACL GETUSER name`
pub(crate) fn getuser(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let Some(user) = ctx.server.settings.users.find(arg(args, 2)) else {
        reply.nil();
        return Ok(());
    };
    reply.map(6);
    reply.bulk(b"flags");
    let is_on = if user.is_on() { "on" } else { "off" };
    reply.set(1 + usize::from(user.is_nopass()));
    reply.bulk(is_on.as_bytes());
    if user.is_nopass() {
        reply.bulk(b"nopass");
    }
    reply.bulk(b"passwords");
    let passwords = user.passwords();
    reply.array(passwords.len());
    passwords.for_each(|hash| reply.bulk(hash.as_bytes()));
    for (name, rules) in [
        ("commands", user.command_rules()),
        ("keys", user.key_rules()),
        ("channels", user.channel_rules()),
    ] {
        reply.bulk(name.as_bytes());
        reply.bulk(rules.as_bytes());
    }
    reply.bulk(b"selectors");
    reply.array(0);
    Ok(())
}

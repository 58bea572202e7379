//! `COMMAND` and its subcommands: the command table for clients.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use crate::command::command_table::CommandTable;
use crate::command::key_access::key_words;
use crate::command::{AclCategories, CommandFlags};
use crate::command_context::{CommandContext, CommandFn, RespCommand};
use crate::parse::Args;
use crate::pattern;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_store::glob;
use std::fmt::Write as _;

/// The first release with all of these commands: *since* in `COMMAND DOCS`.
const SINCE: &str = "0.1.0";

/// Name of the SDL module, for `COMMAND LIST FILTERBY MODULE`.
const MODULE: &[u8] = b"exstrings";

/// The command table, all that these commands need.
type RespCommandTable = &'static CommandTable<CommandFn>;

/// `COMMAND`
pub(crate) fn command(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    write_commands(ctx.table, args, reply)
}

/// `COMMAND COUNT`
pub(crate) fn count(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    write_count(ctx.table, args, reply)
}

/// `COMMAND INFO [name ...]`
pub(crate) fn info(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    write_info(ctx.table, args, reply)
}

/// `COMMAND DOCS [name ...]`
pub(crate) fn docs(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    write_docs(ctx.table, args, reply)
}

/// `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]`
pub(crate) fn list(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    write_list(ctx.table, args, reply)
}

/// `COMMAND GETKEYS command [argument ...]`
pub(crate) fn getkeys(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    write_getkeys(ctx.table, args, reply)
}

/// `COMMAND GETKEYSANDFLAGS command [argument ...]`
pub(crate) fn getkeysandflags(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    write_getkeysandflags(ctx.table, args, reply)
}

fn write_commands(
    known: RespCommandTable,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.array(top_level(known).count());
    top_level(known).for_each(|command| row(command, reply));
    Ok(())
}

fn write_count(known: RespCommandTable, _: Args<'_>, reply: &mut ReplyWriter<'_>) -> CommandResult {
    reply.count(top_level(known).count());
    Ok(())
}

fn write_info(
    known: RespCommandTable,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let names = args.from(2);
    if names.is_empty() {
        return write_commands(known, args, reply);
    }
    reply.array(names.len());
    for name in names.iter() {
        match known.find(name) {
            Some(command) => row(command, reply),
            None => reply.nil_array(),
        }
    }
    Ok(())
}

fn write_docs(
    known: RespCommandTable,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let names = args.from(2);
    let chosen: Vec<&RespCommand> = if names.is_empty() {
        top_level(known).collect()
    } else {
        names.iter().filter_map(|name| known.find(name)).collect()
    };
    reply.map(chosen.len());
    for command in chosen {
        doc(known, command, reply);
    }
    Ok(())
}

fn write_list(
    known: RespCommandTable,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let filter = filter(args.from(2))?;
    let chosen = || known.commands().iter().filter(|command| filter.matches(command));
    reply.array(chosen().count());
    chosen().for_each(|command| reply.bulk(command.name.as_bytes()));
    Ok(())
}

fn write_getkeys(
    known: RespCommandTable,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let request = args.from(2);
    let (_, keys) = keys_of(known, request)?;
    reply.array(keys.len());
    for key in &keys {
        reply.bulk(key);
    }
    Ok(())
}

fn write_getkeysandflags(
    known: RespCommandTable,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let request = args.from(2);
    let (command, keys) = keys_of(known, request)?;
    reply.array(keys.len());
    for (number, key) in keys.iter().enumerate() {
        reply.array(2);
        reply.bulk(key);
        let words = key_words(command.name, command.flags, number, request);
        reply.set(words.len());
        for word in words {
            reply.simple(word);
        }
    }
    Ok(())
}

/// The command of a request, and its keys.
fn keys_of(
    known: RespCommandTable,
    request: Args<'_>,
) -> Result<(&'static RespCommand, Vec<&[u8]>), ErrorReply> {
    let command = known
        .lookup_any_arity(request)
        .map_err(|_| ErrorReply::fixed("ERR Invalid command specified"))?;
    if command.keys.is_none() {
        return Err(ErrorReply::fixed("ERR The command has no key arguments"));
    }
    if command.check_arity(request).is_err() {
        let text = "ERR Invalid number of arguments specified for command";
        return Err(ErrorReply::fixed(text));
    }
    let keys = command.keys.of(request);
    if keys.len() == 0 && !command.flags.has(CommandFlags::NO_MANDATORY_KEYS) {
        return Err(ErrorReply::fixed("ERR Invalid arguments specified for command"));
    }
    Ok((command, keys.map(|at| request.get(at).unwrap_or_default()).collect()))
}

/// All commands without subcommands.
fn top_level(known: RespCommandTable) -> impl Iterator<Item = &'static RespCommand> {
    known.commands().iter().filter(|command| !command.name.contains('|'))
}

/// A row in seven elements. Redis 7 has ten; sdlgo accepts only six or seven.
fn row(command: &RespCommand, reply: &mut ReplyWriter<'_>) {
    let (first, last, step) = command.keys.triple();
    reply.array(7);
    reply.bulk(command.name.as_bytes());
    reply.int(command.arity.into());
    let words = command.flags.words();
    reply.set(words.clone().count());
    words.for_each(|word| reply.simple(word));
    reply.int(first);
    reply.int(last);
    reply.int(step);
    let words = command.categories().words();
    reply.set(words.clone().count());
    let mut name = String::new();
    for word in words {
        name.clear();
        // Writing to a String cannot fail.
        let _ = write!(name, "@{word}");
        reply.simple(&name);
    }
}

/// Documentation of a command, under its name.
fn doc(known: RespCommandTable, command: &RespCommand, reply: &mut ReplyWriter<'_>) {
    let (_, part) = command.name_and_subcommand();
    let subcommands: Vec<&RespCommand> = match part {
        None => known.subcommands_of(command.name).collect(),
        Some(_) => Vec::new(),
    };
    let facts = [
        ("summary", command.summary),
        ("since", SINCE),
        ("group", command.group.word()),
        ("complexity", command.complexity),
        ("differs", command.differs),
    ];
    let facts = facts.iter().filter(|(_, fact)| !fact.is_empty());
    reply.bulk(command.name.as_bytes());
    reply.map(facts.clone().count() + usize::from(!subcommands.is_empty()));
    for (name, fact) in facts {
        reply.bulk(name.as_bytes());
        reply.bulk(fact.as_bytes());
    }
    if !subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(subcommands.len());
        for part in subcommands {
            doc(known, part, reply);
        }
    }
}

/// Filter of `COMMAND LIST`.
enum ListFilter<'a> {
    Every,
    Module(bool),
    Category(Option<AclCategories>),
    Pattern(&'a [u8]),
}

fn filter(args: Args<'_>) -> Result<ListFilter<'_>, ErrorReply> {
    let (Some(by), Some(what), Some(value), 3) =
        (args.get(0), args.get(1), args.get(2), args.len())
    else {
        return if args.is_empty() { Ok(ListFilter::Every) } else { Err(ErrorReply::SYNTAX) };
    };
    if !by.eq_ignore_ascii_case(b"filterby") {
        return Err(ErrorReply::SYNTAX);
    }
    match what.to_ascii_lowercase().as_slice() {
        b"module" => Ok(ListFilter::Module(value == MODULE)),
        b"aclcat" => Ok(ListFilter::Category(AclCategories::find(value))),
        b"pattern" => {
            pattern::validate(value)?;
            Ok(ListFilter::Pattern(value))
        }
        _ => Err(ErrorReply::SYNTAX),
    }
}

impl ListFilter<'_> {
    fn matches(&self, command: &RespCommand) -> bool {
        match self {
            Self::Every => true,
            Self::Module(is_ours) => *is_ours && command.flags.has(CommandFlags::MODULE),
            Self::Category(category) => {
                category.is_some_and(|category| command.categories().has(category))
            }
            Self::Pattern(pattern) => {
                let name = command.name.as_bytes();
                glob::matches(&pattern.to_ascii_lowercase(), name)
            }
        }
    }
}
#[cfg(test)]
mod tests;

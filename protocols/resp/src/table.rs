//! The table of commands: source of the arities, the reply to `COMMAND`, the ACL categories, the
//! suggestions for unknown commands, and `docs/resp.md`.

mod strings;
mod hashes;
mod sets;
mod keys;
mod sdl;
mod scripts;
mod pubsub;
mod transactions;
mod clients;
mod server;
mod sentinel;
mod local;
mod tags;

use crate::command::command_table::CommandTable;
use crate::command::{AclCategories, ArgPositions, CommandFlags, CommandGroup, KeyspaceScope};
use crate::command_context::{CommandFn, RespCommand};
use crate::commands;
use std::sync::LazyLock;

/// All commands.
pub static TABLE: LazyLock<CommandTable<CommandFn>> =
    LazyLock::new(|| CommandTable::new(GROUPS.iter().copied().flatten()));

const GROUPS: &[&[RespCommand]] = &[
    strings::COMMANDS,
    hashes::COMMANDS,
    sets::COMMANDS,
    keys::COMMANDS,
    sdl::COMMANDS,
    scripts::COMMANDS,
    pubsub::COMMANDS,
    transactions::COMMANDS,
    clients::COMMANDS,
    server::COMMANDS,
    sentinel::COMMANDS,
    local::COMMANDS,
    tags::COMMANDS,
];

/// Default values of a row.
const ROW: RespCommand = RespCommand {
    name: "",
    arity: 1,
    flags: CommandFlags::NONE,
    keys: ArgPositions::None,
    channels: ArgPositions::None,
    walk: KeyspaceScope::None,
    group: CommandGroup::Server,
    also: AclCategories::NONE,
    summary: "",
    complexity: "O(1)",
    differs: "",
    number: 0,
    run: commands::container,
};

const READ: CommandFlags = CommandFlags::READONLY;
const READ_FAST: CommandFlags = READ.and(CommandFlags::FAST);
const WRITE: CommandFlags = CommandFlags::WRITE;
const WRITE_FAST: CommandFlags = WRITE.and(CommandFlags::FAST);
/// Writes, and may need more memory.
const GROW: CommandFlags = WRITE.and(CommandFlags::DENYOOM);
const GROW_FAST: CommandFlags = GROW.and(CommandFlags::FAST);
/// Accesses no records.
const ANY_TIME: CommandFlags = CommandFlags::LOADING.and(CommandFlags::STALE);
/// Concerns the connection.
const CONNECTION: CommandFlags = ANY_TIME.and(CommandFlags::NOSCRIPT);
const OPERATOR: CommandFlags = CONNECTION.and(CommandFlags::ADMIN);

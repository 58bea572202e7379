//! The one table of commands: the parser's arity, the answer to `COMMAND`, the categories of users'
//! rules, the suggestions, and `docs/resp.md`.

mod strings;
mod hashes;
mod sets;
mod keys;
mod sdl;
mod scripts;
mod pubsub;
mod transactions;
mod server;
mod sentinel;
mod local;
mod tags;

use crate::command::command_table::Catalogue;
use crate::command::{Categories, Flags, Group, Places, Walk};
use crate::command_context::{Command, Run};
use crate::commands;
use std::sync::LazyLock;

/// All commands.
pub static TABLE: LazyLock<Catalogue<Run>> =
    LazyLock::new(|| Catalogue::new(GROUPS.iter().copied().flatten()));

const GROUPS: &[&[Command]] = &[
    strings::COMMANDS,
    hashes::COMMANDS,
    sets::COMMANDS,
    keys::COMMANDS,
    sdl::COMMANDS,
    scripts::COMMANDS,
    pubsub::COMMANDS,
    transactions::COMMANDS,
    server::COMMANDS,
    sentinel::COMMANDS,
    local::COMMANDS,
    tags::COMMANDS,
];

/// What a row says unless it says something else.
const ROW: Command = Command {
    name: "",
    arity: 1,
    flags: Flags::NONE,
    keys: Places::No,
    channels: Places::No,
    walk: Walk::No,
    group: Group::Server,
    also: Categories::NONE,
    summary: "",
    complexity: "O(1)",
    differs: "",
    number: 0,
    run: commands::of_parts,
};

const READ: Flags = Flags::READONLY;
const READ_FAST: Flags = READ.and(Flags::FAST);
const WRITE: Flags = Flags::WRITE;
const WRITE_FAST: Flags = WRITE.and(Flags::FAST);
/// Writes, and may need more memory.
const GROW: Flags = WRITE.and(Flags::DENYOOM);
const GROW_FAST: Flags = GROW.and(Flags::FAST);
/// Needs no records.
const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE);
/// About the connection.
const TALK: Flags = ANY_TIME.and(Flags::NOSCRIPT);
const OPERATOR: Flags = TALK.and(Flags::ADMIN);

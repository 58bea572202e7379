//! Records with tags: ours, `docs/decisions/011-tags-over-resp.md`.

use super::{GROW, READ, READ_FAST};
use crate::command::{AclCategories, ArgPositions, CommandFlags, CommandGroup, KeyspaceScope};
use crate::command_context::Command;
use crate::commands::tags;

const ROW: Command = Command { group: CommandGroup::Tags, differs: "Is not there.", ..super::ROW };

/// On one record.
const OF_KEY: Command = Command { keys: ArgPositions::span(2, 2, 1), ..ROW };

/// On a namespace, said as `{ns},*`.
const OF_NAMESPACE: Command = Command { walk: KeyspaceScope::Pattern(2), ..ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "tag",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Records with tags, by which they are found: \
                  see docs/decisions/011-tags-over-resp.md.",
        ..ROW
    },
    Command {
        name: "tag|declare",
        arity: -4,
        flags: GROW,
        // For good, and it may make others' writes fail.
        also: AclCategories::DANGEROUS,
        summary: "Gives the namespace {ns},* a tag: UNIQUE, ORDERED, COUNTED, REQUIRED.",
        complexity: "O(N), N records of the namespace; of what they contradict O(M), M entries of \
                     all indexes",
        differs: "Is not there. Not between MULTI and EXEC. A tag is for good; a namespace has at \
                  most 32. Others are served meanwhile. Who is cut off, or finds no room, sends it \
                  again: until then nothing is found by the tag.",
        run: tags::declare,
        ..OF_NAMESPACE
    },
    Command {
        name: "tag|set",
        arity: -5,
        flags: GROW,
        summary: "Sets a key to a value with so many tags, or KEEPs those that it has; NX, XX.",
        complexity: "O(N), N tags given and taken; of ORDERED ones O(log(M)), M records",
        differs: "Is not there. At most 64 tags, with values of at most 1024 bytes. TAGTAKEN: \
                  another record has a unique value, and nothing was changed.",
        run: tags::set,
        ..OF_KEY
    },
    Command {
        name: "tag|hset",
        arity: -7,
        flags: GROW,
        summary: "Sets so many fields of a hash, and all of its tags; NX, XX; answers how many \
                  fields are new.",
        complexity: "O(N), N fields and tags given and taken; of ORDERED ones O(log(M)), M records",
        differs: "Is not there. Bounds and errors as TAG SET and HSET.",
        run: tags::hset,
        ..OF_KEY
    },
    Command {
        name: "tag|change",
        arity: -4,
        flags: GROW,
        summary: "Gives a record of any form these tags instead of those that it has; answers \
                  whether it is there.",
        complexity: "O(N), N bytes of the record",
        differs: "Is not there. Bounds and errors as TAG SET.",
        run: tags::change,
        ..OF_KEY
    },
    Command {
        name: "tag|of",
        arity: 3,
        flags: READ_FAST,
        summary: "The tags of a record, each with its value.",
        run: tags::of,
        ..OF_KEY
    },
    Command {
        name: "tag|find",
        arity: -5,
        flags: READ,
        summary: "The key and the record that has this value of a unique tag: the whole record, \
                  or some fields of a hash.",
        complexity: "O(N), N bytes of the record",
        differs: "Is not there. Between MULTI and EXEC tags are as they were before MULTI.",
        run: tags::find,
        ..OF_NAMESPACE
    },
    Command {
        name: "tag|keys",
        arity: -5,
        flags: READ,
        summary: "The keys of all records that have this value of a tag, or COUNT of them.",
        complexity: "O(N), N keys answered, and records that have ended and are not collected",
        differs: "Is not there. Refused if there are more than 4096 and no COUNT is given. BUSY if \
                  more than 16384 have ended: then some are collected. Between MULTI and EXEC as \
                  TAG FIND.",
        run: tags::keys,
        ..OF_NAMESPACE
    },
    Command {
        name: "tag|watch",
        arity: 5,
        flags: READ.and(CommandFlags::NOSCRIPT),
        summary: "Watches which record has this value of a unique tag, and that record.",
        differs: "Is not there. Counts as a key of WATCH; UNWATCH, DISCARD and EXEC end it.",
        run: tags::watch,
        ..OF_NAMESPACE
    },
];

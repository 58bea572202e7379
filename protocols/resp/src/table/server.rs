//! The connection and the server.

use super::{ANY_TIME, CONNECTION, OPERATOR, READ};
use crate::command::{AclCategories, ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::Command;
use crate::commands::{clients, command, config, connection, info, server, users};

const ROW: Command = Command { group: CommandGroup::Server, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "ping",
        arity: -1,
        flags: CommandFlags::FAST.and(CommandFlags::SUBSCRIBED),
        group: CommandGroup::Connection,
        summary: "Answers PONG, or what it is given.",
        run: connection::ping,
        ..ROW
    },
    Command {
        name: "echo",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::FAST),
        group: CommandGroup::Connection,
        summary: "Answers what it is given.",
        run: connection::echo,
        ..ROW
    },
    Command {
        name: "quit",
        arity: -1,
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::NO_AUTH)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE)
            .and(CommandFlags::SUBSCRIBED),
        group: CommandGroup::Connection,
        summary: "Closes the connection.",
        run: connection::quit,
        ..ROW
    },
    Command {
        name: "reset",
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::NO_AUTH)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE)
            .and(CommandFlags::SUBSCRIBED),
        group: CommandGroup::Connection,
        summary: "Makes the connection a new one.",
        run: connection::reset,
        ..ROW
    },
    Command {
        name: "select",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::FAST),
        group: CommandGroup::Connection,
        summary: "Chooses a database.",
        differs: "Takes 0 only: there is one database.",
        run: connection::select,
        ..ROW
    },
    Command {
        name: "hello",
        arity: -1,
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::NO_AUTH)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::SECRET),
        group: CommandGroup::Connection,
        summary: "Chooses the protocol; may say who the client is.",
        differs: "Refused between MULTI and EXEC.",
        run: connection::hello,
        ..ROW
    },
    Command {
        name: "auth",
        arity: -2,
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::NO_AUTH)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::SECRET),
        group: CommandGroup::Connection,
        summary: "Says who the client is.",
        run: connection::auth,
        ..ROW
    },
    Command {
        name: "acl",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Looks at users.",
        differs: "Users are made in the configuration only: no SETUSER, DELUSER, LOAD, SAVE, LOG, \
                  DRYRUN, GENPASS.",
        ..ROW
    },
    Command {
        name: "acl|whoami",
        arity: 2,
        flags: CONNECTION,
        summary: "Who the client is.",
        run: users::whoami,
        ..ROW
    },
    Command {
        name: "acl|list",
        arity: 2,
        flags: OPERATOR,
        summary: "All users with their rules.",
        complexity: "O(N), N users",
        differs: "Namespaces stand as `~{ns},*`; there are no selectors.",
        run: users::list,
        ..ROW
    },
    Command {
        name: "acl|users",
        arity: 2,
        flags: OPERATOR,
        summary: "The names of all users.",
        complexity: "O(N), N users",
        run: users::users,
        ..ROW
    },
    Command {
        name: "acl|cat",
        arity: -2,
        flags: CONNECTION,
        summary: "The categories, or the commands of one.",
        complexity: "O(N), N commands",
        differs: "Has the category `@sdl`, and none of the forms that are not offered.",
        run: users::cat,
        ..ROW
    },
    Command {
        name: "acl|getuser",
        arity: 3,
        flags: OPERATOR,
        summary: "A user's rules.",
        complexity: "O(N), N rules of the user",
        differs: "There are no selectors.",
        run: users::getuser,
        ..ROW
    },
    Command {
        name: "client",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        group: CommandGroup::Connection,
        summary: "Looks at connections.",
        differs: "No KILL, PAUSE, REPLY, TRACKING, UNBLOCK, NO-EVICT.",
        ..ROW
    },
    Command {
        name: "client|id",
        arity: 2,
        flags: CONNECTION,
        group: CommandGroup::Connection,
        summary: "The number of this connection.",
        run: connection::id,
        ..ROW
    },
    Command {
        name: "client|setname",
        arity: 3,
        flags: CONNECTION,
        group: CommandGroup::Connection,
        summary: "Gives this connection a name.",
        run: connection::setname,
        ..ROW
    },
    Command {
        name: "client|getname",
        arity: 2,
        flags: CONNECTION,
        group: CommandGroup::Connection,
        summary: "The name of this connection.",
        run: connection::getname,
        ..ROW
    },
    Command {
        name: "client|setinfo",
        arity: 4,
        flags: CONNECTION,
        group: CommandGroup::Connection,
        summary: "Says which library the client uses.",
        differs: "As in Redis 7.2.",
        run: connection::setinfo,
        ..ROW
    },
    Command {
        name: "client|info",
        arity: 2,
        flags: CONNECTION,
        group: CommandGroup::Connection,
        summary: "What is known of this connection.",
        differs: "Only the fields that are known; `lib-name` and `lib-ver` as in Redis 7.2.",
        run: clients::info,
        ..ROW
    },
    Command {
        name: "client|list",
        arity: -2,
        flags: OPERATOR,
        group: CommandGroup::Connection,
        summary: "What is known of all connections.",
        complexity: "O(N), N connections",
        differs: "As CLIENT INFO; `multi` is known of the connection itself only. No MAXAGE.",
        run: clients::list,
        ..ROW
    },
    Command {
        name: "client|no-touch",
        arity: 3,
        flags: CONNECTION,
        group: CommandGroup::Connection,
        summary: "Accepted.",
        differs: "As in Redis 7.2; changes nothing: there is no eviction.",
        run: connection::no_touch,
        ..ROW
    },
    Command {
        name: "command",
        arity: -1,
        flags: ANY_TIME.and(CommandFlags::CONTAINER),
        also: AclCategories::CONNECTION,
        summary: "All commands, in the form of Redis 6: seven elements for each.",
        complexity: "O(N), N commands",
        differs: "Seven elements and not ten: what sdlgo checks for. Subcommands stand in COMMAND \
                  INFO.",
        run: command::command,
        ..ROW
    },
    Command {
        name: "command|count",
        arity: 2,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "How many commands there are.",
        run: command::count,
        ..ROW
    },
    Command {
        name: "command|info",
        arity: -2,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "Rows of the table.",
        complexity: "O(N), N names given",
        differs: "Seven elements and not ten.",
        run: command::info,
        ..ROW
    },
    Command {
        name: "command|docs",
        arity: -2,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "What commands do and cost.",
        complexity: "O(N), N names given",
        differs: "No history and no arguments; `differs` says what differs from Redis.",
        run: command::docs,
        ..ROW
    },
    Command {
        name: "command|list",
        arity: -2,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "The names of all commands.",
        complexity: "O(N), N commands",
        run: command::list,
        ..ROW
    },
    Command {
        name: "command|getkeys",
        arity: -4,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "Which arguments of a request are keys.",
        complexity: "O(N), N arguments",
        run: command::getkeys,
        ..ROW
    },
    Command {
        name: "info",
        arity: -1,
        flags: ANY_TIME,
        also: AclCategories::DANGEROUS,
        summary: "Facts about the server.",
        differs: "No latencystats and no errorstats. `used_memory` is what the region has ever \
                  taken, `maxmemory` its size; `redis_version` is the release whose answers \
                  these are.",
        run: info::info,
        ..ROW
    },
    Command {
        name: "config",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Looks at the configuration.",
        differs: "Only GET, and SET of one setting: the configuration is a file.",
        ..ROW
    },
    Command {
        name: "config|get",
        arity: -3,
        flags: OPERATOR,
        summary: "The settings that match patterns.",
        complexity: "O(N*M), N settings, M patterns",
        differs: "Knows some thirty names.",
        run: server::config_get,
        ..ROW
    },
    Command {
        name: "config|set",
        arity: -4,
        flags: OPERATOR,
        summary: "Sets `notify-keyspace-events`: which events of keys clients are told.",
        complexity: "O(N+B), N namespaces, B buckets of theirs, in slices",
        differs: "Sets no other setting, and this one until the node ends; refused between MULTI \
                  and EXEC. The events are the region's, so changes by embedded processes are told \
                  as well: `new`, `set`, `hset` and `sadd` by what the record is after the change \
                  (EXPIRE of a string is `set`, SREM `sadd`, RENAME `del` and `set`), `del` \
                  (FLUSHALL: for each key), `expired`; a transaction tells each record once, and \
                  keys of two namespaces have no order. The letters l, z, t, e, d and m are taken, \
                  and nothing comes of them. Changes that an embedded process makes within 100 ms \
                  of making their namespace may not be told. With events chosen each namespace \
                  takes a MiB for good and its writers tell of each change, also when none are \
                  chosen any more. `INFO stats` counts what was lost.",
        run: config::set,
        ..ROW
    },
    Command {
        name: "slowlog",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Looks at slow commands.",
        ..ROW
    },
    Command {
        name: "slowlog|get",
        arity: -2,
        flags: ANY_TIME.and(CommandFlags::ADMIN),
        summary: "The last slow commands.",
        complexity: "O(N), N entries asked for",
        differs: "Arguments of commands that may be given passwords are left out.",
        run: server::slowlog_get,
        ..ROW
    },
    Command {
        name: "slowlog|len",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::ADMIN),
        summary: "How many slow commands are remembered.",
        run: server::slowlog_len,
        ..ROW
    },
    Command {
        name: "slowlog|reset",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::ADMIN),
        summary: "Forgets the slow commands.",
        complexity: "O(N), N entries",
        run: server::slowlog_reset,
        ..ROW
    },
    Command {
        name: "memory",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Looks at memory.",
        differs: "Only USAGE.",
        ..ROW
    },
    Command {
        name: "memory|usage",
        arity: -3,
        flags: READ,
        keys: ArgPositions::span(2, 2, 1),
        summary: "How many bytes a record takes.",
        differs: "What it takes in the region; SAMPLES changes nothing.",
        run: server::memory_usage,
        ..ROW
    },
    Command {
        name: "time",
        flags: ANY_TIME.and(CommandFlags::FAST),
        summary: "The time of the server.",
        differs: "Counts in steps of a few milliseconds.",
        run: server::time,
        ..ROW
    },
    Command {
        name: "lastsave",
        flags: ANY_TIME.and(CommandFlags::FAST),
        also: AclCategories::ADMIN.and(AclCategories::DANGEROUS),
        summary: "When the region was last made safe on a disk.",
        differs: "When the server was started: a region on a disk is written by the kernel.",
        run: server::lastsave,
        ..ROW
    },
    Command {
        name: "wait",
        arity: 3,
        flags: CommandFlags::NOSCRIPT,
        also: AclCategories::CONNECTION,
        summary: "How many replicas have what was written.",
        differs: "Answers 0 at once: there are no replicas.",
        run: server::wait,
        ..ROW
    },
    Command {
        name: "role",
        flags: CONNECTION.and(CommandFlags::FAST),
        also: AclCategories::ADMIN.and(AclCategories::DANGEROUS),
        summary: "What the server is for others.",
        run: server::role,
        ..ROW
    },
];

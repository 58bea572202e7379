//! Connection and server commands.

use super::{ANY_TIME, CONNECTION, OPERATOR, READ};
use crate::command::{AclCategories, ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::{command, config, connection, info, latency, monitor, server, users};

const ROW: RespCommand = RespCommand { group: CommandGroup::Server, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "ping",
        arity: -1,
        flags: CommandFlags::FAST.and(CommandFlags::SUBSCRIBED),
        group: CommandGroup::Connection,
        summary: "Returns PONG or the given string.",
        run: connection::ping,
        ..ROW
    },
    RespCommand {
        name: "echo",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::FAST),
        group: CommandGroup::Connection,
        summary: "Returns the given string.",
        run: connection::echo,
        ..ROW
    },
    RespCommand {
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
    RespCommand {
        name: "reset",
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::NO_AUTH)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE)
            .and(CommandFlags::SUBSCRIBED),
        group: CommandGroup::Connection,
        summary: "Resets the connection.",
        run: connection::reset,
        ..ROW
    },
    RespCommand {
        name: "select",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::FAST),
        group: CommandGroup::Connection,
        summary: "Changes the selected database.",
        differs: "Accepts 0 only: there is one database.",
        run: connection::select,
        ..ROW
    },
    RespCommand {
        name: "hello",
        arity: -1,
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::NO_AUTH)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::SECRET),
        group: CommandGroup::Connection,
        summary: "Negotiates the protocol version and optionally authenticates the connection.",
        differs: "Rejected between MULTI and EXEC.",
        run: connection::hello,
        ..ROW
    },
    RespCommand {
        name: "auth",
        arity: -2,
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::NO_AUTH)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::SECRET),
        group: CommandGroup::Connection,
        summary: "Authenticates the connection.",
        run: connection::auth,
        ..ROW
    },
    RespCommand {
        name: "acl",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands for access control lists.",
        differs: "Users are declared in the configuration only. SETUSER, DELUSER, LOAD, SAVE, LOG, \
                  DRYRUN and GENPASS are not supported.",
        ..ROW
    },
    RespCommand {
        name: "acl|whoami",
        arity: 2,
        flags: CONNECTION,
        summary: "Returns the user name of the connection.",
        run: users::whoami,
        ..ROW
    },
    RespCommand {
        name: "acl|list",
        arity: 2,
        flags: OPERATOR,
        summary: "Lists the users with their ACL rules.",
        complexity: "O(N), N users",
        differs: "Namespaces are shown as `~{ns},*`. Selectors are not supported.",
        run: users::list,
        ..ROW
    },
    RespCommand {
        name: "acl|users",
        arity: 2,
        flags: OPERATOR,
        summary: "Lists all users.",
        complexity: "O(N), N users",
        run: users::users,
        ..ROW
    },
    RespCommand {
        name: "acl|cat",
        arity: -2,
        flags: CONNECTION,
        summary: "Lists the ACL categories, or the commands of one category.",
        complexity: "O(N), N commands",
        differs: "Has the category `@sdl`, and no categories of unsupported data types.",
        run: users::cat,
        ..ROW
    },
    RespCommand {
        name: "acl|getuser",
        arity: 3,
        flags: OPERATOR,
        summary: "Lists the ACL rules of a user.",
        complexity: "O(N), N rules of the user",
        differs: "Selectors are not supported.",
        run: users::getuser,
        ..ROW
    },
    RespCommand {
        name: "command",
        arity: -1,
        flags: ANY_TIME.and(CommandFlags::CONTAINER),
        also: AclCategories::CONNECTION,
        summary: "Returns information about all commands.",
        complexity: "O(N), N commands",
        differs: "Seven elements per command as in Redis 6, not ten: sdlgo requires seven. \
                  Subcommands are in COMMAND INFO.",
        run: command::command,
        ..ROW
    },
    RespCommand {
        name: "command|count",
        arity: 2,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "Returns the number of commands.",
        run: command::count,
        ..ROW
    },
    RespCommand {
        name: "command|info",
        arity: -2,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "Returns information about one or more commands.",
        complexity: "O(N), N names given",
        differs: "Seven elements per command, not ten.",
        run: command::info,
        ..ROW
    },
    RespCommand {
        name: "command|docs",
        arity: -2,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "Returns documentation of commands.",
        complexity: "O(N), N names given",
        differs: "Without history and arguments. `differs` describes differences from Redis.",
        run: command::docs,
        ..ROW
    },
    RespCommand {
        name: "command|list",
        arity: -2,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "Returns the names of all commands.",
        complexity: "O(N), N commands",
        run: command::list,
        ..ROW
    },
    RespCommand {
        name: "command|getkeys",
        arity: -4,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "Extracts the key names of a command.",
        complexity: "O(N), N arguments",
        run: command::getkeys,
        ..ROW
    },
    RespCommand {
        name: "command|getkeysandflags",
        arity: -4,
        flags: ANY_TIME,
        also: AclCategories::CONNECTION,
        summary: "Extracts the key names of a command, with how it accesses each key.",
        complexity: "O(N), N arguments",
        run: command::getkeysandflags,
        ..ROW
    },
    RespCommand {
        name: "info",
        arity: -1,
        flags: ANY_TIME,
        also: AclCategories::DANGEROUS,
        summary: "Returns information and statistics about the server.",
        differs: "No latencystats and errorstats sections. `namespace_limit_..` are namespaces \
                  with limits. `used_memory` is the memory that is allocated in the region, \
                  `maxmemory` its size. `redis_version` is a \
                  Redis release for clients that decide by it, such as redis-py and Jedis, whose \
                  client-side caches require 7.4. CONFIG RESETSTAT concerns commandstats and \
                  the counters of stats.",
        run: info::info,
        ..ROW
    },
    RespCommand {
        name: "config",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands for the configuration.",
        differs: "Supports GET, RESETSTAT and SET. REWRITE is not supported: all settings are in \
                  the configuration file.",
        ..ROW
    },
    RespCommand {
        name: "config|get",
        arity: -3,
        flags: OPERATOR,
        summary: "Returns the values of settings.",
        complexity: "O(N*M), N settings, M patterns",
        differs: "Supports about thirty names.",
        run: server::config_get,
        ..ROW
    },
    RespCommand {
        name: "config|resetstat",
        arity: 2,
        flags: OPERATOR,
        summary: "Sets the counters of `INFO stats` and `INFO commandstats` to 0.",
        complexity: "O(N), N commands",
        differs: "`/metrics` is not changed.",
        run: config::resetstat,
        ..ROW
    },
    RespCommand {
        name: "config|set",
        arity: -4,
        flags: OPERATOR,
        summary: "Sets `slowlog-log-slower-than`, `slowlog-max-len`, `latency-monitor-threshold`, \
                  `loglevel`, `maxclients`, `client-output-buffer-limit` of pubsub clients, or \
                  `notify-keyspace-events`, which selects the keyspace notifications.",
        complexity: "O(N+B), N namespaces, B buckets of them, in slices",
        differs: "Other settings can only be set to the value that they have. Values are lost when \
                  the node ends. `client-output-buffer-limit` and `maxclients` concern new \
                  connections; `maxclients` is at most `limits.connections_max`. Rejected \
                  between MULTI and EXEC. The events come from the region, so changes by embedded \
                  processes are published as well. The event name depends on the record after the \
                  change: `new`, `set`, `hset` or `sadd` (EXPIRE of a string is `set`, SREM is \
                  `sadd`, RENAME is `del` and `set`), `del` (FLUSHALL: one for each key), \
                  `expired`. A transaction publishes one event for each record. Keys of different \
                  namespaces have no order. The flags l, z, t, e, d and m are accepted without \
                  effect. Changes that an embedded process makes within 100 ms after it creates a \
                  namespace may be missed. With notifications enabled, each namespace permanently \
                  uses memory (4 KiB to 1 MiB: a thirty-second of the heap divided by its number) \
                  and its writers record each change, even after notifications are disabled. `INFO \
                  stats` counts lost events.",
        run: config::set,
        ..ROW
    },
    RespCommand {
        name: "latency",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands for the latency of requests.",
        differs: "The events are `command` and `fast-command`.",
        ..ROW
    },
    RespCommand {
        name: "latency|doctor",
        arity: 2,
        flags: OPERATOR,
        summary: "Returns a text about the latency of requests.",
        differs: "Returns a text of its own.",
        run: latency::doctor,
        ..ROW
    },
    RespCommand {
        name: "latency|graph",
        arity: 3,
        flags: OPERATOR,
        summary: "Returns a chart of the times of an event.",
        differs: "Returns a text of its own, with one line for each second with slow requests.",
        run: latency::graph,
        ..ROW
    },
    RespCommand {
        name: "latency|histogram",
        arity: -2,
        flags: OPERATOR,
        summary: "Returns the cumulative distribution of the times of commands.",
        complexity: "O(N), N commands",
        differs: "Counts since the start, regardless of CONFIG RESETSTAT.",
        run: latency::histogram,
        ..ROW
    },
    RespCommand {
        name: "latency|history",
        arity: 3,
        flags: OPERATOR,
        summary: "Returns the times of an event, one for each second with slow requests.",
        run: latency::history,
        ..ROW
    },
    RespCommand {
        name: "latency|latest",
        arity: 2,
        flags: OPERATOR,
        summary: "Returns the latest and the longest time of each event.",
        run: latency::latest,
        ..ROW
    },
    RespCommand {
        name: "latency|reset",
        arity: -2,
        flags: OPERATOR,
        summary: "Removes the times of events.",
        run: latency::reset,
        ..ROW
    },
    RespCommand {
        name: "slowlog",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands for the slow log.",
        ..ROW
    },
    RespCommand {
        name: "slowlog|get",
        arity: -2,
        flags: ANY_TIME.and(CommandFlags::ADMIN),
        summary: "Returns the latest entries of the slow log.",
        complexity: "O(N), N entries asked for",
        differs: "Arguments of commands that may contain passwords are omitted.",
        run: server::slowlog_get,
        ..ROW
    },
    RespCommand {
        name: "slowlog|len",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::ADMIN),
        summary: "Returns the number of entries of the slow log.",
        run: server::slowlog_len,
        ..ROW
    },
    RespCommand {
        name: "slowlog|reset",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::ADMIN),
        summary: "Clears the slow log.",
        complexity: "O(N), N entries",
        run: server::slowlog_reset,
        ..ROW
    },
    RespCommand {
        name: "memory",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands for memory usage.",
        differs: "Supports PURGE and USAGE.",
        ..ROW
    },
    RespCommand {
        name: "memory|purge",
        arity: 2,
        summary: "Asks the server to return free memory to the operating system.",
        differs: "The work is done in the background: records are moved together first, and a \
                  sixteenth of the region stays allocated. Without the command the server does the \
                  same for memory that stays free for a minute.",
        run: server::memory_purge,
        ..ROW
    },
    RespCommand {
        name: "memory|usage",
        arity: -3,
        flags: READ,
        keys: ArgPositions::span(2, 2, 1),
        summary: "Returns the memory usage of a key in bytes.",
        differs: "Memory in the region. SAMPLES has no effect.",
        run: server::memory_usage,
        ..ROW
    },
    RespCommand {
        name: "monitor",
        flags: OPERATOR,
        summary: "Sends every request of all clients to the connection.",
        differs: "A line has at most 64 KiB; the rest of a longer request is left out. A client \
                  that reads too slowly is disconnected, as a subscriber. Commands of EXEC are \
                  shown after the commit. Rejected between MULTI and EXEC.",
        run: monitor::monitor,
        ..ROW
    },
    RespCommand {
        name: "time",
        flags: ANY_TIME.and(CommandFlags::FAST),
        summary: "Returns the server time.",
        differs: "Resolution of a few milliseconds.",
        run: server::time,
        ..ROW
    },
    RespCommand {
        name: "lastsave",
        flags: ANY_TIME.and(CommandFlags::FAST),
        also: AclCategories::ADMIN.and(AclCategories::DANGEROUS),
        summary: "Returns the Unix timestamp of the last save to disk.",
        differs: "Returns the start time of the server: the kernel writes a region on a disk.",
        run: server::lastsave,
        ..ROW
    },
    RespCommand {
        name: "wait",
        arity: 3,
        flags: CommandFlags::NOSCRIPT,
        also: AclCategories::CONNECTION,
        summary: "Returns the number of replicas that acknowledged the preceding writes.",
        differs: "Replicas are followers of the region (`nearstate region follow`), or the other \
                  members of a partition. Waits for the preceding writes of all clients of the \
                  same core. When the node ends, or its host owns the partition no longer, a \
                  waiting one is answered `UNBLOCKED`, and so are requests that `CLIENT PAUSE` \
                  suspends. In a namespace with the policy `replicated` each write waits for its \
                  replicas before its reply ([cluster](operate/cluster.md)); writes in a `local` \
                  one are not waited for.",
        run: server::wait,
        ..ROW
    },
    RespCommand {
        name: "role",
        flags: CONNECTION.and(CommandFlags::FAST),
        also: AclCategories::ADMIN.and(AclCategories::DANGEROUS),
        summary: "Returns the replication role.",
        differs: "Offsets are positions of the log. A node of a region that follows another one is \
                  a `slave`, without the address of its master. `sentinel` at an address of \
                  `resp.sentinel_listen`.",
        run: server::role,
        ..ROW
    },
];

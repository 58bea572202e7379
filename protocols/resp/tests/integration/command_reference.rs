//! `docs/resp.md` equals the page generated from the table of commands. `NEARSTATE_RESP_WRITE=1`
//! writes the page.

#![expect(clippy::expect_used, reason = "a file that cannot be written ends its test")]

use nearstate_resp::command::CommandGroup;
use nearstate_resp::command_context::RespCommand;
use nearstate_resp::table::TABLE;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

const ADVICE: &str = "run `NEARSTATE_RESP_WRITE=1 cargo test -p nearstate-resp --test integration \
                      command_reference` and \
                      commit what it wrote";

const GROUPS: [(CommandGroup, &str); 13] = [
    (CommandGroup::Strings, "Strings"),
    (CommandGroup::Bitmaps, "Bits of strings"),
    (CommandGroup::Hashes, "Hashes"),
    (CommandGroup::Sets, "Sets"),
    (CommandGroup::Keys, "Keys"),
    (CommandGroup::Tags, "Tags"),
    (CommandGroup::Sdl, "Commands of the SDL module"),
    (CommandGroup::Scripts, "Scripts"),
    (CommandGroup::Pubsub, "Publish and subscribe"),
    (CommandGroup::Transactions, "Transactions"),
    (CommandGroup::Connection, "Connection"),
    (CommandGroup::Server, "Server"),
    (CommandGroup::Sentinel, "Sentinel"),
];

const HEAD: &str = "\
# Commands

This page is generated from the table of commands in `protocols/resp/src/table`. Do not edit it.

The node supports RESP2 and, after `HELLO 3`, RESP3. A command that is not listed returns an error
that names the closest listed command. *Arity* includes the names of the command and the subcommand;
`-3` means 3 or more. *Differences* describes what differs from Redis 7; empty means no difference.

A key `{ns},key` is the key `key` of the namespace `ns`, under which embedded processes find it. All
other keys are stored unchanged in one separate namespace. A key has at most 4096 bytes.

A write that needs more memory returns `OOM` if the region is full, or if the namespace has reached
its hard limit. The text of the error says which. Deletes, and writes that take no more memory than
what they replace, are still executed.

A request of several keys that fails after a part of it was executed returns `PARTIAL`, followed by
the error and by what is done. All other errors of changes mean that nothing was changed, except
`NOTREPLICATED`, `LOST` and `OUTCOMEUNKNOWN`. The error of a request that subscribes to more names
than one reply may list says that the changes were made.

A message of a request that waits until its commit is replicated (namespaces with the policy
`replicated`) is sent when the reply is, and so are the messages of the requests behind it in the
same pipeline. If the commit is lost, or not replicated in time, or the node ends before, it is
not sent. In a namespace with another policy a message is sent at once.

Hashes and sets of at most 128 elements return fields in the order in which they were first set, and
members in ascending order. Larger ones return them in the order of their hash values. A set and a
hash have any number of members and fields. Replies
with more than 5000 of them are collected in slices between which other clients are served. So are
the elements that `COPY`, `RENAME`, `DUMP`, `RESTORE` and `SUNIONSTORE` process, which are those of
one instant; what is written becomes visible in one step. Between `MULTI` and `EXEC` there are no
slices; an operation on sets ends at `resp.exec_max` there. Errors that repeat a part of the request
replace invalid UTF-8 with U+FFFD.

Tested clients, each with SIGKILLs of the node (`cargo xtask soak clients`): `ricsdl`, redis-py,
go-redis, ioredis, node-redis, Jedis, Lettuce, redis-rs, the requests of sdlgo with go-redis v8, and
those of O-RAN's C++ SDL with hiredis. The client-side caches of redis-py, node-redis, Jedis and
Lettuce work. The units of Redis 7.0's own tests for strings, hashes, sets, keys, transactions,
messages and the protocol pass (`cargo xtask soak tcl`), apart from the tests in
`verification/clients/tcl/skipped.txt`, which has the reason for each.
";

fn row(page: &mut String, command: &RespCommand) {
    let name = command.name.replace('|', " ").to_ascii_uppercase();
    let RespCommand { arity, summary, complexity, differs, .. } = command;
    let cells = [summary, complexity, differs].map(|text| text.replace('|', "\\|"));
    let [summary, complexity, differs] = cells;
    writeln!(page, "| `{name}` | {arity} | {summary} | {complexity} | {differs} |")
        .expect("writing to a String cannot fail");
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (group, title) in GROUPS {
        write!(page, "\n## {title}\n\n").expect("writing to a String cannot fail");
        page.push_str(
            "| command | arity | summary | complexity | differences |\n|---|---|---|---|---|\n",
        );
        let commands = TABLE.commands().iter().filter(|command| command.group == group);
        commands.for_each(|command| row(&mut page, command));
    }
    page
}

#[test]
fn the_page_matches_the_command_table() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/resp.md");
    let page = page();
    if std::env::var_os("NEARSTATE_RESP_WRITE").is_some_and(|word| word == "1") {
        fs::write(&path, &page).expect("the page can be written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(page.lines()).position(|(there, made)| there != made);
    let line = differs.unwrap_or_else(|| there.lines().count().min(page.lines().count())) + 1;
    assert!(there == page, "docs/resp.md:{line}: differs from the command table: {ADVICE}");
}

#[test]
fn the_page_lists_every_command() {
    let rows = page().lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, TABLE.commands().len());
}

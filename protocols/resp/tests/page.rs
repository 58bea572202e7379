//! `docs/resp.md` is what the table of commands says. With `NEARSTATE_RESP_WRITE=1` it is written
//! anew.

#![expect(clippy::expect_used, reason = "a file that cannot be written ends its test")]

use nearstate_resp::command::CommandGroup;
use nearstate_resp::command_context::Command;
use nearstate_resp::table::TABLE;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

const ADVICE: &str = "run `NEARSTATE_RESP_WRITE=1 cargo test -p nearstate-resp --test page` and \
                      commit what it wrote";

const GROUPS: [(CommandGroup, &str); 12] = [
    (CommandGroup::Strings, "Strings"),
    (CommandGroup::Hashes, "Hashes"),
    (CommandGroup::Sets, "Sets"),
    (CommandGroup::Keys, "Keys"),
    (CommandGroup::Tags, "Records with tags"),
    (CommandGroup::Sdl, "Commands of the SDL back-end's module"),
    (CommandGroup::Scripts, "Scripts"),
    (CommandGroup::Pubsub, "Publish and subscribe"),
    (CommandGroup::Transactions, "Transactions"),
    (CommandGroup::Connection, "Connection"),
    (CommandGroup::Server, "Server"),
    (CommandGroup::Sentinel, "Sentinel"),
];

const HEAD: &str = "\
# Commands

This page is made of the table of commands in `protocols/resp/src/table`: do not edit it.

The node speaks RESP2 and, after `HELLO 3`, RESP3. A command that is not listed answers an error
that names the nearest listed one. *Arity* counts the command's name and that of a subcommand;
`-3` is 3 or more. *Differs* says what is not as in Redis 7; an empty field means that nothing is.

A key `{ns},key` is key `key` of namespace `ns`: embedded processes see it there. Any other key
stands, whole, in a namespace of its own. A key has at most 4096 bytes.

Where Redis promises no order, a hash's fields are answered in the order in which they were first
set, and a set's members ascending. Errors that repeat a part of the request show what is no UTF-8
as U+FFFD.
";

fn row(page: &mut String, command: &Command) {
    let name = command.name.replace('|', " ").to_ascii_uppercase();
    let Command { arity, summary, complexity, differs, .. } = command;
    let cells = [summary, complexity, differs].map(|text| text.replace('|', "\\|"));
    let [summary, complexity, differs] = cells;
    writeln!(page, "| `{name}` | {arity} | {summary} | {complexity} | {differs} |")
        .expect("a String takes all");
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (group, title) in GROUPS {
        write!(page, "\n## {title}\n\n").expect("a String takes all");
        page.push_str(
            "| command | arity | it does | it costs | differs |\n|---|---|---|---|---|\n",
        );
        let commands = TABLE.commands().iter().filter(|command| command.group == group);
        commands.for_each(|command| row(&mut page, command));
    }
    page
}

#[test]
fn the_page_is_what_the_table_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/resp.md");
    let page = page();
    if std::env::var_os("NEARSTATE_RESP_WRITE").is_some_and(|word| word == "1") {
        fs::write(&path, &page).expect("the page can be written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(page.lines()).position(|(there, made)| there != made);
    let line = differs.unwrap_or_else(|| there.lines().count().min(page.lines().count())) + 1;
    assert!(there == page, "docs/resp.md:{line}: not what the table says: {ADVICE}");
}

#[test]
fn no_command_is_missing_on_the_page() {
    let rows = page().lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, TABLE.commands().len());
}

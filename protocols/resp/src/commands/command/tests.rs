//! Replies to `COMMAND`, byte by byte where a client is strict.

use super::*;
use crate::parse::OwnedArgs;
use crate::reply::RespVersion;
use crate::table::TABLE;

type WriteSubcommand = fn(RespCommandTable, Args<'_>, &mut ReplyWriter<'_>) -> CommandResult;

const ROWS: [(&str, CommandFn, WriteSubcommand); 7] = [
    ("command", command, write_commands),
    ("command|count", count, write_count),
    ("command|info", info, write_info),
    ("command|docs", docs, write_docs),
    ("command|list", list, write_list),
    ("command|getkeys", getkeys, write_getkeys),
    ("command|getkeysandflags", getkeysandflags, write_getkeysandflags),
];

fn answer(protocol: RespVersion, request: &str) -> String {
    let kept: OwnedArgs = request.split(' ').map(str::as_bytes).collect();
    let command = TABLE.lookup(kept.args()).unwrap();
    let (_, run, function) = ROWS.iter().find(|(name, _, _)| *name == command.name).unwrap();
    assert!(std::ptr::fn_addr_eq(*run, command.run), "{request} is carried out by something else");
    let mut out = Vec::new();
    let mut reply = ReplyWriter::new(&mut out, protocol);
    if let Err(error) = function(&TABLE, kept.args(), &mut reply) {
        reply.error(error.text());
    }
    String::from_utf8(out).unwrap().replace("\r\n", "|")
}

fn two(request: &str) -> String {
    answer(RespVersion::Resp2, request)
}

#[test]
fn a_row_of_command_has_the_seven_elements_that_sdlgo_accepts() {
    assert_eq!(
        two("command info GET"),
        "*1|*7|$3|get|:2|*2|+readonly|+fast|:1|:1|:1|*3|+@read|+@string|+@fast|"
    );
    assert_eq!(
        answer(RespVersion::Resp3, "command info nope echo"),
        "*2|_|*7|$4|echo|:2|~3|+loading|+stale|+fast|:0|:0|:0|~2|+@fast|+@connection|"
    );
    let row = "*1|*7|$9|client|id|:2|*3|+noscript|+loading|+stale|:0|:0|:0|*2|+@slow|+@connection|";
    assert_eq!(two("command info client|id"), row);
    assert_eq!(two("command info nope"), "*1|*-1|");
}

#[test]
fn command_lists_commands_without_subcommands() {
    let tops = TABLE.commands().iter().filter(|command| !command.name.contains('|')).count();
    let all = two("command");
    assert!(all.starts_with(&format!("*{tops}|*7|$3|acl|:-2|")), "{}", &all[..40]);
    assert_eq!(all.matches("*7|").count(), tops);
    assert_eq!(two("command info"), all);
    assert_eq!(two("command count"), format!(":{tops}|"));
    assert!(all.contains("*7|$8|setiepub|:6|*4|+write|+denyoom|+module|+pubsub|:1|:1|:1|"));
}

#[test]
fn command_docs_is_a_map_of_maps() {
    let echo = "$7|summary|$28|Returns the given string.|";
    let echo = echo.replace("$28", "$25");
    let rest = "$5|since|$5|0.1.0|$5|group|$10|connection|$10|complexity|$4|O(1)|";
    assert_eq!(
        answer(RespVersion::Resp3, "command docs echo nope"),
        format!("%1|$4|echo|%4|{echo}{rest}")
    );
    assert_eq!(two("command docs echo"), format!("*2|$4|echo|*8|{echo}{rest}"));
    let object = answer(RespVersion::Resp3, "command docs object");
    assert!(object.contains("|$11|subcommands|%4|$15|object|encoding|%5|"), "{object}");
    assert!(object.contains("|$7|differs|"));
    assert!(two("command docs").len() > 10_000);
}

#[test]
fn command_list_lists_and_filters_names() {
    assert!(
        two("command list").starts_with(&format!("*{}|$3|acl|$7|acl|cat|", TABLE.commands().len()))
    );
    assert_eq!(two("command list filterby pattern CLIENT|*d"), "*1|$9|client|id|");
    assert!(two("command list FILTERBY module exstrings").starts_with("*20|"));
    assert_eq!(two("command list filterby module nope"), "*0|");
    assert_eq!(two("command list filterby aclcat nope"), "*0|");
    assert!(two("command list filterby aclcat SDL").starts_with("*20|"));
    for wrong in
        ["x", "filterby x y", "filterby module", "filterby module a b", "x module exstrings"]
    {
        assert_eq!(two(&format!("command list {wrong}")), "-ERR syntax error|", "{wrong}");
    }
}

#[test]
fn command_getkeys_replies_like_redis() {
    for (request, answer) in [
        ("msetnx a b c d", "*2|$1|a|$1|c|"),
        ("msetmpub 1 1 k v c m", "*1|$1|k|"),
        ("object encoding a", "*1|$1|a|"),
        ("eval x 0", "*0|"),
        ("eval x 2 a", "*0|"),
        ("foo a", "-ERR Invalid command specified|"),
        ("client foo", "-ERR Invalid command specified|"),
        ("echo a", "-ERR The command has no key arguments|"),
        ("get a b", "-ERR Invalid number of arguments specified for command|"),
        ("sintercard 3 a", "-ERR Invalid arguments specified for command|"),
    ] {
        assert_eq!(two(&format!("command getkeys {request}")), answer, "{request}");
    }
}

/// The words of redis-server 7.0.15.
#[test]
fn keys_have_the_words_of_redis() {
    for (request, words) in [
        ("get k", "RO access"),
        ("set k v", "OW update"),
        ("set k v nx", "OW update"),
        ("set k v GET", "RW access update"),
        ("setnx k v", "OW insert"),
        ("mset k v j w", "OW update, OW update"),
        ("append k v", "RW insert"),
        ("setrange k 1 v", "RW update"),
        ("incr k", "RW access update"),
        ("getdel k", "RW access delete"),
        ("del k j", "RM delete, RM delete"),
        ("strlen k", "RO"),
        ("rename k j", "RW access delete, OW update"),
        ("renamenx k j", "RW access delete, OW insert"),
        ("copy k j", "RO access, OW update"),
        ("restore k 0 v", "OW update"),
        ("object encoding k", "RO"),
        ("hset k f v", "RW update"),
        ("hsetnx k f v", "RW insert"),
        ("hincrby k f 1", "RW access update"),
        ("hget k f", "RO access"),
        ("hdel k f", "RW delete"),
        ("sadd k m", "RW insert"),
        ("smove k j m", "RW access delete, RW insert"),
        ("spop k", "RW access delete"),
        ("smismember k m", "RO access"),
        ("sismember k m", "RO"),
        ("sinterstore k j i", "RW update, RO access, RO access"),
        ("sunionstore k j", "OW update, RO access"),
        ("sdiffstore k j", "OW update, RO access"),
        ("setbit k 1 1", "RW access update"),
        ("bitcount k", "RO access"),
        ("sintercard 2 k j", "RO access, RO access"),
        ("eval s 1 k", "RW access update"),
        ("eval_ro s 1 k", "RO access"),
        ("expire k 1", "RW update"),
        ("ttl k", "RO access"),
        ("watch k", "RO"),
    ] {
        let keys: Vec<&str> = words.split(", ").collect();
        let mut expected = format!("*{}|", keys.len());
        for (key, words) in ["k", "j", "i"].iter().zip(&keys) {
            let words: Vec<&str> = words.split(' ').collect();
            let (count, words) = (words.len(), words.join("|+"));
            write!(expected, "*2|$1|{key}|*{count}|+{words}|").unwrap();
        }
        assert_eq!(two(&format!("command getkeysandflags {request}")), expected, "{request}");
    }
    let three = answer(RespVersion::Resp3, "command getkeysandflags get k");
    assert_eq!(three, "*1|*2|$1|k|~2|+RO|+access|");
    let errors = [("ping", "The command has no key arguments"), ("nope", "Invalid command")];
    for (request, error) in errors {
        assert!(two(&format!("command getkeysandflags {request} k")).contains(error), "{request}");
    }
}

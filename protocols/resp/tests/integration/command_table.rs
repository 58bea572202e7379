//! The command table is consistent, matches Redis 7 for shared commands, and has the commands that
//! SDL clients require.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use nearstate_resp::command::{ArgPositions, CommandFlags, KeyspaceScope};
use nearstate_resp::command_context::RespCommand;
use nearstate_resp::parse::OwnedArgs;
use nearstate_resp::table::TABLE;

fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut words: Vec<&str> = words.collect();
    words.sort_unstable();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

fn spelled(command: &RespCommand) -> String {
    let (first, last, step) = command.keys.triple();
    let (flags, categories) = (command.flags.words(), command.categories().words());
    let (flags, categories) = (listed(flags), listed(categories));
    format!("{} {} {flags} {first},{last},{step} {categories}", command.name, command.arity)
}

#[test]
fn shared_commands_have_the_arity_flags_and_keys_of_redis_7() {
    let mut shared = 0;
    for line in include_str!("../redis7.txt").lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(' ').next().unwrap();
        let command = TABLE.find(name.as_bytes()).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(spelled(command), line);
        shared += 1;
    }
    let of_others: Vec<&str> = TABLE
        .commands()
        .iter()
        .map(|command| command.name)
        .filter(|name| !name.starts_with("sentinel"))
        .filter(|name| !include_str!("../redis7.txt").contains(&format!("\n{name} ")))
        .collect();
    let sdl =
        TABLE.commands().iter().filter(|command| command.flags.has(CommandFlags::MODULE)).count();
    assert_eq!(sdl, 20);
    let local = of_others.iter().filter(|name| name.starts_with("local")).count();
    assert_eq!(local, 3);
    let tags = of_others.iter().filter(|name| name.starts_with("tag")).count();
    assert_eq!(tags, 9);
    // Two commands of Redis 7.2, in addition to those of the SDL module and our own.
    assert_eq!(of_others.len(), sdl + local + tags + 2, "{of_others:?}");
    assert_eq!(shared + of_others.len() + 7, TABLE.commands().len());
}

#[test]
fn every_field_of_a_command_comes_from_its_row() {
    for command in TABLE.commands() {
        let name = command.name;
        assert!(command.summary.ends_with('.'), "{name}: {}", command.summary);
        assert!(!command.complexity.is_empty(), "{name}");
        assert!(command.differs.is_empty() || command.differs.ends_with('.'), "{name}");
        assert_eq!(name, name.to_ascii_lowercase());
        assert_ne!(command.arity, 0, "{name}");
        let writes = command.flags.has(CommandFlags::WRITE);
        assert!(!(writes && command.flags.has(CommandFlags::READONLY)), "{name} reads and writes");
        let touches = command.keys != ArgPositions::None || command.walk != KeyspaceScope::None;
        assert!(
            touches || !(writes || command.flags.has(CommandFlags::READONLY)),
            "{name} has no access flag"
        );
        assert_eq!(
            command.keys.is_counted(),
            command.flags.has(CommandFlags::MOVABLE_KEYS),
            "{name}"
        );
        let (container, part) = command.name_and_subcommand();
        let top = TABLE.find(container.as_bytes()).unwrap();
        assert!(part.is_none() || top.has_subcommands(), "{name} has no container");
        assert!(
            part.is_some() || !top.has_subcommands() || TABLE.subcommands_of(name).next().is_some()
        );
    }
}

/// The names that sdlgo and the C++ client require. The C++ client exits if one is missing.
#[test]
fn the_commands_that_sdl_clients_probe_exist() {
    for name in [
        "setie", "delie", "setiepub", "setnxpub", "msetmpub", "delmpub", "msetpub", "delpub",
        "deliepub",
    ] {
        assert!(TABLE.find(name.as_bytes()).is_some(), "{name}");
    }
}

/// The positions of keys and of channels in a request.
fn places(request: &str) -> (Vec<String>, Vec<String>) {
    let kept: OwnedArgs = request.split(' ').map(str::as_bytes).collect();
    let args = kept.args();
    let command = TABLE.lookup(args).unwrap_or_else(|why| panic!("{request}: {why}"));
    let word = |at: usize| String::from_utf8(args.get(at).unwrap().to_vec()).unwrap();
    (command.keys.of(args).map(word).collect(), command.channels.of(args).map(word).collect())
}

#[test]
fn key_and_channel_positions_are_known_for_every_form_of_request() {
    for (request, keys, channels) in [
        ("get a", "a", ""),
        ("mset a 1 b 2", "a b", ""),
        ("rename a b", "a b", ""),
        ("del a b c", "a b c", ""),
        ("object encoding a", "a", ""),
        ("eval x 2 a b c", "a b", ""),
        ("eval x 3 a b", "", ""),
        ("eval x -1 a b", "", ""),
        ("sintercard 2 a b limit 1", "a b", ""),
        ("subscribe c d", "", "c d"),
        ("unsubscribe", "", ""),
        ("publish c m", "", "c"),
        ("setie k n o", "k", ""),
        ("msetpub k 1 c m", "k", "c"),
        ("msetpub k 1 l 2 c m", "k l", "c"),
        ("msetmpub 2 1 k 1 l 2 c m", "k l", "c"),
        ("msetmpub 1 2 k 1 c m d n", "k", "c d"),
        ("msetmpub 9 1 k 1 l 2 c m", "", ""),
        ("msetmpub 18446744073709551615 1 k 1 l 2 c m", "", ""),
        ("setnxmpub k v c m d n", "k", "c d"),
        ("setiempub k n o c m d n", "k", "c d"),
        ("setiepub k n o c m", "k", "c"),
        ("delpub k l m c x", "k l m", "c"),
        ("delmpub 2 1 k l c m", "k l", "c"),
        ("delmpub 1 2 k c m d n", "k", "c d"),
        ("deliempub k o c m d n", "k", "c d"),
        ("delnepub k o c m", "k", "c"),
        ("nget.atomic *", "", ""),
    ] {
        let (found, published) = places(request);
        assert_eq!(
            (found.join(" "), published.join(" ")),
            (keys.into(), channels.into()),
            "{request}"
        );
    }
}

fn refused(request: &str) -> String {
    let kept: OwnedArgs = request.split(' ').map(str::as_bytes).collect();
    TABLE.lookup(kept.args()).err().map_or_else(String::new, |why| why.text().to_owned())
}

#[test]
fn an_invalid_request_is_an_error_with_the_expected_form() {
    for (request, text) in [
        ("GET a", ""),
        ("gEt", "ERR wrong number of arguments for 'get' command"),
        ("get a b", "ERR wrong number of arguments for 'get' command"),
        ("mset a", "ERR wrong number of arguments for 'mset' command"),
        ("client", "ERR wrong number of arguments for 'client' command"),
        ("CLIENT SetName", "ERR wrong number of arguments for 'client|setname' command"),
        ("client setname a", ""),
        ("command", ""),
        ("slowlog gte", "ERR unknown subcommand 'gte'. SLOWLOG supports: get, len, reset"),
        (
            "hgte a b",
            "ERR unknown command 'hgte', with args beginning with: 'a' 'b' \
             (did you mean 'hget'?)",
        ),
        ("zrangebyscore x", "ERR unknown command 'zrangebyscore', with args beginning with: 'x' "),
        (
            "client|id",
            "ERR unknown command 'client|id', with args beginning with: \
                       (did you mean 'client id'?)",
        ),
        (
            "nget",
            "ERR unknown command 'nget', with args beginning with: \
                  (did you mean 'get'?)",
        ),
    ] {
        assert_eq!(refused(request), text, "{request}");
    }
}

#[test]
fn unknown_input_is_truncated_in_errors() {
    let long = "x".repeat(100_000);
    assert!(refused(&format!("{long} {long} {long} {long}")).len() < 400);
    let many = format!("foo {}", "y ".repeat(100_000));
    assert!(refused(&many).len() < 300);
    assert!(refused(&format!("client {long}")).len() < 400);
}

#[test]
fn a_command_is_found_by_its_name_in_any_case() {
    for (number, command) in TABLE.commands().iter().enumerate() {
        let found = TABLE.find(command.name.to_ascii_uppercase().as_bytes()).unwrap();
        assert_eq!((found.name, usize::from(found.number)), (command.name, number));
    }
    assert!(TABLE.commands().is_sorted_by(|one, next| one.name < next.name), "duplicate name");
    for none in ["", "ge", "gett", "get\0", "GET "] {
        assert!(TABLE.find(none.as_bytes()).is_none(), "{none}");
    }
    assert_eq!(TABLE.commands().first().unwrap().name, "acl");
    let longest = TABLE.commands().iter().map(|command| command.name.len()).max();
    assert_eq!(longest, Some("sentinel|get-master-addr-by-name".len()));
}

#[test]
fn every_row_has_a_function_or_subcommands() {
    for command in TABLE.commands().iter().filter(|command| !command.has_subcommands()) {
        let mut words: Vec<&[u8]> = command.name.split('|').map(str::as_bytes).collect();
        while words.len() < usize::from(command.arity.unsigned_abs()) {
            // WAIT for no follower answers at once; there is no executor here that could wait.
            words.push(if command.name == "wait" { b"0" } else { b"1" });
        }
        let node = crate::fixture::node();
        let answer = node.client().ask_bytes(&words);
        assert!(!answer.contains("does nothing without a subcommand"), "{}", command.name);
    }
}

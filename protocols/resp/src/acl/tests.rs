//! ACL rules, with a small command table.

use super::*;
use crate::command::{
    AclCategories, ArgPositions, CommandFlags, CommandGroup, CommandSpec, KeyspaceScope,
};
use crate::parse::OwnedArgs;

const ROW: CommandSpec<()> = CommandSpec {
    name: "",
    arity: -1,
    flags: CommandFlags::NONE,
    keys: ArgPositions::None,
    channels: ArgPositions::None,
    walk: KeyspaceScope::None,
    group: CommandGroup::Server,
    also: AclCategories::NONE,
    summary: "",
    complexity: "",
    differs: "",
    number: 0,
    run: (),
};

const READ: CommandSpec<()> = CommandSpec {
    flags: CommandFlags::READONLY,
    keys: ArgPositions::ALL,
    group: CommandGroup::Keys,
    ..ROW
};

fn table() -> CommandTable<()> {
    CommandTable::new(&[
        CommandSpec { name: "get", keys: ArgPositions::ONE, group: CommandGroup::Strings, ..READ },
        CommandSpec { name: "set", keys: ArgPositions::ONE, flags: CommandFlags::WRITE, ..READ },
        CommandSpec { name: "mget", ..READ },
        CommandSpec {
            name: "keys",
            keys: ArgPositions::None,
            walk: KeyspaceScope::Pattern(1),
            ..READ
        },
        CommandSpec { name: "scan", keys: ArgPositions::None, walk: KeyspaceScope::Match, ..READ },
        CommandSpec {
            name: "flushall",
            walk: KeyspaceScope::All,
            flags: CommandFlags::WRITE,
            ..ROW
        },
        CommandSpec {
            name: "publish",
            channels: ArgPositions::ONE,
            flags: CommandFlags::PUBSUB,
            ..ROW
        },
        CommandSpec {
            name: "subscribe",
            channels: ArgPositions::ALL,
            flags: CommandFlags::PUBSUB,
            ..ROW
        },
        CommandSpec {
            name: "psubscribe",
            channels: ArgPositions::ALL,
            flags: CommandFlags::PUBSUB,
            ..ROW
        },
        CommandSpec { name: "auth", flags: CommandFlags::NO_AUTH, ..ROW },
        CommandSpec { name: "client", arity: -2, flags: CommandFlags::CONTAINER, ..ROW },
        CommandSpec { name: "client|id", ..ROW },
        CommandSpec { name: "client|list", flags: CommandFlags::ADMIN, ..ROW },
    ])
}

fn users(text: &str) -> Users {
    Users::parse(text, &table()).unwrap()
}

fn user(rules: &str) -> Arc<User> {
    Arc::clone(users(&format!("user u on nopass {rules}")).find(b"u").unwrap())
}

/// The reply to the user.
fn triple(user: &User, request: &str) -> String {
    let table = table();
    let kept: OwnedArgs = request.split(' ').map(str::as_bytes).collect();
    let command = table.lookup(kept.args()).unwrap();
    user.check(command, kept.args()).err().map_or_else(String::new, |why| why.text().to_owned())
}

#[track_caller]
fn assert_may(user: &User, may: &[&str], may_not: &[&str]) {
    for request in may {
        assert_eq!(triple(user, request), "", "{request}");
    }
    for request in may_not {
        assert!(triple(user, request).starts_with("NOPERM "), "{request}");
    }
}

#[test]
fn without_declared_users_every_client_has_all_permissions() {
    for text in ["", "\n  \n# comment\n"] {
        let users = users(text);
        let default = users.initial_user().unwrap();
        assert!(default.is_unrestricted);
        assert_eq!(default.line(), "user default on nopass ~* &* +@all");
        assert_may(default, &["get x", "flushall", "keys *", "publish c m"], &[]);
    }
    assert!(Users::open(&table()).authenticate(b"default", b"any").is_some());
}

#[test]
fn with_a_declared_user_anonymous_clients_are_rejected() {
    let users = users("user xapp on >secret ~* &* +@all");
    assert!(users.initial_user().is_none());
    assert!(users.authenticate(b"default", b"").is_none());
    assert!(users.authenticate(b"xapp", b"secret").unwrap().is_unrestricted);
    assert_eq!(users.iter().len(), 1);
}

#[test]
fn only_the_right_password_is_accepted() {
    // SHA-256 of "pw".
    let digits = "30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
    let users = users(&format!(
        "user a on >one >two\nuser b on #{digits}\nuser c off >pw\nuser d on nopass\nuser e >x"
    ));
    let is_in =
        |name: &str, word: &str| users.authenticate(name.as_bytes(), word.as_bytes()).is_some();
    for (name, word, is_right) in [
        ("a", "one", true),
        ("a", "two", true),
        ("a", "three", false),
        ("a", "", false),
        ("a", "on", false),
        ("b", "pw", true),
        ("b", digits, false),
        ("c", "pw", false),
        ("d", "", true),
        ("d", "any", true),
        ("e", "x", false),
        ("f", "", false),
    ] {
        assert_eq!(is_in(name, word), is_right, "{name} {word}");
    }
    let shown: Vec<String> = users.find(b"b").unwrap().passwords().collect();
    assert_eq!(shown, [digits]);
    assert!(!format!("{users:?}").contains("30c9"), "a log would have the hash");
}

#[test]
fn the_last_rule_decides_about_a_command() {
    let reader = user("~* &* +@read -mget +client -client|list");
    assert_may(&reader, &["get x", "keys *", "client id"], &["mget x", "set x y", "client list"]);
    let but_one = user("~* &* +@all -flushall");
    assert_may(&but_one, &["set x y", "client list"], &["flushall"]);
    let none = user("~* &*");
    assert_may(&none, &["auth x"], &["get x", "client id"]);
    let part = user("~* &* +client|id");
    assert_may(&part, &["client id"], &["client list"]);
    let last = user("~* &* +get -@all +set");
    assert_may(&last, &["set x y"], &["get x"]);
    assert_eq!(
        triple(&none, "get x"),
        "NOPERM this user has no permissions to run the 'get' command"
    );
}

#[test]
fn a_user_can_use_only_keys_of_permitted_namespaces() {
    let two = user("~{a},* ~{b c},* +@all &*".replace("{b c}", "{b}").as_str());
    assert_may(
        &two,
        &["get {a},x", "get {a},", "mget {a},x {b},y", "keys {a},*", "keys {b},x?"],
        &["get x", "get {ab},x", "mget {a},x {c},y", "get {a}x", "set {},x v", "flushall"],
    );
    let what = "NOPERM this user has no permissions to access one of the keys used as arguments";
    assert_eq!(triple(&two, "get {c},x"), what);
    let plain = user("~{},* +@all");
    assert_may(&plain, &["get x", "get {},x"], &["get {a},x", "keys *"]);
}

#[test]
fn a_walk_needs_permission_for_its_namespace() {
    let one = user("~{a},* +@all");
    assert_may(
        &one,
        &["keys {a},*", "scan 0 MATCH {a},x*", "scan 0 count 5 match {a},*"],
        &["keys *", "keys {a*},*", "keys {b},*", "keys {[a]},*", "scan 0", "scan 0 count 5"],
    );
    assert_may(&one, &[], &["scan 0 match {a},* match *", "scan 0 match {b},*", "scan 0 match"]);
    assert_may(&user("~* +@all"), &["keys *", "scan 0", "flushall"], &[]);
}

#[test]
fn a_user_can_use_only_channels_of_permitted_patterns() {
    let one = user("~* &news* &{a},c +@all");
    assert_may(
        &one,
        &["publish newspaper m", "subscribe news {a},c", "psubscribe news*"],
        &["publish old m", "subscribe news old", "psubscribe *", "psubscribe newsx*"],
    );
    assert_may(&user("~* +@all"), &["get x"], &["subscribe x", "psubscribe *"]);
}

#[test]
fn a_printed_user_line_parses_to_the_same_user() {
    let rules = "user u on #30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4 \
                 ~{a},* ~{},* resetchannels &x &y* -@all +@read -mget +client|id";
    let line = users(rules).find(b"u").unwrap().line();
    assert_eq!(users(&line).find(b"u").unwrap().line(), line);
    let mut words: Vec<&str> = rules.split(' ').collect();
    let mut again: Vec<&str> = line.split(' ').collect();
    words.sort_unstable();
    again.sort_unstable();
    assert_eq!(again, words);
}

#[test]
fn rules_can_be_revoked() {
    let line = user("~* &* +@all resetkeys resetchannels nocommands ~{a},*").line();
    assert_eq!(line, "user u on nopass ~{a},* resetchannels -@all");
    assert!(Users::parse("user u on >a nopass resetpass", &table()).is_err());
    assert_eq!(user("+@all ~* reset on nopass").line(), "user u on nopass resetchannels -@all");
    assert_eq!(user("+get +get +@read +get").command_rules(), "-@all +@read +get");
}

#[test]
fn an_invalid_user_line_is_an_error_with_the_expected_form() {
    for (text, line, says) in [
        ("\nusr a on", 2, "write `user NAME RULE...`"),
        ("user", 1, "write `user NAME RULE...`"),
        ("user a nopas", 1, "word 3: unknown rule: use on, off"),
        ("user a on", 1, "has no password"),
        ("user a nopass\nuser a off", 2, "is declared twice"),
        ("user a +gte", 1, "unknown command 'gte', did you mean 'get'?"),
        ("user a +zrangebyscore", 1, "docs/resp.md lists all"),
        ("user a +@reed", 1, "unknown category '@reed', use one of keyspace, read,"),
        ("user a #abc", 1, "64 hexadecimal digits"),
        ("user a ~x*", 1, "'~x*' does not name a namespace: write `~{name},*`"),
        ("user a ~{a},x*", 1, "does not name a namespace"),
        ("user a ~{a*},*", 1, "does not name a namespace"),
        ("user a ~{a,b},*", 1, "does not name a namespace"),
        ("user a %R~x", 1, "word 3: unknown rule"),
        ("user a (+get", 1, "word 3: unknown rule"),
        ("user a &", 1, "write `&channel`"),
        ("user a \u{e9}", 1, "unknown rule"),
        ("user a on > secret", 1, "word 4: missing password: write it directly after `>`"),
    ] {
        let error = Users::parse(text, &table()).unwrap_err();
        assert_eq!(error.line, line, "{text}");
        assert!(error.what.contains(says), "{text}: {error}");
    }
}

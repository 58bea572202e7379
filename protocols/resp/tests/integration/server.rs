//! Connection and server commands: replies equal those of Redis 7.0.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Mutex;

use crate::fixture::{TestClient, TestNode, node, node_with};
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::{Metadata, NamespaceLimits, now_ms_coarse};

fn all(client: &mut TestClient, script: &[(&str, &str)]) {
    for (request, answer) in script {
        assert_eq!(client.ask(request), *answer, "{request}");
    }
}

/// A node with an operator, a reader, and a default user with a password.
pub(crate) fn guarded() -> TestNode {
    let lines = "user default on >letmein +@all ~* &*\n\
                 user reader on >hunter2 +get +client +acl +hello +info ~{ns},*\n\
                 user gone off >away +@all\n";
    let users = Users::parse(lines, &TABLE).unwrap();
    node_with(RespSettings { slow_micros: 0, slow_entries_max: 1000, ..RespSettings::new(users) })
}

#[test]
fn connection_commands_reply_like_redis() {
    let node = node();
    let mut client = node.client();
    let hello = |version: u8| {
        let (mark, pairs) = if version == 3 { ('%', 7) } else { ('*', 14) };
        format!(
            "{mark}{pairs}|$6|server|$5|redis|$7|version|$5|7.4.0|$5|proto|:{version}|$2|id|:1|\
             $4|mode|$10|standalone|$4|role|$6|master|$7|modules|*0|"
        )
    };
    let bad_name = "-ERR Client names cannot contain spaces, newlines or special characters.|";
    all(
        &mut client,
        &[
            ("PING", "+PONG|"),
            ("PING a", "$1|a|"),
            ("PING a b", "-ERR wrong number of arguments for 'ping' command|"),
            ("ECHO a", "$1|a|"),
            ("SELECT 0", "+OK|"),
            ("SELECT 1", "-ERR DB index is out of range|"),
            ("SELECT -1", "-ERR DB index is out of range|"),
            ("SELECT x", "-ERR value is not an integer or out of range|"),
            ("HELLO", &hello(2)),
            ("HELLO 3", &hello(3)),
            ("HELLO 2", &hello(2)),
            ("HELLO 4", "-NOPROTO unsupported protocol version|"),
            ("HELLO x", "-ERR Protocol version is not an integer or out of range|"),
            ("HELLO 2 foo", "-ERR Syntax error in HELLO option 'foo'|"),
            ("HELLO 2 auth a", "-ERR Syntax error in HELLO option 'auth'|"),
            ("HELLO 2 auth default x", &hello(2)),
            (
                "HELLO 3 auth unknown x",
                "-WRONGPASS invalid username-password pair or user is disabled.|",
            ),
            ("HELLO 3 setname a\nb", bad_name),
            ("CLIENT GETNAME", "$-1|"),
            ("HELLO 3 setname me", &hello(3)),
            ("CLIENT GETNAME", "$2|me|"),
            (
                "AUTH x",
                "-ERR AUTH <password> called without any password configured for the default \
                 user. Are you sure your configuration is correct?|",
            ),
            ("AUTH default x", "+OK|"),
            ("AUTH a b", "-WRONGPASS invalid username-password pair or user is disabled.|"),
            ("AUTH a b c", "-ERR syntax error|"),
            ("ACL WHOAMI", "$7|default|"),
            ("CLIENT ID", ":1|"),
            ("CLIENT SETNAME a\tb", bad_name),
            ("CLIENT SETNAME joe", "+OK|"),
            ("CLIENT SETINFO LIB-NAME redis-py", "+OK|"),
            ("CLIENT SETINFO lib-ver 4.3.6", "+OK|"),
            ("CLIENT SETINFO x y", "-ERR Unrecognized option 'x'|"),
            ("CLIENT NO-TOUCH ON", "+OK|"),
            ("CLIENT NO-TOUCH x", "-ERR syntax error|"),
            ("GET a", "_|"),
            ("RESET", "+RESET|"),
            ("GET a", "$-1|"),
            ("CLIENT GETNAME", "$-1|"),
            ("RESET x", "-ERR wrong number of arguments for 'reset' command|"),
            ("QUIT a", "+OK|"),
        ],
    );
    assert!(client.is_closed);
}

#[test]
fn client_list_lists_connections() {
    let node = node();
    let (mut one, mut two) = (node.client(), node.client());
    one.ask("CLIENT SETNAME joe");
    one.ask("CLIENT SETINFO lib-name go-redis");
    two.ask("SUBSCRIBE a b");
    two.ask("PSUBSCRIBE c");
    let first = "id=1 addr=127.0.0.1:40001 laddr=127.0.0.1:6379 name=joe age=";
    let info = one.ask("CLIENT INFO");
    assert!(info.contains(first), "{info}");
    let rest = " flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 user=default redir=-1 resp=2 \
                lib-name=go-redis lib-ver=\n|";
    assert!(info.ends_with(rest), "{info}");
    let list = one.ask("CLIENT LIST");
    assert!(list.contains(first) && list.contains("\nid=2 "), "{list}");
    assert!(list.contains(" flags=P db=0 sub=2 psub=1 "), "{list}");
    for (filter, has_one, has_two) in [
        ("TYPE normal", true, false),
        ("TYPE pubsub", false, true),
        ("TYPE replica", false, false),
        ("ID 2", false, true),
        ("ID 1 2 3", true, true),
        ("ID 3", false, false),
    ] {
        let list = one.ask(&format!("CLIENT LIST {filter}"));
        let has = |id: &str| list.contains(&format!("id={id} "));
        assert_eq!((has("1"), has("2")), (has_one, has_two), "{filter}: {list}");
    }
    all(
        &mut one,
        &[
            ("CLIENT LIST TYPE foo", "-ERR Unknown client type 'foo'|"),
            ("CLIENT LIST ID x", "-ERR Invalid client ID|"),
            ("CLIENT LIST ID", "-ERR syntax error|"),
            ("CLIENT LIST foo", "-ERR syntax error|"),
            ("CLIENT LIST ID 99", "$0||"),
        ],
    );
    assert!(one.ask("HELLO 3").starts_with('%'));
    let info = one.ask("CLIENT INFO");
    assert!(info.starts_with('=') && info.contains("|txt:id=1 ") && info.contains(" resp=3 "));
    drop(two);
    assert!(!one.ask("CLIENT LIST").contains("id=2 "));
}

#[test]
fn acl_commands_report_users() {
    let node = guarded();
    let mut client = node.client();
    client.ask("AUTH letmein");
    assert_eq!(client.ask("ACL USERS"), "*3|$7|default|$4|gone|$6|reader|");
    let list = client.ask("ACL LIST");
    assert!(list.starts_with("*3|$") && list.contains("|user gone off #"), "{list}");
    let reader = client.ask("ACL GETUSER reader");
    let hash = "f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7";
    let expected = format!(
        "*12|$5|flags|*1|$2|on|$9|passwords|*1|$64|{hash}|$8|commands|$36|-@all +get +client +acl \
         +hello +info|"
    );
    assert!(reader.starts_with(&expected), "{reader}");
    assert!(reader.ends_with("$4|keys|$7|~{ns},*|$8|channels|$0||$9|selectors|*0|"), "{reader}");
    all(
        &mut client,
        &[
            ("ACL GETUSER unknown", "$-1|"),
            ("ACL CAT transaction", "*5|$7|discard|$4|exec|$5|multi|$7|unwatch|$5|watch|"),
            ("ACL CAT foo", "-ERR Unknown category 'foo'|"),
            (
                "ACL CAT a b",
                "-ERR unknown subcommand or wrong number of arguments for 'cat'. Try ACL HELP.|",
            ),
        ],
    );
    assert!(client.ask("ACL CAT").contains("$3|sdl|"));
    let mut open = node_with(RespSettings::new(Users::open(&TABLE))).client();
    assert_eq!(open.ask("ACL LIST"), "*1|$34|user default on nopass ~* &* +@all|");
    assert_eq!(
        open.ask("ACL GETUSER default"),
        "*12|$5|flags|*2|$2|on|$6|nopass|$9|passwords|*0|$8|commands|$5|+@all|$4|keys|$2|~*|\
         $8|channels|$2|&*|$9|selectors|*0|"
    );
}

/// The value of a field of `INFO`.
fn fact<'i>(info: &'i str, name: &str) -> &'i str {
    let line = info.split('|').find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("{name} is not in {info}"))
}

#[test]
fn info_has_the_fields_that_tools_read_with_true_values() {
    let node = node();
    let mut client = node.client();
    client.ask("MSET {ns},a 1 {ns},b 2 c 3");
    client.ask("SET d 4 EX 100");
    client.ask("SUBSCRIBE x");
    client.ask("UNSUBSCRIBE");
    let mut other = node.client();
    other.ask("SUBSCRIBE x y");
    let info = client.ask("INFO all");
    for (name, value) in [
        ("role", "master"),
        ("redis_version", "7.4.0"),
        ("redis_mode", "standalone"),
        ("connected_slaves", "0"),
        ("connected_clients", "2"),
        ("uptime_in_days", "0"),
        ("tcp_port", "6379"),
        ("total_connections_received", "2"),
        ("total_commands_processed", "5"),
        ("pubsub_channels", "2"),
        ("sync_full", "0"),
        ("sync_partial_ok", "0"),
        ("sync_partial_err", "0"),
        ("loading", "0"),
        ("cluster_enabled", "0"),
        ("db0", "keys=4,expires=1,avg_ttl=0"),
    ] {
        assert_eq!(fact(&info, name), value, "{name}");
    }
    let number = |name: &str| fact(&info, name).parse::<u64>().unwrap();
    let seen = node.region.inspect().unwrap();
    assert_eq!((number("used_memory"), number("maxmemory")), (seen.bytes_taken, seen.bytes_max));
    assert!(number("used_memory_rss") > 0 && number("region_sessions") >= 1);
    assert!(fact(&info, "used_memory_human").ends_with(['K', 'M', 'G']));
    assert!(fact(&info, "used_cpu_user").parse::<f64>().is_ok());
    assert!(fact(&info, "cmdstat_mset").starts_with("calls=1,usec="));
    assert!(fact(&info, "mem_fragmentation_ratio").parse::<f64>().is_ok());
    assert!(fact(&info, "mem_fragmentation_bytes").parse::<i64>().is_ok());
    // The requested sections come in a fixed order, separated by empty lines.
    assert_eq!(client.ask("INFO foo"), "$0||");
    assert_eq!(client.ask("INFO cluster modules"), "$43|# Modules||# Cluster|cluster_enabled:0||");
    assert_eq!(client.ask("INFO KEYSPACE"), "$44|# Keyspace|db0:keys=4,expires=1,avg_ttl=0||");
    let usual = client.ask("INFO");
    assert!(usual.contains("|# CPU|") && usual.contains("|# Keyspace|"), "{usual}");
    assert!(usual.contains("# Modules") && !usual.contains("# Commandstats"), "{usual}");
    assert!(!client.ask("INFO all").contains("# Modules"));
    assert!(client.ask("INFO everything").contains("# Modules"));
    client.ask("HELLO 3");
    assert!(client.ask("INFO server").contains("|txt:# Server|redis_version:7.4.0|"));
}

#[test]
fn expired_keys_are_not_counted() {
    let node = node();
    let mut client = node.client();
    client.ask("SET {ns},a 1");
    let session = node.region.session().unwrap();
    let namespace = session.known_namespace("ns").unwrap().unwrap();
    for (key, expires_ms) in [(b"b", now_ms_coarse() - 1), (b"c", now_ms_coarse() + 1_000_000)] {
        let labels = Metadata { expires_ms, ..Metadata::default() };
        session.transact(|txn| txn.put_with_metadata(namespace, key, b"v", labels)).unwrap();
    }
    let keyspace = client.ask("INFO keyspace");
    assert_eq!(fact(&keyspace, "db0"), "keys=2,expires=1,avg_ttl=0");
}

#[test]
fn config_slowlog_and_memory_reply_like_redis() {
    let settings = RespSettings {
        slow_micros: 0,
        slow_entries_max: 3,
        ..RespSettings::new(Users::open(&TABLE))
    };
    let node = node_with(settings);
    let mut client = node.client();
    let count = "-ERR count should be greater than or equal to -1|";
    all(
        &mut client,
        &[
            ("CONFIG GET nope", "*0|"),
            ("CONFIG GET databases SAVE", "*4|$9|databases|$1|1|$4|save|$0||"),
            ("CONFIG GET appendonl? timeout", "*4|$10|appendonly|$2|no|$7|timeout|$1|0|"),
            (
                "CONFIG GET slowlog*",
                "*4|$23|slowlog-log-slower-than|$1|0|$15|slowlog-max-len|$1|3|",
            ),
            ("CONFIG GET port", "*2|$4|port|$4|6379|"),
            ("CONFIG GET", "-ERR wrong number of arguments for 'config|get' command|"),
            ("SLOWLOG RESET", "+OK|"),
            ("SLOWLOG LEN", ":1|"),
            ("SLOWLOG GET -2", count),
            ("SLOWLOG GET x", count),
            ("SLOWLOG LEN", ":3|"),
        ],
    );
    assert_eq!(client.ask("SLOWLOG GET 0"), "*0|");
    client.ask("SET k v");
    let slow = client.ask("SLOWLOG GET 1");
    let rest = "|*3|$3|SET|$1|k|$1|v|$15|127.0.0.1:40001|$0||";
    assert!(slow.starts_with("*1|*6|:") && slow.ends_with(rest), "{slow}");
    assert!(client.ask("SLOWLOG GET").starts_with("*3|"));
    assert!(client.ask("HELLO 3").starts_with('%'));
    assert_eq!(client.ask("CONFIG GET maxmemory-p*"), "%1|$16|maxmemory-policy|$10|noeviction|");
    let maxmemory = node.region.inspect().unwrap().bytes_max.to_string();
    let expected = format!("%1|$9|maxmemory|${}|{maxmemory}|", maxmemory.len());
    assert_eq!(client.ask("CONFIG GET maxmemory"), expected);
    let integer = "-ERR value is not an integer or out of range|";
    all(
        &mut client,
        &[
            ("MEMORY USAGE k", ":64|"),
            ("MEMORY USAGE k SAMPLES 5", ":64|"),
            ("MEMORY USAGE k SAMPLES x", integer),
            ("MEMORY USAGE k SAMPLES -1", "-ERR syntax error|"),
            ("MEMORY USAGE k foo 5", "-ERR syntax error|"),
            ("MEMORY USAGE k SAMPLES", "-ERR syntax error|"),
            ("MEMORY USAGE nokey", "_|"),
            ("WAIT 0 0", ":0|"),
            ("WAIT x 0", integer),
            ("WAIT 0 x", "-ERR timeout is not an integer or out of range|"),
            ("WAIT 0 -1", "-ERR timeout is negative|"),
            ("ROLE", "*3|$6|master|:0|*0|"),
        ],
    );
    let value = "v".repeat(1000);
    client.ask_bytes(&[b"SET", b"k", value.as_bytes()]);
    assert_eq!(client.ask("MEMORY USAGE k"), ":1088|");
    let time = client.ask("TIME");
    let seconds = (now_ms_coarse() / 1000).to_string();
    let prefix = seconds.get(..7).unwrap();
    assert!(time.starts_with(&format!("*2|$10|{prefix}")), "{time}");
    assert_eq!(client.ask("LASTSAVE"), format!(":{}|", node.server.settings.started_ms / 1000));
}

#[test]
fn the_slow_log_shows_32_entries_of_the_arguments_at_most() {
    let settings = RespSettings { slow_micros: 0, ..RespSettings::new(Users::open(&TABLE)) };
    let mut client = node_with(settings).client();
    let members = |count: usize| {
        let words: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        format!("SADD s {}", words.join(" "))
    };
    client.ask(&members(30));
    assert!(client.ask("SLOWLOG GET 1").contains("|*32|$4|SADD|"));
    client.ask(&members(31));
    let slow = client.ask("SLOWLOG GET 1");
    assert!(slow.contains("|$2|28|$22|... (2 more arguments)|$15|"), "{slow}");
}

#[test]
fn resetstat_resets_the_counters_of_info() {
    let node = node();
    let mut client = node.client();
    for request in ["SET a 1", "GET a", "GET absent", "GET", "PUBLISH c m"] {
        client.ask(request);
    }
    assert_eq!(client.ask("CONFIG RESETSTAT"), "+OK|");
    let requests = node.server.stats.requests();
    let info = client.ask("INFO stats");
    for field in ["keyspace_hits:0", "keyspace_misses:0", "messages_published:0"] {
        assert!(info.contains(&format!("|{field}|")), "{field}: {info}");
    }
    assert_eq!(fact(&info, "total_commands_processed"), "1", "RESETSTAT itself");
    assert_eq!(fact(&info, "total_error_replies"), "0");
    client.ask("GET a");
    let info = client.ask("INFO commandstats");
    assert!(fact(&info, "cmdstat_get").starts_with("calls=1,"), "{info}");
    assert!(!info.contains("cmdstat_set:") && info.contains("cmdstat_config|resetstat:"), "{info}");
    assert!(node.server.stats.requests() > requests, "the metrics are not reset");
}

#[test]
fn latency_histograms_have_the_calls_of_each_command() {
    let mut client = node().client();
    for request in ["SET a 1", "GET a", "GET a", "CONFIG GET databases", "HELLO 3"] {
        client.ask(request);
    }
    let get = client.ask("LATENCY HISTOGRAM GET absent");
    assert!(get.starts_with("%1|$3|get|%2|$5|calls|:2|$14|histogram_usec|%"), "{get}");
    assert!(get.ends_with("|:2|"), "the last bucket has all calls: {get}");
    assert!(client.ask("LATENCY HISTOGRAM config").starts_with("%1|$10|config|get|%2|"));
    assert!(client.ask("LATENCY HISTOGRAM").contains("|$3|set|%2|$5|calls|:1|"));
    let error = client.ask("LATENCY GRAPH command");
    assert!(error.starts_with("-ERR the event has no samples"), "{error}");
}

#[test]
fn info_counts_hits_and_misses_of_reads() {
    let node = node();
    let mut client = node.client();
    client.ask("SET there v");
    client.ask("GET there");
    client.ask("MGET there absent {no},namespace");
    let reply = client.ask("INFO stats");
    for line in ["keyspace_hits:2", "keyspace_misses:2"] {
        assert!(reply.contains(line), "{line}: {reply}");
    }
}

#[test]
fn info_counts_rejected_and_failed_requests_of_each_command() {
    let node = guarded();
    let mut client = node.client();
    client.ask("GET {ns},a");
    client.ask("AUTH reader hunter2");
    for request in ["GET {ns},a", "GET", "GET a", "GET {ns},a b", "SET {ns},a v", "nonsense"] {
        client.ask(request);
    }
    client.ask("AUTH letmein");
    client.ask("SADD {ns},s m");
    client.ask("GET {ns},s");
    client.ask("CLIENT SETNAME");
    let info = client.ask("INFO commandstats");
    let counts = |name: &str| {
        let (_, counts) = fact(&info, name).split_once(",rejected_calls=").unwrap();
        counts.to_owned()
    };
    // Without authentication, twice a wrong number of arguments, a key without permission.
    assert_eq!(counts("cmdstat_get"), "4,failed_calls=1", "{info}");
    assert!(fact(&info, "cmdstat_get").starts_with("calls=2,usec="), "{info}");
    assert_eq!(counts("cmdstat_set"), "1,failed_calls=0", "{info}");
    assert!(fact(&info, "cmdstat_set").starts_with("calls=0,usec=0,usec_per_call=0.00,"));
    assert!(info.contains("|setname:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,"));
    assert!(!info.contains("nonsense"));
}

#[test]
fn settings_can_be_read_and_not_changed_between_multi_and_exec() {
    let mut client = node().client();
    client.ask("MULTI");
    assert_eq!(client.ask("CONFIG GET databases"), "+QUEUED|");
    assert_eq!(client.ask("CONFIG SET notify-keyspace-events KEA"), "+QUEUED|");
    let refused = "-ERR CONFIG SET is not allowed between MULTI and EXEC|";
    assert_eq!(client.ask("EXEC"), format!("*2|*2|$9|databases|$1|1|{refused}"));
}

#[test]
fn config_set_changes_all_settings_of_a_request_or_none() {
    let node = node();
    let mut client = node.client();
    client.ask("SLOWLOG RESET");
    let failed = |name: &str, why: &str| {
        format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}|")
    };
    let integer = "argument couldn't be parsed into an integer";
    for (request, answer) in [
        ("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 2", "+OK|".to_owned()),
        ("CONFIG GET slowlog-max-len", "*2|$15|slowlog-max-len|$1|2|".to_owned()),
        (
            "CONFIG SET slowlog-max-len 9 loglevel loud",
            failed(
                "loglevel",
                "argument(s) must be one of the following: debug, verbose, notice, warning",
            ),
        ),
        ("CONFIG GET slowlog-max-len", "*2|$15|slowlog-max-len|$1|2|".to_owned()),
        ("SLOWLOG LEN", ":2|".to_owned()),
        ("CONFIG SET slowlog-max-len 1", "+OK|".to_owned()),
        ("SLOWLOG LEN", ":1|".to_owned()),
        ("CONFIG SET slowlog-log-slower-than -1", "+OK|".to_owned()),
        ("CONFIG GET slowlog-log-slower-than", "*2|$23|slowlog-log-slower-than|$2|-1|".to_owned()),
        ("CONFIG SET slowlog-max-len x", failed("slowlog-max-len", integer)),
        (
            "CONFIG SET slowlog-max-len -1",
            failed("slowlog-max-len", "argument must be between 0 and 100000 inclusive"),
        ),
        (
            "CONFIG SET slowlog-max-len 1 SLOWLOG-max-len 1",
            failed("slowlog-max-len", "duplicate parameter"),
        ),
        ("CONFIG SET latency-monitor-threshold 5", "+OK|".to_owned()),
        ("CONFIG GET latency-*", "*2|$25|latency-monitor-threshold|$1|5|".to_owned()),
        ("CONFIG SET databases 2 databases 3", failed("databases", "duplicate parameter")),
        ("CONFIG SET daemonize yes", failed("daemonize", "can't set immutable config")),
        ("CONFIG SET databases 2", failed("databases", "can't set immutable config")),
        ("CONFIG SET databases 1 appendonly no", "+OK|".to_owned()),
        (
            "CONFIG SET nonsense 1",
            "-ERR Unknown option or number of arguments for CONFIG SET - 'nonsense'|".to_owned(),
        ),
        ("CONFIG SET slowlog-max-len 1 x", "-ERR syntax error|".to_owned()),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
    assert_eq!(client.ask_bytes(&[b"CONFIG", b"SET", b"save", b""]), "+OK|");
}

#[test]
fn the_limit_of_messages_and_the_log_level_change_at_run_time() {
    static LEVELS: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let settings = RespSettings {
        on_log_level: |level| LEVELS.lock().unwrap().push(level.name()),
        ..RespSettings::new(Users::open(&TABLE))
    };
    let node = node_with(settings);
    let mut client = node.client();
    assert_eq!(client.ask("CONFIG SET loglevel WARNING"), "+OK|");
    assert_eq!(client.ask("CONFIG GET loglevel"), "*2|$8|loglevel|$7|warning|");
    assert_eq!(*LEVELS.lock().unwrap(), ["warning"]);
    let name = &b"client-output-buffer-limit"[..];
    let mut set = |value: &str| client.ask_bytes(&[b"CONFIG", b"SET", name, value.as_bytes()]);
    for wrong in [
        "",
        "pubsub 1mb 0",
        "pubsub 1mb 1 0",
        "pubsub 0 0 0",
        "pubsub 99999999999999999999 0 0",
        "pubsub 17179869184gb 0 0",
        "normal 1mb 0 0",
        "x 0 0 0",
        "pubsub é 0 0",
    ] {
        assert!(set(wrong).starts_with("-ERR CONFIG SET failed"), "{wrong}");
    }
    assert_eq!(set("normal 0 0 0 pubsub 64kb 0 0"), "+OK|");
    assert_eq!(node.server.runtime.mailbox_bytes_max(), 64 << 10);
    let mut subscriber = node.client();
    subscriber.ask("SUBSCRIBE c");
    let message = "m".repeat(30_000);
    let mut sender = node.client();
    let deliveries = [(); 4].map(|()| sender.ask(&format!("PUBLISH c {message}")));
    assert_eq!(deliveries, [":1|", ":1|", ":0|", ":0|"]);
}

#[test]
fn a_namespace_at_its_hard_limit_refuses_growth_with_oom() {
    let node = node();
    let mut client = node.client();
    assert_eq!(client.ask("SET {tenant},one x"), "+OK|");
    let session = node.region.session().unwrap();
    let tenant = session.known_namespace("tenant").unwrap().unwrap();
    let limits = NamespaceLimits { soft_bytes: 64, hard_bytes: 128 };
    session.set_limits(tenant, limits).unwrap();
    let full = "-OOM namespace \"tenant\" is full: its records take 128 bytes and its limit is \
                128: delete records of it, or raise its limit|";
    all(
        &mut client,
        &[
            ("SET {tenant},two x", "+OK|"),
            ("SET {tenant},three x", full),
            ("HSET {tenant},three f v", full),
            ("INCR {tenant},three", full),
            ("SADD {tenant},three m", full),
            ("MSET {other},k v {tenant},three v", full),
            ("EXISTS {other},k", ":0|"),
            ("SET {tenant},two y", "+OK|"),
            ("SET {other},three x", "+OK|"),
            ("DEL {tenant},one", ":1|"),
            ("SET {tenant},three x", "+OK|"),
        ],
    );
    let info = client.ask("INFO memory");
    assert!(info.contains("limited_namespaces:1|"), "{info}");
    let line = "namespace_limit_0:used=128,soft=64,hard=128,name=tenant|";
    assert!(info.contains(line), "{info}");
}

#[test]
fn hello_says_that_a_node_of_a_copy_is_a_replica() {
    let node = node();
    let mut client = node.client();
    assert!(client.ask("HELLO 3").contains("|$4|role|$6|master|"));
    let session = node.region.session().unwrap();
    let mut follower = session.follow().unwrap();
    follower.forget(nearstate_store::LogIdentity { region: [7, 7], ..Default::default() }).unwrap();
    assert!(client.ask("HELLO 3").contains("|$4|role|$7|replica|"));
    assert!(client.ask("ROLE").contains("|$5|slave|"));
}

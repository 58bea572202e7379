//! `CLIENT TRACKING` on a node, whose background task reports the changes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::fixture::{node_with, request};
use nearstate_node::{Endpoint, ListenAddress, Node, NodeConfig};
use nearstate_resp::RespProtocol;
use nearstate_resp::acl::Users;
use nearstate_resp::server::{RespServer, RespSettings};
use nearstate_resp::table::TABLE;
use nearstate_store::{CreateOptions, Metadata, Region, now_ms};

/// Only a broken node needs it.
const WAIT_MAX: Duration = Duration::from_secs(60);

struct ServedNode {
    folder: tempfile::TempDir,
    region: Region,
    server: Arc<RespServer>,
    _node: Node,
}

struct Client(UnixStream, Vec<u8>);

fn serve(users: Users) -> ServedNode {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let path = folder.path().join("s");
    let address = ListenAddress::Unix { path, mode: 0o600, any_owner: false };
    let config = NodeConfig {
        cores: 2,
        is_pinned: false,
        endpoints: vec![Endpoint { protocol: "resp".to_owned(), address, tls: None }],
        ..NodeConfig::default()
    };
    let server = Arc::new(RespServer::new(RespSettings::new(users)));
    let protocol = RespProtocol::new(Arc::clone(&server));
    let node = Node::start(&config, &region, &[Arc::new(protocol)]).unwrap();
    ServedNode { folder, region, server, _node: node }
}

impl ServedNode {
    fn client(&self) -> Client {
        let stream = UnixStream::connect(self.folder.path().join("s")).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        Client(stream, Vec::new())
    }

    fn client_with_resp3(&self) -> Client {
        let mut client = self.client();
        client.send("HELLO 3");
        client.until("modules|*0|");
        client
    }
}

impl Client {
    fn send(&mut self, words: &str) {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.0.write_all(&request(&words)).unwrap();
    }

    /// Everything that arrives up to this text, which is taken out.
    fn until(&mut self, ending: &str) -> String {
        let ending = ending.replace('|', "\r\n").into_bytes();
        let mut part = [0; 4096];
        loop {
            let found = self.1.windows(ending.len()).position(|window| window == ending);
            if let Some(at) = found {
                let rest = self.1.split_off(at + ending.len());
                let seen = std::mem::replace(&mut self.1, rest);
                return String::from_utf8(seen).unwrap().replace("\r\n", "|");
            }
            let bytes = self.0.read(&mut part).unwrap();
            assert!(bytes > 0, "the connection is closed: {:?}", String::from_utf8_lossy(&self.1));
            self.1.extend_from_slice(part.get(..bytes).unwrap());
        }
    }

    fn ask(&mut self, words: &str, ending: &str) -> String {
        self.send(words);
        self.until(ending)
    }

    /// Everything that arrives before the reply to a request that is sent now.
    fn before_echo(&mut self) -> String {
        let seen = self.ask("ECHO end", "$3|end|");
        seen.strip_suffix("$3|end|").unwrap().to_owned()
    }
}

fn open() -> Users {
    Users::open(&TABLE)
}

/// The message about a key.
fn invalidated(key: &str) -> String {
    format!(">2|$10|invalidate|*1|${}|{key}|", key.len())
}

#[test]
fn a_client_is_told_once_about_a_key_that_it_has_read() {
    let node = serve(open());
    let (mut caching, mut writer) = (node.client_with_resp3(), node.client());
    writer.ask("MSET {ns},a 1 {ns},b 1 {ns},c 1", "+OK|");
    caching.ask("CLIENT TRACKING ON", "+OK|");
    assert_eq!(caching.ask("GET {ns},a", "|1|"), "$1|1|");
    assert_eq!(caching.ask("GET {ns},none", "_|"), "_|");
    caching.ask("MULTI", "+OK|");
    caching.ask("HGETALL {ns},h", "+QUEUED|");
    caching.ask("EXEC", "%0|");
    writer.ask("SET {ns},c 2", "+OK|");
    writer.ask("SET {ns},a 2", "+OK|");
    writer.ask("SET {ns},a 3", "+OK|");
    writer.ask("SET {ns},none 1", "+OK|");
    writer.ask("HSET {ns},h f v", ":1|");
    let expected = ["{ns},a", "{ns},none", "{ns},h"].map(invalidated).concat();
    assert_eq!(caching.until(&invalidated("{ns},h")), expected, "nothing about c, a once");
    // After the next read, it is told again: about an embedded process, too.
    caching.ask("GET {ns},a", "|3|");
    let session = node.region.session().unwrap();
    let namespace = session.known_namespace("ns").unwrap().unwrap();
    session.put(namespace, b"a", b"4").unwrap();
    assert_eq!(caching.until(&invalidated("{ns},a")), invalidated("{ns},a"));
    caching.ask("GET {ns},a", "|4|");
    writer.ask("DEL {ns},a", ":1|");
    assert_eq!(caching.until(&invalidated("{ns},a")), invalidated("{ns},a"));
    // Own changes are reported as well.
    caching.ask("GET {ns},b", "|1|");
    caching.send("SET {ns},b 2");
    caching.until(&invalidated("{ns},b"));
    caching.ask("CLIENT TRACKING OFF", "+OK|");
    assert_eq!(node.server.tracking.counts(), [0; 3]);
}

#[test]
fn an_expired_key_and_a_new_namespace_are_reported() {
    let node = serve(open());
    let (mut caching, mut writer) = (node.client_with_resp3(), node.client());
    caching.ask("CLIENT TRACKING ON", "+OK|");
    // The key exists when it is read, however busy the machine is.
    let mut millis = 50;
    let seen = loop {
        writer.ask(&format!("SET {{ns}},k v PX {millis}"), "+OK|");
        caching.send("EXISTS {ns},k {new},k");
        let seen = caching.before_echo();
        if seen.contains(":1|") {
            break seen;
        }
        millis *= 2;
    };
    if !seen.contains("invalidate") {
        caching.until("$10|invalidate|");
    }
    caching.send("EXISTS {new},k");
    caching.before_echo();
    let session = node.region.session().unwrap();
    let schema =
        nearstate_store::Schema { kind: nearstate_store::Kind::Mixed, ..Default::default() };
    let namespace = session.namespace("new", &schema).unwrap();
    let metadata = Metadata { expires_ms: now_ms() + 1_000_000, ..Metadata::default() };
    session.transact(|txn| txn.put_with_metadata(namespace, b"k", b"v", metadata)).unwrap();
    // About the namespace that an embedded process has created, or about its key.
    caching.until("$10|invalidate|");
}

#[test]
fn broadcasting_clients_are_told_about_all_keys_of_their_prefixes() {
    let node = serve(open());
    let (mut caching, mut writer) = (node.client_with_resp3(), node.client());
    writer.ask("MSET {a},k 1 {b},k 1 plain 1", "+OK|");
    caching.ask("CLIENT TRACKING ON BCAST PREFIX {a}, PREFIX pl", "+OK|");
    // The watches of the existing namespaces are new.
    caching.until(">2|$10|invalidate|_|");
    writer.ask("MSET {a},k 2 {b},k 2 plain 2", "+OK|");
    writer.ask("SET {a},k 3", "+OK|");
    let seen = caching.until(&invalidated("plain"));
    let rest = caching.before_echo();
    let seen = format!("{seen}{rest}");
    assert!(!seen.contains("{b}"), "{seen}");
    writer.ask("SET {a},end 1", "+OK|");
    let seen = format!("{seen}{}", caching.until(&invalidated("{a},end")));
    assert_eq!(seen.matches(&invalidated("{a},k")).count(), 2, "{seen}");
    assert_eq!(
        caching.ask("CLIENT TRACKINGINFO", "|{a},|"),
        "%3|$5|flags|~2|$2|on|$5|bcast|$8|redirect|:0|$8|prefixes|*2|$2|pl|$4|{a},|"
    );
}

#[test]
fn resp2_clients_receive_messages_on_another_connection() {
    let node = serve(open());
    let [mut caching, mut target, mut writer] = [(); 3].map(|()| node.client());
    let id = target.ask("CLIENT ID", "|");
    let id = id.trim_matches(|c| c == ':' || c == '|');
    target.ask("SUBSCRIBE __redis__:invalidate", ":1|");
    writer.ask("SET {ns},k v", "+OK|");
    caching.ask(&format!("CLIENT TRACKING ON REDIRECT {id}"), "+OK|");
    assert_eq!(caching.ask("CLIENT GETREDIR", "|"), format!(":{id}|"));
    assert!(writer.ask("CLIENT LIST", "lib-ver=\n|").contains(&format!(" redir={id} ")));
    caching.ask("GET {ns},k", "|v|");
    writer.ask("SET {ns},k w", "+OK|");
    let message = "*3|$7|message|$20|__redis__:invalidate|*1|$6|{ns},k|";
    assert_eq!(target.until(message), message);
    assert_eq!(caching.before_echo(), "");
    // Without its target the client is told, if its protocol has a form for it.
    caching.ask("HELLO 3", "modules|*0|");
    drop(target);
    caching.until(&format!(">2|$21|tracking-redir-broken|:{id}|"));
    assert!(caching.ask("CLIENT TRACKINGINFO", "*0|").contains("|$15|broken_redirect|"));
}

#[test]
fn a_closed_connection_collects_no_redirected_messages() {
    let node = node_with(RespSettings::new(open()));
    let [mut caching, target] = [(); 2].map(|()| node.client());
    let (tracking, budget) = (&node.server.tracking, &node.server.pubsub.budget);
    // The first client of the node has the id 1.
    assert_eq!(caching.ask("CLIENT TRACKING ON BCAST REDIRECT 2"), "+OK|");
    let invalidate = || {
        for number in 0..1000_u32 {
            tracking.invalidate(format!("{{ns}},{number}").as_bytes(), None, budget);
        }
    };
    invalidate();
    assert!(budget.bytes() > 64_000, "the target has read nothing: {}", budget.bytes());
    drop(target);
    caching.poll_progress();
    assert_eq!(budget.bytes(), 0, "what the target had not read is discarded");
    invalidate();
    assert_eq!(budget.bytes(), 0, "nothing is queued for it");
    assert!(caching.ask("CLIENT TRACKINGINFO").contains("broken_redirect"));
    // Another target can take its place.
    let mut next = node.client();
    assert_eq!(caching.ask("CLIENT TRACKING ON BCAST REDIRECT 3"), "+OK|");
    next.ask("SUBSCRIBE __redis__:invalidate");
    invalidate();
    assert!(String::from_utf8_lossy(&next.poll_progress()).contains("{ns},999"));
    assert_eq!(budget.bytes(), 0);
}

#[test]
fn only_chosen_requests_are_tracked_with_optin_and_optout() {
    let node = serve(open());
    let (mut caching, mut writer) = (node.client_with_resp3(), node.client());
    writer.ask("MSET {ns},a 1 {ns},b 1 {ns},c 1 {ns},d 1", "+OK|");
    let tracked = || {
        let [_, keys, _] = node.server.tracking.counts();
        keys
    };
    caching.ask("CLIENT TRACKING ON OPTIN", "+OK|");
    caching.ask("GET {ns},a", "|1|");
    assert_eq!(tracked(), 0);
    caching.ask("CLIENT CACHING YES", "+OK|");
    caching.ask("GET {ns},b", "|1|");
    caching.ask("GET {ns},c", "|1|");
    assert_eq!(tracked(), 1);
    caching.ask("CLIENT CACHING YES", "+OK|");
    caching.ask("MULTI", "+OK|");
    caching.ask("MGET {ns},c {ns},d", "+QUEUED|");
    assert_eq!(tracked(), 1);
    caching.ask("EXEC", "*1|*2|$1|1|$1|1|");
    assert_eq!(tracked(), 3);
    caching.ask("GET {ns},a", "|1|");
    assert_eq!(tracked(), 3, "EXEC ends it");
    caching.ask("CLIENT TRACKING OFF", "+OK|");
    caching.ask("CLIENT TRACKING ON OPTOUT", "+OK|");
    caching.ask("CLIENT CACHING NO", "+OK|");
    caching.ask("GET {ns},a", "|1|");
    assert_eq!(tracked(), 0);
    caching.ask("GET {ns},b", "|1|");
    assert_eq!(tracked(), 1);
}

#[test]
fn invalid_options_are_rejected_as_by_redis() {
    let node = node_with(RespSettings::new(open()));
    let mut client = node.client();
    let mut other = node.client();
    for (request, error) in [
        ("CLIENT TRACKING", "wrong number of arguments"),
        ("CLIENT TRACKING x", "syntax error"),
        ("CLIENT TRACKING ON x", "syntax error"),
        ("CLIENT TRACKING ON PREFIX", "syntax error"),
        ("CLIENT TRACKING ON PREFIX a", "PREFIX option requires BCAST mode"),
        ("CLIENT TRACKING ON OPTIN OPTOUT", "both OPTIN mode and OPTOUT mode"),
        ("CLIENT TRACKING ON BCAST OPTIN", "not compatible with BCAST"),
        ("CLIENT TRACKING ON BCAST PREFIX a PREFIX ab", "Prefix 'ab' overlaps with an existing"),
        ("CLIENT TRACKING ON REDIRECT 99", "does not exist"),
        ("CLIENT TRACKING ON REDIRECT -1", "does not exist"),
        ("CLIENT TRACKING ON REDIRECT x", "value is not an integer"),
        ("CLIENT TRACKING ON REDIRECT 1 REDIRECT 2", "only redirect to a single other client"),
        ("CLIENT CACHING YES", "only when the client is in tracking mode"),
    ] {
        let reply = client.ask(request);
        assert!(reply.starts_with("-ERR ") && reply.contains(error), "{request}: {reply}");
    }
    let long = "p".repeat(5000);
    assert!(client.ask(&format!("CLIENT TRACKING ON BCAST PREFIX {long}")).contains("too long"));
    assert_eq!(client.ask("CLIENT GETREDIR"), ":-1|");
    let off = "*6|$5|flags|*1|$3|off|$8|redirect|:-1|$8|prefixes|*0|";
    assert_eq!(client.ask("CLIENT TRACKINGINFO"), off);
    assert_eq!(client.ask("CLIENT TRACKING ON OPTIN NOLOOP"), "+OK|");
    for (request, error) in [
        ("CLIENT CACHING NO", "only valid when tracking is enabled in OPTOUT mode"),
        ("CLIENT CACHING x", "syntax error"),
        ("CLIENT TRACKING ON BCAST", "You can't switch BCAST mode on/off"),
        ("CLIENT TRACKING ON OPTOUT", "You can't switch OPTIN/OPTOUT mode"),
    ] {
        let reply = client.ask(request);
        assert!(reply.starts_with("-ERR ") && reply.contains(error), "{request}: {reply}");
    }
    client.ask("CLIENT CACHING YES");
    let info = client.ask("CLIENT TRACKINGINFO");
    assert!(info.contains("|*4|$2|on|$5|optin|$11|caching-yes|$6|noloop|"), "{info}");
    assert!(client.ask("CLIENT INFO").contains(" flags=t "));
    assert_eq!(other.ask("CLIENT TRACKING ON BCAST"), "+OK|");
    assert!(other.ask("CLIENT TRACKINGINFO").ends_with("|$8|prefixes|*1|$0||"));
    assert_eq!(other.ask("CLIENT TRACKING OFF"), "+OK|");
    assert_eq!(other.ask("CLIENT TRACKING ON BCAST PREFIX a PREFIX b"), "+OK|");
    assert_eq!(other.ask("CLIENT TRACKING ON BCAST PREFIX c"), "+OK|");
    assert!(other.ask("CLIENT TRACKINGINFO").ends_with("|*3|$1|a|$1|b|$1|c|"));
    assert!(other.ask("CLIENT TRACKING ON BCAST PREFIX ab").contains("overlaps"));
    assert_eq!(node.server.tracking.counts(), [2, 0, 3]);
    let info = other.ask("INFO clients stats");
    for line in ["|tracking_clients:2|", "|tracking_total_keys:0|", "|tracking_total_prefixes:3|"] {
        assert!(info.contains(line), "{line}: {info}");
    }
    client.ask("MULTI");
    client.ask("CLIENT TRACKING OFF");
    assert!(client.ask("EXEC").contains("CLIENT TRACKING is not allowed between MULTI"));
    assert_eq!(client.ask("RESET"), "+RESET|");
    drop(other);
    assert_eq!(node.server.tracking.counts(), [0; 3]);
    assert!(!node.server.keyspace.is_tracking());
}

#[test]
fn a_client_is_not_told_the_names_of_keys_that_it_may_not_read() {
    let lines = "user default on nopass +@all ~* &*\nuser some on >s +@all ~{mine},* &*";
    let users = || Users::parse(lines, &TABLE).unwrap();
    let node = node_with(RespSettings::new(users()));
    let mut some = node.client();
    some.ask("AUTH some s");
    for request in ["BCAST", "BCAST PREFIX {other},", "BCAST PREFIX {m", "BCAST PREFIX x"] {
        let reply = some.ask(&format!("CLIENT TRACKING ON {request}"));
        assert!(reply.starts_with("-NOPERM"), "{request}: {reply}");
    }
    assert_eq!(some.ask("CLIENT TRACKING ON BCAST PREFIX {mine},a"), "+OK|");
    // Neither to another user's connection.
    let mut all = node.client();
    assert!(all.ask("CLIENT TRACKING ON REDIRECT 1").contains("does not exist"));

    let served = serve(users());
    let (mut caching, mut writer) = (served.client_with_resp3(), served.client());
    writer.ask("MSET {mine},k 1 {other},k 1", "+OK|");
    caching.ask("CLIENT TRACKING ON BCAST", "+OK|");
    caching.until("invalidate|_|");
    caching.ask("AUTH some s", "+OK|");
    writer.ask("SET {other},k 2", "+OK|");
    writer.ask("SET {mine},k 2", "+OK|");
    let mut seen = caching.until(&invalidated("{mine},k"));
    writer.ask("SET {mine},end 2", "+OK|");
    seen.push_str(&caching.until(&invalidated("{mine},end")));
    assert!(!seen.contains("{other}"), "{seen}");
}

#[test]
fn noloop_leaves_out_the_changes_of_the_own_connection() {
    let node = serve(Users::open(&TABLE));
    let mut client = node.client_with_resp3();
    let mut other = node.client();
    other.ask("SET k 0", "+OK|");
    other.ask("SET end 0", "+OK|");
    client.send("CLIENT TRACKING ON NOLOOP");
    client.until("+OK|");
    let own = [
        "SET k 1",
        "APPEND k 1",
        "DEL k",
        "HSET k f 1",
        "HDEL k f",
        "SADD k m",
        "EXPIRE k 1000",
        "RENAME k k2",
        "RENAME k2 k",
        "MULTI",
        "DEL k",
        "SET k 5",
        "EXEC",
        "SETIE k 6 5",
    ];
    for round in 0..20 {
        client.send("MGET k end");
        for request in own {
            client.send(request);
        }
        client.send("PING");
        let seen = client.until("PONG|");
        assert!(!seen.contains("invalidate"), "round {round}: {seen}");
        // Events have an order: all earlier ones are delivered before that of `end`.
        other.ask("INCR end", "|");
        let seen = client.until("|$3|end|");
        assert_eq!(seen, ">2|$10|invalidate|*1|$3|end|", "round {round}");
    }
    // Its own changes have not ended the tracking of the key.
    other.ask("SET k 7", "+OK|");
    assert_eq!(client.until("|$1|k|"), ">2|$10|invalidate|*1|$1|k|");
}

#[test]
fn noloop_with_broadcasting_tells_the_changes_of_others() {
    let node = serve(Users::open(&TABLE));
    let mut client = node.client_with_resp3();
    let mut other = node.client();
    // The first record of a namespace invalidates everything.
    other.ask("SET b 1", "+OK|");
    client.send("CLIENT TRACKING ON NOLOOP BCAST PREFIX a");
    client.until("+OK|");
    for round in 0..20 {
        client.send("SET a 1");
        client.send("DEL a");
        client.until(":1|");
        other.ask("SET ab 1", "+OK|");
        let seen = client.until("|$2|ab|");
        assert_eq!(seen, ">2|$10|invalidate|*1|$2|ab|", "round {round}");
    }
}

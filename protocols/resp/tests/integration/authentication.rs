//! Authentication: who may do what before and after it, failures, and passwords in output.

use std::sync::Mutex;

use crate::fixture::{TestClient, node_with};
use crate::server::guarded;
use nearstate_node::NextAction;
use nearstate_resp::acl::Users;
use nearstate_resp::auth_limit::FREE_FAILURES;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;

fn all(client: &mut TestClient, script: &[(&str, &str)]) {
    for (request, answer) in script {
        assert_eq!(client.ask(request), *answer, "{request}");
    }
}

#[test]
fn unauthenticated_clients_must_authenticate_first() {
    let node = guarded();
    let mut client = node.client();
    let no_auth = "-NOAUTH Authentication required.|";
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.|";
    all(
        &mut client,
        &[
            ("GET {ns},a", no_auth),
            ("PING", no_auth),
            ("MULTI", no_auth),
            ("AUTH wrong", wrong),
            ("AUTH reader letmein", wrong),
            ("AUTH gone away", wrong),
        ],
    );
    let refused = client.ask("HELLO 3");
    assert!(refused.starts_with("-NOAUTH HELLO must be called with the client already"));
    assert!(client.ask("HELLO 3 AUTH reader wrong").starts_with("-WRONGPASS "));
    assert_eq!(client.ask("GET {ns},a"), no_auth);
    assert!(client.ask("HELLO 3 AUTH reader hunter2 SETNAME r").starts_with("%7|"));
    all(
        &mut client,
        &[
            ("ACL WHOAMI", "$6|reader|"),
            ("CLIENT GETNAME", "$1|r|"),
            ("GET {ns},a", "_|"),
            (
                "GET a",
                "-NOPERM this user has no permissions to access one of the keys used as \
                 arguments|",
            ),
            ("SET {ns},a 1", "-NOPERM this user has no permissions to run the 'set' command|"),
            ("AUTH letmein", "+OK|"),
            ("ACL WHOAMI", "$7|default|"),
            ("RESET", "+RESET|"),
            ("GET {ns},a", no_auth),
        ],
    );
    assert!(client.ask("CLIENT INFO").starts_with("-NOAUTH"));
}

/// Every request enters the slow log. No password appears anywhere.
#[test]
fn passwords_appear_in_no_log_and_no_reply() {
    let node = guarded();
    let mut client = node.client();
    let mut reply = String::new();
    for request in [
        "AUTH default wrongsecret",
        "AUTH wrongsecret",
        "HELLO 3 AUTH default wrongsecret",
        "HELLO 2 AUTH default letmein wrongsecret",
        "HELLO 2 AUTH default letmein",
        "AUTH reader hunter2 wrongsecret",
        "AUTH reader hunter2",
        "AUTH letmein",
        "MULTI",
        "AUTH reader hunter2",
        "AUTH default letmein",
        "AUTH default wrongsecret",
        "EXEC",
        "SET k v",
        "SLOWLOG GET -1",
        "SLOWLOG LEN",
        "INFO everything",
        "CLIENT LIST",
        "CONFIG GET *",
        "ACL LIST",
        "ACL GETUSER reader",
    ] {
        reply.push_str(&client.ask(request));
    }
    assert!(reply.contains("$4|AUTH|") && reply.contains("$3|SET|$1|k|$1|v|"), "{reply}");
    for secret in ["letmein", "hunter2", "wrongsecret"] {
        assert!(!reply.contains(secret), "{secret} is printed: {reply}");
    }
}

/// The source of all clients is 127.0.0.1.
#[test]
fn after_failures_a_password_is_not_checked_before_a_delay() {
    let node = guarded();
    let mut early = node.client();
    assert_eq!(early.ask("AUTH letmein"), "+OK|");
    let mut guessing = node.client();
    for number in 0..=FREE_FAILURES {
        let reply = guessing.ask(&format!("AUTH reader guess{number}"));
        assert!(reply.starts_with("-WRONGPASS "), "{reply}");
    }
    assert_eq!(node.server.auth_limit.failures(), u64::from(FREE_FAILURES) + 1);
    // A right password has no reply either: a late reply tells nothing about the password.
    for password in ["guess", "hunter2"] {
        let words: [&[u8]; 3] = [b"AUTH", b"reader", password.as_bytes()];
        assert_eq!(guessing.begin(&words), (Vec::new(), NextAction::Work));
        guessing = node.client();
    }
    let words: [&[u8]; 5] = [b"HELLO", b"3", b"AUTH", b"reader", b"hunter2"];
    assert_eq!(node.client().begin(&words), (Vec::new(), NextAction::Work));
    assert!(guessing.ask("GET a").starts_with("-NOAUTH"));
    // EXEC cannot wait, and would be a way to try a thousand passwords at once.
    for request in ["MULTI", "AUTH reader hunter2", "SET k v"] {
        early.ask(request);
    }
    let reply = early.ask("EXEC");
    assert!(reply.starts_with("*2|-ERR too many failed authentications"), "{reply}");
    assert_eq!(early.ask("ACL WHOAMI"), "$7|default|");
    // Until the queue of the source is longer than the limit.
    let mut replies = (0..1000).map(|_| node.client().begin(&words).0);
    let refused = replies.find(|reply| !reply.is_empty()).unwrap();
    let refused = String::from_utf8(refused).unwrap();
    assert!(refused.contains("the password was not checked, try again in "), "{refused}");
    let info = early.ask("INFO stats");
    let failures = node.server.auth_limit.failures();
    assert!(info.contains(&format!("acl_access_denied_auth:{failures}|")), "{info}");
}

#[test]
fn a_hello_request_checks_one_password() {
    let node = guarded();
    let mut client = node.client();
    let hello = "HELLO 3 AUTH reader wrong AUTH reader hunter2";
    assert!(client.ask(hello).starts_with("%7|"), "the last one counts");
    assert_eq!(node.server.auth_limit.failures(), 0);
}

#[test]
fn failed_authentications_are_reported_without_unknown_names() {
    static REPORTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let lines = "user reader on >hunter2 +get ~*";
    let node = node_with(RespSettings {
        on_auth_failure: |failure| REPORTED.lock().unwrap().push(format!("{failure:?}")),
        ..RespSettings::new(Users::parse(lines, &TABLE).unwrap())
    });
    let mut client = node.client();
    client.ask("AUTH reader wrong");
    client.ask("AUTH hunter2 reader");
    client.ask("AUTH reader hunter2");
    let reported = REPORTED.lock().unwrap();
    let expected = |user: &str, failures| {
        format!(
            "AuthFailure {{ client: \"127.0.0.1:40001\", user: {user}, failures: {failures}, \
             is_refused: false }}"
        )
    };
    assert_eq!(*reported, [expected("Some(\"reader\")", 1), expected("None", 2)]);
}

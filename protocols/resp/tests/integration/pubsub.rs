//! Channels: replies equal those of Redis 7.0.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{TestClient, node, node_with};
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;

fn came(client: &mut TestClient) -> String {
    String::from_utf8(client.poll_progress()).unwrap().replace("\r\n", "|")
}

const ONLY: &str = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                    in this context|";

#[test]
fn a_resp2_client_with_subscriptions_gets_the_replies_of_redis() {
    let node = node();
    let mut client = node.client();
    let refused = |name: &str| format!("-ERR Can't execute '{name}': {ONLY}");
    for (request, answer) in [
        // sdlgo subscribes to the empty channel first.
        ("SUBSCRIBE a ", "*3|$9|subscribe|$1|a|:1|*3|$9|subscribe|$0||:2|".to_owned()),
        ("PING", "*2|$4|pong|$0||".to_owned()),
        ("PING x", "*2|$4|pong|$1|x|".to_owned()),
        ("GET a", refused("get")),
        ("CLIENT ID", refused("client|id")),
        ("MULTI", refused("multi")),
        ("HELLO 3", refused("hello")),
        ("PSUBSCRIBE p*", "*3|$10|psubscribe|$2|p*|:3|".to_owned()),
        ("SUBSCRIBE a", "*3|$9|subscribe|$1|a|:3|".to_owned()),
        ("UNSUBSCRIBE a", "*3|$11|unsubscribe|$1|a|:2|".to_owned()),
        ("UNSUBSCRIBE nope", "*3|$11|unsubscribe|$4|nope|:2|".to_owned()),
        ("UNSUBSCRIBE", "*3|$11|unsubscribe|$0||:1|".to_owned()),
        ("UNSUBSCRIBE", "*3|$11|unsubscribe|$-1|:1|".to_owned()),
        ("PUNSUBSCRIBE", "*3|$12|punsubscribe|$2|p*|:0|".to_owned()),
        ("PUNSUBSCRIBE", "*3|$12|punsubscribe|$-1|:0|".to_owned()),
        ("GET a", "$-1|".to_owned()),
        ("PING", "+PONG|".to_owned()),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
}

#[test]
fn messages_arrive_in_order_in_both_protocols() {
    let node = node();
    let (mut two, mut three, mut sender) = (node.client(), node.client(), node.client());
    assert!(three.ask("HELLO 3").starts_with("%7|"));
    two.ask("SUBSCRIBE {ns},c d");
    two.ask("PSUBSCRIBE {ns},*");
    assert_eq!(three.ask("SUBSCRIBE {ns},c"), ">3|$9|subscribe|$6|{ns},c|:1|");
    assert_eq!(three.ask("UNSUBSCRIBE none"), ">3|$11|unsubscribe|$4|none|:1|");
    assert_eq!(three.ask("PSUBSCRIBE *"), ">3|$10|psubscribe|$1|*|:2|");
    assert_eq!(sender.ask("PUBLISH {ns},c one___two"), ":4|");
    assert_eq!(sender.ask("PUBLISH d x"), ":2|");
    assert_eq!(sender.ask("PUBLISH e y"), ":1|");
    assert_eq!(
        came(&mut two),
        "*3|$7|message|$6|{ns},c|$9|one___two|*4|$8|pmessage|$6|{ns},*|$6|{ns},c|$9|one___two|\
         *3|$7|message|$1|d|$1|x|"
    );
    assert_eq!(
        came(&mut three),
        ">3|$7|message|$6|{ns},c|$9|one___two|>4|$8|pmessage|$1|*|$6|{ns},c|$9|one___two|\
         >4|$8|pmessage|$1|*|$1|d|$1|x|>4|$8|pmessage|$1|*|$1|e|$1|y|"
    );
    // RESP3 distinguishes messages from replies.
    assert_eq!(three.ask("PING"), "+PONG|");
    assert_eq!(three.ask("GET nothing"), "_|");
    assert_eq!(three.ask("UNSUBSCRIBE"), ">3|$11|unsubscribe|$6|{ns},c|:1|");
    assert_eq!(three.ask("UNSUBSCRIBE"), ">3|$11|unsubscribe|_|:1|");
}

#[test]
fn queued_messages_are_delivered_before_the_reply_to_unsubscribe() {
    let node = node();
    let (mut client, mut sender) = (node.client(), node.client());
    client.ask("SUBSCRIBE c");
    sender.ask("PUBLISH c m");
    let message = "*3|$7|message|$1|c|$1|m|";
    assert_eq!(client.ask("UNSUBSCRIBE c"), format!("{message}*3|$11|unsubscribe|$1|c|:0|"));
    assert_eq!(came(&mut client), "");
    client.ask("SUBSCRIBE c");
    sender.ask("PUBLISH c m");
    assert_eq!(client.ask("RESET"), format!("{message}+RESET|"));
    assert_eq!(sender.ask("PUBLISH c m"), ":0|");
    assert_eq!(client.ask("GET c"), "$-1|");
}

#[test]
fn pubsub_channels_lists_channels_and_a_closed_client_is_unsubscribed() {
    let node = node();
    let (mut one, mut two, mut asker) = (node.client(), node.client(), node.client());
    one.ask("SUBSCRIBE a b");
    one.ask("PSUBSCRIBE x* y*");
    two.ask("SUBSCRIBE a");
    two.ask("PSUBSCRIBE x*");
    let cut =
        "-ERR unknown subcommand or wrong number of arguments for 'channels'. Try PUBSUB HELP.|";
    for (request, answer) in [
        ("PUBSUB CHANNELS", "*2|$1|a|$1|b|"),
        ("PUBSUB CHANNELS *", "*2|$1|a|$1|b|"),
        ("PUBSUB CHANNELS [b-z]", "*1|$1|b|"),
        ("PUBSUB CHANNELS a b", cut),
        ("PUBSUB NUMSUB", "*0|"),
        ("PUBSUB NUMSUB a b z", "*6|$1|a|:2|$1|b|:1|$1|z|:0|"),
        ("PUBSUB NUMPAT", ":2|"),
        ("PUBSUB NUMPAT a", "-ERR wrong number of arguments for 'pubsub|numpat' command|"),
    ] {
        assert_eq!(asker.ask(request), answer, "{request}");
    }
    drop(one);
    assert_eq!(asker.ask("PUBSUB NUMSUB a b"), "*4|$1|a|:1|$1|b|:0|");
    assert_eq!(asker.ask("PUBSUB NUMPAT"), ":1|");
    assert_eq!(two.ask("QUIT"), "+OK|");
    assert!(two.is_closed);
    drop(two);
    assert_eq!(asker.ask("PUBSUB CHANNELS"), "*0|");
    assert_eq!(asker.ask("PUBLISH a m"), ":0|");
}

#[test]
fn the_subscription_limit_of_a_client_is_an_error_with_advice() {
    let settings = RespSettings { subscriptions_max: 3, ..RespSettings::new(Users::open(&TABLE)) };
    let node = node_with(settings);
    let mut client = node.client();
    client.ask("SUBSCRIBE a b");
    let refused = client.ask("PSUBSCRIBE x y");
    assert!(
        refused.starts_with("-ERR too many subscriptions: the limit is 3 channels and patterns"),
        "{refused}"
    );
    assert_eq!(node.server.pubsub.patterns(), 0, "a rejected request subscribes to nothing");
    assert_eq!(
        client.ask("SUBSCRIBE a b a"),
        "*3|$9|subscribe|$1|a|:2|*3|$9|subscribe|$1|b|:2|*3|$9|subscribe|$1|a|:2|"
    );
    assert_eq!(client.ask("PSUBSCRIBE x"), "*3|$10|psubscribe|$1|x|:3|");
    let long = vec![b'c'; 4097];
    let refused = client.ask_bytes(&[b"SUBSCRIBE", &long]);
    assert!(refused.starts_with("-ERR channel name of 4097 bytes"), "{refused}");
    let slow = RespSettings { mailbox_bytes_max: 500, ..RespSettings::new(Users::open(&TABLE)) };
    let node = node_with(slow);
    let (mut client, mut sender) = (node.client(), node.client());
    client.ask("SUBSCRIBE c");
    let sent = (0..10).take_while(|_| sender.ask("PUBLISH c message") == ":1|").count();
    assert_eq!(sent, 6, "a message that exceeds the limit is not received");
    assert_eq!(came(&mut client), "");
    assert!(client.is_closed, "a slow subscriber is closed");
}

#[test]
fn channel_names_are_limited_in_every_command() {
    let node = node();
    let mut client = node.client();
    let long = vec![b'c'; 4097];
    for request in [
        &[b"PUBLISH", &long[..], b"m"][..],
        &[b"SUBSCRIBE", &long],
        &[b"PSUBSCRIBE", b"a", &long],
        &[b"MSETPUB", b"k", b"v", &long, b"m"],
    ] {
        let reply = client.ask_bytes(request);
        assert!(reply.starts_with("-ERR channel name of 4097 bytes"), "{reply}");
    }
    assert_eq!(client.ask("GET k"), "$-1|");
}

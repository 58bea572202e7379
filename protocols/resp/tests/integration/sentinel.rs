//! `SENTINEL` on the same port: what go-redis, redis-py and the C++ client read.

use crate::fixture::{node, node_with};
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use std::collections::BTreeMap;

/// The fields of a reply that consists of pairs of bulk strings.
fn fields(record: &str) -> BTreeMap<&str, &str> {
    let words: Vec<&str> = record.split('|').skip(2).step_by(2).collect();
    words.chunks_exact(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?))).collect()
}

#[test]
fn without_configured_names_every_name_is_a_master() {
    let node = node();
    let mut client = node.client();
    for (request, answer) in [
        ("SENTINEL get-master-addr-by-name any", "*2|$9|127.0.0.1|$4|6379|"),
        ("SENTINEL sentinels any", "*0|"),
        ("SENTINEL SLAVES any", "*0|"),
        ("SENTINEL replicas any", "*0|"),
        (
            "SUBSCRIBE +switch-master +slave-reconf-done",
            "*3|$9|subscribe|$14|+switch-master|:1|*3|$9|subscribe|$18|+slave-reconf-done|:2|",
        ),
        (
            "UNSUBSCRIBE",
            "*3|$11|unsubscribe|$18|+slave-reconf-done|:1|\
             *3|$11|unsubscribe|$14|+switch-master|:0|",
        ),
        ("SENTINEL", "-ERR wrong number of arguments for 'sentinel' command|"),
        ("SENTINEL master", "-ERR wrong number of arguments for 'sentinel|master' command|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
    let master = client.ask("SENTINEL MASTER dbaasmaster");
    let fields = fields(&master);
    for (name, value) in [
        ("name", "dbaasmaster"),
        ("ip", "127.0.0.1"),
        ("port", "6379"),
        ("flags", "master"),
        ("role-reported", "master"),
        ("num-other-sentinels", "0"),
        ("num-slaves", "0"),
        ("quorum", "1"),
    ] {
        assert_eq!(fields.get(name), Some(&value), "{name}");
    }
    let masters = client.ask("SENTINEL MASTERS");
    assert!(masters.starts_with("*2|*18|$4|name|$11|dbaasmaster|"), "{masters}");
    assert!(masters.contains("|*18|$4|name|$8|mymaster|"), "{masters}");
    client.ask("HELLO 3");
    assert!(client.ask("SENTINEL masters").starts_with("*2|%9|$4|name|"));
}

#[test]
fn configured_master_names_and_the_announced_host_are_used() {
    let node = node_with(RespSettings {
        masters: vec!["ue".to_owned(), "cell".to_owned()],
        announced_host: Some("10.0.0.7".to_owned()),
        port: 7000,
        ..RespSettings::new(Users::open(&TABLE))
    });
    let mut client = node.client();
    let unknown = "-ERR No such master with that name|";
    for (request, answer) in [
        ("SENTINEL get-master-addr-by-name ue", "*2|$8|10.0.0.7|$4|7000|"),
        ("SENTINEL get-master-addr-by-name mymaster", "*-1|"),
        ("SENTINEL master mymaster", unknown),
        ("SENTINEL slaves mymaster", unknown),
        ("SENTINEL sentinels mymaster", unknown),
        ("SENTINEL sentinels cell", "*0|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
    let masters = client.ask("SENTINEL masters");
    assert!(masters.starts_with("*2|*18|$4|name|$2|ue|$2|ip|$8|10.0.0.7|$4|port|$4|7000|"));
    client.ask("HELLO 3");
    assert_eq!(client.ask("SENTINEL get-master-addr-by-name mymaster"), "_|");
}

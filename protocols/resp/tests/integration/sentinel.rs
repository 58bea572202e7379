//! `SENTINEL` on the same port: what go-redis, redis-py and the C++ client read.

use crate::fixture::{node, node_with};
use nearstate_resp::acl::Users;
use nearstate_resp::replication::{Master, MasterSource};
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use std::collections::BTreeMap;
use std::sync::Arc;

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
    assert!(masters.starts_with("*18|*18|$4|name|$11|dbaasmaster|"), "{masters}");
    assert!(masters.contains("|*18|$4|name|$8|mymaster|"), "{masters}");
    // The names in O-RAN's Helm chart with several databases.
    for number in 0..16 {
        let name = format!("dbaasmaster-cluster-{number}");
        let found = masters.contains(&format!("|*18|$4|name|${}|{name}|", name.len()));
        assert!(found, "{name}: {masters}");
    }
    client.ask("HELLO 3");
    assert!(client.ask("SENTINEL masters").starts_with("*18|%9|$4|name|"));
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

/// redis-rs asks for the role at the address of the Sentinel, and at that of the master.
#[test]
fn the_role_is_sentinel_at_the_addresses_of_the_sentinel_only() {
    let node = node();
    let mut master = node.client();
    let mut sentinel = node.sentinel_client();
    assert_eq!(master.ask("ROLE"), "*3|$6|master|:0|*0|");
    let role = sentinel.ask("ROLE");
    assert!(role.starts_with("*2|$8|sentinel|*18|$11|dbaasmaster|$8|mymaster|"), "{role}");
    let hello = sentinel.ask("HELLO 2");
    assert!(hello.contains("|$4|mode|$8|sentinel|$7|modules|"), "{hello}");
    assert!(sentinel.ask("INFO server").contains("|redis_mode:sentinel|"));
    assert!(master.ask("INFO server").contains("|redis_mode:standalone|"));
    // The address is that of the master, not that of this connection.
    node.server.set_port(7000);
    let address = sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME any");
    assert_eq!(address, "*2|$9|127.0.0.1|$4|7000|");
    assert_eq!(master.ask("SENTINEL GET-MASTER-ADDR-BY-NAME any"), "*2|$9|127.0.0.1|$4|6379|");
}

/// The masters of a cluster, as a host knows them.
#[derive(Debug)]
struct Listed(Vec<Master>);

impl MasterSource for Listed {
    fn masters(&self) -> Vec<Master> {
        self.0.clone()
    }
}

fn listed(name: &str, port: u16, is_down: bool) -> Master {
    Master { name: name.to_owned(), host: "10.0.0.1".to_owned(), port, epoch: 3, is_down }
}

/// The region of a host of a cluster may be of no partition: what is written there is lost.
#[test]
fn an_address_of_the_sentinel_refuses_records_and_says_where_they_are() {
    let node = node();
    node.server.set_port(7000);
    let (mut master, mut sentinel) = (node.client(), node.sentinel_client());
    for request in ["SET k v", "get k", "MULTI", "EVAL x 0", "PUBLISH a b", "CONFIG GET *", "NO"] {
        let name = request.split(' ').next().unwrap();
        let refused = format!(
            "-ERR unknown command '{name}': this is an address of a Sentinel, which has no \
             records. Connect to 127.0.0.1:7000|"
        );
        assert_eq!(sentinel.ask(request), refused, "{request}");
    }
    assert_eq!(master.ask("DBSIZE"), ":0|", "nothing was written");
    for (request, reply) in [
        ("PING", "+PONG|"),
        ("CLIENT SETNAME me", "+OK|"),
        ("CLIENT SETINFO lib-name x", "+OK|"),
        (
            "COMMAND COUNT",
            &format!(":{}|", TABLE.commands().iter().filter(|c| !c.name.contains('|')).count()),
        ),
        ("SUBSCRIBE +switch-master", "*3|$9|subscribe|$14|+switch-master|:1|"),
        ("UNSUBSCRIBE", "*3|$11|unsubscribe|$14|+switch-master|:0|"),
        ("PSUBSCRIBE *", "*3|$10|psubscribe|$1|*|:1|"),
        ("PUNSUBSCRIBE", "*3|$12|punsubscribe|$1|*|:0|"),
        ("RESET", "+RESET|"),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME any", "*2|$9|127.0.0.1|$4|7000|"),
        ("QUIT", "+OK|"),
    ] {
        assert_eq!(sentinel.ask(request), reply, "{request}");
    }
    let unknown = node.sentinel_client().ask("SENTINEL NO");
    assert!(unknown.starts_with("-ERR unknown subcommand 'NO'"), "{unknown}");
}

#[test]
fn the_error_for_records_names_the_masters_that_are_not_down() {
    let node = node();
    node.server.masters.set(Arc::new(Listed(vec![
        listed("amf", 6379, false),
        listed("smf", 6380, true),
        listed("upf", 6381, false),
    ])));
    let refused = node.sentinel_client().ask("SET k v");
    let named = "Connect to 10.0.0.1:6379 (master amf), or to 10.0.0.1:6381 (master upf)|";
    assert!(refused.ends_with(named), "{refused}");
}

/// A host that is cut off would name itself, and keep clients from the owner.
#[test]
fn a_master_that_is_down_has_the_flag_and_no_address() {
    let node = node();
    let masters = vec![listed("amf", 6379, false), listed("smf", 6380, true)];
    node.server.masters.set(Arc::new(Listed(masters)));
    let mut sentinel = node.sentinel_client();
    for (request, reply) in [
        ("SENTINEL GET-MASTER-ADDR-BY-NAME amf", "*2|$8|10.0.0.1|$4|6379|"),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME smf", "*-1|"),
    ] {
        assert_eq!(sentinel.ask(request), reply, "{request}");
    }
    for (name, flags) in [("amf", "master"), ("smf", "s_down,master")] {
        let master = sentinel.ask(&format!("SENTINEL MASTER {name}"));
        assert_eq!(fields(&master).get("flags"), Some(&flags), "{name}");
    }
}

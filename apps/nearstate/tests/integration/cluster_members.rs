//! Changes of the group of a partition as processes: a fourth host is added while writers run, the
//! members that were there first are removed, and it has everything.

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cluster::{Hosts, LONG_LEASE};
use crate::fixture::{Client, Folder, NEARSTATE, free_ports, own_ip, until};

/// The fourth host of the file, which is in no group.
struct FourthHost {
    node: Child,
    ip: Ipv4Addr,
}

impl FourthHost {
    fn start(hosts: &Hosts) -> Self {
        let ip = own_ip();
        let ports = free_ports(ip, 2);
        let text = std::fs::read_to_string(&hosts.file).unwrap();
        let more = format!(
            "[[host]]\nid = 4\nname = \"d\"\npeer = \"{ip}:{}\"\nmembership = \"{ip}:{}\"\n\
             clients = \"{ip}\"\nvotes = false\n",
            ports[0], ports[1]
        );
        std::fs::write(&hosts.file, text + &more).unwrap();
        let log = std::fs::File::create(hosts.folder.path("d.log")).unwrap();
        let mut command = Command::new(NEARSTATE);
        command.args(["serve", "--host", "d", "--cores", "1", "--cluster"]).arg(&hosts.file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self { node: command.spawn().unwrap(), ip }
    }
}

impl Drop for FourthHost {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

/// Writes until it is told to stop. Returns how many keys were accepted.
fn write(hosts: &Hosts, is_over: &AtomicBool) -> u32 {
    let mut client = hosts.clients(0);
    let mut number = 0_u32;
    while !is_over.load(Ordering::Acquire) {
        let key = format!("key {number}");
        let reply = client.ask(&["SET", &key, &number.to_string()]);
        // A busy machine may cost the owner its lease for a moment.
        number += u32::from(reply == "+OK");
    }
    until("a member has everything", || client.ask(&["WAIT", "1", "1000"]) == ":1");
    number
}

fn has(hosts: &Hosts, field: &str, names: &[&str]) -> bool {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    hosts.status(0).contains(&format!("\"{field}\":[{}]", quoted.join(",")))
}

#[test]
fn a_host_that_was_added_has_everything_when_all_others_are_gone() {
    let mut hosts = Hosts::new(Folder::new(), LONG_LEASE, "", &[]);
    let fourth = FourthHost::start(&hosts);
    (0..3).for_each(|number| hosts.run(number));
    until("it answers operators", || hosts.cluster(&["status", "--host", "d"]).is_some());
    let created = hosts.init();
    assert!(created.contains("with level 6"), "{created}");
    let add = ["add", "d", "--partition", "amf", "--host", "a"];
    let refused = hosts.refusal(&add);
    assert!(refused.contains("d does not vote"), "{refused}");
    until("it votes", || hosts.cluster(&["add", "d", "--host", "a"]).is_some());

    let is_over = AtomicBool::new(false);
    let accepted = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&hosts, &is_over));
        until("it is a member", || {
            hosts.cluster(&add).is_some_and(|text| text.contains("d is a member of amf"))
        });
        until("it counts", || has(&hosts, "full", &["a", "b", "c", "d"]));
        for (name, rest) in [("c", &["a", "b", "d"][..]), ("b", &["a", "d"])] {
            let remove = ["remove", name, "--partition", "amf", "--host", "a"];
            until("it is removed", || hosts.cluster(&remove).is_some());
            assert!(has(&hosts, "group", rest) && has(&hosts, "full", rest), "{rest:?}");
        }
        is_over.store(true, Ordering::Release);
        writer.join().unwrap()
    });
    assert!(accepted > 0);
    let refused = hosts.refusal(&["remove", "d", "--partition", "amf", "--host", "a"]);
    assert!(refused.contains("add another one first"), "{refused}");
    // Four hosts vote, so the membership could spare it.
    let refused = hosts.refusal(&["remove", "d", "--host", "a"]);
    assert!(refused.contains("amf needs the copy of d"), "{refused}");
    let refused = hosts.refusal(&["remove", "a", "--partition", "amf", "--host", "a"]);
    assert!(refused.contains("drain it first"), "{refused}");
    assert!(hosts.status(2).contains("\"role\":\"waiting\""), "{}", hosts.status(2));

    // The owner is lost, and its copy discarded: what is left is what the new host has.
    hosts.kill(0);
    let owns = "\"owner\":\"d\"";
    until("the new host owns the partition", || hosts.status(1).contains(owns));
    hosts.run(0);
    let address = format!("{}:{}", fourth.ip, hosts.port);
    until("it serves clients", || std::net::TcpStream::connect(&address).is_ok());
    let mut client = Client::tcp(&address);
    for number in 0..accepted {
        assert_eq!(client.ask(&["GET", &format!("key {number}")]), number.to_string());
    }
    until("the old owner is a member", || has(&hosts, "full", &["a", "d"]));
}

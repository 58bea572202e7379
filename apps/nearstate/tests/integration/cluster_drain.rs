//! `cluster drain`: to a host that the operator names, and not to one that serves no clients.

use std::net::TcpListener;
use std::process::Command;

use crate::cluster::{Hosts, LONG_LEASE, NAMES};
use crate::fixture::{Folder, NEARSTATE, until};

/// How often a drain is tried that was late, on a busy machine.
const TRIES: u32 = 5;

impl Hosts {
    /// Drains a host with further words until it is done, and returns what is printed.
    fn drain_with(&self, number: usize, words: &[&str]) -> String {
        let mut text = String::new();
        for _ in 0..TRIES {
            let mut command = Command::new(NEARSTATE);
            command.args(["cluster", "drain", "--host", NAMES[number]]).args(words);
            let output = command.arg("--cluster").arg(&self.file).output().unwrap();
            text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            if output.status.success() {
                return text;
            }
            assert!(text.contains("in time"), "{text}");
        }
        panic!("it is late each time: {text}");
    }

    /// A drain that is refused. The owner goes on.
    fn drain_refused(&self, words: &[&str], reason: &str) {
        let words = [&["drain", "--host", "a"], words].concat();
        let refusal = self.refusal(&words);
        assert!(refusal.contains(reason), "{refusal}");
        assert_eq!(self.owner(), Some(0));
        assert_eq!(self.clients(0).ask(&["SET", "key", "1"]), "+OK");
    }
}

#[test]
fn a_partition_is_drained_to_the_named_host_and_not_to_one_that_serves_no_clients() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    assert_eq!(hosts.clients(0).ask(&["SET", "key", "1"]), "+OK");
    hosts.drain_refused(&["--to", "x"], "x");
    hosts.drain_refused(&["--to", "a"], "a owns the partition");
    hosts.kill(1);
    hosts.drain_refused(&["--to", "b"], "b does not answer");
    hosts.run(1);
    hosts.until_all_count();
    assert_eq!(hosts.owner(), Some(0));

    // The first host of the group behind the owner, which the rules prefer, could serve no client.
    let taken = TcpListener::bind((hosts.ips[1], hosts.port)).unwrap();
    let text = hosts.drain_with(0, &[]);
    assert!(text.contains("c owns amf") && !text.contains("warning"), "{text}");
    assert_eq!(hosts.clients(2).ask(&["GET", "key"]), "1");
    hosts.until_all_count();
    // The rules would choose the first host of the group.
    let text = hosts.drain_with(2, &["--to", "b"]);
    assert!(text.contains("b owns amf"), "{text}");
    assert!(text.contains("warning: another program answers at"), "{text}");
    drop(taken);
    assert_eq!(hosts.clients(1).ask(&["GET", "key"]), "1");
    until("the last owner counts", || hosts.status(1).contains("\"full\":[\"a\",\"b\",\"c\"]"));
}

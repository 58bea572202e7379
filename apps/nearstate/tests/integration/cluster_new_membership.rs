//! `cluster init --new-membership` as processes: the directories of the membership are lost, and
//! regions are not.

use crate::cluster::{Hosts, LONG_LEASE, NAMES};
use crate::fixture::{Folder, until};

const NEW: [&str; 4] = ["init", "--host", "b", "--new-membership"];

impl Hosts {
    fn until_answers(&self, numbers: &[usize]) {
        until("the nodes answer operators", || {
            let is_there = |name| self.cluster(&["status", "--host", name]).is_some();
            numbers.iter().all(|number| is_there(NAMES[*number]))
        });
    }

    fn lose_directory(&self, name: &str) {
        std::fs::remove_dir_all(self.folder.path(&format!("{name}.d"))).unwrap();
    }

    /// Twenty records of which every host has a copy.
    fn write_records(&self) {
        let mut client = self.clients(0);
        for number in 0..20 {
            assert_eq!(client.ask(&["SET", &format!("key {number}"), "kept"]), "+OK");
        }
        assert_eq!(client.ask(&["WAIT", "2", "60000"]), ":2");
    }

    fn until_all_have_reported(&self) {
        until("all hosts have reported, and none owns the partition", || {
            (0..NAMES.len()).all(|number| {
                let status = self.status(number);
                status.contains("\"role\":\"sealing\"")
                    && status.contains("\"reports\":[\"a\",\"b\",\"c\"]")
            })
        });
    }

    fn accept_loss(&self, to: usize) {
        let name = NAMES[to];
        let words = ["accept-loss", "--partition", "amf", "--host", name, "--to", name];
        let done = self.output(&words);
        assert!(done.status.success(), "{done:?}");
        assert_eq!(self.clients(to).ask(&["GET", "key 19"]), "kept");
        self.until_all_count();
        assert_eq!(self.owner(), Some(to));
    }
}

/// Without its directory, a host could vote again.
#[test]
fn one_lost_directory_is_no_lost_membership() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    hosts.kill(2);
    hosts.lose_directory("c");
    hosts.run(2);
    // The leader asks it for what it had.
    until("its membership fails", || hosts.log(2).contains("NS-3012"));
    let words = ["init", "--host", "c", "--new-membership"];
    let refusal = hosts.refusal(&words);
    assert!(refusal.contains("a knows the cluster"), "{refusal}");
    assert_eq!(hosts.owner(), Some(0));
    hosts.kill(0);
    hosts.kill(1);
    let refusal = hosts.refusal(&words);
    assert!(refusal.contains("a, b did not answer"), "{refusal}");
    let alone = [&words[..], &["--without", "a", "--without", "b"]].concat();
    let refusal = hosts.refusal(&alone);
    assert!(refusal.contains("no majority of the voters answers (1 of 3)"), "{refusal}");
}

#[test]
fn a_partition_goes_on_when_all_directories_of_the_membership_are_lost() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    hosts.write_records();
    (0..NAMES.len()).for_each(|number| hosts.kill(number));
    for name in NAMES {
        hosts.lose_directory(name);
    }
    hosts.run(0);
    hosts.run(1);
    hosts.until_answers(&[0, 1]);
    let refusal = hosts.refusal(&NEW);
    assert!(refusal.contains("c did not answer"), "{refusal}");
    // A program that would drop what is ordered.
    hosts.run_with(2, &[("NEARSTATE_PLANT", "first-level")]);
    hosts.until_answers(&[2]);
    let refusal = hosts.refusal(&NEW);
    assert!(refusal.contains("c cannot do level 3"), "{refusal}");
    hosts.kill(2);
    hosts.run(2);
    hosts.until_answers(&[2]);
    // Nothing was created.
    let refusal = hosts.refusal(&["init", "--host", "b"]);
    assert!(refusal.contains("amf on a (view 1)"), "{refusal}");
    assert!(refusal.contains("--new-membership"), "{refusal}");
    let created = hosts.cluster(&NEW).unwrap();
    assert!(created.contains("the cluster is created, with level 6"), "{created}");
    assert!(created.contains("amf has no owner"), "{created}");
    // No host owns the partition by itself, although the copy of one counts in each new membership.
    hosts.until_all_have_reported();
    let again = hosts.refusal(&NEW);
    assert!(again.contains("no region has seen a later state"), "{again}");
    hosts.accept_loss(1);
}

/// The state that is left if the command is interrupted between its two steps: a host with an empty
/// region owns the partition, and the one that has the records waits.
#[test]
fn an_interrupted_new_membership_keeps_the_copy_of_the_host_that_waits() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    hosts.write_records();
    (0..NAMES.len()).for_each(|number| hosts.kill(number));
    for name in NAMES {
        hosts.lose_directory(name);
    }
    for region in ["a-amf", "b-amf"] {
        std::fs::remove_file(hosts.folder.path(region)).unwrap();
    }
    hosts.run(0);
    hosts.run(1);
    hosts.until_answers(&[0, 1]);
    assert!(hosts.cluster(&["init", "--host", "a"]).is_some());
    until("the host with an empty region owns the partition", || hosts.owner() == Some(0));
    hosts.run(2);
    until("the host with the records waits", || {
        let status = hosts.status(2);
        status.contains("\"state_is_older\":true") && !status.contains("\"leader\":null")
    });
    let refusal = hosts.refusal(&NEW);
    assert!(refusal.contains("a owns amf and has a lease"), "{refusal}");
    assert!(refusal.contains("The copy of c holds more: stop the node of a"), "{refusal}");
    assert!(!refusal.contains("move"), "{refusal}");
    hosts.kill(0);
    let refusal = hosts.refusal(&NEW);
    assert!(refusal.contains("a did not answer"), "{refusal}");
    until("another host leads the membership", || {
        let status = hosts.status(1);
        ["b", "c"].iter().any(|name| status.contains(&format!("\"leader\":\"{name}\"")))
    });
    let done = hosts.cluster(&[&NEW[..], &["--without", "a"]].concat()).unwrap();
    assert!(done.contains("the membership that is there goes on, with level 6"), "{done}");
    assert!(done.contains("amf has no owner"), "{done}");
    assert!(done.contains("not asked, because they do not answer: a"), "{done}");
    hosts.run(0);
    hosts.until_all_have_reported();
    hosts.accept_loss(2);
}

//! A rolling update as processes: an earlier program, `cluster finalize`, and what refuses what.

use crate::cluster::{Hosts, LONG_LEASE};
use crate::fixture::{Folder, until};

/// The program of a host is an earlier one.
const EARLIER: (&str, &str) = ("NEARSTATE_PLANT", "first-level");

impl Hosts {
    fn until_level(&self, number: usize, level: u16) {
        let text = format!("\"level\":{level},");
        until("the level is known", || self.status(number).contains(&text));
    }
}

#[test]
fn a_level_rises_when_all_hosts_can_and_an_earlier_program_then_refuses_to_serve() {
    let mut hosts = Hosts::new(Folder::new(), LONG_LEASE, "", &[]);
    hosts.run(0);
    hosts.run(1);
    hosts.run_with(2, &[EARLIER]);
    // One host is not updated yet: the cluster works, with the level that all can.
    let created = hosts.init();
    assert!(created.contains("level 1") && created.contains("c (level 1)"), "{created}");
    let refused = hosts.refusal(&["finalize"]);
    assert!(refused.contains("c (level 1) cannot do more than the level 1"), "{refused}");
    assert_eq!(hosts.clients(0).ask(&["SET", "key", "1"]), "+OK");
    hosts.kill(2);
    let refused = hosts.refusal(&["finalize", "--host", "b"]);
    assert!(refused.contains("c did not answer"), "{refused}");
    let refused = hosts.refusal(&["finalize", "--host", "b", "--without", "x"]);
    assert!(refused.contains("\"x\"") || refused.contains(" x"), "{refused}");
    let raised = hosts.cluster(&["finalize", "--host", "b", "--without", "c"]).unwrap();
    assert!(raised.contains("has level 6 from now on"), "{raised}");
    hosts.run(2);
    hosts.until_all_count();
    (0..3).for_each(|number| hosts.until_level(number, 6));
    let table = hosts.cluster(&["status"]).unwrap();
    assert_eq!(table.matches(", level 6\n").count(), 3, "{table}");
    let again = hosts.cluster(&["finalize"]).unwrap();
    assert!(again.contains("level 6, which is the highest one"), "{again}");

    // Back to the earlier program: it serves nothing, says why, and ends.
    hosts.kill(2);
    hosts.run_with(2, &[EARLIER]);
    assert_eq!(hosts.ended(2), Some(1), "{}", hosts.log(2));
    assert!(hosts.log(2).contains("NS-3026"), "{}", hosts.log(2));
    assert_eq!(hosts.clients(0).ask(&["GET", "key"]), "1");
    hosts.run(2);
    hosts.until_all_count();
}

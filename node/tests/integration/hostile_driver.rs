//! Hostile connections to the hosts of a driven cluster.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use nearstate_wire::{Hello, PartitionPlace};

use crate::cluster_driver::{DrivenCluster, PARTITION, status};
use crate::hostile_peers::{Intruder, REPLACED_MAX, hello_of};
use crate::partition::refusal;

/// Members that answer keep their connections. On a busy machine one can be silent for too long.
fn repeat_hellos(cluster: &DrivenCluster) {
    let (owner, member) = (cluster.host(1), cluster.host(2));
    for name in ["driver-b", "driver-c"] {
        let is_refused = (0..REPLACED_MAX).any(|_| {
            let view = status(owner).unwrap().view;
            let applied = member.region.session().unwrap().following().unwrap().unwrap().applied;
            let own = owner.region.session().unwrap().log_identity().unwrap();
            let mut intruder = Intruder::connect(cluster.address(1));
            intruder.say(&hello_of(own, (name, view), applied));
            if intruder.is_welcome() {
                drop(intruder);
                cluster.owner_with(&[1, 2, 3]);
                return false;
            }
            let refused = intruder.refused();
            assert!(refused.starts_with("busy"), "{name}: {refused}");
            true
        });
        assert!(is_refused, "{name} is always replaced");
    }
}

#[test]
fn hostile_connections_cost_an_owner_neither_its_lease_nor_its_members() {
    let cluster = DrivenCluster::start();
    let (owner, member) = (cluster.host(1), cluster.host(2));
    repeat_hellos(&cluster);
    let before = status(owner).unwrap();
    let addresses = || -> BTreeSet<SocketAddr> {
        owner.driver.members(PARTITION).into_iter().map(|member| member.address).collect()
    };
    let connections = addresses();
    let applied = member.region.session().unwrap().following().unwrap().unwrap().applied;
    let own = owner.region.session().unwrap().log_identity().unwrap();
    let right = hello_of(own, ("driver-b", before.view), applied);
    let place = right.place;
    let of = |place: PartitionPlace| Hello { place, ..right.clone() };
    let views = [0, before.view + 1, before.view + (1 << 40)];
    let mut refusals = vec![
        ("cluster", Hello { name: "driver-d", ..right.clone() }),
        ("cluster", of(PartitionPlace { cluster_id: [7; 16], ..place })),
        ("cluster", of(PartitionPlace { partition: 8, ..place })),
        ("cluster", of(PartitionPlace::default())),
    ];
    refusals.extend(views.map(|view| ("view", of(PartitionPlace { view, ..place }))));
    for (reason, hello) in refusals {
        let mut intruder = Intruder::connect(cluster.address(1));
        intruder.say(&hello);
        let refused = intruder.refused();
        assert!(refused.starts_with(reason), "{hello:?}: {refused}");
    }
    let mut intruder = Intruder::connect(cluster.address(2));
    intruder.send_bytes(&[0xff; 100]);
    assert!(refusal(&intruder.address()).starts_with("format"));
    cluster.write(1, 0..10, 100);
    let after = status(owner).unwrap();
    assert_eq!((after.view, &after.full, after.role), (before.view, &before.full, "owner"));
    assert_eq!(addresses(), connections, "the members have kept their connections");
}

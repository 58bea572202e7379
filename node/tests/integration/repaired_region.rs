//! A region that was repaired may lack records. It is no copy of its partition any more, also if
//! its host returns within a lease.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nearstate_store::{AttachOptions, CreateOptions, Region, repair_with};

use crate::cluster_driver::DrivenCluster;
use crate::partition::{TestHost, contents, group, joins, put, replicate};

const RECORDS: u64 = 50;
const VALUE: [u8; 100] = [7; 100];

/// Flips a bit of a record's value, and repairs the file. The record is lost.
fn lose_a_record(path: &Path, value: &[u8]) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    bytes[at + value.len() / 2] ^= 1;
    fs::write(path, bytes).unwrap();
    let report = repair_with(path, &AttachOptions::default()).unwrap();
    assert!(!report.lost.is_empty(), "{report:?}");
}

fn repair(victim: u16) {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..RECORDS, VALUE.len());
    cluster.assert_equal(RECORDS);
    cluster.stop(victim);
    lose_a_record(&cluster.region(victim), &VALUE);
    // Within its lease.
    cluster.run(victim);
    cluster.assert_equal(RECORDS);
    let owner = cluster.owner_with(&[1, 2, 3]);
    cluster.write(owner, RECORDS..RECORDS + 10, VALUE.len());
    cluster.assert_equal(RECORDS + 10);
}

#[test]
fn an_owner_whose_region_was_repaired_gets_what_it_has_lost_from_its_members() {
    repair(1);
}

#[test]
fn a_member_whose_region_was_repaired_gets_what_it_has_lost() {
    repair(2);
}

/// It is all that is left, and an operator says so.
#[test]
fn an_owner_whose_region_was_repaired_begins_the_partition_anew_by_force() {
    let folder = Arc::new(tempfile::tempdir_in("/dev/shm").unwrap());
    let path = folder.path().join("region");
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    drop(Region::create(&path, &options).unwrap());
    let start =
        || TestHost::start("forced-repair-a", Region::attach(&path).unwrap(), Arc::clone(&folder));
    let mut host = start();
    host.own(1, None);
    put(&host.session(), 0..100);
    drop(host);
    lose_a_record(&path, &7_u64.to_le_bytes().repeat(20));
    let mut host = start();
    assert!(!host.partition.state().unwrap().is_bound);
    host.own(3, None);
    let state = host.partition.state().unwrap();
    assert!(state.is_bound && state.own.origin == 3, "{state:?}");
    assert_eq!(contents(&host.session()).len(), 99);
    put(&host.session(), 0..100);
    assert_eq!(contents(&host.session()).len(), 100);
}

#[test]
fn a_copy_that_has_become_complete_is_not_discarded_by_an_older_order() {
    let [mut owner, mut one, mut other] = group("older-order");
    let (before, records) = (joins(&one), contents(&one.session()));
    one.follow(1, &owner, true);
    put(&owner.session(), 500..520);
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
    assert_eq!(joins(&one), before, "it has joined anew");
    assert!(records.keys().all(|key| contents(&one.session()).contains_key(key)));
}

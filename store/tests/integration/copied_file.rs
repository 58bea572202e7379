//! A region that is bound to a cluster, in a copy of its file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use nearstate_store::{AttachOptions, Region, check, repair_with};

use crate::fixture::clean;
use crate::follow::Host;

/// The word that says which file was bound (`spec/region.md`, section 11).
const BOUND_FILE: u64 = 0x1000 + 0x018;
const CLUSTER: [u8; 16] = *b"0123456789abcdef";

/// The region in a copy of its file, under the same name.
fn copied(host: Host) -> Host {
    let Host { folder, region } = host;
    drop(region);
    let copy = folder.path.with_extension("copy");
    std::fs::copy(&folder.path, &copy).unwrap();
    std::fs::rename(&copy, &folder.path).unwrap();
    let region = Region::attach(&folder.path).unwrap();
    Host { folder, region }
}

#[test]
fn a_copy_of_a_bound_file_is_not_bound() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    assert!(!session.is_copied_file());
    session.bind(CLUSTER).unwrap();
    drop(session);
    let host = copied(host);
    let session = host.region.session().unwrap();
    assert!(!session.is_bound(CLUSTER).unwrap() && session.is_copied_file());
    assert_eq!(session.bound_cluster().unwrap(), Some(CLUSTER));
    session.bind_file(CLUSTER).unwrap();
    assert!(!session.is_bound(CLUSTER).unwrap(), "only a new binding says what the content is");
    session.bind(CLUSTER).unwrap();
    assert!(session.is_bound(CLUSTER).unwrap() && !session.is_copied_file());
    drop(session);
    host.check();
}

#[test]
fn a_region_that_an_earlier_version_has_bound_is_bound_to_its_file_later() {
    let host = Host::new();
    let word = File::options().read(true).write(true).open(&host.folder.path).unwrap();
    let load = || {
        let mut bytes = [0; 8];
        word.read_exact_at(&mut bytes, BOUND_FILE).unwrap();
        u64::from_le_bytes(bytes)
    };
    let session = host.region.session().unwrap();
    session.bind_file(CLUSTER).unwrap();
    assert_eq!(load(), 0, "it is not bound to the cluster");
    session.bind(CLUSTER).unwrap();
    let bound = load();
    word.write_all_at(&0_u64.to_le_bytes(), BOUND_FILE).unwrap();
    assert!(session.is_bound(CLUSTER).unwrap() && !session.is_copied_file());
    session.bind_file(CLUSTER).unwrap();
    assert_eq!(load(), bound);
    drop((session, word));
    let host = copied(host);
    assert!(!host.region.session().unwrap().is_bound(CLUSTER).unwrap());
}

#[test]
fn a_flipped_bit_of_the_bound_file_is_found_and_repaired() {
    let host = Host::new();
    host.region.session().unwrap().bind(CLUSTER).unwrap();
    let Host { folder, region } = host;
    drop(region);
    let path = &folder.path;
    let word = File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = [0; 8];
    word.read_exact_at(&mut bytes, BOUND_FILE).unwrap();
    for bit in 0..64 {
        let flipped = u64::from_le_bytes(bytes) ^ 1 << bit;
        word.write_all_at(&flipped.to_le_bytes(), BOUND_FILE).unwrap();
        let report = check(path).unwrap();
        assert!(!report.is_clean(), "bit {bit}");
        let region = Region::attach(path).unwrap();
        assert!(!region.session().unwrap().is_bound(CLUSTER).unwrap(), "bit {bit}");
    }
    let report = repair_with(path, &AttachOptions::default()).unwrap();
    assert!(report.lost.is_empty(), "{report:?}");
    clean(path);
    let region = Region::attach(path).unwrap();
    assert!(!region.session().unwrap().is_bound(CLUSTER).unwrap(), "it joins again");
}

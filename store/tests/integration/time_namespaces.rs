//! Processes of different time namespaces in one region: all judge a lease by the clock of the
//! machine.

use std::process::Command;
use std::time::Duration;

use nearstate_store::{OwnerLease, Region, lease_clock};

use crate::fixture::{TestFolder, arguments, is_root, output, region_path, skipped, succeeded};
use crate::full_region::create;

const LONG: Duration = Duration::from_secs(600);

/// Runs an ignored test in a namespace whose boot-time clock is shifted by some seconds. `None`,
/// with the reason printed, if this machine does not permit it.
fn run_shifted(test: &str, seconds: &str, folder: &TestFolder) -> Option<String> {
    let mut unshare = Command::new("unshare");
    unshare.args(["--time", "--fork", "--boottime", seconds]);
    let mut tried = Command::new("unshare");
    let tried = output(tried.args(["--time", "--fork", "--boottime", seconds, "true"]));
    if !is_root() || !tried.is_ok_and(|tried| tried.status.success()) {
        skipped("no process of another time namespace: only root may create one");
        return None;
    }
    unshare.arg(std::env::current_exe().unwrap());
    unshare.args(arguments(&format!("time_namespaces::{test}")));
    unshare.env("NEARSTATE_TEST_REGION", &folder.path);
    Some(succeeded(&output(&mut unshare).unwrap()))
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn a_reader_of_an_ended_lease() {
    let session = Region::attach(&region_path()).unwrap().session().unwrap();
    assert_eq!(session.owner_lease().unwrap(), OwnerLease::Expired);
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn a_reader_of_a_lease_that_is_held() {
    let session = Region::attach(&region_path()).unwrap().session().unwrap();
    assert!(matches!(session.owner_lease().unwrap(), OwnerLease::Held { .. }));
}

/// Without it, a container whose clock is ten minutes behind would answer reads ten minutes after
/// the end of a lease, and one whose clock is ahead would answer none.
#[test]
fn a_lease_ends_for_all_time_namespaces_at_once() {
    let folder = TestFolder::new();
    let session = create(&folder).session().unwrap();
    session.set_owner_lease(lease_clock()).unwrap();
    assert_eq!(session.owner_lease().unwrap(), OwnerLease::Expired);
    run_shifted("a_reader_of_an_ended_lease", "-600", &folder);
    session.set_owner_lease(lease_clock() + LONG).unwrap();
    run_shifted("a_reader_of_a_lease_that_is_held", "6000", &folder);
}

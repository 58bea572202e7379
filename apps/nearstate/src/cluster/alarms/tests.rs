//! When alarms are raised, and when they are cleared.

use super::*;
use crate::cluster::file::tests::GOOD;
use nearstate_node::MemberStatus;
use std::collections::BTreeSet;

const GUIDE: &str = include_str!("../../../../../docs/operate/cluster.md");

/// A status in which all is well.
pub(crate) fn healthy() -> ClusterStatus {
    let member = |host| MemberStatus {
        host: HostId(host),
        position: Some(9),
        silent_ms: 1,
        lag_ms: Some(0),
    };
    let copy = CopyStatus {
        partition: 1,
        view: 1,
        is_known: true,
        owner: Some(HostId(1)),
        excluded: None,
        reports: Vec::new(),
        reports_needed: 2,
        is_degraded: false,
        is_degraded_owner_silent: false,
        is_drain_undecided: false,
        view_seen: 1,
        revision_seen: 1,
        is_state_older: false,
        is_complete: true,
        group: [1, 2, 3].map(HostId).to_vec(),
        full: [1, 2, 3].map(HostId).into(),
        role: "owner",
        lease_ms: 100,
        origin: 1,
        position: 9,
        replicated: 9,
        sealed: None,
        loss: None,
        bytes_free: 50,
        file_system_bytes_free: None,
        is_file_system_known: true,
        bytes_max: 100,
        promotions_left: PROMOTIONS_MAX,
        clock_shift_ms: 0,
        members: vec![member(2), member(3)],
    };
    let engine =
        EngineStatus { leader: Some(1), voters: [1, 2, 3].into(), ..EngineStatus::default() };
    ClusterStatus { engine, copies: vec![copy], ..ClusterStatus::default() }
}

fn ids(change: impl Fn(&mut ClusterStatus)) -> Vec<&'static str> {
    let file = ClusterFile::parse(GOOD).unwrap();
    let mut status = healthy();
    change(&mut status);
    let all = raised((&file, HostId(1)), &status, &Failures::default());
    all.iter().map(|alarm| alarm.kind.id).collect()
}

#[test]
fn each_condition_raises_its_alarm() {
    assert_eq!(ids(|_| ()), Vec::<&str>::new());
    assert_eq!(ids(|status| status.copies[0].owner = None), ["NS-5001"]);
    assert_eq!(ids(|status| status.copies[0].role = "fenced"), ["NS-5002"]);
    let alone = |status: &mut ClusterStatus| status.copies[0].full = [HostId(1)].into();
    assert_eq!(ids(alone), ["NS-5003", "NS-5004"]);
    let two = |status: &mut ClusterStatus| {
        status.copies[0].full.pop_last();
    };
    assert_eq!(ids(two), ["NS-5004"]);
    let lag = |lag_ms| {
        move |status: &mut ClusterStatus| {
            status.copies[0].members[1].lag_ms = lag_ms;
        }
    };
    assert_eq!(ids(lag(Some(1001))), ["NS-5005"]);
    assert_eq!(ids(lag(None)), Vec::<&str>::new());
    assert_eq!(ids(|status| status.engine.failure = Some("disk".to_owned())), ["NS-5006"]);
    assert_eq!(ids(|status| status.engine.leader = None), ["NS-5007"]);
    let silent = |ms| {
        move |status: &mut ClusterStatus| {
            status.engine.unanswered_ms = [(2, 40), (3, ms)].into();
        }
    };
    assert_eq!(ids(silent(4999)), Vec::<&str>::new());
    assert_eq!(ids(silent(5000)), ["NS-5017"]);
    assert_eq!(ids(|status| status.copies[0].bytes_free = 10), Vec::<&str>::new());
    assert_eq!(ids(|status| status.copies[0].bytes_free = 9), ["NS-5008"]);
    assert_eq!(ids(|status| status.engine.voters = BTreeSet::new()), ["NS-5011"]);
    let used = |left| move |status: &mut ClusterStatus| status.copies[0].promotions_left = left;
    assert_eq!(ids(used(PROMOTIONS_MAX / 2)), Vec::<&str>::new());
    assert_eq!(ids(used(PROMOTIONS_MAX / 2 - 1)), ["NS-5018"]);
    let shifted = |ms| move |status: &mut ClusterStatus| status.copies[0].clock_shift_ms = ms;
    assert_eq!(ids(shifted(999)), Vec::<&str>::new());
    assert_eq!([ids(shifted(1000)), ids(shifted(-3_600_000))], [["NS-5019"], ["NS-5019"]]);
    let held = |status: &mut ClusterStatus| {
        status.copies[0].role = "draining";
        status.copies[0].is_drain_undecided = true;
    };
    assert_eq!(ids(held), ["NS-5015"]);
    // After a start, or when the host was removed, the state that it has may be long past.
    let unknown = |status: &mut ClusterStatus| {
        status.copies[0].full = [HostId(1)].into();
        status.copies[0].is_known = false;
    };
    assert_eq!(ids(unknown), Vec::<&str>::new());
    let removed = |status: &mut ClusterStatus| {
        status.engine.is_removed = true;
        status.engine.leader = None;
    };
    assert_eq!(ids(removed), Vec::<&str>::new());
    // Another host is the owner, and raises it.
    let other = |status: &mut ClusterStatus| {
        status.copies[0].owner = Some(HostId(2));
        status.copies[0].full.pop_last();
    };
    assert_eq!(ids(other), Vec::<&str>::new());
    // It raises nothing if its copy alone suffices and it is lost: this host does.
    let lost = |status: &mut ClusterStatus| {
        status.copies[0].owner = Some(HostId(2));
        status.copies[0].is_degraded_owner_silent = true;
    };
    assert_eq!(ids(lost), ["NS-5013"]);
    let file = ClusterFile::parse(GOOD).unwrap();
    let ends = Failures { certificate: Some("soon".to_owned()), ..Failures::default() };
    let all = raised((&file, HostId(1)), &healthy(), &ends);
    assert_eq!(all.iter().map(|alarm| alarm.kind.id).collect::<Vec<_>>(), ["NS-5020"]);
}

#[test]
fn a_failed_membership_with_etcd_names_its_endpoints() {
    let etcd = "[etcd]\nendpoints = [\"http://127.0.0.1:2379\"]\n[[partition]]";
    let text = GOOD.replacen("copies = 3", "copies = 3\nengine = \"etcd\"", 1);
    let file = ClusterFile::parse(&text.replacen("[[partition]]", etcd, 1)).unwrap();
    let mut status = healthy();
    status.engine.failure = Some("no reply".to_owned());
    let all = raised((&file, HostId(1)), &status, &Failures::default());
    assert!(all[0].detail.contains("no reply (etcd.endpoints: "), "{}", all[0].detail);
    assert!(all[0].detail.contains("127.0.0.1:2379"), "{}", all[0].detail);
}

#[test]
fn failures_raise_alarms_of_their_partition() {
    let file = ClusterFile::parse(GOOD).unwrap();
    let mut failures = Failures::default();
    failures.copies.insert(PartitionId(1), "full".to_owned());
    failures.clients.insert(PartitionId(1), "in use".to_owned());
    let all = raised((&file, HostId(1)), &healthy(), &failures);
    let all: Vec<_> = all.iter().map(|one| (one.kind.id, one.subject.as_str())).collect();
    assert_eq!(all, [("NS-5009", "amf"), ("NS-5010", "amf")]);
}

#[test]
fn a_copy_whose_file_system_is_full_says_so() {
    let mut copy = healthy().copies.remove(0);
    copy.bytes_free = 9;
    assert_eq!(nearly_full(&copy, false).unwrap(), "9 of 100 bytes are free");
    copy.file_system_bytes_free = Some(4);
    let detail = "9 of 100 bytes are free: the file system of the region has 4 bytes left";
    assert_eq!(nearly_full(&copy, false).unwrap(), detail);
    // It has less than the heap may need, and enough for now.
    copy.bytes_free = 10;
    assert_eq!(nearly_full(&copy, false), None);
    // One that was raised is cleared with a quarter more.
    copy.bytes_max = 1000;
    copy.bytes_free = 124;
    assert!(nearly_full(&copy, true).is_some());
    copy.bytes_free = 125;
    assert_eq!(nearly_full(&copy, true), None);
}

#[test]
fn an_alarm_about_room_stays_while_there_is_a_little_more_than_its_limit() {
    let file = ClusterFile::parse(GOOD).unwrap();
    let mut status = healthy();
    let free = |bytes_free| FileSystemSpace {
        bytes_free: Some(bytes_free),
        bytes_max: 1 << 40,
        files_free: None,
    };
    let mut failures = Failures { directory: Some(free(0)), ..Failures::default() };
    status.copies[0].bytes_free = 9;
    let ids = |status: &ClusterStatus, failures: &Failures| {
        let all = raised((&file, HostId(1)), status, failures);
        all.into_iter().map(|one| (one.kind.id, one.subject)).collect::<BTreeSet<_>>()
    };
    let first = ids(&status, &failures);
    assert_eq!(first.len(), 2);
    status.copies[0].bytes_free = 11;
    failures.directory = Some(free(70 << 20));
    assert_eq!(ids(&status, &failures), BTreeSet::new());
    failures.raised = first.clone();
    assert_eq!(ids(&status, &failures), first);
    status.copies[0].bytes_free = 13;
    failures.directory = Some(free(80 << 20));
    assert_eq!(ids(&status, &failures), BTreeSet::new());
}

#[test]
fn a_directory_without_room_raises_an_alarm_until_there_is_room() {
    let file = ClusterFile::parse(GOOD).unwrap();
    let raised_with = |bytes_free| {
        let directory =
            FileSystemSpace { bytes_free, bytes_max: 1 << 40, files_free: Some(1 << 20) };
        let failures = Failures { directory: Some(directory), ..Failures::default() };
        let all = raised((&file, HostId(1)), &healthy(), &failures);
        all.iter().map(|one| (one.kind.id, one.subject.clone())).collect::<Vec<_>>()
    };
    assert_eq!(raised_with(Some(0)), [("NS-5016", file.host_name(HostId(1)))]);
    assert_eq!(raised_with(Some(1 << 39)), []);
}

#[test]
fn a_failure_that_is_not_repeated_for_some_time_passes() {
    let begin = Instant::now();
    let at = |ms| begin + Duration::from_millis(ms);
    let first = CopyFailure::after(None, at(0), "view 4 has ended");
    let again = CopyFailure::after(Some(first), at(50), "view 4 has ended");
    assert!(!again.stays());
    let later = CopyFailure::after(Some(again.clone()), at(2000), "full");
    assert!(later.stays() && later.reason == "full");
    assert!(!again.is_over(at(5049)) && again.is_over(at(5050)));
    // The next fail-over.
    assert!(!CopyFailure::after(Some(again), at(60_000), "view 5 has ended").stays());
}

#[test]
fn an_alarm_is_raised_once_and_cleared_when_its_condition_ends() {
    let mut list = AlarmList::default();
    let alarm = |detail: &str| AlarmCondition {
        kind: NOT_REPLICATED,
        subject: "amf".to_owned(),
        detail: detail.to_owned(),
    };
    let begin = Instant::now();
    let update = |list: &mut AlarmList, now_ms, holding| {
        list.update((begin, now_ms), Duration::from_secs(2), holding)
    };
    assert_eq!(update(&mut list, 10, vec![alarm("1")]), [AlarmChange::Raised(alarm("1"))]);
    assert_eq!(update(&mut list, 20, vec![alarm("2")]), []);
    let shown = list.to_json();
    assert_eq!(shown[0]["state"], "raised");
    assert_eq!((&shown[0]["raised_ms"], &shown[0]["detail"]), (&json!(10), &json!("2")));
    assert_eq!(update(&mut list, 30, Vec::new()), [AlarmChange::Cleared(alarm("2"))]);
    let shown = list.to_json();
    assert_eq!((&shown[0]["state"], &shown[0]["cleared_ms"]), (&json!("cleared"), &json!(30)));
    assert_eq!(list.active().count(), 0);
    for at in 0..2 * CLEARED_MAX as u64 {
        update(&mut list, at, vec![alarm("3")]);
        update(&mut list, at, Vec::new());
    }
    assert_eq!(list.to_json().as_array().unwrap().len(), CLEARED_MAX);
}

/// A planned drain, a fail-over and the creation of a cluster have such moments.
#[test]
fn a_change_of_the_owner_or_of_the_leader_is_no_alarm_unless_it_lasts() {
    let begin = Instant::now();
    let lease = Duration::from_millis(300);
    let grace = change_passes(lease);
    assert_eq!(grace, Duration::from_secs(2));
    assert_eq!(change_passes(Duration::from_secs(10)), Duration::from_secs(20));
    for kind in [NO_OWNER, NO_LEADER] {
        let alarm = |detail: &str| AlarmCondition {
            kind,
            subject: "amf".to_owned(),
            detail: detail.to_owned(),
        };
        let mut list = AlarmList::default();
        let mut update = |ms: u64, holding: &[AlarmCondition]| {
            let now = begin + Duration::from_millis(ms);
            list.update((now, ms), grace, holding.to_vec())
        };
        // Again and again, and never for long.
        for round in 0..5 {
            assert_eq!(update(round * 2500, &[alarm("0 of 2 reports")]), []);
            assert_eq!(update(round * 2500 + 1999, &[alarm("1 of 2 reports")]), []);
            assert_eq!(update(round * 2500 + 2000, &[]), []);
        }
        assert_eq!(update(20_000, &[alarm("0 of 2 reports")]), []);
        let lasting = alarm("1 of 2 reports");
        let raised = [AlarmChange::Raised(lasting.clone())];
        assert_eq!(update(22_000, std::slice::from_ref(&lasting)), raised);
        assert_eq!(update(22_500, std::slice::from_ref(&lasting)), []);
        assert_eq!(update(23_000, &[]), [AlarmChange::Cleared(lasting.clone())]);
        assert_eq!(update(23_500, &[lasting]), []);
    }
}

#[test]
fn the_guide_has_every_alarm() {
    for kind in ALL {
        let row = format!(
            "| `{}` | {} | `{}` | {} |",
            kind.id,
            kind.severity.name(),
            kind.name,
            kind.advice
        );
        assert!(GUIDE.contains(&row), "docs/operate/cluster.md lacks\n{row}");
    }
}

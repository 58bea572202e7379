//! A kill at each step of a promotion by an operator's decision: the process that starts next finds
//! that the promotion is to be repeated, and completes it. Also if the copy is one whose demotion
//! was killed before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::Arc;
use std::time::Duration;

use nearstate_cluster::{
    ClusterConfig, ClusterState, Command, CopyMissingPolicy, Effects, FollowStart, Host,
    HostConfig, HostId, HostInput, MemberRole, Monotonic, PartitionConfig, PartitionId, ViewNumber,
};
use nearstate_store::{
    CreateOptions, FollowPosition, FollowState, FollowedNamespace, FollowedRecord, Kind,
    LogIdentity, Namespace, NamespaceRules, Region, ReplicationPolicy, Schema, Session,
    StreamedChange,
};
use nearstate_wire::SharedSettings;

use super::copy_thread::{copy_facts, log_position};
use crate::partition::{FollowTarget, Freeze, Partition, PartitionOptions};

const CLUSTER: [u8; 16] = [5; 16];
const PARTITION: PartitionId = PartitionId(1);
const HOST: HostId = HostId(1);
/// The view that the exclusion begins, in which the operator decides.
const VIEW: ViewNumber = ViewNumber(2);
const RECORDS: u64 = 40;

/// What the operator decides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Decision {
    /// The partition begins anew with a copy that was joining.
    ForceNew,
    /// The same with an old owner's copy, whose demotion was killed at this point.
    ForceNewDemoted(&'static str),
    /// The excluded owner goes on with what it has.
    AcceptLoss,
}

/// The points that a demotion passes once its region is no owner's any more.
const DEMOTION: [&str; 8] = [
    "demote.begun",
    "log.gap_stored",
    "demote.forgotten",
    "log.origin",
    "log.incarnation",
    "follow.cleared",
    "follow.unnamed",
    "follow.named",
];

/// The points that a promotion passes.
const DECISIONS: [(Decision, &[&str]); 3] = [
    (
        Decision::ForceNew,
        &[
            "cluster.fenced",
            "follow.cleared",
            "follow.unnamed",
            "follow.named",
            "log.origin",
            "log.incarnation",
            "promote.cleared",
            "follow.state",
            "promote.chosen",
            "follow.raised",
        ],
    ),
    (
        Decision::ForceNewDemoted("demote.begun"),
        &[
            "cluster.fenced",
            "demote.sealed",
            "demote.begun",
            "demote.forgotten",
            "log.origin",
            "log.incarnation",
            "follow.cleared",
            "follow.named",
            "promote.cleared",
            "follow.state",
            "promote.chosen",
            "follow.raised",
        ],
    ),
    (Decision::AcceptLoss, &["cluster.fenced", "log.origin", "log.incarnation"]),
];

fn open(region: &Region) -> Partition {
    let options = PartitionOptions {
        cluster_id: CLUSTER,
        partition: PARTITION.0,
        host: "a".to_owned(),
        settings: SharedSettings::default(),
        lease: Duration::from_millis(400),
        namespaces: NamespaceRules::new([(ReplicationPolicy::Async, "*".to_owned())]).unwrap(),
        members: BTreeSet::new(),
        kills_stopped: false,
        tls: None,
        on_event: |_| (),
        inputs: Arc::new(|_| ()),
    };
    Partition::open(options, region).unwrap()
}

fn ue(session: &Session) -> Namespace {
    session.namespace("ue", &Schema::default()).unwrap()
}

/// A copy with some records that is joining, or complete.
fn join(session: &Session, is_complete: bool) {
    let source = LogIdentity { region: [1, 2], incarnation: 1, origin: 1 };
    let mut follower = session.follow().unwrap();
    follower.begin(source).unwrap();
    session.bind(CLUSTER).unwrap();
    let (policy, tags) = (ReplicationPolicy::Async, Vec::new());
    let (kind, name) = (Kind::Value, "ue");
    let namespace = FollowedNamespace { number: 7, name, kind, stamp: 1, policy, tags };
    follower.namespace(&namespace).unwrap();
    for number in 0..RECORDS {
        let (key, change) =
            (number.to_le_bytes(), StreamedChange::Put { value: b"v", meta: &[], is_set: false });
        let (namespace, version) = (7, number + 1);
        let record = FollowedRecord { namespace, key: &key, version, base_version: None, change };
        follower.apply_joining(&record).unwrap();
    }
    if is_complete {
        follower.complete(FollowPosition { position: 9, check: 1 }).unwrap();
    }
}

fn own(partition: &Partition, session: &Session) {
    partition.promote(1, None).unwrap();
    partition.serve(1).unwrap();
    partition.set_fenced(false).unwrap();
    (0..RECORDS).for_each(|number| drop(session.put(ue(session), &number.to_le_bytes(), b"v")));
}

fn config() -> ClusterConfig {
    let group = vec![HOST, HostId(2), HostId(3)];
    ClusterConfig {
        hosts: group.iter().map(|id| HostConfig { id: *id, name: id.to_string() }).collect(),
        partitions: vec![PartitionConfig { id: PARTITION, name: "p".to_owned(), group }],
        copies: 3,
        acknowledgements: 2,
        lease_ms: 400,
        copy_missing: CopyMissingPolicy::Stop,
    }
}

/// The state behind the decision.
fn decided(decision: Decision, seal: Option<(LogIdentity, FollowPosition)>) -> ClusterState {
    let (partition, view, host) = (PARTITION, VIEW, HOST);
    let mut state = ClusterState::new(&config()).unwrap();
    state.apply(&Command::Exclude { partition, view: ViewNumber(1) });
    match (decision, seal) {
        (Decision::AcceptLoss, Some((log, place))) => {
            let held = log_position(log, place);
            state.apply(&Command::Report { partition, view, host, held });
            state.apply(&Command::AcceptLoss { partition, view, host });
        }
        _ => drop(state.apply(&Command::ForceNew { partition, view, host })),
    }
    state
}

/// What a process of the host does that starts now.
fn role(partition: &Partition, state: &ClusterState) -> Option<MemberRole> {
    let (mut host, mut effects) = (Host::new(HOST, 9, Monotonic(1)), Effects::new());
    let mut state = state.clone();
    state.apply(&Command::Register { partition: PARTITION, host: HOST, process: 9 });
    let facts = copy_facts(&partition.state().unwrap());
    host.step(Monotonic(1), HostInput::Region { partition: PARTITION, facts }, &mut effects);
    host.step(Monotonic(1), HostInput::State(&state), &mut effects);
    host.role(PARTITION)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn a_step_in_another_process() {
    let region = Region::attach(&PathBuf::from(variable("NEARSTATE_TEST_REGION"))).unwrap();
    let partition = open(&region);
    let step = variable("NEARSTATE_TEST_STEP");
    if step == "Demote" {
        let _ = partition.demote(VIEW.0, None).unwrap();
        return;
    }
    let seal = (!step.starts_with("ForceNew")).then(|| frozen(&partition));
    partition.promote(VIEW.0, seal).unwrap();
}

fn frozen(partition: &Partition) -> (LogIdentity, FollowPosition) {
    match partition.freeze(VIEW.0).unwrap() {
        Freeze::Frozen { log, place, .. } => (log, place),
        Freeze::NotFull => panic!("not full"),
    }
}

/// Runs the step in a process of its own. True if it was killed.
fn is_killed(path: &Path, step: &str, plan: &str) -> bool {
    let test = "cluster::killed_promotion::a_step_in_another_process";
    let ended = Process::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--test-threads=1"])
        .env("NEARSTATE_TEST_REGION", path)
        .env("NEARSTATE_TEST_STEP", step)
        .env("NEARSTATE_CRASH_AT", plan)
        .output()
        .unwrap();
    assert!(ended.status.code().is_none() || ended.status.success(), "{ended:?}");
    !ended.status.success()
}

/// A region before the promotion, and the seal.
fn prepare(path: &Path, decision: Decision) -> Option<(LogIdentity, FollowPosition)> {
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(path, &options).unwrap();
    let (partition, session) = (open(&region), region.session().unwrap());
    session.see_view(1).unwrap();
    match decision {
        Decision::ForceNew => join(&session, false),
        Decision::ForceNewDemoted(_) | Decision::AcceptLoss => own(&partition, &session),
    }
    let seal = (decision == Decision::AcceptLoss).then(|| frozen(&partition));
    drop((partition, session, region));
    if let Decision::ForceNewDemoted(point) = decision {
        assert!(is_killed(path, "Demote", &format!("{point}:1")), "a demotion passes no {point}");
    }
    seal
}

#[test]
fn a_promotion_by_an_operator_is_repeated_after_a_kill_at_any_step() {
    let mut kills = 0;
    for (decision, points) in DECISIONS {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        for point in points {
            for occurrence in 1..=3 {
                let plan = format!("{point}:{occurrence}");
                let path = folder.path().join(&plan);
                let seal = prepare(&path, decision);
                let state = decided(decision, seal);
                let is_first = is_killed(&path, &format!("{decision:?}"), &plan);
                complete(&path, (seal, &state), &format!("{decision:?}, {plan}"));
                std::fs::remove_file(&path).unwrap();
                if !is_first {
                    assert_ne!(occurrence, 1, "{decision:?} does not pass {point}");
                    break;
                }
                kills += 1;
            }
        }
    }
    assert!(kills >= 30, "{kills} kills");
}

#[test]
fn a_copy_whose_demotion_was_killed_at_any_step_is_promoted_by_an_operator() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for point in DEMOTION {
        let (path, decision) = (folder.path().join(point), Decision::ForceNewDemoted(point));
        let seal = prepare(&path, decision);
        // It has no copy that could be reported: otherwise the operator is refused.
        let region = Region::attach(&path).unwrap();
        assert_eq!(open(&region).freeze(VIEW.0).unwrap(), Freeze::NotFull, "{point}");
        complete(&path, (seal, &decided(decision, seal)), point);
        std::fs::remove_file(&path).unwrap();
    }
}

/// Another host owns the partition since, and has what this copy has: it follows with its records.
#[test]
fn a_copy_whose_promotion_was_killed_follows_another_owner_with_its_records() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for point in ["follow.state", "follow.raised", "declare.ended", "takeover.stored"] {
        let path = folder.path().join(point);
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&path, &options).unwrap();
        let session = region.session().unwrap();
        session.see_view(1).unwrap();
        join(&session, true);
        drop((session, region));
        assert!(is_killed(&path, "Promote", &format!("{point}:1")), "it passes no {point}");
        let region = Region::attach(&path).unwrap();
        let (partition, session) = (open(&region), region.session().unwrap());
        let following = session.following().unwrap().unwrap();
        assert_eq!(following.state, FollowState::Promoting, "{point}");
        let state = owned_by_another(log_position(following.source, following.applied));
        let continues = Some(MemberRole::Following(FollowStart::Continue));
        assert_eq!(role(&partition, &state), continues, "{point}");
        let (view, name, address) = (VIEW.0, "b", "127.0.0.1:9");
        let target = FollowTarget { view, name, address, clients: None, discards: false };
        partition.follow(&target).unwrap();
        let kept = session.following().unwrap().unwrap();
        assert_eq!(kept, nearstate_store::Following { state: FollowState::Full, ..following });
        assert_eq!(session.count(ue(&session)).unwrap(), RECORDS, "{point}");
        assert_eq!(role(&partition, &state), continues, "{point}");
    }
}

/// Another host has taken over, with a copy that holds as much.
fn owned_by_another(held: nearstate_cluster::LogPosition) -> ClusterState {
    let (partition, view, host) = (PARTITION, VIEW, HostId(2));
    let mut state = ClusterState::new(&config()).unwrap();
    state.apply(&Command::Exclude { partition, view: ViewNumber(1) });
    state.apply(&Command::Report { partition, view, host, held });
    state.apply(&Command::AcceptLoss { partition, view, host });
    assert_eq!(state.group(partition).unwrap().owner(), Some(host));
    state
}

/// The next process repeats the promotion, and has everything.
fn complete(
    path: &Path,
    (seal, state): (Option<(LogIdentity, FollowPosition)>, &ClusterState),
    plan: &str,
) {
    let region = Region::attach(path).unwrap();
    let (partition, session) = (open(&region), region.session().unwrap());
    let before = role(&partition, state);
    let repeats = matches!(before, Some(MemberRole::Promoting | MemberRole::Serving));
    assert!(repeats, "{plan}: {before:?}, {:?}", partition.state());
    if before == Some(MemberRole::Promoting) {
        partition.promote(VIEW.0, seal).unwrap();
    }
    assert_eq!(role(&partition, state), Some(MemberRole::Serving), "{plan}");
    partition.serve(VIEW.0).unwrap();
    partition.set_fenced(false).unwrap();
    assert_eq!(session.count(ue(&session)).unwrap(), RECORDS, "{plan}");
    session.put(ue(&session), b"more", b"v").unwrap();
}

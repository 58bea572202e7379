//! Alarms of a host: what is wrong with its cluster at present, and what was until a while ago.
//!
//! An alarm is a condition of the status. It is raised when the condition begins to hold, and
//! cleared when it ends, so no operator has to acknowledge one. Its id is stable.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use nearstate_cluster::{HostId, PartitionId};
use nearstate_node::{ClusterStatus, CopyStatus, EngineStatus, FileSystemSpace};
use serde_json::{Value, json};

use super::file::ClusterFile;
use super::resources;

/// Cleared alarms that are kept.
const CLEARED_MAX: usize = 64;

/// A member that lags by more than this gives an alarm: a fail-over to it would take as long.
const LAG_MS_MAX: u64 = 1000;

/// A copy with less than this part of its heap free gives an alarm, in percent.
const FREE_PERCENT_MIN: u64 = 10;

/// A failure of a copy is over when it was not repeated for this time: it is tried each 50 ms, and
/// a full copy each quarter of a lease, of at most 10 s.
pub(crate) const FAILURE_KEPT: Duration = Duration::from_secs(5);

/// A failure that is repeated for this time is one. What a host begins and its view has ended
/// meanwhile fails at each fail-over: it is tried again, or has ended, within some 50 ms.
const FAILURE_PASSES: Duration = Duration::from_secs(2);

/// Failures of a copy, each of which came soon after the one before it.
#[derive(Clone, Debug)]
pub(crate) struct CopyFailure {
    since: Instant,
    last: Instant,
    pub(crate) reason: String,
}

impl CopyFailure {
    /// What is known after a further failure.
    pub(crate) fn after(earlier: Option<Self>, now: Instant, reason: &str) -> Self {
        let reason = reason.to_owned();
        match earlier.filter(|earlier| !earlier.is_over(now)) {
            Some(earlier) => Self { last: now, reason, ..earlier },
            None => Self { since: now, last: now, reason },
        }
    }

    /// Whether it was not repeated for some time.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= FAILURE_KEPT
    }

    /// Whether it has been repeated, and does not pass by itself.
    pub(crate) fn stays(&self) -> bool {
        self.last.saturating_duration_since(self.since) >= FAILURE_PASSES
    }
}

/// How much an alarm matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Clients are not served, or what they write can be lost with one host.
    Critical,
    /// The next loss of a host may have that effect.
    Major,
    /// Something to look at.
    Minor,
}

impl Severity {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Major => "major",
            Self::Minor => "minor",
        }
    }
}

/// A kind of alarm.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AlarmKind {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) severity: Severity,
    /// When it is raised, and what to do. For the table in `docs/operate/cluster.md`.
    pub(crate) advice: &'static str,
}

macro_rules! alarms {
    ($($constant:ident = $id:literal $severity:ident $name:literal $advice:literal;)+) => {
        $(const $constant: &AlarmKind = &AlarmKind {
            id: $id,
            name: $name,
            severity: Severity::$severity,
            advice: $advice,
        };)+

        /// All kinds, in the order of their ids.
        #[cfg(test)]
        pub(crate) const ALL: &[&AlarmKind] = &[$($constant),+];
    };
}

alarms! {
    NO_OWNER = "NS-5001" Critical "partition-without-owner"
        "The members decide which one owns the partition. If it stays, too many of them are lost: \
         start their nodes, or, while a majority of the voters runs, `nearstate cluster \
         accept-loss`.";
    FENCED = "NS-5002" Critical "owner-without-lease"
        "This host owns the partition and hears too few members. Writers are refused. Check the \
         network and the other hosts.";
    NOT_REPLICATED = "NS-5003" Critical "nothing-replicated"
        "Fewer copies are complete than acknowledgements are configured. Start the nodes of the \
         other hosts of the group.";
    COPIES_MISSING = "NS-5004" Major "copies-missing"
        "A host of the group has no complete copy: it is lost, or it joins. The group survives one \
         loss less.";
    LAGS = "NS-5005" Minor "member-lags"
        "A member lags by more than a second. Its host is overloaded, or the network is too slow.";
    ENGINE_FAILED = "NS-5006" Critical "membership-failed"
        "The membership has stopped on this host, mostly because of a full disk, or \
         because no endpoint of etcd answers. It starts again by itself, unless its \
         directory lacks what was stored in it, or contradicts another host: the detail \
         says what to do.";
    NO_LEADER = "NS-5007" Critical "membership-without-leader"
        "This host knows no leader: no fail-over is possible. Start a majority of the voters.";
    NEARLY_FULL = "NS-5008" Major "region-nearly-full"
        "Less than 10 % of the copy's heap is free. Delete records, or give the partition a larger \
         region on all hosts. If the detail names the file system of the region, that has no room \
         for the rest of the heap: make room there, or enlarge it.";
    COPY_FAILED = "NS-5009" Major "copy-failed"
        "The copy on this host could not be used for two seconds, and in the last five seconds. \
         The detail says why.";
    NOT_SERVED = "NS-5010" Critical "clients-not-served"
        "This host owns the partition and cannot serve its clients, mostly because an address is \
         in use. Free it: the node tries again every second.";
    NOT_CREATED = "NS-5011" Minor "cluster-not-created"
        "The host knows no voters. Run `nearstate cluster init` once, or check the addresses.";
    ONE_COPY = "NS-5012" Critical "one-copy-suffices"
        "The other copy has been missing for the time of `cluster.when_copy_missing`: commits are \
         on this host only, and its loss loses them. Start the node of the other host.";
    DEGRADED_OWNER = "NS-5013" Critical "degraded-owner-silent"
        "The host whose copy alone suffices shows no life, and no host takes over by itself. Start \
         its node. If it is lost, `nearstate cluster accept-loss` gives the partition to this \
         host: what was committed while one copy sufficed is lost.";
    FILE_GONE = "NS-5014" Major "region-file-removed"
        "The file of the copy was removed or replaced. It is lost when the node ends. Drain this \
         host, and restart its node: it joins again. Find what has removed the file (`NS-3027`).";
    DRAIN_UNDECIDED = "NS-5015" Critical "drain-undecided"
        "This host is drained, and the membership has not decided it. Writers are refused until it \
         has: then another member takes over, or this host is the owner again if too few report. \
         Start a majority of the voters, or etcd. The detail says what is missing.";
    DIRECTORY_NEARLY_FULL = "NS-5016" Major "directory-nearly-full"
        "The file system of `cluster.directory` has little room left. When it is full, this host \
         neither votes nor learns decisions. Make room there: the detail says how much is left.";
}

/// A condition that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AlarmCondition {
    pub(crate) kind: &'static AlarmKind,
    /// The partition, the member or the host.
    pub(crate) subject: String,
    pub(crate) detail: String,
}

/// What the status does not contain: failures, with their reasons.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    /// What the file system of `cluster.directory` has left. `None`: it does not tell.
    pub(crate) directory: Option<FileSystemSpace>,
    /// Copies that could not be used lately.
    pub(crate) copies: BTreeMap<PartitionId, String>,
    /// Owned partitions whose clients are not served.
    pub(crate) clients: BTreeMap<PartitionId, String>,
    /// The files of copies that were removed or replaced.
    pub(crate) files: BTreeMap<PartitionId, String>,
}

/// The conditions that hold.
pub(crate) fn raised(
    (file, own): (&ClusterFile, HostId),
    status: &ClusterStatus,
    failures: &Failures,
) -> Vec<AlarmCondition> {
    let mut all = Vec::new();
    let mut raise = |kind, subject: String, detail: String| {
        all.push(AlarmCondition { kind, subject, detail });
    };
    let host = file.host_name(own);
    let engine = &status.engine;
    if let Some(failure) = &engine.failure {
        let detail = match file.etcd_endpoints() {
            Some(endpoints) => format!("{failure} (etcd.endpoints: {endpoints})"),
            None => failure.clone(),
        };
        raise(ENGINE_FAILED, host, detail);
    } else if engine.voters.is_empty() {
        raise(NOT_CREATED, host, "no voters are known".to_owned());
    } else if engine.leader.is_none() && !engine.is_removed {
        raise(NO_LEADER, host, format!("{} hosts vote", engine.voters.len()));
    }
    for copy in &status.copies {
        if !engine.voters.is_empty() && copy.is_known {
            copy_alarms((file, own), copy, &mut raise);
        }
        if copy.is_drain_undecided {
            let partition = file.partition_name(PartitionId(copy.partition));
            raise(DRAIN_UNDECIDED, partition, undecided(engine));
        }
        if let Some(detail) = nearly_full(copy) {
            raise(NEARLY_FULL, file.partition_name(PartitionId(copy.partition)), detail);
        }
    }
    if let Some(detail) = failures.directory.and_then(|space| resources::shortage(&space)) {
        raise(DIRECTORY_NEARLY_FULL, file.host_name(own), detail);
    }
    for (partition, reason) in &failures.copies {
        raise(COPY_FAILED, file.partition_name(*partition), reason.clone());
    }
    for (partition, reason) in &failures.clients {
        raise(NOT_SERVED, file.partition_name(*partition), reason.clone());
    }
    for (partition, path) in &failures.files {
        raise(FILE_GONE, file.partition_name(*partition), path.clone());
    }
    all
}

/// How much of a copy's heap is free, if that is little.
fn nearly_full(copy: &CopyStatus) -> Option<String> {
    let percent = copy.bytes_free.saturating_mul(100).checked_div(copy.bytes_max)?;
    let why = copy.file_system_bytes_free.map_or_else(String::new, |bytes| {
        format!(": the file system of the region has {bytes} bytes left")
    });
    (percent < FREE_PERCENT_MIN)
        .then(|| format!("{} of {} bytes are free{why}", copy.bytes_free, copy.bytes_max))
}

/// Why the membership decides nothing, as far as this host knows.
fn undecided(engine: &EngineStatus) -> String {
    match (&engine.failure, engine.leader) {
        (Some(failure), _) => failure.clone(),
        (None, None) => "this host knows no leader of the membership".to_owned(),
        (None, Some(_)) => "no majority of the voters has answered yet".to_owned(),
    }
}

fn copy_alarms(
    (file, own): (&ClusterFile, HostId),
    copy: &CopyStatus,
    raise: &mut impl FnMut(&'static AlarmKind, String, String),
) {
    let partition = file.partition_name(PartitionId(copy.partition));
    let Some(owner) = copy.owner else {
        let (reports, needed) = (copy.reports.len(), copy.reports_needed);
        raise(NO_OWNER, partition, format!("{reports} of {needed} reports"));
        return;
    };
    if copy.is_degraded_owner_silent {
        let (owner, own) = (file.host_name(owner), file.host_name(own));
        let detail = if copy.is_complete {
            format!("{owner} owns it; {own} has a complete older copy: accept-loss --to {own}")
        } else {
            format!(
                "{owner} owns it; the copy of {own} has gaps: only force-new --to {own} is left"
            )
        };
        raise(DEGRADED_OWNER, partition, detail);
        return;
    }
    // The others know it from the same state: one host raises it.
    if owner != own {
        return;
    }
    if copy.role == "fenced" {
        raise(FENCED, partition.clone(), format!("view {}", copy.view));
    }
    let (full, group) = (copy.full.len(), copy.group.len());
    let needed = usize::from(file.config.acknowledgements);
    if copy.is_degraded {
        raise(ONE_COPY, partition.clone(), format!("1 of {needed} copies"));
    } else if full < needed {
        let detail = format!("{full} complete copies, {needed} acknowledgements");
        raise(NOT_REPLICATED, partition.clone(), detail);
    }
    if full < group {
        let missing = copy.group.iter().filter(|host| !copy.full.contains(host));
        let missing: Vec<_> = missing.map(|host| file.host_name(*host)).collect();
        raise(COPIES_MISSING, partition.clone(), missing.join(", "));
    }
    // One whose lag is not known joins: its copy is missing.
    let lags = copy.members.iter().filter_map(|member| Some((member.host, member.lag_ms?)));
    for (host, lag_ms) in lags.filter(|(_, lag_ms)| *lag_ms > LAG_MS_MAX) {
        let subject = format!("{partition} on {}", file.host_name(host));
        raise(LAGS, subject, format!("{lag_ms} ms"));
    }
}

/// An alarm that was raised.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AlarmRecord {
    what: AlarmCondition,
    raised_ms: u64,
    cleared_ms: Option<u64>,
}

/// The alarms of a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlarmList {
    active: BTreeMap<(&'static str, String), AlarmRecord>,
    cleared: VecDeque<AlarmRecord>,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AlarmChange {
    Raised(AlarmCondition),
    Cleared(AlarmCondition),
}

impl AlarmList {
    /// Compares with the conditions that hold now, at this time in milliseconds since 1970.
    pub(crate) fn update(&mut self, now_ms: u64, holding: Vec<AlarmCondition>) -> Vec<AlarmChange> {
        let mut changes = Vec::new();
        let mut before = std::mem::take(&mut self.active);
        for what in holding {
            let key = (what.kind.id, what.subject.clone());
            let raised_ms = before.remove(&key).map_or_else(
                || {
                    changes.push(AlarmChange::Raised(what.clone()));
                    now_ms
                },
                |known| known.raised_ms,
            );
            self.active.insert(key, AlarmRecord { what, raised_ms, cleared_ms: None });
        }
        for alarm in before.into_values() {
            changes.push(AlarmChange::Cleared(alarm.what.clone()));
            if self.cleared.len() >= CLEARED_MAX {
                self.cleared.pop_front();
            }
            self.cleared.push_back(AlarmRecord { cleared_ms: Some(now_ms), ..alarm });
        }
        changes
    }

    /// The kinds of which one is raised, each as often as it is.
    pub(crate) fn active(&self) -> impl Iterator<Item = (&'static AlarmKind, &str)> {
        self.active.values().map(|alarm| (alarm.what.kind, alarm.what.subject.as_str()))
    }

    /// All alarms as JSON: those that are raised first, the most severe ones at the front, then
    /// those that are cleared, the last ones at the front.
    pub(crate) fn to_json(&self) -> Value {
        let mut active: Vec<_> = self.active.values().collect();
        active.sort_by_key(|alarm| (alarm.what.kind.severity, alarm.raised_ms));
        let all = active.into_iter().chain(self.cleared.iter().rev());
        let one = |alarm: &AlarmRecord| {
            json!({
                "id": alarm.what.kind.id,
                "name": alarm.what.kind.name,
                "severity": alarm.what.kind.severity.name(),
                "subject": alarm.what.subject,
                "detail": alarm.what.detail,
                "state": if alarm.cleared_ms.is_some() { "cleared" } else { "raised" },
                "raised_ms": alarm.raised_ms,
                "cleared_ms": alarm.cleared_ms,
            })
        };
        all.map(one).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cluster::file::tests::GOOD;
    use nearstate_node::MemberStatus;
    use std::collections::BTreeSet;

    const GUIDE: &str = include_str!("../../../../docs/operate/cluster.md");

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
        assert_eq!(ids(|status| status.copies[0].bytes_free = 10), Vec::<&str>::new());
        assert_eq!(ids(|status| status.copies[0].bytes_free = 9), ["NS-5008"]);
        assert_eq!(ids(|status| status.engine.voters = BTreeSet::new()), ["NS-5011"]);
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
        assert_eq!(nearly_full(&copy).unwrap(), "9 of 100 bytes are free");
        copy.file_system_bytes_free = Some(4);
        let detail = "9 of 100 bytes are free: the file system of the region has 4 bytes left";
        assert_eq!(nearly_full(&copy).unwrap(), detail);
        // It has less than the heap may need, and enough for now.
        copy.bytes_free = 10;
        assert_eq!(nearly_full(&copy), None);
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
            kind: NO_OWNER,
            subject: "amf".to_owned(),
            detail: detail.to_owned(),
        };
        assert_eq!(list.update(10, vec![alarm("1")]), [AlarmChange::Raised(alarm("1"))]);
        assert_eq!(list.update(20, vec![alarm("2")]), []);
        let shown = list.to_json();
        assert_eq!(shown[0]["state"], "raised");
        assert_eq!((&shown[0]["raised_ms"], &shown[0]["detail"]), (&json!(10), &json!("2")));
        assert_eq!(list.update(30, Vec::new()), [AlarmChange::Cleared(alarm("2"))]);
        let shown = list.to_json();
        assert_eq!((&shown[0]["state"], &shown[0]["cleared_ms"]), (&json!("cleared"), &json!(30)));
        assert_eq!(list.active().count(), 0);
        for at in 0..2 * CLEARED_MAX as u64 {
            list.update(at, vec![alarm("3")]);
            list.update(at, Vec::new());
        }
        assert_eq!(list.to_json().as_array().unwrap().len(), CLEARED_MAX);
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
}

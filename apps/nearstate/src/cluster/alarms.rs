//! Alarms of a host: what is wrong with its cluster at present, and what was until a while ago.
//!
//! An alarm is a condition of the status. It is raised when the condition begins to hold, and
//! cleared when it ends, so no operator has to acknowledge one. Its id is stable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use nearstate_cluster::{HostId, PartitionId};
use nearstate_node::{ClusterStatus, CopyStatus, EngineStatus, FileSystemSpace};
use nearstate_store::PROMOTIONS_MAX;
use serde_json::{Value, json};

use super::file::ClusterFile;
use super::resources;

/// Cleared alarms that are kept.
const CLEARED_MAX: usize = 64;

/// A voter that has not answered the leader of the membership for so long raises an alarm. A
/// heartbeat is some tens of milliseconds, and a node that is restarted at once is no loss.
const VOTER_SILENT_MS: u64 = 5_000;

/// A member that lags by more than this gives an alarm: a fail-over to it would take as long.
const LAG_MS_MAX: u64 = 1000;

/// A clock of expiry that differs from the wall clock of the host by this gives an alarm, as a
/// difference between hosts gives a warning; and until it differs by less than half of it.
const CLOCK_SHIFT_MS: u64 = 1000;

/// A copy with less than this part of its heap free gives an alarm, in percent.
const FREE_PERCENT_MIN: u64 = 10;

/// A failure of a copy is over when it was not repeated for this time: it is tried each 50 ms, and
/// a full copy each quarter of a lease, of at most 10 s.
pub(crate) const FAILURE_KEPT: Duration = Duration::from_secs(5);

/// A failure that is repeated for this time is one. What a host begins and its view has ended
/// meanwhile fails at each fail-over: it is tried again, or has ended, within some 50 ms.
const FAILURE_PASSES: Duration = Duration::from_secs(2);

/// A partition has no owner, and the membership no leader, for a moment at each fail-over, at each
/// drain, and when the cluster is created: that is an alarm when it has lasted for so many leases,
/// and for [`FAILURE_PASSES`]. One is the lease of the earlier owner, the other one is for the
/// reports, the promotion and an election.
const CHANGE_LEASES: u32 = 2;

/// How long a change of the owner or of the leader may last before it raises an alarm.
pub(crate) fn change_passes(lease: Duration) -> Duration {
    FAILURE_PASSES.max(lease * CHANGE_LEASES)
}

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
    VOTER_SILENT = "NS-5017" Major "voter-silent"
        "A voter has not answered the leader of the membership for five seconds: one loss less is \
         survived. Start its node, or check the network. If it is lost, let another host vote \
         (`nearstate cluster add`), and take its vote (`nearstate cluster remove`).";
    PROMOTIONS_USED = "NS-5018" Major "promotions-used"
        "Each fail-over and each drain takes some of the versions that records can have, and less \
         than half of them are left. Find out why the partition changes its owner so often. Move \
         its records to another partition before none is left: then a drain is refused, and no \
         host takes over.";
    CLOCK_SHIFTED = "NS-5019" Minor "clock-shifted"
        "The clock by which the partition's records expire differs from the wall clock of this \
         host, which was stepped (`NS-3029`), or differs from that of an earlier owner. Times to \
         live are right; times that clients compute by their own clocks (`EXPIREAT`, `PXAT`) are \
         wrong by the difference, which shrinks by 1 % of the time that passes. Check NTP of all \
         hosts. If this host is the owner, its clock is right now, and that takes too long: \
         restart its node with `cluster.expiry_clock = \"host\"`.";
    CERTIFICATE_ENDS = "NS-5020" Major "certificate-ends"
        "The certificate by which the other hosts know this one ends within two weeks. Then no new \
         connection to another host succeeds. Replace `tls.certificate` and `tls.key`, and send \
         SIGHUP to the node.";
}

/// True for conditions that pass by themselves while the owner, or the leader, changes.
fn passes(kind: &AlarmKind) -> bool {
    [NO_OWNER, NO_LEADER].contains(&kind)
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
    /// Why the certificate of this host is of no use in two weeks.
    pub(crate) certificate: Option<String>,
    /// Copies that could not be used lately.
    pub(crate) copies: BTreeMap<PartitionId, String>,
    /// Owned partitions whose clients are not served.
    pub(crate) clients: BTreeMap<PartitionId, String>,
    /// The files of copies that were removed or replaced.
    pub(crate) files: BTreeMap<PartitionId, String>,
    /// The ids and subjects of the alarms that are raised.
    pub(crate) raised: BTreeSet<(&'static str, String)>,
}

impl Failures {
    fn is_raised(&self, kind: &AlarmKind, subject: &str) -> bool {
        self.raised.iter().any(|(id, of)| *id == kind.id && of == subject)
    }
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
    // The leader raises it, of which there is one.
    let silent = engine.unanswered_ms.iter().filter(|(_, ms)| **ms >= VOTER_SILENT_MS);
    for (voter, ms) in silent {
        let known = file.all_hosts().find(|known| u64::from(known.id.0) == *voter);
        let voter = known.map_or_else(|| voter.to_string(), |known| known.name.clone());
        raise(VOTER_SILENT, voter, format!("no answer for {} s", ms / 1000));
    }
    for copy in &status.copies {
        if !engine.voters.is_empty() && copy.is_known {
            copy_alarms((file, own), copy, &mut raise);
        }
        if copy.is_drain_undecided {
            let partition = file.partition_name(PartitionId(copy.partition));
            raise(DRAIN_UNDECIDED, partition, undecided(engine));
        }
        let partition = file.partition_name(PartitionId(copy.partition));
        if copy.promotions_left < PROMOTIONS_MAX / 2 {
            let detail = format!("{} promotions are left", copy.promotions_left);
            raise(PROMOTIONS_USED, partition.clone(), detail);
        }
        let is_raised = failures.is_raised(CLOCK_SHIFTED, &partition);
        if let Some(detail) = clock_shifted(copy.clock_shift_ms, is_raised) {
            raise(CLOCK_SHIFTED, partition.clone(), detail);
        }
        if let Some(detail) = nearly_full(copy, failures.is_raised(NEARLY_FULL, &partition)) {
            raise(NEARLY_FULL, partition, detail);
        }
    }
    let host = file.host_name(own);
    let is_raised = failures.is_raised(DIRECTORY_NEARLY_FULL, &host);
    let shortage = failures.directory.and_then(|space| resources::shortage(&space, is_raised));
    if let Some(detail) = shortage {
        raise(DIRECTORY_NEARLY_FULL, host.clone(), detail);
    }
    if let Some(detail) = &failures.certificate {
        raise(CERTIFICATE_ENDS, host, detail.clone());
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

/// How much of a copy's heap is free, if that is little: some more if the alarm is raised.
fn nearly_full(copy: &CopyStatus, is_raised: bool) -> Option<String> {
    let per_mille = copy.bytes_free.saturating_mul(1000).checked_div(copy.bytes_max)?;
    let part = if is_raised { resources::CLEARED_PERCENT } else { 100 };
    let why = copy.file_system_bytes_free.map_or_else(String::new, |bytes| {
        format!(": the file system of the region has {bytes} bytes left")
    });
    (per_mille < FREE_PERCENT_MIN * part / 10)
        .then(|| format!("{} of {} bytes are free{why}", copy.bytes_free, copy.bytes_max))
}

/// How far the clock of expiry is from that of the host, if that is much: half of it if the alarm
/// is raised.
fn clock_shifted(shift_ms: i64, is_raised: bool) -> Option<String> {
    let most_ms = if is_raised { CLOCK_SHIFT_MS / 2 } else { CLOCK_SHIFT_MS };
    let (distance, where_to) =
        (shift_ms.unsigned_abs(), if shift_ms < 0 { "behind" } else { "ahead of" });
    (distance >= most_ms).then(|| {
        let (seconds, tenths) = (distance / 1000, distance % 1000 / 100);
        format!("{seconds}.{tenths} s {where_to} the clock of this host")
    })
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

/// The id of an alarm, and its subject.
type AlarmKey = (&'static str, String);

/// The alarms of a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlarmList {
    active: BTreeMap<AlarmKey, AlarmRecord>,
    /// Conditions that may pass, and since when they hold.
    passing: BTreeMap<AlarmKey, Instant>,
    cleared: VecDeque<AlarmRecord>,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AlarmChange {
    Raised(AlarmCondition),
    Cleared(AlarmCondition),
}

impl AlarmList {
    /// Compares with the conditions that hold now, at this time in milliseconds since 1970. Those
    /// that may pass are raised when they have held for `grace`.
    pub(crate) fn update(
        &mut self,
        (now, now_ms): (Instant, u64),
        grace: Duration,
        holding: Vec<AlarmCondition>,
    ) -> Vec<AlarmChange> {
        let mut changes = Vec::new();
        let mut before = std::mem::take(&mut self.active);
        let passing = std::mem::take(&mut self.passing);
        for what in holding {
            let key = (what.kind.id, what.subject.clone());
            if passes(what.kind) && !before.contains_key(&key) {
                let since = passing.get(&key).copied().unwrap_or(now);
                if now.saturating_duration_since(since) < grace {
                    self.passing.insert(key, since);
                    continue;
                }
            }
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
pub(crate) mod tests;

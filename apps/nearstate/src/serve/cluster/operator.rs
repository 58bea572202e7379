//! Requests of operators to a host of a cluster, what it reports to the other hosts, and the thread
//! that looks for alarms.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use nearstate_cluster::{
    GroupPhase, GroupState, HostId, OperatorGoal, OperatorRefusal, OperatorWait, PartitionId,
};
use nearstate_model::{Error, Result};
use nearstate_node::{ClusterDriver, ConsensusEngine, OperatorOutcome, VoteChange};
use serde_json::{Value, json};

use crate::cluster::admin::{self, AdminRequest};
use crate::cluster::file::{ClusterFile, FileHost};
use crate::cluster::show;

use super::copies::{CopiesOfHosts, longer_copy};
use super::drain::{self, TakenPorts};
use super::host_events::HostEvents;
use super::lost_membership;
use super::votes;

/// The longest wait for the membership in a request of an operator.
pub(super) const DECISION_MAX: Duration = Duration::from_secs(5);

/// The longest wait for the report of another host. All are asked at the same time.
const REPORT_MAX: Duration = Duration::from_secs(1);

/// The requests that are answered at the same time. Further ones wait.
const REQUESTS_MAX: usize = 16;

/// The engine in which hosts of the file vote.
pub(super) const RAFT: &str = "raft";

/// The time after which a drain looks again at a host that could not report: some elections.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// How often alarms are looked for.
const ALARM_INTERVAL: Duration = Duration::from_millis(500);

/// What a host knows of itself. It exists before the driver, which the engine's start needs.
#[derive(Debug)]
pub(super) struct HostReport {
    pub(super) file: Arc<ClusterFile>,
    pub(super) host: FileHost,
    pub(super) host_events: Arc<HostEvents>,
    /// Weak, because the engine, which the driver has, calls this.
    pub(super) driver: OnceLock<Weak<ClusterDriver>>,
}

impl HostReport {
    /// The status of this host with its alarms.
    pub(super) fn status(&self) -> Value {
        let driver = self.driver.get().and_then(Weak::upgrade);
        let status = driver.map(|driver| driver.status()).unwrap_or_default();
        show::to_json((&self.file, &self.host), &status, &self.host_events.alarms().to_json())
    }
}

/// What requests of operators are carried out with.
pub(super) struct OperatorContext {
    pub(super) report: Arc<HostReport>,
    pub(super) driver: Arc<ClusterDriver>,
    pub(super) engine: Arc<dyn ConsensusEngine>,
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map(drop).map_err(|error| Error::System {
        detail: format!("cannot start a thread: {error}"),
        errno: error.raw_os_error().unwrap_or_default(),
    })
}

/// Answers operators and looks for alarms until the process ends.
pub(super) fn start(listener: UnixListener, context: OperatorContext) -> Result<()> {
    let (report, driver) = (Arc::clone(&context.report), Arc::clone(&context.driver));
    spawn("ns-alarms", move || {
        loop {
            report.host_events.update_alarms((&report.file, &report.host), &driver.status());
            std::thread::sleep(ALARM_INTERVAL);
        }
    })?;
    let context = Arc::new(context);
    spawn("ns-admin", move || {
        for stream in listener.incoming().flatten() {
            let own = Arc::clone(&context);
            // The status is answered while a task waits for a lease.
            let is_free = Arc::strong_count(&context) <= REQUESTS_MAX;
            let work = move || admin::answer(&stream, |request| own.carry_out(&request));
            if is_free {
                // Without a thread, the client sees that its connection has ended.
                let _ = spawn("ns-admin-task", work);
            } else {
                work();
            }
        }
    })
}

impl OperatorContext {
    fn carry_out(&self, request: &AdminRequest) -> Result<Value> {
        match *request {
            AdminRequest::Status => Ok(self.report.status()),
            AdminRequest::ClusterStatus => Ok(self.cluster_status()),
            AdminRequest::Events => Ok(json!({
                "host": self.report.host.name,
                "events": self.report.host_events.events(),
            })),
            AdminRequest::Init => self.initialize(),
            AdminRequest::InitAnew { ref without } => self.initialize_anew(without),
            AdminRequest::Finalize { ref without } => self.finalize(without),
            AdminRequest::Vote { host, votes, weakens } => {
                self.change_vote(HostId(host), votes, weakens)?;
                Ok(Value::Null)
            }
            AdminRequest::Member { partition, host, is_member } => {
                self.change_group(PartitionId(partition), (HostId(host), is_member))
            }
            AdminRequest::Drain { partition } => self.drain(PartitionId(partition), None),
            AdminRequest::DrainTo { partition, host } => {
                self.drain(PartitionId(partition), Some(HostId(host)))
            }
            AdminRequest::AcceptLoss { partition, host, discards_longer } => {
                let goal = OperatorGoal::AcceptLoss(HostId(host));
                self.task(partition, goal, discards_longer)
            }
            AdminRequest::ForceNew { partition, host } => {
                self.task(partition, OperatorGoal::ForceNew(HostId(host)), false)
            }
        }
    }

    /// Lets a host vote, or takes its vote: at the leader, whichever host that is.
    fn change_vote(&self, host: HostId, votes: bool, weakens: bool) -> Result<()> {
        let (file, statuses) = (&self.report.file, self.cluster_status());
        let name = file.host_name(host);
        if !votes && let Some(partition) = leased(&statuses, &name) {
            return Err(invalid(format!(
                "{name} owns {partition}: drain it first. A host that does not vote owns nothing"
            )));
        }
        let mut checked = None;
        // With etcd its members vote, and the engine says which command changes them.
        if file.engine_name() == RAFT {
            let of_engine = self.engine.status().voters;
            let present = file.hosts.iter().filter(|one| of_engine.contains(&one.id.0.into()));
            let present: Vec<String> = present.map(|one| one.name.clone()).collect();
            let refusal = match votes {
                true => votes::cannot_join(&statuses, &name),
                false if weakens => None,
                false => votes::weakens(&present, &statuses, &name)
                    .or_else(|| votes::copy_needed(file, &self.groups(), host)),
            };
            if let Some(reason) = refusal {
                return Err(invalid(reason));
            }
            // Another operator may take the vote of another host at the same time.
            checked = (!votes && !weakens).then_some(of_engine);
        }
        let change = VoteChange { host: host.0.into(), votes, checked };
        self.engine.change_vote(&change, DECISION_MAX)
    }

    /// The groups of all partitions, as this host knows them.
    fn groups(&self) -> Vec<GroupState> {
        let partitions = self.report.file.partitions.iter();
        partitions.filter_map(|partition| self.driver.group(partition.id)).collect()
    }

    /// Another member takes over, or this one. Looks first which ones could serve the clients.
    fn drain(&self, partition: PartitionId, to: Option<HostId>) -> Result<Value> {
        let file = &self.report.file;
        let of_file = file.partitions.iter().find(|of| of.id == partition);
        let (Some(of_file), Some(group)) = (of_file, self.driver.group(partition)) else {
            return self.task(partition.0, drain::goal(to, None), false);
        };
        if group.owner() != Some(self.report.host.id) || to == group.owner() {
            return self.task(partition.0, drain::goal(to, None), false);
        }
        let refused = |statuses: &Value| {
            let refusal = to.and_then(|to| drain::unable(file, statuses, to));
            refusal.or_else(|| drain::too_few(file, statuses, &group))
        };
        let mut statuses = self.cluster_status();
        if refused(&statuses).is_some() {
            // A host that has just started, or has lost its leader, may know the next one soon.
            std::thread::park_timeout(SECOND_LOOK);
            statuses = self.cluster_status();
        }
        if let Some(reason) = refused(&statuses) {
            return Err(invalid(reason));
        }
        let taken = TakenPorts::of((file, of_file), &group);
        let is_able = |host: &HostId| drain::unheard(file, &statuses, *host).is_none();
        let goal = drain::goal(to, taken.preferred(&group).filter(is_able));
        let mut done = self.task(partition.0, goal, false)?;
        let owner = done.get("owner").and_then(Value::as_str);
        let owner = file.hosts.iter().find(|host| owner == Some(&host.name));
        let warning = owner.and_then(|host| taken.warning(file, host.id));
        if let (Some(warning), Some(fields)) = (warning, done.as_object_mut()) {
            fields.insert("warning".to_owned(), warning.into());
        }
        Ok(done)
    }

    /// Carries out a task, and answers with what the applied state says then.
    fn task(&self, partition: u32, goal: OperatorGoal, discards_longer: bool) -> Result<Value> {
        let file = &self.report.file;
        let lease = file.config.lease().map_err(invalid)?;
        let (engine, partition) = (self.engine.as_ref(), PartitionId(partition));
        let statuses = self.cluster_status();
        // With etcd its members vote, and a drain finds out what the membership decides.
        let is_voted = !goal.is_drain() && file.engine_name() == RAFT;
        let voters = if is_voted { engine.status().voters } else { BTreeSet::new() };
        if let Some(reason) = owner_with_lease(file, &statuses, (partition, goal))
            .or_else(|| votes::no_majority((file, &voters), &statuses))
        {
            return Err(invalid(reason));
        }
        if let Some(reason) = lost_membership::waits(file, &statuses, (partition, goal)) {
            return Err(invalid(reason));
        }
        if let Some(reason) = better_copy(file, &statuses, (partition, goal)) {
            return Err(invalid(reason));
        }
        let group =
            self.driver.group(partition).map_or_else(Vec::new, |group| group.group().to_vec());
        let compared = CopiesOfHosts::of((file, &group), &statuses, partition);
        if let OperatorGoal::AcceptLoss(to) = goal
            && !discards_longer
            && let Some(reason) = compared.more_than(&file.host_name(to))
        {
            return Err(invalid(reason));
        }
        match self.driver.carry_out(engine, partition, (goal, discards_longer), lease)? {
            OperatorOutcome::Done { owner, is_by_decision } => Ok(json!({
                "owner": file.host_name(owner), "by_decision": is_by_decision,
                "silent": compared.silent, "loss": self.loss(partition),
            })),
            OperatorOutcome::Refused(refusal) => {
                Err(invalid(self.explain((partition, goal), refusal)))
            }
            OperatorOutcome::Late { wait, is_excluded } => {
                let detail = late(file, wait, is_excluded);
                let silent = self.unreported(partition);
                let detail = match wait {
                    Some(OperatorWait::Reports) if !silent.is_empty() => {
                        format!("{detail}. Not reported: {}", silent.join(", "))
                    }
                    Some(_) | None => detail,
                };
                Err(Error::Backend { detail })
            }
        }
    }

    /// Why a task is not possible, and what to do.
    fn explain(
        &self,
        (partition, goal): (PartitionId, OperatorGoal),
        refusal: OperatorRefusal,
    ) -> String {
        let file = &self.report.file;
        match (goal, refusal) {
            (OperatorGoal::DrainTo(to), OperatorRefusal::OtherOwner(owner)) => {
                let [owner, to] = [owner, to].map(|host| file.host_name(host));
                drain::other_owner(
                    (&self.report.host.name, &file.partition_name(partition)),
                    (&owner, &to),
                )
            }
            (_, refusal) => explain(file, refusal, self.is_leased(partition)),
        }
    }

    /// Whether this host owns the partition with a lease.
    fn is_leased(&self, partition: PartitionId) -> bool {
        let copies = self.driver.status().copies;
        copies.iter().any(|copy| copy.partition == partition.0 && copy.lease_ms != 0)
    }

    /// The hosts whose reports are missing for another owner.
    fn unreported(&self, partition: PartitionId) -> Vec<String> {
        let Some(group) = self.driver.group(partition) else { return Vec::new() };
        let GroupPhase::Sealing { reports } = group.phase() else { return Vec::new() };
        let is_missing =
            |host: &&HostId| !reports.contains_key(host) && Some(**host) != group.excluded();
        let missing = group.full().iter().filter(is_missing);
        missing.map(|host| self.report.file.host_name(*host)).collect()
    }

    /// What an operator has given up at the last time: the end of the longest copy that is known,
    /// and the place behind which the partition goes on, if it did not begin anew.
    fn loss(&self, partition: PartitionId) -> Value {
        let group = self.driver.group(partition);
        let Some(loss) = group.and_then(|group| group.loss()) else { return Value::Null };
        json!({
            "origin": loss.longest.map(|held| held.origin.0),
            "longest": loss.longest.map(|held| held.position),
            "sealed_origin": loss.sealed.map(|held| held.origin.0),
            "sealed": loss.sealed.map(|held| held.position),
        })
    }

    /// The status of all hosts, in the order of the file. They are asked at the same time, so this
    /// takes [`REPORT_MAX`] if one of them is lost.
    fn cluster_status(&self) -> Value {
        self.statuses().into()
    }

    /// The same, as a list.
    pub(super) fn statuses(&self) -> Vec<Value> {
        let hosts = &self.report.file.hosts;
        std::thread::scope(|scope| {
            let asked: Vec<_> =
                hosts.iter().map(|host| scope.spawn(move || self.status_of(host))).collect();
            asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
        })
    }

    pub(super) fn status_of(&self, host: &FileHost) -> Value {
        if host.id == self.report.host.id {
            return self.report.status();
        }
        let reported = self.engine.report_of(host.id.0.into(), REPORT_MAX);
        let parsed = reported.and_then(|text| {
            serde_json::from_str(&text).map_err(|error| Error::Backend {
                detail: format!("the report of {} is not valid: {error}", host.name),
            })
        });
        parsed.unwrap_or_else(
            |error| json!({ "host": host.name, "unreachable": admin::reason(&error) }),
        )
    }
}

pub(super) fn invalid(detail: impl std::fmt::Display) -> Error {
    Error::BadArgument { detail: detail.to_string() }
}

/// A partition of which a host has a lease.
fn leased(statuses: &Value, host: &str) -> Option<String> {
    let is_it = |status: &&Value| status["host"] == host;
    let status = statuses.as_array().into_iter().flatten().find(is_it)?;
    let owned = show::items(status, "partitions").find(|copy| copy["lease_ms"].as_u64() > Some(0));
    owned.map(|copy| copy["partition"].as_str().unwrap_or_default().to_owned())
}

/// Why nothing is to be done: an owner that answers has a lease. A host whose links for replication
/// are cut does not hear it otherwise.
fn owner_with_lease(
    file: &ClusterFile,
    statuses: &Value,
    (partition, goal): (PartitionId, OperatorGoal),
) -> Option<String> {
    if goal.is_drain() {
        return None;
    }
    let partition = file.partition_name(partition);
    let has_lease = |copy: &Value| {
        copy["partition"] == partition.as_str() && copy["lease_ms"].as_u64().unwrap_or(0) != 0
    };
    let mut hosts = statuses.as_array().into_iter().flatten();
    let owner = hosts.find(|status| show::items(status, "partitions").any(has_lease))?;
    let name = owner["host"].as_str().unwrap_or_default();
    Some(format!(
        "{name} lives and owns the partition, and has a lease: nothing to do. `nearstate cluster \
         drain --host {name}` gives it to another host"
    ))
}

/// Whether a host that answers has what a task would discard: a complete copy, or a copy that
/// counts while that of the named host does not.
fn better_copy(
    file: &ClusterFile,
    statuses: &Value,
    (partition, goal): (PartitionId, OperatorGoal),
) -> Option<String> {
    let (to, is_anew) = match goal {
        OperatorGoal::Drain | OperatorGoal::DrainPreferring(_) | OperatorGoal::DrainTo(_) => {
            return None;
        }
        OperatorGoal::AcceptLoss(to) => (file.host_name(to), false),
        OperatorGoal::ForceNew(to) => (file.host_name(to), true),
    };
    let partition = file.partition_name(partition);
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    for status in statuses.as_array().into_iter().flatten() {
        let host = text(status, "host");
        let copies = show::items(status, "partitions")
            .filter(|copy| host != to && text(copy, "partition") == partition);
        for copy in copies {
            let counts =
                |name: &str| show::items(copy, "full").any(|host| host.as_str() == Some(name));
            let what = if is_anew && copy["complete"] == true {
                "has a complete copy: use accept-loss --to with its name"
            } else if !is_anew
                && copy["complete"] == true
                // Its host waits for a later membership, and serves nothing. What it holds is
                // compared.
                && copy["state_is_older"] != true
                && counts(&host)
                && !counts(&to)
            {
                "has a copy that counts, and the named host has none: give its name to --to"
            } else {
                continue;
            };
            let otherwise = "If that copy is to be given up, stop its node first";
            return Some(format!("{host} lives and {what}. {otherwise}"));
        }
    }
    None
}

/// What becomes of the writers of an owner that is not drained.
const fn of_writers(is_leased: bool) -> &'static str {
    if is_leased {
        "The owner stays, and writers are admitted"
    } else {
        "The owner stays. It has no lease, so writers are refused (NS-3009) until enough of the \
         other hosts answer it"
    }
}

/// Why a task is not possible, and what to do. `is_leased`: the owner has a lease by now.
fn explain(file: &ClusterFile, refusal: OperatorRefusal, is_leased: bool) -> String {
    let (name, writers) = (|host| file.host_name(host), of_writers(is_leased));
    match refusal {
        OperatorRefusal::NotInGroup(host) => {
            format!("{} has no copy of the partition: name a host that has one", name(host))
        }
        OperatorRefusal::LongerCopy(host, position) => longer_copy(&name(host), position),
        OperatorRefusal::AlreadyOwner(host) => format!(
            "{} owns the partition already: nothing to do, or name another host",
            name(host)
        ),
        OperatorRefusal::OwnerLives(host) => {
            format!("{} owns the partition and lives: stop its node first, or drain it", name(host))
        }
        OperatorRefusal::HasCopy(host) => {
            format!("{} has a complete copy, which is not discarded: use accept-loss", name(host))
        }
        OperatorRefusal::NoOwner => "the partition has no owner at present: wait until cluster \
                                     status shows one. NS-5001 says what is missing"
            .to_owned(),
        OperatorRefusal::NoOtherCopy(host) => format!(
            "too few copies beside that of {} are complete, so no member could take over: start \
             the nodes of the other hosts, and wait until cluster status counts them",
            name(host)
        ),
        OperatorRefusal::OwnerReturned(host) => format!(
            "{} was excluded, lives, and is the owner again: too few other members have reported",
            name(host)
        ),
        OperatorRefusal::OtherOwner(host) => format!(
            "the members have found another owner meanwhile: {} owns the partition",
            name(host)
        ),
        OperatorRefusal::NotReplicated(host, missing) => format!(
            "{missing} positions of the log of {} were not replicated in time: wait until cluster \
             status shows that the members have caught up. {writers}",
            name(host)
        ),
        OperatorRefusal::NotCounted(host) => format!(
            "the copy of {} does not count (COUNTED in cluster status), so it cannot take over: \
             wait until it does, or name another host",
            name(host)
        ),
        OperatorRefusal::Leaving(host) => {
            format!("{} is to leave the group of the partition: name another host", name(host))
        }
        OperatorRefusal::Silent(host) => format!(
            "the owner has not heard {} for a lease, without which no other owner would be found: \
             start its node, or wait until cluster status does not count it any more. {writers}",
            name(host)
        ),
        OperatorRefusal::TargetSilent(host) => format!(
            "the owner has not heard {} for a lease, so it cannot take over: start its node, or \
             name another host. {writers}",
            name(host)
        ),
        OperatorRefusal::Behind(host, missing) => format!(
            "{} did not have the last {missing} positions of the log in time: wait until cluster \
             status shows no lag, or name another host. {writers}",
            name(host)
        ),
    }
}

fn late(file: &ClusterFile, wait: Option<OperatorWait>, is_excluded: bool) -> String {
    let what = match wait {
        None => "the membership has not applied it in time".to_owned(),
        Some(OperatorWait::Lease) => "the lease of the owner has not ended in time".to_owned(),
        Some(OperatorWait::Reports) => "too few members have reported in time".to_owned(),
        Some(OperatorWait::Silent(host)) => {
            format!("the owner has not heard {} in time", file.host_name(host))
        }
        Some(OperatorWait::Replication(missing)) => {
            format!("{missing} positions of the owner's log were not replicated in time")
        }
        Some(OperatorWait::Target(host, missing)) => format!(
            "{} did not have the last {missing} positions of the owner's log in time",
            file.host_name(host)
        ),
        Some(OperatorWait::Report(host)) => format!(
            "{} has not reported in time: its node does not run, or its copy has gaps, and then \
             only force-new is left",
            file.host_name(host)
        ),
    };
    if is_excluded { format!("{what}. The partition has no owner now") } else { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::file::tests::GOOD;

    #[test]
    fn a_refusal_says_what_to_do_and_a_silent_target_is_not_a_missing_report() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let host = HostId(2);
        for (refusal, advice) in [
            (OperatorRefusal::NotInGroup(host), "name a host"),
            (OperatorRefusal::AlreadyOwner(host), "name another host"),
            (OperatorRefusal::NoOwner, "wait until"),
            (OperatorRefusal::TargetSilent(host), "start its node, or name another host"),
        ] {
            let text = explain(&file, refusal, true);
            assert!(text.contains(advice) && !text.contains("no other owner"), "{text}");
        }
        let text = explain(&file, OperatorRefusal::Silent(host), true);
        assert!(text.contains("no other owner would be found"), "{text}");
    }

    /// A drain that has failed admits writers only if the owner still has a lease.
    #[test]
    fn a_drain_that_is_refused_says_whether_writers_are_admitted() {
        let (file, host) = (ClusterFile::parse(GOOD).unwrap(), HostId(2));
        for refusal in [
            OperatorRefusal::Silent(host),
            OperatorRefusal::TargetSilent(host),
            OperatorRefusal::NotReplicated(host, 7),
            OperatorRefusal::Behind(host, 7),
        ] {
            let [leased, fenced] =
                [true, false].map(|is_leased| explain(&file, refusal, is_leased));
            assert!(leased.contains("stays, and writers are admitted"), "{leased}");
            assert!(!fenced.contains("admitted"), "{fenced}");
            assert!(fenced.contains("no lease, so writers are refused"), "{fenced}");
        }
    }
}

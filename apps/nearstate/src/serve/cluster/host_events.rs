//! What has happened on a host of a cluster: events, failures and alarms, for operators, and what
//! the main thread is told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nearstate_cluster::{ClusterEvent, ClusterEventKind, HostId, LogPosition, PartitionId};
use nearstate_model::invariant;
use nearstate_node::{ClusterNotice, ClusterStatus, HostCertificate, StoppedHolder};

use crate::cluster::alarms::{self, AlarmChange, AlarmList, CopyFailure, Failures};
use crate::cluster::certificate::UsedCertificate;
use crate::cluster::file::{ClusterFile, FileHost};
use crate::cluster::show::directory_space;
use crate::log;

/// Events that are kept for `nearstate cluster events`.
const EVENTS_KEPT: usize = 256;

/// What the main thread is told.
pub(super) enum MainThreadMessage {
    Signal(i32),
    /// The host owns the partition, and may serve its clients.
    Owned(PartitionId),
    /// The host owns the partition no longer.
    Released(PartitionId),
    /// The host was added to the group of the partition.
    CopyWanted(PartitionId),
    /// The last node of the partition is stopped.
    Stopped(PartitionId),
}

/// The events, failures and alarms. Cheap to read; no lock is held while something else is waited
/// for.
#[derive(Debug, Default)]
pub(super) struct HostEvents(Mutex<HostEventLists>);

#[derive(Debug, Default)]
struct HostEventLists {
    events: VecDeque<String>,
    counts: BTreeMap<(PartitionId, &'static str), u64>,
    takeovers: BTreeMap<PartitionId, u64>,
    failed: BTreeMap<PartitionId, CopyFailure>,
    unserved: BTreeMap<PartitionId, String>,
    files_gone: BTreeMap<PartitionId, String>,
    certificate: UsedCertificate,
    alarms: AlarmList,
}

impl HostEvents {
    fn lock(&self) -> MutexGuard<'_, HostEventLists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an event of the log.
    fn record(&self, event: &log::LogEvent, text: &str) {
        self.push(format!("{} {} {text}", nearstate_store::now_ms_coarse(), event.id));
    }

    fn push(&self, line: String) {
        let events = &mut self.lock().events;
        if events.len() >= EVENTS_KEPT {
            events.pop_front();
        }
        events.push_back(line);
    }

    fn count(&self, event: &ClusterEvent) {
        let mut inner = self.lock();
        *inner.counts.entry((event.partition, event.kind.id())).or_default() += 1;
        if event.kind == (ClusterEventKind::OwnerStarted { is_takeover: true }) {
            *inner.takeovers.entry(event.partition).or_default() += 1;
        }
    }

    /// The last events, as lines.
    pub(super) fn events(&self) -> Vec<String> {
        self.lock().events.iter().cloned().collect()
    }

    /// How often each event happened.
    pub(super) fn counts(&self) -> Vec<((PartitionId, &'static str), u64)> {
        self.lock().counts.iter().map(|(key, count)| (*key, *count)).collect()
    }

    /// How often this host took over each partition.
    pub(super) fn takeovers(&self) -> BTreeMap<PartitionId, u64> {
        self.lock().takeovers.clone()
    }

    /// Whether the clients of an owned partition are served, and why not.
    pub(super) fn set_unserved(&self, partition: PartitionId, reason: Option<String>) {
        let unserved = &mut self.lock().unserved;
        match reason {
            Some(reason) => drop(unserved.insert(partition, reason)),
            None => drop(unserved.remove(&partition)),
        }
    }

    /// Notes that a copy could not be used. Returns whether that has lasted for some time, and
    /// whether it had not before.
    fn note_failure(&self, partition: PartitionId, reason: &str) -> (bool, bool) {
        let failed = &mut self.lock().failed;
        let before = failed.remove(&partition);
        let has_stayed = before.as_ref().is_some_and(CopyFailure::stays);
        let failure = CopyFailure::after(before, Instant::now(), reason);
        let stays = failed.entry(partition).or_insert(failure).stays();
        (stays, stays && !has_stayed)
    }

    /// Logs that a copy could not be used, and notes it for the alarms.
    pub(super) fn copy_failed(&self, (file, partition): (&ClusterFile, PartitionId), reason: &str) {
        let (stays, is_new) = self.note_failure(partition, reason);
        let name = file.partition_name(partition);
        let fields: &log::LogFields<'_> = &[("partition", &name), ("reason", &reason)];
        log::emit(if stays { log::CLUSTER_COPY_FAILED } else { log::COPY_RETRIED }, fields);
        if is_new {
            self.record(log::CLUSTER_COPY_FAILED, &format!("partition={name} {reason}"));
        }
    }

    /// A copy that could not be opened is open.
    pub(super) fn copy_opened(&self, partition: PartitionId) {
        self.lock().failed.remove(&partition);
    }

    /// A copy that cannot be used for some time already, and why.
    pub(super) fn failed_copy(&self, file: &ClusterFile) -> Option<String> {
        let (inner, now) = (self.lock(), Instant::now());
        let mut failed = inner.failed.iter();
        let (of, failure) = failed.find(|(_, failure)| failure.stays() && !failure.is_over(now))?;
        let partition = file.partition_name(*of);
        Some(format!("the copy of {partition} cannot be used: {}", failure.reason))
    }

    /// Whether the path of a copy names its file.
    pub(super) fn set_file(&self, partition: PartitionId, path: &str, is_present: bool) {
        let event = if is_present { log::REGION_FILE_BACK } else { log::REGION_FILE_GONE };
        log::emit(event, &[("path", &path)]);
        self.record(event, path);
        let gone = &mut self.lock().files_gone;
        _ = if is_present {
            gone.remove(&partition)
        } else {
            gone.insert(partition, path.to_owned())
        };
    }

    /// The certificate for the other hosts that is used from now on.
    pub(super) fn set_certificate(&self, certificate: Option<HostCertificate>) {
        self.lock().certificate = UsedCertificate::new(certificate);
    }

    /// The alarms at present.
    pub(super) fn alarms(&self) -> AlarmList {
        self.lock().alarms.clone()
    }

    /// Compares the alarms with the status, and logs what has changed.
    pub(super) fn update_alarms(
        &self,
        (file, host): (&ClusterFile, &FileHost),
        now: &ClusterStatus,
    ) {
        let directory = directory_space(file, host);
        let failures = {
            let mut inner = self.lock();
            let now = Instant::now();
            inner.failed.retain(|_, failure| !failure.is_over(now));
            let staying = inner.failed.iter().filter(|(_, failure)| failure.stays());
            let copies = staying.map(|(of, failure)| (*of, failure.reason.clone()));
            let copies = copies.collect();
            let certificate = inner.certificate.ending(now);
            let (clients, files) = (inner.unserved.clone(), inner.files_gone.clone());
            let active = inner.alarms.active();
            let raised = active.map(|(kind, subject)| (kind.id, subject.to_owned())).collect();
            Failures { directory, certificate, copies, clients, files, raised }
        };
        let holding = alarms::raised((file, host.id), now, &failures);
        let now = (Instant::now(), nearstate_store::now_ms_coarse());
        let grace = alarms::change_passes(file.lease);
        let changes = self.lock().alarms.update(now, grace, holding);
        for change in changes {
            let (event, alarm) = match &change {
                AlarmChange::Raised(alarm) => (log::ALARM_RAISED, alarm),
                AlarmChange::Cleared(alarm) => (log::ALARM_CLEARED, alarm),
            };
            let fields: &log::LogFields<'_> = &[
                ("alarm", &alarm.kind.id),
                ("severity", &alarm.kind.severity.name()),
                ("subject", &alarm.subject),
                ("detail", &alarm.detail),
            ];
            log::emit(event, fields);
        }
    }
}

/// Ends the process, and leaves everything to its supervisor and to the other hosts. No thread is
/// waited for: one that waits for a broken one never ends. Exiting is safe at any moment: a region
/// survives SIGKILL.
fn exit_after(event: &'static log::LogEvent, fields: &log::LogFields<'_>) -> ! {
    log::emit(event, fields);
    log::flush();
    std::process::exit(1);
}

/// Logs what happens, and tells the main thread what concerns clients.
pub(super) fn notices(
    file: Arc<ClusterFile>,
    messages: SyncSender<MainThreadMessage>,
    host_events: Arc<HostEvents>,
) -> Arc<dyn Fn(&ClusterNotice) + Send + Sync> {
    Arc::new(move |notice| match notice {
        ClusterNotice::Event(event) => {
            happened(&file, event, &host_events);
            // A message that does not fit is one of a host whose main thread has ended.
            let of = event.partition;
            match event.kind {
                ClusterEventKind::LeaseGranted => {
                    let is_broken = nearstate_store::crash::is_planted("driver-panics");
                    invariant!(!is_broken, "a fault that a test has planted");
                    drop(messages.try_send(MainThreadMessage::Owned(of)));
                }
                ClusterEventKind::OwnerStopped => {
                    drop(messages.try_send(MainThreadMessage::Released(of)));
                }
                ClusterEventKind::OwnerStarted { .. }
                | ClusterEventKind::LeaseEnded
                | ClusterEventKind::OwnerSilent(_)
                | ClusterEventKind::OwnerHeard(_)
                | ClusterEventKind::OwnerRegionLost
                | ClusterEventKind::CopyFrozen(_)
                | ClusterEventKind::CopyDiscarded
                | ClusterEventKind::Evicting(..)
                | ClusterEventKind::Degrading(_)
                | ClusterEventKind::Admitting(..)
                | ClusterEventKind::Fork(_) => {}
            }
        }
        ClusterNotice::Failed { partition, reason } => {
            host_events.copy_failed((&file, *partition), reason);
        }
        ClusterNotice::CopiedFile { partition: of } => {
            let partition = file.partition_name(*of);
            log::emit(log::REGION_COPIED, &[("partition", &partition)]);
            host_events.record(log::REGION_COPIED, &partition);
        }
        ClusterNotice::StoppedHolder { partition, stopped } => {
            stopped_holder(&file.partition_name(*partition), stopped, &host_events);
        }
        ClusterNotice::DrainUndecided { partition, reason } => {
            drain_undecided(&file.partition_name(*partition), reason, &host_events);
        }
        ClusterNotice::EngineFailed { reason } => {
            log::emit(log::MEMBERSHIP_FAILED, &[("reason", reason)]);
            host_events.record(log::MEMBERSHIP_FAILED, reason);
        }
        ClusterNotice::Panicked { thread } => {
            exit_after(log::CLUSTER_THREAD_FAILED, &[("thread", thread)]);
        }
        ClusterNotice::CopyWanted { partition } => {
            drop(messages.try_send(MainThreadMessage::CopyWanted(*partition)));
        }
        ClusterNotice::LevelTooHigh { decided, highest } => {
            exit_after(log::LEVEL_TOO_HIGH, &[("decided", decided), ("highest", highest)]);
        }
        ClusterNotice::Removed { is_removed } => {
            let event = if *is_removed { log::HOST_REMOVED } else { log::HOST_VOTES_AGAIN };
            log::emit(event, &[]);
            host_events.record(event, event.message);
            for partition in file.partitions.iter().filter(|_| *is_removed) {
                drop(messages.try_send(MainThreadMessage::Released(partition.id)));
            }
        }
        ClusterNotice::ClockStepped { by_ms } => clock_stepped(*by_ms, &host_events),
        ClusterNotice::EngineRecovered => {
            let event = log::MEMBERSHIP_RECOVERED;
            log::emit(event, &[]);
            host_events.record(event, event.message);
        }
    })
}

fn clock_stepped(by_ms: i64, host_events: &HostEvents) {
    let (sign, by) = (if by_ms < 0 { "-" } else { "" }, by_ms.unsigned_abs());
    let seconds = format!("{sign}{}.{:03}", by / 1000, by % 1000);
    log::emit(log::CLOCK_STEPPED, &[("seconds", &seconds)]);
    host_events.record(log::CLOCK_STEPPED, &format!("seconds={seconds}"));
}

fn drain_undecided(partition: &str, reason: &str, host_events: &HostEvents) {
    let fields: &log::LogFields<'_> = &[("partition", &partition), ("reason", &reason)];
    log::emit(log::DRAIN_UNDECIDED, fields);
    host_events.record(log::DRAIN_UNDECIDED, &format!("partition={partition} {reason}"));
}

fn stopped_holder(partition: &str, stopped: &StoppedHolder, host_events: &HostEvents) {
    let (event, process, reason) = match stopped {
        StoppedHolder::Killed(process) => (log::STOPPED_KILLED, process, ""),
        StoppedHolder::Kept(process, reason) => (log::STOPPED_KEPT, process, reason.as_str()),
    };
    let fields: &log::LogFields<'_> = &[
        ("partition", &partition),
        ("pid", &process.pid),
        ("process", &process.name),
        ("reason", &reason),
    ];
    log::emit(event, fields);
    let (pid, name) = (process.pid, &process.name);
    host_events.record(event, &format!("partition={partition} {pid} ({name}) {reason}"));
}

fn happened(file: &ClusterFile, event: &ClusterEvent, host_events: &HostEvents) {
    let (partition, view) = (file.partition_name(event.partition), event.view.0);
    let (log_event, detail) = described(file, event.kind);
    let fields: &log::LogFields<'_> =
        &[("partition", &partition), ("view", &view), ("detail", &detail)];
    log::emit(log_event, fields);
    let id = event.kind.id();
    host_events.record(log_event, &format!("{id} partition={partition} view={view} {detail}"));
    host_events.count(event);
}

fn held(position: LogPosition) -> String {
    format!("position={} origin={}", position.position, position.origin)
}

/// The log's event, and what it says.
fn described(file: &ClusterFile, kind: ClusterEventKind) -> (&'static log::LogEvent, String) {
    let host = |host: HostId| format!("host={}", file.host_name(host));
    match kind {
        ClusterEventKind::OwnerStarted { .. } => (log::CLUSTER_OWNER, "started".to_owned()),
        ClusterEventKind::OwnerStopped => (log::CLUSTER_OWNER_ENDED, "stopped".to_owned()),
        ClusterEventKind::LeaseGranted => (log::CLUSTER_LEASE, "granted".to_owned()),
        ClusterEventKind::LeaseEnded => (log::CLUSTER_LEASE_ENDED, "ended".to_owned()),
        ClusterEventKind::OwnerSilent(owner) => (log::CLUSTER_OWNER_SILENT, host(owner)),
        ClusterEventKind::OwnerHeard(owner) => (log::CLUSTER_OWNER_HEARD, host(owner)),
        ClusterEventKind::OwnerRegionLost => (log::CLUSTER_REGION_LOST, "lost".to_owned()),
        ClusterEventKind::CopyFrozen(position) => (log::CLUSTER_FROZEN, held(position)),
        ClusterEventKind::CopyDiscarded => (log::CLUSTER_DISCARDED, "joins".to_owned()),
        ClusterEventKind::Evicting(member, _) => (log::CLUSTER_EVICTING, host(member)),
        ClusterEventKind::Degrading(_) => (log::CLUSTER_DEGRADING, "asked for".to_owned()),
        ClusterEventKind::Admitting(member, _) => (log::CLUSTER_ADMITTING, host(member)),
        ClusterEventKind::Fork(member) => (log::CLUSTER_FORK, host(member)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::alarms::tests::healthy;
    use crate::cluster::file::tests::GOOD;

    fn ids(events: &HostEvents) -> Vec<String> {
        let lines = events.events().into_iter();
        lines.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn a_membership_that_works_again_is_an_event() {
        let file = Arc::new(ClusterFile::parse(GOOD).unwrap());
        let (messages, _received) = std::sync::mpsc::sync_channel(1);
        let events = Arc::new(HostEvents::default());
        let notices = notices(file, messages, Arc::clone(&events));
        notices(&ClusterNotice::EngineFailed { reason: "no disk".to_owned() });
        notices(&ClusterNotice::EngineRecovered);
        assert_eq!(ids(&events), [log::MEMBERSHIP_FAILED.id, log::MEMBERSHIP_RECOVERED.id]);
    }

    #[test]
    fn a_copy_that_stays_of_no_use_is_an_event_an_alarm_and_not_ready() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let (partition, events) = (PartitionId(1), HostEvents::default());
        let alarms = || {
            events.update_alarms((&file, &file.hosts[0]), &healthy());
            let alarms = events.alarms();
            alarms.active().map(|(kind, _)| kind.id).filter(|id| *id == "NS-5009").count()
        };
        events.copy_failed((&file, partition), "view 4 has ended");
        assert_eq!((ids(&events).len(), alarms(), events.failed_copy(&file)), (0, 0, None));
        // It began some time ago.
        let earlier = Instant::now().checked_sub(std::time::Duration::from_secs(2)).unwrap();
        let first = CopyFailure::after(None, earlier, "the file cannot be opened");
        events.lock().failed.insert(partition, first);
        for _ in 0..3 {
            events.copy_failed((&file, partition), "the file cannot be opened");
        }
        assert_eq!(ids(&events), [log::CLUSTER_COPY_FAILED.id], "once");
        assert_eq!(alarms(), 1);
        let reason = events.failed_copy(&file).unwrap();
        assert_eq!(reason, "the copy of amf cannot be used: the file cannot be opened");
        events.copy_opened(partition);
        assert_eq!((alarms(), events.failed_copy(&file)), (0, None));
    }
}

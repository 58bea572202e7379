//! The metrics of a host of a cluster: its copies, their members, events and alarms. Those of the
//! node that serves a partition's clients are on another page (`partition.metrics_port`).

use std::fmt;
use std::sync::Arc;

use nearstate_cluster::PartitionId;
use nearstate_node::{ClusterDriver, ClusterStatus, CopyStatus, Core};
use nearstate_observe::{MetricsReport, ObserveSource};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::cluster::file::ClusterFile;
use crate::cluster::show::directory_space;
use crate::serve::metrics::encode::{counters, gauge, gauges, seconds};

use super::operator::HostReport;

/// The source of the metrics.
#[derive(Clone)]
pub(super) struct ClusterMetrics {
    pub(super) report: Arc<HostReport>,
    pub(super) driver: Arc<ClusterDriver>,
}

impl fmt::Debug for ClusterMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterMetrics").finish_non_exhaustive()
    }
}

impl ObserveSource for ClusterMetrics {
    fn report(&self, _: &Core) -> Box<dyn MetricsReport> {
        Box::new(self.clone())
    }

    fn readiness(&self) -> Result<(), String> {
        let (file, status) = (&self.report.file, self.driver.status());
        let unready = unready(file, &status).or_else(|| self.report.host_events.failed_copy(file));
        unready.map_or(Ok(()), Err)
    }
}

/// Why the host does not do its part. A member does, and so does a host that waits for others:
/// those that start one after the other would never be ready.
fn unready(file: &ClusterFile, status: &ClusterStatus) -> Option<String> {
    if let Some(failure) = &status.engine.failure {
        return Some(failure.clone());
    }
    let mut copies = status.copies.iter();
    let refusing = copies.find(|copy| matches!(copy.role, "fenced" | "draining" | "lost"))?;
    let partition = file.partition_name(PartitionId(refusing.partition));
    Some(format!("this host owns {partition} and refuses writers: its role is {}", refusing.role))
}

impl MetricsReport for ClusterMetrics {
    fn step(&mut self, text: &mut String) -> bool {
        let sample =
            ClusterSample { report: Arc::clone(&self.report), status: self.driver.status() };
        sample.write(text);
        false
    }
}

/// The values of all metrics at one moment.
#[derive(Debug)]
struct ClusterSample {
    report: Arc<HostReport>,
    status: ClusterStatus,
}

impl ClusterSample {
    fn write(self, text: &mut String) {
        let mut registry = Registry::with_prefix("nearstate_cluster");
        registry.register_collector(Box::new(self));
        // Writing to a `String` cannot fail.
        let _ = encode_registry(text, &registry);
        let _ = encode_eof(text);
    }
}

type CopyValue = fn(&CopyStatus) -> u64;

/// The gauges of each copy.
const OF_COPY: [(&str, &str, CopyValue); 9] = [
    ("view", "The view of the partition: it rises with each seal.", |copy| copy.view),
    ("owned", "1 if this host owns the partition and has a lease.", |copy| {
        u64::from(copy.role == "owner")
    }),
    ("position", "End of the own log, or the last position that was applied.", |copy| {
        copy.position
    }),
    ("replicated_position", "Up to where the own log is replicated.", |copy| copy.replicated),
    ("sealed_position", "The last position of the last sealed log.", |copy| {
        copy.sealed.unwrap_or(0)
    }),
    ("members_counted", "Hosts whose copies count.", |copy| copy.full.len() as u64),
    ("degraded", "1 while one copy of two suffices.", |copy| u64::from(copy.is_degraded)),
    ("copy_bytes_free", "Bytes of this copy's heap that can still be filled.", |copy| {
        copy.bytes_free
    }),
    ("copy_bytes_max", "Bytes that this copy's heap can have.", |copy| copy.bytes_max),
];

/// How far the clock of expiry of a copy is ahead of that of the host.
fn clock_shift_seconds(copy: &CopyStatus) -> f64 {
    let distance = seconds(copy.clock_shift_ms.unsigned_abs().saturating_mul(1_000_000));
    if copy.clock_shift_ms < 0 { -distance } else { distance }
}

impl Collector for ClusterSample {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (to, status) = (&mut encoder, &self.status);
        let (file, host) = (&self.report.file, &self.report.host);
        let labels = [("cluster", file.name.clone()), ("host", host.name.clone())];
        let help = "Constant 1, labelled with the names of the cluster and the host.";
        gauges(to, "host_info", help, [(labels, 1_u64)])?;
        Self::membership((file, status), to)?;
        let name = |copy: &CopyStatus| file.partition_name(PartitionId(copy.partition));
        let of_copies = |value: &dyn Fn(&CopyStatus) -> u64| {
            let copies = status.copies.iter();
            copies.map(|copy| ([("partition", name(copy))], value(copy))).collect::<Vec<_>>()
        };
        for (metric, help, value) in OF_COPY {
            gauges(to, metric, help, of_copies(&value))?;
        }
        let roles = status.copies.iter();
        let roles =
            roles.map(|copy| ([("partition", name(copy)), ("role", copy.role.into())], 1_u64));
        gauges(to, "role", "Constant 1, labelled with the part of this host.", roles)?;
        let leases = status.copies.iter();
        let leases =
            leases.map(|copy| ([("partition", name(copy))], seconds(copy.lease_ms * 1_000_000)));
        gauges(to, "lease_seconds", "Time until the lease of this host ends.", leases)?;
        let shifts = status.copies.iter();
        let shifts = shifts.map(|copy| ([("partition", name(copy))], clock_shift_seconds(copy)));
        let help = "How far the clock of expiry is ahead of the wall clock of this host.";
        gauges(to, "clock_shift_seconds", help, shifts)?;
        let room = directory_space(file, host).and_then(|space| space.bytes_free);
        let room = room.map(|bytes| ([("host", host.name.clone())], bytes));
        let help = "Bytes that the file system of cluster.directory has left.";
        gauges(to, "directory_bytes_free", help, room)?;
        self.members(to)?;
        self.events(to)
    }
}

impl ClusterSample {
    fn membership(
        (file, status): (&ClusterFile, &ClusterStatus),
        to: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let engine = &status.engine;
        let help = "Index of the last command that this host has applied.";
        gauge(to, "membership_applied", help, engine.applied)?;
        gauge(to, "level", "The decided level of the cluster.", u64::from(status.level.0))?;
        let help = "1 if this host knows a leader of the membership.";
        gauge(to, "membership_led", help, u64::from(engine.leader.is_some()))?;
        let help = "1 if the membership has stopped on this host.";
        gauge(to, "membership_failed", help, u64::from(engine.failure.is_some()))?;
        let voters = file.all_hosts().filter_map(|host| {
            let ms = engine.unanswered_ms.get(&host.id.0.into())?;
            Some(([("voter", host.name.clone())], seconds(ms * 1_000_000)))
        });
        let help = "Time since the last answer of a voter, on the leader of the membership.";
        gauges(to, "voter_silent_seconds", help, voters)
    }

    /// The members of owned partitions.
    fn members(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let file = &self.report.file;
        let all = || {
            let copies = self.status.copies.iter();
            copies.flat_map(|copy| copy.members.iter().map(move |member| (copy, member)))
        };
        let labels = |copy: &CopyStatus, host| {
            let partition = file.partition_name(PartitionId(copy.partition));
            [("partition", partition), ("member", file.host_name(host))]
        };
        let entries = all().filter_map(|(copy, member)| {
            let lag = copy.position.saturating_sub(member.position?);
            Some((labels(copy, member.host), lag))
        });
        let help = "Entries of the log that a member of an owned partition does not have.";
        gauges(to, "member_lag_entries", help, entries)?;
        // A member whose lag is not known has no value: 0 would say that it has everything.
        let times = all().filter_map(|(copy, member)| {
            Some((labels(copy, member.host), seconds(member.lag_ms? * 1_000_000)))
        });
        let help = "Age of the first entry that a member of an owned partition does not have.";
        gauges(to, "member_lag_seconds", help, times)?;
        let silent = all().map(|(copy, member)| {
            (labels(copy, member.host), seconds(member.silent_ms * 1_000_000))
        });
        let help = "Time since the last acknowledgement of a member of an owned partition.";
        gauges(to, "member_silent_seconds", help, silent)
    }

    fn events(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (file, host_events) = (&self.report.file, &self.report.host_events);
        let counts = host_events.counts().into_iter().map(|((partition, event), count)| {
            ([("partition", file.partition_name(partition)), ("event", event.to_owned())], count)
        });
        counters(to, "events", "Events since the start of the node, by kind.", counts)?;
        let takeovers = host_events.takeovers();
        let takeovers = takeovers
            .iter()
            .map(|(partition, count)| ([("partition", file.partition_name(*partition))], *count));
        let help = "Fail-overs in which this host took over, since the start of the node.";
        counters(to, "failovers", help, takeovers)?;
        let alarms = host_events.alarms();
        let alarms = alarms.active().map(|(kind, subject)| {
            let labels = [
                ("id", kind.id.to_owned()),
                ("severity", kind.severity.name().to_owned()),
                ("name", kind.name.to_owned()),
                ("subject", subject.to_owned()),
            ];
            (labels, 1_u64)
        });
        gauges(to, "alarm", "Constant 1 for each alarm that is raised.", alarms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::alarms::tests::healthy;
    use crate::cluster::file::tests::GOOD;
    use std::collections::BTreeSet;
    use std::sync::OnceLock;

    const GUIDE: &str = include_str!("../../../../../docs/operate/cluster.md");

    /// The names in the first column of the table of metrics.
    fn documented() -> BTreeSet<String> {
        let head = "| metric, with the prefix `nearstate_cluster_` | meaning |\n|---|---|\n";
        let (_, table) = GUIDE.split_once(head).unwrap();
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let cells = rows.map(|row| row.split('|').nth(1).unwrap());
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
    }

    #[test]
    fn a_host_that_refuses_the_writers_of_its_partition_is_not_ready() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let mut status = healthy();
        for role in ["owner", "member", "waiting", "sealing"] {
            status.copies[0].role = role;
            assert_eq!(unready(&file, &status), None, "{role}");
        }
        for role in ["fenced", "draining", "lost"] {
            status.copies[0].role = role;
            assert!(unready(&file, &status).unwrap().contains("owns amf"), "{role}");
        }
        status.engine.failure = Some("no disk".to_owned());
        assert_eq!(unready(&file, &status), Some("no disk".to_owned()));
    }

    fn page(status: ClusterStatus) -> String {
        let file = ClusterFile::parse(GOOD).unwrap();
        let host = file.hosts[0].clone();
        let report = HostReport {
            file: Arc::new(file),
            host,
            host_events: Arc::default(),
            driver: OnceLock::new(),
        };
        let mut page = String::new();
        ClusterSample { report: Arc::new(report), status }.write(&mut page);
        page
    }

    #[test]
    fn a_member_whose_position_is_not_known_has_no_lag() {
        let mut status = healthy();
        status.copies[0].members[0].position = None;
        status.copies[0].members[0].lag_ms = None;
        let page = page(status);
        for metric in ["member_lag_entries", "member_lag_seconds"] {
            let line = |line: &&str| line.starts_with(&format!("nearstate_cluster_{metric}{{"));
            let lines: Vec<_> = page.lines().filter(line).collect();
            assert_eq!(lines.len(), 1, "{page}");
        }
        assert_eq!(page.matches("nearstate_cluster_member_silent_seconds{").count(), 2, "{page}");
    }

    #[test]
    fn the_guide_lists_every_metric_of_a_cluster() {
        let page = page(ClusterStatus::default());
        let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let named = families.map(|family| {
            let (name, kind) = family.split_once(' ').unwrap();
            let name = name.strip_prefix("nearstate_cluster_").unwrap();
            format!("{name}{}", if kind == "counter" { "_total" } else { "" })
        });
        assert_eq!(named.collect::<BTreeSet<_>>(), documented(), "docs/operate/cluster.md");
    }
}

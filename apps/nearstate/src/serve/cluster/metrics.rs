//! The metrics page of a host of a cluster: its copies, their members, events and alarms. The page
//! of the node that serves a partition's clients is another one (`partition.metrics_port`).

use std::fmt;
use std::sync::Arc;

use nearstate_cluster::PartitionId;
use nearstate_node::{ClusterDriver, ClusterStatus, CopyStatus, Core};
use nearstate_observe::{MetricsReport, ObserveSource};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::serve::metrics::encode::{counters, gauge, gauges, seconds};

use super::operator::HostReport;

/// The source of the page.
#[derive(Clone)]
pub(super) struct ClusterPage {
    pub(super) report: Arc<HostReport>,
    pub(super) driver: Arc<ClusterDriver>,
}

impl fmt::Debug for ClusterPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterPage").finish_non_exhaustive()
    }
}

impl ObserveSource for ClusterPage {
    fn report(&self, _: &Core) -> Box<dyn MetricsReport> {
        Box::new(self.clone())
    }

    fn readiness(&self) -> Result<(), String> {
        self.driver.status().engine.failure.map_or(Ok(()), Err)
    }
}

impl MetricsReport for ClusterPage {
    fn step(&mut self, text: &mut String) -> bool {
        let mut registry = Registry::with_prefix("nearstate_cluster");
        registry.register_collector(Box::new(self.clone()));
        // Writing to a `String` cannot fail.
        let _ = encode_registry(text, &registry);
        let _ = encode_eof(text);
        false
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
    ("copy_bytes_free", "Free bytes of this copy's heap.", |copy| copy.bytes_free),
    ("copy_bytes_max", "Bytes that this copy's heap can have.", |copy| copy.bytes_max),
];

impl Collector for ClusterPage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (to, status) = (&mut encoder, self.driver.status());
        let (file, host) = (&self.report.file, &self.report.host);
        let labels = [("cluster", file.name.clone()), ("host", host.name.clone())];
        let help = "Constant 1, labelled with the names of the cluster and the host.";
        gauges(to, "host_info", help, [(labels, 1_u64)])?;
        Self::membership(&status, to)?;
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
        self.members(&status, to)?;
        self.happened(to)
    }
}

impl ClusterPage {
    fn membership(status: &ClusterStatus, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let engine = &status.engine;
        let help = "Index of the last command that this host has applied.";
        gauge(to, "membership_applied", help, engine.applied)?;
        gauge(to, "level", "The decided level of the cluster.", u64::from(status.level.0))?;
        let help = "1 if this host knows a leader of the membership.";
        gauge(to, "membership_led", help, u64::from(engine.leader.is_some()))?;
        let help = "1 if the membership has stopped on this host.";
        gauge(to, "membership_failed", help, u64::from(engine.failure.is_some()))
    }

    /// The members of owned partitions.
    fn members(&self, status: &ClusterStatus, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let file = &self.report.file;
        let all = || {
            let copies = status.copies.iter();
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
        let times = all()
            .map(|(copy, member)| (labels(copy, member.host), seconds(member.lag_ms * 1_000_000)));
        let help = "Age of the first entry that a member of an owned partition does not have.";
        gauges(to, "member_lag_seconds", help, times)?;
        let silent = all().map(|(copy, member)| {
            (labels(copy, member.host), seconds(member.silent_ms * 1_000_000))
        });
        let help = "Time since the last acknowledgement of a member of an owned partition.";
        gauges(to, "member_silent_seconds", help, silent)
    }

    fn happened(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (file, facts) = (&self.report.file, &self.report.facts);
        let counts = facts.counts().into_iter().map(|((partition, event), count)| {
            ([("partition", file.partition_name(partition)), ("event", event.to_owned())], count)
        });
        counters(to, "events", "Events since the start of the node, by kind.", counts)?;
        let takeovers = facts.takeovers();
        let takeovers = takeovers
            .iter()
            .map(|(partition, count)| ([("partition", file.partition_name(*partition))], *count));
        let help = "Fail-overs in which this host took over, since the start of the node.";
        counters(to, "failovers", help, takeovers)?;
        let alarms = facts.alarms();
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

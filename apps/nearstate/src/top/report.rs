//! Reports: the difference of two snapshots. Pure.

use std::collections::BTreeMap;

use super::snapshot::{ClassSnapshot, CoreSnapshot, NodeSnapshot, RegionSnapshot, Snapshot};

/// The report of an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TopReport {
    /// The length of the interval; 0 if there is only one snapshot.
    pub(super) seconds: f64,
    pub(super) node: Option<NodeReport>,
    pub(super) region: Option<RegionReport>,
}

/// A node. Rates are `None` if there is no interval: for the first snapshot, and after a restart of
/// the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeReport {
    pub(super) version: String,
    pub(super) pid: u64,
    pub(super) started: f64,
    pub(super) clients: u64,
    /// Per second.
    pub(super) requests: Option<f64>,
    pub(super) errors: Option<f64>,
    pub(super) bytes_read: Option<f64>,
    pub(super) bytes_written: Option<f64>,
    /// The share of key reads that found a record.
    pub(super) hit_share: Option<f64>,
    pub(super) classes: Vec<ClassReport>,
    pub(super) cores: Vec<CoreReport>,
}

/// A class of commands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClassReport {
    pub(super) name: String,
    pub(super) requests: Option<f64>,
    /// The 50th, 99th and 99.9th percentile, in seconds.
    pub(super) latencies: [Option<f64>; 3],
}

/// The shares of those percentiles.
pub(super) const SHARES: [f64; 3] = [0.5, 0.99, 0.999];

/// A core.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CoreReport {
    pub(super) number: u64,
    pub(super) connections: u64,
    pub(super) requests: Option<f64>,
    /// The share of the time spent in tasks.
    pub(super) busy: Option<f64>,
    /// Since the node started.
    pub(super) long_polls: u64,
}

/// A region.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RegionReport {
    pub(super) seen: RegionSnapshot,
    /// The share of the maximum size that is allocated.
    pub(super) fill: f64,
    /// Change of the number of records, per second.
    pub(super) growth: Option<f64>,
    pub(super) namespaces: Vec<NamespaceReport>,
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NamespaceReport {
    pub(super) name: String,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) tags: u64,
    pub(super) used_bytes: u64,
    pub(super) soft_bytes: u64,
    pub(super) hard_bytes: u64,
    /// Change of the number of records, per second.
    pub(super) growth: Option<f64>,
}

/// The sort order of namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NamespaceOrder {
    #[default]
    Bytes,
    Records,
    Growth,
    Name,
}

impl NamespaceOrder {
    /// The next one.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Records,
            Self::Records => Self::Growth,
            Self::Growth => Self::Name,
            Self::Name => Self::Bytes,
        }
    }

    /// The name of the sorted column.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Records => "records",
            Self::Growth => "growth",
            Self::Name => "name",
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates and shares are shown with three digits")]
const fn real(count: u64) -> f64 {
    count as f64
}

impl TopReport {
    /// The report of the interval between two snapshots.
    pub(super) fn between(before: Option<&Snapshot>, now: &Snapshot) -> Self {
        let seconds = before.map_or(0.0, |b| now.at.saturating_sub(b.at).as_secs_f64());
        let before = before.filter(|_| seconds > 0.0);
        let node = now.node.as_ref().map(|seen| {
            // Another node starts counting from 0.
            let same =
                |old: &&NodeSnapshot| old.pid == seen.pid && is_equal(old.started, seen.started);
            let old = before.and_then(|old| old.node.as_ref()).filter(same);
            NodeReport::between(old, seen, seconds)
        });
        let region = now.region.as_ref().map(|seen| {
            let old = before.and_then(|old| old.region.as_ref());
            RegionReport::between(old.filter(|old| old.path == seen.path), seen, seconds)
        });
        Self { seconds, node, region }
    }

    /// The value of the history graph: requests of the node, or changed records of the region.
    pub(super) fn pace(&self) -> Option<f64> {
        match (&self.node, &self.region) {
            (Some(node), _) => node.requests,
            (None, Some(region)) => region.growth.map(f64::abs),
            (None, None) => None,
        }
    }

    /// Sorts the namespaces.
    pub(super) fn order(&mut self, order: NamespaceOrder) {
        let Some(region) = &mut self.region else { return };
        region.namespaces.sort_by(|one, other| {
            let by_size = match order {
                NamespaceOrder::Bytes => other.bytes.cmp(&one.bytes),
                NamespaceOrder::Records => other.records.cmp(&one.records),
                NamespaceOrder::Growth => {
                    let size = |one: &NamespaceReport| one.growth.map_or(0.0, f64::abs);
                    size(other).total_cmp(&size(one))
                }
                NamespaceOrder::Name => std::cmp::Ordering::Equal,
            };
            by_size.then_with(|| one.name.cmp(&other.name))
        });
    }
}

/// Compares two numbers exactly, as they were written.
fn is_equal(one: f64, other: f64) -> bool {
    one.total_cmp(&other).is_eq()
}

/// The rate per second; `None` if the counter was reset.
fn rate(before: u64, now: u64, seconds: f64) -> Option<f64> {
    now.checked_sub(before).map(|more| real(more) / seconds)
}

impl NodeReport {
    fn between(before: Option<&NodeSnapshot>, now: &NodeSnapshot, seconds: f64) -> Self {
        let each = |count: fn(&NodeSnapshot) -> u64| rate(count(before?), count(now), seconds);
        let found = before.and_then(|old| {
            let hits = now.hits.checked_sub(old.hits)?;
            let all = hits + now.misses.checked_sub(old.misses)?;
            (all > 0).then(|| real(hits) / real(all))
        });
        let core = |seen: &CoreSnapshot| {
            let old = before.and_then(|old| old.cores.iter().find(|c| c.number == seen.number));
            CoreReport::between(old, seen, seconds)
        };
        let class = |seen: &ClassSnapshot| {
            let old = before.and_then(|old| old.classes.iter().find(|c| c.name == seen.name));
            ClassReport::between(old, seen, seconds)
        };
        Self {
            version: now.version.clone(),
            pid: now.pid,
            started: now.started,
            clients: now.clients,
            requests: each(|seen| seen.requests),
            errors: each(|seen| seen.errors),
            bytes_read: each(|seen| seen.bytes_read),
            bytes_written: each(|seen| seen.bytes_written),
            hit_share: found,
            classes: now.classes.iter().map(class).collect(),
            cores: now.cores.iter().map(core).collect(),
        }
    }
}

impl CoreReport {
    fn between(before: Option<&CoreSnapshot>, now: &CoreSnapshot, seconds: f64) -> Self {
        let busy = before.map(|old| (now.busy_seconds - old.busy_seconds) / seconds);
        Self {
            number: now.number,
            connections: now.connections,
            requests: before.and_then(|old| rate(old.requests, now.requests, seconds)),
            // Both clocks are read at slightly different times.
            busy: busy.map(|busy| busy.clamp(0.0, 1.0)),
            long_polls: now.long_polls,
        }
    }
}

impl ClassReport {
    fn between(before: Option<&ClassSnapshot>, now: &ClassSnapshot, seconds: f64) -> Self {
        let more = before.and_then(|old| new_values(old, now));
        let all = more.as_ref().map(|more| more.iter().map(|(_, count)| count).sum::<u64>());
        let latency = |share| quantile(more.as_ref()?, share);
        Self {
            name: now.name.clone(),
            requests: all.map(|all| real(all) / seconds),
            latencies: SHARES.map(latency),
        }
    }
}

/// The number of new values in each bucket; `None` if the buckets differ or were reset.
fn new_values(before: &ClassSnapshot, now: &ClassSnapshot) -> Option<Vec<(f64, u64)>> {
    if before.within.len() != now.within.len() {
        return None;
    }
    let mut below = 0;
    let mut values = Vec::with_capacity(now.within.len());
    for ((old_bound, old), (bound, new)) in before.within.iter().zip(&now.within) {
        let within = new.checked_sub(*old).filter(|_| is_equal(*old_bound, *bound))?;
        // Counters grow while they are read: a bucket can be read before the one inside it.
        values.push((*bound, within.saturating_sub(below)));
        below = below.max(within);
    }
    Some(values)
}

/// The quantile, interpolated within its bucket as in Prometheus. Values above the last finite
/// bound count as that bound.
fn quantile(values: &[(f64, u64)], share: f64) -> Option<f64> {
    let all: u64 = values.iter().map(|(_, count)| count).sum();
    if all == 0 {
        return None;
    }
    let wanted = real(all) * share;
    let (mut below, mut low) = (0.0, 0.0);
    for (high, count) in values {
        let count = real(*count);
        if count > 0.0 && below + count >= wanted {
            let part = ((wanted - below) / count).clamp(0.0, 1.0);
            return Some(if high.is_finite() { low + (high - low) * part } else { low });
        }
        below += count;
        if high.is_finite() {
            low = *high;
        }
    }
    Some(low)
}

impl RegionReport {
    fn between(before: Option<&RegionSnapshot>, now: &RegionSnapshot, seconds: f64) -> Self {
        let growth = |old: u64, new: u64| (real(new) - real(old)) / seconds;
        let old: BTreeMap<&str, u64> = before
            .into_iter()
            .flat_map(|old| &old.namespaces)
            .map(|old| (old.name.as_str(), old.records))
            .collect();
        let namespaces = now.namespaces.iter().map(|seen| NamespaceReport {
            name: seen.name.clone(),
            records: seen.records,
            bytes: seen.bytes,
            tags: seen.tags,
            used_bytes: seen.used_bytes,
            soft_bytes: seen.soft_bytes,
            hard_bytes: seen.hard_bytes,
            growth: old.get(seen.name.as_str()).map(|old| growth(*old, seen.records)),
        });
        let mut report = Self {
            seen: now.clone(),
            fill: if now.bytes_max == 0 {
                0.0
            } else {
                real(now.bytes_taken) / real(now.bytes_max)
            },
            growth: before.map(|old| growth(old.records, now.records)),
            namespaces: namespaces.collect(),
        };
        // Processes that delay memory reclamation first, then those with the most sessions.
        report
            .seen
            .processes
            .sort_by_key(|one| (std::cmp::Reverse((one.oldest_pin, one.sessions)), one.pid));
        report
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::NamespaceSnapshot;
    use super::*;
    use std::time::Duration;

    fn class(within: &[(f64, u64)]) -> ClassSnapshot {
        ClassSnapshot { name: "read".to_owned(), within: within.to_vec() }
    }

    fn node(requests: u64, started: f64) -> NodeSnapshot {
        let core = CoreSnapshot {
            requests,
            busy_seconds: real(requests) / 1000.0,
            ..CoreSnapshot::default()
        };
        NodeSnapshot {
            pid: 7,
            started,
            requests,
            hits: requests / 2,
            misses: requests / 6,
            cores: vec![core],
            classes: vec![class(&[
                (0.001, requests / 2),
                (0.002, requests),
                (f64::INFINITY, requests),
            ])],
            ..NodeSnapshot::default()
        }
    }

    fn at(seconds: u64, node: NodeSnapshot) -> Snapshot {
        Snapshot { at: Duration::from_secs(seconds), node: Some(node), region: None }
    }

    #[test]
    fn rates_and_latencies_are_those_of_the_interval() {
        let (one, two) = (at(10, node(1200, 1.0)), at(12, node(2400, 1.0)));
        let report = TopReport::between(Some(&one), &two);
        let seen = report.node.as_ref().unwrap();
        assert_eq!((report.seconds, report.pace(), seen.requests), (2.0, Some(600.0), Some(600.0)));
        assert_eq!((seen.errors, seen.hit_share), (Some(0.0), Some(0.75)));
        assert_eq!((seen.cores[0].requests, seen.cores[0].busy), (Some(600.0), Some(0.6)));
        let [median, most, _] = seen.classes[0].latencies;
        assert_eq!((seen.classes[0].requests, median), (Some(600.0), Some(0.001)));
        assert!(most.is_some_and(|most| (0.00197..0.00199).contains(&most)), "{most:?}");
    }

    #[test]
    fn the_first_snapshot_and_a_restarted_node_have_no_rates() {
        let (one, two) = (at(10, node(1200, 1.0)), at(12, node(24, 2.0)));
        for report in [TopReport::between(None, &one), TopReport::between(Some(&one), &two)] {
            let seen = report.node.unwrap();
            assert_eq!((seen.requests, seen.hit_share, seen.cores[0].busy), (None, None, None));
            assert_eq!((seen.classes[0].requests, seen.classes[0].latencies[0]), (None, None));
        }
        let same_moment = TopReport::between(Some(&one), &one);
        assert_eq!(same_moment.node.unwrap().requests, None);
    }

    #[test]
    fn an_idle_interval_has_a_rate_of_zero_and_no_latency() {
        let (one, two) = (at(10, node(1200, 1.0)), at(12, node(1200, 1.0)));
        let seen = TopReport::between(Some(&one), &two).node.unwrap();
        assert_eq!((seen.requests, seen.hit_share), (Some(0.0), None));
        assert_eq!((seen.classes[0].requests, seen.classes[0].latencies), (Some(0.0), [None; 3]));
    }

    #[test]
    fn a_quantile_lies_within_its_bucket_and_is_capped_at_the_last_bound() {
        let values = [(1.0, 0), (2.0, 10), (4.0, 0), (f64::INFINITY, 10)];
        assert_eq!(quantile(&values, 0.25), Some(1.5));
        assert_eq!(quantile(&values, 0.5), Some(2.0));
        assert_eq!(quantile(&values, 0.99), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    fn region(records: &[(&str, u64, u64)]) -> Snapshot {
        let namespaces = records.iter().map(|(name, records, bytes)| NamespaceSnapshot {
            name: (*name).to_owned(),
            records: *records,
            bytes: *bytes,
            ..NamespaceSnapshot::default()
        });
        let region = RegionSnapshot {
            bytes_max: 200,
            bytes_taken: 50,
            records: records.iter().map(|(_, records, _)| records).sum(),
            namespaces: namespaces.collect(),
            ..RegionSnapshot::default()
        };
        Snapshot { region: Some(region), ..Snapshot::default() }
    }

    #[test]
    fn a_region_alone_shows_how_its_records_change() {
        let one = region(&[("a", 100, 5), ("b", 10, 50)]);
        let mut two = region(&[("a", 40, 5), ("b", 20, 50), ("c", 1, 5)]);
        two.at = Duration::from_secs(10);
        let mut report = TopReport::between(Some(&one), &two);
        assert_eq!(report.pace(), Some(4.9));
        let growth = |report: &TopReport| -> Vec<_> {
            let region = report.region.as_ref().unwrap();
            region.namespaces.iter().map(|one| (one.name.clone(), one.growth)).collect()
        };
        let seen = report.region.as_ref().unwrap();
        assert_eq!((seen.fill, seen.growth), (0.25, Some(-4.9)));
        let mut order = NamespaceOrder::default();
        for wanted in ["bac", "abc", "abc", "abc"] {
            report.order(order);
            let names: String = growth(&report).into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, wanted, "by {}", order.name());
            order = order.next();
        }
        assert_eq!(order, NamespaceOrder::Bytes);
        assert_eq!(growth(&report)[0], ("a".to_owned(), Some(-6.0)));
        assert_eq!(growth(&report)[2], ("c".to_owned(), None));
    }
}

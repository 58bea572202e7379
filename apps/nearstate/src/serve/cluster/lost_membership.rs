//! What operators do when the directories of the membership are lost on all hosts, and regions of
//! the same boot are not: the new membership begins behind the views and revisions that the regions
//! have seen, and no host owns a partition before an operator names one.

use std::collections::BTreeMap;

use nearstate_cluster::{OperatorGoal, PartitionId};
use serde_json::Value;

use crate::cluster::file::ClusterFile;
use crate::cluster::show;

/// Why the cluster is not created: a host that answers has a region that has taken part already.
pub(super) fn earlier(statuses: &[Value]) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut regions = Vec::new();
    for status in statuses {
        let seen = show::items(status, "partitions").filter_map(|copy| {
            let view = copy["seen_view"].as_u64().filter(|view| *view > 0)?;
            Some((text(&copy["partition"]), view))
        });
        let host = text(&status["host"]);
        regions
            .extend(seen.map(|(partition, view)| format!("{partition} on {host} (view {view})")));
    }
    if regions.is_empty() {
        return None;
    }
    Some(format!(
        "this host knows no cluster, and regions of this boot belong to one: {}. If the \
         directories of the membership (cluster.directory) can be restored or mounted on most \
         hosts, stop the nodes, do that, and start them. If they are lost on all hosts, \
         --new-membership creates the cluster anew: then read `All directories of the membership \
         are lost` in docs/operate/cluster.md",
        regions.join(", ")
    ))
}

/// The latest state of a partition in which a host that answers has acted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SeenState {
    pub(super) partition: String,
    pub(super) view: u64,
    pub(super) revision: u64,
}

/// What regions have seen of each partition. `only_older`: of those for which a host waits, because
/// the membership is older than its region.
pub(super) fn seen(statuses: &[Value], only_older: bool) -> Vec<SeenState> {
    let mut of_partition: BTreeMap<String, (SeenState, bool)> = BTreeMap::new();
    for (status, copy) in copies(statuses) {
        let (partition, number) = (name_of(copy), |name: &str| copy[name].as_u64().unwrap_or(0));
        let (state, is_wanted) = of_partition.entry(partition.clone()).or_default();
        state.partition = partition;
        // An existing membership may be of a later view, and of an earlier revision.
        let view = if only_older { number("view") } else { 0 };
        state.view = state.view.max(number("seen_view")).max(view);
        state.revision = state.revision.max(number("seen_revision"));
        *is_wanted |=
            if only_older { waits_for_more(status, copy) } else { number("seen_view") > 0 };
    }
    let wanted = of_partition.into_values().filter(|(_, is_wanted)| *is_wanted);
    wanted.map(|(state, _)| state).collect()
}

/// The copies of all hosts that answer, each with the status of its host.
fn copies(statuses: &[Value]) -> impl Iterator<Item = (&Value, &Value)> {
    let of_host = |status| show::items(status, "partitions").map(move |copy| (status, copy));
    statuses.iter().flat_map(of_host)
}

fn name_of(copy: &Value) -> String {
    copy["partition"].as_str().unwrap_or_default().to_owned()
}

/// Does the host know a leader of the membership, and has its region seen more than that has?
fn waits_for_more(status: &Value, copy: &Value) -> bool {
    !status["membership"]["leader"].is_null() && copy["state_is_older"] == true
}

/// The hosts that do not answer.
pub(super) fn silent(statuses: &[Value]) -> Vec<String> {
    let is_silent = |status: &&Value| status.get("unreachable").is_some();
    let name = |status: &Value| status["host"].as_str().unwrap_or_default().to_owned();
    statuses.iter().filter(is_silent).map(name).collect()
}

/// Why a membership is not created anew: a host that answers has its directory, so not all of them
/// are lost, and two memberships would compete.
pub(super) fn known_elsewhere(statuses: &[Value]) -> Option<String> {
    let knows = |status: &&Value| show::items(&status["membership"], "voters").next().is_some();
    let host = statuses.iter().find(knows)?["host"].as_str().unwrap_or_default().to_owned();
    Some(format!(
        "{host} knows the cluster: its directory of the membership is there, so no new one is \
         created. If a majority of the voters has its directories, this host joins by `nearstate \
         cluster remove` and `add`. If the others are lost, stop {host}, empty its \
         cluster.directory, and start it first"
    ))
}

/// Why nothing is done to a membership that exists: no host waits for more than it has, or one owns
/// a partition.
pub(super) fn is_intact(statuses: &[Value]) -> Option<String> {
    let waits = |(status, copy): &(&Value, &Value)| waits_for_more(status, copy);
    let waiting: Vec<String> =
        copies(statuses).filter(waits).map(|(_, copy)| name_of(copy)).collect();
    if waiting.is_empty() {
        return Some(
            "the cluster exists already, and no region has seen a later state: `nearstate cluster \
             status` shows it"
                .to_owned(),
        );
    }
    let is_leased = |copy: &&Value| {
        waiting.contains(&name_of(copy)) && copy["lease_ms"].as_u64().unwrap_or(0) > 0
    };
    let owned = name_of(copies(statuses).map(|(_, copy)| copy).find(is_leased)?);
    Some(format!(
        "the cluster exists already, and a host owns {owned} and has a lease: for a host that \
         waits, stop its node, move the file of its region away, and start it"
    ))
}

/// Why a partition is not given to a host whose region has seen a later state than the membership
/// has: it would wait for that state, and serve nothing.
pub(super) fn waits(
    file: &ClusterFile,
    statuses: &Value,
    (partition, goal): (PartitionId, OperatorGoal),
) -> Option<String> {
    let (OperatorGoal::AcceptLoss(to) | OperatorGoal::ForceNew(to)) = goal else { return None };
    let (to, partition) = (file.host_name(to), file.partition_name(partition));
    let mut hosts = statuses.as_array().into_iter().flatten();
    let status = hosts.find(|status| status["host"] == to.as_str())?;
    let is_it =
        |copy: &&Value| copy["partition"] == partition.as_str() && copy["state_is_older"] == true;
    let copy = show::items(status, "partitions").find(is_it)?;
    Some(format!(
        "the region of {to} has seen a later state of {partition} (view {}) than the membership \
         has (view {}), so {to} waits and would serve nothing: name a host that does not wait \
         (`nearstate cluster status`). If all of them wait, read `All directories of the \
         membership are lost` in docs/operate/cluster.md",
        copy["seen_view"], copy["view"]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::file::tests::GOOD;
    use nearstate_cluster::HostId;
    use serde_json::json;

    fn status(host: &str, seen: u64, is_older: bool) -> Value {
        json!({ "host": host, "partitions": [{
            "partition": "amf", "view": 1, "seen_view": seen, "state_is_older": is_older,
        }] })
    }

    #[test]
    fn regions_that_have_taken_part_show_an_earlier_membership() {
        let lost = json!({ "host": "c", "unreachable": "no route" });
        assert_eq!(earlier(&[status("a", 0, false), lost.clone()]), None);
        let reason = earlier(&[status("a", 5, true), status("b", 1, false), lost]).unwrap();
        assert!(reason.contains("amf on a (view 5), amf on b (view 1)"), "{reason}");
    }

    #[test]
    fn a_new_membership_continues_behind_the_latest_state_that_a_region_has_seen() {
        let copy = |host: &str, view: u64, (seen, revision): (u64, u64), is_older: bool| {
            json!({ "host": host, "membership": { "leader": "a" }, "partitions": [{
                "partition": "amf", "view": view, "seen_view": seen,
                "seen_revision": revision, "state_is_older": is_older, "lease_ms": 0,
            }] })
        };
        let expected =
            |view, revision| vec![SeenState { partition: "amf".to_owned(), view, revision }];
        let statuses = [copy("a", 1, (3, 5), true), copy("b", 1, (2, 7), true)];
        assert_eq!(seen(&statuses, false), expected(3, 7));
        assert_eq!(seen(&[copy("a", 1, (0, 0), false)], false), []);
        // A membership that exists: only if a host waits.
        assert_eq!(is_intact(&statuses), None);
        let statuses = [copy("a", 4, (3, 7), true), copy("b", 4, (4, 6), false)];
        assert_eq!(seen(&statuses, true), expected(4, 7));
        let healthy = [copy("a", 4, (4, 7), false)];
        assert_eq!(seen(&healthy, true), []);
        assert!(is_intact(&healthy).unwrap().contains("no region has seen a later state"));
        let mut late = statuses.clone();
        for status in &mut late {
            status["membership"]["leader"] = Value::Null;
        }
        assert!(is_intact(&late).is_some(), "the host may apply more");
        let mut owned = statuses;
        owned[1]["partitions"][0]["lease_ms"] = json!(200);
        assert!(is_intact(&owned).unwrap().contains("owns amf and has a lease"));
    }

    #[test]
    fn a_membership_is_not_created_beside_one_that_a_host_knows() {
        let host = |name: &str, voters: &[&str]| {
            let membership = json!({ "voters": voters });
            json!({ "host": name, "membership": membership })
        };
        let lost = json!({ "host": "c", "unreachable": "no route" });
        assert_eq!(known_elsewhere(&[host("a", &[]), lost.clone()]), None);
        let reason = known_elsewhere(&[host("a", &[]), host("b", &["a", "b"]), lost]).unwrap();
        assert!(reason.contains("b knows the cluster"), "{reason}");
    }

    #[test]
    fn a_host_whose_region_is_ahead_of_the_membership_does_not_get_the_partition() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let statuses = json!([status("a", 5, true), status("b", 1, false)]);
        let reason = |goal| waits(&file, &statuses, (PartitionId(1), goal));
        let waiting = reason(OperatorGoal::AcceptLoss(HostId(1))).unwrap();
        assert!(waiting.contains("(view 5) than the membership has (view 1)"), "{waiting}");
        assert!(reason(OperatorGoal::ForceNew(HostId(1))).is_some());
        assert_eq!(reason(OperatorGoal::AcceptLoss(HostId(2))), None);
        assert_eq!(reason(OperatorGoal::Drain), None);
    }
}

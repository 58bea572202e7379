//! What operators do when the directories of the membership are lost on all hosts, and regions of
//! the same boot are not: the new membership begins with earlier views than the regions have seen.

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

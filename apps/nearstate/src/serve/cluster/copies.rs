//! How much of a partition the copies of the hosts that answer hold, before an operator gives some
//! of them up.

use nearstate_cluster::{HostId, PartitionId};
use serde_json::Value;

use crate::cluster::file::ClusterFile;
use crate::cluster::show;

/// What the hosts of a group have answered.
#[derive(Debug, Default)]
pub(super) struct CopiesOfHosts {
    /// The hosts with a complete copy, with the origin of its log and its last position.
    complete: Vec<(String, (u64, u64))>,
    /// Those that do not answer.
    pub(super) silent: Vec<String>,
}

/// Why a loss is not accepted, and what to do.
pub(super) fn longer_copy(host: &str, position: u64) -> String {
    format!(
        "{host} lives, and its copy holds more: it ends at position {position}. Give its name to \
         --to, or give up what only it has with --discard-longer-copies"
    )
}

impl CopiesOfHosts {
    /// Of the hosts of a group, from the statuses of all hosts.
    pub(super) fn of(
        (file, group): (&ClusterFile, &[HostId]),
        statuses: &Value,
        partition: PartitionId,
    ) -> Self {
        let mut copies = Self::default();
        let name = file.partition_name(partition);
        for host in group {
            let host = file.host_name(*host);
            let is_it = |status: &&Value| status["host"] == host.as_str();
            let status = statuses.as_array().into_iter().flatten().find(is_it);
            let Some(status) = status.filter(|status| status["unreachable"].is_null()) else {
                copies.silent.push(host);
                continue;
            };
            let is_complete =
                |copy: &&Value| copy["partition"] == name.as_str() && copy["complete"] == true;
            if let Some(copy) = show::items(status, "partitions").find(is_complete) {
                let number = |name: &str| copy[name].as_u64().unwrap_or(0);
                copies.complete.push((host, (number("origin"), number("position"))));
            }
        }
        copies
    }

    /// Why the partition is not given to a host: another one holds more, or nothing is known of its
    /// own copy. A host that answers and has no complete copy is left to the members.
    pub(super) fn more_than(&self, to: &str) -> Option<String> {
        if self.silent.iter().any(|host| host == to) {
            return Some(format!(
                "{to} does not answer, so its copy cannot be compared with the others: start its \
                 node, or name another host"
            ));
        }
        let own = self.complete.iter().find(|(host, _)| host == to).map(|(_, held)| *held)?;
        let (host, held) = self.complete.iter().max_by_key(|(_, held)| *held)?;
        (*held > own).then(|| {
            let text = longer_copy(host, held.1);
            format!("{text}. The copy of {to} ends at position {}", own.1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::file::tests::GOOD;
    use serde_json::json;

    fn status(host: &str, origin: u64, position: u64) -> Value {
        json!({ "host": host, "partitions": [{
            "partition": "amf", "complete": origin != 0, "origin": origin, "position": position,
        }] })
    }

    fn copies(statuses: &[Value]) -> CopiesOfHosts {
        let file = ClusterFile::parse(GOOD).unwrap();
        let group = [1, 2, 3].map(HostId);
        CopiesOfHosts::of((&file, &group), &json!(statuses), PartitionId(1))
    }

    #[test]
    fn the_host_that_holds_more_is_named_with_its_position() {
        let lost = json!({ "host": "a", "unreachable": "no route" });
        let found = copies(&[lost, status("b", 3, 70), status("c", 3, 90)]);
        assert_eq!(found.silent, ["a"]);
        let reason = found.more_than("b").unwrap();
        assert!(reason.starts_with("c lives") && reason.contains("position 90"), "{reason}");
        assert!(reason.ends_with("The copy of b ends at position 70"), "{reason}");
        assert_eq!(found.more_than("c"), None);
        assert!(found.more_than("a").unwrap().contains("a does not answer"));
    }

    #[test]
    fn a_later_origin_holds_more_and_a_copy_with_gaps_is_none() {
        let found = copies(&[status("a", 0, 900), status("b", 3, 70), status("c", 2, 90)]);
        assert_eq!(found.more_than("b"), None);
        assert!(found.more_than("c").unwrap().starts_with("b lives"));
        // It cannot report, as the task says.
        assert_eq!(found.more_than("a"), None);
        assert_eq!(copies(&[status("b", 3, 70)]).silent, ["a", "c"]);
        assert_eq!(copies(&[status("b", 3, 70), status("c", 3, 70)]).more_than("b"), None);
    }
}

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

/// What regions have seen of each partition. `applied`: of those for which a host waits that has
/// applied the decision with this index, because the membership is older than its region.
pub(super) fn seen(statuses: &[Value], applied: Option<u64>) -> Vec<SeenState> {
    let mut of_partition: BTreeMap<String, (SeenState, bool)> = BTreeMap::new();
    for (status, copy) in copies(statuses) {
        let (partition, number) = (name_of(copy), |name: &str| copy[name].as_u64().unwrap_or(0));
        let (state, is_wanted) = of_partition.entry(partition.clone()).or_default();
        state.partition = partition;
        // An existing membership may be of a later view, and of an earlier revision.
        let view = applied.map_or(0, |_| number("view"));
        state.view = state.view.max(number("seen_view")).max(view);
        state.revision = state.revision.max(number("seen_revision"));
        *is_wanted |= match applied {
            Some(index) => waits_for_more((status, copy), index),
            None => number("seen_view") > 0,
        };
    }
    let wanted = of_partition.into_values().filter(|(_, is_wanted)| *is_wanted);
    wanted.map(|(state, _)| state).collect()
}

/// The copies of all hosts that answer, each with the status of its host.
fn copies(statuses: &[Value]) -> impl Iterator<Item = (&Value, &Value)> {
    let of_host = |status| show::items(status, "partitions").map(move |copy| (status, copy));
    statuses.iter().flat_map(of_host)
}

fn knows_leader(status: &Value) -> bool {
    status.pointer("/membership/leader").is_some_and(|leader| !leader.is_null())
}

fn name_of(copy: &Value) -> String {
    copy["partition"].as_str().unwrap_or_default().to_owned()
}

/// Has the host applied the decision with this index, and has its region seen more than that?
fn waits_for_more((status, copy): (&Value, &Value), index: u64) -> bool {
    let is_led = knows_leader(status);
    is_led && has_applied(status, index) && copy["state_is_older"] == true
}

fn has_applied(status: &Value, index: u64) -> bool {
    status["applied"].as_u64().is_some_and(|applied| applied >= index)
}

/// Have all hosts that know a leader applied the decision with this index?
pub(super) fn have_applied(statuses: &[Value], index: u64) -> bool {
    let is_led = |status: &&Value| knows_leader(status);
    statuses.iter().filter(is_led).all(|status| has_applied(status, index))
}

fn host_of(status: &Value) -> String {
    status["host"].as_str().unwrap_or_default().to_owned()
}

/// The hosts that do not answer.
pub(super) fn silent(statuses: &[Value]) -> Vec<String> {
    let is_silent = |status: &&Value| status.get("unreachable").is_some();
    let name = |status: &Value| status["host"].as_str().unwrap_or_default().to_owned();
    statuses.iter().filter(is_silent).map(name).collect()
}

/// Why nothing is done: a host does not answer, and the operator has not named it.
pub(super) fn unnamed(statuses: &[Value], without: &[String]) -> Option<String> {
    let unnamed: Vec<String> =
        silent(statuses).into_iter().filter(|host| !without.contains(host)).collect();
    if unnamed.is_empty() {
        return None;
    }
    Some(format!(
        "{} did not answer: start the nodes of all hosts of the cluster file. One that is lost, or \
         that you have stopped, is left out with --without NAME. It must be off, and what only it \
         holds is discarded after accept-loss",
        unnamed.join(", ")
    ))
}

/// Why a membership is not created anew.
pub(super) fn is_unsafe(file: &ClusterFile, statuses: &[Value]) -> Option<String> {
    known_elsewhere(statuses).or_else(|| failed(statuses)).or_else(|| outside_group(file, statuses))
}

/// A host that answers has a membership that does not work. It may have voted in one that is there.
fn failed(statuses: &[Value]) -> Option<String> {
    let reason = |status: &Value| {
        let failure = status.pointer("/membership/failure")?;
        failure.as_str().map(str::to_owned)
    };
    let (status, reason) = statuses.iter().find_map(|status| Some((status, reason(status)?)))?;
    Some(format!(
        "the membership of {} has failed, so it is not known whether a cluster is there \
         ({reason}). Repair that first",
        host_of(status)
    ))
}

/// A host that answers has a region of a partition, and the group of the file is without it: it may
/// have the only complete copy.
fn outside_group(file: &ClusterFile, statuses: &[Value]) -> Option<String> {
    let is_member = |partition: &str, host: &str| {
        let mut partitions = file.partitions.iter().filter(|one| one.name == partition);
        partitions.any(|one| one.group.iter().any(|member| file.host_name(*member) == host))
    };
    let found = statuses.iter().find_map(|status| {
        let host = host_of(status);
        let reported = show::items(status, "partitions").map(name_of);
        let files = show::items(status, "regions_outside")
            .map(|name| name.as_str().unwrap_or_default().to_owned());
        let partition = reported.chain(files).find(|partition| !is_member(partition, &host))?;
        Some((host, partition))
    });
    let (host, partition) = found?;
    Some(format!(
        "{host} has a region of {partition}, and is not in its group in the cluster file. If \
         it was a member, put the present group into the file of all hosts, and restart the nodes. \
         If it was removed from the group, move the file of that region away"
    ))
}

/// Why a membership is not created anew: a host that answers has its directory, so not all of them
/// are lost, and two memberships would compete.
pub(super) fn known_elsewhere(statuses: &[Value]) -> Option<String> {
    let knows = |status: &&Value| show::items(&status["membership"], "voters").next().is_some();
    let host = host_of(statuses.iter().find(knows)?);
    Some(format!(
        "{host} knows the cluster: its directory of the membership is there, so no new one is \
         created. If a majority of the voters has its directories, this host joins by `nearstate \
         cluster remove` and `add`. If init --new-membership was interrupted, repeat it there, \
         with --host {host}. If the directories of the others are lost, stop {host}, empty its \
         cluster.directory, and start it first"
    ))
}

/// A copy for a comparison: that with the higher origin holds more, then that with the higher
/// position.
fn held(copy: &Value) -> (u64, u64) {
    (copy["origin"].as_u64().unwrap_or(0), copy["position"].as_u64().unwrap_or(0))
}

/// The partitions for which a host waits, and which another one owns with a lease: what is to be
/// done about each of them.
pub(super) fn leased(statuses: &[Value], applied: Option<u64>) -> BTreeMap<String, String> {
    // Before the cluster exists, a region has at most the end of a lease that was.
    let Some(index) = applied else { return BTreeMap::new() };
    let waiting = copies(statuses).filter(|at| waits_for_more(*at, index));
    let mut of_partition: BTreeMap<String, (&Value, &Value)> = BTreeMap::new();
    for (status, copy) in waiting {
        let longest = of_partition.entry(name_of(copy)).or_insert((status, copy));
        if held(copy) > held(longest.1) {
            *longest = (status, copy);
        }
    }
    let with_owner = of_partition.into_iter().filter_map(|(partition, waiting)| {
        let is_leased = |(_, copy): &(&Value, &Value)| {
            name_of(copy) == partition
                && copy["state_is_older"] != true
                && copy["lease_ms"].as_u64().unwrap_or(0) > 0
        };
        let owner = copies(statuses).find(is_leased)?;
        let advice = owned_beside(&partition, owner, waiting);
        Some((partition, advice))
    });
    with_owner.collect()
}

/// A host owns a partition, and another one waits with a copy. A region is not moved away before
/// the copies were compared.
fn owned_beside(
    partition: &str,
    (of_owner, its_copy): (&Value, &Value),
    (of_waiting, waiting): (&Value, &Value),
) -> String {
    let (owner, host) = (host_of(of_owner), host_of(of_waiting));
    let ((origin, position), (origin_waiting, position_waiting)) = (held(its_copy), held(waiting));
    let repeat = format!("stop the node of {owner}, and repeat the command with --without {owner}");
    let advice = if held(waiting) > held(its_copy) {
        format!("The copy of {host} holds more: {repeat}")
    } else {
        format!(
            "That does not show that {owner} has what {host} has. Compare the records of both \
             regions. If those of {host} are needed, {repeat}. Only if they are not, stop the node \
             of {host}, move the file of its region away, and start it"
        )
    };
    format!(
        "{owner} owns {partition} and has a lease (origin {origin}, position {position}), and \
         {host} waits (origin {origin_waiting}, position {position_waiting}). {advice}"
    )
}

/// Why nothing is done to a membership that exists: no host waits for more than it has, or all
/// partitions have owners.
pub(super) fn nothing_to_raise(leased: &[&String]) -> String {
    if leased.is_empty() {
        return "the cluster exists already, and no region has seen a later state: `nearstate \
                cluster status` shows it"
            .to_owned();
    }
    let leased: Vec<&str> = leased.iter().map(|reason| reason.as_str()).collect();
    format!("the cluster exists already. {}", leased.join(". "))
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

    /// A copy that waits, or not, whose host has applied the decision 9.
    fn copy(host: &str, view: u64, (seen, revision): (u64, u64), is_older: bool) -> Value {
        json!({ "host": host, "applied": 9, "membership": { "leader": "a" }, "partitions": [{
            "partition": "amf", "view": view, "seen_view": seen, "origin": view, "position": 5,
            "seen_revision": revision, "state_is_older": is_older, "lease_ms": 0,
        }] })
    }

    fn state(view: u64, revision: u64) -> Vec<SeenState> {
        vec![SeenState { partition: "amf".to_owned(), view, revision }]
    }

    #[test]
    fn a_new_membership_continues_behind_the_latest_state_that_a_region_has_seen() {
        let statuses = [copy("a", 1, (3, 5), true), copy("b", 1, (2, 7), true)];
        assert_eq!(seen(&statuses, None), state(3, 7));
        assert_eq!(seen(&[copy("a", 1, (0, 0), false)], None), []);
        // A membership that exists: only if a host waits.
        let statuses = [copy("a", 4, (3, 7), true), copy("b", 4, (4, 6), false)];
        assert_eq!(seen(&statuses, Some(9)), state(4, 7));
        let healthy = [copy("a", 4, (4, 7), false)];
        assert_eq!(seen(&healthy, Some(9)), []);
        assert!(nothing_to_raise(&[]).contains("no region has seen a later state"));
        let mut late = statuses;
        late[0]["membership"]["leader"] = Value::Null;
        assert_eq!(seen(&late, Some(9)), [], "the host may apply more");
    }

    #[test]
    fn a_host_waits_only_if_it_has_applied_what_was_decided_before() {
        // It knows the leader.
        let statuses = [copy("a", 4, (3, 7), true), copy("b", 4, (4, 6), false)];
        assert_eq!(seen(&statuses, Some(10)), []);
        assert!(have_applied(&statuses, 9) && !have_applied(&statuses, 10));
        let mut late = statuses;
        late[0]["applied"] = json!(8);
        assert_eq!(seen(&late, Some(9)), []);
        assert!(!have_applied(&late, 9));
        late[0]["membership"]["leader"] = Value::Null;
        assert!(have_applied(&late, 9), "a host that learns nothing is not waited for");
    }

    #[test]
    fn a_partition_with_a_lease_is_listed_with_both_copies_and_does_not_block_others() {
        let mut statuses = [copy("a", 1, (1, 2), false), copy("b", 1, (1, 7), true)];
        for (status, lease_ms) in statuses.iter_mut().zip([200, 100]) {
            let mut other = status["partitions"][0].clone();
            other["partition"] = json!("smf");
            status["partitions"].as_array_mut().unwrap().push(other);
            status["partitions"][0]["lease_ms"] = json!(lease_ms);
        }
        statuses[0]["partitions"][0]["position"] = json!(0);
        let wanted: Vec<_> =
            seen(&statuses, Some(9)).into_iter().map(|one| one.partition).collect();
        assert_eq!(wanted, ["amf", "smf"]);
        let found = leased(&statuses, Some(9));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["amf"]);
        let reason = &found["amf"];
        assert!(reason.starts_with("a owns amf"), "{reason}");
        assert!(reason.contains("(origin 1, position 0), and b waits (origin 1, position 5)"));
        assert!(reason.contains("holds more: stop the node of a, and repeat"), "{reason}");
        assert!(!reason.contains("move"), "{reason}");
        // A copy of a new log may be longer than one that it lacks.
        statuses[0]["partitions"][0]["position"] = json!(50);
        let reason = &leased(&statuses, Some(9))["amf"];
        let at = |text: &str| reason.find(text).unwrap();
        assert!(at("Compare the records") < at("move the file"), "{reason}");
        assert!(nothing_to_raise(&[reason]).contains(reason.as_str()));
        // A word of the region of a host that waits is no lease, and neither is one of before.
        statuses[0]["partitions"][0]["lease_ms"] = json!(0);
        assert_eq!(leased(&statuses, Some(9)), BTreeMap::new());
        assert_eq!(leased(&statuses, None), BTreeMap::new());
    }

    #[test]
    fn a_membership_is_not_created_unless_each_host_answers_and_works() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let good = [status("amf-1", 5, true), status("amf-2", 0, false)];
        let lost =
            [good.to_vec(), vec![json!({ "host": "c", "unreachable": "no route" })]].concat();
        assert!(unnamed(&lost, &["amf-1".to_owned()]).unwrap().starts_with("c did not answer"));
        assert_eq!(unnamed(&lost, &["c".to_owned()]), None);
        let names: Vec<String> = file.hosts.iter().take(2).map(|host| host.name.clone()).collect();
        let mut statuses = [status(&names[0], 5, true), status(&names[1], 0, false)];
        assert_eq!(is_unsafe(&file, &statuses), None);
        statuses[1]["membership"] = json!({ "voters": [], "failure": "it has voted" });
        let reason = is_unsafe(&file, &statuses).unwrap();
        assert!(reason.contains(&format!("{} has failed", names[1])), "{reason}");
        statuses[1]["membership"]["failure"] = Value::Null;
        statuses[1]["regions_outside"] = json!(["smf"]);
        let reason = is_unsafe(&file, &statuses).unwrap();
        assert!(reason.starts_with(&format!("{} has a region of smf", names[1])), "{reason}");
        let mut other = statuses;
        other[1]["regions_outside"] = Value::Null;
        other[1]["host"] = json!("d");
        assert!(is_unsafe(&file, &other).unwrap().starts_with("d has a region of amf"));
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

//! Whether the hosts that vote could lose one more after a host is removed from them, whether a
//! partition needs its copy, and whether a host that is added answers. Looked at before the change
//! is made.

use std::collections::BTreeSet;

use nearstate_cluster::{GroupState, HostId};
use serde_json::Value;

use crate::cluster::file::ClusterFile;

/// The fewest hosts of which one can be lost, while the others are still a majority.
const VOTERS_MIN: usize = 3;

/// Does a host answer, by the statuses of all hosts? What it said instead.
pub(super) fn silent_reason<'s>(statuses: &'s Value, host: &str) -> Option<&'s str> {
    let status = statuses.as_array().into_iter().flatten().find(|status| status["host"] == host);
    status.map_or(Some("it is not in the cluster file"), |status| status["unreachable"].as_str())
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => "no host".to_owned(),
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        [one, ..] => (*one).to_owned(),
    }
}

/// Why the vote of a host is not taken, unless an operator accepts what follows.
pub(super) fn weakens(voters: &[String], statuses: &Value, host: &str) -> Option<String> {
    if !voters.iter().any(|voter| voter == host) {
        return None;
    }
    let left: Vec<&str> = voters.iter().map(String::as_str).filter(|one| *one != host).collect();
    let silent: Vec<&str> =
        left.iter().copied().filter(|one| silent_reason(statuses, one).is_some()).collect();
    let otherwise = format!("nearstate cluster remove {host} --weaken-majority");
    if 2 * (left.len() - silent.len()) <= left.len() {
        return Some(format!(
            "without {host}, {} vote, and of them {} not answer: they are no majority, so nothing \
             could be decided any more, not even to let {host} vote again. Start the nodes that do \
             not answer, or remove one of those hosts instead. All the same: {otherwise}",
            listed(&left),
            if let [one] = silent.as_slice() {
                format!("{one} does")
            } else {
                format!("{} do", listed(&silent))
            },
        ));
    }
    (left.len() < VOTERS_MIN).then(|| {
        let loss = if left.len() == 1 { "its loss stops" } else { "the loss of either one stops" };
        let verb = if left.len() == 1 { "votes" } else { "vote" };
        format!(
            "without {host}, {} {verb}: {loss} the membership, and with it each fail-over. Let \
             another host vote first (nearstate cluster add NAME). All the same, for example to \
             give {host} an empty directory and to add it again at once: {otherwise}",
            listed(&left)
        )
    })
}

/// The same because of its copies: a host that does not vote follows no owner, so nothing of a
/// partition would be replicated that has no other copy in place of that one.
pub(super) fn copy_needed(
    file: &ClusterFile,
    groups: &[GroupState],
    host: HostId,
) -> Option<String> {
    let is_needed = |group: &&GroupState| {
        group.full().contains(&host) && group.full().len() <= group.acknowledgements()
    };
    let group = groups.iter().find(is_needed)?;
    let (partition, host) = (file.partition_name(group.partition()), file.host_name(host));
    Some(format!(
        "{partition} needs the copy of {host}: {} copies are complete, and {} must hold a commit, \
         so its writers would be refused. Wait until another copy counts (COUNTED of nearstate \
         cluster status), or add one (nearstate cluster add NAME --partition {partition}). All \
         the same: nearstate cluster remove {host} --weaken-majority",
        group.full().len(),
        group.acknowledgements()
    ))
}

/// Why a host is not added now: it would vote later, when its node starts, and until then count as
/// one that is lost.
pub(super) fn cannot_join(statuses: &Value, host: &str) -> Option<String> {
    silent_reason(statuses, host).map(|reason| {
        format!(
            "{host} does not answer ({reason}), and would count as a voter that is lost: start its \
             node first (nearstate serve --cluster FILE --host {host}), or let this command wait \
             for it (--wait 5min)"
        )
    })
}

/// Why an operator's decision is not possible: too few of the voters answer.
pub(super) fn no_majority(
    (file, voters): (&ClusterFile, &BTreeSet<u64>),
    statuses: &Value,
) -> Option<String> {
    let is_silent = |name: &str| {
        let mut hosts = statuses.as_array().into_iter().flatten();
        hosts.any(|status| status["host"] == name && !status["unreachable"].is_null())
    };
    let names = file.hosts.iter().filter(|host| voters.contains(&host.id.0.into()));
    let silent: Vec<&str> =
        names.map(|host| host.name.as_str()).filter(|name| is_silent(name)).collect();
    let answering = voters.len().saturating_sub(silent.len());
    (answering <= voters.len() / 2 && !voters.is_empty()).then(|| {
        format!(
            "no majority of the voters answers ({answering} of {}), so nothing can be decided: \
             start the nodes of {} first, as many as are needed",
            voters.len(),
            silent.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use nearstate_cluster::{ClusterState, Command, PartitionId};
    use serde_json::json;

    use super::*;
    use crate::cluster::file::tests::GOOD;

    fn statuses(silent: &[&str]) -> Value {
        let status = |host: &str| {
            if silent.contains(&host) {
                json!({ "host": host, "unreachable": "no reply in time" })
            } else {
                json!({ "host": host, "partitions": [] })
            }
        };
        ["a", "b", "c", "d", "e"].map(status).into()
    }

    fn reason(voters: &[&str], silent: &[&str], host: &str) -> Option<String> {
        let voters: Vec<String> = voters.iter().map(|&name| name.to_owned()).collect();
        weakens(&voters, &statuses(silent), host)
    }

    #[test]
    fn a_vote_is_taken_while_those_that_are_left_can_lose_one() {
        let all = ["a", "b", "c", "d", "e"];
        assert_eq!(reason(&all, &[], "a"), None);
        assert_eq!(reason(&all, &["a"], "a"), None, "it is lost itself");
        assert_eq!(reason(&all, &["b"], "a"), None, "three of four answer");
        assert_eq!(reason(&all[..4], &[], "a"), None);
        assert_eq!(reason(&all[..3], &[], "d"), None, "it does not vote");
    }

    #[test]
    fn a_vote_is_not_taken_if_fewer_than_three_are_left() {
        let said = reason(&["a", "b", "c"], &[], "c").unwrap();
        let wanted = "without c, a and b vote: the loss of either one stops the membership";
        assert!(said.starts_with(wanted), "{said}");
        assert!(said.contains("nearstate cluster remove c --weaken-majority"), "{said}");
        // The host is lost itself: that is no reason to leave two.
        assert!(reason(&["a", "b", "c"], &["c"], "c").is_some());
        let said = reason(&["a", "b"], &[], "b").unwrap();
        assert!(said.starts_with("without b, a votes: its loss stops the membership"), "{said}");
    }

    #[test]
    fn a_vote_is_not_taken_if_no_majority_of_the_others_answers() {
        let said = reason(&["a", "b", "c"], &["b"], "c").unwrap();
        assert!(
            said.starts_with("without c, a and b vote, and of them b does not answer"),
            "{said}"
        );
        let said = reason(&["a", "b", "c", "d", "e"], &["a", "b"], "e").unwrap();
        assert!(said.contains("a, b, c and d vote, and of them a and b do not answer"), "{said}");
        assert_eq!(reason(&["a", "b", "c", "d"], &["a"], "d"), None);
    }

    #[test]
    fn a_host_that_does_not_answer_is_not_added() {
        assert_eq!(cannot_join(&statuses(&[]), "c"), None);
        let said = cannot_join(&statuses(&["c"]), "c").unwrap();
        assert!(said.starts_with("c does not answer (no reply in time)"), "{said}");
    }

    #[test]
    fn a_lost_majority_is_said_with_the_hosts_to_start() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let voters = BTreeSet::from([1, 2, 3]);
        let status = |host: &str, answers: bool| {
            if answers {
                json!({ "host": host })
            } else {
                json!({ "host": host, "unreachable": "no route" })
            }
        };
        let reason = |answers: [bool; 3]| {
            let hosts = ["a", "b", "c"].into_iter().zip(answers);
            let statuses: Value = hosts.map(|(host, answers)| status(host, answers)).collect();
            no_majority((&file, &voters), &statuses)
        };
        assert_eq!(reason([true, true, false]), None);
        let lost = reason([true, false, false]).unwrap();
        assert!(lost.contains("(1 of 3)") && lost.contains("the nodes of b, c first"), "{lost}");
        assert_eq!(no_majority((&file, &BTreeSet::new()), &json!([])), None);
    }

    #[test]
    fn a_vote_is_not_taken_from_a_host_whose_copy_a_partition_needs() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let mut state = ClusterState::new(&file.config).unwrap();
        let partition = PartitionId(1);
        let needed = |state: &ClusterState, host| {
            let groups: Vec<GroupState> = state.groups().cloned().collect();
            copy_needed(&file, &groups, HostId(host))
        };
        let change = |state: &mut ClusterState, host, is_full| {
            let revision = state.group(partition).unwrap().revision();
            let host = HostId(host);
            state.apply(&if is_full {
                Command::Full { partition, revision, host }
            } else {
                Command::Evict { partition, revision, host }
            });
        };
        change(&mut state, 2, true);
        change(&mut state, 3, true);
        assert_eq!(needed(&state, 2), None, "two others are complete");
        change(&mut state, 3, false);
        let said = needed(&state, 2).unwrap();
        assert!(said.starts_with("amf needs the copy of b: 2 copies are complete"), "{said}");
        assert!(said.ends_with("nearstate cluster remove b --weaken-majority"), "{said}");
        assert_eq!(needed(&state, 3), None, "it does not count");
    }
}

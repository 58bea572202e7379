//! A drain: which host is to own the partition next, and whether it could serve the clients.
//!
//! The membership knows nothing of clients. A host that does not own a partition does not listen at
//! its ports, so a port at which something answers there is in use, and the host could not serve.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nearstate_cluster::{GroupState, HostId, OperatorGoal};
use serde_json::Value;

use crate::cluster::file::{ClusterFile, FileHost, FilePartition};
use crate::cluster::show;

/// The longest wait for an answer of a port. A free one is refused at once; with a firewall it is
/// not known, and counts as free.
const PORT_MAX: Duration = Duration::from_millis(300);

/// The ports of a partition that are in use at the hosts which do not own it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TakenPorts(BTreeMap<HostId, SocketAddr>);

impl TakenPorts {
    /// Connects to the hosts whose copies count, at the same time.
    pub(super) fn of(
        (file, partition): (&ClusterFile, &FilePartition),
        group: &GroupState,
    ) -> Self {
        let is_other = |host: &&FileHost| group.can_take_over(host.id);
        let others = file.hosts.iter().filter(is_other);
        let taken = std::thread::scope(|scope| {
            let asked: Vec<_> = others
                .map(|host| (host.id, scope.spawn(move || taken_port(host, partition))))
                .collect();
            let answered = asked.into_iter().filter_map(|(host, asked)| {
                let address = asked.join().ok().flatten()?;
                Some((host, address))
            });
            answered.collect()
        });
        Self(taken)
    }

    /// The host that a drain without a name prefers. The rules choose the first of the group's
    /// equal copies: if that host could not serve clients and another one could, it is that one.
    pub(super) fn preferred(&self, group: &GroupState) -> Option<HostId> {
        let mut able = group.group().iter().filter(|host| group.can_take_over(**host));
        let is_free = |host: &HostId| !self.0.contains_key(host);
        let is_first_taken = able.next().is_some_and(|first| !is_free(first));
        able.find(|host| is_first_taken && is_free(host)).copied()
    }

    /// What an operator must know of the new owner.
    pub(super) fn warning(&self, file: &ClusterFile, owner: HostId) -> Option<String> {
        let address = self.0.get(&owner)?;
        let name = file.host_name(owner);
        Some(format!(
            "another program answers at {address}, so {name} may not serve the clients: free the \
             address (NS-5010 says if it is needed), or drain {name}"
        ))
    }
}

/// The members have found an owner that is not the named one.
pub(super) fn other_owner((own, partition): (&str, &str), (owner, to): (&str, &str)) -> String {
    format!(
        "{own} is drained; {owner} owns {partition}, not {to}: its copy was longer, or {to} was \
         lost meanwhile. `nearstate cluster drain --host {owner} --to {to}` tries it again"
    )
}

/// What a drain is to reach: the host that the operator has named, or one that is preferred.
pub(super) fn goal(to: Option<HostId>, preferred: Option<HostId>) -> OperatorGoal {
    let unnamed = preferred.map_or(OperatorGoal::Drain, OperatorGoal::DrainPreferring);
    to.map_or(unnamed, OperatorGoal::DrainTo)
}

/// A port of a partition at which something answers on a host.
fn taken_port(host: &FileHost, partition: &FilePartition) -> Option<SocketAddr> {
    let mut ports = std::iter::once(partition.port).chain(partition.ports.all());
    ports.find_map(|port| {
        let address = SocketAddr::new(host.clients, port);
        TcpStream::connect_timeout(&address, PORT_MAX).is_ok().then_some(address)
    })
}

/// What a host has said of itself, if it was asked.
fn status_of<'s>(statuses: &'s Value, name: &str) -> Option<&'s Value> {
    statuses.as_array().into_iter().flatten().find(|status| status["host"] == name)
}

/// Why a host that answers could not report its copy: the membership would not hear it. One whose
/// region has seen a later state than its membership learns that soon.
pub(super) fn unheard(file: &ClusterFile, statuses: &Value, host: HostId) -> Option<String> {
    let name = file.host_name(host);
    let status = status_of(statuses, &name)?;
    let membership = status.get("membership")?;
    if let Some(failure) = membership["failure"].as_str() {
        Some(format!("the membership has failed on {name} ({failure})"))
    } else if membership.get("leader") == Some(&Value::Null) {
        Some(format!("{name} knows no leader of the membership"))
    } else {
        None
    }
}

/// Why no other owner would be found: too few members could report.
pub(super) fn too_few(file: &ClusterFile, statuses: &Value, group: &GroupState) -> Option<String> {
    let others = group.full().iter().filter(|host| Some(**host) != group.owner());
    let reasons: Vec<_> = others.clone().map(|host| unheard(file, statuses, *host)).collect();
    let able = reasons.iter().filter(|reason| reason.is_none()).count();
    let unable: Vec<String> = reasons.into_iter().flatten().collect();
    (able < group.reports_needed() && !unable.is_empty()).then(|| {
        format!(
            "{}, and without its report no other owner would be found. `cluster alarms` says what \
             to do. Nothing has changed",
            unable.join("; ")
        )
    })
}

/// Why the host cannot take over, as the reports of all hosts say.
pub(super) fn unable(file: &ClusterFile, statuses: &Value, to: HostId) -> Option<String> {
    let name = file.host_name(to);
    let status = status_of(statuses, &name)?;
    if let Some(reason) = status["unreachable"].as_str() {
        return Some(format!("{name} does not answer ({reason}): nothing has changed"));
    }
    if let Some(reason) = unheard(file, statuses, to) {
        return Some(format!("{reason}, so it cannot take over. Nothing has changed"));
    }
    let is_drained =
        |copy: &&Value| copy["role"] == "draining" || copy["drain_undecided"] == Value::Bool(true);
    let drained = show::items(status, "partitions").find(is_drained)?;
    let partition = drained["partition"].as_str().unwrap_or_default();
    Some(format!("{name} is drained itself at present, of {partition}: nothing has changed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::file::tests::GOOD;
    use nearstate_cluster::{ClusterState, Command, PartitionId};
    use serde_json::json;

    /// All copies of the partition count, and the first host owns it.
    fn group(file: &ClusterFile) -> GroupState {
        let mut state = ClusterState::new(&file.config).unwrap();
        let partition = PartitionId(1);
        for host in [2, 3].map(HostId) {
            let revision = state.group(partition).unwrap().revision();
            state.apply(&Command::Full { partition, revision, host });
        }
        state.group(partition).unwrap().clone()
    }

    fn taken(hosts: &[u16]) -> TakenPorts {
        let address = "127.0.0.1:6379".parse().unwrap();
        TakenPorts(hosts.iter().map(|host| (HostId(*host), address)).collect())
    }

    #[test]
    fn a_host_whose_port_is_in_use_is_avoided_if_another_one_can_serve() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let group = group(&file);
        let preferred = |hosts: &[u16]| taken(hosts).preferred(&group);
        for hosts in [&[] as &[u16], &[3], &[2, 3]] {
            assert_eq!(preferred(hosts), None, "{hosts:?}");
        }
        assert_eq!(preferred(&[2]), Some(HostId(3)));
        assert_eq!(taken(&[2]).warning(&file, HostId(3)), None);
        let warning = taken(&[2]).warning(&file, HostId(2)).unwrap();
        assert!(warning.contains("127.0.0.1:6379"), "{warning}");
    }

    /// Also if nothing is known of the partition, as at a host without a copy.
    #[test]
    fn the_name_that_an_operator_gives_is_kept_and_a_preference_is_none() {
        let (named, other) = (HostId(2), HostId(3));
        for preferred in [None, Some(other)] {
            assert_eq!(goal(Some(named), preferred), OperatorGoal::DrainTo(named));
        }
        assert_eq!(goal(None, Some(other)), OperatorGoal::DrainPreferring(other));
        assert_eq!(goal(None, None), OperatorGoal::Drain);
    }

    #[test]
    fn another_owner_than_the_named_one_is_told_with_what_is_done() {
        let text = other_owner(("a", "amf"), ("b", "c"));
        assert!(text.starts_with("a is drained; b owns amf, not c: "), "{text}");
        assert!(text.contains("--host b --to c"), "{text}");
    }

    #[test]
    fn a_host_that_does_not_answer_or_is_drained_cannot_take_over() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let name = file.host_name(HostId(2));
        let with = |mut status: Value| {
            status["host"] = json!(name);
            unable(&file, &json!([status]), HostId(2))
        };
        assert_eq!(with(json!({ "partitions": [{ "role": "owner" }] })), None);
        assert!(with(json!({ "unreachable": "no route" })).unwrap().contains("no route"));
        let drained = json!({ "partitions": [{ "partition": "smf", "role": "draining" }] });
        assert!(with(drained).unwrap().contains("of smf"));
        let undecided = json!({ "partitions": [{ "partition": "smf", "drain_undecided": true }] });
        assert!(with(undecided).unwrap().contains("of smf"));
    }

    /// A status of a host, whose membership is as given.
    fn with_membership(file: &ClusterFile, host: u16, membership: &Value) -> Value {
        let partition = file.partition_name(PartitionId(1));
        json!({
            "host": file.host_name(HostId(host)),
            "membership": membership,
            "partitions": [{ "partition": partition, "role": "member" }],
        })
    }

    #[test]
    fn a_host_that_could_not_report_its_copy_cannot_take_over_and_counts_as_silent() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let group = group(&file);
        let led = json!({ "leader": "a", "failure": null });
        let healthy = with_membership(&file, 3, &led);
        for (membership, reason) in [
            (json!({ "leader": "a", "failure": "no disk" }), "no disk"),
            (json!({ "leader": null, "failure": null }), "no leader"),
        ] {
            let statuses = json!([with_membership(&file, 2, &membership), healthy]);
            let to = HostId(2);
            let refusal = unable(&file, &statuses, to).unwrap();
            assert!(refusal.contains(reason), "{refusal}");
            assert_eq!(unable(&file, &statuses, HostId(3)), None);
            // Both others must report.
            assert_eq!(group.reports_needed(), 2);
            let refusal = too_few(&file, &statuses, &group).unwrap();
            assert!(refusal.contains(reason), "{refusal}");
        }
        let statuses = json!([with_membership(&file, 2, &led), healthy]);
        assert_eq!(too_few(&file, &statuses, &group), None);
    }
}

//! The status of a cluster: JSON of the node, and a table of it.

use std::fmt::Write as _;

use nearstate_node::{ClusterStatus, CopyStatus};
use serde_json::{Value, json};

use super::file::{ClusterFile, FileHost};
use super::row;

/// The status of a host as JSON.
pub(crate) fn to_json(file: &ClusterFile, host: &FileHost, status: &ClusterStatus) -> Value {
    let engine = &status.engine;
    let name = |id: u64| {
        let host = file.hosts.iter().find(|host| u64::from(host.id.0) == id);
        host.map_or_else(|| id.to_string(), |host| host.name.clone())
    };
    json!({
        "cluster": file.name,
        "host": host.name,
        "membership": {
            "leader": engine.leader.map(name),
            "voters": engine.voters.iter().map(|id| name(*id)).collect::<Vec<_>>(),
            "applied": engine.applied,
            "term": engine.term,
            "failure": engine.failure,
        },
        "partitions": status.copies.iter().map(|copy| copy_json(file, copy)).collect::<Vec<_>>(),
    })
}

fn copy_json(file: &ClusterFile, copy: &CopyStatus) -> Value {
    let names = |hosts: &mut dyn Iterator<Item = nearstate_cluster::HostId>| {
        hosts.map(|host| file.host_name(host)).collect::<Vec<_>>()
    };
    let members = copy.members.iter().map(|member| {
        let lag = member.position.map(|position| copy.position.saturating_sub(position));
        json!({
            "host": file.host_name(member.host),
            "position": member.position,
            "lag": lag,
            "silent_ms": member.silent_ms,
        })
    });
    json!({
        "partition": file.partition_name(nearstate_cluster::PartitionId(copy.partition)),
        "view": copy.view,
        "owner": copy.owner.map(|host| file.host_name(host)),
        "excluded": copy.excluded.map(|host| file.host_name(host)),
        "reports": names(&mut copy.reports.iter().copied()),
        "reports_needed": copy.reports_needed,
        "group": names(&mut copy.group.iter().copied()),
        "full": names(&mut copy.full.iter().copied()),
        "role": copy.role,
        "lease_ms": copy.lease_ms,
        "position": copy.position,
        "replicated": copy.replicated,
        "sealed": copy.sealed,
        "members": members.collect::<Vec<_>>(),
    })
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// The items of a list in an object.
pub(crate) fn items<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn field(value: &Value, name: &str) -> String {
    text(value.get(name).unwrap_or(&Value::Null))
}

/// The statuses of some hosts as a table.
pub(crate) fn table(statuses: &[Value]) -> String {
    let head =
        ["PARTITION", "HOST", "ROLE", "VIEW", "OWNER", "FULL", "LEASE ms", "POSITION", "LAG"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for status in statuses {
        let host = field(status, "host");
        for copy in items(status, "partitions") {
            let lags = items(copy, "members")
                .map(|member| format!("{}:{}", field(member, "host"), field(member, "lag")));
            let lags = lags.collect::<Vec<_>>().join(" ");
            rows.push(vec![
                field(copy, "partition"),
                host.clone(),
                field(copy, "role"),
                field(copy, "view"),
                field(copy, "owner"),
                field(copy, "full"),
                field(copy, "lease_ms"),
                field(copy, "position"),
                if lags.is_empty() { "-".to_owned() } else { lags },
            ]);
        }
    }
    let mut out = row::table(&rows);
    for status in statuses {
        let membership = status.get("membership").unwrap_or(&Value::Null);
        let _ = writeln!(
            out,
            "{}: the membership is led by {}, voters {}, applied {}{}",
            field(status, "host"),
            field(membership, "leader"),
            field(membership, "voters"),
            field(membership, "applied"),
            membership
                .get("failure")
                .and_then(Value::as_str)
                .map_or_else(String::new, |failure| format!(", FAILED: {failure}"))
        );
    }
    out
}

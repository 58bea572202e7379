//! The status of a cluster: JSON of the node, and a table of it.

use std::fmt::Write as _;

use nearstate_node::{ClusterStatus, CopyStatus, FileSystemSpace};
use serde_json::{Value, json};

use super::file::{ClusterFile, FileHost};
use super::{level, moment, row};

/// The status of a host as JSON, with its alarms.
pub(crate) fn to_json(
    (file, host): (&ClusterFile, &FileHost),
    status: &ClusterStatus,
    alarms: &Value,
) -> Value {
    let engine = &status.engine;
    let name = |id: u64| {
        let host = file.all_hosts().find(|host| u64::from(host.id.0) == id);
        host.map_or_else(|| id.to_string(), |host| host.name.clone())
    };
    // A file that was measured exists.
    let outside = file
        .partitions_outside(host)
        .filter(|partition| FileSystemSpace::measured(&file.region_file(host, partition)).is_ok());
    let directory = directory_space(file, host);
    json!({
        "cluster": file.name,
        "host": host.name,
        "clock_ms": nearstate_store::now_ms_coarse(),
        "applied": status.applied,
        "directory_bytes_free": directory.and_then(|space| space.bytes_free),
        "directory_known": directory.is_some(),
        "regions_outside": outside.map(|partition| &partition.name).collect::<Vec<_>>(),
        "level": status.level.0,
        "level_highest": level::highest().0,
        "membership": {
            "engine": file.engine_name(),
            "leader": engine.leader.map(name),
            "voters": engine.voters.iter().map(|id| name(*id)).collect::<Vec<_>>(),
            "applied": engine.applied,
            "term": engine.term,
            "failure": engine.failure,
        },
        "heard": status.silent_ms.iter().map(|(host, silent_ms)| {
            json!({ "host": file.host_name(*host), "silent_ms": silent_ms })
        }).collect::<Vec<_>>(),
        "partitions": status.copies.iter().map(|copy| copy_json(file, copy)).collect::<Vec<_>>(),
        "alarms": alarms,
    })
}

/// What the file system of the membership's directory has left, as it was measured last. `None`: it
/// does not tell, or has not answered for 5 s.
pub(crate) fn directory_space(file: &ClusterFile, host: &FileHost) -> Option<FileSystemSpace> {
    FileSystemSpace::measured(&file.directory(host)).ok()
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
            "lag_ms": member.lag_ms,
            "silent_ms": member.silent_ms,
        })
    });
    json!({
        "partition": file.partition_name(nearstate_cluster::PartitionId(copy.partition)),
        "view": copy.view,
        "known": copy.is_known,
        "owner": copy.owner.map(|host| file.host_name(host)),
        "excluded": copy.excluded.map(|host| file.host_name(host)),
        "reports": names(&mut copy.reports.iter().copied()),
        "reports_needed": copy.reports_needed,
        "group": names(&mut copy.group.iter().copied()),
        "full": names(&mut copy.full.iter().copied()),
        "degraded": copy.is_degraded,
        "role": copy.role,
        "drain_undecided": copy.is_drain_undecided,
        "seen_view": copy.view_seen,
        "seen_revision": copy.revision_seen,
        "state_is_older": copy.is_state_older,
        "complete": copy.is_complete,
        "lease_ms": copy.lease_ms,
        "origin": copy.origin,
        "position": copy.position,
        "replicated": copy.replicated,
        "sealed": copy.sealed,
        "loss": copy.loss.map(|(view, longest, sealed)| {
            json!({ "view": view, "longest": longest, "sealed": sealed })
        }),
        "bytes_free": copy.bytes_free,
        "file_system_bytes_free": copy.file_system_bytes_free,
        "file_system_known": copy.is_file_system_known,
        "bytes_max": copy.bytes_max,
        "clock_shift_ms": copy.clock_shift_ms,
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

/// The columns of the table of copies.
const HEAD: [&str; 12] = [
    "PARTITION",
    "HOST",
    "ROLE",
    "VIEW",
    "OWNER",
    "COUNTED",
    "LEASE ms",
    "POSITION",
    "SEALED",
    "LAG",
    "LAG ms",
    "FREE MiB",
];

/// What the owner of the partition says about a host, in all statuses.
fn member_of<'s>(statuses: &'s [Value], partition: &str, host: &str) -> Option<&'s Value> {
    let copies = statuses.iter().flat_map(|status| items(status, "partitions"));
    let mut owned = copies.filter(|copy| {
        field(copy, "partition") == partition && items(copy, "members").next().is_some()
    });
    owned.find_map(|copy| items(copy, "members").find(|member| field(member, "host") == host))
}

/// The partitions of which a host that does not answer has a copy, as the others know.
fn partitions_of(statuses: &[Value], host: &str) -> Vec<String> {
    let copies = statuses.iter().flat_map(|status| items(status, "partitions"));
    let is_member = |copy: &&Value| items(copy, "group").any(|name| name == host);
    let mut found: Vec<String> = Vec::new();
    for partition in copies.filter(is_member).map(|copy| field(copy, "partition")) {
        if !found.contains(&partition) {
            found.push(partition);
        }
    }
    found
}

/// The row of a copy whose host does not answer.
fn silent_row(statuses: &[Value], partition: String, host: &str) -> Vec<String> {
    let member = member_of(statuses, &partition, host).unwrap_or(&Value::Null);
    let (lag, lag_ms) = (field(member, "lag"), field(member, "lag_ms"));
    let position = field(member, "position");
    let mut row = vec![partition, host.to_owned(), "no-answer".to_owned()];
    row.extend(["-"; 4].map(str::to_owned));
    row.extend([position, "-".to_owned(), lag, lag_ms, "-".to_owned()]);
    row
}

/// When the hosts that answer last heard one that does not.
fn last_heard(statuses: &[Value], host: &str, now_ms: u64) -> String {
    let heard = statuses.iter().flat_map(|status| {
        let of_host = items(status, "heard").filter(|one| field(one, "host") == host);
        of_host.filter_map(|one| Some((one["silent_ms"].as_u64()?, field(status, "host"))))
    });
    match heard.min() {
        Some((silent_ms, by)) => {
            let at = moment::with_age(now_ms.saturating_sub(silent_ms), now_ms);
            format!("last heard by {by} at {at}")
        }
        None => "not heard by a node that answers since that one was started".to_owned(),
    }
}

/// The statuses of some hosts as a table of their copies, with the alarms behind it. A host that
/// did not report has rows and a line of its own, with what the others know of it.
pub(crate) fn table(statuses: &[Value], now_ms: u64) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    for status in statuses {
        let host = field(status, "host");
        if status.get("unreachable").is_some() {
            let silent = partitions_of(statuses, &host).into_iter();
            rows.extend(silent.map(|partition| silent_row(statuses, partition, &host)));
        }
        for copy in items(status, "partitions") {
            let partition = field(copy, "partition");
            let member = member_of(statuses, &partition, &host).unwrap_or(&Value::Null);
            let free = copy.get("bytes_free").and_then(Value::as_u64);
            // A host that does not know the present state shows no other one as if it did.
            let is_known = copy.get("known") != Some(&Value::Bool(false));
            let decided = |name| if is_known { field(copy, name) } else { "unknown".to_owned() };
            rows.push(vec![
                partition,
                host.clone(),
                field(copy, "role"),
                decided("view"),
                decided("owner"),
                decided("full"),
                field(copy, "lease_ms"),
                field(copy, "position"),
                field(copy, "sealed"),
                field(member, "lag"),
                field(member, "lag_ms"),
                free.map_or_else(|| "-".to_owned(), |bytes| (bytes >> 20).to_string()),
            ]);
        }
    }
    let mut out = row::table(&rows);
    for status in statuses {
        let host = field(status, "host");
        let _ = write!(out, "{host}: ");
        if let Some(reason) = status.get("unreachable").and_then(Value::as_str) {
            let heard = last_heard(statuses, &host, now_ms);
            let _ = writeln!(out, "UNREACHABLE, {reason}; {heard}");
            continue;
        }
        let membership = status.get("membership").unwrap_or(&Value::Null);
        let _ = writeln!(
            out,
            "the membership is led by {}, voters {}, applied {}, level {}{}",
            field(membership, "leader"),
            field(membership, "voters"),
            field(membership, "applied"),
            field(status, "level"),
            membership
                .get("failure")
                .and_then(Value::as_str)
                .map_or_else(String::new, |failure| format!(", FAILED: {failure}"))
        );
    }
    let raised = alarm_rows((statuses, now_ms), false);
    if raised.len() > 1 {
        out.push_str(&row::table(&raised));
    }
    out
}

/// The alarms of all hosts as rows below their head: those that are raised, or all.
fn alarm_rows((statuses, now_ms): (&[Value], u64), with_cleared: bool) -> Vec<Vec<String>> {
    let head = ["ALARM", "SEVERITY", "STATE", "HOST", "SUBJECT", "RAISED", "CLEARED", "NAME"];
    let moment = |alarm: &Value, name: &str| {
        let ms = alarm.get(name).and_then(Value::as_u64);
        ms.map_or_else(|| "-".to_owned(), |ms| moment::with_age(ms, now_ms))
    };
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for status in statuses {
        for alarm in items(status, "alarms") {
            let state = field(alarm, "state");
            if !with_cleared && state != "raised" {
                continue;
            }
            let name = format!("{}: {}", field(alarm, "name"), field(alarm, "detail"));
            rows.push(vec![
                field(alarm, "id"),
                field(alarm, "severity"),
                state,
                field(status, "host"),
                field(alarm, "subject"),
                moment(alarm, "raised_ms"),
                moment(alarm, "cleared_ms"),
                name,
            ]);
        }
    }
    rows
}

/// The alarms of all hosts, cleared ones included, and the hosts whose alarms are not known.
pub(crate) fn alarms(statuses: &[Value], now_ms: u64) -> String {
    let rows = alarm_rows((statuses, now_ms), true);
    let mut out =
        if rows.len() == 1 { "no alarm was raised\n".to_owned() } else { row::table(&rows) };
    for status in statuses {
        if let Some(reason) = status.get("unreachable").and_then(Value::as_str) {
            let _ = writeln!(out, "not asked: {} ({reason})", field(status, "host"));
        }
    }
    out
}

/// An event of a host's node, which begins with its time in milliseconds since 1970, for people.
fn event(host: &str, line: &str) -> String {
    let parts = line.split_once(' ').and_then(|(ms, rest)| Some((ms.parse().ok()?, rest)));
    parts.map_or_else(
        || format!("{host} {line}"),
        |(ms, rest)| format!("{} {host} {rest}", moment::rfc3339(ms)),
    )
}

/// The events of a node, one in a line. A node with an earlier version answers with the list alone.
pub(crate) fn events(answer: &Value) -> Result<String, String> {
    let host = answer.get("host").and_then(Value::as_str).unwrap_or("?");
    let list = answer.as_array().or_else(|| answer.get("events").and_then(Value::as_array));
    let list = list.ok_or("the node does not answer with a list of events")?;
    Ok(list.iter().filter_map(Value::as_str).map(|line| event(host, line) + "\n").collect())
}

/// The alarms of all hosts as JSON, each with its host. A host that does not answer has an object
/// with its name and the reason.
pub(crate) fn alarms_json(statuses: &[Value]) -> Value {
    let of_host = |status: &Value| -> Vec<Value> {
        let host = field(status, "host");
        let with_host = |alarm: &Value| {
            let mut alarm = alarm.clone();
            if let Some(fields) = alarm.as_object_mut() {
                fields.insert("host".to_owned(), host.clone().into());
            }
            alarm
        };
        let silent =
            status.get("unreachable").map(|reason| json!({ "host": host, "unreachable": reason }));
        items(status, "alarms").map(with_host).chain(silent).collect()
    };
    statuses.iter().flat_map(of_host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-29T08:24:23Z.
    const NOW_MS: u64 = 1_795_940_663_000;

    #[test]
    fn events_have_a_date() {
        let line = "1795940411000 NS-1016 cluster-lease-granted partition=amf view=1";
        let shown = "2026-11-29T08:20:11Z a NS-1016 cluster-lease-granted partition=amf view=1";
        assert_eq!(event("a", line), shown);
        assert_eq!(event("a", "NS-3012 no disk"), "a NS-3012 no disk");
    }

    #[test]
    fn the_events_of_an_earlier_node_are_shown_too() {
        let list = json!(["NS-3012 no disk", "NS-1016 lease"]);
        let answer = json!({ "host": "a", "events": list });
        assert_eq!(events(&answer).unwrap(), "a NS-3012 no disk\na NS-1016 lease\n");
        assert_eq!(events(&list).unwrap(), "? NS-3012 no disk\n? NS-1016 lease\n");
        assert!(events(&json!({ "host": "a" })).is_err());
    }

    #[test]
    fn a_host_that_no_other_has_heard_is_shown_without_a_time() {
        let lost = json!({ "host": "c", "unreachable": "no reply in time" });
        let shown = table(&[lost], NOW_MS);
        assert!(shown.contains("not heard by a node that answers since"), "{shown}");
    }

    #[test]
    fn a_host_that_does_not_know_the_state_shows_neither_owner_nor_members() {
        let status = |known: bool| {
            json!({ "host": "a", "partitions": [{
                "partition": "amf", "known": known, "view": 1, "owner": "b", "full": ["a", "b"],
            }] })
        };
        let shown = table(&[status(false)], NOW_MS);
        assert!(!shown.contains("a,b") && shown.matches("unknown").count() == 3, "{shown}");
        let shown = table(&[status(true)], NOW_MS);
        assert!(shown.contains("a,b") && !shown.contains("unknown"), "{shown}");
    }

    #[test]
    fn a_lag_that_is_not_known_is_no_lag_of_zero() {
        let file = ClusterFile::parse(crate::cluster::file::tests::GOOD).unwrap();
        let mut copy = crate::cluster::alarms::tests::healthy().copies.remove(0);
        copy.members[0].position = None;
        copy.members[0].lag_ms = None;
        let shown = copy_json(&file, &copy);
        assert_eq!(shown["members"][0]["lag_ms"], Value::Null);
        assert_eq!(shown["members"][1]["lag_ms"], 0);
        let lost = json!({ "host": file.host_name(copy.members[0].host), "unreachable": "x" });
        let owner = json!({ "host": file.host_name(nearstate_cluster::HostId(1)),
                            "partitions": [shown] });
        let row =
            silent_row(&[owner, lost.clone()], "amf".to_owned(), lost["host"].as_str().unwrap());
        assert_eq!(row[9..11], ["-", "-"]);
    }

    #[test]
    fn a_row_of_a_member_has_the_lag_that_its_owner_knows() {
        let owner = json!({
            "host": "a",
            "partitions": [{
                "partition": "amf", "role": "owner", "owner": "a", "full": ["a", "b"],
                "position": 90, "bytes_free": 3 << 20,
                "group": ["a", "b", "c"],
                "members": [{ "host": "b", "lag": 7, "lag_ms": 250 },
                            { "host": "c", "position": 40, "lag": 50, "lag_ms": 9000 }],
            }],
            "heard": [{ "host": "b", "silent_ms": 2 }],
            "alarms": [{ "id": "NS-5005", "state": "raised", "name": "member-lags",
                         "raised_ms": NOW_MS - 61_000 },
                       { "id": "NS-5001", "state": "cleared", "name": "x" }],
        });
        let member = json!({
            "host": "b",
            "heard": [{ "host": "c", "silent_ms": 252_000 }, { "host": "a", "silent_ms": 3 }],
            "partitions": [{ "partition": "amf", "role": "member", "position": 83, "members": [] }],
        });
        let lost = json!({ "host": "c", "unreachable": "no reply in time" });
        let shown = table(&[owner.clone(), member, lost], NOW_MS);
        let line = |start: &str| {
            let line = shown.lines().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let of_b = line("amf        b");
        assert_eq!(&of_b[of_b.len() - 3..], ["7", "250", "-"], "{shown}");
        let of_a = line("amf        a");
        assert_eq!(&of_a[of_a.len() - 3..], ["-", "-", "3"], "{shown}");
        // A host that does not answer has a row, with what its owner knows.
        let of_c = line("amf        c");
        let wanted = ["no-answer", "-", "-", "-", "-", "40", "-", "50", "9000", "-"];
        assert_eq!(&of_c[2..], wanted, "{shown}");
        let heard = "c: UNREACHABLE, no reply in time; last heard by b at 2026-11-29T08:20:11Z \
                     (4 min 12 s ago)\n";
        assert!(shown.contains(heard), "{shown}");
        assert!(shown.contains("2026-11-29T08:23:22Z (1 min 1 s ago)"), "{shown}");
        assert!(shown.contains("NS-5005") && !shown.contains("NS-5001"), "{shown}");
        assert!(alarms(std::slice::from_ref(&owner), NOW_MS).contains("NS-5001"));
        assert_eq!(alarms_json(&[owner])[0]["host"], "a");
    }

    #[test]
    fn hosts_whose_alarms_are_not_known_are_named() {
        let silent = json!({ "host": "c", "unreachable": "no reply in time" });
        let all = [json!({ "host": "a", "alarms": [] }), silent.clone()];
        let shown = alarms(&all, NOW_MS);
        assert_eq!(shown, "no alarm was raised\nnot asked: c (no reply in time)\n");
        assert_eq!(alarms_json(&all), json!([silent]));
    }
}

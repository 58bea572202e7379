//! Reports without a terminal: text and JSON.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::format::name;
use super::report::{NodeReport, RegionReport, TopReport};
use super::tables::{all, node_lines, region_lines};

/// The report as text, one table after the other. `now`: seconds since 1970.
pub(super) fn text(
    report: &TopReport,
    faults: &[String],
    address: Option<SocketAddr>,
    now: f64,
) -> String {
    let mut lines: Vec<String> = faults.iter().map(|why| format!("! {}", name(why))).collect();
    if let Some(node) = &report.node {
        lines.extend(node_lines(node, address, now));
    }
    if let Some(region) = &report.region {
        lines.extend(region_lines(region));
    }
    for table in all(report) {
        lines.push(String::new());
        lines.extend(table.lines(usize::MAX, usize::MAX));
    }
    lines.join("\n")
}

/// The report as a JSON object. Unknown values are null.
pub(super) fn object(
    report: &TopReport,
    faults: &[String],
    address: Option<SocketAddr>,
    now: f64,
) -> Value {
    json!({
        "time_seconds": now,
        "interval_seconds": report.seconds,
        "faults": faults,
        "node": report.node.as_ref().map(|node| node_object(node, address, now)),
        "region": report.region.as_ref().map(region_object),
    })
}

fn node_object(node: &NodeReport, address: Option<SocketAddr>, now: f64) -> Value {
    let classes: Vec<Value> = node
        .classes
        .iter()
        .map(|class| {
            let [p50, p99, p999] = class.latencies;
            json!({"class": class.name, "per_second": class.requests, "p50_seconds": p50,
                   "p99_seconds": p99, "p999_seconds": p999})
        })
        .collect();
    let cores: Vec<Value> = node
        .cores
        .iter()
        .map(|core| {
            json!({"core": core.number, "per_second": core.requests, "busy": core.busy,
                   "connections": core.connections, "long_polls": core.long_polls})
        })
        .collect();
    json!({
        "address": address.map(|address| address.to_string()), "version": node.version,
        "pid": node.pid, "uptime_seconds": (now - node.started).max(0.0),
        "clients": node.clients, "requests_per_second": node.requests,
        "errors_per_second": node.errors, "hit_share": node.hit_share,
        "bytes_read_per_second": node.bytes_read,
        "bytes_written_per_second": node.bytes_written,
        "classes": classes, "cores": cores,
    })
}

fn region_object(region: &RegionReport) -> Value {
    let seen = &region.seen;
    let namespaces: Vec<Value> = region
        .namespaces
        .iter()
        .map(|one| {
            json!({"name": one.name, "records": one.records, "bytes": one.bytes,
                   "tags": one.tags, "used_bytes": one.used_bytes, "soft_bytes": one.soft_bytes,
                   "hard_bytes": one.hard_bytes, "records_per_second": one.growth})
        })
        .collect();
    let processes: Vec<Value> = seen
        .processes
        .iter()
        .map(|one| {
            json!({"pid": one.pid, "name": one.name, "sessions": one.sessions,
                   "oldest_pin_epochs": one.oldest_pin,
                   "held_bytes": one.held_bytes, "held_seconds": one.held_seconds})
        })
        .collect();
    json!({
        "path": seen.path, "bytes_max": seen.bytes_max, "bytes_taken": seen.bytes_taken,
        "fill": region.fill, "epoch": seen.epoch, "oldest_pin_epochs": seen.oldest_pin,
        "records": seen.records, "records_per_second": region.growth,
        "sessions": seen.sessions, "sessions_dead": seen.sessions_dead,
        "namespaces": namespaces, "namespaces_omitted": seen.namespaces_omitted,
        "processes": processes, "processes_omitted": seen.processes_omitted,
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_text_is_complete() {
        let report = sample::report();
        let faults = ["bad name \u{1b}[2J".to_owned()];
        let text = text(&report, &faults, Some("127.0.0.1:9121".parse().unwrap()), 1_700_000_060.0);
        let wanted = "\
! bad name \\u{1b}[2J
node  127.0.0.1:9121  0.1.0  pid 77  up 00:01:00
600 requests/s  0 errors/s  75 % hits  3 clients  2.0 KiB/s in  4.0 KiB/s out
region  /dev/shm/amf  256 MiB of 1.0 GiB, 25 %
1,005 records (-4/s)  3 sessions and 1 dead  epoch 42  oldest pin 2 behind

commands  per second      p50      p99    p99.9
read             600  10.0 us  19.8 us  20.0 us
write              0        -        -        -

core  per second  busy  connections  long polls
0            400  60 %            2           0
1            200  30 %            1           4

namespace   records    bytes  growth/s  tags             limit
ue-context    1,000  250 KiB        -4     2  25 % of 1000 KiB
sessions          5  1.2 KiB         -     0                 -
and 7 more

process    pid  sessions  oldest pin  holds back       for
amf         90         2    2 behind     2.0 MiB  00:01:10
nearstate   77         1           -           -         -";
        assert_eq!(text, wanted, "\n{text}");
    }

    #[test]
    fn the_object_is_complete_and_unknown_values_are_null() {
        let object = object(&sample::report(), &[], None, 1_700_000_060.0);
        assert_eq!(object["interval_seconds"], 2.0);
        assert_eq!(object["node"]["uptime_seconds"], 60.0);
        assert_eq!(object["node"]["requests_per_second"], 600.0);
        assert_eq!(object["node"]["classes"][1]["p50_seconds"], Value::Null);
        assert_eq!(object["node"]["cores"][0]["busy"], 0.6);
        assert_eq!(object["region"]["namespaces"][0]["records_per_second"], -4.0);
        assert_eq!(object["region"]["processes"][0]["oldest_pin_epochs"], 2);
        let nothing = super::object(&TopReport::default(), &["away".to_owned()], None, 0.0);
        assert_eq!((&nothing["node"], &nothing["faults"][0]), (&Value::Null, &json!("away")));
    }
}

//! A sample report for tests.

use std::time::Duration;

use super::report::TopReport;
use super::snapshot::{
    ClassSnapshot, CoreSnapshot, NamespaceSnapshot, NodeSnapshot, ProcessSnapshot, RegionSnapshot,
    Snapshot,
};

fn snapshot(poll: u64) -> Snapshot {
    let core = |number: u64, each: u64, long_polls: u64| CoreSnapshot {
        number,
        connections: 2 - number,
        requests: poll * each * 2,
        busy_seconds: Duration::from_millis(poll * each * 3).as_secs_f64(),
        long_polls,
    };
    let class = |name: &str, requests: u64| ClassSnapshot {
        name: name.to_owned(),
        within: vec![(1e-5, requests / 2), (2e-5, requests), (f64::INFINITY, requests)],
    };
    let namespace = |name: &str, records: u64, bytes: u64, tags: u64| NamespaceSnapshot {
        name: name.to_owned(),
        records,
        bytes,
        tags,
        used_bytes: bytes,
        soft_bytes: 0,
        hard_bytes: tags * 512_000,
    };
    let process = |pid: u64, name: &str, sessions: u64, oldest_pin: u64| ProcessSnapshot {
        pid,
        name: name.to_owned(),
        sessions,
        oldest_pin,
        held_bytes: oldest_pin << 20,
        held_seconds: oldest_pin * 35,
    };
    let mut namespaces = vec![namespace("ue-context", 1016 - poll * 8, 256_000, 2)];
    let newer = namespace("sessions", 5, 1280, 0);
    namespaces.extend((poll > 1).then_some(newer));
    Snapshot {
        at: Duration::from_secs(poll * 2),
        node: Some(NodeSnapshot {
            version: "0.1.0".to_owned(),
            pid: 77,
            started: 1_700_000_000.0,
            clients: 3,
            requests: poll * 1200,
            errors: 0,
            hits: poll * 600,
            misses: poll * 200,
            bytes_read: poll * 4096,
            bytes_written: poll * 8192,
            cores: vec![core(0, 400, 0), core(1, 200, 4)],
            classes: vec![class("read", poll * 1200), class("write", 0)],
        }),
        region: Some(RegionSnapshot {
            path: "/dev/shm/amf".to_owned(),
            bytes_max: 1 << 30,
            bytes_taken: 256 << 20,
            epoch: 42,
            oldest_pin: 2,
            records: 1021 - poll * 8,
            sessions: 3,
            sessions_dead: 1,
            namespaces,
            namespaces_omitted: 7,
            processes: vec![process(77, "nearstate", 1, 0), process(90, "amf", 2, 2)],
            processes_omitted: 0,
        }),
    }
}

/// A node and its region, two seconds after the first snapshot.
pub(super) fn report() -> TopReport {
    let mut report = TopReport::between(Some(&snapshot(1)), &snapshot(2));
    report.order(super::report::NamespaceOrder::Bytes);
    report
}

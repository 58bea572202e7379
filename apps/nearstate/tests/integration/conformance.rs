//! Every installed target of `nearstate bench run` keeps the promises that workloads rely on.
//! Targets that `cargo xtask packages` installs must be present; other missing targets are reported
//! and skipped.

use nearstate_bench::access::{
    PartSet, RecordEntry, StoreConnection, StoreSchema, TableId, TableSchema,
};
use nearstate_bench::conformance::{CheckOutcome, check};
use nearstate_bench::reaper::set_role_program;
use nearstate_bench::targets::{self, DatabaseSpec, Target as _, redis};
use nearstate_model::Error;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

const NEARSTATE: &str = env!("CARGO_BIN_EXE_nearstate");

/// Writes a line to standard error, which the test runner shows with the test's output.
fn report(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn holds(name: &str, layout: Option<&str>) {
    set_role_program(Path::new(NEARSTATE));
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let all = check(name, layout, folder.path(), &mut |what, outcome| match outcome {
        CheckOutcome::Holds => report(&format!("{name}: {what}")),
        CheckOutcome::Declined(why) => report(&format!("{name}: declined: {what}: {why}")),
        CheckOutcome::Broken(how) => report(&format!("{name}: FAILED: {what}: {how}")),
    })
    .unwrap();
    let broken: Vec<_> =
        all.iter().filter(|(_, outcome)| matches!(outcome, CheckOutcome::Broken(_))).collect();
    assert!(broken.is_empty(), "{name} {layout:?}: {broken:#?}");
    let held = all.iter().filter(|(_, outcome)| *outcome == CheckOutcome::Holds).count();
    assert!(held >= 10, "{name}: only {held} promises were checked");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{name} leaves {left:?}");
}

fn if_installed(name: &str, layout: Option<&str>) {
    match targets::named(name).unwrap().version() {
        Ok(_) => holds(name, layout),
        Err(why) => report(&format!("skipped: {name}: {why}")),
    }
}

#[test]
fn the_region_conforms() {
    holds("region", None);
}

#[test]
fn a_node_over_tcp_conforms() {
    holds("node", None);
}

#[test]
fn a_node_over_a_unix_socket_conforms() {
    holds("node-unix", None);
}

#[test]
fn a_node_through_a_ring_conforms() {
    holds("node-ring", None);
}

#[test]
fn redis_over_tcp_conforms() {
    holds("redis", None);
}

#[test]
fn redis_over_a_unix_socket_conforms() {
    holds("redis-unix", None);
}

#[test]
fn valkey_conforms() {
    if_installed("valkey", None);
    if_installed("valkey-unix", None);
}

#[test]
fn lmdb_conforms() {
    holds("lmdb", None);
}

#[test]
fn the_region_through_sdl_conforms() {
    holds("sdl", None);
}

#[test]
fn dashmap_conforms() {
    holds("dashmap", None);
}

#[test]
fn the_prototype_conforms() {
    holds("prototype", None);
}

#[test]
fn memcached_conforms() {
    holds("memcached", None);
}

#[test]
fn geode_conforms() {
    for layout in ["partitioned", "partitioned:2:1", "replicated", "zones"] {
        if_installed("geode", Some(layout));
    }
}

static TABLES: [TableSchema; 1] = [TableSchema::new("t", &["value"])];

fn database_spec(folder: &Path) -> DatabaseSpec {
    DatabaseSpec {
        is_busy_polling: false,
        schema: StoreSchema { tables: &TABLES },
        records: 1000,
        record_bytes: 100,
        clients: 4,
        folder: folder.to_owned(),
        server_cpus: vec![],
        stop: None,
        layout: None,
    }
}

fn put(access: &mut (impl nearstate_bench::access::StoreAccess + ?Sized), key: &[u8], value: u8) {
    access.put(TableId(0), &RecordEntry::new(key, &[(0, &[value])])).unwrap();
}

fn value(
    access: &mut (impl nearstate_bench::access::StoreAccess + ?Sized),
    key: &[u8],
) -> Option<u8> {
    let mut value = None;
    access
        .read(TableId(0), key, PartSet::ALL, &mut |_, bytes| value = bytes.first().copied())
        .unwrap();
    value
}

/// Another connection changes the records that a transaction has read, before it commits.
fn is_run_again(name: &str) {
    set_role_program(Path::new(NEARSTATE));
    let target = targets::named(name).unwrap();
    if let Err(why) = target.version() {
        return report(&format!("skipped: {name}: {why}"));
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let spec = database_spec(folder.path());
    let database = target.start(&spec).unwrap();
    let connect = || target.connect(&database.address(), &spec.schema).unwrap();
    let (mut one, mut two): (Box<dyn StoreConnection>, Box<dyn StoreConnection>) =
        (connect(), connect());
    put(&mut one, b"counter", 1);
    let mut runs = 0;
    one.transact(&mut |access| {
        runs += 1;
        let before = value(access, b"counter").unwrap();
        let absent = value(access, b"absent");
        if runs == 1 {
            put(&mut two, b"counter", 10);
        }
        if runs == 2 {
            put(&mut two, b"absent", 7);
        }
        put(access, b"counter", before + 1);
        put(access, b"sum", before + absent.unwrap_or(0));
        Ok(())
    })
    .unwrap();
    assert_eq!(runs, 3, "{name}: one run for each conflict, and one that commits");
    assert_eq!(value(&mut two, b"counter"), Some(11), "{name}");
    assert_eq!(value(&mut two, b"sum"), Some(17), "{name}: reads of absent records are validated");
}

#[test]
fn a_transaction_with_a_conflict_is_retried() {
    for name in ["region", "node", "node-unix", "node-ring", "redis", "redis-unix", "valkey"] {
        is_run_again(name);
    }
}

#[test]
fn a_port_in_use_is_an_error_for_any_listener() {
    set_role_program(Path::new(NEARSTATE));
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let spec = database_spec(folder.path());
    for target in redis::ALL.into_iter().filter(|target| target.version().is_ok()) {
        // Another process may have the port by now.
        let mut starts = (0..PORTS_MAX).map(|_| target.start_at(&spec, free_port()));
        let first = starts.find_map(Result::ok).unwrap();
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap().port();
        let second = target.start_at(&spec, taken);
        assert!(matches!(second, Err(Error::Backend { .. })), "{target:?}: {second:?}");
        drop(first);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files remain");
}

/// Ports at which a server is started until one succeeds.
const PORTS_MAX: usize = 20;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_missing_program_is_reported_with_its_package() {
    for (name, words) in [
        ("redis", "`nearstate bench peers install redis`"),
        ("memcached", "`nearstate bench peers install memcached`"),
        ("geode", "`nearstate bench peers install geode`"),
    ] {
        let output = Command::new(NEARSTATE)
            .args(["bench", "peers", "check", name])
            .env("PATH", "/no/such/folder")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_found = !output.status.success() && said.contains(words);
        assert!(is_found, "{name}: {said}");
    }
}

#[test]
fn a_missing_peer_is_reported_with_its_install_command() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(NEARSTATE)
        .args(["bench", "peers", "check", "geode"])
        .env("NEARSTATE_PEERS", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("peers install geode"), "{text}");
}

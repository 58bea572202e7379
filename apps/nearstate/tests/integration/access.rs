//! `nearstate bench access` from the outside: real processes, and a real Redis where there is one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const NEARSTATE: &str = env!("CARGO_BIN_EXE_nearstate");

fn access(arguments: &[&str]) -> Output {
    let mut command = Command::new(NEARSTATE);
    command.args(["bench", "access"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Says on standard error why a test proves nothing on this machine.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn small(target: &str, access_mode: &str, dir: &Path, more: &[&str]) -> Output {
    let dir = dir.display().to_string();
    let mut arguments = vec!["--target", target, "--access-mode", access_mode, "--dir", &dir];
    arguments.extend(["--num-procs", "3", "--num-ops", "200", "--num-loops", "2"]);
    arguments.extend(more);
    access(&arguments)
}

/// Every line of a CSV of a small run: 3 nodes with 2 sequences for each kind of access.
fn check_samples(csv: &str, target: &str, kinds: &[&str]) {
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "experiment,target,access,node,sequence,average_ns");
    assert_eq!(lines.len() - 1, kinds.len() * 6, "{csv}");
    for kind in kinds {
        let wanted = format!("custom,{target},{kind},");
        let of: Vec<_> = lines.iter().filter(|l| l.starts_with(&wanted)).collect();
        assert_eq!(of.len(), 6, "{kind}: {csv}");
        for line in of {
            let average: f64 = line.rsplit(',').next().unwrap().parse().unwrap();
            assert!(average > 0.0, "{line}");
        }
    }
}

#[test]
fn a_run_against_a_real_redis_measures_every_kind_and_leaves_nothing() {
    if !is_installed("redis-server") {
        return skipped("redis-server is not installed");
    }
    // A socket's path may have about a hundred bytes, fewer than a target folder's may have.
    let dir = std::env::temp_dir().join(format!("ns-access-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for target in ["redis", "redis-unix"] {
        for (mode, kinds) in [("read", &["copy", "batch", "chain"][..]), ("write", &["put"][..])] {
            let csv = dir.join("samples.csv").display().to_string();
            let page = dir.join("report.html").display().to_string();
            let output = small(target, mode, &dir, &["--json", "--csv", &csv, "--report", &page]);
            assert!(output.status.success(), "{}", text(&output.stderr));
            check_samples(&std::fs::read_to_string(&csv).unwrap(), target, kinds);
            let json = text(&output.stdout);
            assert!(json.contains("\"values_verified\": 1200") || mode == "write", "{json}");
            let page = std::fs::read_to_string(&page).unwrap();
            for outside in ["http:", "https:", "src=", "url(", "@import", "<link", "<script"] {
                assert!(!page.contains(outside), "the report contains {outside}");
            }
            assert!(page.contains("<svg") && page.contains("--num-procs 3"));
            std::fs::remove_file(&csv).unwrap();
            std::fs::remove_file(dir.join("report.html")).unwrap();
        }
    }
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_run_against_our_region_measures_every_kind_and_leaves_nothing() {
    let dir = folder("region");
    let read = &["step", "view", "copy", "batch", "chain"][..];
    for (mode, kinds) in [("read", read), ("write", &["put"][..])] {
        let csv = dir.join("samples.csv").display().to_string();
        let output = small("region", mode, &dir, &["--disjoint", "--json", "--csv", &csv]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        check_samples(&std::fs::read_to_string(&csv).unwrap(), "region", kinds);
        // Two timed sequences and a stamped one, of three nodes.
        let json = text(&output.stdout);
        assert!(json.contains("\"values_verified\": 1800") || mode == "write", "{json}");
        std::fs::remove_file(&csv).unwrap();
    }
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn nothing_is_left_of_a_run_that_was_killed() {
    if !is_installed("redis-server") {
        return skipped("redis-server is not installed");
    }
    let dir = std::env::temp_dir().join(format!("ns-killed-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut run = Command::new(NEARSTATE)
        .args(["bench", "access", "--target", "redis", "--num-ops", "10000000", "--dir"])
        .arg(&dir)
        .args(["--access-mode", "write", "--num-procs", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_empty = || std::fs::read_dir(&dir).unwrap().next().is_none();
    let wait_until = |reached: &dyn Fn() -> bool| {
        while !reached() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let socket = || {
        let kept = std::fs::read_dir(&dir).unwrap().flatten().next();
        kept.is_some_and(|k| k.path().join("redis.sock").exists())
    };
    wait_until(&socket);
    run.kill().unwrap();
    run.wait().unwrap();
    // The keeper stops the server and then removes the folder, however long that takes.
    wait_until(&is_empty);
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_run_against_whitedb_measures_every_kind() {
    if !Path::new("/usr/include/whitedb/dbapi.h").exists() {
        return skipped("libwgdb-dev is not installed");
    }
    let dir = folder("whitedb");
    for (mode, kinds) in
        [("read", &["step", "view", "copy", "chain"][..]), ("write", &["put", "put-held"][..])]
    {
        let csv = dir.join("samples.csv").display().to_string();
        let output = small("whitedb", mode, &dir, &["--csv", &csv]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        check_samples(&std::fs::read_to_string(&csv).unwrap(), "whitedb", kinds);
        assert!(text(&output.stdout).contains("whitedb: libwgdb"));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_running_redis_keeps_its_own_keys_and_loses_ours() {
    if !is_installed("redis-server") || !is_installed("redis-cli") {
        return skipped("redis-server or redis-cli is not installed");
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = port.to_string();
    let mut server = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let cli = |words: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().unwrap();
        text(&output.stdout).trim().to_owned()
    };
    while cli(&["PING"]) != "PONG" {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    cli(&["SET", "theirs", "stays"]);
    let url = format!("redis://127.0.0.1:{port}/");
    let outcome = std::panic::catch_unwind(|| {
        for mode in ["read", "write"] {
            let output = small("redis", mode, &folder("url"), &["--url", &url]);
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        assert_eq!((cli(&["DBSIZE"]), cli(&["GET", "theirs"])), ("1".into(), "stays".into()));
    });
    server.kill().unwrap();
    server.wait().unwrap();
    outcome.unwrap();
}

#[test]
fn a_node_without_a_plan_says_what_it_expected() {
    let mut node = Command::new(NEARSTATE)
        .args(["bench", "access-node"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(node.stdin.take().unwrap(), "hello").unwrap();
    let mut line = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("error ") && line.contains("expected a plan"), "{line}");
    assert!(!node.wait().unwrap().success());
}

#[test]
fn what_is_missing_or_wrong_is_said_with_what_would_help() {
    let output = access(&["--target", "cassandra"]);
    assert!(text(&output.stderr).contains("redis-unix"), "{}", text(&output.stderr));
    let output = access(&["--target", "redis", "--url", "redis://127.0.0.1:1/"]);
    assert!(!output.status.success() && text(&output.stderr).contains("redis"));
    let mut command = Command::new(NEARSTATE);
    command.args(["bench", "access", "--target", "redis"]).env("PATH", "/nowhere");
    let output = command.output().unwrap();
    assert!(text(&output.stderr).contains("apt-get install -y redis-server"));
}

#[test]
fn a_keeper_removes_its_folder_when_its_input_ends() {
    let kept = folder("kept").join("inside");
    std::fs::create_dir_all(&kept).unwrap();
    std::fs::write(kept.join("file"), b"x").unwrap();
    let mut keeper = Command::new(NEARSTATE)
        .args(["bench", "access-keeper"])
        .arg(&kept)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(kept.exists());
    drop(keeper.stdin.take());
    assert!(keeper.wait().unwrap().success());
    assert!(!kept.exists());
    std::fs::remove_dir(kept.parent().unwrap()).unwrap();
}

//! `nearstate serve` from the outside: settings, who may come in, shutdown, restart, pages.

mod restart;
mod security;
mod tls;
mod top;

use crate::fixture::{Client, Folder, Node, http, refused, serve, start};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn start_quietly(folder: &Folder, more: &[&str]) -> Node {
    let mut command = serve(&folder.path("r"));
    start(command.args(["--listen", "127.0.0.1:0", "--cores", "1", "--max", "64MiB"]).args(more))
}

#[test]
fn without_any_settings_but_a_place_the_owner_alone_comes_in_and_sigterm_ends_it() {
    let folder = Folder::new();
    let mut node = start_quietly(&folder, &[]);
    let socket = folder.path("r.sock");
    assert_eq!(node.addresses.len(), 2, "{:?}", node.addresses);
    assert_eq!((mode(&folder.path("r")), mode(&socket)), (0o600, 0o600));
    let mut tcp = node.tcp();
    let mut unix = Client::unix(&socket);
    assert_eq!(tcp.ask(&["SET", "k", "v"]), "+OK");
    assert_eq!((unix.ask(&["GET", "k"]), unix.ask(&["PING"])), ("v".into(), "+PONG".into()));
    // A half request must not hold the end up for longer than the drain.
    tcp.send(&[b"GET", b"k"]).unwrap();
    node.signal("-TERM");
    assert_eq!(tcp.receive().unwrap(), b"v", "what was asked is answered");
    assert!(node.wait().success(), "{}", node.log());
    assert!(!socket.exists());
    assert!(node.log().contains("NS-1004") && node.log().contains("NS-1005"), "{}", node.log());
    let mut again = start_quietly(&folder, &[]);
    assert_eq!(again.tcp().ask(&["GET", "k"]), "v");
    again.signal("-INT");
    assert!(again.wait().success());
}

#[test]
fn what_cannot_be_is_said_in_one_line_with_its_place() {
    let folder = Folder::new();
    let file = folder.path("near.toml");
    fs::write(&file, "cores = 1\n[limits]\nbackleg = 3\n").unwrap();
    let said = refused(serve(&folder.path("r")).arg("--config").arg(&file));
    let wanted = format!("{}:3: there is no setting \"limits.backleg\"", file.display());
    assert!(said.contains(&wanted) && said.contains("\"limits.backlog\""), "{said}");
    assert!(!folder.path("r").exists(), "nothing was created");
    fs::write(&file, "[users]\nlines = [\"user a on\"]\n").unwrap();
    let said = refused(serve(&folder.path("r")).arg("--config").arg(&file));
    assert!(said.contains("near.toml:2") && said.contains("no password"), "{said}");
    let said = refused(serve(&folder.path("r")).args(["--listen", "", "--unix", ""]));
    assert!(said.contains("nobody could come in"), "{said}");
    let shown = serve(&folder.path("r")).arg("--print-config").args(["--cores", "7"]).output();
    let shown = shown.unwrap();
    let text = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success(), "{text}");
    assert!(!folder.path("r").exists());
}

#[test]
fn other_hosts_come_in_only_where_somebody_asks_who_they_are() {
    let folder = Folder::new();
    let wide = ["--listen", "0.0.0.0:0", "--cores", "1", "--unix", ""];
    let said = refused(serve(&folder.path("r")).args(wide));
    assert!(said.contains("users.file") && said.contains("--insecure"), "{said}");
    let open = ["--users-lines", "user default on nopass ~* &* +@all"];
    let said = refused(serve(&folder.path("r")).args(wide).args(open));
    assert!(said.contains("nopass"), "{said}");
    let said = refused(serve(&folder.path("r")).args(["--metrics-listen", "0.0.0.0:0"]));
    assert!(said.contains("--metrics-insecure"), "{said}");

    let insecure = start(serve(&folder.path("r")).args(wide).arg("--insecure"));
    assert!(insecure.log().contains("warn NS-2001"), "{}", insecure.log());

    let users = folder.path("users");
    fs::write(&users, "user xapp on >secret ~* +@all\n").unwrap();
    let with_users = || {
        let mut command = serve(&folder.path("r"));
        command.args(wide).arg("--users-file").arg(&users);
        command
    };
    fs::set_permissions(&users, fs::Permissions::from_mode(0o622)).unwrap();
    let said = refused(&mut with_users());
    assert!(said.contains("mode 622") && said.contains("chmod go-w"), "{said}");
    fs::set_permissions(&users, fs::Permissions::from_mode(0o644)).unwrap();
    let guarded = start(&mut with_users());
    assert!(guarded.log().contains("warn NS-2003"), "{}", guarded.log());
    assert!(guarded.log().contains("warn NS-2002"), "{}", guarded.log());
    let port = guarded.addresses[0].rsplit(':').next().unwrap();
    let mut client = Client::tcp(&format!("127.0.0.1:{port}"));
    assert!(client.ask(&["GET", "k"]).starts_with("-NOAUTH"));
    assert_eq!(client.ask(&["AUTH", "xapp", "secret"]), "+OK");
    assert_eq!(client.ask(&["GET", "k"]), "$-1");
    fs::write(&users, "# nobody yet\n").unwrap();
    let said = refused(&mut with_users());
    assert!(said.contains("declares nobody"), "{said}");
}

#[test]
fn a_place_that_is_served_is_refused_and_one_that_a_dead_node_left_is_taken() {
    let folder = Folder::new();
    let mut first = start_quietly(&folder, &[]);
    let address = first.addresses[0].clone();
    let other = folder.path("other");
    let said = refused(serve(&other).args(["--listen", &address, "--unix", ""]));
    assert!(said.contains(&address) && said.contains("another server"), "{said}");
    let socket = folder.path("r.sock").display().to_string();
    let said = refused(serve(&other).args(["--listen", "", "--unix", &socket]));
    assert!(said.contains("a living process serves"), "{said}");
    assert_eq!(first.tcp().ask(&["PING"]), "+PONG", "the first one is not disturbed");
    first.kill();
    assert!(Path::new(&socket).exists(), "a killed node leaves its socket");
    let listen = ["--listen", &address, "--unix", &socket, "--max", "64MiB", "--cores", "1"];
    let second = start(serve(&other).args(listen));
    assert_eq!(Client::unix(Path::new(&socket)).ask(&["PING"]), "+PONG");
    assert_eq!(second.tcp().ask(&["PING"]), "+PONG");
}

#[test]
fn prometheus_and_probes_see_what_happens() {
    let folder = Folder::new();
    let mut node = start_quietly(&folder, &["--metrics-listen", "127.0.0.1:0"]);
    let observe = node.addresses[2].clone();
    let mut client = node.tcp();
    for _ in 0..3 {
        client.ask(&["SET", "k", "v"]);
    }
    client.ask(&["GET", "k"]);
    client.ask(&["LPUSH", "k", "v"]);
    assert_eq!(http(&observe, "/ready"), ("HTTP/1.1 200 OK".into(), "ready\n".into()));
    assert_eq!(http(&observe, "/health").0, "HTTP/1.1 200 OK");
    assert_eq!(http(&observe, "/else").0, "HTTP/1.1 404 Not Found");
    let (status, page) = http(&observe, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    for line in [
        "nearstate_resp_command_calls_total{command=\"set\"} 3",
        "nearstate_resp_request_seconds_count{class=\"write\"} 3",
        "nearstate_resp_request_seconds_count{class=\"read\"} 1",
        "nearstate_resp_errors_total 1",
        "nearstate_resp_clients 1",
        "nearstate_core_connections{core=\"0\"} 2",
        "nearstate_region_oldest_pin_epochs 0",
        "# EOF",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
    let pid = format!("nearstate_region_process_sessions{{pid=\"{}\"", node.pid());
    assert!(page.contains(&pid), "{page}");
    node.signal("-TERM");
    assert!(node.wait().success());
}

#[test]
fn a_client_that_is_sent_away_is_logged_as_json_if_that_is_wanted() {
    let folder = Folder::new();
    let bounds = ["--limits-input-bytes-max", "4KiB", "--log-form", "json", "--log-level", "warn"];
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", "", "--unix"]).arg(folder.path("s")).args(bounds);
    // Nothing below `warn` is said, so there is no line to wait for.
    let mut child = command.args(["--cores", "1", "--max", "64MiB"]).spawn().unwrap();
    while std::os::unix::net::UnixStream::connect(folder.path("s")).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "the node has ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut client = Client::unix(&folder.path("s"));
    let large = vec![b'x'; 200_000];
    let _ = client.send(&[b"SET", b"k", &large]);
    while client.receive().is_ok_and(|answer| !answer.is_empty()) {}
    let pid = child.id().to_string();
    std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains("NS-3003")).unwrap_or_default();
    let line: serde_json::Value =
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(line["reason"], "too_large", "{said}");
    assert!(line["client"].as_str().unwrap().starts_with("unix:pid="), "{said}");
}

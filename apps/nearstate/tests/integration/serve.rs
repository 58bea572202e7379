//! `nearstate serve` as a process: settings, access control, shutdown, restart, metrics.

pub(crate) mod ownership;
mod restart;
mod security;
pub(crate) mod tls;
mod top;

use nearstate_store::{CreateOptions, Region};

use crate::fixture::{Client, Folder, Node, http, rejected, serve, start, until};
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
fn by_default_only_the_owner_can_connect_and_sigterm_stops_the_node() {
    let folder = Folder::new();
    let mut node = start_quietly(&folder, &[]);
    let socket = folder.path("r.sock");
    assert_eq!(node.addresses.len(), 2, "{:?}", node.addresses);
    assert_eq!((mode(&folder.path("r")), mode(&socket)), (0o600, 0o600));
    let mut tcp = node.tcp();
    let mut unix = Client::unix(&socket);
    assert_eq!(tcp.ask(&["SET", "k", "v"]), "+OK");
    assert_eq!((unix.ask(&["GET", "k"]), unix.ask(&["PING"])), ("v".into(), "+PONG".into()));
    // An incomplete request must not delay the shutdown longer than its timeout.
    tcp.send(&[b"GET", b"k"]).unwrap();
    node.signal("-TERM");
    assert_eq!(tcp.receive().unwrap(), b"v", "a request sent before the shutdown is answered");
    assert!(node.wait().success(), "{}", node.log());
    assert!(!socket.exists());
    assert!(node.log().contains("NS-1004") && node.log().contains("NS-1005"), "{}", node.log());
    let mut again = start_quietly(&folder, &[]);
    assert_eq!(again.tcp().ask(&["GET", "k"]), "v");
    again.signal("-INT");
    assert!(again.wait().success());
}

#[test]
fn invalid_settings_are_rejected_in_one_line_with_their_origin() {
    let folder = Folder::new();
    let file = folder.path("nearstate.toml");
    fs::write(&file, "cores = 1\n[limits]\ntcp_backleg = 3\n").unwrap();
    let output = rejected(serve(&folder.path("r")).arg("--config").arg(&file));
    let wanted = format!("{}: unknown setting \"limits.tcp_backleg\" (line 3)", file.display());
    assert!(output.contains(&wanted) && output.contains("\"limits.tcp_backlog\""), "{output}");
    assert!(!folder.path("r").exists(), "nothing was created");
    fs::write(&file, "[users]\nlines = [\"user a on\"]\n").unwrap();
    let output = rejected(serve(&folder.path("r")).arg("--config").arg(&file));
    assert!(output.contains("nearstate.toml:2") && output.contains("no password"), "{output}");
    let output = rejected(serve(&folder.path("r")).args(["--listen", "", "--unix", ""]));
    assert!(output.contains("no client can connect"), "{output}");
    let shown = serve(&folder.path("r")).arg("--print-config").args(["--cores", "7"]).output();
    let shown = shown.unwrap();
    let text = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success(), "{text}");
    assert!(!folder.path("r").exists());
}

#[test]
fn an_address_that_is_taken_creates_no_region() {
    let folder = Folder::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--peer", "--metrics-listen", "--nudsf"] {
        let mut command = serve(&folder.path("r"));
        if flag != "--listen" {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if flag == "--nudsf" {
            command.args(["--nudsf-storages", "Realm01/Storage01=ue"]);
        }
        let output = rejected(command.args([flag, &address]));
        assert!(output.contains(&format!("cannot listen on {address}")), "{flag}: {output}");
        assert!(!folder.path("r").exists(), "{flag}");
    }
}

#[test]
fn a_node_that_does_not_start_changes_nothing_of_a_region_that_exists() {
    let folder = Folder::new();
    let path = folder.path("r");
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&path, &options).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let socket = folder.path("socket");
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let socket = socket.to_str().unwrap();
    for more in [
        ["--listen", &address, "--unix", ""],
        ["--listen", "127.0.0.1:0", "--unix", socket],
        ["--peer", &address, "--unix", ""],
        ["--unix", "", "--limits-memory-max", "4KiB"],
    ] {
        let mut command = serve(&path);
        if !more.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(["--namespace-limits", "tenant hard=1MiB"]);
        let output = rejected(command.args(more));
        assert!(!output.contains("the memory limit of 1 MiB"), "{more:?}: {output}");
        let session = region.session().unwrap();
        assert_eq!(session.known_namespace("tenant").unwrap(), None, "{more:?}: {output}");
    }
}

#[test]
fn other_hosts_can_connect_only_with_authentication() {
    let folder = Folder::new();
    let wide = ["--listen", "0.0.0.0:0", "--cores", "1", "--unix", ""];
    let output = rejected(serve(&folder.path("r")).args(wide));
    assert!(output.contains("users.file") && output.contains("--insecure"), "{output}");
    let open = ["--users-lines", "user default on nopass ~* &* +@all"];
    let output = rejected(serve(&folder.path("r")).args(wide).args(open));
    assert!(output.contains("nopass"), "{output}");
    let output = rejected(serve(&folder.path("r")).args(["--metrics-listen", "0.0.0.0:0"]));
    assert!(output.contains("--metrics-insecure"), "{output}");

    let insecure = start(serve(&folder.path("r")).args(wide).arg("--insecure"));
    assert!(insecure.log().contains("warn NS-2001"), "{}", insecure.log());
    drop(insecure);

    let users = folder.path("users");
    fs::write(&users, "user xapp on >secret ~* +@all\n").unwrap();
    let with_users = || {
        let mut command = serve(&folder.path("r"));
        command.args(wide).arg("--users-file").arg(&users);
        command
    };
    fs::set_permissions(&users, fs::Permissions::from_mode(0o622)).unwrap();
    let output = rejected(&mut with_users());
    assert!(output.contains("mode 622") && output.contains("chmod go-w"), "{output}");
    fs::set_permissions(&users, fs::Permissions::from_mode(0o644)).unwrap();
    let tls_node = start(&mut with_users());
    assert!(tls_node.log().contains("warn NS-2003"), "{}", tls_node.log());
    assert!(tls_node.log().contains("warn NS-2002"), "{}", tls_node.log());
    let port = tls_node.addresses[0].rsplit(':').next().unwrap();
    let mut client = Client::tcp(&format!("127.0.0.1:{port}"));
    assert!(client.ask(&["GET", "k"]).starts_with("-NOAUTH"));
    assert_eq!(client.ask(&["AUTH", "xapp", "secret"]), "+OK");
    assert_eq!(client.ask(&["GET", "k"]), "$-1");
    fs::write(&users, "# no users\n").unwrap();
    let output = rejected(&mut with_users());
    assert!(output.contains("declares no user"), "{output}");
}

#[test]
fn an_address_in_use_is_rejected_and_a_stale_socket_is_replaced() {
    let folder = Folder::new();
    let mut first = start_quietly(&folder, &[]);
    let address = first.addresses[0].clone();
    let other = folder.path("other");
    let output = rejected(serve(&other).args(["--listen", &address, "--unix", ""]));
    assert!(output.contains(&address) && output.contains("another server"), "{output}");
    let socket = folder.path("r.sock").display().to_string();
    let output = rejected(serve(&other).args(["--listen", "", "--unix", &socket]));
    assert!(output.contains("a living process serves"), "{output}");
    assert_eq!(first.tcp().ask(&["PING"]), "+PONG", "the first one is not disturbed");
    first.kill();
    assert!(Path::new(&socket).exists(), "a killed node leaves its socket");
    let listen = ["--listen", &address, "--unix", &socket, "--max", "64MiB", "--cores", "1"];
    let second = start(serve(&other).args(listen));
    assert_eq!(Client::unix(Path::new(&socket)).ask(&["PING"]), "+PONG");
    assert_eq!(second.tcp().ask(&["PING"]), "+PONG");
}

/// Pages of metrics that are read until one has all values.
const PAGES_MAX: u32 = 1000;

#[test]
fn metrics_and_probes_reflect_the_node() {
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
    let lines = [
        "nearstate_resp_command_calls_total{command=\"set\"} 3",
        "nearstate_resp_request_seconds_count{class=\"write\"} 3",
        "nearstate_resp_request_seconds_count{class=\"read\"} 1",
        "nearstate_resp_errors_total 1",
        "nearstate_resp_clients 1",
        "nearstate_core_connections{core=\"0\"} 2",
        "nearstate_region_oldest_pin_epochs 0",
        "# EOF",
    ];
    // The node may not have noticed yet that the connections of the requests above are closed.
    let has = |page: &str, line: &str| page.lines().any(|found| found == line);
    let pages = (0..PAGES_MAX).map(|_| http(&observe, "/metrics"));
    let (status, page) = pages
        .map(|(status, page)| (lines.iter().all(|line| has(&page, line)), (status, page)))
        .find_map(|(has_all, page)| has_all.then_some(page))
        .unwrap_or_else(|| http(&observe, "/metrics"));
    assert_eq!(status, "HTTP/1.1 200 OK");
    for line in lines {
        assert!(has(&page, line), "{line} in\n{page}");
    }
    let pid = format!("nearstate_region_process_sessions{{pid=\"{}\"", node.pid());
    assert!(page.contains(&pid), "{page}");
    node.signal("-TERM");
    assert!(node.wait().success());
}

#[test]
fn a_disconnected_client_is_logged_as_json() {
    let folder = Folder::new();
    let bounds =
        ["--limits-input-bytes-max", "4KiB", "--log-format", "json", "--log-level", "warn"];
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", "", "--unix"]).arg(folder.path("s")).args(bounds);
    // Nothing below `warn` is output, so there is no line to wait for.
    let mut child = command.args(["--cores", "1", "--max", "64MiB"]).spawn().unwrap();
    until("the node accepts connections", || {
        assert!(child.try_wait().unwrap().is_none(), "the node has ended");
        std::os::unix::net::UnixStream::connect(folder.path("s")).is_ok()
    });
    let mut client = Client::unix(&folder.path("s"));
    let large = vec![b'x'; 200_000];
    let _ = client.send(&[b"SET", b"k", &large]);
    while client.receive().is_ok_and(|answer| !answer.is_empty()) {}
    let pid = child.id().to_string();
    std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&output.stderr);
    let line = output.lines().find(|line| line.contains("NS-3003")).unwrap_or_default();
    let line: serde_json::Value =
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {output}"));
    assert_eq!(line["reason"], "too_large", "{output}");
    assert!(line["client"].as_str().unwrap().starts_with("unix:pid="), "{output}");
}

#[test]
fn a_second_node_on_a_region_is_rejected_unless_both_permit_it() {
    let folder = Folder::new();
    let region = folder.path("r");
    let command = |more: &[&str]| {
        let mut command = serve(&region);
        command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1", "--max", "64MiB"]);
        command.args(more);
        command
    };
    let mut first = start(&mut command(&[]));
    for more in [&[][..], &["--region-several-nodes"]] {
        let output = rejected(&mut command(more));
        let wanted = format!("process {} already serves", first.pid());
        assert!(output.contains(&wanted) && output.contains("PUBLISH"), "{output}");
    }
    assert_eq!(first.tcp().ask(&["SET", "k", "v"]), "+OK", "it is not disturbed");
    first.kill();
    let both = ["--region-several-nodes"];
    let nodes = [start(&mut command(&both)), start(&mut command(&both))];
    assert!(rejected(&mut command(&[])).contains("already serves"));
    assert_eq!(nodes.map(|node| node.tcp().ask(&["GET", "k"])), ["v", "v"]);
}

#[test]
fn limits_are_derived_from_the_memory_limit_or_rejected() {
    let folder = Folder::new();
    let command = |max: &str, more: &[&str]| {
        let mut command = serve(&folder.path("r"));
        command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "2", "--max", max]);
        command.args(more);
        command
    };
    let little = ["--limits-memory-max", "300MiB"];
    let output = rejected(&mut command("128MiB", &little));
    assert!(output.contains("the memory limit of 300 MiB (limits.memory_max)"), "{output}");
    assert!(output.contains("region 137 MiB, 2 cores with 32 MiB each"), "{output}");
    assert!(!folder.path("r").exists(), "a rejected start creates nothing");
    let more = ["--limits-memory-max", "1GiB", "--limits-core-bytes-max", "1GiB"];
    assert!(rejected(&mut command("128MiB", &more)).contains("limits.core_bytes_max"));
    let node = start(&mut command("128MiB", &["--limits-memory-max", "600MiB"]));
    assert!(node.log().contains("info NS-1010"), "{}", node.log());
    assert!(node.log().contains("memory_max=629145600 origin=limits.memory_max"), "{}", node.log());
    assert_eq!(node.tcp().ask(&["PING"]), "+PONG");
    drop(node);
    // The region keeps its size.
    let output = rejected(&mut command("64MiB", &little));
    assert!(output.contains("region 137 MiB"), "{output}");
    let node = start(&mut command("128MiB", &["--limits-memory-max", "none"]));
    assert!(!node.log().contains("NS-1010"), "{}", node.log());
}

#[test]
fn clients_of_a_sentinel_address_find_the_port_of_the_master() {
    let folder = Folder::new();
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "2", "--max", "64MiB"]);
    let node = start(command.args(["--resp-sentinel-listen", "127.0.0.1:0"]));
    assert!(node.log().contains("protocol=sentinel"), "{}", node.log());
    let [master, sentinel] = node.addresses.as_slice() else { panic!("{:?}", node.addresses) };
    let mut client = Client::tcp(sentinel);
    assert_eq!(client.ask(&["ROLE"]), "*2");
    assert_eq!(client.receive().unwrap(), b"sentinel");
    let mut client = Client::tcp(sentinel);
    let request = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "dbaasmaster-cluster-3"];
    assert_eq!(client.ask(&request), "*2");
    let [host, port] = [(); 2].map(|()| String::from_utf8(client.receive().unwrap()).unwrap());
    assert_eq!(format!("{host}:{port}"), *master);
    let mut client = Client::tcp(master);
    assert_eq!(client.ask(&["ROLE"]), "*3");
    assert_eq!(client.receive().unwrap(), b"master");
}

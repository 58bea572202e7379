//! Access control of `nearstate serve`: addresses, users, file modes, and masked passwords.

use crate::fixture::{Client, Folder, NEARSTATE, Node, http, rejected, serve, start, until};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Instant;

#[test]
fn every_notation_of_a_public_address_is_rejected_and_loopback_is_accepted() {
    let folder = Folder::new();
    for wide in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0", "192.0.2.1:0", "[fe80::1]:0"] {
        let output = rejected(serve(&folder.path("r")).args(["--listen", wide, "--unix", ""]));
        assert!(output.contains("other hosts can reach"), "{wide}: {output}");
        // A loopback address does not permit a public one.
        let both = format!("127.0.0.1:0,{wide}");
        let output = rejected(serve(&folder.path("r")).args(["--listen", &both, "--unix", ""]));
        assert!(output.contains("other hosts can reach"), "{both}: {output}");
    }
    assert!(!folder.path("r").exists(), "a rejected start creates nothing");
    let listen = ["--listen", "127.0.0.2:0", "--unix", "", "--cores", "1", "--max", "64MiB"];
    assert_eq!(start(serve(&folder.path("r")).args(listen)).tcp().ask(&["PING"]), "+PONG");
}

#[test]
fn a_user_has_exactly_the_declared_permissions() {
    let folder = Folder::new();
    let lines = "user xapp on >secret ~{mine},* &mine +@read +set +publish\n\
                 user gone off >secret ~* &* +@all";
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1", "--max", "64MiB"]);
    let node = start(command.env("NEARSTATE_USERS_LINES", lines));
    let mut client = node.tcp();
    for request in [&["PING"][..], &["GET", "{mine},k"], &["KEYS", "*"], &["CONFIG", "GET", "*"]] {
        assert!(client.ask(request).starts_with("-NOAUTH"), "{request:?}");
    }
    for credentials in
        [["xapp", "wrong"], ["gone", "secret"], ["unknown", "secret"], ["default", ""]]
    {
        let output = client.ask(&["AUTH", credentials[0], credentials[1]]);
        assert!(output.starts_with("-WRONGPASS"), "{credentials:?}: {output}");
    }
    assert_eq!(client.ask(&["AUTH", "xapp", "secret"]), "+OK");
    assert_eq!(client.ask(&["SET", "{mine},k", "v"]), "+OK");
    assert_eq!(client.ask(&["GET", "{mine},k"]), "v");
    for request in [
        &["GET", "{other},k"][..],
        &["GET", "k"],
        &["SET", "{other},k", "v"],
        &["DEL", "{mine},k"],
        &["FLUSHALL"],
        &["PUBLISH", "other", "m"],
        &["ACL", "LIST"],
    ] {
        let output = client.ask(request);
        assert!(output.starts_with("-NOPERM"), "{request:?}: {output}");
    }
}

#[test]
fn passwords_are_never_printed() {
    let folder = Folder::new();
    let secret = "hunter2-of-the-owner";
    let shown = |words: &[&str], lines: &str| {
        let mut command = serve(&folder.path("r"));
        let output = command.args(words).env("NEARSTATE_USERS_LINES", lines).stdout(piped());
        let output = output.output().unwrap();
        let all = [output.stdout, output.stderr].concat();
        String::from_utf8(all).unwrap()
    };
    let right = format!("user xapp on >{secret} ~* +@all");
    let text = shown(&["--print-config"], &right);
    assert!(text.contains("user xapp on >***") && !text.contains(secret), "{text}");
    for wrong in [
        format!("user xapp on >{secret} ~* +frobnicate"),
        format!("user xapp on >{secret} frobnicate"),
        format!("xapp on >{secret}"),
        format!("user xapp on >{secret} ~{{a}}x"),
        format!("user xapp on > {secret}"),
    ] {
        let text = shown(&[], &wrong);
        assert!(text.starts_with("nearstate: $NEARSTATE_USERS_LINES"), "{wrong:?}: {text}");
        assert!(!text.contains(secret), "{wrong:?}: {text}");
    }
}

fn piped() -> std::process::Stdio {
    std::process::Stdio::piped()
}

#[test]
fn a_region_has_the_requested_mode_for_any_umask() {
    let folder = Folder::new();
    for (umask, mode) in [("077", "660"), ("000", "600"), ("027", "666"), ("022", "606")] {
        let path = folder.path(&format!("r{mode}"));
        let line = format!("umask {umask}; exec {NEARSTATE} region create --mode {mode} \"$0\"");
        let made = Command::new("sh").arg("-c").arg(line).arg(&path).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let found = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(format!("{found:o}"), mode, "umask {umask}");
    }
}

#[test]
fn files_have_the_configured_modes_and_a_wider_region_is_logged() {
    let folder = Folder::new();
    let region = folder.path("r");
    let mode = |name: &str| fs::metadata(folder.path(name)).unwrap().permissions().mode() & 0o777;
    let begin = |more: &[&str]| {
        let mut command = serve(&region);
        start(command.args(["--listen", "", "--cores", "1", "--max", "64MiB"]).args(more))
    };
    let mut node = begin(&["--unix-mode", "660", "--region-mode", "660"]);
    assert_eq!((mode("r"), mode("r.sock")), (0o660, 0o660));
    assert!(!node.log().contains("NS-2004"), "{}", node.log());
    node.kill();
    // The node does not change the mode of an existing region; it logs a warning.
    let node = begin(&[]);
    assert!(node.log().contains("warn NS-2004"), "{}", node.log());
    assert!(node.log().contains("mode=660 set=600"), "{}", node.log());
    assert_eq!((mode("r"), mode("r.sock")), (0o660, 0o600));
    assert_eq!(Client::unix(&folder.path("r.sock")).ask(&["PING"]), "+PONG");
}

/// The metric with this name, summed over its labels.
fn metric(node: &Node, name: &str) -> u64 {
    let page = http(node.addresses.last().unwrap(), "/metrics").1;
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn passwords_cannot_be_guessed_at_the_speed_of_the_network() {
    const GUESSES: u64 = 120;
    let folder = Folder::new();
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "2", "--max", "64MiB"]);
    command.args(["--metrics-listen", "127.0.0.1:0", "--users-lines"]);
    let node = start(command.arg("user xapp on >hunter2 ~* &* +@all"));
    let mut early = node.tcp();
    assert_eq!(early.ask(&["AUTH", "xapp", "hunter2"]), "+OK");
    let begin = Instant::now();
    let mut attackers: Vec<_> = (0..GUESSES).map(|_| node.tcp()).collect();
    for (number, attacker) in attackers.iter_mut().enumerate() {
        attacker.send(&[b"AUTH", b"xapp", format!("guess{number}").as_bytes()]).unwrap();
    }
    let mut refused = 0;
    for attacker in &mut attackers {
        let reply = String::from_utf8(attacker.receive().unwrap()).unwrap();
        assert!(reply.starts_with("-WRONGPASS") || reply.contains("not checked"), "{reply}");
        refused += u64::from(reply.contains("not checked"));
    }
    // Each core may check one more before it sees the failures of the other.
    let checked = GUESSES - refused;
    let most = 9 + begin.elapsed().as_millis() / 100;
    assert!(u128::from(checked) <= most, "{checked} checks, at most {most}");
    assert!(refused > 0);
    assert_eq!(metric(&node, "nearstate_resp_auth_failures_total"), checked);
    assert_eq!(metric(&node, "nearstate_resp_auth_refusals_total"), refused);
    assert_eq!(early.ask(&["PING"]), "+PONG", "authenticated clients are not affected");
    let log = node.log();
    assert!(log.contains("warn NS-2007") && log.contains("user=xapp failures="), "{log}");
    assert!(!log.contains("guess"), "{log}");
    until("the right password is accepted", || {
        node.tcp().ask(&["AUTH", "xapp", "hunter2"]) == "+OK"
    });
}

#[test]
fn clients_that_do_not_authenticate_are_disconnected() {
    let folder = Folder::new();
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "2", "--max", "64MiB"]);
    command.args(["--metrics-listen", "127.0.0.1:0", "--limits-auth-timeout", "300ms"]);
    let node = start(command.args(["--users-lines", "user xapp on >hunter2 ~* &* +@all"]));
    let mut xapp = node.tcp();
    assert_eq!(xapp.ask(&["AUTH", "xapp", "hunter2"]), "+OK");
    let mut silent: Vec<_> = (0..20).map(|_| node.tcp()).collect();
    let mut asking = node.tcp();
    let mut resetting = node.tcp();
    assert_eq!(resetting.ask(&["AUTH", "xapp", "hunter2"]), "+OK");
    assert_eq!(resetting.ask(&["RESET"]), "+RESET");
    // Requests do not prolong the time.
    while asking.send(&[b"PING"]).is_ok() {
        let Ok(reply) = asking.receive() else { break };
        assert!(reply.starts_with(b"-NOAUTH"), "{reply:?}");
    }
    for client in silent.iter_mut().chain([&mut resetting]) {
        let reply = String::from_utf8(client.receive().unwrap()).unwrap();
        let wanted = "-NOAUTH the client did not authenticate within 300ms";
        assert!(reply.starts_with(wanted), "{reply}");
        assert!(client.receive().is_err());
    }
    until("all are counted", || metric(&node, "nearstate_core_auth_timeouts_total") == 22);
    until("the log has the reason", || node.log().contains("reason=auth_timeout"));
    assert_eq!(xapp.ask(&["PING"]), "+PONG");
}

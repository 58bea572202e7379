//! `nearstate top` with a node: its output, restarts of the node, and the restored terminal.

use crate::fixture::{Client, Folder, NEARSTATE, Node, own_ip, serve, start, until};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `nearstate top` without the settings in the environment of the test.
fn top(words: &[&str]) -> Command {
    let mut command = Command::new(NEARSTATE);
    command.arg("top").args(words);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NEARSTATE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A node with a metrics address; port 0 selects a free one.
fn observed(folder: &Folder, address: &str) -> Node {
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1", "--max", "64MiB"]);
    start(command.args(["--metrics-listen", address]))
}

/// The output of a command after its end. Until then `meanwhile` is called repeatedly.
fn ended(mut child: Child, mut meanwhile: impl FnMut()) -> (bool, String, String) {
    while child.try_wait().unwrap().is_none() {
        meanwhile();
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Requests between two samples of which the share of hits is that of all requests, give or take
/// the one that a sample cuts off.
const REQUESTS_MIN: f64 = 60.0;

/// Samples of which one has so many.
const SAMPLES_MAX: u32 = 100;

fn named<'o>(list: &'o Value, key: &str, name: &str) -> &'o Value {
    let all = list.as_array().unwrap();
    all.iter().find(|one| one[key] == name).unwrap_or_else(|| panic!("{name} in {list}"))
}

#[test]
fn once_prints_rates_latencies_cores_namespaces_and_processes() {
    let folder = Folder::new();
    let node = observed(&folder, "127.0.0.1:0");
    let mut client = node.tcp();
    for number in 0..200 {
        assert_eq!(client.ask(&["SET", &format!("{{ue}},{number}"), "context"]), "+OK");
    }
    let words = ["--once", "--json", "--interval", "300ms", "--node", &node.addresses[1]];
    // On a busy machine the client may send next to nothing between the two samples.
    let mut sample = || {
        let (is_fine, output, fault) = ended(top(&words).spawn().unwrap(), || {
            assert_eq!(client.ask(&["GET", "{ue},7"]), "context");
            assert_eq!(client.ask(&["GET", "{ue},none"]), "$-1");
            assert_eq!(client.ask(&["SET", "{ue},7", "context"]), "+OK");
        });
        assert!(is_fine, "{fault}");
        let seen: Value = serde_json::from_str(&output).unwrap();
        let seconds = seen["interval_seconds"].as_f64().unwrap();
        let requests = seen["node"]["requests_per_second"].as_f64().unwrap() * seconds;
        (requests >= REQUESTS_MIN).then_some(seen)
    };
    let seen = (0..SAMPLES_MAX).find_map(|_| sample()).expect("the client sends something");
    assert_eq!(seen["faults"].as_array().unwrap().len(), 0, "{seen}");
    assert!(seen["interval_seconds"].as_f64().unwrap() >= 0.3, "{seen}");
    let (of_node, region) = (&seen["node"], &seen["region"]);
    let positive = |value: &Value| value.as_f64().is_some_and(|number| number > 0.0);
    assert_eq!((&of_node["pid"], &of_node["clients"]), (&node.pid().into(), &1.into()));
    assert!(positive(&of_node["requests_per_second"]), "{seen}");
    assert!(positive(&of_node["bytes_read_per_second"]), "{seen}");
    assert!((0.4..0.6).contains(&of_node["hit_share"].as_f64().unwrap()), "{seen}");
    let read = named(&of_node["classes"], "class", "read");
    assert!(positive(&read["per_second"]) && positive(&read["p50_seconds"]), "{seen}");
    assert!(read["p999_seconds"].as_f64() >= read["p50_seconds"].as_f64(), "{seen}");
    let idle = named(&of_node["classes"], "class", "pubsub");
    assert_eq!((&idle["per_second"], &idle["p50_seconds"]), (&0.0.into(), &Value::Null));
    let core = &of_node["cores"][0];
    assert!(positive(&core["busy"]) && positive(&core["per_second"]), "{seen}");
    assert!(positive(&core["connections"]), "{seen}");
    let namespace = named(&region["namespaces"], "name", "ue");
    assert_eq!((&namespace["records"], &namespace["bytes"]), (&200.into(), &12_800.into()));
    assert_eq!(region["records"], 200);
    assert_eq!(named(&region["processes"], "name", "nearstate")["pid"], node.pid());
}

#[test]
fn a_region_needs_no_node_and_settings_select_both_sources() {
    let folder = Folder::new();
    let mut node = observed(&folder, "127.0.0.1:0");
    assert_eq!(node.tcp().ask(&["SET", "{ue},1", "context"]), "+OK");
    let region = folder.path("r").display().to_string();
    let once = ["--once", "--json", "--interval", "100ms"];
    let mut both = top(&once);
    both.env("NEARSTATE_METRICS_LISTEN", &node.addresses[1]).env("NEARSTATE_REGION_PATH", &region);
    let (is_fine, output, fault) = ended(both.spawn().unwrap(), || ());
    assert!(is_fine, "{fault}");
    let seen: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(seen["node"]["pid"], node.pid());
    assert_eq!(seen["region"]["processes"].as_array().unwrap().len(), 2, "top is attached: {seen}");
    node.kill();
    let (is_fine, output, fault) =
        ended(top(&once).args(["--region", &region]).spawn().unwrap(), || ());
    assert!(is_fine, "{fault}");
    let seen: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&seen["node"], &seen["region"]["records"]), (&Value::Null, &1.into()));
    let plain = top(&["--once", "--interval", "100ms", "--region", &region]).spawn().unwrap();
    let (is_fine, output, fault) = ended(plain, || ());
    assert!(is_fine && output.starts_with(&format!("region  {region}  ")), "{output}{fault}");
    assert!(output.contains("\nue "), "{output}");
}

#[test]
fn an_unreadable_source_is_reported_and_fails_once() {
    let folder = Folder::new();
    let node = observed(&folder, "127.0.0.1:0");
    let nowhere = folder.path("nowhere").display().to_string();
    for (words, wanted) in [
        (["--node", &node.addresses[0]], "is not HTTP"),
        (["--node", "127.0.0.1:1"], "--metrics-listen 127.0.0.1:1"),
        (["--region", &nowhere], "cannot read the region"),
        (["--config", &nowhere], "cannot read"),
    ] {
        let mut command = top(&["--once", "--interval", "100ms"]);
        let (is_fine, output, fault) = ended(command.args(words).spawn().unwrap(), || ());
        assert!(!is_fine && output.is_empty(), "{words:?}: {output}");
        assert!(fault.starts_with("nearstate: ") && fault.contains(wanted), "{words:?}: {fault}");
    }
    let mut nothing = top(&["--once"]);
    nothing.env("NEARSTATE_REGION_PATH", &nowhere);
    let (is_fine, _, fault) = ended(nothing.spawn().unwrap(), || ());
    assert!(!is_fine && fault.contains("no source"), "{fault}");
}

#[test]
fn a_stopped_node_is_reported_and_polled_again_after_its_restart() {
    let folder = Folder::new();
    let mut node = observed(&folder, &format!("{}:0", own_ip()));
    let address = node.addresses[1].clone();
    let mut child = top(&["--json", "--interval", "100ms", "--node", &address]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["node"]["pid"], node.pid());
    node.kill();
    // One poll may have been made before.
    while next()["node"] != Value::Null {}
    let away = next();
    assert!(away["faults"][0].as_str().unwrap().contains("cannot connect"), "{away}");
    assert_eq!(away["region"], Value::Null);
    let again = observed(&folder, &address);
    let seen = loop {
        let seen = next();
        if seen["node"] != Value::Null {
            break seen;
        }
    };
    assert_eq!(seen["node"]["pid"], again.pid());
    assert_eq!(seen["node"]["requests_per_second"], Value::Null, "the first sample has no rate");
    // The reader closes the pipe: the command ends without an error.
    drop(lines);
    assert!(child.wait().unwrap().success());
}

/// A terminal of 90 columns and 30 lines that runs a command; its output is read as it arrives.
struct Terminal {
    child: Child,
    shown: String,
}

impl Terminal {
    fn run(line: &str) -> Self {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", line, "/dev/null"]);
        script.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("NEARSTATE_CONFIG");
        let child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self { child, shown: String::new() }
    }

    /// Reads until this text is shown.
    fn until(&mut self, text: &str) {
        let out = self.child.stdout.as_mut().unwrap();
        let mut part = [0; 4096];
        while !self.shown.contains(text) {
            let bytes = out.read(&mut part).unwrap();
            assert!(bytes > 0, "{text:?} is not in {:?}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&part[..bytes]));
        }
    }

    fn press(&mut self, keys: &str) {
        self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// All output, after the command has ended with status 0.
    fn end(mut self) -> String {
        let mut rest = Vec::new();
        self.child.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
        self.shown.push_str(&String::from_utf8_lossy(&rest));
        assert!(self.child.wait().unwrap().success(), "{:?}", self.shown);
        self.shown
    }
}

/// The terminal shows its previous contents, has its cursor, and its previous mode.
fn assert_given_back(shown: &str, folder: &Folder) {
    let entered = shown.rfind("\u{1b}[?1049h").unwrap();
    let left = shown.rfind("\u{1b}[?1049l").unwrap_or_default();
    assert!(left > entered, "{shown:?}");
    assert!(shown.rfind("\u{1b}[?25h") > shown.rfind("\u{1b}[?25l"), "{shown:?}");
    let modes = |name: &str| fs::read_to_string(folder.path(name)).unwrap();
    assert_eq!(modes("before"), modes("after"));
}

/// Runs `top` in a shell that records the terminal's mode before and after.
fn in_terminal(folder: &Folder, node: &str) -> String {
    let path = |name: &str| folder.path(name).display().to_string();
    format!(
        "stty cols 90 rows 30; stty -g > {}; sh -c 'echo $$ > {}; exec {NEARSTATE} top --node \
         {node} --interval 100ms'; code=$?; stty -g > {}; exit $code",
        path("before"),
        path("pid"),
        path("after"),
    )
}

#[test]
fn in_a_terminal_it_draws_reads_keys_and_restores_the_terminal() {
    let folder = Folder::new();
    let node = observed(&folder, "127.0.0.1:0");
    let mut client = Client::tcp(&node.addresses[0]);
    assert_eq!(client.ask(&["SET", "{ue-context},1", "x"]), "+OK");
    let mut terminal = Terminal::run(&in_terminal(&folder, &node.addresses[1]));
    terminal.until("ue-context");
    terminal.press("?");
    terminal.until("Ctrl-C");
    terminal.press("?s");
    terminal.press("q");
    assert_given_back(&terminal.end(), &folder);
}

#[test]
fn a_signal_restores_the_terminal_and_an_unreachable_node_is_shown() {
    let folder = Folder::new();
    let mut node = observed(&folder, "127.0.0.1:0");
    let mut terminal = Terminal::run(&in_terminal(&folder, &node.addresses[1]));
    terminal.until("commands");
    node.kill();
    terminal.until("cannot connect");
    let pid = fs::read_to_string(folder.path("pid")).unwrap();
    assert!(Command::new("kill").args(["-TERM", pid.trim()]).status().unwrap().success());
    assert_given_back(&terminal.end(), &folder);
    assert!(Path::new(&folder.path("r")).exists());
}

/// True if the process has ended. Its new parent may not have waited for it.
fn has_ended(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat"));
    state.map_or(true, |text| text.rsplit(')').next().unwrap().starts_with(" Z"))
}

#[test]
fn it_ends_when_its_terminal_is_closed() {
    let folder = Folder::new();
    let node = observed(&folder, "127.0.0.1:0");
    let mut terminal = Terminal::run(&in_terminal(&folder, &node.addresses[1]));
    terminal.until("commands");
    let pid = fs::read_to_string(folder.path("pid")).unwrap();
    assert!(!has_ended(pid.trim()));
    // The other side of the terminal goes with the program that has opened it.
    terminal.child.kill().unwrap();
    terminal.child.wait().unwrap();
    until("the end of nearstate top", || has_ended(pid.trim()));
}

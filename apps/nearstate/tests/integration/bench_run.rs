//! `nearstate bench run` as a process: real targets, killed and stopped, and with planted faults.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const NEARSTATE: &str = env!("CARGO_BIN_EXE_nearstate");

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// A short run of `ue-signalling` with these additional arguments and its own folder.
fn command(name: &str, words: &[&str]) -> Command {
    let mut command = Command::new(NEARSTATE);
    command.args(["bench", "run", "ue-signalling", "--warm-up", "50"]);
    for [option, value] in [["--records", "400"], ["--ops", "800"], ["--rounds", "2"]] {
        if !words.contains(&option) {
            command.args([option, value]);
        }
    }
    if !words.contains(&"--dir") {
        command.arg("--dir").arg(folder(name));
    }
    command.args(words);
    command
}

fn run(name: &str, words: &[&str]) -> (Output, String, String) {
    let output = command(name, words).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, text, errors)
}

/// Checks that the run removed its files.
fn is_clean(name: &str) {
    let left: Vec<_> = std::fs::read_dir(folder(name))
        .expect("the folder was made")
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("nearstate-bench-"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

fn parsed(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn every_target_keeps_all_writes_and_results_are_compared() {
    let report = folder("sides").join("report.html");
    let targets = ["--targets", "region,sdl,node,node-unix,redis", "--variant", "full"];
    let save = folder("sides").join("run.json");
    let words: Vec<&str> = targets
        .into_iter()
        .chain(["--clients", "2", "--depth", "4", "--report", report.to_str().unwrap()])
        .chain(["--save", save.to_str().unwrap(), "--classes"])
        .collect();
    let (output, text, errors) = run("sides", &words);
    assert!(output.status.success(), "{errors}{text}");
    let saved = parsed(&std::fs::read_to_string(&save).unwrap());
    for target in saved["targets"].as_array().unwrap() {
        assert_eq!(target["verdict"]["records"], 400, "{target}");
        assert_eq!(target["verdict"]["wrong"], 0, "{target}");
        assert_eq!(target["rounds"].as_array().unwrap().len(), 2);
        let round = &target["rounds"][0];
        assert_eq!(round["ops"], 1600, "two clients with 800 each");
        let has_server = !["region", "sdl"].contains(&target["name"].as_str().unwrap());
        assert_eq!(round["server_cpu_ns"].as_u64().unwrap() > 0, has_server, "{target}");
    }
    assert!(std::fs::read_to_string(&report).unwrap().contains("</html>"));
    assert!(text.contains("service request"), "{text}");
    is_clean("sides");
}

#[test]
fn the_processor_time_after_loading_is_optional() {
    for (more, is_done) in [(None, true), (Some("--no-settle"), false)] {
        let words: Vec<&str> =
            ["--targets", "region,node,null", "--json"].into_iter().chain(more).collect();
        let (output, text, errors) = run("settled", &words);
        assert!(output.status.success(), "{errors}{text}");
        let saved = parsed(&text);
        assert_eq!(saved["drive"]["is_unsettled"], !is_done);
        for target in saved["targets"].as_array().unwrap() {
            let is_ours = target["name"] != "null";
            assert_eq!(target["settled"].is_string(), is_done && is_ours, "{target}");
            assert!(!target["version"].as_str().unwrap().contains("collapse"), "{target}");
        }
    }
    is_clean("settled");
}

#[test]
fn a_killed_node_restarts_without_loss() {
    let words =
        ["--targets", "node", "--kill", "node", "--ops", "20000", "--rounds", "1", "--json"];
    let (output, text, errors) = run("killed", &words);
    assert!(output.status.success(), "{errors}{text}");
    let target = &parsed(&text)["targets"][0];
    assert_eq!(target["reconnects"], 1, "{errors}");
    assert_eq!(target["verdict"]["wrong"], 0);
    let classes = target["rounds"][0]["classes"].as_array().unwrap().clone();
    let cut = classes.iter().find(|class| class["name"] == "cut by a reconnect").unwrap();
    assert_eq!(cut["latencies"].as_array().unwrap().len(), 1, "one operation was in flight: {cut}");
    is_clean("killed");
}

#[test]
fn every_restartable_target_restarts() {
    for name in ["node-unix", "node-ring"] {
        let words =
            ["--targets", name, "--kill", name, "--ops", "20000", "--rounds", "1", "--json"];
        let (output, text, errors) = run("back", &words);
        assert!(output.status.success(), "{errors}{text}");
        let target = &parsed(&text)["targets"][0];
        assert_eq!((&target["reconnects"], &target["verdict"]["wrong"]), (&1.into(), &0.into()));
    }
    is_clean("back");
}

#[test]
fn planted_faults_are_caught_on_every_target() {
    for target in ["region", "sdl", "node", "redis", "lmdb", "memcached"] {
        for fault in ["lost-update", "wrong-answer"] {
            let words = ["--targets", target, "--fault", fault, "--json"];
            let (output, text, errors) = run("planted", &words);
            assert!(!output.status.success(), "{target}, {fault}: {text}");
            let invalid = parsed(&text)["invalid"].clone();
            assert!(!invalid.as_array().unwrap().is_empty(), "{errors}");
            // The reasons for invalidity name the target.
            let words = invalid.to_string().replace("region:", "");
            assert!(!words.contains("region") && !words.contains("back-end"), "{words}");
            let is_told = ["the target answered wrongly", "not what was written"];
            assert!(is_told.iter().any(|what| words.contains(what)), "{words}");
        }
    }
    // This run writes nothing, so the fault has no effect.
    let words = ["bench", "run", "ycsb", "--variant", "c", "--targets", "region", "--ops", "800"];
    let mut command = Command::new(NEARSTATE);
    command.args(words).args(["--records", "400", "--fault", "lost-update", "--dir"]);
    let output = command.arg(folder("planted")).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("was not noticed"));
    // A stall is no wrong answer. It is visible in the latencies.
    let (output, text, errors) =
        run("planted", &["--targets", "region", "--fault", "stall", "--json"]);
    assert!(output.status.success(), "{errors}");
    let rounds = parsed(&text)["targets"][0]["rounds"].clone();
    let slices = rounds
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|round| round["slices"].as_array().cloned().unwrap_or_default());
    let longest = slices.filter_map(|slice| slice["max_ns"].as_u64()).max().unwrap();
    assert!(longest >= 400_000_000, "{longest} ns");
    is_clean("planted");
}

#[test]
fn an_interrupted_run_reports_partial_results_and_cleans_up() {
    let words = ["--targets", "region,redis", "--json", "--ops", "100000000", "--rounds", "1"];
    let mut command = command("stopped", &words);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Both targets are loaded: the first trial runs or is about to start.
    let errors = BufReader::new(child.stderr.take().unwrap());
    let mut lines = errors.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("redis, loading")));
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    let last: Vec<String> = lines.collect();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(last.iter().any(|line| line.contains("stopped before its end")), "{last:?}");
    let run = parsed(&text);
    assert_eq!(run["is_partial"], true);
    let caveats = run["caveats"].to_string();
    assert!(caveats.contains("region: round 1 was interrupted"), "{caveats}");
    is_clean("stopped");
}

/// A run with our own stores only is no comparison.
#[test]
fn a_missing_target_is_reported() {
    let words = ["--json", "--rounds", "1"];
    let output = command("missing", &words).env("PATH", "/nowhere").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = parsed(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(run["targets"].as_array().unwrap().len(), 2, "region and node");
    let caveats = run["caveats"].to_string();
    assert!(caveats.contains("redis was not measured") && caveats.contains("install"), "{caveats}");
    is_clean("missing");
}

/// A server that never answers stands for a slow one. Stopping the run does not wait for the server
/// and does not report it as failed.
#[test]
fn a_run_stopped_while_a_server_starts_is_partial_but_not_invalid() {
    use std::os::unix::fs::PermissionsExt as _;
    let bin = folder("starting-bin");
    let fake = bin.join("redis-server");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo v=1 && exit\nexec sleep 1000\n";
    std::fs::write(&fake, script).unwrap();
    std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = command("starting", &["--targets", "redis,region", "--json"]);
    command.env("PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let reaper = child_with(child.id(), "reaper");
    child_of(reaper);
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let run = parsed(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(run["is_partial"], true);
    assert_eq!(run["invalid"].as_array().unwrap().len(), 0, "{run}");
    assert!(!errors.contains("region, loading"), "{errors}");
    is_clean("starting");
}

/// `timeout` sends one signal to the program and one to its group.
#[test]
fn two_signals_in_quick_succession_stop_a_run_once() {
    let (child, mut lines) = start_run("together", &["--targets", "region", "--ops", "100000000"]);
    assert!(lines.any(|line| line.contains("region, loading")));
    for _ in 0..2 {
        send("-TERM", child.id());
    }
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(parsed(&String::from_utf8_lossy(&output.stdout))["is_partial"], true);
    is_clean("together");
}

type Lines = Box<dyn Iterator<Item = String> + Send>;

/// Starts a run. Returns its process and the lines of its progress output.
fn start_run(name: &str, words: &[&str]) -> (std::process::Child, Lines) {
    let words: Vec<&str> = words.iter().copied().chain(["--json", "--rounds", "1"]).collect();
    let mut command = command(name, &words);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let errors = BufReader::new(child.stderr.take().expect("a pipe"));
    (child, Box::new(errors.lines().map_while(Result::ok)))
}

fn send(signal: &str, process: u32) {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status();
    assert!(sent.expect("kill is installed").success());
}

/// Sends a signal to one process of a run that has loaded its target. Returns the reasons that the
/// run then gives for its invalidity.
fn invalid_after_signal(
    name: &str,
    (target, ops): (&str, &str),
    signal: &str,
    which: impl Fn(u32) -> u32,
) -> String {
    let (child, mut lines) = start_run(name, &["--targets", target, "--ops", ops]);
    assert!(lines.any(|line| line.contains(&format!("{target}, loading"))));
    send(signal, which(child.id()));
    // Read both pipes; otherwise the run blocks on a full one.
    let rest = std::thread::spawn(move || lines.collect::<Vec<String>>());
    let output = child.wait_with_output().expect("the process exits");
    assert!(!output.status.success());
    let run = parsed(&String::from_utf8_lossy(&output.stdout));
    let invalid = run.get("invalid").expect("the reasons").to_string();
    is_clean(name);
    let rest = rest.join().expect("the reader exits");
    assert!(rest.iter().any(|line| line.contains("INVALID")), "{rest:?}");
    invalid
}

#[test]
fn the_signal_that_killed_a_client_is_reported() {
    // The reaper of the region is its first child.
    let client = |run| children_of(run).get(1).copied().expect("a client");
    let reasons = invalid_after_signal("client", ("region", "100000000"), "-KILL", client);
    assert!(reasons.contains("client 0") && reasons.contains("SIGKILL"), "{reasons}");
}

#[test]
fn the_signal_that_killed_a_server_is_reported_once() {
    let reasons = invalid_after_signal("dies", ("redis", "100000000"), "-KILL", |run| {
        child_of(child_of(run))
    });
    assert_eq!(reasons.matches("SIGKILL").count(), 1, "{reasons}");
    assert!(!reasons.contains("above"), "{reasons}");
}

/// Checks after which a killed process counts as still running.
const CHECKS: usize = 1_000_000;

/// The loss of the reaper is noticed at the end of the trial.
#[test]
fn a_server_is_stopped_and_its_folder_removed_when_its_reaper_dies() {
    let server = std::cell::Cell::new(0);
    let reasons = invalid_after_signal("orphan", ("redis", "40000"), "-KILL", |run| {
        let reaper = child_of(run);
        server.set(child_of(reaper));
        reaper
    });
    assert!(reasons.contains("reaper"), "{reasons}");
    // The server is killed. It stays visible in /proc until the kernel has ended it and the
    // process that adopts orphans has reaped it.
    let stat = format!("/proc/{}/stat", server.get());
    let is_gone = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
    let mut checks = (0..CHECKS).inspect(|_| std::thread::yield_now());
    assert!(checks.any(|_| is_gone()), "the server still runs");
}

#[test]
fn a_reaper_reports_the_last_output_of_its_server() {
    let run_folder = folder("words").join("nearstate-bench-reaped");
    std::fs::create_dir_all(&run_folder).expect("the folder is created");
    let mut reaper = Command::new(NEARSTATE)
        .args(["bench", "reaper"])
        .arg(&run_folder)
        .args(["--", "sh", "-c", "echo the port; echo is taken >&2; exit 3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the reaper starts");
    let mut line = String::new();
    BufReader::new(reaper.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("it ended with 3, last output: "), "{line}");
    assert!(line.contains("the port") && line.contains("is taken"), "{line}");
    drop(reaper.stdin.take());
    assert!(reaper.wait().expect("the process exits").success());
    is_clean("words");
}

/// Servers and clients have working directories of their own.
#[test]
fn a_relative_folder_is_resolved_against_the_working_directory() {
    let mut command = command("relative", &["--targets", "region,node,redis", "--dir", "."]);
    let output = command.current_dir(folder("relative")).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    is_clean("relative");
}

#[test]
fn impossible_options_are_rejected_with_advice() {
    let cases: [(&[&str], &str); 19] = [
        (&["--targets", "regoin"], "give one of region"),
        (&["--variant", "blind"], "blind-delta"),
        (&["--targets", "region", "--kill", "node"], "not among the targets"),
        (&["--targets", "redis", "--kill", "redis"], "give one of node-ring, node, node-unix"),
        (&["--targets", "region", "--kill", "region"], "give one of node-ring, node, node-unix"),
        (&["--targets", "region", "--arrivals", "poisson"], "--ramp"),
        (&["--records", "3", "--clients", "4"], "give more --records"),
        (&["--rate", "0"], "0.1 to 1000000000"),
        (&["--targets", "region", "--ramp", "5"], "200us"),
        (&["--targets", "region", "--dir", "/nowhere/at/all"], "--dir"),
        (&["--targets", "region", "--save", "/nowhere/a.json"], "/nowhere/a.json"),
        (&["--targets", "region", "--save", "same.x", "--report", "./same.x"], "--save"),
        (&["--targets", "region,redis", "--layout", "foo"], "none of the targets region, redis"),
        (&["--layout", "zones"], "none of the targets region, node, redis"),
        (&["--targets", "region,geode", "--layout", "foo"], "is not a layout of geode"),
        (&["--targets", "region,null,region"], "region is named twice"),
        (&["--targets", "region", "--think-us", "70000000"], "10000000"),
        (&["--targets", "region", "--clients", "3", "--rate", "2"], "one operation per second"),
        // Some terabytes.
        (
            &["--targets", "region,node,lmdb", "--variant", "tagged", "--records", "100000000"],
            "--shm-size",
        ),
    ];
    for (words, help) in cases {
        let (output, _, errors) = run("refused", words);
        assert!(!output.status.success(), "{words:?}");
        assert!(errors.contains(help), "{words:?}: {errors}");
        assert!(!errors.contains("loading"), "{words:?}: {errors}");
    }
    let (_, _, errors) = {
        let output =
            Command::new(NEARSTATE).args(["bench", "run", "ue-signaling"]).output().unwrap();
        (0, 0, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(errors.contains("ue-signalling"), "{errors}");
}

#[test]
fn a_full_disk_is_reported_and_tables_and_page_are_kept() {
    let page = folder("full").join("page.html");
    let page_name = page.to_str().unwrap();
    let words = ["--targets", "region", "--save", "/dev/full", "--report", page_name];
    let (output, text, errors) = run("full", &words);
    assert!(!output.status.success());
    assert!(text.contains("records verified"), "{text}");
    assert!(errors.contains("/dev/full"), "{errors}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("</html>"));
    is_clean("full");
}

#[test]
fn the_cost_of_the_generator_is_measured_and_excluded() {
    let (output, text, errors) = run("null", &["--targets", "region,null"]);
    assert!(output.status.success(), "{errors}");
    assert!(text.contains("generator and driver alone"), "{text}");
    let words = ["bench", "run", "tatp", "--targets", "null", "--records", "300", "--ops", "2000"];
    let mut command = Command::new(NEARSTATE);
    command.args(words).args(["--rounds", "1", "--dir"]).arg(folder("null"));
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    is_clean("null");
}

#[test]
fn every_target_with_tags_finds_ues_by_their_gutis() {
    let targets = "region,node,node-ring,redis,lmdb,memcached";
    for depth in ["1", "8"] {
        let words = ["--variant", "tagged", "--targets", targets, "--depth", depth, "--json"];
        let (output, text, errors) = run("tagged", &words);
        assert!(output.status.success(), "{errors}{text}");
        for target in parsed(&text)["targets"].as_array().unwrap() {
            if target["name"] == "memcached" {
                assert!(target["declined"].as_str().unwrap().contains("tag"), "{target}");
                continue;
            }
            assert_eq!(target["verdict"]["records"], 400, "{target}");
            assert_eq!(target["verdict"]["wrong"], 0, "{target}");
            let checks = target["checks"].as_array().unwrap();
            let finds = checks.iter().find(|check| check["name"] == "share of UEs found by GUTI");
            assert!(finds.unwrap()["found"].as_f64().unwrap() > 0.3, "{target}");
        }
    }
    is_clean("tagged");
}

/// The rounds pause for a millisecond after each operation, so their rate is not the capacity of
/// the store: a ramp based on it would try some hundred operations per second.
#[test]
fn a_ramp_starts_at_the_capacity_of_the_store() {
    let words = ["--targets", "null", "--ramp", "1us", "--arrivals", "poisson", "--json"];
    let words: Vec<&str> =
        words.into_iter().chain(["--think-us", "1000", "--ops", "300"]).collect();
    let (output, text, errors) = run("ramp", &words);
    assert!(output.status.success(), "{errors}");
    let ramp = parsed(&text)["targets"][0]["ramp"].clone();
    let offered = ramp.as_array().unwrap().iter().filter_map(|point| point["offered"].as_f64());
    let highest = offered.fold(0.0, f64::max);
    assert!(highest > 5_000.0, "{highest} op/s were the most");
    is_clean("ramp");
}

#[test]
fn the_list_names_workloads_and_targets() {
    let output = Command::new(NEARSTATE).args(["bench", "run", "--list"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    for name in ["ue-signalling", "tatp", "mme-insert", "sgw-session", "ycsb", "lmdb", "node-ring"]
    {
        assert!(text.contains(name), "{name}: {text}");
    }
}

fn children_of(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = std::fs::read_to_string(&path).expect("the process exists");
    children.split_whitespace().map(|child| child.parse().expect("a process id")).collect()
}

/// Waits for a child of a process with this word in its command line.
fn child_with(process: u32, word: &str) -> u32 {
    loop {
        let has_word = |child: &u32| {
            let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).split('\0').any(|one| one.ends_with(word))
        };
        if let Some(child) = children_of(process).into_iter().find(has_word) {
            return child;
        }
        std::thread::yield_now();
    }
}

/// Waits for the first child of a process.
fn child_of(process: u32) -> u32 {
    loop {
        if let Some(child) = children_of(process).first() {
            return *child;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_reaper_ignores_termination_signals_and_cleans_up_when_its_input_ends() {
    let run_folder = folder("reaper").join("nearstate-bench-reaped");
    std::fs::create_dir_all(&run_folder).expect("the folder is created");
    let mut reaper = Command::new(NEARSTATE)
        .args(["bench", "reaper"])
        .arg(&run_folder)
        .args(["--", "sleep", "1000"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the reaper starts");
    let server = child_of(reaper.id());
    for signal in ["-INT", "-TERM", "-HUP"] {
        let sent = Command::new("kill").args([signal, &reaper.id().to_string()]).status();
        assert!(sent.expect("kill is installed").success());
    }
    drop(reaper.stdin.take());
    assert!(reaper.wait().expect("the process exits").success(), "a signal ended the reaper");
    is_clean("reaper");
    assert!(!PathBuf::from(format!("/proc/{server}")).exists(), "the server was stopped");
}

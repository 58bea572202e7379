//! `nearstate numa`: this machine, another machine, plans that are saved, applied, and read back.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nearstate_local_cluster::skipped;
use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::{Folder, NEARSTATE, rejected, serve, start, until};

/// Two sockets of two cores with two hyper-threads, as hwloc writes them.
fn other_machine(folder: &TempDir) -> String {
    let set = |first: u32, count: u32| format!("0x{:08x}", ((1_u32 << count) - 1) << first);
    let core = |socket: u32, core: u32| {
        let first = socket * 4 + core * 2;
        format!(
            "<object type=\"Core\" os_index=\"{core}\" cpuset=\"{}\">\
             <object type=\"PU\" os_index=\"{first}\"/>\
             <object type=\"PU\" os_index=\"{}\"/></object>",
            set(first, 2),
            first + 1
        )
    };
    let socket = |number: u32| {
        format!(
            "<object type=\"Package\" os_index=\"{number}\" cpuset=\"{all}\">\
             <object type=\"NUMANode\" os_index=\"{number}\" cpuset=\"{all}\" \
             local_memory=\"1073741824\"/>{}{}</object>",
            core(number, 0),
            core(number, 1),
            all = set(number * 4, 4)
        )
    };
    let objects = socket(0) + &socket(1);
    let text = format!(
        "<?xml version=\"1.0\"?><!DOCTYPE topology SYSTEM \"hwloc2.dtd\"><topology version=\"2.0\">\
         <object type=\"Machine\" cpuset=\"0x000000ff\">{objects}</object></topology>"
    );
    let path = folder.path().join("machine.xml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn numa(words: &[&str]) -> Output {
    Command::new(NEARSTATE).arg("numa").args(words).output().unwrap()
}

fn done(words: &[&str]) -> String {
    let output = numa(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(words: &[&str], reason: &str) {
    let output = numa(words);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains(reason), "{words:?}: {text}");
}

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeping() -> Program {
    Program(Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap())
}

fn allowed(program: &Program) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", program.0.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

/// A plan of one processor on this machine. Returns its file and the processor.
fn plan_here(folder: &TempDir) -> (String, String) {
    let path = folder.path().join("plan.json").to_str().unwrap().to_owned();
    done(&["plan", "--slice", "upf:1:high", "--window", "0", "--save", &path]);
    let plan: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    (path, plan["slices"][0]["cpus"].as_str().unwrap().to_owned())
}

#[test]
fn this_and_another_machine_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let here: Value = serde_json::from_str(&done(&["show", "--json"])).unwrap();
    assert!(!here["cpus"].as_array().unwrap().is_empty());
    assert!(done(&["show", "--window", "100ms"]).contains("NUMA node P#0"));
    // The defaults and the processors are those of `numa plan`.
    assert!(here["cpus"][0]["is_housekeeping"] == true && here["cpus"][0]["is_reserved"] == false);
    let marked = done(&["show", "--json", "--reserve", "0", "--housekeeping", ""]);
    let marked: Value = serde_json::from_str(&marked).unwrap();
    let first = &marked["cpus"][0];
    assert!(first["is_housekeeping"] == false && first["is_reserved"] == true, "{first}");
    let (other, svg) = (other_machine(&folder), folder.path().join("machine.svg"));
    let text = done(&["show", "--from", &other, "--svg", svg.to_str().unwrap()]);
    assert!(text.contains("8 processors, 4 cores, 2 sockets, 2 nodes"), "{text}");
    assert!(text.contains("  HT P#             4    6\n  HT P#             5    7\n"), "{text}");
    let image = fs::read_to_string(svg).unwrap();
    assert!(image.starts_with("<svg ") && image.matches(">HT P#<").count() == 4);
    refused(&["show", "--from", &other, "--window", "1s"], "leave it out with --from");
    refused(&["show", "--from", "/none.xml"], "does not exist");
}

#[test]
fn slices_are_planned_explained_and_printed_for_other_tools() {
    let folder = tempfile::tempdir().unwrap();
    let other = other_machine(&folder);
    let path = folder.path().join("plan.json");
    let path = path.to_str().unwrap();
    let base = ["plan", "--from", &other, "--housekeeping", ""];
    let with = |more: &[&str]| done(&[&base[..], more].concat());
    let text = with(&["--slice", "a:2:high", "--slice", "b:3:low", "--explain", "--save", path]);
    assert!(text.contains("processors 0,1 2  nodes 0  memory node 0"), "{text}");
    for part in [
        "machine 0: all pairs as wanted, no other machine has room; memory node 0: distance 10",
        "next best: node 1 at distance 20",
        "4,6          same node (two physical cores carry more); next best: 4,5, same core",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let print = |tool| done(&["apply", path, "--slice", "b", "--print", tool]);
    for (tool, expected) in [
        ("taskset", "taskset --cpu-list 0-2 PROGRAM"),
        ("numactl", "numactl --physcpubind=0-2 --membind=0 PROGRAM"),
        ("systemd", "AllowedCPUs=0-2\nAllowedMemoryNodes=0\nNUMAPolicy=bind\nNUMAMask=0\n"),
        ("libvirt", "<vcpupin vcpu='2' cpuset='2'/>"),
        ("kubernetes", "cpuset_cpus: \"0-2\"\ncpuset_mems: \"0\""),
        ("dpdk", "--lcores=0@0,1@1,2@2 --socket-mem=1024"),
    ] {
        assert!(print(tool).contains(expected), "{}", print(tool));
    }
    // The guest has cores with two threads, as the pair of the plan file has.
    let more = ["--housekeeping", "7", "--memory", "2048"];
    let libvirt = ["apply", path, "--slice", "a", "--print", "libvirt"];
    let text = done(&[&libvirt[..], &more].concat());
    for part in ["cores='2' threads='1'", "<emulatorpin cpuset='7'/>", "memory='2048'"] {
        assert!(text.contains(part), "{text}");
    }
    // The same plan again moves nothing; a changed level moves one slice, and says why.
    let again = with(&["--slice", "a:2:high", "--slice", "b:3:low", "--current", path]);
    assert!(!again.contains("move"), "{again}");
    let changed = with(&["--slice", "a:2:low", "--slice", "b:3:low", "--current", path]);
    assert!(changed.contains("move a: from 4,6 of machine 0 to 4-5"), "{changed}");
    assert!(changed.contains("its traffic changed from high to low"), "{changed}");
    let window = ["--slice", "a:2:high", "--window", "1s"];
    refused(&[&base[..], &window].concat(), "cannot be used with");
    let packed = with(&["--slice", "a:2:high", "--baseline", "kubernetes"]);
    assert!(packed.contains("processors 0,1 "), "{packed}");
    refused(&["apply", path, "--slice", "b", "--pid", "1"], "is planned for");
    refused(&["apply", path, "--slice", "x", "--print", "dpdk"], "it places a, b");
    refused(&["plan", "--from", &other, "--slice", "a:9:low"], "1 of 1 slices do not fit");
    refused(&["plan", "--from", &other], "no slice");
    let pins = ["--slice", "a:2:low", "--pin", "x:1-2", "--pin", "y:2"];
    refused(&[&base[..], &pins].concat(), "processor 2 of");
}

/// Machines in another order, and one less or more, are not machines that are gone.
#[test]
fn machines_of_an_earlier_plan_are_found_by_their_origin() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a.xml", "b.xml", "c.xml"].map(|name| {
        let path = folder.path().join(name);
        fs::copy(other_machine(&folder), &path).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let [a, b, c] = names.each_ref().map(String::as_str);
    let path = folder.path().join("plan.json");
    let path = path.to_str().unwrap();
    let slices = ["--slice", "x:8:high", "--slice", "y:8:high"];
    let of = |machines: &[&str], more: &[&str]| {
        let from = machines.iter().flat_map(|machine| ["--from", *machine]);
        let words: Vec<&str> = ["plan"].into_iter().chain(from).collect();
        done(&[&words, &slices[..], more].concat())
    };
    let first = of(&[a, b], &["--save", path]);
    assert!(first.contains(b) && !first.contains("move"), "{first}");
    for machines in [&[b, a][..], &[c, b, a], &[a, b, c]] {
        let again = of(machines, &["--current", path]);
        assert!(!again.contains("move"), "{machines:?}: {again}");
    }
    // The machine of y is gone.
    let moved = of(&[a, c], &["--current", path]);
    assert!(!moved.contains("move x"), "{moved}");
}

#[test]
fn a_plan_for_another_architecture_is_refused_although_its_processors_exist_here() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, _) = plan_here(&folder);
    let text = fs::read_to_string(&plan).unwrap();
    let own = format!("\"architecture\": \"{}\"", std::env::consts::ARCH);
    assert!(text.contains(&own), "{text}");
    fs::write(&plan, text.replace(&own, "\"architecture\": \"vax\"")).unwrap();
    let program = sleeping();
    let pid = program.0.id().to_string();
    refused(
        &["apply", &plan, "--slice", "upf", "--pid", &pid],
        "architecture is vax; this machine is",
    );
}

#[test]
fn a_plan_is_applied_to_a_process_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, cpu) = plan_here(&folder);
    let program = sleeping();
    let pid = program.0.id().to_string();
    let text = done(&["apply", &plan, "--slice", "upf", "--pid", &pid]);
    assert!(
        text.contains(&format!("1 threads of process {pid} run on processors {cpu}")),
        "{text}"
    );
    assert_eq!(allowed(&program), cpu);
    refused(&["apply", &plan, "--slice", "upf", "--pid", "99999999"], "has no threads to place");
    refused(&["apply", &plan, "--slice", "upf", "--cgroup", "/tmp"], "must be a control group");
}

#[test]
fn the_lines_for_taskset_and_numactl_place_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, cpu) = plan_here(&folder);
    for tool in ["taskset", "numactl"] {
        let line = done(&["apply", &plan, "--slice", "upf", "--print", tool]);
        let may = Command::new("sh").args(["-c", &line.replace("PROGRAM", "true")]).output();
        if !may.unwrap().status.success() && tool == "numactl" {
            eprintln!("skipped: numactl is not installed, or may not bind memory here");
            continue;
        }
        let line = line.replace("PROGRAM", "cat /proc/self/status");
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        assert!(status.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{line}: {status}");
    }
}

#[test]
fn a_region_is_on_the_nodes_of_its_policy_and_the_policy_is_read_back() {
    let folder = Folder::new();
    let create = |name: &str, policy: &str| {
        let mut command = Command::new(NEARSTATE);
        command.args(["region", "create"]).arg(folder.path(name));
        command.args(["--max", "64MiB", "--json", "--numa", policy]).output().unwrap()
    };
    let here: Value = serde_json::from_str(&done(&["show", "--json"])).unwrap();
    let has_memory = |node: &&Value| node["is_allowed"] == true && node["memory_bytes"] != 0;
    let node = here["nodes"].as_array().unwrap().iter().find(has_memory).unwrap();
    let number = &node["number"];
    let node = number.to_string();
    for policy in ["bind", "interleave", "preferred"] {
        let asked = format!("{policy}:{node}");
        let output = create(policy, &asked);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if text.contains("mempolicy") || text.contains("numactl --hardware") {
            return skipped(&format!("memory policies are not permitted here: {text}"));
        }
        assert!(output.status.success(), "{text}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["numa_policy"], &json["note"]), (&Value::from(asked), &Value::Null));
        let nodes = json["pages_by_node"]["nodes"].as_array().unwrap();
        assert!(nodes.len() == 1 && nodes[0]["node"] == *number, "{json}");
    }
    // The node of a server says where the region's memory is.
    let mut command = serve(&folder.path("served"));
    command.args(["--listen", "127.0.0.1:0", "--max", "64MiB", "--place", "auto"]);
    let served = start(&mut command);
    let log = served.log();
    let line = log.lines().find(|line| line.contains("NS-1001")).unwrap().to_owned();
    let on_node = format!("pages on node {node}, policy preferred:{node}");
    assert!(line.contains(&on_node), "{line} lacks {on_node}");
}

/// The folder of control groups with processors, if this process may create a group in it.
fn groups() -> Option<&'static Path> {
    ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"].into_iter().map(Path::new).find(|folder| {
        folder.join("cpuset.cpus").exists() || {
            let enabled = fs::read_to_string(folder.join("cgroup.subtree_control"));
            enabled.is_ok_and(|names| names.contains("cpuset"))
        }
    })
}

#[test]
fn a_plan_is_applied_to_a_control_group_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, cpu) = plan_here(&folder);
    let group = groups().map(|folder| folder.join(format!("nearstate-{}", std::process::id())));
    let Some(group) = group.filter(|group| fs::create_dir(group).is_ok()) else {
        return skipped("no control group with processors can be created here");
    };
    let program = sleeping();
    let (path, pid) = (group.to_str().unwrap(), program.0.id().to_string());
    let text = done(&["apply", &plan, "--slice", "upf", "--cgroup", path, "--pid", &pid]);
    assert!(text.contains(&format!("has processors {cpu} and memory node 0")), "{text}");
    assert_eq!(allowed(&program), cpu);
    drop(program);
    fs::remove_dir(&group).unwrap();
}

#[test]
fn files_that_are_no_plans_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    for (text, reason) in [
        ("", "is no plan"),
        ("[]", "it has no format"),
        ("{\"format\": 2}", "format 2, not 1"),
        ("{\"format\": 1, \"machines\": [{}], \"slices\": []}", "no origin or nodes"),
        (
            "{\"format\": 1, \"machines\": [], \"slices\": [{\"slice\": 1}]}",
            "slice 0 is incomplete",
        ),
        (
            "{\"format\": 1, \"machines\": [], \"slices\": [{\"slice\": \"a\", \"machine\": 0, \
             \"traffic\": \"low\", \"units\": [{\"cpus\": [1]}], \"nodes\": \"0-1023\", \
             \"memory_node\": 0}]}",
            "slice 0 is incomplete",
        ),
        ("{\"format\": 1, \"machines\": [{\"origin\": \"x\"", "EOF while parsing"),
        (&"[".repeat(1_000_000), "recursion limit"),
    ] {
        fs::write(&path, text).unwrap();
        refused(&["apply", path.to_str().unwrap(), "--print", "taskset"], reason);
    }
    refused(&["apply", "/none", "--print", "taskset"], "cannot read /none");
    refused(&["apply", "/dev/zero", "--print", "taskset"], "not a regular file");
    // A file of slices is bounded, too: one of the kernel has no end.
    refused(&["plan", "--slices", "/dev/zero"], "/dev/zero lists no slices: it is not a regular");
    refused(&["plan", "--slices", "/none"], "cannot read /none");
    let large = folder.path().join("slices.txt");
    fs::File::create(&large).unwrap().set_len(1 << 30).unwrap();
    refused(&["plan", "--slices", large.to_str().unwrap()], "too large");
    refused(&["apply", large.to_str().unwrap(), "--print", "taskset"], "too large");
    refused(&["plan", "--from", large.to_str().unwrap(), "--slice", "a:1:low"], "is larger than");
    // A file of the kernel without a length.
    refused(&["apply", "/proc/self/status", "--print", "taskset"], "is no plan: expected value");
}

/// The allowed processors of the threads of a node's cores, by the number of the core.
fn processors_of_cores(pid: u32) -> Vec<String> {
    let mut cores = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let folder = entry.unwrap().path();
        let name = fs::read_to_string(folder.join("comm")).unwrap();
        let Some(core) = name.trim().strip_prefix("ns-core-") else { continue };
        let status = fs::read_to_string(folder.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        cores.push((core.parse::<u32>().unwrap(), line.unwrap().trim().to_owned()));
    }
    cores.sort();
    cores.into_iter().map(|(_, cpus)| cpus).collect()
}

#[test]
fn a_node_runs_on_the_processors_of_its_place() {
    let folder = Folder::new();
    let with = |name: &str, more: &[&str]| {
        let mut command = serve(&folder.path(name));
        command.args(["--listen", "127.0.0.1:0", "--max", "64MiB"]).args(more);
        command
    };
    let here: Value = serde_json::from_str(&done(&["show", "--json"])).unwrap();
    let mut allowed =
        here["cpus"].as_array().unwrap().iter().filter(|cpu| cpu["is_allowed"] == true);
    let last = allowed.next_back().unwrap()["number"].to_string();
    let node = start(&mut with("list", &["--place", &last]));
    assert!(node.log().contains("NS-1013"), "{}", node.log());
    assert_eq!(processors_of_cores(node.pid()), [last.as_str()]);
    assert_eq!(node.tcp().ask(&["SET", "k", "v"]), "+OK");
    drop(node);
    // Processor 0 is the last choice of a single core.
    let node = start(&mut with("auto", &["--place", "auto", "--cores", "1"]));
    let placed = processors_of_cores(node.pid());
    let single: Value = serde_json::from_str(&done(&[
        "plan",
        "--slice",
        "node:1:medium",
        "--window",
        "0",
        "--json",
    ]))
    .unwrap();
    assert_eq!(placed, [single["slices"][0]["cpus"].as_str().unwrap()]);
    drop(node);
    let refused = rejected(&mut with("none", &["--place", "9999"]));
    assert!(refused.contains("processor 9999 does not exist"), "{refused}");
    let refused = rejected(&mut with("many", &["--place", "auto", "--cores", "1000"]));
    assert!(refused.contains("1000 cores do not fit"), "{refused}");
    let refused = rejected(&mut with("free", &["--place", "auto", "--pin-cores=false"]));
    assert!(refused.contains("unset one of them"), "{refused}");
    assert!(!folder.path("none").exists() && !folder.path("many").exists());
}

/// `bench run numap`, or `None` where network namespaces are not permitted.
fn numap(words: &[&str]) -> Option<Command> {
    let may = Command::new("unshare").args(["--net", "true"]).output().unwrap();
    if !may.status.success() {
        skipped("network namespaces are not permitted here");
        return None;
    }
    let mut command = Command::new(NEARSTATE);
    command.args(["bench", "run", "numap", "--rounds", "1"]).args(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

#[test]
fn the_latency_of_each_pairing_is_measured_saved_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (saved, page) = (folder.path().join("a.json"), folder.path().join("a.html"));
    let files = [saved.to_str().unwrap(), page.to_str().unwrap()];
    let words = ["--ops", "20", "--json", "--save", files[0], "--report", files[1]];
    let Some(mut command) = numap(&words) else { return };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pairings = run["pairings"].as_array().unwrap();
    assert_eq!(pairings[0]["name"], "none");
    // Every scheme of the paper is measured, or named with the reason why it is not.
    for scheme in ["hyper-thread", "collocated", "non-collocated"] {
        let is_of = |text: &Value| text.as_str().unwrap().starts_with(scheme);
        let is_measured = pairings.iter().any(|one| is_of(&one["name"]));
        let is_named = run["missing"].as_array().unwrap().iter().any(is_of);
        assert!(is_measured != is_named, "{scheme}: {run}");
    }
    let mut arrived = [0.0, 0.0];
    for point in pairings.iter().flat_map(|one| one["points"].as_array().unwrap()) {
        let round = &point["rounds"][0];
        let replies = round["latencies"].as_array().unwrap().iter();
        let replies: u64 = replies.map(|pair| pair[1].as_u64().unwrap()).sum();
        assert_eq!(replies + round["lost"].as_u64().unwrap(), 20, "{point}");
        arrived[usize::from(point["offered_mbps"] != 0)] +=
            round["achieved_mbps"].as_f64().unwrap();
    }
    assert!(arrived[0] < 0.1 && arrived[1] > 0.0, "{arrived:?}");
    let html = fs::read_to_string(&page).unwrap();
    for part in ["Latency curves", "NUMA node P#0", "<polyline", "numa plan"] {
        assert!(html.contains(part), "{part}");
    }
    let mut again = Command::new(NEARSTATE);
    let again = again.args(["bench", "render", files[0]]).output().unwrap();
    assert!(String::from_utf8(again.stdout).unwrap().contains("mean RTT"));
}

#[test]
fn namespaces_end_with_a_run_that_is_killed() {
    let Some(mut command) = numap(&["--ops", "100000"]) else { return };
    let mut run = Program(command.spawn().unwrap());
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let children = format!("/proc/{0}/task/{0}/children", run.0.id());
    // The holders of the namespaces: once the first point is on, there are three.
    let mut held = Vec::new();
    until("the network is there", || {
        let pids = fs::read_to_string(&children).unwrap_or_default();
        held = pids.split_whitespace().filter_map(namespace).filter(|one| *one != own).collect();
        held.len() == 3
    });
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    until("no process is in one of the namespaces", || {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        !names.filter_map(|pid| namespace(&pid)).any(|one| held.contains(&one))
    });
}

#[test]
fn options_of_stores_and_unknown_pairings_are_refused() {
    let rejects = |words: &[&str], reason: &str| {
        let mut command = Command::new(NEARSTATE);
        let said = rejected(command.args(["bench", "run", "numap"]).args(words));
        assert!(said.contains(reason), "{said}");
    };
    rejects(&["--clients", "4"], "numap has no --clients");
    rejects(&["--targets", "collocated-l9"], "this machine has no pairing");
}

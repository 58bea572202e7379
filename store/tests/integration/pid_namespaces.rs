//! Processes of different PID namespaces in one region: a process id says nothing about them, and
//! neither is a living one taken for dead, nor a dead one for alive.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use nearstate_store::{Error, Region, lease_clock};

use crate::fixture::{
    KilledOnDrop, TestFolder, arguments, child, clean, is_root, output, region_path, skipped,
    spawn, succeeded,
};
use crate::full_region::{create, key, open};

/// A bound for what takes milliseconds.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Rounds of another session that write all records of the test.
const ROUNDS: u32 = 60;

const RECORDS: u32 = 1000;

/// Starts a program as the second process of a PID namespace, with the id of the test's process if
/// the machine permits to choose it. The first process of a namespace cannot stop itself.
const AS_SECOND: &str = "exec 3<&0; echo $LAST_PID 2>/dev/null >/proc/sys/kernel/ns_last_pid; \
                         \"$0\" \"$@\" <&3 3<&- & exec 3<&-; wait $!";

/// A process of this program in a PID namespace of its own. It has the id 1 there, which outside is
/// a process that does not end, or, `as_second`, the id of this process. `None`, with the reason
/// printed, if this machine does not permit it.
fn in_namespace(test: &str, folder: &TestFolder, as_second: bool) -> Option<Command> {
    let reason = if is_root() {
        let mut unshare = Command::new("unshare");
        let tried = output(unshare.args(["--pid", "--fork", "--kill-child", "true"]));
        match tried {
            Ok(tried) if tried.status.success() => None,
            Ok(tried) => Some(String::from_utf8_lossy(&tried.stderr).into_owned()),
            Err(error) => Some(error.to_string()),
        }
    } else {
        Some("only root may create a PID namespace".to_owned())
    };
    if let Some(reason) = reason {
        let may_skip = std::env::var_os("NEARSTATE_MAY_SKIP").is_some();
        assert!(may_skip, "not tested: no process of another PID namespace: {reason}");
        skipped(&format!("no process of another PID namespace: {reason}"));
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]);
    if as_second {
        command.args(["sh", "-c", AS_SECOND]);
        command.env("LAST_PID", (std::process::id() - 1).to_string());
    }
    command.arg(std::env::current_exe().unwrap());
    command.args(arguments(&format!("pid_namespaces::{test}")));
    command.env("NEARSTATE_TEST_REGION", &folder.path);
    Some(command)
}

fn say(line: &str) {
    std::io::stdout().write_all(format!("{line};\n").as_bytes()).unwrap();
}

fn wait_for_parent() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Starts a process, and waits until it has said something.
fn start(command: &mut Command, word: &str) -> (KilledOnDrop, BufReader<ChildStdout>) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = KilledOnDrop(spawn(command).unwrap());
    let mut output = BufReader::new(process.0.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains(word) {
        assert!(output.read_line(&mut text).unwrap() != 0, "no {word:?}: {text}");
    }
    (process, output)
}

/// Lets a process go on, which must succeed.
fn finish((mut process, mut output): (KilledOnDrop, BufReader<ChildStdout>)) {
    drop(process.0.stdin.take());
    let mut text = String::new();
    while output.read_line(&mut text).unwrap() != 0 {}
    assert!(process.0.wait().unwrap().success(), "{text}");
}

#[test]
#[ignore = "the tests below run it in a process of its own"]
fn a_reader_in_a_namespace() {
    let region = Region::attach(&region_path()).unwrap();
    let (session, ns) = open(&region);
    let view = session.get(ns, &key(5)).unwrap().unwrap();
    say(&format!("pid {}", std::process::id()));
    wait_for_parent();
    assert_eq!(view.bytes(), [1; 1000], "its view was not protected");
    drop(view);
    // The parent has an id that does not exist here.
    let members = region.inspect().unwrap().members;
    assert!(members.len() >= 2 && members.iter().all(|member| member.is_alive), "{members:?}");
    for round in 0..20 {
        let (other, ns) = open(&region);
        other.put(ns, &key(5), &[round]).unwrap();
    }
}

/// The reader has the process id 1 in its namespace, and the writer one that does not exist there.
#[test]
fn a_process_of_another_pid_namespace_is_not_taken_for_dead() {
    let folder = TestFolder::new();
    let Some(mut command) = in_namespace("a_reader_in_a_namespace", &folder, false) else { return };
    let region = create(&folder);
    let (session, ns) = open(&region);
    let put_all = |value: u8| {
        for number in 0..RECORDS {
            session.put(ns, &key(number), &[value; 1000]).unwrap();
        }
    };
    put_all(1);
    let reader = start(&mut command, "pid 1;");
    // More than the region: what the view reads would be reused, were it not alive.
    for round in 0..ROUNDS {
        put_all(round as u8);
        drop(open(&region));
    }
    let members = region.inspect().unwrap().members;
    let alive = members.iter().filter(|member| member.is_alive && member.process.pid == 1);
    assert_eq!(alive.count(), 1, "{members:?}");
    let held = region.inspect().unwrap().heap.held_back;
    assert!(held.iter().any(|held| held.process.pid == 1), "{held:?}");
    finish(reader);
    session.put(ns, &key(5), b"this session goes on").unwrap();
    drop((session, region));
    clean(&folder.path);
}

#[test]
#[ignore = "the tests below run it in a process of its own"]
fn a_holder_of_a_lock() {
    let region = Region::attach(&region_path()).unwrap();
    let (session, ns) = open(&region);
    // It stops at the crash point in its environment, and is killed.
    session.put(ns, &key(5), b"from a process that dies").unwrap();
}

#[test]
#[ignore = "the tests below run it in a process of its own"]
fn a_writer_of_the_same_record() {
    let region = Region::attach(&region_path()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, &key(5), b"after its death").unwrap();
    let members = region.inspect().unwrap().members;
    assert!(members.iter().all(|member| member.is_alive), "{members:?}");
}

/// Starts a process that stops while it holds the lock of a record, waits until the record cannot
/// be written, and kills the process.
fn kill_holder(command: &mut Command, region: &Region) {
    command.env("NEARSTATE_CRASH_AT", "publish.recorded:1:stop");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut holder = KilledOnDrop(spawn(command).unwrap());
    let (session, ns) = open(region);
    let end = lease_clock() + WAIT_MAX;
    loop {
        match session.put(ns, &key(5), b"is it locked?") {
            Ok(_) => {}
            Err(Error::Stalled { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(lease_clock() < end, "the other process does not take the lock");
    }
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    // `unshare` has ended; the kernel kills its child at the same time, or a moment later.
    let is_gone = || region.inspect().unwrap().members.iter().filter(|m| m.is_alive).count() == 1;
    while !is_gone() {
        assert!(lease_clock() < end + WAIT_MAX, "a dead process counts as alive");
        std::thread::yield_now();
    }
}

/// In its own namespace the dead process had an id that a process has here which is alive.
#[test]
fn a_dead_process_of_another_pid_namespace_is_not_taken_for_alive() {
    let folder = TestFolder::new();
    let Some(mut command) = in_namespace("a_holder_of_a_lock", &folder, true) else { return };
    let region = create(&folder);
    kill_holder(&mut command, &region);
    let (session, ns) = open(&region);
    session.put(ns, &key(5), b"recovered").unwrap();
    drop((session, region));
    clean(&folder.path);
}

/// The id of the dead process does not exist in the namespace of the one that recovers it.
#[test]
fn a_process_recovers_a_dead_one_of_an_outer_pid_namespace() {
    let folder = TestFolder::new();
    let Some(mut writer) = in_namespace("a_writer_of_the_same_record", &folder, false) else {
        return;
    };
    let region = create(&folder);
    kill_holder(&mut child("pid_namespaces::a_holder_of_a_lock", &folder.path), &region);
    succeeded(&output(&mut writer).unwrap());
    drop(region);
    clean(&folder.path);
}

//! Exhausted resources: the heap, the file system, the address space, the bounds of a record, the
//! tables.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use nearstate_store::limits::{KEY_BYTES_MAX, MEMBERS_MAX, VALUE_BYTES_MAX};
use nearstate_store::{BlockChange, Condition, CreateOptions, Error, Kind, Region, Schema};

use crate::fixture::{
    KilledOnDrop, Mount, TestFolder, arguments, child, clean, open, output, refused, region_path,
    skipped, small, spawn, succeeded,
};

fn key(number: u32) -> [u8; 8] {
    u64::from(number).to_le_bytes()
}

#[test]
fn a_full_heap_is_reported_with_a_remedy_and_the_process_that_holds_it() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    let value = vec![5; 20_000];
    let fill = |from: u32| {
        let mut count = from;
        loop {
            match session.put(ns, &key(count), &value) {
                Ok(_) => count += 1,
                Err(error) => return (count, error),
            }
        }
    };
    let (count, error) = fill(0);
    assert!(matches!(error, Error::Full { .. }), "{error}");
    refused::<()>(Err(error), &["reached the size", "delete records", "larger region"]);
    // A view holds back what is deleted after it, and the message says that it is the caller's.
    let held = session.get(ns, &key(0)).unwrap().unwrap();
    for number in 0..count {
        assert!(session.delete(ns, &key(number)).unwrap());
    }
    // The text is up to date a hundred milliseconds later at the latest.
    let since = nearstate_store::now_ms_coarse();
    let error = loop {
        let (_, error) = fill(0);
        if error.to_string().contains("holds back")
            || nearstate_store::now_ms_coarse() > since + 20_000
        {
            break error;
        }
    };
    refused::<()>(Err(error), &["view or transaction of this session holds back", "drop"]);
    assert_eq!(held.bytes(), value);
    drop(held);
    let (again, _) = fill(0);
    assert!(again >= count * 9 / 10, "{again} records fit where {count} did");
    for number in 0..again {
        assert_eq!(session.get(ns, &key(number)).unwrap().unwrap().bytes(), value);
    }
    drop((session, region));
    clean(&folder.path);
}

/// No process is blamed that could be continued or ended.
#[test]
fn a_view_of_another_session_of_the_process_is_named_as_its_own() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    let (other, _) = open(&region);
    let value = vec![5; 20_000];
    let mut count = 0;
    while session.put(ns, &key(count), &value).is_ok() {
        count += 1;
    }
    let held = other.get(ns, &key(0)).unwrap().unwrap();
    for number in 0..count {
        assert!(session.delete(ns, &key(number)).unwrap());
    }
    let since = nearstate_store::now_ms_coarse();
    let text = loop {
        let text = session.put(ns, &key(0), &vec![1; 50 << 20]).unwrap_err().to_string();
        if text.contains("holds back") || nearstate_store::now_ms_coarse() > since + 20_000 {
            break text;
        }
    };
    assert!(text.contains("of another session of this process holds back"), "{text}");
    assert!(!text.contains("kill -CONT"), "{text}");
    assert_eq!(held.bytes(), value);
    drop(held);
    drop((other, session, region));
    clean(&folder.path);
}

#[test]
fn on_a_full_file_system_small_records_use_what_large_ones_leave() {
    let mount = match Mount::new("tmpfs", "size=40m") {
        Ok(mount) => mount,
        Err(reason) => return skipped(&reason),
    };
    let path = &mount.folder.path;
    let region = Region::create(path, &CreateOptions::default()).unwrap();
    let (session, ns) = open(&region);
    let mut count = 0;
    while session.put(ns, &key(count), &[0; 4000]).is_ok() {
        count += 1;
    }
    // Another file takes the last pages.
    let mut filler = std::fs::File::create(path.with_file_name("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
    // There are none to get ahead of the writers, which is no error.
    for _ in 0..2 {
        assert_eq!(session.commit_ahead(u64::MAX, u64::MAX).unwrap(), 0);
    }
    for number in 0..200 {
        assert!(session.delete(ns, &key(number)).unwrap());
    }
    // The member's bump range has no pages: what was deleted must do, and no page outside the file.
    for number in 0..100 {
        session.put(ns, &key(number), b"small").unwrap();
    }
    drop((session, region));
    let region = Region::attach(path).unwrap();
    let (session, ns) = open(&region);
    for number in 0..100 {
        assert_eq!(session.get(ns, &key(number)).unwrap().unwrap().bytes(), b"small");
    }
    drop((session, region));
    clean(path);
}

#[test]
fn what_a_region_still_needs_of_its_file_system_is_known() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    let before = region.inspect().unwrap();
    assert!(before.bytes_without_pages > before.bytes_max / 2, "{before:?}");
    assert!(before.bytes_without_pages < before.bytes_max, "the reserve has pages");
    for number in 0..200 {
        session.put(ns, &key(number), &[1; 10_000]).unwrap();
    }
    let after = region.inspect().unwrap();
    let got = before.bytes_without_pages - after.bytes_without_pages;
    assert!((2_000_000..4_000_000).contains(&got), "{got}");
    // Besides, the index has a page more.
    let grown = after.bytes_on_disk - before.bytes_on_disk;
    assert!((got..got + 65_536).contains(&grown), "{grown} {got}");
    drop((session, region));
    clean(&folder.path);
    // All pages exist from the creation on, also those of chunks that were never used.
    let folder = TestFolder::new();
    let options = CreateOptions { populate: true, ..small() };
    let region = Region::create(&folder.path, &options).unwrap();
    assert_eq!(region.inspect().unwrap().bytes_without_pages, 0);
    drop(region);
    clean(&folder.path);
}

#[test]
fn a_full_file_system_is_an_error_and_no_signal() {
    let mount = match Mount::new("tmpfs", "size=40m") {
        Ok(mount) => mount,
        Err(reason) => return skipped(&reason),
    };
    let path = &mount.folder.path;
    let region = Region::create(path, &CreateOptions::default()).unwrap();
    let (session, ns) = open(&region);
    let mut count = 0;
    let error = loop {
        match session.put(ns, &key(count), &[0; 5000]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(!error.to_string().contains("create a larger region"), "{error}");
    refused::<()>(Err(error), &["no room", "remount", "delete records", "no more room there"]);
    // 8 MiB of the file system are the reserve of a region of 1 GiB.
    assert!(count > 4900, "{count}");
    // Some room for lines of the index, which change their places.
    let last = count - 8..count;
    assert!(last.into_iter().all(|number| session.delete(ns, &key(number)).unwrap()));
    count -= 8;
    for round in 1..4_u8 {
        // A larger value that does not fit either leaves the region as it is.
        refused(session.put(ns, b"large", &vec![1; 30 << 20]), &["no room"]);
        // What a record leaves is used again.
        for number in (0..count).step_by(2) {
            assert!(session.delete(ns, &key(number)).unwrap());
        }
        for number in (0..count).step_by(2) {
            session.put(ns, &key(number), &[round; 5000]).unwrap();
        }
        for number in 0..count {
            let expected = if number % 2 == 0 { round } else { 0 };
            assert_eq!(session.get(ns, &key(number)).unwrap().unwrap().bytes(), [expected; 5000]);
        }
    }
    // One free cell is enough to replace all others in turn.
    session.delete(ns, &key(0)).unwrap();
    for number in 1..count {
        session.put(ns, &key(number), &[9; 5000]).unwrap();
    }
    // Others can neither attach a session nor open a namespace where there is no page for it, and
    // both say so instead of dying.
    let mut sessions = Vec::new();
    let error = loop {
        match region.session() {
            Ok(session) if sessions.len() < 4000 => sessions.push(session),
            Ok(_) => break None,
            Err(error) => break Some(error),
        }
    };
    if let Some(error) = error {
        refused::<()>(Err(error), &["no room"]);
    }
    drop((sessions, session, region));
    clean(path);
}

/// The file system ends where the region does: what is full is the heap, and all that a full heap
/// allows needs no further page.
#[test]
fn a_file_system_of_exactly_the_size_of_the_region_is_enough_for_all_of_it() {
    let folder = TestFolder::new();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    drop(Region::create(&folder.path, &options).unwrap());
    let bytes = std::fs::metadata(&folder.path).unwrap().len();
    let mount = match Mount::new("tmpfs", &format!("size={bytes}")) {
        Ok(mount) => mount,
        Err(reason) => return skipped(&reason),
    };
    let path = &mount.folder.path;
    let region = Region::create(path, &options).unwrap();
    assert_eq!(std::fs::metadata(path).unwrap().len(), bytes);
    let (session, ns) = open(&region);
    let fill = |bytes: usize| {
        let mut count = 0;
        let error = loop {
            match session.put(ns, &key(count), &vec![1; bytes]) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        refused::<()>(Err(error), &["reached the size", "larger region"]);
        count
    };
    let first = fill(1000);
    assert!(first > 50_000, "{first} records of 1,000 bytes");
    for bytes in [1000, 4000, 300, 60_000, 1000] {
        let count = fill(bytes);
        for number in 0..count {
            session.put(ns, &key(number), &vec![2; bytes]).unwrap();
        }
        // Another session, and one more: each has an arena of its own.
        let others = [region.session().unwrap(), region.session().unwrap()];
        for number in 0..count.max(first) {
            let session = others.get(number as usize % 2).unwrap();
            session.delete(ns, &key(number)).unwrap();
        }
    }
    drop((session, region));
    clean(path);
}

/// Cells of the reserve in which the writers of the next test leave records: each may fill what an
/// update freed before it is killed, and be killed in another update.
const LENT_TO_KILLED_MAX: u32 = 4;

/// Records of a heap that the next test keeps full.
const FULL_VALUE: [u8; 1000] = [3; 1000];
const OTHER_VALUE: [u8; 1000] = [4; 1000];

#[test]
#[ignore = "the next test runs it in a process that it kills"]
#[expect(clippy::print_stdout, reason = "the next test waits for the line")]
fn writing_in_a_full_heap() {
    let region = Region::attach(&region_path()).unwrap();
    let (session, ns) = open(&region);
    let mut count = 0;
    while session.put(ns, &key(count), &FULL_VALUE).is_ok() {
        count += 1;
    }
    println!("full with {count}");
    for number in (0..count).cycle() {
        session.put(ns, &key(number), &FULL_VALUE).unwrap();
        if number % 3 == 0 {
            session.delete(ns, &key(number)).unwrap();
            let _ = session.put(ns, &key(number), &FULL_VALUE);
        }
    }
}

/// Neither the recovery of a killed process nor the check needs a page that the file system does
/// not have.
#[test]
fn a_process_killed_where_heap_and_file_system_are_full_is_recovered() {
    let folder = TestFolder::new();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    drop(Region::create(&folder.path, &options).unwrap());
    let bytes = std::fs::metadata(&folder.path).unwrap().len();
    let mount = match Mount::new("tmpfs", &format!("size={bytes}")) {
        Ok(mount) => mount,
        Err(reason) => return skipped(&reason),
    };
    let path = &mount.folder.path;
    drop(Region::create(path, &options).unwrap());
    for round in 0..3 {
        let mut command = child("hostile::exhaustion::writing_in_a_full_heap", path);
        let mut writer = KilledOnDrop(spawn(command.stdout(Stdio::piped())).unwrap());
        let lines = BufReader::new(writer.0.stdout.take().unwrap()).lines();
        let mut full = lines.map_while(Result::ok).filter(|line| line.contains("full with"));
        assert!(full.next().is_some(), "the writer ended");
        drop(writer);
        // The last round leaves the dead session to the check.
        if round < 2 {
            let region = Region::attach(path).unwrap();
            let (session, ns) = open(&region);
            assert_eq!(region.inspect().unwrap().members.len(), 1, "the dead one was recovered");
            // An insert is not an update: it has no reserve. Each refusal returns a cell that the
            // reserve had lent to an update of a killed writer.
            let mut lent = 0;
            for number in 0..1000 {
                session.delete(ns, &key(number)).unwrap();
                let done = session.put(ns, &key(number), &FULL_VALUE);
                if matches!(done, Err(Error::Full { .. })) {
                    lent += 1;
                } else {
                    done.unwrap();
                }
            }
            assert!(lent <= LENT_TO_KILLED_MAX, "{lent} inserts after deletes were refused");
            for number in 0..1000 + lent {
                if session.get(ns, &key(number)).unwrap().is_some() {
                    session.put(ns, &key(number), &OTHER_VALUE).unwrap();
                    let written = session.get(ns, &key(number)).unwrap().unwrap();
                    assert_eq!(written.bytes(), OTHER_VALUE);
                }
            }
        }
        clean(path);
    }
    let region = Region::attach(path).unwrap();
    let (session, ns) = open(&region);
    // The last writer may have been killed between the deletion of a record and its next write.
    let (mut count, mut missing, mut number) = (0, 0, 0);
    while missing < 2 {
        let is_there = session.delete(ns, &key(number)).unwrap();
        (count, missing) = if is_there { (count + 1, 0) } else { (count, missing + 1) };
        number += 1;
    }
    assert!(count > 50_000, "{count} records of 1,000 bytes");
    for number in 0..count * 9 / 10 {
        session.put(ns, &key(number), &FULL_VALUE).unwrap();
    }
    drop((session, region));
    Region::remove(path).unwrap();
    assert!(!path.exists());
}

#[test]
fn a_region_larger_than_its_file_system_reports_when_it_is_full() {
    let mount = match Mount::new("tmpfs", "size=64k") {
        Ok(mount) => mount,
        Err(reason) => return skipped(&reason),
    };
    // Too small for the first session and namespace.
    let outcome = Region::create(&mount.folder.path, &small()).and_then(|region| {
        let session = region.session()?;
        let ns = session.namespace("ue", &Schema::default())?;
        session.put(ns, b"k", &vec![1; 60_000])
    });
    refused(outcome, &["no room", "enlarge"]);
    let populated = CreateOptions { populate: true, ..small() };
    let path = mount.folder.dir().join("populated");
    refused(Region::create(&path, &populated), &["no room", "enlarge"]);
}

#[test]
#[ignore = "the next test runs it under a limit"]
fn attaching_under_a_limit() {
    let words = ["cannot map", "ulimit -v", "smaller region"];
    refused(Region::attach(&region_path()), &words);
    let large = CreateOptions { bytes_max: 8 << 30, ..CreateOptions::default() };
    refused(Region::create(&region_path().with_file_name("other"), &large), &words);
    // What fits still works.
    let region = Region::create(&region_path().with_file_name("small"), &small()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, b"k", b"v").unwrap();
}

#[test]
fn a_lack_of_address_space_is_an_error_with_a_remedy() {
    let folder = TestFolder::new();
    let large = CreateOptions { bytes_max: 8 << 30, ..CreateOptions::default() };
    Region::create(&folder.path, &large).unwrap();
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v 4194304; exec \"$0\" \"$@\""])
        .arg(this)
        .args(arguments("hostile::exhaustion::attaching_under_a_limit"))
        .env("NEARSTATE_TEST_REGION", &folder.path);
    succeeded(&output(&mut command).unwrap());
    clean(&folder.path);
}

/// What the issue asks for.
const HANDLES: usize = 10_000;

#[test]
#[ignore = "another test runs it in a process of its own"]
fn ten_thousand_handles() {
    let region = Region::create(&region_path(), &small()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, b"k", b"v").unwrap();
    let handles: Vec<Region> = (0..HANDLES).map(|_| region.clone()).collect();
    let mut sessions: Vec<_> = handles.iter().map(|handle| handle.session().unwrap()).collect();
    let views: Vec<_> = sessions
        .iter()
        .map(|session| session.get(ns, b"k").unwrap().unwrap())
        .inspect(|view| assert_eq!(view.bytes(), b"v"))
        .collect();
    assert_eq!(region.inspect().unwrap().members.len(), HANDLES + 1);
    drop(views);
    for session in sessions.iter().step_by(100) {
        session.put(ns, b"k", b"v").unwrap();
    }
    // Up to the last one that there is room for.
    while sessions.len() + 1 < MEMBERS_MAX {
        sessions.push(region.session().unwrap());
    }
    refused(region.session(), &["16384 sessions", "detach some"]);
    sessions.truncate(HANDLES);
    sessions.push(region.session().unwrap());
    sessions.clear();
    assert_eq!(region.inspect().unwrap().members.len(), 1);
}

#[test]
#[ignore = "another test runs it in a process of its own"]
fn more_attaches_than_one_process_can_have() {
    Region::create(&region_path(), &small()).unwrap();
    for _ in 0..2 {
        let mut regions = Vec::new();
        let error = loop {
            match Region::attach(&region_path()) {
                Ok(region) => regions.push(region),
                Err(error) => break error.to_string(),
            }
            assert!(regions.len() < 20_000, "there is no end to it");
        };
        assert!(error.contains("detach") || error.contains("ulimit -n"), "{error}");
        let (session, ns) = open(&regions[0]);
        session.put(ns, b"k", b"v").unwrap();
    }
}

#[test]
fn ten_thousand_sessions_attach_and_one_too_many_is_refused() {
    for test in ["ten_thousand_handles", "more_attaches_than_one_process_can_have"] {
        let folder = TestFolder::new();
        let mut command = child(&format!("hostile::exhaustion::{test}"), &folder.path);
        succeeded(&output(&mut command).unwrap());
        clean(&folder.path);
    }
}

#[test]
fn what_is_too_large_is_refused_with_the_bound() {
    let folder = TestFolder::new();
    let options = CreateOptions { bytes_max: 512 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path, &options).unwrap();
    let (session, ns) = open(&region);
    let blocks =
        session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    let long = vec![1; KEY_BYTES_MAX + 1];
    let large = vec![1; VALUE_BYTES_MAX + 1];
    let fitting = &large[..VALUE_BYTES_MAX];
    refused(session.put(ns, &long, b""), &["a key of 4097 bytes", "at most 4096"]);

    refused(session.put(ns, b"k", &large), &["134217729 bytes", "at most 134217728"]);
    let change = |name, bytes| [BlockChange { name, bytes: Some(bytes) }];
    let patch = |key: &[u8], changes: &[BlockChange<'_>]| {
        session.patch(blocks, key, changes, Condition::Always)
    };
    refused(patch(&long, &change("b", b"")), &["4096"]);
    refused(patch(b"k", &change("b", &large)), &["at most 134217728"]);
    let name = "n".repeat(256);
    refused(patch(b"k", &change(&name, b"")), &["a name of 256 bytes", "255"]);
    let names: Vec<String> = (0..1025).map(|number| number.to_string()).collect();
    let changes: Vec<BlockChange<'_>> =
        names.iter().map(|name| BlockChange { name, bytes: Some(b"") }).collect();
    refused(patch(b"k", &changes), &["1025 blocks", "at most 1024"]);
    refused(session.namespace(&name, &Schema::default()), &["a name of 256 bytes"]);
    refused(session.namespace("", &Schema::default()), &["a name of 0 bytes"]);
    // Nothing of it is there, and what just fits does fit.
    assert_eq!(session.count(ns).unwrap() + session.count(blocks).unwrap(), 0);
    assert!(session.get(ns, &long).unwrap().is_none());
    session.put(ns, &long[..KEY_BYTES_MAX], fitting).unwrap();
    assert_eq!(session.get(ns, &long[..KEY_BYTES_MAX]).unwrap().unwrap().bytes(), fitting);
    patch(b"k", &change("b", fitting)).unwrap();
    patch(b"all", &changes[..1024]).unwrap();
    drop((session, region));
    clean(&folder.path);
}

#[test]
#[ignore = "the next test runs it: it becomes another program"]
fn becoming_another_program() {
    use std::os::unix::process::CommandExt as _;
    let region = Region::attach(&region_path()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, b"k", b"v").unwrap();
    let error = Command::new("cat").exec();
    panic!("{error}");
}

#[test]
fn a_process_is_detached_when_it_executes_another_program() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let mut command = child("hostile::exhaustion::becoming_another_program", &folder.path);
    let mut other = spawn(command.stdin(Stdio::piped()).stdout(Stdio::null())).unwrap();
    let comm = format!("/proc/{}/comm", other.id());
    while std::fs::read_to_string(&comm).unwrap().trim() != "cat" {
        assert!(other.try_wait().unwrap().is_none(), "it ended early");
        std::thread::yield_now();
    }
    // The kernel lets the old memory's file go on its way back to the new program.
    let is_alive = || region.inspect().unwrap().members.iter().any(|member| member.is_alive);
    let mut looks = 0;
    while is_alive() {
        looks += 1;
        assert!(looks < 1_000_000, "the program before is still taken for alive");
        std::thread::yield_now();
    }
    let (session, ns) = open(&region);
    assert_eq!(session.get(ns, b"k").unwrap().unwrap().bytes(), b"v");
    drop((session, region));
    clean(&folder.path);
    drop(other.stdin.take());
    other.wait().unwrap();
}

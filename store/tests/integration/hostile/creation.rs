//! The options of a region, and many that create it at once.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use nearstate_store::{CreateOptions, Error, NumaPolicy, PageSize, PinMode, Region};

use crate::fixture::{
    Mount, TestFolder, arguments, child, clean, open, output, refused, region_path, skipped, small,
    spawn, succeeded, without_forks,
};

/// Creators at once, and rounds.
const CREATORS: usize = 12;
const ROUNDS: usize = 6;

/// Attempts of a creator, each of which waits a second for the others.
const TRIES_MAX: usize = 30;

#[test]
#[ignore = "other tests run it, many times at once"]
#[expect(clippy::print_stdout, reason = "the parent reads the outcome")]
fn one_creator() {
    let path = region_path();
    println!("ready");
    // The folder of the region appears when all are ready.
    while !path.parent().unwrap().is_dir() {
        std::hint::spin_loop();
    }
    if std::env::var_os("NEARSTATE_TEST_EXCLUSIVE").is_some() {
        match in_turn(|| Region::create(&path, &small())) {
            Ok(region) => {
                let (session, ns) = open(&region);
                session.put(ns, b"creator", &std::process::id().to_le_bytes()).unwrap();
                println!("created");
            }
            Err(Error::AlreadyExists { .. }) => println!("exists"),
            Err(error) => panic!("{error}"),
        }
        return;
    }
    let region = in_turn(|| Region::attach_or_create(&path, &small())).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, &std::process::id().to_le_bytes(), b"here").unwrap();
}

/// Tries again while another creator is stalled: on a busy machine it can wait for a processor for
/// longer than a caller waits for it.
fn in_turn<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..TRIES_MAX {
        match attempt() {
            Err(Error::Stalled { .. }) => {}
            outcome => return outcome,
        }
    }
    attempt()
}

/// Starts creators, lets them go at once, and returns the lines that they printed.
fn race(path: &Path, is_exclusive: bool) -> Vec<String> {
    let mut children: Vec<_> = (0..CREATORS)
        .map(|_| {
            let mut command = child("hostile::creation::one_creator", path);
            if is_exclusive {
                command.env("NEARSTATE_TEST_EXCLUSIVE", "1");
            }
            let mut child = spawn(command.stdout(Stdio::piped())).unwrap();
            let out = BufReader::new(child.stdout.take().unwrap());
            (child, out.lines())
        })
        .collect();
    for (_, lines) in &mut children {
        assert!(lines.any(|line| line.unwrap().contains("ready")), "a creator did not start");
    }
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let mut all = Vec::new();
    for (mut child, lines) in children {
        all.extend(lines.map(|line| line.unwrap()));
        assert!(child.wait().unwrap().success(), "{all:#?}");
    }
    all
}

#[test]
fn exactly_one_of_many_concurrent_creators_creates() {
    for round in 0..ROUNDS {
        let folder = TestFolder::new();
        let path = folder.dir().join(format!("{round}/region"));
        let lines = race(&path, true);
        let count = |word: &str| lines.iter().filter(|line| line.ends_with(word)).count();
        assert_eq!((count("created"), count("exists")), (1, CREATORS - 1), "{lines:#?}");
        clean(&path);
        let region = Region::attach(&path).unwrap();
        let (session, ns) = open(&region);
        assert_eq!(session.count(ns).unwrap(), 1);
    }
}

#[test]
fn concurrent_calls_of_attach_or_create_share_one_region() {
    for round in 0..ROUNDS {
        let folder = TestFolder::new();
        let path = folder.dir().join(format!("{round}/region"));
        race(&path, false);
        let region = Region::attach(&path).unwrap();
        let (session, ns) = open(&region);
        assert_eq!(session.count(ns).unwrap(), CREATORS as u64);
        drop((session, region));
        clean(&path);
    }
}

#[test]
fn an_existing_region_is_not_created_again() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, b"k", b"v").unwrap();
    refused(Region::create(&folder.path, &small()), &["exists already", "attach", "drop it"]);
    assert_eq!(session.get(ns, b"k").unwrap().unwrap().bytes(), b"v");
    refused(Region::remove(&folder.path), &["still attached", &std::process::id().to_string()]);
    drop((session, region));
    let _no_forks = without_forks();
    Region::remove(&folder.path).unwrap();
    assert!(!folder.path.exists());
}

#[test]
fn a_size_out_of_bounds_is_refused_with_the_bounds() {
    let folder = TestFolder::new();
    for bytes_max in [0, 1 << 20, u64::MAX >> 8] {
        let options = CreateOptions { bytes_max, ..CreateOptions::default() };
        refused(Region::create(&folder.path, &options), &["--max", "64MiB to 16TiB"]);
    }
}

#[test]
fn huge_pages_need_a_mount_of_huge_pages() {
    let folder = TestFolder::new();
    let huge = CreateOptions { page: PageSize::Huge2M, ..small() };
    refused(Region::create(&folder.path, &huge), &["hugetlbfs", "mount -t", "vm.nr_hugepages"]);
}

/// Pages for the tables and a little heap.
const HUGE_PAGES: u64 = 24;

#[test]
fn a_region_of_huge_pages_works_on_a_mount_of_them() {
    let count = Path::new("/proc/sys/vm/nr_hugepages");
    let mount = match Mount::new("hugetlbfs", "pagesize=2M") {
        Ok(mount) => mount,
        Err(reason) => return skipped(&reason),
    };
    let before = std::fs::read_to_string(count).unwrap().trim().parse::<u64>().unwrap();
    let set = |pages: u64| std::fs::write(count, pages.to_string());
    if set(before + HUGE_PAGES).is_err() {
        return skipped("vm.nr_hugepages cannot be set");
    }
    let now = std::fs::read_to_string(count).unwrap().trim().parse::<u64>().unwrap();
    if now < before + HUGE_PAGES {
        set(before).unwrap();
        return skipped("the kernel has no memory for huge pages");
    }
    let path = &mount.folder.path;
    let huge = CreateOptions { page: PageSize::Huge2M, ..small() };
    let region = Region::create(path, &huge).unwrap();
    let (session, ns) = open(&region);
    let mut count = 0_u64;
    // The mount has fewer pages than the region may grow to.
    let error = loop {
        match session.put(ns, &count.to_le_bytes(), &[3; 10_000]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
    assert!(count > 1000, "{count}");
    for key in 0..count {
        assert_eq!(session.get(ns, &key.to_le_bytes()).unwrap().unwrap().bytes(), [3; 10_000]);
    }
    assert_eq!(region.inspect().unwrap().page_bytes, 2 << 20);
    drop((session, region));
    clean(path);
    drop(mount);
    set(before).unwrap();
}

#[test]
fn memory_is_bound_to_existing_nodes() {
    let folder = TestFolder::new();
    let with = |numa| CreateOptions { numa, ..small() };
    for (name, numa) in [
        ("bound", NumaPolicy::Bind(vec![0])),
        ("interleaved", NumaPolicy::Interleave(vec![0])),
        ("preferred", NumaPolicy::Preferred(vec![0])),
    ] {
        let path = folder.dir().join(name);
        let region = match Region::create(&path, &with(numa)) {
            Ok(region) => region,
            Err(Error::System { errno: 38, .. }) => {
                return skipped("this kernel knows no NUMA nodes");
            }
            Err(error) => panic!("{error}"),
        };
        let (session, ns) = open(&region);
        session.put(ns, b"k", b"v").unwrap();
        // Read back: every page of the file is on the node.
        let pages = region.pages_by_node().unwrap();
        let on_disk = region.inspect().unwrap().bytes_on_disk / 4096;
        assert_eq!(pages.nodes.keys().copied().collect::<Vec<_>>(), [0], "{name}");
        assert!(pages.unknown == 0 && (1..=on_disk).contains(&pages.nodes[&0]), "{pages:?}");
        drop((session, region));
        clean(&path);
    }
    let empty = with(NumaPolicy::Bind(Vec::new()));
    refused(Region::create(&folder.path, &empty), &["names no node", "bind:0"]);
    let nowhere = with(NumaPolicy::Bind(vec![900]));
    refused(Region::create(&folder.path, &nowhere), &["900", "numactl --hardware"]);
    let beyond = with(NumaPolicy::Interleave(vec![5000]));
    refused(Region::create(&folder.path, &beyond), &["5000", "0 to 1023"]);
}

#[test]
fn a_populated_region_has_all_its_memory_at_once() {
    let folder = TestFolder::new();
    let options = CreateOptions { populate: true, ..small() };
    let region = Region::create(&folder.path, &options).unwrap();
    let length = std::fs::metadata(&folder.path).unwrap().len();
    assert!(region.inspect().unwrap().bytes_on_disk >= length);
    let sparse = TestFolder::new();
    let region = Region::create(&sparse.path, &small()).unwrap();
    assert!(region.inspect().unwrap().bytes_on_disk < length / 8);
}

#[test]
fn fenced_pins_work_with_concurrent_readers_and_a_writer() {
    let folder = TestFolder::new();
    let options = CreateOptions { pin: PinMode::Fenced, ..small() };
    let region = Region::create(&folder.path, &options).unwrap();
    assert!(region.inspect().unwrap().is_fenced);
    let (session, ns) = open(&region);
    session.put(ns, b"k", &[0; 300]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (session, ns) = open(&region);
                for _ in 0..20_000 {
                    let view = session.get(ns, b"k").unwrap().unwrap();
                    let first = view.bytes()[0];
                    assert!(view.bytes().iter().all(|byte| *byte == first), "a torn value");
                }
            });
        }
        for round in 0..20_000_u32 {
            session.put(ns, b"k", &[round.to_le_bytes()[0]; 300]).unwrap();
        }
    });
    drop((session, region));
    clean(&folder.path);
}

#[test]
#[ignore = "another test runs it with small limits"]
#[expect(clippy::print_stdout, reason = "the parent reads the outcome")]
fn one_creator_with_limits() {
    match Region::create(&region_path(), &small()) {
        Ok(_) => println!("created"),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn a_creation_for_which_the_limits_of_the_process_are_too_small_leaves_no_file() {
    let program = std::env::current_exe().unwrap();
    let run = |limit: &str| {
        let folder = TestFolder::new();
        let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(&program);
        command.args(arguments("hostile::creation::one_creator_with_limits"));
        let text = succeeded(&output(command.env("NEARSTATE_TEST_REGION", &folder.path)).unwrap());
        // Behind the commit point of the creation the region is whole.
        if folder.path.exists() {
            Region::attach(&folder.path).unwrap();
        }
        text
    };
    // Each number of descriptors fails in another step.
    let refused = (4..12).filter(|most| run(&format!("-n {most}")).contains("refused: ")).count();
    assert!(refused > 0, "four descriptors are enough to create a region");
    assert!(refused < 8, "eleven descriptors are not enough to create a region");
    let text = run("-f 1000");
    assert!(text.contains("refused: ") && text.contains("raise ulimit -f"), "{text}");
}

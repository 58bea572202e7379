//! Which processes hold up others, and which look alive: stopped creators, readers that lock bytes,
//! forked children, killed processes that took every slot or page.

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use nearstate_memory::{
        AttachOptions, CreateOptions, Member, Region, RemovalDecision, check, repair,
    };
    use nearstate_model::Error;
    use nearstate_model::limits::MEMBERS_MAX;

    use crate::fixture::{alone, ended, forked, has, place, put, remove, started};

    const CREATION_BYTE: i64 = 1 << 61;

    fn small() -> CreateOptions {
        CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() }
    }

    /// A child process that has done `work` and waits, with its process id.
    struct Waiting(i32);

    impl Waiting {
        fn after<T>(work: impl FnOnce() -> T) -> Self {
            let (mut read, write) = std::io::pipe().unwrap();
            let child = started(|| {
                let _kept = work();
                (&write).write_all(b"x").unwrap();
                loop {
                    std::thread::park();
                }
            });
            drop(write);
            read.read_exact(&mut [0]).unwrap();
            Self(child)
        }

        fn kill(self) {
            // SAFETY: a signal to our own child, which has not been waited for.
            assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
            ended(self.0);
        }
    }

    /// Locks a byte of a file for reading, or for reading and writing. False if it is locked.
    fn lock(file: &File, kind: i32, byte: i64) -> bool {
        let mut range = libc::flock {
            l_type: i16::try_from(kind).unwrap(),
            l_whence: 0,
            l_start: byte,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: the kernel reads our own structure.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut range) == 0 }
    }

    fn alive(region: &Region) -> usize {
        region.members().unwrap().iter().filter(|member| member.is_alive).count()
    }

    fn expect_clean(path: &Path) {
        let report = check::check(path, &mut |_, _| Ok(())).unwrap();
        assert!(report.is_clean(), "{report:#?}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_stopped_creator_is_named_after_a_second_and_holds_up_nobody_else() {
        let _alone = alone();
        let path = place("creator");
        let creator = Waiting::after(|| {
            let file = File::create_new(&path).unwrap();
            assert!(lock(&file, libc::F_WRLCK, CREATION_BYTE));
            file
        });
        let since = Instant::now();
        for attach in [Region::attach, |path: &Path| Region::attach_or_create(path, &small())] {
            let refused = attach(&path).unwrap_err();
            let is_named = matches!(&refused, Error::Stalled { holder }
                if holder.pid == creator.0.unsigned_abs());
            assert!(is_named, "{refused}");
        }
        assert!(since.elapsed() < Duration::from_secs(60));
        creator.kill();
        assert!(matches!(Region::attach(&path), Err(Error::NotARegion { .. })));
        put(&Region::attach_or_create(&path, &small()).unwrap(), b"k").unwrap();
        expect_clean(&path);
    }

    /// The process keeps where the buckets of a removed namespace were, and a repair frees them.
    #[test]
    fn a_repair_is_refused_while_a_process_without_a_session_is_attached() {
        let _alone = alone();
        let path = place("sessionless");
        let region = Region::create(&path, &small()).unwrap();
        let attached = Waiting::after(|| {
            let own = Region::attach(&path).unwrap();
            put(&own, b"k").unwrap();
            own
        });
        let member = region.member().unwrap();
        let number = member.namespace(b"ue", 1).unwrap().index();
        remove(&member, number, b"k");
        let removed = RemovalDecision::Remove { has_index: false };
        assert!(member.remove_namespace(number, |_| Ok(removed)).unwrap());
        drop((member, region));
        let repair = || {
            let options = AttachOptions::default();
            repair::repair_with(&path, &options, &mut |_, _| Ok(()))
        };
        let refused = repair().unwrap_err();
        let pid = attached.0.unsigned_abs();
        let is_named = matches!(&refused, Error::InUse { holder } if holder.pid == pid);
        assert!(is_named, "{refused}");
        attached.kill();
        repair().unwrap();
        expect_clean(&path);
    }

    #[test]
    fn a_complete_region_is_attached_whatever_bytes_a_reader_locks() {
        let _alone = alone();
        let path = place("reader");
        let region = Region::create(&path, &small()).unwrap();
        let dead = Waiting::after(|| {
            let region = Region::attach(&path).unwrap();
            let members: Vec<Member> = (0..3).map(|_| region.member().unwrap()).collect();
            put(&region, b"dead").unwrap();
            members
        });
        dead.kill();
        let reader = Waiting::after(|| {
            let file = OpenOptions::new().read(true).open(&path).unwrap();
            assert!(lock(&file, libc::F_RDLCK, CREATION_BYTE));
            // The liveness byte of every process but those that live, and of one to come.
            let locked =
                (1..0xffff).filter(|number| lock(&file, libc::F_RDLCK, (1 << 62) + number));
            assert_eq!(locked.count(), 0xffff - 1 - 1);
            file
        });
        assert_eq!(alive(&region), 0, "a reader revives the dead");
        put(&region, b"k").unwrap();
        assert_eq!(region.members().unwrap().len(), 0, "the dead were not recovered");
        // One number is left.
        put(&Region::attach(&path).unwrap(), b"other").unwrap();
        reader.kill();
        expect_clean(&path);
    }

    #[test]
    fn a_mode_that_lets_users_read_and_not_write_is_refused() {
        let path = place("mode");
        for mode in [0o644, 0o640, 0o604, 0o660 | 0o004, 0o466] {
            let refused = Region::create(&path, &CreateOptions { mode, ..small() }).unwrap_err();
            let is_named =
                matches!(&refused, Error::BadArgument { detail } if detail.contains("lock"));
            assert!(is_named, "{mode:o}: {refused}");
            assert!(!path.exists(), "a refused creation leaves a file");
        }
        for mode in [0o600, 0o660, 0o666, 0o606] {
            drop(Region::create(&path, &CreateOptions { mode, ..small() }).unwrap());
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn no_session_opens_in_a_region_that_was_dropped() {
        let _alone = alone();
        let path = place("dropped");
        let region = Region::create(&path, &small()).unwrap();
        let member = region.member().unwrap();
        assert!(matches!(Region::remove(&path), Err(Error::InUse { .. })));
        drop(member);
        put(&region, b"still open").unwrap();
        Region::remove(&path).unwrap();
        let refused = region.member().unwrap_err().to_string();
        assert!(refused.contains("dropped"), "{refused}");
        drop(Region::create(&path, &small()).unwrap());
        Region::remove(&path).unwrap();
    }

    fn fork() -> i32 {
        // SAFETY: the child only sleeps.
        unsafe { libc::fork() }
    }

    /// Forks a child without the C library, as a language runtime may.
    fn raw_fork() -> i32 {
        let flags = libc::SIGCHLD;
        // SAFETY: without CLONE_VM the child has memory of its own; it only sleeps.
        let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        i32::try_from(child).unwrap()
    }

    fn sleep_for_ever() -> ! {
        loop {
            // SAFETY: the call touches no memory.
            unsafe { libc::pause() };
        }
    }

    /// Attaches for each fork, at most.
    const ATTACHES_PER_FORK: u64 = 10;

    /// The processes of a group that live.
    fn living_in_group(group: i32) -> u64 {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = processes.filter_map(|process| {
            let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
            // The state and the ids of parent and group follow the name, which is in brackets.
            let (_, rest) = stat.rsplit_once(") ")?;
            let mut words = rest.split(' ');
            let is_living = !matches!(words.next(), Some("Z" | "X") | None);
            Some(is_living && words.nth(1)?.parse() == Ok(group))
        });
        stats.filter(|is_living| *is_living).count() as u64
    }

    /// One thread attaches, opens sessions and declares advisory locks, another forks children that
    /// live on, and the process is killed. How many of its sessions and locks look alive.
    fn look_alive_after_forks(path: &Path, attaches: u64) -> (usize, u64) {
        let parent = Waiting::after(|| {
            // SAFETY: this process and its children become a group, which the test can end.
            assert_eq!(unsafe { libc::setpgid(0, 0) }, 0);
            let (is_done, forks) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0.. {
                        if is_done.load(Ordering::Relaxed) {
                            break;
                        }
                        let child = if number % 2 == 0 { fork() } else { raw_fork() };
                        if child == 0 {
                            sleep_for_ever();
                        }
                        assert!(child > 0);
                        forks.fetch_add(1, Ordering::Relaxed);
                    }
                });
                for number in 0..attaches {
                    // The forks are made while it attaches, also on a busy machine.
                    while forks.load(Ordering::Relaxed) < number / ATTACHES_PER_FORK {
                        std::thread::yield_now();
                    }
                    let region = Region::attach(path).unwrap();
                    let member = region.member().unwrap();
                    std::mem::forget(member.lock_advisory(std::iter::once(number)).unwrap());
                    std::mem::forget(member);
                }
                is_done.store(true, Ordering::Relaxed);
            });
        });
        let group = parent.0;
        parent.kill();
        let children = living_in_group(group);
        assert!(children >= attaches / ATTACHES_PER_FORK - 1, "{children} children were forked");
        let region = Region::attach(path).unwrap();
        let sessions = alive(&region);
        let member = region.member().unwrap();
        let is_locked = |number: &u64| member.is_advisory_locked(*number).unwrap();
        let locks = (0..attaches).filter(is_locked).count() as u64;
        // SAFETY: a signal to the group of our own child.
        assert_eq!(unsafe { libc::kill(-group, libc::SIGKILL) }, 0);
        (sessions, locks)
    }

    #[test]
    fn no_child_of_a_killed_process_keeps_its_sessions_alive() {
        let _alone = alone();
        let path = place("forks");
        drop(Region::create(&path, &small()).unwrap());
        assert_eq!(look_alive_after_forks(&path, 300), (0, 0));
        assert_eq!(alive(&Region::attach(&path).unwrap()), 0);
        expect_clean(&path);
    }

    #[test]
    #[ignore = "takes a minute"]
    fn no_child_of_a_killed_process_keeps_one_of_ten_thousand_sessions_alive() {
        let _alone = alone();
        let path = place("many-forks");
        drop(Region::create(&path, &small()).unwrap());
        for _ in 0..50 {
            assert_eq!(look_alive_after_forks(&path, 200), (0, 0));
        }
        expect_clean(&path);
    }

    #[test]
    fn a_session_opens_when_every_slot_belongs_to_a_killed_process() {
        let _alone = alone();
        let path = place("slots-taken");
        let region = Region::create(&path, &small()).unwrap();
        let dead = Waiting::after(|| {
            let region = Region::attach(&path).unwrap();
            put(&region, b"kept").unwrap();
            let members: Vec<_> = (0..MEMBERS_MAX).map(|_| region.member().unwrap()).collect();
            let refused = region.member().unwrap_err();
            assert!(matches!(refused, Error::Full { .. }), "{refused}");
            members
        });
        assert!(matches!(region.member(), Err(Error::Full { .. })));
        dead.kill();
        // The check finds a slot although all are taken.
        let report = check::check(&path, &mut |_, _| Ok(())).unwrap();
        assert!(report.is_clean(), "{:#?}", report.faults);
        assert!(has(&region, b"kept").unwrap());
        assert_eq!(region.members().unwrap().len(), 0);
        expect_clean(&path);
    }

    /// Calls `work` with a folder on a file system of this size. False if this process may not
    /// mount one.
    fn on_file_system(bytes: u64, work: impl FnOnce(&Path)) -> bool {
        let folder = place("file-system");
        std::fs::create_dir(&folder).unwrap();
        let name = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        let kind = c"tmpfs".as_ptr();
        // SAFETY: each pointer is a string that ends with a NUL.
        let done = unsafe { libc::mount(kind, name.as_ptr(), kind, 0, options.as_ptr().cast()) };
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if done == 0 {
                work(&folder);
            }
        }));
        // SAFETY: as above.
        unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) };
        std::fs::remove_dir(&folder).unwrap();
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done == 0
    }

    /// Fills the file system of a folder.
    fn fill(folder: &Path) {
        let mut file = File::create_new(folder.join("filler")).unwrap();
        while file.write(&[1; 4096]).is_ok_and(|bytes| bytes > 0) {}
    }

    #[test]
    fn a_session_opens_on_a_full_file_system_when_a_process_was_killed() {
        let _alone = alone();
        let is_mounted = on_file_system(32 << 20, |folder| {
            let path = folder.join("region");
            let region = Region::create(&path, &small()).unwrap();
            let dead = Waiting::after(|| {
                let region = Region::attach(&path).unwrap();
                put(&region, b"kept").unwrap();
                let kept: Vec<_> = (0..2).map(|_| region.member().unwrap()).collect();
                (region, kept)
            });
            fill(folder);
            assert!(matches!(region.member(), Err(Error::Full { .. })));
            dead.kill();
            assert!(has(&region, b"kept").unwrap());
            drop(region);
            expect_clean(&path);
        });
        if !is_mounted {
            skipped("this process may not mount a file system");
        }
    }

    #[test]
    fn a_new_region_is_checked_and_dropped_on_a_full_file_system() {
        let _alone = alone();
        let is_mounted = on_file_system(4 << 20, |folder| {
            let path = folder.join("region");
            let region = Region::create(&path, &small()).unwrap();
            fill(folder);
            drop(region.member().unwrap());
            let report = check::check(&path, &mut |_, _| Ok(())).unwrap();
            assert!(report.is_clean(), "{report:#?}");
            Region::remove(&path).unwrap();
        });
        if !is_mounted {
            skipped("this process may not mount a file system");
        }
    }

    /// A proof that did not run must not look like one that passed.
    fn skipped(reason: &str) {
        let may_skip = std::env::var_os("NEARSTATE_MAY_SKIP").is_some();
        assert!(may_skip, "not tested: {reason}");
        writeln!(std::io::stderr(), "skipped: {reason}").unwrap();
    }

    /// A user that owns files here and is neither root nor this user.
    const OTHER: u32 = 65_534;

    #[test]
    fn a_region_or_a_link_of_another_user_is_refused_with_its_owner() {
        // SAFETY: the call touches no memory.
        if unsafe { libc::geteuid() } != 0 {
            skipped("only root can give files to other users");
            return;
        }
        let _alone = alone();
        let path = place("owner");
        let any = AttachOptions { any_owner: true };
        let is_refused = |result: Result<(), Error>| {
            let is_named = matches!(&result, Err(Error::BadArgument { detail })
                if detail.contains("65534"));
            assert!(is_named, "{result:?}");
        };
        let open = CreateOptions { mode: 0o666, ..small() };
        put(&Region::create(&path, &open).unwrap(), b"k").unwrap();
        // Root's file is accepted by every user.
        assert_eq!(
            forked(|| as_user(OTHER) && has(&Region::attach(&path).unwrap(), b"k").unwrap()),
            0
        );
        std::os::unix::fs::chown(&path, Some(OTHER), None).unwrap();
        is_refused(Region::attach(&path).map(drop));
        is_refused(Region::attach_or_create(&path, &small()).map(drop));
        is_refused(Region::create(&path, &small()).map(drop));
        is_refused(Region::remove(&path).map(drop));
        is_refused(check::check(&path, &mut |_, _| Ok(())).map(drop));
        assert!(has(&Region::attach_with(&path, &any).unwrap(), b"k").unwrap());
        // Its owner attaches, and a third user does not.
        assert_eq!(forked(|| as_user(OTHER) && Region::attach(&path).is_ok()), 0);
        assert_eq!(forked(|| as_user(OTHER - 1) && Region::attach(&path).is_err()), 0);
        Region::remove_with(&path, &any).unwrap();
        // A link to a place where nothing is: no file is created there.
        let target = path.with_extension("target");
        std::os::unix::fs::symlink(&target, &path).unwrap();
        std::os::unix::fs::lchown(&path, Some(OTHER), None).unwrap();
        is_refused(Region::attach_or_create(&path, &small()).map(drop));
        assert!(!target.exists(), "a file was created where another user wanted it");
        drop(
            Region::attach_or_create(&path, &CreateOptions { any_owner: true, ..small() }).unwrap(),
        );
        is_refused(Region::attach(&path).map(drop));
        let removed = Region::remove_with(&path, &any).unwrap();
        assert_eq!((removed.file, removed.links), (target, vec![path]));
        // The owner of a directory can replace the files in it.
        let directory = place("owner-directory");
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::chown(&directory, Some(OTHER), None).unwrap();
        let path = directory.join("region");
        is_refused(Region::attach_or_create(&path, &small()).map(drop));
        assert!(!path.exists(), "a file was created in the directory of another user");
        drop(Region::create(&path, &CreateOptions { any_owner: true, ..small() }).unwrap());
        is_refused(Region::attach(&path).map(drop));
        is_refused(Region::remove(&path).map(drop));
        assert_eq!(Region::remove_with(&path, &any).unwrap().file, path);
        std::fs::remove_dir(&directory).unwrap();
    }

    /// Makes this process one of another user.
    fn as_user(user: u32) -> bool {
        // SAFETY: the call touches no memory.
        unsafe { libc::setuid(user) == 0 }
    }
}

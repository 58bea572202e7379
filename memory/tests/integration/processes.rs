//! A region in a process that forks, that closes every descriptor, or that gets a `SIGBUS` of
//! another mapping. One test, because a fork copies one thread only.

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::path::Path;

    use nearstate_memory::{CellHeader, CellKind, CreateOptions, Region, WriteDecision, check};
    use nearstate_model::Error;

    use crate::fixture::{alone, ended, forked, has, place, put, started};

    /// A forked child gets `Forked`, can attach again, and does not affect the parent when it ends.
    fn a_forked_child_attaches_anew(path: &Path) {
        let region = Region::create(path, &CreateOptions::default()).unwrap();
        put(&region, b"parent").unwrap();
        let member = region.member().unwrap();
        let mut ending = Some(region.member().unwrap());
        let table = member.namespace(b"ue", 1).unwrap();
        // The parent has begun a write: its cell is pending.
        let hash = nearstate_memory::hash(region.seed(), b"drafted");
        let (kind, body, key) = (CellKind::Record, 7, 7);
        let head =
            CellHeader { kind, flags: 0, namespace: table.index(), body, key, children: 0, hash };
        let allocate = || member.operation(|| member.allocate_cell(&head));
        let at = allocate().unwrap();
        let status = forked(|| {
            let refused = [
                // A write after the fork of a record that was read before it begins here.
                allocate().map(drop),
                member.free_pending(),
                region.member().map(drop),
                member.pin().map(drop),
                member.check_usable(),
                member.namespace(b"other", 1).map(drop),
                member.write_record(table, 1, b"k", None, |_| Ok(WriteDecision::Keep)).map(drop),
            ];
            let is_refused = refused.iter().all(|result| *result == Err(Error::Forked));
            assert!(Error::Forked.to_string().contains("attach to the region again"));
            // The destructors of inherited objects must not change the slot of the parent.
            drop(ending.take());
            let own = Region::attach(path).unwrap();
            put(&own, b"child").unwrap();
            is_refused && has(&own, b"parent").unwrap()
        });
        assert_eq!(status, 0, "the child");
        // Only the child's copies of the sessions have ended.
        let alive = region.members().unwrap().iter().filter(|member| member.is_alive).count();
        assert_eq!(alive, 2);
        assert!(has(&region, b"child").unwrap());
        member.write_body(at, 0, b"drafted").unwrap();
        let draft = nearstate_memory::PendingCell { at, body_crc: crc32fast::hash(b"drafted") };
        member
            .write_record(table, hash, b"drafted", Some(draft), |_| Ok(WriteDecision::Publish))
            .unwrap();
        assert!(has(&region, b"drafted").unwrap());
        put(&region, b"parent again").unwrap();
    }

    /// A daemon closes every descriptor after it attached. Its sessions continue, and count as
    /// alive.
    fn a_daemon_that_closes_all_descriptors_goes_on(path: &Path) {
        let status = forked(|| {
            let region = Region::attach(path).unwrap();
            let member = region.member().unwrap();
            close_all();
            // Other files have the numbers now. None may be taken for the file of the region.
            let others: Vec<File> = (0..8).map(|_| File::open("/dev/null").unwrap()).collect();
            assert!(others.iter().any(|file| file.as_raw_fd() <= 5));
            for number in 0..5000_u32 {
                put(&region, &number.to_le_bytes()).unwrap();
            }
            // Another process sees them as alive.
            let status = forked(|| {
                let region = Region::attach(path).unwrap();
                let member = region.member().unwrap();
                let alive = region.members().unwrap().iter().filter(|m| m.is_alive).count();
                let is_refused = matches!(Region::remove(path), Err(Error::InUse { .. }));
                drop(member);
                alive == 2 && is_refused && has(&region, b"parent").unwrap()
            });
            drop((member, others));
            // No record is lost, and no slot stays in use.
            status == 0 && has(&region, &4999_u32.to_le_bytes()).unwrap()
        });
        assert_eq!(status, 0, "the daemon");
    }

    /// Closes every descriptor but the standard ones.
    fn close_all() {
        // SAFETY: this process uses none of the descriptors any more.
        unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    }

    /// Daemons whose descriptors are closed still exclude each other when they attach: no two
    /// sessions get one slot.
    fn daemons_do_not_share_slots(path: &Path) {
        const DAEMONS: u32 = 3;
        const SESSIONS: usize = 400;
        // Bounded, because a daemon that died never writes its record.
        let all_are = |region: &Region, what: &str| {
            let is_written = |n| has(region, format!("{what} {n}").as_bytes()).unwrap();
            (0..1_000_000).any(|_| {
                std::thread::yield_now();
                (0..DAEMONS).all(is_written)
            })
        };
        let daemon = |number: u32| {
            let region = Region::attach(path).unwrap();
            close_all();
            put(&region, format!("ready {number}").as_bytes()).unwrap();
            let is_begun = all_are(&region, "ready");
            let members: Vec<_> = (0..SESSIONS).map(|_| region.member().unwrap()).collect();
            let mut is_alone = true;
            for member in &members {
                let key = format!("slot {}", member.index());
                is_alone &= !has(&region, key.as_bytes()).unwrap();
                put(&region, key.as_bytes()).unwrap();
            }
            // Each daemon waits for the others: a slot that is free again can have another owner.
            put(&region, format!("done {number}").as_bytes()).unwrap();
            is_begun && all_are(&region, "done") && is_alone
        };
        let children: Vec<i32> = (0..DAEMONS).map(|n| started(|| daemon(n))).collect();
        let status: Vec<i32> = children.into_iter().map(ended).collect();
        assert_eq!(status, [0; DAEMONS as usize], "two sessions in one slot");
    }

    /// An advisory lock ends when it is dropped or when its process is killed. A forked child does
    /// not hold it.
    fn an_advisory_lock_ends_with_its_process(path: &Path) {
        let region = Region::attach(path).unwrap();
        let member = region.member().unwrap();
        let is_locked = |number| member.is_advisory_locked(number).unwrap();
        let lock = member.lock_advisory([7, 9, 7].into_iter()).unwrap();
        assert_eq!([7, 8, 9].map(is_locked), [true, false, true]);
        let second = region.member().unwrap().lock_advisory(std::iter::once(9)).unwrap();
        // The child stays alive. It does not hold the inherited lock, and dropping it has no
        // effect.
        let mut kept = Some(lock);
        let child = started(|| {
            drop(kept.take());
            let made = member.lock_advisory(std::iter::once(1));
            assert!(matches!(made, Err(Error::Forked)));
            loop {
                std::thread::park();
            }
        });
        drop(kept.take());
        assert_eq!([7, 9].map(is_locked), [false, true], "the child does not have it");
        drop(second);
        assert!(!is_locked(9));
        // SAFETY: a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        ended(child);
        // A process that is killed while it holds a lock.
        let (mut read, write) = std::io::pipe().unwrap();
        let child = started(|| {
            let region = Region::attach(path).unwrap();
            let made = region.member().unwrap().lock_advisory(std::iter::once(3)).unwrap();
            (&write).write_all(b"x").unwrap();
            loop {
                std::thread::park();
                assert!(format!("{made:?}").len() > 1);
            }
        });
        read.read_exact(&mut [0]).unwrap();
        assert!(is_locked(3));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        ended(child);
        assert!(!is_locked(3));
    }

    /// A child detects the fork also if the file was truncated before the fork, or if the child
    /// found the truncation. Otherwise its destructors would unmap memory that is not the lock's
    /// page.
    fn a_child_of_a_damaged_region_is_a_child(path: &Path) {
        let other = path.with_extension("damaged");
        drop(Region::create(&other, &CreateOptions::default()).unwrap());
        for is_before in [true, false] {
            let cut = other.with_extension(if is_before { "before" } else { "after" });
            std::fs::copy(&other, &cut).unwrap();
            let region = Region::attach(&cut).unwrap();
            let member = region.member().unwrap();
            let lock = member.lock_advisory(std::iter::once(7)).unwrap();
            let mut kept = Some(lock);
            let pages = pages_of(&cut);
            assert_eq!(pages.len(), 2, "the pages of the liveness lock and of the advisory lock");
            let truncate =
                || OpenOptions::new().write(true).open(&cut).unwrap().set_len(0).unwrap();
            // Detects the truncation.
            let touch = || assert!(put(&region, b"k").is_err());
            if is_before {
                truncate();
                touch();
                assert!(matches!(member.check_not_truncated(), Err(Error::Damaged { .. })));
            }
            let child = started(|| {
                if !is_before {
                    truncate();
                    touch();
                }
                let mine: Vec<*mut u8> = pages.iter().map(|at| own_page(*at)).collect();
                drop(kept.take());
                assert!(
                    mine.iter().all(|page| is_mapped(*page)),
                    "a page of the child was unmapped"
                );
                matches!(member.lock_advisory(std::iter::once(1)), Err(Error::Forked))
            });
            assert_eq!(ended(child), 0);
            drop((kept, member, region));
            std::fs::remove_file(&cut).unwrap();
        }
        std::fs::remove_file(&other).unwrap();
    }

    /// A forked child does not have the page of the liveness lock. Dropping the inherited region
    /// there must not unmap other memory at the same address.
    fn a_child_keeps_its_memory_when_it_drops_an_inherited_region(path: &Path) {
        let mut kept = Some(Region::attach(path).unwrap());
        let pages = pages_of(path);
        assert_eq!(pages.len(), 1, "the page of the liveness lock");
        let child = started(|| {
            let mine: Vec<*mut u8> = pages.iter().map(|at| own_page(*at)).collect();
            drop(kept.take());
            mine.iter().all(|page| is_mapped(*page))
        });
        assert_eq!(ended(child), 0);
    }

    /// An advisory lock that fails for lack of descriptors or mappings is not held, and can be
    /// retried.
    fn a_failed_advisory_lock_is_not_held(path: &Path) {
        let region = Region::attach(path).unwrap();
        let member = region.member().unwrap();
        let is_locked = || member.is_advisory_locked(5).unwrap();
        for (which, hint) in [(libc::RLIMIT_NOFILE, "ulimit -n"), (libc::RLIMIT_AS, "ulimit -v")] {
            let (mut read, write) = std::io::pipe().unwrap();
            let (wait, mut go_on) = std::io::pipe().unwrap();
            let child = started(|| {
                let region = Region::attach(path).unwrap();
                let member = region.member().unwrap();
                let before = limit(which, 1);
                let refused = member.lock_advisory(std::iter::once(5)).unwrap_err();
                assert!(refused.to_string().contains(hint), "{refused}");
                limit(which, before);
                (&write).write_all(b"x").unwrap();
                (&wait).read_exact(&mut [0]).unwrap();
                member.lock_advisory(std::iter::once(5)).is_ok()
            });
            read.read_exact(&mut [0]).unwrap();
            assert!(!is_locked(), "{hint}");
            go_on.write_all(b"x").unwrap();
            assert_eq!(ended(child), 0);
        }
    }

    /// Sets a limit of this process. Returns the previous one.
    fn limit(which: libc::__rlimit_resource_t, most: u64) -> u64 {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel fills `limits`, which outlives the call.
        assert_eq!(unsafe { libc::getrlimit(which, &raw mut limits) }, 0);
        let before = std::mem::replace(&mut limits.rlim_cur, most);
        // SAFETY: the kernel reads `limits`, which outlives the call.
        assert_eq!(unsafe { libc::setrlimit(which, &raw const limits) }, 0);
        before
    }

    /// The addresses of single pages of a file in this process: those that hold its locks.
    fn pages_of(path: &Path) -> Vec<usize> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let lines = maps.lines().filter(|line| line.ends_with(path.to_str().unwrap()));
        let ends = lines.map(|line| line.split_once(' ').unwrap().0.split_once('-').unwrap());
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let ends = ends.map(|(from, to)| (number(from), number(to)));
        ends.filter(|(from, to)| to - from == 4096).map(|(from, _)| from).collect()
    }

    /// Maps memory of a child at an address at which its parent has another mapping.
    fn own_page(at: usize) -> *mut u8 {
        // SAFETY: a new mapping at a free address.
        let page = unsafe {
            libc::mmap(
                std::ptr::without_provenance_mut(at),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(page.addr(), at, "the child does not have the parent's page");
        page.cast()
    }

    /// True if a page is mapped: the kernel rejects advice about other pages.
    fn is_mapped(page: *mut u8) -> bool {
        // SAFETY: advice that changes no byte.
        unsafe { libc::madvise(page.cast(), 4096, libc::MADV_NORMAL) == 0 }
    }

    /// A fault in another mapping ends the process.
    fn a_foreign_sigbus_is_not_swallowed(path: &Path) {
        let other = path.with_extension("other");
        let status = forked(|| {
            let region = Region::attach(path).unwrap();
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&other)
                .unwrap();
            file.set_len(4096).unwrap();
            // SAFETY: a new mapping at an address that the kernel chooses.
            let page = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    4096,
                    libc::PROT_READ,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    0,
                )
            };
            assert_ne!(page, libc::MAP_FAILED);
            file.set_len(0).unwrap();
            // SAFETY: the page is mapped. The test expects that the load raises SIGBUS.
            let byte = unsafe { page.cast::<u8>().read_volatile() };
            drop(region);
            byte == 0
        });
        std::fs::remove_file(&other).unwrap();
        assert!(libc::WIFSIGNALED(status), "status {status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGBUS);
    }

    #[test]
    fn forks_daemons_and_foreign_faults() {
        let _alone = alone();
        let path = place("processes");
        a_forked_child_attaches_anew(&path);
        a_daemon_that_closes_all_descriptors_goes_on(&path);
        let slots = place("slots");
        drop(Region::create(&slots, &CreateOptions::default()).unwrap());
        daemons_do_not_share_slots(&slots);
        std::fs::remove_file(&slots).unwrap();
        an_advisory_lock_ends_with_its_process(&path);
        a_failed_advisory_lock_is_not_held(&path);
        a_child_of_a_damaged_region_is_a_child(&path);
        a_child_keeps_its_memory_when_it_drops_an_inherited_region(&path);
        a_foreign_sigbus_is_not_swallowed(&path);
        let report = check::check(&path, &mut |_, _| Ok(())).unwrap();
        assert!(report.is_clean(), "{report:#?}");
        assert_eq!(report.records, 5004);
        std::fs::remove_file(&path).unwrap();
    }
}

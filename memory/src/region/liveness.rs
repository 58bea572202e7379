//! Process identity for messages, and the lock that tells other processes that this one is alive.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nearstate_model::{Error, Holder, Result, invariant};

use crate::crash::crash_point;
use crate::region::lock_page::LockPage;
use crate::region::member_state::{NO_PROCESS, NUMBERS_MAX};
use crate::system::{self, LockMode, failure, lock_byte};

/// First of the bytes of the file that processes keep locked while they are alive.
const LIVENESS_BYTE: u64 = 1 << 62;

/// First of the bytes that an attaching process locks for a moment, with its number, to compare two
/// descriptors.
const PROBE_BYTE: u64 = 1 << 59;

/// Spreads the first number that a process tries, so that one try is usually enough.
const FIRST_NUMBER_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () = assert!(LIVENESS_BYTE + NUMBERS_MAX < i64::MAX as u64, "the kernel locks such bytes");
const _: () = assert!(PROBE_BYTE + NUMBERS_MAX < 1 << 60, "the advisory locks come next");

/// Process id and name for messages. A process that is stopped in a commit is found by its id,
/// after a check ([`process_check`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: u32,
    pub(crate) name: [u8; 16],
    /// Its PID namespace, in which the id is valid. 0: not known. Not read from a slot.
    pub(crate) namespace: u64,
}

/// What a session stores so that another process can tell whether a process id of its slot is one
/// of that process's own PID namespace. Never 0. `state`: the slot's state word.
pub(crate) fn process_check(state: u64, pid: u32, namespace: u64) -> u64 {
    let words = [crate::region::member_state::owner(state), u64::from(pid), namespace];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes) | 1
}

impl ProcessIdentity {
    /// This process.
    pub(crate) fn current() -> Self {
        let mut name = [0; 16];
        if let Ok(text) = fs::read("/proc/self/comm") {
            for (to, from) in name.iter_mut().zip(text.iter().filter(|b| **b != b'\n')) {
                *to = *from;
            }
        }
        // The link of a namespace names its inode, which is unique on the machine while it exists.
        let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
        Self { pid: std::process::id(), name, namespace }
    }

    /// The command name.
    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self.name.iter().copied().take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A lock on one byte of the file that only a mapping holds: the kernel releases it when the memory
/// of this process ends (`spec/region.md`, section 7).
#[derive(Debug)]
pub(crate) struct LivenessLock {
    lock_page: LockPage,
    number: u64,
}

/// The file that is about to be attached, and how to open it once more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedFile<'f> {
    pub(crate) path: &'f Path,
    pub(crate) file: &'f File,
    /// The same file, received as a second descriptor. `None`: it is opened by its path.
    pub(crate) received: Option<&'f File>,
    /// Bytes of a page.
    pub(crate) page: u64,
}

impl LivenessLock {
    /// Locks a byte whose number no slot names. `is_named` reads the member table.
    ///
    /// The table is read *after* the byte is locked. Only a process that holds a number stores it
    /// into a slot, so no slot can name the number after that, except for this process.
    pub(crate) fn acquire(
        target: LockedFile<'_>,
        is_named: impl Fn(u64) -> Result<bool> + Sync,
    ) -> Result<Self> {
        let key = file_key(target.file)?;
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let lock = |own: &File| lock_number(own, &is_named);
        let (lock_page, number) = match target.received {
            None => {
                let open_same = || {
                    let own = open(target.path).map_err(|error| reopen_failure(&target, &error))?;
                    if file_key(&own)? == key { Ok(own) } else { Err(replaced(target.path)) }
                };
                LockPage::new(target.page, open_same, lock)?
            }
            Some(own) => {
                if file_key(own)? != key {
                    return Err(replaced(target.path));
                }
                // A new open file, of which no other process can have a descriptor. A process
                // that may not open the file, or has no /proc, uses the one that it received.
                let name = PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd()));
                match open(&name).and_then(|file| file.metadata()) {
                    Ok(found) if (found.dev(), found.ino()) == key => LockPage::new(
                        target.page,
                        || open(&name).map_err(|error| reopen_failure(&target, &error)),
                        lock,
                    )?,
                    _ => LockPage::of_received(own, target.page, lock)?,
                }
            }
        };
        invariant!((1..=NUMBERS_MAX).contains(&number), "a process has the number {number}");
        let lock = Self { lock_page, number };
        if let Some(own) = target.received {
            check_distinct(own, &target, number)?;
        }
        Ok(lock)
    }

    /// Forgets the mapping, in a forked child.
    pub(crate) const fn forget(&mut self) {
        self.lock_page.forget();
    }

    /// The number of its byte, from 1.
    pub(crate) const fn number(&self) -> u64 {
        debug_assert!(self.number != 0, "locks are numbered from 1");
        self.number
    }
}

/// Locks the first free byte, from a number on that differs from process to process, that no slot
/// names.
fn lock_number(own: &File, is_named: &impl Fn(u64) -> Result<bool>) -> Result<u64> {
    let first = u64::from(std::process::id()).wrapping_mul(FIRST_NUMBER_STEP);
    for number in (0..NUMBERS_MAX).map(|step| 1 + first.wrapping_add(step) % NUMBERS_MAX) {
        if !lock_byte(own.as_fd(), LIVENESS_BYTE + number, LockMode::Try)? {
            continue;
        }
        crash_point!("attach.numbered");
        if !is_named(number)? {
            return Ok(number);
        }
        lock_byte(own.as_fd(), LIVENESS_BYTE + number, LockMode::Release)?;
    }
    Err(Error::Full { detail: format!("{NUMBERS_MAX} processes are attached"), heap: None })
}

/// Refuses two received descriptors of one open file: a lock through it would last as long as the
/// descriptor, in every process that has it. Locks of one open file do not conflict.
fn check_distinct(own: &File, target: &LockedFile<'_>, number: u64) -> Result<()> {
    let byte = PROBE_BYTE + number;
    lock_byte(own.as_fd(), byte, LockMode::Try)?;
    let is_distinct = system::is_byte_write_locked(target.file.as_fd(), byte)?;
    lock_byte(own.as_fd(), byte, LockMode::Release)?;
    if is_distinct {
        return Ok(());
    }
    Err(Error::BadArgument {
        detail: format!(
            "{}: its two descriptors are one open file; open it twice",
            target.path.display()
        ),
    })
}

fn replaced(path: &Path) -> Error {
    Error::NotARegion {
        path: path.to_owned(),
        detail: "replaced while it was being attached: try again".to_owned(),
    }
}

fn reopen_failure(target: &LockedFile<'_>, error: &std::io::Error) -> Error {
    Error::System {
        detail: format!("{}: cannot open the region a second time", target.path.display()),
        errno: error.raw_os_error().unwrap_or(0),
    }
}

/// True if the process with this number is alive. Only write locks count: a process that may only
/// read the file cannot take one.
pub(crate) fn is_process_alive(file: &File, number: u64) -> Result<bool> {
    if number == NO_PROCESS {
        return Ok(false);
    }
    system::is_byte_write_locked(file.as_fd(), LIVENESS_BYTE + number)
}

/// Checks that no other process has the region attached than the one with this number.
///
/// # Errors
/// `InUse` names such a process, `System`.
pub(crate) fn check_alone(file: &File, number: u64) -> Result<()> {
    debug_assert!((1..=NUMBERS_MAX).contains(&number), "a process has the number {number}");
    let own = LIVENESS_BYTE + number;
    for others in [LIVENESS_BYTE..own, own + 1..LIVENESS_BYTE + NUMBERS_MAX + 1] {
        if system::is_any_byte_write_locked(file.as_fd(), others)? {
            return Err(Error::InUse { holder: mapping_process(file)? });
        }
    }
    Ok(())
}

/// A process that maps a file, as far as this process may see it. A process without a session has
/// stored its id nowhere, and the kernel does not tell which process holds a lock of an open file.
fn mapping_process(file: &File) -> Result<Holder> {
    let (device, inode) = file_key(file)?;
    let (major, minor) = (libc::major(device), libc::minor(device));
    let wanted = format!(" {major:02x}:{minor:02x} {inode} ");
    for folder in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = folder.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.filter(|pid| *pid != std::process::id()) else { continue };
        let maps = fs::read_to_string(folder.path().join("maps")).unwrap_or_default();
        if maps.lines().any(|line| line.contains(&wanted)) {
            let name = fs::read_to_string(folder.path().join("comm")).unwrap_or_default();
            return Ok(Holder { pid, name: name.trim_end().to_owned() });
        }
    }
    Ok(Holder { pid: 0, name: "not visible: it has the file mapped, see /proc/locks".to_owned() })
}

/// Device and inode of a file.
pub(crate) fn file_key(file: &File) -> Result<(u64, u64)> {
    let data = file.metadata().map_err(|_| failure("cannot stat the region's file"))?;
    Ok((data.dev(), data.ino()))
}

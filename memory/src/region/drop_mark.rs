//! The drop mark: a word of the superblock that closes a region for new sessions while a process
//! drops it, and forever after its file was removed.
//!
//! ```text
//! dropping process                         opening session
//! D1  mark: 0 -> me     (CAS)              S1  claim a slot (CAS)
//! D2  fence                                S2  fence
//! D3  a slot of a living process?          S3  mark?
//!     yes: mark := 0, InUse                    0: open
//!     no: remove the file, mark := dropped     else give the slot back (CAS), and then
//!                                              dropped: refuse
//!                                              a process: wait until it has decided, from S1
//! ```
//!
//! D2 and S2 pair: D3 sees the slot, or S3 sees the mark. So a session never opens in a file that
//! was removed while the session was opened. A repair holds the mark too, and makes each slot free
//! before it removes the mark. So a session changes nothing else of its slot before S3, opens only
//! if the slot still has its word behind S3, and gives it back only then.
//!
//! A process that dies between D1 and its decision leaves a mark that names no living process; the
//! next process that finds it takes it away, or completes it if the file was removed.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nearstate_model::{Error, Holder, Result, invariant};

use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::crash::crash_point;
use crate::layout::{Corruption, DROPPED, SUPER_DROP, seal, unseal};
use crate::region::file::Shared;
use crate::region::liveness::is_process_alive;

/// How long a process waits for another one that drops the region.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How often a waiting process looks.
const POLL_EVERY: Duration = Duration::from_micros(200);

/// The mark of a process, sealed: `pid:32 | number:16 | check:16`.
const fn mark_of(pid: u32, number: u64) -> u64 {
    debug_assert!(number >> 16 == 0, "the number of a process has 16 bits");
    seal((pid as u64) << 16 | number)
}

/// The process id and the liveness number of a mark.
fn process_of(mark: u64) -> Result<(u32, u64), Corruption> {
    let value = unseal(mark, "the drop mark has a flipped bit")?;
    Ok(((value >> 16) as u32, value & 0xffff))
}

/// D1 and D2: true if the mark was 0.
pub(crate) fn close(mark: &AtomicU64, mine: u64) -> bool {
    let is_mine = mark.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if !mutant("drop-no-fence") {
        fence(Ordering::SeqCst);
    }
    is_mine
}

/// S2 and S3: the mark, after the caller claimed a slot.
pub(crate) fn look(mark: &AtomicU64) -> u64 {
    if !mutant("open-no-fence") {
        fence(Ordering::SeqCst);
    }
    mark.load(Ordering::Acquire)
}

impl Shared {
    /// S2 and S3: true if the region is closed, or a process is about to decide whether it is.
    pub(crate) fn is_closed(&self) -> Result<bool, Corruption> {
        Ok(look(self.map.word(SUPER_DROP)?) != 0)
    }

    /// Waits until no process is dropping the region. The caller waits since `since`.
    ///
    /// # Errors
    /// `NotARegion` if it was dropped, `Stalled` if the dropping process does not decide within a
    /// second.
    pub(crate) fn wait_until_kept(&self, since: Instant) -> Result<()> {
        let word = self.map.word(SUPER_DROP)?;
        loop {
            let seen = look(word);
            if seen == 0 {
                return Ok(());
            }
            if seen == DROPPED {
                return Err(self.dropped());
            }
            let (pid, number) = process_of(seen)?;
            if self.is_alive(number)? {
                if since.elapsed() > WAIT_MAX {
                    let name = "drops or repairs the region".to_owned();
                    return Err(Error::Stalled { holder: Holder { pid, name } });
                }
                std::thread::sleep(POLL_EVERY);
                continue;
            }
            let links = self.map.with_file(|file| Ok(file.metadata().map_or(1, |m| m.nlink())))?;
            let decided = if links == 0 { DROPPED } else { 0 };
            let _ = word.compare_exchange(seen, decided, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Closes the region for new sessions, calls `is_unused`, and removes the file by `remove` if
    /// that returns without an error.
    pub(crate) fn close_and_drop(
        &self,
        is_unused: impl FnOnce() -> Result<()>,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let word = self.map.word(SUPER_DROP)?;
        let mine = mark_of(self.identity.pid, self.liveness.number());
        let since = Instant::now();
        loop {
            self.wait_until_kept(since)?;
            if close(word, mine) {
                break;
            }
        }
        invariant!(mine != DROPPED && mine != 0, "the mark of a process says that it is dropped");
        crash_point!("drop.marked");
        let removed = is_unused().and_then(|()| remove());
        if removed.is_ok() {
            crash_point!("drop.removed");
        }
        word.store(if removed.is_ok() { DROPPED } else { 0 }, Ordering::Release);
        removed
    }

    /// Calls `work` while no session opens, if `is_unused` returns without an error.
    pub(crate) fn while_closed<T>(
        &self,
        is_unused: impl FnOnce() -> Result<()>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mark = self.map.word(SUPER_DROP)?;
        let mine = mark_of(self.identity.pid, self.liveness.number());
        let since = Instant::now();
        loop {
            self.wait_until_kept(since)?;
            if close(mark, mine) {
                break;
            }
        }
        let done = is_unused().and_then(|()| work());
        mark.store(0, Ordering::Release);
        done
    }

    /// No process takes a number that the mark names, so it is not that of a later process.
    fn is_alive(&self, number: u64) -> Result<bool> {
        if number == self.liveness.number() {
            return Ok(true);
        }
        self.map.with_file(|file| is_process_alive(file, number))
    }

    fn dropped(&self) -> Error {
        Error::NotARegion {
            path: self.map.path().to_owned(),
            detail: "dropped while it was attached: create it again".to_owned(),
        }
    }
}

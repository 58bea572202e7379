//! The mapped bytes of a region. Every access is checked against the length.

use std::fs::{File, OpenOptions};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::layout::{
    BITMAP_BYTES, CHUNK_BYTES, CHUNK_NEW_WITH_PAGES, Corruption, HEAP, LINE, bitmaps_at,
    chunk_words_at, ordinary_chunks, region_bytes,
};
use crate::numa_policy::{self, NumaPolicy, PagesByNode};
use crate::region::held_file::HeldFile;
use crate::region::liveness;
use crate::region::page_fault::{Guard, USABLE};
use crate::region::prefetch::{hint, hint_to_write};
use crate::region::reopened_file::{RegionFile, ReopenSource};
use crate::system;

/// Bytes of a base page.
const PAGE_SMALL: u64 = 4096;

const OUTSIDE: Corruption = Corruption("an offset points outside the region");
const OVERFULL: Corruption = Corruption("the parts of a record are longer than its cell");

/// A file that is mapped as a whole and shared.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    bytes: u64,
    /// `bytes / 8`.
    words: u64,
    /// `bytes / 64`.
    lines: u64,
    /// Chunks of the heap.
    chunks: u64,
    // Dropped in this order: the SIGBUS handler forgets the address before it can be reused.
    guard: Guard,
    _mapped: OwnedMapping,
    fork: NonNull<AtomicU64>,
    _fork_mapped: OwnedMapping,
    open: HeldFile,
    path: PathBuf,
}

// SAFETY: the mapping is shared memory that is only touched through atomics, through `write` (whose
// callers own the cell that they fill) and through `bytes` (whose callers read published cells).
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a region: `bytes` of its file. Its heap has `chunks` chunks.
    pub(crate) fn new(file: File, path: &Path, bytes: u64, page: u64, chunks: u64) -> Result<Self> {
        invariant!(bytes >= region_bytes(chunks, page), "{chunks} chunks in {bytes} bytes");
        let base = system::map_shared(file.as_fd(), bytes)?;
        // From here on an error unmaps. A leaked mapping would keep the open file, and with it the
        // creation lock, until this process ends.
        let mapped = OwnedMapping { base, bytes };
        let open = HeldFile::new(file)?;
        system::keep_out_of_dumps(base, bytes);
        let fork = system::fork_guard()?;
        let fork_mapped = OwnedMapping { base: fork.cast(), bytes: system::GUARD_BYTES };
        let guard = Guard::new(base, bytes, page, fork.cast())?;
        invariant!(bytes.is_multiple_of(LINE), "a mapping of {bytes} bytes has no whole lines");
        let map = Self {
            base,
            bytes,
            words: bytes / 8,
            lines: bytes / LINE,
            chunks,
            guard,
            _mapped: mapped,
            fork,
            _fork_mapped: fork_mapped,
            open,
            path: path.to_owned(),
        };
        map.fork_word().store(USABLE, Ordering::Relaxed);
        Ok(map)
    }

    #[inline]
    fn fork_word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped and aligned until `drop`.
        unsafe { self.fork.as_ref() }
    }

    /// Address of the word that [`Map::is_usable`] reads.
    pub(crate) const fn usable_address(&self) -> NonNull<AtomicU64> {
        self.fork
    }

    /// False in a child that was forked after the mapping was created, and once a page was found
    /// missing.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.fork_word().load(Ordering::Relaxed) == USABLE
    }

    /// True in a child that was forked after the mapping was created, whatever happened to the
    /// file.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_word().load(Ordering::Relaxed) == 0
    }

    /// True once a page was found missing (the file was truncated).
    #[inline]
    pub(crate) fn is_damaged(&self) -> bool {
        self.guard.is_damaged()
    }

    /// The file's length, as mapped.
    #[inline]
    pub(crate) const fn len(&self) -> u64 {
        self.bytes
    }

    /// The number of chunks of the heap.
    #[inline]
    pub(crate) const fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Calls `work` with the region's file. A daemon that closes all descriptors may have closed
    /// it, and its number may now be another file: then the file is opened again by its path.
    pub(crate) fn with_file<T>(&self, work: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        work(self.file()?.file())
    }

    /// The region's file, as for [`Map::with_file`]. Locks belong to the open file, so a caller
    /// that takes one keeps the returned value.
    pub(crate) fn file(&self) -> Result<RegionFile<'_>> {
        if let Some(file) = self.open.held() {
            return Ok(RegionFile::Held(file));
        }
        let reopened =
            OpenOptions::new().read(true).write(true).open(&self.path).map_err(|error| {
                Error::System {
                    detail: format!(
                        "{}: the region's descriptor was closed, and it cannot be opened again",
                        self.path.display()
                    ),
                    errno: error.raw_os_error().unwrap_or(0),
                }
            })?;
        if liveness::file_key(&reopened)? != self.open.key() {
            return Err(Error::NotARegion {
                path: self.path.clone(),
                detail: "the file was replaced while it was attached: attach again".to_owned(),
            });
        }
        Ok(RegionFile::Reopened(reopened))
    }

    /// The region's file, opened again if its path still refers to it. A child that was forked
    /// before does not share a lock that is taken through it.
    pub(crate) fn reopened_file(&self) -> Result<RegionFile<'_>> {
        match OpenOptions::new().read(true).write(true).open(&self.path) {
            Ok(reopened) if liveness::file_key(&reopened)? == self.open.key() => {
                Ok(RegionFile::Reopened(reopened))
            }
            _ => self.file(),
        }
    }

    /// The region's file, opened again: by its path, or by the kernel's name of the descriptor.
    pub(crate) fn reopen(&self) -> Result<File> {
        self.reopen_source()?.open()
    }

    /// How to open the region's file again. It does not use a descriptor, so a thread with another
    /// descriptor table can do it.
    pub(crate) fn reopen_source(&self) -> Result<ReopenSource<'_>> {
        self.with_file(|file| {
            Ok(ReopenSource {
                path: &self.path,
                key: self.open.key(),
                descriptor: file.as_raw_fd(),
            })
        })
    }

    /// Which file is mapped ([`HeldFile::identity`]).
    pub(crate) const fn file_identity(&self) -> u64 {
        self.open.identity()
    }

    /// The path by which it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An 8-byte word at an 8-aligned offset.
    #[inline]
    pub(crate) fn word(&self, at: u64) -> Result<&AtomicU64, Corruption> {
        // One comparison checks both: the low bits of a misaligned offset become high bits.
        if at.rotate_right(3) >= self.words {
            return Err(OUTSIDE);
        }
        // SAFETY: `at` is inside the mapping, and its length is a multiple of the page.
        let address = unsafe { self.base.add(at as usize) };
        // SAFETY: mapped, aligned, and only ever accessed as an atomic or, before publication, by
        // its one owner.
        Ok(unsafe { address.cast().as_ref() })
    }

    /// A word of the superblock, which every region has.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "one instruction of the path of every write")]
    pub(crate) fn superblock_word<const AT: u64>(&self) -> &AtomicU64 {
        const { assert!(AT.is_multiple_of(8) && AT < PAGE_SMALL, "a word of the first page") };
        // SAFETY: `Map::new` has verified that the mapping contains a region.
        let address = unsafe { self.base.add(AT as usize) };
        // SAFETY: as in `word`.
        unsafe { address.cast().as_ref() }
    }

    /// The address of a word, for a caller that does not keep it longer than this map.
    pub(crate) fn address(&self, at: u64) -> Result<NonNull<AtomicU64>, Corruption> {
        Ok(NonNull::from(self.word(at)?))
    }

    /// `N` words from an 8-aligned offset.
    #[inline]
    pub(crate) fn words<const N: usize>(&self, at: u64) -> Result<&[AtomicU64; N], Corruption> {
        const { assert!(N != 0, "a structure has words") };
        debug_assert!(N as u64 <= self.words, "a region is smaller than one structure");
        if at.rotate_right(3) > self.words - N as u64 {
            return Err(OUTSIDE);
        }
        // SAFETY: the N words lie inside the mapping.
        let address = unsafe { self.base.add(at as usize) };
        // SAFETY: as in `word`, for each of them.
        Ok(unsafe { address.cast().as_ref() })
    }

    /// Some words from an 8-aligned offset.
    #[inline]
    pub(crate) fn slice(&self, at: u64, words: u64) -> Result<&[AtomicU64], Corruption> {
        if at.rotate_right(3) > self.words || words > self.words - at.rotate_right(3) {
            return Err(OUTSIDE);
        }
        // SAFETY: the words lie inside the mapping (one behind its end, if there are none).
        let address = unsafe { self.base.add(at as usize) };
        // SAFETY: as in `word`, for each of them.
        Ok(unsafe { std::slice::from_raw_parts(address.cast().as_ptr(), words as usize) })
    }

    /// The words of a line.
    #[inline]
    pub(crate) fn line(&self, units: u64) -> Result<&[AtomicU64; 8], Corruption> {
        if units >= self.lines {
            return Err(OUTSIDE);
        }
        // SAFETY: the line lies inside the mapping, whose length is a multiple of the page.
        let address = unsafe { self.base.add((units * LINE) as usize) };
        // SAFETY: as in `word`, for each of them.
        Ok(unsafe { address.cast().as_ref() })
    }

    /// The words of the line at an offset. As [`Map::word`], one comparison checks both its place
    /// and its alignment.
    #[inline]
    pub(crate) fn line_at(&self, at: u64) -> Result<&[AtomicU64; 8], Corruption> {
        let units = at.rotate_right(LINE.trailing_zeros());
        self.line(units)
    }

    /// Bytes of a published cell, which do not change while the caller's pin is held.
    #[inline]
    pub(crate) fn bytes(&self, at: u64, bytes: u64) -> Result<&[u8], Corruption> {
        if self.bytes.checked_sub(at).is_none_or(|room| bytes > room) {
            return Err(OUTSIDE);
        }
        // SAFETY: inside the mapping.
        let address = unsafe { self.base.add(at as usize) };
        // SAFETY: mapped; published cells are immutable and the caller's pin keeps this one from
        // reuse (spec/region.md, sections 5 and 6).
        Ok(unsafe { std::slice::from_raw_parts(address.as_ptr(), bytes as usize) })
    }

    /// So many bytes of a published cell that begins at a line, from `skip` on. As [`Map::bytes`],
    /// with one comparison more than that of [`Map::line`], which the caller has made before.
    #[inline]
    pub(crate) fn bytes_in(&self, units: u64, skip: u32, bytes: u32) -> Result<&[u8], Corruption> {
        if units >= self.lines {
            return Err(OUTSIDE);
        }
        // The line lies inside the mapping, so its offset plus two 32-bit numbers does not wrap.
        let at = units * LINE + u64::from(skip);
        if at + u64::from(bytes) > self.bytes {
            return Err(OUTSIDE);
        }
        // SAFETY: inside the mapping.
        let address = unsafe { self.base.add(at as usize) };
        // SAFETY: as in `bytes`.
        Ok(unsafe { std::slice::from_raw_parts(address.as_ptr(), bytes as usize) })
    }

    /// Fills bytes of a cell that no other member can reach.
    #[inline]
    pub(crate) fn write(&self, at: u64, source: &[u8]) -> Result<(), Corruption> {
        if at > self.bytes || source.len() as u64 > self.bytes - at {
            return Err(OUTSIDE);
        }
        // SAFETY: inside the mapping.
        let address = unsafe { self.base.add(at as usize) };
        // SAFETY: both ranges are valid for the length; the target is an unpublished cell of this
        // member, so no other code reads or writes it, and `source` cannot overlap it.
        unsafe { std::ptr::copy(source.as_ptr(), address.as_ptr(), source.len()) };
        Ok(())
    }

    /// A writer of `bytes` bytes of a cell that no other member can reach.
    #[inline]
    pub(crate) fn writer(&self, at: u64, bytes: u64) -> Result<CellWriter<'_>, Corruption> {
        if self.bytes.checked_sub(at).is_none_or(|room| bytes > room) {
            return Err(OUTSIDE);
        }
        // SAFETY: inside the mapping.
        let next = unsafe { self.base.add(at as usize) };
        let bytes = bytes as usize;
        Ok(CellWriter { next, room: bytes, bytes, map: PhantomData })
    }

    /// Prefetches the line at an offset. The offset is not checked: a hint cannot fault.
    #[inline]
    pub(crate) fn prefetch(&self, at: u64) {
        hint(self.base.as_ptr().wrapping_add(at as usize));
    }

    /// Prefetches lines that follow each other, from the line at an offset on.
    #[inline]
    pub(crate) fn prefetch_lines(&self, at: u64, lines: u64) {
        self.for_lines(at, lines, hint);
    }

    /// As [`Map::prefetch_lines`], for lines that are written next: other processors, which may
    /// have read them, give them up meanwhile.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, at: u64, lines: u64) {
        self.for_lines(at, lines, hint_to_write);
    }

    #[inline(always)]
    fn for_lines(&self, at: u64, lines: u64, hint: impl Fn(*const u8)) {
        const STEP: u64 = 4;
        let mut next = self.base.as_ptr().wrapping_add(at as usize);
        let mut left = lines;
        // A loop over single lines would take more instructions than the rest of a read.
        while left >= STEP {
            for line in 0..STEP {
                hint(next.wrapping_add((LINE * line) as usize));
            }
            next = next.wrapping_add((LINE * STEP) as usize);
            left -= STEP;
        }
        if left & 2 != 0 {
            hint(next);
            hint(next.wrapping_add(LINE as usize));
            next = next.wrapping_add((2 * LINE) as usize);
        }
        if left & 1 != 0 {
            hint(next);
        }
    }

    /// Allocates pages for a range of the file that contains no data, and maps them.
    pub(crate) fn commit(&self, from: u64, bytes: u64) -> Result<()> {
        self.commit_by(system::commit, from, bytes)
    }

    /// As [`Map::commit`], for a range that may contain data, which it keeps. No other code may
    /// change the range meanwhile.
    pub(crate) fn commit_keeping(&self, from: u64, bytes: u64) -> Result<()> {
        self.commit_by(system::commit_keeping, from, bytes)
    }

    fn commit_by(
        &self,
        commit: fn(BorrowedFd<'_>, u64, u64) -> Result<()>,
        from: u64,
        bytes: u64,
    ) -> Result<()> {
        if from > self.bytes || bytes > self.bytes - from {
            return Err(Error::from(OUTSIDE));
        }
        self.with_file(|file| commit(file.as_fd(), from, bytes))?;
        system::prefault(self.base, from, bytes);
        Ok(())
    }

    /// Gives the reserve its tables and pages, so that deleting needs no more of the file system.
    pub(crate) fn create_reserve(&self) -> Result<()> {
        const TABLE_PAGE: u64 = 4096;
        let (chunks, first) = (self.chunks, ordinary_chunks(self.chunks));
        let words_at = (chunk_words_at(chunks) + 8 * first) & !(TABLE_PAGE - 1);
        let bitmaps_from = (bitmaps_at(chunks) + BITMAP_BYTES * first) & !(TABLE_PAGE - 1);
        let start = HEAP + CHUNK_BYTES * first;
        invariant!(first <= chunks, "the reserve begins at chunk {first} of {chunks}");
        invariant!(start <= words_at, "the reserve lies behind the heap");
        invariant!(words_at <= bitmaps_from, "the tables of the reserve are in their order");
        self.commit(words_at, bitmaps_at(chunks) - words_at)?;
        self.commit(bitmaps_from, self.len() - bitmaps_from)?;
        self.commit(start, chunk_words_at(chunks) - start)?;
        for chunk in first..chunks {
            self.word(chunk_words_at(chunks) + 8 * chunk)?
                .store(CHUNK_NEW_WITH_PAGES, Ordering::Release);
        }
        Ok(())
    }

    /// As [`Map::commit`], for a range that other processes may use already. False if the file
    /// system has no `fallocate`.
    pub(crate) fn try_commit(&self, from: u64, bytes: u64) -> Result<bool> {
        if from > self.bytes || bytes > self.bytes - from {
            return Err(Error::from(OUTSIDE));
        }
        let is_done = self.with_file(|file| system::allocate(file.as_fd(), from, bytes))?;
        if is_done {
            system::prefault(self.base, from, bytes);
        }
        Ok(is_done)
    }

    /// Gives the pages of a range back to the host; the range reads as zeros. False if the file
    /// system has no holes.
    pub(crate) fn release(&self, from: u64, bytes: u64) -> Result<bool> {
        if from > self.bytes || bytes > self.bytes - from {
            return Err(Error::from(OUTSIDE));
        }
        self.with_file(|file| system::release(file.as_fd(), from, bytes))
    }

    /// True if the file has the page of an offset. To read a page that it does not have allocates
    /// the page, which fails on a full file system.
    pub(crate) fn is_allocated(&self, at: u64) -> bool {
        let next = self.with_file(|file| Ok(system::next_data(file.as_fd(), at)));
        next.is_ok_and(|next| next.is_some_and(|(start, _)| start <= at))
    }

    /// Maps every page between two offsets that the file has, so that later accesses do not fault.
    /// Returns the bytes mapped.
    pub(crate) fn populate(&self, from: u64, to: u64) -> Result<u64> {
        self.with_file(|file| {
            let (mut at, mut done) = (from, 0);
            while let Some((start, end)) = system::next_data(file.as_fd(), at)
                && start < to
            {
                let bytes = end.min(to) - start;
                system::prefault(self.base, start, bytes);
                done += bytes;
                at = end;
            }
            Ok(done)
        })
    }

    /// Backs a committed range with 2 MiB pages if the kernel agrees. Returns the bytes for which
    /// it did.
    pub(crate) fn collapse(&self, from: u64, to: u64) -> u64 {
        system::collapse(self.base, from, to.min(self.bytes))
    }

    /// Applies a NUMA policy to the whole mapping.
    pub(crate) fn set_numa_policy(&self, policy: &NumaPolicy) -> Result<()> {
        numa_policy::apply(self.base, self.bytes, policy)
    }

    /// The NUMA policy of the mapping, read back.
    pub(crate) fn numa_policy(&self) -> Result<NumaPolicy> {
        numa_policy::read_back(self.base)
    }

    /// Counts the pages between two offsets that the file has by their NUMA node.
    pub(crate) fn count_pages(&self, from: u64, to: u64, pages: &mut PagesByNode) -> Result<()> {
        self.with_file(|file| {
            let mut at = from;
            while let Some((start, end)) = system::next_data(file.as_fd(), at)
                && start < to
            {
                let range = (start & !(PAGE_SMALL - 1), end.min(to).min(self.bytes));
                numa_policy::count_pages(self.base, range, pages)?;
                at = end;
            }
            Ok(())
        })
    }
}

/// Fills a cell that no other member can reach from front to back, and never beyond its end.
#[derive(Debug)]
pub struct CellWriter<'m> {
    /// The first byte that is not written yet, with `room` bytes behind it.
    next: NonNull<u8>,
    room: usize,
    /// The bytes of the cell.
    bytes: usize,
    map: PhantomData<&'m Map>,
}

impl<'m> CellWriter<'m> {
    /// Appends bytes.
    ///
    /// # Errors
    /// `Corruption`: more bytes than the cell was allocated for.
    #[inline]
    pub fn write(&mut self, part: &[u8]) -> Result<(), Corruption> {
        if part.is_empty() {
            return Ok(());
        }
        if part.len() > self.room {
            return Err(OVERFULL);
        }
        // SAFETY: both ranges are valid for the length, because the cell has room for it; the
        // target is an unpublished cell of this member, so no other code reads or writes it, and
        // `part` cannot overlap it.
        unsafe { std::ptr::copy(part.as_ptr(), self.next.as_ptr(), part.len()) };
        crash_point!("fill.part");
        // SAFETY: at most one byte behind the room, which is inside the mapping.
        self.next = unsafe { self.next.add(part.len()) };
        self.room -= part.len();
        Ok(())
    }

    /// All bytes of the cell; `None` if not all are written.
    #[inline]
    pub(crate) const fn finish(self) -> Option<&'m [u8]> {
        if self.room != 0 {
            return None;
        }
        // SAFETY: `next` lies `bytes` behind the first byte, as nothing is left to write.
        let first = unsafe { self.next.sub(self.bytes) };
        // SAFETY: mapped and written; the one writer of an unpublished cell ends here, and a
        // published one does not change.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), self.bytes) })
    }
}

/// A mapping that is unmapped when it is dropped.
#[derive(Debug)]
struct OwnedMapping {
    base: NonNull<u8>,
    bytes: u64,
}

impl Drop for OwnedMapping {
    fn drop(&mut self) {
        // SAFETY: views borrow the region that owns the map, so no reference to the range is left
        // any more.
        unsafe { system::unmap(self.base, self.bytes) };
    }
}

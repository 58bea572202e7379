//! A region's file: creation, attaching and the superblock (`spec/region.md`, section 1).

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{NAMESPACES_MAX, REGION_BYTES_MAX, REGION_BYTES_MIN};
use nearstate_model::{Error, Result, invariant};
use xxhash_rust::xxh3::xxh3_64;

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::clock::{learn_time_namespace, now_ms};
use crate::layout::{
    ARENA_BYTES, ARENAS, CATALOG, CHUNK_BYTES, CHUNK_UNITS, FLAG_FENCED, FORMAT, HEAP, MAGIC,
    MEMBER_BYTES, MEMBERS, SUPER_CHECK, SUPER_CHUNKS, SUPER_CREATED, SUPER_EPOCH, SUPER_FORMAT,
    SUPER_FRONTIER, SUPER_HEAP, SUPER_ID, SUPER_LENGTH, SUPER_MAGIC, SUPER_MEMBERS,
    SUPER_NAMESPACES, SUPER_PAGE, SUPER_SEED, arena_at, chunk_words_at, member_at, region_bytes,
    seal,
};
use crate::numa_policy::NumaPolicy;
use crate::region::catalog::NameTable;
use crate::region::creation_lock::{self, CreationLock, CreationWait};
use crate::region::index_table::IndexTable;
use crate::region::key_seed::KeySeed;
use crate::region::liveness::{LivenessLock, LockedFile, ProcessIdentity};
use crate::region::map::Map;
use crate::region::member_table::is_number_named;
use crate::region::opened_file::{
    HAS_MAGIC, OpenedFile, check_file_size, discard, is_named, is_new, open_failure, open_file,
    set_mode,
};
use crate::region::superblock::{Superblock, validate_superblock};
use crate::system::register_barrier;

/// Page size of a region's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// The base page, 4 KiB.
    #[default]
    Small,
    /// 2 MiB: the path must lie on a hugetlbfs mount.
    Huge2M,
}

impl PageSize {
    /// Bytes of a page.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Small => 4096,
            Self::Huge2M => 2 << 20,
        }
    }
}

/// How a reader's pin becomes visible (`spec/region.md`, section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinMode {
    /// Asymmetric if the kernel has `membarrier(2)`, else fenced.
    #[default]
    Auto,
    /// A pin costs no fence; every attaching process needs `membarrier(2)`.
    Asymmetric,
    /// A full fence with every pin (about 10 ns).
    Fenced,
}

/// Options for the creation of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// The most bytes that records and index may occupy. The region grows up to this size. Memory
    /// is allocated on demand, unless `populate` is set.
    pub bytes_max: u64,
    /// Page size.
    pub page: PageSize,
    /// Allocates and maps all memory at creation.
    pub populate: bool,
    /// NUMA placement.
    pub numa: NumaPolicy,
    /// How pins become visible.
    pub pin: PinMode,
    /// File mode, as for `chmod`, independent of the process's umask.
    pub mode: u32,
    /// Also attaches a region that belongs to another user.
    pub any_owner: bool,
    /// The seed of the key hash, for runs that must repeat exactly. `None` is a random seed. With a
    /// known seed a client can choose keys that all belong to one bucket.
    pub hash_seed: Option<u64>,
}

/// Options for attaching to a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// Accepts a file that belongs to another user than this one and root, and symbolic links of
    /// such a user. That user can read and write the region.
    pub any_owner: bool,
}

impl Default for CreateOptions {
    /// 1 GiB at most, small pages, readable and writable by the owner only.
    fn default() -> Self {
        Self {
            bytes_max: 1 << 30,
            page: PageSize::Small,
            populate: false,
            numa: NumaPolicy::Default,
            pin: PinMode::Auto,
            mode: 0o600,
            any_owner: false,
            hash_seed: None,
        }
    }
}

/// The part of the heap that one session takes at once as its bump range.
const CLAIM_SHARE: u64 = 1024;
/// How often a file is opened again because another process, which could not create the region, has
/// removed it. Each time the other process has come first.
const REOPENS_MAX: u32 = 100;
/// The least units of a bump range: 64 KiB.
const CLAIM_UNITS_MIN: u64 = 1024;
const _: () = assert!(CLAIM_UNITS_MIN <= CHUNK_UNITS, "a claim lies in one chunk");
const _: () = assert!(PageSize::Huge2M.bytes().is_multiple_of(CHUNK_BYTES), "a page has chunks");

/// Handles of namespaces with adjacent numbers. They are made when one of them is opened.
pub(crate) type TablePage = Box<[OnceLock<Box<IndexTable>>]>;

/// Handles of a page.
pub(crate) const TABLE_PAGE: usize = 256;
const _: () = assert!(NAMESPACES_MAX.is_multiple_of(TABLE_PAGE), "pages are complete");

/// State that all sessions of one process share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) map: Map,
    pub(crate) is_fenced: bool,
    pub(crate) seed: KeySeed,
    pub(crate) identity: ProcessIdentity,
    /// Tells other processes that this one is alive.
    pub(crate) liveness: LivenessLock,
    /// Excludes other threads of this process where the creation lock excludes other processes.
    creation: Mutex<()>,
    /// Handles of namespaces, by the high and by the low byte of their numbers.
    pub(crate) tables: Box<[OnceLock<TablePage>]>,
    /// The names of the namespaces.
    pub(crate) names: Mutex<NameTable>,
    /// The catalog entry at which the next search for empty namespaces begins. What one session has
    /// just created is then the last that another removes.
    pub(crate) removal_cursor: AtomicU64,
    /// Lowest member index that may be free, as far as this process knows.
    pub(crate) hint: AtomicU64,
    /// A reader of this process needs the log behind this position ([`Region::hold_log`]).
    pub(crate) log_hold: AtomicU64,
}

impl Shared {
    /// Fails once the file lost pages, for readers without a session.
    #[inline]
    pub(crate) fn check_not_truncated(&self) -> Result<()> {
        if self.map.is_damaged() { Err(truncated()) } else { Ok(()) }
    }
}

/// The error of a region whose file lost pages: they read as zeros.
#[cold]
pub(crate) fn truncated() -> Error {
    Error::Damaged { detail: "its file was truncated while it was attached".to_owned() }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.map.is_forked() {
            self.liveness.forget();
        }
    }
}

impl Shared {
    /// Units that a session takes as its small bump range: a thousandth of the heap, so that many
    /// sessions keep little of a small region from the others.
    pub(crate) const fn claim_units(&self) -> u64 {
        let units = self.map.chunks() * CHUNK_UNITS / CLAIM_SHARE;
        if units < CLAIM_UNITS_MIN {
            CLAIM_UNITS_MIN
        } else if units > CHUNK_UNITS {
            CHUNK_UNITS
        } else {
            units
        }
    }

    /// Calls `work` while it excludes all other callers, in this process and in others.
    ///
    /// # Errors
    /// `Stalled` if another process excludes this one for more than a second.
    pub(crate) fn exclusively<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _threads = self.creation.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let file = self.map.reopened_file()?;
        let _processes = CreationLock::acquire(file.file())?;
        work()
    }
}

/// A region's file for another process on this kernel: two open files, readable and writable.
#[derive(Debug)]
pub struct RegionFiles {
    /// Mapped and extended.
    pub file: OwnedFd,
    /// Holds the liveness lock. No other process may have a descriptor of this open file.
    pub liveness: OwnedFd,
}

/// An attached region. Cheap to clone. Sessions are opened from it.
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) shared: Arc<Shared>,
}

impl Region {
    /// Creates a region and attaches to it.
    ///
    /// # Errors
    /// `AlreadyExists`, `BadArgument` (size, page size, nodes, owner), `Full` (file system),
    /// `System`.
    pub fn create(path: &Path, options: &CreateOptions) -> Result<Self> {
        match Self::open(path, Some(options), options.any_owner)? {
            (region, true) => Ok(region),
            (_, false) => Err(Error::AlreadyExists { path: path.to_owned() }),
        }
    }

    /// Attaches to a region.
    ///
    /// # Errors
    /// `NotARegion` (other file, newer format, truncated, damaged), `BadArgument` if it belongs to
    /// another user, `Stalled` while a process that creates it is stopped, `System`.
    pub fn attach(path: &Path) -> Result<Self> {
        Self::attach_with(path, &AttachOptions::default())
    }

    /// As [`Region::attach`], with options.
    ///
    /// # Errors
    /// As [`Region::attach`].
    pub fn attach_with(path: &Path, options: &AttachOptions) -> Result<Self> {
        Self::open(path, None, options.any_owner).map(|(region, _)| region)
    }

    /// Attaches to a region, and creates it first if it does not exist. Of several concurrent
    /// creators one creates and the others attach.
    ///
    /// # Errors
    /// As [`Region::create`] and [`Region::attach`].
    pub fn attach_or_create(path: &Path, options: &CreateOptions) -> Result<Self> {
        Self::open(path, Some(options), options.any_owner).map(|(region, _)| region)
    }

    fn open(path: &Path, create: Option<&CreateOptions>, any_owner: bool) -> Result<(Self, bool)> {
        // Validated before the file exists: a rejected creation leaves no file.
        create.map(heap_chunks).transpose()?;
        create.map(|options| check_mode(options.mode)).transpose()?;
        for _ in 0..REOPENS_MAX {
            let file = open_file(path, create.map(|options| options.mode), any_owner)?;
            if let Some(found) = Self::take(file, None, path, create)? {
                return Ok(found);
            }
        }
        let detail = format!("{}: its file is removed again and again", path.display());
        Err(Error::BadArgument { detail })
    }

    /// Attaches to an open file, or creates a region in it. `liveness_file` is the same file,
    /// opened a second time; with `None` it is opened by its path. `None`: the file was removed
    /// while this process waited to create the region.
    fn take(
        opened: OpenedFile,
        liveness_file: Option<&File>,
        path: &Path,
        create: Option<&CreateOptions>,
    ) -> Result<Option<(Self, bool)>> {
        let OpenedFile { file, made } = opened;
        let mut wait = CreationWait::new();
        loop {
            if !is_new(&file, path)? {
                // The magic was stored after the rest of the superblock, and was read before it.
                fence(Ordering::Acquire);
                return Self::map_existing(file, liveness_file, path).map(|r| Some((r, false)));
            }
            if let Some(options) = create {
                let lock = CreationLock::try_acquire(&file);
                if lock.is_err() {
                    creation_lock::with_lock_of(&file, || {
                        if is_named(path, &file)? && is_new(&file, path)? {
                            discard(&file, made.as_deref());
                        }
                        Ok(())
                    })?;
                }
                if let Some(lock) = lock? {
                    if !is_named(path, &file)? {
                        return Ok(None);
                    }
                    if is_new(&file, path)? {
                        let created = Self::initialise(file, path, options);
                        // Behind the commit point others may have attached.
                        let is_left = created.is_err() && is_new(lock.file(), path)?;
                        if is_left {
                            discard(lock.file(), made.as_deref());
                        }
                        drop(lock);
                        return created.map(|region| Some((region, true)));
                    }
                    continue;
                }
            } else if !creation_lock::is_held(&file)? && is_new(&file, path)? {
                return Err(Error::NotARegion {
                    path: path.to_owned(),
                    detail: "empty, or its creation was interrupted: create it again, or \
                             delete the file"
                        .to_owned(),
                });
            }
            wait.pause(&file)?;
        }
    }

    fn initialise(file: File, path: &Path, options: &CreateOptions) -> Result<Self> {
        let page = options.page.bytes();
        let chunks = heap_chunks(options)?;
        set_mode(&file, path, options.mode)?;
        let block = file.metadata().map_err(|e| open_failure(path, &e))?.blksize();
        if page > 4096 && block != page {
            return Err(Error::BadArgument {
                detail: format!(
                    "pages of {page} bytes need a path on a hugetlbfs mount (mount -t hugetlbfs -o \
                     pagesize=2M none DIR; vm.nr_hugepages), this one has {block}"
                ),
            });
        }
        let page = if block >= 2 << 20 && page == 4096 { block } else { page };
        let length = region_bytes(chunks, page);
        check_file_size(path, length)?;
        file.set_len(0).map_err(|e| open_failure(path, &e))?;
        file.set_len(length).map_err(|e| open_failure(path, &e))?;
        let has_barrier = register_barrier();
        let is_fenced = match options.pin {
            PinMode::Auto => !has_barrier,
            PinMode::Fenced => true,
            PinMode::Asymmetric if has_barrier => false,
            PinMode::Asymmetric => return Err(no_barrier(path)),
        };
        let map = Map::new(file, path, length, page, chunks)?;
        map.set_numa_policy(&options.numa)?;
        map.commit(0, page.max(MEMBERS))?;
        fill_superblock(&map, page, is_fenced, options.hash_seed)?;
        if !map.try_commit(0, page)? {
            // Pages come from writing zeros here: only before another process uses them.
            map.commit(chunk_words_at(chunks), length - chunk_words_at(chunks))?;
        }
        map.create_reserve()?;
        // One session can be opened, and the region checked, without a free page.
        map.commit(member_at(0), MEMBER_BYTES)?;
        map.commit(arena_at(0), ARENA_BYTES)?;
        if options.populate {
            // The superblock is complete except for its magic, by which `is_creation_interrupted`
            // recognizes it.
            map.commit_keeping(0, length)?;
        }
        map.word(SUPER_MAGIC)?.store(MAGIC, Ordering::Release);
        if options.populate {
            map.collapse(HEAP, chunk_words_at(chunks));
        }
        Self::share(map, None, is_fenced)
    }

    /// Opens the region's file again for another process. Locks taken through it are separate.
    ///
    /// # Errors
    /// `System`, and `NotARegion` if the file was replaced.
    pub fn files(&self) -> Result<RegionFiles> {
        let open = || self.shared.map.reopen().map(OwnedFd::from);
        Ok(RegionFiles { file: open()?, liveness: open()? })
    }

    /// Attaches to a region by its open files, with the checks of [`Region::attach`]. Errors call
    /// the region `name`.
    ///
    /// # Errors
    /// As [`Region::attach`]; `BadArgument` if both descriptors are one open file.
    pub fn attach_files(files: RegionFiles, name: &Path) -> Result<Self> {
        let liveness_file = File::from(files.liveness);
        let opened = OpenedFile { file: File::from(files.file), made: None };
        let taken = Self::take(opened, Some(&liveness_file), name, None)?;
        let (region, _) = guaranteed(taken, "only a creation finds that its file was removed");
        Ok(region)
    }

    fn map_existing(file: File, liveness_file: Option<&File>, path: &Path) -> Result<Self> {
        let head = read_superblock(&file, path)?;
        let has_barrier = register_barrier();
        if !head.is_fenced && !has_barrier {
            return Err(no_barrier(path));
        }
        let map = Map::new(file, path, head.length, head.page, head.chunks)?;
        Self::share(map, liveness_file, head.is_fenced)
    }

    fn share(map: Map, liveness_file: Option<&File>, is_fenced: bool) -> Result<Self> {
        learn_time_namespace()?;
        let seed = map.word(SUPER_SEED)?.load(Ordering::Relaxed);
        let page = map.word(SUPER_PAGE)?.load(Ordering::Relaxed);
        let liveness = map.with_file(|file| {
            let target = LockedFile { path: map.path(), file, received: liveness_file, page };
            LivenessLock::acquire(target, |number| Ok(is_number_named(&map, number)?))
        })?;
        let pages = NAMESPACES_MAX / TABLE_PAGE;
        let tables = (0..pages).map(|_| OnceLock::new()).collect();
        Ok(Self {
            shared: Arc::new(Shared {
                map,
                is_fenced,
                seed: KeySeed::new(seed),
                identity: ProcessIdentity::current(),
                liveness,
                creation: Mutex::new(()),
                tables,
                names: Mutex::default(),
                removal_cursor: AtomicU64::new(0),
                hint: AtomicU64::new(0),
                log_hold: AtomicU64::new(u64::MAX),
            }),
        })
    }

    /// The seed of the region's key hash.
    #[inline]
    pub fn seed(&self) -> u64 {
        self.shared.seed.seed
    }

    /// True in a process that is a fork of the one that attached.
    pub fn is_forked(&self) -> bool {
        self.shared.map.is_forked()
    }

    /// True if readers execute a fence, because the region was created without `membarrier(2)`.
    pub fn is_fenced(&self) -> bool {
        self.shared.is_fenced
    }

    /// The path by which the region was opened.
    pub fn path(&self) -> &Path {
        self.shared.map.path()
    }
}

fn fill_superblock(map: &Map, page: u64, is_fenced: bool, seed: Option<u64>) -> Result<()> {
    let length = map.len();
    invariant!(length > HEAP && length.is_multiple_of(4096), "a region of {length} bytes");
    invariant!(page.is_power_of_two() && page >= 4096, "a page of {page} bytes");
    let mut random = [0_u8; 24];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .map_err(|error| open_failure(Path::new("/dev/urandom"), &error))?;
    let mut words = random
        .chunks_exact(8)
        .map(|chunk| chunk.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte)));
    let mut random = || guaranteed(words.next(), "24 random bytes are three words");
    let set = |at: u64, value: u64| -> Result<()> {
        map.word(at)?.store(value, Ordering::Release);
        Ok(())
    };
    let flags = if is_fenced { u64::from(FLAG_FENCED) } else { 0 };
    set(SUPER_FORMAT, u64::from(FORMAT) | flags << 32)?;
    set(SUPER_LENGTH, length)?;
    set(SUPER_HEAP, HEAP)?;
    set(SUPER_SEED, seed.unwrap_or_else(&mut random))?;
    set(SUPER_PAGE, page)?;
    set(SUPER_CREATED, now_ms())?;
    set(SUPER_ID, random())?;
    set(SUPER_ID + 8, random())?;
    set(SUPER_CHUNKS, map.chunks())?;
    set(SUPER_EPOCH, seal(2))?;
    set(SUPER_FRONTIER, seal(HEAP / 64))?;
    set(SUPER_MEMBERS, seal(0))?;
    set(SUPER_NAMESPACES, seal(0))?;
    // The checksum covers the final page, including the magic.
    let mut page = map.bytes(0, SUPER_CHECK)?.to_vec();
    *guaranteed(page.first_chunk_mut(), HAS_MAGIC) = MAGIC.to_le_bytes();
    set(SUPER_CHECK, xxh3_64(&page))
}

/// Refuses a mode by which some users could read the file and not write it. Such users cannot
/// attach, but they can lock bytes of the file, which processes that attach need.
fn check_mode(mode: u32) -> Result<()> {
    let can_only_read = |class: u32| mode >> class & 0o6 == 0o4;
    if [6, 3, 0].into_iter().any(can_only_read) {
        return Err(Error::BadArgument {
            detail: format!(
                "file mode {mode:o} lets some users read the region but not write it: they could \
                 not attach, but could lock its bytes; give 600, 660 or 666"
            ),
        });
    }
    Ok(())
}

fn read_superblock(file: &File, path: &Path) -> Result<Superblock> {
    let not_a_region = |detail: String| Error::NotARegion { path: path.to_owned(), detail };
    let length = file.metadata().map_err(|e| open_failure(path, &e))?.len();
    let mut page = vec![0; 4096];
    if length < 4096 {
        page.clear();
    } else {
        file.read_exact_at(&mut page, 0).map_err(|e| open_failure(path, &e))?;
    }
    let head = validate_superblock(&page).map_err(not_a_region)?;
    if length < head.length {
        return Err(not_a_region(format!(
            "truncated: it has {length} of {} bytes; restore the file",
            head.length
        )));
    }
    Ok(head)
}

fn no_barrier(path: &Path) -> Error {
    Error::BadArgument {
        detail: format!(
            "{}: this kernel or its seccomp profile has no membarrier(2): create the region with \
             fenced pins (--pin fenced)",
            path.display()
        ),
    }
}

/// Chunks of a region with these options.
fn heap_chunks(options: &CreateOptions) -> Result<u64> {
    if (REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&options.bytes_max) {
        return Ok(options.bytes_max.div_ceil(CHUNK_BYTES));
    }
    Err(Error::BadArgument {
        detail: format!(
            "a region of {} bytes: give a maximum size (--max) of {}MiB to {}TiB",
            options.bytes_max,
            REGION_BYTES_MIN >> 20,
            REGION_BYTES_MAX >> 40
        ),
    })
}

const _: () = assert!(REGION_BYTES_MIN.is_multiple_of(CHUNK_BYTES));
const _: () = assert!(REGION_BYTES_MAX.is_multiple_of(CHUNK_BYTES));
const _: () = assert!(
    CATALOG.is_multiple_of(2 << 20)
        && ARENAS.is_multiple_of(2 << 20)
        && HEAP.is_multiple_of(2 << 20)
);

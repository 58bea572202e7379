//! Inspection of a region for operators, and its removal.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nearstate_model::{HeapUsage, Holder, Result};

use crate::atomic::Ordering;
use crate::follow::{Following, following};
use crate::heap::chunk::{ChunkIndex, chunks_used, chunks_with_tables, state_of};
use crate::heap::usage::heap_usage;
use crate::layout::{
    CHUNK_BYTES, FORMAT, HEAP, LINE, MEMBER_PIN, MEMBER_SINCE, MEMBER_STATE, SUPER_CREATED,
    SUPER_EPOCH, SUPER_ID, SUPER_PAGE, chunk_words_at, member_at, unseal,
};
use crate::member::is_dead;
use crate::member::pin::start_of;
use crate::namespace::{self, NamespaceEntry};
use crate::numa_policy::{NumaPolicy, PagesByNode};
use crate::region::file::Region;
use crate::region::map::Map;
use crate::region::member_table::{identity_of, member_slots_used, state};

/// Retired cells that an inspection looks at: about a second.
const CELLS_MAX: u64 = 16 << 20;

/// The state of a region at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The file.
    pub path: PathBuf,
    /// Format number.
    pub format: u32,
    /// Random id, as two words.
    pub id: [u64; 2],
    /// Created at, milliseconds since 1970.
    pub created_ms: u64,
    /// The most bytes that records and index may fill.
    pub bytes_max: u64,
    /// Bytes of the heap that are allocated: records, index, and what sessions keep for reuse.
    pub bytes_taken: u64,
    /// What the heap is used for.
    pub heap: HeapUsage,
    /// Bytes that the file occupies on its file system now.
    pub bytes_on_disk: u64,
    /// Bytes of the heap for which the file has no pages yet: what it still needs of its file
    /// system when the heap is used up. At most one huge page too much.
    pub bytes_without_pages: u64,
    /// Page bytes.
    pub page_bytes: u64,
    /// Pins are followed by a full fence.
    pub is_fenced: bool,
    /// The epoch of reclamation.
    pub epoch: u64,
    /// What it follows, if it follows another region.
    pub following: Option<Following>,
    /// Namespaces.
    pub namespaces: Vec<NamespaceEntry>,
    /// Attached sessions, dead ones that were not recovered yet included.
    pub members: Vec<MemberEntry>,
}

/// How full the heap of a region is: the sizes of an [`Inspection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapSpace {
    /// The most bytes that records and index may fill.
    pub bytes_max: u64,
    /// Bytes of the heap that are allocated: records, index, and what sessions keep for reuse.
    pub bytes_taken: u64,
    /// Bytes of the heap for which the file has no pages yet. At most one huge page too much.
    pub bytes_without_pages: u64,
}

/// An attached session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// Number in the table of members.
    pub index: u32,
    /// Its process.
    pub process: Holder,
    /// Attached at, milliseconds since 1970.
    pub since_ms: u64,
    /// The epoch that its views hold, if it has any.
    pub pinned_epoch: Option<u64>,
    /// False if its process has ended and it waits for recovery.
    pub is_alive: bool,
}

/// Bytes of the heap whose bit is set, and bytes of chunks without pages, as the chunk words say.
fn heap_bytes(map: &Map) -> Result<(u64, u64)> {
    let (mut units, mut with_pages) = (0, 0);
    for chunk in chunks_with_tables(map)? {
        let state = state_of(map, chunk)?;
        units += state.used;
        with_pages += u64::from(state.has_pages);
    }
    Ok((units * LINE, map.chunks().saturating_sub(with_pages) * CHUNK_BYTES))
}

/// Bytes that the file occupies on its file system now.
fn bytes_on_disk(map: &Map) -> Result<u64> {
    map.with_file(|file| Ok(file.metadata().map_or(0, |m| m.blocks() * 512)))
}

impl Region {
    /// The most bytes that records and index may fill. Cost: none, it never changes.
    pub fn bytes_max(&self) -> u64 {
        self.shared.map.chunks() * CHUNK_BYTES
    }

    /// How full the heap is. Cost: a load for each used chunk, 4,096 for each GiB, and a
    /// system call. [`Region::inspect`] looks at bitmaps and retired cells, and can take a
    /// second.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub fn heap_space(&self) -> Result<HeapSpace> {
        let map = &self.shared.map;
        let (bytes_taken, without_pages) = heap_bytes(map)?;
        // A region that was created with all its pages has them, whatever its chunks say.
        let missing = map.len().saturating_sub(bytes_on_disk(map)?);
        let bytes_without_pages = without_pages.min(missing);
        self.shared.check_not_truncated()?;
        Ok(HeapSpace { bytes_max: self.bytes_max(), bytes_taken, bytes_without_pages })
    }

    /// Inspects the region: for an operator. Looks at the bitmap of each used chunk and at up to
    /// 16 Mi retired cells, which can take a second.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub fn inspect(&self) -> Result<Inspection> {
        let map = &self.shared.map;
        let load = |at: u64| -> Result<u64> { Ok(map.word(at)?.load(Ordering::Acquire)) };
        let HeapSpace { bytes_max, bytes_taken, bytes_without_pages } = self.heap_space()?;
        let inspection = Inspection {
            path: map.path().to_owned(),
            format: FORMAT,
            id: [load(SUPER_ID)?, load(SUPER_ID + 8)?],
            created_ms: load(SUPER_CREATED)?,
            bytes_max,
            bytes_taken,
            heap: heap_usage(map, CELLS_MAX, u64::MAX)?,
            bytes_on_disk: bytes_on_disk(map)?,
            bytes_without_pages,
            page_bytes: load(SUPER_PAGE)?,
            is_fenced: self.shared.is_fenced,
            epoch: unseal(load(SUPER_EPOCH)?, "the epoch word has a flipped bit")?,
            following: following(map)?,
            namespaces: namespace::list(map)?,
            members: self.members()?,
        };
        self.shared.check_not_truncated()?;
        Ok(inspection)
    }

    /// Maps the pages of the allocated heap into this process, so that later accesses do not fault:
    /// 60 to 200 ms for each GiB. Useful once after attaching to a filled region. Returns the bytes
    /// mapped.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub fn populate(&self) -> Result<u64> {
        let map = &self.shared.map;
        let heap = map.populate(0, ChunkIndex(chunks_used(map)?).start())?;
        Ok(heap + map.populate(chunk_words_at(map.chunks()), map.len())?)
    }

    /// Where the region's memory is: its pages by NUMA node. Pages that were allocated and never
    /// used are left out. Maps pages into this process, as [`Region::populate`] does, and adds
    /// none.
    ///
    /// # Errors
    /// `Damaged`. `System` if the kernel does not tell.
    pub fn pages_by_node(&self) -> Result<PagesByNode> {
        let map = &self.shared.map;
        let mut pages = self.pages_by_node_up_to(u64::MAX)?;
        map.count_pages(chunk_words_at(map.chunks()), map.len(), &mut pages)?;
        Ok(pages)
    }

    /// As [`Region::pages_by_node`], of at most the first `bytes` (a multiple of 4096) of the heap:
    /// the time of a large region is that of its pages.
    ///
    /// # Errors
    /// `Damaged`. `System` if the kernel does not tell.
    pub fn pages_by_node_up_to(&self, bytes: u64) -> Result<PagesByNode> {
        let map = &self.shared.map;
        let mut pages = PagesByNode::default();
        let used = ChunkIndex(chunks_used(map)?).start();
        self.shared.check_not_truncated()?;
        map.count_pages(0, used.min(bytes), &mut pages)?;
        Ok(pages)
    }

    /// The NUMA policy of the region as the kernel has it. On tmpfs and hugetlbfs it belongs to the
    /// file; elsewhere to the mapping of this process.
    ///
    /// # Errors
    /// `System` if the kernel does not tell.
    pub fn numa_policy(&self) -> Result<NumaPolicy> {
        self.shared.map.numa_policy()
    }

    /// Backs the allocated heap with 2 MiB pages (Linux 6.1 and later; tmpfs and memory files),
    /// which shortens page table walks. Useful once after a bulk load, from a thread that has time.
    /// Other processes continue; a writer may wait some milliseconds for a page that is being
    /// copied. Returns the bytes that have huge pages now, 0 if the kernel does not support the
    /// call.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn collapse(&self) -> Result<u64> {
        let map = &self.shared.map;
        Ok(map.collapse(HEAP, ChunkIndex(chunks_used(map)?).start()))
    }

    /// All sessions that are attached, dead ones included.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub fn members(&self) -> Result<Vec<MemberEntry>> {
        let map = &self.shared.map;
        let mut members = Vec::new();
        for index in 0..member_slots_used(map)? {
            let at = member_at(index);
            let load =
                |which: u64| -> Result<u64> { Ok(map.word(at + which)?.load(Ordering::Acquire)) };
            if state::of(load(MEMBER_STATE)?) == state::FREE {
                continue;
            }
            let identity = identity_of(map, index)?;
            members.push(MemberEntry {
                index,
                process: Holder { pid: identity.pid, name: identity.text() },
                since_ms: load(MEMBER_SINCE)?,
                pinned_epoch: start_of(load(MEMBER_PIN)?),
                is_alive: !is_dead(&self.shared, index)?,
            });
        }
        self.shared.check_not_truncated()?;
        Ok(members)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fixture::TestRegionPath;
    use crate::heap::chunk::WORDS_READ;
    use crate::region::file::CreateOptions;

    fn read_by<T>(work: impl FnOnce() -> T) -> (T, u64) {
        let before = WORDS_READ.get();
        let done = work();
        (done, WORDS_READ.get() - before)
    }

    /// Both sides of a connection compare their heaps, and a status is asked for at any time.
    #[test]
    fn the_size_of_a_heap_costs_nothing_and_its_use_a_word_for_each_chunk() {
        let file = TestRegionPath::new("heap-space");
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(file.path(), &options).unwrap();
        let seen = region.inspect().unwrap();
        assert_eq!(read_by(|| region.bytes_max()), (seen.bytes_max, 0));
        let (space, words) = read_by(|| region.heap_space().unwrap());
        let with_tables = chunks_with_tables(&region.shared.map).unwrap();
        assert_eq!(words, with_tables.fold(0, |count, _| count + 1));
        let expected = (seen.bytes_max, seen.bytes_taken, seen.bytes_without_pages);
        assert_eq!((space.bytes_max, space.bytes_taken, space.bytes_without_pages), expected);
    }
}

//! Our own region.

use super::{Need, Subject, load};
use crate::keeper::Keeper;
use crate::legacy::micro::loops::{self, Job, Store};
use crate::legacy::micro::work::Work;
use crate::machine::bytes_text;
use nearstate_model::{Result, limits};
use nearstate_store::{CreateOptions, Namespace, Region, Schema, Session};
use std::path::{Path, PathBuf};

/// The namespace of the records.
const NAMESPACE: &str = "ue-context";

/// A session in a region.
#[derive(Debug)]
pub struct RegionStore {
    /// The session.
    pub session: Session,
    /// The namespace of the records.
    pub namespace: Namespace,
}

impl RegionStore {
    /// Opens a session.
    ///
    /// # Errors
    /// What the region said.
    pub fn of(region: &Region) -> Result<Self> {
        let session = region.session()?;
        let namespace = session.namespace(NAMESPACE, &Schema::default())?;
        Ok(Self { session, namespace })
    }
}

impl Store for RegionStore {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.session.put(self.namespace, key, value).map(|_version| ())
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a network function calls get itself, not through this"
    )]
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        Ok(self.session.get(self.namespace, key)?.map(|view| look(view.bytes())))
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.session.get_copy(self.namespace, key, out).map(|version| version.is_some())
    }

    #[inline]
    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        self.session.get_batch(self.namespace, keys, |at, view| {
            if let Some(view) = view {
                look(at, view.bytes());
            }
        })
    }

    #[inline]
    fn steps(&mut self) -> Result<u64> {
        let mut scan = self.session.scan(self.namespace)?;
        let mut count = 0;
        while scan.step()? {
            count += 1;
        }
        Ok(count)
    }
}

/// What a region of so many records needs at most: it takes memory as it grows.
pub fn room(records: u64, value_bytes: u64) -> u64 {
    let each = value_bytes + value_bytes / 4 + 256;
    (256_u64 << 20).saturating_add(records.saturating_mul(each)).max(limits::REGION_BYTES_MIN)
}

/// Room for what is replaced while a reader on a busy machine sits on a view without running: as
/// much as a second of puts. Memory is only taken if that happens.
const HELD_BACK: u64 = 4 << 30;

/// A loaded region.
#[derive(Debug)]
pub struct Loaded {
    store: RegionStore,
    region: Region,
    path: PathBuf,
    /// Bytes that had 2 MiB pages after loading; `None` if that was not asked for.
    huge: Option<u64>,
    _keeper: Keeper,
}

impl Loaded {
    /// Makes and loads it.
    ///
    /// # Errors
    /// What the region said.
    pub fn open(need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Self> {
        let keeper = Keeper::start(&need.folder, None, |_| Vec::new())?;
        let path = keeper.folder().join("region");
        let bytes_max = HELD_BACK + room(need.records, need.value_bytes as u64);
        let region = Region::create(&path, &CreateOptions { bytes_max, ..Default::default() })?;
        let mut store = RegionStore::of(&region)?;
        load(need, loaded, |key, value| store.put(key, value))?;
        let huge = if need.collapse { Some(region.collapse()?) } else { None };
        Ok(Self { store, region, path, huge, _keeper: keeper })
    }

    /// Bytes of the heap that were taken and bytes of the file on its file system.
    ///
    /// # Errors
    /// What the region said.
    pub fn taken_and_on_disk(&self) -> Result<(u64, u64)> {
        let seen = self.region.inspect()?;
        Ok((seen.bytes_taken, seen.bytes_on_disk))
    }
}

impl Subject for Loaded {
    fn name(&self) -> &'static str {
        "region"
    }

    fn can(&self, _job: Job) -> bool {
        true
    }

    fn run(&mut self, job: Job, work: &Work<'_>) -> Result<f64> {
        loops::run(&mut self.store, job, work)
    }

    /// All of the heap that was taken, or the file where that is more: superblock, members, index,
    /// free cells and all.
    fn bytes(&mut self) -> Result<Option<u64>> {
        let (taken, on_disk) = self.taken_and_on_disk()?;
        Ok(Some(taken.max(on_disk)))
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn remark(&self) -> Option<String> {
        Some(match self.huge {
            Some(0) => "the kernel gave no 2 MiB pages".to_owned(),
            Some(bytes) => format!("{} on 2 MiB pages after collapse()", bytes_text(bytes)),
            None => "on 4 KiB pages (--no-collapse)".to_owned(),
        })
    }
}

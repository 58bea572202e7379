//! `DashMap`: a map of this one process, under a lock for each of its shards. It outlives nothing
//! and shares with nobody; it is here as the floor of what a map in memory costs.

use super::{Need, Subject, load};
use crate::legacy::micro::loops::{self, Job, Store};
use crate::legacy::micro::work::{Key, Work};
use dashmap::DashMap;
use foldhash::fast::RandomState;
use nearstate_model::{Error, Result};

/// Version and hash.
pub const VERSION: &str = "dashmap 6 (in one process, with foldhash)";

/// The map.
#[derive(Debug)]
pub struct Loaded {
    map: DashMap<Key, Box<[u8]>, RandomState>,
}

impl Loaded {
    /// Makes and loads it.
    ///
    /// # Errors
    /// None that is known.
    pub fn open(need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Self> {
        let mut made = Self { map: DashMap::with_hasher(RandomState::default()) };
        load(need, loaded, |key, value| made.put(key, value))?;
        Ok(made)
    }
}

#[inline]
fn fixed(key: &[u8]) -> Result<&Key> {
    key.try_into().map_err(|_| Error::KeyTooLarge { bytes: key.len() })
}

impl Store for Loaded {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.map.insert(*fixed(key)?, value.into());
        Ok(())
    }

    #[inline]
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        Ok(self.map.get(fixed(key)?).map(|value| look(&value)))
    }

    #[inline]
    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let copied = self.view(key, |value| out.extend_from_slice(value))?;
        Ok(copied.is_some())
    }

    #[inline]
    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        for (at, key) in keys.iter().enumerate() {
            self.view(key, |value| look(at, value))?;
        }
        Ok(())
    }

    fn steps(&mut self) -> Result<u64> {
        Ok(self.map.iter().fold(0, |count, record| {
            std::hint::black_box(record.key());
            count + 1
        }))
    }
}

impl Subject for Loaded {
    fn name(&self) -> &'static str {
        "dashmap"
    }

    fn can(&self, _job: Job) -> bool {
        true
    }

    fn run(&mut self, job: Job, work: &Work<'_>) -> Result<f64> {
        loops::run(self, job, work)
    }

    fn bytes(&mut self) -> Result<Option<u64>> {
        Ok(None)
    }
}

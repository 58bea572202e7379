//! Our own region: a file in memory that every node attaches.

use super::{Connection, Database, Need, Target};
use crate::keeper::Keeper;
use crate::legacy::content::{KEY_BYTES, Source, key};
use crate::legacy::protocol::{Kind, Mode};
use nearstate_model::Result;
use nearstate_store::{CreateOptions, Namespace, NumaPolicy, Region, Schema, Session};
use std::path::Path;

/// The namespace of the simulated records.
const NAMESPACE: &str = "ue-context";

/// The region as a target.
#[derive(Clone, Copy, Debug)]
pub struct RegionTarget;

impl Target for RegionTarget {
    fn name(&self) -> &'static str {
        "region"
    }

    fn version(&self) -> Result<String> {
        Ok(format!("nearstate {}", env!("CARGO_PKG_VERSION")))
    }

    fn kinds(&self, mode: Mode) -> &'static [Kind] {
        match mode {
            Mode::Read => &[Kind::Step, Kind::View, Kind::Copy, Kind::Batch, Kind::Chain],
            Mode::Write => &[Kind::Put],
        }
    }

    fn open(&self, need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Box<dyn Database>> {
        let keeper = Keeper::start(&need.folder, None, |_| Vec::new())?;
        let options = CreateOptions {
            bytes_max: need.db_bytes.max(nearstate_model::limits::REGION_BYTES_MIN),
            populate: true,
            numa: need.numa_node.map_or(NumaPolicy::Default, |n| NumaPolicy::Bind(vec![n])),
            ..CreateOptions::default()
        };
        let region = Region::create(&keeper.folder().join("region"), &options)?;
        load(&region, need, loaded)?;
        Ok(Box::new(Kept { keeper }))
    }
}

fn load(region: &Region, need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<()> {
    let session = region.session()?;
    let namespace = session.namespace(NAMESPACE, &Schema::default())?;
    let mut source = Source::new(need.seed, 0, need.record_bytes);
    let mut name = [0; KEY_BYTES];
    for record in 0..need.records {
        key(record, &mut name);
        session.put(namespace, &name, source.value(record))?;
        if record % 1024 == 1023 {
            loaded(1024);
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Kept {
    keeper: Keeper,
}

impl Database for Kept {
    fn address(&self) -> String {
        self.keeper.folder().join("region").display().to_string()
    }
}

/// A node's attachment.
#[derive(Debug)]
pub struct RegionConnection {
    session: Session,
    namespace: Namespace,
}

impl RegionConnection {
    /// Attaches the region at this path.
    ///
    /// # Errors
    /// What the region said.
    pub fn open(path: &str) -> Result<Self> {
        let region = Region::attach(Path::new(path))?;
        region.populate()?;
        let session = region.session()?;
        let namespace = session.namespace(NAMESPACE, &Schema::default())?;
        Ok(Self { session, namespace })
    }
}

impl Connection for RegionConnection {
    const IS_SLOW: bool = false;

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.session.put(self.namespace, key, value).map(|_version| ())
    }

    #[inline]
    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.session.get_copy(self.namespace, key, out).map(|v| v.is_some())
    }

    #[inline]
    fn view<T>(&mut self, key: &[u8], f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        Ok(self.session.get(self.namespace, key)?.map(|v| f(v.bytes())))
    }

    #[inline]
    fn batch(&mut self, keys: &[&[u8]], mut f: impl FnMut(&[u8])) -> Result<usize> {
        let mut there = 0;
        self.session.get_batch(self.namespace, keys, |_, view| {
            if let Some(view) = view {
                f(view.bytes());
                there += 1;
            }
        })?;
        Ok(there)
    }

    fn walk(&mut self, mut f: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let mut scan = self.session.scan(self.namespace)?;
        while let Some(view) = scan.next()? {
            if !f(view.bytes()) {
                return Ok(());
            }
        }
        Ok(())
    }
}

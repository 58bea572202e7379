//! The offline repair: `nearstate-memory`'s repair of cells, index and free memory, and then the
//! indexes of tags and the expiry order, which are rebuilt from the records if they differ from
//! them.

use std::path::Path;

use nearstate_memory::AttachOptions;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::{Error, Result, invariant};

pub use nearstate_memory::repair::RepairReport;

use crate::check::{CheckReport, check_indexes, check_record};
use crate::index::internal::{NAME, REPAIRING, schema_key};
use crate::index::schema::{TagSchema, TagState};
use crate::record::Kind;
use crate::record::meta::split;
use crate::session::{Namespace, Region, Session};
use crate::tags::maintain::expires_ms;

/// Index records that one transaction removes.
const REMOVED_AT_ONCE: usize = 500;

/// Repairs a region that no process is attached to, and reports what was repaired and what is lost.
/// It can be killed and run again. Run [`crate::check()`] afterwards.
///
/// # Errors
/// `NotARegion` if more than one bit of the superblock is damaged, `InUse`, `Full` if the indexes
/// have no room, `System`, and `Damaged` for what cannot be repaired.
pub fn repair_with(path: &Path, options: &AttachOptions) -> Result<RepairReport> {
    let mut report = nearstate_memory::repair::repair_with(path, options, &mut |kind, record| {
        check_record(kind, record).map_err(|error| error.to_string())
    })?;
    let mut faults = CheckReport::default();
    check_indexes(path, options, &mut faults)?;
    let region = Region::attach_with(path, options)?;
    if region.has_internal(NAME)? {
        let session = region.session()?;
        if !faults.is_clean() || session.has_unfinished_tags(&region)? {
            for fault in &faults.faults {
                report.add_repaired(format!("an index: {fault}"));
            }
            session.rebuild_indexes(&region, &mut report)?;
        }
    }
    Ok(report)
}

impl Session {
    fn has_unfinished_tags(&self, region: &Region) -> Result<bool> {
        for namespace in tagged(region)? {
            let tags = self.tag_set(namespace.index)?;
            if tags.tags().any(|tag| tag.state == TagState::Building) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes every index record except the declarations, and rebuilds them from the records.
    fn rebuild_indexes(&self, region: &Region, report: &mut RepairReport) -> Result<()> {
        // Until it is removed, the check reports it, and the next repair starts over.
        self.transact(|txn| txn.set.borrow_mut().put_internal(REPAIRING, &[]))?;
        let mut declared = Vec::new();
        for namespace in tagged(region)? {
            let tags = self.reset_tags(namespace)?;
            declared.extend((!tags.is_empty()).then_some((namespace, tags)));
        }
        // A repair makes the entry of a removed namespace free, and leaves what its removal had not
        // yet taken out of the indexes.
        let orphaned = self.orphaned_numbers(&region.inspect()?.namespaces)?;
        self.remove_entries(&orphaned)?;
        for entry in region.inspect()?.namespaces {
            let Some(kind) = Kind::of(entry.kind) else { continue };
            self.order_all(Namespace { index: entry.index, kind })?;
        }
        for (namespace, tags) in declared {
            for tag in tags {
                match self.add_tags(namespace, std::slice::from_ref(&tag)) {
                    Ok(()) => report.add_repaired(format!(
                        "namespace {}: the index of tag {:?} was built again",
                        namespace.index, tag.name
                    )),
                    Err(error @ (Error::TagTaken { .. } | Error::BadArgument { .. })) => {
                        report.add_lost(format!("the index of tag {:?}: {error}", tag.name));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        self.transact(|txn| txn.set.borrow_mut().delete_internal(REPAIRING))
    }

    /// Marks the tags of a namespace as being built.
    fn reset_tags(&self, namespace: Namespace) -> Result<Vec<TagSchema>> {
        let mut tags = (*self.tag_set(namespace.index)?).clone();
        let kept: Vec<_> = tags.tags().filter(|tag| tag.is_kept()).cloned().collect();
        let now = self.member.namespace_flags(namespace.index)? / namespace_flags::GENERATION;
        tags.build_again();
        invariant!(
            tags.tags().all(|tag| tag.state != TagState::Ready),
            "a tag whose entries are removed stays ready"
        );
        tags.generation = tags.generation.max(now).saturating_add(1);
        let key = schema_key(namespace.index);
        self.transact(|txn| txn.set.borrow_mut().put_internal(&key, &tags.encode()))?;
        self.raise_to(namespace.index, &tags)?;
        Ok(kept.into_iter().map(TagSchema::from).collect())
    }

    fn remove_entries(&self, orphaned: &[u32]) -> Result<()> {
        let internal = Namespace { index: self.internal_table()?, kind: Kind::Value };
        let mut keys: Vec<_> = orphaned.iter().map(|one| schema_key(*one).to_vec()).collect();
        self.each_stored(internal, &mut |cell| {
            if matches!(cell.key()?.first(), Some(b'u' | b'p' | b'n' | b'c')) {
                keys.push(cell.key()?.to_vec());
            }
            Ok(())
        })?;
        for keys in keys.chunks(REMOVED_AT_ONCE) {
            self.transact(|txn| {
                let mut set = txn.set.borrow_mut();
                keys.iter().try_for_each(|key| set.delete_internal(key))
            })?;
        }
        Ok(())
    }

    /// Inserts every record that expires into the expiry order.
    fn order_all(&self, namespace: Namespace) -> Result<()> {
        let mut expiring = Vec::new();
        self.each_stored(namespace, &mut |cell| {
            let (_, meta) = split(cell, cell.value()?)?;
            if expires_ms(meta) != 0 {
                expiring.push((expires_ms(meta), cell.key()?.to_vec()));
            }
            Ok(())
        })?;
        for (expires_ms, key) in expiring {
            self.transact(|txn| {
                txn.set.borrow_mut().enter_expiry(namespace.index, &key, expires_ms)
            })?;
        }
        Ok(())
    }
}

/// The namespaces that have tags.
fn tagged(region: &Region) -> Result<Vec<Namespace>> {
    let session = region.session()?;
    let mut found = Vec::new();
    for entry in region.inspect()?.namespaces {
        let flags = session.member.namespace_flags(entry.index)?;
        let kind = Kind::of(entry.kind).filter(|_| flags & namespace_flags::TAGGED != 0);
        found.extend(kind.map(|kind| Namespace { index: entry.index, kind }));
    }
    Ok(found)
}

//! The change of one record without a transaction: most entries of a log put one value, or patch
//! some blocks.

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{Cell, KnownSlot, WriteTarget, is_record_version};
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result, invariant};

use super::Follower;
use super::change::{NamedChange, changes_of, not_a_copy};
use crate::feed::FollowedRecord;
use crate::log::entry::StreamedChange;
use crate::record::{Form, Kind};
use crate::session::{KeyLookup, Namespace, check_key};
use crate::txn::patch::check_patch;
use crate::txn::write::{CHANGES_NEED_TXN, Condition, FlagCheck, NEEDS_TXN, SingleWrite};

/// Flags of a namespace in which a follower puts a record in a transaction. Other hosts own all
/// namespaces that it writes.
const PUT_NEEDS_TXN: u64 = NEEDS_TXN & !namespace_flags::FOLLOWED;

/// The same of a patch of a record that exists.
const PATCH_NEEDS_TXN: u64 = CHANGES_NEED_TXN & !namespace_flags::FOLLOWED;

impl Follower<'_> {
    /// Applies the change of one record, if nothing else changes with it. False if nothing was
    /// changed, and a transaction is needed: also to refuse what is no entry.
    pub(super) fn apply_alone(&self, record: &FollowedRecord<'_>) -> Result<bool> {
        if !is_record_version(record.version)
            || record.base_version.is_some_and(|base| base >= record.version)
        {
            return Ok(false);
        }
        let Some(namespace) = self.namespace_at_source(record.namespace)? else { return Ok(true) };
        match &record.change {
            StreamedChange::Put { value, meta: [], is_set: false } => {
                self.put_alone(record, namespace, value)
            }
            StreamedChange::Patched { is_anew: false, blocks, meta: None }
                if namespace.kind() == Kind::Blocks =>
            {
                self.patch_alone(record, namespace, blocks)
            }
            StreamedChange::Put { .. }
            | StreamedChange::Patched { .. }
            | StreamedChange::Elements { .. }
            | StreamedChange::Deleted { .. } => Ok(false),
        }
    }

    /// The record of a change, and what its namespace must still be; `None` if one of the flags in
    /// `mask` is set.
    fn lookup_alone<'r>(
        &'r self,
        record: &FollowedRecord<'r>,
        namespace: Namespace,
        (form, mask): (Form, u64),
    ) -> Result<Option<(KeyLookup<'r>, FlagCheck<'r>)>> {
        let session = self.session;
        let flags = session.member.namespace_flags(namespace.index)?;
        if flags & (mask | namespace_flags::LOGGED) != 0
            || !namespace.kind().has(form)
            || check_key(record.key).is_err()
        {
            return Ok(None);
        }
        let lookup = KeyLookup { form, ..session.lookup(namespace, record.key)? };
        Ok(Some((lookup, FlagCheck::of_plain((lookup.table, namespace.index), mask))))
    }

    /// Puts a value without metadata.
    fn put_alone(
        &self,
        record: &FollowedRecord<'_>,
        namespace: Namespace,
        value: &[u8],
    ) -> Result<bool> {
        let (session, key) = (self.session, record.key);
        let known = self.lookup_alone(record, namespace, (Form::Value, PUT_NEEDS_TXN))?;
        let Some((lookup, flags)) = known.filter(|_| value.len() <= VALUE_BYTES_MAX) else {
            return Ok(false);
        };
        let mut present = 0;
        let written = session.member.with_reserve(|| {
            let (draft, known, place) = session.draft_pair(lookup, value)?;
            let target = WriteTarget {
                place,
                version_imposed: record.version,
                ..WriteTarget::new(lookup.hash, key, known)
            };
            session.write_known::<false>(flags, target, Some(draft), |cell| {
                present = cell.map_or(0, |cell| cell.version());
                let is_base = record.base_version.is_none_or(|base| base == present);
                Ok(present < record.version && is_base)
            })
        });
        match written {
            Ok(SingleWrite::Made { version }) => {
                invariant!(version == record.version, "a record gets the version of its source");
                Ok(true)
            }
            // It was applied before.
            Ok(SingleWrite::Refused) if present >= record.version => Ok(true),
            Ok(SingleWrite::Refused) => {
                Err(not_a_copy(key, present, record.base_version.unwrap_or(0)))
            }
            // A transaction makes room by collecting what has expired.
            Ok(SingleWrite::Unsettled) | Err(Error::Full { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Patches some blocks of a record that the copy has.
    fn patch_alone(
        &self,
        record: &FollowedRecord<'_>,
        namespace: Namespace,
        blocks: &[NamedChange<'_>],
    ) -> Result<bool> {
        let session = self.session;
        let changes = changes_of(blocks)?;
        // It changes no tag of a record that exists.
        let known = self.lookup_alone(record, namespace, (Form::Blocks, PATCH_NEEDS_TXN))?;
        let is_patch = || check_patch(namespace, record.key, &changes, Condition::Always).is_ok();
        let Some((lookup, flags)) = known.filter(|_| is_patch()) else { return Ok(false) };
        let written = session.member.with_reserve(|| {
            // The pin prevents reuse of the old cell and of its blocks.
            let _held = session.member.pin()?;
            let found = session.member.lookup(lookup.table, lookup.hash, record.key)?;
            let Some((cell, _)) = found.record else { return Ok(SingleWrite::Unsettled) };
            if record.base_version != Some(cell.version()) {
                return Ok(SingleWrite::Unsettled);
            }
            let draft = match session.patched(lookup, Some(cell), &changes, None) {
                Ok(draft) => draft,
                Err(error) => {
                    session.member.free_pending()?;
                    return Err(error);
                }
            };
            let target = WriteTarget {
                version_imposed: record.version,
                ..WriteTarget::new(lookup.hash, record.key, KnownSlot::Read(found.token))
            };
            let is_same = |now: Option<Cell<'_>>| Ok(now.map(|cell| cell.at()) == Some(cell.at()));
            session.write_known::<false>(flags, target, Some(draft), is_same)
        });
        match written {
            Ok(SingleWrite::Made { version }) => {
                invariant!(version == record.version, "a record gets the version of its source");
                Ok(true)
            }
            Ok(SingleWrite::Refused | SingleWrite::Unsettled) | Err(Error::Full { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

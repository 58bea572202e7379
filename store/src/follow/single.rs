//! The change of one record without a transaction: most entries of a log have one value.

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{WriteTarget, is_record_version};
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result, invariant};

use super::Follower;
use super::change::not_a_copy;
use crate::feed::FollowedRecord;
use crate::log::entry::StreamedChange;
use crate::record::Form;
use crate::session::check_key;
use crate::txn::write::{FlagCheck, NEEDS_TXN, SingleWrite};

/// Flags of a namespace in which a follower puts a record in a transaction. Other hosts own all
/// namespaces that it writes.
const NEEDS_TXN_HERE: u64 = NEEDS_TXN & !namespace_flags::FOLLOWED;

impl Follower<'_> {
    /// Puts a value without metadata, where nothing but the record changes with it. False if
    /// nothing was changed, and a transaction is needed: also to refuse what is no entry.
    pub(super) fn put_alone(&self, record: &FollowedRecord<'_>) -> Result<bool> {
        let StreamedChange::Put { value, meta: [], is_set: false } = record.change else {
            return Ok(false);
        };
        let Some(namespace) = self.namespace_at_source(record.namespace)? else { return Ok(true) };
        let (session, key) = (self.session, record.key);
        let flags = session.member.namespace_flags(namespace.index)?;
        if flags & (NEEDS_TXN_HERE | namespace_flags::LOGGED) != 0
            || !namespace.kind().has(Form::Value)
            || !is_record_version(record.version)
            || record.base_version.is_some_and(|base| base >= record.version)
            || value.len() > VALUE_BYTES_MAX
            || check_key(key).is_err()
        {
            return Ok(false);
        }
        let lookup = session.lookup(namespace, key)?;
        let flags = FlagCheck::of_plain((lookup.table, namespace.index), NEEDS_TXN_HERE);
        let mut present = 0;
        let written = session.member.with_reserve(|| {
            session.member.prefetch_bucket(lookup.table, lookup.hash);
            let (draft, known) = session.draft_pair(lookup, value)?;
            let target = WriteTarget {
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
}

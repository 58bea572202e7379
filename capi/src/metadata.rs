//! The metadata of records: tags and an expiry time.

use nearstate_model::limits::TAGS_MAX;
use nearstate_model::{Error, Result};
use nearstate_store::{Metadata, Session};

use crate::bytes::ns_bytes;
use crate::ffi::{Out, borrow, guard};
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::write::change_record;

/// A tag: a name and one of its values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_tag {
    /// The name, 1 to 255 bytes of UTF-8.
    pub name: ns_bytes,
    /// The value, at most 1,024 bytes.
    pub value: ns_bytes,
}

impl ns_tag {
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    pub(crate) unsafe fn read<'a>(self) -> Result<(&'a str, &'a [u8])> {
        // SAFETY: rule 2.
        let name = unsafe { self.name.name() }?;
        // SAFETY: rule 2.
        Ok((name, unsafe { self.value.value() }?))
    }
}

/// The metadata of a record. All bytes 0: none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_metadata {
    /// The first tag; a name may occur several times. NULL only if `tags_len` is 0.
    pub tags: *const ns_tag,
    /// The number of tags: at most 64.
    pub tags_len: usize,
    /// When the record expires, in milliseconds since 1970. 0: never. A record whose time is not
    /// after `ns_session_now_ms` expires immediately.
    pub expires_ms: u64,
}

impl ns_metadata {
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    pub(crate) unsafe fn read<'a>(self) -> Result<Vec<(&'a str, &'a [u8])>> {
        if self.tags_len > TAGS_MAX {
            return Err(Error::BadArgument {
                detail: format!(
                    "{} tags are too many: the maximum per record is {TAGS_MAX}",
                    self.tags_len
                ),
            });
        }
        if self.tags_len == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: rule 2.
        unsafe { borrow(self.tags, "the tags") }?;
        // SAFETY: neither NULL nor misaligned (checked above), within a limit; rule 2 guarantees
        // the tags.
        let tags = unsafe { std::slice::from_raw_parts(self.tags, self.tags_len) };
        // SAFETY: rule 2.
        tags.iter().map(|tag| unsafe { tag.read() }).collect()
    }
}

/// Writes a record with tags and an expiry time, in its own transaction. Within a larger
/// transaction, use `ns_txn_put_with_metadata`. The previous value and metadata are replaced.
/// `version` receives the new version; it may be NULL.
///
/// Fails as `ns_put`; with `NS_TAG_TAKEN` if another record has the value of a unique tag (the
/// message names it); with `NS_BAD_ARGUMENT` if a required tag is missing; with `NS_DEADLINE`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_put_with_metadata(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    value: ns_bytes,
    metadata: ns_metadata,
    version: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let value = unsafe { value.value() }?;
        // SAFETY: rule 2.
        let tags = unsafe { metadata.read() }?;
        let metadata = Metadata { tags: &tags, expires_ms: metadata.expires_ms };
        let put = |session: &Session, namespace, key: &[u8]| {
            session.put_with_metadata(namespace, key, value, metadata)
        };
        // SAFETY: the same rules.
        unsafe { change_record(session, namespace, key, version, put) }
    })
}

/// Writes a record and keeps its tags and its expiry time; `ns_put` removes them. A record that
/// does not exist is created without any. `version` receives the new version; it may be NULL.
///
/// The cost is that of a transaction that reads the record. Fails as `ns_put_with_metadata`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_put_keeping_metadata(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    value: ns_bytes,
    version: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let value = unsafe { value.value() }?;
        let put = |session: &Session, namespace, key: &[u8]| {
            session.put_keeping_metadata(namespace, key, value)
        };
        // SAFETY: the same rules.
        unsafe { change_record(session, namespace, key, version, put) }
    })
}

/// Returns the clock of this host: milliseconds since 1970, with the resolution of the kernel's
/// tick (1 to 10 ms). Expiry times refer to the clock of the region, `ns_session_now_ms`, which
/// differs in a region that is or was a copy of one on a host with another clock.
#[unsafe(no_mangle)]
pub extern "C" fn ns_now_ms() -> u64 {
    nearstate_store::now_ms_coarse()
}

/// Returns the clock by which the records of the region expire: milliseconds since 1970, with the
/// resolution of the kernel's tick (1 to 10 ms). A record whose expiry time is this and a time to
/// live ends after that time also after a fail-over between hosts whose clocks differ. Fails with
/// `NS_DAMAGED`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_session_now_ms(
    session: *mut ns_session,
    now_ms: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(now_ms, "the time") }?;
        out.put(call.session().store().now_ms_coarse()?);
        Ok(ns_status::NS_OK)
    })
}

/// Deletes up to `limit` expired records with their tags. Watchers receive one expiry event per
/// record, even if several processes collect. Reads never return an expired record, so this call
/// only frees memory and triggers the events. Any process may call it periodically. `records`
/// receives the number of deleted records, `has_more` whether more may exist; either may be NULL.
///
/// Records that cannot be deleted at present do not hold back others. Those of a namespace whose
/// writers are refused (`NS_FENCED`) are left until writers are admitted, without an error.
///
/// Fails with `NS_FULL`, `NS_STALLED`, `NS_BEHIND`, `NS_TRANSACTION_TOO_LARGE` if a record failed
/// and none was deleted; `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_collect_expired(
    session: *mut ns_session,
    limit: usize,
    records: *mut usize,
    has_more: *mut bool,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 3.
        let records = unsafe { Out::optional(records, "the number of records") }?;
        // SAFETY: rule 3.
        let has_more = unsafe { Out::optional(has_more, "has_more") }?;
        let collected = session.store().collect_expired(limit)?;
        records.put(collected.records);
        has_more.put(collected.has_more);
        Ok(ns_status::NS_OK)
    })
}

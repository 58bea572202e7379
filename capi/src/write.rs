//! Writes and deletions of records, with and without conditions.

use nearstate_model::Result;
use nearstate_store::{Condition, Namespace, Outcome, Session};

use crate::bytes::ns_bytes;
use crate::ffi::{Out, guard};
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;

/// Translates the outcome of a conditional change: the new version, or the current one (0: no
/// record).
pub(crate) fn status_of(outcome: Outcome, version: &Out<u64>) -> ns_status {
    match outcome {
        Outcome::Done { version: done } => {
            version.put(done);
            ns_status::NS_OK
        }
        Outcome::Refused { current } => {
            version.put(current.unwrap_or(0));
            ns_status::NS_REFUSED
        }
    }
}

/// Calls `change` with the checked session, namespace and key, and stores the version.
///
/// # Safety
/// Rules 1 to 3.
pub(crate) unsafe fn change_record(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    version: *mut u64,
    change: impl FnOnce(&Session, Namespace, &[u8]) -> Result<Outcome>,
) -> Result<ns_status> {
    // SAFETY: rule 1.
    let call = unsafe { enter(session) }?;
    let session = call.session();
    // SAFETY: rule 2.
    let key = unsafe { key.key() }?;
    // SAFETY: rule 3.
    let version = unsafe { Out::optional(version, "the version") }?;
    let namespace = session.namespace(namespace)?;
    let outcome = change(session.store(), namespace, key)?;
    Ok(status_of(outcome, &version))
}

/// # Safety
/// Rules 1 to 3.
unsafe fn put(
    session: *mut ns_session,
    namespace: ns_namespace,
    (key, value): (ns_bytes, ns_bytes),
    condition: Condition<'_>,
    version: *mut u64,
) -> Result<ns_status> {
    let put = |session: &Session, namespace, key: &[u8]| {
        // SAFETY: rule 2.
        session.put_if(namespace, key, unsafe { value.value() }?, condition)
    };
    // SAFETY: the same rules.
    unsafe { change_record(session, namespace, key, version, put) }
}

/// # Safety
/// Rules 1 to 3.
unsafe fn delete(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    condition: Condition<'_>,
    version: *mut u64,
) -> Result<ns_status> {
    let delete =
        |session: &Session, namespace, key: &[u8]| session.delete_if(namespace, key, condition);
    // SAFETY: the same rules.
    unsafe { change_record(session, namespace, key, version, delete) }
}

/// Writes a record; an existing one is replaced. When the call returns, the record is visible to
/// every process and survives the death of this one. It has no tags and no expiry: those of an
/// existing record are removed. `ns_put_keeping_metadata` keeps them, and `ns_put_with_metadata`
/// sets them. `version` receives the new version; it may be NULL.
///
/// Fails with `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`, `NS_FULL`, `NS_STALLED`,
/// `NS_DAMAGED`, `NS_FORKED`, `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`; in a namespace
/// with tags, limits or watches also with `NS_LIMIT_REACHED`, `NS_DEADLINE`,
/// `NS_TRANSACTION_TOO_LARGE`; in a logged or followed one also with `NS_NOT_OWNER`, `NS_FENCED`,
/// `NS_BEHIND`, `NS_TRANSACTION_TOO_LARGE`. Nothing was changed then. With `NS_NOT_REPLICATED`,
/// `NS_LOST` and `NS_OUTCOME_UNKNOWN` the commit was made (rule 6).
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_put(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    value: ns_bytes,
    version: *mut u64,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { put(session, namespace, (key, value), Condition::Always, version) })
}

/// Writes a record if it does not exist, otherwise `NS_REFUSED`. `version` receives the new
/// version, or the current one with `NS_REFUSED`; it may be NULL. Fails as `ns_put`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_put_if_absent(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    value: ns_bytes,
    version: *mut u64,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { put(session, namespace, (key, value), Condition::Absent, version) })
}

/// Writes a record if its current version is `expected`, otherwise `NS_REFUSED`. As with `ns_put`,
/// its tags and its expiry are removed. `version` receives the new version, or the current one (0:
/// no record) with `NS_REFUSED`; it may be NULL. Fails as `ns_put`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_put_if_version(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    value: ns_bytes,
    expected: u64,
    version: *mut u64,
) -> ns_status {
    let condition = Condition::Version(expected);
    // SAFETY: the same rules.
    guard(|| unsafe { put(session, namespace, (key, value), condition, version) })
}

/// Writes a record if its current value equals `expected` byte for byte, otherwise `NS_REFUSED`. As
/// with `ns_put`, its tags and its expiry are removed. `version` receives the new version, or the
/// current one (0: no record) with `NS_REFUSED`; it may be NULL. Fails as `ns_put`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_put_if_value(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    value: ns_bytes,
    expected: ns_bytes,
    version: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let condition = Condition::Value(unsafe { expected.value() }?);
        // SAFETY: the same rules.
        unsafe { put(session, namespace, (key, value), condition, version) }
    })
}

/// Deletes a record: `NS_NOT_FOUND` if it does not exist.
///
/// Fails with `NS_KEY_TOO_LARGE`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_SESSION_BUSY`,
/// `NS_BAD_ARGUMENT`; in a namespace with tags, limits or watches also with `NS_FULL`,
/// `NS_DEADLINE`, `NS_TRANSACTION_TOO_LARGE`; in a logged or followed one also with `NS_FULL`,
/// `NS_NOT_OWNER`, `NS_FENCED`, `NS_BEHIND`, `NS_TRANSACTION_TOO_LARGE`. Nothing was changed then.
/// With `NS_NOT_REPLICATED`, `NS_LOST` and `NS_OUTCOME_UNKNOWN` the commit was made (rule 6).
///
/// # Safety
/// Rules 1 and 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_delete(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
) -> ns_status {
    guard(|| {
        let no_version = std::ptr::null_mut();
        // SAFETY: the same rules.
        let status = unsafe { delete(session, namespace, key, Condition::Present, no_version) }?;
        let is_refused = status == ns_status::NS_REFUSED;
        Ok(if is_refused { ns_status::NS_NOT_FOUND } else { status })
    })
}

/// Deletes a record if its version is `expected`, otherwise `NS_REFUSED`. `version` receives the
/// deleted version, or the current one (0: no record) with `NS_REFUSED`; it may be NULL. Fails as
/// `ns_delete`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_delete_if_version(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    expected: u64,
    version: *mut u64,
) -> ns_status {
    let condition = Condition::Version(expected);
    // SAFETY: the same rules.
    guard(|| unsafe { delete(session, namespace, key, condition, version) })
}

/// Deletes a record if its value equals `expected` byte for byte, otherwise `NS_REFUSED`. `version`
/// receives the deleted version, or the current one (0: no record) with `NS_REFUSED`; it may be
/// NULL. Fails as `ns_delete`, and with `NS_WRONG_KIND` in a namespace of named blocks.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_delete_if_value(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    expected: ns_bytes,
    version: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let condition = Condition::Value(unsafe { expected.value() }?);
        // SAFETY: the same rules.
        unsafe { delete(session, namespace, key, condition, version) }
    })
}

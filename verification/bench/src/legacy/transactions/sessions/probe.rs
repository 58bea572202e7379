//! What is timed, as functions of their own: a profiler, or a counter of cache misses, finds each
//! by its name.

use super::herd::Subscriber;
use nearstate_model::Result;
use nearstate_store::{Metadata, Namespace, Session};

/// Puts a session with three tags.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn put_with_tags(
    session: &Session,
    namespace: Namespace,
    subscriber: &Subscriber,
    value: &[u8],
) -> Result<()> {
    let labels = Metadata { tags: &subscriber.tags(), expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(namespace, &subscriber.key, value, labels))
}

/// Puts the same bytes without tags.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn put_bare(
    session: &Session,
    namespace: Namespace,
    subscriber: &Subscriber,
    value: &[u8],
) -> Result<()> {
    session.put(namespace, &subscriber.key, value).map(|_| ())
}

/// The same in a transaction.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn put_in_transaction(
    session: &Session,
    namespace: Namespace,
    subscriber: &Subscriber,
    value: &[u8],
) -> Result<()> {
    session.transact(|txn| txn.put(namespace, &subscriber.key, value))
}

/// Deletes a session with its tags. False if there is none.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn delete_with_tags(
    session: &Session,
    namespace: Namespace,
    subscriber: &Subscriber,
) -> Result<bool> {
    session.transact(|txn| txn.delete(namespace, &subscriber.key))
}

/// Deletes one without tags. False if there is none.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn delete_bare(
    session: &Session,
    namespace: Namespace,
    subscriber: &Subscriber,
) -> Result<bool> {
    session.delete(namespace, &subscriber.key)
}

/// The same in a transaction. False if there is none.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn delete_in_transaction(
    session: &Session,
    namespace: Namespace,
    subscriber: &Subscriber,
) -> Result<bool> {
    session.transact(|txn| txn.delete(namespace, &subscriber.key))
}

//! Walks between `MULTI` and `EXEC`: over what is in the region, and what the transaction has
//! written over it.

use super::Area;
use crate::client::{Client, Lent};
use crate::commands::chance;
use crate::commands::keys::word;
use crate::refusal::Refusal;
use crate::work::SLICE_BUCKETS;
use nearstate_model::Result as Stored;
use nearstate_store::{Namespace, Session};
use std::collections::BTreeMap;

/// The most keys that `FLUSHALL` deletes in a transaction: all of them or none is a promise that
/// needs memory and locks for each.
const DELETED_MAX: usize = 1000;

/// A record of an area, as a transaction has it.
pub(super) struct Place<'k> {
    pub(super) namespace: Namespace,
    pub(super) key: &'k [u8],
}

/// Calls `each` with every key, as clients say it and as it stands in its namespace.
pub(super) fn each_key(
    session: &Session,
    txn: &dyn Lent,
    areas: &[Area],
    mut each: impl FnMut(&[u8], Place<'_>) -> Stored<()>,
) -> Result<(), Refusal> {
    let mut said = Vec::new();
    for area in areas {
        let namespace = area.namespace;
        let own: BTreeMap<Vec<u8>, bool> = txn.written(namespace).into_iter().collect();
        let mut tell = |key: &[u8]| {
            let is_sayable = area.say(key, &mut said);
            if is_sayable { each(&said, Place { namespace, key }) } else { Ok(()) }
        };
        let mut buckets = session.buckets(namespace)?;
        while session.walk_buckets(namespace, &mut buckets, SLICE_BUCKETS, |view| {
            if own.contains_key(view.key()) { Ok(()) } else { tell(view.key()) }
        })? {}
        for (key, _) in own.iter().filter(|(_, is_there)| **is_there) {
            tell(key)?;
        }
    }
    Ok(())
}

/// Those keys whose records have a type.
pub(super) fn of_form(
    client: &Client<'_>,
    keys: Vec<Vec<u8>>,
    form: &[u8],
) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut kept = Vec::new();
    for key in keys {
        let found = client.read(&key)?;
        if found.is_some_and(|found| word(found.form()).as_bytes().eq_ignore_ascii_case(form)) {
            kept.push(key);
        }
    }
    Ok(kept)
}

/// One of the keys, each as likely as any other.
pub(super) fn any_key(
    session: &Session,
    txn: &dyn Lent,
    areas: &[Area],
) -> Result<Option<Vec<u8>>, Refusal> {
    let mut picked = None;
    let mut count = 0;
    each_key(session, txn, areas, |said, _| {
        count += 1;
        if chance::below(count) == 0 {
            picked = Some(said.to_vec());
        }
        Ok(())
    })?;
    Ok(picked)
}

/// Deletes every key, or refuses before any is deleted.
pub(super) fn delete_all(session: &Session, txn: &dyn Lent, areas: &[Area]) -> Result<(), Refusal> {
    let mut keys = Vec::new();
    let mut count = 0;
    each_key(session, txn, areas, |_, place| {
        count += 1;
        if count <= DELETED_MAX {
            keys.push((place.namespace, place.key.to_vec()));
        }
        Ok(())
    })?;
    if count > DELETED_MAX {
        return Err(Refusal::new(format!(
            "ERR {count} keys: between MULTI and EXEC at most {DELETED_MAX} are deleted together; \
             send FLUSHALL alone"
        )));
    }
    for (namespace, key) in keys {
        txn.delete(namespace, &key)?;
    }
    Ok(())
}

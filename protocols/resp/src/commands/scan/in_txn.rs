//! Scans between `MULTI` and `EXEC`, over the records of the region and the writes of the
//! transaction.

use crate::command_context::CommandContext;
use crate::commands::key_iterator::NamespaceKeys;
use crate::commands::keys::{type_name, type_of_key};
use crate::commands::random;
use crate::records::ResolvedKey;
use crate::reply::error_reply::ErrorReply;
use crate::sliced_task::SLICE_BUCKETS;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Limit of keys that `FLUSHALL` deletes in a transaction, which needs memory and a lock for each.
const DELETED_MAX: usize = 1000;

/// Keys between two checks of the time limit.
const KEYS_PER_CLOCK_CHECK: usize = 64;

/// Calls `each` with every key, as clients write it and in its namespace, until it breaks or the
/// time limit is reached.
pub(super) fn each_key(
    ctx: &CommandContext<'_>,
    namespaces: &[NamespaceKeys],
    mut each: impl FnMut(&[u8], ResolvedKey<'_>) -> ControlFlow<()>,
) -> Result<(), ErrorReply> {
    let session = ctx.session();
    let mut key_text = Vec::new();
    ctx.change(|change| {
        for namespace_keys in namespaces {
            let namespace = namespace_keys.namespace;
            let written: BTreeMap<Vec<u8>, bool> =
                change.txn.written(namespace).into_iter().collect();
            let is_enough = Cell::new(false);
            let mut visit = |key: &[u8]| {
                if !is_enough.get() && namespace_keys.write_key(key, &mut key_text) {
                    is_enough.set(each(&key_text, ResolvedKey { namespace, key }).is_break());
                }
            };
            let mut buckets = session.buckets(namespace)?;
            let mut has_more = true;
            while has_more && !is_enough.get() {
                ctx.check_deadline()?;
                has_more =
                    session.walk_buckets(namespace, &mut buckets, SLICE_BUCKETS, |view| {
                        if !written.contains_key(view.key()) {
                            visit(view.key());
                        }
                        Ok(())
                    })?;
            }
            written.iter().filter(|(_, exists)| **exists).for_each(|(key, _)| visit(key));
            if is_enough.get() {
                break;
            }
        }
        Ok(())
    })
}

/// The keys whose records have a type.
pub(super) fn with_type(
    ctx: &CommandContext<'_>,
    keys: Vec<Vec<u8>>,
    form: &[u8],
) -> Result<Vec<Vec<u8>>, ErrorReply> {
    let mut kept = Vec::new();
    for (number, key) in keys.into_iter().enumerate() {
        if number.is_multiple_of(KEYS_PER_CLOCK_CHECK) {
            ctx.check_deadline()?;
        }
        let found = type_of_key(ctx, &key)?;
        if found.is_some_and(|found| type_name(found).as_bytes().eq_ignore_ascii_case(form)) {
            kept.push(key);
        }
    }
    Ok(kept)
}

/// A random key, uniformly distributed.
pub(super) fn any_key(
    ctx: &CommandContext<'_>,
    namespaces: &[NamespaceKeys],
) -> Result<Option<Vec<u8>>, ErrorReply> {
    let mut picked = None;
    let mut count = 0;
    each_key(ctx, namespaces, |key_text, _| {
        count += 1;
        if random::below(count) == 0 {
            picked = Some(key_text.to_vec());
        }
        ControlFlow::Continue(())
    })?;
    Ok(picked)
}

/// Deletes every key, or rejects the command before any is deleted.
pub(super) fn delete_all(
    ctx: &CommandContext<'_>,
    namespaces: &[NamespaceKeys],
) -> Result<(), ErrorReply> {
    let mut keys = Vec::new();
    let mut count = 0;
    each_key(ctx, namespaces, |_, ResolvedKey { namespace, key }| {
        count += 1;
        if count <= DELETED_MAX {
            keys.push((namespace, key.to_vec()));
        }
        ControlFlow::Continue(())
    })?;
    if count > DELETED_MAX {
        return Err(ErrorReply::new(format!(
            "ERR {count} keys exceed the limit of {DELETED_MAX} for FLUSHALL between MULTI and \
             EXEC: send FLUSHALL alone"
        )));
    }
    ctx.change(|change| {
        for (namespace, key) in &keys {
            change.txn.delete(*namespace, key)?;
        }
        Ok(())
    })
}

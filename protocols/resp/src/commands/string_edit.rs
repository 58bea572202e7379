//! Changes of a string that keep its expiration time and its tags.

use crate::command_context::CommandContext;
use crate::records::{RecordRef, RetainedMetadata, put_string};
use crate::reply::error_reply::ErrorReply;
use std::ops::ControlFlow;

/// The bytes of a string, if the record exists.
pub(super) fn text<'f>(found: Option<&'f RecordRef<'_>>) -> Result<&'f [u8], ErrorReply> {
    found.map_or(Ok(&[]), |found| found.string())
}

fn kept_metadata(found: Option<&RecordRef<'_>>) -> RetainedMetadata {
    found.map(RetainedMetadata::of).unwrap_or_default()
}

/// Replaces the bytes of a string, and keeps its expiration time and tags. Returns the result of
/// `edit`, whose argument is empty if the key does not exist.
pub(super) fn edit<T>(
    ctx: &CommandContext<'_>,
    key: &[u8],
    mut edit: impl FnMut(&mut Vec<u8>, bool) -> Result<T, ErrorReply>,
) -> Result<T, ErrorReply> {
    edit_string(ctx, key, |bytes, exists| edit(bytes, exists).map(ControlFlow::Continue))
}

/// As [`edit`]; nothing is written if `edit` returns `Break`.
pub(super) fn edit_string<T>(
    ctx: &CommandContext<'_>,
    key: &[u8],
    mut edit: impl FnMut(&mut Vec<u8>, bool) -> Result<ControlFlow<T, T>, ErrorReply>,
) -> Result<T, ErrorReply> {
    ctx.change(|change| {
        let resolved = if let Some(resolved) = change.records.resolve(key)? {
            resolved
        } else {
            // An error for a missing key is detected before the namespace is created.
            let mut bytes = Vec::new();
            if let ControlFlow::Break(answer) = edit(&mut bytes, false)? {
                return Ok(answer);
            }
            change.resolved(key, bytes.len())?
        };
        let found = change.read_at(resolved)?;
        let mut bytes = text(found.as_ref())?.to_vec();
        let (kept, exists) = (kept_metadata(found.as_ref()), found.is_some());
        drop(found);
        let answer = match edit(&mut bytes, exists)? {
            ControlFlow::Break(answer) => return Ok(answer),
            ControlFlow::Continue(answer) => answer,
        };
        put_string(change.txn, resolved, &bytes, &kept)?;
        Ok(answer)
    })
}

//! Reads as functions of their own, so that `objdump` finds their instructions in the program by
//! name: see [`NAMES`].

use crate::operations::{BATCH, touch};
use nearstate_model::Result;
use nearstate_store::{CreateOptions, Namespace, Region, Schema, Session};
use std::hint::black_box;
use std::path::Path;

/// The names of the functions, and what each does.
pub(super) const NAMES: [(&str, &str); 3] =
    [("probe_of_view", "view"), ("probe_of_copy", "copy"), ("probe_of_batch", "batch of 16")];

#[inline(never)]
fn probe_of_view(session: &Session, namespace: Namespace, key: &[u8]) -> Result<u64> {
    Ok(session.get(namespace, key)?.map_or(0, |view| touch(view.bytes())))
}

#[inline(never)]
fn probe_of_copy(
    session: &Session,
    namespace: Namespace,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool> {
    Ok(session.get_copy(namespace, key, out)?.is_some())
}

#[inline(never)]
fn probe_of_batch(session: &Session, namespace: Namespace, keys: &[&[u8]]) -> Result<u64> {
    let mut sum = 0;
    session.get_batch(namespace, keys, |_, view| {
        sum += view.map_or(0, |view| touch(view.bytes()));
    })?;
    Ok(sum)
}

/// Runs each probe once on a new region at `path`, so that all of them are in the program.
pub(super) fn run_all(path: &Path) -> Result<()> {
    let region = Region::create(path, &CreateOptions::default())?;
    let session = region.session()?;
    let namespace = session.namespace("probes", &Schema::default())?;
    let keys = [b"key"; BATCH].map(<[u8; 3]>::as_slice);
    session.put(namespace, b"key", &[1; 64])?;
    let view = black_box(probe_of_view)(&session, namespace, b"key")?;
    let is_copied = black_box(probe_of_copy)(&session, namespace, b"key", &mut Vec::new())?;
    let batch = black_box(probe_of_batch)(&session, namespace, &keys)?;
    if (view, is_copied, batch) == (2, true, 2 * BATCH as u64) {
        return Ok(());
    }
    Err(backend_error!("a probe did not read its record"))
}

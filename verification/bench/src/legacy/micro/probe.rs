//! Reads as functions of their own, so that their instructions can be found in the program and
//! their system calls counted. The names are searched for: see [`NAMES`].

use super::peers::region::RegionStore;
use super::work::{BATCH, Work, touch};
use nearstate_model::Result;
use nearstate_store::{Namespace, Session};
use std::hint::black_box;

/// What the functions are called, and what they do.
pub const NAMES: [(&str, &str); 3] = [
    ("micro_probe_view", "keyed view"),
    ("micro_probe_copy", "keyed copy"),
    ("micro_probe_batch", "batch of 16"),
];

/// A keyed view.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn micro_probe_view(session: &Session, namespace: Namespace, key: &[u8]) -> Result<u64> {
    Ok(session.get(namespace, key)?.map_or(0, |view| touch(view.bytes())))
}

/// A keyed copy.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn micro_probe_copy(
    session: &Session,
    namespace: Namespace,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool> {
    Ok(session.get_copy(namespace, key, out)?.is_some())
}

/// A batch of views.
///
/// # Errors
/// What the region said.
#[inline(never)]
pub fn micro_probe_batch(session: &Session, namespace: Namespace, keys: &[&[u8]]) -> Result<u64> {
    let mut sum = 0;
    session.get_batch(namespace, keys, |_, view| {
        sum += view.map_or(0, |view| touch(view.bytes()));
    })?;
    Ok(sum)
}

/// Runs all of them over the keys of a turn; returns how many records were read.
///
/// # Errors
/// What the region said.
pub fn all(store: &RegionStore, work: &Work<'_>) -> Result<u64> {
    let (session, namespace) = (&store.session, store.namespace);
    let mut out = Vec::with_capacity(1 << 21);
    let mut read = 0;
    for run in &work.runs {
        for key in *run {
            black_box(micro_probe_view(session, namespace, key)?);
            read += u64::from(micro_probe_copy(session, namespace, key, &mut out)?);
        }
        for keys in run.as_chunks::<BATCH>().0 {
            let keys = keys.each_ref().map(<[u8; _]>::as_slice);
            black_box(micro_probe_batch(session, namespace, &keys)?);
        }
    }
    Ok(read)
}

//! The loops whose time is taken. Each is compiled for each target, so that nothing stands between
//! the clock and the operation; each counts what it found, and finding too little is an error.

use super::work::{BATCH, Work, touch};
use nearstate_model::{Error, Result};
use std::hint::black_box;

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// By key, the value looked at where it lies.
    View,
    /// By key, the value copied out.
    Copy,
    /// Sixteen keys at once, looked at where they lie.
    BatchView,
    /// Sixteen keys at once, copied out.
    BatchCopy,
    /// By key, the next key not known before the value is there; looked at in place.
    Chain,
    /// By key, another value of the same size.
    Put,
    /// From a record to the next one, neither key nor value looked at.
    Step,
}

/// A way into a store. Closures get the value where it lies.
pub trait Store {
    /// Puts one record.
    ///
    /// # Errors
    /// What the store said.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Looks at a value in place; `None` if the key is absent.
    ///
    /// # Errors
    /// What the store said.
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>>;

    /// Copies a value into `out` (cleared first); false if the key is absent.
    ///
    /// # Errors
    /// What the store said.
    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;

    /// Reads several keys at once; `look` sees the number and value of each that is there.
    ///
    /// # Errors
    /// What the store said.
    fn batch(&mut self, keys: &[&[u8]], look: impl FnMut(usize, &[u8])) -> Result<()>;

    /// Steps through all records once; returns how many there were.
    ///
    /// # Errors
    /// What the store said.
    fn steps(&mut self) -> Result<u64>;
}

/// Runs one turn; nanoseconds for each operation.
///
/// # Errors
/// What the store said, and [`Error::Backend`] if records were missing.
pub fn run<S: Store>(store: &mut S, job: Job, work: &Work<'_>) -> Result<f64> {
    let start_ns = work.clock.now_ns();
    let (found, expected) = match job {
        Job::View => (views(store, work)?, work.ops),
        Job::Copy => (copies(store, work)?, work.ops),
        Job::BatchView => (batch_views(store, work)?, work.ops),
        Job::BatchCopy => (batch_copies(store, work)?, work.ops),
        Job::Chain => (chain(store, work)?, work.ops),
        Job::Put => (puts(store, work)?, work.ops),
        Job::Step => (store.steps()?, work.keys.len() as u64),
    };
    let ns = work.clock.now_ns() - start_ns;
    if found != expected {
        return Err(Error::Backend {
            detail: format!("{found} records were met where {expected} should be"),
        });
    }
    Ok(crate::stat::sequence_average(ns, found))
}

fn views<S: Store>(store: &mut S, work: &Work<'_>) -> Result<u64> {
    let (mut found, mut sum) = (0, 0_u64);
    for run in &work.runs {
        for key in *run {
            if let Some(seen) = store.view(key, touch)? {
                sum = sum.wrapping_add(seen);
                found += 1;
            }
        }
    }
    black_box(sum);
    Ok(found)
}

fn copies<S: Store>(store: &mut S, work: &Work<'_>) -> Result<u64> {
    let (mut found, mut sum) = (0, 0_u64);
    let mut out = Vec::new();
    for run in &work.runs {
        for key in *run {
            if store.copy(key, &mut out)? {
                // All of the copy must be there, not only the bytes that are summed.
                sum = sum.wrapping_add(touch(black_box(&out)));
                found += 1;
            }
        }
    }
    black_box(sum);
    Ok(found)
}

/// Calls `read` with sixteen keys at a time.
fn batches(work: &Work<'_>, mut read: impl FnMut(&[&[u8]]) -> Result<()>) -> Result<()> {
    for run in &work.runs {
        let (whole, rest) = run.as_chunks::<BATCH>();
        for keys in whole {
            let keys = keys.each_ref().map(<[u8; _]>::as_slice);
            read(&keys)?;
        }
        if !rest.is_empty() {
            let keys: Vec<&[u8]> = rest.iter().map(<[u8; _]>::as_slice).collect();
            read(&keys)?;
        }
    }
    Ok(())
}

fn batch_views<S: Store>(store: &mut S, work: &Work<'_>) -> Result<u64> {
    let (mut found, mut sum) = (0, 0_u64);
    batches(work, |keys| {
        store.batch(keys, |_, value| {
            sum = sum.wrapping_add(touch(value));
            found += 1;
        })
    })?;
    black_box(sum);
    Ok(found)
}

fn batch_copies<S: Store>(store: &mut S, work: &Work<'_>) -> Result<u64> {
    let mut found = 0;
    let mut sum = 0_u64;
    let mut out: [Vec<u8>; BATCH] = std::array::from_fn(|_| Vec::new());
    batches(work, |keys| {
        store.batch(keys, |at, value| {
            if let Some(out) = out.get_mut(at) {
                out.clear();
                out.extend_from_slice(value);
                found += 1;
            }
        })?;
        for out in black_box(&out) {
            sum = sum.wrapping_add(touch(out));
        }
        Ok(())
    })?;
    black_box(sum);
    Ok(found)
}

fn chain<S: Store>(store: &mut S, work: &Work<'_>) -> Result<u64> {
    let (mut found, mut seen) = (0, 0_u64);
    for run in &work.runs {
        for at in 0..run.len() {
            // Adds nothing, but the processor cannot know that before it has the value.
            let at = at + usize::try_from(seen & work.zero).unwrap_or(0);
            let Some(key) = run.get(at) else { continue };
            if let Some(touched) = store.view(key, touch)? {
                seen = touched;
                found += 1;
            }
        }
    }
    black_box(seen);
    Ok(found)
}

fn puts<S: Store>(store: &mut S, work: &Work<'_>) -> Result<u64> {
    let mut done = 0;
    let mut values = work.values.iter().cycle();
    for run in &work.runs {
        for key in *run {
            let value = values.next().map_or(&[][..], Vec::as_slice);
            store.put(key, value)?;
            done += 1;
        }
    }
    Ok(done)
}

//! Single operations in blocks: loops with one clock reading around many operations.
//!
//! An operation of some nanoseconds cannot be measured alone, since reading the clock costs as
//! much. The loops are compiled once for each store, so that the compiler can inline the operation.
//! Each loop counts the records that it finds, and the caller checks the count.

use nearstate_model::Result;
use std::hint::black_box;

/// Bytes of a key: `imsi-` and fifteen digits.
pub const KEY_BYTES: usize = 20;

pub type RecordKey = [u8; KEY_BYTES];

/// Keys of one batch.
pub const BATCH: usize = 16;

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// By key; the value is read in place.
    View,
    /// As [`Operation::View`], sixteen reads under one pin where a store has such a scope.
    ScopeView,
    /// By key; the value is copied.
    Copy,
    /// Sixteen keys at once; the values are read in place.
    BatchView,
    /// Sixteen keys at once; the values are copied.
    BatchCopy,
    /// By key; the next key depends on the value.
    Chain,
    /// By key; another value of the same size.
    Put,
    /// By key; the value is read in place and another one put, in one transaction.
    Update,
    /// Through all records in storage order; neither key nor value is read.
    Walk,
}

/// The keys and values of one block.
#[derive(Clone, Copy, Debug)]
pub struct KeyBlock<'a> {
    /// The keys, in the order in which they are used.
    pub keys: &'a [RecordKey],
    /// The values of puts, used in turn.
    pub values: &'a [Vec<u8>],
}

/// What a block has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockOutcome {
    /// Records that were found or written.
    pub met: u64,
    /// The sum of [`touch`] of all values that were read, if they were read in this process.
    pub sum: Option<u64>,
}

/// The operations of a store. Closures get the value in place.
pub trait Store {
    /// Puts a record.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Reads a value in place; `None` if the key does not exist.
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>>;

    /// Reads values in place, one after the other; `look` gets the value of each key that exists.
    #[inline]
    fn scope(&mut self, keys: &[RecordKey], mut look: impl FnMut(&[u8])) -> Result<()> {
        for key in keys {
            self.view(key, &mut look)?;
        }
        Ok(())
    }

    /// Reads a value in place and puts another one, in one transaction; `None` and no put if the
    /// key does not exist.
    fn update<T>(
        &mut self,
        _key: &[u8],
        _value: &[u8],
        _look: impl FnMut(&[u8]) -> T,
    ) -> Result<Option<T>> {
        Err(bad_argument!("this target has no transactions"))
    }

    /// Copies a value into `out`, which is cleared first; false if the key does not exist.
    #[inline]
    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let copied = self.view(key, |value| out.extend_from_slice(value))?;
        Ok(copied.is_some())
    }

    /// Reads several keys at once; `look` gets the number and the value of each that exists.
    #[inline]
    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        for (at, key) in keys.iter().enumerate() {
            self.view(key, |value| look(at, value))?;
        }
        Ok(())
    }

    /// As [`Store::batch`], for a `look` that reads each whole value.
    #[inline]
    fn batch_whole(&mut self, keys: &[&[u8]], look: impl FnMut(usize, &[u8])) -> Result<()> {
        self.batch(keys, look)
    }

    /// Steps through all records once; returns their number.
    fn walk(&mut self) -> Result<u64>;
}

/// Runs one block.
pub fn run<S: Store>(
    store: &mut S,
    operation: Operation,
    block: KeyBlock<'_>,
) -> Result<BlockOutcome> {
    let (met, sum) = match operation {
        Operation::View => views(store, block.keys),
        Operation::ScopeView => scope_views(store, block.keys),
        Operation::Copy => copies(store, block.keys),
        Operation::BatchView => batch_views(store, block.keys),
        Operation::BatchCopy => batch_copies(store, block.keys),
        Operation::Chain => chain(store, block.keys),
        Operation::Put => puts(store, block),
        Operation::Update => updates(store, block),
        Operation::Walk => store.walk().map(|met| (met, 0)),
    }?;
    Ok(BlockOutcome { met, sum: Some(sum) })
}

/// Reads the first and the last byte of a value.
#[inline]
pub fn touch(value: &[u8]) -> u64 {
    let first = value.first().copied().map_or(0, u64::from);
    let last = value.last().copied().map_or(0, u64::from);
    first + last
}

fn views<S: Store>(store: &mut S, keys: &[RecordKey]) -> Result<(u64, u64)> {
    let (mut met, mut sum) = (0, 0_u64);
    for key in keys {
        if let Some(seen) = store.view(key, touch)? {
            sum = sum.wrapping_add(seen);
            met += 1;
        }
    }
    Ok((met, sum))
}

fn scope_views<S: Store>(store: &mut S, keys: &[RecordKey]) -> Result<(u64, u64)> {
    let (mut met, mut sum) = (0, 0_u64);
    for some in keys.chunks(BATCH) {
        store.scope(some, |value| {
            sum = sum.wrapping_add(touch(value));
            met += 1;
        })?;
    }
    Ok((met, sum))
}

fn copies<S: Store>(store: &mut S, keys: &[RecordKey]) -> Result<(u64, u64)> {
    let (mut met, mut sum) = (0, 0_u64);
    let mut out = Vec::new();
    for key in keys {
        if store.copy(key, &mut out)? {
            // The whole copy must exist, not only the bytes that are summed.
            sum = sum.wrapping_add(touch(black_box(&out)));
            met += 1;
        }
    }
    Ok((met, sum))
}

/// Calls `read` with sixteen keys at a time.
fn batches(keys: &[RecordKey], mut read: impl FnMut(&[&[u8]]) -> Result<()>) -> Result<()> {
    let (whole, rest) = keys.as_chunks::<BATCH>();
    for keys in whole {
        let keys = keys.each_ref().map(<[u8; _]>::as_slice);
        read(&keys)?;
    }
    if rest.is_empty() {
        return Ok(());
    }
    let keys: Vec<&[u8]> = rest.iter().map(<[u8; _]>::as_slice).collect();
    read(&keys)
}

fn batch_views<S: Store>(store: &mut S, keys: &[RecordKey]) -> Result<(u64, u64)> {
    let (mut met, mut sum) = (0, 0_u64);
    batches(keys, |keys| {
        store.batch(keys, |_, value| {
            sum = sum.wrapping_add(touch(value));
            met += 1;
        })
    })?;
    Ok((met, sum))
}

fn batch_copies<S: Store>(store: &mut S, keys: &[RecordKey]) -> Result<(u64, u64)> {
    let (mut met, mut sum) = (0, 0_u64);
    let mut out: [Vec<u8>; BATCH] = std::array::from_fn(|_| Vec::new());
    batches(keys, |keys| {
        store.batch_whole(keys, |at, value| {
            if let Some(out) = out.get_mut(at) {
                out.clear();
                out.extend_from_slice(value);
                sum = sum.wrapping_add(touch(black_box(out)));
                met += 1;
            }
        })
    })?;
    Ok((met, sum))
}

fn chain<S: Store>(store: &mut S, keys: &[RecordKey]) -> Result<(u64, u64)> {
    let (mut met, mut sum, mut seen) = (0, 0_u64, 0);
    // The compiler does not know this zero, so that a product with it has to be waited for.
    let zero = black_box(0);
    for at in 0..keys.len() {
        // Adds nothing, but the processor cannot know that before it has the value.
        let at = at + usize::try_from(seen & zero).unwrap_or(0);
        let Some(key) = keys.get(at) else { continue };
        if let Some(touched) = store.view(key, touch)? {
            seen = touched;
            sum = sum.wrapping_add(touched);
            met += 1;
        }
    }
    Ok((met, sum))
}

fn puts<S: Store>(store: &mut S, block: KeyBlock<'_>) -> Result<(u64, u64)> {
    let mut done = 0;
    let mut values = block.values.iter().cycle();
    for key in block.keys {
        let value = values.next().map_or(&[][..], Vec::as_slice);
        store.put(key, value)?;
        done += 1;
    }
    Ok((done, 0))
}

fn updates<S: Store>(store: &mut S, block: KeyBlock<'_>) -> Result<(u64, u64)> {
    let (mut met, mut sum) = (0, 0_u64);
    let mut values = block.values.iter().cycle();
    for key in block.keys {
        let value = values.next().map_or(&[][..], Vec::as_slice);
        if let Some(seen) = store.update(key, value, touch)? {
            sum = sum.wrapping_add(seen);
            met += 1;
        }
    }
    Ok((met, sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Map(BTreeMap<Vec<u8>, Vec<u8>>);

    impl Store for Map {
        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            self.0.insert(key.to_vec(), value.to_vec());
            Ok(())
        }

        fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
            Ok(self.0.get(key).map(|value| look(value)))
        }

        fn walk(&mut self) -> Result<u64> {
            Ok(self.0.len() as u64)
        }
    }

    const READS: [Operation; 6] = [
        Operation::View,
        Operation::ScopeView,
        Operation::Copy,
        Operation::BatchView,
        Operation::BatchCopy,
        Operation::Chain,
    ];

    #[test]
    fn each_loop_counts_the_records_that_it_finds() {
        let mut store = Map::default();
        let keys: Vec<RecordKey> = (0..37).map(|at| [at; KEY_BYTES]).collect();
        let values = [b"one".to_vec(), b"two".to_vec()];
        let block = KeyBlock { keys: &keys, values: &values };
        assert_eq!(run(&mut store, Operation::Put, block).unwrap().met, 37);
        assert_eq!(store.0.get(keys[1].as_slice()), Some(&b"two".to_vec()));
        store.0.remove(keys[20].as_slice());
        for operation in READS {
            // Of the values "one" and "two" in turn, without the first one of the key 20.
            let sum = Some(18 * touch(b"one") + 18 * touch(b"two"));
            let outcome = run(&mut store, operation, block).unwrap();
            assert_eq!(outcome, BlockOutcome { met: 36, sum }, "{operation:?}");
        }
        assert_eq!(run(&mut store, Operation::Walk, block).unwrap().met, 36);
        assert!(run(&mut store, Operation::Update, block).is_err(), "it has no transactions");
    }

    #[test]
    fn a_touch_reads_both_ends() {
        assert_eq!(touch(&[3, 100, 4]), 7);
        assert_eq!(touch(&[]), 0);
    }
}

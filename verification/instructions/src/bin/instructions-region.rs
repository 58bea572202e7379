//! Operations on a region: 1,000 records with keys of 20 bytes and values of 1,000.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::process::ExitCode;

use nearstate_instructions::{
    MeasuredOperation, MeasuredResult, RECORDS, VALUE, key, measured, new_region, run,
};
use nearstate_store::{
    BlockChange, BlockLayout, Condition, Kind, Metadata, Namespace, Region, Schema, Session,
    TagSchema, View, WhenFull,
};

const OPERATIONS: &[MeasuredOperation] = &[
    ("key", 8000, only_key),
    ("view", 8000, view),
    ("scope-view", 8000, scope_view),
    ("copy", 8000, copy),
    ("batch-view", 8000, batch_view),
    ("batch-copy", 8000, batch_copy),
    ("block-view", 8000, block_view),
    ("find-by-tag", 8000, find_by_tag),
    ("read-transaction", 2000, read_transaction),
    ("put", 8000, put),
    ("insert", 8000, insert),
    ("logged-put", 8000, logged_put),
    ("batch-put", 8000, batch_put),
    ("patch", 8000, patch),
    ("transaction-patch", 8000, transaction_patch),
    ("update", 8000, update),
    ("logged-update", 8000, logged_update),
    ("update-by-tag", 8000, update_by_tag),
    ("read-modify-write", 8000, read_modify_write),
    ("tagged-insert", 1000, tagged_insert),
    ("tagged-delete", 1000, tagged_delete),
];

fn main() -> ExitCode {
    run(OPERATIONS)
}

/// Keys of a batch.
const BATCH: usize = 16;
const BLOCKS: [&str; 8] = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7"];

/// A region with records, and keys in an order that looks random.
struct Loaded {
    region: Region,
    session: Session,
    values: Namespace,
    random: u64,
    _folder: tempfile::TempDir,
}

impl Loaded {
    fn new() -> MeasuredResult<Self> {
        let (region, folder) = new_region()?;
        let session = region.session()?;
        let values = session.namespace("values", &Schema::default())?;
        let mut loaded =
            Self { region, session, values, random: 88_172_645_463_325_252, _folder: folder };
        for number in 0..RECORDS {
            loaded.session.put(values, &key(number), &VALUE)?;
        }
        // Queues of retired cells are filled: each put reuses a cell.
        for _ in 0..8 * RECORDS {
            let key = loaded.next_key();
            loaded.session.put(values, &key, &VALUE)?;
        }
        Ok(loaded)
    }

    /// A key of a record (Marsaglia, Xorshift RNGs).
    #[inline]
    fn next_key(&mut self) -> [u8; 20] {
        key(self.next_number())
    }

    #[inline]
    fn next_number(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % RECORDS
    }

    /// A namespace of records of eight blocks of 20 to 90 bytes.
    fn blocks(&self) -> MeasuredResult<Namespace> {
        let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
        let blocks = self.session.namespace("blocks", &schema)?;
        let bytes = [1; 90];
        let sizes = [90, 20, 90, 40, 90, 90, 90, 90];
        let changes: Vec<BlockChange<'_>> = BLOCKS
            .iter()
            .zip(sizes)
            .map(|(name, size)| BlockChange { name, bytes: bytes.get(..size) })
            .collect();
        for _ in 0..4 {
            for number in 0..RECORDS {
                self.session.patch(blocks, &key(number), &changes, Condition::Always)?;
            }
        }
        Ok(blocks)
    }

    /// A namespace with three tags, two of them unique.
    fn tagged(&self) -> MeasuredResult<Namespace> {
        let tag = |name: &str, is_unique| TagSchema {
            name: name.to_owned(),
            is_unique,
            ..TagSchema::default()
        };
        let tags = vec![tag("guti", true), tag("ip", true), tag("cell", false)];
        Ok(self.session.namespace("tagged", &Schema { tags, ..Schema::default() })?)
    }

    fn insert_tagged(&self, tagged: Namespace, number: u64) -> MeasuredResult {
        let (guti, ip) = (number.to_le_bytes(), (number ^ 0xffff_ffff).to_le_bytes());
        let tags: &[(&str, &[u8])] = &[("guti", &guti), ("ip", &ip), ("cell", b"c1")];
        let metadata = Metadata { tags, ..Metadata::default() };
        self.session.transact(|txn| {
            txn.put_with_metadata(tagged, &key(number), black_box(&VALUE), metadata)
        })?;
        Ok(())
    }
}

/// The key alone, which each other operation on a region counts as well.
fn only_key(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    measured(times, |_| {
        black_box(loaded.next_key());
        Ok(())
    })
}

/// A zero-copy read in a scope.
fn scope_view(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let session = loaded.region.session()?;
    let reads = session.read_scope(loaded.values)?;
    measured(times, |_| {
        let key = loaded.next_key();
        let view = reads.get(&key)?.ok_or("no record")?;
        black_box(view.bytes().first());
        Ok(())
    })
}

/// A zero-copy read.
fn view(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    measured(times, |_| {
        let key = loaded.next_key();
        let view = loaded.session.get(loaded.values, &key)?.ok_or("no record")?;
        black_box(view.bytes().first());
        Ok(())
    })
}

/// A read into a buffer.
fn copy(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let mut out = Vec::with_capacity(VALUE.len());
    measured(times, |_| {
        let key = loaded.next_key();
        black_box(loaded.session.get_copy(loaded.values, &key, &mut out)?);
        Ok(())
    })
}

/// A zero-copy read of 16 keys at once, counted for each key.
fn batch_view(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    measured(times / BATCH as u64, |_| {
        let keys: [[u8; 20]; BATCH] = std::array::from_fn(|_| loaded.next_key());
        let keys = keys.each_ref().map(<[u8; 20]>::as_slice);
        loaded.session.get_batch(loaded.values, &keys, |_, view| {
            black_box(view.map(|view| view.bytes().first().copied()));
        })?;
        Ok(())
    })
}

/// A copy of 16 keys at once, counted for each key.
fn batch_copy(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let mut out = Vec::with_capacity(VALUE.len());
    measured(times / BATCH as u64, |_| {
        let keys: [[u8; 20]; BATCH] = std::array::from_fn(|_| loaded.next_key());
        let keys = keys.each_ref().map(<[u8; 20]>::as_slice);
        loaded.session.get_batch_whole(loaded.values, &keys, |_, view| {
            out.clear();
            out.extend_from_slice(view.as_ref().map(View::bytes).unwrap_or_default());
            black_box(&out);
        })?;
        Ok(())
    })
}

/// A zero-copy read of three of eight blocks.
fn block_view(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let blocks = loaded.blocks()?;
    let layout = BlockLayout::new(&BLOCKS)?;
    measured(times, |_| {
        let key = loaded.next_key();
        let view = loaded.session.get(blocks, &key)?.ok_or("no record")?;
        let mut sum = 0;
        view.blocks_of(&layout, |block| block % 3 == 0, |_, bytes| sum += bytes.len());
        black_box(sum);
        Ok(())
    })
}

/// A zero-copy read of the record that has a value of a unique tag.
fn find_by_tag(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let tagged = loaded.tagged()?;
    (0..RECORDS).try_for_each(|number| loaded.insert_tagged(tagged, number))?;
    measured(times, |_| {
        let value = loaded.next_number().to_le_bytes();
        let view = loaded.session.find(tagged, "guti", &value)?.ok_or("no record")?;
        black_box(view.bytes().first());
        Ok(())
    })
}

/// A transaction that reads four records.
fn read_transaction(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    measured(times, |_| {
        let keys: [[u8; 20]; 4] = std::array::from_fn(|_| loaded.next_key());
        loaded.session.transact(|txn| {
            for key in &keys {
                black_box(txn.get(loaded.values, key)?.map(|view| view.bytes().first().copied()));
            }
            Ok::<_, nearstate_store::Error>(())
        })?;
        Ok(())
    })
}

/// A put that replaces a record.
fn put(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    measured(times, |_| {
        let key = loaded.next_key();
        black_box(loaded.session.put(loaded.values, &key, black_box(&VALUE))?);
        Ok(())
    })
}

/// A put of a new record. The index grows with it.
fn insert(times: u64) -> MeasuredResult {
    let loaded = Loaded::new()?;
    let inserted = loaded.session.namespace("inserted", &Schema::default())?;
    measured(times, |number| {
        black_box(loaded.session.put(inserted, &key(number), black_box(&[7; 100]))?);
        Ok(())
    })
}

/// A put that replaces a record of a logged namespace. Nothing reads the log.
fn logged_put(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    loaded.session.stream(loaded.values, WhenFull::LoseOldest)?;
    // The log holds as much as it may: each put retires what another one has replaced.
    for _ in 0..24 * RECORDS {
        let key = loaded.next_key();
        loaded.session.put(loaded.values, &key, &VALUE)?;
    }
    measured(times, |_| {
        let key = loaded.next_key();
        black_box(loaded.session.put(loaded.values, &key, black_box(&VALUE))?);
        Ok(())
    })
}

/// A put of 16 records at once, counted for each record.
fn batch_put(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    measured(times / BATCH as u64, |_| {
        let keys: [[u8; 20]; BATCH] = std::array::from_fn(|_| loaded.next_key());
        let records = keys.each_ref().map(|key| (key.as_slice(), black_box(VALUE.as_slice())));
        Ok(loaded.session.put_batch(loaded.values, &records)?)
    })
}

/// A patch of two blocks of eight by their names.
fn patch(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let blocks = loaded.blocks()?;
    measured(times, |number| {
        let (key, bytes) = (loaded.next_key(), [number.to_le_bytes(); 5]);
        let bytes = bytes.as_flattened();
        let changes = [
            BlockChange { name: "b1", bytes: bytes.get(..20) },
            BlockChange { name: "b3", bytes: Some(bytes) },
        ];
        black_box(loaded.session.patch(blocks, &key, &changes, Condition::Always)?);
        Ok(())
    })
}

/// The same in a transaction.
fn transaction_patch(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let blocks = loaded.blocks()?;
    measured(times, |number| {
        let (key, bytes) = (loaded.next_key(), [number.to_le_bytes(); 5]);
        let bytes = bytes.as_flattened();
        let changes = [
            BlockChange { name: "b1", bytes: bytes.get(..20) },
            BlockChange { name: "b3", bytes: Some(bytes) },
        ];
        loaded.session.transact(|txn| txn.patch(blocks, &key, &changes))?;
        Ok(())
    })
}

/// A read of four blocks of eight and a patch of two, as a signalling procedure does it.
fn update(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let blocks = loaded.blocks()?;
    let layout = BlockLayout::new(&BLOCKS)?;
    measured(times, |number| update_one(&mut loaded, blocks, &layout, number))
}

/// As [`update`], in a logged namespace. Nothing reads the log.
fn logged_update(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let blocks = loaded.blocks()?;
    let layout = BlockLayout::new(&BLOCKS)?;
    loaded.session.stream(blocks, WhenFull::LoseOldest)?;
    // The log holds as much as it may.
    for number in 0..24 * RECORDS {
        update_one(&mut loaded, blocks, &layout, number)?;
    }
    measured(times, |number| update_one(&mut loaded, blocks, &layout, number))
}

#[inline]
fn update_one(
    loaded: &mut Loaded,
    blocks: Namespace,
    layout: &BlockLayout,
    number: u64,
) -> MeasuredResult {
    let (key, bytes) = (loaded.next_key(), [number.to_le_bytes(); 5]);
    let bytes = bytes.as_flattened();
    let record = loaded.session.get_for_update(blocks, &key)?.ok_or("no record")?;
    let mut sum = 0;
    record.blocks_of(layout, |block| block % 2 == 0, |_, bytes| sum += bytes.len());
    let changes = [(1, bytes.get(..20).unwrap_or_default()), (3, bytes)];
    black_box((sum, record.patch(layout, &changes)?));
    Ok(())
}

/// A record of blocks is found by a unique tag, and one of its blocks is patched.
fn update_by_tag(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let guti = TagSchema { name: "guti".to_owned(), is_unique: true, ..TagSchema::default() };
    let schema = Schema { kind: Kind::Blocks, tags: vec![guti] };
    let blocks = loaded.session.namespace("located", &schema)?;
    let changes = BLOCKS.map(|name| BlockChange { name, bytes: Some(&[1; 20]) });
    for number in 0..RECORDS {
        let tags: &[(&str, &[u8])] = &[("guti", &number.to_le_bytes())];
        let metadata = Metadata { tags, ..Metadata::default() };
        loaded.session.transact(|txn| {
            txn.patch(blocks, &key(number), &changes)?;
            txn.set_metadata(blocks, &key(number), metadata).map(drop)
        })?;
    }
    let layout = BlockLayout::new(&BLOCKS)?;
    measured(times, |number| {
        let value = loaded.next_number().to_le_bytes();
        let record = loaded.session.find_for_update(blocks, "guti", &value)?.ok_or("no record")?;
        black_box(record.patch(&layout, &[(1, number.to_le_bytes().as_slice())])?);
        Ok(())
    })
}

/// A transaction that reads a record and writes it changed.
fn read_modify_write(times: u64) -> MeasuredResult {
    let mut loaded = Loaded::new()?;
    let mut value = Vec::with_capacity(VALUE.len());
    measured(times, |number| {
        let (key, values) = (loaded.next_key(), loaded.values);
        loaded.session.transact(|txn| {
            value.clear();
            if let Some(view) = txn.get(values, &key)? {
                value.extend_from_slice(view.bytes());
            }
            if let Some(byte) = value.get_mut(5) {
                *byte ^= number.to_le_bytes()[0];
            }
            txn.put(values, &key, &value)
        })?;
        Ok(())
    })
}

/// An insert of a record with three tags, two of them unique, into memory that is reused.
fn tagged_insert(times: u64) -> MeasuredResult {
    let loaded = Loaded::new()?;
    let tagged = loaded.tagged()?;
    for _ in 0..3 {
        (0..times).try_for_each(|number| loaded.insert_tagged(tagged, number))?;
        (0..times).try_for_each(|number| delete(&loaded, tagged, number))?;
    }
    measured(times, |number| loaded.insert_tagged(tagged, number))
}

/// The delete of such a record.
fn tagged_delete(times: u64) -> MeasuredResult {
    let loaded = Loaded::new()?;
    let tagged = loaded.tagged()?;
    for _ in 0..3 {
        (0..times).try_for_each(|number| delete(&loaded, tagged, number))?;
        (0..times).try_for_each(|number| loaded.insert_tagged(tagged, number))?;
    }
    measured(times, |number| delete(&loaded, tagged, number))
}

fn delete(loaded: &Loaded, tagged: Namespace, number: u64) -> MeasuredResult {
    black_box(loaded.session.delete(tagged, &key(number))?);
    Ok(())
}

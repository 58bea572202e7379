//! Inserts and deletes, and updates of records in place, in a heap that is half full, and in one
//! that is 95 % full; and inserts that a full heap refuses.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use nearstate_instructions::{
    MeasuredOperation, MeasuredResult, key, measured, new_region, new_region_of, run,
};
use nearstate_store::{Error, Namespace, Region, Schema, Session};

const OPERATIONS: &[MeasuredOperation] = &[
    ("update-50", 20_000, |times| update(times, 50)),
    ("update-95", 20_000, |times| update(times, 95)),
    ("churn-50", 20_000, |times| churn(times, 50, ONE_SIZE)),
    ("churn-95", 20_000, |times| churn(times, 95, ONE_SIZE)),
    ("mixed-churn-50", 20_000, |times| churn(times, 50, MIXED_SIZES)),
    ("mixed-churn-95", 20_000, |times| churn(times, 95, MIXED_SIZES)),
    ("refused", 1000, |times| {
        let filled = FilledHeap::new(50, ONE_SIZE)?;
        refused(times, (&filled.session, filled.values), filled.next, 1000)
    }),
    ("mixed-refused", 1000, |times| {
        let filled = FilledHeap::new(95, MIXED_SIZES)?;
        refused(times, (&filled.session, filled.values), filled.next, 4020)
    }),
    ("large-refused", 1000, |times| {
        let (region, _folder) = new_region_of(LARGE)?;
        let session = region.session()?;
        let values = session.namespace("values", &Schema::default())?;
        refused(times, (&session, values), 0, 1000)
    }),
];

/// Bytes of a value: the least, and how many more at most.
const ONE_SIZE: (u64, u64) = (1000, 0);
const MIXED_SIZES: (u64, u64) = (20, 4000);

/// Bytes of a large region.
const LARGE: u64 = 1 << 30;

/// How often each record is replaced on average before the instructions are counted: free memory is
/// as scattered as it will be.
const REPLACEMENTS: u64 = 10;

/// Refusals before the instructions are counted.
const REFUSED_FIRST: u32 = 10;

/// Records between two looks at the heap while it is filled.
const LOAD_STEP: u64 = 256;

fn main() -> ExitCode {
    run(OPERATIONS)
}

/// A region in which a share of the heap is in use, and what it contains.
struct FilledHeap {
    session: Session,
    values: Namespace,
    /// The number and the size of each record.
    records: Vec<(u64, usize)>,
    next: u64,
    sizes: (u64, u64),
    /// The bytes of all values, now and when the heap had its share.
    bytes: usize,
    wanted: Option<usize>,
    random: u64,
    value: Vec<u8>,
    region: Region,
    _folder: tempfile::TempDir,
}

impl FilledHeap {
    fn new(percent: u64, sizes: (u64, u64)) -> MeasuredResult<Self> {
        let (region, folder) = new_region()?;
        let session = region.session()?;
        let values = session.namespace("values", &Schema::default())?;
        let mut filled = Self {
            session,
            values,
            records: Vec::new(),
            next: 0,
            sizes,
            bytes: 0,
            wanted: None,
            random: 88_172_645_463_325_252,
            value: vec![7; usize::try_from(sizes.0 + sizes.1)?],
            region,
            _folder: folder,
        };
        while filled.live_percent()? < percent {
            for _ in 0..LOAD_STEP {
                filled.insert()?;
            }
        }
        filled.wanted = Some(filled.bytes);
        for _ in 0..REPLACEMENTS * filled.records.len() as u64 {
            filled.replace()?;
        }
        Ok(filled)
    }

    /// What records and the index take of the heap.
    fn live_percent(&self) -> MeasuredResult<u64> {
        let heap = self.region.inspect()?.heap;
        Ok(heap.live * 100 / heap.total)
    }

    /// A number below `most` (Marsaglia, Xorshift RNGs).
    fn below(&mut self, most: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 8) % most
    }

    /// The size of the next value. It leads back to the share of the heap that is to be in use.
    fn size(&mut self) -> usize {
        let (least, more) = self.sizes;
        let (one, other) = (self.below(more + 1), self.below(more + 1));
        let more = match self.wanted {
            None => one,
            Some(wanted) if self.bytes < wanted => one.max(other),
            Some(_) => one.min(other),
        };
        usize::try_from(least + more).unwrap_or(usize::MAX)
    }

    fn insert(&mut self) -> MeasuredResult {
        let (number, size) = (self.next, self.size());
        let value = self.value.get(..size).ok_or("a value is larger than the largest")?;
        self.session.put(self.values, &key(number), value)?;
        self.records.push((number, size));
        self.bytes += size;
        self.next += 1;
        Ok(())
    }

    /// Replaces the value of a record by one of the same size.
    fn update(&mut self) -> MeasuredResult {
        let at = usize::try_from(self.below(self.records.len() as u64))?;
        let (number, size) = *self.records.get(at).ok_or("there is no record")?;
        let value = self.value.get(..size).ok_or("a value is larger than the largest")?;
        self.session.put(self.values, &key(number), value)?;
        Ok(())
    }

    /// Deletes a record and inserts another one.
    fn replace(&mut self) -> MeasuredResult {
        let at = self.below(self.records.len() as u64);
        let (number, size) = self.records.swap_remove(usize::try_from(at)?);
        if !self.session.delete(self.values, &key(number))? {
            return Err("a record is missing".into());
        }
        self.bytes -= size;
        self.insert()
    }
}

/// An update of a record with a value of the same size, with a share of the heap in use.
fn update(times: u64, percent: u64) -> MeasuredResult {
    let mut filled = FilledHeap::new(percent, ONE_SIZE)?;
    measured(times, |_| filled.update())
}

/// An insert of a value of so many bytes that is refused, because the heap is full: numbers from
/// `next` on fill it. The first refusals move records together, in vain.
fn refused(
    times: u64,
    (session, values): (&Session, Namespace),
    next: u64,
    bytes: usize,
) -> MeasuredResult {
    let value = vec![7; bytes];
    let refuse = |number: u64| match session.put(values, &key(number), &value) {
        Ok(_) => Ok(false),
        Err(Error::Full { .. }) => Ok(true),
        Err(error) => Err(error),
    };
    let mut number = next;
    while !refuse(number)? {
        number += 1;
    }
    for _ in 0..REFUSED_FIRST {
        refuse(number)?;
    }
    measured(times, |_| {
        if !refuse(number)? {
            return Err("a full heap had room".into());
        }
        Ok(())
    })
}

/// A delete and an insert, with a share of the heap in use.
fn churn(times: u64, percent: u64, sizes: (u64, u64)) -> MeasuredResult {
    let mut filled = FilledHeap::new(percent, sizes)?;
    measured(times, |_| filled.replace())?;
    let live = filled.live_percent()?;
    if live.abs_diff(percent) > 1 {
        return Err(format!("{live} % of the heap are live instead of {percent} %").into());
    }
    Ok(())
}

//! Cost against the number of records: one region grows from decade to decade.

use super::findings::Point;
use super::loops::{self, Job, Store as _};
use super::options::Options;
use super::peers::region::{RegionStore, room};
use super::work::{Material, key_of};
use crate::keeper::Keeper;
use crate::legacy::access::display::Display;
use crate::legacy::content::Source;
use crate::stat::{median, sequence_average};
use nearstate_model::Result;
use nearstate_store::{CreateOptions, Region};

/// Measures it at each of these sizes, in ascending order.
///
/// # Errors
/// What the region said.
pub fn curve(options: &Options, sizes: &[u64], display: &Display) -> Result<Vec<Point>> {
    let most = sizes.last().copied().unwrap_or(0);
    let keeper = Keeper::start(&options.dir, None, |_| Vec::new())?;
    let bytes_max = room(most, options.growth_value_bytes);
    let path = keeper.folder().join("region");
    let region = Region::create(&path, &CreateOptions { bytes_max, ..Default::default() })?;
    let mut store = RegionStore::of(&region)?;
    let mut points = Vec::new();
    let mut there = 0;
    for size in sizes {
        let step = display.begin(format!("growth to {size} records"), size - there);
        let insert_ns = grow(&mut store, options, there..*size, &|done| step.done(done))?;
        step.phase("reading and writing");
        let huge_bytes = if options.no_collapse { 0 } else { region.collapse()? };
        let seen = region.inspect()?;
        let bytes = seen.bytes_taken.max(seen.bytes_on_disk);
        let (view_ns, put_ns) = read_and_write(&mut store, options, *size)?;
        let record_bytes = sequence_average(bytes, *size);
        points.push(Point { records: *size, insert_ns, view_ns, put_ns, record_bytes, huge_bytes });
        step.finish_run(&format!("insert {insert_ns:.0} ns, view {view_ns:.1} ns"));
        there = *size;
    }
    drop(store);
    Ok(points)
}

/// Inserts records; nanoseconds for each.
fn grow(
    store: &mut RegionStore,
    options: &Options,
    records: std::ops::Range<u64>,
    done: &dyn Fn(u64),
) -> Result<f64> {
    let value_bytes = usize::try_from(options.growth_value_bytes).unwrap_or(usize::MAX);
    let mut source = Source::new(options.seed, records.start, value_bytes);
    let count = records.end - records.start;
    let start_ns = options.clock.now_ns();
    for record in records {
        store.put(&key_of(record), source.value(record))?;
        if record % 65_536 == 65_535 {
            done(65_536);
        }
    }
    Ok(sequence_average(options.clock.now_ns() - start_ns, count))
}

fn read_and_write(store: &mut RegionStore, options: &Options, size: u64) -> Result<(f64, f64)> {
    let value_bytes = usize::try_from(options.growth_value_bytes).unwrap_or(usize::MAX);
    let material = Material::new(size, value_bytes, options.seed);
    let ops = options.ops();
    let (mut views, mut puts) = (Vec::new(), Vec::new());
    // One round to warm up.
    for round in 0..=options.rounds() {
        let work = material.work(round * ops % size, ops, options.clock);
        let view_ns = loops::run(store, Job::View, &work)?;
        let put_ns = loops::run(store, Job::Put, &work)?;
        if round > 0 {
            views.push(view_ns);
            puts.push(put_ns);
        }
    }
    Ok((median(&views), median(&puts)))
}

//! What a follower does with the entries of a log: regions of 1,000 records with keys of 20 bytes
//! and values of 1,000. A program of its own, so that what it calls does not change what the
//! compiler inlines into the operations on a region.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use nearstate_instructions::{
    MeasuredOperation, MeasuredResult, RECORDS, VALUE, key, measured, new_region, run,
};
use nearstate_store::{
    BlockChange, Condition, FeedItem, FeedStep, FollowPosition, Follower, Kind, LogFeed,
    LogIdentity, Metadata, Namespace, Region, Schema, Session, TagSchema, WhenFull,
};

const OPERATIONS: &[MeasuredOperation] = &[
    ("applied-put", 4000, applied_put),
    ("applied-patch", 4000, applied_patch),
    ("applied-tagged-insert", 1000, applied_tagged_insert),
];

fn main() -> ExitCode {
    run(OPERATIONS)
}

/// Applies the entries of the log of one region to another one, until none is left.
fn apply_all(feed: &mut LogFeed<'_>, follower: &mut Follower<'_>) -> MeasuredResult {
    loop {
        let mut applied = 0;
        let step = feed.step(true, &mut |item: FeedItem<'_>| match item {
            FeedItem::Namespace(namespace) => follower.namespace(&namespace),
            FeedItem::Removed { number } => follower.remove_namespace(number),
            FeedItem::Record(record) => follower.apply_joining(&record),
            FeedItem::Joined(place) => follower.complete(place),
            FeedItem::Entry { place, time_ms, records } => {
                applied = place.position;
                follower.apply_entry(place, time_ms, &records)
            }
        })?;
        match step {
            FeedStep::More if applied == 0 => {}
            FeedStep::More => feed.acknowledged(applied)?,
            FeedStep::Idle { position } => return Ok(feed.acknowledged(position)?),
            FeedStep::Lost => return Err("the log has lost entries".into()),
        }
    }
}

/// Measures a follower: what reads the log, and what applies an entry. `write` makes the entries
/// of one round.
fn applied(
    (region, session): (&Region, &Session),
    namespace: Namespace,
    mut write: impl FnMut() -> MeasuredResult,
) -> MeasuredResult {
    let (backup, _folder) = new_region()?;
    let (source, copy) = (region.session()?, backup.session()?);
    session.stream(namespace, WhenFull::Refuse)?;
    let mut follower = copy.follow()?;
    let (mut feed, _) = source.log_feed(LogIdentity::default(), FollowPosition::default())?;
    follower.begin(source.log_identity()?)?;
    for _ in 0..4 {
        apply_all(&mut feed, &mut follower)?;
        let end = source.log_tail_position()?;
        source.acknowledge_to(end)?;
        source.release_to(end, end)?;
        write()?;
    }
    measured(1, |_| apply_all(&mut feed, &mut follower))
}

/// Puts that replace records, applied by a follower, with the reading of its log.
fn applied_put(times: u64) -> MeasuredResult {
    let (region, _folder) = new_region()?;
    let session = region.session()?;
    let values = session.namespace("values", &Schema::default())?;
    applied((&region, &session), values, || {
        let mut numbers = (0..times).map(|number| number * 7919 % RECORDS);
        Ok(numbers.try_for_each(|number| session.put(values, &key(number), &VALUE).map(drop))?)
    })
}

/// Patches of two blocks of eight, applied by a follower, with the reading of its log.
fn applied_patch(times: u64) -> MeasuredResult {
    const NAMES: [&str; 8] = ["one", "two", "three", "four", "five", "six", "seven", "eight"];
    let (region, _folder) = new_region()?;
    let session = region.session()?;
    let blocks =
        session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() })?;
    for number in 0..RECORDS {
        let all = NAMES.map(|name| BlockChange { name, bytes: Some(&[0; 72]) });
        session.patch(blocks, &key(number), &all, Condition::Always)?;
    }
    let mut count = 0_u64;
    applied((&region, &session), blocks, || {
        let mut numbers = (0..times).map(|number| number * 7919 % RECORDS);
        Ok(numbers.try_for_each(|number| {
            count += 1;
            let bytes = [count.to_le_bytes(); 9];
            let two =
                ["two", "five"].map(|name| BlockChange { name, bytes: Some(bytes.as_flattened()) });
            session.patch(blocks, &key(number), &two, Condition::Always).map(drop)
        })?)
    })
}

/// Inserts of records with three tags, two of them unique, applied by a follower.
fn applied_tagged_insert(times: u64) -> MeasuredResult {
    let (region, _folder) = new_region()?;
    let session = region.session()?;
    let tag = |name: &str, is_unique| TagSchema {
        name: name.to_owned(),
        is_unique,
        ..TagSchema::default()
    };
    let tags = vec![tag("guti", true), tag("ip", true), tag("cell", false)];
    let tagged = session.namespace("tagged", &Schema { tags, ..Schema::default() })?;
    let mut round = 0;
    applied((&region, &session), tagged, || {
        round += 1;
        for number in round * times..(round + 1) * times {
            let (guti, ip) = (number.to_le_bytes(), (number ^ 0xffff_ffff).to_le_bytes());
            let tags: &[(&str, &[u8])] = &[("guti", &guti), ("ip", &ip), ("cell", b"c1")];
            let metadata = Metadata { tags, ..Metadata::default() };
            session
                .transact(|txn| txn.put_with_metadata(tagged, &key(number), &VALUE, metadata))?;
        }
        Ok(())
    })
}

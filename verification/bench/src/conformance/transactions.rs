//! Several records at one instant.

use super::{
    BLOCKS, CheckResult, NUMBERED, PLAIN, TAGGED, TargetUnderTest, change, ensure, entry, found,
    put_value, read, received, value,
};
use crate::access::{Connection, PartsChange, RecordEntry, StoreAccess};
use crate::targets;
use crate::workloads::wrong_answer;
use nearstate_model::{Error, Result};

pub(super) fn whole(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    put_value(&mut one, b"a1", b"1")?;
    put_value(&mut one, b"a2", b"2")?;
    one.put(BLOCKS, &entry(b"a1", &[(0, b"a"), (1, b"b"), (2, b"c")]))?;
    let mut seen = Vec::new();
    one.transact(&mut |access| {
        seen.clear();
        seen.push(value(access, b"a1")?);
        seen.push(value(access, b"a3")?);
        put_value(access, b"a3", b"3")?;
        seen.push(Some(vec![u8::from(access.change(BLOCKS, &change(b"a1", &[(1, b"B")]))?)]));
        seen.push(Some(vec![u8::from(access.change(BLOCKS, &change(b"a9", &[(1, b"B")]))?)]));
        seen.push(Some(vec![u8::from(access.delete(PLAIN, b"a2", &[])?)]));
        seen.push(Some(vec![u8::from(access.delete(PLAIN, b"a9", &[])?)]));
        Ok(())
    })?;
    let wanted =
        [Some(b"1".to_vec()), None, Some(vec![1]), Some(vec![0]), Some(vec![1]), Some(vec![0])];
    ensure!(seen == wanted, "in the transaction: {seen:?}")?;
    ensure!(value(&mut one, b"a3")?.as_deref() == Some(b"3"), "what was put")?;
    ensure!(value(&mut one, b"a2")?.is_none(), "what was deleted")?;
    ensure!(read(&mut one, BLOCKS, b"a9")?.is_none(), "a change of nothing")?;
    let parts = read(&mut one, BLOCKS, b"a1")?;
    ensure!(parts == Some(received(&[b"a", b"B", b"c"])), "what was changed: {parts:?}")?;
    one.transact(&mut |_| Ok(()))?;
    one.transact(&mut |access| put_value(access, b"a4", b"4"))?;
    ensure!(value(&mut one, b"a4")?.as_deref() == Some(b"4"), "a write alone")
}

pub(super) fn aborted(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    put_value(&mut one, b"b1", b"before")?;
    let refused = one.transact(&mut |access| {
        value(access, b"b1")?;
        put_value(access, b"b1", b"after")?;
        put_value(access, b"b2", b"new")?;
        access.delete(PLAIN, b"b1", &[])?;
        Err(bad_argument!("enough"))
    });
    let is_ours = matches!(&refused, Err(Error::BadArgument { detail }) if detail == "enough");
    ensure!(is_ours, "what the body returned: {refused:?}")?;
    ensure!(value(&mut one, b"b1")?.as_deref() == Some(b"before"), "it was changed")?;
    ensure!(value(&mut one, b"b2")?.is_none(), "it was made")?;
    put_value(&mut one, b"b1", b"later")?;
    ensure!(value(&mut one, b"b1")?.as_deref() == Some(b"later"), "it goes on")
}

/// Connections that count, and how often each does.
const COUNTERS: usize = 3;
const COUNTS: u64 = 200;

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok()).map_or(0, u64::from_be_bytes)
}

/// Each adds to two counters, one of which is a part of a record; no addition is lost.
pub(super) fn counted(tested: &TargetUnderTest<'_>) -> CheckResult {
    let (name, address, schema) = (tested.target.name(), tested.database.address(), tested.schema);
    let mut one = tested.connect()?;
    one.put(BLOCKS, &entry(b"count", &[(0, &[0; 8]), (1, b"b"), (2, b"c")]))?;
    let run = || -> Result<()> {
        let mut one = targets::named(name)?.connect(&address, &schema)?;
        for _ in 0..COUNTS {
            one.transact(&mut |access| {
                let plain = number(value(access, b"count")?.as_deref());
                let part = read(access, BLOCKS, b"count")?.and_then(|mut parts| parts.remove(&0));
                put_value(access, b"count", &plain.wrapping_add(1).to_be_bytes())?;
                let more = number(part.as_deref()).wrapping_add(1).to_be_bytes();
                access.change(BLOCKS, &change(b"count", &[(0, &more)])).map(drop)
            })?;
        }
        Ok(())
    };
    together(COUNTERS, &run)?;
    let wanted = COUNTS * COUNTERS as u64;
    let plain = number(value(&mut one, b"count")?.as_deref());
    let part = read(&mut one, BLOCKS, b"count")?.and_then(|mut parts| parts.remove(&0));
    let part = number(part.as_deref());
    ensure!(
        plain == wanted && part == wanted,
        "{COUNTERS} connections have counted to {plain} and {part}, not to {wanted}"
    )
}

/// One connection moves between two records, the other looks: the sum is always the same.
pub(super) fn instant(tested: &TargetUnderTest<'_>) -> CheckResult {
    let (name, address, schema) = (tested.target.name(), tested.database.address(), tested.schema);
    let mut one = tested.connect()?;
    put_value(&mut one, b"i1", &1000_u64.to_be_bytes())?;
    put_value(&mut one, b"i2", &1000_u64.to_be_bytes())?;
    let sums = |access: &mut dyn StoreAccess| -> Result<(u64, u64)> {
        let left = number(value(access, b"i1")?.as_deref());
        Ok((left, number(value(access, b"i2")?.as_deref())))
    };
    let is_mover = std::sync::atomic::AtomicBool::new(true);
    let run = || -> Result<()> {
        let is_mover = is_mover.swap(false, std::sync::atomic::Ordering::Relaxed);
        let mut one = targets::named(name)?.connect(&address, &schema)?;
        for _ in 0..COUNTS {
            let mut sum = 0;
            one.transact(&mut |access| {
                let (left, right) = sums(access)?;
                sum = left.wrapping_add(right);
                if is_mover {
                    put_value(access, b"i1", &left.wrapping_sub(1).to_be_bytes())?;
                    put_value(access, b"i2", &right.wrapping_add(1).to_be_bytes())?;
                }
                Ok(())
            })?;
            if sum != 2000 {
                return Err(wrong_answer(format_args!("two records have {sum} of 2000")));
            }
        }
        Ok(())
    };
    together(2, &run)?;
    let (left, right) = sums(one.as_mut())?;
    ensure!((left, right) == (1000 - COUNTS, 1000 + COUNTS), "{left} and {right}")
}

fn together(threads: usize, run: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        all.into_iter().try_for_each(|one| {
            one.join().unwrap_or_else(|_| Err(backend_error!("a thread of the check panicked")))
        })
    })
}

pub(super) fn tagged(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let before = [(0, &b"y-id"[..]), (1, &b"y-a"[..])];
    let after = [(0, &b"y-id"[..]), (1, &b"y-b"[..])];
    let parts: [(usize, &[u8]); 2] = [(0, b"one"), (1, b"two")];
    one.transact(&mut |access| {
        let tagged = RecordEntry { tags: &before, ..entry(b"y1", &parts) };
        access.put(TAGGED, &tagged)?;
        access.put(NUMBERED, &RecordEntry { tags: &[(0, b"y-id")], ..entry(b"y1", &[(0, b"n")]) })
    })?;
    let mut met = Vec::new();
    one.transact(&mut |access| {
        met.clear();
        met.push(found(access, TAGGED, (1, b"y-a"))?.map(|(key, _)| key));
        met.push(found(access, NUMBERED, (0, b"y-id"))?.map(|(key, _)| key));
        met.push(found(access, NUMBERED, (0, b"y-none"))?.map(|(key, _)| key));
        let tags = Some((&before[..], &after[..]));
        let done = access.change(TAGGED, &PartsChange { key: b"y1", parts: &[], tags })?;
        met.push(done.then(Vec::new));
        Ok(())
    })?;
    let wanted = [Some(b"y1".to_vec()), Some(b"y1".to_vec()), None, Some(Vec::new())];
    ensure!(met == wanted, "met in the transaction: {met:?}")?;
    ensure!(found(&mut one, TAGGED, (1, b"y-a"))?.is_none(), "the old tag")?;
    ensure!(found(&mut one, TAGGED, (1, b"y-b"))?.is_some(), "the new tag")?;
    taken_inside(one.as_mut())?;
    one.transact(&mut |access| access.delete(TAGGED, b"y1", &after).map(drop))?;
    ensure!(found(&mut one, TAGGED, (0, b"y-id"))?.is_none(), "a deleted tag")?;
    ensure!(found(&mut one, NUMBERED, (0, b"y-id"))?.is_some(), "another table's")
}

/// A taken tag ends the transaction, whichever call reports it.
fn taken_inside(one: &mut Connection<'_>) -> CheckResult {
    let refused = one.transact(&mut |access| {
        put_value(access, b"y2", b"left over")?;
        let tags = [(0, &b"y-id"[..])];
        access.put(NUMBERED, &RecordEntry { tags: &tags, ..entry(b"y2", &[(0, b"n")]) })
    });
    ensure!(matches!(refused, Err(Error::TagTaken { .. })), "a taken tag: {refused:?}")?;
    ensure!(value(one, b"y2")?.is_none(), "what went before it")?;
    ensure!(read(one, NUMBERED, b"y2")?.is_none(), "the refused record")
}

//! Changes of a record that depend on its content.

use super::{
    BLOCKS, CheckResult, PLAIN, ReceivedParts, TargetUnderTest, change, ensure, entry, put_value,
    read, received, value,
};
use crate::access::{PartSet, RecordRead, RecordWrite, TableId, Work};
use nearstate_model::Result;

/// Adds `more` behind each part that it received; changes nothing if there are no bytes to add.
struct Longer<'a> {
    key: &'a [u8],
    more: &'a [u8],
    received: ReceivedParts,
    is_unwilling: bool,
}

impl Work for Longer<'_> {
    fn receive(&mut self, part: usize, bytes: &[u8]) {
        self.received.insert(part, bytes.to_vec());
    }

    fn change(&mut self, write: &mut RecordWrite<'_>) -> Result<()> {
        let received = std::mem::take(&mut self.received);
        if self.is_unwilling {
            return Err(bad_argument!("unwilling"));
        }
        if self.more.is_empty() {
            return Ok(());
        }
        let longer: Vec<(usize, Vec<u8>)> =
            received.iter().map(|(part, bytes)| (*part, [bytes, self.more].concat())).collect();
        let parts: Vec<(usize, &[u8])> =
            longer.iter().map(|(part, bytes)| (*part, bytes.as_slice())).collect();
        write(&change(self.key, &parts))
    }
}

pub(super) fn update(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let mut go = |table: TableId, key: &[u8], wanted: PartSet, more: &[u8], is_unwilling: bool| {
        let mut work = Longer { key, more, received: ReceivedParts::new(), is_unwilling };
        let done = one.update(RecordRead { table, key, wanted }, &mut work);
        (done, read(&mut one, table, key))
    };
    let (done, left) = go(BLOCKS, b"u1", PartSet::ALL, b"x", false);
    ensure!(!done? && left?.is_none(), "an update of no record")?;
    tested.connect()?.put(BLOCKS, &entry(b"u1", &[(0, b"a"), (1, b""), (2, b"c")]))?;
    let (done, left) = go(BLOCKS, b"u1", PartSet::ALL, b"x", false);
    ensure!(done?, "it is there")?;
    let found = left?;
    ensure!(found == Some(received(&[b"ax", b"x", b"cx"])), "all parts: {found:?}")?;
    for (more, is_unwilling) in [(&b""[..], false), (b"x", true)] {
        let (done, left) = go(BLOCKS, b"u1", PartSet::ALL, more, is_unwilling);
        ensure!(done.is_err() == is_unwilling, "unwilling: {is_unwilling}")?;
        let found = left?;
        ensure!(found == Some(received(&[b"ax", b"x", b"cx"])), "no change: {found:?}")?;
    }
    // A part that is wanted is changed; more may be received, and then it is changed as well.
    let (done, left) = go(BLOCKS, b"u1", PartSet::one(2), b"y", false);
    let found = left?;
    let last = found.as_ref().and_then(|parts| parts.get(&2));
    ensure!(done? && last.is_some_and(|bytes| bytes == b"cxy"), "one part: {found:?}")?;
    for round in 0..20_usize {
        let more = vec![b'z'; round * 40];
        let (done, _) = go(BLOCKS, b"u1", PartSet::one(1), &more, false);
        ensure!(done?, "round {round}")?;
    }
    let grown = read(&mut one, BLOCKS, b"u1")?.and_then(|parts| parts.get(&1).map(Vec::len));
    ensure!(grown == Some(1 + 40 * 190), "a part that grows: {grown:?}")?;
    put_value(&mut one, b"u1", b"v")?;
    let read = RecordRead { table: PLAIN, key: b"u1", wanted: PartSet::ALL };
    let mut work =
        Longer { key: b"u1", more: b"w", received: ReceivedParts::new(), is_unwilling: false };
    ensure!(one.update(read, &mut work)?, "a plain value")?;
    ensure!(value(&mut one, b"u1")?.as_deref() == Some(b"vw"), "a plain value's bytes")
}

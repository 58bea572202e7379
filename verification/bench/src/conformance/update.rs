//! Reading a record and changing it by what was read.

use super::{
    BLOCKS, Heard, Held, PLAIN, TargetUnderTest, change, entry, heard, must, put_value, read, value,
};
use crate::access::{Parts, Table, Work, Write};
use nearstate_model::{Error, Result};

/// Adds `more` behind each part that it heard; changes nothing if there are no bytes to add.
struct Longer<'a> {
    key: &'a [u8],
    more: &'a [u8],
    heard: Heard,
    is_unwilling: bool,
}

impl Work for Longer<'_> {
    fn hear(&mut self, part: usize, bytes: &[u8]) {
        self.heard.insert(part, bytes.to_vec());
    }

    fn change(&mut self, write: &mut Write<'_>) -> Result<()> {
        let heard = std::mem::take(&mut self.heard);
        if self.is_unwilling {
            return Err(Error::BadArgument { detail: "unwilling".to_owned() });
        }
        if self.more.is_empty() {
            return Ok(());
        }
        let longer: Vec<(usize, Vec<u8>)> =
            heard.iter().map(|(part, bytes)| (*part, [bytes, self.more].concat())).collect();
        let parts: Vec<(usize, &[u8])> =
            longer.iter().map(|(part, bytes)| (*part, bytes.as_slice())).collect();
        write(&change(self.key, &parts))
    }
}

pub(super) fn update(tested: &TargetUnderTest<'_>) -> Held {
    let mut one = tested.connect()?;
    let mut go = |table: Table, key: &[u8], wanted: Parts, more: &[u8], is_unwilling: bool| {
        let mut work = Longer { key, more, heard: Heard::new(), is_unwilling };
        let done = one.update(table, key, wanted, &mut work);
        (done, read(&mut one, table, key))
    };
    let (done, left) = go(BLOCKS, b"u1", Parts::ALL, b"x", false);
    must(!done? && left?.is_none(), || "an update of no record".to_owned())?;
    tested.connect()?.put(BLOCKS, &entry(b"u1", &[(0, b"a"), (1, b""), (2, b"c")]))?;
    let (done, left) = go(BLOCKS, b"u1", Parts::ALL, b"x", false);
    must(done?, || "it is there".to_owned())?;
    let found = left?;
    must(found == Some(heard(&[b"ax", b"x", b"cx"])), || format!("all parts: {found:?}"))?;
    for (more, is_unwilling) in [(&b""[..], false), (b"x", true)] {
        let (done, left) = go(BLOCKS, b"u1", Parts::ALL, more, is_unwilling);
        must(done.is_err() == is_unwilling, || format!("unwilling: {is_unwilling}"))?;
        let found = left?;
        must(found == Some(heard(&[b"ax", b"x", b"cx"])), || format!("no change: {found:?}"))?;
    }
    // A part that is wanted is changed; more may be heard, and then it is changed as well.
    let (done, left) = go(BLOCKS, b"u1", Parts::one(2), b"y", false);
    let found = left?;
    let last = found.as_ref().and_then(|parts| parts.get(&2));
    must(done? && last.is_some_and(|bytes| bytes == b"cxy"), || format!("one part: {found:?}"))?;
    for round in 0..20_usize {
        let more = vec![b'z'; round * 40];
        let (done, _) = go(BLOCKS, b"u1", Parts::one(1), &more, false);
        must(done?, || format!("round {round}"))?;
    }
    let grown = read(&mut one, BLOCKS, b"u1")?.and_then(|parts| parts.get(&1).map(Vec::len));
    must(grown == Some(1 + 40 * 190), || format!("a part that grows: {grown:?}"))?;
    put_value(&mut one, b"u1", b"v")?;
    let mut work = Longer { key: b"u1", more: b"w", heard: Heard::new(), is_unwilling: false };
    must(one.update(PLAIN, b"u1", Parts::ALL, &mut work)?, || "a plain value".to_owned())?;
    must(value(&mut one, b"u1")?.as_deref() == Some(b"vw"), || "a plain value's bytes".to_owned())
}

//! Single records.

use super::{
    BLOCKS, CheckResult, PLAIN, TargetUnderTest, change as changed, ensure, entry, put_value, read,
    received, value,
};
use crate::access::PartSet;

pub(super) fn put_and_read(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    ensure!(read(&mut one, PLAIN, b"r1")?.is_none(), "a record before it was put")?;
    put_value(&mut one, b"r1", b"first")?;
    put_value(&mut one, b"r2", b"another")?;
    ensure!(value(&mut one, b"r1")?.as_deref() == Some(b"first"), "not what was put")?;
    put_value(&mut one, b"r1", b"2nd")?;
    ensure!(value(&mut one, b"r1")?.as_deref() == Some(b"2nd"), "not replaced")?;
    one.put(BLOCKS, &entry(b"r1", &[(0, b"aaaa"), (1, b"bb"), (2, b"cccccc")]))?;
    one.put(BLOCKS, &entry(b"r1", &[(2, b"C"), (0, b"A"), (1, b"BBBBBBBBBB")]))?;
    let whole = read(&mut one, BLOCKS, b"r1")?;
    ensure!(whole == Some(received(&[b"A", b"BBBBBBBBBB", b"C"])), "replaced: {whole:?}")
}

pub(super) fn wanted_parts(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    one.put(BLOCKS, &entry(b"w1", &[(0, b"a"), (1, b"b"), (2, b"c")]))?;
    let sets =
        [PartSet::one(0), PartSet::one(2), PartSet::one(0).union(PartSet::one(1)), PartSet(0b111)];
    for wanted in sets.into_iter().chain([PartSet::ALL, PartSet(0)]) {
        let mut times = [0; 3];
        let is_there = one.read(BLOCKS, b"w1", wanted, &mut |part, bytes| {
            let is_right = bytes == [b'a' + u8::try_from(part).unwrap_or_default()];
            if let Some(count) = times.get_mut(part) {
                *count += if is_right { 1 } else { 100 };
            }
        })?;
        ensure!(is_there, "{wanted:?}: no record")?;
        for (part, count) in times.into_iter().enumerate() {
            let is_wanted = wanted.contains(part);
            ensure!(
                count == 1 || (count == 0 && !is_wanted),
                "{wanted:?}: part {part} was received {count} times (100: wrong bytes)"
            )?;
        }
        let mut count = 0;
        let is_there = one.read(BLOCKS, b"w2", wanted, &mut |_, _| count += 1)?;
        ensure!(!is_there && count == 0, "{wanted:?} of no record: {is_there} {count}")?;
    }
    Ok(())
}

pub(super) fn change(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    one.put(BLOCKS, &entry(b"c1", &[(0, b"aaaa"), (1, b"bbbb"), (2, b"cccc")]))?;
    ensure!(one.change(BLOCKS, &changed(b"c1", &[(1, b"B")]))?, "it is there")?;
    let two = read(&mut one, BLOCKS, b"c1")?;
    ensure!(two == Some(received(&[b"aaaa", b"B", b"cccc"])), "after one part: {two:?}")?;
    one.change(BLOCKS, &changed(b"c1", &[(2, b"CCCCCCCC"), (0, b"")]))?;
    let three = read(&mut one, BLOCKS, b"c1")?;
    ensure!(three == Some(received(&[b"", b"B", b"CCCCCCCC"])), "after two: {three:?}")?;
    ensure!(one.change(BLOCKS, &changed(b"c1", &[]))?, "a change of nothing")?;
    put_value(&mut one, b"c1", b"before")?;
    ensure!(one.change(PLAIN, &changed(b"c1", &[(0, b"after")]))?, "it is there")?;
    ensure!(value(&mut one, b"c1")?.as_deref() == Some(b"after"), "a plain value")
}

pub(super) fn change_of_nothing(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let parts: [&[(usize, &[u8])]; 3] = [&[(0, b"a"), (1, b"b"), (2, b"c")], &[(1, b"b")], &[]];
    for some in parts {
        ensure!(!one.change(BLOCKS, &changed(b"n1", some))?, "{some:?} is done")?;
        let left = read(&mut one, BLOCKS, b"n1")?;
        ensure!(left.is_none(), "{some:?} leaves {left:?}")?;
    }
    ensure!(!one.change(PLAIN, &changed(b"n1", &[(0, b"x")]))?, "a plain value")?;
    ensure!(value(&mut one, b"n1")?.is_none(), "a plain value is left")
}

pub(super) fn delete(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    one.put(BLOCKS, &entry(b"d1", &[(0, b"a"), (1, b"b"), (2, b"c")]))?;
    put_value(&mut one, b"d1", b"x")?;
    for table in [BLOCKS, PLAIN] {
        ensure!(one.delete(table, b"d1", &[])?, "{table:?}: it was there")?;
        ensure!(read(&mut one, table, b"d1")?.is_none(), "{table:?}: is still there")?;
        ensure!(!one.delete(table, b"d1", &[])?, "{table:?}: deleted twice")?;
    }
    Ok(())
}

pub(super) fn hostile(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let every: Vec<u8> = (0..=255).collect();
    let keys: [&[u8]; 8] = [
        b"h",
        b"a key with spaces",
        b"cr\r\nlf\r\n$5\r\n",
        b"nul\0nul",
        b"},{h",
        b"\xff\xfe\x80",
        b"{h},h",
        every.get(..100).unwrap_or_default(),
    ];
    for (at, key) in keys.into_iter().enumerate() {
        put_value(&mut one, key, key)?;
        let number = [u8::try_from(at).unwrap_or_default()];
        one.put(BLOCKS, &entry(key, &[(0, &every), (1, b""), (2, &number)]))?;
    }
    for (at, key) in keys.into_iter().enumerate() {
        ensure!(value(&mut one, key)?.as_deref() == Some(key), "the value of {key:?}")?;
        let number = [u8::try_from(at).unwrap_or_default()];
        let whole = read(&mut one, BLOCKS, key)?;
        ensure!(whole == Some(received(&[&every, b"", &number])), "the parts of {key:?}")?;
    }
    put_value(&mut one, b"h-empty", b"")?;
    ensure!(value(&mut one, b"h-empty")?.as_deref() == Some(b""), "an empty value")?;
    one.put(BLOCKS, &entry(b"h-empty", &[(0, b""), (1, b""), (2, b"")]))?;
    let whole = read(&mut one, BLOCKS, b"h-empty")?;
    ensure!(whole == Some(received(&[b"", b"", b""])), "empty parts: {whole:?}")?;
    let large: Vec<u8> = every.iter().copied().cycle().take(1 << 20).collect();
    put_value(&mut one, b"h-large", &large)?;
    ensure!(value(&mut one, b"h-large")?.as_deref() == Some(&large), "1 MiB")?;
    one.put(BLOCKS, &entry(b"h-large", &[(0, b"a"), (1, &large), (2, b"c")]))?;
    ensure!(one.change(BLOCKS, &changed(b"h-large", &[(0, b"A")]))?, "1 MiB")?;
    let whole = read(&mut one, BLOCKS, b"h-large")?;
    ensure!(whole == Some(received(&[b"A", &large, b"c"])), "a part of 1 MiB")?;
    one.delete(BLOCKS, b"h-large", &[])?;
    one.delete(PLAIN, b"h-large", &[])?;
    Ok(())
}

pub(super) fn tables_apart(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    put_value(&mut one, b"t1", b"x")?;
    ensure!(read(&mut one, BLOCKS, b"t1")?.is_none(), "a plain record among blocks")?;
    one.put(BLOCKS, &entry(b"t1", &[(0, b"a"), (1, b"b"), (2, b"c")]))?;
    ensure!(one.delete(PLAIN, b"t1", &[])?, "not there")?;
    ensure!(read(&mut one, BLOCKS, b"t1")?.is_some(), "deleted in the other table")
}

pub(super) fn shared(tested: &TargetUnderTest<'_>) -> CheckResult {
    let (mut one, mut two) = (tested.connect()?, tested.connect()?);
    for round in 0..50_u8 {
        put_value(&mut one, b"s1", &[round])?;
        ensure!(value(&mut two, b"s1")? == Some(vec![round]), "put of round {round}")?;
        one.put(BLOCKS, &entry(b"s1", &[(0, b"a"), (1, &[round]), (2, b"c")]))?;
        two.change(BLOCKS, &changed(b"s1", &[(2, &[round])]))?;
        let whole = read(&mut one, BLOCKS, b"s1")?;
        ensure!(whole == Some(received(&[b"a", &[round], &[round]])), "{round}: {whole:?}")?;
        ensure!(two.delete(PLAIN, b"s1", &[])?, "the other's record")?;
        ensure!(value(&mut one, b"s1")?.is_none(), "the other has deleted it")?;
    }
    Ok(())
}

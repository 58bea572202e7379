//! Unique tags.

use super::{CheckResult, NUMBERED, TAGGED, TargetUnderTest, ensure, entry, found, read, received};
use crate::access::{Connection, PartsChange, RecordEntry, RecordTag, Request};
use crate::targets;
use nearstate_model::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};

fn put(
    one: &mut Connection<'_>,
    key: &[u8],
    tags: &[RecordTag<'_>],
    tags_before: &[RecordTag<'_>],
) -> Result<()> {
    let parts: [(usize, &[u8]); 2] = [(0, b"one"), (1, key)];
    one.put(TAGGED, &RecordEntry { key, parts: &parts, tags, tags_before })
}

fn key_of(one: &mut Connection<'_>, tag: RecordTag<'_>) -> Result<Option<Vec<u8>>> {
    Ok(found(one, TAGGED, tag)?.map(|(key, _)| key))
}

pub(super) fn find(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    // Of a tag that is not unique a record may have several values.
    let tags: [RecordTag<'_>; 4] =
        [(0, b"f-id"), (1, b"f alias\r\n"), (2, b"f-group"), (2, b"f-other")];
    ensure!(found(&mut one, TAGGED, (0, b"f-id"))?.is_none(), "before it is put")?;
    put(one.as_mut(), b"f1", &tags, &[])?;
    put(one.as_mut(), b"f2", &[(0, b"f-id2"), (1, b"f-alias2"), (2, b"f-group")], &[])?;
    for tag in [(0, &b"f-id"[..]), (1, b"f alias\r\n")] {
        let there = found(&mut one, TAGGED, tag)?;
        let wanted = Some((b"f1".to_vec(), received(&[b"one", b"f1"])));
        ensure!(there == wanted, "{tag:?} leads to {there:?}")?;
    }
    ensure!(key_of(one.as_mut(), (0, b"f alias\r\n"))?.is_none(), "another tag")?;
    ensure!(key_of(one.as_mut(), (0, b"f"))?.is_none(), "half a value")?;
    let number = RecordEntry { tags: &[(0, b"f-id")], ..entry(b"n1", &[(0, b"x")]) };
    one.put(NUMBERED, &number)?;
    let there = found(&mut one, NUMBERED, (0, b"f-id"))?;
    ensure!(there == Some((b"n1".to_vec(), received(&[b"x"]))), "one part: {there:?}")?;
    ensure!(one.delete(TAGGED, b"f1", &tags)?, "it is there")?;
    for tag in [(0, &b"f-id"[..]), (1, b"f alias\r\n")] {
        ensure!(key_of(one.as_mut(), tag)?.is_none(), "{tag:?} outlives its record")?;
    }
    ensure!(found(&mut one, NUMBERED, (0, b"f-id"))?.is_some(), "another table's")?;
    let kept =
        one.change(NUMBERED, &PartsChange { key: b"n1", parts: &[(0, b"y")], tags: None })?;
    let there = found(&mut one, NUMBERED, (0, b"f-id"))?;
    ensure!(kept && there.is_some(), "a change keeps the tags that it does not name")
}

pub(super) fn find_and_change(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    put(one.as_mut(), b"u1", &[(0, b"u-id1"), (1, b"u-alias1")], &[])?;
    put(one.as_mut(), b"u2", &[(0, b"u-id2"), (1, b"u-alias2")], &[])?;
    let number = RecordEntry { tags: &[(0, b"u-id1")], ..entry(b"u3", &[(0, b"x")]) };
    one.put(NUMBERED, &number)?;
    let mut key = b"another key".to_vec();
    for (tag, round) in [((0, &b"u-id1"[..]), &b"first"[..]), ((1, b"u-alias1"), b"second")] {
        let did = one.find_and_change(TAGGED, tag, &[(1, round)], &mut key)?;
        ensure!(did && key == b"u1", "{tag:?} leads to {key:?}")?;
        let there = found(&mut one, TAGGED, (0, b"u-id1"))?;
        let wanted = Some((b"u1".to_vec(), received(&[b"one", round])));
        ensure!(there == wanted, "changed by {tag:?}: {there:?}")?;
    }
    ensure!(one.find_and_change(NUMBERED, (0, b"u-id1"), &[(0, b"y")], &mut key)?, "one part")?;
    let there = found(&mut one, NUMBERED, (0, b"u-id1"))?;
    ensure!(there == Some((b"u3".to_vec(), received(&[b"y"]))), "one part: {there:?}")?;
    let other = read(&mut one, TAGGED, b"u2")?;
    ensure!(other == Some(received(&[b"one", b"u2"])), "the other record: {other:?}")?;
    let did = one.find_and_change(TAGGED, (0, b"u-id3"), &[(1, b"z")], &mut key)?;
    ensure!(!did, "no record has the value")
}

pub(super) fn taken(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    put(one.as_mut(), b"k1", &[(0, b"k-id1"), (1, b"k-alias1")], &[])?;
    put(one.as_mut(), b"k2", &[(0, b"k-id2"), (1, b"k-alias2")], &[])?;
    let refused = put(one.as_mut(), b"k3", &[(0, b"k-id3"), (1, b"k-alias1")], &[]);
    let Err(Error::TagTaken { tag, .. }) = &refused else {
        return ensure!(false, "a taken tag: {refused:?}");
    };
    ensure!(tag == "alias", "the tag that is taken is called {tag}")?;
    ensure!(read(&mut one, TAGGED, b"k3")?.is_none(), "the refused record")?;
    ensure!(key_of(one.as_mut(), (0, b"k-id3"))?.is_none(), "its other tag")?;
    let parts: [(usize, &[u8]); 1] = [(0, b"changed")];
    let (before, after) =
        ([(0, &b"k-id2"[..]), (1, b"k-alias2")], [(0, &b"k-id1"[..]), (1, b"k-alias2")]);
    let tags = Some((&before[..], &after[..]));
    let refused = one.change(TAGGED, &PartsChange { key: b"k2", parts: &parts, tags });
    ensure!(matches!(refused, Err(Error::TagTaken { .. })), "a change: {refused:?}")?;
    let whole = read(&mut one, TAGGED, b"k2")?;
    ensure!(whole == Some(received(&[b"one", b"k2"])), "a refused change: {whole:?}")?;
    for (id, key) in [(&b"k-id1"[..], &b"k1"[..]), (b"k-id2", b"k2")] {
        let there = key_of(one.as_mut(), (0, id))?;
        ensure!(there.as_deref() == Some(key), "{id:?} leads to {there:?}")?;
    }
    // The same record may keep its tags.
    put(one.as_mut(), b"k1", &[(0, b"k-id1"), (1, b"k-alias1")], &[])?;
    Ok(())
}

pub(super) fn retag(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let first: [RecordTag<'_>; 3] = [(0, b"t-id"), (1, b"t-old"), (2, b"t-g1")];
    let second: [RecordTag<'_>; 3] = [(0, b"t-id"), (1, b"t-new"), (2, b"t-g2")];
    let third: [RecordTag<'_>; 3] = [(0, b"t-id"), (1, b"t-newer"), (2, b"t-g2")];
    put(one.as_mut(), b"t1", &first, &[])?;
    let parts: [(usize, &[u8]); 1] = [(1, b"changed")];
    let to_second = PartsChange { key: b"t1", parts: &parts, tags: Some((&first, &second)) };
    ensure!(one.change(TAGGED, &to_second)?, "it is there")?;
    let there = found(&mut one, TAGGED, (1, b"t-new"))?;
    let wanted = Some((b"t1".to_vec(), received(&[b"one", b"changed"])));
    ensure!(there == wanted, "by the new tag: {there:?}")?;
    ensure!(key_of(one.as_mut(), (1, b"t-old"))?.is_none(), "by the old tag")?;
    put(one.as_mut(), b"t2", &[(0, b"t-id2"), (1, b"t-old")], &[])?;
    put(one.as_mut(), b"t1", &third, &second)?;
    ensure!(key_of(one.as_mut(), (1, b"t-new"))?.is_none(), "by the tag before")?;
    for (tag, key) in [((1, &b"t-newer"[..]), b"t1"), ((0, b"t-id"), b"t1"), ((1, b"t-old"), b"t2")]
    {
        let there = key_of(one.as_mut(), tag)?;
        ensure!(there.as_deref() == Some(key), "{tag:?} leads to {there:?}")?;
    }
    let of_none = PartsChange { key: b"t9", parts: &parts, tags: Some((&[], &[(1, b"t-9")])) };
    ensure!(!one.change(TAGGED, &of_none)?, "no record was changed")?;
    ensure!(key_of(one.as_mut(), (1, b"t-9"))?.is_none(), "no record has a tag")
}

pub(super) fn kept(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let tags: [RecordTag<'_>; 3] = [(0, b"c-id"), (1, b"c-alias"), (2, b"c-group")];
    put(one.as_mut(), b"c1", &tags, &[])?;
    put(one.as_mut(), b"c2", &[(0, b"c-id2"), (1, b"c-alias2")], &[])?;
    let number = RecordEntry { tags: &[(0, b"c-id")], ..entry(b"c3", &[(0, b"x")]) };
    one.put(NUMBERED, &number)?;
    // Alone, and together with another change.
    for round in [&b"first"[..], b"second"] {
        let parts: [(usize, &[u8]); 1] = [(1, round)];
        let of = |key| PartsChange { key, parts: &parts, tags: None };
        let value: [(usize, &[u8]); 1] = [(0, round)];
        let of_number = PartsChange { key: b"c3", parts: &value, tags: None };
        if round == b"first" {
            ensure!(one.change(TAGGED, &of(b"c1"))?, "it is there")?;
            ensure!(one.change(NUMBERED, &of_number)?, "it is there")?;
        } else {
            let changes = [(TAGGED, of(b"c1")), (TAGGED, of(b"c2")), (NUMBERED, of_number)];
            let requests = changes.map(|(table, change)| Request::Change { table, change });
            one.pipeline(&requests, &mut |_, _| {})?;
        }
        for tag in [(0, &b"c-id"[..]), (1, b"c-alias")] {
            let there = found(&mut one, TAGGED, tag)?;
            let wanted = Some((b"c1".to_vec(), received(&[b"one", round])));
            ensure!(there == wanted, "{tag:?} leads to {there:?}")?;
        }
        let there = found(&mut one, NUMBERED, (0, b"c-id"))?;
        let wanted = Some((b"c3".to_vec(), received(&[round])));
        ensure!(there == wanted, "one part: {there:?}")?;
    }
    Ok(())
}

pub(super) fn delete_of_nothing(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let tags: [RecordTag<'_>; 2] = [(0, b"x-id"), (1, b"x-alias")];
    put(one.as_mut(), b"x1", &tags, &[])?;
    ensure!(one.delete(TAGGED, b"x1", &tags)?, "it is there")?;
    put(one.as_mut(), b"x2", &tags, &[])?;
    ensure!(!one.delete(TAGGED, b"x1", &tags)?, "it was gone")?;
    let there = key_of(one.as_mut(), (0, b"x-id"))?;
    ensure!(there.as_deref() == Some(b"x2"), "the new holder: {there:?}")
}

/// Records that race for a tag, and how often.
const RACERS: u8 = 3;
const RACES: u8 = 30;

pub(super) fn race(tested: &TargetUnderTest<'_>) -> CheckResult {
    let (name, address, schema) = (tested.target.name(), tested.database.address(), tested.schema);
    let won = AtomicUsize::new(0);
    let run = |racer: u8| -> Result<()> {
        let mut one = targets::named(name)?.connect(&address, &schema)?;
        for race in 0..RACES {
            let (key, tag) = ([b'v', racer, race], [b'v', race]);
            match put(one.as_mut(), &key, &[(0, &tag)], &[]) {
                Ok(()) => won.fetch_add(1, Ordering::Relaxed),
                Err(Error::TagTaken { .. }) => 0,
                Err(e) => return Err(e),
            };
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS)
            .map(|racer| {
                scope.spawn({
                    let run = &run;
                    move || run(racer)
                })
            })
            .collect();
        racers.into_iter().try_for_each(|racer| {
            racer.join().unwrap_or_else(|_| Err(backend_error!("a racer of the check panicked")))
        })
    })?;
    let won = won.load(Ordering::Relaxed);
    ensure!(won == usize::from(RACES), "{won} puts won {RACES} tags")?;
    let mut one = tested.connect()?;
    for race in 0..RACES {
        let Some(key) = key_of(one.as_mut(), (0, &[b'v', race]))? else {
            return ensure!(false, "no record has tag {race}");
        };
        let mut others = 0;
        for racer in 0..RACERS {
            others += usize::from(read(&mut one, TAGGED, &[b'v', racer, race])?.is_some());
        }
        ensure!(others == 1, "tag {race} is {key:?}'s, and {others} records are there")?;
    }
    Ok(())
}

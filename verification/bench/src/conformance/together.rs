//! Requests that are sent together.

use super::{
    BLOCKS, CheckResult, NUMBERED, PLAIN, TAGGED, TargetUnderTest, change, ensure, entry, found,
    read,
};
use crate::access::{
    Connection, OwnedReply, PartSet, PartsChange, RecordEntry, RecordTag, Request, TableId,
    perform_each,
};
use nearstate_model::{Error, Result};

/// A reply, and the number of its request.
type NumberedReply = (usize, OwnedReply);

fn together(one: &mut Connection<'_>, requests: &[Request<'_>]) -> Result<Vec<NumberedReply>> {
    let mut all = Vec::new();
    one.pipeline(requests, &mut |number, reply| all.push((number, OwnedReply::from(reply))))?;
    Ok(all)
}

fn one_by_one(one: &mut Connection<'_>, requests: &[Request<'_>]) -> Result<Vec<NumberedReply>> {
    let mut all = Vec::new();
    perform_each(one, requests, &mut |number, reply| all.push((number, OwnedReply::from(reply))))?;
    Ok(all)
}

/// The `at`th request.
fn request<'a>(at: usize, key: &'a [u8], parts: &'a [(usize, &'a [u8])]) -> Request<'a> {
    let first = parts.get(..1).unwrap_or_default();
    let read = |table: TableId| Request::Read { table, key, wanted: PartSet::ALL };
    match at % 9 {
        0 | 1 => Request::Put { table: BLOCKS, entry: entry(key, parts) },
        2 => Request::Change { table: BLOCKS, change: change(key, first) },
        3 => Request::Delete { table: BLOCKS, key, tags: &[] },
        4 => read(BLOCKS),
        5 => Request::Put { table: PLAIN, entry: entry(key, first) },
        6 => Request::Change { table: PLAIN, change: change(key, first) },
        7 => Request::Delete { table: PLAIN, key, tags: &[] },
        _ => Request::Read { table: PLAIN, key, wanted: PartSet::one(0) },
    }
}

/// How one connection sends the requests that another one sends one by one.
type SendFn = fn(&mut Connection<'_>, &[Request<'_>]) -> Result<Vec<NumberedReply>>;

pub(super) fn as_one_by_one(tested: &TargetUnderTest<'_>) -> CheckResult {
    are_the_same(tested, [b'p', b'q'], together)
}

/// Messages in flight, and requests of each.
const AHEAD: usize = 3;
const OF_MESSAGE: usize = 7;

/// Some messages are in flight while the oldest is received.
fn sent_ahead(one: &mut Connection<'_>, requests: &[Request<'_>]) -> Result<Vec<NumberedReply>> {
    let mut all = Vec::new();
    let (mut leaving, mut number) = (requests.chunks(OF_MESSAGE), 0);
    for message in leaving.by_ref().take(AHEAD) {
        one.send_ahead(message)?;
    }
    for message in requests.chunks(OF_MESSAGE) {
        one.receive_ahead(message, &mut |at, reply| {
            all.push((number + at, OwnedReply::from(reply)));
        })?;
        number += message.len();
        if let Some(next) = leaving.next() {
            one.send_ahead(next)?;
        }
    }
    Ok(all)
}

pub(super) fn ahead(tested: &TargetUnderTest<'_>) -> CheckResult {
    are_the_same(tested, [b'u', b'w'], sent_ahead)
}

/// The same requests in four rounds, so that some find a record and some do not; one connection is
/// asked in this way, the other one by one.
fn are_the_same(tested: &TargetUnderTest<'_>, firsts: [u8; 2], send: SendFn) -> CheckResult {
    let (mut one, mut two) = (tested.connect()?, tested.connect()?);
    for round in 0..4_usize {
        let keys: [Vec<Vec<u8>>; 2] =
            firsts.map(|first| (0..90_u8).map(|at| vec![first, at, b'\r', b'\n']).collect());
        let value = vec![u8::try_from(round).unwrap_or_default(); 10 + 400 * round];
        let parts: [(usize, &[u8]); 3] = [(0, &value), (1, b""), (2, b"c\r\n")];
        let requests_of = |keys: &'_ [Vec<u8>]| -> Vec<(usize, Vec<u8>)> {
            keys.iter()
                .enumerate()
                .map(|(at, key)| (at * (round + 1) + round, key.clone()))
                .collect()
        };
        let [left, right] = &keys;
        let (left, right) = (requests_of(left), requests_of(right));
        let ours: Vec<_> = left.iter().map(|(at, key)| request(*at, key, &parts)).collect();
        let others: Vec<_> = right.iter().map(|(at, key)| request(*at, key, &parts)).collect();
        let (answers, wanted) = (send(one.as_mut(), &ours)?, one_by_one(two.as_mut(), &others)?);
        are_equal(&answers, &wanted, &format!("round {round}"))?;
        for ((_, left), (_, right)) in left.iter().zip(&right) {
            for table in [BLOCKS, PLAIN] {
                let is_same = read(&mut one, table, left)? == read(&mut two, table, right)?;
                ensure!(is_same, "round {round}: {left:?} and {right:?} differ")?;
            }
        }
    }
    ensure!(send(one.as_mut(), &[])?.is_empty(), "answers to nothing")
}

fn are_equal(answers: &[NumberedReply], wanted: &[NumberedReply], what: &str) -> CheckResult {
    if let Some(at) = (0..wanted.len()).find(|at| answers.get(*at) != wanted.get(*at)) {
        let (is, should) = (answers.get(at), wanted.get(at));
        ensure!(false, "{what}: {is:?}, one by one {should:?}")?;
    }
    ensure!(answers.len() == wanted.len(), "{what}: {} answers", answers.len())
}

/// Records that are found, and each how.
const FOUND: u8 = 40;

/// Asked for by each of the unique tags and in every width, among reads of other records; every
/// fifth is not there.
pub(super) fn finds(tested: &TargetUnderTest<'_>) -> CheckResult {
    for (of, send) in [(b'1', together as SendFn), (b'2', sent_ahead)] {
        let mut one = tested.connect()?;
        let keys: Vec<[u8; 3]> = (0..FOUND).map(|at| [b'e', of, at]).collect();
        let aliases: Vec<[u8; 4]> = keys.iter().map(|[a, b, c]| [b'\r', *a, *b, *c]).collect();
        let parts: [(usize, &[u8]); 2] = [(0, b"one\r\n"), (1, b"")];
        let is_there = |at: usize| at % 5 != 4;
        for (at, (key, alias)) in keys.iter().zip(&aliases).enumerate() {
            let tags: [RecordTag<'_>; 2] = [(0, key), (1, alias)];
            let number = [(0, alias.as_slice())];
            if is_there(at) {
                one.put(TAGGED, &RecordEntry::tagged(key, &parts, &tags))?;
                let parts = parts.get(..1).unwrap_or_default();
                one.put(NUMBERED, &RecordEntry::tagged(key, parts, &number))?;
            }
        }
        let mut requests = Vec::new();
        for (at, (key, alias)) in keys.iter().zip(&aliases).enumerate() {
            let (table, tag): (_, RecordTag<'_>) = match at % 3 {
                0 => (TAGGED, (0, key)),
                1 => (TAGGED, (1, alias)),
                _ => (NUMBERED, (0, alias)),
            };
            let wanted = [PartSet::ALL, PartSet::one(0), PartSet(0)].get(at % 4).copied();
            let wanted = wanted.unwrap_or(PartSet::ALL);
            requests.push(Request::Find { table, tag, wanted });
            requests.push(Request::Read { table: PLAIN, key, wanted: PartSet::ALL });
        }
        let (answers, wanted) = (send(one.as_mut(), &requests)?, one_by_one(&mut *one, &requests)?);
        are_equal(&answers, &wanted, "finds")?;
        for (at, key) in keys.iter().enumerate() {
            let own: Vec<&OwnedReply> =
                answers.iter().filter(|(number, _)| *number == 2 * at).map(|(_, k)| k).collect();
            let is_right = match own.as_slice() {
                [.., OwnedReply::Key(found), OwnedReply::Done(true)] => {
                    is_there(at) && found == key
                }
                [OwnedReply::Done(false)] => !is_there(at),
                _ => false,
            };
            ensure!(is_right, "the find of number {at}: {own:?}")?;
        }
    }
    Ok(())
}

/// Finds and changes of tags of different records in one pipeline: a record is found by its old tag
/// before the change, and by the new one after it.
pub(super) fn finds_and_changes(tested: &TargetUnderTest<'_>) -> CheckResult {
    for (of, send) in [(b'3', together as SendFn), (b'4', sent_ahead)] {
        let mut one = tested.connect()?;
        let key_of = |kind: u8| move |at: u8| [kind, of, at];
        let [keys, olds, news] =
            [b'e', b'o', b'n'].map(|kind| (0..FOUND).map(key_of(kind)).collect::<Vec<[u8; 3]>>());
        let tag = |value| -> [RecordTag<'_>; 1] { [(1, value)] };
        let befores: Vec<_> = olds.iter().map(|value| tag(value.as_slice())).collect();
        let afters: Vec<_> = news.iter().map(|value| tag(value.as_slice())).collect();
        let parts: [(usize, &[u8]); 2] = [(0, b"1"), (1, b"2")];
        for (key, tags) in keys.iter().zip(&befores) {
            one.put(TAGGED, &RecordEntry::tagged(key, &parts, tags))?;
        }
        // The first half changes and the second is found, then the other way round.
        for round in [0, 1] {
            let mut requests = Vec::new();
            for (at, (key, (before, after))) in
                keys.iter().zip(befores.iter().zip(&afters)).enumerate()
            {
                let is_first = at < keys.len() / 2;
                let tags = if round == 0 || !is_first { before } else { after };
                let found = tags.first().copied().unwrap_or_default();
                requests.push(if is_first == (round == 0) {
                    let tags = Some((before.as_slice(), after.as_slice()));
                    Request::Change { table: TAGGED, change: PartsChange { key, parts: &[], tags } }
                } else {
                    Request::Find { table: TAGGED, tag: found, wanted: PartSet(0) }
                });
            }
            let answers = send(one.as_mut(), &requests)?;
            for (at, (key, request)) in keys.iter().zip(&requests).enumerate() {
                let is_find = matches!(request, Request::Find { .. });
                let own = |kept: OwnedReply| answers.contains(&(at, kept));
                let is_right =
                    own(OwnedReply::Done(true)) && is_find == own(OwnedReply::Key(key.to_vec()));
                ensure!(is_right, "round {round}, number {at} among {answers:?}")?;
            }
        }
        for (old, new) in olds.iter().zip(&news) {
            ensure!(found(&mut one, TAGGED, (1, old))?.is_none(), "{old:?}")?;
            ensure!(found(&mut one, TAGGED, (1, new))?.is_some(), "{new:?}")?;
        }
    }
    Ok(())
}

/// Requests that are more than a message has.
const MANY: u16 = 3000;

pub(super) fn many(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let keys: Vec<[u8; 3]> = (0..MANY).map(u16::to_be_bytes).map(|[a, b]| [b'm', a, b]).collect();
    let value = vec![b'v'; 2000];
    let parts: [(usize, &[u8]); 1] = [(0, &value)];
    let puts: Vec<_> =
        keys.iter().map(|key| Request::Put { table: PLAIN, entry: entry(key, &parts) }).collect();
    let answers = together(one.as_mut(), &puts)?;
    let all =
        |is_done| (0..puts.len()).map(|at| (at, OwnedReply::Done(is_done))).collect::<Vec<_>>();
    ensure!(answers == all(true), "puts are answered one after the other")?;
    let reads: Vec<_> =
        keys.iter().map(|key| Request::Read { table: PLAIN, key, wanted: PartSet::ALL }).collect();
    let answers = together(one.as_mut(), &reads)?;
    ensure!(answers.len() == 2 * reads.len(), "{} answers", answers.len())?;
    for (at, pair) in answers.chunks(2).enumerate() {
        let wanted = [(at, OwnedReply::Part(0, value.clone())), (at, OwnedReply::Done(true))];
        ensure!(pair == wanted, "the answer to number {at}")?;
    }
    let deletes: Vec<_> =
        keys.iter().map(|key| Request::Delete { table: PLAIN, key, tags: &[] }).collect();
    ensure!(together(one.as_mut(), &deletes)?.len() == deletes.len(), "deletes")?;
    let answers = together(one.as_mut(), &reads)?;
    ensure!(answers == all(false), "records are there after they were deleted together")
}

pub(super) fn tagged(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let keys: Vec<[u8; 2]> = (0..40).map(|at| [b'z', at]).collect();
    let news: Vec<[u8; 2]> = (0..40).map(|at| [b'Z', at]).collect();
    let tags: Vec<[RecordTag<'_>; 1]> = keys.iter().map(|key| [(0, key.as_slice())]).collect();
    let afters: Vec<[RecordTag<'_>; 1]> = news.iter().map(|key| [(0, key.as_slice())]).collect();
    let parts: [(usize, &[u8]); 2] = [(0, b"one"), (1, b"two")];
    let mut requests: Vec<Request<'_>> = Vec::new();
    for (key, tags) in keys.iter().zip(&tags) {
        requests
            .push(Request::Put { table: TAGGED, entry: RecordEntry::tagged(key, &parts, tags) });
        requests.push(Request::Read { table: PLAIN, key, wanted: PartSet::ALL });
    }
    let answers = together(one.as_mut(), &requests)?;
    let wanted: Vec<_> =
        (0..requests.len()).map(|at| (at, OwnedReply::Done(at % 2 == 0))).collect();
    ensure!(answers == wanted, "puts among reads: {answers:?}")?;
    let changes: Vec<Request<'_>> = keys
        .iter()
        .zip(tags.iter().zip(&afters))
        .enumerate()
        .map(|(at, (key, (before, after)))| match at % 3 {
            0 => Request::Delete { table: TAGGED, key, tags: before },
            _ => Request::Change {
                table: TAGGED,
                change: PartsChange { key, parts: &[], tags: Some((before, after)) },
            },
        })
        .collect();
    for is_done in [true, false] {
        let answers = together(one.as_mut(), &changes)?;
        for (at, answer) in answers.iter().enumerate() {
            let wanted = (at, OwnedReply::Done(is_done || at % 3 != 0));
            ensure!(*answer == wanted, "{answer:?}, not {wanted:?}")?;
        }
    }
    for (at, (key, new)) in keys.iter().zip(&news).enumerate() {
        ensure!(found(&mut one, TAGGED, (0, key))?.is_none(), "old tag {at}")?;
        let is_there = found(&mut one, TAGGED, (0, new))?.is_some();
        ensure!(is_there == (at % 3 != 0), "new tag {at}")?;
    }
    let refused = together(
        one.as_mut(),
        &[
            Request::Read { table: PLAIN, key: b"z", wanted: PartSet::ALL },
            Request::Put {
                table: TAGGED,
                entry: RecordEntry::tagged(b"other", &parts, &[(0, &[b'Z', 1])]),
            },
            Request::Read { table: PLAIN, key: b"z", wanted: PartSet::ALL },
        ],
    );
    ensure!(matches!(refused, Err(Error::TagTaken { .. })), "a taken tag: {refused:?}")?;
    ensure!(read(&mut one, TAGGED, b"other")?.is_none(), "the refused record")
}

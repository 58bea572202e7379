//! Random hash and set commands, compared with maps and sets in memory.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use crate::fixture::{TestClient, node, request};
use proptest::prelude::*;

type Hash = BTreeMap<u8, Vec<u8>>;
type Set = BTreeSet<Vec<u8>>;

#[derive(Clone, Debug)]
enum HashStep {
    Set(Vec<(u8, Vec<u8>)>),
    SetIfAbsent(u8, Vec<u8>),
    Add(u8, i64),
    Delete(Vec<u8>),
    Rename,
    Copy,
}

#[derive(Clone, Debug)]
enum SetStep {
    Add(usize, Vec<Vec<u8>>),
    Remove(usize, Vec<Vec<u8>>),
    Move(usize, usize, Vec<u8>),
    Pop(usize, usize),
    Algebra(usize, usize),
}

/// The type bytes of replies.
fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn array<'b>(elements: impl IntoIterator<Item = &'b [u8]>) -> Vec<u8> {
    let elements: Vec<Vec<u8>> = elements.into_iter().map(bulk).collect();
    [format!("*{}\r\n", elements.len()).as_bytes(), &elements.concat()].concat()
}

fn number(number: usize) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

fn ask(client: &mut TestClient, words: &[&[u8]]) -> Vec<u8> {
    client.send(&request(words))
}

/// Field names of all lengths. One does not fit into the record's cell.
fn field(of: u8) -> Vec<u8> {
    vec![b'a' + of; usize::from(of) * 12 + 1]
}

fn hash_step() -> impl Strategy<Value = HashStep> {
    let value = || {
        prop_oneof![
            3 => any::<i64>().prop_map(|number| number.to_string().into_bytes()),
            3 => prop::collection::vec(any::<u8>(), 0..9),
            1 => any::<u8>().prop_map(|byte| vec![byte; 700]),
        ]
    };
    prop_oneof![
        4 => prop::collection::vec((0..20_u8, value()), 1..12).prop_map(HashStep::Set),
        1 => (0..20_u8, value()).prop_map(|(field, value)| HashStep::SetIfAbsent(field, value)),
        2 => (0..20_u8, any::<i64>()).prop_map(|(field, delta)| HashStep::Add(field, delta)),
        3 => prop::collection::vec(0..20_u8, 1..12).prop_map(HashStep::Delete),
        1 => Just(HashStep::Rename),
        1 => Just(HashStep::Copy),
    ]
}

fn whole(value: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

/// The command and its expected reply.
fn hash_case(step: &HashStep, hash: &mut Hash) -> (Vec<Vec<u8>>, Vec<u8>) {
    let command = |name: &str, args: Vec<Vec<u8>>| {
        [vec![name.as_bytes().to_vec(), b"h".to_vec()], args].concat()
    };
    match step {
        HashStep::Set(pairs) => {
            let before = hash.len();
            hash.extend(pairs.iter().cloned());
            let args = pairs.iter().flat_map(|(name, value)| [field(*name), value.clone()]);
            (command("HSET", args.collect()), number(hash.len() - before))
        }
        HashStep::SetIfAbsent(name, value) => {
            let is_new = !hash.contains_key(name);
            hash.entry(*name).or_insert_with(|| value.clone());
            (command("HSETNX", vec![field(*name), value.clone()]), number(is_new.into()))
        }
        HashStep::Add(name, delta) => {
            let command = command("HINCRBY", vec![field(*name), delta.to_string().into_bytes()]);
            let Some(old) = hash.get(name).map_or(Some(0), |value| whole(value)) else {
                return (command, b"-ERR hash value is not an integer\r\n".to_vec());
            };
            let Some(sum) = old.checked_add(*delta) else {
                return (command, b"-ERR increment or decrement would overflow\r\n".to_vec());
            };
            hash.insert(*name, sum.to_string().into_bytes());
            (command, format!(":{sum}\r\n").into_bytes())
        }
        HashStep::Delete(names) => {
            let gone = names.iter().filter(|name| hash.remove(name).is_some()).count();
            (command("HDEL", names.iter().map(|name| field(*name)).collect()), number(gone))
        }
        HashStep::Rename | HashStep::Copy => {
            let is_copy = matches!(step, HashStep::Copy);
            let name = if is_copy { "COPY" } else { "RENAME" };
            let answer: &[u8] = match (is_copy, hash.is_empty()) {
                (true, true) => b":0\r\n",
                (true, false) => b":1\r\n",
                (false, true) => b"-ERR no such key\r\n",
                (false, false) => b"+OK\r\n",
            };
            let mut words = command(name, vec![b"{other},h".to_vec()]);
            words.extend(is_copy.then(|| b"REPLACE".to_vec()));
            (words, answer.to_vec())
        }
    }
}

/// The expected replies to all reads of a hash, with fields in any order.
fn check_hash(client: &mut TestClient, hash: &Hash) {
    assert_eq!(ask(client, &[b"HLEN", b"h"]), number(hash.len()));
    assert_eq!(ask(client, &[b"EXISTS", b"h"]), number((!hash.is_empty()).into()));
    let names: Vec<Vec<u8>> = (0..20).map(field).collect();
    let mut words: Vec<&[u8]> = vec![b"HMGET", b"h"];
    words.extend(names.iter().map(Vec::as_slice));
    let values = (0..20).map(|name| hash.get(&name).map_or(b"$-1\r\n".to_vec(), |v| bulk(v)));
    let expected = [b"*20\r\n".to_vec(), values.collect::<Vec<_>>().concat()].concat();
    assert_eq!(ask(client, &words), expected);
    for (name, value) in hash {
        assert_eq!(ask(client, &[b"HGET", b"h", &field(*name)]), bulk(value));
    }
    let all = ask(client, &[b"HGETALL", b"h"]);
    let bytes: usize = hash.iter().map(|(n, v)| bulk(&field(*n)).len() + bulk(v).len()).sum();
    assert_eq!(all.len(), format!("*{}\r\n", hash.len() * 2).len() + bytes);
}

fn members() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let member = prop::collection::vec(prop_oneof![Just(0), Just(b'a'), Just(255)], 0..4);
    prop::collection::vec(member, 1..9)
}

fn set_step() -> impl Strategy<Value = SetStep> {
    let key = || 0..3_usize;
    prop_oneof![
        4 => (key(), members()).prop_map(|(key, members)| SetStep::Add(key, members)),
        3 => (key(), members()).prop_map(|(key, members)| SetStep::Remove(key, members)),
        2 => (key(), key(), members())
            .prop_map(|(from, to, mut members)| SetStep::Move(from, to, members.remove(0))),
        1 => (key(), 0..5_usize).prop_map(|(key, count)| SetStep::Pop(key, count)),
        2 => (key(), key()).prop_map(|(one, two)| SetStep::Algebra(one, two)),
    ]
}

/// Keys of three sets. One is in another namespace.
const KEYS: [&[u8]; 3] = [b"one", b"{ns},two", b""];

fn actual<'b>(members: impl IntoIterator<Item = &'b Vec<u8>>) -> Vec<u8> {
    array(members.into_iter().map(Vec::as_slice))
}

fn take_set_step(client: &mut TestClient, sets: &mut [Set; 3], step: &SetStep) {
    match step {
        SetStep::Add(key, given) | SetStep::Remove(key, given) => {
            let is_add = matches!(step, SetStep::Add(..));
            let mut words: Vec<&[u8]> = vec![if is_add { b"SADD" } else { b"SREM" }, KEYS[*key]];
            words.extend(given.iter().map(Vec::as_slice));
            let set = &mut sets[*key];
            let before = set.len();
            for member in given {
                if is_add {
                    set.insert(member.clone());
                } else {
                    set.remove(member);
                }
            }
            assert_eq!(ask(client, &words), number(before.abs_diff(set.len())), "{step:?}");
            words[0] = b"SMISMEMBER";
            let answer = format!("*{}\r\n", given.len())
                + &format!(":{}\r\n", u8::from(is_add)).repeat(given.len());
            assert_eq!(ask(client, &words), answer.into_bytes());
        }
        SetStep::Move(from, to, member) => {
            let is_moved = sets[*from].remove(member);
            if is_moved {
                sets[*to].insert(member.clone());
            }
            let words = [&b"SMOVE"[..], KEYS[*from], KEYS[*to], member];
            assert_eq!(ask(client, &words), number(is_moved.into()), "{step:?}");
        }
        SetStep::Pop(key, count) => {
            let count = count.to_string();
            ask(client, &[b"SPOP", KEYS[*key], count.as_bytes()]);
            let left: Set = sets[*key]
                .iter()
                .filter(|member| ask(client, &[b"SISMEMBER", KEYS[*key], member]) == b":1\r\n")
                .cloned()
                .collect();
            let expected = sets[*key].len().saturating_sub(count.parse().unwrap());
            assert_eq!(left.len(), expected, "{step:?}");
            sets[*key] = left;
        }
        SetStep::Algebra(one, two) => {
            let (left, right) = (&sets[*one], &sets[*two]);
            let mut answer = |name: &[u8]| ask(client, &[name, KEYS[*one], KEYS[*two]]);
            assert_eq!(answer(b"SINTER"), actual(left.intersection(right)));
            assert_eq!(answer(b"SUNION"), actual(left.union(right)));
            assert_eq!(answer(b"SDIFF"), actual(left.difference(right)));
            let count = ask(client, &[b"SINTERCARD", b"2", KEYS[*one], KEYS[*two]]);
            assert_eq!(count, number(left.intersection(right).count()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn hash_commands_behave_like_a_map(steps in prop::collection::vec(hash_step(), 1..40)) {
        let node = node();
        let mut client = node.client();
        let mut hash = Hash::new();
        for step in &steps {
            let (words, answer) = hash_case(step, &mut hash);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(ask(&mut client, &words), answer, "{:?}", step);
            if matches!(step, HashStep::Rename) && !hash.is_empty() {
                prop_assert_eq!(ask(&mut client, &[b"EXISTS", b"h"]), number(0));
                prop_assert_eq!(ask(&mut client, &[b"RENAME", b"{other},h", b"h"]), b"+OK\r\n");
            }
            if matches!(step, HashStep::Copy) && !hash.is_empty() {
                let copy = ask(&mut client, &[b"HGETALL", b"{other},h"]);
                prop_assert_eq!(ask(&mut client, &[b"HGETALL", b"h"]), copy);
            }
            check_hash(&mut client, &hash);
        }
    }

    #[test]
    fn set_commands_behave_like_a_set(steps in prop::collection::vec(set_step(), 1..60)) {
        let node = node();
        let mut client = node.client();
        let mut sets = [const { Set::new() }; 3];
        for step in &steps {
            take_set_step(&mut client, &mut sets, step);
            for (key, set) in KEYS.iter().zip(&sets) {
                prop_assert_eq!(ask(&mut client, &[b"SMEMBERS", key]), actual(set));
                prop_assert_eq!(ask(&mut client, &[b"SCARD", key]), number(set.len()));
                let is_there = number((!set.is_empty()).into());
                prop_assert_eq!(ask(&mut client, &[b"EXISTS", key]), is_there);
            }
        }
    }

    #[test]
    fn hash_commands_in_multi_agree(steps in prop::collection::vec(hash_step(), 1..20)) {
        let node = node();
        let mut client = node.client();
        let mut hash = Hash::new();
        let mut expected = format!("*{}\r\n", steps.len()).into_bytes();
        prop_assert_eq!(ask(&mut client, &[b"MULTI"]), b"+OK\r\n");
        for step in &steps {
            let (words, answer) = hash_case(step, &mut hash);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(ask(&mut client, &words), b"+QUEUED\r\n");
            expected.extend(answer);
            if matches!(step, HashStep::Rename) {
                hash.clear();
            }
        }
        prop_assert_eq!(ask(&mut client, &[b"EXEC"]), expected);
        check_hash(&mut client, &hash);
    }
}

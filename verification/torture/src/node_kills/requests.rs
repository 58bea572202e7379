//! What a client requests: changes of its own records and of shared counters, alone or in
//! transactions, with the effect on the records and the replies.

use std::collections::{BTreeMap, BTreeSet};

use super::shared_counters::{Increments, NAMESPACE, SharedCounter};
use crate::rng::{Rng, percent, value_size};
use nearstate_resp_client::{RespReply, encode_request};

/// A client's keys of each kind.
const KEYS: u64 = 12;
/// Fields of a hash and members of a set.
const PARTS: u64 = 8;
/// Changes of a transaction, at most.
const CHANGES_MAX: u64 = 6;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelValue {
    Text(Vec<u8>),
    Hash(BTreeMap<String, Vec<u8>>),
    Set(BTreeSet<Vec<u8>>),
}

/// A client's records by their keys in its namespace.
pub(super) type Records = BTreeMap<String, ModelValue>;

#[derive(Clone, Debug)]
enum ClientChange {
    Set(String, Vec<u8>),
    Delete(String),
    Fields(String, Vec<(String, Vec<u8>)>),
    Members(String, Vec<Vec<u8>>),
    Remove(String, Vec<Vec<u8>>),
    Raise(String),
    RaiseShared(SharedCounter),
}

/// An atomic request: a change, or a transaction of several.
#[derive(Clone, Debug)]
pub(super) struct ClientRequest {
    changes: Vec<ClientChange>,
    pub(super) is_transaction: bool,
}

/// A value that identifies its writer, and that is not mistaken for another if it is cut or mixed.
fn text(client: usize, rng: &mut Rng) -> Vec<u8> {
    let (word, size) = (rng.u64(..), value_size(rng) as usize);
    let start = format!("{client} {word:016x} {size} ");
    let mut bytes = start.clone().into_bytes();
    bytes.extend(start.bytes().cycle().take(size));
    bytes
}

fn members(rng: &mut Rng) -> Vec<Vec<u8>> {
    let some = (0..=rng.u64(..3)).map(|_| format!("member {}", rng.u64(..PARTS)).into_bytes());
    some.collect::<BTreeSet<_>>().into_iter().collect()
}

impl ClientChange {
    fn random(client: usize, rng: &mut Rng) -> Self {
        let number = rng.u64(..KEYS);
        match rng.u64(..100) {
            0..=34 => Self::Set(format!("s{number}"), text(client, rng)),
            35..=54 => {
                let fields: BTreeMap<_, _> = (0..=rng.u64(..3))
                    .map(|_| (format!("field {}", rng.u64(..PARTS)), text(client, rng)))
                    .collect();
                Self::Fields(format!("h{number}"), fields.into_iter().collect())
            }
            55..=64 => Self::Members(format!("m{number}"), members(rng)),
            65..=69 => Self::Remove(format!("m{number}"), members(rng)),
            70..=79 => Self::Raise(format!("n{number}")),
            80..=84 => Self::RaiseShared(SharedCounter::Sockets),
            85..=89 => Self::RaiseShared(SharedCounter::All),
            _ => {
                let kind = ["s", "h", "m", "n"].get(rng.usize(..4)).copied();
                Self::Delete(format!("{}{number}", kind.unwrap_or("s")))
            }
        }
    }

    fn write(&self, namespace: &str, into: &mut Vec<u8>) {
        let full = |key: &str| format!("{{{namespace}}},{key}").into_bytes();
        match self {
            Self::Set(key, value) => encode_request(&[b"SET", &full(key), value], into),
            Self::Delete(key) => encode_request(&[b"DEL", &full(key)], into),
            Self::Raise(key) => encode_request(&[b"INCR", &full(key)], into),
            Self::RaiseShared(counter) => {
                let key = format!("{{{NAMESPACE}}},{}", counter.key());
                encode_request(&[b"INCR", key.as_bytes()], into);
            }
            Self::Fields(key, fields) => {
                let key = full(key);
                let pairs = fields.iter().flat_map(|(name, value)| [name.as_bytes(), value]);
                let words: Vec<&[u8]> =
                    [b"HSET", key.as_slice()].into_iter().chain(pairs).collect();
                encode_request(&words, into);
            }
            Self::Members(key, members) | Self::Remove(key, members) => {
                let name: &[u8] = if matches!(self, Self::Members(..)) { b"SADD" } else { b"SREM" };
                let key = full(key);
                let members = members.iter().map(Vec::as_slice);
                let words: Vec<&[u8]> = [name, &key].into_iter().chain(members).collect();
                encode_request(&words, into);
            }
        }
    }

    /// Applies the change. Returns the expected reply, or `None` for the value of a shared counter.
    fn apply(&self, records: &mut Records, raised: &mut Increments) -> Option<RespReply> {
        let number =
            |count: usize| Some(RespReply::Integer(i64::try_from(count).unwrap_or(i64::MAX)));
        match self {
            Self::Set(key, value) => {
                records.insert(key.clone(), ModelValue::Text(value.clone()));
                Some(RespReply::Simple(b"OK".to_vec()))
            }
            Self::Delete(key) => number(usize::from(records.remove(key).is_some())),
            Self::Fields(key, fields) => {
                let empty = || ModelValue::Hash(BTreeMap::new());
                let ModelValue::Hash(hash) = records.entry(key.clone()).or_insert_with(empty)
                else {
                    return None;
                };
                let before = hash.len();
                hash.extend(fields.iter().cloned());
                number(hash.len() - before)
            }
            Self::Members(key, members) => {
                let empty = || ModelValue::Set(BTreeSet::new());
                let ModelValue::Set(set) = records.entry(key.clone()).or_insert_with(empty) else {
                    return None;
                };
                let before = set.len();
                set.extend(members.iter().cloned());
                number(set.len() - before)
            }
            Self::Remove(key, members) => {
                let Some(ModelValue::Set(set)) = records.get_mut(key) else { return number(0) };
                let gone = members.iter().filter(|member| set.remove(*member)).count();
                if set.is_empty() {
                    records.remove(key);
                }
                number(gone)
            }
            Self::Raise(key) => {
                let next = match records.get(key) {
                    Some(ModelValue::Text(text)) => std::str::from_utf8(text).ok()?.parse().ok()?,
                    _ => 0,
                } + 1;
                records.insert(key.clone(), ModelValue::Text(next.to_string().into_bytes()));
                Some(RespReply::Integer(next))
            }
            Self::RaiseShared(counter) => {
                raised.add(*counter);
                None
            }
        }
    }
}

impl ClientRequest {
    /// A random request.
    pub(super) fn random(client: usize, rng: &mut Rng) -> Self {
        let is_transaction = percent(rng, 30);
        let count = if is_transaction { 2 + rng.u64(..CHANGES_MAX - 1) } else { 1 };
        let changes = (0..count).map(|_| ClientChange::random(client, rng)).collect();
        Self { changes, is_transaction }
    }

    /// Encodes its requests. `is_atomic`: a transaction is sent as one.
    pub(super) fn write(&self, namespace: &str, is_atomic: bool, into: &mut Vec<u8>) {
        let is_atomic = self.is_transaction && is_atomic;
        if is_atomic {
            encode_request(&[b"MULTI"], into);
        }
        for change in &self.changes {
            change.write(namespace, into);
        }
        if is_atomic {
            encode_request(&[b"EXEC"], into);
        }
    }

    /// The number of replies.
    pub(super) fn reply_count(&self, is_atomic: bool) -> usize {
        self.changes.len() + if self.is_transaction && is_atomic { 2 } else { 0 }
    }

    /// Applies all changes and returns the expected replies, `None` for values that depend on other
    /// clients.
    pub(super) fn apply(
        &self,
        records: &mut Records,
        raised: &mut Increments,
    ) -> Vec<Option<RespReply>> {
        self.changes.iter().map(|change| change.apply(records, raised)).collect()
    }

    /// Compares the replies with the expected ones.
    pub(super) fn check_replies(
        &self,
        received: &[RespReply],
        expected: &[Option<RespReply>],
    ) -> Result<(), String> {
        let received: &[RespReply] = match received {
            [RespReply::Simple(multi), queued @ .., RespReply::Array(done)]
                if self.is_transaction && multi == b"OK" =>
            {
                let is_queued = |reply: &RespReply| *reply == RespReply::Simple(b"QUEUED".to_vec());
                if !queued.iter().all(is_queued) {
                    return Err(format!("{self:?}: {queued:?} instead of QUEUED"));
                }
                done
            }
            alone => alone,
        };
        let matches_expected =
            |(received, expected): (&RespReply, &Option<RespReply>)| match expected {
                Some(expected) => received == expected,
                None => matches!(received, RespReply::Integer(1..)),
            };
        if received.len() == expected.len() && received.iter().zip(expected).all(matches_expected) {
            return Ok(());
        }
        Err(format!("{self:?} received {received:?}, expected {expected:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_the_expected_effect_and_replies() {
        let (mut records, mut raised) = (Records::new(), Increments::default());
        let number = |number| Some(RespReply::Integer(number));
        let members = vec![b"a".to_vec(), b"b".to_vec()];
        let request = ClientRequest {
            changes: vec![
                ClientChange::Members("m".into(), members.clone()),
                ClientChange::Remove("m".into(), members),
                ClientChange::Delete("m".into()),
                ClientChange::Raise("n".into()),
                ClientChange::Raise("n".into()),
                ClientChange::RaiseShared(SharedCounter::Sockets),
            ],
            is_transaction: true,
        };
        let expected = request.apply(&mut records, &mut raised);
        assert_eq!(expected, [number(2), number(2), number(0), number(1), number(2), None]);
        assert_eq!(records, [("n".to_owned(), ModelValue::Text(b"2".to_vec()))].into());
        assert_eq!(raised, Increments { sockets: 1, all: 0 });
        let simple = |text: &str| RespReply::Simple(text.as_bytes().to_vec());
        let check_with = |last| {
            let numbers = [2, 2, 0, 1, 2, last].map(RespReply::Integer).to_vec();
            let queued = std::iter::repeat_n(simple("QUEUED"), 6);
            let all = std::iter::once(simple("OK")).chain(queued);
            request.check_replies(
                &all.chain([RespReply::Array(numbers)]).collect::<Vec<_>>(),
                &expected,
            )
        };
        assert_eq!(check_with(77), Ok(()));
        assert!(check_with(0).is_err(), "a counter that was raised is more than 0");
    }
}

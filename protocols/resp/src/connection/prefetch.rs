//! Prefetches the records of pipelined requests.
//!
//! Reading a record that is not cached costs three dependent cache misses. Misses of different
//! records overlap if all records are requested before the first one is needed. Therefore the keys
//! of the next requests are extracted from the input. The extraction is a hint only: it stops at
//! anything that is not plainly a request with a key, and the parser does not depend on it.

use crate::records::KeyedRecords;
use nearstate_store::Prefetch;

/// Requests per prefetch: as many records as a processor can load concurrently.
const REQUESTS_MAX: usize = 16;

/// Prefetches the records of the first requests in `input`. Returns the number of these requests,
/// which need no further prefetch.
pub(crate) fn prefetch_keys(records: &KeyedRecords, mut input: &[u8]) -> usize {
    let mut wanted: [Option<Prefetch<'_>>; REQUESTS_MAX] = [None; REQUESTS_MAX];
    let mut requests = 0;
    for place in &mut wanted {
        let Some((request, rest)) = RequestPrefix::read(input) else { break };
        *place = request.prefetch(records);
        input = rest;
        requests += 1;
    }
    if requests > 0 {
        records.session().prefetch_operations(wanted.get(..requests).unwrap_or_default());
    }
    requests
}

/// A complete request with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestPrefix<'i> {
    /// Its first arguments; missing ones are empty.
    words: [&'i [u8]; 5],
    key: &'i [u8],
}

impl<'i> RequestPrefix<'i> {
    /// The first request of the input and the remaining input.
    fn read(input: &'i [u8]) -> Option<(Self, &'i [u8])> {
        let (arguments, mut rest) = header(b'*', input)?;
        let mut words = [&b""[..]; 5];
        for place in 0..arguments {
            let argument;
            (argument, rest) = bulk(rest)?;
            if let Some(word) = words.get_mut(place) {
                *word = argument;
            }
        }
        let [name, ..] = words;
        let at = key_at(name);
        let key = words.get(at).filter(|_| at < arguments)?;
        Some((Self { words, key }, rest))
    }

    /// What the request will read.
    #[inline]
    fn prefetch(&self, records: &KeyedRecords) -> Option<Prefetch<'i>> {
        let resolved = records.resolve_known(self.key)?;
        let [name, part, _, tag, value] = self.words;
        if resolved.key == b"*" {
            // A pattern `{ns},*` names no record.
            let is_find = name.eq_ignore_ascii_case(b"tag") && part.eq_ignore_ascii_case(b"find");
            let tag = str::from_utf8(tag).ok().filter(|_| is_find)?;
            return Some(Prefetch::Find(resolved.namespace, tag, value));
        }
        // Commands that return record contents have `get` in their names: GET, HGETALL, HMGET,
        // GETRANGE.
        let is_read = name.windows(3).any(|part| part.eq_ignore_ascii_case(b"get"));
        let ahead = if is_read { Prefetch::Read } else { Prefetch::Touch };
        Some(ahead(resolved.namespace, resolved.key))
    }
}

/// Commands whose first key is not argument 1. `TAG` has a pattern at that position when it looks
/// up a record by value.
const FIRST_KEY_POSITIONS: [(&[u8], usize); 10] = [
    (b"tag", 2),
    (b"eval", 3),
    (b"object", 2),
    (b"memory", 2),
    (b"delmpub", 3),
    (b"evalsha", 3),
    (b"eval_ro", 3),
    (b"msetmpub", 3),
    (b"evalsha_ro", 3),
    (b"sintercard", 2),
];

/// Position of the first key of a command that has keys.
#[inline]
fn key_at(name: &[u8]) -> usize {
    // Most names differ from all of these in length or first letter.
    let is_it = |own: &[u8]| {
        own.len() == name.len()
            && own.first().zip(name.first()).is_some_and(|(own, said)| *own == said | 0x20)
            && own.eq_ignore_ascii_case(name)
    };
    FIRST_KEY_POSITIONS.iter().find(|(own, _)| is_it(own)).map_or(1, |(_, at)| *at)
}

fn bulk(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = header(b'$', input)?;
    let (bytes, rest) = rest.split_at_checked(length)?;
    Some((bytes, rest.strip_prefix(b"\r\n")?))
}

/// A number of at most seven digits after its type byte, and the remaining input.
fn header(mark: u8, input: &[u8]) -> Option<(usize, &[u8])> {
    let mut rest = input.strip_prefix(&[mark])?;
    let mut number = 0;
    for _ in 0..7 {
        let (first, after) = rest.split_first()?;
        match first {
            b'0'..=b'9' => number = number * 10 + usize::from(first - b'0'),
            _ => return Some((number, rest.strip_prefix(b"\r\n")?)),
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::Users;
    use crate::command::ArgPositions;
    use crate::server::{RespServer, RespSettings};
    use crate::table::TABLE;
    use nearstate_store::{CreateOptions, Region};
    use std::rc::Rc;
    use std::sync::Arc;

    fn request_of(words: &[&str]) -> String {
        let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
        format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>())
    }

    #[test]
    fn the_prefetched_key_is_the_argument_that_the_table_names() {
        let mut others = 0;
        for command in TABLE.commands() {
            let first = match command.keys {
                ArgPositions::None | ArgPositions::AfterCounted { .. } => continue,
                ArgPositions::Span { first, .. } => usize::try_from(first).unwrap(),
                ArgPositions::Counted { first, .. } => usize::from(first),
            };
            let (name, part) = command.name_and_subcommand();
            let name = name.to_ascii_uppercase();
            let mut words = vec![name.as_str()];
            words.extend(part);
            words.extend(["1"; 3].iter().take(first - words.len()));
            words.extend(["{ns},key", "x", "y"]);
            let sent = request_of(&words);
            let (request, rest) = RequestPrefix::read(sent.as_bytes()).unwrap();
            assert_eq!((request.key, rest), (&b"{ns},key"[..], &b""[..]), "{words:?}");
            others += usize::from(first > 1);
        }
        assert!(others >= FIRST_KEY_POSITIONS.len(), "{others} have it elsewhere");
    }

    #[test]
    fn the_prefetched_keys_are_those_of_the_request() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
        let session = Rc::new(region.session().unwrap());
        let server = Arc::new(RespServer::new(RespSettings::new(Users::open(&TABLE))));
        let records = KeyedRecords::new(session, server);
        records.resolve_or_create(b"{ns},", 0).unwrap();
        assert!(records.resolve(b"{ns},").unwrap().is_some(), "and known from now on");
        for (line, wanted) in [
            ("GET {ns},k", Some("Read k")),
            ("hmget {ns},k field", Some("Read k")),
            ("HGETALL {ns},k", Some("Read k")),
            ("SET {ns},k v", Some("Touch k")),
            ("TTL {ns},k", Some("Touch k")),
            ("TAG SET {ns},k v 0", Some("Touch k")),
            ("TAG FIND {ns},* tag value field", Some("Find tag value")),
            ("tag find {ns},* tag value", Some("Find tag value")),
            ("TAG KEYS {ns},* tag value", None),
            ("TAG FIND {other},* tag value", None),
            ("KEYS {ns},*", None),
            ("GET {other},k", None),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let sent = request_of(&words);
            let (request, _) = RequestPrefix::read(sent.as_bytes()).unwrap();
            let triple = request.prefetch(&records).map(|ahead| match ahead {
                Prefetch::Touch(_, key) => format!("Touch {}", key.escape_ascii()),
                Prefetch::Read(_, key) => format!("Read {}", key.escape_ascii()),
                Prefetch::Find(_, tag, value) => format!("Find {tag} {}", value.escape_ascii()),
            });
            assert_eq!(triple.as_deref(), wanted, "{line}");
        }
    }

    #[test]
    fn only_keys_of_complete_requests_are_prefetched() {
        let two = b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n";
        let (request, rest) = RequestPrefix::read(two).unwrap();
        assert_eq!(request.key, b"ab");
        let (request, rest) = RequestPrefix::read(rest).unwrap();
        assert_eq!((request.key, rest), (&b"k"[..], &b""[..]));
        for end in 0..21 {
            assert_eq!(RequestPrefix::read(&two[..end]), None, "{end}");
        }
        for odd in [
            &b""[..],
            b"GET a\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"*0\r\n",
            b"*-1\r\n",
            b"*2\r\n$-1\r\n",
            b"*2\r\n$99999999\r\n",
            b"*9999999999\r\n$1\r\na\r\n$1\r\na\r\n",
            b"*2\r\n$1\r\na\r\n$1\r\nab\r\n",
        ] {
            assert_eq!(RequestPrefix::read(odd), None, "{}", odd.escape_ascii());
        }
    }
}

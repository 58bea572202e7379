//! A look ahead: which keys the requests of a pipeline will ask for.
//!
//! A record that is not in a cache costs three misses, one after the other. Those of different
//! records can overlap, if all of them are asked for before the first is needed. So the keys of the
//! next requests are picked out of the input. It is a guess: what is not plainly a request on a key
//! ends it, and whoever parses the input afterwards is not bound by it.

use crate::records::Records;
use nearstate_store::Namespace;

/// Requests that are looked at: as many records as a processor can wait for at once.
const REQUESTS_MAX: usize = 16;

/// Asks for the records of the first requests in `input`. How many requests those are: so many
/// need no further look.
pub(crate) fn look(records: &Records, mut input: &[u8]) -> usize {
    let mut wanted: [Option<(Namespace, &[u8])>; REQUESTS_MAX] = [None; REQUESTS_MAX];
    let mut requests = 0;
    for place in &mut wanted {
        let Some((key, rest)) = request(input) else { break };
        // Where only a pattern is said, `{ns},*`, no record is.
        let spot = records.known_spot(key).filter(|spot| spot.key != b"*");
        *place = spot.map(|spot| (spot.namespace, spot.key));
        input = rest;
        requests += 1;
    }
    let mut keys: [(Namespace, &[u8]); REQUESTS_MAX];
    let mut found = wanted.into_iter().flatten();
    if let Some(first) = found.next() {
        keys = [first; REQUESTS_MAX];
        let mut count = 1;
        for (place, key) in keys.iter_mut().skip(1).zip(found) {
            *place = key;
            count += 1;
        }
        records.session().prefetch(keys.get(..count).unwrap_or_default());
    }
    requests
}

/// The first key of a request that is whole, and what follows it.
fn request(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (arguments, rest) = header(b'*', input)?;
    let (name, mut rest) = bulk(rest)?;
    let (at, mut key) = (key_at(name), None);
    for place in 1..arguments {
        let argument;
        (argument, rest) = bulk(rest)?;
        if place == at {
            key = Some(argument);
        }
    }
    Some((key?, rest))
}

/// Commands whose first key is not argument 1: that is what they count, or their subcommand. `TAG`
/// has a pattern in its place where it looks for a record by a value.
const ELSEWHERE: [(&[u8], usize); 10] = [
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

/// Which argument is the first key of a command that has one.
#[inline]
fn key_at(name: &[u8]) -> usize {
    // Names of most commands differ from all of them in their length or in their first letter.
    let is_it = |own: &[u8]| {
        own.len() == name.len()
            && own.first().zip(name.first()).is_some_and(|(own, said)| *own == said | 0x20)
            && own.eq_ignore_ascii_case(name)
    };
    ELSEWHERE.iter().find(|(own, _)| is_it(own)).map_or(1, |(_, at)| *at)
}

fn bulk(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = header(b'$', input)?;
    let (bytes, rest) = rest.split_at_checked(length)?;
    Some((bytes, rest.strip_prefix(b"\r\n")?))
}

/// A number of at most seven digits behind its mark, and what follows.
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
    use crate::command::Places;
    use crate::table::TABLE;

    #[test]
    fn the_key_is_the_argument_that_the_table_says() {
        let request_of = |words: &[&str]| {
            let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
            format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>())
        };
        let mut others = 0;
        for command in TABLE.commands() {
            let first = match command.keys {
                Places::No | Places::Behind { .. } => continue,
                Places::Span { first, .. } => usize::try_from(first).unwrap(),
                Places::Counted { first, .. } => usize::from(first),
            };
            let (name, part) = command.parts();
            let name = name.to_ascii_uppercase();
            let mut words = vec![name.as_str()];
            words.extend(part);
            words.extend(["1"; 3].iter().take(first - words.len()));
            words.extend(["{ns},key", "x", "y"]);
            let sent = request_of(&words);
            let (key, rest) = request(sent.as_bytes()).unwrap();
            assert_eq!((key, rest), (&b"{ns},key"[..], &b""[..]), "{words:?}");
            others += usize::from(first > 1);
        }
        assert!(others >= ELSEWHERE.len(), "{others} have it elsewhere");
    }

    #[test]
    fn keys_are_picked_out_of_whole_requests_only() {
        let two = b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n";
        let (key, rest) = request(two).unwrap();
        assert_eq!(key, b"ab");
        let (key, rest) = request(rest).unwrap();
        assert_eq!((key, rest), (&b"k"[..], &b""[..]));
        for end in 0..21 {
            assert_eq!(request(&two[..end]), None, "{end}");
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
            assert_eq!(request(odd), None, "{}", odd.escape_ascii());
        }
    }
}

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
        *place = records.known_spot(key).map(|spot| (spot.namespace, spot.key));
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

/// The second argument of a request that is whole, and what follows it.
fn request(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (arguments, rest) = header(b'*', input)?;
    let (_, rest) = bulk(rest)?;
    let (key, mut rest) = bulk(rest)?;
    for _ in 2..arguments {
        (_, rest) = bulk(rest)?;
    }
    Some((key, rest))
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

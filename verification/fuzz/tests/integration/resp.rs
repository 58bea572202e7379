//! Requests of Redis' protocol: any bytes, split anywhere, are parsed without a panic, in bounded
//! memory, and with the same result as in one piece.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use crate::fixture::{config, cuts, runner};
use nearstate_resp::acl::Users;
use nearstate_resp::parse::{INLINE_BYTES_MAX, OwnedArgs, ParseResult, RequestParser};
use nearstate_resp::table::TABLE;
use proptest::prelude::*;
use std::cell::Cell;

/// Streams of one test run. They are small: an error shows within a few requests.
const STREAMS: u32 = 300_000;

/// The request limit of the parsers of mutated streams: so small that it is often reached.
const REQUEST_BYTES: usize = 48;

/// The result of a stream: each request's arguments, and the protocol error that ended it, if any.
#[derive(Debug, PartialEq, Eq, Default)]
struct ParsedStream {
    requests: Vec<Vec<Vec<u8>>>,
    taken: usize,
    broken: Option<String>,
}

/// Parses as a connection does: a buffer grows by pieces, and complete requests leave it at the
/// front. With an odd number of pieces the requests that follow are parsed with the first one.
fn read(stream: &[u8], cuts: &[usize], request_bytes: usize) -> ParsedStream {
    let mut parser = RequestParser::new(request_bytes);
    // Half of the streams are those of unauthenticated clients.
    parser.set_unauthenticated(stream.len() % 2 == 1);
    let mut read = ParsedStream::default();
    for end in cuts.iter().copied().chain([stream.len()]) {
        loop {
            let input = &stream[read.taken..end];
            match parser.next(input) {
                ParseResult::Request { taken } => {
                    assert!(0 < taken && taken <= input.len(), "took {taken} of {}", input.len());
                    read.requests.push(parser.args(input).iter().map(<[u8]>::to_vec).collect());
                    read.taken += taken;
                    if cuts.len() % 2 == 1 {
                        parser.parse_following(input);
                    }
                }
                ParseResult::Incomplete { needed } => {
                    assert!(needed > 0);
                    // No more is buffered than the largest request and a header, or a line.
                    let is_array = input.first() == Some(&b'*');
                    let most = if is_array { request_bytes + 24 } else { INLINE_BYTES_MAX + 1 };
                    assert!(input.len() + needed <= most, "{} and {needed}", input.len());
                    break;
                }
                ParseResult::ProtocolError(why) => {
                    read.broken = Some(why.to_string());
                    return read;
                }
            }
        }
    }
    read
}

/// A request as a client writes it.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::collection::vec(any::<u8>(), 0..12);
    let array = prop::collection::vec(word, 0..5).prop_map(|words| array(&words));
    let line = prop::collection::vec(special_byte(), 0..24).prop_map(|mut line| {
        line.extend_from_slice(b"\r\n");
        line
    });
    prop_oneof![3 => array, 1 => line]
}

fn array(words: &[Vec<u8>]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

fn names() -> Vec<&'static str> {
    TABLE.commands().iter().map(|command| command.name).collect()
}

/// Arguments that are special to commands.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let meant = ["{a},k", "{a},*", "{b},k", "*", "match", "c", "0", "1", "2", "-1", "99999999999"];
    prop_oneof![
        4 => prop::sample::select(meant.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ]
}

/// Bytes that are special in the protocol, and few others.
fn special_byte() -> impl Strategy<Value = u8> {
    prop::sample::select(b"*$-+0123456789\r\n\"'\\xg \0\xff".to_vec())
}

/// One mutation of a stream.
#[derive(Clone, Debug)]
enum StreamMutation {
    Replace(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Truncate(prop::sample::Index),
}

fn mutation() -> impl Strategy<Value = StreamMutation> {
    let place = any::<prop::sample::Index>;
    prop_oneof![
        (place(), special_byte()).prop_map(|(at, byte)| StreamMutation::Replace(at, byte)),
        (place(), special_byte()).prop_map(|(at, byte)| StreamMutation::Insert(at, byte)),
        place().prop_map(StreamMutation::Remove),
        place().prop_map(StreamMutation::Truncate),
    ]
}

fn mutated(mut stream: Vec<u8>, mutations: &[StreamMutation]) -> Vec<u8> {
    for mutation in mutations {
        if stream.is_empty() {
            break;
        }
        let length = stream.len();
        match mutation {
            StreamMutation::Replace(at, byte) => stream[at.index(length)] = *byte,
            StreamMutation::Insert(at, byte) => stream.insert(at.index(length), *byte),
            StreamMutation::Remove(at) => drop(stream.remove(at.index(length))),
            StreamMutation::Truncate(at) => stream.truncate(at.index(length)),
        }
    }
    stream
}

#[test]
fn mutated_streams_in_pieces_are_parsed_as_in_one_piece() {
    let streams = prop::collection::vec(request(), 1..4);
    let mutations = prop::collection::vec(mutation(), 0..4);
    let places = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    let (broken, requests) = (Cell::new(0_u32), Cell::new(0_usize));
    let result = runner(STREAMS).run(&(streams, mutations, places), |case| {
        let (stream, mutations, places) = case;
        let stream = mutated(stream.concat(), &mutations);
        let pieces = read(&stream, &cuts(&places, stream.len()), REQUEST_BYTES);
        let at_once = read(&stream, &[], REQUEST_BYTES);
        prop_assert_eq!(&pieces, &at_once);
        broken.set(broken.get() + u32::from(at_once.broken.is_some()));
        requests.set(requests.get() + at_once.requests.len());
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
    // Streams that all fail at once, or never, would prove little.
    let (broken, requests, cases) = (broken.get(), requests.get(), config(STREAMS).cases);
    assert!((cases / 10..cases / 10 * 9).contains(&broken), "{broken} streams failed");
    assert!(requests > cases as usize / 2, "{requests} requests came out");
}

proptest! {
    #![proptest_config(config(50_000))]

    #[test]
    fn encoded_requests_are_parsed_back(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6), 1..4),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..6)
    ) {
        let stream: Vec<u8> = requests.iter().flat_map(|words| array(words)).collect();
        let out = read(&stream, &cuts(&places, stream.len()), 1 << 10);
        prop_assert_eq!(out, ParsedStream { requests, taken: stream.len(), broken: None });
    }

    #[test]
    fn any_arguments_are_checked_by_the_table_and_by_a_user(
        name in prop::sample::select(names()),
        words in prop::collection::vec(word(), 0..8)
    ) {
        let users = Users::parse("user u on nopass ~{a},* &c +@all", &TABLE).expect("a user");
        let user = users.find(b"u").expect("the user");
        let kept: OwnedArgs =
            name.split('|').map(str::as_bytes).chain(words.iter().map(Vec::as_slice)).collect();
        if let Ok(command) = TABLE.lookup(kept.args()) {
            let count = kept.args().len();
            prop_assert!(command.keys.of(kept.args()).all(|at| 0 < at && at < count));
            prop_assert!(command.channels.of(kept.args()).all(|at| 0 < at && at < count));
            let may = user.check(command, kept.args()).is_ok();
            let has_foreign_key = command
                .keys
                .of(kept.args())
                .filter_map(|at| kept.args().get(at))
                .any(|key| !key.starts_with(b"{a},"));
            prop_assert!(!(may && has_foreign_key));
        }
    }
}

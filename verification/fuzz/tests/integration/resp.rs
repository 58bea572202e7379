//! Requests of Redis' wire: any bytes, cut anywhere, are read without a panic, in bounded memory,
//! and to the same end as in one piece.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use nearstate_resp::acl::Users;
use nearstate_resp::parse::{INLINE_BYTES_MAX, KeptArgs, Parsed, Parser};
use nearstate_resp::table::TABLE;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;

/// Streams of one test run. Small ones: what goes wrong, goes wrong within some requests.
const STREAMS: u32 = 1_000_000;

/// The largest request that the parsers of harmed streams take: so small that it is met often.
const REQUEST_BYTES: usize = 48;

/// What came out of a stream: each request's arguments, and why it ended, if it broke.
#[derive(Debug, PartialEq, Eq, Default)]
struct Read {
    requests: Vec<Vec<Vec<u8>>>,
    taken: usize,
    broken: Option<String>,
}

/// Reads as a connection does: a buffer grows by pieces, whole requests leave it at the front.
fn read(stream: &[u8], cuts: &[usize], request_bytes: usize) -> Read {
    let mut parser = Parser::new(request_bytes);
    // Half of the streams are those of strangers.
    parser.set_stranger(stream.len() % 2 == 1);
    let mut read = Read::default();
    for end in cuts.iter().copied().chain([stream.len()]) {
        loop {
            let input = &stream[read.taken..end];
            match parser.next(input) {
                Parsed::Request { taken } => {
                    assert!(0 < taken && taken <= input.len(), "took {taken} of {}", input.len());
                    read.requests.push(parser.args(input).iter().map(<[u8]>::to_vec).collect());
                    read.taken += taken;
                }
                Parsed::Incomplete { needed } => {
                    assert!(needed > 0);
                    // Nobody is asked to keep more than a request at its largest and a header, or
                    // a line.
                    let is_array = input.first() == Some(&b'*');
                    let most = if is_array { request_bytes + 24 } else { INLINE_BYTES_MAX + 1 };
                    assert!(input.len() + needed <= most, "{} and {needed}", input.len());
                    break;
                }
                Parsed::Broken(why) => {
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
    let line = prop::collection::vec(telling(), 0..24).prop_map(|mut line| {
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

/// Words that mean something to commands.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let meant = ["{a},k", "{a},*", "{b},k", "*", "match", "c", "0", "1", "2", "-1", "99999999999"];
    prop_oneof![
        4 => prop::sample::select(meant.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ]
}

/// Bytes that mean something on this wire, and few others.
fn telling() -> impl Strategy<Value = u8> {
    prop::sample::select(b"*$-+0123456789\r\n\"'\\xg \0\xff".to_vec())
}

/// One thing that happens to a stream on its way.
#[derive(Clone, Debug)]
enum Harm {
    Replaced(prop::sample::Index, u8),
    PutIn(prop::sample::Index, u8),
    LeftOut(prop::sample::Index),
    CutOff(prop::sample::Index),
}

fn harm() -> impl Strategy<Value = Harm> {
    let place = any::<prop::sample::Index>;
    prop_oneof![
        (place(), telling()).prop_map(|(at, byte)| Harm::Replaced(at, byte)),
        (place(), telling()).prop_map(|(at, byte)| Harm::PutIn(at, byte)),
        place().prop_map(Harm::LeftOut),
        place().prop_map(Harm::CutOff),
    ]
}

fn harmed(mut stream: Vec<u8>, harms: &[Harm]) -> Vec<u8> {
    for harm in harms {
        if stream.is_empty() {
            break;
        }
        let length = stream.len();
        match harm {
            Harm::Replaced(at, byte) => stream[at.index(length)] = *byte,
            Harm::PutIn(at, byte) => stream.insert(at.index(length), *byte),
            Harm::LeftOut(at) => drop(stream.remove(at.index(length))),
            Harm::CutOff(at) => stream.truncate(at.index(length)),
        }
    }
    stream
}

/// Where a stream is cut, in ascending order.
fn cuts(places: &[prop::sample::Index], length: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = places.iter().map(|place| place.index(length + 1)).collect();
    cuts.sort_unstable();
    cuts
}

/// The same streams in every run.
fn runner() -> TestRunner {
    let config = Config { cases: STREAMS, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::XorShift))
}

#[test]
fn harmed_streams_in_pieces_are_read_as_in_one_piece() {
    let streams = prop::collection::vec(request(), 1..4);
    let harms = prop::collection::vec(harm(), 0..4);
    let places = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    let (broken, requests) = (Cell::new(0_u32), Cell::new(0_usize));
    let judged = runner().run(&(streams, harms, places), |case| {
        let (stream, harms, places) = case;
        let stream = harmed(stream.concat(), &harms);
        let pieces = read(&stream, &cuts(&places, stream.len()), REQUEST_BYTES);
        let at_once = read(&stream, &[], REQUEST_BYTES);
        prop_assert_eq!(&pieces, &at_once);
        broken.set(broken.get() + u32::from(at_once.broken.is_some()));
        requests.set(requests.get() + at_once.requests.len());
        Ok(())
    });
    assert!(judged.is_ok(), "{judged:?}");
    // Streams that all break at once, or never, would prove little.
    let (broken, requests) = (broken.get(), requests.get());
    assert!((STREAMS / 10..STREAMS / 10 * 9).contains(&broken), "{broken} of {STREAMS} broke");
    assert!(requests > STREAMS as usize / 2, "{requests} requests came out");
}

proptest! {
    #![proptest_config(Config { cases: 50_000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn what_was_written_comes_out(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6), 1..4),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..6)
    ) {
        let stream: Vec<u8> = requests.iter().flat_map(|words| array(words)).collect();
        let out = read(&stream, &cuts(&places, stream.len()), 1 << 10);
        prop_assert_eq!(out, Read { requests, taken: stream.len(), broken: None });
    }

    #[test]
    fn any_words_are_asked_of_the_table_and_of_a_user(
        name in prop::sample::select(names()),
        words in prop::collection::vec(word(), 0..8)
    ) {
        let users = Users::parse("user u on nopass ~{a},* &c +@all", &TABLE).expect("a user");
        let user = users.named(b"u").expect("the user");
        let kept: KeptArgs =
            name.split('|').map(str::as_bytes).chain(words.iter().map(Vec::as_slice)).collect();
        if let Ok(command) = TABLE.asked(kept.args()) {
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

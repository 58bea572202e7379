//! Complete, incomplete and invalid requests.

use super::*;

const LIMIT: usize = 1 << 20;

/// The arguments of each request, then the reason why the parser stopped.
fn read(input: &[u8]) -> (Vec<Vec<String>>, ParseResult) {
    let mut parser = RequestParser::new(LIMIT);
    let mut rest = input;
    let mut requests = Vec::new();
    loop {
        match parser.next(rest) {
            ParseResult::Request { taken } => {
                let args = parser.args(rest).iter();
                requests.push(args.map(|arg| arg.escape_ascii().to_string()).collect());
                rest = &rest[taken..];
            }
            stop @ (ParseResult::Incomplete { .. } | ParseResult::ProtocolError(_)) => {
                return (requests, stop);
            }
        }
    }
}

/// The arguments of the single request in `input`.
fn one(input: &[u8]) -> Vec<String> {
    let (mut requests, stop) = read(input);
    assert_eq!((requests.len(), stop), (1, ParseResult::Incomplete { needed: 1 }), "{requests:?}");
    requests.remove(0)
}

fn broken(input: &[u8]) -> String {
    match read(input).1 {
        ParseResult::ProtocolError(why) => why.to_string(),
        other @ (ParseResult::Request { .. } | ParseResult::Incomplete { .. }) => {
            panic!("{other:?} of {:?}", input.escape_ascii().to_string())
        }
    }
}

#[test]
fn arrays_of_bulk_strings_are_requests() {
    let (requests, stop) = read(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n*1\r\n$4\r\nP\r\nG\r\n");
    assert_eq!(requests, [vec!["GET", ""], vec!["P\\r\\nG"]]);
    assert_eq!(stop, ParseResult::Incomplete { needed: 1 });
}

#[test]
fn empty_requests_are_accepted_without_a_reply() {
    for empty in ["*0\r\n", "*-1\r\n", "*-9\r\n", "\r\n", "\n", "  \t \r\n"] {
        assert_eq!(one(empty.as_bytes()), Vec::<String>::new(), "{empty:?}");
    }
}

#[test]
fn inline_requests_are_split_into_words_like_redis() {
    for (line, words) in [
        ("PING\r\n", vec!["PING"]),
        ("ping\n", vec!["ping"]),
        ("  set  a\tb \r\n", vec!["set", "a", "b"]),
        ("set \"a b\" ''\n", vec!["set", "a b", ""]),
        (r#"x "\x41\xzz\n\"\\" "#, vec!["x", "Axzz\\n\\\"\\\\"]),
        (r"x '\'\n'", vec!["x", r"\'\\n"]),
        (r#"x a"b c""#, vec!["x", "ab c"]),
        ("x \"\\r\\t\\b\\a\"", vec!["x", "\\r\\t\\x08\\x07"]),
        ("x\x0by z", vec!["x\\x0by", "z"]),
        ("x \x0by", vec!["x", "y"]),
        ("$4", vec!["$4"]),
        ("x a\0b", vec!["x", "a\\x00b"]),
    ] {
        let line = if line.ends_with('\n') { line.to_owned() } else { format!("{line}\r\n") };
        assert_eq!(one(line.as_bytes()), words, "{line:?}");
    }
}

#[test]
fn invalid_requests_have_the_errors_of_redis() {
    for (input, text) in [
        ("*a\r\n", "invalid multibulk length"),
        ("*\r\n", "invalid multibulk length"),
        ("*+1\r\n", "invalid multibulk length"),
        ("*01\r\n", "invalid multibulk length"),
        ("*-0\r\n", "invalid multibulk length"),
        ("*1\rx", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1111111111111111111111111", "invalid multibulk length"),
        ("*1\r\n+a\r\n", "expected '$', got '+'"),
        ("*1\r\n\r\n", "expected '$', got '?'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$04\r\n", "invalid bulk length"),
        ("*1\r\n$4 \r\n", "invalid bulk length"),
        ("*1\r\n$999999999999\r\n", "invalid bulk length"),
        ("*1\r\n$1\r\nabc", "expected CR LF after a bulk"),
        ("get \"a\r\n", "unbalanced quotes in request"),
        ("get 'a\r\n", "unbalanced quotes in request"),
        ("get \"a\"b\r\n", "unbalanced quotes in request"),
        ("get 'a'b\r\n", "unbalanced quotes in request"),
        ("POST / HTTP/1.1\r\n", "this is no HTTP server"),
        ("Host: x\r\n", "this is no HTTP server"),
    ] {
        assert_eq!(broken(input.as_bytes()), format!("ERR Protocol error: {text}"), "{input:?}");
    }
}

#[test]
fn a_parser_that_failed_keeps_failing() {
    let mut parser = RequestParser::new(LIMIT);
    let input = b"*1\r\n+a\r\n";
    assert_eq!(parser.next(input), ParseResult::ProtocolError(ProtocolError::ReplyMark(b'+')));
    assert_eq!(parser.next(input), ParseResult::ProtocolError(ProtocolError::ReplyMark(b'+')));
}

#[test]
fn an_inline_request_has_a_maximum_length() {
    let longest = [&b"x".repeat(INLINE_BYTES_MAX)[..], b"\n"].concat();
    assert_eq!(one(&longest)[0].len(), INLINE_BYTES_MAX);
    let longer = [&b"x".repeat(INLINE_BYTES_MAX + 1)[..], b"\n"].concat();
    assert_eq!(broken(&longer), "ERR Protocol error: too big inline request");
    assert_eq!(broken(&longer[..=INLINE_BYTES_MAX]), broken(&longer));
}

#[test]
fn a_request_above_the_limit_is_rejected_before_it_is_complete() {
    let whole = |bytes: usize| format!("*1\r\n${bytes}\r\n");
    let limit = LIMIT - whole(LIMIT).len() - 2;
    assert_eq!(read(whole(limit).as_bytes()).1, ParseResult::Incomplete { needed: limit + 2 });
    assert_eq!(
        read(whole(limit + 1).as_bytes()).1,
        ParseResult::ProtocolError(ProtocolError::TooLarge)
    );
    assert_eq!(
        read(whole(LIMIT + 1).as_bytes()).1,
        ParseResult::ProtocolError(ProtocolError::Length)
    );
    let many = [&b"*1000000\r\n"[..], &b"$0\r\n\r\n".repeat(LIMIT / 6)].concat();
    assert_eq!(read(&many).1, ParseResult::ProtocolError(ProtocolError::TooLarge));
}

#[test]
fn an_announced_length_allocates_no_memory() {
    let mut parser = RequestParser::new(REQUEST_BYTES_MAX);
    let input = b"*1048576\r\n$536870912\r\nabc";
    assert_eq!(parser.next(input), ParseResult::Incomplete { needed: 536_870_912 - 1 });
    assert_eq!((parser.ranges.capacity(), parser.unquoted.capacity()), (0, 0));
}

#[test]
fn the_memory_of_a_large_request_is_released() {
    let mut parser = RequestParser::new(LIMIT);
    let many = [&b"*10000\r\n"[..], &b"$0\r\n\r\n".repeat(10_000)].concat();
    assert_eq!(parser.next(&many), ParseResult::Request { taken: many.len() });
    assert_eq!(parser.args(&many).len(), 10_000);
    assert_eq!(parser.next(b""), ParseResult::Incomplete { needed: 1 });
    assert!(parser.ranges.capacity() <= PLACES_KEPT);
}

#[test]
fn bytes_of_an_incomplete_request_are_parsed_once() {
    let body = b"v".repeat(100_000);
    let input = [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n"[..], &body, b"\r\n"].concat();
    let mut parser = RequestParser::new(LIMIT);
    for end in 0..input.len() {
        let before = parser.at;
        assert!(matches!(parser.next(&input[..end]), ParseResult::Incomplete { needed: 1.. }));
        // The parser does not read bytes again: its position never decreases.
        assert!(parser.at >= before && parser.at <= end, "{end}");
        if end > 100 {
            assert_eq!(parser.at, input.len() - body.len() - 2);
        }
    }
    assert_eq!(parser.next(&input), ParseResult::Request { taken: input.len() });
    assert_eq!(parser.args(&input).iter().collect::<Vec<_>>(), [&b"SET"[..], b"k", &body]);

    let line = [&b"x".repeat(60_000)[..], b"\r\n"].concat();
    let mut parser = RequestParser::new(LIMIT);
    for end in 1..line.len() {
        assert_eq!(parser.next(&line[..end]), ParseResult::Incomplete { needed: 1 });
        assert_eq!(parser.searched, end);
    }
    assert_eq!(parser.next(&line), ParseResult::Request { taken: line.len() });
}

#[test]
fn unauthenticated_clients_have_lower_limits() {
    let mut parser = RequestParser::new(LIMIT);
    parser.set_unauthenticated(true);
    assert_eq!(
        parser.next(b"*11\r\n"),
        ParseResult::ProtocolError(ProtocolError::UnauthenticatedCount)
    );
    let mut parser = RequestParser::new(LIMIT);
    parser.set_unauthenticated(true);
    assert_eq!(
        parser.next(b"*1\r\n$16385\r\n"),
        ParseResult::ProtocolError(ProtocolError::UnauthenticatedLength)
    );
    let mut parser = RequestParser::new(LIMIT);
    parser.set_unauthenticated(true);
    let auth = b"*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n";
    assert_eq!(parser.next(auth), ParseResult::Request { taken: auth.len() });
    parser.set_unauthenticated(false);
    assert_eq!(parser.next(b"*11\r\n"), ParseResult::Incomplete { needed: 1 });
}

#[test]
fn arguments_can_be_copied_and_sliced() {
    let input = b"*4\r\n$1\r\na\r\n$2\r\nbb\r\n$0\r\n\r\n$1\r\nd\r\n";
    let mut parser = RequestParser::new(LIMIT);
    assert_eq!(parser.next(input), ParseResult::Request { taken: input.len() });
    let args = parser.args(input);
    let kept = args.keep();
    assert_eq!(kept.args().iter().collect::<Vec<_>>(), args.iter().collect::<Vec<_>>());
    assert_eq!(kept.bytes(), 4 + 4 * 8);
    assert_eq!(args.from(1).first(2).iter().collect::<Vec<_>>(), [&b"bb"[..], b""]);
    assert_eq!((args.from(4).len(), args.from(9).len(), args.first(9).len()), (0, 0, 4));
    assert_eq!((args.get(3), args.get(4)), (Some(&b"d"[..]), None));
}

/// The requests of `input` with their bytes and how each call ended, with those that follow a
/// request parsed together with it or not.
fn stream(input: &[u8], is_together: bool) -> (Vec<Vec<String>>, Vec<ParseResult>, usize) {
    let mut parser = RequestParser::new(4096);
    let (mut rest, mut requests, mut results) = (input, Vec::new(), Vec::new());
    let mut together = 0;
    loop {
        let result = parser.next(rest);
        results.push(result.clone());
        let ParseResult::Request { taken } = result else { return (requests, results, together) };
        let own: Vec<String> =
            parser.args(rest).iter().map(|arg| arg.escape_ascii().to_string()).collect();
        if is_together && parser.parse_following(rest) {
            let all: Vec<_> = parser.parsed(rest).collect();
            assert!((2..=TOGETHER_MAX).contains(&all.len()), "{}", all.len());
            let first = all[0].iter().map(|arg| arg.escape_ascii().to_string());
            assert!(first.eq(own.iter().cloned()), "the last request is the first of them");
            together += all.len();
        }
        requests.push(own);
        rest = &rest[taken..];
    }
}

#[test]
fn requests_that_are_parsed_together_are_those_that_are_parsed_alone() {
    let get = |key: usize| {
        let key = format!("key-{key}");
        format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes()
    };
    let gets: Vec<u8> = (0..40).flat_map(get).collect();
    let value = [&b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$1000\r\n"[..], &[7; 1000], b"\r\n"].concat();
    let wide = [&b"*200\r\n"[..], &b"$1\r\na\r\n".repeat(200)].concat();
    for (inserted, together) in [
        (&b""[..], 40),
        (&value, 41),
        // With so many arguments, fewer requests.
        (&wide.repeat(3), 40 + 3),
        // They are read in steps, alone.
        (b"PING\r\n", 40),
        (b"*0\r\n", 40),
        // And these end the stream.
        (b"*1\r\n$-1\r\n", 20),
        (b"*1\r\n+a\r\n", 20),
        (b"*1\r\n$4096\r\n", 20),
    ] {
        let (front, back) = gets.split_at((0..20).map(|key| get(key).len()).sum());
        let input = [front, inserted, back].concat();
        let alone = stream(&input, false);
        let read = stream(&input, true);
        assert_eq!((&read.0, &read.1), (&alone.0, &alone.1));
        assert!((together - 2..=together).contains(&read.2), "{} of {together}", read.2);
        for end in 0..input.len() {
            let (requests, results, _) = stream(&input[..end], false);
            let read = stream(&input[..end], true);
            assert_eq!((read.0, read.1), (requests, results), "{end}");
        }
    }
}

#[test]
fn requests_that_are_parsed_already_have_the_limits_of_an_unauthenticated_client() {
    let long = [&b"*11\r\n"[..], &b"$1\r\na\r\n".repeat(11)].concat();
    let input = [&b"*1\r\n$5\r\nRESET\r\n"[..], &long].concat();
    let mut parser = RequestParser::new(LIMIT);
    let ParseResult::Request { taken } = parser.next(&input) else { panic!("a request") };
    assert!(parser.parse_following(&input));
    parser.set_unauthenticated(true);
    assert_eq!(
        parser.next(&input[taken..]),
        ParseResult::ProtocolError(ProtocolError::UnauthenticatedCount)
    );
    let mut parser = RequestParser::new(LIMIT);
    parser.set_unauthenticated(true);
    assert!(matches!(parser.next(&input), ParseResult::Request { .. }));
    assert!(!parser.parse_following(&input), "nothing before the client is authenticated");
}

#[test]
fn ordinary_numbers_are_those_of_the_steps() {
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for length in [0_usize, 1, 9, 10, 11, 42, 99, 100, 101, 999, 1000, 12_345, 123_456] {
        inputs.push(format!("*1\r\n${length}\r\n{}\r\n", "v".repeat(length)).into_bytes());
    }
    for head in ["00", "01", "09", "0100", ":", "1:", "a", "1a", "-1", "+1", "", " 1", "1 "] {
        inputs.push(format!("*1\r\n${head}\r\nv\r\n12345\r\n").into_bytes());
        inputs.push(format!("*{head}\r\n$1\r\nv\r\n").into_bytes());
    }
    for input in inputs {
        let mut parser = RequestParser::new(LIMIT);
        let whole = parser.next(&input);
        // One byte after the other, so that no request is complete when it begins.
        let mut steps = RequestParser::new(LIMIT);
        let results = (0..=input.len()).map(|end| steps.next(&input[..end]));
        let ended = results.filter(|result| !matches!(result, ParseResult::Incomplete { .. }));
        let ended = ended.into_iter().next();
        assert_eq!(Some(whole), ended, "{}", input.escape_ascii());
    }
}

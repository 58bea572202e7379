//! Strings, as Redis 7.0 answers them.

mod talk;

use talk::place;

#[test]
fn strings_answer_as_redis_does() {
    let place = place();
    let mut talker = place.talker();
    for (request, answer) in [
        ("GET k", "$-1|"),
        ("SET k v", "+OK|"),
        ("GET k", "$1|v|"),
        ("GET", "-ERR wrong number of arguments for 'get' command|"),
        ("SETNX k w", ":0|"),
        ("SETNX n w", ":1|"),
        ("SET k x NX", "$-1|"),
        ("SET k x XX GET", "$1|v|"),
        ("SET absent x XX GET", "$-1|"),
        ("SET k x NX XX", "-ERR syntax error|"),
        ("SET k x EX 0", "-ERR invalid expire time in 'set' command|"),
        ("SET k x EX x", "-ERR value is not an integer or out of range|"),
        ("SET k x EX 9223372036854775807", "-ERR invalid expire time in 'set' command|"),
        ("SET k x EX 10 PX 10", "-ERR syntax error|"),
        ("SET k x BOGUS", "-ERR syntax error|"),
        ("SET k y PX 100000 NX", "$-1|"),
        ("set lock token ex 2 nx", "+OK|"),
        ("GETSET k z", "$1|x|"),
        ("GETDEL k", "$1|z|"),
        ("GETDEL k", "$-1|"),
        ("MSET a 1 b 2", "+OK|"),
        ("MSET a", "-ERR wrong number of arguments for 'mset' command|"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command|"),
        ("MGET a b c", "*3|$1|1|$1|2|$-1|"),
        ("MSETNX b 9 c 9", ":0|"),
        ("MSETNX c 9 d 9", ":1|"),
        ("GET b", "$1|2|"),
        ("APPEND s Hello", ":5|"),
        ("APPEND s World", ":10|"),
        ("STRLEN s", ":10|"),
        ("GETRANGE s 0 4", "$5|Hello|"),
        ("GETRANGE s -5 -1", "$5|World|"),
        ("GETRANGE s 5 1000", "$5|World|"),
        ("GETRANGE s 7 3", "$0||"),
        ("GETRANGE s -1 -5", "$0||"),
        ("SETRANGE s 5 ABC", ":10|"),
        ("GET s", "$10|HelloABCld|"),
        ("SETRANGE s -1 x", "-ERR offset is out of range|"),
        ("SETRANGE s 134217728 x", "-ERR string exceeds maximum allowed size (134217728 bytes)|"),
        ("INCR i", ":1|"),
        ("INCRBY i 41", ":42|"),
        ("DECR i", ":41|"),
        ("DECRBY i 50", ":-9|"),
        ("INCRBY i 9223372036854775807", ":9223372036854775798|"),
        ("INCRBY i 100", "-ERR increment or decrement would overflow|"),
        ("DECRBY i -9223372036854775808", "-ERR decrement would overflow|"),
        ("INCR s", "-ERR value is not an integer or out of range|"),
        ("INCRBYFLOAT f 10.5", "$4|10.5|"),
        ("INCRBYFLOAT f 0.1", "$4|10.6|"),
        ("INCRBYFLOAT f 5.0e3", "$6|5010.6|"),
        ("INCRBYFLOAT s 1", "-ERR value is not a valid float|"),
        ("SETEX e 0 v", "-ERR invalid expire time in 'setex' command|"),
        ("SETEX e 100 v", "+OK|"),
        ("PSETEX e 100000 w", "+OK|"),
        ("GETEX e PERSIST", "$1|w|"),
        ("GETEX e EX", "-ERR syntax error|"),
        ("GETEX e", "$1|w|"),
        ("SETRANGE gap 3 x", ":4|"),
    ] {
        assert_eq!(talker.ask(request), answer, "{request}");
    }
    assert_eq!(talker.ask_bytes(&[b"GET", b"gap"]), "$4|\0\0\0x|");
}

#[test]
fn a_request_in_pieces_and_many_at_once_are_answered_in_order() {
    let place = place();
    let mut talker = place.talker();
    let one = talk::request(&[b"INCR", b"{ns},count"]);
    let mut answers = Vec::new();
    for byte in one.repeat(3) {
        answers.extend_from_slice(&talker.send(&[byte]));
    }
    answers.extend_from_slice(&talker.send(&one.repeat(7)));
    let expected = (1..=10).fold(String::new(), |said, number| said + &format!(":{number}\r\n"));
    assert_eq!(String::from_utf8_lossy(&answers), expected);
    let session = place.region.session().expect("a session");
    let namespace = session.known_namespace("ns").expect("no damage").expect("made by INCR");
    let view = session.get(namespace, b"count").expect("no damage").expect("there");
    assert_eq!(view.bytes(), b"10", "an embedded process sees the same record");
}

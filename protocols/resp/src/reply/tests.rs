//! Every kind of reply, byte by byte, in both protocols.

use super::*;

fn written(protocol: RespVersion, write: &dyn Fn(&mut ReplyWriter<'_>)) -> String {
    let mut out = b"before".to_vec();
    write(&mut ReplyWriter::new(&mut out, protocol));
    assert!(out.starts_with(b"before"));
    out[6..].escape_ascii().to_string().replace("\\r\\n", "|")
}

type WriteReply = Box<dyn Fn(&mut ReplyWriter<'_>)>;

fn row(write: impl Fn(&mut ReplyWriter<'_>) + 'static) -> WriteReply {
    Box::new(write)
}

#[test]
fn replies_have_exactly_these_bytes() {
    let table: Vec<(WriteReply, &str, &str)> = vec![
        (row(|r: &mut ReplyWriter<'_>| ReplyWriter::ok(r)), "+OK|", "+OK|"),
        (row(|r| r.simple("PONG")), "+PONG|", "+PONG|"),
        (row(|r| r.error("ERR no\r\n+OK")), "-ERR no  +OK|", "-ERR no  +OK|"),
        (row(|r| r.int(0)), ":0|", ":0|"),
        (row(|r| r.int(1)), ":1|", ":1|"),
        (row(|r| r.int(-1)), ":-1|", ":-1|"),
        (row(|r| r.int(10)), ":10|", ":10|"),
        (row(|r| r.int(i64::MIN)), ":-9223372036854775808|", ":-9223372036854775808|"),
        (row(|r| r.int(i64::MAX)), ":9223372036854775807|", ":9223372036854775807|"),
        (row(|r| r.count(usize::MAX)), ":18446744073709551615|", ":18446744073709551615|"),
        (row(|r| r.bulk(b"")), "$0||", "$0||"),
        (row(|r| r.bulk(b"a\r\nb")), "$4|a|b|", "$4|a|b|"),
        (row(|r| r.bulk(&[b'x'; 12])), "$12|xxxxxxxxxxxx|", "$12|xxxxxxxxxxxx|"),
        (row(|r| r.bulk_or_nil(None)), "$-1|", "_|"),
        (row(|r| r.bulk_or_nil(Some(b"a"))), "$1|a|", "$1|a|"),
        (row(|r: &mut ReplyWriter<'_>| ReplyWriter::nil(r)), "$-1|", "_|"),
        (row(|r: &mut ReplyWriter<'_>| ReplyWriter::nil_array(r)), "*-1|", "_|"),
        (row(|r| r.array(0)), "*0|", "*0|"),
        (row(|r| r.array(123)), "*123|", "*123|"),
        (row(|r| r.map(2)), "*4|", "%2|"),
        (row(|r| r.set(2)), "*2|", "~2|"),
        (row(|r| r.push(3)), "*3|", ">3|"),
        (row(|r| r.boolean(true)), ":1|", "#t|"),
        (row(|r| r.boolean(false)), ":0|", "#f|"),
        (row(|r| r.verbatim("a\r\nb")), "$4|a|b|", "=8|txt:a|b|"),
        (row(|r| r.raw(b":7\r\n")), ":7|", ":7|"),
    ];
    for (write, two, three) in table {
        assert_eq!(written(RespVersion::Resp2, &*write), two);
        assert_eq!(written(RespVersion::Resp3, &*write), three);
    }
}

#[test]
fn counts_have_their_digits() {
    let mut output = Vec::new();
    for number in (0..12_000).chain([99_999, 123_456_789, usize::MAX]) {
        output.clear();
        ReplyWriter::new(&mut output, RespVersion::Resp2).count(number);
        assert_eq!(output, format!(":{number}\r\n").into_bytes());
    }
}

#[test]
fn floats_are_printed_with_the_fewest_digits() {
    for (number, text) in [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (3.5, "3.5"),
        (-0.1, "-0.1"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-5, "0.00001"),
        (1.25e-7, "1.25e-7"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ] {
        let write = move |reply: &mut ReplyWriter<'_>| reply.double(number);
        assert_eq!(written(RespVersion::Resp3, &write), format!(",{text}|"));
        assert_eq!(written(RespVersion::Resp2, &write), format!("${}|{text}|", text.len()));
        let back: f64 = text.parse().unwrap();
        assert!(back.to_bits() == number.to_bits() || number.is_nan(), "{text}");
    }
}

#[test]
fn an_aggregate_can_get_its_length_at_the_end() {
    let write = |reply: &mut ReplyWriter<'_>| {
        let outer = reply.mark();
        for count in 0..12 {
            let inner = reply.mark();
            (0..count).for_each(|number| reply.int(number));
            reply.close_set(inner, usize::try_from(count).unwrap());
        }
        reply.close_array(outer, 12);
    };
    let plain = |reply: &mut ReplyWriter<'_>| {
        reply.array(12);
        for count in 0..12 {
            reply.set(usize::try_from(count).unwrap());
            (0..count).for_each(|number| reply.int(number));
        }
    };
    for protocol in [RespVersion::Resp2, RespVersion::Resp3] {
        assert_eq!(written(protocol, &write), written(protocol, &plain));
    }
    let map = |reply: &mut ReplyWriter<'_>| {
        let mark = reply.mark();
        reply.ok();
        reply.int(1);
        reply.close_map(mark, 1);
    };
    assert_eq!(written(RespVersion::Resp2, &map), "*2|+OK|:1|");
    assert_eq!(written(RespVersion::Resp3, &map), "%1|+OK|:1|");
}

#[test]
fn written_replies_can_be_rewound() {
    let write = |reply: &mut ReplyWriter<'_>| {
        reply.ok();
        let mark = reply.mark();
        reply.array(2);
        reply.bulk(b"half");
        assert_eq!(reply.written(mark), 14);
        reply.rewind(mark);
        reply.error("ERR no");
    };
    assert_eq!(written(RespVersion::Resp2, &write), "+OK|-ERR no|");
}

#[test]
fn the_protocol_can_change_between_two_replies() {
    let write = |reply: &mut ReplyWriter<'_>| {
        reply.nil();
        reply.set_protocol(RespVersion::Resp3);
        assert_eq!(reply.protocol(), RespVersion::Resp3);
        reply.nil();
    };
    assert_eq!(written(RespVersion::Resp2, &write), "$-1|_|");
}

#[test]
fn output_above_the_limit_is_dropped_and_detected() {
    let mut out = b"before".to_vec();
    let mut reply = ReplyWriter::new(&mut out, RespVersion::Resp2).within(20);
    let mark = reply.mark();
    reply.array(2);
    reply.bulk(b"123");
    assert!(!reply.is_over());
    reply.bulk(&[b'x'; 100]);
    reply.bulk(b"1");
    assert!(reply.is_over());
    let inner = reply.mark();
    reply.rewind(inner);
    assert!(reply.is_over(), "what was left out stands before");
    reply.rewind(mark);
    assert!(!reply.is_over(), "taken back with all the rest");
    reply.bulk(b"short");
    assert_eq!(reply.written(mark), 11);
    reply.rewind(mark);
    reply.error("ERR too long");
    assert_eq!(out, b"before-ERR too long\r\n");
    let mut raw = Vec::new();
    let mut reply = ReplyWriter::new(&mut raw, RespVersion::Resp3).within(2);
    reply.raw(b"+OK\r\n");
    assert!(reply.is_over() && raw.is_empty());
}

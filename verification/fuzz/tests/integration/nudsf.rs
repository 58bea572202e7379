//! Requests of Nudsf: bodies, patches, filters, meta, headers and paths of any content are parsed
//! without a panic, and what is built is not larger than its limit.

use nearstate_nudsf::fuzzing::{
    apply_patch, match_filter, parse_headers, parse_meta, parse_multipart, parse_request_path,
};
use proptest::prelude::*;

/// Any of these words, or a few random bytes.
fn pieces(words: &'static [&'static str], count: usize) -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(words).prop_map(|word| word.as_bytes().to_vec());
    let noise = prop::collection::vec(any::<u8>(), 0..6);
    let piece = prop_oneof![9 => word, 1 => noise];
    prop::collection::vec(piece, 0..count).prop_map(|pieces| pieces.concat())
}

fn text(words: &'static [&'static str], count: usize) -> impl Strategy<Value = String> {
    pieces(words, count).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

const MULTIPART: &[&str] = &[
    "--b",
    "\r\n",
    "\r\n\r\n",
    "--",
    "--b--",
    "\r\n--b\r\n",
    "Content-Id: meta\r\n",
    "Content-Id: ",
    "Content-Type: application/json\r\n",
    "Content-Transfer-Encoding: binary\r\n",
    "a",
    " ",
    "\n",
];

const CONTENT_TYPE: &[&str] = &[
    "multipart/mixed",
    ";",
    " boundary=",
    "b",
    "\"",
    "\\",
    "=",
    "boundary=b",
    "; boundary=\"b\"",
    " ",
];

const PATCH: &[&str] = &[
    "[",
    "]",
    "{\"op\":\"add\",\"path\":\"/meta/a\",\"value\":",
    "1}",
    "{}}",
    ",",
    "{\"op\":\"remove\",\"path\":\"/meta/a\"}",
    "{\"op\":\"test\",\"path\":\"\",\"value\":{}}",
    "{\"op\":\"copy\",\"from\":\"/meta\",\"path\":\"/meta/a/a\"}",
    "{\"op\":\"copy\",\"from\":\"\",\"path\":\"/meta/b\"}",
    "{\"op\":\"move\",\"from\":\"/meta/a\",\"path\":\"/blocks/~1\"}",
    "{\"op\":\"replace\",\"path\":\"/blocks/-\",\"value\":\"b\"}",
];

const FILTER: &[&str] = &[
    "{\"cond\":\"AND\",\"units\":[",
    "{\"cond\":\"OR\",\"units\":[",
    "{\"cond\":\"NOT\",\"units\":[",
    "]}",
    ",",
    "{\"op\":\"EQ\",\"tag\":\"a\",\"value\":\"1\"}",
    "{\"recordIdList\":[\"r1\"]}",
    "{\"op\":\"GTE\",\"tag\":\"\",\"value\":\"\"}",
    "{\"op\":\"LT\",\"tag\":1}",
    "null",
    "\"\\u0001\"",
];

const META: &[&str] = &[
    "{\"tags\":{",
    "\"a\":[\"1\"]",
    "\"a\":[\"1\",\"1\"]",
    "}",
    ",",
    "\"ttl\":\"2030-01-01T00:00:00Z\"",
    "\"callbackReference\":\"http://a\"",
    "\"schemaId\":\"s\"",
    "{",
    "\"\\u0001\":[\"x\"]",
];

const HEADER: &[&str] = &[
    "\"a\"",
    "W/",
    "*",
    ",",
    " ",
    "\"",
    "Sun, 06 Nov 1994 08:49:37 GMT",
    ".123",
    "application/json",
    "q=0",
    ";",
    "*/*",
    "31",
    "-1",
    "99999999999999999999",
];

const HEADER_NAMES: &[&str] = &[
    "if-match",
    "if-none-match",
    "if-modified-since",
    "accept",
    "3gpp-sbi-message-priority",
    "3gpp-sbi-max-rsp-time",
    "3gpp-sbi-sender-timestamp",
];

const URI: &[&str] = &[
    "/nudsf-dr/v1",
    "/R",
    "/S",
    "/records",
    "/r1",
    "/meta",
    "/blocks",
    "/b",
    "?",
    "&",
    "filter=",
    "%7B",
    "%",
    "%ff",
    "get-previous=true",
    "/subs-to-notify",
    "/meta-schemas",
    "/",
    "+",
    "=",
];

proptest! {
    #[test]
    fn parts_of_a_body_are_within_the_body(
        content_type in text(CONTENT_TYPE, 6),
        body in pieces(MULTIPART, 40),
    ) {
        for content_type in ["multipart/mixed; boundary=b", &content_type] {
            if let Some((bytes, parts)) = parse_multipart(content_type, &body) {
                prop_assert!(bytes <= body.len() && parts <= body.len());
            }
        }
    }

    #[test]
    fn a_patch_grows_a_document_to_its_limit_at_most(items in text(PATCH, 30)) {
        let items = format!("[{items}]");
        if let Some(bytes) = apply_patch("{\"meta\":{\"a\":{\"b\":[1]}},\"blocks\":{}}", &items) {
            prop_assert!(bytes <= 4 << 20, "{bytes}");
        }
    }

    #[test]
    fn filters_match_or_are_refused(filter in text(FILTER, 60)) {
        match_filter(&filter, b"r1", &[("a", b"1"), ("b", b"\xff")]);
    }

    #[test]
    fn meta_is_the_same_after_it_was_written(meta in pieces(META, 12)) {
        prop_assert_ne!(parse_meta(&meta), Some(false));
    }

    #[test]
    fn headers_are_read_or_refused(
        fields in prop::collection::vec(
            (prop::sample::select(HEADER_NAMES).prop_map(str::to_owned), pieces(HEADER, 8)), 0..6,
        ),
    ) {
        parse_headers(&fields);
    }

    #[test]
    fn paths_are_those_of_operations_or_refused(uri in text(URI, 12)) {
        for method in ["GET", "PUT", "PATCH", "DELETE", "POST"] {
            parse_request_path(method, &uri);
        }
    }
}

#[test]
fn deeply_nested_filters_and_documents_are_refused_without_a_stack_overflow() {
    let nested = "{\"cond\":\"NOT\",\"units\":[".repeat(100_000);
    assert!(!match_filter(&nested, b"r1", &[]));
    assert_eq!(parse_meta("[".repeat(1_000_000).as_bytes()), None);
    assert_eq!(apply_patch("{}", &"[".repeat(1_000_000)), None);
}

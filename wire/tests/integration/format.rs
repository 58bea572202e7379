//! The bytes of the format. A change of one of these texts is another format.

use crate::fixture::{frame, messages, with_first, written};
use nearstate_wire::RefusalReason;
use std::fmt::Write as _;

/// Each message on a connection of its own: header (size, kind and flags, number, check value) and
/// payload.
const BYTES: &str = include_str!("format.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string");
        text
    })
}

#[test]
fn the_bytes_of_each_message_are_those_of_the_format() {
    let mut text = String::new();
    for message in messages() {
        let bytes = written(std::slice::from_ref(&message));
        let (header, payload) = bytes.split_at(24);
        let words: Vec<String> = [&header[..4], &header[4..8], &header[8..16], &header[16..]]
            .iter()
            .map(|part| hex(part))
            .collect();
        writeln!(text, "{} {}", words.join(" "), hex(payload)).expect("a string");
    }
    assert_eq!(text, BYTES);
}

/// The frames by an implementation from the page: the same bytes.
#[test]
fn a_frame_is_as_the_page_describes_it() {
    for (kind, message) in (1..).zip(messages()) {
        let bytes = written(std::slice::from_ref(&message));
        assert_eq!(frame(kind, &bytes[24..]), bytes);
        with_first(&bytes, |read| assert_eq!(read, Ok(Some(message))));
    }
}

#[test]
fn reasons_are_those_of_the_page() {
    let page = include_str!("../../../spec/wire.md");
    let (_, section) = page.split_once("## 3. Refusals").expect("the section");
    let (section, _) = section.split_once("## 4").expect("its end");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let ours: Vec<String> = RefusalReason::all()
        .map(|r| format!("| {} {} | {} | {} |", r.code(), r.name(), r.meaning(), r.remedy()))
        .collect();
    assert_eq!(rows, ours);
    for code in 0..=u16::MAX {
        let reason = RefusalReason::of_code(code);
        assert_eq!(reason.is_some(), (1..=11).contains(&code));
        assert!(reason.is_none_or(|reason| reason.code() == code));
    }
}

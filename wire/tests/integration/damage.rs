//! Damaged streams: an error, or less than was sent, never another message.

use crate::fixture::{HEADER, frame, messages, repair, with_first, written};
use nearstate_wire::{FrameReader, FrameWriter, Message, RefusalReason, WireError};

/// The text of the error of these bytes.
#[track_caller]
fn error(bytes: &[u8]) -> String {
    with_first(bytes, |read| read.expect_err("damaged bytes").to_string())
}

#[test]
fn a_truncated_message_is_incomplete() {
    for message in messages() {
        let bytes = written(std::slice::from_ref(&message));
        for length in 0..bytes.len() {
            let mut reader = FrameReader::new();
            reader.push(&bytes[..length]);
            assert_eq!(reader.next(), Ok(None));
            assert_eq!(reader.buffered_bytes(), length);
            reader.push(&bytes[length..]);
            assert_eq!(reader.next(), Ok(Some(message.clone())));
            assert_eq!(reader.buffered_bytes(), 0);
        }
    }
}

#[test]
fn a_truncated_payload_with_a_correct_check_value_is_an_error() {
    for message in messages() {
        let bytes = written(std::slice::from_ref(&message));
        for length in HEADER..bytes.len() {
            let mut cut = bytes[..length].to_vec();
            repair(&mut cut);
            error(&cut);
        }
        let mut longer = bytes.clone();
        longer.push(0);
        repair(&mut longer);
        error(&longer);
    }
}

#[test]
fn a_flipped_bit_is_never_another_message() {
    for message in messages() {
        let bytes = written(&[message, Message::Removed { number: 0 }]);
        for bit in 0..8 * (bytes.len() - HEADER - 4) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            with_first(&flipped, |read| {
                assert!(!matches!(read, Ok(Some(_))), "bit {bit}: {read:?}");
            });
            // A frame that became longer does not take what follows for its payload.
            flipped.resize(bytes.len() + (1 << 20), 0);
            with_first(&flipped, |read| assert!(read.is_err(), "bit {bit}: {read:?}"));
        }
    }
}

#[test]
fn lost_repeated_and_exchanged_frames_are_found() {
    let first = written(&[Message::Removed { number: 1 }]);
    let both = written(&[Message::Removed { number: 1 }, Message::Removed { number: 1 }]);
    let second = &both[first.len()..];
    assert!(error(second).contains("number 1 where 0 is expected"));
    let mut reader = FrameReader::new();
    reader.push(&[first.clone(), first].concat());
    assert!(matches!(reader.next(), Ok(Some(_))));
    let text = reader.next().expect_err("a repetition").to_string();
    assert!(text.contains("number 0 where 1 is expected"), "{text}");
}

#[test]
fn a_reader_stays_failed() {
    let mut reader = FrameReader::new();
    reader.push(&frame(200, b"x"));
    let failure = reader.next().expect_err("an unknown kind");
    for _ in 0..3 {
        reader.push(&written(&[Message::Removed { number: 1 }]));
        assert_eq!(reader.next(), Err(failure.clone()));
        assert_eq!(reader.buffered_bytes(), 0);
    }
    // Also if the payload is what is invalid.
    let mut reader = FrameReader::new();
    reader.push(&frame(5, b"x"));
    let failure = reader.next().expect_err("a number of one byte");
    assert_eq!(reader.next(), Err(failure));
    assert_eq!(reader.buffered_bytes(), 0);
}

#[test]
fn unknown_values_are_errors() {
    let removed = written(&[Message::Removed { number: 1 }]);
    for (at, value, text) in [
        (4, 0, "unknown kind 0"),
        (4, 13, "unknown kind 13"),
        (5, 2, "unknown flags 0x02"),
        (6, 1, "unknown flags"),
        (7, 128, "unknown flags"),
        (8, 1, "number 1 where 0"),
    ] {
        let mut bytes = removed.clone();
        bytes[at] = value;
        repair(&mut bytes);
        let error = error(&bytes);
        assert!(error.contains(text), "{error}");
    }
    assert!(error(&frame(5, b"")).contains("an empty payload"));
    let hello = written(&messages()[..1]);
    for kind in [1, 2] {
        let mut payload = hello[HEADER..].to_vec();
        payload[0] = 2;
        let read = with_first(&frame(kind, &payload), |read| read.map(|_| ()));
        assert_eq!(read, Err(WireError::OtherFormat { format: 2 }));
    }
}

/// The numbers and flags of each message that have unknown values, by their places in the payload.
#[test]
fn unknown_numbers_and_flags_in_payloads_are_errors() {
    let all = messages();
    let places: [(usize, usize, u8, &str); 10] = [
        (1, 62, 3, "start of a welcome 3"),
        (9, 56, 2, "lease 2"),
        (2, 0, 0, "reason of a refusal 0"),
        (2, 0, 12, "reason of a refusal 12"),
        (3, 4, 5, "kind of a namespace 5"),
        (3, 22, 16, "flags of a tag"),
        (5, 25, 6, "kind of a change 6"),
        (5, 25, 5, "a record message with a deletion"),
        (3, 15, 0xff, "not UTF-8"),
        (3, 15, 0, "contains a NUL"),
    ];
    for (index, at, value, text) in places {
        let mut bytes = written(&all[index..=index]);
        bytes[HEADER + at] = value;
        repair(&mut bytes);
        let error = error(&bytes);
        assert!(error.contains(text), "{index} {at} {value}: {error}");
    }
    // A deletion in a record, with the right size.
    let mut bytes = written(&all[5..6]);
    bytes.truncate(HEADER + 25);
    bytes.extend_from_slice(&[5, 0]);
    repair(&mut bytes);
    assert!(error(&bytes).contains("a record message with a deletion"));
    // Flags of changes, and whether something is present.
    let head = [&[0_u8; 20][..], &[1, 0, b'k']].concat();
    for (tail, text) in [
        (&[3_u8, 4][..], "flags of changed blocks"),
        (&[4, 8], "flags of changed elements"),
        (&[3, 0, 1, 0, 0, 0, 1, 0, b'x', 2], "presence 2"),
        (&[4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 9], "a value of 1 bytes"),
        (&[3, 0, 1, 0, 0, 0, 1, 0, 0, 0], "contains a NUL"),
    ] {
        let error = error(&frame(6, &[&head[..], tail].concat()));
        assert!(error.contains(text), "{error}");
    }
    let deleted = [&[0_u8; 24][..], &[1, 0], &[0; 20], &[1, 0, b'k', 5, 2]].concat();
    assert!(error(&frame(9, &deleted)).contains("flags of a deletion"));
    assert!(RefusalReason::of_code(0).is_none());
}

#[test]
fn a_message_continues_only_with_its_kind() {
    let mut bytes = frame(9, b"x");
    bytes[5] = 1;
    repair(&mut bytes);
    let mut other = frame(6, b"x");
    other[8] = 1;
    repair(&mut other);
    let mut reader = FrameReader::new();
    reader.push(&bytes);
    assert_eq!(reader.next(), Ok(None));
    assert_eq!(reader.buffered_bytes(), 1);
    reader.push(&other);
    let text = reader.next().expect_err("another kind").to_string();
    assert!(text.contains("a message of kind entry continues with one of kind record"), "{text}");
}

#[test]
fn a_writer_counts_its_frames() {
    let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
    for number in 0..300_u32 {
        writer.write(&Message::Removed { number }, &mut bytes).expect("a message");
    }
    let mut reader = FrameReader::new();
    reader.push(&bytes);
    for number in 0..300_u32 {
        assert_eq!(reader.next(), Ok(Some(Message::Removed { number })));
    }
}

#[test]
fn the_reader_of_a_follower_refuses_large_messages_at_their_first_header() {
    for message in messages() {
        let bytes = written(std::slice::from_ref(&message));
        let mut reader = FrameReader::of_follower();
        reader.push(&bytes[..HEADER]);
        let is_refused =
            matches!(message, Message::Record(_) | Message::Entry(_) | Message::Switch(_));
        assert_eq!(reader.next().is_err(), is_refused, "{message:?}");
    }
}

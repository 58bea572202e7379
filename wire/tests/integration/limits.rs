//! Limits: the writer and the reader refuse the same, and no count reserves memory without bytes.

use crate::fixture::{entry, frame, messages, record, repair, with_first, write_error, written};
use nearstate_model::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use nearstate_wire::limits::{
    CHANGED_BLOCKS_MAX, CHANGED_ELEMENTS_MAX, ENTRY_RECORDS_MAX, FRAME_PAYLOAD_BYTES_MAX,
    META_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX,
};
use nearstate_wire::{
    Change, FrameReader, Hello, Message, NamespaceKind, NamespaceMessage, Refusal, RefusalReason,
    ReplicatedTag, SettingsSummary, WireError,
};

#[track_caller]
fn assert_limit(error: &WireError, limit: usize) {
    let WireError::TooLarge { size, limit: found, .. } = error else { panic!("{error:?}") };
    assert_eq!((*size, *found), (limit + 1, limit));
}

const VALUE: Change<'static> = Change::Value { value: b"", meta: b"" };

#[test]
fn a_key_has_1_to_4096_bytes() {
    let key = vec![7; KEY_BYTES_MAX + 1];
    let longest = record(&key[1..], VALUE);
    with_first(&written(std::slice::from_ref(&longest)), |read| {
        assert_eq!(read, Ok(Some(longest)));
    });
    assert_limit(&write_error(&record(&key, VALUE)), KEY_BYTES_MAX);
    assert!(matches!(write_error(&record(b"", VALUE)), WireError::Invalid { .. }));
    for bytes in [0_u16, 4097] {
        let mut payload = vec![0; 20];
        payload.extend_from_slice(&bytes.to_le_bytes());
        payload.extend_from_slice(&vec![7; bytes.into()]);
        payload.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0]);
        with_first(&frame(6, &payload), |read| {
            let text = read.expect_err("a bad key").to_string();
            assert!(text.contains("key"), "{text}");
        });
    }
}

#[test]
fn parts_of_messages_have_limits() {
    let meta = vec![0; META_BYTES_MAX + 1];
    let large = record(b"k", Change::Value { value: b"", meta: &meta });
    assert_limit(&write_error(&large), META_BYTES_MAX);
    let text = "x".repeat(REFUSAL_TEXT_BYTES_MAX + 1);
    let long = Message::Refusal(Refusal { reason: RefusalReason::Failed, text: &text });
    assert_limit(&write_error(&long), REFUSAL_TEXT_BYTES_MAX);
    let blocks = vec![(&b"x"[..], None); CHANGED_BLOCKS_MAX + 1];
    let many = record(b"k", Change::Blocks { is_anew: false, meta: None, blocks });
    assert_limit(&write_error(&many), CHANGED_BLOCKS_MAX);
    let many = entry(vec![Change::Deleted { is_expiry: false }; ENTRY_RECORDS_MAX + 1]);
    assert_limit(&write_error(&many), ENTRY_RECORDS_MAX);
    let value = vec![0; VALUE_BYTES_MAX + 1];
    let large = record(b"k", Change::Value { value: &value, meta: b"" });
    assert_limit(&write_error(&large), VALUE_BYTES_MAX);
    // 256 MiB of values fit into a message, 384 MiB do not.
    let whole = || Change::Value { value: &value[1..], meta: b"" };
    let error = write_error(&entry(vec![whole(), whole(), whole()]));
    assert!(matches!(error, WireError::TooLarge { limit: 0x1400_0000, .. }), "{error}");
    let removed = record(b"k", Change::Deleted { is_expiry: false });
    assert!(matches!(write_error(&removed), WireError::Invalid { .. }));
}

#[test]
fn names_have_limits() {
    let name = "n".repeat(256);
    let namespace = |name, tag| {
        let tag = ReplicatedTag {
            name: tag,
            is_unique: false,
            is_ordered: false,
            is_counted: false,
            is_required: false,
        };
        let kind = NamespaceKind::Value;
        Message::Namespace(NamespaceMessage {
            number: 1,
            kind,
            stamp: 2,
            name,
            commits_wait: false,
            tags: vec![tag],
        })
    };
    assert_limit(&write_error(&namespace(&name, "t")), 255);
    assert_limit(&write_error(&namespace("n", &name)), 255);
    assert!(matches!(write_error(&namespace("", "t")), WireError::Invalid { .. }));
    assert!(matches!(write_error(&namespace("n", "a\0b")), WireError::Invalid { .. }));
    let Message::Namespace(many) = namespace("n", "t") else { panic!("a namespace") };
    let tags = vec![many.tags[0].clone(); 33];
    assert_limit(&write_error(&Message::Namespace(NamespaceMessage { tags, ..many })), 32);
}

#[test]
fn a_text_of_settings_has_a_limit_for_both_sides() {
    let mut all = messages();
    let Message::Hello(hello) = all.swap_remove(0) else { panic!("a hello") };
    let text = "s".repeat(2049);
    let settings = |text| SettingsSummary { digest: [1; 16], text };
    let with = |text| Message::Hello(Hello { settings: settings(text), ..hello.clone() });
    assert_limit(&write_error(&with(&text)), 2048);
    // The longest text, of which a reader is told that it has one byte more.
    let bytes = written(&[with(&text[1..])]);
    with_first(&bytes, |read| assert!(read.is_ok()));
    let mut payload = bytes[24..].to_vec();
    let at = payload.windows(2).position(|size| size == 2048_u16.to_le_bytes()).unwrap();
    payload[at..at + 2].copy_from_slice(&2049_u16.to_le_bytes());
    with_first(&frame(1, &payload), |read| {
        assert_limit(&read.expect_err("a long text"), 2048);
    });
}

#[test]
fn a_source_has_an_id() {
    let Some(Message::Welcome(mut welcome)) = messages().into_iter().nth(1) else {
        panic!("a welcome")
    };
    welcome.source_id = [0; 16];
    assert!(matches!(write_error(&Message::Welcome(welcome)), WireError::Invalid { .. }));
}

/// With memory for the count, this test would end its process.
#[test]
fn a_count_reserves_no_memory_without_bytes() {
    let head = [&[0_u8; 20][..], &[1, 0, b'k']].concat();
    let most = u32::try_from(CHANGED_ELEMENTS_MAX).unwrap();
    for change in [&[4, 0][..], &[4, 7, 0, 0, 0, 0]] {
        let with_count = |count: u32| frame(6, &[&head[..], change, &count.to_le_bytes()].concat());
        with_first(&with_count(most), |read| {
            let text = read.expect_err("a count without elements").to_string();
            assert!(text.contains("33554432 elements take at least 5 bytes each"), "{text}");
        });
        with_first(&with_count(most + 1), |read| {
            assert_limit(&read.expect_err("too many elements"), CHANGED_ELEMENTS_MAX);
        });
    }
    let entry = [&[0_u8; 24][..], &[0xff, 0xff]].concat();
    with_first(&frame(9, &entry), |read| {
        let text = read.expect_err("a count without records").to_string();
        assert!(text.contains("65535 records take at least 25 bytes each"), "{text}");
    });
    let value = [&head[..], &[1], &[0xff; 4]].concat();
    with_first(&frame(6, &value), |read| {
        let text = read.expect_err("a size without bytes").to_string();
        assert!(text.contains("a value takes 4294967295 bytes, and 0 are left"), "{text}");
    });
}

#[test]
fn headers_are_refused_before_their_payload_arrives() {
    let mut bytes = frame(9, b"x");
    bytes[..4].copy_from_slice(&0x10_0001_u32.to_le_bytes());
    with_first(&bytes[..24], |read| {
        assert_limit(&read.expect_err("a large frame"), FRAME_PAYLOAD_BYTES_MAX);
    });
    // A message without values is small, in one frame or in several.
    let mut bytes = frame(1, b"x");
    bytes[..4].copy_from_slice(&0x1_0001_u32.to_le_bytes());
    with_first(&bytes[..24], |read| {
        assert_limit(&read.expect_err("a large hello"), SMALL_MESSAGE_BYTES_MAX);
    });
}

#[test]
fn a_message_without_an_end_is_refused_at_its_limit() {
    let mut reader = FrameReader::new();
    let mut frames = 0;
    let payload = vec![0; FRAME_PAYLOAD_BYTES_MAX];
    let mut bytes = frame(9, &payload);
    bytes[5] = 1;
    let error = loop {
        bytes[8] = u8::try_from(frames & 255).expect("a byte");
        bytes[9] = u8::try_from(frames >> 8).expect("a byte");
        repair(&mut bytes);
        reader.push(&bytes);
        match reader.next() {
            Ok(next) => assert_eq!(next, None),
            Err(error) => break error,
        }
        frames += 1;
    };
    assert_eq!(frames, 319);
    assert_limit(&error, 320 << 20);
}

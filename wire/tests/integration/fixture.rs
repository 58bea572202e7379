//! One message of each kind, and readers that are fed in pieces.

use nearstate_wire::{
    AbsentMessage, Acknowledgement, Change, EntryMessage, FrameReader, FrameWriter, Hello, Message,
    NamespaceKind, NamespaceMessage, PartitionPlace, PositionMessage, RecordChange, RecordMessage,
    Refusal, RefusalReason, ReplicatedTag, SettingsSummary, Start, SwitchMessage, Welcome,
    WireError,
};

/// Bytes of the header of a frame.
pub(crate) const HEADER: usize = 24;

/// A change of each kind.
pub(crate) fn changes() -> Vec<Change<'static>> {
    vec![
        Change::Value { value: b"v", meta: b"" },
        Change::Set { value: b"ab", meta: b"m" },
        Change::Blocks {
            is_anew: true,
            meta: Some(b"mm"),
            blocks: vec![(b"x", Some(b"1")), (b"y", None)],
        },
        Change::Elements {
            is_set: false,
            is_anew: false,
            meta: None,
            elements: vec![(b"", Some(b"1")), (b"f", None)],
        },
        Change::Elements {
            is_set: true,
            is_anew: true,
            meta: Some(b""),
            elements: vec![(b"member", Some(b"")), (b"gone", None)],
        },
        Change::Deleted { is_expiry: true },
    ]
}

/// An entry with these changes.
pub(crate) fn entry(changes: Vec<Change<'_>>) -> Message<'_> {
    let records = (1..)
        .zip(changes)
        .map(|(version, change)| RecordChange {
            namespace: 5,
            base_version: version - 1,
            version,
            key: b"key",
            change,
        })
        .collect();
    Message::Entry(EntryMessage { position: 11, check: 12, time_ms: 13, records })
}

/// A record with this change.
pub(crate) fn record<'a>(key: &'a [u8], change: Change<'a>) -> Message<'a> {
    Message::Record(RecordMessage { namespace: 5, version: 6, time_ms: 7, key, change })
}

const PLACE: PartitionPlace =
    PartitionPlace { cluster_id: *b"fedcba9876543210", partition: 12, view: 13 };

fn position() -> Message<'static> {
    Message::Position(PositionMessage {
        position: 8,
        check: 9,
        tail: 10,
        stamp: 11,
        replicated: 15,
        floor: 16,
        answered: 17,
        is_leased: true,
        clock_ms: 18,
    })
}

/// One message of each kind, in the order of their numbers.
pub(crate) fn messages() -> Vec<Message<'static>> {
    vec![
        Message::Hello(Hello {
            place: PLACE,
            source_id: *b"0123456789abcdef",
            incarnation: 1,
            origin: 14,
            position: 2,
            check: 3,
            heap_bytes: 4,
            settings: SettingsSummary { digest: *b"0123456789settin", text: "a = 1\n" },
            name: "b",
        }),
        Message::Welcome(Welcome {
            place: PLACE,
            source_id: *b"0123456789abcdef",
            incarnation: 1,
            origin: 14,
            start: Start::Join,
            heap_bytes: 4,
            name: "a",
        }),
        Message::Refusal(Refusal { reason: RefusalReason::Busy, text: "two" }),
        Message::Namespace(NamespaceMessage {
            number: 5,
            kind: NamespaceKind::Mixed,
            stamp: 6,
            name: "ue",
            commits_wait: false,
            tags: vec![
                ReplicatedTag {
                    name: "t",
                    is_unique: true,
                    is_ordered: false,
                    is_counted: true,
                    is_required: false,
                },
                ReplicatedTag {
                    name: "u",
                    is_unique: false,
                    is_ordered: true,
                    is_counted: false,
                    is_required: true,
                },
            ],
        }),
        Message::Removed { number: 5 },
        record(b"key", Change::Value { value: b"v", meta: b"m" }),
        Message::Absent(AbsentMessage { namespace: 5, version: 6, key: b"key" }),
        Message::Joined { position: 8, check: 9 },
        entry(changes()),
        position(),
        Message::Acknowledge(Acknowledgement { position: 8, stamp: 11 }),
        Message::Switch(SwitchMessage {
            source_id: *b"0123456789abcdef",
            incarnation: 1,
            origin: 14,
            position: 8,
            check: 9,
            numbers: vec![(5, 18), (6, 19)],
        }),
    ]
}

/// The frames of messages on a new connection.
pub(crate) fn written(messages: &[Message<'_>]) -> Vec<u8> {
    let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
    for message in messages {
        writer.write(message, &mut bytes).expect("a valid message");
    }
    bytes
}

/// The error of a message on a new connection. Nothing was written.
pub(crate) fn write_error(message: &Message<'_>) -> WireError {
    let (mut writer, mut bytes) = (FrameWriter::new(), vec![1]);
    let error = writer.write(message, &mut bytes).expect_err("an invalid message");
    assert_eq!(bytes, [1], "a refused message is not written");
    writer.write(&Message::Removed { number: 1 }, &mut bytes).expect("another message");
    assert_eq!(bytes[1..], written(&[Message::Removed { number: 1 }]), "nor is a frame counted");
    error
}

/// The first message of these bytes.
pub(crate) fn with_first<T>(
    bytes: &[u8],
    then: impl FnOnce(Result<Option<Message<'_>>, WireError>) -> T,
) -> T {
    let mut reader = FrameReader::new();
    reader.push(bytes);
    then(reader.next())
}

/// Recomputes the check value of the only frame in these bytes, and its size.
pub(crate) fn repair(frame: &mut [u8]) {
    let size = u32::try_from(frame.len() - HEADER).expect("a small frame");
    frame[..4].copy_from_slice(&size.to_le_bytes());
    let word = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().expect("a word"));
    let seed = word(0) ^ word(8).rotate_left(32);
    let check = xxhash_rust::xxh3::xxh3_64_with_seed(&frame[HEADER..], seed);
    frame[16..24].copy_from_slice(&check.to_le_bytes());
}

/// A frame with a payload that no writer checks.
pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    frame[4] = kind;
    frame.extend_from_slice(payload);
    repair(&mut frame);
    frame
}

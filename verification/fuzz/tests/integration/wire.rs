//! The protocol between hosts: any bytes, in any pieces, give messages or an error; each message
//! that comes out has exactly the encoding that it came from.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use crate::fixture::{config, cuts, runner};
use nearstate_wire::{
    AbsentMessage, Change, EntryMessage, FrameReader, FrameWriter, Hello, Message, NamespaceKind,
    NamespaceMessage, PartitionPlace, PositionMessage, RecordChange, RecordMessage, Refusal,
    RefusalReason, ReplicatedTag, SettingsSummary, Start, SwitchMessage, Welcome,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::cell::Cell;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Streams of one test run. They are small: an error shows within a few messages.
const STREAMS: u32 = 100_000;

/// Bytes of the header of a frame.
const HEADER: usize = 24;

/// The result of a stream: the frames of each message, and the error that ended it, if any.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReadStream {
    messages: Vec<String>,
    encoded: Vec<u8>,
    error: Option<String>,
}

/// Reads as a connection does, and writes each message again.
fn read(stream: &[u8], cuts: &[usize]) -> ReadStream {
    let (mut reader, mut writer) = (FrameReader::new(), FrameWriter::new());
    let (mut read, mut start) = (ReadStream::default(), 0);
    for end in cuts.iter().copied().chain([stream.len()]) {
        reader.push(&stream[start..end]);
        start = end;
        loop {
            match reader.next() {
                Ok(Some(message)) => {
                    read.messages.push(format!("{message:?}"));
                    writer.write(&message, &mut read.encoded).expect("a message that was read");
                }
                Ok(None) => break,
                Err(error) => {
                    let again = reader.next().expect_err("a reader stays failed");
                    assert_eq!(again, error);
                    assert_eq!(reader.buffered_bytes(), 0);
                    read.error = Some(error.to_string());
                    return read;
                }
            }
        }
        assert!(reader.buffered_bytes() <= end, "more is buffered than arrived");
    }
    read
}

/// A frame that is valid but for its payload.
#[derive(Clone, Debug)]
struct RawFrame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

/// Frames with sizes, numbers and check values that are correct.
fn stream_of(frames: &[RawFrame]) -> Vec<u8> {
    let mut stream = Vec::new();
    for (number, frame) in (0_u64..).zip(frames) {
        let size = u32::try_from(frame.payload.len()).expect("a small payload");
        let [s0, s1, s2, s3] = size.to_le_bytes();
        let first = [s0, s1, s2, s3, frame.kind, frame.flags, 0, 0];
        let seed = u64::from_le_bytes(first) ^ number.rotate_left(32);
        let check = xxh3_64_with_seed(&frame.payload, seed);
        stream.extend_from_slice(&first);
        stream.extend_from_slice(&number.to_le_bytes());
        stream.extend_from_slice(&check.to_le_bytes());
        stream.extend_from_slice(&frame.payload);
    }
    stream
}

fn changes() -> Vec<Change<'static>> {
    let blocks = vec![(&b"x"[..], Some(&b"12"[..])), (b"y", None)];
    let (meta, elements) = (Some(&b"meta"[..]), blocks.clone());
    let members = vec![(&b"m"[..], Some(&b""[..])), (b"", None)];
    vec![
        Change::Value { value: b"value", meta: b"" },
        Change::Set { value: b"members", meta: b"m" },
        Change::Blocks { is_anew: true, meta, blocks },
        Change::Elements { is_set: false, is_anew: false, meta: None, elements },
        Change::Elements { is_set: true, is_anew: true, meta, elements: members },
        Change::Deleted { is_expiry: false },
    ]
}

fn position_message(position: u64, check: u64) -> Message<'static> {
    Message::Position(PositionMessage {
        position,
        check,
        tail: 7,
        stamp: 8,
        replicated: 4,
        floor: 3,
        answered: 7,
        is_leased: true,
        clock_ms: 8,
    })
}

/// Messages with all kinds of parts.
fn messages() -> Vec<Message<'static>> {
    let (source_id, heap_bytes) = ([7; 16], 1 << 26);
    let place = PartitionPlace { cluster_id: [5; 16], partition: 1, view: 3 };
    let tag = ReplicatedTag {
        name: "t",
        is_unique: true,
        is_ordered: true,
        is_counted: false,
        is_required: false,
    };
    let change =
        |change| RecordChange { namespace: 1, base_version: 2, version: 3, key: b"key", change };
    let entry = |records: Vec<_>| {
        let records = records.into();
        EntryMessage { position: 1, check: 2, time_ms: 3, records }
    };
    let (incarnation, name, start, position, check) = (1, "host", Start::Continue, 5, 6);
    let record = |change| RecordMessage { namespace: 1, version: 2, time_ms: 3, key: b"k", change };
    let mut all = vec![
        Message::Hello(Hello {
            place,
            source_id,
            incarnation,
            origin: 4,
            position,
            check,
            heap_bytes,
            settings: SettingsSummary { digest: source_id, text: "cluster.copies = 3\n" },
            name,
        }),
        Message::Welcome(Welcome {
            place,
            source_id,
            incarnation,
            origin: 4,
            start,
            heap_bytes,
            name,
        }),
        Message::Switch(SwitchMessage {
            source_id,
            incarnation,
            origin: 4,
            position,
            check,
            numbers: vec![(1, 2), (3, 4)],
        }),
        position_message(position, check),
        Message::Refusal(Refusal { reason: RefusalReason::Fork, text: "why" }),
        Message::Namespace(NamespaceMessage {
            number: 1,
            kind: NamespaceKind::Blocks,
            stamp: 9,
            name: "ue",
            commits_wait: true,
            tags: vec![tag.clone(), tag],
        }),
        Message::Removed { number: 1 },
        Message::Absent(AbsentMessage { namespace: 1, version: 2, key: b"k" }),
        Message::Joined { position, check },
        Message::Entry(entry(changes().into_iter().map(change).collect())),
    ];
    all.extend(changes().into_iter().take(5).map(|change| Message::Record(record(change))));
    all.extend(changes().into_iter().map(|one| Message::Entry(entry(vec![change(one)]))));
    all
}

/// The frame of a message.
fn frame_of(message: &Message<'_>) -> RawFrame {
    let mut bytes = Vec::new();
    FrameWriter::new().write(message, &mut bytes).expect("a valid message");
    RawFrame { kind: bytes[4], flags: bytes[5], payload: bytes[HEADER..].to_vec() }
}

/// One mutation of a payload, or of its frame.
#[derive(Clone, Debug)]
enum FrameMutation {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Truncate(Index),
    Kind(u8),
    Divide(Index),
}

fn mutation() -> impl Strategy<Value = FrameMutation> {
    let byte = || prop_oneof![3 => 0..8_u8, 1 => any::<u8>(), 1 => Just(0xff)];
    let place = any::<Index>;
    prop_oneof![
        6 => (place(), byte()).prop_map(|(at, byte)| FrameMutation::Replace(at, byte)),
        2 => (place(), byte()).prop_map(|(at, byte)| FrameMutation::Insert(at, byte)),
        2 => place().prop_map(FrameMutation::Remove),
        1 => place().prop_map(FrameMutation::Truncate),
        1 => (0..13_u8).prop_map(FrameMutation::Kind),
        2 => place().prop_map(FrameMutation::Divide),
    ]
}

/// The frames of a message after mutations. A division gives two frames of one message.
fn mutated(mut frame: RawFrame, mutations: &[FrameMutation]) -> Vec<RawFrame> {
    let mut before = Vec::new();
    for mutation in mutations {
        let length = frame.payload.len();
        let payload = &mut frame.payload;
        match mutation {
            _ if length == 0 => break,
            FrameMutation::Replace(at, byte) => payload[at.index(length)] = *byte,
            FrameMutation::Insert(at, byte) => payload.insert(at.index(length + 1), *byte),
            FrameMutation::Remove(at) => drop(payload.remove(at.index(length))),
            FrameMutation::Truncate(at) => payload.truncate(at.index(length)),
            FrameMutation::Kind(kind) => frame.kind = *kind,
            FrameMutation::Divide(at) => {
                let rest = payload.split_off(at.index(length));
                before.push(RawFrame { flags: 1, ..frame.clone() });
                frame.payload = rest;
            }
        }
    }
    before.push(frame);
    before
}

/// The payloads of a stream, each message in one piece.
fn payloads(stream: &[u8]) -> Vec<u8> {
    let (mut all, mut rest) = (Vec::new(), stream);
    while let Some((header, behind)) = rest.split_first_chunk::<HEADER>() {
        let [s0, s1, s2, s3, ..] = *header;
        let size = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
        let (payload, next) = behind.split_at(size.min(behind.len()));
        all.extend_from_slice(payload);
        rest = next;
    }
    all
}

#[test]
fn mutated_messages_with_correct_check_values_are_read_or_refused() {
    let frames: Vec<RawFrame> = messages().iter().map(frame_of).collect();
    let message = (select(frames), prop::collection::vec(mutation(), 0..4));
    let streams = prop::collection::vec(message, 1..4);
    let places = prop::collection::vec(any::<Index>(), 0..4);
    let (refused, accepted, changed) = (Cell::new(0_u32), Cell::new(0_usize), Cell::new(0_u32));
    let result = runner(STREAMS).run(&(streams, places), |case| {
        let (messages, places) = case;
        let is_mutated = messages.iter().any(|(_, mutations)| !mutations.is_empty());
        let frames: Vec<RawFrame> =
            messages.into_iter().flat_map(|(frame, all)| mutated(frame, &all)).collect();
        let stream = stream_of(&frames);
        let pieces = read(&stream, &cuts(&places, stream.len()));
        let at_once = read(&stream, &[]);
        prop_assert_eq!(&pieces, &at_once);
        // A message has one encoding, but its frames can be divided in several ways.
        prop_assert!(payloads(&stream).starts_with(&payloads(&at_once.encoded)));
        refused.set(refused.get() + u32::from(at_once.error.is_some()));
        accepted.set(accepted.get() + at_once.messages.len());
        changed.set(changed.get() + u32::from(is_mutated && at_once.error.is_none()));
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
    // Streams that all fail at once, or never, would prove little.
    let (refused, accepted, changed) = (refused.get(), accepted.get(), changed.get());
    let cases = config(STREAMS).cases;
    assert!((cases / 5..cases / 10 * 9).contains(&refused), "{refused} streams were refused");
    assert!(accepted > cases as usize / 2, "{accepted} messages came out");
    assert!(changed > cases / 20, "{changed} mutated streams were read");
}

proptest! {
    #![proptest_config(config(STREAMS))]

    #[test]
    fn any_bytes_are_refused_or_incomplete(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        places in prop::collection::vec(any::<Index>(), 0..4)
    ) {
        let pieces = read(&bytes, &cuts(&places, bytes.len()));
        prop_assert!(pieces.messages.is_empty());
        prop_assert_eq!(pieces, read(&bytes, &[]));
    }

    #[test]
    fn any_payloads_are_read_or_refused(
        frames in prop::collection::vec(
            (1..12_u8, 0..2_u8, prop::collection::vec(prop_oneof![0..6_u8, any::<u8>()], 1..80)),
            1..4),
        places in prop::collection::vec(any::<Index>(), 0..4)
    ) {
        let frames: Vec<RawFrame> = frames
            .into_iter()
            .map(|(kind, flags, payload)| RawFrame { kind, flags, payload })
            .collect();
        let stream = stream_of(&frames);
        let at_once = read(&stream, &[]);
        prop_assert!(payloads(&stream).starts_with(&payloads(&at_once.encoded)));
        prop_assert_eq!(read(&stream, &cuts(&places, stream.len())), at_once);
    }
}

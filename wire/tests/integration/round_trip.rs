//! What is written is read, in one piece and in many.

use std::io::ErrorKind;

use crate::fixture::{changes, entry, messages, record, written};
use nearstate_wire::{
    AbsentMessage, Acknowledgement, Change, EntryMessage, FrameReader, Hello, Message,
    NamespaceKind, NamespaceMessage, PartitionPlace, PositionMessage, RecordChange, RecordMessage,
    Refusal, RefusalReason, ReplicatedTag, SettingsSummary, Start, SwitchMessage, Welcome,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};

type Bytes = Vec<u8>;
type OwnedElements = Vec<(Bytes, Option<Bytes>)>;

/// The random parts of a message. Each kind of message takes those that it has.
#[derive(Clone, Debug)]
struct Parts {
    kind: usize,
    numbers: [u64; 5],
    number: u32,
    id: [u8; 16],
    flags: u8,
    name: String,
    names: Vec<(String, u8)>,
    key: Bytes,
    changes: Vec<ChangeParts>,
}

#[derive(Clone, Debug)]
struct ChangeParts {
    kind: usize,
    flags: u8,
    value: Bytes,
    meta: Bytes,
    elements: OwnedElements,
}

fn name() -> impl Strategy<Value = String> {
    let character = any::<char>().prop_filter("no NUL", |character| *character != '\0');
    prop::collection::vec(character, 1..12).prop_map(|all| all.into_iter().collect())
}

/// Mostly small values, and some of more than a frame.
fn value() -> impl Strategy<Value = Bytes> {
    let large = (any::<u8>(), (1_usize << 20) - 40..(1 << 20) + 40);
    prop_oneof![
        60 => prop::collection::vec(any::<u8>(), 0..40),
        1 => large.prop_map(|(byte, size)| vec![byte; size]),
    ]
}

fn change_parts() -> impl Strategy<Value = ChangeParts> {
    let name = prop::collection::vec(1..=u8::MAX, 1..20);
    let elements = prop::collection::vec((name, prop::option::of(value())), 0..5);
    let meta = prop::collection::vec(any::<u8>(), 0..20);
    (0..5_usize, any::<u8>(), value(), meta, elements).prop_map(
        |(kind, flags, value, meta, elements)| ChangeParts { kind, flags, value, meta, elements },
    )
}

fn parts() -> impl Strategy<Value = Parts> {
    let names = prop::collection::vec((name(), any::<u8>()), 0..4);
    let key = prop::collection::vec(any::<u8>(), 1..40);
    let changes = prop::collection::vec(change_parts(), 1..5);
    let rest = (any::<u8>(), name(), names, key, changes);
    (0..12_usize, any::<[u64; 5]>(), any::<u32>(), any::<[u8; 16]>(), rest).prop_map(
        |(kind, numbers, number, id, (flags, name, names, key, changes))| {
            let id = if id == [0; 16] { [1; 16] } else { id };
            Parts { kind, numbers, number, id, flags, name, names, key, changes }
        },
    )
}

impl ChangeParts {
    fn change(&self) -> Change<'_> {
        let has = |flag: u8| self.flags & flag != 0;
        let (value, meta) = (self.value.as_slice(), self.meta.as_slice());
        let optional = has(1).then_some(meta);
        let elements = |is_set: bool| {
            let part = |value: &'_ Bytes| if is_set { 0 } else { value.len() };
            self.elements
                .iter()
                .map(|(name, value)| {
                    (name.as_slice(), value.as_ref().map(|value| &value[..part(value)]))
                })
                .collect()
        };
        match self.kind {
            0 => Change::Value { value, meta },
            1 => Change::Set { value, meta },
            2 => Change::Blocks { is_anew: has(2), meta: optional, blocks: elements(false) },
            3 => Change::Elements {
                is_set: has(4),
                is_anew: has(2),
                meta: optional,
                elements: elements(has(4)),
            },
            _ => Change::Deleted { is_expiry: has(2) },
        }
    }
}

impl Parts {
    fn message(&self) -> Message<'_> {
        let [first, second, third, fourth, fifth] = self.numbers;
        let (name, key, number) = (self.name.as_str(), self.key.as_slice(), self.number);
        let source_id = self.id;
        match self.kind {
            0 => Message::Hello(Hello {
                place: self.place(),
                source_id,
                incarnation: first,
                origin: fifth,
                position: second,
                check: third,
                heap_bytes: fourth,
                settings: SettingsSummary { digest: source_id, text: name },
                name,
            }),
            1 => Message::Welcome(Welcome {
                place: self.place(),
                source_id,
                incarnation: first,
                origin: fifth,
                start: match self.flags % 3 {
                    0 => Start::Continue,
                    1 => Start::Join,
                    _ => Start::Switch,
                },
                heap_bytes: second,
                name,
            }),
            2 => Message::Refusal(Refusal {
                reason: RefusalReason::of_code(u16::from(self.flags % 10) + 1).expect("a reason"),
                text: name,
            }),
            3 => self.namespace(),
            4 => Message::Removed { number },
            5 => self.record(),
            6 => Message::Absent(AbsentMessage { namespace: number, version: first, key }),
            7 => Message::Joined { position: first, check: second },
            8 => {
                let records = self.changes.iter().map(|change| RecordChange {
                    namespace: number,
                    base_version: first,
                    version: second,
                    key,
                    change: change.change(),
                });
                let records = records.collect();
                Message::Entry(EntryMessage {
                    position: third,
                    check: fourth,
                    time_ms: fifth,
                    records,
                })
            }
            9 => Message::Position(PositionMessage {
                position: first,
                check: second,
                tail: third,
                stamp: fourth,
                replicated: fifth,
                floor: first,
                answered: second,
                is_leased: self.flags & 1 != 0,
                clock_ms: third,
            }),
            10 => self.switch(),
            _ => Message::Acknowledge(Acknowledgement { position: first, stamp: second }),
        }
    }

    fn switch(&self) -> Message<'_> {
        let [incarnation, origin, position, check, _] = self.numbers;
        let number = |flags: u8| (self.number, u32::from(flags));
        let numbers = self.names.iter().map(|(_, flags)| number(*flags)).collect();
        let source_id = self.id;
        Message::Switch(SwitchMessage { source_id, incarnation, origin, position, check, numbers })
    }

    fn place(&self) -> PartitionPlace {
        let [first, ..] = self.numbers;
        PartitionPlace { cluster_id: self.id, partition: self.number, view: first }
    }

    fn namespace(&self) -> Message<'_> {
        let tags = self.names.iter().map(|(name, flags)| ReplicatedTag {
            name,
            is_unique: flags & 1 != 0,
            is_ordered: flags & 2 != 0,
            is_counted: flags & 4 != 0,
            is_required: flags & 8 != 0,
        });
        Message::Namespace(NamespaceMessage {
            number: self.number,
            kind: NamespaceKind::of_code(self.flags % 4 + 1).expect("a kind"),
            stamp: self.numbers[0],
            name: &self.name,
            commits_wait: self.flags & 0x80 != 0,
            tags: tags.collect(),
        })
    }

    fn record(&self) -> Message<'_> {
        let change = match self.changes[0].change() {
            Change::Deleted { .. } => Change::Value { value: b"", meta: b"" },
            change @ (Change::Value { .. }
            | Change::Set { .. }
            | Change::Blocks { .. }
            | Change::Elements { .. }) => change,
        };
        let [version, time_ms, ..] = self.numbers;
        let (namespace, key) = (self.number, self.key.as_slice());
        Message::Record(RecordMessage { namespace, version, time_ms, key, change })
    }
}

/// Reads a stream that arrives in pieces, and compares.
#[track_caller]
fn assert_read<'a>(pieces: impl Iterator<Item = &'a [u8]>, expected: &[Message<'_>]) {
    let mut reader = FrameReader::new();
    let mut expected = expected.iter();
    for piece in pieces {
        reader.push(piece);
        while let Some(message) = reader.next().expect("a valid stream") {
            assert_eq!(Some(&message), expected.next());
        }
    }
    assert_eq!(expected.next(), None, "messages are missing");
    assert_eq!(reader.buffered_bytes(), 0);
}

#[test]
fn a_stream_is_read_into_room_that_the_socket_fills_in_part() {
    let expected = messages();
    let bytes = written(&expected);
    for step in [1, 7, 24, 1000, bytes.len()] {
        let (mut reader, mut left, mut seen) = (FrameReader::new(), bytes.as_slice(), 0);
        while !left.is_empty() {
            // What a read that failed has stored is no part of the stream.
            let failed = reader.read_from(step + 9, |room| {
                room.fill(0xff);
                Err(ErrorKind::WouldBlock.into())
            });
            assert_eq!(failed.expect_err("the error").kind(), ErrorKind::WouldBlock);
            // The room is larger than what has arrived.
            let (now, later) = left.split_at(step.min(left.len()));
            let count = reader.read_from(step + 9, |room| {
                assert_eq!(room.len(), step + 9);
                room[..now.len()].copy_from_slice(now);
                Ok(now.len())
            });
            assert_eq!(count.expect("bytes"), now.len());
            left = later;
            while let Some(message) = reader.next().expect("a valid stream") {
                assert_eq!(Some(&message), expected.get(seen));
                seen += 1;
            }
        }
        assert_eq!((seen, reader.buffered_bytes()), (expected.len(), 0), "pieces of {step} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(3000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_messages_are_read_as_they_were_written(
        all in prop::collection::vec(parts(), 1..6),
        places in prop::collection::vec(any::<Index>(), 0..8)
    ) {
        let messages: Vec<Message<'_>> = all.iter().map(Parts::message).collect();
        let bytes = written(&messages);
        assert_read([bytes.as_slice()].into_iter(), &messages);
        let mut cuts: Vec<usize> =
            places.iter().map(|place| place.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        assert_read(cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]), &messages);
    }

    #[test]
    fn small_messages_are_read_from_pieces_of_any_size(
        chosen in prop::collection::vec(select(messages()), 1..20), size in 1..200_usize
    ) {
        assert_read(written(&chosen).chunks(size), &chosen);
    }
}

#[test]
fn messages_of_several_frames_are_read() {
    const FRAME: usize = 1 << 20;
    // What a record message has besides a value.
    let around = 4 + 8 + 8 + (2 + 1) + 1 + 4 + 4;
    for (size, frames) in [
        (FRAME - around, 1),
        (FRAME - around + 1, 2),
        (2 * FRAME - around, 2),
        (2 * FRAME - around + 1, 3),
        (5 * FRAME, 6),
    ] {
        let value: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).expect("a byte")).collect();
        let large = record(b"k", Change::Value { value: &value, meta: b"" });
        let all = [large.clone(), Message::Removed { number: 1 }, large, entry(changes())];
        let bytes = written(&all);
        let one = written(&all[..1]);
        assert_eq!(one.len(), size + around + 24 * frames);
        for piece in [1 << 16, 100_003, bytes.len()] {
            assert_read(bytes.chunks(piece), &all);
        }
    }
}

#[test]
fn the_largest_transaction_is_read() {
    let value = vec![9; 128 << 20];
    let whole = || Change::Value { value: &value, meta: b"" };
    let all = [entry(vec![whole(), whole()]), Message::Removed { number: 1 }];
    let bytes = written(&all);
    assert_read(bytes.chunks(1 << 20), &all);
}

#[test]
fn a_message_that_is_kept_is_the_same_on_another_connection() {
    for message in messages() {
        let kept = nearstate_wire::KeptMessage::of(&message).expect("a valid message");
        assert_eq!(kept.message(), Ok(message));
    }
}

//! Messages from what a feed sends, and what a follower applies from messages.

use nearstate_model::{Error, OneOrMany, Result};
use nearstate_store::{
    FeedItem, FollowPosition, FollowedNamespace, FollowedRecord, Kind, LogIdentity,
    ReplicationPolicy, StreamedChange, TagSchema,
};
use nearstate_wire::{
    AbsentMessage, Change, EntryMessage, Message, NamespaceKind, NamespaceMessage, RecordChange,
    RecordMessage, ReplicatedTag,
};

/// The id of a region as the bytes of a message.
pub(crate) fn id_bytes(identity: LogIdentity) -> [u8; 16] {
    let [one, other] = identity.region;
    let mut bytes = [0; 16];
    let (head, tail) = bytes.split_at_mut(8);
    head.copy_from_slice(&one.to_le_bytes());
    tail.copy_from_slice(&other.to_le_bytes());
    bytes
}

/// The identity with these bytes.
pub(crate) fn identity_of(id: [u8; 16], (incarnation, origin): (u64, u64)) -> LogIdentity {
    let both = u128::from_le_bytes(id);
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let region = [both as u64, (both >> 64) as u64];
    LogIdentity { region, incarnation, origin }
}

const fn kind_of(kind: Kind) -> NamespaceKind {
    match kind {
        Kind::Value => NamespaceKind::Value,
        Kind::Blocks => NamespaceKind::Blocks,
        Kind::Counters => NamespaceKind::Counters,
        Kind::Mixed => NamespaceKind::Mixed,
    }
}

fn change_of(change: StreamedChange<'_>) -> Change<'_> {
    match change {
        StreamedChange::Put { value, meta, is_set: false } => Change::Value { value, meta },
        StreamedChange::Put { value, meta, is_set: true } => Change::Set { value, meta },
        StreamedChange::Patched { is_anew, blocks, meta } => {
            Change::Blocks { is_anew, meta, blocks }
        }
        StreamedChange::Elements { is_set, is_anew, elements, meta } => {
            Change::Elements { is_set, is_anew, meta, elements }
        }
        StreamedChange::Deleted { is_expiry } => Change::Deleted { is_expiry },
    }
}

fn streamed_of(change: Change<'_>) -> StreamedChange<'_> {
    match change {
        Change::Value { value, meta } => StreamedChange::Put { value, meta, is_set: false },
        Change::Set { value, meta } => StreamedChange::Put { value, meta, is_set: true },
        Change::Blocks { is_anew, meta, blocks } => {
            StreamedChange::Patched { is_anew, blocks, meta }
        }
        Change::Elements { is_set, is_anew, meta, elements } => {
            StreamedChange::Elements { is_set, is_anew, elements, meta }
        }
        Change::Deleted { is_expiry } => StreamedChange::Deleted { is_expiry },
    }
}

/// Calls `send` with the message of an item. `now_ms` tells the time, for a record of a walk.
pub(crate) fn send_item(
    item: FeedItem<'_>,
    now_ms: impl FnOnce() -> u64,
    send: &mut dyn FnMut(&Message<'_>) -> Result<()>,
) -> Result<()> {
    match item {
        FeedItem::Namespace(namespace) => {
            let tags = namespace.tags.iter().map(|tag| ReplicatedTag {
                name: &tag.name,
                is_unique: tag.is_unique,
                is_ordered: tag.is_ordered,
                is_counted: tag.is_counted,
                is_required: tag.is_required,
            });
            send(&Message::Namespace(NamespaceMessage {
                number: namespace.number,
                kind: kind_of(namespace.kind),
                stamp: namespace.stamp,
                name: namespace.name,
                commits_wait: namespace.policy == ReplicationPolicy::Replicated,
                tags: tags.collect(),
            }))
        }
        FeedItem::Removed { number } => send(&Message::Removed { number }),
        FeedItem::Record(record) => {
            let FollowedRecord { namespace, key, version, change, .. } = record;
            if let StreamedChange::Deleted { .. } = change {
                return send(&Message::Absent(AbsentMessage { namespace, version, key }));
            }
            let (change, time_ms) = (change_of(change), now_ms());
            send(&Message::Record(RecordMessage { namespace, version, time_ms, key, change }))
        }
        FeedItem::Joined(FollowPosition { position, check }) => {
            send(&Message::Joined { position, check })
        }
        FeedItem::Entry { place, time_ms, records } => {
            let records = records.map(|record| RecordChange {
                namespace: record.namespace,
                base_version: record.base_version.unwrap_or(0),
                version: record.version,
                key: record.key,
                change: change_of(record.change),
            });
            let (position, check) = (place.position, place.check);
            send(&Message::Entry(EntryMessage { position, check, time_ms, records }))
        }
    }
}

/// A namespace of the source.
///
/// # Errors
/// `BadArgument`: it has counters, which are not replicated.
pub(crate) fn namespace_of<'a>(message: &NamespaceMessage<'a>) -> Result<FollowedNamespace<'a>> {
    let kind = match message.kind {
        NamespaceKind::Value => Kind::Value,
        NamespaceKind::Blocks => Kind::Blocks,
        NamespaceKind::Mixed => Kind::Mixed,
        NamespaceKind::Counters => {
            let detail = format!("namespace {:?} has counters, which no host sends", message.name);
            return Err(Error::BadArgument { detail });
        }
    };
    let tags = message.tags.iter().map(|tag| TagSchema {
        name: tag.name.to_owned(),
        is_unique: tag.is_unique,
        is_ordered: tag.is_ordered,
        is_counted: tag.is_counted,
        is_required: tag.is_required,
    });
    let (number, name, stamp) = (message.number, message.name, message.stamp);
    let policy =
        if message.commits_wait { ReplicationPolicy::Replicated } else { ReplicationPolicy::Async };
    Ok(FollowedNamespace { number, name, kind, stamp, policy, tags: tags.collect() })
}

/// A record while the follower joins. One that is not anew continues the last one.
pub(crate) fn record_of(message: RecordMessage<'_>) -> FollowedRecord<'_> {
    let RecordMessage { namespace, version, key, change, .. } = message;
    let continues = matches!(
        change,
        Change::Blocks { is_anew: false, .. } | Change::Elements { is_anew: false, .. }
    );
    let base_version = continues.then_some(version);
    FollowedRecord { namespace, key, version, base_version, change: streamed_of(change) }
}

/// A record that was deleted, while the follower joins.
pub(crate) const fn absent_of<'a>(message: &AbsentMessage<'a>) -> FollowedRecord<'a> {
    let AbsentMessage { namespace, version, key } = *message;
    let change = StreamedChange::Deleted { is_expiry: false };
    FollowedRecord { namespace, key, version, base_version: None, change }
}

/// The records of an entry.
pub(crate) fn records_of(message: EntryMessage<'_>) -> OneOrMany<FollowedRecord<'_>> {
    message.records.map(|record| FollowedRecord {
        namespace: record.namespace,
        key: record.key,
        version: record.version,
        base_version: Some(record.base_version),
        change: streamed_of(record.change),
    })
}

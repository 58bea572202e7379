//! The items of a feed: namespaces, records of a walk in parts, records of entries.

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use super::{FeedItem, FeedSink, FollowedNamespace, FollowedRecord};
use crate::index::schema::{TagSchema, TagState};
use crate::log::entry::{StreamedChange, StreamedRecord};
use crate::session::{Namespace, Session};

/// The most bytes of one item of a record. The other elements follow in items of their own.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// Sends what a follower needs to know about a namespace. A follower that knows it already was told
/// its stamp before, and gets all later versions with their entries: only a promotion of this host
/// may have raised it, which has noted that.
pub(super) fn announce_one(
    session: &Session,
    (name, namespace): (&str, Namespace),
    is_known: bool,
    sink: &mut dyn FeedSink,
) -> Result<()> {
    let (number, kind) = (namespace.number(), namespace.kind());
    let stamp =
        if is_known { session.member.noted_stamp()? } else { session.highest_stamp(namespace)? };
    let tags = session.tags(namespace)?.into_iter();
    // Of others, some records may have no index entry yet, and be refused.
    let tags = tags.filter(|tag| tag.state == TagState::Ready).map(TagSchema::from).collect();
    let policy = session.replication_policy(namespace)?;
    sink.send(FeedItem::Namespace(FollowedNamespace { number, name, kind, stamp, policy, tags }))
}

/// A record of an entry, for a follower that is full.
pub(super) fn of_entry(record: StreamedRecord<'_>) -> FollowedRecord<'_> {
    let StreamedRecord { namespace, key, version, base_version, change } = record;
    FollowedRecord { namespace, key, version, base_version: Some(base_version), change }
}

/// Sends a record for a follower that joins, in several items if it is large.
pub(super) fn send_record(record: StreamedRecord<'_>, sink: &mut dyn FeedSink) -> Result<()> {
    let StreamedRecord { namespace, key, version, change, .. } = record;
    let mut send = |change, is_first: bool| {
        let base_version = if is_first { None } else { Some(version) };
        sink.send(FeedItem::Record(FollowedRecord {
            namespace,
            key,
            version,
            base_version,
            change,
        }))
    };
    match change {
        StreamedChange::Patched { is_anew: true, blocks, meta } => {
            let mut is_first = true;
            for blocks in parts_of(&blocks) {
                let meta = meta.filter(|_| is_first);
                let is_anew = std::mem::replace(&mut is_first, false);
                send(StreamedChange::Patched { is_anew, blocks, meta }, is_anew)?;
            }
            Ok(())
        }
        StreamedChange::Elements { is_set, is_anew: true, elements, meta } => {
            let mut is_first = true;
            for elements in parts_of(&elements) {
                let meta = meta.filter(|_| is_first);
                let is_anew = std::mem::replace(&mut is_first, false);
                send(StreamedChange::Elements { is_set, is_anew, elements, meta }, is_anew)?;
            }
            Ok(())
        }
        whole @ (StreamedChange::Put { .. }
        | StreamedChange::Patched { .. }
        | StreamedChange::Elements { .. }
        | StreamedChange::Deleted { .. }) => send(whole, true),
    }
}

/// A name, and the bytes that it stands for.
type Part<'a> = (&'a [u8], Option<&'a [u8]>);

/// Elements in parts of at most [`RECORD_BYTES_MAX`], one larger element alone. At least one part.
fn parts_of<'a>(elements: &[Part<'a>]) -> Vec<Vec<Part<'a>>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for (name, value) in elements {
        let size = name.len() + value.map_or(0, <[u8]>::len);
        if bytes != 0 && bytes + size > RECORD_BYTES_MAX {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        guaranteed(parts.last_mut(), "there is a part for each element").push((*name, *value));
    }
    invariant!(
        parts.iter().map(Vec::len).sum::<usize>() == elements.len(),
        "the parts of an item have its {} elements",
        elements.len()
    );
    parts
}

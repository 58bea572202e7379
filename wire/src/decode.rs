//! A message from the payload of its frames. Total: any bytes give a message or an error. Every
//! size and count is compared with the bytes that are left before it is used.

use nearstate_model::OneOrMany;
use nearstate_model::limits::{NAMESPACE_NAME_BYTES_MAX, TAG_NAME_BYTES_MAX, TAGS_DECLARED_MAX};

use crate::check::{
    check_block_name, check_element, check_key, check_limit, check_meta, check_name,
    check_source_id, check_value,
};
use crate::error::WireError;
use crate::limits::{
    CHANGED_BLOCKS_MAX, CHANGED_ELEMENTS_MAX, FORMAT, HOST_NAME_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX,
    SETTINGS_TEXT_BYTES_MAX, SWITCHED_NAMESPACES_MAX,
};
use crate::message::{
    AbsentMessage, Acknowledgement, Change, ChangedPart, EntryMessage, FrameKind, Hello, Message,
    NamespaceKind, NamespaceMessage, PartitionPlace, PositionMessage, RecordChange, RecordMessage,
    Refusal, ReplicatedTag, Start, SwitchMessage, Welcome, code,
};
use crate::refusal::RefusalReason;
use crate::settings::SettingsSummary;

/// The fewest bytes of a tag: an empty name would have two bytes, and the flags one.
const TAG_BYTES_MIN: usize = 2 + 1;
/// The fewest bytes of a block: a name of one byte, and that it was removed.
const BLOCK_BYTES_MIN: usize = 2 + 1 + 1;
/// The fewest bytes of an element: an empty name, and that it was removed.
const ELEMENT_BYTES_MIN: usize = 4 + 1;
/// The fewest bytes of a record of an entry: a deletion with a key of one byte.
const RECORD_BYTES_MIN: usize = 4 + 8 + 8 + (2 + 1) + 2;

/// For how many bytes memory is reserved at once whatever has arrived: the lists of most messages
/// are allocated once.
const RESERVED_BYTES_MIN: usize = 16 << 10;

/// The message of this kind with this payload.
pub(crate) fn decode(kind: FrameKind, payload: &[u8]) -> Result<Message<'_>, WireError> {
    let mut reader = PayloadReader { left: payload };
    let message = reader.message(kind)?;
    if !reader.left.is_empty() {
        let (bytes, name) = (reader.left.len(), kind.name());
        let detail = format!("a message of kind {name} has {bytes} bytes behind its end");
        return Err(WireError::invalid(detail));
    }
    Ok(message)
}

/// The part of a payload that was not read yet.
struct PayloadReader<'a> {
    left: &'a [u8],
}

impl<'a> PayloadReader<'a> {
    fn message(&mut self, kind: FrameKind) -> Result<Message<'a>, WireError> {
        Ok(match kind {
            FrameKind::Hello => Message::Hello(self.hello()?),
            FrameKind::Welcome => Message::Welcome(self.welcome()?),
            FrameKind::Refusal => Message::Refusal(self.refusal()?),
            FrameKind::Namespace => Message::Namespace(self.namespace()?),
            FrameKind::Removed => Message::Removed { number: self.u32("a namespace")? },
            FrameKind::Record => Message::Record(self.record()?),
            FrameKind::Absent => Message::Absent(AbsentMessage {
                namespace: self.u32("a namespace")?,
                version: self.u64("a version")?,
                key: self.key()?,
            }),
            FrameKind::Joined => Message::Joined {
                position: self.u64("a position")?,
                check: self.u64("a check value")?,
            },
            FrameKind::Entry => Message::Entry(self.entry()?),
            FrameKind::Position => Message::Position(PositionMessage {
                position: self.u64("a position")?,
                check: self.u64("a check value")?,
                tail: self.u64("a tail")?,
                stamp: self.u64("a stamp")?,
                replicated: self.u64("a position")?,
                floor: self.u64("a position")?,
                answered: self.u64("a stamp")?,
                is_leased: match self.u8("whether there is a lease")? {
                    0 => false,
                    1 => true,
                    other => return Err(unknown("lease", other.into())),
                },
                clock_ms: self.u64("a time")?,
            }),
            FrameKind::Switch => Message::Switch(self.switch()?),
            FrameKind::Acknowledge => Message::Acknowledge(Acknowledgement {
                position: self.u64("a position")?,
                stamp: self.u64("a stamp")?,
            }),
        })
    }

    fn place(&mut self) -> Result<PartitionPlace, WireError> {
        Ok(PartitionPlace {
            cluster_id: self.array("a cluster id")?,
            partition: self.u32("a partition")?,
            view: self.u64("a view")?,
        })
    }

    fn switch(&mut self) -> Result<SwitchMessage, WireError> {
        let source_id = self.array("a source id")?;
        check_source_id(source_id)?;
        let (incarnation, origin) = (self.u64("an incarnation")?, self.u64("an origin")?);
        let (position, check) = (self.u64("a position")?, self.u64("a check value")?);
        let count = self.u32("a number of namespaces")? as usize;
        check_limit("namespaces of a switch", count, SWITCHED_NAMESPACES_MAX)?;
        let numbers = self.list("namespaces", count, 2 * 4, |reader| {
            Ok((reader.u32("a namespace")?, reader.u32("a namespace")?))
        })?;
        Ok(SwitchMessage { source_id, incarnation, origin, position, check, numbers })
    }

    fn hello(&mut self) -> Result<Hello<'a>, WireError> {
        self.format()?;
        Ok(Hello {
            place: self.place()?,
            source_id: self.array("a source id")?,
            incarnation: self.u64("an incarnation")?,
            origin: self.u64("an origin")?,
            position: self.u64("a position")?,
            check: self.u64("a check value")?,
            heap_bytes: self.u64("a heap size")?,
            settings: self.settings()?,
            name: self.name("bytes of the name of a host", HOST_NAME_BYTES_MAX)?,
        })
    }

    fn settings(&mut self) -> Result<SettingsSummary<'a>, WireError> {
        let digest = self.array("a digest of settings")?;
        let text = self.short("settings")?;
        check_limit("bytes of the text of settings", text.len(), SETTINGS_TEXT_BYTES_MAX)?;
        Ok(SettingsSummary { digest, text: utf8("the text of settings", text)? })
    }

    fn welcome(&mut self) -> Result<Welcome<'a>, WireError> {
        self.format()?;
        let place = self.place()?;
        let source_id = self.array("a source id")?;
        check_source_id(source_id)?;
        Ok(Welcome {
            place,
            source_id,
            incarnation: self.u64("an incarnation")?,
            origin: self.u64("an origin")?,
            start: match self.u8("a start")? {
                code::CONTINUE => Start::Continue,
                code::JOIN => Start::Join,
                code::SWITCH => Start::Switch,
                other => return Err(unknown("start of a welcome", other.into())),
            },
            heap_bytes: self.u64("a heap size")?,
            name: self.name("bytes of the name of a host", HOST_NAME_BYTES_MAX)?,
        })
    }

    /// The format comes first: the rest of another one is unknown.
    fn format(&mut self) -> Result<(), WireError> {
        match self.u16("a format")? {
            FORMAT => Ok(()),
            format => Err(WireError::OtherFormat { format }),
        }
    }

    fn refusal(&mut self) -> Result<Refusal<'a>, WireError> {
        let code = self.u16("a reason")?;
        let reason = RefusalReason::of_code(code)
            .ok_or_else(|| unknown("reason of a refusal", code.into()))?;
        let text = self.short("a text")?;
        check_limit("bytes of a text", text.len(), REFUSAL_TEXT_BYTES_MAX)?;
        Ok(Refusal { reason, text: utf8("the text of a refusal", text)? })
    }

    fn namespace(&mut self) -> Result<NamespaceMessage<'a>, WireError> {
        let number = self.u32("a namespace")?;
        let code = self.u8("a kind")?;
        let commits_wait = code & code::COMMITS_WAIT != 0;
        let kind = NamespaceKind::of_code(code & !code::COMMITS_WAIT)
            .ok_or_else(|| unknown("kind of a namespace", code.into()))?;
        let stamp = self.u64("a stamp")?;
        let name = self.name("bytes of the name of a namespace", NAMESPACE_NAME_BYTES_MAX)?;
        let count = self.u16("a number of tags")?.into();
        check_limit("tags of a namespace", count, TAGS_DECLARED_MAX)?;
        let tags = self.list("tags", count, TAG_BYTES_MIN, Self::tag)?;
        Ok(NamespaceMessage { number, kind, stamp, name, commits_wait, tags })
    }

    fn tag(&mut self) -> Result<ReplicatedTag<'a>, WireError> {
        let name = self.name("bytes of the name of a tag", TAG_NAME_BYTES_MAX)?;
        let flags =
            self.flags("a tag", code::UNIQUE | code::ORDERED | code::COUNTED | code::REQUIRED)?;
        Ok(ReplicatedTag {
            name,
            is_unique: flags & code::UNIQUE != 0,
            is_ordered: flags & code::ORDERED != 0,
            is_counted: flags & code::COUNTED != 0,
            is_required: flags & code::REQUIRED != 0,
        })
    }

    fn record(&mut self) -> Result<RecordMessage<'a>, WireError> {
        let record = RecordMessage {
            namespace: self.u32("a namespace")?,
            version: self.u64("a version")?,
            time_ms: self.u64("a time")?,
            key: self.key()?,
            change: self.change()?,
        };
        if matches!(record.change, Change::Deleted { .. }) {
            return Err(WireError::deleted_record());
        }
        Ok(record)
    }

    fn entry(&mut self) -> Result<EntryMessage<'a>, WireError> {
        let position = self.u64("a position")?;
        let check = self.u64("a check value")?;
        let time_ms = self.u64("a time")?;
        let count = self.u16("a number of records")?.into();
        let records = match count {
            1 => OneOrMany::One(self.record_change()?),
            _ => self.list("records", count, RECORD_BYTES_MIN, Self::record_change)?.into(),
        };
        Ok(EntryMessage { position, check, time_ms, records })
    }

    fn record_change(&mut self) -> Result<RecordChange<'a>, WireError> {
        Ok(RecordChange {
            namespace: self.u32("a namespace")?,
            base_version: self.u64("a base version")?,
            version: self.u64("a version")?,
            key: self.key()?,
            change: self.change()?,
        })
    }

    fn change(&mut self) -> Result<Change<'a>, WireError> {
        match self.u8("a kind of change")? {
            code::VALUE => Ok(Change::Value { value: self.value()?, meta: self.meta()? }),
            code::SET => Ok(Change::Set { value: self.value()?, meta: self.meta()? }),
            code::BLOCKS => self.blocks(),
            code::ELEMENTS => self.elements(),
            code::DELETED => {
                let flags = self.flags("a deletion", code::EXPIRY)?;
                Ok(Change::Deleted { is_expiry: flags & code::EXPIRY != 0 })
            }
            other => Err(unknown("kind of a change", other.into())),
        }
    }

    fn blocks(&mut self) -> Result<Change<'a>, WireError> {
        let flags = self.flags("changed blocks", code::ANEW | code::HAS_META)?;
        let meta = self.optional_meta(flags)?;
        let count = self.u32("a number of blocks")? as usize;
        check_limit("changed blocks of a record", count, CHANGED_BLOCKS_MAX)?;
        let blocks = self.list("blocks", count, BLOCK_BYTES_MIN, |reader| {
            let name = reader.short("the name of a block")?;
            check_block_name(name)?;
            Ok((name, reader.removable()?))
        })?;
        Ok(Change::Blocks { is_anew: flags & code::ANEW != 0, meta, blocks })
    }

    fn elements(&mut self) -> Result<Change<'a>, WireError> {
        let flags = self.flags("changed elements", code::ANEW | code::HAS_META | code::IS_SET)?;
        let is_set = flags & code::IS_SET != 0;
        let meta = self.optional_meta(flags)?;
        let count = self.u32("a number of elements")? as usize;
        check_limit("elements of a change", count, CHANGED_ELEMENTS_MAX)?;
        let elements = self.list("elements", count, ELEMENT_BYTES_MIN, |reader| {
            let element: ChangedPart<'_> = (reader.bytes("an element")?, reader.removable()?);
            check_element(is_set, element)?;
            Ok(element)
        })?;
        Ok(Change::Elements { is_set, is_anew: flags & code::ANEW != 0, meta, elements })
    }

    /// Reads `count` parts of at least `bytes_min` bytes each. Reserves at first about as many
    /// bytes as are left, and more only behind parts that were valid.
    fn list<T>(
        &mut self,
        what: &str,
        count: usize,
        bytes_min: usize,
        mut part: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let left = self.left.len();
        if count > left / bytes_min {
            let detail = format!(
                "a message is cut short: {count} {what} take at least {bytes_min} bytes each, and \
                 {left} bytes are left"
            );
            return Err(WireError::invalid(detail));
        }
        let mut parts = Vec::with_capacity(first_capacity::<T>(count, left));
        while parts.len() < count {
            let part = part(self)?;
            if parts.len() == parts.capacity() {
                parts.reserve_exact(parts.len().max(1).min(count - parts.len()));
            }
            parts.push(part);
        }
        Ok(parts)
    }

    fn removable(&mut self) -> Result<Option<&'a [u8]>, WireError> {
        match self.u8("whether a part is present")? {
            0 => Ok(None),
            1 => self.value().map(Some),
            other => Err(unknown("presence", other.into())),
        }
    }

    fn optional_meta(&mut self, flags: u8) -> Result<Option<&'a [u8]>, WireError> {
        if flags & code::HAS_META == 0 { Ok(None) } else { self.meta().map(Some) }
    }

    fn meta(&mut self) -> Result<&'a [u8], WireError> {
        let meta = self.bytes("metadata")?;
        check_meta(meta)?;
        Ok(meta)
    }

    fn value(&mut self) -> Result<&'a [u8], WireError> {
        let value = self.bytes("a value")?;
        check_value(value)?;
        Ok(value)
    }

    fn key(&mut self) -> Result<&'a [u8], WireError> {
        let key = self.short("a key")?;
        check_key(key)?;
        Ok(key)
    }

    fn name(&mut self, what: &'static str, bytes_max: usize) -> Result<&'a str, WireError> {
        let name = self.short("a name")?;
        check_name(what, name, bytes_max)?;
        utf8("a name", name)
    }

    fn flags(&mut self, what: &str, known: u8) -> Result<u8, WireError> {
        let flags = self.u8("flags")?;
        if flags & !known != 0 {
            let detail = format!("flags of {what} are {flags:#04x}: known are {known:#04x}");
            return Err(WireError::invalid(detail));
        }
        Ok(flags)
    }

    fn bytes(&mut self, what: &str) -> Result<&'a [u8], WireError> {
        let size = self.u32(what)? as usize;
        self.take(what, size)
    }

    fn short(&mut self, what: &str) -> Result<&'a [u8], WireError> {
        let size = self.u16(what)?.into();
        self.take(what, size)
    }

    fn u8(&mut self, what: &str) -> Result<u8, WireError> {
        self.array(what).map(|[byte]| byte)
    }

    fn u16(&mut self, what: &str) -> Result<u16, WireError> {
        self.array(what).map(u16::from_le_bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], WireError> {
        let (array, left) = self.left.split_first_chunk().ok_or_else(|| self.cut_short(what, N))?;
        self.left = left;
        Ok(*array)
    }

    fn take(&mut self, what: &str, size: usize) -> Result<&'a [u8], WireError> {
        let (bytes, left) =
            self.left.split_at_checked(size).ok_or_else(|| self.cut_short(what, size))?;
        self.left = left;
        Ok(bytes)
    }

    #[cold]
    fn cut_short(&self, what: &str, size: usize) -> WireError {
        let left = self.left.len();
        WireError::invalid(format!(
            "a message is cut short: {what} takes {size} bytes, and {left} are left"
        ))
    }
}

/// For how many of `count` parts memory is reserved at first, with so many bytes left.
fn first_capacity<T>(count: usize, left: usize) -> usize {
    count.min(left.max(RESERVED_BYTES_MIN) / size_of::<T>().max(1))
}

fn utf8<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, WireError> {
    str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        WireError::invalid(format!("{what} is not UTF-8 behind byte {at}"))
    })
}

fn unknown(what: &str, value: u64) -> WireError {
    WireError::invalid(format!("{what} {value} is not known to this release"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_reserves_no_more_memory_than_bytes_have_arrived() {
        type Element = ChangedPart<'static>;
        for left in [0, 1, 5, 31, 320 << 20] {
            let first = first_capacity::<Element>(left / ELEMENT_BYTES_MIN, left);
            let most = left.max(RESERVED_BYTES_MIN);
            assert!(first * size_of::<Element>() <= most, "{first} for {left} bytes");
        }
        // Few parts with much in them.
        assert_eq!(first_capacity::<Element>(3, 1 << 20), 3);
    }

    /// A message has room for 64 million elements without names.
    #[test]
    fn more_elements_than_a_collection_has_are_refused_before_one_is_read() {
        let count = u32::try_from(CHANGED_ELEMENTS_MAX + 1).unwrap();
        let mut payload = vec![code::ANEW];
        payload.extend_from_slice(&count.to_le_bytes());
        let refused = PayloadReader { left: &payload }.elements().unwrap_err();
        let limit = CHANGED_ELEMENTS_MAX;
        assert!(
            matches!(refused, WireError::TooLarge { limit: found, .. } if found == limit),
            "{refused}"
        );
    }

    #[test]
    fn a_list_that_grows_has_no_room_to_spare() {
        for count in [1, 100, 1000, 100_000] {
            // The smallest elements: an empty name, and that it is removed.
            let payload = [0; ELEMENT_BYTES_MIN].repeat(count);
            let mut reader = PayloadReader { left: &payload };
            let parts = reader.list("elements", count, ELEMENT_BYTES_MIN, |reader| {
                Ok((reader.bytes("an element")?, reader.removable()?))
            });
            let parts: Vec<ChangedPart<'_>> = parts.unwrap();
            assert_eq!((parts.len(), parts.capacity()), (count, count));
        }
    }
}

//! A message as bytes. One function goes through a message: it computes the size with one output
//! and writes the payload with another.

use nearstate_model::invariant;
use nearstate_model::limits::{NAMESPACE_NAME_BYTES_MAX, TAG_NAME_BYTES_MAX, TAGS_DECLARED_MAX};

use crate::check::{
    check_block_name, check_element, check_key, check_limit, check_meta, check_name,
    check_source_id, check_value,
};
use crate::error::WireError;
use crate::limits::{
    CHANGED_BLOCKS_MAX, CHANGED_ELEMENTS_MAX, ENTRY_RECORDS_MAX, FORMAT, HOST_NAME_BYTES_MAX,
    REFUSAL_TEXT_BYTES_MAX, SETTINGS_TEXT_BYTES_MAX, SWITCHED_NAMESPACES_MAX,
};
use crate::message::{
    Change, ChangedPart, EntryMessage, Hello, Message, NamespaceMessage, PartitionPlace,
    RecordChange, RecordMessage, Start, SwitchMessage, Welcome, code,
};
use crate::settings::SettingsSummary;

/// Where encoded bytes go.
pub(crate) trait Output {
    fn put(&mut self, bytes: &[u8]);
}

/// Counts bytes.
#[derive(Default)]
pub(crate) struct SizeOutput {
    pub(crate) bytes: usize,
}

impl Output for SizeOutput {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
    }
}

/// Has room for the message: it was measured.
impl Output for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends the payload of a message to an output. Refuses what a reader would refuse; then the
/// output has a part of the message.
pub(crate) fn encode(message: &Message<'_>, out: &mut impl Output) -> Result<(), WireError> {
    match message {
        Message::Hello(hello) => put_hello(hello, out),
        Message::Welcome(welcome) => put_welcome(welcome, out),
        Message::Refusal(refusal) => {
            check_limit("bytes of a text", refusal.text.len(), REFUSAL_TEXT_BYTES_MAX)?;
            put_u16(refusal.reason.code(), out);
            put_short(refusal.text.as_bytes(), out);
            Ok(())
        }
        Message::Namespace(namespace) => put_namespace(namespace, out),
        Message::Removed { number } => {
            put_u32(*number, out);
            Ok(())
        }
        Message::Record(record) => put_record(record, out),
        Message::Absent(absent) => {
            put_u32(absent.namespace, out);
            put_u64(absent.version, out);
            put_key(absent.key, out)
        }
        Message::Joined { position, check } => {
            put_u64(*position, out);
            put_u64(*check, out);
            Ok(())
        }
        Message::Entry(entry) => put_entry(entry, out),
        Message::Position(position) => {
            put_u64(position.position, out);
            put_u64(position.check, out);
            put_u64(position.tail, out);
            put_u64(position.stamp, out);
            put_u64(position.replicated, out);
            put_u64(position.floor, out);
            put_u64(position.answered, out);
            put_u8(position.is_leased.into(), out);
            put_u64(position.clock_ms, out);
            Ok(())
        }
        Message::Acknowledge(acknowledgement) => {
            put_u64(acknowledgement.position, out);
            put_u64(acknowledgement.stamp, out);
            Ok(())
        }
        Message::Switch(switch) => put_switch(switch, out),
    }
}

fn put_place(place: PartitionPlace, out: &mut impl Output) {
    out.put(&place.cluster_id);
    put_u32(place.partition, out);
    put_u64(place.view, out);
}

fn put_switch(switch: &SwitchMessage, out: &mut impl Output) -> Result<(), WireError> {
    check_source_id(switch.source_id)?;
    check_limit("namespaces of a switch", switch.numbers.len(), SWITCHED_NAMESPACES_MAX)?;
    out.put(&switch.source_id);
    put_u64(switch.incarnation, out);
    put_u64(switch.origin, out);
    put_u64(switch.position, out);
    put_u64(switch.check, out);
    put_u32(narrow_u32(switch.numbers.len()), out);
    for (old, new) in &switch.numbers {
        put_u32(*old, out);
        put_u32(*new, out);
    }
    Ok(())
}

fn put_hello(hello: &Hello<'_>, out: &mut impl Output) -> Result<(), WireError> {
    put_u16(FORMAT, out);
    put_place(hello.place, out);
    out.put(&hello.source_id);
    put_u64(hello.incarnation, out);
    put_u64(hello.origin, out);
    put_u64(hello.position, out);
    put_u64(hello.check, out);
    put_u64(hello.heap_bytes, out);
    let SettingsSummary { digest, text } = hello.settings;
    check_limit("bytes of the text of settings", text.len(), SETTINGS_TEXT_BYTES_MAX)?;
    out.put(&digest);
    put_short(text.as_bytes(), out);
    put_name("bytes of the name of a host", hello.name, HOST_NAME_BYTES_MAX, out)
}

fn put_welcome(welcome: &Welcome<'_>, out: &mut impl Output) -> Result<(), WireError> {
    check_source_id(welcome.source_id)?;
    put_u16(FORMAT, out);
    put_place(welcome.place, out);
    out.put(&welcome.source_id);
    put_u64(welcome.incarnation, out);
    put_u64(welcome.origin, out);
    put_u8(
        match welcome.start {
            Start::Continue => code::CONTINUE,
            Start::Join => code::JOIN,
            Start::Switch => code::SWITCH,
        },
        out,
    );
    put_u64(welcome.heap_bytes, out);
    put_name("bytes of the name of a host", welcome.name, HOST_NAME_BYTES_MAX, out)
}

fn put_namespace(namespace: &NamespaceMessage<'_>, out: &mut impl Output) -> Result<(), WireError> {
    check_limit("tags of a namespace", namespace.tags.len(), TAGS_DECLARED_MAX)?;
    put_u32(namespace.number, out);
    let waits = if namespace.commits_wait { code::COMMITS_WAIT } else { 0 };
    put_u8(namespace.kind.code() | waits, out);
    put_u64(namespace.stamp, out);
    put_name("bytes of the name of a namespace", namespace.name, NAMESPACE_NAME_BYTES_MAX, out)?;
    put_u16(narrow(namespace.tags.len()), out);
    for tag in &namespace.tags {
        put_name("bytes of the name of a tag", tag.name, TAG_NAME_BYTES_MAX, out)?;
        let flags = [
            (tag.is_unique, code::UNIQUE),
            (tag.is_ordered, code::ORDERED),
            (tag.is_counted, code::COUNTED),
            (tag.is_required, code::REQUIRED),
        ];
        put_flags(&flags, out);
    }
    Ok(())
}

fn put_record(record: &RecordMessage<'_>, out: &mut impl Output) -> Result<(), WireError> {
    if matches!(record.change, Change::Deleted { .. }) {
        return Err(WireError::deleted_record());
    }
    put_u32(record.namespace, out);
    put_u64(record.version, out);
    put_u64(record.time_ms, out);
    put_key(record.key, out)?;
    put_change(&record.change, out)
}

fn put_entry(entry: &EntryMessage<'_>, out: &mut impl Output) -> Result<(), WireError> {
    check_limit("records of an entry", entry.records.len(), ENTRY_RECORDS_MAX)?;
    put_u64(entry.position, out);
    put_u64(entry.check, out);
    put_u64(entry.time_ms, out);
    put_u16(narrow(entry.records.len()), out);
    entry.records.iter().try_for_each(|record| put_record_change(record, out))
}

fn put_record_change(record: &RecordChange<'_>, out: &mut impl Output) -> Result<(), WireError> {
    put_u32(record.namespace, out);
    put_u64(record.base_version, out);
    put_u64(record.version, out);
    put_key(record.key, out)?;
    put_change(&record.change, out)
}

fn put_change(change: &Change<'_>, out: &mut impl Output) -> Result<(), WireError> {
    match change {
        Change::Value { value, meta } => {
            put_u8(code::VALUE, out);
            put_value(value, out)?;
            put_meta(meta, out)
        }
        Change::Set { value, meta } => {
            put_u8(code::SET, out);
            put_value(value, out)?;
            put_meta(meta, out)
        }
        Change::Blocks { is_anew, meta, blocks } => {
            check_limit("changed blocks of a record", blocks.len(), CHANGED_BLOCKS_MAX)?;
            put_u8(code::BLOCKS, out);
            put_flags(&[(*is_anew, code::ANEW), (meta.is_some(), code::HAS_META)], out);
            meta.map_or(Ok(()), |meta| put_meta(meta, out))?;
            put_count(blocks.len(), out)?;
            blocks.iter().try_for_each(|(name, block)| {
                check_block_name(name)?;
                put_short(name, out);
                put_removable(*block, out)
            })
        }
        Change::Elements { is_set, is_anew, meta, elements } => {
            put_u8(code::ELEMENTS, out);
            let flags =
                [(*is_anew, code::ANEW), (meta.is_some(), code::HAS_META), (*is_set, code::IS_SET)];
            put_flags(&flags, out);
            meta.map_or(Ok(()), |meta| put_meta(meta, out))?;
            put_count(elements.len(), out)?;
            elements.iter().try_for_each(|element| put_element(*is_set, *element, out))
        }
        Change::Deleted { is_expiry } => {
            put_u8(code::DELETED, out);
            put_flags(&[(*is_expiry, code::EXPIRY)], out);
            Ok(())
        }
    }
}

fn put_element(
    is_set: bool,
    element: ChangedPart<'_>,
    out: &mut impl Output,
) -> Result<(), WireError> {
    check_element(is_set, element)?;
    let (name, value) = element;
    put_bytes(name, out);
    put_removable(value, out)
}

/// Appends whether something is present, and its bytes.
fn put_removable(value: Option<&[u8]>, out: &mut impl Output) -> Result<(), WireError> {
    put_u8(u8::from(value.is_some()), out);
    value.map_or(Ok(()), |value| put_value(value, out))
}

fn put_value(value: &[u8], out: &mut impl Output) -> Result<(), WireError> {
    check_value(value)?;
    put_bytes(value, out);
    Ok(())
}

fn put_meta(meta: &[u8], out: &mut impl Output) -> Result<(), WireError> {
    check_meta(meta)?;
    put_bytes(meta, out);
    Ok(())
}

fn put_key(key: &[u8], out: &mut impl Output) -> Result<(), WireError> {
    check_key(key)?;
    put_short(key, out);
    Ok(())
}

fn put_name(
    what: &'static str,
    name: &str,
    bytes_max: usize,
    out: &mut impl Output,
) -> Result<(), WireError> {
    check_name(what, name.as_bytes(), bytes_max)?;
    put_short(name.as_bytes(), out);
    Ok(())
}

/// Appends a count of elements or blocks.
fn put_count(count: usize, out: &mut impl Output) -> Result<(), WireError> {
    check_limit("elements of a change", count, CHANGED_ELEMENTS_MAX)?;
    put_u32(narrow_u32(count), out);
    Ok(())
}

fn put_bytes(bytes: &[u8], out: &mut impl Output) {
    put_u32(narrow_u32(bytes.len()), out);
    out.put(bytes);
}

fn put_short(bytes: &[u8], out: &mut impl Output) {
    put_u16(narrow(bytes.len()), out);
    out.put(bytes);
}

fn put_flags(flags: &[(bool, u8)], out: &mut impl Output) {
    let set = flags.iter().filter(|(is_set, _)| *is_set);
    put_u8(set.fold(0, |all, (_, flag)| all | flag), out);
}

fn put_u8(value: u8, out: &mut impl Output) {
    out.put(&[value]);
}

fn put_u16(value: u16, out: &mut impl Output) {
    out.put(&value.to_le_bytes());
}

fn put_u32(value: u32, out: &mut impl Output) {
    out.put(&value.to_le_bytes());
}

fn put_u64(value: u64, out: &mut impl Output) {
    out.put(&value.to_le_bytes());
}

fn narrow(size: usize) -> u16 {
    let Ok(size) = u16::try_from(size) else { invariant!("a size of {size} was not checked") };
    size
}

fn narrow_u32(size: usize) -> u32 {
    let Ok(size) = u32::try_from(size) else { invariant!("a size of {size} was not checked") };
    size
}

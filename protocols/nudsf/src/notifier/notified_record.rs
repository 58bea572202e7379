//! A version of a record as the log of the region has it. Its blocks stay where they are: the log
//! holds them while the notifier looks at them.

use std::collections::BTreeMap;

use nearstate_store::meta::Meta;
use nearstate_store::{StreamedChange, StreamedRecord};
use serde_json::Value;

use crate::attributes::Attributes;
use crate::meta::{RecordMeta, SCHEMA_TAG};
use crate::multipart::MultipartWriter;
use crate::record::{ATTRIBUTES_BLOCK, ATTRIBUTES_TAG, StoredBlock, VALUE_BLOCK, write_block};
use crate::tags::is_reserved;

/// A record of the data repository in the log.
#[derive(Clone, Debug)]
pub(crate) struct NotifiedRecord<'v> {
    pub(crate) meta: RecordMeta,
    pub(crate) blocks: Vec<StoredBlock<'v>>,
}

/// The fields of a record, each with its bytes.
type LoggedFields<'r, 'v> = &'r [(&'v [u8], Option<&'v [u8]>)];

/// The unnamed block, the fields and the metadata of a version.
type VersionParts<'r, 'v> = (Option<&'v [u8]>, LoggedFields<'r, 'v>, &'v [u8]);

/// The parts of a version; `None` for a set.
fn parts_of<'r, 'v>(version: &'r StreamedRecord<'v>) -> Option<VersionParts<'r, 'v>> {
    match &version.change {
        StreamedChange::Put { value, meta, is_set: false } => Some((Some(*value), &[][..], *meta)),
        StreamedChange::Patched { blocks, meta, .. } => {
            Some((None, blocks.as_slice(), meta.unwrap_or_default()))
        }
        StreamedChange::Elements { is_set: false, elements, meta, .. } => {
            Some((None, elements.as_slice(), meta.unwrap_or_default()))
        }
        StreamedChange::Put { is_set: true, .. }
        | StreamedChange::Elements { is_set: true, .. }
        | StreamedChange::Deleted { .. } => None,
    }
}

fn split_meta(meta: &[u8]) -> Option<Meta<'_>> {
    if meta.is_empty() { None } else { Meta::split(meta).ok().map(|(_, meta)| meta) }
}

/// When a version expires, in milliseconds; 0: never.
pub(crate) fn expires_ms(version: &StreamedRecord<'_>) -> u64 {
    let meta = parts_of(version).and_then(|(_, _, meta)| split_meta(meta));
    meta.map_or(0, |meta| meta.expires_ms)
}

/// The bytes of the blocks of a version.
pub(crate) fn bytes_of(version: &StreamedRecord<'_>) -> usize {
    let Some((value, fields, meta)) = parts_of(version) else { return 0 };
    let fields = fields.iter().map(|(_, bytes)| bytes.map_or(0, <[u8]>::len)).sum::<usize>();
    value.map_or(0, <[u8]>::len) + fields + meta.len()
}

impl<'v> NotifiedRecord<'v> {
    /// The record of a version; `None` for a set. What blocks and tags cannot express is left out.
    pub(crate) fn of(version: &StreamedRecord<'v>) -> Option<Self> {
        let (value, fields, meta) = parts_of(version)?;
        let stored = split_meta(meta);
        let mut encoded = None;
        let expires_ms = stored.map_or(0, |stored| stored.expires_ms);
        let mut meta = RecordMeta { expires_ms, ..RecordMeta::default() };
        for (name, value) in stored.iter().flat_map(Meta::tags).filter_map(Result::ok) {
            let text = String::from_utf8_lossy(value);
            if name == ATTRIBUTES_TAG {
                encoded = Some(value);
            } else if name == SCHEMA_TAG {
                meta.schema_id = Some(text.into_owned());
            } else if !is_reserved(name) {
                meta.tags.push(name, &text);
            }
        }
        meta.tags.sort();
        let own = fields.iter().find(|(name, _)| *name == ATTRIBUTES_BLOCK.as_bytes());
        let attributes = own.and_then(|(_, bytes)| *bytes).or(encoded).and_then(Attributes::decode);
        let block = |id: &'v str, bytes: &'v [u8]| {
            let known = attributes.as_ref().and_then(|attributes| attributes.block(id));
            let (content_type, encoding) =
                known.map_or(("", ""), |known| (known.content_type, known.encoding));
            StoredBlock::logged((id, bytes), content_type, encoding)
        };
        let is_known = |attributes: &Attributes<'_>| attributes.block(VALUE_BLOCK).is_some();
        let callback = attributes.as_ref().map(|attributes| attributes.callback.to_owned());
        meta.callback = callback.filter(|callback| !callback.is_empty());
        let mut blocks = Vec::new();
        if let Some(bytes) = value
            && (attributes.as_ref().is_none_or(is_known) || !bytes.is_empty())
        {
            blocks.push(block(VALUE_BLOCK, bytes));
        }
        for (name, bytes) in fields {
            let id = str::from_utf8(name).ok().filter(|id| !is_reserved(id));
            if let (Some(id), Some(bytes)) = (id, bytes) {
                blocks.push(block(id, bytes));
            }
        }
        Some(Self { meta, blocks })
    }

    /// True if both have the same blocks.
    pub(crate) fn has_same_blocks(&self, other: &Self) -> bool {
        self.blocks.len() == other.blocks.len()
            && self.blocks.iter().zip(&other.blocks).all(|(one, other)| is_same_block(one, other))
    }

    /// The record behind a part of its own, as a `multipart/mixed` body. Blocks that would exceed
    /// `bytes_max` are left out, all of them.
    pub(crate) fn to_notification(
        &self,
        first: Option<(&str, &Value)>,
        bytes_max: usize,
    ) -> (String, Vec<u8>) {
        let mut writer = MultipartWriter::with_capacity(1024);
        if let Some((id, value)) = first {
            writer.part(id, "application/json", None, value.to_string().as_bytes());
        }
        writer.part("meta", "application/json", None, self.meta.to_text().as_bytes());
        let bytes: usize = self.blocks.iter().map(|block| block.bytes.len() + 512).sum();
        if writer.len() + bytes <= bytes_max {
            for block in &self.blocks {
                write_block(&mut writer, block.id, block);
            }
        }
        let (boundary, body) = writer.finish(bytes as u64);
        (format!("multipart/mixed; boundary={boundary}"), body)
    }
}

/// The ids of the blocks that only one version has, or that are not the same, ascending.
pub(crate) fn changed_blocks(
    before: Option<&NotifiedRecord<'_>>,
    after: Option<&NotifiedRecord<'_>>,
) -> Vec<String> {
    let before = before.iter().flat_map(|record| &record.blocks);
    let mut old: BTreeMap<&str, &StoredBlock<'_>> = before.map(|block| (block.id, block)).collect();
    let mut changed = Vec::new();
    for block in after.iter().flat_map(|record| &record.blocks) {
        match old.remove(block.id) {
            Some(same) if is_same_block(same, block) => {}
            Some(_) | None => changed.push(block.id.to_owned()),
        }
    }
    changed.extend(old.into_keys().map(str::to_owned));
    changed.sort_unstable();
    changed
}

/// True for equal blocks. One that two versions share is not compared.
fn is_same_block(one: &StoredBlock<'_>, other: &StoredBlock<'_>) -> bool {
    (one.id, one.content_type, one.encoding) == (other.id, other.content_type, other.encoding)
        && (std::ptr::eq(one.bytes, other.bytes) || one.bytes == other.bytes)
}

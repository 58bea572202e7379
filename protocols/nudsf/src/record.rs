//! A record of the data repository in the store.
//!
//! | record | in the store |
//! |---|---|
//! | `recordId` | key |
//! | no block, or one with the id `value` | the unnamed block (RESP string, SDL) |
//! | other blocks | named blocks (RESP hash), and the reserved block [`ATTRIBUTES_BLOCK`] |
//! | `meta.tags` | tags |
//! | `meta.ttl` | expiry time |
//! | `meta.schemaId` | the tag [`SCHEMA_TAG`] |
//! | values of the schema's unique keys | the tags, and their digests as [`UNIQUE_TAG`] |
//! | `meta.callbackReference`, headers of blocks, times | attributes (`attributes.rs`) |
//! | `ETag` of the record | version |
//! | `ETag` of meta, of a block | digest of the representation |

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;

use hyper::body::Bytes;
use nearstate_model::limits::{TAG_VALUE_BYTES_MAX, TAGS_MAX};
use nearstate_store::{Form, Kind, Metadata, Namespace, Txn, View};

use crate::attributes::{
    Attributes, BlockAttributes, ReplacedAttributes, block_digest, digest_etag, hex_digit,
    meta_digest,
};
use crate::conditions::Validators;
use crate::meta::{RecordMeta, SCHEMA_TAG, UNIQUE_TAG, UniqueDigest, meta_text};
use crate::multipart::{DEFAULT_TYPE, MultipartWriter};
use crate::tags::{MetaTags, is_plain, is_reserved};

/// The id of the one block of a record with an unnamed block.
pub(crate) const VALUE_BLOCK: &str = "value";

/// The block with the attributes of a record of named blocks.
pub(crate) const ATTRIBUTES_BLOCK: &str = "\u{1}nudsf";

/// The tag with the attributes of a record with one unnamed block.
pub(crate) const ATTRIBUTES_TAG: &str = "\u{1}nudsf";

/// A block as a client writes it. Texts of a request are not copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockDraft<'d> {
    pub(crate) id: Cow<'d, str>,
    pub(crate) content_type: Cow<'d, str>,
    pub(crate) encoding: Cow<'d, str>,
    pub(crate) bytes: Bytes,
}

/// A record as a client writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordDraft<'d> {
    pub(crate) meta: RecordMeta,
    pub(crate) blocks: Vec<BlockDraft<'d>>,
}

impl BlockDraft<'_> {
    /// The entity tag of the block.
    pub(crate) fn etag(&self) -> String {
        digest_etag(block_digest(&self.content_type, &self.encoding, &self.bytes))
    }

    fn as_stored(&self) -> StoredBlock<'_> {
        StoredBlock {
            id: &self.id,
            content_type: &self.content_type,
            encoding: &self.encoding,
            bytes: &self.bytes,
            attributes: None,
        }
    }
}

impl RecordDraft<'_> {
    /// The record as a `multipart/mixed` body: its content type and its bytes.
    pub(crate) fn to_multipart(&self, seed: u64) -> (String, Vec<u8>) {
        let blocks: Vec<StoredBlock<'_>> = self.blocks.iter().map(BlockDraft::as_stored).collect();
        multipart_of(&self.meta.to_text(), &blocks, seed)
    }

    /// At least the bytes of the blocks in [`Self::to_multipart`].
    pub(crate) fn multipart_bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.bytes.len() + 1024).sum()
    }
}

fn multipart_of(meta: &str, blocks: &[StoredBlock<'_>], seed: u64) -> (String, Vec<u8>) {
    let bytes: usize = blocks.iter().map(|block| block.bytes.len() + 256).sum();
    let mut writer = MultipartWriter::with_capacity(bytes + meta.len() + 1024);
    writer.part("meta", "application/json", None, meta.as_bytes());
    for block in blocks {
        write_block(&mut writer, block.id, block);
    }
    let (boundary, body) = writer.finish(seed);
    (format!("multipart/mixed; boundary={boundary}"), body)
}

/// A block of a stored record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredBlock<'v> {
    pub(crate) id: &'v str,
    pub(crate) content_type: &'v str,
    pub(crate) encoding: &'v str,
    pub(crate) bytes: &'v [u8],
    attributes: Option<&'v BlockAttributes<'v>>,
}

impl<'v> StoredBlock<'v> {
    /// A block in the log, of which only its headers are known.
    pub(crate) const fn logged(
        (id, bytes): (&'v str, &'v [u8]),
        content_type: &'v str,
        encoding: &'v str,
    ) -> Self {
        Self { id, content_type, encoding, bytes, attributes: None }
    }

    fn digest(&self) -> u128 {
        block_digest(self.content_type, self.encoding, self.bytes)
    }

    /// The content type for a response.
    pub(crate) fn media(&self) -> &str {
        if self.content_type.is_empty() { DEFAULT_TYPE } else { self.content_type }
    }

    /// The validators of the block.
    pub(crate) fn validators(&self) -> Validators {
        let digest = self.digest();
        let known = self.attributes.filter(|attributes| attributes.digest == digest);
        Validators {
            etag: digest_etag(digest),
            modified_ms: known.map(|attributes| attributes.modified_ms),
        }
    }

    /// The block as a draft.
    pub(crate) fn to_draft(self) -> BlockDraft<'v> {
        BlockDraft {
            id: Cow::Borrowed(self.id),
            content_type: Cow::Borrowed(self.content_type),
            encoding: Cow::Borrowed(self.encoding),
            bytes: Bytes::copy_from_slice(self.bytes),
        }
    }
}

/// A record as it was read.
#[derive(Debug)]
pub(crate) struct StoredRecord<'v> {
    view: &'v View<'v>,
    /// The attributes as they are stored.
    encoded: Option<&'v [u8]>,
    /// The attributes, once they were asked for: a record that is replaced needs a part of them.
    decoded: OnceCell<Option<Attributes<'v>>>,
    /// The JSON text of the meta, once it was asked for.
    meta_text: OnceCell<String>,
}

/// The entity tag of a version of a record.
pub(crate) fn version_etag(version: u64) -> String {
    // A third of the instructions of a formatter.
    let digits = (64 - version.leading_zeros()).div_ceil(4).max(1);
    let mut etag = String::with_capacity(digits as usize + 2);
    etag.push('"');
    for place in (0..digits).rev() {
        etag.push(hex_digit(u8::try_from(version >> (4 * place) & 15).unwrap_or(0)));
    }
    etag.push('"');
    etag
}

impl<'v> StoredRecord<'v> {
    /// The record of a view; `None` for a set, which is no record of the data repository.
    pub(crate) fn of(view: &'v View<'v>) -> Option<Self> {
        let encoded = match view.form() {
            Form::Set => return None,
            Form::Blocks => view.block(ATTRIBUTES_BLOCK),
            Form::Value => {
                view.tags().find(|(name, _)| *name == ATTRIBUTES_TAG).map(|(_, value)| value)
            }
        };
        Some(Self { view, encoded, decoded: OnceCell::new(), meta_text: OnceCell::new() })
    }

    fn attributes(&self) -> Option<&Attributes<'v>> {
        self.decoded.get_or_init(|| self.encoded.and_then(Attributes::decode)).as_ref()
    }

    /// The attributes of a record of named blocks, without those of blocks that another interface
    /// has deleted.
    fn kept_attributes(&self) -> Attributes<'v> {
        let mut kept = self.attributes().cloned().unwrap_or_default();
        kept.blocks.retain(|block| self.view.block(block.id).is_some());
        kept
    }

    /// The version of the record.
    pub(crate) fn version(&self) -> u64 {
        self.view.version()
    }

    /// The meta of the record.
    pub(crate) fn meta(&self) -> RecordMeta {
        let mut tags = MetaTags::default();
        let mut schema_id = None;
        for (name, value) in self.view.tags() {
            let text = String::from_utf8_lossy(value);
            if name == SCHEMA_TAG {
                schema_id = Some(text.into_owned());
            } else if !is_reserved(name) {
                tags.push(name, &text);
            }
        }
        tags.sort();
        let callback = self.attributes().map(|attributes| attributes.callback.to_owned());
        let callback = callback.filter(|callback| !callback.is_empty());
        RecordMeta { expires_ms: self.view.expires_ms(), callback, schema_id, tags }
    }

    /// The digests of its values of unique keys.
    fn unique(&self) -> Vec<UniqueDigest> {
        let digests = self.view.tags().filter(|(name, _)| *name == UNIQUE_TAG);
        digests.filter_map(|(_, digest)| digest.try_into().ok()).collect()
    }

    /// The JSON text of [`Self::meta`].
    pub(crate) fn meta_text(&self) -> &str {
        self.meta_text.get_or_init(|| {
            let mut schema = None;
            let mut tags: Vec<(&str, Cow<'_, str>)> = Vec::with_capacity(16);
            let mut is_text_plain = true;
            for (name, value) in self.view.tags() {
                let text = lossy(value);
                is_text_plain &= is_plain(name) && is_plain(&text);
                if name == SCHEMA_TAG {
                    schema = Some(text);
                } else if !is_reserved(name) {
                    tags.push((name, text));
                }
            }
            tags.sort_by_key(|(name, _)| *name);
            let callback = self.attributes().map(|attributes| attributes.callback);
            let callback = callback.filter(|callback| !callback.is_empty());
            let tags = tags.iter().map(|(name, value)| (*name, &**value));
            let texts = (callback, schema.as_deref());
            meta_text(self.view.expires_ms(), texts, (tags, is_text_plain))
        })
    }

    /// A block.
    pub(crate) fn block<'a>(&'a self, id: &'a str) -> Option<StoredBlock<'a>> {
        if is_reserved(id) {
            return None;
        }
        if self.view.form() != Form::Blocks {
            return self.blocks().into_iter().find(|block| block.id == id);
        }
        let attributes = self.attributes().and_then(|attributes| attributes.block(id));
        Some(stored_block(id, self.view.block(id)?, attributes))
    }

    /// All blocks: first those with attributes, in the order of the client, then others.
    pub(crate) fn blocks(&self) -> Vec<StoredBlock<'_>> {
        let known: &[BlockAttributes<'_>] =
            self.attributes().map_or(&[], |attributes| &attributes.blocks);
        let mut blocks: Vec<StoredBlock<'_>> = Vec::new();
        match self.view.form() {
            Form::Set => {}
            Form::Value => {
                let bytes = self.view.bytes();
                let attributes = known.iter().find(|block| block.id == VALUE_BLOCK);
                if attributes.is_some() || self.attributes().is_none() || !bytes.is_empty() {
                    blocks.push(stored_block(VALUE_BLOCK, bytes, attributes));
                }
            }
            Form::Blocks => {
                let found = self.view.blocks().filter(|(id, _)| !is_reserved(id));
                let order = BlockOrder::of(known);
                let mut ordered: Vec<(usize, StoredBlock<'_>)> = found
                    .map(|(id, bytes)| {
                        let index = order.index(id);
                        (index, stored_block(id, bytes, known.get(index)))
                    })
                    .collect();
                ordered.sort_by_key(|(index, _)| *index);
                blocks.extend(ordered.into_iter().map(|(_, block)| block));
            }
        }
        blocks
    }

    /// Why the record cannot be written again from its meta and blocks: another interface has given
    /// it what they cannot express, and a write would lose it. `None` if it can.
    pub(crate) fn inexact(&self) -> Option<&'static str> {
        let is_known = |name: &str| [SCHEMA_TAG, ATTRIBUTES_TAG, UNIQUE_TAG].contains(&name);
        let is_binary = |name: &str| [ATTRIBUTES_TAG, UNIQUE_TAG].contains(&name);
        let mut tags = self.view.tags();
        if tags.any(|(name, value)| {
            str::from_utf8(value).is_err() && !is_binary(name)
                || is_reserved(name) && !is_known(name)
        }) {
            return Some("a tag of the record has a value that is no text");
        }
        let own = usize::from(self.view.block(ATTRIBUTES_BLOCK).is_some());
        let is_hash = self.view.form() == Form::Blocks;
        (is_hash && self.view.fields().len() != self.blocks().len() + own)
            .then_some("the record has a field whose name no block can have")
    }

    /// True for a record with one unnamed block, which is written as a whole.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.view.form() == Form::Value
    }

    /// The validators of the record. The time of modification is known if no other interface has
    /// changed the record since.
    pub(crate) fn validators(&self) -> Validators {
        let etag = version_etag(self.version());
        Validators { etag, modified_ms: self.modified_ms() }
    }

    fn modified_ms(&self) -> Option<u64> {
        let attributes = self.attributes()?;
        let blocks = self.blocks();
        let is_same = blocks.len() == attributes.blocks.len()
            && blocks.iter().all(|block| {
                block.attributes.is_some_and(|attributes| attributes.digest == block.digest())
            })
            && meta_digest(self.meta_text()) == attributes.meta_digest;
        is_same.then_some(attributes.modified_ms)
    }

    /// The validators of the meta with this JSON text.
    pub(crate) fn meta_validators(&self, text: &str) -> Validators {
        let digest = meta_digest(text);
        let attributes = self.attributes();
        let known = attributes.filter(|attributes| attributes.meta_digest == digest);
        Validators {
            etag: digest_etag(digest),
            modified_ms: known.map(|attributes| attributes.meta_modified_ms),
        }
    }

    /// The record as a draft, which copies its blocks.
    pub(crate) fn to_draft(&self) -> RecordDraft<'_> {
        let blocks = self.blocks().into_iter().map(StoredBlock::to_draft).collect();
        RecordDraft { meta: self.meta(), blocks }
    }

    /// The record as a `multipart/mixed` body: its content type and its bytes.
    pub(crate) fn to_multipart(&self) -> (String, Vec<u8>) {
        multipart_of(self.meta_text(), &self.blocks(), self.version())
    }
}

/// The places of blocks in the order of the client.
enum BlockOrder<'a> {
    /// Few: they are compared one by one.
    Few(&'a [BlockAttributes<'a>]),
    Many(BTreeMap<&'a str, usize>),
}

impl<'a> BlockOrder<'a> {
    /// Comparing this many ids takes less time than building a map of them.
    const FEW: usize = 8;

    fn of(known: &'a [BlockAttributes<'a>]) -> Self {
        if known.len() <= Self::FEW {
            return Self::Few(known);
        }
        Self::Many(known.iter().enumerate().map(|(index, block)| (block.id, index)).collect())
    }

    /// The place of a block; `usize::MAX` behind all others.
    fn index(&self, id: &str) -> usize {
        let found = match self {
            Self::Few(known) => known.iter().position(|block| block.id == id),
            Self::Many(known) => known.get(id).copied(),
        };
        found.unwrap_or(usize::MAX)
    }
}

/// As [`String::from_utf8_lossy`], which takes longer for a valid text.
fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Writes a block as a part with this id.
pub(crate) fn write_block(writer: &mut MultipartWriter, id: &str, block: &StoredBlock<'_>) {
    let encoding = if block.encoding.is_empty() { "binary" } else { block.encoding };
    writer.part(id, block.media(), Some(encoding), block.bytes);
}

fn stored_block<'v>(
    id: &'v str,
    bytes: &'v [u8],
    attributes: Option<&'v BlockAttributes<'v>>,
) -> StoredBlock<'v> {
    StoredBlock {
        id,
        content_type: attributes.map_or("", |block| block.content_type),
        encoding: attributes.map_or("", |block| block.encoding),
        bytes,
        attributes,
    }
}

/// Where a record is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordPlace<'k> {
    pub(crate) namespace: Namespace,
    pub(crate) key: &'k [u8],
    /// The time of the change in milliseconds.
    pub(crate) now_ms: u64,
}

/// The attributes of a draft that replaces a record. Times of what does not change are kept.
pub(crate) fn attributes_of<'d>(
    draft: &'d RecordDraft<'_>,
    old: Option<ReplacedAttributes<'_>>,
    now_ms: u64,
) -> Attributes<'d> {
    let meta_digest = meta_digest(&draft.meta.to_text());
    let blocks = draft.blocks.iter().map(|block| {
        let digest = block_digest(&block.content_type, &block.encoding, &block.bytes);
        let same = old.and_then(|old| old.block_modified_ms(&block.id, digest));
        BlockAttributes {
            id: &block.id,
            content_type: &block.content_type,
            encoding: &block.encoding,
            modified_ms: same.unwrap_or(now_ms),
            digest,
        }
    });
    Attributes {
        modified_ms: now_ms,
        meta_modified_ms: old.and_then(|old| old.meta_modified_ms(meta_digest)).unwrap_or(now_ms),
        meta_digest,
        callback: draft.meta.callback.as_deref().unwrap_or_default(),
        blocks: blocks.collect(),
    }
}

/// Writes a whole record in a transaction, with the digests of its values of unique keys.
///
/// # Errors
/// As [`Txn::put_with_metadata`].
pub(crate) fn write_record(
    txn: &Txn<'_>,
    place: RecordPlace<'_>,
    (draft, unique): (&RecordDraft<'_>, &[UniqueDigest]),
    old: Option<&StoredRecord<'_>>,
) -> nearstate_model::Result<()> {
    let old = old.and_then(|old| ReplacedAttributes::of(old.encoded?));
    let encoded = attributes_of(draft, old, place.now_ms).encode();
    let RecordPlace { namespace, key, .. } = place;
    let mut tags = draft.meta.pairs(unique);
    let expires_ms = draft.meta.expires_ms;
    let is_unnamed = match draft.blocks.as_slice() {
        [] => true,
        [block] => block.id == VALUE_BLOCK,
        _ => false,
    };
    // A record whose tags leave no room for the attributes has its one block as a named one.
    let has_room = encoded.len() <= TAG_VALUE_BYTES_MAX && tags.len() < TAGS_MAX;
    if is_unnamed && namespace.kind() == Kind::Mixed && has_room {
        tags.push((ATTRIBUTES_TAG, &encoded));
        let value = draft.blocks.first().map_or(&[][..], |block| &block.bytes);
        return txn.put_with_metadata(namespace, key, value, Metadata { tags: &tags, expires_ms });
    }
    let mut fields: Vec<(&[u8], &[u8])> = Vec::with_capacity(draft.blocks.len() + 1);
    fields.push((ATTRIBUTES_BLOCK.as_bytes(), &encoded));
    fields.extend(draft.blocks.iter().map(|block| (block.id.as_bytes(), &block.bytes[..])));
    txn.put_fields(namespace, key, &fields, Metadata { tags: &tags, expires_ms })
}

/// Puts or deletes one block of a record. The other blocks are not copied.
///
/// # Errors
/// As [`Txn::set_fields`].
pub(crate) fn write_one_block(
    txn: &Txn<'_>,
    place: RecordPlace<'_>,
    old: &StoredRecord<'_>,
    (id, block): (&str, Option<&BlockDraft<'_>>),
) -> nearstate_model::Result<()> {
    let mut attributes = match old.view.form() {
        Form::Blocks => old.kept_attributes(),
        // The form of the record may change, so it is written as a whole.
        Form::Value | Form::Set => {
            let mut draft = old.to_draft();
            let known = draft.blocks.iter().position(|known| known.id == id);
            match (known, block) {
                (Some(index), Some(block)) => {
                    if let Some(known) = draft.blocks.get_mut(index) {
                        known.clone_from(block);
                    }
                }
                (Some(index), None) => drop(draft.blocks.remove(index)),
                (None, Some(block)) => draft.blocks.push(block.clone()),
                (None, None) => {}
            }
            return write_record(txn, place, (&draft, &old.unique()), Some(old));
        }
    };
    attributes.modified_ms = place.now_ms;
    let known = attributes.blocks.iter().position(|known| known.id == id);
    if let Some(block) = block {
        let new = BlockAttributes {
            id: &block.id,
            content_type: &block.content_type,
            encoding: &block.encoding,
            modified_ms: place.now_ms,
            digest: block_digest(&block.content_type, &block.encoding, &block.bytes),
        };
        match known.and_then(|index| attributes.blocks.get_mut(index)) {
            Some(known) => *known = new,
            None => attributes.blocks.push(new),
        }
    } else if let Some(index) = known {
        attributes.blocks.remove(index);
    }
    let encoded = attributes.encode();
    let mut fields: Vec<(&[u8], &[u8])> = vec![(ATTRIBUTES_BLOCK.as_bytes(), &encoded)];
    fields.extend(block.map(|block| (block.id.as_bytes(), &block.bytes[..])));
    txn.set_fields(place.namespace, place.key, &fields)?;
    if block.is_none() {
        txn.remove_fields(place.namespace, place.key, &[id.as_bytes()])?;
    }
    Ok(())
}

/// Replaces the meta of a record, and the digests of its values of unique keys.
///
/// # Errors
/// As [`Txn::set_metadata`].
pub(crate) fn write_meta(
    txn: &Txn<'_>,
    place: RecordPlace<'_>,
    old: &StoredRecord<'_>,
    (meta, unique): (&RecordMeta, &[UniqueDigest]),
) -> nearstate_model::Result<()> {
    let attributes = match old.view.form() {
        Form::Blocks => old.kept_attributes(),
        Form::Value | Form::Set => {
            let draft = RecordDraft { meta: meta.clone(), ..old.to_draft() };
            return write_record(txn, place, (&draft, unique), Some(old));
        }
    };
    let encoded = Attributes {
        modified_ms: place.now_ms,
        meta_modified_ms: place.now_ms,
        meta_digest: meta_digest(&meta.to_text()),
        callback: meta.callback.as_deref().unwrap_or_default(),
        ..attributes
    }
    .encode();
    txn.set_fields(place.namespace, place.key, &[(ATTRIBUTES_BLOCK.as_bytes(), &encoded)])?;
    let metadata = Metadata { tags: &meta.pairs(unique), expires_ms: meta.expires_ms };
    txn.set_metadata(place.namespace, place.key, metadata).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_tag_is_its_version_in_hexadecimal() {
        for version in [0, 1, 15, 16, 0x0fed_cba9_8765_4321, u64::MAX] {
            assert_eq!(version_etag(version), format!("\"{version:x}\""));
        }
    }
}

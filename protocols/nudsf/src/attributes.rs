//! What a record has beyond the store's blocks, tags and expiry: content types and transfer
//! encodings of blocks, the callback of its expiry, and times of modification.
//!
//! The attributes are one reserved block of a record of named blocks, or one reserved tag of a
//! record with one unnamed block (`record.rs`). They are written in the same commit.
//!
//! ```text
//! format u8 = 1 | modified u64 | meta modified u64 | digest of meta u128 | callback u16, bytes
//! | count u16 | count x { id u16, bytes | content type u8, bytes | encoding u8, bytes
//! |                       modified u64 | digest u128 }        (little-endian)
//! ```
//!
//! Another interface may change the record and leave the attributes. A digest tells which of them
//! still hold: a time of modification is reported only for what has not changed since.

use nearstate_model::invariant;
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_seed};

/// The version of the encoding.
const FORMAT: u8 = 1;

/// The attributes of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockAttributes<'a> {
    pub(crate) id: &'a str,
    /// Empty: not given.
    pub(crate) content_type: &'a str,
    /// Empty: not given.
    pub(crate) encoding: &'a str,
    pub(crate) modified_ms: u64,
    pub(crate) digest: u128,
}

/// The attributes of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes<'a> {
    pub(crate) modified_ms: u64,
    pub(crate) meta_modified_ms: u64,
    pub(crate) meta_digest: u128,
    /// Empty: none.
    pub(crate) callback: &'a str,
    /// In the order in which the client wrote the blocks.
    pub(crate) blocks: Vec<BlockAttributes<'a>>,
}

/// The digest of a block with its headers, which is also its entity tag.
pub(crate) fn block_digest(content_type: &str, encoding: &str, bytes: &[u8]) -> u128 {
    let mut digest = Xxh3::with_seed(1);
    for text in [content_type, encoding] {
        digest.update(&(text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    }
    digest.update(bytes);
    digest.digest128()
}

/// The digit of the lower half of a byte.
pub(crate) fn hex_digit(half: u8) -> char {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    DIGITS.get(usize::from(half & 15)).map_or('0', |digit| char::from(*digit))
}

/// The entity tag of a digest.
pub(crate) fn digest_etag(digest: u128) -> String {
    let mut etag = String::with_capacity(34);
    etag.push('"');
    for byte in digest.to_be_bytes() {
        for half in [byte >> 4, byte] {
            etag.push(hex_digit(half));
        }
    }
    etag.push('"');
    etag
}

/// The digest of a meta as JSON text.
pub(crate) fn meta_digest(text: &str) -> u128 {
    xxh3_128_with_seed(text.as_bytes(), 2)
}

impl<'a> Attributes<'a> {
    /// The attributes of a block.
    pub(crate) fn block(&self, id: &str) -> Option<&BlockAttributes<'a>> {
        self.blocks.iter().find(|block| block.id == id)
    }

    /// Encodes the attributes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let text = |block: &BlockAttributes<'_>| {
            block.id.len() + block.content_type.len() + block.encoding.len() + 28
        };
        let texts = self.blocks.iter().map(text).sum::<usize>();
        let mut out = Vec::with_capacity(37 + self.callback.len() + texts);
        out.push(FORMAT);
        out.extend_from_slice(&self.modified_ms.to_le_bytes());
        out.extend_from_slice(&self.meta_modified_ms.to_le_bytes());
        out.extend_from_slice(&self.meta_digest.to_le_bytes());
        push_long(self.callback, &mut out);
        // A record has far fewer blocks. Only another interface can have written attributes of so
        // many, and loses those of the last.
        let count = u16::try_from(self.blocks.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        for block in self.blocks.iter().take(usize::from(count)) {
            push_long(block.id, &mut out);
            push_short(block.content_type, &mut out);
            push_short(block.encoding, &mut out);
            out.extend_from_slice(&block.modified_ms.to_le_bytes());
            out.extend_from_slice(&block.digest.to_le_bytes());
        }
        out
    }

    /// Decodes attributes. `None`: the bytes are not of this format, and the record has none.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = AttributeReader(bytes);
        if reader.take::<1>()? != [FORMAT] {
            return None;
        }
        let mut decoded = Self {
            modified_ms: u64::from_le_bytes(reader.take()?),
            meta_modified_ms: u64::from_le_bytes(reader.take()?),
            meta_digest: u128::from_le_bytes(reader.take()?),
            callback: reader.long()?,
            blocks: Vec::new(),
        };
        for _ in 0..u16::from_le_bytes(reader.take()?) {
            decoded.blocks.push(BlockAttributes {
                id: reader.long()?,
                content_type: reader.short()?,
                encoding: reader.short()?,
                modified_ms: u64::from_le_bytes(reader.take()?),
                digest: u128::from_le_bytes(reader.take()?),
            });
        }
        reader.0.is_empty().then_some(decoded)
    }
}

/// True for a text that attributes may have. The parsers refuse all control characters; tabs and
/// those beyond ASCII are read all the same, because older builds have stored them.
fn is_attribute_text(text: &str) -> bool {
    let is_refused = |byte: u8| byte < 0x20 && byte != b'\t' || byte == 0x7f;
    !text.bytes().fold(false, |any, byte| any | is_refused(byte))
}

/// The attributes of a record that is replaced, of which only digests and times are read. Each is
/// read where it is, without a list of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplacedAttributes<'a> {
    meta_digest: u128,
    meta_modified_ms: u64,
    blocks: &'a [u8],
}

impl<'a> ReplacedAttributes<'a> {
    /// Reads attributes. `None`: [`Attributes::decode`] has none of the record.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = AttributeReader(bytes);
        if reader.take::<1>()? != [FORMAT] {
            return None;
        }
        reader.take::<8>()?;
        let meta_modified_ms = u64::from_le_bytes(reader.take()?);
        let meta_digest = u128::from_le_bytes(reader.take()?);
        reader.long_bytes()?;
        reader.take::<2>()?;
        Some(Self { meta_digest, meta_modified_ms, blocks: reader.0 })
    }

    /// When the meta was modified, if it has this digest.
    pub(crate) fn meta_modified_ms(&self, digest: u128) -> Option<u64> {
        (self.meta_digest == digest).then_some(self.meta_modified_ms)
    }

    /// When a block was modified, if it has this digest.
    pub(crate) fn block_modified_ms(&self, id: &str, digest: u128) -> Option<u64> {
        let mut reader = AttributeReader(self.blocks);
        loop {
            let known = reader.long_bytes()?;
            reader.short_bytes()?;
            reader.short_bytes()?;
            let modified_ms = u64::from_le_bytes(reader.take()?);
            let known_digest = u128::from_le_bytes(reader.take()?);
            if known == id.as_bytes() {
                return (known_digest == digest).then_some(modified_ms);
            }
        }
    }
}

/// A text of less than 64 KiB. What cannot be decoded would lose all attributes of the record, so
/// it was refused before.
fn push_long(text: &str, out: &mut Vec<u8>) {
    let Some(bytes) = u16::try_from(text.len()).ok().filter(|_| is_attribute_text(text)) else {
        invariant!("a text of {} bytes is encoded that no attribute may have", text.len())
    };
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The same with less than 256 bytes.
fn push_short(text: &str, out: &mut Vec<u8>) {
    let Some(bytes) = u8::try_from(text.len()).ok().filter(|_| is_attribute_text(text)) else {
        invariant!("a text of {} bytes is encoded that no header of a block may have", text.len())
    };
    out.push(bytes);
    out.extend_from_slice(text.as_bytes());
}

fn text_of(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok().filter(|text| is_attribute_text(text))
}

struct AttributeReader<'a>(&'a [u8]);

impl<'a> AttributeReader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn long_bytes(&mut self) -> Option<&'a [u8]> {
        let count = u16::from_le_bytes(self.take()?);
        self.bytes(usize::from(count))
    }

    fn short_bytes(&mut self) -> Option<&'a [u8]> {
        let [count] = self.take()?;
        self.bytes(usize::from(count))
    }

    fn long(&mut self) -> Option<&'a str> {
        text_of(self.long_bytes()?)
    }

    fn short(&mut self) -> Option<&'a str> {
        text_of(self.short_bytes()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Attributes<'static> {
        let block = BlockAttributes {
            id: "block1",
            content_type: "text/plain",
            encoding: "binary",
            modified_ms: 5,
            digest: 6,
        };
        Attributes {
            modified_ms: 1,
            meta_modified_ms: 2,
            meta_digest: 3,
            callback: "http://nf.example",
            blocks: vec![block, BlockAttributes { id: "b2", ..Default::default() }],
        }
    }

    #[test]
    fn attributes_survive_encoding_and_every_cut_is_none() {
        let bytes = example().encode();
        assert_eq!(Attributes::decode(&bytes), Some(example()));
        for length in 0..bytes.len() {
            assert_eq!(Attributes::decode(&bytes[..length]), None, "{length}");
        }
    }

    #[test]
    fn texts_that_older_builds_accepted_are_read_and_other_control_characters_are_not() {
        let with = |callback, content_type| {
            let block = BlockAttributes { id: "b", content_type, ..Default::default() };
            Attributes { callback, blocks: vec![block], ..Default::default() }
        };
        let old = with("http://nf.example/a\u{85}b", "text/plain;\tcharset=utf-8");
        assert_eq!(Attributes::decode(&old.encode()), Some(old));
        let bytes = with("http://nf.example", "text/plain").encode();
        for control in [0, b'\n', b'\r', 0x1f, 0x7f] {
            let replaced = bytes.iter().map(|byte| if *byte == b'/' { control } else { *byte });
            assert_eq!(Attributes::decode(&replaced.collect::<Vec<u8>>()), None, "{control}");
        }
    }

    #[test]
    fn an_entity_tag_is_its_digest_in_hexadecimal() {
        for digest in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210] {
            assert_eq!(digest_etag(digest), format!("\"{digest:032x}\""));
        }
    }

    #[test]
    fn the_digest_of_a_meta_of_any_length_is_that_of_its_parts() {
        let text = "meta".repeat(200);
        for length in 0..text.len() {
            let mut parts = Xxh3::with_seed(2);
            parts.update(&text.as_bytes()[..length]);
            assert_eq!(meta_digest(&text[..length]), parts.digest128(), "{length}");
        }
    }

    #[test]
    fn digests_depend_on_every_part() {
        let digest = block_digest("a", "b", b"c");
        for other in [
            block_digest("ab", "", b"c"),
            block_digest("a", "", b"bc"),
            block_digest("a", "b", b"d"),
            meta_digest("abc"),
        ] {
            assert_ne!(digest, other);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(decoded) = Attributes::decode(&bytes) {
                prop_assert_eq!(&decoded.encode(), &bytes);
            }
            if let Some(replaced) = ReplacedAttributes::of(&bytes) {
                replaced.block_modified_ms("a", 0);
            }
        }

        #[test]
        fn the_times_of_replaced_attributes_are_those_of_the_decoded_ones(
            digests in prop::collection::vec(0_u128..3, 0..5), meta in 0_u128..3,
        ) {
            const IDS: [&str; 5] = ["a", "b", "c", "d", "e"];
            let blocks = IDS.iter().zip(&digests).zip(1_u64..).map(|((id, digest), modified_ms)| {
                let (content_type, encoding) = ("text/plain", "");
                BlockAttributes { id, content_type, encoding, modified_ms, digest: *digest }
            });
            let callback = "http://nf.example";
            let attributes = Attributes {
                modified_ms: 8, meta_modified_ms: 9, meta_digest: meta, callback,
                blocks: blocks.collect(),
            };
            let encoded = attributes.encode();
            let replaced = ReplacedAttributes::of(&encoded).unwrap();
            for digest in 0..3 {
                prop_assert_eq!(replaced.meta_modified_ms(digest), (digest == meta).then_some(9));
                for id in IDS {
                    let known = attributes.block(id).filter(|known| known.digest == digest);
                    prop_assert_eq!(
                        replaced.block_modified_ms(id, digest),
                        known.map(|known| known.modified_ms)
                    );
                }
            }
        }

        #[test]
        fn a_changed_byte_never_panics(at in 0_usize..100, to in any::<u8>()) {
            let mut bytes = example().encode();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
            let _ = Attributes::decode(&bytes);
        }
    }
}

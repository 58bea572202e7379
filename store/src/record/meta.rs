//! The metadata of a record: its expiry time and its tags.
//!
//! It follows the value in the record's cell, with its size last, so that it is found from the end
//! and a reader of the value alone reads only the last cache line of it:
//!
//! ```text
//! value | tags | expires u64 | bytes of all after the value u32
//! tag = name bytes u8 | value bytes u16 | name | value        (little-endian)
//! ```
//!
//! Tags are a set of (name, value) pairs, in ascending order and without duplicates: a name with
//! several values (TS 29.598 `tags: {name: [values]}`) is stored once for each of them. So two
//! records with the same tags have the same bytes, and two versions are compared in one merge.

use nearstate_memory::Cell;
use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{TAG_NAME_BYTES_MAX, TAG_VALUE_BYTES_MAX, TAGS_MAX};
use nearstate_model::{Error, Result, invariant};

/// The time and the size.
const TAIL: usize = 8 + 4;
/// The sizes before a tag's name.
const TAG_HEAD: usize = 3;
/// The largest metadata.
const META_BYTES_MAX: usize =
    TAIL + TAGS_MAX * (TAG_HEAD + TAG_NAME_BYTES_MAX + TAG_VALUE_BYTES_MAX);
const _: () = assert!(TAG_NAME_BYTES_MAX <= u8::MAX as usize, "a tag counts its name in 8 bits");
const _: () = assert!(TAG_VALUE_BYTES_MAX <= u16::MAX as usize, "a tag counts a value in 16 bits");
const _: () = assert!(META_BYTES_MAX <= u32::MAX as usize, "metadata counts in 32 bits");

const CUT: Corruption = Corruption("a record's tags are cut short");

/// The metadata of a record, as it is stored in the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// Expiry time of the record in milliseconds since 1970; 0: never.
    pub expires_ms: u64,
    tags: &'a [u8],
}

impl<'a> Meta<'a> {
    /// Splits the content of a cell into the value and the metadata. Does not check the tags.
    ///
    /// # Errors
    /// Damage: sizes that do not fit.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Result<(&'a [u8], Self), Corruption> {
        let (_, size) = bytes.split_last_chunk::<4>().ok_or(CUT)?;
        let value_bytes = bytes.len().checked_sub(u32::from_le_bytes(*size) as usize).ok_or(CUT)?;
        let (value, meta) = bytes.split_at_checked(value_bytes).ok_or(CUT)?;
        let (tags, tail) = meta.split_last_chunk::<TAIL>().ok_or(CUT)?;
        let (expires, _) = tail.split_first_chunk::<8>().ok_or(CUT)?;
        let expires_ms = u64::from_le_bytes(*expires);
        Ok((value, Self { expires_ms, tags }))
    }

    /// The tags, in ascending order of name and value.
    #[inline]
    pub const fn tags(&self) -> Tags<'a> {
        Tags { rest: self.tags }
    }

    /// The values of one tag, ascending. Linear in the number of tags.
    pub fn values(&self, name: &str) -> impl Iterator<Item = Result<&'a [u8], Corruption>> {
        self.tags().filter_map(move |tag| match tag {
            Ok((found, value)) => (found == name).then_some(Ok(value)),
            Err(damage) => Some(Err(damage)),
        })
    }

    /// Checks every tag, for the check of a region.
    ///
    /// # Errors
    /// Damage: anything that [`encode`] does not write.
    pub fn check(&self) -> Result<(), Corruption> {
        let mut last = None;
        for (count, tag) in self.tags().enumerate() {
            let tag = tag?;
            let (name, value) = tag;
            if count >= TAGS_MAX || name.is_empty() || value.len() > TAG_VALUE_BYTES_MAX {
                return Err(Corruption("a record's tags are beyond the limits"));
            }
            if last.is_some_and(|last| last >= tag) {
                return Err(Corruption("a record's tags are not in order"));
            }
            last = Some(tag);
        }
        Ok(())
    }
}

/// An iterator over tags: (name, value) pairs. Any bytes result in tags or damage, after which it
/// ends.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Tags<'a> {
    type Item = Result<(&'a str, &'a [u8]), Corruption>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let tag = self.step();
        if tag.is_err() {
            self.rest = &[];
        }
        Some(tag)
    }
}

impl<'a> Tags<'a> {
    /// No tags.
    pub(crate) const fn none() -> Self {
        Self { rest: &[] }
    }

    /// The tags with the bytes of their names, for comparison with known names; it ends at damage.
    #[inline]
    pub(crate) fn pairs(mut self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        std::iter::from_fn(move || if self.rest.is_empty() { None } else { self.pair().ok() })
    }

    #[inline]
    fn step(&mut self) -> Result<(&'a str, &'a [u8]), Corruption> {
        let (name, value) = self.pair()?;
        let name = str::from_utf8(name).map_err(|_| Corruption("a tag's name is not UTF-8"))?;
        Ok((name, value))
    }

    #[inline]
    fn pair(&mut self) -> Result<(&'a [u8], &'a [u8]), Corruption> {
        let ([name_bytes, v0, v1], rest) = self.rest.split_first_chunk::<TAG_HEAD>().ok_or(CUT)?;
        let (name, rest) = rest.split_at_checked(usize::from(*name_bytes)).ok_or(CUT)?;
        let value_bytes = usize::from(u16::from_le_bytes([*v0, *v1]));
        let (value, rest) = rest.split_at_checked(value_bytes).ok_or(CUT)?;
        self.rest = rest;
        Ok((name, value))
    }
}

/// Splits the content of a cell into the value and the bytes of the metadata, if any.
///
/// # Errors
/// Damage: sizes that do not fit.
#[inline]
pub(crate) fn split<'a>(
    cell: Cell<'_>,
    bytes: &'a [u8],
) -> Result<(&'a [u8], &'a [u8]), Corruption> {
    if !cell.has_meta() {
        return Ok((bytes, &[]));
    }
    let (value, _) = Meta::split(bytes)?;
    debug_assert!(value.len() + TAIL <= bytes.len(), "metadata has its tail");
    Ok((value, bytes.get(value.len()..).unwrap_or_default()))
}

/// True if a record with this metadata has expired, by the clock of the region of its cell.
#[inline]
pub(crate) fn is_past(cell: Cell<'_>, meta: &[u8]) -> Result<bool> {
    match expires_of(meta)? {
        0 => Ok(false),
        expires_ms => has_come(cell, expires_ms),
    }
}

/// Not part of its callers: most records with metadata never expire.
#[inline(never)]
fn has_come(cell: Cell<'_>, expires_ms: u64) -> Result<bool> {
    Ok(cell.is_past(expires_ms)?)
}

/// The expiry time in metadata; 0 if there is none.
#[inline]
pub(crate) fn expires_of(meta: &[u8]) -> Result<u64> {
    if meta.is_empty() {
        return Ok(0);
    }
    Ok(Meta::split(meta)?.1.expires_ms)
}

/// True if a record has expired.
#[inline]
pub(crate) fn is_past_cell(cell: Cell<'_>) -> Result<bool> {
    if !cell.has_meta() {
        return Ok(false);
    }
    is_past(cell, split(cell, cell.value()?)?.1)
}

/// Appends the metadata behind a value: the tags in order and without duplicates. Cost: one pass;
/// unordered tags are copied and sorted first.
///
/// # Errors
/// `BadArgument`: too many tags, or one too long; nothing was appended then.
#[inline]
pub fn encode(expires_ms: u64, tags: &[(&str, &[u8])], out: &mut Vec<u8>) -> Result<()> {
    let bytes = measure(tags)?;
    let begin = out.len();
    out.reserve(bytes);
    if tags.is_sorted_by(is_before) {
        for tag in tags {
            append_tag(tag, out);
        }
        let appended = out.len() - begin + TAIL;
        invariant!(appended == bytes, "tags of {bytes} bytes are encoded as {appended}");
    } else {
        append_sorted(tags, out);
    }
    out.extend_from_slice(&expires_ms.to_le_bytes());
    let all = out.len() - begin + 4;
    invariant!((TAIL..=bytes).contains(&all), "metadata of {all} bytes, and {bytes} at most");
    let all = guaranteed(u32::try_from(all).ok(), "META_BYTES_MAX fits into 32 bits");
    out.extend_from_slice(&all.to_le_bytes());
    Ok(())
}

/// Tags that are sorted on the stack.
const FEW: usize = 8;

/// Appends unordered tags in order, each once.
fn append_sorted(tags: &[(&str, &[u8])], out: &mut Vec<u8>) {
    let mut few = [("", &[][..]); FEW];
    let mut many = Vec::new();
    let sorted = if let Some(few) = few.get_mut(..tags.len()) {
        few.copy_from_slice(tags);
        few
    } else {
        many.extend_from_slice(tags);
        many.as_mut_slice()
    };
    sorted.sort_unstable();
    append(sorted, out);
}

/// True if a tag is before another one. The order of tuples would compare most names twice.
#[inline]
fn is_before(left: &(&str, &[u8]), right: &(&str, &[u8])) -> bool {
    left.0.cmp(right.0).then_with(|| left.1.cmp(right.1)).is_lt()
}

/// Appends tags in ascending order. Duplicates follow each other, and count once.
fn append(tags: &[(&str, &[u8])], out: &mut Vec<u8>) {
    let mut last = None;
    for tag in tags {
        if last != Some(tag) {
            append_tag(tag, out);
        }
        last = Some(tag);
    }
}

#[inline]
fn append_tag((name, value): &(&str, &[u8]), out: &mut Vec<u8>) {
    let name_bytes = guaranteed(u8::try_from(name.len()).ok(), "names count in 8 bits");
    let value_bytes = guaranteed(u16::try_from(value.len()).ok(), "values count in 16 bits");
    let [v0, v1] = value_bytes.to_le_bytes();
    out.extend_from_slice(&[name_bytes, v0, v1]);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value);
}

/// The largest size of the metadata; an error beyond the limits.
#[inline]
fn measure(tags: &[(&str, &[u8])]) -> Result<usize> {
    let mut bytes = TAIL;
    for (name, value) in tags {
        if name.is_empty() || name.len() > TAG_NAME_BYTES_MAX || value.len() > TAG_VALUE_BYTES_MAX {
            return Err(bad_tag(name, value));
        }
        bytes += TAG_HEAD + name.len() + value.len();
    }
    if tags.len() > TAGS_MAX {
        return Err(Error::BadArgument {
            detail: format!(
                "{} tag values: a record has at most {TAGS_MAX} over all its tags; put what is \
                 not searched for into the value",
                tags.len()
            ),
        });
    }
    invariant!(bytes <= META_BYTES_MAX, "metadata of {bytes} bytes is within the limits");
    Ok(bytes)
}

#[cold]
fn bad_tag(name: &str, value: &[u8]) -> Error {
    let detail = if name.is_empty() || name.len() > TAG_NAME_BYTES_MAX {
        format!("a tag's name of {} bytes: give one of 1 to {TAG_NAME_BYTES_MAX}", name.len())
    } else {
        format!(
            "a value of {} bytes for tag {name:?}: at most {TAG_VALUE_BYTES_MAX} are indexed",
            value.len()
        )
    };
    Error::BadArgument { detail }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    type Pairs = Vec<(String, Vec<u8>)>;
    type Given<'a> = &'a [(&'a str, &'a [u8])];

    fn pairs() -> impl Strategy<Value = Pairs> {
        let value = prop::collection::vec(any::<u8>(), 0..9);
        prop::collection::vec(("[ab\u{e9}]{1,3}", value), 0..=TAGS_MAX)
    }

    fn borrowed(pairs: &Pairs) -> Vec<(&str, &[u8])> {
        pairs.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    proptest! {
        #[test]
        fn what_is_encoded_reads_back_as_a_set(
            value in prop::collection::vec(any::<u8>(), 0..40),
            pairs in pairs(),
            expires: u64,
        ) {
            let mut bytes = value.clone();
            encode(expires, &borrowed(&pairs), &mut bytes).unwrap();
            let (found, meta) = Meta::split(&bytes).unwrap();
            prop_assert_eq!(found, &value);
            prop_assert_eq!(meta.expires_ms, expires);
            let set: BTreeSet<_> = borrowed(&pairs).into_iter().collect();
            let read: Vec<_> = meta.tags().map(Result::unwrap).collect();
            prop_assert_eq!(&read, &set.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(meta.check(), Ok(()));
            let of_a: Vec<_> = meta.values("a").map(Result::unwrap).collect();
            let expected = set.iter().filter(|(name, _)| *name == "a").map(|(_, value)| *value);
            prop_assert_eq!(of_a, expected.collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_meta_or_damage_and_never_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            claimed in 0_u32..220,
        ) {
            for _ in 0..2 {
                if let Ok((value, meta)) = Meta::split(&bytes) {
                    prop_assert!(value.len() + TAIL <= bytes.len());
                    prop_assert!(meta.tags().count() <= bytes.len());
                    let is_whole = meta.tags().all(|tag| tag.is_ok());
                    prop_assert!(is_whole || meta.check().is_err());
                }
                // Again with a plausible size.
                bytes.extend_from_slice(&claimed.to_le_bytes());
            }
        }

        #[test]
        fn meta_that_is_cut_anywhere_is_damage_or_shorter(
            pairs in pairs(),
            cut: prop::sample::Index,
        ) {
            let mut bytes = Vec::new();
            encode(1, &borrowed(&pairs), &mut bytes).unwrap();
            let kept = &bytes[..cut.index(bytes.len())];
            if let Ok((_, meta)) = Meta::split(kept) {
                prop_assert!(meta.tags().count() <= kept.len());
            }
            // Cut at the front, the size no longer fits.
            prop_assert!(Meta::split(&bytes[1..]).is_err());
        }
    }

    #[test]
    fn the_order_in_which_tags_are_given_leaves_no_trace() {
        let (mut sorted, mut mixed) = (Vec::new(), Vec::new());
        let (a, b, c): (&[u8], &[u8], &[u8]) = (b"1", b"2", b"");
        encode(7, &[("dnn", c), ("supi", a), ("supi", b)], &mut sorted).unwrap();
        encode(7, &[("supi", b), ("dnn", c), ("supi", a), ("supi", b)], &mut mixed).unwrap();
        assert_eq!(sorted, mixed);
    }

    #[test]
    fn tags_in_the_wrong_order_are_found_by_the_check() {
        let mut bytes = Vec::new();
        append(&[("b", b"1"), ("a", b"1")], &mut bytes);
        let meta = Meta { expires_ms: 0, tags: &bytes };
        assert_eq!(meta.check(), Err(Corruption("a record's tags are not in order")));
    }

    #[test]
    fn what_is_beyond_a_limit_is_refused_and_appends_nothing() {
        let long_name = "n".repeat(TAG_NAME_BYTES_MAX);
        let long_value = [0_u8; TAG_VALUE_BYTES_MAX];
        let values: Vec<[u8; 1]> = (0..=64).map(|value| [value]).collect();
        let many: Vec<(&str, &[u8])> = values.iter().map(|value| ("n", &value[..])).collect();
        let fits: [Given<'_>; 3] = [&[], &[(&long_name, &long_value)], &many[..TAGS_MAX]];
        for tags in fits {
            let mut out = Vec::new();
            encode(0, tags, &mut out).unwrap();
            assert_eq!(Meta::split(&out).unwrap().1.check(), Ok(()));
        }
        let too_long = [long_name.as_str(), "n"].concat();
        let too_large = [0_u8; TAG_VALUE_BYTES_MAX + 1];
        let refused: [(Given<'_>, &str); 4] = [
            (&[("", b"v")], "a tag's name of 0 bytes: give one of 1 to 255"),
            (&[(&too_long, b"v")], "a tag's name of 256 bytes: give one of 1 to 255"),
            (&[("n", &too_large)], "a value of 1025 bytes for tag \"n\": at most 1024"),
            (&many, "65 tag values: a record has at most 64"),
        ];
        for (tags, says) in refused {
            let mut out = b"value".to_vec();
            let error = encode(0, tags, &mut out).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
            assert_eq!(out, b"value");
        }
    }
}

//! What a transaction of the log did to its records: the difference between two versions in the
//! region. Nothing is copied.

use std::collections::BTreeMap;

use nearstate_memory::{Cell, Corruption, LoggedRecord, OldRecord};
use nearstate_model::limits::BLOCKS_MAX;

use crate::record::collection::is_divided;
use crate::record::meta::{Meta, split};
use crate::record::parts::{Element, Part, Shape};
use crate::record::{BlockContent, BlockTable, Form, Kind};

/// The change of a record in a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamedChange<'a> {
    /// The record was replaced by this value and this metadata.
    Put {
        /// The value.
        value: &'a [u8],
        /// Tags and expiry, encoded: [`crate::record::meta::Meta::split`] reads them. Empty if the
        /// record has neither.
        meta: &'a [u8],
        /// True if the value is that of a set ([`crate::Members::new`] reads it).
        is_set: bool,
    },
    /// These blocks changed. `None`: the block was removed.
    Patched {
        /// True if these blocks replace all earlier ones: the record is new, or more of them
        /// changed than a patch may change.
        is_anew: bool,
        /// Name and bytes of each.
        blocks: Vec<(&'a [u8], Option<&'a [u8]>)>,
        /// Tags and expiry, encoded as in `Put`; `None`: unchanged, of a new record none.
        meta: Option<&'a [u8]>,
    },
    /// These members of a set or fields of a hash changed; the record is a large collection.
    /// `None`: the element was removed. Without elements and not anew, only the metadata changed.
    Elements {
        /// True for members of a set, which have empty values.
        is_set: bool,
        /// True if the record is new, or these elements replace all earlier ones.
        is_anew: bool,
        /// Name and value of each.
        elements: Vec<(&'a [u8], Option<&'a [u8]>)>,
        /// Tags and expiry, encoded as in `Put`; `None`: unchanged, of a new record none.
        meta: Option<&'a [u8]>,
    },
    /// The record was deleted.
    Deleted {
        /// True if the record had expired and was collected, or replaced as the holder of a unique
        /// value. False for a plain deletion, also of an expired record.
        is_expiry: bool,
    },
}

/// A record of a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamedRecord<'a> {
    /// The number of the namespace in the region.
    pub namespace: u32,
    /// Key.
    pub key: &'a [u8],
    /// The version since the change. Of a deleted record, its last version.
    pub version: u64,
    /// The version before the change; 0 if there was no record, also no expired one.
    pub base_version: u64,
    /// The change.
    pub change: StreamedChange<'a>,
}

/// A record of a committed transaction as it was before and after: each a whole record, as if it
/// were new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamedVersions<'a> {
    /// The number of the namespace in the region.
    pub namespace: u32,
    /// Key.
    pub key: &'a [u8],
    /// The record before, also one that had expired and was not collected; its change is never
    /// `Deleted`.
    pub before: Option<StreamedRecord<'a>>,
    /// The record after; `None` if it was deleted or collected.
    pub after: Option<StreamedRecord<'a>>,
}

/// Both versions of a record. `None` for a record that the transaction left absent.
pub(crate) fn versions<'a>(
    record: &LoggedRecord<'a>,
) -> Result<Option<StreamedVersions<'a>>, Corruption> {
    let whole = |cell: Option<Cell<'a>>| {
        let new = LoggedRecord { new: cell, old: OldRecord::NONE, ..*record };
        cell.map(|_| streamed(&new, Absence::All)).transpose()
    };
    let (before, after) = (whole(record.old.open()?)?, whole(record.new)?);
    let Some(key) = after.as_ref().or(before.as_ref()).map(|record| record.key) else {
        return Ok(None);
    };
    Ok(Some(StreamedVersions { namespace: record.namespace, key, before, after }))
}

/// A version of a record.
#[derive(Clone, Copy)]
struct Version<'a> {
    cell: Cell<'a>,
    form: Form,
    value: &'a [u8],
    meta: &'a [u8],
}

impl<'a> Version<'a> {
    fn of(cell: Cell<'a>) -> Result<Self, Corruption> {
        let (value, meta) = split(cell, cell.value()?)?;
        // The cells of every kind of namespace have their form.
        Ok(Self { cell, form: Form::of(Kind::Mixed, &cell), value, meta })
    }

    /// The bytes of a collection in parts.
    fn stored_bytes(&self) -> Result<usize, Corruption> {
        let bytes = |child| self.cell.block(child).map(<[u8]>::len);
        (0..self.cell.children()).map(bytes).sum()
    }

    fn is_absent(&self, absence: Absence) -> Result<bool, Corruption> {
        let expires_ms = match self.meta {
            [] => 0,
            meta => Meta::split(meta)?.1.expires_ms,
        };
        Ok(match absence {
            Absence::At(time_ms) => expires_ms != 0 && expires_ms <= time_ms,
            Absence::All => true,
        })
    }
}

/// Which versions count as absent: a consumer may have removed them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Absence {
    /// Those that had expired at this time.
    At(u64),
    /// All: a change has the whole record.
    All,
}

/// The change of a record.
pub(crate) fn streamed<'a>(
    record: &LoggedRecord<'a>,
    absence: Absence,
) -> Result<StreamedRecord<'a>, Corruption> {
    const NOTHING: Corruption = Corruption("an entry of the log changes nothing");
    let (namespace, base_version) = (record.namespace, record.base_version);
    let Some(new) = record.new else {
        let old = record.old.open()?.ok_or(NOTHING)?;
        let change = StreamedChange::Deleted { is_expiry: record.is_expiry };
        let (key, version) = (old.key()?, old.version());
        return Ok(StreamedRecord { namespace, key, version, base_version, change });
    };
    let new = Version::of(new)?;
    // A whole value needs nothing of the version before.
    let old = || -> Result<Option<Version<'a>>, Corruption> {
        match record.old.open()?.map(Version::of).transpose()? {
            Some(old) if old.form == new.form && !old.is_absent(absence)? => Ok(Some(old)),
            _ => Ok(None),
        }
    };
    let change = match new.form {
        Form::Value => StreamedChange::Put { value: new.value, meta: new.meta, is_set: false },
        Form::Set | Form::Blocks if is_divided(new.value) => changed_elements(old()?, new)?,
        Form::Set => StreamedChange::Put { value: new.value, meta: new.meta, is_set: true },
        Form::Blocks => changed_blocks(old()?, new)?,
    };
    let (key, version) = (new.cell.key()?, new.cell.version());
    Ok(StreamedRecord { namespace, key, version, base_version, change })
}

/// The metadata, unless it is that of the old version. A new record has none before.
fn changed_meta<'a>(old: Option<Version<'a>>, new: Version<'a>) -> Option<&'a [u8]> {
    let before = old.map_or(&[][..], |old| old.meta);
    Some(new.meta).filter(|meta| *meta != before)
}

/// The name and the bytes of a block.
type NamedBlock<'a> = (&'a [u8], &'a [u8]);

/// The blocks of a table, in its order.
fn blocks_of(version: Version<'_>) -> Result<Vec<NamedBlock<'_>>, Corruption> {
    let mut table = BlockTable::new(version.value)?;
    let mut blocks = Vec::with_capacity(table.len());
    while let Some(block) = table.step()? {
        let bytes = match block.content {
            BlockContent::Inline(bytes) => bytes,
            BlockContent::Child(child) => version.cell.block(child)?,
        };
        blocks.push((block.name, bytes));
    }
    Ok(blocks)
}

/// True if both are the same bytes. Those of a block that two versions share are not compared.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    std::ptr::eq(one, other) || one == other
}

fn changed_blocks<'a>(
    old: Option<Version<'a>>,
    new: Version<'a>,
) -> Result<StreamedChange<'a>, Corruption> {
    // Of one that has another form everything is sent, as of a new one: the metadata as well.
    let old = old.filter(|old| !is_divided(old.value));
    let meta = changed_meta(old, new);
    let after = blocks_of(new)?;
    let Some(old) = old else {
        let blocks = after.into_iter().map(|(name, bytes)| (name, Some(bytes))).collect();
        return Ok(StreamedChange::Patched { is_anew: true, blocks, meta });
    };
    let before = blocks_of(old)?;
    let mut blocks: Vec<(&[u8], Option<&[u8]>)> = Vec::new();
    // Blocks keep their order, so both versions begin with the same ones: mostly with all.
    let mut same = 0;
    for ((name, was), (other, bytes)) in before.iter().zip(&after) {
        if name != other {
            break;
        }
        if !is_equal(was, bytes) {
            blocks.push((name, Some(bytes)));
        }
        same += 1;
    }
    let mut before: BTreeMap<&[u8], &[u8]> = before.into_iter().skip(same).collect();
    for (name, bytes) in after.into_iter().skip(same) {
        if before.remove(name).is_none_or(|was| !is_equal(was, bytes)) {
            blocks.push((name, Some(bytes)));
        }
    }
    blocks.extend(before.into_keys().map(|name| (name, None)));
    if blocks.len() > BLOCKS_MAX {
        // No patch may have as many changes.
        return changed_blocks(None, new);
    }
    Ok(StreamedChange::Patched { is_anew: false, blocks, meta })
}

const NOTHING_LEFT: &str = "a collection that is anew has lost no element";

/// A difference of more bytes is sent only if the whole record has more: a transaction can replace
/// many large collections, and the names of all that it has removed would exceed every message.
const DIFFERENCE_BYTES_MAX: usize = 256 << 10;

fn changed_elements<'a>(
    old: Option<Version<'a>>,
    new: Version<'a>,
) -> Result<StreamedChange<'a>, Corruption> {
    debug_assert!(new.form != Form::Value, "a value has no elements");
    let is_set = new.form == Form::Set;
    let shape = if is_set { Shape::Set } else { Shape::Hash };
    let old = old.filter(|old| is_divided(old.value));
    let meta = changed_meta(old, new);
    let parts = |version: Version<'a>| -> Result<Vec<&'a [u8]>, Corruption> {
        (0..version.cell.children()).map(|child| version.cell.block(child)).collect()
    };
    let (mut before, mut after) = (old.map_or(Ok(Vec::new()), parts)?, parts(new)?);
    let is_anew = old.is_none();
    // Parts that both versions share are equal. Most are before or behind those that differ.
    let place = |part: &[u8]| (part.as_ptr(), part.len());
    let mut shared: Vec<_> = before.iter().map(|part| place(part)).collect();
    shared.sort_unstable();
    let mut kept: Vec<_> = Vec::new();
    after.retain(|part| {
        let is_shared = shared.binary_search(&place(part)).is_ok();
        if is_shared {
            kept.push(place(part));
        }
        !is_shared
    });
    kept.sort_unstable();
    before.retain(|part| kept.binary_search(&place(part)).is_err());
    let mut was: BTreeMap<(u32, &[u8]), &[u8]> = BTreeMap::new();
    for part in before {
        each_element(shape, part, |element| {
            was.insert((element.hash, element.name), element.value);
        })?;
    }
    let mut elements: Vec<(&[u8], Option<&[u8]>)> = Vec::new();
    let mut bytes = 0;
    for part in after {
        each_element(shape, part, |element| {
            let before = was.remove(&(element.hash, element.name));
            if before.is_none_or(|value| value != element.value) {
                bytes += element.name.len() + element.value.len();
                elements.push((element.name, Some(element.value)));
            }
        })?;
    }
    bytes += was.keys().map(|(_, name)| name.len()).sum::<usize>();
    if !is_anew && bytes > DIFFERENCE_BYTES_MAX && bytes > new.stored_bytes()? {
        return changed_elements(None, new);
    }
    elements.extend(was.into_keys().map(|(_, name)| (name, None)));
    debug_assert!(!is_anew || elements.iter().all(|(_, value)| value.is_some()), "{NOTHING_LEFT}");
    Ok(StreamedChange::Elements { is_set, is_anew, elements, meta })
}

fn each_element<'a>(
    shape: Shape,
    part: &'a [u8],
    mut each: impl FnMut(Element<'a>),
) -> Result<(), Corruption> {
    let part = Part::parse(shape, part)?;
    for index in 0..part.len() {
        each(part.element(index).ok_or(Corruption("a part of a collection is damaged"))?);
    }
    Ok(())
}

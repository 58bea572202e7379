//! A record that was read: the bytes in the region, lent without a copy while a pin holds.
//!
//! Session reads and transaction reads return the same type. Only a record that the transaction
//! itself has written is a copy, because its buffer may move.

use nearstate_memory::{Cell, Pin};

use nearstate_model::Result;
use nearstate_model::invariant::guaranteed;

use crate::record::collection::{Collection, ElementWalk, PartTable, is_divided};
use crate::record::edit::{CollectionEdit, StoredParts};
use crate::record::fields::{Fields, is_block_name};
use crate::record::layout::{BlockLayout, RecordBlocks};
use crate::record::members::{FlatMembers, Members};
use crate::record::meta::{Meta, Tags, is_past, split};
use crate::record::parts::Shape;
use crate::record::{BlockContent, BlockTable, Form, Kind, is_name};

/// One version of a record, read without a copy. Later writes and deletes of the record do not
/// change it.
///
/// A view of a session holds a pin of its own. A view of a transaction, of a batch or of a
/// [`ReadScope`](crate::ReadScope) is protected by the pin of that. Retired memory of the region is
/// not reused while a pin is held, so keep a view only for the work at hand.
#[derive(Debug)]
pub struct View<'s> {
    version: u64,
    form: Form,
    /// The cell in the region; `None` for a record that only its transaction has.
    cell: Option<Cell<'s>>,
    /// The value in the region.
    value: &'s [u8],
    backing: ViewBacking<'s>,
}

/// What keeps the bytes of a view. Only a pin has a destructor: one that also freed a written
/// record would not be inlined, and costs every read 34 of 407 instructions.
#[derive(Debug)]
enum ViewBacking<'s> {
    /// A pin of the view's own.
    Pin { _pin: Pin<'s> },
    /// The pin of a transaction, a batch or a read scope, which outlives the view.
    Reader,
    /// The record that the reading transaction has written, and keeps until its end.
    Written(&'s WrittenRecord),
}

/// A record as an open transaction has written it. All blocks are in the table: there are no child
/// cells before the commit.
#[derive(Debug, Default)]
pub(crate) struct WrittenRecord {
    pub(crate) form: Form,
    pub(crate) key: Vec<u8>,
    /// A value, an encoded table of blocks or members, or the first bytes of a divided collection.
    pub(crate) value: Vec<u8>,
    /// Encoded metadata; empty if there is none.
    pub(crate) meta: Vec<u8>,
    /// The changes of a divided collection.
    pub(crate) edit: Option<CollectionEdit>,
}

impl WrittenRecord {
    /// Its memory, without what it shares with the transaction.
    pub(crate) const fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.value.len() + self.meta.len()
    }
}

impl<'s> View<'s> {
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its result would travel through memory"
    )]
    pub(crate) fn new(pin: Pin<'s>, cell: Cell<'s>, value: &'s [u8], kind: Kind) -> Self {
        let (version, form) = (cell.version(), Form::of(kind, &cell));
        Self { version, form, cell: Some(cell), value, backing: ViewBacking::Pin { _pin: pin } }
    }

    /// The value of a record that has metadata; `None` if the record has expired.
    #[cold]
    pub(crate) fn current_value(cell: Cell<'s>, value: &'s [u8]) -> Result<Option<&'s [u8]>> {
        let (value, meta) = split(cell, value)?;
        Ok(if is_past(cell, meta)? { None } else { Some(value) })
    }

    /// A record that a pin of the reader protects, which outlives the view: that of a transaction,
    /// a batch or a read scope.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its result would travel through memory")]
    pub(crate) fn protected(cell: Cell<'s>, value: &'s [u8], kind: Kind) -> Self {
        let (version, form) = (cell.version(), Form::of(kind, &cell));
        Self { version, form, cell: Some(cell), value, backing: ViewBacking::Reader }
    }

    /// A record that the transaction itself has written.
    pub(crate) fn written(record: &'s WrittenRecord) -> Self {
        debug_assert!(record.edit.is_none(), "the changes of a collection are not in its value");
        let (form, backing) = (record.form, ViewBacking::Written(record));
        Self { version: 0, form, cell: None, value: &[], backing }
    }

    /// As [`View::written`] of a divided collection, with the version in the region that it changes
    /// and its value.
    pub(crate) fn edited(record: &'s WrittenRecord, stored: Option<(Cell<'s>, &'s [u8])>) -> Self {
        debug_assert!(record.edit.is_some(), "a changed collection has changes");
        let (form, backing) = (record.form, ViewBacking::Written(record));
        let (cell, value) = stored.map_or((None, &[][..]), |(cell, value)| (Some(cell), value));
        Self { version: 0, form, cell, value, backing }
    }

    /// The receipt of the commit that has written this record, if its cell tells.
    pub(crate) fn written_at(&self) -> Result<Option<u64>> {
        Ok(match self.region_cell() {
            Some(cell) => cell.log_position()?,
            None => None,
        })
    }

    /// The cell of a record that was read from the region.
    pub(crate) fn region_cell(&self) -> Option<Cell<'s>> {
        self.cell.filter(|_| !self.is_uncommitted())
    }

    /// True if the record is a collection that is divided into parts.
    #[inline]
    pub(crate) fn is_divided(&self) -> bool {
        self.form != Form::Value && is_divided(self.stored())
    }

    /// The divided collection; `None` if it is flat or damaged.
    #[cold]
    pub(crate) fn collection(&self) -> Option<Collection<'_>> {
        let shape = match self.form {
            Form::Value => return None,
            Form::Blocks => Shape::Hash,
            Form::Set => Shape::Set,
        };
        if !self.is_divided() {
            return None;
        }
        match (&self.backing, self.cell) {
            (ViewBacking::Written(record), cell) => {
                let table = match cell {
                    Some(_) => PartTable::parse(self.value).ok()?,
                    None => PartTable::default(),
                };
                let edit = guaranteed(record.edit.as_ref(), "a divided record has its changes");
                Some(edit.collection(StoredParts { cell, table }))
            }
            (_, Some(cell)) => Collection::stored(shape, cell, self.value).ok(),
            (_, None) => None,
        }
    }

    /// The encoded metadata; empty without tags and expiry.
    pub(crate) fn meta_bytes(&self) -> Result<Vec<u8>> {
        Ok(match (&self.backing, self.cell) {
            (ViewBacking::Written(record), _) => record.meta.clone(),
            (_, Some(cell)) if cell.has_meta() => split(cell, cell.value()?)?.1.to_vec(),
            (_, _) => Vec::new(),
        })
    }

    /// The value, or the encoded table of blocks or members.
    #[inline]
    pub(crate) fn stored(&self) -> &[u8] {
        match &self.backing {
            ViewBacking::Pin { .. } | ViewBacking::Reader => self.value,
            ViewBacking::Written(record) => &record.value,
        }
    }

    fn meta(&self) -> Option<Meta<'_>> {
        let bytes = match (&self.backing, self.cell) {
            (ViewBacking::Written(record), _) => record.meta.as_slice(),
            (_, Some(cell)) if cell.has_meta() => cell.value().ok()?,
            (_, _) => return None,
        };
        // Damaged metadata reads as none; the check of the region reports it.
        Meta::split(bytes).ok().map(|(_, meta)| meta)
    }

    /// True if the transaction that reads the record has written it: it has no version before the
    /// commit.
    #[inline]
    pub const fn is_uncommitted(&self) -> bool {
        matches!(self.backing, ViewBacking::Written(_))
    }

    /// The tags: (name, value) pairs in ascending order; a name may have several values.
    pub fn tags(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.meta().map_or(Tags::none(), |meta| meta.tags()).filter_map(std::result::Result::ok)
    }

    /// True if the record has this value of a tag.
    #[inline]
    pub fn has_tag(&self, name: &str, value: &[u8]) -> bool {
        let mut pairs = self.meta().map_or(Tags::none(), |meta| meta.tags()).pairs();
        pairs.any(|(tag, found)| is_name(tag, name.as_bytes()) && is_name(found, value))
    }

    /// When the record expires, in milliseconds since 1970; 0: never.
    pub fn expires_ms(&self) -> u64 {
        self.meta().map_or(0, |meta| meta.expires_ms)
    }

    /// Whether the record is a value, named blocks or a set.
    #[inline]
    pub const fn form(&self) -> Form {
        self.form
    }

    /// The value of a record that has one unnamed block; empty for other forms.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self.form {
            Form::Value => self.stored(),
            Form::Blocks | Form::Set => &[],
        }
    }

    /// The members of a set; none for other forms. A damaged set reads as empty, or ends early; the
    /// check of the region reports it.
    pub fn members(&self) -> Members<'_> {
        match self.form {
            Form::Set => match self.collection() {
                Some(collection) => Members::divided(collection),
                None => FlatMembers::new(self.stored())
                    .map_or_else(|_| Members::default(), Members::from),
            },
            Form::Value | Form::Blocks => Members::default(),
        }
    }

    /// The fields of a hash: its named blocks, and fields with names that no block can have. None
    /// for other forms.
    pub fn fields(&self) -> Fields<'_> {
        match (self.form, self.collection()) {
            (Form::Value | Form::Set, _) => Fields::default(),
            (Form::Blocks, Some(collection)) => Fields::divided(collection),
            (Form::Blocks, None) => {
                self.table().map_or_else(Fields::default, |table| Fields::flat(self.cell, table))
            }
        }
    }

    /// Whether a divided set or hash has as many elements as it counts; true for other records. A
    /// damaged one counts others. Linear in the parts of the collection: 0.3 us for a million
    /// elements.
    pub fn has_its_count(&self) -> bool {
        self.collection().is_none_or(|collection| collection.has_its_count())
    }

    /// The value of a field of a hash. Linear in the fields of a small hash, logarithmic in those
    /// of a large one.
    pub fn field(&self, name: &[u8]) -> Option<&[u8]> {
        let Some(mut table) = self.table() else { return self.divided_field(name) };
        while let Ok(Some(block)) = table.step() {
            if is_name(block.name, name) {
                return bytes_of(self.cell, block.content);
            }
        }
        None
    }

    #[cold]
    fn divided_field(&self, name: &[u8]) -> Option<&[u8]> {
        let collection = self.collection().filter(|_| self.form == Form::Blocks)?;
        collection.find(name).map(|element| element.value)
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match (&self.backing, &self.cell) {
            (ViewBacking::Written(record), _) => &record.key,
            (_, Some(cell)) => cell.key().unwrap_or_default(),
            (_, None) => &[],
        }
    }

    /// The version of the record. It rises with every change, also across deletion and re-creation,
    /// and is never 0 in the region. 0 for a record that the reading transaction has written
    /// ([`View::is_uncommitted`]).
    #[inline]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Bytes of the region's heap that this version of the record occupies, its blocks included,
    /// the indexes excluded; 0 before the commit. Linear in the number of blocks.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn taken_bytes(&self) -> Result<u64> {
        let cell = self.cell.filter(|_| !self.is_uncommitted());
        cell.map_or(Ok(0), |cell| Ok(cell.taken_bytes()?))
    }

    /// The bytes of a named block. Linear in the number of blocks; logarithmic in the fields of a
    /// large hash.
    pub fn block(&self, name: &str) -> Option<&[u8]> {
        self.field(name.as_bytes())
    }

    /// Calls `each` with those blocks whose names are among these: the index of the name, and the
    /// bytes. Names in the order in which the blocks were first written are found at once; for
    /// others, all names are compared with each block.
    #[inline]
    pub fn blocks_among(&self, names: &[&str], mut each: impl FnMut(usize, &[u8])) {
        let Some(mut table) = self.table() else { return self.fields_among(names, each) };
        let (mut guess, mut missing) = (0, names.len());
        while missing > 0
            && let Ok(Some(block)) = table.step()
        {
            let is_it = |name: &&str| is_name(block.name, name.as_bytes());
            let index = match names.get(guess) {
                Some(name) if is_it(name) => Some(guess),
                _ => names.iter().position(is_it),
            };
            let Some(index) = index else { continue };
            (guess, missing) = (index + 1, missing - 1);
            let Some(bytes) = bytes_of(self.cell, block.content) else { return };
            each(index, bytes);
        }
    }

    /// Calls `each` with the index of the name and the bytes of each block whose name is wanted, in
    /// any order.
    ///
    /// Complexity: one comparison of the head of the record's block table, if the record has the
    /// layout of the last record that was used with these names; otherwise as
    /// [`View::blocks_among`].
    #[inline]
    pub fn blocks_of(
        &self,
        names: &BlockLayout,
        wanted: impl Fn(usize) -> bool,
        each: impl FnMut(usize, &[u8]),
    ) {
        self.blocks_of_known(names, &std::cell::Cell::new(0), wanted, each);
    }

    /// As [`View::blocks_of`]; `known` is the number of the layout, or 0.
    #[inline]
    pub(crate) fn blocks_of_known(
        &self,
        names: &BlockLayout,
        known: &std::cell::Cell<u64>,
        wanted: impl Fn(usize) -> bool,
        mut each: impl FnMut(usize, &[u8]),
    ) {
        if self.form != Form::Blocks {
            return;
        }
        if let Some(cell) = self.region_cell() {
            let of = RecordBlocks { cell, table: self.stored(), known };
            if names.each(of, &wanted, &mut each) {
                return;
            }
        }
        self.walk_wanted(names, wanted, each);
    }

    #[cold]
    fn walk_wanted(
        &self,
        names: &BlockLayout,
        wanted: impl Fn(usize) -> bool,
        mut each: impl FnMut(usize, &[u8]),
    ) {
        for (name, bytes) in self.blocks() {
            if let Some(index) = names.index_of(name).filter(|index| wanted(*index)) {
                debug_assert!(index < names.len(), "name {index} of {}", names.len());
                each(index, bytes);
            }
        }
    }

    #[cold]
    fn fields_among(&self, names: &[&str], mut each: impl FnMut(usize, &[u8])) {
        let found = |(index, name): (usize, &&str)| Some((index, self.block(name)?));
        for (index, bytes) in names.iter().enumerate().filter_map(found) {
            each(index, bytes);
        }
    }

    /// All named blocks, in the order in which they were first written; of a large hash those
    /// fields whose names a block can have, in the order of their hashes.
    pub fn blocks(&self) -> Blocks<'_> {
        let table = self.table();
        let walk = if table.is_some() || self.form != Form::Blocks { None } else { self.walk() };
        Blocks { cell: self.cell, table, walk }
    }

    #[cold]
    fn walk(&self) -> Option<Box<ElementWalk<'_>>> {
        Some(Box::new(self.collection()?.walk_from(0)))
    }

    #[inline]
    fn table(&self) -> Option<BlockTable<'_>> {
        match self.form {
            Form::Value | Form::Set => None,
            Form::Blocks => BlockTable::new(self.stored()).ok(),
        }
    }
}

/// The blocks of a view. A damaged table ends early; the check of the region reports it.
#[derive(Clone, Debug)]
pub struct Blocks<'v> {
    cell: Option<Cell<'v>>,
    table: Option<BlockTable<'v>>,
    /// The fields of a large hash.
    walk: Option<Box<ElementWalk<'v>>>,
}

impl<'v> Iterator for Blocks<'v> {
    type Item = (&'v str, &'v [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(walk) = &mut self.walk {
            let named = |name| str::from_utf8(name).ok().filter(|_| is_block_name(name));
            return walk.find_map(|element| Some((named(element.name)?, element.value)));
        }
        let block = self.table.as_mut()?.next().ok()??;
        bytes_of(self.cell, block.content).map(|bytes| (block.name, bytes))
    }
}

/// The bytes of a block; `None` if it is damaged.
#[inline]
fn bytes_of<'v>(cell: Option<Cell<'v>>, content: BlockContent<'v>) -> Option<&'v [u8]> {
    match content {
        BlockContent::Inline(bytes) => Some(bytes),
        BlockContent::Child(child) => cell?.block(child).ok(),
    }
}

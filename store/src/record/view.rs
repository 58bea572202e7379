//! A record as a reader sees it: the bytes in the region themselves, kept from reuse by a pin.

use nearstate_memory::{Cell, Pin};

use nearstate_model::Result;

use crate::record::members::Members;
use crate::record::meta::{Meta, Tags, is_past, split};
use crate::record::{Form, Kind, Place, Table, is_name};

/// A version of a record, zero-copy. It stays as it is however often the record is changed or
/// deleted meanwhile; while it lives, memory that is retired in the region is not used again, so do
/// not keep it for longer than the work at hand.
#[derive(Debug)]
pub struct View<'s> {
    cell: Cell<'s>,
    value: &'s [u8],
    version: u64,
    form: Form,
    _pin: Pin<'s>,
}

impl<'s> View<'s> {
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its answer would travel through memory"
    )]
    pub(crate) fn new(pin: Pin<'s>, cell: Cell<'s>, value: &'s [u8], kind: Kind) -> Self {
        let form = Form::of(kind, &cell);
        Self { cell, value, version: cell.version(), form, _pin: pin }
    }

    /// As [`View::new`] of a record that carries something beside its value; `None` if its time has
    /// passed.
    #[cold]
    pub(crate) fn labelled(
        pin: Pin<'s>,
        cell: Cell<'s>,
        value: &'s [u8],
        kind: Kind,
    ) -> Result<Option<Self>> {
        let (value, meta) = split(cell, value)?;
        Ok(if is_past(meta)? { None } else { Some(Self::new(pin, cell, value, kind)) })
    }

    /// What stands in the cell: a value, or a table of blocks or members.
    #[inline]
    pub(crate) const fn stored(&self) -> &'s [u8] {
        self.value
    }

    fn meta(&self) -> Option<Meta<'_>> {
        if !self.cell.has_meta() {
            return None;
        }
        Meta::split(self.cell.value().ok()?).ok().map(|(_, meta)| meta)
    }

    /// The tags: (name, value) pairs in ascending order; a name may have several values.
    pub fn tags(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.meta().map_or(Tags::none(), |meta| meta.tags()).filter_map(std::result::Result::ok)
    }

    /// When the record ends by itself, in milliseconds since 1970; 0: never.
    pub fn expires_ms(&self) -> u64 {
        self.meta().map_or(0, |meta| meta.expires_ms)
    }

    /// What the record is.
    #[inline]
    pub const fn form(&self) -> Form {
        self.form
    }

    /// The value of a record that has one unnamed block; empty for one of another form.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self.form {
            Form::Value => self.value,
            Form::Blocks | Form::Set => &[],
        }
    }

    /// The members of a set; none for a record of another form. A damaged set has none; the offline
    /// check names it.
    pub fn members(&self) -> Members<'_> {
        match self.form {
            Form::Set => Members::new(self.value).unwrap_or_default(),
            Form::Value | Form::Blocks => Members::default(),
        }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.cell.key().unwrap_or_default()
    }

    /// How the record has changed: greater with every change, also across delete and re-creation.
    #[inline]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Bytes of the region's heap that this version of the record takes, its blocks included; not
    /// its share of the indexes. Linear in the number of blocks.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn taken_bytes(&self) -> Result<u64> {
        Ok(self.cell.taken_bytes()?)
    }

    /// The bytes of a named block. Linear in the number of blocks.
    pub fn block(&self, name: &str) -> Option<&[u8]> {
        let mut table = self.table()?;
        while let Ok(Some(block)) = table.step() {
            if is_name(block.name, name.as_bytes()) {
                return bytes_of(self.cell, block.place);
            }
        }
        None
    }

    /// Shows those blocks whose names are among these: the place of each name, and the bytes. Names
    /// in the order in which the blocks were first written are found at once; for others the cost
    /// is that of looking at all names for each block.
    #[inline]
    pub fn blocks_among(&self, names: &[&str], mut each: impl FnMut(usize, &[u8])) {
        let Some(mut table) = self.table() else { return };
        let mut guess = 0;
        while let Ok(Some(block)) = table.step() {
            let is_it = |name: &&str| is_name(block.name, name.as_bytes());
            let place = match names.get(guess) {
                Some(name) if is_it(name) => Some(guess),
                _ => names.iter().position(is_it),
            };
            let Some(place) = place else { continue };
            guess = place + 1;
            let Some(bytes) = bytes_of(self.cell, block.place) else { return };
            each(place, bytes);
        }
    }

    /// All named blocks, in the order in which they were first written.
    pub fn blocks(&self) -> Blocks<'_> {
        Blocks { cell: self.cell, table: self.table() }
    }

    #[inline]
    fn table(&self) -> Option<Table<'_>> {
        match self.form {
            Form::Value | Form::Set => None,
            Form::Blocks => Table::new(self.value).ok(),
        }
    }
}

/// The blocks of a view. A damaged table ends early; the offline check names it.
#[derive(Clone, Debug)]
pub struct Blocks<'v> {
    cell: Cell<'v>,
    table: Option<Table<'v>>,
}

impl<'v> Iterator for Blocks<'v> {
    type Item = (&'v str, &'v [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let block = self.table.as_mut()?.next().ok()??;
        bytes_of(self.cell, block.place).map(|bytes| (block.name, bytes))
    }
}

/// The bytes of a block; none if it is damaged.
#[inline]
fn bytes_of<'v>(cell: Cell<'v>, place: Place<'v>) -> Option<&'v [u8]> {
    match place {
        Place::Inline(bytes) => Some(bytes),
        Place::Child(child) => cell.block(child).ok(),
    }
}

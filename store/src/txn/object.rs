//! Transactional memory: objects without a key, named by an address (paper 4, section 3.3).
//!
//! For programs whose state is structures with pointers between them: [`Txn::alloc`] replaces
//! `malloc`, an [`Address`] replaces a pointer, and a structure is opened before it is read or
//! written. Objects and records by key can be changed in the same transaction: the commit makes
//! all changes visible at one instant, and after a crash all of them are there or none.
//!
//! An object is a record of an internal namespace, so that commit and recovery are those of
//! records.

use std::borrow::Cow;
use std::ops::{Bound, Range, RangeBounds};

use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result, invariant};

use crate::index::internal::OBJECTS;
use crate::log::consumer::WhenFull;
use crate::log::entry::StreamedRecord;
use crate::record::Kind;
use crate::session::buffers::Write;
use crate::session::copies::BorrowedCopy;
use crate::session::{Namespace, Region, Session};
use crate::txn::Txn;
use crate::txn::address::Address;
use crate::txn::write_set::WriteSet;

const PART_IN_OBJECT: &str = "a checked part lies within its object";

/// The number of objects of a region, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// The number of objects.
    pub count: u64,
    /// Their bytes, as requested.
    pub bytes: u64,
}

impl Region {
    /// The number of objects of the transactional memory, and their bytes. Complexity: linear, one
    /// or two cache misses for each object.
    ///
    /// # Errors
    /// `Damaged`, `Full` (sessions), `System`.
    pub fn objects(&self) -> Result<Objects> {
        if !self.has_internal(OBJECTS)? {
            return Ok(Objects::default());
        }
        self.session()?.objects()
    }
}

impl Session {
    /// As [`Region::objects`].
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn objects(&self) -> Result<Objects> {
        let mut seen = Objects::default();
        self.walk_objects(|_, bytes| {
            seen.count += 1;
            seen.bytes += bytes.len() as u64;
            true
        })?;
        Ok(seen)
    }

    /// Calls `each` with every object until it returns false: for operators, and for a search for
    /// unreachable objects. An object that exists during the whole call is returned exactly once,
    /// one that is allocated or freed meanwhile at most once. Writers are not blocked.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn walk_objects(&self, mut each: impl FnMut(Address, &[u8]) -> bool) -> Result<()> {
        let mut scan = self.scan(self.object_namespace()?)?;
        while let Some(view) = scan.next()? {
            let address = Address::of_key(view.key())
                .ok_or(Error::Damaged { detail: "an object has no address".to_owned() })?;
            if !each(address, view.bytes()) {
                break;
            }
        }
        Ok(())
    }

    /// Streams the commits of objects from now on, as [`Session::stream`] does those of a
    /// namespace: each object that was written is in the stream completely.
    ///
    /// # Errors
    /// As [`Session::stream`]; with the first object of a region what [`Session::namespace`]
    /// returns.
    pub fn stream_objects(&self, when_full: WhenFull) -> Result<()> {
        self.stream(self.object_namespace()?, when_full)
    }

    /// The object of a record of the commit stream; `None` if it is a record by key.
    ///
    /// # Errors
    /// `Damaged`, and with the first object of a region what [`Session::namespace`] returns.
    pub fn object_of(&self, record: &StreamedRecord<'_>) -> Result<Option<Address>> {
        let is_object = self.object_namespace()?.index == record.namespace;
        Ok(if is_object { Address::of_key(record.key) } else { None })
    }

    #[inline]
    fn object_namespace(&self) -> Result<Namespace> {
        let index = match self.internal.objects.get() {
            Some(index) => index,
            None => self.member.open_namespace(OBJECTS, Kind::Value.code())?.0,
        };
        self.internal.objects.set(Some(index));
        Ok(Namespace { index, kind: Kind::Value })
    }
}

/// An object in a transaction.
enum Opened<'s> {
    /// The bytes in the region: the transaction has not written it.
    Stored(&'s [u8]),
    /// A private copy, and the bytes in the region of which it is made.
    Copied { copy: usize, old: &'s [u8] },
}

impl<'s> Opened<'s> {
    /// The transaction's own write, otherwise the bytes in the region.
    fn find(set: &mut WriteSet<'s>, address: Address) -> Result<(usize, Self)> {
        let session = set.session;
        let (table, key) = (session.object_namespace()?.index, address.key());
        let hash = session.hash(&key);
        let known = set.find_entry(table, hash, &key);
        if let Some(entry) = known.and_then(|index| set.buffers.entries.get(index)) {
            match (&entry.write, known) {
                (Write::Object { copy }, Some(index)) => {
                    let old = entry.seen.map(|seen| session.stored(seen)).transpose()?.flatten();
                    let old = old.map_or(&[][..], |(_, value)| value);
                    return Ok((index, Self::Copied { copy: *copy, old }));
                }
                (Write::Delete, _) => return Err(no_object(address)),
                _ => {}
            }
        }
        match set.read(table, hash, &key)? {
            (index, Some((_, value))) => Ok((index, Self::Stored(value))),
            (_, None) => Err(no_object(address)),
        }
    }

    fn len(&self, set: &WriteSet<'_>) -> usize {
        match self {
            Self::Stored(value) => value.len(),
            Self::Copied { copy, .. } => set.buffers.copies.len(*copy),
        }
    }

    /// The private copy, created if needed, with this part filled.
    fn copy(self, set: &mut WriteSet<'s>, index: usize, part: Range<usize>) -> Result<usize> {
        let (copy, old) = match self {
            Self::Copied { copy, old } => (copy, old),
            Self::Stored(old) => {
                set.buffers.check_room(old.len())?;
                let copy = set.buffers.copies.add(old.len(), false);
                invariant!(part.end <= old.len(), "a copy of {} bytes is filled", old.len());
                let entry = set.entry_mut(index);
                invariant!(entry.write.is_none(), "an object is copied once");
                entry.write = Write::Object { copy };
                (copy, old)
            }
        };
        set.buffers.copies.fill(copy, part, old)?;
        Ok(copy)
    }
}

impl Txn<'_> {
    /// Allocates an object of `bytes` zero bytes. Other sessions see it after the commit.
    /// Without a commit it does not exist; its address is never assigned again.
    ///
    /// ```
    /// # use nearstate_store::{Address, CreateOptions, Region, Schema};
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// // A list of bearers: each is 16 bytes, the address of the next one and a TEID; a record by
    /// // key leads to the first.
    /// let ues = session.namespace("ues", &Schema::default())?;
    /// let word = |bytes: &[u8], at| -> u64 {
    ///     let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    ///     u64::from_le_bytes(word.unwrap_or_default())
    /// };
    /// for teid in [0x11_u64, 0x22, 0x33] {
    ///     session.transact(|txn| {
    ///         let first = txn.get(ues, b"imsi-1")?.map_or(0, |ue| word(ue.bytes(), 0));
    ///         let bearer = txn.alloc(16)?;
    ///         txn.open_write(bearer, |bytes| {
    ///             let (next, id) = bytes.split_at_mut(8);
    ///             next.copy_from_slice(&first.to_le_bytes());
    ///             id.copy_from_slice(&teid.to_le_bytes());
    ///         })?;
    ///         txn.put(ues, b"imsi-1", &bearer.bits().to_le_bytes())
    ///     })?; // the bearer is in the list, or there is none: also after a SIGKILL
    /// }
    /// let teids = session.transact::<_, nearstate_store::Error>(|txn| {
    ///     let mut teids = Vec::new();
    ///     let mut next = txn.get(ues, b"imsi-1")?.map_or(0, |ue| word(ue.bytes(), 0));
    ///     while let Some(address) = Address::from_bits(next) {
    ///         let bearer = txn.open_read(address)?; // the bytes in the region, no copy
    ///         teids.push(word(&bearer, 8));
    ///         next = word(&bearer, 0);
    ///     }
    ///     Ok(teids)
    /// })?;
    /// assert_eq!(teids, [0x33, 0x22, 0x11]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ValueTooLarge` above [`VALUE_BYTES_MAX`], `TransactionTooLarge`, `Forked`, `Damaged`, and
    /// with the first object of a region what [`Session::namespace`] returns.
    pub fn alloc(&self, bytes: usize) -> Result<Address> {
        if bytes > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes });
        }
        let mut set = self.set.borrow_mut();
        set.buffers.check_room(bytes)?;
        let table = set.session.object_namespace()?.index;
        let address =
            Address::from_bits(set.session.member.next_unique_id()?).ok_or_else(no_number)?;
        let key = address.key();
        let hash = set.session.hash(&key);
        let index = set.entry(table, hash, &key)?;
        let copy = set.buffers.copies.add(bytes, true);
        invariant!(set.buffers.copies.len(copy) == bytes, "a new object has {bytes} bytes");
        let entry = set.entry_mut(index);
        invariant!(entry.write.is_none() && entry.seen.is_none(), "address {address} is new");
        entry.write = Write::Object { copy };
        Ok(address)
    }

    /// The bytes of an object: those in the region themselves, or a copy of what this transaction
    /// has written.
    ///
    /// # Errors
    /// `NoObject`, `Conflict`, `TransactionTooLarge`, `Damaged`.
    pub fn open_read(&self, address: Address) -> Result<Cow<'_, [u8]>> {
        self.open_read_range(address, ..)
    }

    /// The bytes of a part of an object. A conflict still concerns the whole object.
    ///
    /// # Errors
    /// As [`Txn::open_read`]; `BadArgument` if the object ends before the part does.
    pub fn open_read_range(
        &self,
        address: Address,
        part: impl RangeBounds<usize>,
    ) -> Result<Cow<'_, [u8]>> {
        let mut set = self.set.borrow_mut();
        let (index, opened) = Opened::find(&mut set, address)?;
        let part = check_part(address, &part, opened.len(&set))?;
        if let Opened::Stored(value) = opened {
            return Ok(Cow::Borrowed(guaranteed(value.get(part), PART_IN_OBJECT)));
        }
        let copy = opened.copy(&mut set, index, part.clone())?;
        Ok(Cow::Owned(set.buffers.copies.part(copy, &part)?.to_vec()))
    }

    /// Calls `write` with the transaction's private copy of an object, which it changes in place.
    /// The function may use the transaction, except this object.
    ///
    /// # Errors
    /// `NoObject`, `Conflict`, `TransactionTooLarge`, `Damaged`; `BadArgument` from within a
    /// function that is writing the same object.
    pub fn open_write<T>(&self, address: Address, write: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.open_write_range(address, .., write)
    }

    /// As [`Txn::open_write`] for a part of an object: only that is copied, and the rest is taken
    /// from the region at the commit. A conflict still concerns the whole object.
    ///
    /// # Errors
    /// As [`Txn::open_write`]; `BadArgument` if the object ends before the part does.
    pub fn open_write_range<T>(
        &self,
        address: Address,
        part: impl RangeBounds<usize>,
        write: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let (copy, part) = self.open_copy(address, &part)?;
        let borrowed = self.set.borrow_mut().buffers.copies.borrow_copy(copy)?;
        // Returned also when `write` panics.
        let mut held = BorrowGuard { txn: self, copy, borrowed: Some(borrowed) };
        let borrowed = guaranteed(held.borrowed.as_mut(), "the guard holds its copy until it ends");
        Ok(write(borrowed.part(&part)))
    }

    /// The address of a part of an object, for an FFI that returns pointers: in the region, or in
    /// the private copy if there is one. The object starts at a multiple of 16. The pointer is
    /// valid for reads until the transaction ends.
    ///
    /// # Errors
    /// As [`Txn::open_read_range`].
    pub fn lend_read(
        &self,
        address: Address,
        part: impl RangeBounds<usize>,
    ) -> Result<*const [u8]> {
        let mut set = self.set.borrow_mut();
        let (index, opened) = Opened::find(&mut set, address)?;
        let part = check_part(address, &part, opened.len(&set))?;
        if let Opened::Stored(value) = opened {
            return Ok(std::ptr::from_ref(guaranteed(value.get(part), PART_IN_OBJECT)));
        }
        let copy = opened.copy(&mut set, index, part.clone())?;
        let first = set.buffers.copies.pointer(copy, &part)?;
        invariant!(!first.is_null(), "a copy has memory");
        Ok(std::ptr::slice_from_raw_parts(first, part.len()))
    }

    /// The address of a part of the transaction's private copy of an object, for an FFI that
    /// returns pointers. The object starts at a multiple of 16. The pointer stays the same for the
    /// whole transaction and is valid for reads and writes until it ends.
    ///
    /// # Errors
    /// As [`Txn::open_write_range`].
    pub fn lend_write(&self, address: Address, part: impl RangeBounds<usize>) -> Result<*mut [u8]> {
        let (copy, part) = self.open_copy(address, &part)?;
        let first = self.set.borrow_mut().buffers.copies.pointer(copy, &part)?;
        Ok(std::ptr::slice_from_raw_parts_mut(first, part.len()))
    }

    /// The size of an object, as requested.
    ///
    /// # Errors
    /// `NoObject`, `Conflict`, `TransactionTooLarge`, `Damaged`.
    pub fn object_size(&self, address: Address) -> Result<usize> {
        let mut set = self.set.borrow_mut();
        let (_, opened) = Opened::find(&mut set, address)?;
        Ok(opened.len(&set))
    }

    /// Frees an object. Its address is never assigned again.
    ///
    /// # Errors
    /// `NoObject`, `Conflict`, `TransactionTooLarge`, `Damaged`.
    pub fn free(&self, address: Address) -> Result<()> {
        let mut set = self.set.borrow_mut();
        let (index, _) = Opened::find(&mut set, address)?;
        invariant!(!set.is_deleted(index), "object {address} is freed twice");
        set.delete(index);
        Ok(())
    }

    fn open_copy(
        &self,
        address: Address,
        part: &impl RangeBounds<usize>,
    ) -> Result<(usize, Range<usize>)> {
        let mut set = self.set.borrow_mut();
        let (index, opened) = Opened::find(&mut set, address)?;
        let part = check_part(address, part, opened.len(&set))?;
        Ok((opened.copy(&mut set, index, part.clone())?, part))
    }
}

/// Returns a private copy that a caller's function has borrowed.
struct BorrowGuard<'t, 's> {
    txn: &'t Txn<'s>,
    copy: usize,
    borrowed: Option<BorrowedCopy>,
}

impl Drop for BorrowGuard<'_, '_> {
    fn drop(&mut self) {
        if let Some(borrowed) = self.borrowed.take() {
            self.txn.set.borrow_mut().buffers.copies.return_copy(self.copy, borrowed);
        }
    }
}

/// The range of bounds in an object of `len` bytes.
fn check_part(
    address: Address,
    part: &impl RangeBounds<usize>,
    len: usize,
) -> Result<Range<usize>> {
    let from = match part.start_bound() {
        Bound::Included(from) => Some(*from),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let to = match part.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(to) => Some(*to),
        Bound::Unbounded => Some(len),
    };
    match (from, to) {
        (Some(from), Some(to)) if from <= to && to <= len => Ok(from..to),
        _ => Err(Error::BadArgument {
            detail: format!(
                "object {address} has {len} bytes: give a part that begins and ends within them"
            ),
        }),
    }
}

#[cold]
fn no_object(address: Address) -> Error {
    Error::NoObject { address: address.bits() }
}

#[cold]
fn no_number() -> Error {
    Error::Damaged { detail: "an object would get the address 0".to_owned() }
}

//! A record that is read to be changed: found once, and changed if nobody was faster.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, align_of, size_of};
use std::ptr;
use std::slice;

use nearstate_model::limits::BLOCKS_MAX;
use nearstate_model::{Error, Result};
use nearstate_store::{BlockLayout, RecordForUpdate, Session};

use crate::border::{Out, borrow, guard};
use crate::bytes::{ns_bytes, null};
use crate::session::{ns_namespace, ns_session};
use crate::status::ns_status;
use crate::view::ns_view;
use crate::write::answer;

/// Words that a record keeps for itself. (The generator of the header wants the number itself
/// below.)
const HELD_WORDS: usize = 32;

/// Nothing is held.
const EMPTY: u32 = 0;
/// The caller holds it, and releases it.
const OWNED: u32 = 0x6e73_7463;

/// Changes that need no memory of their own: more than a procedure makes at once.
const FEW: usize = 16;

/// Names of blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_name_list {
    /// The first of them, each 1 to 255 bytes of UTF-8 without a NUL. NULL only if there are none.
    pub items: *const ns_bytes,
    /// How many; at most 1,024, no name twice.
    pub len: usize,
}

/// The names of the blocks that a program reads and changes, which go by their places from then on:
/// 0 for the first. They remember how the last record was laid out, so keep them for each kind of
/// record and each session, whose thread uses them.
#[derive(Debug)]
pub struct ns_block_layout {
    names: BlockLayout,
    /// The session's number: it may be closed before.
    session: u32,
}

/// A record that was read to be changed. `view` shows what was read, to the functions of views as
/// well; it ends with the record, and releasing it does nothing. The change is made if the record
/// is still that one: nothing is locked meanwhile. While it is held, memory that is retired in the
/// region is not used again: release it when the work at hand is done. It may be moved, but only
/// one copy of it is changed or released. All bytes 0 is a record that holds nothing.
#[repr(C)]
#[derive(Debug)]
pub struct ns_record_for_update {
    /// What was read.
    pub view: ns_view,
    /// Private.
    session: *const ns_session,
    /// Private.
    state: u32,
    /// Private.
    // A record remembers how it is laid out, also through a shared reference: without the cell the
    // compiler may take these words for unchanged.
    held: UnsafeCell<MaybeUninit<[u64; 32]>>,
}

const _: () = assert!(
    size_of::<RecordForUpdate<'_>>() <= HELD_WORDS * 8 && align_of::<RecordForUpdate<'_>>() <= 8,
    "a record does not fit into the words that C keeps for it: raise HELD_WORDS"
);

impl ns_record_for_update {
    /// None. In C: all bytes 0.
    const fn empty() -> Self {
        let (view, held) = (ns_view::empty(), UnsafeCell::new(MaybeUninit::uninit()));
        Self { view, session: ptr::null(), state: EMPTY, held }
    }

    /// A record that the caller will release. The session counts it, and stays until then.
    fn owned(record: RecordForUpdate<'static>, session: &ns_session) -> Self {
        session.hold();
        let view = ns_view::shown(record.view());
        let mut held = MaybeUninit::<[u64; HELD_WORDS]>::uninit();
        let place = held.as_mut_ptr().cast::<RecordForUpdate<'static>>();
        // SAFETY: the assertion above says that a record fits in there and that it is aligned.
        unsafe { place.write(record) };
        Self { view, session, state: OWNED, held: UnsafeCell::new(held) }
    }

    /// The record in the held words.
    fn record(&self) -> Result<&RecordForUpdate<'static>> {
        if self.state != OWNED {
            return Err(null("nothing is to be changed (it was released, or never got)"));
        }
        let place = self.held.get().cast::<RecordForUpdate<'static>>();
        // SAFETY: `owned` put a record there, and another state takes it away.
        Ok(unsafe { &*place })
    }

    /// The session that it is of.
    const fn session(&self) -> &ns_session {
        // SAFETY: callers know that it is OWNED: the session stays open while it counts it.
        unsafe { &*self.session }
    }
}

impl ns_block_layout {
    /// The names of a handle, if they are of the record's session.
    ///
    /// # Safety
    /// Rule 1, for the lifetime `'a`.
    unsafe fn of<'a>(names: *const Self, record: &ns_record_for_update) -> Result<&'a BlockLayout> {
        // SAFETY: the caller's promise.
        let names = unsafe { borrow(names, "the names") }?;
        if names.session != record.session().serial() {
            return Err(Error::BadArgument {
                detail: "the names are not of the record's session: open them with \
                         ns_block_layout_open in the session that uses them"
                    .to_owned(),
            });
        }
        Ok(&names.names)
    }
}

impl ns_name_list {
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    unsafe fn read<'a>(self) -> Result<Vec<&'a str>> {
        if self.len > BLOCKS_MAX {
            return Err(Error::TooManyBlocks { blocks: self.len });
        }
        if self.len == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: rule 2.
        unsafe { borrow(self.items, "the names") }?;
        // SAFETY: neither NULL nor askew (asked above), within a limit, and rule 2 promises the
        // items.
        let items = unsafe { slice::from_raw_parts(self.items, self.len) };
        // SAFETY: rule 2, for every name.
        items.iter().map(|name| unsafe { name.name() }).collect()
    }
}

/// Names blocks. They are closed with `ns_block_layout_close`; their session may be closed before.
///
/// Fails with `NS_BAD_NAME` (also for one that is there twice), `NS_TOO_MANY_BLOCKS`,
/// `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3, rule 2 for every name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_block_layout_open(
    session: *mut ns_session,
    list: ns_name_list,
    names: *mut *mut ns_block_layout,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let session = unsafe { borrow(session, "the session") }?.serial();
        // SAFETY: rule 2.
        let list = unsafe { list.read() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(names, "the names") }?;
        let names = BlockLayout::new(&list)?;
        out.put(Box::into_raw(Box::new(ns_block_layout { names, session })));
        Ok(ns_status::NS_OK)
    })
}

/// Closes names; they must not be used any more. NULL is left alone.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_block_layout_close(names: *mut ns_block_layout) {
    let _ = guard(|| {
        if !names.is_null() {
            // SAFETY: rule 1.
            unsafe { borrow(names, "the names") }?;
            // SAFETY: `ns_block_layout_open` made it of a box, and nobody uses it after this call.
            drop(unsafe { Box::from_raw(names) });
        }
        Ok(ns_status::NS_OK)
    });
}

/// Gets a record to change it: `NS_NOT_FOUND` if there is none. No lock, no system call, no copy.
/// Release it with `ns_record_for_update_release`, changed or not; unless the answer is `NS_OK` it is empty
/// and need not be released.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_WRONG_KIND` in a namespace of
/// counters, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3. What `record` held before is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_get_for_update(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    record: *mut ns_record_for_update,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 3.
        let out = unsafe { Out::new(record, "the record") }?;
        // SAFETY: rules 1 and 2.
        out.put_found(unsafe { get(session, namespace, key) }, ns_record_for_update::empty())
    })
}

/// # Safety
/// Rules 1 and 2.
#[inline]
unsafe fn get(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
) -> Result<Option<ns_record_for_update>> {
    // SAFETY: rule 1.
    let session = unsafe { borrow(session, "the session") }?;
    // SAFETY: rule 2.
    let key = unsafe { key.key() }?;
    let namespace = session.namespace(namespace)?;
    // SAFETY: the session is in a box, and stays there while it counts this record.
    let store: &'static Session = unsafe { &*ptr::from_ref(session.store()) };
    let found = store.get_for_update(namespace, key)?;
    Ok(found.map(|record| ns_record_for_update::owned(record, session)))
}

/// Gives a record back, changed or not. Its bytes must not be read any more. NULL, and a record
/// that is released already, are left alone.
///
/// # Safety
/// Rule 1: NULL, or a record that a call of this library has filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_record_for_update_release(record: *mut ns_record_for_update) {
    let _ = guard(|| {
        // SAFETY: rule 1: NULL, or a record that nobody else uses now.
        if let Some(record) = unsafe { record.as_mut() }
            && record.state == OWNED
        {
            record.state = EMPTY;
            record.view = ns_view::empty();
            let session = std::mem::replace(&mut record.session, ptr::null());
            let place = record.held.get().cast::<RecordForUpdate<'static>>();
            // SAFETY: the state was OWNED, so that there is a record, and it is EMPTY now, so that
            // this happens once.
            unsafe { place.drop_in_place() };
            // SAFETY: the session stays open while it counts this record.
            unsafe { borrow(session, "the record's session") }?.release();
        }
        Ok(ns_status::NS_OK)
    });
}

/// Shows the first `len` of the named blocks of a record: `blocks` gets as many, each at the place
/// of its name, with `data` NULL if the record has no such block (an empty one has other `data`).
/// They are good for as long as the record is held. One comparison if the record is laid out as the
/// last one that these names met, else linear in the number of blocks; it allocates only where it
/// learns a layout. None in a namespace of values.
///
/// Fails with `NS_BAD_ARGUMENT`, also for more than there are names and for names of another
/// session.
///
/// # Safety
/// Rules 1 and 3, with memory for `len` at `blocks`; it may be NULL only with `len` 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_record_for_update_blocks(
    record: *const ns_record_for_update,
    names: *const ns_block_layout,
    len: usize,
    blocks: *mut ns_bytes,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let handle = unsafe { borrow(record, "the record") }?;
        let record = handle.record()?;
        // SAFETY: rule 1.
        let names = unsafe { ns_block_layout::of(names, handle) }?;
        if len > names.len() {
            return Err(Error::BadArgument {
                detail: format!(
                    "{len} blocks are asked for by {} names: ask for no more than there are names",
                    names.len()
                ),
            });
        }
        if len == 0 {
            return Ok(ns_status::NS_OK);
        }
        // SAFETY: rule 3, for the first of them: it is neither NULL nor askew.
        unsafe { Out::new(blocks, "the blocks") }?;
        // SAFETY: rule 3: memory for so many, of whatever is in it; `len` is within a limit.
        let room =
            unsafe { slice::from_raw_parts_mut(blocks.cast::<MaybeUninit<ns_bytes>>(), len) };
        for block in &mut *room {
            block.write(ns_bytes::EMPTY);
        }
        let wanted = |place: usize| place < len;
        record.blocks_of(names, wanted, |place, bytes| {
            if let Some(block) = room.get_mut(place) {
                block.write(ns_bytes::of(bytes));
            }
        });
        Ok(ns_status::NS_OK)
    })
}

/// Puts a value in the place of what was read, if that is still there, else `NS_REFUSED`: somebody
/// was faster, or this record has made its change already. Get it again then. Tags and an expiry
/// are gone with the old value. `version` gets the new one, or the one that is there (0: no
/// record); it may be NULL.
///
/// Fails with `NS_VALUE_TOO_LARGE`, `NS_WRONG_KIND`, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`,
/// `NS_FORKED`, `NS_BAD_ARGUMENT`; nothing was changed then.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_record_for_update_put(
    record: *const ns_record_for_update,
    value: ns_bytes,
    version: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let record = unsafe { borrow(record, "the record") }?.record()?;
        // SAFETY: rule 2.
        let value = unsafe { value.value() }?;
        // SAFETY: rule 3.
        let version = unsafe { Out::optional(version, "the version") }?;
        Ok(answer(record.put(value)?, &version))
    })
}

/// New bytes of a block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_indexed_change {
    /// The place of the block's name, from 0.
    pub index: usize,
    /// The new bytes.
    pub bytes: ns_bytes,
}

/// Changes that are made in one step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_indexed_change_list {
    /// The first of them. NULL only if there are none.
    pub items: *const ns_indexed_change,
    /// How many; at most 1,024, no place twice.
    pub len: usize,
}

/// Changes some blocks of what was read, if that is still there, else `NS_REFUSED`: somebody was
/// faster, or this record has made its change already. Get it again then. Other blocks, tags and
/// the expiry stay as they are; a block that is not there is added. `version` gets the new one, or
/// the one that is there (0: no record); it may be NULL. To take a block away see
/// `ns_patch_if_version`.
///
/// Fails with `NS_WRONG_KIND` in a namespace of values, `NS_TOO_MANY_BLOCKS`, `NS_VALUE_TOO_LARGE`,
/// `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`, also for a place without
/// a name and for names of another session; nothing was changed then.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_record_for_update_patch(
    record: *const ns_record_for_update,
    names: *const ns_block_layout,
    changes: ns_indexed_change_list,
    version: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let handle = unsafe { borrow(record, "the record") }?;
        let record = handle.record()?;
        // SAFETY: rule 1.
        let names = unsafe { ns_block_layout::of(names, handle) }?;
        // SAFETY: rule 2.
        let items = unsafe { changes.slice() }?;
        // SAFETY: rule 3.
        let version = unsafe { Out::optional(version, "the version") }?;
        let mut few = [(0, [].as_slice()); FEW];
        let many: Vec<(usize, &[u8])>;
        let changes = if let Some(few) = few.get_mut(..items.len()) {
            for (change, item) in few.iter_mut().zip(items) {
                // SAFETY: rule 2, for every change.
                *change = (item.index, unsafe { item.bytes.value() }?);
            }
            &*few
        } else {
            // SAFETY: rule 2, for every change.
            let read = |item: &ns_indexed_change| Ok((item.index, unsafe { item.bytes.value() }?));
            many = items.iter().map(read).collect::<Result<_>>()?;
            many.as_slice()
        };
        Ok(answer(record.patch(names, changes)?, &version))
    })
}

impl ns_indexed_change_list {
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    unsafe fn slice<'a>(self) -> Result<&'a [ns_indexed_change]> {
        if self.len > BLOCKS_MAX {
            return Err(Error::TooManyBlocks { blocks: self.len });
        }
        if self.len == 0 {
            return Ok(&[]);
        }
        // SAFETY: rule 2.
        unsafe { borrow(self.items, "the changes") }?;
        // SAFETY: neither NULL nor askew (asked above), within a limit, and rule 2 promises the
        // items.
        Ok(unsafe { slice::from_raw_parts(self.items, self.len) })
    }
}

//! Records read for update: found once, and changed only if no other writer changed them since.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, align_of, size_of};
use std::ptr;
use std::slice;

use nearstate_model::limits::BLOCKS_MAX;
use nearstate_model::{Error, Result};
use nearstate_store::{BlockLayout, RecordForUpdate, Session};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::session::{enter, enter_to_release, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::view::ns_view;
use crate::write::status_of;

/// Words reserved for the record's private state. (The header generator requires the literal
/// below.)
const PRIVATE_WORDS: usize = 32;

/// The structure is empty.
const EMPTY: u32 = 0;
/// The caller owns the record and must release it.
const OWNED: u32 = 0x6e73_7463;

/// Number of changes that need no heap allocation: more than a signalling procedure makes at once.
const CHANGES_ON_STACK: usize = 16;

/// A list of block names.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_name_list {
    /// The first name: 1 to 255 bytes of UTF-8 without a NUL. NULL only if `len` is 0.
    pub items: *const ns_bytes,
    /// The number of names: at most 1,024, without duplicates.
    pub len: usize,
}

/// The names of the blocks that a program reads and changes. Calls refer to them by index, starting
/// at 0. The layout caches the positions of the blocks in the last record, so use one layout per
/// kind of record and session. It is used by the thread of its session.
#[derive(Debug)]
pub struct ns_block_layout {
    names: BlockLayout,
    /// The number of the session, which may be closed before the layout.
    session: u32,
}

/// A record that was read for update. `view` shows the version that was read; it ends with the
/// record, and releasing it has no effect. A change succeeds only if that version is still current;
/// no lock is held in between. While the record is held, memory freed in the region is not reused:
/// release it as soon as possible. The structure may be moved, but only one copy may be changed or
/// released. All bytes 0: an empty structure.
#[repr(C)]
#[derive(Debug)]
pub struct ns_record_for_update {
    /// The version that was read.
    pub view: ns_view,
    /// Private.
    session: *const ns_session,
    /// Private.
    state: u32,
    /// Private.
    // The record caches its layout through a shared reference. Without the cell, the compiler could
    // assume that these words do not change.
    held: UnsafeCell<MaybeUninit<[u64; 32]>>,
}

const _: () = assert!(
    size_of::<RecordForUpdate<'_>>() <= PRIVATE_WORDS * 8 && align_of::<RecordForUpdate<'_>>() <= 8,
    "a record does not fit into the reserved words: raise PRIVATE_WORDS"
);

impl ns_record_for_update {
    /// An empty structure. In C: all bytes 0.
    const fn empty() -> Self {
        let (view, held) = (ns_view::empty(), UnsafeCell::new(MaybeUninit::uninit()));
        Self { view, session: ptr::null(), state: EMPTY, held }
    }

    /// A record that the caller must release. The session counts it and cannot be closed before.
    fn owned(record: RecordForUpdate<'static>, session: &ns_session) -> Self {
        session.hold();
        let view = ns_view::shown(record.view());
        let mut held = MaybeUninit::<[u64; PRIVATE_WORDS]>::uninit();
        let storage = held.as_mut_ptr().cast::<RecordForUpdate<'static>>();
        // SAFETY: the assertion above states that a record fits and is aligned.
        unsafe { storage.write(record) };
        Self { view, session, state: OWNED, held: UnsafeCell::new(held) }
    }

    /// The record stored in the private words.
    fn record(&self) -> Result<&RecordForUpdate<'static>> {
        if self.state != OWNED {
            return Err(null("the record for update is empty (released, or not found)"));
        }
        let record = self.held.get().cast::<RecordForUpdate<'static>>();
        // SAFETY: `owned` stored a record there; every other state removes it.
        Ok(unsafe { &*record })
    }

    /// The session of the record.
    const fn session(&self) -> &ns_session {
        // SAFETY: the state is OWNED, so the session counts the record and stays open.
        unsafe { &*self.session }
    }
}

impl ns_block_layout {
    /// The layout of a handle, if it belongs to the record's session.
    ///
    /// # Safety
    /// Rule 1, for the lifetime `'a`.
    unsafe fn of<'a>(names: *const Self, record: &ns_record_for_update) -> Result<&'a BlockLayout> {
        // SAFETY: the caller's promise.
        let names = unsafe { borrow(names, "the block layout") }?;
        if names.session != record.session().serial() {
            return Err(Error::BadArgument {
                detail:
                    "the block layout belongs to another session than the record: open it with \
                         ns_block_layout_open in the record's session"
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
        unsafe { borrow(self.items, "the block layout") }?;
        // SAFETY: neither NULL nor misaligned (checked above), within a limit; rule 2 guarantees
        // the items.
        let items = unsafe { slice::from_raw_parts(self.items, self.len) };
        // SAFETY: rule 2, for every name.
        items.iter().map(|name| unsafe { name.name() }).collect()
    }
}

/// Creates a block layout from a list of names. Close it with `ns_block_layout_close`; its session
/// may be closed before.
///
/// Fails with `NS_BAD_NAME`, `NS_TOO_MANY_BLOCKS`, `NS_BAD_ARGUMENT` (also for duplicate names).
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
        let session = unsafe { enter(session) }?.session().serial();
        // SAFETY: rule 2.
        let list = unsafe { list.read() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(names, "the block layout") }?;
        let names = BlockLayout::new(&list)?;
        out.put(Box::into_raw(Box::new(ns_block_layout { names, session })));
        Ok(ns_status::NS_OK)
    })
}

/// Closes a block layout. NULL is ignored.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_block_layout_close(names: *mut ns_block_layout) {
    let _ = guard(|| {
        if !names.is_null() {
            // SAFETY: rule 1.
            unsafe { borrow(names, "the block layout") }?;
            // SAFETY: `ns_block_layout_open` created it from a box, and the caller no longer uses
            // it.
            drop(unsafe { Box::from_raw(names) });
        }
        Ok(ns_status::NS_OK)
    });
}

/// Gets a record for update: `NS_NOT_FOUND` if it does not exist. Takes no lock, makes no system
/// call and no copy. Release it with `ns_record_for_update_release`, changed or not. If the status
/// is not `NS_OK`, the structure is empty and need not be released. After a change that failed with
/// `NS_FULL` it makes room first: get the record and change it once more.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_KEY_TOO_LARGE`, `NS_WRONG_KIND` in a namespace of
/// counters, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3. The previous contents of `record` are not released.
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
        out.put_or_empty(unsafe { get(session, namespace, key) }, ns_record_for_update::empty())
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
    let call = unsafe { enter(session) }?;
    let session = call.session();
    // SAFETY: rule 2.
    let key = unsafe { key.key() }?;
    let namespace = session.namespace(namespace)?;
    // SAFETY: the session is boxed and stays there while it counts this record.
    let store: &'static Session = unsafe { &*ptr::from_ref(session.store()) };
    let record = store.get_for_update(namespace, key)?;
    Ok(record.map(|record| ns_record_for_update::owned(record, session)))
}

/// Releases a record for update, changed or not. Its bytes must not be read afterwards. NULL and a
/// released record are ignored.
///
/// Fails with `NS_SESSION_BUSY` while another thread is inside a call of the session, and with
/// `NS_BAD_ARGUMENT` in callbacks of `ns_view_blocks` and `ns_view_tags` with its view: the record
/// is kept, and with it the memory that it holds. Release it again.
///
/// # Safety
/// Rule 1: NULL, or a record that a call of this library has filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_record_for_update_release(
    record: *mut ns_record_for_update,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1: NULL, or a record that is not in use elsewhere.
        if let Some(record) = unsafe { record.as_mut() }
            && record.state == OWNED
        {
            // SAFETY: the session stays open while it counts this record.
            let call = unsafe { enter_to_release(record.session) }?;
            // Another thread may have released it before this one was let in.
            if record.state != OWNED {
                return Ok(ns_status::NS_OK);
            }
            if call.must_leak(record.view.is_iterated()) {
                *record = ns_record_for_update::empty();
                call.session().release();
                return Ok(ns_status::NS_OK);
            }
            record.view.check_idle()?;
            record.state = EMPTY;
            record.view = ns_view::empty();
            record.session = ptr::null();
            let record = record.held.get().cast::<RecordForUpdate<'static>>();
            // SAFETY: the state was OWNED, so there is a record; it is EMPTY now, so this happens
            // once.
            unsafe { record.drop_in_place() };
            call.session().release();
        }
        Ok(ns_status::NS_OK)
    })
}

/// Gets the first `len` blocks of a layout. `blocks[i]` receives the block with the layout's name
/// `i`; its `data` is NULL if the record has no such block, and not NULL for an empty block. The
/// blocks are valid while the record is held. The cost is one comparison if the record is laid out
/// like the previous one of this layout, otherwise linear in the number of blocks. It allocates
/// only when it learns a new layout. In a namespace of values, no block exists.
///
/// Fails with `NS_BAD_ARGUMENT`, also if `len` exceeds the number of names or if the layout belongs
/// to another session.
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
        let _call = handle.session().enter()?;
        // SAFETY: rule 1.
        let names = unsafe { ns_block_layout::of(names, handle) }?;
        if len > names.len() {
            return Err(Error::BadArgument {
                detail: format!(
                    "{len} blocks requested, but the layout has {} names: \
                     request at most that many",
                    names.len()
                ),
            });
        }
        if len == 0 {
            return Ok(ns_status::NS_OK);
        }
        // SAFETY: rule 3, for the first of them: it is neither NULL nor misaligned.
        unsafe { Out::new(blocks, "the blocks") }?;
        // SAFETY: rule 3: memory for `len` items, which may be uninitialized; `len` is within a
        // limit.
        let output =
            unsafe { slice::from_raw_parts_mut(blocks.cast::<MaybeUninit<ns_bytes>>(), len) };
        for block in &mut *output {
            block.write(ns_bytes::EMPTY);
        }
        let wanted = |index: usize| index < len;
        record.blocks_of(names, wanted, |index, bytes| {
            if let Some(block) = output.get_mut(index) {
                block.write(ns_bytes::of(bytes));
            }
        });
        Ok(ns_status::NS_OK)
    })
}

/// Replaces the value that was read. `NS_REFUSED` if the record has changed since, by another
/// writer or through this structure: get it again. The tags and the expiry of the record are
/// removed. `version` receives the new version, or the current one (0: no record) with
/// `NS_REFUSED`; it may be NULL.
///
/// Fails as `ns_put`.
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
        let handle = unsafe { borrow(record, "the record") }?;
        let record = handle.record()?;
        let _call = handle.session().enter()?;
        // SAFETY: rule 2.
        let value = unsafe { value.value() }?;
        // SAFETY: rule 3.
        let version = unsafe { Out::optional(version, "the version") }?;
        Ok(status_of(record.put(value)?, &version))
    })
}

/// New contents of a block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_indexed_change {
    /// The index of the block's name in the layout.
    pub index: usize,
    /// The new contents.
    pub bytes: ns_bytes,
}

/// A list of changes that are made in one step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_indexed_change_list {
    /// The first change. NULL only if `len` is 0.
    pub items: *const ns_indexed_change,
    /// The number of changes: at most 1,024, with different indexes.
    pub len: usize,
}

/// Changes some blocks of the record that was read. `NS_REFUSED` if the record has changed since,
/// by another writer or through this structure: get it again. Other blocks, the tags and the expiry
/// are kept; a block that does not exist is added. `version` receives the new version, or the
/// current one (0: no record) with `NS_REFUSED`; it may be NULL. To remove a block, use
/// `ns_patch_if_version`.
///
/// Fails as `ns_patch`; with `NS_BAD_ARGUMENT` also for an index without a name and for the layout
/// of another session.
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
        let _call = handle.session().enter()?;
        // SAFETY: rule 1.
        let names = unsafe { ns_block_layout::of(names, handle) }?;
        // SAFETY: rule 2.
        let items = unsafe { changes.slice() }?;
        // SAFETY: rule 3.
        let version = unsafe { Out::optional(version, "the version") }?;
        let mut buffer = [(0, [].as_slice()); CHANGES_ON_STACK];
        let many: Vec<(usize, &[u8])>;
        let changes = if let Some(few) = buffer.get_mut(..items.len()) {
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
        Ok(status_of(record.patch(names, changes)?, &version))
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
        // SAFETY: neither NULL nor misaligned (checked above), within a limit; rule 2 guarantees
        // the items.
        Ok(unsafe { slice::from_raw_parts(self.items, self.len) })
    }
}

//! Changes of named blocks: unchanged blocks are not copied.

use nearstate_model::limits::BLOCKS_MAX;
use nearstate_model::{Error, Result};
use nearstate_store::{BlockChange, Condition, Session};

use crate::bytes::ns_bytes;
use crate::ffi::{borrow, guard};
use crate::session::{ns_namespace, ns_session};
use crate::status::ns_status;
use crate::write::change_record;

/// A change of one block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_block_change {
    /// The block's name, 1 to 255 bytes of UTF-8 without a NUL.
    pub name: ns_bytes,
    /// The new contents. Ignored if `is_removal`.
    pub bytes: ns_bytes,
    /// Removes the block.
    pub is_removal: bool,
}

/// A list of changes that are made in one step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_block_change_list {
    /// The first change. NULL only if `len` is 0.
    pub items: *const ns_block_change,
    /// The number of changes: at most 1,024, each of a different block.
    pub len: usize,
}

impl ns_block_change_list {
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    pub(crate) unsafe fn read<'a>(self) -> Result<Vec<BlockChange<'a>>> {
        if self.len > BLOCKS_MAX {
            return Err(Error::TooManyBlocks { blocks: self.len });
        }
        if self.len == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: rule 2.
        unsafe { borrow(self.items, "the changes") }?;
        // SAFETY: neither NULL nor misaligned (checked above), within a limit; rule 2 guarantees
        // the items.
        let items = unsafe { std::slice::from_raw_parts(self.items, self.len) };
        let read = |change: &ns_block_change| {
            // SAFETY: rule 2.
            let name = unsafe { change.name.name() }?;
            let bytes = if change.is_removal {
                None
            } else {
                // SAFETY: rule 2.
                Some(unsafe { change.bytes.value() }?)
            };
            Ok(BlockChange { name, bytes })
        };
        items.iter().map(read).collect()
    }
}

/// # Safety
/// Rules 1 to 3.
unsafe fn patch(
    session: *mut ns_session,
    namespace: ns_namespace,
    (key, changes): (ns_bytes, ns_block_change_list),
    condition: Condition<'_>,
    version: *mut u64,
) -> Result<ns_status> {
    let patch = |session: &Session, namespace, key: &[u8]| {
        // SAFETY: rule 2.
        session.patch(namespace, key, &unsafe { changes.read() }?, condition)
    };
    // SAFETY: the same rules.
    unsafe { change_record(session, namespace, key, version, patch) }
}

/// Changes some blocks of a record in one step and keeps the others. Creates the record if it does
/// not exist. Unchanged blocks above 512 bytes are not copied. `version` receives the new version;
/// it may be NULL.
///
/// Fails with `NS_WRONG_KIND` in a namespace of values, `NS_BAD_NAME`, `NS_TOO_MANY_BLOCKS`,
/// `NS_KEY_TOO_LARGE`, `NS_VALUE_TOO_LARGE`, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`,
/// `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT` (also for a block that is named twice), `NS_DEADLINE` if
/// others change the record all the time; in a namespace
/// with tags, limits or watches also with `NS_LIMIT_REACHED`,
/// `NS_TRANSACTION_TOO_LARGE`; in a logged or followed one also with `NS_NOT_OWNER`, `NS_FENCED`,
/// `NS_BEHIND`, `NS_TRANSACTION_TOO_LARGE`. Nothing was changed then. With `NS_NOT_REPLICATED`,
/// `NS_LOST` and `NS_OUTCOME_UNKNOWN` the commit was made (rule 6).
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_patch(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    changes: ns_block_change_list,
    version: *mut u64,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { patch(session, namespace, (key, changes), Condition::Always, version) })
}

/// Like `ns_patch` if the record does not exist, otherwise `NS_REFUSED`. `version` receives the new
/// version, or the current one with `NS_REFUSED`; it may be NULL. Fails as `ns_patch`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_patch_if_absent(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    changes: ns_block_change_list,
    version: *mut u64,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { patch(session, namespace, (key, changes), Condition::Absent, version) })
}

/// Like `ns_patch` if the record has the version `expected`, otherwise `NS_REFUSED`. `version`
/// receives the new version, or the current one (0: no record) with `NS_REFUSED`; it may be NULL.
/// Fails as `ns_patch`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_patch_if_version(
    session: *mut ns_session,
    namespace: ns_namespace,
    key: ns_bytes,
    changes: ns_block_change_list,
    expected: u64,
    version: *mut u64,
) -> ns_status {
    let condition = Condition::Version(expected);
    // SAFETY: the same rules.
    guard(|| unsafe { patch(session, namespace, (key, changes), condition, version) })
}

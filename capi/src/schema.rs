//! The tags of a namespace: declaration, and listing with the state of their indexes.

use std::ffi::c_void;

use nearstate_model::limits::TAGS_DECLARED_MAX;
use nearstate_model::{Error, Result};
use nearstate_store::{Tag, TagSchema, TagState};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{borrow, guard};
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;

/// No two records have the same value. A commit that violates this fails with `NS_TAG_TAKEN`.
pub const NS_TAG_UNIQUE: u32 = 1;
/// Supports lookups by range and prefix.
pub const NS_TAG_ORDERED: u32 = 2;
/// The number of records with each value is stored.
pub const NS_TAG_COUNTED: u32 = 4;
/// Every record must have the tag. A commit that violates this fails.
pub const NS_TAG_REQUIRED: u32 = 8;

/// The index is being built: writers maintain it, and existing records are being added. Lookups
/// fail.
pub const NS_TAG_BUILDING: u32 = 1;
/// The index is complete.
pub const NS_TAG_READY: u32 = 2;

/// The declaration of a tag.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_tag_schema {
    /// The name, 1 to 255 bytes of UTF-8 without a NUL.
    pub name: ns_bytes,
    /// A sum of `NS_TAG_UNIQUE`, `NS_TAG_ORDERED`, `NS_TAG_COUNTED`, `NS_TAG_REQUIRED`; 0: lookups
    /// by equality only.
    pub properties: u32,
}

impl ns_tag_schema {
    /// # Safety
    /// Rule 2.
    unsafe fn read(&self) -> Result<TagSchema> {
        let known = NS_TAG_UNIQUE | NS_TAG_ORDERED | NS_TAG_COUNTED | NS_TAG_REQUIRED;
        if self.properties & !known != 0 {
            return Err(Error::BadArgument {
                detail: format!(
                    "unknown properties {}: expected a sum of NS_TAG_..",
                    self.properties
                ),
            });
        }
        // SAFETY: rule 2.
        let name = unsafe { self.name.name() }?.to_owned();
        let has = |property| self.properties & property != 0;
        Ok(TagSchema {
            name,
            is_unique: has(NS_TAG_UNIQUE),
            is_ordered: has(NS_TAG_ORDERED),
            is_counted: has(NS_TAG_COUNTED),
            is_required: has(NS_TAG_REQUIRED),
        })
    }

    fn of(tag: &Tag) -> Self {
        let property = |is_set: bool, property| if is_set { property } else { 0 };
        let properties = property(tag.is_unique, NS_TAG_UNIQUE)
            | property(tag.is_ordered, NS_TAG_ORDERED)
            | property(tag.is_counted, NS_TAG_COUNTED)
            | property(tag.is_required, NS_TAG_REQUIRED);
        Self { name: ns_bytes::of(tag.name.as_bytes()), properties }
    }
}

/// A list of tag declarations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_tag_schema_list {
    /// The first declaration. NULL only if `len` is 0.
    pub items: *const ns_tag_schema,
    /// The number of declarations: at most 32.
    pub len: usize,
}

impl ns_tag_schema_list {
    /// # Safety
    /// Rule 2.
    unsafe fn read(self) -> Result<Vec<TagSchema>> {
        if self.len > TAGS_DECLARED_MAX {
            return Err(Error::BadArgument {
                detail: format!(
                    "{} tags are too many: the maximum per namespace is {TAGS_DECLARED_MAX}",
                    self.len
                ),
            });
        }
        if self.len == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: rule 2.
        unsafe { borrow(self.items, "the tags") }?;
        // SAFETY: neither NULL nor misaligned (checked above), within a limit; rule 2 guarantees
        // the items.
        let items = unsafe { std::slice::from_raw_parts(self.items, self.len) };
        // SAFETY: rule 2.
        items.iter().map(|tag| unsafe { tag.read() }).collect()
    }
}

/// Declares tags of a namespace and indexes its existing records while writers continue. Tags that
/// already exist with the same properties are not changed, so every process can declare the tags
/// that it needs at its start. Tags cannot be removed. The cost is linear in the number of records
/// if a tag is new.
///
/// Fails with `NS_TAG_TAKEN` if two records have the same value of a tag declared unique, and with
/// `NS_BAD_ARGUMENT` if a record lacks a tag declared required, or if a tag exists with other
/// properties. After such a failure none of the new tags of this call exists, unless another
/// process declares them at the same time or had started to. Also fails with `NS_WRONG_KIND` for
/// counters, `NS_BAD_NAME`, `NS_CONFLICT`, `NS_DEADLINE`, `NS_NOT_OWNER`, `NS_FENCED`, `NS_BEHIND`,
/// `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`, `NS_SESSION_BUSY`.
///
/// # Safety
/// Rules 1 and 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_add_tags(
    session: *mut ns_session,
    namespace: ns_namespace,
    tags: ns_tag_schema_list,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let tags = unsafe { tags.read() }?;
        session.store().add_tags(session.namespace(namespace)?, &tags)?;
        Ok(ns_status::NS_OK)
    })
}

/// Receives each tag of a namespace with its state, `NS_TAG_BUILDING` or `NS_TAG_READY`.
pub type ns_tag_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, tag: *const ns_tag_schema, state: u32) -> bool,
>;

/// Calls `each` for every tag declared for a namespace.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_tags(
    session: *mut ns_session,
    namespace: ns_namespace,
    each: ns_tag_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let each = each.ok_or_else(|| null("the callback"))?;
        let namespace = session.namespace(namespace)?;
        for tag in session.store().tags(namespace)? {
            let schema = ns_tag_schema::of(&tag);
            let is_ready = tag.state == TagState::Ready;
            let state = if is_ready { NS_TAG_READY } else { NS_TAG_BUILDING };
            // SAFETY: rule 4: it takes these arguments and returns.
            if !session.while_open(|| unsafe { each(context, &raw const schema, state) }) {
                break;
            }
        }
        Ok(ns_status::NS_OK)
    })
}

//! The tags of a namespace: declared, and listed with how far their indexes are.

use std::ffi::c_void;

use nearstate_model::limits::TAGS_DECLARED_MAX;
use nearstate_model::{Error, Result};
use nearstate_store::{Tag, TagSchema, TagState};

use crate::border::{borrow, guard};
use crate::bytes::{ns_bytes, null};
use crate::session::{ns_namespace, ns_session};
use crate::status::ns_status;

/// No two records have the same value: a commit that would make it so answers `NS_TAG_TAKEN`.
pub const NS_TAG_UNIQUE: u32 = 1;
/// Found by ranges and prefixes too.
pub const NS_TAG_ORDERED: u32 = 2;
/// How many records have a value is known without looking at them.
pub const NS_TAG_COUNTED: u32 = 4;
/// A record must have it: a commit that leaves one without is refused.
pub const NS_TAG_REQUIRED: u32 = 8;

/// Writers keep the index, and records from before are being entered: lookups are refused.
pub const NS_TAG_BUILDING: u32 = 1;
/// The index is complete.
pub const NS_TAG_READY: u32 = 2;

/// What is declared of a tag.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_tag_schema {
    /// Its name, 1 to 255 bytes of UTF-8 without a NUL.
    pub name: ns_bytes,
    /// The sum of some of `NS_TAG_UNIQUE`, `NS_TAG_ORDERED`, `NS_TAG_COUNTED`, `NS_TAG_REQUIRED`;
    /// 0: found by equality.
    pub properties: u32,
}

impl ns_tag_schema {
    /// # Safety
    /// Rule 2.
    unsafe fn read(&self) -> Result<TagSchema> {
        let known = NS_TAG_UNIQUE | NS_TAG_ORDERED | NS_TAG_COUNTED | NS_TAG_REQUIRED;
        if self.properties & !known != 0 {
            return Err(Error::BadArgument {
                detail: format!("properties {}: give the sum of some NS_TAG_..", self.properties),
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
        let property = |is_so: bool, property| if is_so { property } else { 0 };
        let properties = property(tag.is_unique, NS_TAG_UNIQUE)
            | property(tag.is_ordered, NS_TAG_ORDERED)
            | property(tag.is_counted, NS_TAG_COUNTED)
            | property(tag.is_required, NS_TAG_REQUIRED);
        Self { name: ns_bytes::of(tag.name.as_bytes()), properties }
    }
}

/// Tags to be declared together.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_tag_schema_list {
    /// The first of them. NULL only if there are none.
    pub items: *const ns_tag_schema,
    /// How many; at most 32.
    pub len: usize,
}

impl ns_tag_schema_list {
    /// # Safety
    /// Rule 2.
    unsafe fn read(self) -> Result<Vec<TagSchema>> {
        if self.len > TAGS_DECLARED_MAX {
            return Err(Error::BadArgument {
                detail: format!("{} tags: a namespace has at most {TAGS_DECLARED_MAX}", self.len),
            });
        }
        if self.len == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: rule 2.
        unsafe { borrow(self.items, "the tags") }?;
        // SAFETY: neither NULL nor askew (asked above), within a limit, and rule 2 promises the
        // items.
        let items = unsafe { std::slice::from_raw_parts(self.items, self.len) };
        // SAFETY: rule 2.
        items.iter().map(|tag| unsafe { tag.read() }).collect()
    }
}

/// Declares tags of a namespace and enters the records that it has, while writers go on. Tags that
/// are there already in the same form are left as they are, so every process may declare what it
/// needs when it starts. A tag is for good. Linear in the records if a tag is new.
///
/// Fails with `NS_TAG_TAKEN` if two records have the same value of a tag that is to be unique, and
/// `NS_BAD_ARGUMENT` if a record lacks a tag that is to be required, or a tag is there in another
/// form: of what this call declared nothing is there then, unless others are declaring it as well
/// or had begun it. Also with `NS_WRONG_KIND` for counters, `NS_BAD_NAME`,
/// `NS_CONFLICT`, `NS_DEADLINE`, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`.
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
        let session = unsafe { borrow(session, "the session") }?;
        // SAFETY: rule 2.
        let tags = unsafe { tags.read() }?;
        session.store().add_tags(session.namespace(namespace)?, &tags)?;
        Ok(ns_status::NS_OK)
    })
}

/// Gets the tags of a namespace, each with `NS_TAG_BUILDING` or `NS_TAG_READY`.
pub type ns_tag_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, tag: *const ns_tag_schema, state: u32) -> bool,
>;

/// Calls `each` with every tag that is declared of a namespace.
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
        let session = unsafe { borrow(session, "the session") }?;
        let each = each.ok_or_else(|| null("the callback"))?;
        let namespace = session.namespace(namespace)?;
        for tag in session.store().tags(namespace)? {
            let told = ns_tag_schema::of(&tag);
            let is_ready = tag.state == TagState::Ready;
            let state = if is_ready { NS_TAG_READY } else { NS_TAG_BUILDING };
            // SAFETY: rule 4: it takes these arguments and returns.
            if !session.while_open(|| unsafe { each(context, &raw const told, state) }) {
                break;
            }
        }
        Ok(ns_status::NS_OK)
    })
}

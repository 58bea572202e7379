//! Searches by conditions on tags and keys, read from structures of the caller.

use std::ffi::c_void;

use nearstate_model::limits::{SEARCH_DEPTH_MAX, SEARCH_UNITS_MAX};
use nearstate_model::{Error, Result};
use nearstate_store::search::{Op, Search};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::metadata::ns_tag;
use crate::read::ns_key_list;
use crate::session::{enter, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::walk::ns_key_fn;

/// All conditions in `units` hold.
pub const NS_SEARCH_AND: u32 = 1;
/// At least one condition in `units` holds.
pub const NS_SEARCH_OR: u32 = 2;
/// The one condition in `units` does not hold.
pub const NS_SEARCH_NOT: u32 = 3;
/// The key is one of `records`.
pub const NS_SEARCH_RECORDS: u32 = 4;
/// A value of the tag equals the given one.
pub const NS_SEARCH_EQ: u32 = 5;
/// The tag has values, and none equals the given one.
pub const NS_SEARCH_NEQ: u32 = 6;
/// A value of the tag is greater than the given one.
pub const NS_SEARCH_GT: u32 = 7;
/// A value of the tag is greater than or equal to the given one.
pub const NS_SEARCH_GTE: u32 = 8;
/// A value of the tag is less than the given one.
pub const NS_SEARCH_LT: u32 = 9;
/// A value of the tag is less than or equal to the given one.
pub const NS_SEARCH_LTE: u32 = 10;

/// A condition on records, as in the search expressions of TS 29.598. Conditions refer to each
/// other by pointers, so they can be written as local variables, and nothing must be freed:
///
/// `ns_search_condition both[] = {{.kind = NS_SEARCH_EQ, .tag = dnn},`
/// `                              {.kind = NS_SEARCH_LT, .tag = end}};`
/// `ns_search_condition all = {.kind = NS_SEARCH_AND, .units = both, .units_len = 2};`
///
/// At most 16 levels, and 1,024 conditions and keys. Only the fields of its `kind` are read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_search_condition {
    /// One of `NS_SEARCH_..`.
    pub kind: u32,
    /// `NS_SEARCH_AND`, `_OR` and `_NOT`: the first nested condition.
    pub units: *const ns_search_condition,
    /// The number of nested conditions; 1 for `NS_SEARCH_NOT`.
    pub units_len: usize,
    /// Comparisons: the tag's name, and the value to compare with. Values are compared as byte
    /// strings.
    pub tag: ns_tag,
    /// `NS_SEARCH_RECORDS`: the keys.
    pub records: ns_key_list,
}

fn invalid<T>(detail: String) -> Result<T> {
    Err(Error::BadArgument { detail })
}

/// Reads conditions within a limit: the pointers of a caller may form a cycle.
struct ConditionReader {
    units_left: usize,
}

impl ConditionReader {
    fn take(&mut self, units: usize) -> Result<()> {
        match self.units_left.checked_sub(units) {
            Some(left) => self.units_left = left,
            None => {
                return invalid(format!(
                    "the search has more than {SEARCH_UNITS_MAX} conditions and keys: split it"
                ));
            }
        }
        Ok(())
    }

    /// # Safety
    /// Rule 2.
    unsafe fn read(
        &mut self,
        condition: *const ns_search_condition,
        depth: usize,
    ) -> Result<Search> {
        if depth == 0 {
            return invalid(format!(
                "the search has more than {SEARCH_DEPTH_MAX} levels: reduce the nesting"
            ));
        }
        self.take(1)?;
        // SAFETY: rule 2.
        let condition = unsafe { borrow(condition, "the condition") }?;
        let op = match condition.kind {
            NS_SEARCH_AND | NS_SEARCH_OR | NS_SEARCH_NOT => {
                // SAFETY: rule 2.
                return unsafe { self.units(condition, depth) };
            }
            NS_SEARCH_RECORDS => {
                self.take(condition.records.len)?;
                // SAFETY: rule 2.
                let keys = unsafe { condition.records.slice() }?;
                // SAFETY: rule 2.
                let keys = keys.iter().map(|key| Ok(unsafe { key.key() }?.to_vec()));
                return Ok(Search::Records(keys.collect::<Result<_>>()?));
            }
            NS_SEARCH_EQ => Op::Eq,
            NS_SEARCH_NEQ => Op::Neq,
            NS_SEARCH_GT => Op::Gt,
            NS_SEARCH_GTE => Op::Gte,
            NS_SEARCH_LT => Op::Lt,
            NS_SEARCH_LTE => Op::Lte,
            kind => {
                return invalid(format!(
                    "unknown kind of condition {kind}: expected one of NS_SEARCH_.."
                ));
            }
        };
        // SAFETY: rule 2.
        let (tag, value) = unsafe { condition.tag.read() }?;
        Ok(Search::Compare { op, tag: tag.to_owned(), value: value.to_vec() })
    }

    /// # Safety
    /// Rule 2.
    unsafe fn units(&mut self, condition: &ns_search_condition, depth: usize) -> Result<Search> {
        let len = condition.units_len;
        if len > self.units_left {
            self.take(len)?;
        }
        let mut units = Vec::new();
        if len > 0 {
            // SAFETY: rule 2.
            unsafe { borrow(condition.units, "the units of a condition") }?;
            // SAFETY: neither NULL nor misaligned (checked above), within a limit; rule 2
            // guarantees the units.
            for unit in unsafe { std::slice::from_raw_parts(condition.units, len) } {
                // SAFETY: rule 2.
                units.push(unsafe { self.read(unit, depth - 1) }?);
            }
        }
        Ok(match condition.kind {
            NS_SEARCH_AND => Search::And(units),
            NS_SEARCH_OR => Search::Or(units),
            _ => match units.pop() {
                Some(unit) if units.is_empty() => Search::Not(Box::new(unit)),
                _ => return invalid(format!("NS_SEARCH_NOT with {len} conditions: expected one")),
            },
        })
    }
}

/// # Safety
/// Rule 2.
unsafe fn read(condition: *const ns_search_condition) -> Result<Search> {
    let mut reader = ConditionReader { units_left: SEARCH_UNITS_MAX };
    // SAFETY: the same rule.
    unsafe { reader.read(condition, SEARCH_DEPTH_MAX) }
}

/// Calls `each` once with the key of every matching record, in unspecified order, until it returns
/// false. A record that matches during the whole call is reported; a record that changes during the
/// call may be reported or not. The most selective index provides candidates, and each candidate is
/// checked. Without a suitable index, every record is checked.
///
/// Fails with `NS_BAD_ARGUMENT` if the search is too deep, too large or empty, `NS_KEY_TOO_LARGE`,
/// `NS_CONFLICT` if an index changes too often during the call, `NS_DAMAGED`, `NS_FORKED`. `each`
/// may have been called before a failure.
///
/// # Safety
/// Rules 1, 2 (for every nested condition) and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_search(
    session: *mut ns_session,
    namespace: ns_namespace,
    condition: *const ns_search_condition,
    each: ns_key_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let search = unsafe { read(condition) }?;
        let each = each.ok_or_else(|| null("the callback"))?;
        let namespace = session.namespace(namespace)?;
        session.while_open(|| {
            session.store().search(namespace, &search, u64::MAX, |key| {
                // SAFETY: rule 4: it takes these arguments and returns.
                unsafe { each(context, ns_bytes::of(key)) }
            })
        })?;
        Ok(ns_status::NS_OK)
    })
}

/// Counts the matching records. Fails as `ns_search`.
///
/// # Safety
/// Rules 1, 2 (for every nested condition) and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_search_count(
    session: *mut ns_session,
    namespace: ns_namespace,
    condition: *const ns_search_condition,
    records: *mut u64,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let search = unsafe { read(condition) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(records, "the number of records") }?;
        out.put(session.store().search_count(session.namespace(namespace)?, &search)?);
        Ok(ns_status::NS_OK)
    })
}

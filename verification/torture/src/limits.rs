//! Limits of namespaces: a child sets limits, writes up to them and removes them. It is killed at
//! every point that this reaches. Another process verifies that what is counted is what the records
//! take: the offline check compares both.

use std::path::Path;

use nearstate_store::{
    Condition, Error, Filter, Kind, Namespace, NamespaceLimits, Schema, Session,
};

use crate::error_context::ErrorContext as _;
use crate::region_access::{create_region, open_session};
use crate::verify::check_clean;

pub(crate) const NAMES: [&str; 2] = ["limited", "limited-too"];

/// Records of each namespace before its first limit: its index has some dozens of buckets.
pub(crate) const RECORDS: u32 = 150;

/// What the records may take.
const LIMIT: u64 = 64 << 10;

fn open(session: &Session, name: &str) -> Result<Namespace, String> {
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    session.namespace(name, &schema).context(name)
}

/// Creates the region with its records.
pub fn prepare(folder: &Path) -> Result<(), String> {
    let session = open_session(&create_region(folder)?)?;
    for name in NAMES {
        let namespace = open(&session, name)?;
        for number in 0..RECORDS {
            let value = vec![1; number as usize];
            session.put(namespace, &number.to_be_bytes(), &value).context("put")?;
        }
    }
    Ok(())
}

/// Sets limits of the first namespace.
pub(crate) fn limit_first(folder: &Path) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let limits = NamespaceLimits { soft_bytes: 0, hard_bytes: LIMIT };
    session.set_limits(open(&session, NAMES[0])?, limits).context("set limits")
}

/// A refusal is an answer.
fn unless_refused<T>(answer: Result<T, Error>) -> Result<bool, String> {
    match answer {
        Ok(_) => Ok(true),
        Err(Error::LimitReached { .. }) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

/// Grows and shrinks both namespaces, until the limit refuses it.
fn write(session: &Session, [one, other]: [Namespace; 2]) -> Result<(), String> {
    let mut refused = 0;
    for number in 0..12_u32 {
        let (key, value) = (number.to_be_bytes(), vec![2; 4000 * (number as usize % 4)]);
        refused += u32::from(!unless_refused(session.put(one, &key, &value))?);
        let moved = session.transact(|txn| {
            txn.delete(one, &key)?;
            txn.put(other, &[b"moved-", &key[..]].concat(), &value)?;
            txn.put(one, b"last", &key)
        });
        refused += u32::from(!unless_refused(moved)?);
        session.delete(other, &number.to_be_bytes()).context("delete")?;
    }
    let mut grown = 0_u32;
    while grown < 40 && unless_refused(session.put(one, &(7000 + grown).to_be_bytes(), &[3; 4000]))?
    {
        grown += 1;
    }
    for number in 0..grown {
        session.delete(one, &(7000 + number).to_be_bytes()).context("delete")?;
    }
    if grown == 40 && refused == 0 {
        return Err("the limit refuses nothing".to_owned());
    }
    Ok(())
}

/// A child's role. A repetition continues what a killed child has begun.
pub fn play(folder: &Path) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let [one, other] = NAMES.map(|name| open(&session, name));
    let both = [one?, other?];
    let limits = NamespaceLimits { soft_bytes: LIMIT / 2, hard_bytes: LIMIT };
    for round in 0..2 {
        for namespace in both {
            session.set_limits(namespace, limits).context("set limits")?;
        }
        write(&session, both)?;
        if round == 0 {
            // With an event for each change.
            drop(session.watch(both[0], Filter::Namespace).context("watch")?);
            write(&session, both)?;
        }
        session.set_limits(both[1], NamespaceLimits::default()).context("no limits")?;
    }
    Ok(())
}

/// What the next process finds: limits that hold or do not exist, and a count that writers
/// complete.
pub fn verify(folder: &Path, attached: Option<&Session>) -> Result<(), String> {
    let path = folder.join("region");
    if attached.is_none() {
        // What was counted so far is right, also in the middle of a count.
        check_clean(&path)?;
    }
    let own = match attached {
        None => Some(open_session(&path)?),
        Some(_) => None,
    };
    let session = attached.or(own.as_ref()).ok_or("no session")?;
    for name in NAMES {
        let namespace = open(session, name)?;
        for number in 0..RECORDS {
            // Writers continue an interrupted count.
            let key = (9000 + number).to_be_bytes();
            unless_refused(session.put_if(namespace, &key, b"x", Condition::Always))?;
            session.delete(namespace, &key).context("delete")?;
        }
        match session.usage(namespace).context("usage")? {
            Some(usage) if !usage.is_complete => {
                return Err(format!("{name}: its count is not continued: {usage:?}"));
            }
            Some(usage) if usage.used_bytes > LIMIT => {
                return Err(format!("{name} exceeds its limit: {usage:?}"));
            }
            _ => {}
        }
    }
    Ok(())
}

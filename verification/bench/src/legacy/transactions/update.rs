//! Changing contexts: one in a transaction that reads it first, beside a bare put; several in one
//! transaction, beside as many puts.

use super::desk::{CONTEXT_BYTES, Contexts, Desk, missing, wrong};
use super::findings::{Goal, Row, Unit};
use crate::legacy::micro::work::{Key, Material, Work};
use nearstate_model::Result;
use nearstate_store::{Condition, Outcome};

/// A context in the hands of its owner.
type Context = [u8; CONTEXT_BYTES];

/// Where a service request writes, and how much: 1,280 bits (paper 1, Table II).
const SERVICE_REQUEST: std::ops::Range<usize> = 200..360;

/// Records of one transaction, in the measures of several.
const SEVERAL: [usize; 3] = [2, 4, 16];

impl Contexts {
    /// Reads a context, changes what a service request changes, writes it: one transaction.
    #[inline]
    fn update(&self, key: &Key, change: &[u8]) -> Result<()> {
        self.session.transact(|txn| {
            let record = txn.get(self.namespace, key)?.ok_or_else(missing)?;
            let context = changed(record.bytes(), change)?;
            txn.put(self.namespace, key, &context)
        })
    }

    /// The same by hand, with a condition on the version.
    #[inline]
    fn update_if(&self, key: &Key, change: &[u8]) -> Result<()> {
        loop {
            let view = self.session.get(self.namespace, key)?.ok_or_else(missing)?;
            let context = changed(view.bytes(), change)?;
            let condition = Condition::Version(view.version());
            drop(view);
            let outcome = self.session.put_if(self.namespace, key, &context, condition)?;
            if matches!(outcome, Outcome::Done { .. }) {
                return Ok(());
            }
        }
    }

    /// The sum of all contexts' counters.
    fn counted(&self) -> Result<u64> {
        let mut scan = self.session.scan(self.namespace)?;
        let mut sum = 0_u64;
        while let Some(view) = scan.next()? {
            sum = sum.wrapping_add(crate::legacy::content::first_word(view.bytes()));
        }
        Ok(sum)
    }
}

/// A context after a service request; its first word counts the changes.
#[inline]
fn changed(context: &[u8], change: &[u8]) -> Result<Context> {
    let mut new: Context = context.try_into().map_err(|_| wrong("a context has another size"))?;
    if let (Some(to), Some(from)) =
        (new.get_mut(SERVICE_REQUEST), change.get(..SERVICE_REQUEST.len()))
    {
        to.copy_from_slice(from);
    }
    if let Some((count, _)) = new.split_first_chunk_mut::<8>() {
        *count = u64::from_le_bytes(*count).wrapping_add(1).to_le_bytes();
    }
    Ok(new)
}

/// Calls `each` with every key of a turn and a value; how many that were.
#[inline]
fn all(work: &Work<'_>, mut each: impl FnMut(&Key, &[u8]) -> Result<()>) -> Result<u64> {
    let mut values = work.values.iter().cycle();
    for run in &work.runs {
        for key in *run {
            each(key, values.next().map_or(&[][..], Vec::as_slice))?;
        }
    }
    Ok(work.ops)
}

/// One context: a transaction that reads and writes it, beside a bare put.
///
/// # Errors
/// What the region said, and `Backend` if a change was lost.
pub fn one(desk: &mut Desk<'_>, contexts: &Contexts, material: &Material) -> Result<()> {
    let title = format!("read-modify-write of a context of {CONTEXT_BYTES} B");
    let mut row = Row::new(&title, material.len(), Unit::Ns);
    row.goals = vec![Goal::TimesAtMost("put", 1.6)];
    let (session, namespace) = (&contexts.session, contexts.namespace);
    desk.turns(
        row,
        material,
        &mut [
            ("transaction", &mut |work| all(work, |key, change| contexts.update(key, change))),
            ("put", &mut |work| {
                all(work, |key, value| session.put(namespace, key, value).map(|_| ()))
            }),
            ("get, put_if", &mut |work| all(work, |key, value| contexts.update_if(key, value))),
            ("blind put in a transaction", &mut |work| {
                all(work, |key, value| session.transact(|txn| txn.put(namespace, key, value)))
            }),
        ],
    )?;
    let before = contexts.counted()?;
    let work = material.work(0, desk.options.ops(), desk.options.clock);
    let updates = all(&work, |key, change| contexts.update(key, change))?;
    match contexts.counted()?.wrapping_sub(before) {
        counted if counted == updates => Ok(()),
        counted => Err(wrong(&format!("{updates} changes were made and {counted} are there"))),
    }
}

/// Several contexts in one transaction, beside as many puts.
///
/// # Errors
/// What the region said.
pub fn several(desk: &mut Desk<'_>, contexts: &Contexts, material: &Material) -> Result<()> {
    let (session, namespace) = (&contexts.session, contexts.namespace);
    for count in SEVERAL {
        let title = format!("put of {count} contexts in a transaction, per context");
        let row = Row::new(&title, material.len(), Unit::Ns);
        desk.turns(
            row,
            material,
            &mut [
                ("transaction", &mut |work| {
                    let mut done = 0;
                    let value = work.values.first().map_or(&[][..], Vec::as_slice);
                    for keys in work.runs.iter().flat_map(|run| run.chunks_exact(count)) {
                        session.transact(|txn| {
                            keys.iter().try_for_each(|key| txn.put(namespace, key, value))
                        })?;
                        done += keys.len() as u64;
                    }
                    Ok(done)
                }),
                ("puts", &mut |work| {
                    let value = work.values.first().map_or(&[][..], Vec::as_slice);
                    all(work, |key, _| session.put(namespace, key, value).map(|_| ()))
                }),
            ],
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_request_changes_its_part_and_counts() {
        let old = [7_u8; CONTEXT_BYTES];
        let new = changed(&old, &[9; 200]).unwrap();
        assert_eq!(new[8..200], old[8..200]);
        assert_eq!(new[200..360], [9; 160]);
        assert_eq!(new[360..], old[360..]);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(word(&new), word(&old) + 1);
        assert!(changed(&old[1..], &[9; 200]).is_err());
    }
}

//! Operations that may use the reserve of a full heap (`docs/decisions/013-heap.md`).

use nearstate_model::{Error, Result};

use crate::heap::allocate::JOINS_MAX;
use crate::heap::held;
use crate::heap::refill::no_room;
use crate::member::refusals::ReaderWaits;
use crate::member::{AfterFull, Member};

/// An operation that found no room before it used the reserve.
struct FullRefusal {
    error: Error,
    /// It is the heap that is full.
    is_of_heap: bool,
    waits: ReaderWaits,
}

impl Member {
    /// Runs an operation that changes the region. If the heap is full for it, live records are
    /// moved together, as far as that makes room, and the operation runs again. If it is still
    /// full, the operation runs once more and may use the reserve, provided that it does not make
    /// the content of the region larger: deleting, collecting, and replacing by as much or less
    /// always succeed, unless the record is longer than the rest of the reserve, or readers hold
    /// back as much as the reserve has. Before such an operation is refused it waits for readers,
    /// 100 ms at most, and runs again.
    ///
    /// # Errors
    /// Those of the operation. It must change nothing if it fails.
    #[inline]
    pub fn with_reserve<T>(&self, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        let (mut refusal, mut evacuations): (Option<FullRefusal>, _) = (None, 0);
        self.after_full.set(AfterFull::Join(JOINS_MAX));
        // One call in a loop, so that it is part of its caller.
        loop {
            // In the same operation, so that no member takes cells of this one while it has pending
            // ones.
            let done = self.operation(|| {
                let done = operation();
                if done.is_err() {
                    self.arena().roll_back()?;
                }
                done
            });
            // The usual case first: its value is moved once.
            let done = match done {
                Ok(value) if refusal.is_none() => {
                    self.after_full.set(AfterFull::Error);
                    self.return_lent_if_due();
                    return Ok(value);
                }
                other => other,
            };
            if let Some(mut full) = refusal {
                match self.may_run_again(&done, &mut full) {
                    Ok(true) => refusal = Some(full),
                    Ok(false) => return self.end_reserve(done, full),
                    Err(error) => return self.end_reserve(Err(error), full),
                }
                continue;
            }
            match done {
                Err(full @ Error::Full { .. }) if !self.may_use_reserve.get() => {
                    let is_of_heap = self.wanted_units.get() != 0;
                    if !self.has_room_after(&mut evacuations)? {
                        self.begin_reserve()?;
                        let waits = ReaderWaits::default();
                        refusal = Some(FullRefusal { error: full, is_of_heap, waits });
                    }
                }
                other => {
                    self.after_full.set(AfterFull::Error);
                    self.return_lent_if_due();
                    return other;
                }
            }
        }
    }

    /// Before an operation runs again with the reserve.
    #[cold]
    fn begin_reserve(&self) -> Result<()> {
        let restored = self.restore_reserve();
        if restored.is_err() {
            self.after_full.set(AfterFull::Error);
        }
        restored?;
        self.refusals.lent.is_growth.set(false);
        self.refusals.lent.is_deletion.set(false);
        self.may_use_reserve.set(true);
        Ok(())
    }

    /// To be called in an operation that runs by [`Member::with_reserve`], if it only deletes
    /// records: it may use what the reserve keeps for deletions. `deletes_only` is called if the
    /// reserve is used.
    ///
    /// Cost: one load otherwise.
    #[inline]
    pub fn note_deletion(&self, deletes_only: impl FnOnce() -> bool) {
        if self.may_use_reserve.get() {
            self.refusals.lent.is_deletion.set(deletes_only());
        }
    }

    /// After an operation found no room: true if it should run again without the reserve.
    #[cold]
    fn has_room_after(&self, evacuations: &mut u32) -> Result<bool> {
        let wanted = self.wanted_units.get();
        if self.refusals.is_known.get() && wanted != 0 {
            self.refusals.refused_units.set(wanted);
            self.after_full.set(AfterFull::Retry);
            return Ok(false);
        }
        if let AfterFull::JoinDue(left) = self.after_full.get() {
            // A failure ends the operation.
            self.after_full.set(AfterFull::Error);
            let has_joined = left != 0 && self.joins_run()?;
            let next = if has_joined { AfterFull::Join(left - 1) } else { AfterFull::Retry };
            self.after_full.set(next);
            return Ok(true);
        }
        *evacuations += 1;
        self.after_full.set(AfterFull::Error);
        let has_room = self.makes_room(*evacuations)?;
        self.refusals.refused_units.set(wanted);
        self.refusals.is_known.set(false);
        self.after_full.set(AfterFull::Retry);
        Ok(has_room)
    }

    /// After an operation that may use the reserve: true if it was refused, and should run again
    /// after a wait. While this member has a pin, [`Member::wait_and_return_if_due`] waits later.
    #[cold]
    fn may_run_again<T>(&self, done: &Result<T>, full: &mut FullRefusal) -> Result<bool> {
        let known = &self.refusals.lent;
        let is_full = full.is_of_heap && matches!(done, Err(Error::Full { .. }));
        let is_refused = is_full && !known.is_growth.get();
        known.is_wait_due.set(is_refused && self.has_pin());
        if !is_refused || self.has_pin() {
            return Ok(false);
        }
        self.may_use_reserve.set(false);
        // The next run says it again. What is returned takes nothing of the last chunk.
        known.is_deletion.set(false);
        let may_run = self.wait_and_return(&mut full.waits);
        self.may_use_reserve.set(true);
        if may_run == Ok(true) {
            // What has come free may be elsewhere.
            self.refusals.is_known.set(false);
        }
        may_run
    }

    /// Ends the use of the reserve. If the operation does not fit into the reserve either, its
    /// first error tells why.
    #[cold]
    fn end_reserve<T>(&self, repeated: Result<T>, full: FullRefusal) -> Result<T> {
        let FullRefusal { error: full, is_of_heap, .. } = full;
        self.may_use_reserve.set(false);
        self.refusals.lent.is_deletion.set(false);
        self.after_full.set(AfterFull::Error);
        let is_refused = matches!(repeated, Err(Error::Full { .. }));
        let is_known = self.refusals.is_known.replace(false) && is_refused;
        let repeated = match repeated {
            Err(Error::Full { .. }) if is_of_heap => Err(self.describe_full(full, is_known)?),
            Err(Error::Full { .. }) => Err(full),
            other => other,
        };
        if is_known {
            self.wanted_units.set(0);
            // As below.
            let _ = self.operation(|| self.free_lent());
            return repeated;
        }
        // What was lent comes back at once, and what was replaced is free for others. A failure
        // does not change what the operation did: the next refill frees what is left.
        let _ = self.operation(|| {
            held::give_up_log(self.map())?;
            self.free_all()
        });
        self.refusals.lent_classes.borrow_mut().clear();
        if !is_refused {
            let _ = self.return_lent();
        }
        if is_refused && is_of_heap {
            // Without it, the next refusal searches again.
            let _ = self.note_refusal(self.refusals.refused_units.get());
        }
        repeated
    }

    /// Fails if an operation that uses the reserve makes the content of the region larger.
    pub(crate) fn check_growth(&self, bytes_before: u64, bytes_after: u64) -> Result<()> {
        if self.may_use_reserve.get() && bytes_after > bytes_before {
            self.refusals.lent.is_growth.set(true);
            return Err(no_room());
        }
        Ok(())
    }
}

//! A counter: sixteen stripes, each on a line of its own, so that writers do not meet. Adding is
//! one instruction, which a kill does not tear; there is no lock, no note and nothing to recover.

use nearstate_model::Result;

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::cell::{self, CELL_HEADER_BYTES, Cell, CellHeader, CellKind};
use crate::layout::{Corruption, LINE};
use crate::member::Member;
use crate::region::map::Map;

/// Stripes of a counter: members whose indexes are neighbours do not share a line. A read loads
/// them all, and a counter fills 1,088 bytes.
const STRIPES: u64 = 16;

const BYTES: u64 = LINE + STRIPES * LINE;

/// A counter that a record owns. Stays while the pin under which it was found holds.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'m> {
    map: &'m Map,
    at: u64,
}

impl<'m> Cell<'m> {
    /// The counter that this record owns as its child with this number.
    ///
    /// # Errors
    /// Damage: not a counter, or outside the region.
    #[inline]
    pub fn counter(&self, index: u64) -> Result<Counter<'m>, Corruption> {
        if index >= self.children() {
            return Err(Corruption("a record of a counter owns no cell"));
        }
        let child = Cell::new(self.map(), self.child(index)?)?;
        if child.kind()? != CellKind::Counter {
            return Err(Corruption("a record owns a cell that is not a counter"));
        }
        Ok(Counter { map: self.map(), at: child.at() })
    }
}

impl Counter<'_> {
    #[inline]
    fn stripe(&self, index: u64) -> Result<&AtomicU64, Corruption> {
        self.map.word(self.at.saturating_add(LINE + index % STRIPES * LINE))
    }

    /// Adds to the stripe of a member. Wraps round beyond 64 bits, as two's complement does.
    ///
    /// # Errors
    /// Damage: outside the region.
    #[inline]
    pub fn add(&self, member: &Member, delta: i64) -> Result<(), Corruption> {
        // Relaxed: a load of the same word that happens after this add sees it in any order, and a
        // counter publishes nothing but itself.
        crash_point!("counter.adding");
        self.stripe(u64::from(member.index()))?.fetch_add(delta.cast_unsigned(), Ordering::Relaxed);
        crash_point!("counter.added");
        Ok(())
    }

    /// The sum of the stripes.
    ///
    /// Every add that returned before the call is in it, none that began after it returned, and of
    /// those at the same time some. The stripes are read one after the other: of two adds of
    /// different members during the call the later one may be in and the earlier one not. For adds
    /// of one member, and so for a counter that one member adds to, it is linearizable.
    ///
    /// # Errors
    /// Damage: outside the region.
    pub fn sum(&self) -> Result<i64, Corruption> {
        let mut sum = 0_u64;
        for index in 0..STRIPES {
            sum = sum.wrapping_add(self.stripe(index)?.load(Ordering::Relaxed));
        }
        Ok(sum.cast_signed())
    }
}

impl Member {
    /// A pending counter cell that stands at this sum.
    ///
    /// # Errors
    /// As [`Member::allocate`].
    pub fn draft_counter(&self, sum: i64) -> Result<u64> {
        let map = self.map();
        let at = self.allocate(BYTES)?;
        let head = CellHeader {
            kind: CellKind::Counter,
            flags: 0,
            body: (BYTES - CELL_HEADER_BYTES) as u32,
            key: 0,
            children: 0,
            hash: 0,
        };
        cell::begin(map, at, &head)?;
        for word in map.slice(at + LINE, (BYTES - LINE) / 8)? {
            word.store(0, Ordering::Relaxed);
        }
        Counter { map, at }.add(self, sum)?;
        cell::seal(map, at, 0, 0)?;
        crash_point!("counter.made");
        Ok(at)
    }
}

//! A counter: sixteen stripes, each on its own line, so that writers do not contend. An addition is
//! one instruction, which a kill cannot tear. There is no lock, no undo record and no recovery.

use nearstate_model::Result;

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::cell::{self, CELL_HEADER_BYTES, Cell, CellHeader, CellKind};
use crate::layout::{Corruption, LINE};
use crate::member::Member;
use crate::region::map::Map;

/// Stripes of a counter. Members with adjacent indexes do not share a line. A read loads all
/// stripes, and a counter occupies 1,088 bytes.
const STRIPES: u64 = 16;

const BYTES: u64 = LINE + STRIPES * LINE;

/// A counter that a record owns. Valid while the pin under which it was found is held.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'m> {
    map: &'m Map,
    at: u64,
}

impl<'m> Cell<'m> {
    /// The counter that this record owns as its child with this number.
    ///
    /// # Errors
    /// `Corruption`: not a counter, or outside the region.
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

    /// Adds to the stripe of a member. Wraps beyond 64 bits, in two's complement.
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    #[inline]
    pub fn add(&self, member: &Member, delta: i64) -> Result<(), Corruption> {
        // Relaxed: a load of the same word that happens after this addition sees it in any order,
        // and a counter publishes only itself.
        crash_point!("counter.adding");
        self.stripe(u64::from(member.index()))?.fetch_add(delta.cast_unsigned(), Ordering::Relaxed);
        crash_point!("counter.added");
        Ok(())
    }

    /// The sum of the stripes.
    ///
    /// It contains every addition that returned before the call, none that began after it returned,
    /// and some of the concurrent ones. Stripes are read one after the other: of two additions by
    /// different members during the call the later one may be included and the earlier one not.
    /// Additions of one member are linearizable.
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    pub fn sum(&self) -> Result<i64, Corruption> {
        let mut sum = 0_u64;
        for index in 0..STRIPES {
            sum = sum.wrapping_add(self.stripe(index)?.load(Ordering::Relaxed));
        }
        Ok(sum.cast_signed())
    }
}

const _: () = assert!(LINE + STRIPES * LINE <= BYTES, "each stripe has a line of its own");
const _: () = assert!(BYTES.is_multiple_of(LINE) && CELL_HEADER_BYTES < LINE);

impl Member {
    /// Allocates a pending counter cell with this sum.
    ///
    /// # Errors
    /// As [`Member::allocate`].
    pub fn allocate_counter(&self, sum: i64) -> Result<u64> {
        self.check_usable()?;
        self.operation(|| {
            let map = self.map();
            let at = self.allocate_fixed(BYTES)?;
            let head = CellHeader {
                kind: CellKind::Counter,
                flags: 0,
                namespace: 0,
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
            crash_point!("counter.sealed");
            Ok(at)
        })
    }
}

//! What evacuations of a member have looked at (`docs/decisions/015-evacuation.md`).

use std::cell::{Cell as Private, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// What evacuations of a member have looked at.
#[derive(Debug, Default)]
pub(crate) struct EvacuatedParts {
    /// The chunks that those for the current operation have emptied as far as possible.
    pub(crate) tried_chunks: RefCell<Vec<u64>>,
    /// What is known of chunks that were looked at. It counts as long as `surveyed_under` does.
    pub(crate) surveyed: RefCell<BTreeMap<u64, SurveyedChunk>>,
    /// What decides whether cells can be moved, apart from the chunks: the floor of the log, and a
    /// check value of the stalled readers.
    pub(crate) surveyed_under: Private<(u64, u64)>,
    /// Chunks that may still be emptied for large cells until one finds room or more memory is
    /// free. `None`: as many as the heap has.
    pub(crate) chunks_left: Private<Option<u64>>,
    /// The neighbours that are being emptied: nothing is put there that is moved.
    pub(crate) window: RefCell<Range<u64>>,
    /// Waits for readers end then, for the current operation.
    pub(crate) wait_until: Private<Option<Instant>>,
    /// Units of a cell for which moving records made no room, and the free units then. 0: none.
    pub(crate) vain: Private<(u64, u64)>,
    /// The catalog entry and the bucket at which the next search for empty overflow lines begins.
    pub(crate) swept: Private<(u32, u64)>,
}

/// A chunk that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SurveyedChunk {
    /// Its allocated units then. With another number it is looked at again.
    pub(crate) used: u64,
    /// The longest run of units that are free, or can become free. All of the chunk if nothing in
    /// it stays.
    pub(crate) longest: u64,
}

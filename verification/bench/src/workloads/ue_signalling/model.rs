//! The expected contexts: for each UE the number of its last procedure of each kind.
//!
//! A procedure sets its variables from its own random number only. Therefore the last procedures of
//! each kind, applied in order, result in the same bytes as all of them. The verification at the
//! end uses these. Replies during the run are compared with a 32-bit hash of each block, which
//! takes nanoseconds.

use super::{
    BLOCKS, Block, BlockSet, Context, Parameters, Procedure, UeState, apply, blocks_touched,
    draw_for,
};

/// Kinds of procedures that modify the context.
const KINDS: usize = 7;

/// A UE of a client, by its index among the client's UEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ue(usize);

impl Ue {
    #[inline]
    pub(super) fn of(local: u64) -> Self {
        Self(usize::try_from(local).unwrap_or(usize::MAX))
    }

    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0
    }
}

/// 56 bytes per UE, in one cache line.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct UeHistory {
    /// Procedures so far.
    count: u32,
    /// Number of the last procedure of each kind, from 1; 0: never.
    last: [u32; KINDS],
    /// The hash of each block.
    hashes: [u32; BLOCKS.len()],
}

/// Odd numbers from which the key of each position is made.
const KEY: u64 = 0x9E37_79B9_7F4A_7C15;
const KEY_STEP: u64 = 0xD6E8_FEB8_6659_FD93;

/// A 32-bit hash of a block. The products are independent, so the processor computes them in
/// parallel. Each position has its own key, so that equal changes of two words do not cancel.
#[inline]
fn hash(bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<16>();
    let mut folded = bytes.len() as u64;
    let mut key = KEY;
    for pair in pairs {
        folded ^= product(u128::from_le_bytes(*pair), key);
        key = key.wrapping_add(KEY_STEP);
    }
    let mut last = [0; 16];
    if let Some(pair) = bytes.last_chunk::<16>() {
        last = *pair;
    } else {
        for (to, byte) in last.iter_mut().zip(rest) {
            *to = *byte;
        }
    }
    folded ^= product(u128::from_le_bytes(last), !key);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
    {
        (folded ^ (folded >> 32)) as u32
    }
}

/// Mixes two words into one.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
const fn product(pair: u128, key: u64) -> u64 {
    let (low, high) = (pair as u64 ^ key, (pair >> 64) as u64 ^ key.rotate_left(32));
    let whole = low as u128 * high as u128;
    (whole >> 64) as u64 ^ whole as u64
}

/// The model of a client's UEs.
#[derive(Debug)]
pub(super) struct UeModel {
    seed: u64,
    client: u64,
    clients: u64,
    history: Vec<UeHistory>,
}

/// The index of a procedure in [`UeHistory::last`].
#[inline]
const fn kind_of(procedure: Procedure) -> Option<usize> {
    match procedure {
        Procedure::InitialAttach => Some(0),
        Procedure::Detach => Some(1),
        Procedure::ServiceRequest => Some(2),
        Procedure::S1Release => Some(3),
        Procedure::TrackingAreaUpdate => Some(4),
        Procedure::Handover => Some(5),
        Procedure::SessionManagement => Some(6),
        Procedure::CellReselection => None,
    }
}

impl UeModel {
    /// The model of the UEs `client`, `client + clients`, ...
    pub(super) fn new(parameters: &Parameters, client: usize, clients: usize) -> Self {
        let (client, clients) = (client as u64, clients.max(1) as u64);
        let own = parameters.records.saturating_sub(client).div_ceil(clients);
        let history = vec![UeHistory::default(); usize::try_from(own).unwrap_or(0)];
        Self { seed: parameters.seed, client, clients, history }
    }

    pub(super) const fn len(&self) -> u64 {
        self.history.len() as u64
    }

    /// The number of a UE among all of them.
    #[inline]
    pub(super) const fn global(&self, ue: Ue) -> u64 {
        self.client + ue.0 as u64 * self.clients
    }

    /// Prefetches the history of a UE.
    #[inline]
    pub(super) fn prefetch(&self, ue: Ue) {
        if let Some(history) = self.history.get(ue.0) {
            nearstate_store::prefetch(history);
        }
    }

    /// The random number of the next procedure of a UE.
    #[inline]
    pub(super) fn draw(&self, ue: Ue) -> u64 {
        let number = self.history.get(ue.0).map_or(0, |history| history.count) + 1;
        draw_for(self.seed, self.global(ue), number.into())
    }

    /// Records a completed procedure; `after` is the context after it.
    #[inline]
    pub(super) fn completed(&mut self, ue: Ue, procedure: Procedure, after: &Context) {
        self.count(ue, procedure);
        if let Some(history) = self.history.get_mut(ue.0) {
            for block in blocks_touched(procedure).iter() {
                if let Some(expected) = history.hashes.get_mut(block as usize) {
                    *expected = hash(after.view().block(block));
                }
            }
        }
    }

    /// True if the blocks that were read have the expected hashes.
    #[inline]
    pub(super) fn matches_hashes(
        &self,
        ue: Ue,
        context: &Context,
        blocks: BlockSet,
        is_read: impl Fn(Block) -> bool,
    ) -> bool {
        let Some(history) = self.history.get(ue.0) else { return false };
        blocks.iter().filter(|block| is_read(*block)).all(|block| {
            history.hashes.get(block as usize).copied() == Some(hash(context.view().block(block)))
        })
    }

    #[inline]
    fn count(&mut self, ue: Ue, procedure: Procedure) {
        if let Some(history) = self.history.get_mut(ue.0) {
            history.count += 1;
            if let Some(last) = kind_of(procedure).and_then(|kind| history.last.get_mut(kind)) {
                *last = history.count;
            }
        }
    }

    /// Sets the history of a loaded UE: attached, and the procedure that leads to this state.
    pub(super) fn set_loaded(&mut self, ue: Ue, state: UeState) {
        if let Some(history) = self.history.get_mut(ue.0) {
            *history = UeHistory::default();
        }
        self.count(ue, Procedure::InitialAttach);
        match state {
            UeState::Connected => {}
            UeState::Idle => self.count(ue, Procedure::S1Release),
            UeState::Deregistered => self.count(ue, Procedure::Detach),
        }
        let context = self.expected(ue);
        if let Some(history) = self.history.get_mut(ue.0) {
            for (expected, block) in history.hashes.iter_mut().zip(BLOCKS) {
                *expected = hash(context.view().block(*block));
            }
        }
    }

    /// The expected context of a UE.
    pub(super) fn expected(&self, ue: Ue) -> Context {
        let number = self.global(ue);
        let mut context = Context::provisioned(number, self.seed);
        let Some(history) = self.history.get(ue.0) else { return context };
        let mut order: [(u32, Option<Procedure>); Procedure::ALL.len()] =
            [(0, None); Procedure::ALL.len()];
        for (entry, procedure) in order.iter_mut().zip(Procedure::ALL) {
            let last = kind_of(procedure).and_then(|kind| history.last.get(kind));
            *entry = (last.copied().unwrap_or(0), Some(procedure));
        }
        order.sort_unstable_by_key(|(last, _)| *last);
        for (last, procedure) in order {
            if let Some(procedure) = procedure.filter(|_| last > 0) {
                apply(procedure, &mut context, draw_for(self.seed, number, last.into()));
            }
        }
        context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_every_byte_and_its_position() {
        for length in [1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 200] {
            let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at).unwrap() ^ 0x5a).collect();
            let mut hashes = vec![hash(&bytes), hash(&bytes[1..])];
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[at] ^= 1 << bit;
                    hashes.push(hash(&other));
                }
            }
            for at in (0..bytes.len().saturating_sub(15)).step_by(8) {
                let mut other = bytes.clone();
                other[at..at + 16].rotate_left(8);
                hashes.push(hash(&other));
            }
            let count = hashes.len();
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), count, "two blocks of {length} bytes have the same hash");
        }
    }
}

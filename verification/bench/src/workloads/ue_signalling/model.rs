//! What every context must be: for each UE the number of its last procedure of each kind.
//!
//! A procedure sets its variables from its own draw alone. So the last one of each kind, applied in
//! their order to the subscriber's context, gives the same bytes as all of them. That is for the
//! comparison at the end; for answers during the run there is a mark of each block: its bytes
//! folded to 32 bits, which takes some nanoseconds.

use super::{
    BLOCKS, Block, BlockSet, Context, Parameters, Procedure, UeState, apply, blocks_touched,
    draw_for,
};

/// Kinds of procedures that leave something behind.
const KINDS: usize = 7;

/// A client's own UE, by its place among the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ue(usize);

impl Ue {
    #[inline]
    pub(super) fn of(local: u64) -> Self {
        Self(usize::try_from(local).unwrap_or(usize::MAX))
    }

    #[inline]
    pub(super) const fn place(self) -> usize {
        self.0
    }
}

/// 56 bytes for each UE, in a cache line of their own.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// Turns so far.
    turns: u32,
    /// Turn of the last procedure of each kind, from 1; 0: never.
    last: [u32; KINDS],
    /// What each block is, folded.
    marks: [u32; BLOCKS.len()],
}

/// Odd numbers that mix the words of a block; each place has its own.
const KEY: u64 = 0x9E37_79B9_7F4A_7C15;
const OTHER_KEY: u64 = 0xD6E8_FEB8_6659_FD93;

/// All bytes of a block, folded to 32 bits. The products do not wait for each other, and each place
/// has a key of its own, so that equal changes of two words do not cancel.
#[inline]
fn fold(bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<16>();
    let mut folded = bytes.len() as u64;
    let mut key = KEY;
    for pair in pairs {
        folded ^= product(u128::from_le_bytes(*pair), key);
        key = key.wrapping_add(OTHER_KEY);
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

/// Two words, mixed into one.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
const fn product(pair: u128, key: u64) -> u64 {
    let (low, high) = (pair as u64 ^ key, (pair >> 64) as u64 ^ key.rotate_left(32));
    let whole = low as u128 * high as u128;
    (whole >> 64) as u64 ^ whole as u64
}

/// The model of a client's UEs.
#[derive(Debug)]
pub(super) struct Model {
    seed: u64,
    client: u64,
    clients: u64,
    past: Vec<Past>,
}

/// The place of a procedure in [`Past::last`].
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

impl Model {
    /// UEs `client`, `client + clients`, ... of all.
    pub(super) fn new(parameters: &Parameters, client: usize, clients: usize) -> Self {
        let (client, clients) = (client as u64, clients.max(1) as u64);
        let own = parameters.records.saturating_sub(client).div_ceil(clients);
        let past = vec![Past::default(); usize::try_from(own).unwrap_or(0)];
        Self { seed: parameters.seed, client, clients, past }
    }

    pub(super) const fn len(&self) -> u64 {
        self.past.len() as u64
    }

    /// The number of a UE among all of them.
    #[inline]
    pub(super) const fn global(&self, ue: Ue) -> u64 {
        self.client + ue.0 as u64 * self.clients
    }

    /// Asks for what is known of a UE, long before it is needed.
    #[inline]
    pub(super) fn warm(&self, ue: Ue) {
        if let Some(past) = self.past.get(ue.0) {
            nearstate_store::prefetch(past);
        }
    }

    /// What the next procedure of a UE draws from.
    #[inline]
    pub(super) fn draw(&self, ue: Ue) -> u64 {
        let turn = self.past.get(ue.0).map_or(0, |past| past.turns) + 1;
        draw_for(self.seed, self.global(ue), turn.into())
    }

    /// A procedure has been done, and the blocks that it touches are as in `after`.
    #[inline]
    pub(super) fn took(&mut self, ue: Ue, procedure: Procedure, after: &Context) {
        self.count(ue, procedure);
        if let Some(past) = self.past.get_mut(ue.0) {
            for block in blocks_touched(procedure).iter() {
                if let Some(mark) = past.marks.get_mut(block as usize) {
                    *mark = fold(after.view().block(block));
                }
            }
        }
    }

    /// Whether those of some blocks that were read are what they must be, by their marks.
    #[inline]
    pub(super) fn agrees(
        &self,
        ue: Ue,
        context: &Context,
        blocks: BlockSet,
        is_read: impl Fn(Block) -> bool,
    ) -> bool {
        let Some(past) = self.past.get(ue.0) else { return false };
        blocks.iter().filter(|block| is_read(*block)).all(|block| {
            past.marks.get(block as usize).copied() == Some(fold(context.view().block(block)))
        })
    }

    #[inline]
    fn count(&mut self, ue: Ue, procedure: Procedure) {
        if let Some(past) = self.past.get_mut(ue.0) {
            past.turns += 1;
            if let Some(last) = kind_of(procedure).and_then(|kind| past.last.get_mut(kind)) {
                *last = past.turns;
            }
        }
    }

    /// A UE as it is loaded: attached, and then what brings it into this state.
    pub(super) fn provide(&mut self, ue: Ue, state: UeState) {
        if let Some(past) = self.past.get_mut(ue.0) {
            *past = Past::default();
        }
        self.count(ue, Procedure::InitialAttach);
        match state {
            UeState::Connected => {}
            UeState::Idle => self.count(ue, Procedure::S1Release),
            UeState::Deregistered => self.count(ue, Procedure::Detach),
        }
        let context = self.expected(ue);
        if let Some(past) = self.past.get_mut(ue.0) {
            for (mark, block) in past.marks.iter_mut().zip(BLOCKS) {
                *mark = fold(context.view().block(*block));
            }
        }
    }

    /// The context that a UE must have.
    pub(super) fn expected(&self, ue: Ue) -> Context {
        let number = self.global(ue);
        let mut context = Context::provisioned(number, self.seed);
        let Some(past) = self.past.get(ue.0) else { return context };
        let mut order: [(u32, Option<Procedure>); Procedure::ALL.len()] =
            [(0, None); Procedure::ALL.len()];
        for (place, procedure) in order.iter_mut().zip(Procedure::ALL) {
            let last = kind_of(procedure).and_then(|kind| past.last.get(kind));
            *place = (last.copied().unwrap_or(0), Some(procedure));
        }
        order.sort_unstable_by_key(|(turn, _)| *turn);
        for (turn, procedure) in order {
            if let Some(procedure) = procedure.filter(|_| turn > 0) {
                apply(procedure, &mut context, draw_for(self.seed, number, turn.into()));
            }
        }
        context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_sees_every_byte_and_where_it_stands() {
        for length in [1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 200] {
            let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at).unwrap() ^ 0x5a).collect();
            let mark = fold(&bytes);
            let mut marks = vec![mark, fold(&bytes[1..])];
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[at] ^= 1 << bit;
                    marks.push(fold(&other));
                }
            }
            for at in (0..bytes.len().saturating_sub(15)).step_by(8) {
                let mut other = bytes.clone();
                other[at..at + 16].rotate_left(8);
                marks.push(fold(&other));
            }
            let count = marks.len();
            marks.sort_unstable();
            marks.dedup();
            assert_eq!(marks.len(), count, "two of {length} bytes have one mark");
        }
    }
}

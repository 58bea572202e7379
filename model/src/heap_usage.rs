//! What the memory of a region is used for.

use crate::holder::Holder;

/// Sizes for which [`HeapUsage::free_by_size`] tells how much memory is usable.
pub const FREE_SIZES: [u64; 5] = [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];

/// The heap of a region at one moment. Sessions change it meanwhile, so the parts can differ from
/// the whole by what they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapUsage {
    /// Bytes of the heap.
    pub total: u64,
    /// Bytes of records, blocks, indexes and rings.
    pub live: u64,
    /// Bytes of deleted and replaced records that are not free yet.
    pub retired: u64,
    /// Bytes that sessions keep to allocate from.
    pub kept: u64,
    /// Free bytes.
    pub free: u64,
    /// The largest range of free bytes.
    pub free_largest: u64,
    /// Free bytes in ranges of at least each of [`FREE_SIZES`]: what is usable for cells of that
    /// size.
    pub free_by_size: [u64; FREE_SIZES.len()],
    /// Sessions whose views prevent the reuse of retired memory, the largest first.
    pub held_back: Vec<HeldBack>,
    /// Sessions that carry out an operation, and keep memory that no other can take meanwhile, the
    /// largest first. One whose process is stopped keeps it.
    pub in_operation: Vec<KeptInOperation>,
}

/// A session that carries out an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptInOperation {
    /// The process of the session.
    pub process: Holder,
    /// The number of the session in the member table.
    pub session: u32,
    /// Bytes that it keeps: retired ones that it has not freed, and what it allocates from.
    pub bytes: u64,
}

/// Sessions in an operation that a message names, and what such a session keeps at least.
const NAMED_IN_OPERATION: usize = 3;
const NAMED_BYTES_MIN: u64 = 64 << 10;

/// A session whose views prevent the reuse of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// The process of the session.
    pub process: Holder,
    /// The number of the session in the member table.
    pub session: u32,
    /// Retired bytes that its views hold. Other sessions may hold some of them as well.
    pub bytes: u64,
    /// Epochs since the first of its views began.
    pub epochs: u64,
    /// Milliseconds since another session found that this view does not end. 0: not yet.
    pub ms: u64,
}

impl HeldBack {
    /// ` for 5 s`, or nothing if it is less than a second.
    pub fn time(&self) -> String {
        match self.ms / 1000 {
            0 => String::new(),
            seconds => format!(" for {seconds} s"),
        }
    }
}

impl HeapUsage {
    /// One sentence for the session with the number `caller`: what the memory is used for, and what
    /// would free some: `otherwise` if no view holds back any. A view of the caller comes first,
    /// because it can drop it at once, then one of a session for which `is_of_caller` is true: one
    /// of its process.
    pub fn describe(
        &self,
        caller: u32,
        is_of_caller: impl Fn(u32) -> bool,
        otherwise: &str,
    ) -> String {
        let shown = |bytes: u64| match bytes {
            0..0x400 => format!("{bytes} B"),
            0x400..0x10_0000 => format!("{} KiB", bytes >> 10),
            _ => format!("{}.{} MiB", bytes >> 20, (bytes >> 10 & 1023) * 10 / 1024),
        };
        let kept: Vec<String> = self
            .in_operation
            .iter()
            .filter(|one| one.session != caller && one.bytes >= NAMED_BYTES_MIN)
            .take(NAMED_IN_OPERATION)
            .map(|one| format!("{} kept by {} (in an operation)", shown(one.bytes), one.process))
            .collect();
        let kept = if kept.is_empty() { String::new() } else { "; ".to_owned() + &kept.join(", ") };
        let text = format!(
            "of {}, {} are live, {} retired, {} kept by sessions, {} free (the largest range: {})",
            shown(self.total),
            shown(self.live),
            shown(self.retired),
            shown(self.kept),
            shown(self.free),
            shown(self.free_largest)
        ) + &kept;
        let first_of =
            |is_it: &dyn Fn(u32) -> bool| self.held_back.iter().find(|held| is_it(held.session));
        let held = first_of(&|session| session == caller).or_else(|| first_of(&is_of_caller));
        let remedy = match held.or(self.held_back.first()) {
            Some(held) if held.session == caller => format!(
                "an open view or transaction of this session holds back {} of deleted and \
                 replaced records: drop the view (or end the transaction) before the session \
                 writes",
                shown(held.bytes)
            ),
            Some(held) if is_of_caller(held.session) => format!(
                "an open view or transaction of another session of this process holds back {} of \
                 deleted and replaced records{}: drop the view (or end the transaction)",
                shown(held.bytes),
                held.time()
            ),
            Some(held) => format!(
                "a view of {} holds back {} of deleted and replaced records{}: let the process run \
                 (kill -CONT) or end it",
                held.process,
                shown(held.bytes),
                held.time()
            ),
            None => otherwise.to_owned(),
        };
        text + "; " + &remedy
    }
}

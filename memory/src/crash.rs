//! Named crash points: where a test kills a real process, between any two stores of a write path.

/// Passes the named crash point. Does nothing unless the crate is built with `crash-points`.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        $crate::crash::pass($name);
    };
}
pub(crate) use crash_point;

/// Every crash point, in the order in which a write passes them. The crash test kills at each.
pub const POINTS: &[&str] = &[
    "pop.noted",
    "pop.unlinked",
    "pop.counted",
    "pop.chained",
    "cut.classed",
    "pop.linked",
    "pop.pending",
    "alloc.done",
    "fill.header",
    "fill.part",
    "fill.block",
    "arena.stored",
    "append.noted",
    "append.cleared",
    "append.stamped",
    "append.tail",
    "append.linked",
    "append.done",
    "lock.noted",
    "lock.taken",
    "lock.released",
    "publish.sealed",
    "publish.fields",
    "publish.noted",
    "publish.committed",
    "publish.retired",
    "publish.settled",
    "publish.cleared",
    "remove.stamped",
    "chunk.noted",
    "chunk.taken",
    "chunk.bumped",
    "chunk.done",
    "give.noted",
    "give.cut",
    "give.linked",
    "give.pooled",
    "give.counted",
    "give.done",
    "take.noted",
    "take.cut",
    "take.cleared",
    "take.tail",
    "take.linked",
    "take.done",
    "split.locked",
    "split.noted",
    "split.filling",
    "split.built",
    "split.committed",
    "split.zeroing",
    "split.zeroed",
    "split.doubling",
    "split.doubled",
    "split.stamped",
    "split.cut",
    "split.counted",
    "split.unlocked",
    "segment.taken",
    "segment.committed",
    "recover.won",
    "recover.chunk",
    "recover.batch",
    "recover.transit",
    "recover.record",
    "recover.split",
    "recover.unlocked",
    "recover.unpinned",
    "attach.identity",
    "attach.unpinned",
    "attach.raised",
    "attach.alive",
    "detach.unpinned",
    "detach.free",
    "epoch.moved",
    "namespace.filled",
    "namespace.named",
    "namespace.live",
    "namespace.counted",
];

/// Kills this process with SIGKILL if `NEARSTATE_CRASH_AT=name:n` names this point and this is the
/// n-th time it is passed; stops it with SIGSTOP for `name:n:stop`.
#[cfg(feature = "crash-points")]
pub(crate) fn pass(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    static PLAN: OnceLock<Option<(String, AtomicI64, bool)>> = OnceLock::new();
    let plan = PLAN.get_or_init(|| {
        let text = std::env::var("NEARSTATE_CRASH_AT").ok()?;
        let mut parts = text.split(':');
        let (point, nth) = (parts.next()?, parts.next()?);
        let is_stop = parts.next() == Some("stop");
        Some((point.to_owned(), AtomicI64::new(nth.parse().ok()?), is_stop))
    });
    if let Some((point, left, is_stop)) = plan
        && point == name
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        crate::system::end_self(*is_stop);
    }
}

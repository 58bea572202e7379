//! The standard library's atomics, or loom's when the small lock-free parts are model-checked.

#[cfg(loom)]
pub(crate) use loom::sync::Mutex;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use std::sync::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence, fence};

/// Loom explores one model of memory and knows no compiler: there is nothing to keep in order.
#[cfg(loom)]
pub(crate) const fn compiler_fence(_order: Ordering) {}

/// True if the named mutant is planted. Always false outside model checking, where the environment
/// variable `NEARSTATE_MUTANT` names one: each must make a model fail.
#[cfg(loom)]
pub(crate) fn mutant(name: &str) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| std::env::var("NEARSTATE_MUTANT").ok());
    planted.as_deref() == Some(name)
}

/// See the other half of this pair.
#[cfg(not(loom))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "it must vanish from the read path in every build")]
pub(crate) const fn mutant(_name: &str) -> bool {
    false
}

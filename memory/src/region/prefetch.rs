//! Prefetches of lines, for reads and for writes.

/// Prefetches the line in which a value begins. A hint: it reads nothing and changes nothing, and
/// has no effect on processors without such an instruction.
#[inline]
pub fn prefetch<T>(value: &T) {
    hint(std::ptr::from_ref(value).cast());
}

#[inline]
pub(crate) fn hint(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: whatever the address, it cannot fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// As [`hint`], for a line that this processor will write. Not by the intrinsic: it becomes the
/// instruction for reads unless the whole program is compiled for processors with this one.
#[inline]
pub(crate) fn hint_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: whatever the address, it cannot fault. Processors of this
    // architecture that do not have the instruction take it for one that does nothing.
    unsafe {
        std::arch::asm!(
            "prefetchw byte ptr [{address}]",
            address = in(reg) address.addr(),
            options(nostack, preserves_flags, nomem),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

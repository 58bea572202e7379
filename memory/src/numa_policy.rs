//! NUMA nodes of a mapping: the policy for new pages, and where pages are.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;

use nearstate_model::{Error, Result, invariant};

use crate::system::failure;

/// The NUMA nodes on which the region's memory is placed, by `mbind(2)`. It has no effect on a
/// machine with one node, and none on a disk file system, where the kernel uses its page cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NumaPolicy {
    /// On the node of the thread that touches a page first.
    #[default]
    Default,
    /// Only on these nodes.
    Bind(Vec<u32>),
    /// Page by page over these nodes.
    Interleave(Vec<u32>),
    /// On these nodes while they have free memory, then on others. Several nodes need Linux 5.15.
    Preferred(Vec<u32>),
}

/// Modes of `mbind(2)`: the libc crate names them for some targets only.
const MPOL_PREFERRED: i32 = 1;
const MPOL_BIND: i32 = 2;
const MPOL_INTERLEAVE: i32 = 3;
const MPOL_PREFERRED_MANY: i32 = 5;

/// Applies a policy to the pages of a mapping that are allocated from now on. On tmpfs and
/// hugetlbfs it belongs to the file, so that it holds for every process.
pub(crate) fn apply(base: NonNull<u8>, bytes: u64, policy: &NumaPolicy) -> Result<()> {
    let (mode, nodes) = match policy {
        NumaPolicy::Default => return Ok(()),
        NumaPolicy::Bind(nodes) => (MPOL_BIND, nodes),
        NumaPolicy::Interleave(nodes) => (MPOL_INTERLEAVE, nodes),
        NumaPolicy::Preferred(nodes) if nodes.len() > 1 => (MPOL_PREFERRED_MANY, nodes),
        NumaPolicy::Preferred(nodes) => (MPOL_PREFERRED, nodes),
    };
    if nodes.is_empty() {
        let detail = "the NUMA policy names no node; give at least one, such as bind:0".to_owned();
        return Err(Error::BadArgument { detail });
    }
    let mut mask = [0_u64; 16];
    for &node in nodes {
        let word = mask.get_mut(node as usize / 64).ok_or_else(|| Error::BadArgument {
            detail: format!("NUMA node {node}: nodes are numbered 0 to 1023"),
        })?;
        *word |= 1 << (node % 64);
    }
    // SAFETY: the mask outlives the call and has 1024 bits; a policy changes no byte of the range.
    let done = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), bytes, mode, mask.as_ptr(), 1025_u64, 0)
    };
    if done != 0 {
        return Err(failure(format!(
            "cannot place the region on NUMA nodes {nodes:?}: `numactl --hardware` lists the nodes"
        )));
    }
    Ok(())
}

/// The policy of the page at an address, as the kernel has it (`get_mempolicy(2)`). A control group
/// may have excluded nodes of the one that was asked for.
pub(crate) fn read_back(base: NonNull<u8>) -> Result<NumaPolicy> {
    const MPOL_LOCAL: i32 = 4;
    const MPOL_F_ADDR: u64 = 2;
    let (mut mode, mut mask) = (0_i32, [0_u64; 16]);
    // SAFETY: mode and mask outlive the call, the mask has the 1024 bits that it is said to have.
    // The address is that of a mapping, which is not read.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            1024_u64,
            base.as_ptr(),
            MPOL_F_ADDR,
        )
    };
    if done != 0 {
        return Err(failure(
            "cannot read the NUMA policy of the region (get_mempolicy): the kernel has no NUMA \
             support, or a container forbids the call",
        ));
    }
    let is_set =
        |node: &u32| mask.get(*node as usize / 64).is_some_and(|w| w >> (node % 64) & 1 == 1);
    let nodes: Vec<u32> = (0..1024).filter(is_set).collect();
    match mode {
        0 | MPOL_LOCAL => Ok(NumaPolicy::Default),
        MPOL_BIND => Ok(NumaPolicy::Bind(nodes)),
        MPOL_INTERLEAVE => Ok(NumaPolicy::Interleave(nodes)),
        MPOL_PREFERRED | MPOL_PREFERRED_MANY => Ok(NumaPolicy::Preferred(nodes)),
        other => Err(Error::System {
            detail: format!("the region has a NUMA policy of the unknown mode {other}"),
            errno: 0,
        }),
    }
}

/// Pages by NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagesByNode {
    /// The number of pages of 4 KiB on each node.
    pub nodes: BTreeMap<u32, u64>,
    /// Pages that the kernel does not tell the node of: swapped out, or being moved.
    pub unknown: u64,
}

/// Pages of one call of `move_pages(2)`: 32 KiB of arguments.
const PAGES_PER_CALL: usize = 4096;

/// The page of `move_pages(2)`. A huge page is asked for as several of them.
const PAGE_BYTES: usize = 4096;

/// Counts the pages of a range that the file has. They are mapped if they are not, and not changed.
pub(crate) fn count_pages(
    base: NonNull<u8>,
    (from, to): (u64, u64),
    pages: &mut PagesByNode,
) -> Result<()> {
    const MADV_POPULATE_READ: i32 = 22;
    invariant!(from.is_multiple_of(PAGE_BYTES as u64), "offset {from:#x} is that of a page");
    let count = (to - from).div_ceil(PAGE_BYTES as u64) as usize;
    let mut addresses: Vec<*mut c_void> = Vec::with_capacity(PAGES_PER_CALL.min(count));
    let mut status = vec![0_i32; PAGES_PER_CALL.min(count)];
    let mut done = 0;
    while done < count {
        let batch = (count - done).min(PAGES_PER_CALL);
        // SAFETY: the caller's range is inside the mapping, and so is the address.
        let start = unsafe { base.as_ptr().add(from as usize + done * PAGE_BYTES) };
        addresses.clear();
        // The kernel gets addresses only; they are never followed here.
        addresses.extend((0..batch).map(|page| start.wrapping_add(page * PAGE_BYTES).cast()));
        // A failure leaves pages unmapped, which are counted as unknown.
        // SAFETY: the call maps pages for reading and changes no byte of them.
        unsafe { libc::madvise(start.cast::<c_void>(), batch * PAGE_BYTES, MADV_POPULATE_READ) };
        // SAFETY: both arrays have `batch` elements and outlive the call. Without nodes it moves
        // nothing and only writes the node of each page to `status`.
        let refused = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                batch,
                addresses.as_ptr(),
                std::ptr::null::<i32>(),
                status.as_mut_ptr(),
                0,
            )
        };
        if refused != 0 {
            return Err(failure(
                "cannot read the NUMA nodes of pages (move_pages): the kernel has no NUMA support, \
                 or a container forbids the call",
            ));
        }
        for node in status.iter().take(batch) {
            match u32::try_from(*node) {
                Ok(node) => *pages.nodes.entry(node).or_default() += 1,
                Err(_) => pages.unknown += 1,
            }
        }
        done += batch;
    }
    Ok(())
}

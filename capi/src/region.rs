//! Regions: create, attach, inspect, check, delete.

use std::ffi::{c_char, c_void};
use std::mem::size_of;

use nearstate_model::heap_usage::FREE_SIZES;
use nearstate_model::{Error, HeapUsage, Result};
use nearstate_store::{AttachOptions, CreateOptions, NumaPolicy, PageSize, PinMode, Region};

use crate::bytes::{ns_bytes, null, path as read_path};
use crate::ffi::{Out, borrow, guard};
use crate::status::ns_status;

/// Pages of 4 KiB.
pub const NS_PAGE_SMALL: u32 = 0;
/// Pages of 2 MiB. The path must be on a hugetlbfs mount.
pub const NS_PAGE_HUGE_2M: u32 = 1;

/// Memory is allocated on the node of the processor that first touches it.
pub const NS_NUMA_DEFAULT: u32 = 0;
/// Memory is allocated on the given nodes only.
pub const NS_NUMA_BIND: u32 = 1;
/// Memory is interleaved over the given nodes, page by page.
pub const NS_NUMA_INTERLEAVE: u32 = 2;
/// On the nodes while they have free memory, then on others.
pub const NS_NUMA_PREFERRED: u32 = 3;

/// Asymmetric if the kernel supports `membarrier(2)`, otherwise fenced.
pub const NS_PIN_AUTO: u32 = 0;
/// Reads need no fence. Every attaching process needs `membarrier(2)`.
pub const NS_PIN_ASYMMETRIC: u32 = 1;
/// Every read executes a full fence (about 10 ns).
pub const NS_PIN_FENCED: u32 = 2;

/// Maximum number of nodes in a policy: more than any machine has.
const NODES_MAX: usize = 4096;

/// An attached region: a file of shared memory that several processes read and write concurrently.
#[derive(Debug)]
pub struct ns_region {
    region: Region,
}

impl ns_region {
    pub(crate) const fn store(&self) -> &Region {
        &self.region
    }

    /// Fails in a child that was forked after the region was attached.
    fn check_not_forked(&self) -> Result<()> {
        if self.region.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }
}

/// Options of a new region. Initialize them with `ns_create_options_default`, then change fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_create_options {
    /// The size of this structure. A later library uses it to detect which fields an older program
    /// knows.
    pub struct_bytes: usize,
    /// Maximum size of records and index, in bytes: 64 MiB to 16 TiB. Memory is allocated on
    /// demand.
    pub bytes_max: u64,
    /// `NS_PAGE_SMALL` or `NS_PAGE_HUGE_2M`.
    pub page: u32,
    /// `NS_PIN_AUTO`, `NS_PIN_ASYMMETRIC` or `NS_PIN_FENCED`.
    pub pin: u32,
    /// `NS_NUMA_DEFAULT`, `NS_NUMA_BIND`, `NS_NUMA_INTERLEAVE` or `NS_NUMA_PREFERRED`.
    pub numa: u32,
    /// The file mode, as for `chmod`.
    pub mode: u32,
    /// The nodes of the NUMA policy. NULL only if `nodes_len` is 0.
    pub nodes: *const u32,
    /// The number of nodes.
    pub nodes_len: usize,
    /// Allocates all memory now.
    pub populate: bool,
    /// Also attaches a region, or follows a symbolic link, that belongs to another user than this
    /// one and root.
    pub any_owner: bool,
}

impl ns_create_options {
    /// # Safety
    /// Rule 2 for `nodes`.
    unsafe fn read(&self) -> Result<CreateOptions> {
        let invalid = |detail: String| Error::BadArgument { detail };
        check_struct_bytes::<Self>(self.struct_bytes, "ns_create_options_default")?;
        let nodes = match (self.nodes.is_null(), self.nodes_len) {
            (_, 0) => Vec::new(),
            (true, _) => return Err(null("the nodes")),
            (false, len) if len > NODES_MAX || !self.nodes.is_aligned() => {
                return Err(invalid(format!(
                    "invalid list of {len} nodes: expected at most {NODES_MAX}, aligned"
                )));
            }
            // SAFETY: neither NULL nor misaligned, within a limit; rule 2 guarantees the nodes.
            (false, len) => unsafe { std::slice::from_raw_parts(self.nodes, len) }.to_vec(),
        };
        Ok(CreateOptions {
            bytes_max: self.bytes_max,
            page: match self.page {
                NS_PAGE_SMALL => PageSize::Small,
                NS_PAGE_HUGE_2M => PageSize::Huge2M,
                page => {
                    return Err(invalid(format!(
                        "unknown page size {page}: expected one of NS_PAGE_.."
                    )));
                }
            },
            populate: self.populate,
            numa: match self.numa {
                NS_NUMA_DEFAULT => NumaPolicy::Default,
                NS_NUMA_BIND => NumaPolicy::Bind(nodes),
                NS_NUMA_INTERLEAVE => NumaPolicy::Interleave(nodes),
                NS_NUMA_PREFERRED => NumaPolicy::Preferred(nodes),
                numa => {
                    return Err(invalid(format!(
                        "unknown NUMA policy {numa}: expected one of NS_NUMA_.."
                    )));
                }
            },
            pin: match self.pin {
                NS_PIN_AUTO => PinMode::Auto,
                NS_PIN_ASYMMETRIC => PinMode::Asymmetric,
                NS_PIN_FENCED => PinMode::Fenced,
                pin => {
                    return Err(invalid(format!(
                        "unknown pin mode {pin}: expected one of NS_PIN_.."
                    )));
                }
            },
            mode: self.mode,
            any_owner: self.any_owner,
            hash_seed: None,
        })
    }
}

/// Options for attaching, checking and deleting a region. Initialize them with
/// `ns_attach_options_default`, then change fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_attach_options {
    /// The size of this structure. A later library uses it to detect which fields an older program
    /// knows.
    pub struct_bytes: usize,
    /// Also accepts a file, a directory or a symbolic link that belongs to a user other than this
    /// one and root. That user can read and write the region.
    pub any_owner: bool,
}

/// Sets the default options: files of this user and root only.
///
/// # Safety
/// Rule 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_attach_options_default(options: *mut ns_attach_options) -> ns_status {
    guard(|| {
        // SAFETY: rule 3.
        let out = unsafe { Out::new(options, "the options") }?;
        let AttachOptions { any_owner } = AttachOptions::default();
        out.put(ns_attach_options { struct_bytes: size_of::<ns_attach_options>(), any_owner });
        Ok(ns_status::NS_OK)
    })
}

/// Reads the options; NULL stands for the defaults.
///
/// # Safety
/// Rule 2.
unsafe fn attach_options(options: *const ns_attach_options) -> Result<AttachOptions> {
    if options.is_null() {
        return Ok(AttachOptions::default());
    }
    // SAFETY: rule 2.
    let options = unsafe { borrow(options, "the options") }?;
    check_struct_bytes::<ns_attach_options>(options.struct_bytes, "ns_attach_options_default")?;
    Ok(AttachOptions { any_owner: options.any_owner })
}

fn check_struct_bytes<T>(struct_bytes: usize, initialize: &str) -> Result<()> {
    if struct_bytes == size_of::<T>() {
        return Ok(());
    }
    Err(Error::BadArgument {
        detail: format!(
            "options of {struct_bytes} bytes, expected {}: initialize them with {initialize}, and \
             compile against the header of this library",
            size_of::<T>()
        ),
    })
}

/// Sets the default options: maximum 1 GiB, small pages, file mode 0600.
///
/// # Safety
/// Rule 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_create_options_default(options: *mut ns_create_options) -> ns_status {
    guard(|| {
        // SAFETY: rule 3.
        let out = unsafe { Out::new(options, "the options") }?;
        let default = CreateOptions::default();
        out.put(ns_create_options {
            struct_bytes: size_of::<ns_create_options>(),
            bytes_max: default.bytes_max,
            page: NS_PAGE_SMALL,
            pin: NS_PIN_AUTO,
            numa: NS_NUMA_DEFAULT,
            mode: default.mode,
            nodes: std::ptr::null(),
            nodes_len: 0,
            populate: default.populate,
            any_owner: default.any_owner,
        });
        Ok(ns_status::NS_OK)
    })
}

/// # Safety
/// Rules 2 and 3.
unsafe fn create(
    path: *const c_char,
    options: *const ns_create_options,
    region: *mut *mut ns_region,
    open: fn(&std::path::Path, &CreateOptions) -> Result<Region>,
) -> Result<ns_status> {
    // SAFETY: rule 2.
    let path = unsafe { read_path(path) }?;
    // SAFETY: rule 3.
    let out = unsafe { Out::new(region, "the region") }?;
    let options = if options.is_null() {
        CreateOptions::default()
    } else {
        // SAFETY: rule 2.
        let options = unsafe { borrow(options, "the options") }?;
        // SAFETY: rule 2.
        unsafe { options.read() }?
    };
    out.put(Box::into_raw(Box::new(ns_region { region: open(path, &options)? })));
    Ok(ns_status::NS_OK)
}

/// Creates a region and attaches it. `options` may be NULL for the defaults.
///
/// Fails with `NS_ALREADY_EXISTS`, `NS_BAD_ARGUMENT` (size, page, nodes), `NS_FULL`, `NS_SYSTEM`.
///
/// # Safety
/// Rules 2 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_region_create(
    path: *const c_char,
    options: *const ns_create_options,
    region: *mut *mut ns_region,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { create(path, options, region, Region::create) })
}

/// Attaches a region, and creates it first if it does not exist. `options` may be NULL for the
/// defaults. If several processes call it at the same time, one creates the region and the others
/// attach it.
///
/// Fails as `ns_region_create` and `ns_region_attach`.
///
/// # Safety
/// Rules 2 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_region_attach_or_create(
    path: *const c_char,
    options: *const ns_create_options,
    region: *mut *mut ns_region,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { create(path, options, region, Region::attach_or_create) })
}

/// Attaches a region. `options` may be NULL for the defaults.
///
/// Fails with `NS_NOT_A_REGION` (another file, a newer format, truncated, damaged),
/// `NS_BAD_ARGUMENT` (it belongs to another user), `NS_SYSTEM` (the file does not exist, or
/// permission is denied).
///
/// # Safety
/// Rules 2 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_region_attach(
    path: *const c_char,
    options: *const ns_attach_options,
    region: *mut *mut ns_region,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let path = unsafe { read_path(path) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(region, "the region") }?;
        // SAFETY: rule 2.
        let options = unsafe { attach_options(options) }?;
        let region = Region::attach_with(path, &options)?;
        out.put(Box::into_raw(Box::new(ns_region { region })));
        Ok(ns_status::NS_OK)
    })
}

/// Detaches a region. Its sessions remain usable; the memory is unmapped when the last one closes.
/// NULL is ignored.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_region_detach(region: *mut ns_region) -> ns_status {
    guard(|| {
        if !region.is_null() {
            // SAFETY: rule 1: created from a box by a function above, and the caller no longer uses
            // it.
            drop(unsafe { Box::from_raw(region) });
        }
        Ok(ns_status::NS_OK)
    })
}

/// Deletes a region: its file and all records. `options` may be NULL for the defaults.
///
/// Fails with `NS_IN_USE` while a running process has a session, `NS_NOT_A_REGION`,
/// `NS_BAD_ARGUMENT` (it belongs to another user), `NS_SYSTEM`.
///
/// # Safety
/// Rule 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_region_remove(
    path: *const c_char,
    options: *const ns_attach_options,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let path = unsafe { read_path(path) }?;
        // SAFETY: rule 2.
        Region::remove_with(path, &unsafe { attach_options(options) }?)?;
        Ok(ns_status::NS_OK)
    })
}

/// The number of sizes in `ns_region_stats`.
const USABLE_SIZES: usize = FREE_SIZES.len();

const _: () = assert!(USABLE_SIZES == 5, "ns_region_stats has an element for each size");

/// How much of the free memory is usable for records of a size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_usable {
    /// The size, in bytes.
    pub size: u64,
    /// Free bytes in ranges of at least that size.
    pub bytes: u64,
}

/// Statistics of a region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_region_stats {
    /// A random id, as two words.
    pub id: [u64; 2],
    /// The creation time, in milliseconds since 1970.
    pub created_ms: u64,
    /// Maximum size of records and index, in bytes: the heap. While no process changes the region,
    /// it is the sum of `bytes_live`, `bytes_retired`, `bytes_kept` and `bytes_free`.
    pub bytes_max: u64,
    /// Bytes of the heap that are allocated: records, index, and what sessions keep for reuse.
    pub bytes_taken: u64,
    /// Bytes of records, blocks, indexes and rings.
    pub bytes_live: u64,
    /// Bytes of deleted and replaced records that are not free yet.
    pub bytes_retired: u64,
    /// Bytes that sessions keep to allocate from.
    pub bytes_kept: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// The largest range of free bytes.
    pub bytes_free_largest: u64,
    /// Free bytes that are usable for records of some sizes, in ascending order. Records take 44
    /// bytes more than their key, value and tags, in steps of 64 bytes.
    pub usable: [ns_usable; 5],
    /// Retired bytes that the views of one session hold, if it holds the most. See `holder_pid`.
    pub bytes_held_back: u64,
    /// Bytes that the file occupies on its file system.
    pub bytes_on_disk: u64,
    /// The page size, in bytes.
    pub page_bytes: u64,
    /// The epoch of memory reclamation.
    pub epoch: u64,
    /// The format number.
    pub format: u32,
    /// The number of namespaces.
    pub namespaces: u32,
    /// The number of sessions of running processes.
    pub members_alive: u32,
    /// The number of sessions of dead processes that are not recovered yet.
    pub members_dead: u32,
    /// The process whose views hold `bytes_held_back`; 0 if no view holds retired memory.
    pub holder_pid: u32,
    /// Reads execute a fence.
    pub is_fenced: bool,
}

/// Gets the statistics of a region. See also `ns_region_members`.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_region_get_stats(
    region: *const ns_region,
    stats: *mut ns_region_stats,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let region = unsafe { borrow(region, "the region") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(stats, "the statistics") }?;
        region.check_not_forked()?;
        let stats_now = region.region.inspect()?;
        let alive = stats_now.members.iter().filter(|member| member.is_alive).count();
        let holder = stats_now.heap.held_back.first();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        out.put(ns_region_stats {
            id: stats_now.id,
            created_ms: stats_now.created_ms,
            bytes_max: stats_now.bytes_max,
            bytes_taken: stats_now.bytes_taken,
            bytes_live: stats_now.heap.live,
            bytes_retired: stats_now.heap.retired,
            bytes_kept: stats_now.heap.kept,
            bytes_free: stats_now.heap.free,
            bytes_free_largest: stats_now.heap.free_largest,
            usable: usable(&stats_now.heap),
            bytes_held_back: holder.map_or(0, |held| held.bytes),
            holder_pid: holder.map_or(0, |held| held.process.pid),
            bytes_on_disk: stats_now.bytes_on_disk,
            page_bytes: stats_now.page_bytes,
            epoch: stats_now.epoch,
            format: stats_now.format,
            namespaces: count(stats_now.namespaces.len()),
            members_alive: count(alive),
            members_dead: count(stats_now.members.len() - alive),
            is_fenced: stats_now.is_fenced,
        });
        Ok(ns_status::NS_OK)
    })
}

fn usable(heap: &HeapUsage) -> [ns_usable; USABLE_SIZES] {
    std::array::from_fn(|index| ns_usable {
        size: FREE_SIZES.get(index).copied().unwrap_or(0),
        bytes: heap.free_by_size.get(index).copied().unwrap_or(0),
    })
}

/// A session attached to a region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_member {
    /// The command name of its process.
    pub name: ns_bytes,
    /// The time of the attach, in milliseconds since 1970.
    pub since_ms: u64,
    /// The epoch that its views pin; 0 if it pins none.
    pub pinned_epoch: u64,
    /// The process id, as seen in that process's own pid namespace.
    pub pid: u32,
    /// False if its process has ended and the session is not recovered yet.
    pub is_alive: bool,
}

/// Receives each session of a region.
pub type ns_member_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, member: *const ns_member) -> bool>;

/// Calls `each` for every attached session, for example to find readers that delay memory
/// reclamation, or dead processes.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_region_members(
    region: *const ns_region,
    each: ns_member_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let region = unsafe { borrow(region, "the region") }?;
        let each = each.ok_or_else(|| null("the callback"))?;
        region.check_not_forked()?;
        for member in region.region.inspect()?.members {
            let entry = ns_member {
                name: ns_bytes::of(member.process.name.as_bytes()),
                since_ms: member.since_ms,
                pinned_epoch: member.pinned_epoch.unwrap_or(0),
                pid: member.process.pid,
                is_alive: member.is_alive,
            };
            // SAFETY: rule 4: it takes these arguments and returns.
            if !unsafe { each(context, &raw const entry) } {
                break;
            }
        }
        Ok(ns_status::NS_OK)
    })
}

/// The result of an offline check.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_check_report {
    /// The number of inconsistencies. 0: the region is consistent.
    pub errors: u64,
    /// Namespaces checked.
    pub namespaces: u64,
    /// Records checked.
    pub records: u64,
    /// Bytes of records and their blocks.
    pub bytes_live: u64,
    /// Bytes of the index.
    pub bytes_index: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Bytes of replaced versions that the log holds.
    pub bytes_held: u64,
    /// Bytes that are neither in use nor free.
    pub bytes_leaked: u64,
    /// Bytes of the heap. Without inconsistencies it is the sum of `bytes_live`, `bytes_index`,
    /// `bytes_free`, `bytes_held` and `bytes_leaked`.
    pub bytes_total: u64,
    /// Bytes of the heap that are allocated.
    pub bytes_taken: u64,
}

/// Receives each inconsistency as a message.
pub type ns_check_error_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, error: ns_bytes) -> bool>;

/// Checks every byte of a region that no process has attached. `NS_OK` means that the check was
/// completed; `report` has its result. `options` may be NULL for the defaults. `each` receives the
/// first hundred inconsistencies; it may be NULL.
///
/// Fails with `NS_NOT_A_REGION`, `NS_IN_USE` while a running process has a session,
/// `NS_BAD_ARGUMENT` (it belongs to another user), `NS_SYSTEM`.
///
/// # Safety
/// Rules 2 to 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_region_check(
    path: *const c_char,
    options: *const ns_attach_options,
    each: ns_check_error_fn,
    context: *mut c_void,
    report: *mut ns_check_report,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 2.
        let path = unsafe { read_path(path) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(report, "the report") }?;
        // SAFETY: rule 2.
        let options = unsafe { attach_options(options) }?;
        let result = nearstate_store::check_with(path, &options)?;
        for fault in &result.faults {
            let Some(each) = each else { break };
            // SAFETY: rule 4: it takes these arguments and returns.
            if !unsafe { each(context, ns_bytes::of(fault.as_bytes())) } {
                break;
            }
        }
        out.put(ns_check_report {
            errors: result.faults_count,
            namespaces: result.namespaces,
            records: result.records,
            bytes_live: result.bytes_live,
            bytes_index: result.bytes_index,
            bytes_free: result.bytes_free + result.bytes_unused,
            bytes_held: result.bytes_held,
            bytes_leaked: result.bytes_leaked,
            bytes_total: result.bytes_total,
            bytes_taken: result.bytes_taken,
        });
        Ok(ns_status::NS_OK)
    })
}

//! Regions, sessions and namespaces: the API of an application.

pub(crate) mod own_changes;
pub(crate) mod buffers;
pub(crate) mod copies;

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nearstate_memory::{
    AttachOptions, CreateOptions, HeapSpace, IndexTable, Inspection, LookupResult, Member,
    NewPolicy, RegionFiles, RemovedRegion, ReplicationPolicy,
};
use nearstate_memory::{NumaPolicy, PagesByNode};
use nearstate_model::limits::KEY_BYTES_MAX;
use nearstate_model::{Error, Result};

use crate::index::internal::{INTERNAL_PREFIX, InternalCache};
use crate::index::schema::TagSchema;
use crate::namespace_rules::NamespaceRules;
use crate::record::{Form, Kind};
use crate::session::buffers::BufferCache;
use crate::session::own_changes::{OwnChange, OwnChanges};

/// An attached region: a file of shared memory that many processes read and write concurrently. It
/// is cheap to clone and may be shared by threads; each thread opens its own [`Session`].
#[derive(Clone, Debug)]
pub struct Region {
    memory: nearstate_memory::Region,
}

impl Region {
    /// Creates a region and attaches to it.
    ///
    /// # Errors
    /// `AlreadyExists`, `BadArgument` (size, page size, nodes), `Full` (file system), `System`.
    pub fn create(path: &Path, options: &CreateOptions) -> Result<Self> {
        Ok(Self { memory: nearstate_memory::Region::create(path, options)? })
    }

    /// Attaches to a region. Members whose process died are recovered with the first session.
    ///
    /// # Errors
    /// `NotARegion` (another file, a newer format, truncated, damaged), `System`.
    pub fn attach(path: &Path) -> Result<Self> {
        Ok(Self { memory: nearstate_memory::Region::attach(path)? })
    }

    /// As [`Region::attach`], with options.
    ///
    /// # Errors
    /// As [`Region::attach`].
    pub fn attach_with(path: &Path, options: &AttachOptions) -> Result<Self> {
        Ok(Self { memory: nearstate_memory::Region::attach_with(path, options)? })
    }

    /// Attaches to a region, and creates it first if there is none.
    ///
    /// # Errors
    /// As [`Region::create`] and [`Region::attach`].
    pub fn attach_or_create(path: &Path, options: &CreateOptions) -> Result<Self> {
        Ok(Self { memory: nearstate_memory::Region::attach_or_create(path, options)? })
    }

    /// The file of the region, opened again for a process that cannot or should not open it by its
    /// path. Its holder can read and write every byte of the region.
    ///
    /// # Errors
    /// `System` (too many open files, no permission), `NotARegion` (the file was replaced).
    pub fn files(&self) -> Result<RegionFiles> {
        self.memory.files()
    }

    /// Attaches to a region by descriptors that another process has opened. `name` is the path in
    /// error texts.
    ///
    /// # Errors
    /// As [`Region::attach`]; `BadArgument` if the two descriptors are one open file.
    pub fn attach_files(files: RegionFiles, name: &Path) -> Result<Self> {
        Ok(Self { memory: nearstate_memory::Region::attach_files(files, name)? })
    }

    /// Deletes a region: its file with all records. If the path is a symbolic link, the link is
    /// removed as well.
    ///
    /// # Errors
    /// `InUse` while a living process is attached, `Stalled`, `BadArgument` if it belongs to
    /// another user, `NotARegion`, `System`.
    pub fn remove(path: &Path) -> Result<RemovedRegion> {
        Self::remove_with(path, &AttachOptions::default())
    }

    /// As [`Region::remove`], with options.
    ///
    /// # Errors
    /// As [`Region::remove`].
    pub fn remove_with(path: &Path, options: &AttachOptions) -> Result<RemovedRegion> {
        nearstate_memory::Region::remove_with(path, options)
    }

    /// Opens a session for one thread. Cost: some microseconds.
    ///
    /// # Errors
    /// `Full` (too many sessions), `Forked`, `Damaged`, `System`.
    pub fn session(&self) -> Result<Session> {
        Ok(Session {
            member: self.memory.member()?,
            buffer_cache: BufferCache::default(),
            internal: InternalCache::default(),
            own_changes: OwnChanges::default(),
            last_position: Cell::new(0),
            owed_position: Cell::new(0),
            commit_wait: Cell::default(),
            promotion_steps: Arc::default(),
        })
    }

    /// A reader of this process needs the log behind a position, beside the consumer that
    /// acknowledges ([`WhenFull::Refuse`](crate::WhenFull::Refuse)): what sessions of this
    /// attachment release before it says a higher one stays in the log. No writer is refused for
    /// it: if the log holds a thirty-second of the heap, or the heap is full, the reader loses what
    /// was released. `None`: no reader needs it. There is one such reader.
    pub fn hold_log(&self, position: Option<u64>) {
        self.memory.hold_log(position);
    }

    /// Maps the used pages into this process, so that its first reads cause no page faults. Useful
    /// once after attaching. Returns the bytes mapped.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub fn populate(&self) -> Result<u64> {
        self.memory.populate()
    }

    /// Where the region's memory is: its pages by NUMA node. Pages that were allocated and never
    /// used are left out.
    ///
    /// # Errors
    /// `Damaged`. `System` if the kernel does not tell.
    pub fn pages_by_node(&self) -> Result<PagesByNode> {
        self.memory.pages_by_node()
    }

    /// As [`Region::pages_by_node`], of at most the first `bytes` (a multiple of 4096) of the heap.
    ///
    /// # Errors
    /// `Damaged`. `System` if the kernel does not tell.
    pub fn pages_by_node_up_to(&self, bytes: u64) -> Result<PagesByNode> {
        self.memory.pages_by_node_up_to(bytes)
    }

    /// The NUMA policy of the region as the kernel has it.
    ///
    /// # Errors
    /// `System` if the kernel does not tell.
    pub fn numa_policy(&self) -> Result<NumaPolicy> {
        self.memory.numa_policy()
    }

    /// Replaces the used pages with 2 MiB pages where the kernel allows it: fewer TLB misses.
    /// Useful once after a bulk load. Returns the bytes that have huge pages now.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn collapse(&self) -> Result<u64> {
        self.memory.collapse()
    }

    /// The file, by the name with which it was attached or created.
    pub fn path(&self) -> &Path {
        self.memory.path()
    }

    /// The most bytes that records and index may fill. Cost: none, it never changes.
    pub fn bytes_max(&self) -> u64 {
        self.memory.bytes_max()
    }

    /// How full the heap is. Cost: a load for each used chunk, 4,096 for each GiB, and a
    /// system call.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub fn heap_space(&self) -> Result<HeapSpace> {
        self.memory.heap_space()
    }

    /// Information for an operator: sizes, namespaces, members. Internal namespaces are omitted.
    /// Can take a second: it looks at retired cells. See [`Region::bytes_max`] and
    /// [`Region::heap_space`].
    ///
    /// # Errors
    /// `Damaged`.
    pub fn inspect(&self) -> Result<Inspection> {
        let mut seen = self.memory.inspect()?;
        seen.namespaces.retain(|namespace| !is_internal(&namespace.name));
        Ok(seen)
    }

    /// True in a process that is a fork of the one that attached.
    pub fn is_forked(&self) -> bool {
        self.memory.is_forked()
    }

    /// True if readers execute a fence, because the region was created without `membarrier(2)`.
    pub fn is_fenced(&self) -> bool {
        self.memory.is_fenced()
    }

    /// True if the internal namespace of this name exists.
    pub(crate) fn has_internal(&self, name: &[u8]) -> Result<bool> {
        let seen = self.memory.inspect()?;
        Ok(seen.namespaces.iter().any(|namespace| namespace.name == name))
    }
}

/// The access of one thread to a region. `Send`, not `Sync`.
#[derive(Debug)]
pub struct Session {
    pub(crate) member: Member,
    /// The buffers of its transactions.
    pub(crate) buffer_cache: BufferCache,
    pub(crate) internal: InternalCache,
    pub(crate) own_changes: OwnChanges,
    /// The position in the log of its last commit there, or 0.
    pub(crate) last_position: Cell<u64>,
    /// The position of its last commit in a namespace whose commits wait, unless that was waited
    /// for; or 0.
    pub(crate) owed_position: Cell<u64>,
    /// Which commits wait, and for how long at most.
    pub(crate) commit_wait: Cell<WaitRule>,
    /// Steps of its promotions: each one is some thousand buckets or records.
    pub(crate) promotion_steps: Arc<AtomicU64>,
}

/// Which commits of a session return only when they are replicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitWait {
    /// Those that change a namespace with the policy
    /// [`Replicated`](ReplicationPolicy::Replicated).
    #[default]
    ByNamespace,
    /// None: the caller waits by itself ([`Session::take_owed_receipt`]).
    Never,
    /// All that change a logged namespace.
    Always,
}

/// Which commits wait, and for how long at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitRule {
    pub(crate) wait: CommitWait,
    pub(crate) limit: Duration,
}

/// How long a commit waits until it is replicated, unless the caller says otherwise: some
/// heartbeats of a lease of 300 ms, and longer than a round trip between sites.
pub const REPLICATION_WAIT_MAX: Duration = Duration::from_secs(1);

impl Default for WaitRule {
    fn default() -> Self {
        Self { wait: CommitWait::default(), limit: REPLICATION_WAIT_MAX }
    }
}

/// The schema of the records of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// One unnamed block, named blocks, or counters; fixed when the namespace is created.
    pub kind: Kind,
    /// Tags by which records are found. New ones are added when the namespace is opened
    /// ([`Session::add_tags`]); existing ones that are not listed here stay.
    pub tags: Vec<TagSchema>,
}

/// A namespace of a region: keys are unique within it (paper 1, section 4.2.1: a data type each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub(crate) index: u32,
    pub(crate) kind: Kind,
}

impl Namespace {
    /// The kind of its records.
    pub const fn kind(self) -> Kind {
        self.kind
    }

    /// Its number in the region, the same in every session, as in a commit stream. A namespace that
    /// is created after this one was removed has another number, also if it has the same name.
    pub const fn number(self) -> u32 {
        self.index
    }

    /// Its place in the region's catalog, below 2^16. No other namespace has it meanwhile, and
    /// [`Session::namespaces`] returns them in the order of their places.
    pub const fn place(self) -> u32 {
        nearstate_memory::namespace_place(self.index)
    }
}

/// True for the name of an internal namespace: objects, indexes.
pub(crate) fn is_internal(name: &[u8]) -> bool {
    name.first() == Some(&INTERNAL_PREFIX)
}

impl Session {
    /// Starts to record the changes of this session in watched namespaces.
    pub fn record_own_changes(&self) {
        self.own_changes.begin();
    }

    /// Ends it. Returns the changes since [`Session::record_own_changes`].
    pub fn take_own_changes(&self) -> Vec<OwnChange> {
        self.own_changes.end()
    }

    /// The region of this session.
    pub fn region(&self) -> Region {
        Region { memory: self.member.region() }
    }

    /// Opens a namespace, and creates it first if it does not exist: with this policy, or with that
    /// of the region's rules.
    pub(crate) fn open_namespace(
        &self,
        name: &str,
        schema: &Schema,
        policy: Option<ReplicationPolicy>,
    ) -> Result<Namespace> {
        if is_internal(name.as_bytes()) {
            return Err(Error::BadArgument {
                detail: format!(
                    "namespace {name:?}: names that begin with the byte 1 are the region's own; \
                     take another name"
                ),
            });
        }
        let code = schema.kind.code();
        let by_rules = |text: &str| match schema.kind {
            Kind::Counters => ReplicationPolicy::Local, // Adds are not transactions.
            Kind::Value | Kind::Blocks | Kind::Mixed => {
                NamespaceRules::of_text(text).policy_for(name)
            }
        };
        let policy = policy.map_or(NewPolicy::ByRules(&by_rules), NewPolicy::Chosen);
        let (index, kind) = self.member.open_namespace_with(name.as_bytes(), code, policy)?;
        match Kind::of(kind) {
            Some(kind) if kind == schema.kind => Ok(Namespace { index, kind }),
            Some(kind) => Err(Error::WrongKind {
                detail: format!(
                    "namespace {name:?} has records of kind {kind:?}, not {:?}: open it with that \
                     schema, or take another name",
                    schema.kind
                ),
            }),
            None => Err(Error::Damaged { detail: format!("namespace {name:?} has no known kind") }),
        }
    }

    /// True in a process that is a fork of the one that attached. Cost: one load.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.member.is_forked()
    }

    /// Validates what was read through views until now: a page of the file that was lost reads as
    /// zeros, which are not values.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn check_not_truncated(&self) -> Result<()> {
        self.member.check_not_truncated()
    }

    /// The namespace of this name, of any kind; `None` if it does not exist.
    ///
    /// Complexity: logarithmic in the number of namespaces. After one was created or removed, also
    /// some nanoseconds for each.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn known_namespace(&self, name: &str) -> Result<Option<Namespace>> {
        if is_internal(name.as_bytes()) {
            return Ok(None);
        }
        let found = self.member.find_namespace(name.as_bytes())?;
        Ok(found.and_then(|(index, kind)| Some(Namespace { index, kind: Kind::of(kind)? })))
    }

    /// All namespaces with their names, in the order of creation, except internal ones and those
    /// whose names are not UTF-8.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespaces(&self) -> Result<Vec<(String, Namespace)>> {
        let all = self.member.namespaces()?;
        let known = all.into_iter().filter(|entry| !is_internal(&entry.name)).filter_map(|entry| {
            let namespace = Namespace { index: entry.index, kind: Kind::of(entry.kind)? };
            Some((String::from_utf8(entry.name).ok()?, namespace))
        });
        Ok(known.collect())
    }

    /// The number of namespaces, with internal ones.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespace_count(&self) -> Result<usize> {
        self.member.namespace_count()
    }

    /// A number that grows whenever a namespace is created or removed: list the namespaces again
    /// when it has changed. `None` while a process does that, and after it was killed there: list
    /// them each time.
    ///
    /// Cost: one load.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespace_changes(&self) -> Result<Option<u64>> {
        self.member.namespace_changes()
    }

    /// True if the namespace was not removed ([`Session::remove_namespace`]).
    ///
    /// Cost: one load.
    #[inline]
    pub fn has_namespace(&self, namespace: Namespace) -> bool {
        self.member.has_namespace(namespace.index)
    }

    /// As [`Session::has_namespace`], by [`Namespace::number`].
    pub fn has_namespace_number(&self, number: u32) -> bool {
        self.member.has_namespace(number)
    }

    #[inline]
    pub(crate) fn table(&self, namespace: Namespace) -> Result<&IndexTable> {
        self.member.table(namespace.index)
    }

    /// The data that an operation on a key needs.
    #[inline]
    pub(crate) fn lookup<'a>(
        &'a self,
        namespace: Namespace,
        key: &'a [u8],
    ) -> Result<KeyLookup<'a>> {
        let form = Form::Value;
        let (table, hash) = (self.table(namespace)?, self.hash(key));
        Ok(KeyLookup { table, hash, key, form, is_seen: false })
    }

    /// The record of a key, in a namespace that was not removed before.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub(crate) fn lookup_current(
        &self,
        namespace: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<LookupResult<'_>> {
        debug_assert!(hash == self.hash(key), "a key is looked up with another one's hash");
        let table = self.member.table(namespace)?;
        let found = self.member.lookup(table, hash, key)?;
        table.check_current(namespace)?;
        Ok(found)
    }

    /// As [`Session::lookup_current`], of which only the beginning and the end are read.
    pub(crate) fn lookup_ends_current(
        &self,
        namespace: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<LookupResult<'_>> {
        debug_assert!(hash == self.hash(key), "a key is looked up with another one's hash");
        let table = self.member.table(namespace)?;
        let found = self.member.lookup_ends(table, hash, key)?;
        table.check_current(namespace)?;
        Ok(found)
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.member.hash(key)
    }
}

/// A key, its hash, and the index of its namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyLookup<'a> {
    pub(crate) table: &'a IndexTable,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    /// The kind that the record must have.
    pub(crate) form: Form,
    /// True if its record has just been read.
    pub(crate) is_seen: bool,
}

/// Returns an error for keys that no record can have.
#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyTooLarge { bytes: key.len() });
    }
    Ok(())
}

/// The error for a handle of a namespace that was removed.
#[cold]
pub(crate) fn removed(namespace: Namespace) -> Error {
    nearstate_memory::namespace_removed(namespace.index)
}

/// The error for a record of another kind than an operation needs.
#[cold]
pub(crate) fn wrong_kind(kind: Kind, what: &str, instead: &str) -> Error {
    let detail = match kind {
        Kind::Counters => format!(
            "cannot {what} of a counter: add to it (Session::add), read it \
             (Session::read_counter), or delete it"
        ),
        Kind::Value | Kind::Blocks | Kind::Mixed => {
            format!("cannot {what} of a record of named blocks: {instead} instead")
        }
    };
    Error::WrongKind { detail }
}

//! Reads a topology from the kernel's files: `/sys` of this machine, or a copy of another's.
//!
//! Old kernels have masks instead of lists, offline processors have no topology, nodes may have no
//! processors, numbers may have gaps, and a machine without NUMA has no nodes at all.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nearstate_model::{Error, Result};

use crate::cgroup::{self, Limits};
use crate::cpu_set::{CPUS_MAX, CpuSet};
use crate::text_file;
use crate::topology::{
    Cache, CacheKind, Cpu, MEMBERS_MAX, NODES_MAX, Nic, NumaNode, TopologyParts, unusable,
};

/// More than any of the files has. A mask of 65,536 processors has 18 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The most caches of one processor: more than any processor has.
const CACHES_MAX: u32 = 16;

/// First-level data and instructions, second level, third level.
const CACHES_USUAL: u32 = 4;

/// A tree with the folders `sys` and, for what limits this process, `proc`.
#[derive(Debug)]
pub(crate) struct SysTree {
    /// The folder that `sys/devices/system/cpu` is in, or `None` if the tree is `/sys` itself.
    root: Option<PathBuf>,
    sys: PathBuf,
    origin: String,
    /// The kernel's own files, no copy.
    is_live: bool,
}

impl SysTree {
    /// The tree of this machine.
    ///
    /// # Errors
    /// `BadArgument` if `/sys` is not mounted.
    pub(crate) fn live() -> Result<Self> {
        let tree = Self::open(Path::new("/"), "this machine".to_owned())?;
        Ok(Self { is_live: true, ..tree })
    }

    /// The tree at a folder: a root folder, or a copy of `/sys`.
    ///
    /// # Errors
    /// `BadArgument` if it has no `devices/system/cpu`.
    pub(crate) fn open(folder: &Path, origin: String) -> Result<Self> {
        let sys = folder.join("sys");
        if sys.join("devices/system/cpu").is_dir() {
            return Ok(Self { root: Some(folder.to_owned()), sys, origin, is_live: false });
        }
        if folder.join("devices/system/cpu").is_dir() {
            return Ok(Self { root: None, sys: folder.to_owned(), origin, is_live: false });
        }
        Err(Error::BadArgument {
            detail: format!(
                "{origin} has no sys/devices/system/cpu; give a copy of a machine's /sys, or a \
                 folder that contains it as sys"
            ),
        })
    }

    /// Reads the topology.
    ///
    /// # Errors
    /// `BadArgument` for contents that make no sense, `System` for files that cannot be read.
    pub(crate) fn read(&self) -> Result<TopologyParts> {
        let mut warnings = Vec::new();
        let online = self.online()?;
        let nodes = self.nodes()?;
        let cpus = self.cpus(&online, &nodes, &mut warnings)?;
        let caches = self.caches(&cpus, &mut warnings)?;
        let present = self.list("devices/system/cpu/present")?.unwrap_or_default();
        let mut nodes: Vec<NumaNode> = nodes.into_iter().map(|(node, _)| node).collect();
        if nodes.is_empty() {
            nodes.push(whole_machine());
        }
        let mut parts = TopologyParts {
            origin: self.origin.clone(),
            offline: present.difference(&online),
            nics: self.nics(),
            cpus,
            nodes,
            caches,
            nohz_full: self.nohz_full()?,
            warnings,
            ..TopologyParts::default()
        };
        if let Some(root) = &self.root {
            limit(&mut parts, cgroup::limits(root)?);
        }
        Ok(parts)
    }

    /// The online processors. Hyper-threads of one core have the same facts, which are read once.
    fn cpus(
        &self,
        online: &CpuSet,
        nodes: &[(NumaNode, CpuSet)],
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Cpu>> {
        let node_of = nodes_of_cpus(nodes);
        let first_node = nodes.first().map_or(0, |(node, _)| node.number);
        let isolated = self.list("devices/system/cpu/isolated")?.unwrap_or_default();
        let known = Cell::new(0);
        let mut packages = Packages::default();
        let mut cpus: BTreeMap<u32, Cpu> = BTreeMap::new();
        for number in online.iter() {
            if cpus.contains_key(&number) {
                continue;
            }
            let (mut first, siblings) = self.core(number, online, &known)?;
            first.package = self.package(number, &mut packages)?;
            for sibling in siblings.iter() {
                cpus.entry(sibling).or_insert_with(|| Cpu {
                    number: sibling,
                    node: *node_of.get(&sibling).unwrap_or(&first_node),
                    l2: sibling,
                    l3: sibling,
                    is_isolated: isolated.contains(sibling),
                    ..first.clone()
                });
            }
        }
        for number in cpus.keys().filter(|cpu| !nodes.is_empty() && !node_of.contains_key(cpu)) {
            warnings
                .push(format!("processor {number} is on no node; node {first_node} is assumed"));
        }
        Ok(cpus.into_values().collect())
    }

    fn text(&self, path: &str) -> Result<Option<String>> {
        let path = self.sys.join(path);
        if self.is_live {
            text_file::read_attribute(&path, FILE_BYTES_MAX)
        } else {
            text_file::read(&path, FILE_BYTES_MAX)
        }
    }

    /// A list of numbers, or `None` if the file does not exist.
    fn list(&self, path: &str) -> Result<Option<CpuSet>> {
        self.parsed(path, str::parse)
    }

    /// A mask, or `None` if the file does not exist.
    fn mask(&self, path: &str) -> Result<Option<CpuSet>> {
        self.parsed(path, CpuSet::from_mask)
    }

    fn number(&self, path: &str) -> Result<Option<i64>> {
        self.parsed(path, |text| {
            text.trim().parse::<i64>().map_err(|_| Error::BadArgument {
                detail: format!("{:?} is no number", text.trim()),
            })
        })
    }

    fn parsed<T>(&self, path: &str, parse: impl Fn(&str) -> Result<T>) -> Result<Option<T>> {
        let Some(text) = self.text(path)? else { return Ok(None) };
        parse(&text).map(Some).map_err(|e| Error::BadArgument {
            detail: format!("{}: {e}", self.sys.join(path).display()),
        })
    }

    /// The numbers of the folders with this prefix: `node0`, `node10`.
    fn numbered(&self, folder: &str, prefix: &str) -> Vec<u32> {
        let entries = fs::read_dir(self.sys.join(folder)).into_iter().flatten().flatten();
        let number = |entry: fs::DirEntry| {
            entry.file_name().to_str()?.strip_prefix(prefix)?.parse::<u32>().ok()
        };
        let mut numbers: Vec<u32> = entries.filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn online(&self) -> Result<CpuSet> {
        if let Some(online) = self.list("devices/system/cpu/online")? {
            if online.is_empty() {
                return Err(unusable(&self.origin, "its list of online processors is empty"));
            }
            return Ok(online);
        }
        let mut online = CpuSet::new();
        for number in self.numbered("devices/system/cpu", "cpu") {
            let switch = self.number(&format!("devices/system/cpu/cpu{number}/online"))?;
            if number < CPUS_MAX && switch != Some(0) {
                online.insert(number);
            }
        }
        Ok(online)
    }

    /// A processor, and the online processors of its core.
    fn core(&self, number: u32, online: &CpuSet, known: &Cell<usize>) -> Result<(Cpu, CpuSet)> {
        const NAMES: [&str; 4] =
            ["core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings"];
        let folder = format!("devices/system/cpu/cpu{number}/topology");
        let siblings = self
            .set_of(&folder, &NAMES, known)?
            .map(|set| set.intersection(online))
            .filter(|set| set.contains(number))
            .unwrap_or_else(|| std::iter::once(number).collect());
        let cpu = Cpu {
            number,
            core: siblings.first().unwrap_or(number),
            core_id: self.id(&format!("{folder}/core_id"))?.unwrap_or(number),
            package: 0,
            node: 0,
            l2: number,
            l3: number,
            is_allowed: true,
            is_isolated: false,
        };
        Ok((cpu, siblings))
    }

    /// A number, or `None` if the file does not exist or has -1, as that of some machines.
    fn id(&self, path: &str) -> Result<Option<u32>> {
        Ok(self.number(path)?.and_then(|id| u32::try_from(id).ok()))
    }

    /// The socket of a processor. The file of one names the processors of its socket, whose files
    /// are not read.
    fn package(&self, number: u32, packages: &mut Packages) -> Result<u32> {
        const NAMES: [&str; 4] =
            ["package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings"];
        if let Some(package) = packages.of.get(&number) {
            return Ok(*package);
        }
        let folder = format!("devices/system/cpu/cpu{number}/topology");
        let package = self.id(&format!("{folder}/physical_package_id"))?.unwrap_or(0);
        packages.of.insert(number, package);
        if packages.is_unlisted {
            return Ok(package);
        }
        let others = self.set_of(&folder, &NAMES, &packages.known)?;
        packages.is_unlisted = others.is_none();
        if let Some(others) = others.filter(|others| others.contains(number)) {
            packages.of.extend(others.iter().map(|other| (other, package)));
        }
        Ok(package)
    }

    /// The first of these files that exists, lists (`..list`) before masks. The others are not
    /// read, and the next folder is asked for the name that the last one had (`known`): a large
    /// machine has thousands of files.
    fn set_of(&self, folder: &str, names: &[&str], known: &Cell<usize>) -> Result<Option<CpuSet>> {
        let first = known.get();
        let others = (0..names.len()).filter(|index| *index != first);
        for index in std::iter::once(first).chain(others) {
            let Some(name) = names.get(index) else { continue };
            let path = format!("{folder}/{name}");
            let found = if name.ends_with("list") { self.list(&path)? } else { self.mask(&path)? };
            if found.is_some() {
                known.set(index);
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// `nohz_full`; kernels without it write `(null)`.
    fn nohz_full(&self) -> Result<CpuSet> {
        let set = self.parsed("devices/system/cpu/nohz_full", |text| {
            if text.contains("(null)") { Ok(CpuSet::new()) } else { text.parse() }
        })?;
        Ok(set.unwrap_or_default())
    }

    /// Each cache once. A processor that a cache of the same index contains is not read again. A
    /// core is not read after its last index, which is that of the cores with caches of the same
    /// sizes: the kernel numbers them without gaps. A copy may lack the first ones.
    fn caches(&self, cpus: &[Cpu], warnings: &mut Vec<String>) -> Result<Vec<Cache>> {
        let mut caches: Vec<Cache> = Vec::new();
        let mut read = CachesRead::default();
        let mut members = 0;
        for index in 0..CACHES_MAX {
            let mut seen = CpuSet::new();
            for cpu in cpus {
                let number = cpu.number;
                if seen.contains(number) || read.is_complete(cpu.core, index) {
                    continue;
                }
                let folder = format!("devices/system/cpu/cpu{number}/cache/index{index}");
                let Some(cache) = self.cache(&folder, index, &mut read)? else {
                    read.ends(cpu.core, index);
                    continue;
                };
                if !cache.cpus.contains(number) {
                    warnings.push(format!("{folder} does not list its own processor; ignored"));
                    continue;
                }
                for sharing in cache.cpus.iter() {
                    read.sizes.entry(sharing).or_default().push(cache.bytes);
                }
                seen.extend(cache.cpus.iter());
                members += cache.cpus.len();
                self.check_members("caches", members)?;
                caches.push(cache);
            }
        }
        Ok(caches)
    }

    fn check_members(&self, of: &str, members: usize) -> Result<()> {
        if members <= MEMBERS_MAX {
            return Ok(());
        }
        let what = format!("its {of} list more than {MEMBERS_MAX} processors");
        Err(unusable(&self.origin, &what))
    }

    /// A cache of this index. Caches of one index and size are of one level and kind, which are
    /// read once.
    fn cache(&self, folder: &str, index: u32, read: &mut CachesRead) -> Result<Option<Cache>> {
        let cpus = self.set_of(folder, &["shared_cpu_list", "shared_cpu_map"], &read.known)?;
        let Some(cpus) = cpus else { return Ok(None) };
        let bytes = self.text(&format!("{folder}/size"))?.and_then(|text| cache_bytes(&text));
        let alike = bytes.and_then(|bytes| read.kinds.get(&(index, bytes)).copied());
        let (level, kind) = if let Some(alike) = alike {
            alike
        } else {
            let Some(level) = self.id(&format!("{folder}/level"))? else { return Ok(None) };
            let kind = match self.text(&format!("{folder}/type"))?.as_deref().map(str::trim) {
                Some("Instruction") => CacheKind::Instruction,
                Some("Data") => CacheKind::Data,
                _ => CacheKind::Unified,
            };
            if let Some(bytes) = bytes {
                read.kinds.insert((index, bytes), (level, kind));
            }
            (level, kind)
        };
        Ok(Some(Cache { level, kind, cpus, bytes }))
    }

    /// The nodes, each with the processors that it lists.
    fn nodes(&self) -> Result<Vec<(NumaNode, CpuSet)>> {
        let mut nodes = Vec::new();
        let (known, mut members) = (Cell::new(0), 0);
        for number in self.numbered("devices/system/node", "node") {
            let folder = format!("devices/system/node/node{number}");
            if number >= NODES_MAX {
                let what = format!("node {number} is above the maximum of {}", NODES_MAX - 1);
                return Err(unusable(&self.origin, &what));
            }
            let cpus = self.set_of(&folder, &["cpulist", "cpumap"], &known)?;
            members += cpus.as_ref().map_or(0, CpuSet::len);
            self.check_members("nodes", members)?;
            let distances = self.text(&format!("{folder}/distance"))?.unwrap_or_default();
            let distances = distances.split_whitespace().map(|word| word.parse().unwrap_or(0));
            let memory = self.text(&format!("{folder}/meminfo"))?;
            let node = NumaNode {
                number,
                cpus: CpuSet::new(),
                memory_bytes: memory.as_deref().and_then(memory_bytes),
                is_allowed: true,
                distances: distances.collect(),
            };
            nodes.push((node, cpus.unwrap_or_default()));
        }
        Ok(nodes)
    }

    /// Interfaces of hardware. Unreadable ones are left out: they only guide a choice.
    fn nics(&self) -> Vec<Nic> {
        let entries = fs::read_dir(self.sys.join("class/net")).into_iter().flatten().flatten();
        let nic = |entry: fs::DirEntry| {
            let name = entry.file_name().to_str()?.to_owned();
            let device = format!("class/net/{name}/device");
            self.sys.join(&device).exists().then_some(())?;
            let node = self.number(&format!("{device}/numa_node")).ok().flatten();
            Some(Nic { name, node: node.and_then(|node| u32::try_from(node).ok()) })
        };
        entries.filter_map(nic).collect()
    }
}

/// The sockets that have been read.
#[derive(Debug, Default)]
struct Packages {
    /// By processor.
    of: BTreeMap<u32, u32>,
    /// The name of the file with the processors of a socket.
    known: Cell<usize>,
    /// A processor lacked such a file: the others are not asked.
    is_unlisted: bool,
}

/// What has been read of caches.
#[derive(Debug, Default)]
struct CachesRead {
    /// The name of the file with the processors of a cache.
    known: Cell<usize>,
    /// Level and kind by index and size.
    kinds: BTreeMap<(u32, u64), (u32, CacheKind)>,
    /// The sizes of a processor's caches, in the order of their indexes.
    sizes: BTreeMap<u32, Vec<Option<u64>>>,
    /// Cores without a further cache.
    complete: CpuSet,
    /// The sizes of these cores, with the index that they lack.
    ended: BTreeSet<(u32, Vec<Option<u64>>)>,
}

impl CachesRead {
    /// Whether a core has no cache of this index: it lacked a lower one, or a core with caches of
    /// the same sizes lacks this one.
    fn is_complete(&self, core: u32, index: u32) -> bool {
        let sizes = self.sizes.get(&core);
        let is_alike = || sizes.is_some_and(|own| self.ended.contains(&(index, own.clone())));
        self.complete.contains(core) || is_alike()
    }

    /// A core lacks the cache of this index.
    fn ends(&mut self, core: u32, index: u32) {
        let sizes = self.sizes.get(&core);
        if index >= CACHES_USUAL || sizes.is_some() {
            self.complete.insert(core);
        }
        if let Some(sizes) = sizes.filter(|sizes| !sizes.contains(&None)) {
            self.ended.insert((index, sizes.clone()));
        }
    }
}

/// Marks what this process may not use, and what its control groups say.
fn limit(parts: &mut TopologyParts, limits: Limits) {
    for cpu in &mut parts.cpus {
        cpu.is_allowed = limits.cpus.as_ref().is_none_or(|set| set.contains(cpu.number));
        cpu.is_isolated |= limits.isolated.contains(cpu.number);
    }
    for node in &mut parts.nodes {
        node.is_allowed = limits.memory_nodes.as_ref().is_none_or(|set| set.contains(node.number));
    }
    if parts.cpus.iter().any(|cpu| !cpu.is_allowed) {
        parts.limited_by = Some(limits.origin);
    }
    parts.quota = limits.quota;
    parts.partition = limits.partition;
}

/// The only node of a machine without NUMA.
fn whole_machine() -> NumaNode {
    NumaNode {
        number: 0,
        cpus: CpuSet::new(),
        memory_bytes: None,
        is_allowed: true,
        distances: Vec::new(),
    }
}

fn nodes_of_cpus(nodes: &[(NumaNode, CpuSet)]) -> BTreeMap<u32, u32> {
    let of = |(node, cpus): &(NumaNode, CpuSet)| {
        let number = node.number;
        cpus.iter().map(move |cpu| (cpu, number)).collect::<Vec<_>>()
    };
    nodes.iter().flat_map(of).collect()
}

/// `1024K`, `16M`.
fn cache_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text.get(digits.len()..)? {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The line `Node 0 MemTotal: 32768 kB`.
fn memory_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split("MemTotal:").nth(1)?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

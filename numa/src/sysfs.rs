//! Reads a topology from the kernel's files: `/sys` of this machine, or a copy of another's.
//!
//! Old kernels have masks instead of lists, offline processors have no topology, nodes may have no
//! processors, numbers may have gaps, and a machine without NUMA has no nodes at all.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nearstate_model::{Error, Result};

use crate::cgroup;
use crate::cpu_set::{CPUS_MAX, CpuSet};
use crate::text_file;
use crate::topology::{Cache, CacheKind, Cpu, NODES_MAX, Nic, NumaNode, TopologyParts, unusable};

/// More than any of the files has. A mask of 65,536 processors has 18 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The most caches of one processor: more than any processor has.
const CACHES_MAX: u32 = 16;

/// A tree with the folders `sys` and, for what limits this process, `proc`.
#[derive(Debug)]
pub(crate) struct SysTree {
    /// The folder that `sys/devices/system/cpu` is in, or `None` if the tree is `/sys` itself.
    root: Option<PathBuf>,
    sys: PathBuf,
    origin: String,
}

impl SysTree {
    /// The tree at a folder: a root folder, or a copy of `/sys`.
    ///
    /// # Errors
    /// `BadArgument` if it has no `devices/system/cpu`.
    pub(crate) fn open(folder: &Path, origin: String) -> Result<Self> {
        let sys = folder.join("sys");
        if sys.join("devices/system/cpu").is_dir() {
            return Ok(Self { root: Some(folder.to_owned()), sys, origin });
        }
        if folder.join("devices/system/cpu").is_dir() {
            return Ok(Self { root: None, sys: folder.to_owned(), origin });
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
        let node_of = nodes_of_cpus(&nodes);
        let isolated = self.list("devices/system/cpu/isolated")?.unwrap_or_default();
        let mut cpus = Vec::new();
        for number in online.iter() {
            let mut cpu = self.cpu(number, &online)?;
            cpu.is_isolated = isolated.contains(number);
            let first = nodes.first().map_or(0, |(node, _)| node.number);
            cpu.node = *node_of.get(&number).unwrap_or(&first);
            if !nodes.is_empty() && !node_of.contains_key(&number) {
                warnings.push(format!("processor {number} is on no node; node {first} is assumed"));
            }
            cpus.push(cpu);
        }
        let caches = self.caches(&online, &mut warnings)?;
        let present = self.list("devices/system/cpu/present")?.unwrap_or_default();
        let mut nodes: Vec<NumaNode> = nodes.into_iter().map(|(node, _)| node).collect();
        if nodes.is_empty() {
            nodes.push(whole_machine());
        }
        let mut limited_by = None;
        if let Some(root) = &self.root {
            let limits = cgroup::limits(root)?;
            for cpu in &mut cpus {
                cpu.is_allowed = limits.cpus.as_ref().is_none_or(|set| set.contains(cpu.number));
            }
            for node in &mut nodes {
                node.is_allowed =
                    limits.memory_nodes.as_ref().is_none_or(|set| set.contains(node.number));
            }
            if cpus.iter().any(|cpu| !cpu.is_allowed) {
                limited_by = Some(limits.origin);
            }
        }
        Ok(TopologyParts {
            origin: self.origin.clone(),
            architecture: None,
            offline: present.difference(&online),
            nics: self.nics(),
            cpus,
            nodes,
            caches,
            limited_by,
            warnings,
        })
    }

    fn text(&self, path: &str) -> Result<Option<String>> {
        text_file::read(&self.sys.join(path), FILE_BYTES_MAX)
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

    fn cpu(&self, number: u32, online: &CpuSet) -> Result<Cpu> {
        let folder = format!("devices/system/cpu/cpu{number}/topology");
        let siblings = self
            .set_of(
                &folder,
                &["core_cpus_list", "thread_siblings_list"],
                &["core_cpus", "thread_siblings"],
            )?
            .map(|set| set.intersection(online))
            .filter(|set| set.contains(number));
        let id = |name: &str| -> Result<Option<u32>> {
            let id = self.number(&format!("{folder}/{name}"))?;
            // Some machines report -1.
            Ok(id.and_then(|id| u32::try_from(id).ok()))
        };
        Ok(Cpu {
            number,
            core: siblings.and_then(|set| set.first()).unwrap_or(number),
            core_id: id("core_id")?.unwrap_or(number),
            package: id("physical_package_id")?.unwrap_or(0),
            node: 0,
            l2: number,
            l3: number,
            is_allowed: true,
            is_isolated: false,
        })
    }

    /// The first of these files that exists, lists before masks. The others are not read: a large
    /// machine has thousands of files.
    fn set_of(&self, folder: &str, lists: &[&str], masks: &[&str]) -> Result<Option<CpuSet>> {
        for name in lists {
            if let Some(set) = self.list(&format!("{folder}/{name}"))? {
                return Ok(Some(set));
            }
        }
        for name in masks {
            if let Some(set) = self.mask(&format!("{folder}/{name}"))? {
                return Ok(Some(set));
            }
        }
        Ok(None)
    }

    /// Each cache once. A processor that a cache of the same index contains is not read again.
    fn caches(&self, online: &CpuSet, warnings: &mut Vec<String>) -> Result<Vec<Cache>> {
        let mut caches: Vec<Cache> = Vec::new();
        for index in 0..CACHES_MAX {
            let mut seen = CpuSet::new();
            for number in online.iter() {
                if seen.contains(number) {
                    continue;
                }
                let folder = format!("devices/system/cpu/cpu{number}/cache/index{index}");
                let Some(cache) = self.cache(&folder)? else { continue };
                if !cache.cpus.contains(number) {
                    warnings.push(format!("{folder} does not list its own processor; ignored"));
                    continue;
                }
                seen.extend(cache.cpus.iter());
                caches.push(cache);
            }
        }
        Ok(caches)
    }

    fn cache(&self, folder: &str) -> Result<Option<Cache>> {
        let Some(level) = self.number(&format!("{folder}/level"))? else { return Ok(None) };
        let cpus = self.set_of(folder, &["shared_cpu_list"], &["shared_cpu_map"])?;
        let kind = match self.text(&format!("{folder}/type"))?.as_deref().map(str::trim) {
            Some("Instruction") => CacheKind::Instruction,
            Some("Data") => CacheKind::Data,
            _ => CacheKind::Unified,
        };
        let bytes = self.text(&format!("{folder}/size"))?.and_then(|text| cache_bytes(&text));
        let level = u32::try_from(level).ok();
        Ok(level.zip(cpus).map(|(level, cpus)| Cache { level, kind, cpus, bytes }))
    }

    /// The nodes, each with the processors that it lists.
    fn nodes(&self) -> Result<Vec<(NumaNode, CpuSet)>> {
        let mut nodes = Vec::new();
        for number in self.numbered("devices/system/node", "node") {
            let folder = format!("devices/system/node/node{number}");
            if number >= NODES_MAX {
                let what = format!("node {number} is above the maximum of {}", NODES_MAX - 1);
                return Err(unusable(&self.origin, &what));
            }
            let cpus = self.set_of(&folder, &["cpulist"], &["cpumap"])?;
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

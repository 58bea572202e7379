//! What limits a process to some processors and memory nodes, and to a share of their time: its
//! affinity and its control groups.

use std::path::{Component, Path};

use nearstate_model::Result;

use crate::cpu_set::CpuSet;
use crate::text_file;
use crate::topology::CpuQuota;

/// More than these files have.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The limits of a process. `None`: everything.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) memory_nodes: Option<CpuSet>,
    /// The files that the limits are from.
    pub(crate) origin: String,
    /// Processors that partitions of control groups isolate.
    pub(crate) isolated: CpuSet,
    /// The kind of the own group's partition, if it is one.
    pub(crate) partition: Option<String>,
    /// The least quota of the own group and the groups above it.
    pub(crate) quota: Option<CpuQuota>,
}

impl Limits {
    fn cpus(&mut self, found: CpuSet, origin: &str) {
        // An empty file means that the group of the parent counts.
        if found.is_empty() {
            return;
        }
        let is_new = self.cpus.as_ref().is_none_or(|known| !known.is_subset(&found));
        let both = self.cpus.as_ref().map(|known| known.intersection(&found));
        self.cpus = Some(both.unwrap_or(found));
        if is_new {
            let comma = if self.origin.is_empty() { "" } else { ", " };
            self.origin = format!("{}{comma}{origin}", self.origin);
        }
    }

    fn memory_nodes(&mut self, found: CpuSet) {
        if !found.is_empty() {
            let both = self.memory_nodes.as_ref().map(|known| known.intersection(&found));
            self.memory_nodes = Some(both.unwrap_or(found));
        }
    }

    fn quota(&mut self, milli_cpus: u64, group: &str) {
        if self.quota.as_ref().is_none_or(|known| milli_cpus < known.milli_cpus) {
            let origin = format!("control group {group}");
            self.quota = Some(CpuQuota { milli_cpus, origin });
        }
    }
}

/// The limits of the process `self` of a tree.
///
/// # Errors
/// `BadArgument` for lists that are no lists, `System` for files that cannot be read.
pub(crate) fn limits(root: &Path) -> Result<Limits> {
    let mut limits = Limits::default();
    let read = |path: &Path| text_file::read(path, FILE_BYTES_MAX);
    let status = read(&root.join("proc/self/status"))?.unwrap_or_default();
    let line = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::parse::<CpuSet>)
    };
    if let Some(cpus) = line("Cpus_allowed_list:") {
        limits.cpus(cpus?, "the affinity of this process");
    }
    if let Some(nodes) = line("Mems_allowed_list:") {
        limits.memory_nodes(nodes?);
    }
    let isolated = read(&root.join("sys/fs/cgroup/cpuset.cpus.isolated"))?;
    limits.isolated = isolated.map(|text| text.parse()).transpose()?.unwrap_or_default();
    let groups = read(&root.join("proc/self/cgroup"))?.unwrap_or_default();
    for group in groups.lines().filter_map(Group::parse) {
        if group.has_quota {
            quotas(root, &group, &mut limits)?;
        }
        if !group.has_cpus {
            continue;
        }
        let folder = root.join("sys/fs/cgroup").join(group.folder());
        for name in group.cpus_files() {
            if let Some(text) = read(&folder.join(name))? {
                limits.cpus(text.parse()?, &format!("control group {}", group.path));
            }
        }
        for name in group.nodes_files() {
            if let Some(text) = read(&folder.join(name))? {
                limits.memory_nodes(text.parse()?);
            }
        }
        // "isolated invalid (..)" is no partition.
        let partition = read(&folder.join("cpuset.cpus.partition"))?;
        let kind = partition.as_deref().map(str::trim);
        limits.partition = limits.partition.or(match kind {
            Some(kind @ ("root" | "isolated")) if group.is_v2 => Some(kind.to_owned()),
            _ => None,
        });
    }
    Ok(limits)
}

/// Reads the quota of a group and of all groups above it.
fn quotas(root: &Path, group: &Group<'_>, limits: &mut Limits) -> Result<()> {
    let read = |path: &Path| text_file::read(path, FILE_BYTES_MAX);
    let top = root.join("sys/fs/cgroup");
    for path in Path::new(group.path).ancestors() {
        let below = path.strip_prefix("/").unwrap_or(path);
        let milli_cpus = if group.is_v2 {
            read(&top.join(below).join("cpu.max"))?.and_then(|text| quota_of(&text))
        } else {
            // Controllers that are mounted together have a symbolic link for each name.
            let folder = top.join("cpu").join(below);
            let quota = read(&folder.join("cpu.cfs_quota_us"))?;
            let period = read(&folder.join("cpu.cfs_period_us"))?;
            quota.zip(period).and_then(|(quota, period)| quota_of(&format!("{quota} {period}")))
        };
        if let Some(milli_cpus) = milli_cpus {
            limits.quota(milli_cpus, &path.display().to_string());
        }
    }
    Ok(())
}

/// Thousandths of a processor, of `200000 100000`: microseconds in each period. `max`, and -1 of
/// version 1, are no limit.
fn quota_of(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let quota: u64 = words.next()?.parse().ok()?;
    let period: u64 = words.next()?.parse().ok()?;
    quota.checked_mul(1000)?.checked_div(period)
}

/// A line of `/proc/self/cgroup`: version 2 (`0::/path`), or version 1 with processors or their
/// time.
struct Group<'a> {
    path: &'a str,
    is_v2: bool,
    has_cpus: bool,
    has_quota: bool,
}

impl<'a> Group<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_v2 = number == "0" && controllers.is_empty();
        let has = |wanted: &str| is_v2 || controllers.split(',').any(|name| name == wanted);
        let (has_cpus, has_quota) = (has("cpuset"), has("cpu"));
        // A path of a copied tree does not lead out of the tree.
        let is_inside = !Path::new(path).components().any(|part| part == Component::ParentDir);
        let is_used = has_cpus || has_quota;
        (is_used && is_inside).then_some(Self { path, is_v2, has_cpus, has_quota })
    }

    /// Below `/sys/fs/cgroup`, where systemd and containers mount the groups.
    fn folder(&self) -> String {
        let path = self.path.trim_start_matches('/');
        if self.is_v2 { path.to_owned() } else { format!("cpuset/{path}") }
    }

    const fn cpus_files(&self) -> &'static [&'static str] {
        if self.is_v2 { &["cpuset.cpus.effective"] } else { &["cpuset.cpus"] }
    }

    const fn nodes_files(&self) -> &'static [&'static str] {
        if self.is_v2 { &["cpuset.mems.effective"] } else { &["cpuset.mems"] }
    }
}

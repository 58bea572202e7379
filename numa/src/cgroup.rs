//! What limits a process to some processors and memory nodes: its affinity and its control group.

use std::path::{Component, Path};

use nearstate_model::Result;

use crate::cpu_set::CpuSet;
use crate::text_file;

/// More than these files have.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The limits of a process. `None`: everything.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) memory_nodes: Option<CpuSet>,
    /// The files that the limits are from.
    pub(crate) origin: String,
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
    let groups = read(&root.join("proc/self/cgroup"))?.unwrap_or_default();
    for group in groups.lines().filter_map(Group::parse) {
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
    }
    Ok(limits)
}

/// A line of `/proc/self/cgroup`: version 2 (`0::/path`), or version 1 with processor sets.
struct Group<'a> {
    path: &'a str,
    is_v2: bool,
}

impl<'a> Group<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_v2 = number == "0" && controllers.is_empty();
        let has_cpus = is_v2 || controllers.split(',').any(|name| name == "cpuset");
        // A path of a copied tree does not lead out of the tree.
        let is_inside = !Path::new(path).components().any(|part| part == Component::ParentDir);
        (has_cpus && is_inside).then_some(Self { path, is_v2 })
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

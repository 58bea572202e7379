//! Reads a topology from an XML file of hwloc (`lstopo machine.xml`), versions 1 to 3.

use std::collections::BTreeMap;
use std::rc::Rc;

use nearstate_model::{Error, Result};
use roxmltree::{Document, ParsingOptions};

use crate::cpu_set::CpuSet;
use crate::topology::{
    Cache, CacheKind, Cpu, MEMBERS_MAX, NODES_MAX, Nic, NumaNode, TopologyParts, unusable,
};
use crate::xml_limits;

/// The most elements and texts of a document: a machine of 65,536 processors has fewer.
const NODES_LIMIT: u32 = 1_000_000;

/// hwloc's number of a network device (`HWLOC_OBJ_OSDEV_NETWORK`) in versions 1 and 2.
const OSDEV_NETWORK: u64 = 2;

/// The bit of a network device in version 3, where a device may be of several types.
const OSDEV_NETWORK_BIT: u64 = 1 << 4;

/// Parses the text of a file.
///
/// # Errors
/// `BadArgument`: no XML, no topology, or contents that make no sense.
pub(crate) fn parse(text: &str, origin: &str) -> Result<TopologyParts> {
    xml_limits::check(text).map_err(|why| {
        bad(format!("{origin} is no file of hwloc: {why}; write one with `lstopo machine.xml`"))
    })?;
    let options = ParsingOptions { allow_dtd: true, nodes_limit: NODES_LIMIT };
    let document = Document::parse_with_options(text, options).map_err(|e| {
        bad(format!("{origin} is no XML file: {e}; write one with `lstopo machine.xml`"))
    })?;
    let root = document.root_element();
    if !root.has_tag_name("topology") {
        return Err(bad(format!(
            "{origin} has the root element <{}>, expected <topology>; write a file with \
             `lstopo machine.xml`",
            root.tag_name().name()
        )));
    }
    // Version 1 has no attribute.
    let version = root.attribute("version").and_then(|text| text.split('.').next()?.parse().ok());
    let version: u32 = version.unwrap_or(1);
    let mut reader = Reader { origin, version, ..Reader::default() };
    reader.walk(root)?;
    reader.distances(root)?;
    Ok(reader.finish())
}

#[cold]
const fn bad(detail: String) -> Error {
    Error::BadArgument { detail }
}

/// An element of the document.
type XmlElement<'a> = roxmltree::Node<'a, 'a>;

/// What has been read.
#[derive(Debug, Default)]
struct Reader<'a> {
    origin: &'a str,
    /// The first number of the file's version.
    version: u32,
    architecture: Option<String>,
    cpus: Vec<Cpu>,
    /// Nodes, with the processors next to each.
    nodes: Vec<(NumaNode, CpuSet)>,
    caches: Vec<Cache>,
    /// Present processors, offline ones included.
    complete: CpuSet,
    allowed: Option<CpuSet>,
    allowed_nodes: Option<CpuSet>,
    /// Interfaces, each with the processors next to it.
    nics: Vec<(String, CpuSet)>,
    warnings: Vec<String>,
    /// The processors that caches, nodes and interfaces list together.
    members: usize,
}

/// The objects around an object. The sets are shared by all objects that are inside.
#[derive(Clone, Debug, Default)]
struct Around {
    package: u32,
    core_id: Option<u32>,
    /// The lowest processor of the core.
    core: Option<u32>,
    /// The processors of the nearest object with processors.
    cpus: Rc<CpuSet>,
}

impl Reader<'_> {
    /// Visits the objects with a list of its own: the depth of a file is no depth of the stack.
    fn walk(&mut self, root: XmlElement<'_>) -> Result<()> {
        let mut waiting = vec![(root, Around::default())];
        while let Some((element, around)) = waiting.pop() {
            for child in element.children().filter(|child| child.has_tag_name("object")) {
                let around = self.object(child, around.clone())?;
                waiting.push((child, around));
            }
        }
        Ok(())
    }

    /// Reads an object, and returns what is around its children.
    fn object(&mut self, object: XmlElement<'_>, mut around: Around) -> Result<Around> {
        let own = self.set(object, "cpuset")?.map(Rc::new);
        let cpus = own.clone().unwrap_or_else(|| around.cpus.clone());
        match object.attribute("type").unwrap_or_default() {
            "Machine" | "System" => {
                self.allowed = self.set(object, "allowed_cpuset")?;
                self.allowed_nodes = self.set(object, "allowed_nodeset")?;
                self.complete = self.set(object, "complete_cpuset")?.unwrap_or_default();
                let info = object.children().find(|child| {
                    child.has_tag_name("info") && child.attribute("name") == Some("Architecture")
                });
                self.architecture = info.and_then(|i| i.attribute("value")).map(str::to_owned);
            }
            "Package" | "Socket" => around.package = self.index(object)?.unwrap_or(0),
            "Core" => {
                around.core_id = self.index(object)?;
                around.core = own.and_then(|cpus| cpus.first());
            }
            "PU" => self.processor(object, &around)?,
            "NUMANode" => self.node(object, own.as_ref().unwrap_or(&around.cpus))?,
            "OSDev" if self.is_network(object) => {
                let name = object.attribute("name").unwrap_or("unnamed").to_owned();
                let around = self.counted(&around.cpus)?;
                self.nics.push((name, around));
            }
            kind => self.cache(object, kind, &cpus)?,
        }
        around.cpus = cpus;
        Ok(around)
    }

    fn is_network(&self, device: XmlElement<'_>) -> bool {
        let kind = device.attribute("osdev_type").and_then(|text| text.parse::<u64>().ok());
        kind.is_some_and(|kind| match self.version {
            ..=2 => kind == OSDEV_NETWORK,
            _ => kind & OSDEV_NETWORK_BIT != 0,
        })
    }

    fn processor(&mut self, object: XmlElement<'_>, around: &Around) -> Result<()> {
        let number = self.index(object)?;
        let number = number.ok_or_else(|| unusable(self.origin, "a PU has no os_index"))?;
        self.cpus.push(Cpu {
            number,
            core: number,
            core_id: around.core_id.unwrap_or(number),
            package: around.package,
            node: 0,
            l2: number,
            l3: number,
            is_allowed: true,
            is_isolated: false,
        });
        // The numbers of the core are known when the offline ones have been taken out.
        if let (Some(cpu), Some(core)) = (self.cpus.last_mut(), around.core) {
            cpu.core = core;
        }
        Ok(())
    }

    fn node(&mut self, object: XmlElement<'_>, cpus: &CpuSet) -> Result<()> {
        let number = self.index(object)?;
        let number = number.ok_or_else(|| unusable(self.origin, "a NUMANode has no os_index"))?;
        if self.nodes.len() >= NODES_MAX as usize {
            return Err(unusable(self.origin, &format!("it has more than {NODES_MAX} nodes")));
        }
        let node = NumaNode {
            number,
            cpus: CpuSet::new(),
            memory_bytes: object.attribute("local_memory").and_then(|text| text.parse().ok()),
            is_allowed: true,
            distances: Vec::new(),
        };
        let cpus = self.counted(cpus)?;
        self.nodes.push((node, cpus));
        Ok(())
    }

    /// A copy of a set that is kept.
    fn counted(&mut self, cpus: &CpuSet) -> Result<CpuSet> {
        self.members += cpus.len();
        if self.members > MEMBERS_MAX {
            let what = format!("its objects list more than {MEMBERS_MAX} processors");
            return Err(unusable(self.origin, &what));
        }
        Ok(cpus.clone())
    }

    /// `L2Cache` of version 2; `Cache` with a depth of version 1.
    fn cache(&mut self, object: XmlElement<'_>, kind: &str, cpus: &CpuSet) -> Result<()> {
        let digits = kind
            .strip_prefix('L')
            .and_then(|rest| rest.strip_suffix("iCache").or_else(|| rest.strip_suffix("Cache")));
        let level = match kind {
            "Cache" => object.attribute("depth"),
            _ => digits,
        };
        let Some(level) = level.and_then(|digits| digits.parse().ok()) else { return Ok(()) };
        let kind = match object.attribute("cache_type") {
            _ if kind.ends_with("iCache") => CacheKind::Instruction,
            Some("1") => CacheKind::Data,
            Some("2") => CacheKind::Instruction,
            _ => CacheKind::Unified,
        };
        let size = object.attribute("cache_size").and_then(|text| text.parse().ok());
        let bytes = size.filter(|bytes| *bytes > 0);
        let cpus = self.counted(cpus)?;
        self.caches.push(Cache { level, kind, cpus, bytes });
        Ok(())
    }

    fn set(&self, object: XmlElement<'_>, name: &str) -> Result<Option<CpuSet>> {
        let Some(text) = object.attribute(name) else { return Ok(None) };
        // An infinite set excludes nothing.
        if text.contains("f...f") {
            return Ok(None);
        }
        CpuSet::from_mask(text).map(Some).map_err(|e| self.at(object, name, &e.to_string()))
    }

    fn index(&self, object: XmlElement<'_>) -> Result<Option<u32>> {
        let Some(text) = object.attribute("os_index") else { return Ok(None) };
        let wrong = |_| self.at(object, "os_index", &format!("{text:?} is no number"));
        text.parse().map(Some).map_err(wrong)
    }

    #[cold]
    fn at(&self, object: XmlElement<'_>, name: &str, why: &str) -> Error {
        let line = object.document().text_pos_at(object.range().start).row;
        bad(format!("{}, line {line}, {name}: {why}", self.origin))
    }

    /// The matrix between nodes: `distances2` of version 2, `distances` of version 1.
    fn distances(&mut self, root: XmlElement<'_>) -> Result<()> {
        let is_matrix = |element: &XmlElement<'_>| {
            element.has_tag_name("distances2") && element.attribute("type") == Some("NUMANode")
        };
        let (indexes, values) = match root.descendants().find(is_matrix) {
            Some(matrix) => (numbers(matrix, "indexes"), numbers(matrix, "u64values")),
            None => self.distances_of_v1(root),
        };
        if values.is_empty() {
            return Ok(());
        }
        if values.len() != indexes.len() * indexes.len() {
            let what = format!("{} distances between {} nodes", values.len(), indexes.len());
            return Err(unusable(self.origin, &what));
        }
        let places: BTreeMap<u64, usize> =
            indexes.iter().enumerate().rev().map(|(at, index)| (*index, at)).collect();
        let order = |number: u32| places.get(&u64::from(number)).copied();
        let mut known: Vec<u32> = self.nodes.iter().map(|(node, _)| node.number).collect();
        known.sort_unstable();
        for (node, _) in &mut self.nodes {
            let Some(row) = order(node.number) else { continue };
            let value = |other: &u32| {
                let distance = values.get(row * indexes.len() + order(*other)?)?;
                u32::try_from(*distance).ok()
            };
            node.distances = known.iter().map_while(value).collect();
        }
        Ok(())
    }

    /// The nodes of version 1 in the order of the file, and relative latencies.
    fn distances_of_v1(&self, root: XmlElement<'_>) -> (Vec<u64>, Vec<u64>) {
        let count = self.nodes.len().to_string();
        let is_matrix = |element: &XmlElement<'_>| {
            element.has_tag_name("distances") && element.attribute("nbobjs") == Some(&*count)
        };
        let Some(matrix) = root.descendants().find(is_matrix) else { return Default::default() };
        let number =
            |element: XmlElement<'_>, name: &str| element.attribute(name)?.parse::<f64>().ok();
        let base = number(matrix, "latency_base").unwrap_or(1.0);
        let latencies = matrix.children().filter(|child| child.has_tag_name("latency"));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, and 0 is refused"
        )]
        let distance = |element| (number(element, "value").unwrap_or(0.0) * base).round() as u64;
        let in_file: Vec<u64> = root
            .descendants()
            .filter(|element| element.attribute("type") == Some("NUMANode"))
            .filter_map(|element| element.attribute("os_index")?.parse().ok())
            .collect();
        (in_file, latencies.map(distance).collect())
    }

    fn finish(self) -> TopologyParts {
        let Self { mut cpus, mut warnings, .. } = self;
        let online: CpuSet = cpus.iter().map(|cpu| cpu.number).collect();
        // Memory of a larger part of the machine is farther away. Of two nodes at the same
        // processors, the first one has the usual memory.
        let mut nearest: BTreeMap<u32, (usize, u32)> = BTreeMap::new();
        for (node, cpus) in &self.nodes {
            for cpu in cpus.iter() {
                let found = (cpus.len(), node.number);
                let known = nearest.entry(cpu).or_insert(found);
                *known = found.min(*known);
            }
        }
        let local = |cpu: u32| nearest.get(&cpu).map(|(_, node)| *node);
        let nics = self.nics.iter().map(|(name, around)| {
            let is_local = !online.is_subset(around) || self.nodes.len() == 1;
            let node = around.first().filter(|_| is_local).and_then(local);
            Nic { name: name.clone(), node }
        });
        let nics = nics.collect();
        let first = self.nodes.iter().map(|(node, _)| node.number).min().unwrap_or(0);
        for cpu in &mut cpus {
            cpu.node = local(cpu.number).unwrap_or(first);
            cpu.is_allowed = self.allowed.as_ref().is_none_or(|set| set.contains(cpu.number));
            if !self.nodes.is_empty() && local(cpu.number).is_none() {
                let number = cpu.number;
                warnings.push(format!("processor {number} is on no node; node {first} is assumed"));
            }
        }
        let limited = cpus.iter().any(|cpu| !cpu.is_allowed);
        let mut nodes: Vec<NumaNode> = self.nodes.into_iter().map(|(node, _)| node).collect();
        if nodes.is_empty() {
            nodes.push(NumaNode {
                number: 0,
                cpus: CpuSet::new(),
                memory_bytes: None,
                is_allowed: true,
                distances: Vec::new(),
            });
        }
        for node in &mut nodes {
            node.is_allowed =
                self.allowed_nodes.as_ref().is_none_or(|set| set.contains(node.number));
        }
        TopologyParts {
            origin: self.origin.to_owned(),
            architecture: self.architecture,
            cpus,
            nodes,
            caches: self.caches,
            offline: self.complete.difference(&online),
            nics,
            limited_by: limited.then(|| "allowed_cpuset of the file".to_owned()),
            warnings,
            ..TopologyParts::default()
        }
    }
}

/// The numbers of all children with this name.
fn numbers(matrix: XmlElement<'_>, name: &str) -> Vec<u64> {
    let texts = matrix.children().filter(|child| child.has_tag_name(name));
    let words = texts.filter_map(|child| child.text()).flat_map(str::split_whitespace);
    words.map(|word| word.parse().unwrap_or(0)).collect()
}

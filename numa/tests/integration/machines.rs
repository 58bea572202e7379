//! Small models of machines, written as the files that a kernel would show.

use std::fs;
use std::path::{Path, PathBuf};

use nearstate_numa::{
    Cache, CacheKind, Cpu, CpuSet, Nic, NumaNode, Topology, TopologyParts, discover,
};
use tempfile::TempDir;

/// A logical processor of a model.
#[derive(Clone, Copy)]
pub(crate) struct ModelCpu {
    pub(crate) number: u32,
    pub(crate) package: u32,
    pub(crate) node: u32,
    pub(crate) core_id: u32,
    /// Any number that is the same for processors of one core, one L2, one L3.
    pub(crate) core: u32,
    pub(crate) l2: u32,
    pub(crate) l3: u32,
}

/// A machine.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) cpus: Vec<ModelCpu>,
    /// Number, MiB of memory, distances.
    pub(crate) nodes: Vec<(u32, u64, Vec<u32>)>,
    pub(crate) offline: Vec<u32>,
    pub(crate) isolated: &'static str,
    /// Interfaces with their nodes.
    pub(crate) nics: Vec<(&'static str, i32)>,
    /// `Cpus_allowed_list` and `Mems_allowed_list`.
    pub(crate) allowed: Option<(&'static str, &'static str)>,
    /// Lists besides masks; kernels before 2.6.30 have masks only. First-level caches as well.
    pub(crate) has_lists: bool,
}

/// The numbering of the kernel: all first hyper-threads, then all second ones, sockets in turn.
pub(crate) fn interleaved(
    sockets: u32,
    cores: u32,
    threads: u32,
    core_ids: &[u32],
) -> Vec<ModelCpu> {
    let mut cpus = Vec::new();
    for number in 0..sockets * cores * threads {
        let (package, index) = (number % sockets, number / sockets % cores);
        let core = package * 1000 + index;
        let core_id = core_ids[index as usize];
        cpus.push(ModelCpu {
            number,
            package,
            node: package,
            core_id,
            core,
            l2: core,
            l3: package,
        });
    }
    cpus
}

/// The server of paper 5: two Xeon Gold 5118, with the numbers of its Figures 9 and 10.
pub(crate) fn gold_5118() -> Model {
    // Figure 9: the core of each of the processors 0, 2, 4, ..., 22.
    let core_ids = [0, 5, 1, 4, 2, 3, 8, 13, 9, 12, 10, 11];
    Model {
        cpus: interleaved(2, 12, 2, &core_ids),
        nodes: vec![(0, 32768, vec![10, 21]), (1, 32768, vec![21, 10])],
        nics: vec![("ens1f0", 1), ("ens2f0", -1)],
        has_lists: true,
        ..Model::default()
    }
}

/// Two sockets of 20 cores with sub-NUMA clustering: four nodes, numbered in turn.
pub(crate) fn sub_numa() -> Model {
    let ids: Vec<u32> = (0..20).collect();
    let mut cpus = interleaved(2, 20, 2, &ids);
    for cpu in &mut cpus {
        let half = cpu.core % 1000 % 2;
        cpu.node = cpu.package + 2 * half;
        cpu.l3 = cpu.package;
    }
    let row = |own: u32| {
        (0..4)
            .map(|to| {
                if to == own {
                    10
                } else if to % 2 == own % 2 {
                    11
                } else {
                    21
                }
            })
            .collect()
    };
    Model { cpus, nodes: (0..4).map(|own| (own, 16384, row(own))).collect(), ..Model::default() }
}

/// Two sockets whose hyper-threads have adjacent numbers, with nodes of four cores.
pub(crate) fn adjacent(nodes_per_socket: u32) -> Model {
    let nodes = 2 * nodes_per_socket;
    let cpus = (0..nodes * 8).map(|number| {
        let (core, node) = (number / 2, number / 8);
        let package = node / nodes_per_socket;
        ModelCpu { number, package, node, core_id: core, core, l2: core, l3: package }
    });
    let distance = |a: u32, b: u32| match () {
        () if a == b => 10,
        () if a / nodes_per_socket == b / nodes_per_socket => 12,
        () => 21,
    };
    let row = |own| (0..nodes).map(|to| distance(own, to)).collect();
    Model {
        cpus: cpus.collect(),
        nodes: (0..nodes).map(|own| (own, 8192, row(own))).collect(),
        ..Model::default()
    }
}

/// Eight sockets of four cores without hyper-threads, in two chassis.
pub(crate) fn eight_sockets() -> Model {
    let cpus = (0..32).map(|number| {
        let node = number / 4;
        ModelCpu {
            number,
            package: node,
            node,
            core_id: number % 4,
            core: number,
            l2: number,
            l3: node,
        }
    });
    let distance = |a: u32, b: u32| match () {
        () if a == b => 10,
        () if a / 4 == b / 4 => 16,
        () => 25,
    };
    let row = |own| (0..8).map(|to| distance(own, to)).collect();
    Model {
        cpus: cpus.collect(),
        nodes: (0..8).map(|own| (own, 8192, row(own))).collect(),
        ..Model::default()
    }
}

/// A virtual machine of two processors.
pub(crate) fn guest() -> Model {
    let cpu = |number| ModelCpu {
        number,
        package: 0,
        node: 0,
        core_id: number,
        core: number,
        l2: number,
        l3: 0,
    };
    Model {
        cpus: vec![cpu(0), cpu(1)],
        nodes: vec![(0, 4096, vec![10])],
        has_lists: true,
        ..Model::default()
    }
}

/// One socket of 16 cores with two threads; four cores share a third-level cache.
pub(crate) fn epyc() -> Model {
    let cpus = (0..32).map(|number| {
        let core = number % 16;
        ModelCpu { number, package: 0, node: core / 8, core_id: core, core, l2: core, l3: core / 4 }
    });
    Model {
        cpus: cpus.collect(),
        nodes: vec![(0, 65536, vec![10, 12]), (1, 65536, vec![12, 10])],
        ..Model::default()
    }
}

/// ARM: two sockets with two nodes each, no hyper-threads, clusters of four cores at one
/// second-level cache, distances that differ by direction.
pub(crate) fn arm() -> Model {
    let cpus = (0..32).map(|number| {
        let node = number / 8;
        let (package, l2) = (node / 2, number / 4);
        ModelCpu { number, package, node, core_id: number, core: number, l2, l3: node }
    });
    let rows =
        [vec![10, 16, 32, 33], vec![16, 10, 25, 32], vec![32, 25, 10, 16], vec![33, 33, 16, 10]];
    let nodes = rows.into_iter().zip(0..).map(|(row, node)| (node, 16384, row));
    Model { cpus: cpus.collect(), nodes: nodes.collect(), ..Model::default() }
}

/// POWER: four hyper-threads for each core, sparse numbers of nodes and processors.
pub(crate) fn power() -> Model {
    let mut cpus = Vec::new();
    for (index, node) in [0, 8, 252].into_iter().enumerate() {
        for thread in 0..8 {
            let index = u32::try_from(index).unwrap();
            let core = index * 2 + thread / 4;
            let number = index * 16 + thread / 4 * 8 + thread % 4;
            cpus.push(ModelCpu {
                number,
                package: index,
                node,
                core_id: core * 8,
                core,
                l2: core,
                l3: core,
            });
        }
    }
    let nodes = vec![
        (0, 8192, vec![10, 40, 20]),
        (8, 8192, vec![40, 10, 20]),
        (252, 8192, vec![20, 20, 10]),
    ];
    Model { cpus, nodes, ..Model::default() }
}

/// A two-socket machine with two processors offline, one of them a hyper-thread, a node without
/// memory, a node without processors, and a control group.
pub(crate) fn odd() -> Model {
    let mut cpus = interleaved(2, 4, 2, &[0, 1, 2, 3]);
    cpus.retain(|cpu| cpu.number != 8 && cpu.number != 3);
    Model {
        cpus,
        nodes: vec![
            (0, 8192, vec![10, 21, 30]),
            (1, 0, vec![21, 10, 28]),
            (2, 65536, vec![30, 28, 10]),
        ],
        offline: vec![3, 8],
        isolated: "4-5",
        allowed: Some(("0-13", "0,2")),
        ..Model::default()
    }
}

/// All models by name.
pub(crate) fn all() -> Vec<(&'static str, Model)> {
    vec![
        ("gold-5118", gold_5118()),
        ("sub-numa", sub_numa()),
        ("eight-sockets", eight_sockets()),
        ("guest", guest()),
        ("epyc", epyc()),
        ("arm", arm()),
        ("power", power()),
        ("odd", odd()),
    ]
}

/// A folder with the files of a machine.
pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn cpu(&self) -> PathBuf {
        self.path().join("sys/devices/system/cpu")
    }

    pub(crate) fn node(&self) -> PathBuf {
        self.path().join("sys/devices/system/node")
    }

    pub(crate) fn read(&self) -> nearstate_model::Result<Topology> {
        discover(Some(self.path()))
    }
}

/// A topology of a model, without files.
pub(crate) fn topology(model: &Model) -> Topology {
    let first = |cpu: &ModelCpu, key: fn(&ModelCpu) -> u32| model.group(cpu, key)[0];
    let allowed = model.allowed.map(|(cpus, _)| cpus.parse::<CpuSet>().unwrap());
    let isolated: CpuSet = model.isolated.parse().unwrap();
    let cpu = |cpu: &ModelCpu| Cpu {
        number: cpu.number,
        core: first(cpu, |cpu| cpu.core),
        core_id: cpu.core_id,
        package: cpu.package,
        node: cpu.node,
        l2: 0,
        l3: 0,
        is_allowed: allowed.as_ref().is_none_or(|set| set.contains(cpu.number)),
        is_isolated: isolated.contains(cpu.number),
    };
    let nodes = model.nodes.iter().map(|(number, mib, distances)| NumaNode {
        number: *number,
        cpus: CpuSet::new(),
        memory_bytes: Some(mib << 20),
        is_allowed: true,
        distances: distances.clone(),
    });
    let mut caches = Vec::new();
    for cpu in &model.cpus {
        for (level, kind, _, key) in CACHES {
            let cpus = model.group(cpu, key).into_iter().collect();
            let kind = if kind == "Unified" { CacheKind::Unified } else { CacheKind::Data };
            caches.push(Cache { level, kind, cpus, bytes: None });
        }
    }
    let nics = model
        .nics
        .iter()
        .map(|(name, node)| Nic { name: (*name).to_owned(), node: u32::try_from(*node).ok() });
    Topology::new(TopologyParts {
        origin: "model".to_owned(),
        cpus: model.cpus.iter().map(cpu).collect(),
        nodes: nodes.collect(),
        caches,
        offline: model.offline.iter().copied().collect(),
        nics: nics.collect(),
        ..TopologyParts::default()
    })
    .unwrap()
}

type CacheKey = fn(&ModelCpu) -> u32;

/// Level, type, size, and what shares it.
const CACHES: [(u32, &str, &str, CacheKey); 4] = [
    (1, "Data", "32K", |cpu| cpu.core),
    (1, "Instruction", "32K", |cpu| cpu.core),
    (2, "Unified", "1024K", |cpu| cpu.l2),
    (3, "Unified", "16896K", |cpu| cpu.l3),
];

pub(crate) fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

impl Model {
    /// The processors for which a key is the same as for one.
    fn group(&self, of: &ModelCpu, key: fn(&ModelCpu) -> u32) -> Vec<u32> {
        let same = self.cpus.iter().filter(|cpu| key(cpu) == key(of));
        same.map(|cpu| cpu.number).collect()
    }

    fn put_set(&self, folder: &Path, list: &str, mask: &str, numbers: &[u32]) {
        let words = numbers.iter().max().map_or(1, |max| max / 32 + 1);
        let word = |index: u32| {
            numbers.iter().filter(|n| **n / 32 == index).fold(0_u32, |w, n| w | 1 << (n % 32))
        };
        let words = (0..words).rev().map(|index| format!("{:08x}", word(index)));
        put(&folder.join(mask), &format!("{}\n", words.collect::<Vec<_>>().join(",")));
        if self.has_lists {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            put(&folder.join(list), &format!("{}\n", numbers.join(",")));
        }
    }

    pub(crate) fn write(&self) -> Tree {
        // Thousands of small files: in memory a machine is written in milliseconds.
        let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let tree = Tree(tempfile::tempdir_in(base).unwrap());
        let folder = tree.cpu();
        let mut numbers: Vec<u32> = self.cpus.iter().map(|cpu| cpu.number).collect();
        numbers.sort_unstable();
        let list = |numbers: &[u32]| {
            numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",") + "\n"
        };
        put(&folder.join("online"), &list(&numbers));
        let present: Vec<u32> = numbers.iter().chain(&self.offline).copied().collect();
        put(&folder.join("present"), &list(&present));
        put(&folder.join("possible"), &list(&present));
        put(&folder.join("isolated"), &format!("{}\n", self.isolated));
        for number in &self.offline {
            put(&folder.join(format!("cpu{number}/online")), "0\n");
        }
        for cpu in &self.cpus {
            self.write_cpu(&folder.join(format!("cpu{}", cpu.number)), cpu);
        }
        for (number, mib, distances) in &self.nodes {
            let folder = tree.node().join(format!("node{number}"));
            let own: Vec<u32> =
                self.cpus.iter().filter(|cpu| cpu.node == *number).map(|cpu| cpu.number).collect();
            self.put_set(&folder, "cpulist", "cpumap", &own);
            let words: Vec<String> = distances.iter().map(u32::to_string).collect();
            // A NUL after the line, as some ARM kernels write it.
            put(&folder.join("distance"), &format!("{}\n\0", words.join(" ")));
            let kib = mib * 1024;
            put(&folder.join("meminfo"), &format!("\nNode {number} MemTotal:  {kib} kB\n"));
        }
        let nodes: Vec<u32> = self.nodes.iter().map(|node| node.0).collect();
        put(&tree.node().join("online"), &list(&nodes));
        for (name, node) in &self.nics {
            let device = tree.path().join(format!("sys/class/net/{name}/device"));
            put(&device.join("numa_node"), &format!("{node}\n"));
        }
        if let Some((cpus, nodes)) = self.allowed {
            let text = format!("Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}\n");
            put(&tree.path().join("proc/self/status"), &text);
        }
        put(&tree.path().join("proc/cpuinfo"), "");
        tree
    }

    fn write_cpu(&self, folder: &Path, cpu: &ModelCpu) {
        let topology = folder.join("topology");
        put(&topology.join("core_id"), &format!("{}\n", cpu.core_id));
        put(&topology.join("physical_package_id"), &format!("{}\n", cpu.package));
        let siblings = self.group(cpu, |cpu| cpu.core);
        self.put_set(&topology, "thread_siblings_list", "thread_siblings", &siblings);
        let package = self.group(cpu, |cpu| cpu.package);
        self.put_set(&topology, "core_siblings_list", "core_siblings", &package);
        for (index, (level, kind, size, key)) in CACHES.into_iter().enumerate() {
            if level == 1 && !self.has_lists {
                continue;
            }
            let cache = folder.join(format!("cache/index{index}"));
            put(&cache.join("level"), &format!("{level}\n"));
            put(&cache.join("type"), &format!("{kind}\n"));
            put(&cache.join("size"), &format!("{size}\n"));
            self.put_set(&cache, "shared_cpu_list", "shared_cpu_map", &self.group(cpu, key));
        }
    }
}

//! What is read from the files of each machine.

use std::fs;

use nearstate_numa::{CpuSet, Proximity, Topology, discover};

use crate::machines::{
    self, Model, all, gold_5118, interleaved, odd, power, put, sub_numa, topology,
};

fn read(model: &Model) -> Topology {
    model.write().read().unwrap()
}

#[test]
fn the_paper_s_server_is_read_with_its_numbers() {
    let read = read(&gold_5118());
    // Figure 10: cores in the order of their numbers, with both hyper-threads.
    let figure = [
        (0, 0, 24),
        (1, 4, 28),
        (2, 8, 32),
        (3, 10, 34),
        (4, 6, 30),
        (5, 2, 26),
        (8, 12, 36),
        (9, 16, 40),
        (10, 20, 44),
        (11, 22, 46),
        (12, 18, 42),
        (13, 14, 38),
    ];
    for node in [0, 1] {
        for (core_id, first, second) in figure {
            let (first, second) = (first + node, second + node);
            let cpu = read.cpu(first).unwrap();
            assert_eq!((cpu.node, cpu.package, cpu.core_id), (node, node, core_id));
            assert_eq!(read.proximity(first, second), Some(Proximity::Core), "{first}, {second}");
        }
    }
    assert_eq!(read.proximity(0, 4), Some(Proximity::L3));
    assert_eq!(read.proximity(0, 1), Some(Proximity::Remote(21)));
    assert_eq!((read.nodes().len(), read.threads_per_core()), (2, 2));
    assert_eq!(read.nodes()[1].memory_bytes, Some(32 << 30));
    assert_eq!((read.nic_node("ens1f0").unwrap(), read.nic_node("0").unwrap()), (1, 0));
    assert!(read.warnings().is_empty(), "{:?}", read.warnings());
}

/// The files of a large machine are thousands: a fact that others imply is read once.
#[test]
fn facts_that_others_imply_are_not_read() {
    let tree = gold_5118().write();
    let whole = tree.read().unwrap();
    for cpu in 2..48 {
        fs::remove_file(tree.cpu().join(format!("cpu{cpu}/topology/physical_package_id"))).unwrap();
        for cache in ["index0", "index1", "index2", "index3"] {
            for name in ["level", "type"] {
                let path = tree.cpu().join(format!("cpu{cpu}/cache/{cache}/{name}"));
                fs::remove_file(path).unwrap();
            }
        }
    }
    // The first core says that there is no fifth cache.
    let none = tree.cpu().join("cpu2/cache/index4");
    put(&none.join("shared_cpu_list"), "no list\n");
    assert_eq!(tree.read().unwrap(), whole);
    // A cache of another size is another one.
    put(&tree.cpu().join("cpu2/cache/index2/size"), "2048K\n");
    put(&tree.cpu().join("cpu2/cache/index2/level"), "2\n");
    put(&tree.cpu().join("cpu26/cache/index2/size"), "2048K\n");
    assert!(tree.read().unwrap_err().to_string().contains("index4/shared_cpu_list"));
    fs::remove_dir_all(none).unwrap();
    let larger = tree.read().unwrap();
    assert_eq!(larger.proximity(2, 26), Some(Proximity::Core));
    let sizes = |cpu| larger.caches().iter().find(|c| c.level == 2 && c.cpus.contains(cpu));
    assert_eq!((sizes(2).unwrap().bytes, sizes(4).unwrap().bytes), (Some(2 << 20), Some(1 << 20)));
}

#[test]
fn the_numbers_of_pairs_are_those_of_the_machines() {
    // Hyper-thread pairs, pairs of two cores of a node, pairs of two nodes.
    let expected = [
        ("gold-5118", 24, 528, 576),
        ("sub-numa", 40, 720, 2400),
        ("eight-sockets", 0, 48, 448),
        ("guest", 0, 1, 0),
        ("epyc", 16, 224, 256),
        ("arm", 0, 112, 384),
        ("power", 36, 48, 192),
        ("odd", 6, 36, 49),
    ];
    for ((name, model), (expected_name, threads, cores, nodes)) in all().into_iter().zip(expected) {
        let read = topology(&model);
        let mut count = (0, 0, 0);
        let numbers: Vec<u32> = read.cpus().iter().map(|cpu| cpu.number).collect();
        for (index, a) in numbers.iter().enumerate() {
            for b in &numbers[index + 1..] {
                let near = read.proximity(*a, *b).unwrap();
                assert_eq!(Some(near), read.proximity(*b, *a), "{name}: {a} and {b}");
                match near {
                    Proximity::Core => count.0 += 1,
                    Proximity::L2 | Proximity::L3 | Proximity::Node => count.1 += 1,
                    Proximity::Remote(_) => count.2 += 1,
                }
            }
        }
        assert_eq!((name, count), (expected_name, (threads, cores, nodes)));
    }
}

#[test]
fn the_files_of_a_model_say_what_the_model_says() {
    for (name, model) in all() {
        let (from_files, from_model) = (read(&model), topology(&model));
        assert_eq!(from_files.cpus(), from_model.cpus(), "{name}");
        let distances = |one: &Topology| {
            one.nodes().iter().map(|node| node.distances.clone()).collect::<Vec<_>>()
        };
        assert_eq!(distances(&from_files), distances(&from_model), "{name}");
    }
}

#[test]
fn distances_count_by_the_longer_direction_and_nodes_by_their_number() {
    let arm = read(&machines::arm());
    assert_eq!((arm.distance(1, 3), arm.distance(3, 1)), (Some(33), Some(33)));
    let power = read(&power());
    assert_eq!(power.nodes().iter().map(|node| node.number).collect::<Vec<_>>(), [0, 8, 252]);
    assert_eq!((power.distance(0, 8), power.distance(8, 252)), (Some(40), Some(20)));
    assert_eq!((power.threads_per_core(), power.distance(0, 1)), (4, None));
    let clustered = read(&sub_numa());
    assert_eq!((clustered.distance(0, 2), clustered.distance(0, 1)), (Some(11), Some(21)));
}

#[test]
fn offline_and_excluded_processors_and_empty_nodes_are_known() {
    let read = read(&odd());
    assert_eq!(read.offline().to_string(), "3,8");
    assert_eq!(read.allowed().to_string(), "0-2,4-7,9-13");
    assert_eq!(read.limited_by(), Some("the affinity of this process"));
    let isolated: CpuSet =
        read.cpus().iter().filter(|cpu| cpu.is_isolated).map(|cpu| cpu.number).collect();
    assert_eq!(isolated.to_string(), "4-5");
    // The core of processor 0 has lost its second thread; node 1 has no memory, node 2 no core.
    assert_eq!(read.cores()[&0].to_string(), "0");
    assert!(!read.node(1).unwrap().has_memory() && read.node(2).unwrap().cpus.is_empty());
    assert_eq!((read.memory_near(0), read.memory_near(1)), (Some(0), Some(0)));
}

#[test]
fn control_groups_of_both_versions_limit_the_processors() {
    for (line, folder, name) in [
        ("0::/slice/upf", "sys/fs/cgroup/slice/upf", "cpuset.cpus.effective"),
        ("4:cpu,cpuset:/upf", "sys/fs/cgroup/cpuset/upf", "cpuset.cpus"),
    ] {
        let tree = gold_5118().write();
        put(&tree.path().join("proc/self/cgroup"), &format!("1:memory:/\n{line}\n"));
        put(&tree.path().join(folder).join(name), "2-5\n");
        let read = tree.read().unwrap();
        assert_eq!(read.allowed().to_string(), "2-5");
        assert!(read.limited_by().unwrap().contains("control group /"), "{line}");
    }
}

#[test]
fn a_path_of_a_control_group_does_not_lead_out_of_the_tree() {
    let tree = gold_5118().write();
    put(&tree.path().join("proc/self/cgroup"), "0::/../../outside\n");
    put(&tree.path().join("sys/outside/cpuset.cpus.effective"), "1\n");
    assert_eq!(tree.read().unwrap().allowed().len(), 48);
}

#[test]
fn a_machine_without_nodes_or_topology_has_one_node_and_single_cores() {
    let tree = machines::guest().write();
    fs::remove_dir_all(tree.node()).unwrap();
    fs::remove_dir_all(tree.cpu().join("cpu1/topology")).unwrap();
    fs::remove_file(tree.cpu().join("online")).unwrap();
    let read = tree.read().unwrap();
    assert_eq!((read.nodes().len(), read.cores().len(), read.cpus().len()), (1, 2, 2));
    assert_eq!(read.proximity(0, 1), Some(Proximity::L3));
}

/// hwloc numbers types of devices in versions 1 and 2; in version 3 each type is a bit.
#[test]
fn network_interfaces_of_each_version_of_hwloc_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.xml");
    let nics = |version: &str, devices: &[(&str, &str)]| {
        let device = |(name, kind): &(&str, &str)| {
            format!("<object type=\"OSDev\" name=\"{name}\" osdev_type=\"{kind}\"/>")
        };
        let devices: String = devices.iter().map(device).collect();
        let text = format!(
            "<topology{version}><object type=\"Machine\" cpuset=\"0x1\">\
             <object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x1\"/>{devices}\
             <object type=\"PU\" os_index=\"0\"/></object></topology>"
        );
        fs::write(&path, text).unwrap();
        let read = discover(Some(&path)).unwrap();
        read.nics().iter().map(|nic| nic.name.clone()).collect::<Vec<_>>()
    };
    let old = [("sda", "0"), ("card0", "1"), ("eth0", "2"), ("mlx5_0", "3")];
    assert_eq!(nics("", &old), ["eth0"]);
    assert_eq!(nics(" version=\"2.0\"", &old), ["eth0"]);
    let new = [("sda", "1"), ("pmem0", "2"), ("eth0", "16"), ("both", "48"), ("dma", "64")];
    assert_eq!(nics(" version=\"3.0\"", &new), ["both", "eth0"]);
}

#[test]
fn hwloc_and_the_own_machine_name_an_architecture_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.xml");
    let read = |name: &str| {
        let text = format!(
            "<topology version=\"2.0\"><object type=\"Machine\" cpuset=\"0x1\">\
             <info name=\"Architecture\" value=\"{name}\"/>\
             <object type=\"PU\" os_index=\"0\"/></object></topology>"
        );
        fs::write(&path, text).unwrap();
        discover(Some(&path)).unwrap().architecture().unwrap().to_owned()
    };
    for (kernel, rust) in [
        ("ppc64le", "powerpc64"),
        ("i686", "x86"),
        ("armv7l", "arm"),
        ("x86_64", "x86_64"),
        ("aarch64", "aarch64"),
        ("riscv64", "riscv64"),
        ("vax", "vax"),
    ] {
        assert_eq!(read(kernel), rust);
    }
    assert_eq!(gold_5118().write().read().unwrap().architecture(), None);
}

#[test]
fn isolation_quotas_and_partitions_are_read() {
    let tree = gold_5118().write();
    let group = tree.path().join("sys/fs/cgroup");
    put(&tree.cpu().join("nohz_full"), "2-3,26,400\n");
    put(&group.join("cpuset.cpus.isolated"), "4,28\n");
    put(&tree.path().join("proc/self/cgroup"), "0::/slice/upf\n");
    put(&group.join("slice/upf/cpu.max"), "max 100000\n");
    put(&group.join("slice/cpu.max"), "250000 100000\n");
    put(&group.join("slice/upf/cpuset.cpus.partition"), "isolated\n");
    let read = tree.read().unwrap();
    assert_eq!(read.nohz_full().to_string(), "2-3,26");
    let isolated = read.cpus().iter().filter(|cpu| cpu.is_isolated).map(|cpu| cpu.number);
    assert_eq!(isolated.collect::<CpuSet>().to_string(), "4,28");
    let quota = read.quota().unwrap();
    assert_eq!((quota.milli_cpus, &*quota.origin), (2500, "control group /slice"));
    assert_eq!(read.partition(), Some("isolated"));
    // Version 1, no limit, no partition, no tick that stops.
    put(&tree.path().join("proc/self/cgroup"), "3:cpu,cpuacct:/upf\n");
    put(&group.join("cpu/upf/cpu.cfs_period_us"), "100000\n");
    put(&group.join("cpu/upf/cpu.cfs_quota_us"), "50000\n");
    put(&tree.cpu().join("nohz_full"), "  (null)\n");
    let read = tree.read().unwrap();
    assert_eq!(read.quota().map(|quota| quota.milli_cpus), Some(500));
    assert_eq!((read.partition(), read.nohz_full().is_empty()), (None, true));
    put(&group.join("cpu/upf/cpu.cfs_quota_us"), "-1\n");
    assert_eq!(tree.read().unwrap().quota(), None);
}

#[test]
fn a_copy_of_sys_alone_is_read_too() {
    let tree = gold_5118().write();
    let read = discover(Some(&tree.path().join("sys"))).unwrap();
    assert_eq!((read.cpus().len(), read.nodes().len()), (48, 2));
}

/// The time of reading is that of opening files: some thousand on a large machine. A file that is
/// read although another one has the same says nonsense here, and would be an error.
#[test]
fn no_fact_is_read_twice() {
    let tree = gold_5118().write();
    for number in 0..48 {
        let folder = tree.cpu().join(format!("cpu{number}"));
        put(&folder.join("topology/thread_siblings"), "nonsense\n");
        put(&folder.join("topology/core_cpus"), "nonsense\n");
        // The kernel leaves no gap: nothing follows the index that does not exist.
        put(&folder.join("cache/index5/level"), "nonsense\n");
        for index in 0..4 {
            put(&folder.join(format!("cache/index{index}/shared_cpu_map")), "nonsense\n");
            if number >= 24 {
                put(&folder.join("topology/core_id"), "nonsense\n");
                put(&folder.join("topology/physical_package_id"), "nonsense\n");
            }
            // The second hyper-threads share every cache with the first ones.
            if number >= 24 || (index == 3 && number >= 2) {
                put(&folder.join(format!("cache/index{index}/level")), "nonsense\n");
            }
        }
    }
    for node in [0, 1] {
        put(&tree.node().join(format!("node{node}/cpumap")), "nonsense\n");
    }
    let (found, expected) = (tree.read().unwrap(), read(&gold_5118()));
    assert_eq!((found.cpus(), found.caches()), (expected.cpus(), expected.caches()));
    assert_eq!(found.nodes(), expected.nodes());
}

#[test]
fn this_machine_is_read_and_agrees_with_the_kernel() {
    let read = discover(None).unwrap();
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let numbers: CpuSet = read.cpus().iter().map(|cpu| cpu.number).collect();
    assert_eq!(numbers, online.parse().unwrap());
    assert!(!read.allowed().is_empty() && read.architecture().is_some());
}

#[test]
fn the_numbering_of_the_model_is_that_of_the_kernel() {
    let cpus = interleaved(2, 2, 2, &[0, 1]);
    let packages: Vec<u32> = cpus.iter().map(|cpu| cpu.package).collect();
    assert_eq!(packages, [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!((cpus[0].core, cpus[4].core), (0, 0));
}

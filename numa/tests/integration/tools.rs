//! An assignment in the notation of other tools.

use nearstate_numa::{Assignment, PlacementTool, PlanOptions, ToolOptions, for_tool, plan};

use crate::machines::{Model, gold_5118, power, topology};
use crate::plans::slices;

fn assigned(model: &Model, text: &str, reserved: &str) -> Assignment {
    let machine = topology(model);
    let options = PlanOptions { reserved: reserved.parse().unwrap(), ..PlanOptions::default() };
    let made = plan(std::slice::from_ref(&machine), &slices(&[text]), &[], &[], &options);
    made.unwrap().assignments.remove(0)
}

#[test]
fn a_guest_has_the_cores_and_the_node_of_its_slice() {
    let options = ToolOptions { housekeeping: "0-1".parse().unwrap(), memory_mib: 4096 };
    let libvirt = |text| {
        for_tool(&assigned(&gold_5118(), text, "0-1"), PlacementTool::Libvirt, &options).unwrap()
    };
    let pairs = libvirt("a:4:low");
    for part in [
        "<vcpu placement='static'>4</vcpu>",
        "<vcpupin vcpu='1' cpuset='26'/>",
        "<emulatorpin cpuset='0-1'/>",
        "<memnode cellid='0' mode='strict' nodeset='0'/>",
        "<topology sockets='1' cores='2' threads='2'/>",
        "<cell id='0' cpus='0-3' memory='4096' unit='MiB'/>",
    ] {
        assert!(pairs.contains(part), "{part} is not in\n{pairs}");
    }
    assert!(libvirt("a:4:high").contains("<topology sockets='1' cores='4' threads='1'/>"));
    assert!(libvirt("a:3:low").contains("<topology sockets='1' cores='3' threads='1'/>"));
}

#[test]
fn the_emulator_never_shares_a_processor_with_the_slice() {
    let options = ToolOptions { housekeeping: "0,5".parse().unwrap(), ..ToolOptions::default() };
    let one = assigned(&gold_5118(), "a:2:low", "");
    let text = for_tool(&one, PlacementTool::Libvirt, &options).unwrap();
    assert!(one.cpus().contains(0) && text.contains("<emulatorpin cpuset='5'/>"), "{text}");
    // No other processor is known: the emulator is not bound.
    let text = for_tool(&one, PlacementTool::Libvirt, &ToolOptions::default()).unwrap();
    assert!(!text.contains("emulatorpin") && !text.contains("placement='static' cpuset"), "{text}");
}

#[test]
fn a_node_that_dpdk_does_not_know_is_refused() {
    let options = ToolOptions { memory_mib: 512, ..ToolOptions::default() };
    // Processors 0 to 31 are those of nodes 0 and 8.
    let dpdk = |reserved| {
        for_tool(&assigned(&power(), "a:2:high", reserved), PlacementTool::Dpdk, &options)
    };
    assert!(dpdk("0-15").unwrap().contains("--socket-mem=0,0,0,0,0,0,0,0,512"));
    let refused = dpdk("0-31").unwrap_err().to_string();
    assert!(refused.contains("node 252; DPDK supports nodes 0 to 31"), "{refused}");
}

//! What is planned for each machine, and what paper 5 shows.

use nearstate_numa::{
    Assignment, Baseline, CpuSet, PlanOptions, Proximity, Scheme, SlicePin, SlicePlan,
    SliceRequest, Topology, baseline, plan,
};

use crate::machines::{self, Model, ModelCpu, all, gold_5118, topology};

pub(crate) fn slices(texts: &[&str]) -> Vec<SliceRequest> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn planned(machine: &Topology, texts: &[&str], options: &PlanOptions) -> SlicePlan {
    plan(std::slice::from_ref(machine), &slices(texts), &[], &[], options).unwrap()
}

/// The units of a slice: `0,24 4`.
pub(crate) fn units(one: &Assignment) -> String {
    let unit = |unit: &nearstate_numa::SliceUnit| {
        unit.cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    };
    one.units.iter().map(unit).collect::<Vec<_>>().join(" ")
}

pub(crate) fn all_units(plan: &SlicePlan) -> Vec<String> {
    plan.assignments.iter().map(|one| format!("{} {}", one.slice, units(one))).collect()
}

#[test]
fn a_pair_of_each_kind_of_figure_10() {
    let machine = topology(&gold_5118());
    let of = |scheme| {
        let options = PlanOptions { scheme, ..PlanOptions::default() };
        let plan = planned(&machine, &["spgw:2:low"], &options);
        (units(&plan.assignments[0]), plan.assignments[0].units[0].proximity.unwrap())
    };
    assert_eq!(of(Scheme::HyperThread), ("0,24".to_owned(), Proximity::Core));
    assert_eq!(of(Scheme::Collocated), ("0,2".to_owned(), Proximity::L3));
    assert_eq!(of(Scheme::NonCollocated), ("0,1".to_owned(), Proximity::Remote(21)));
}

#[test]
fn table_1_holds_on_every_machine() {
    for (name, model) in all() {
        let machine = topology(&model);
        for (scheme, is_same_core, is_same_node) in [
            (Scheme::HyperThread, true, true),
            (Scheme::Collocated, false, true),
            (Scheme::NonCollocated, false, false),
        ] {
            let options = PlanOptions { scheme, ..PlanOptions::default() };
            let plan = planned(&machine, &["a:2:low"], &options);
            let Some(one) = plan.assignments.first() else {
                // A machine without such a pair.
                assert!(plan.refused[0].reason.contains("choose another scheme"), "{name}");
                continue;
            };
            let cpus: Vec<_> =
                one.cpus_in_order().iter().map(|n| machine.cpu(*n).unwrap()).collect();
            assert_eq!(cpus[0].core == cpus[1].core, is_same_core, "{name}, {scheme:?}");
            assert_eq!(cpus[0].node == cpus[1].node, is_same_node, "{name}, {scheme:?}");
        }
    }
    // The distances short, medium and long of the table are an order.
    let near = [Proximity::Core, Proximity::L2, Proximity::L3, Proximity::Node];
    assert!(near.windows(2).all(|two| two[0] < two[1]) && near[3] < Proximity::Remote(10));
}

#[test]
fn figure_11_s_levels_of_traffic() {
    let machine = topology(&gold_5118());
    // Hyper-threads lead at 100 and are within 0.2 ms at 200; they fall behind at 400.
    for (rate, level, pair) in [
        (0, "low", "0,24"),
        (100, "low", "0,24"),
        (200, "low", "0,24"),
        (201, "medium", "0,2"),
        (300, "medium", "0,2"),
        (399, "medium", "0,2"),
        (400, "high", "0,2"),
        (500, "high", "0,2"),
    ] {
        let plan = planned(&machine, &[&format!("a:2:{rate}")], &PlanOptions::default());
        let one = &plan.assignments[0];
        assert_eq!(
            (one.traffic.to_string().as_str(), units(one).as_str()),
            (level, pair),
            "{rate}"
        );
    }
}

#[test]
fn figure_6_in_words() {
    let machine = topology(&gold_5118());
    let options = PlanOptions::default();
    // Low: a hyper-thread pair. Medium and high: two cores of a node. Odd: pairs and one pin.
    for (text, expected) in [
        ("a:2:low", "a 0,24"),
        ("a:2:medium", "a 0,2"),
        ("a:2:high", "a 0,2"),
        ("a:2:150", "a 0,24"),
        ("a:2:300", "a 0,2"),
        ("a:1:high", "a 0"),
        ("a:3:low", "a 0,24 2"),
        ("a:5:high", "a 0,2 4,6 8"),
        ("a:4:low", "a 0,24 2,26"),
    ] {
        assert_eq!(all_units(&planned(&machine, &[text], &options)), [expected], "{text}");
    }
}

#[test]
fn every_machine_has_its_expected_plan() {
    let options = PlanOptions::default();
    let expected = [
        ("gold-5118", "low 8,32 10", "high 0,2 4,6"),
        ("sub-numa", "low 16,56 20", "high 0,4 8,12"),
        ("eight-sockets", "low 4,5 6", "high 0,1 2,3"),
        // Seven processors do not fit on two.
        ("guest", "", ""),
        ("epyc", "low 4,20 5", "high 0,1 2,3"),
        ("arm", "low 4,5 6", "high 0,1 2,3"),
        ("power", "low 16,17 18", "high 0,8 1,9"),
        ("odd", "low 5,13 1", "high 0,2 4,6"),
    ];
    for ((name, model), (expected_name, low, high)) in all().into_iter().zip(expected) {
        let plan = planned(&topology(&model), &["low:3:low", "high:4:high"], &options);
        let shown = all_units(&plan);
        let wanted: Vec<&str> = [low, high].into_iter().filter(|text| !text.is_empty()).collect();
        let wanted: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
        assert_eq!((name, shown), (expected_name, wanted));
    }
}

#[test]
fn pairs_prefer_the_nearest_cache() {
    let of = |model: &Model, text: &str| {
        let plan = planned(&topology(model), &[text], &PlanOptions::default());
        plan.assignments[0].units[0].proximity.unwrap()
    };
    assert_eq!(of(&machines::arm(), "a:2:high"), Proximity::L2);
    assert_eq!(of(&machines::epyc(), "a:2:high"), Proximity::L3);
    assert_eq!(of(&machines::epyc(), "a:2:low"), Proximity::Core);
    assert_eq!(of(&machines::power(), "a:2:high"), Proximity::Node);
}

/// A machine of two nodes with eight cores each, of which two share a second-level cache.
fn paired_cores() -> Topology {
    let cpu = |number: u32| {
        let node = number / 8;
        let (core, l2) = (number, number / 2);
        ModelCpu { number, package: node, node, core_id: core, core, l2, l3: node }
    };
    let nodes = vec![(0, 1024, vec![10, 21]), (1, 1024, vec![21, 10])];
    topology(&Model { cpus: (0..16).map(cpu).collect(), nodes, ..Model::default() })
}

/// Options under which only these processors are free.
fn only(machine: &Topology, cpus: &str) -> PlanOptions {
    let reserved = machine.allowed().difference(&cpus.parse().unwrap());
    PlanOptions { reserved, ..PlanOptions::default() }
}

#[test]
fn a_slice_is_on_one_node_if_one_has_its_pairs() {
    // Node 0 has one pair with a common second-level cache, node 1 two.
    let machine = paired_cores();
    let plan = planned(&machine, &["a:4:high"], &only(&machine, "0,1,2,4,8-11"));
    assert_eq!(all_units(&plan), ["a 8,9 10,11"]);
    // Node 0 alone has four.
    let plan = planned(&machine, &["a:4:high"], &only(&machine, "0,1,2,4,8-10"));
    assert_eq!(all_units(&plan), ["a 0,1 2,4"]);
    // Node 0 has one pair of hyper-threads, node 1 many.
    let machine = topology(&gold_5118());
    let plan = planned(&machine, &["a:4:low"], &only(&machine, "0,24,2,4,1,25,3,27,5,29"));
    assert_eq!(all_units(&plan), ["a 1,25 3,27"]);
}

#[test]
fn a_node_without_memory_is_the_last_choice_among_equals() {
    // Node 1 has no memory.
    let machine = topology(&machines::odd());
    let options = PlanOptions { housekeeping: CpuSet::default(), ..PlanOptions::default() };
    let options = PlanOptions { reserved: "4-5".parse().unwrap(), ..options };
    let plan = planned(&machine, &["a:2:high", "b:2:high"], &options);
    for one in &plan.assignments {
        assert_eq!(one.nodes.to_string(), "0", "{:?}", all_units(&plan));
    }
}

#[test]
fn the_nearest_of_several_nodes_is_used_if_one_is_too_small() {
    // Node 0 has one core left: the pair takes a node at distance 11, not one at 21.
    let machine = topology(&machines::sub_numa());
    let free = |cpus: &str| {
        let all = machine.allowed();
        PlanOptions { reserved: all.difference(&cpus.parse().unwrap()), ..PlanOptions::default() }
    };
    let plan = planned(&machine, &["a:2:high"], &free("0,1,2"));
    assert_eq!(all_units(&plan), ["a 0,2"]);
    assert_eq!(plan.assignments[0].units[0].proximity, Some(Proximity::Remote(11)));
    // Hyper-threads are nearer than two nodes at high traffic, too.
    let plan = planned(&machine, &["a:2:high"], &free("0,40,1"));
    assert_eq!(all_units(&plan), ["a 0,40"]);
}

#[test]
fn a_pin_that_is_not_collocated_is_the_last_choice() {
    let machine = topology(&gold_5118());
    let options = PlanOptions {
        reserved: machine.allowed().difference(&"0,24,1".parse().unwrap()),
        is_explained: true,
        ..PlanOptions::default()
    };
    let plan = planned(&machine, &["a:3:low"], &options);
    assert_eq!(all_units(&plan), ["a 0,24 1"]);
    assert!(plan.assignments[0].units[1].reason.contains("the nodes of the pairs are full"));
    assert_eq!(plan.assignments[0].memory_node, Some(0));
}

#[test]
fn the_network_interface_the_kernel_and_busy_processors_count() {
    let machine = topology(&gold_5118());
    let nic = machine.nic_node("ens1f0").unwrap();
    let options = PlanOptions { nic_nodes: [(0, nic)].into(), ..PlanOptions::default() };
    assert_eq!(all_units(&planned(&machine, &["a:2:high"], &options)), ["a 1,3"]);
    let options = PlanOptions { housekeeping: "0".parse().unwrap(), ..PlanOptions::default() };
    assert_eq!(all_units(&planned(&machine, &["a:2:low"], &options)), ["a 1,25"]);
    let busy = [(0, "0-3".parse().unwrap())].into();
    let options = PlanOptions { busy, ..PlanOptions::default() };
    assert_eq!(all_units(&planned(&machine, &["a:2:low"], &options)), ["a 4,28"]);
}

#[test]
fn explanations_name_the_rule_and_the_next_best_choice() {
    let machine = topology(&gold_5118());
    let options = PlanOptions { is_explained: true, ..PlanOptions::default() };
    let reasons = |texts: &[&str]| {
        let plan = planned(&machine, texts, &options);
        plan.assignments.iter().flat_map(|one| one.units.clone()).map(|unit| unit.reason).collect()
    };
    let low: Vec<String> = reasons(&["a:3:low"]);
    assert_eq!(
        low,
        [
            "same core (low traffic prefers hyper-threads); next best: 1,25, equally good, with \
             higher numbers",
            "one processor on the node of the pairs; next best: 4, equally good, with higher \
             numbers"
        ]
    );
    let high: Vec<String> = reasons(&["a:24:high"]);
    assert!(high[0].contains("same L3 cache (two physical cores carry more)"), "{high:?}");
    assert!(high[0].contains("next best: 0,4, equally good"), "{high:?}");
    assert!(high[11].contains("1,3, on node 1, farther from the slice's other cores"), "{high:?}");
}

#[test]
fn power_saving_uses_the_fewest_cores() {
    for (name, model) in all() {
        let machine = topology(&model);
        let options = PlanOptions { is_power_saving: true, ..PlanOptions::default() };
        let texts = ["a:3:high", "b:1:medium", "c:3:low", "d:1:high"];
        let plan = planned(&machine, &texts, &options);
        let (mut cores, mut count) = (std::collections::BTreeSet::new(), 0_usize);
        for cpu in plan.assignments.iter().flat_map(Assignment::cpus_in_order) {
            cores.insert(machine.cpu(cpu).unwrap().core);
            count += 1;
        }
        // The cores with the most usable processors.
        let mut usable: Vec<usize> = machine
            .cores()
            .values()
            .map(|cpus| cpus.iter().filter(|cpu| machine.allowed().contains(*cpu)).count())
            .collect();
        usable.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        let mut held = 0;
        let is_needed = |usable: &&usize| {
            let before = held;
            held += **usable;
            before < count
        };
        let fewest = usable.iter().take_while(is_needed).count();
        assert_eq!(cores.len(), fewest, "{name}: {:?}", all_units(&plan));
    }
}

#[test]
fn a_plan_has_better_pairs_than_the_baselines() {
    let machine = topology(&gold_5118());
    let options = PlanOptions::default();
    let requests = slices(&["a:3:high", "b:5:high", "c:2:low"]);
    let remote = |plan: &SlicePlan| {
        let pairs = plan.assignments.iter().flat_map(|one| &one.units);
        pairs.filter(|unit| matches!(unit.proximity, Some(Proximity::Remote(_)))).count()
    };
    let by = |method| baseline(&machine, &requests, &options, method);
    let ours = plan(std::slice::from_ref(&machine), &requests, &[], &[], &options).unwrap();
    assert_eq!(remote(&ours), 0);
    assert!(remote(&by(Baseline::Random(1))) > 0);
    let none = by(Baseline::NoPinning);
    assert!(none.assignments.iter().all(|one| one.cpus().len() == 48));
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let machine = topology(&machines::guest());
    let options = PlanOptions::default();
    let plan = planned(&machine, &["a:2:low", "b:1:low"], &options);
    assert_eq!(all_units(&plan), ["a 0,1"]);
    assert!(plan.refused[0].reason.contains("it needs 1 processors"), "{:?}", plan.refused);
    let options = PlanOptions { scheme: Scheme::HyperThread, ..options };
    let plan = planned(&machine, &["a:2:low"], &options);
    assert!(plan.refused[0].reason.contains("choose another scheme"), "{:?}", plan.refused);
}

#[test]
fn pins_are_kept_and_conflicts_refused() {
    let machine = topology(&machines::odd());
    let options = PlanOptions { reserved: "6".parse().unwrap(), ..PlanOptions::default() };
    let machines = std::slice::from_ref(&machine);
    let pin = |name: &str, cpus: &str| SlicePin {
        name: name.to_owned(),
        machine: 0,
        cpus: cpus.parse().unwrap(),
    };
    let requests = slices(&["a:2:high", "b:2:high"]);
    let pins = [pin("a", "0-1"), pin("dpdk", "4")];
    let made = plan(machines, &requests, &pins, &[], &options).unwrap();
    assert_eq!(all_units(&made)[0], "a 0,1");
    assert!(!made.assignments[1].cpus().contains(4));
    for (pins, reason) in [
        (vec![pin("x", "1"), pin("y", "0-1")], "slice y: processor 1 of"),
        (vec![pin("x", "1"), pin("y", "1")], "is taken by another slice"),
        (vec![pin("x", "77")], "does not exist"),
        (vec![pin("x", "3")], "is offline"),
        (vec![pin("x", "15")], "is not allowed"),
        (vec![pin("x", "6")], "is reserved or busy"),
        (vec![pin("a", "0-2")], "needs 2 processors and is pinned to 3"),
        (vec![pin("x", "0"), pin("x", "1")], "given twice"),
    ] {
        let refused = plan(machines, &requests, &pins, &[], &options).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    let twice = slices(&["a:1:low", "a:1:low"]);
    let refused = plan(machines, &twice, &[], &[], &options).unwrap_err().to_string();
    assert!(refused.contains("slice a is given twice"), "{refused}");
    assert!(plan(&[], &requests, &[], &[], &options).is_err());
}

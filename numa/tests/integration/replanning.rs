//! What an earlier plan placed stays, as far as it is still right.

use nearstate_numa::{Assignment, PlanOptions, SlicePlan, Topology, plan};

use crate::machines::{gold_5118, topology};
use crate::plans::{slices, units};

fn again(
    machine: &Topology,
    texts: &[&str],
    old: &[Assignment],
    options: &PlanOptions,
) -> SlicePlan {
    plan(std::slice::from_ref(machine), &slices(texts), &[], old, options).unwrap()
}

fn moves(plan: &SlicePlan) -> Vec<(String, String)> {
    plan.moves.iter().map(|one| (one.slice.clone(), one.reason.clone())).collect()
}

#[test]
fn the_same_slices_stay_and_new_ones_use_what_is_free() {
    let (machine, options) = (topology(&gold_5118()), PlanOptions::default());
    let old = again(&machine, &["a:3:low", "b:4:high", "c:2:300"], &[], &options);
    let new = again(&machine, &["c:2:300", "d:8:high", "a:3:low"], &old.assignments, &options);
    assert_eq!(moves(&new), []);
    assert_eq!(new.assignments[0].cpus(), old.assignments[2].cpus());
    assert_eq!(new.assignments[2].cpus(), old.assignments[0].cpus());
}

#[test]
fn a_slice_changes_its_pairs_only_beyond_the_hysteresis() {
    let (machine, options) = (topology(&gold_5118()), PlanOptions::default());
    let old = again(&machine, &["a:2:190"], &[], &options);
    assert_eq!(units(&old.assignments[0]), "0,24");
    assert_eq!(moves(&again(&machine, &["a:2:215"], &old.assignments, &options)), []);
    let new = again(&machine, &["a:2:230"], &old.assignments, &options);
    let reason = "its traffic changed from low to medium".to_owned();
    assert_eq!(moves(&new), [("a".to_owned(), reason)]);
    assert_eq!(units(&new.assignments[0]), "0,2");
    // Back only below the band; from medium to high nothing changes.
    assert_eq!(moves(&again(&machine, &["a:2:185"], &new.assignments, &options)), []);
    assert_eq!(moves(&again(&machine, &["a:2:500"], &new.assignments, &options)), []);
    assert_eq!(moves(&again(&machine, &["a:2:170"], &new.assignments, &options)).len(), 1);
}

#[test]
fn a_slice_that_grows_or_shrinks_keeps_its_processors() {
    let (machine, options) = (topology(&gold_5118()), PlanOptions::default());
    let old = again(&machine, &["a:3:low", "b:2:low"], &[], &options);
    let (before, other) = (old.assignments[0].cpus(), old.assignments[1].cpus());
    let more = again(&machine, &["a:6:low", "b:2:low"], &old.assignments, &options);
    assert!(before.is_subset(&more.assignments[0].cpus()));
    assert_eq!(more.assignments[1].cpus(), other);
    let less = again(&machine, &["a:1:low", "b:2:low"], &more.assignments, &options);
    assert!(less.assignments[0].cpus().is_subset(&before));
    assert_eq!(moves(&less), [("a".to_owned(), "it needs fewer processors".to_owned())]);
}

#[test]
fn only_the_slice_of_a_lost_processor_moves() {
    let (machine, options) = (topology(&gold_5118()), PlanOptions::default());
    let old = again(&machine, &["a:4:high", "b:4:high", "c:2:low"], &[], &options);
    let lost = old.assignments[1].cpus().first().unwrap();
    let options = PlanOptions { reserved: [lost].into_iter().collect(), ..options };
    let new = again(&machine, &["a:4:high", "b:4:high", "c:2:low"], &old.assignments, &options);
    let reason = "a processor of it is no longer usable, or its machine is gone".to_owned();
    assert_eq!(moves(&new), [("b".to_owned(), reason)]);
}

#[test]
fn an_earlier_plan_of_another_machine_or_with_nonsense_is_planned_anew() {
    let (machine, options) = (topology(&gold_5118()), PlanOptions::default());
    let mut old = again(&machine, &["a:2:low", "b:2:low"], &[], &options);
    old.assignments[0].machine = 7;
    old.assignments[1].units[0].cpus = vec![5, 5];
    let new = again(&machine, &["a:2:low", "b:2:low"], &old.assignments, &options);
    assert_eq!((new.assignments.len(), new.moves.len()), (2, 2));
}

//! Clusters under faults: what must hold, does; and each rule is needed for it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a panic is a failed test"
)]

mod fixture;
mod group_model;
mod model;
mod two_hosts;

use nearstate_sim::{Faults, RunReport, SimulationOptions, Switch, run};

/// The first seed from this one on that gives a violation of safety.
fn find(options: &SimulationOptions, first: u64) -> Option<(u64, String)> {
    (first..first + 20_000).find_map(|seed| {
        let violation = run(seed, options).violation?;
        (!violation.starts_with("NoStuck")).then_some((seed, violation))
    })
}

fn expect_none(options: &SimulationOptions, seeds: u64) -> Vec<RunReport> {
    let reports: Vec<RunReport> = (0..seeds).map(|seed| run(seed, options)).collect();
    for (seed, report) in reports.iter().enumerate() {
        assert_eq!(report.violation, None, "seed {seed} of {options:?}");
    }
    reports
}

#[test]
fn nothing_replicated_is_lost_under_any_faults() {
    let reports = expect_none(&SimulationOptions::all(), 200);
    let views: u64 = reports.iter().map(|report| report.views).sum();
    assert!(views > 400, "{views} views: the faults did nothing");
    let kept: u32 = reports.iter().map(|report| report.kept).sum();
    assert!(kept > 50, "{kept} owners whose log ended at the seal went on with their records");
}

#[test]
fn without_lost_regions_no_operator_is_needed() {
    let reports = expect_none(&SimulationOptions::all().with_faults(Faults::NoLoss), 150);
    assert!(reports.iter().all(|report| report.accepted == 0));
}

#[test]
fn a_group_survives_the_loss_of_its_owner() {
    for (copies, acknowledgements) in [(3, 2), (4, 2), (4, 3), (5, 2), (5, 3), (5, 4)] {
        let options = SimulationOptions::all().with_faults(Faults::OwnerLost);
        let reports = expect_none(&options.with_group(copies, acknowledgements), 8);
        assert!(reports.iter().all(|report| report.views == 2));
    }
}

#[test]
fn a_seed_gives_the_same_trace() {
    for seed in 0..10 {
        let (first, second) =
            (run(seed, &SimulationOptions::all()), run(seed, &SimulationOptions::all()));
        assert_eq!(first, second);
        assert_ne!(first.trace, run(seed + 1, &SimulationOptions::all()).trace);
    }
}

#[test]
fn a_group_survives_an_owner_that_does_not_hear() {
    for (copies, acknowledgements) in [(3, 2), (4, 2), (4, 3), (5, 3)] {
        let options = SimulationOptions::all().with_faults(Faults::OwnerDeaf);
        expect_none(&options.with_group(copies, acknowledgements), 4);
    }
}

#[test]
fn one_copy_of_two_suffices_and_nothing_replicated_is_lost() {
    for faults in [Faults::NoLoss, Faults::All] {
        let options = SimulationOptions::all().with_faults(faults).with_degradation(700);
        let reports = expect_none(&options, 120);
        let degraded = reports.iter().filter(|report| report.degraded > 1).count();
        assert!(degraded > 30, "{degraded} runs in which a copy was missing for long");
    }
}

#[test]
fn the_copy_that_is_left_serves_after_the_loss_of_the_owner() {
    let options = SimulationOptions::all().with_faults(Faults::OwnerLost).with_degradation(700);
    let reports = expect_none(&options, 8);
    assert!(reports.iter().all(|report| report.views == 2 && report.degraded == 1));
}

#[test]
fn an_operator_replaces_a_lost_owner_whose_copy_sufficed() {
    for faults in [Faults::DegradedOwnerLost, Faults::DegradedOwnerCut] {
        let options = SimulationOptions::all().with_faults(faults).with_degradation(700);
        let reports = expect_none(&options, 100);
        let accepted = reports.iter().filter(|report| report.accepted == 1).count();
        assert!(accepted >= 90, "{accepted} losses were accepted with {faults:?}");
    }
}

#[test]
fn an_operator_waits_for_the_end_of_the_lease() {
    let options = SimulationOptions::all().with_faults(Faults::DegradedOwnerLives);
    let options = options.with_degradation(700);
    let reports = expect_none(&options, 100);
    let accepted = reports.iter().filter(|report| report.accepted == 1).count();
    assert!(accepted >= 20, "{accepted} owners that lived were replaced");
    let options = options.without(Switch::ReportAfterRenewal);
    let (seed, violation) = find(&options, 330).expect("the wait is needed");
    println!("seed {seed}: {violation}");
}

#[test]
fn each_rule_of_a_degraded_partition_is_needed() {
    for (switch, first) in [(Switch::DegradeByMembership, 0), (Switch::AdmitJointly, 0)] {
        let options = SimulationOptions::all().with_faults(Faults::NoLoss).with_degradation(700);
        let Some((seed, violation)) = find(&options.without(switch), first) else {
            panic!("{switch:?} is not needed");
        };
        println!("{switch:?}: seed {seed}: {violation}");
    }
}

#[test]
fn a_copy_that_was_reported_is_kept_until_the_decision_is_made() {
    let options = SimulationOptions::all().with_faults(Faults::ForgetfulLogs);
    expect_none(&options, 40);
    let (seed, violation) = find(&options.without(Switch::JoinOfView), 0).expect("it is needed");
    assert!(violation.starts_with("Reported"), "{violation}");
    println!("seed {seed}: {violation}");
}

#[test]
fn an_older_copy_of_a_region_loses_nothing_replicated() {
    for faults in [Faults::OlderOwners, Faults::OlderMembers] {
        let options = SimulationOptions::all().with_faults(faults);
        let reports = expect_none(&options, 60);
        let restored: u32 = reports.iter().map(|report| report.restored).sum();
        assert!(restored > 120, "{restored} files were replaced with {faults:?}");
        let (seed, violation) = find(&options.without(Switch::RegionFile), 0)
            .unwrap_or_else(|| panic!("the bound file is not needed with {faults:?}"));
        println!("{faults:?}: seed {seed}: {violation}");
    }
}

#[test]
fn a_group_that_operators_change_loses_nothing_replicated() {
    for faults in [Faults::NoLoss, Faults::All] {
        let options = SimulationOptions::all().with_faults(faults).with_group_changes();
        let reports = expect_none(&options, 120);
        let (added, removed) = reports
            .iter()
            .map(|report| report.changes)
            .fold((0, 0), |sum, (added, removed)| (sum.0 + added, sum.1 + removed));
        let leaving: u32 = reports.iter().map(|report| report.leaving).sum();
        assert!(
            added > 200 && removed > 200 && leaving > 100,
            "{added} were added, {removed} removed, {leaving} began to leave"
        );
    }
}

#[test]
fn drained_owners_lose_no_commit() {
    for faults in [Faults::NoLoss, Faults::All] {
        let options = SimulationOptions::all().with_faults(faults).with_drains();
        let reports = expect_none(&options, 120);
        let drained: u32 = reports.iter().map(|report| report.drained).sum();
        assert!(drained > 150, "{drained} owners were drained with {faults:?}");
    }
}

#[test]
fn a_member_that_counts_must_leave_by_an_eviction() {
    let options = SimulationOptions::all().with_faults(Faults::NoLoss).with_group_changes();
    let (seed, violation) =
        find(&options.without(Switch::LeaveByEviction), 0).expect("it is needed");
    println!("seed {seed}: {violation}");
}

/// Each rule, and a seed near which its absence shows. The search goes on behind it, so another
/// order of random choices makes the test slower, not weaker.
const NEEDED: &[(Switch, u64)] = &[
    (Switch::AcknowledgementOfView, 73),
    (Switch::CountFull, 155),
    (Switch::EnoughAcknowledgements, 3),
    (Switch::Promise, 11),
    (Switch::PromiseAtStart, 293),
    (Switch::LeaseFromSend, 14),
    (Switch::LeaseMargin, 153),
    (Switch::FreezeFirst, 3),
    (Switch::StoredView, 1650),
    (Switch::ShorterIsNotFull, 425),
    (Switch::ReportQuorum, 2),
    (Switch::PromoteFirst, 1),
    (Switch::DiscardOutdated, 2),
    (Switch::KeepCopy, 67),
    (Switch::RegisterFirst, 3666),
    (Switch::Fence, 2),
    (Switch::Revision, 1157),
    (Switch::EvictingIsStored, 1660),
    (Switch::EvictHolders, 12575),
    (Switch::StoredRevision, 5374),
];

#[test]
fn each_rule_is_needed() {
    for &(switch, first) in NEEDED {
        let options = SimulationOptions::all().without(switch);
        let Some((seed, violation)) = find(&options, first) else {
            panic!("{switch:?} is not needed");
        };
        println!("{switch:?}: seed {seed}: {violation}");
    }
}

/// With too few full members, one lost region would need an operator although other copies have
/// what was sealed. But no other copies may decide, and at no other time.
#[test]
fn copies_that_have_what_was_sealed_decide_while_too_few_are_full() {
    let options = SimulationOptions::all().without(Switch::SealedCopies);
    let is_stuck = |seed: &u64| {
        let violation = run(*seed, &options).violation;
        violation.is_some_and(|violation| violation.starts_with("NoStuck"))
    };
    let seed = (0..20_000).find(is_stuck).expect("an operator is needed");
    println!("seed {seed}");
    for (switch, (copies, needed)) in [(Switch::SealedOnly, (3, 2)), (Switch::Unsettled, (4, 3))] {
        let options = SimulationOptions::all().with_group(copies, needed).without(switch);
        let Some((seed, violation)) = find(&options, 0) else {
            panic!("{switch:?} is not needed");
        };
        println!("{switch:?}: seed {seed}: {violation}");
    }
}

#[test]
fn an_owner_that_does_not_hear_must_be_suspected() {
    let options = SimulationOptions::all().with_faults(Faults::OwnerDeaf).with_group(3, 2);
    let report = run(0, &options.without(Switch::SuspectDeafOwner));
    let violation = report.violation.expect("the owner stays for ever");
    assert!(violation.starts_with("NoStuck"), "{violation}");
}

/// What happened with one seed, with all faults or, after `FAULTS=groups` or `groups-kept`, with
/// changes of the group, with lost regions or without, after `FAULTS=owners` or `members`, with
/// older copies of regions, or, after `lost`, `cut` or `lives`, with a degraded owner that fails:
/// `SEED=7 cargo test -p nearstate-sim look -- --ignored --nocapture`.
#[test]
#[ignore = "prints the log of one seed, to look for a cause"]
fn look() {
    let seed = std::env::var("SEED").unwrap().parse().unwrap();
    let wanted = std::env::var("FAULTS").unwrap_or_default();
    let faults = match wanted.as_str() {
        "lost" => Faults::DegradedOwnerLost,
        "cut" => Faults::DegradedOwnerCut,
        "lives" => Faults::DegradedOwnerLives,
        "owners" => Faults::OlderOwners,
        "members" => Faults::OlderMembers,
        "groups-kept" => Faults::NoLoss,
        _ => Faults::All,
    };
    let options = SimulationOptions::all().with_faults(faults).with_log();
    let changes_group = wanted.starts_with("groups");
    let options = if changes_group { options.with_group_changes() } else { options };
    let is_degraded = ["lost", "cut", "lives"].contains(&wanted.as_str());
    let options = if is_degraded { options.with_degradation(700) } else { options };
    let report = run(seed, &options);
    for line in &report.log {
        println!("{line}");
    }
    println!("{:?}", report.violation);
}

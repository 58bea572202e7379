//! Faults that are planted in the store, and by whom each is found: the checker of histories, the
//! promises of the models, the processes themselves. Without a fault nobody finds anything.
#![cfg(feature = "crash-points")]
#![expect(clippy::print_stdout, reason = "a test says what it measured")]
#![expect(clippy::panic, reason = "a test fails by panicking")]

use nearstate_torture::histories::game::{By, Options, Totals};
use nearstate_torture::histories::model::Model;
use nearstate_torture::histories::rounds::play;
use nearstate_torture::spawn::Starter;

/// Plays rounds of one model, and goes on after what is found.
fn survey(fault: &str, model: Model) -> Totals {
    let child = env!("CARGO_BIN_EXE_nearstate-torture-child");
    let starter =
        Starter(["env", &format!("NEARSTATE_PLANT={fault}"), child].map(Into::into).to_vec());
    let name = model.name();
    let options = Options {
        rounds: 80,
        rounds_per_check: 40,
        players: 4,
        operations: 24,
        kills_percent: 0,
        jitter: 150,
        model: Some(model),
        folder: format!("/dev/shm/nearstate-{fault}-{name}-test-{}", std::process::id()).into(),
        seed: 1,
        is_survey: true,
    };
    let totals = play(&options, &starter, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    println!("{fault}, {name}: {:?} in {} rounds", totals.caught, totals.rounds);
    for (by, text) in &totals.first {
        println!("    {by:?}: {text}");
    }
    totals
}

fn is_caught(totals: &Totals, by: By) -> bool {
    totals.caught.get(&by).is_some_and(|count| *count > 0)
}

#[test]
fn without_a_fault_nobody_finds_one() {
    for model in Model::ALL {
        let totals = survey("none", model);
        assert!(totals.caught.is_empty());
        assert_eq!((totals.rounds, totals.histories), (80, 80));
        assert!(totals.done > 500 && totals.refused > 50, "the work met nothing");
    }
}

/// Two transactions overwrite each other: money is made, a ring falls apart.
#[test]
fn a_commit_that_skips_its_validation_is_found_by_histories_and_promises() {
    assert!(is_caught(&survey("skip-validation", Model::Registers), By::History));
    let bank = survey("skip-validation", Model::Bank);
    assert!(is_caught(&bank, By::History) && is_caught(&bank, By::Promise));
    assert!(is_caught(&survey("skip-validation", Model::Ring), By::Process));
}

/// New entries are there one by one, before the decision.
#[test]
fn a_commit_that_publishes_before_its_decision_is_found_by_histories_and_promises() {
    let bank = survey("publish-early", Model::Bank);
    assert!(is_caught(&bank, By::History) && is_caught(&bank, By::Promise));
    let index = survey("publish-early", Model::Index);
    assert!(is_caught(&index, By::History) || is_caught(&index, By::Promise));
}

/// The last write of a transaction is left out: the name of a record leads nowhere.
#[test]
fn a_commit_that_forgets_its_index_is_found_by_histories_and_promises() {
    assert!(is_caught(&survey("forget-index", Model::Registers), By::History));
    let bank = survey("forget-index", Model::Bank);
    assert!(is_caught(&bank, By::History) && is_caught(&bank, By::Promise));
    assert!(is_caught(&survey("forget-index", Model::Index), By::Process));
}

/// Readers look at every moment at records that are always written together.
#[test]
fn a_commit_that_publishes_before_its_decision_is_found_by_readers_of_pairs() {
    let child = env!("CARGO_BIN_EXE_nearstate-torture-child");
    // With the processor given away between two stores now and then: else the time between two
    // entries is some nanoseconds.
    let words = ["env", "NEARSTATE_PLANT=publish-early", "NEARSTATE_JITTER=200", child];
    let starter = Starter(words.map(Into::into).to_vec());
    let folder = format!("/dev/shm/nearstate-pairs-test-{}", std::process::id());
    let options = nearstate_torture::run::Options {
        kills: 100,
        kills_per_check: 100,
        writers: 2,
        readers: 4,
        folder: folder.clone().into(),
        seed: 1,
        pause_us_max: 60_000,
    };
    let found = nearstate_torture::run::run(&options, &starter, &mut |_| {}).unwrap_err();
    println!("{found}");
    assert!(found.contains("half of a transaction"), "{found}");
    std::fs::remove_dir_all(folder).unwrap();
}

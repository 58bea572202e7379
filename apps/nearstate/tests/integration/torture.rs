//! A short run of `nearstate torture --node-kills`, and the proof that it detects violations.

use nearstate_local_cluster::NetworkKind;
use nearstate_torture::failovers;
use nearstate_torture::node_kills::injected_fault::InjectedFault;
use nearstate_torture::node_kills::run::{NodeKillOptions, run};
use nearstate_torture::spawn::ChildCommand;

/// More than enough for an injected fault: one of the first few kills shows it.
const KILLS_UNTIL_FOUND: u64 = 100;

fn options(name: &str, kills: u64, injected_fault: InjectedFault) -> NodeKillOptions {
    NodeKillOptions {
        kills,
        kills_per_check: 5,
        clients: 4,
        embedded: 2,
        fill_bytes: 16 << 20,
        folder: format!("/dev/shm/nearstate-{name}-test-{}", std::process::id()).into(),
        seed: 1,
        pause_us_max: 100_000,
        injected_fault,
    }
}

fn starter() -> ChildCommand {
    ChildCommand(vec![env!("CARGO_BIN_EXE_nearstate").into(), "torture-child".into()])
}

/// Kills until the injected fault is detected. Returns the error.
fn detect(name: &str, injected_fault: InjectedFault) -> String {
    let options = options(name, KILLS_UNTIL_FOUND, injected_fault);
    match run(&options, &starter(), &mut |_| {}) {
        Ok(totals) => panic!("the fault was not detected: {}", totals.table()),
        Err(error) => {
            eprintln!("{error}");
            std::fs::remove_dir_all(&options.folder).unwrap_or_else(|e| panic!("{e}"));
            error
        }
    }
}

#[test]
fn a_node_killed_under_clients_and_embedded_writers_loses_and_splits_nothing() {
    let options = options("node-kills", 10, InjectedFault::None);
    let totals = run(&options, &starter(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{}", totals.table());
    assert_eq!((totals.kills, totals.bytes_leaked), (10, 0));
    assert!(
        totals.checks >= 2 && totals.requests.answered > 100 && totals.requests.transactions > 10
    );
    assert!(totals.requests.cut_short > 0 && totals.embedded_while_down >= 100);
    assert!(totals.records_by_socket > 100 && totals.records_by_session > 100);
}

#[test]
fn a_reply_before_the_commit_is_detected() {
    let error = detect("early", InjectedFault::ReplyBeforeCommit);
    assert!(error.contains("not the result of any prefix"), "{error}");
}

#[test]
fn a_transaction_that_is_split_is_detected() {
    let error = detect("split", InjectedFault::SplitTransaction);
    // A split before the increment of a shared counter is visible in the counter alone.
    let is_split = ["not the result of any prefix", "were acknowledged or visible"];
    assert!(is_split.iter().any(|part| error.contains(part)), "{error}");
}

#[test]
fn a_cluster_survives_the_loss_of_its_owner_and_other_faults() {
    let options = failovers::run::FailoverOptions {
        failovers: 3,
        lease_ms: 1000,
        program: env!("CARGO_BIN_EXE_nearstate").into(),
        folder: format!("/dev/shm/nearstate-failovers-test-{}", std::process::id()).into(),
        network: NetworkKind::best(),
        seed: 1,
    };
    let totals = failovers::run::run(&options, &starter(), &mut |_| {}).unwrap();
    assert!(totals.failovers >= 3 && totals.lost_owner_us.count() >= 1, "{}", totals.table());
    assert!(totals.transactions_replicated > 0 && totals.requests_replicated > 0);
    assert_eq!(totals.histories_checked + totals.histories_undecided, totals.rounds);
    assert_eq!(totals.copies_compared, 3 * totals.rounds);
    assert!(!options.folder.exists());
}

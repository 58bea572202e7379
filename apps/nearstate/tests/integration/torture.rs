//! A short run of `nearstate torture --node-kills`, and the proof that its judge can say no.

use nearstate_torture::served::plant::Plant;
use nearstate_torture::served::run::{Options, run};
use nearstate_torture::spawn::Starter;

/// More than enough for a planted fault: one of the first few shows it.
const KILLS_UNTIL_FOUND: u64 = 100;

fn options(name: &str, kills: u64, plant: Plant) -> Options {
    Options {
        kills,
        kills_per_check: 5,
        clients: 4,
        embedded: 2,
        fill_bytes: 16 << 20,
        folder: format!("/dev/shm/nearstate-{name}-test-{}", std::process::id()).into(),
        seed: 1,
        pause_us_max: 100_000,
        plant,
    }
}

fn starter() -> Starter {
    Starter(vec![env!("CARGO_BIN_EXE_nearstate").into(), "torture-child".into()])
}

/// Kills until the planted fault is found. Returns what is said of it.
fn found(name: &str, plant: Plant) -> String {
    let options = options(name, KILLS_UNTIL_FOUND, plant);
    match run(&options, &starter(), &mut |_| {}) {
        Ok(totals) => panic!("nobody has found it: {}", totals.table()),
        Err(error) => {
            eprintln!("{error}");
            std::fs::remove_dir_all(&options.folder).unwrap_or_else(|e| panic!("{e}"));
            error
        }
    }
}

#[test]
fn a_killed_node_with_clients_and_embedded_writers_loses_and_tears_nothing() {
    let options = options("node-kills", 10, Plant::Nothing);
    let totals = run(&options, &starter(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{}", totals.table());
    assert_eq!((totals.kills, totals.bytes_leaked), (10, 0));
    assert!(totals.checks >= 2 && totals.told > 100 && totals.transactions > 10);
    assert!(totals.cut > 0 && totals.embedded_while_down >= 100);
    assert!(totals.records_by_socket > 100 && totals.records_by_session > 100);
}

#[test]
fn a_reply_before_the_commit_is_detected() {
    let error = found("early", Plant::AnswerBeforeCommit);
    assert!(error.contains("in flight leaves them"), "{error}");
}

#[test]
fn a_transaction_committed_in_parts_is_detected() {
    let error = found("unbound", Plant::Unbound);
    assert!(error.contains("in flight leaves them"), "{error}");
}

//! A writer that is stopped at each step of its commit, while another host becomes the owner of the
//! partition, and while the log goes round once more. When it continues, its commit is lost, or
//! refused, or it was replicated; and it is there once, or not at all.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nearstate_store::{Error, FollowState, ReceiptState, Region, Session, WhenFull, lease_clock};

use crate::fixture::{KilledOnDrop, child, region_path, spawn};
use crate::follow::mixed;
use crate::takeover::{Three, applied, assert_equal, follow, switch, ue};

/// What a transaction of one record passes, from its locks to its end.
const POINTS: [&str; 11] = [
    "txn.locked",
    "txn.intended",
    "log.drawn",
    "log.placed",
    "log.claimed",
    "txn.decided",
    "txn.replaced",
    "txn.unpended",
    "txn.retired",
    "txn.unlocking",
    "txn.unlocked",
];

/// Those at which the log goes round: around its words.
const LAPPED: [&str; 3] = ["log.drawn", "log.claimed", "txn.decided"];

/// Words of the log of these regions.
const WORDS: u64 = 1 << 16;

/// A bound for what takes milliseconds.
const WAIT_MAX: Duration = Duration::from_secs(60);

const KEY: &[u8] = b"counted";

/// Adds one to the record.
fn increment(session: &Session) -> Result<(), Error> {
    let ue = ue(session);
    session.transact(|txn| {
        let count = txn.get(ue, KEY)?.map_or(0, |view| view.bytes()[0]);
        txn.put(ue, KEY, &[count + 1])
    })
}

fn count(session: &Session) -> u8 {
    session.get(ue(session), KEY).unwrap().map_or(0, |view| view.bytes()[0])
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn a_writer_in_another_process() {
    let region = Region::attach(&region_path()).unwrap();
    let session = region.session().unwrap();
    let outcome = match increment(&session) {
        Ok(()) => {
            let receipt = session.receipt();
            match session.wait_replicated(receipt, WAIT_MAX).unwrap() {
                ReceiptState::Replicated => "replicated",
                ReceiptState::Lost => "lost",
                ReceiptState::Pending => "pending",
                ReceiptState::Unknown => "unknown",
            }
        }
        Err(Error::Fenced { .. } | Error::NotOwner { .. }) => "refused",
        Err(error) => panic!("{error}"),
    };
    writeln!(std::io::stdout(), "outcome: {outcome};").unwrap();
}

/// Starts a writer, and waits until it is stopped.
fn stopped(three: &Three, point: &str) -> KilledOnDrop {
    stopped_in(three, "stopped_writers::a_writer_in_another_process", point)
}

fn stopped_in(three: &Three, writer: &str, point: &str) -> KilledOnDrop {
    let mut command = child(writer, &three.owner.folder.path);
    command.env("NEARSTATE_CRASH_AT", format!("{point}:1:stop"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut writer = KilledOnDrop(spawn(&mut command).unwrap());
    let end = lease_clock() + WAIT_MAX;
    while !is_stopped(&writer.0) {
        assert!(lease_clock() < end, "it does not stop at {point}");
        assert!(writer.0.try_wait().unwrap().is_none(), "it does not pass {point}");
        std::thread::yield_now();
    }
    writer
}

pub(crate) fn is_stopped(writer: &Child) -> bool {
    let stat =
        std::fs::read_to_string(Path::new("/proc").join(writer.id().to_string()).join("stat"));
    // The state follows the name of the program, which is in brackets.
    stat.unwrap().rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Lets the writer continue, and returns what became of its commit.
fn outcome(mut writer: KilledOnDrop) -> String {
    let mut output = writer.0.stdout.take().unwrap();
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert!(writer.0.wait().unwrap().success(), "{text}");
    let (_, rest) = text.split_once("outcome: ").unwrap();
    rest.split_once(';').unwrap().0.to_owned()
}

fn resume(writer: &KilledOnDrop) {
    let kill = format!("kill -CONT {}", writer.0.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// Commits of another writer until the log has gone round, of which the member gets each.
fn go_round(owner: &Session, member: &Session) {
    let other = owner.namespace("other", &mixed()).unwrap();
    let begin = owner.log_tail_position().unwrap();
    while owner.log_tail_position().unwrap() <= begin + WORDS {
        for number in 0..2_000_u64 {
            owner.put(other, &(number % 50).to_le_bytes(), &number.to_le_bytes()).unwrap();
        }
        follow(owner, member);
    }
}

/// Stops a writer at a point, fails over, and lets it continue. Returns its outcome.
fn trial(point: &str, goes_round: bool) -> String {
    let three = Three::new();
    let [old, heir, late] =
        [&three.owner, &three.ahead, &three.behind].map(|host| host.region.session().unwrap());
    increment(&old).unwrap();
    old.namespace("other", &mixed()).unwrap();
    old.stream(old.namespace("other", &mixed()).unwrap(), WhenFull::Refuse).unwrap();
    follow(&old, &heir);
    follow(&old, &late);
    let writer = stopped(&three, point);
    if goes_round {
        go_round(&old, &heir);
        follow(&old, &late);
    }
    // Without another round the heir has not what the writer may have committed.
    let seal = applied(&heir);
    let replicated = count(&heir);
    heir.set_fenced(true).unwrap();
    let takeover = heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
    heir.set_fenced(false).unwrap();
    heir.put(ue(&heir), b"later", b"than the fail-over").unwrap();
    assert_eq!(applied(&late), takeover.seal);
    switch(&heir, &takeover, &late);
    old.set_fenced(true).unwrap();
    let ended = std::thread::scope(|scope| {
        let demoting = old.log_identity().unwrap();
        let region = &three.owner.region;
        let demotion = scope.spawn(move || {
            let session = region.session().unwrap();
            loop {
                match session.demote(Some(seal.position)) {
                    Err(Error::Stalled { .. }) => {}
                    other => return other,
                }
            }
        });
        // The writer sleeps through the beginning of the demotion.
        let end = lease_clock() + WAIT_MAX;
        while old.following().unwrap().is_none() && old.log_identity().unwrap() == demoting {
            assert!(lease_clock() < end && !demotion.is_finished(), "{point}: no demotion");
            std::thread::yield_now();
        }
        resume(&writer);
        demotion.join().unwrap()
    });
    ended.unwrap();
    assert!(matches!(old.following().unwrap().unwrap().state, FollowState::Joining));
    follow(&heir, &old);
    // As the node does when the copy has what is replicated.
    old.settle_receipts().unwrap();
    let outcome = outcome(writer);
    assert_eq!(count(&heir), replicated, "{point}: {outcome}");
    assert_eq!(outcome == "replicated", replicated == 2, "{point}: {outcome}");
    assert_equal(&heir, &old);
    assert_equal(&heir, &late);
    drop((old, heir, late));
    three.check();
    outcome
}

#[test]
fn a_writer_that_sleeps_through_a_fail_over_is_lost_or_refused() {
    for point in POINTS {
        let outcome = trial(point, false);
        assert!(["lost", "refused"].contains(&&*outcome), "{point}: {outcome}");
    }
}

#[test]
fn a_writer_that_sleeps_through_a_round_of_the_log_and_a_fail_over_counts_once_or_not() {
    let [drawn, claimed, decided] = LAPPED.map(|point| trial(point, true));
    // The log has made a hole of its position: it draws another one, behind the seal.
    assert!(["lost", "refused"].contains(&&*drawn), "{drawn}");
    // It was aborted, and begins anew.
    assert_eq!((&*claimed, &*decided), ("refused", "replicated"));
}

/// Two records, as a transaction.
fn put_two(session: &Session) -> Result<(), Error> {
    let ue = ue(session);
    session.transact(|txn| {
        txn.put(ue, KEY, b"behind the hand-over")?;
        txn.put(ue, b"another", b"behind the hand-over")
    })
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn a_writer_of_two_records_in_another_process() {
    let region = Region::attach(&region_path()).unwrap();
    let outcome = match put_two(&region.session().unwrap()) {
        Ok(()) => "committed".to_owned(),
        Err(Error::Fenced { namespace }) => format!("refused in {namespace}"),
        Err(error) => error.to_string(),
    };
    writeln!(std::io::stdout(), "outcome: {outcome};").unwrap();
}

/// An orderly hand-over refuses writers, waits for those in their commit and then reads the end of
/// the log. What is behind that end is lost with it, also if a commit in an `async` namespace was
/// answered.
#[test]
fn a_transaction_that_is_stopped_before_its_locks_commits_nothing_behind_a_hand_over() {
    let three = Three::new();
    let owner = three.owner.region.session().unwrap();
    put_two(&owner).unwrap();
    let writer = stopped_in(
        &three,
        "stopped_writers::a_writer_of_two_records_in_another_process",
        "txn.named",
    );
    owner.set_fenced(true).unwrap();
    owner.drain_logged().unwrap();
    let end = owner.log_tail_position().unwrap();
    resume(&writer);
    assert_eq!(outcome(writer), "refused in ue");
    assert_eq!(owner.log_tail_position().unwrap(), end, "a commit behind the drain");
    owner.set_fenced(false).unwrap();
    put_two(&owner).unwrap();
    assert!(owner.log_tail_position().unwrap() > end);
    drop(owner);
    three.check();
}

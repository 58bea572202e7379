//! A process is killed at each crash point while it changes sets and hashes of all sizes: each
//! change is there completely or not at all, and the region is sound.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use nearstate_store::crash::POINTS;
use nearstate_store::{CreateOptions, Filter, Kind, Namespace, Region, Schema, Session, WhenFull};

use crate::fixture::{TestFolder, child, clean, output, region_path};

/// Changes of one run.
const STEPS: u32 = 240;

/// Occurrences of a point.
const OCCURRENCES: [u32; 3] = [1, 40, 700];

type Set = BTreeSet<Vec<u8>>;
type Hash = BTreeMap<Vec<u8>, Vec<u8>>;

/// A change: of the set, and in every second step of the hash in the same transaction.
struct Step {
    is_added: bool,
    names: Vec<Vec<u8>>,
    has_hash: bool,
    is_deletion: bool,
}

fn step(number: u32) -> Step {
    let random = number.wrapping_mul(747_796_405).wrapping_add(2_891_336_453) >> 7;
    let count = if number.is_multiple_of(17) { 140 } else { 1 + random % 4 };
    Step {
        is_added: number % 80 < 48,
        names: (0..count).map(|at| format!("n{}", (random / 8 + at * 3) % 500).into()).collect(),
        has_hash: number.is_multiple_of(2),
        is_deletion: number % 120 == 119,
    }
}

fn value(number: u32) -> Vec<u8> {
    vec![b'v'; (number % 40 * 20) as usize]
}

fn open(session: &Session) -> Namespace {
    session.namespace("sets", &Schema { kind: Kind::Mixed, ..Schema::default() }).unwrap()
}

fn apply(session: &Session, ns: Namespace, number: u32) {
    let Step { is_added, names, has_hash, is_deletion } = step(number);
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    if is_deletion {
        session.delete(ns, b"s").unwrap();
        return;
    }
    let value = value(number);
    session
        .transact(|txn| {
            if is_added {
                txn.add_members(ns, b"s", &names)?;
            } else {
                txn.remove_members(ns, b"s", &names)?;
            }
            if has_hash && is_added {
                let pairs: Vec<(&[u8], &[u8])> =
                    names.iter().map(|name| (*name, value.as_slice())).collect();
                txn.set_fields(ns, b"h", &pairs)?;
            } else if has_hash {
                txn.remove_fields(ns, b"h", &names)?;
            }
            Ok::<_, nearstate_store::Error>(())
        })
        .unwrap();
}

/// The set and the hash after some steps.
fn model(steps: u32) -> (Set, Hash) {
    let (mut set, mut hash) = (Set::new(), Hash::new());
    for number in 0..steps {
        let Step { is_added, names, has_hash, is_deletion } = step(number);
        if is_deletion {
            set.clear();
            continue;
        }
        for name in names {
            if has_hash && is_added {
                hash.insert(name.clone(), value(number));
            } else if has_hash {
                hash.remove(&name);
            }
            if is_added {
                set.insert(name);
            } else {
                set.remove(&name);
            }
        }
    }
    (set, hash)
}

fn stored(path: &Path) -> (Set, Hash) {
    let region = Region::attach(path).unwrap();
    let session = region.session().unwrap();
    let ns = open(&session);
    let (set, hash) = (session.get(ns, b"s").unwrap(), session.get(ns, b"h").unwrap());
    let set = set.map(|view| view.members().map(<[u8]>::to_vec).collect());
    let pair = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
    let hash = hash.map(|view| view.fields().map(pair).collect());
    (set.unwrap_or_default(), hash.unwrap_or_default())
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn changes_in_another_process() {
    let region = Region::attach(&region_path()).unwrap();
    let session = region.session().unwrap();
    let ns = open(&session);
    let mut out = std::io::stdout();
    for number in 0..STEPS {
        apply(&session, ns, number);
        writeln!(out, "\nstep {}", number + 1).and_then(|()| out.flush()).unwrap();
    }
}

#[test]
fn a_change_of_a_collection_is_whole_after_a_kill_at_any_point() {
    let models: Vec<(Set, Hash)> = (0..=STEPS).map(model).collect();
    let mut kills = 0;
    for is_streamed in [false, true] {
        for point in POINTS {
            for occurrence in OCCURRENCES {
                let folder = TestFolder::new();
                let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
                let region = Region::create(&folder.path, &options).unwrap();
                if is_streamed {
                    // Each commit is a transaction with events.
                    let session = region.session().unwrap();
                    let ns = open(&session);
                    session.stream(ns, WhenFull::LoseOldest).unwrap();
                    drop(session.watch(ns, Filter::Namespace).unwrap());
                }
                drop(region);
                let plan = format!("{point}:{occurrence}");
                let mut command =
                    child("killed_collection::changes_in_another_process", &folder.path);
                let ended = output(command.env("NEARSTATE_CRASH_AT", &plan)).unwrap();
                let text = String::from_utf8_lossy(&ended.stdout);
                let done = text.lines().filter_map(|line| line.strip_prefix("step ")).next_back();
                let done: usize = done.map_or(0, |number| number.parse().unwrap());
                let found = stored(&folder.path);
                let is_whole = found == models[done]
                    || models.get(done + 1).is_some_and(|next| found == *next);
                assert!(is_whole, "killed at {plan} after {done} steps, streamed: {is_streamed}");
                clean(&folder.path);
                if ended.status.success() {
                    assert_eq!(done, models.len() - 1);
                    break;
                }
                kills += 1;
            }
        }
    }
    assert!(kills > 150, "{kills} kills");
}

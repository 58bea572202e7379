//! The file is truncated while it is attached: no `SIGBUS`, and no invented data.

use std::fs::OpenOptions;

use nearstate_store::{
    BlockChange, Condition, Error, Kind, Pattern, Region, Result, Schema, Session,
};

use crate::fixture::{TestFolder, open, refused, small};

/// Where the file is cut: in the superblock, the members, the catalog, the arenas, the heap.
const LENGTHS: &[u64] =
    &[0, 100, 0x1000, 0x2000, 0x40_0000, 0x440_0000, 0x440_1000, 0x840_0000, 0x840_8000];

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// Every operation, each told apart.
fn all(session: &Session, region: &Region) -> Vec<(&'static str, Result<()>)> {
    let schema = Schema::default();
    let Ok(ns) = session.namespace("ue", &schema) else {
        return vec![("namespace", session.namespace("ue", &schema).map(drop))];
    };
    let blocks =
        session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    let mut copy = Vec::new();
    let keys = [key(1), key(2), key(9999)];
    let keys: Vec<&[u8]> = keys.iter().map(<[u8; 4]>::as_slice).collect();
    let change = [BlockChange { name: "b", bytes: Some(&[1; 9000]) }];
    vec![
        ("get", session.get(ns, &key(3)).map(drop)),
        ("get of none", session.get(ns, b"none").map(drop)),
        ("get_copy", session.get_copy(ns, &key(4), &mut copy).map(drop)),
        ("get_batch", session.get_batch(ns, &keys, |_, _| {})),
        ("put", session.put(ns, &key(5), &[2; 700]).map(drop)),
        ("put anew", session.put(ns, b"new", &[2; 700]).map(drop)),
        ("put large", session.put(ns, b"large", &vec![2; 3 << 20]).map(drop)),
        ("patch", session.patch(blocks, b"k", &change, Condition::Always).map(drop)),
        ("delete", session.delete(ns, &key(6)).map(drop)),
        ("list", session.list(ns, Pattern::All, |_| {})),
        ("count", session.count(ns).map(drop)),
        ("session", region.session().map(drop)),
    ]
}

#[test]
fn a_file_that_is_truncated_while_attached_gives_errors_and_no_signal() {
    for &length in LENGTHS {
        let folder = TestFolder::new();
        let region = Region::create(&folder.path, &small()).unwrap();
        let (session, ns) = open(&region);
        let blocks = session
            .namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() })
            .unwrap();
        for number in 0..2000 {
            session.put(ns, &key(number), &[1; 1000]).unwrap();
        }
        let change = [BlockChange { name: "b", bytes: Some(&[7; 9000]) }];
        session.patch(blocks, b"k", &change, Condition::Always).unwrap();
        let (other, _) = open(&region);
        let view = session.get(ns, &key(1999)).unwrap().unwrap();
        let patched = session.get(blocks, b"k").unwrap().unwrap();

        let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
        file.set_len(length).unwrap();

        // The held views read zeros where there is nothing; what was there before, else.
        assert!(view.bytes().iter().all(|byte| [0, 1].contains(byte)));
        let block: u32 = patched.block("b").unwrap_or_default().iter().map(|b| u32::from(*b)).sum();
        assert!(block <= 7 * 9000);
        assert!(view.key().len() <= 4);
        drop((view, patched));

        for round in 0..2 {
            for session in [&session, &other] {
                for (name, result) in all(session, &region) {
                    match result {
                        Err(Error::Damaged { .. }) => {}
                        other => panic!("cut at {length:#x}, round {round}: {name}: {other:?}"),
                    }
                }
            }
        }
        refused(session.put(ns, b"k", b"v"), &["truncated while it was attached", "stop"]);
        drop((session, other, region));
        let attached = Region::attach(&folder.path);
        refused(attached, if length == 0 { &["empty"] } else { &["truncated"] });
    }
}

#[test]
fn a_truncation_after_all_records_is_detected_when_the_region_grows() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, b"before", b"v").unwrap();
    let taken = region.inspect().unwrap().bytes_taken;
    let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
    file.set_len(0x840_0000 + taken).unwrap();
    assert_eq!(session.get(ns, b"before").unwrap().unwrap().bytes(), b"v");
    let mut acknowledged = 0_u32;
    let error = loop {
        match session.put(ns, &key(acknowledged), &[3; 5000]) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 20_000, "it never met the end of the file");
    };
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert!(u64::from(acknowledged) * 5000 < taken, "{acknowledged} were put into nothing");
}

#[test]
fn many_threads_read_a_truncated_file() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    for number in 0..500 {
        session.put(ns, &key(number), &[1; 1000]).unwrap();
    }
    let ready = std::sync::Barrier::new(5);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (region, ready) = (&region, &ready);
            scope.spawn(move || {
                let (session, ns) = open(region);
                ready.wait();
                let mut number = thread;
                loop {
                    number = number.wrapping_mul(1_103_515_245).wrapping_add(12345);
                    let result = if thread < 2 {
                        session.get(ns, &key(number % 500)).map(|view| {
                            view.map_or(0, |view| view.bytes().iter().map(|b| u64::from(*b)).sum())
                        })
                    } else {
                        session.put(ns, &key(number % 500), &[1; 1000])
                    };
                    if result.is_err() {
                        return;
                    }
                }
            });
        }
        ready.wait();
        for _ in 0..20_000 {
            session.put(ns, b"k", b"v").unwrap();
        }
        OpenOptions::new().write(true).open(&folder.path).unwrap().set_len(0).unwrap();
    });
    refused(session.get(ns, b"k"), &["truncated"]);
}

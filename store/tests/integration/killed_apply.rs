//! A follower that is killed while it applies an entry: the copy reports exactly what it has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nearstate_store::{
    FeedItem, FollowPosition, FollowState, Kind, Namespace, Region, Schema, Session, TagSchema,
    WhenFull,
};

use crate::fixture::{child, output, region_path};
use crate::follow::{Host, contents, deliver, run, start};

/// A kill in front of the commit, between it and the position, and behind the position. What an
/// entry does not pass does not kill.
const POINTS: [&str; 10] = [
    "follow.coming",
    "publish.recorded",
    "publish.committed",
    "remove.stamped",
    "txn.intended",
    "txn.decided",
    "txn.unlocked",
    "follow.applied",
    "follow.placed",
    "none",
];

const ENTRIES: [&str; 6] = ["put", "insert", "patch", "delete", "transaction", "tagged"];

fn schema(kind: Kind, is_tagged: bool) -> Schema {
    let tag = TagSchema { name: "guti".to_owned(), is_unique: true, ..TagSchema::default() };
    Schema { kind, tags: if is_tagged { vec![tag] } else { Vec::new() } }
}

/// The namespaces of values, of blocks, and of records with a tag.
fn namespaces(session: &Session) -> [Namespace; 3] {
    [
        session.namespace("values", &schema(Kind::Value, false)).unwrap(),
        session.namespace("blocks", &schema(Kind::Blocks, false)).unwrap(),
        session.namespace("tagged", &schema(Kind::Value, true)).unwrap(),
    ]
}

fn all(session: &Session) -> Vec<BTreeMap<Vec<u8>, Vec<String>>> {
    namespaces(session).map(|namespace| contents(session, namespace)).into()
}

fn write(session: &Session, entry: &str) {
    let [values, blocks, tagged] = namespaces(session);
    let done = session.transact(|txn| match entry {
        "put" => txn.put(values, b"k", b"later"),
        "insert" => txn.put(values, b"new", b"value"),
        "patch" => txn.set_fields(blocks, b"k", &[(b"a", b"later")]).map(drop),
        "delete" => txn.delete(values, b"k").map(drop),
        "transaction" => {
            txn.delete(values, b"k")?;
            txn.put(values, b"other", b"value")?;
            txn.set_fields(blocks, b"k", &[(b"b", b"later")]).map(drop)
        }
        "tagged" => txn.put(tagged, b"k", b"value"),
        other => panic!("no entry {other}"),
    });
    done.unwrap();
}

fn session_of(path: &Path) -> (Region, Session) {
    let region = Region::attach(path).unwrap();
    let session = region.session().unwrap();
    (region, session)
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn an_entry_in_another_process() {
    let text = region_path().into_os_string().into_string().unwrap();
    let [source, copy] = [0, 1].map(|at| PathBuf::from(text.split(',').nth(at).unwrap()));
    let ((_region, source), (_other, copy)) = (session_of(&source), session_of(&copy));
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let mut applied = 0;
    feed.step(true, &mut |item: FeedItem<'_>| deliver(&mut follower, item, &mut applied)).unwrap();
}

/// Applies the next entry in a process that is killed at a point. False if it ended before.
fn is_killed([source, copy]: [&Host; 2], point: &str) -> bool {
    let paths = [source, copy].map(|host| host.folder.path.to_str().unwrap()).join(",");
    let mut command = child("killed_apply::an_entry_in_another_process", Path::new(&paths));
    let ended = output(command.env("NEARSTATE_CRASH_AT", format!("{point}:1"))).unwrap();
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code().is_none() || ended.status.success(), "{point}: {text}");
    !ended.status.success()
}

#[test]
fn a_copy_reports_an_entry_if_and_only_if_it_has_it() {
    let mut kills = BTreeMap::new();
    for (entry, point) in ENTRIES.iter().flat_map(|entry| POINTS.map(|point| (*entry, point))) {
        let hosts = [0; 2].map(|_| Host::new());
        let [source, copy] = [&hosts[0], &hosts[1]].map(|host| host.region.session().unwrap());
        let streamed = namespaces(&source);
        for ns in streamed {
            source.stream(ns, WhenFull::Refuse).unwrap();
        }
        source.put(streamed[0], b"k", b"value").unwrap();
        source.transact(|txn| txn.set_fields(streamed[1], b"k", &[(b"a", b"1")])).unwrap();
        {
            let mut follower = copy.follow().unwrap();
            let mut feed = start(&source, &mut follower, &copy);
            run(&source, &mut feed, &mut follower);
        }
        let before = (copy.following().unwrap().unwrap(), all(&source));
        write(&source, entry);
        let after = all(&source);
        let is_killed = is_killed([&hosts[0], &hosts[1]], point);
        // Recovery by the first process that meets what the killed one has left.
        let now = (copy.following().unwrap().unwrap(), all(&copy));
        assert_eq!(now.0.state, FollowState::Full);
        let has_entry = now.1 == after;
        assert!(has_entry || now.1 == before.1, "{entry} at {point}: a part of an entry");
        let is_reported = now.0.applied != before.0.applied;
        assert_eq!(is_reported, has_entry, "{entry} at {point}: {now:?}");
        assert_eq!(now.0.reached > before.0.reached, has_entry, "{entry} at {point}");
        *kills.entry((is_killed, has_entry)).or_insert(0) += 1;
        // The next follower continues from there, with the same records in the end.
        let applied: FollowPosition = now.0.applied;
        let mut follower = copy.follow().unwrap();
        assert_eq!(copy.following().unwrap().unwrap().applied, applied);
        let mut feed = start(&source, &mut follower, &copy);
        assert!(!feed.is_joining(), "{entry} at {point}");
        run(&source, &mut feed, &mut follower);
        drop((feed, follower));
        assert_eq!(all(&copy), after, "{entry} at {point}");
        drop((source, copy));
        hosts.into_iter().for_each(Host::check);
    }
    let of = |key| kills.get(&key).copied().unwrap_or(0);
    assert!(of((true, false)) >= 12, "kills in front of the commit: {kills:?}");
    assert!(of((true, true)) >= 14, "kills behind the commit: {kills:?}");
    assert_eq!(of((false, false)), 0, "{kills:?}");
}

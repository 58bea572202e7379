//! Scans in parts, the order of blocks, and the writes of an open transaction.
use nearstate_store::{
    BlockChange, Condition, CreateOptions, Kind, Metadata, Namespace, Region, Schema, Session,
};

use crate::fixture::clean;

fn open(each: impl Fn(&Session, Namespace)) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    {
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
        let namespace = session.namespace("xapp", &schema).unwrap();
        each(&session, namespace);
    }
    clean(&path);
}

#[test]
fn a_scan_in_parts_returns_each_record_once_while_the_index_grows() {
    open(|session, ns| {
        for number in 0..300_u32 {
            session.put(ns, &number.to_le_bytes(), b"stays").unwrap();
        }
        session.put_until(ns, b"past", b"", 1).unwrap();
        let mut buckets = session.buckets(ns).unwrap();
        let before = buckets.count();
        let mut met = Vec::new();
        let mut more = 1000..;
        while session
            .walk_buckets(ns, &mut buckets, 3, |view| {
                if view.bytes() == b"stays" {
                    met.push(view.key().to_vec());
                }
                assert_ne!(view.key(), b"past");
                Ok(())
            })
            .unwrap()
        {
            for number in more.by_ref().take(200) {
                session.put(ns, &u32::to_le_bytes(number), b"came").unwrap();
            }
        }
        assert!(session.buckets(ns).unwrap().count() > before, "the index has grown meanwhile");
        met.sort_unstable();
        let mut stayed: Vec<Vec<u8>> = (0..300_u32).map(|n| n.to_le_bytes().to_vec()).collect();
        stayed.sort_unstable();
        assert_eq!(met, stayed);
    });
}

#[test]
fn a_view_reports_the_size_of_its_record_with_blocks() {
    open(|session, ns| {
        session.put(ns, b"small", b"v").unwrap();
        session.put(ns, b"large", &[7; 5000]).unwrap();
        let bytes = vec![7; 3000];
        let blocks: Vec<BlockChange<'_>> =
            ["a", "b", "c"].iter().map(|name| BlockChange { name, bytes: Some(&bytes) }).collect();
        session.patch(ns, b"parts", &blocks, Condition::Always).unwrap();
        let taken = |key: &[u8]| session.get(ns, key).unwrap().unwrap().taken_bytes().unwrap();
        assert_eq!(taken(b"small"), 64);
        assert!((5049..=6400).contains(&taken(b"large")), "{}", taken(b"large"));
        assert!((9000..=12_000).contains(&taken(b"parts")), "{}", taken(b"parts"));
    });
}

#[test]
fn the_parts_of_a_count_are_the_count() {
    open(|session, ns| {
        assert_eq!(session.count(ns).unwrap(), 0);
        for number in 0..500_u32 {
            session.put(ns, &number.to_le_bytes(), b"v").unwrap();
        }
        session.put_until(ns, b"past", b"", 1).unwrap();
        session.put_until(ns, b"to come", b"", u64::MAX).unwrap();
        let mut buckets = session.buckets(ns).unwrap();
        let count = buckets.count();
        let parts: u64 =
            (0..count).map(|_| session.count_buckets(ns, &mut buckets, 1).unwrap()).sum();
        assert_eq!((parts, session.count(ns).unwrap()), (501, 501));
        assert_eq!(session.count_buckets(ns, &mut buckets, 7).unwrap(), 0, "it is at its end");
    });
}

#[test]
fn blocks_keep_the_order_of_their_first_write() {
    open(|session, ns| {
        let set = |name, bytes| BlockChange { name, bytes: Some(bytes) };
        let (small, large): (&[u8], &[u8]) = (b"1", &[2; 900]);
        for [one, two] in [[small, large], [large, small]] {
            session
                .transact(|txn| {
                    txn.delete(ns, b"h")?;
                    txn.patch(ns, b"h", &[set("z", one), set("a", two), set("m", one)])
                })
                .unwrap();
            session
                .transact::<_, nearstate_store::Error>(|txn| {
                    txn.patch(ns, b"h", &[set("n", two), set("a", one), set("z", two)])?;
                    let own = txn.get(ns, b"h")?.unwrap();
                    let seen: Vec<_> = own.blocks().collect();
                    assert_eq!(seen, [("z", two), ("a", one), ("m", one), ("n", two)]);
                    Ok(())
                })
                .unwrap();
            let view = session.get(ns, b"h").unwrap().unwrap();
            let seen: Vec<_> = view.blocks().collect();
            assert_eq!(seen, [("z", two), ("a", one), ("m", one), ("n", two)]);
        }
    });
}

#[test]
fn a_transaction_lists_what_it_has_written() {
    open(|session, ns| {
        session.put(ns, b"old", b"v").unwrap();
        let txn = session.begin().unwrap();
        assert!(txn.written(ns).is_empty());
        txn.get(ns, b"old").unwrap();
        assert!(txn.written(ns).is_empty(), "a read is none");
        txn.put(ns, b"new", b"v").unwrap();
        txn.put_members(ns, b"set", &[b"m"], Metadata::default()).unwrap();
        assert!(txn.delete(ns, b"old").unwrap());
        let mut written = txn.written(ns);
        written.sort_unstable();
        let expected = [(&b"new"[..], true), (b"old", false), (b"set", true)];
        assert_eq!(written, expected.map(|(key, is_there)| (key.to_vec(), is_there)));
    });
}

fn to<'a>(name: &'a str, bytes: &'a [u8]) -> BlockChange<'a> {
    BlockChange { name, bytes: Some(bytes) }
}

#[test]
fn a_patch_of_some_blocks_keeps_the_others_and_the_metadata() {
    open(|session, ns| {
        let large = vec![7; 3000];
        let first = [to("profile", b"imsi".as_slice()), to("context", &large), to("radio", b"1")];
        session.patch(ns, b"ue", &first, Condition::Always).unwrap();
        let tags: &[(&str, &[u8])] = &[("guti", b"g-1")];
        let metadata = Metadata { tags, expires_ms: u64::MAX };
        session.transact(|txn| txn.set_metadata(ns, b"ue", metadata)).unwrap();
        let mut expected: Vec<(&str, Vec<u8>)> = vec![
            ("profile", b"imsi".to_vec()),
            ("context", large.clone()),
            ("radio", b"1".to_vec()),
        ];
        // Longer, shorter, empty, both ends, the large one smaller, and large again.
        let sizes: [&[(usize, usize)]; 6] = [
            &[(2, 40)],
            &[(0, 512), (2, 3)],
            &[(2, 0)],
            &[(1, 9), (0, 1)],
            &[(1, 513)],
            &[(1, 514), (2, 7)],
        ];
        for (number, sizes) in (1..).zip(sizes) {
            for (at, size) in sizes {
                expected[*at].1 = vec![number; *size];
            }
            let changes: Vec<BlockChange<'_>> =
                sizes.iter().map(|(at, _)| to(expected[*at].0, &expected[*at].1)).collect();
            session.patch(ns, b"ue", &changes, Condition::Present).unwrap();
            let view = session.get(ns, b"ue").unwrap().unwrap();
            let found: Vec<(&str, Vec<u8>)> =
                view.blocks().map(|(name, bytes)| (name, bytes.to_vec())).collect();
            assert_eq!(found, expected);
            assert_eq!(view.tags().collect::<Vec<_>>(), tags);
            assert_eq!(view.expires_ms(), u64::MAX);
            for names in [["profile", "context", "radio"], ["radio", "other", "profile"]] {
                let mut among = Vec::new();
                view.blocks_among(&names, |place, bytes| {
                    among.push((names[place], bytes.to_vec()));
                });
                let mut wanted = expected.clone();
                wanted.retain(|(name, _)| names.contains(name));
                assert_eq!(among, wanted);
            }
            assert_eq!(view.block("radio"), Some(expected[2].1.as_slice()));
            assert_eq!(view.block("radi"), None);
        }
    });
}

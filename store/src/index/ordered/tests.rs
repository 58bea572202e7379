//! The tree against a set, in memory.

#![expect(
    clippy::panic_in_result_fn,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its small numbers fit"
)]

mod damage;
mod memory_nodes;
mod transactions;

use std::collections::BTreeSet;
use std::ops::Bound;

use nearstate_model::Result;
use proptest::prelude::*;

use super::node::NODE_BYTES;
use super::*;
use memory_nodes::MemoryNodes;

const ROOT: u64 = 1;
const OTHER: u64 = 2;

fn all(nodes: &mut MemoryNodes, root: u64) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    check(nodes, root, &mut |key| {
        keys.push(key.to_vec());
        Ok(())
    })
    .unwrap();
    keys
}

fn walked(
    nodes: &mut MemoryNodes,
    range: (Bound<&[u8]>, Bound<&[u8]>),
    is_tracked: bool,
) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut tree = Ordered::default();
    let each = |key: &[u8]| -> Result<bool> {
        keys.push(key.to_vec());
        Ok(true)
    };
    if is_tracked {
        tree.walk(nodes, ROOT, range, each).unwrap();
    } else {
        tree.walk_untracked(nodes, ROOT, range, each).unwrap();
    }
    keys
}

/// Few different keys, so that they repeat; some are long, most have a common prefix.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop::collection::vec(prop::sample::select(vec![0, 1, 0xff]), 0..4);
    let head = prop::sample::select(vec![0, 1, 7, 40, 300, 3000]);
    (head, tail).prop_map(|(bytes, tail)| [vec![b'k'; bytes], tail].concat())
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, Vec<u8>),
    Remove(u64, Vec<u8>),
    Walk(Bound<Vec<u8>>, Bound<Vec<u8>>, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let root = || prop::sample::select(vec![ROOT, ROOT, ROOT, OTHER]);
    let bound = || {
        prop_oneof![
            key().prop_map(Bound::Included),
            key().prop_map(Bound::Excluded),
            Just(Bound::Unbounded)
        ]
    };
    prop_oneof![
        5 => (root(), key()).prop_map(|(root, key)| Op::Insert(root, key)),
        4 => (root(), key()).prop_map(|(root, key)| Op::Remove(root, key)),
        1 => (bound(), bound(), any::<bool>()).prop_map(|(from, to, t)| Op::Walk(from, to, t)),
    ]
}

fn slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Two trees share the names of nodes, and a name that one gave up soon serves the other; peeks
    /// show what was, reads what is.
    #[test]
    fn trees_are_sets_also_when_peeks_are_stale(
        ops in prop::collection::vec(op(), 1..400),
        stale_percent in prop::sample::select(vec![0, 10, 60]),
        seed: u64,
    ) {
        let mut nodes = MemoryNodes::new(stale_percent, seed);
        let mut tree = Ordered::default();
        let mut sets = [BTreeSet::new(), BTreeSet::new()];
        for (count, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert(root, key) => {
                    let inserted = tree.insert(&mut nodes, root, &key).unwrap();
                    prop_assert_eq!(inserted, sets[usize::from(root == OTHER)].insert(key));
                }
                Op::Remove(root, key) => {
                    let removed = tree.remove(&mut nodes, root, &key).unwrap();
                    prop_assert_eq!(removed, sets[usize::from(root == OTHER)].remove(&key));
                }
                Op::Walk(from, to, is_tracked) => {
                    // Untracked leaves may be old; with fresh peeks they are not.
                    let is_tracked = is_tracked || stale_percent > 0;
                    let keys = walked(&mut nodes, (slice(&from), slice(&to)), is_tracked);
                    let meant = |key: &&Vec<u8>| {
                        std::ops::RangeBounds::contains(&(from.clone(), to.clone()), *key)
                    };
                    let meant: Vec<_> = sets[0].iter().filter(meant).cloned().collect();
                    prop_assert_eq!(keys, meant);
                }
            }
            if count % 16 == 0 {
                let keys = all(&mut nodes.fresh(), ROOT);
                prop_assert_eq!(keys, sets[0].iter().cloned().collect::<Vec<_>>());
            }
        }
        for (root, set) in [(ROOT, &sets[0]), (OTHER, &sets[1])] {
            prop_assert_eq!(all(&mut nodes.fresh(), root), set.iter().cloned().collect::<Vec<_>>());
            let mut first = b"old".to_vec();
            prop_assert_eq!(tree.first(&mut nodes, root, &mut first).unwrap(), !set.is_empty());
            prop_assert_eq!(first, set.first().cloned().unwrap_or_default());
        }
    }
}

/// The orders in which 100 000 keys come and go.
fn orders() -> [(&'static str, Vec<u64>); 3] {
    let rising: Vec<u64> = (0..100_000).collect();
    let falling = rising.iter().rev().copied().collect();
    // 7919 is prime to 100 000, so every number comes once.
    let mixed = rising.iter().map(|number| number * 7919 % 100_000).collect();
    [("rising", rising), ("falling", falling), ("mixed", mixed)]
}

fn imsi(number: u64) -> Vec<u8> {
    format!("imsi-26201{number:010}").into_bytes()
}

#[test]
fn a_hundred_thousand_keys_come_and_go_in_any_order_and_leave_an_empty_leaf() {
    for (how, coming) in orders() {
        for (how_gone, going) in orders() {
            let mut nodes = MemoryNodes::default();
            let mut tree = Ordered::default();
            for number in &coming {
                assert!(tree.insert(&mut nodes, ROOT, &imsi(*number)).unwrap());
            }
            let mut next = 0;
            let counts = check(&mut nodes, ROOT, &mut |key| {
                assert_eq!(key, imsi(next));
                next += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(counts.keys, 100_000);
            assert_eq!(counts.nodes as usize, nodes.len());
            // 22 bytes with the end of each; a full node has 46 of them, half a node 23.
            let full = counts.keys / (NODE_BYTES as u64 / 22);
            let most = if how == "mixed" { 2 * full } else { full + full / 8 };
            assert!(counts.nodes <= most, "{how}: {counts:?}");
            assert!(counts.height <= 3, "{how}: {counts:?}");
            for (count, number) in going.iter().enumerate() {
                assert!(tree.remove(&mut nodes, ROOT, &imsi(*number)).unwrap());
                if count % 20_000 == 7 {
                    let left = check(&mut nodes, ROOT, &mut |_| Ok(())).unwrap();
                    assert_eq!(left.keys as usize, 99_999 - count, "{how_gone}");
                    assert_eq!(left.nodes as usize, nodes.len());
                }
            }
            assert_eq!(nodes.len(), 1, "{how}, {how_gone}: an empty root is left");
            assert_eq!(check(&mut nodes, ROOT, &mut |_| Ok(())).unwrap().height, 0);
        }
    }
}

#[test]
fn a_queue_ordered_by_time_leaves_no_trail() {
    let mut nodes = MemoryNodes::default();
    let mut tree = Ordered::default();
    let mut first = Vec::new();
    for time in 0..50_000_u64 {
        tree.insert(&mut nodes, ROOT, &time.to_be_bytes()).unwrap();
        if time >= 500 {
            assert!(tree.first(&mut nodes, ROOT, &mut first).unwrap());
            assert_eq!(first, (time - 500).to_be_bytes());
            assert!(tree.remove(&mut nodes, ROOT, &first).unwrap());
        }
        // 100 keys of 10 bytes fill a leaf: 500 of them stand in six or seven.
        assert!(nodes.len() <= 9, "{} nodes at {time}", nodes.len());
    }
    assert_eq!(check(&mut nodes, ROOT, &mut |_| Ok(())).unwrap().keys, 500);
}

#[test]
fn a_tree_that_shrinks_becomes_lower() {
    let mut nodes = MemoryNodes::default();
    let mut tree = Ordered::default();
    for number in 0..20_000 {
        tree.insert(&mut nodes, ROOT, &imsi(number)).unwrap();
    }
    assert_eq!(check(&mut nodes, ROOT, &mut |_| Ok(())).unwrap().height, 2);
    for number in 0..19_980 {
        tree.remove(&mut nodes, ROOT, &imsi(number)).unwrap();
    }
    let counts = check(&mut nodes, ROOT, &mut |_| Ok(())).unwrap();
    assert_eq!((counts.keys, counts.nodes, counts.height), (20, 1, 0));
}

#[test]
fn keys_of_7_kib_that_differ_at_their_ends_make_a_tree() {
    let mut nodes = MemoryNodes::default();
    let mut tree = Ordered::default();
    let giant = |number: u64| {
        let mut key = vec![b'k'; INDEX_KEY_BYTES_MAX - 8];
        key.extend_from_slice(&number.to_be_bytes());
        key
    };
    let count = 1500;
    for number in 0..count {
        assert!(tree.insert(&mut nodes, ROOT, &giant(number * 7919 % count)).unwrap());
        assert!(tree.insert(&mut nodes, ROOT, &number.to_be_bytes()).unwrap());
    }
    let counts = check(&mut nodes, ROOT, &mut |_| Ok(())).unwrap();
    assert_eq!(counts.keys, 2 * count);
    assert!(counts.height <= 12, "{counts:?}");
    assert!(nodes.bytes_largest() < 1 << 16, "{}", nodes.bytes_largest());
    for number in 0..count {
        assert!(tree.remove(&mut nodes, ROOT, &giant(number * 17 % count)).unwrap());
        assert!(tree.remove(&mut nodes, ROOT, &number.to_be_bytes()).unwrap());
    }
    assert_eq!(nodes.len(), 1);
    let refused = tree.insert(&mut nodes, ROOT, &[0; INDEX_KEY_BYTES_MAX + 1]).unwrap_err();
    assert!(refused.to_string().starts_with("a key of 7169 bytes"), "{refused}");
}

#[test]
fn an_insert_depends_on_its_leaf_alone_unless_that_is_split() {
    let mut nodes = MemoryNodes::default();
    let mut tree = Ordered::default();
    let numbers = (0..40_000_u64).map(|number| number * 7919 % 40_000);
    let (mut alone, mut splits) = (0, 0);
    for (count, number) in numbers.enumerate() {
        let before = nodes.len();
        nodes.forget();
        assert!(tree.insert(&mut nodes, ROOT, &imsi(number)).unwrap());
        if count < 10_000 {
            continue;
        }
        if nodes.len() == before {
            assert_eq!((nodes.read.len(), nodes.written.len()), (1, 1), "one leaf");
            assert!((2..=3).contains(&nodes.peeked), "the branches above it");
            alone += 1;
        } else {
            // The leaf and its branch, and what a split of the branch needs.
            assert!(nodes.read.len() <= 4 && nodes.written.len() <= 8);
            splits += 1;
        }
        nodes.forget();
        assert!(!tree.insert(&mut nodes, ROOT, &imsi(number)).unwrap());
        assert_eq!((nodes.read.len(), nodes.written.len()), (1, 0), "it is there already");
    }
    assert!(alone > 27_000 && splits > 500, "{alone} alone, {splits} splits");
    let number = imsi(4711);
    nodes.forget();
    assert!(tree.remove(&mut nodes, ROOT, &number).unwrap());
    assert_eq!((nodes.read.len(), nodes.written.len()), (1, 1));
}

#[test]
fn a_walk_tracks_the_leaves_of_its_range_and_an_untracked_one_nothing() {
    let mut nodes = MemoryNodes::default();
    let mut tree = Ordered::default();
    for number in 0..10_000 {
        tree.insert(&mut nodes, ROOT, &imsi(number)).unwrap();
    }
    let (from, to) = (imsi(5000), imsi(5100));
    let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
    nodes.forget();
    assert_eq!(walked(&mut nodes, range, true).len(), 100);
    assert!((3..=4).contains(&nodes.read.len()), "46 keys a leaf: {:?}", nodes.read);
    nodes.forget();
    assert_eq!(walked(&mut nodes, range, false).len(), 100);
    assert!(nodes.read.is_empty() && nodes.written.is_empty());
    let mut count = 0;
    tree.walk(&mut nodes, ROOT, range, |_| {
        count += 1;
        Ok(count < 7)
    })
    .unwrap();
    assert_eq!((count, nodes.read.len()), (7, 1), "a walk ends when it is told to");
    let stopped = tree
        .walk(&mut nodes, ROOT, range, |_| Err(Error::BadArgument { detail: "enough".to_owned() }));
    assert_eq!(stopped.unwrap_err().to_string(), "enough");
}

#[test]
fn a_walk_that_ends_at_a_fence_leaves_the_next_leaf_alone() {
    let mut nodes = MemoryNodes::default();
    let mut tree = Ordered::default();
    for number in 0..1000 {
        tree.insert(&mut nodes, ROOT, &imsi(number)).unwrap();
    }
    // Some key is the first of its leaf, and so its leaf's low fence: range up to it.
    let mut ends_at_fence = 0;
    for number in 1..100 {
        let (from, to) = (imsi(number - 1), imsi(number));
        nodes.forget();
        let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
        assert_eq!(walked(&mut nodes, range, true), std::slice::from_ref(&from));
        assert_eq!(nodes.read.len(), 1);
        nodes.forget();
        let range = (Bound::Included(from.as_slice()), Bound::Included(to.as_slice()));
        assert_eq!(walked(&mut nodes, range, true), [from.clone(), to.clone()]);
        ends_at_fence += usize::from(nodes.read.len() == 2);
    }
    assert!(ends_at_fence >= 2, "{ends_at_fence}");
}

#[test]
fn a_cursor_goes_on_while_its_tree_is_emptied() {
    let mut nodes = MemoryNodes::default();
    let mut tree = Ordered::default();
    for number in 0..1000 {
        tree.insert(&mut nodes, ROOT, &imsi(number)).unwrap();
    }
    let mut cursor = Cursor::new(ROOT, (Bound::Unbounded, Bound::Unbounded), ReadMode::Tracked);
    let mut next = 0;
    while let Some(key) = cursor.next(&mut nodes).unwrap().map(<[u8]>::to_vec) {
        assert_eq!(key, imsi(next));
        assert!(tree.remove(&mut nodes, ROOT, &key).unwrap());
        next += 1;
    }
    assert_eq!((next, nodes.len()), (1000, 1));
    assert_eq!(cursor.next(&mut nodes).unwrap(), None);
}

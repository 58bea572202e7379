//! Trees whose nodes were damaged: an answer or an error, never a panic, never without end.

use std::ops::Bound;

use nearstate_model::Result;
use proptest::prelude::*;

use super::memory_nodes::MemoryNodes;
use super::{ROOT, imsi};
use crate::index::ordered::{Ordered, check};

fn tree_of(count: u64) -> MemoryNodes {
    let mut nodes = MemoryNodes::default();
    let mut tree = Ordered::default();
    for number in 0..count {
        tree.insert(&mut nodes, ROOT, &imsi(number * 7919 % count)).unwrap();
    }
    nodes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn operations_on_damaged_nodes_end(
        damages in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..20),
        swap in any::<Option<(prop::sample::Index, prop::sample::Index)>>(),
    ) {
        let mut nodes = tree_of(1500);
        let names = nodes.names();
        for (name, at, byte) in &damages {
            let bytes = nodes.node_mut(*name.get(&names));
            // Half of the damage hits the head and the table of ends.
            let range = if byte % 2 == 0 { bytes.len() } else { bytes.len().min(40) };
            bytes[at.index(range)] = *byte;
        }
        if let Some((left, right)) = swap {
            // A branch may now lead to itself or to what is above it.
            let bytes = nodes.node_mut(*left.get(&names)).clone();
            *nodes.node_mut(*right.get(&names)) = bytes;
        }
        let mut tree = Ordered::default();
        let _ = check(&mut nodes.fresh(), ROOT, &mut |_| Ok(()));
        let mut seen = 0_usize;
        let all = (Bound::Unbounded, Bound::Unbounded);
        let _ = tree.walk(&mut nodes, ROOT, all, |_| Ok::<_, nearstate_model::Error>({
            seen += 1;
            true
        }));
        prop_assert!(seen < 200_000, "each leaf is given out once");
        for number in 0..1500 {
            let _: Result<bool> = tree.insert(&mut nodes, ROOT, &imsi(number + 750));
            let _: Result<bool> = tree.remove(&mut nodes, ROOT, &imsi(number));
        }
    }
}

#[test]
fn every_contradiction_between_nodes_is_found() {
    let whole = tree_of(1500);
    let names = whole.names();
    assert!(check(&mut whole.fresh(), ROOT, &mut |_| Ok(())).is_ok());
    for name in names {
        // The tree's name, the form, the level, the number of entries, the lengths of the fences.
        for at in [0, 8, 9, 10, 12, 14] {
            let mut nodes = whole.fresh();
            nodes.node_mut(name)[at] ^= 1;
            let found = check(&mut nodes, ROOT, &mut |_| Ok(()));
            assert!(found.is_err(), "byte {at} of node {name}");
        }
    }
}

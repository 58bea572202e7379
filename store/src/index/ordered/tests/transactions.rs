//! The tree inside optimistic transactions, interleaved: what commits is what one after the other
//! would have done, though only what was read is validated.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use nearstate_model::{Error, Result};
use proptest::prelude::*;

use super::ROOT;
use crate::index::ordered::{Cursor, Nodes, Ordered, ReadMode, check};

/// What is committed. A version never repeats.
#[derive(Debug, Default)]
struct World {
    nodes: BTreeMap<u64, (u64, Vec<u8>)>,
    older: BTreeMap<u64, Vec<Vec<u8>>>,
    free: Vec<u64>,
    named: u64,
    version: u64,
    rng: u64,
}

impl World {
    fn version_of(&self, node: u64) -> Option<u64> {
        self.nodes.get(&node).map(|(version, _)| *version)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng % sides
    }
}

#[derive(Debug)]
struct Transaction<'w> {
    world: &'w RefCell<World>,
    read: BTreeMap<u64, Option<u64>>,
    written: BTreeMap<u64, Option<Vec<u8>>>,
}

impl<'w> Transaction<'w> {
    fn new(world: &'w RefCell<World>) -> Self {
        Self { world, read: BTreeMap::new(), written: BTreeMap::new() }
    }

    fn validate(&self) -> Result<()> {
        let world = self.world.borrow();
        let stands = |(node, version): (&u64, &Option<u64>)| world.version_of(*node) == *version;
        if self.read.iter().all(stands) {
            return Ok(());
        }
        Err(Error::Conflict { detail: "a node".to_owned() })
    }

    fn commit(self) -> Result<()> {
        self.validate()?;
        let mut world = self.world.borrow_mut();
        for (node, bytes) in self.written {
            world.version += 1;
            let version = world.version;
            let old = if let Some(bytes) = bytes {
                world.nodes.insert(node, (version, bytes))
            } else {
                world.free.push(node);
                world.nodes.remove(&node)
            };
            world.older.entry(node).or_default().extend(old.map(|(_, bytes)| bytes));
        }
        Ok(())
    }
}

impl Nodes for Transaction<'_> {
    fn peek<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        if let Some(own) = self.written.get(&node) {
            return Ok(own.as_deref().map(read));
        }
        let mut world = self.world.borrow_mut();
        if world.roll(4) == 0
            && let Some(older) = world.older.get(&node).and_then(|older| older.last())
        {
            return Ok(Some(read(older)));
        }
        Ok(world.nodes.get(&node).map(|(_, bytes)| read(bytes)))
    }

    fn read<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        if let Some(own) = self.written.get(&node) {
            return Ok(own.as_deref().map(read));
        }
        let version = self.world.borrow().version_of(node);
        self.read.entry(node).or_insert(version);
        self.validate()?;
        Ok(self.world.borrow().nodes.get(&node).map(|(_, bytes)| read(bytes)))
    }

    fn write(&mut self, node: u64, bytes: &[u8]) -> Result<()> {
        let is_known = self.read.contains_key(&node) || self.written.contains_key(&node);
        assert!(is_known, "what is written was read or made before");
        self.written.insert(node, Some(bytes.to_vec()));
        Ok(())
    }

    fn create(&mut self, bytes: &[u8]) -> Result<u64> {
        let mut world = self.world.borrow_mut();
        let reused = world.free.pop();
        let name = reused.unwrap_or_else(|| {
            world.named += 1;
            100 + world.named
        });
        // If another transaction read this name earlier, even while it was free, it conflicts.
        self.read.insert(name, None);
        self.written.insert(name, Some(bytes.to_vec()));
        Ok(name)
    }

    fn free(&mut self, node: u64) -> Result<()> {
        assert!(self.read.contains_key(&node) || self.written.contains_key(&node));
        self.written.insert(node, None);
        Ok(())
    }
}

/// The operations of a transaction, with their results.
#[derive(Clone, Debug)]
enum Done {
    Inserted(u16, bool),
    Removed(u16, bool),
    Walked(u16, u16, Vec<u16>),
}

fn key(number: u16) -> Vec<u8> {
    // Long enough that a few hundred keys make a tree of three levels.
    [vec![b'k'; 90], number.to_be_bytes().to_vec()].concat()
}

fn number(key: &[u8]) -> u16 {
    u16::from_be_bytes(*key.last_chunk().unwrap())
}

fn act(nodes: &mut Transaction<'_>, (what, a, b): (u8, u16, u16)) -> Result<Done> {
    let mut tree = Ordered::default();
    Ok(match what {
        0..45 => Done::Inserted(a, tree.insert(nodes, ROOT, &key(a))?),
        45..90 => Done::Removed(a, tree.remove(nodes, ROOT, &key(a))?),
        _ => {
            let (from, to) = (key(a), key(a.saturating_add(b % 30)));
            let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
            let mut cursor = Cursor::new(ROOT, range, ReadMode::Tracked);
            let mut keys = Vec::new();
            while let Some(key) = cursor.next(nodes)? {
                keys.push(number(key));
            }
            Done::Walked(a, a.saturating_add(b % 30), keys)
        }
    })
}

/// Does the same to a set, which must say the same.
fn replay(set: &mut BTreeSet<u16>, done: &Done) {
    match done {
        Done::Inserted(number, inserted) => assert_eq!(set.insert(*number), *inserted, "{done:?}"),
        Done::Removed(number, removed) => assert_eq!(set.remove(number), *removed, "{done:?}"),
        Done::Walked(from, to, keys) => {
            let meant: Vec<u16> = set.range(*from..*to).copied().collect();
            assert_eq!(meant, *keys, "{done:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_commits_is_what_one_after_the_other_would_do(
        steps in prop::collection::vec((0_usize..5, (0_u8..100, 0_u16..400, any::<u16>())), 500),
        ops_each in 1_usize..5,
        seed: u64,
    ) {
        let world = RefCell::new(World { rng: seed | 1, ..World::default() });
        let mut set = BTreeSet::new();
        let mut open: Vec<_> = (0..5).map(|_| (Transaction::new(&world), Vec::new())).collect();
        let (mut commits, mut conflicts) = (0, 0);
        for (which, op) in steps {
            let (transaction, log) = &mut open[which];
            let ended = match act(transaction, op) {
                Ok(done) => {
                    log.push(done);
                    log.len() >= ops_each
                }
                Err(Error::Conflict { .. }) => {
                    conflicts += 1;
                    open[which] = (Transaction::new(&world), Vec::new());
                    continue;
                }
                Err(other) => panic!("{other}"),
            };
            if ended {
                let new = (Transaction::new(&world), Vec::new());
                let (transaction, log) = std::mem::replace(&mut open[which], new);
                if transaction.commit().is_ok() {
                    commits += 1;
                    for done in &log {
                        replay(&mut set, done);
                    }
                } else {
                    conflicts += 1;
                }
            }
        }
        drop(open);
        prop_assert!(commits > 5 * conflicts / 10, "{commits} commits, {conflicts} conflicts");
        let mut keys = Vec::new();
        check(&mut Fresh(&world), ROOT, &mut |key| { keys.push(number(key)); Ok(()) }).unwrap();
        prop_assert_eq!(keys, set.into_iter().collect::<Vec<_>>());
    }
}

/// The committed nodes as they are.
struct Fresh<'w>(&'w RefCell<World>);

impl Nodes for Fresh<'_> {
    fn peek<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        Ok(self.0.borrow().nodes.get(&node).map(|(_, bytes)| read(bytes)))
    }
    fn read<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.peek(node, read)
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::BadArgument { detail: "only looked at".to_owned() })
    }
    fn create(&mut self, _: &[u8]) -> Result<u64> {
        Err(Error::BadArgument { detail: "only looked at".to_owned() })
    }
    fn free(&mut self, _: u64) -> Result<()> {
        Err(Error::BadArgument { detail: "only looked at".to_owned() })
    }
}

fn filled() -> RefCell<World> {
    let world = RefCell::new(World { rng: 1, ..World::default() });
    let mut transaction = Transaction::new(&world);
    for number in 0..200 {
        Ordered::default().insert(&mut transaction, ROOT, &key(2 * number)).unwrap();
    }
    transaction.commit().unwrap();
    world
}

#[test]
fn two_inserts_into_different_leaves_do_not_conflict() {
    let world = filled();
    let (mut left, mut right) = (Transaction::new(&world), Transaction::new(&world));
    let mut tree = Ordered::default();
    tree.insert(&mut left, ROOT, &key(11)).unwrap();
    tree.insert(&mut right, ROOT, &key(311)).unwrap();
    left.commit().unwrap();
    right.commit().unwrap();
}

#[test]
fn two_inserts_of_one_key_conflict() {
    let world = filled();
    let (mut left, mut right) = (Transaction::new(&world), Transaction::new(&world));
    let mut tree = Ordered::default();
    assert!(tree.insert(&mut left, ROOT, &key(11)).unwrap());
    assert!(tree.insert(&mut right, ROOT, &key(11)).unwrap());
    left.commit().unwrap();
    let error = right.commit().unwrap_err();
    assert_eq!(error.to_string(), "a node was changed meanwhile: run the transaction again");
}

#[test]
fn the_first_inserts_into_a_tree_that_is_not_there_conflict() {
    let world = RefCell::new(World { rng: 1, ..World::default() });
    let (mut left, mut right) = (Transaction::new(&world), Transaction::new(&world));
    let mut tree = Ordered::default();
    tree.insert(&mut left, ROOT, &key(1)).unwrap();
    tree.insert(&mut right, ROOT, &key(2)).unwrap();
    left.commit().unwrap();
    assert!(right.commit().is_err(), "one of two new roots would be lost");
}

#[test]
fn an_insert_into_a_range_that_was_walked_conflicts() {
    let world = filled();
    let mut tree = Ordered::default();
    let walk = |transaction: &mut Transaction<'_>| {
        let (from, to) = (key(100), key(140));
        let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
        let mut count = 0;
        Ordered::default()
            .walk(transaction, ROOT, range, |_| {
                count += 1;
                Ok(true)
            })
            .unwrap();
        assert_eq!(count, 20);
    };
    for (number, is_conflict) in [(121, true), (301, false)] {
        let mut walker = Transaction::new(&world);
        walk(&mut walker);
        let mut other = Transaction::new(&world);
        tree.insert(&mut other, ROOT, &key(number)).unwrap();
        other.commit().unwrap();
        assert_eq!(walker.commit().is_err(), is_conflict, "{number}");
        let mut undo = Transaction::new(&world);
        tree.remove(&mut undo, ROOT, &key(number)).unwrap();
        undo.commit().unwrap();
    }
}

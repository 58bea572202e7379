//! The models: their keys, the initial values, and the invariant of every snapshot.

use std::collections::BTreeMap;

/// The structure of a round's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HistoryModel {
    /// Independent values.
    Registers,
    /// Money moves between accounts.
    Bank,
    /// Each record names its successor.
    Ring,
    /// Records with a second name, and an index of these names.
    Index,
}

/// The meaning of a value: a balance, a successor, a name.
pub type Payload = u64;

/// All keys of a round at one moment.
pub type KeySnapshot = BTreeMap<u32, Option<Payload>>;

/// Values that are registers.
pub(crate) const PLAIN: u32 = 6;
/// Records of named blocks; each block is a register.
pub(crate) const RECORDS: u32 = 2;
pub(crate) const BLOCKS: u32 = 2;
/// Accounts and the initial balance of each.
pub(crate) const ACCOUNTS: u32 = 6;
pub(crate) const BALANCE: Payload = 20;
/// Nodes at most; the first one is always in the ring.
pub(crate) const NODES: u32 = 8;
const NODES_AT_START: u32 = 4;
/// Records with a second name, and the number of names.
pub(crate) const FIRSTS: u32 = 4;
pub(crate) const NAMES: u32 = 5;

impl HistoryModel {
    pub const ALL: [Self; 4] = [Self::Registers, Self::Bank, Self::Ring, Self::Index];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Bank => "bank",
            Self::Ring => "ring",
            Self::Index => "index",
        }
    }

    /// The model of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }

    /// The number of keys.
    pub const fn keys(self) -> u32 {
        match self {
            Self::Registers => PLAIN + RECORDS * BLOCKS,
            Self::Bank => ACCOUNTS,
            Self::Ring => NODES,
            Self::Index => FIRSTS + NAMES,
        }
    }

    /// The initial value of a key.
    pub fn start(self, key: u32) -> Option<Payload> {
        match self {
            Self::Registers => key.is_multiple_of(3).then_some(0),
            Self::Bank => Some(BALANCE),
            Self::Ring if key < NODES_AT_START => Some(u64::from((key + 1) % NODES_AT_START)),
            // The first two records have the first two names.
            Self::Index if key < 2 => Some(u64::from(FIRSTS + key)),
            Self::Index if (FIRSTS..FIRSTS + 2).contains(&key) => Some(u64::from(key - FIRSTS)),
            Self::Ring | Self::Index => None,
        }
    }

    /// Checks the invariant on a snapshot of all keys.
    pub fn check(self, all: &KeySnapshot) -> Result<(), String> {
        match self {
            Self::Registers => Ok(()),
            Self::Bank => check_bank(all),
            Self::Ring => check_ring(all),
            Self::Index => check_index(all),
        }
    }
}

fn check_bank(all: &KeySnapshot) -> Result<(), String> {
    let sum: u64 = all.values().flatten().sum();
    let whole = u64::from(ACCOUNTS) * BALANCE;
    if sum == whole { Ok(()) } else { Err(format!("the accounts have {sum}, expected {whole}")) }
}

fn check_ring(all: &KeySnapshot) -> Result<(), String> {
    let present = all.values().flatten().count();
    let (mut node, mut visited) = (0, 0);
    loop {
        let Some(next) = all.get(&node).copied().flatten() else {
            return Err(format!("node {node} is named as a successor and is absent"));
        };
        visited += 1;
        node = u32::try_from(next).unwrap_or(u32::MAX);
        if node == 0 {
            break;
        }
        if visited > present {
            return Err("the successors do not lead back to the first node".to_owned());
        }
    }
    if visited == present {
        Ok(())
    } else {
        Err(format!("the ring has {visited} nodes of {present}"))
    }
}

fn check_index(all: &KeySnapshot) -> Result<(), String> {
    for (key, value) in all {
        let Some(other) = value else { continue };
        let back = u32::try_from(*other).ok().and_then(|other| all.get(&other).copied().flatten());
        if back != Some(u64::from(*key)) {
            let what = if *key < FIRSTS { "record" } else { "name" };
            return Err(format!("{what} {key} leads to {other}, which leads to {back:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_holds_at_the_start_and_not_without_one_key() {
        for model in HistoryModel::ALL {
            let all: KeySnapshot = (0..model.keys()).map(|key| (key, model.start(key))).collect();
            assert_eq!(model.check(&all), Ok(()));
            for key in (0..model.keys()).filter(|_| model != HistoryModel::Registers) {
                let mut broken = all.clone();
                if broken.insert(key, None).flatten().is_some() {
                    assert!(model.check(&broken).is_err(), "{model:?} without {key}");
                }
            }
        }
    }

    #[test]
    fn two_rings_and_a_ring_without_its_first_node_violate_the_invariant() {
        let ring = |all: &[Option<u64>]| check_ring(&(0..).zip(all.iter().copied()).collect());
        assert_eq!(ring(&[Some(1), Some(0), None]), Ok(()));
        assert!(ring(&[Some(1), Some(0), Some(2)]).is_err());
        assert!(ring(&[Some(1), Some(2), Some(1)]).is_err());
        assert!(ring(&[Some(3), Some(0), None]).is_err());
    }
}

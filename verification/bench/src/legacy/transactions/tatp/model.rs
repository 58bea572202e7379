//! TATP on a plain map in this process: what the region must answer and hold at the end.

use super::population::{TableName, populate};
use super::requests::{Kind, Request};
use super::rows::{BIT_1, Number, STARTS, VLR_LOCATION};
use super::tally::Tally;
use crate::legacy::content::sum;
use nearstate_model::Result;
use std::collections::BTreeMap;

/// A facility with its forwardings by their beginnings.
#[derive(Clone, Debug, Default)]
struct Facility {
    row: Vec<u8>,
    forwardings: BTreeMap<u8, (u8, Number)>,
}

/// A subscriber with all that belongs to it.
#[derive(Clone, Debug, Default)]
struct Subscriber {
    row: Vec<u8>,
    access: BTreeMap<u8, Vec<u8>>,
    facilities: BTreeMap<u8, Facility>,
}

/// The whole database.
#[derive(Debug)]
pub struct Model {
    subscribers: BTreeMap<u32, Subscriber>,
    by_number: BTreeMap<Number, u32>,
}

impl Model {
    /// The fresh database.
    ///
    /// # Errors
    /// Never: its rows are well-formed.
    pub fn fresh(seed: u64, subscribers: u32) -> Result<Self> {
        let mut made = Self { subscribers: BTreeMap::new(), by_number: BTreeMap::new() };
        populate(seed, subscribers, |table, key, row| {
            made.load(table, key, row);
            Ok(())
        })?;
        Ok(made)
    }

    fn load(&mut self, table: TableName, key: &[u8], row: &[u8]) {
        if table == TableName::SubscriberByNumber {
            if let (Ok(number), Ok(s_id)) = (key.try_into(), row.try_into()) {
                self.by_number.insert(number, u32::from_be_bytes(s_id));
            }
            return;
        }
        let Some((s_id, rest)) = key.split_first_chunk::<4>() else { return };
        let subscriber = self.subscribers.entry(u32::from_be_bytes(*s_id)).or_default();
        match (table, rest) {
            (TableName::AccessInfo, [ai_type]) => {
                subscriber.access.insert(*ai_type, row.to_vec());
            }
            (TableName::SpecialFacility, [sf_type]) => {
                subscriber.facilities.entry(*sf_type).or_default().row = row.to_vec();
            }
            (TableName::CallForwarding, [sf_type, start]) => {
                let facility = subscriber.facilities.entry(*sf_type).or_default();
                if let Some((end, numberx)) = row.split_first()
                    && let Ok(numberx) = numberx.try_into()
                {
                    facility.forwardings.insert(*start, (*end, numberx));
                }
            }
            _ => subscriber.row = row.to_vec(),
        }
    }

    /// Does a transaction: the same count and the same digest as the region must give.
    pub fn run(&mut self, request: &Request, tally: &mut Tally) {
        let done = match request.kind {
            Kind::GetSubscriberData
            | Kind::GetAccessData
            | Kind::GetNewDestination
            | Kind::UpdateSubscriberData => self
                .subscribers
                .get_mut(&request.s_id)
                .and_then(|subscriber| subscriber.run(request)),
            Kind::UpdateLocation | Kind::InsertCallForwarding | Kind::DeleteCallForwarding => self
                .by_number
                .get(&request.sub_nbr)
                .and_then(|s_id| self.subscribers.get_mut(s_id))
                .and_then(|subscriber| subscriber.run(request)),
        };
        tally.count(request.kind, done);
    }

    /// Every row: the table, the key, the row.
    ///
    /// # Errors
    /// What `each` said.
    pub fn rows(&self, mut each: impl FnMut(TableName, &[u8], &[u8]) -> Result<()>) -> Result<()> {
        for (number, s_id) in &self.by_number {
            each(TableName::SubscriberByNumber, number, &s_id.to_be_bytes())?;
        }
        for (s_id, subscriber) in &self.subscribers {
            let key = |rest: &[u8]| [&s_id.to_be_bytes()[..], rest].concat();
            each(TableName::Subscriber, &key(&[]), &subscriber.row)?;
            for (ai_type, row) in &subscriber.access {
                each(TableName::AccessInfo, &key(&[*ai_type]), row)?;
            }
            for (sf_type, facility) in &subscriber.facilities {
                each(TableName::SpecialFacility, &key(&[*sf_type]), &facility.row)?;
                for (start, (end, numberx)) in &facility.forwardings {
                    let row = [&[*end], &numberx[..]].concat();
                    each(TableName::CallForwarding, &key(&[*sf_type, *start]), &row)?;
                }
            }
        }
        Ok(())
    }
}

impl Subscriber {
    /// `None`: it did not find what it looked for, or found what must not be there.
    fn run(&mut self, request: &Request) -> Option<u64> {
        match request.kind {
            Kind::GetSubscriberData => Some(sum(&self.row)),
            Kind::GetAccessData => Some(sum(self.access.get(&request.row_type)?)),
            Kind::GetNewDestination => {
                let facility = self.facilities.get(&request.row_type)?;
                let is_active = facility.row.first() == Some(&1);
                let numbers: Vec<u64> = STARTS
                    .iter()
                    .filter(|start| **start <= request.start)
                    .filter_map(|start| facility.forwardings.get(start))
                    .filter(|(end, _)| request.end < *end)
                    .map(|(_, numberx)| sum(numberx))
                    .collect();
                (is_active && !numbers.is_empty())
                    .then(|| numbers.iter().fold(0, |all: u64, one| all.wrapping_add(*one)))
            }
            Kind::UpdateSubscriberData => {
                let facility = self.facilities.get_mut(&request.row_type)?;
                let [data_a, bit] = [request.value >> 1, request.value & 1];
                *facility.row.get_mut(2)? = u8::try_from(data_a).ok()?;
                *self.row.get_mut(BIT_1)? = u8::try_from(bit).ok()?;
                Some(0)
            }
            Kind::UpdateLocation => {
                self.row.get_mut(VLR_LOCATION)?.copy_from_slice(&request.value.to_le_bytes());
                Some(0)
            }
            Kind::InsertCallForwarding => {
                let forwardings = &mut self.facilities.get_mut(&request.row_type)?.forwardings;
                if forwardings.contains_key(&request.start) {
                    return None;
                }
                forwardings.insert(request.start, (request.end, request.numberx));
                Some(0)
            }
            Kind::DeleteCallForwarding => {
                let forwardings = &mut self.facilities.get_mut(&request.row_type)?.forwardings;
                forwardings.remove(&request.start).map(|_| 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{KINDS, Requests};
    use super::*;

    /// Checks the generators, the mix and the population against one another: what was drawn finds
    /// as much as the rules say.
    #[test]
    fn transactions_succeed_as_often_as_the_rules_say() {
        const SUBSCRIBERS: u32 = 20_000;
        let mut tally = Tally::default();
        for seed in 0..4 {
            let mut model = Model::fresh(seed, SUBSCRIBERS).unwrap();
            for request in Requests::new(seed + 100, SUBSCRIBERS).take(300_000) {
                model.run(&request, &mut tally);
            }
        }
        for kind in KINDS {
            let off = (tally.percent(kind) - kind.by_the_rules()).abs();
            assert!(off < 1.5, "{kind:?}: {} of 100", tally.percent(kind));
        }
    }

    #[test]
    fn the_model_gives_back_the_rows_that_it_was_made_of() {
        let mut fresh = Vec::new();
        populate(3, 500, |table, key, row| {
            fresh.push((table.name(), key.to_vec(), row.to_vec()));
            Ok(())
        })
        .unwrap();
        let mut kept = Vec::new();
        Model::fresh(3, 500)
            .unwrap()
            .rows(|table, key, row| {
                kept.push((table.name(), key.to_vec(), row.to_vec()));
                Ok(())
            })
            .unwrap();
        fresh.sort_unstable();
        kept.sort_unstable();
        assert_eq!(fresh, kept);
    }
}

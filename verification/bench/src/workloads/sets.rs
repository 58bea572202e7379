//! Members that are added to large sets one by one, each reply compared: the cost of a change of a
//! large collection.

use super::support::share::{self, Share};
use super::{
    ClientPart, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec, wrong_answer,
};
use crate::access::Connection;
use crate::result::RecordVerification;
use nearstate_model::Result;

/// Digits of a member: ten bytes.
const DIGITS: usize = 10;

#[derive(Clone, Copy, Debug)]
pub struct Sets;

const VARIANTS: [(&str, &str); 1] =
    [("add", "add members to a set; one with --records members is followed by the next set")];

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "sets",
    title: "members that are added to large sets one by one",
    source: "this project; members of 10 bytes, every reply compared",
    variants: &VARIANTS,
    records: 20_000,
    classes: &["add"],
    is_pipelined: false,
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for Sets {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        (parameters.records, DIGITS as u64)
    }

    fn requirements(&self, _: &Parameters) -> Requirements {
        Requirements { set: true, ..Requirements::default() }
    }

    fn new_client(&self, _: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        Ok(Box::new(Client { number: part.client, share: part.share, added: 0, is_pending: false }))
    }
}

#[derive(Debug)]
struct Client {
    number: usize,
    /// The members of a set.
    share: Share,
    /// Members that were added, to all sets.
    added: u64,
    /// The next member was sent, and its reply is unknown.
    is_pending: bool,
}

impl Client {
    /// A set of this client, as clients of RESP write its key.
    fn set(&self, number: u64) -> Vec<u8> {
        format!("{{set}},{}-{number}", self.number).into_bytes()
    }

    /// Adds the next member; false if the set had it.
    fn add(&mut self, store: &mut Connection<'_>) -> Result<bool> {
        let (set, member) = (self.added / self.share.count, self.added % self.share.count);
        self.is_pending = true;
        let is_new = store.add_member(&self.set(set), &share::digits::<DIGITS>(member))?;
        self.is_pending = false;
        self.added += 1;
        Ok(is_new)
    }

    /// Whether a set has its first `count` members and no others.
    fn has_first(&self, store: &mut Connection<'_>, set: u64, count: u64) -> Result<bool> {
        let mut is_missing = vec![true; usize::try_from(count).unwrap_or(usize::MAX)];
        let mut others = 0_u64;
        store.members(&self.set(set), &mut |member| {
            let number = str::from_utf8(member).ok().and_then(|text| text.parse::<u64>().ok());
            let is_own = |number: &u64| share::digits::<DIGITS>(*number) == *member;
            let at = number.filter(is_own).and_then(|number| usize::try_from(number).ok());
            match at.and_then(|at| is_missing.get_mut(at)) {
                Some(is_missing) if *is_missing => *is_missing = false,
                Some(_) | None => others += 1,
            }
        })?;
        Ok(others == 0 && !is_missing.contains(&true))
    }
}

impl Workload for Client {
    /// Nothing: sets grow from their first member on.
    fn load(&mut self, _: &mut Connection<'_>, _: &mut dyn FnMut(u64)) -> Result<()> {
        Ok(())
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        for _ in 0..count {
            if !self.add(store)? {
                return Err(wrong_answer(format!("it had member {} before", self.added - 1)));
            }
            tally.count(0);
        }
        tally.bytes_out += (count * DIGITS) as u64;
        Ok(())
    }

    fn resolve_unanswered(&mut self, store: &mut Connection<'_>) -> Result<()> {
        if self.is_pending {
            // Either answer is right.
            self.add(store)?;
        }
        Ok(())
    }

    fn verify(
        &mut self,
        store: &mut Connection<'_>,
        done: &mut dyn FnMut(u64),
    ) -> Result<RecordVerification> {
        let mut verdict = RecordVerification::default();
        let sets = self.added.div_ceil(self.share.count);
        for set in 0..sets {
            let count = (self.added - set * self.share.count).min(self.share.count);
            let is_right = store.is_null() || self.has_first(store, set, count)?;
            let example = || format!("set {set} has not its first {count} members alone");
            verdict.count(is_right, true, example);
            done(1);
        }
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{ReplySink, Request, StoreAccess, StoreConnection};
    use std::collections::{BTreeMap, BTreeSet};

    /// Sets in memory.
    #[derive(Debug, Default)]
    struct SetsInMemory(BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>);

    impl StoreAccess for SetsInMemory {
        fn perform(&mut self, _: &Request<'_>, _: &mut ReplySink<'_>) -> Result<bool> {
            unreachable!("sets only")
        }
    }

    impl StoreConnection for SetsInMemory {
        fn add_member(&mut self, set: &[u8], member: &[u8]) -> Result<bool> {
            Ok(self.0.entry(set.to_vec()).or_default().insert(member.to_vec()))
        }

        fn members(&mut self, set: &[u8], receive: &mut dyn FnMut(&[u8])) -> Result<()> {
            self.0.get(set).into_iter().flatten().for_each(|member| receive(member));
            Ok(())
        }
    }

    /// Sets and wrong ones after 25 members, 10 a set, and what `spoil` does.
    fn verified(spoil: impl FnOnce(&mut SetsInMemory)) -> (u64, u64) {
        let parameters =
            Parameters { records: 10, variant: "add".to_owned(), ..Default::default() };
        let mut store = SetsInMemory::default();
        let mut client = Sets.client(&parameters, 0, 1).unwrap();
        client.step(&mut store, 25, &mut Tally::default()).unwrap();
        spoil(&mut store);
        let verdict = client.verify(&mut store, &mut |_| ()).unwrap();
        (verdict.records, verdict.wrong)
    }

    #[test]
    fn lost_and_foreign_members_are_found() {
        let set = b"{set},0-1".to_vec();
        assert_eq!(verified(|_| ()), (3, 0));
        let lose = |store: &mut SetsInMemory| {
            assert!(store.0.get_mut(&set).unwrap().remove(&b"0000000003"[..]));
        };
        assert_eq!(verified(lose), (3, 1));
        for foreign in [&b"0000000010"[..], b"3", b"+000000003"] {
            let add = |store: &mut SetsInMemory| assert!(store.add_member(&set, foreign).unwrap());
            assert_eq!(verified(add), (3, 1), "{}", foreign.escape_ascii());
        }
    }

    #[test]
    fn a_member_that_is_not_new_is_a_wrong_answer() {
        let parameters =
            Parameters { records: 10, variant: "add".to_owned(), ..Default::default() };
        let mut store = SetsInMemory::default();
        let mut client = Sets.client(&parameters, 0, 1).unwrap();
        store.add_member(b"{set},0-0", b"0000000001").unwrap();
        assert!(client.step(&mut store, 1, &mut Tally::default()).is_ok());
        let error = client.step(&mut store, 1, &mut Tally::default()).unwrap_err().to_string();
        assert!(error.contains("member 1"), "{error}");
    }
}

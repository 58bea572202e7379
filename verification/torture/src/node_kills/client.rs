//! A client at a socket: it pipelines requests, checks the replies, and decides after a kill
//! whether the records are possible.

use std::collections::VecDeque;

use super::connection::{ConnectionEnd, NodeConnection};
use super::injected_fault::InjectedFault;
use super::requests::{ClientRequest, Records};
use super::shared_counters::Increments;
use crate::rng::{Rng, percent, seeded};

/// Requests and transactions that are sent together, at most.
const DEPTH_MAX: u64 = 32;

/// A request without a reply.
struct PendingRequest {
    unit: ClientRequest,
    /// An injected fault has counted it as acknowledged already.
    is_noted: bool,
}

/// A client's counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientCounts {
    /// Requests and transactions with a reply.
    pub(super) answered: u64,
    /// Of these, transactions.
    pub(super) transactions: u64,
    /// Requests without a reply when the node was killed.
    pub(super) cut: u64,
    /// Of these, requests that were executed.
    pub(super) cut_done: u64,
}

/// Bounds of the shared counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterBounds {
    /// Acknowledged increments, and those that are visible.
    pub(super) least: Increments,
    /// Also those that may have been executed.
    pub(super) most: Increments,
}

/// A client.
pub(super) struct PipelinedClient {
    number: usize,
    rng: Rng,
    injected_fault: InjectedFault,
    /// The records after all acknowledged requests.
    known: Records,
    /// Acknowledged increments of the shared counters since the last kill.
    raised: Increments,
    /// Requests without a reply, in order.
    flight: VecDeque<PendingRequest>,
    pub(super) tally: ClientCounts,
}

impl PipelinedClient {
    pub(super) fn new(number: usize, seed: u64, injected_fault: InjectedFault) -> Self {
        Self {
            number,
            rng: seeded(&[seed, 5 << 32, number as u64]),
            injected_fault,
            known: Records::new(),
            raised: Increments::default(),
            flight: VecDeque::new(),
            tally: ClientCounts::default(),
        }
    }

    /// The namespace that only this client writes to.
    pub(super) fn namespace(&self) -> String {
        format!("client {}", self.number)
    }

    /// The number of records, if no request is in flight.
    pub(super) fn records(&self) -> usize {
        self.known.len()
    }

    /// Sends requests and receives replies until the connection is closed.
    ///
    /// # Errors
    /// A wrong reply.
    pub(super) fn run_until_closed(
        &mut self,
        mut connection: NodeConnection,
    ) -> Result<(), String> {
        loop {
            match self.turn(&mut connection) {
                Ok(()) => {}
                Err(ConnectionEnd::Closed) => return Ok(()),
                Err(ConnectionEnd::Violation(error)) => {
                    return Err(format!("client {}: {error}", self.number));
                }
            }
        }
    }

    fn turn(&mut self, connection: &mut NodeConnection) -> Result<(), ConnectionEnd> {
        let (namespace, mut bytes) = (self.namespace(), Vec::new());
        for _ in 0..=self.rng.u64(..DEPTH_MAX) {
            let unit = ClientRequest::random(self.number, &mut self.rng);
            unit.write(&namespace, self.is_atomic(), &mut bytes);
            let is_noted = self.injected_fault == InjectedFault::AnswerBeforeCommit;
            if is_noted {
                unit.make(&mut self.known, &mut self.raised);
            }
            self.flight.push_back(PendingRequest { unit, is_noted });
        }
        connection.send(&bytes)?;
        // Half of the time, some replies are left for the next iteration.
        let left = if percent(&mut self.rng, 50) { self.flight.len() / 2 } else { 0 };
        while self.flight.len() > left {
            self.receive(connection)?;
        }
        Ok(())
    }

    const fn is_atomic(&self) -> bool {
        !matches!(self.injected_fault, InjectedFault::SplitTransaction)
    }

    fn receive(&mut self, connection: &mut NodeConnection) -> Result<(), ConnectionEnd> {
        let is_atomic = self.is_atomic();
        let Some(asked) = self.flight.front() else { return Ok(()) };
        let answers = asked.unit.answers(is_atomic);
        let told = (0..answers).map(|_| connection.receive()).collect::<Result<Vec<_>, _>>()?;
        if !asked.is_noted {
            let wanted = asked.unit.make(&mut self.known, &mut self.raised);
            asked.unit.judge(&told, &wanted).map_err(ConnectionEnd::Violation)?;
        }
        self.tally.answered += 1;
        self.tally.transactions += u64::from(asked.unit.is_transaction);
        self.flight.pop_front();
        Ok(())
    }

    /// Checks the records after a kill: they are the result of all acknowledged requests and of a
    /// prefix of those in flight, each executed completely.
    ///
    /// # Errors
    /// What is lost or incomplete.
    pub(super) fn settle(&mut self, found: Records) -> Result<CounterBounds, String> {
        let flight: Vec<PendingRequest> =
            self.flight.drain(..).filter(|asked| !asked.is_noted).collect();
        self.tally.cut += flight.len() as u64;
        let mut records = self.known.clone();
        let mut raised = std::mem::take(&mut self.raised);
        // Some requests do not change the records: several prefixes may match.
        let mut fits: Option<(usize, CounterBounds)> = None;
        let mut differences = Vec::new();
        for done in 0..=flight.len() {
            if records == found {
                let at = fits.map_or(done, |(at, _)| at);
                let least = fits.map_or(raised, |(_, settled)| settled.least);
                fits = Some((at, CounterBounds { least, most: raised }));
            } else if fits.is_none() {
                differences.push(difference(&records, &found));
            }
            if let Some(asked) = flight.get(done) {
                asked.unit.make(&mut records, &mut raised);
            }
        }
        let Some((done, settled)) = fits else {
            let told = differences.first().map_or("", String::as_str);
            let all = differences.last().map_or("", String::as_str);
            return Err(format!(
                "client {}: the records are not as any first part of the {} requests in flight \
                 leaves them; with none of these {told}; with all {all}",
                self.number,
                flight.len(),
            ));
        };
        self.tally.cut_done += done as u64;
        self.known = found;
        Ok(settled)
    }
}

/// The first key at which the expected and the actual records differ.
fn difference(wanted: &Records, found: &Records) -> String {
    let differs = |key: &&String| wanted.get(*key) != found.get(*key);
    let differing: Vec<&String> = wanted.keys().filter(differs).collect();
    let more: Vec<&String> = found.keys().filter(|key| !wanted.contains_key(*key)).collect();
    let Some(key) = differing.first().or_else(|| more.first()) else { return String::new() };
    let shown = |records: &Records| {
        let text = format!("{:?}", records.get(*key));
        text.chars().take(200).collect::<String>()
    };
    format!(
        "{} records differ, {key} is {} and must be {}",
        differing.len() + more.len(),
        shown(found),
        shown(wanted)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client with some requests in flight, and the records after each of these.
    fn in_flight() -> (PipelinedClient, Vec<Records>) {
        let mut client = PipelinedClient::new(0, 7, InjectedFault::None);
        let mut rng = seeded(&[1]);
        let (mut records, mut raised) = (Records::new(), Increments::default());
        let mut states = vec![records.clone()];
        for _ in 0..20 {
            let unit = ClientRequest::random(0, &mut rng);
            unit.make(&mut records, &mut raised);
            states.push(records.clone());
            client.flight.push_back(PendingRequest { unit, is_noted: false });
        }
        (client, states)
    }

    #[test]
    fn every_first_part_is_allowed_and_nothing_else() {
        let (_, states) = in_flight();
        for (done, state) in states.iter().enumerate() {
            let (mut client, _) = in_flight();
            client.settle(state.clone()).unwrap();
            assert_eq!(client.tally.cut, 20);
            assert!(client.tally.cut_done <= done as u64);
            assert_eq!(client.known, *state);
        }
        // The last state without one of its records is none of the states.
        let mut torn = states.last().unwrap().clone();
        let key = torn.keys().next().unwrap().clone();
        torn.remove(&key);
        let (mut client, _) = in_flight();
        assert!(!states.contains(&torn), "chance made it possible: take another seed");
        let error = client.settle(torn).unwrap_err();
        assert!(error.contains("first part"), "{error}");
    }

    #[test]
    fn what_was_told_must_be_there() {
        let (mut client, states) = in_flight();
        client.settle(states.last().unwrap().clone()).unwrap();
        let before = states.first().unwrap().clone();
        let error = client.settle(before).unwrap_err();
        assert!(error.contains("records differ"), "{error}");
    }
}

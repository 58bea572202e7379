//! A client at a socket: it pipelines requests, checks the replies, and decides after a kill
//! whether the records are possible.

use std::collections::VecDeque;

use super::connection::{NodeConnection, NodeConnectionEnd};
use super::injected_fault::InjectedFault;
use super::requests::{ClientRequest, Records};
use super::shared_counters::Increments;
use super::totals::ClientCounts;
use crate::rng::{Rng, percent, seeded};

/// Requests and transactions that are sent together, at most.
const DEPTH_MAX: u64 = 32;

/// A request without a reply.
struct PendingRequest {
    request: ClientRequest,
    /// An injected fault has counted it as acknowledged already.
    is_counted: bool,
}

/// Bounds of the shared counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterBounds {
    /// Acknowledged increments, and those that are visible.
    pub(super) least: Increments,
    /// Also those that may have been executed.
    pub(super) most: Increments,
}

pub(super) struct PipelinedClient {
    number: usize,
    rng: Rng,
    injected_fault: InjectedFault,
    /// The records after all acknowledged requests.
    records_acked: Records,
    /// Acknowledged increments of the shared counters since the last kill.
    increments: Increments,
    /// Requests without a reply, in order.
    in_flight: VecDeque<PendingRequest>,
    pub(super) counts: ClientCounts,
}

impl PipelinedClient {
    pub(super) fn new(number: usize, seed: u64, injected_fault: InjectedFault) -> Self {
        Self {
            number,
            rng: seeded(&[seed, 5 << 32, number as u64]),
            injected_fault,
            records_acked: Records::new(),
            increments: Increments::default(),
            in_flight: VecDeque::new(),
            counts: ClientCounts::default(),
        }
    }

    /// The namespace that only this client writes to.
    pub(super) fn namespace(&self) -> String {
        format!("client {}", self.number)
    }

    /// The number of records, if no request is in flight.
    pub(super) fn records(&self) -> usize {
        self.records_acked.len()
    }

    /// Sends requests and receives replies until the connection is closed.
    pub(super) fn run_until_closed(
        &mut self,
        mut connection: NodeConnection,
    ) -> Result<(), String> {
        loop {
            match self.send_and_receive(&mut connection) {
                Ok(()) => {}
                Err(NodeConnectionEnd::Closed) => return Ok(()),
                Err(NodeConnectionEnd::Violation(error)) => {
                    return Err(format!("client {}: {error}", self.number));
                }
            }
        }
    }

    fn send_and_receive(
        &mut self,
        connection: &mut NodeConnection,
    ) -> Result<(), NodeConnectionEnd> {
        let (namespace, mut bytes) = (self.namespace(), Vec::new());
        for _ in 0..=self.rng.u64(..DEPTH_MAX) {
            let request = ClientRequest::random(self.number, &mut self.rng);
            request.write(&namespace, self.is_atomic(), &mut bytes);
            let is_counted = self.injected_fault == InjectedFault::ReplyBeforeCommit;
            if is_counted {
                request.apply(&mut self.records_acked, &mut self.increments);
            }
            self.in_flight.push_back(PendingRequest { request, is_counted });
        }
        connection.send(&bytes)?;
        // Half of the time, some replies are left for the next iteration.
        let left = if percent(&mut self.rng, 50) { self.in_flight.len() / 2 } else { 0 };
        while self.in_flight.len() > left {
            self.receive(connection)?;
        }
        Ok(())
    }

    const fn is_atomic(&self) -> bool {
        !matches!(self.injected_fault, InjectedFault::SplitTransaction)
    }

    fn receive(&mut self, connection: &mut NodeConnection) -> Result<(), NodeConnectionEnd> {
        let is_atomic = self.is_atomic();
        let Some(pending) = self.in_flight.front() else { return Ok(()) };
        let count = pending.request.reply_count(is_atomic);
        let replies = (0..count).map(|_| connection.receive()).collect::<Result<Vec<_>, _>>()?;
        if !pending.is_counted {
            let expected = pending.request.apply(&mut self.records_acked, &mut self.increments);
            pending
                .request
                .check_replies(&replies, &expected)
                .map_err(NodeConnectionEnd::Violation)?;
        }
        self.counts.answered += 1;
        self.counts.transactions += u64::from(pending.request.is_transaction);
        self.in_flight.pop_front();
        Ok(())
    }

    /// Checks the records after a kill: they are the result of all acknowledged requests and of a
    /// prefix of those in flight, each executed completely.
    pub(super) fn resolve(&mut self, records_read: Records) -> Result<CounterBounds, String> {
        let in_flight: Vec<PendingRequest> =
            self.in_flight.drain(..).filter(|pending| !pending.is_counted).collect();
        self.counts.cut_short += in_flight.len() as u64;
        let mut records = self.records_acked.clone();
        let mut increments = std::mem::take(&mut self.increments);
        // Some requests do not change the records: several prefixes may match.
        let mut matching: Option<(usize, CounterBounds)> = None;
        let mut differences = Vec::new();
        for done in 0..=in_flight.len() {
            if records == records_read {
                let at = matching.map_or(done, |(at, _)| at);
                let least = matching.map_or(increments, |(_, bounds)| bounds.least);
                matching = Some((at, CounterBounds { least, most: increments }));
            } else if matching.is_none() {
                differences.push(difference(&records, &records_read));
            }
            if let Some(pending) = in_flight.get(done) {
                pending.request.apply(&mut records, &mut increments);
            }
        }
        let Some((done, bounds)) = matching else {
            let none = differences.first().map_or("", String::as_str);
            let all = differences.last().map_or("", String::as_str);
            return Err(format!(
                "client {}: the records are not the result of any prefix of the {} requests in \
                 flight; with none of these {none}; with all {all}",
                self.number,
                in_flight.len(),
            ));
        };
        self.counts.cut_short_done += done as u64;
        self.records_acked = records_read;
        Ok(bounds)
    }
}

/// The first key at which the expected and the actual records differ.
fn difference(expected: &Records, records_read: &Records) -> String {
    let differs = |key: &&String| expected.get(*key) != records_read.get(*key);
    let differing: Vec<&String> = expected.keys().filter(differs).collect();
    let more: Vec<&String> =
        records_read.keys().filter(|key| !expected.contains_key(*key)).collect();
    let Some(key) = differing.first().or_else(|| more.first()) else { return String::new() };
    let shown = |records: &Records| {
        let text = format!("{:?}", records.get(*key));
        text.chars().take(200).collect::<String>()
    };
    format!(
        "{} records differ, {key} is {} and must be {}",
        differing.len() + more.len(),
        shown(records_read),
        shown(expected)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client with some requests in flight, and the records after each of these.
    fn client_in_flight() -> (PipelinedClient, Vec<Records>) {
        let mut client = PipelinedClient::new(0, 7, InjectedFault::None);
        let mut rng = seeded(&[1]);
        let (mut records, mut increments) = (Records::new(), Increments::default());
        let mut states = vec![records.clone()];
        for _ in 0..20 {
            let request = ClientRequest::random(0, &mut rng);
            request.apply(&mut records, &mut increments);
            states.push(records.clone());
            client.in_flight.push_back(PendingRequest { request, is_counted: false });
        }
        (client, states)
    }

    #[test]
    fn every_prefix_of_the_requests_is_accepted_and_nothing_else() {
        let (_, states) = client_in_flight();
        for (done, state) in states.iter().enumerate() {
            let (mut client, _) = client_in_flight();
            client.resolve(state.clone()).unwrap();
            assert_eq!(client.counts.cut_short, 20);
            assert!(client.counts.cut_short_done <= done as u64);
            assert_eq!(client.records_acked, *state);
        }
        // The last state without one of its records is none of the states.
        let mut torn = states.last().unwrap().clone();
        let key = torn.keys().next().unwrap().clone();
        torn.remove(&key);
        let (mut client, _) = client_in_flight();
        assert!(!states.contains(&torn), "the state is possible with this seed: use another one");
        let error = client.resolve(torn).unwrap_err();
        assert!(error.contains("prefix"), "{error}");
    }

    #[test]
    fn an_acknowledged_request_must_have_an_effect() {
        let (mut client, states) = client_in_flight();
        client.resolve(states.last().unwrap().clone()).unwrap();
        let before = states.first().unwrap().clone();
        let error = client.resolve(before).unwrap_err();
        assert!(error.contains("records differ"), "{error}");
    }
}

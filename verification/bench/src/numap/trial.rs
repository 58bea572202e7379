//! One trial: a slice with its hosts, at one level of traffic.

use super::network::{LEFT, Network, RIGHT};
use super::pairing::Pairing;
use super::result::PointRound;
use super::slice::NumapSlice;
use super::traffic::{
    FLOWS, PROBE_FLOW, PROBE_PORT, Traffic, probe, receive_flow, reflect, right_port, send_flow,
};
use crate::cpus;
use crate::progress::ProgressStep;
use crate::reaper::system;
use nearstate_model::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// Traffic before the first probe: the queues fill.
const WARM_UP: Duration = Duration::from_millis(100);

/// The longest time of a probe: it is lost, and the next one begins.
const PROBE_TIME_MAX: Duration = Duration::from_millis(250);

/// What a trial needs.
#[derive(Debug)]
pub(super) struct NumapTrial<'a> {
    pub(super) network: &'a Network,
    pub(super) pairing: &'a Pairing,
    /// The processors of the hosts.
    pub(super) host_cpus: &'a [usize],
}

/// Ends the threads of a trial when it goes out of scope, whatever the reason.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl NumapTrial<'_> {
    /// Measures the round-trip times of probes under traffic. `None` if it was stopped.
    ///
    /// # Errors
    /// `System`: a socket cannot be used, or a thread not be bound to its processor.
    pub(super) fn run(
        &self,
        mbps: u32,
        probes: u64,
        progress: &ProgressStep<'_>,
        stop: &AtomicBool,
    ) -> Result<Option<PointRound>> {
        let Self { network, pairing, host_cpus } = self;
        let slice = NumapSlice::new(network)?;
        let own = network.left.socket(LEFT, PROBE_PORT)?;
        let right = |flow: u8| network.right.socket(RIGHT, right_port(flow).unwrap_or(0));
        let reflector = right(PROBE_FLOW)?;
        let mut flows = Vec::new();
        for flow in FLOWS.into_iter().filter(|_| mbps > 0) {
            let sender = network.left.socket(LEFT, PROBE_PORT + u16::from(flow))?;
            flows.push((flow, sender, right(flow)?));
        }
        let rate = f64::from(mbps) / f64::from(u32::try_from(FLOWS.len()).unwrap_or(1));
        let time = WARM_UP + PROBE_TIME_MAX * u32::try_from(probes).unwrap_or(u32::MAX);
        let (traffic, has_ended) = (Traffic::default(), AtomicBool::new(false));
        let (traffic, has_ended) = (&traffic, &has_ended);
        std::thread::scope(|scope| {
            let guard = EndOnDrop(has_ended);
            let mut threads = vec![
                scope.spawn(|| slice.run_left(pairing, has_ended)),
                scope.spawn(|| slice.run_right(pairing, has_ended)),
                scope.spawn(|| bound(host_cpus, || reflect(&reflector, has_ended))),
            ];
            for (flow, sender, sink) in &flows {
                let receive = move || receive_flow(sink, traffic, has_ended);
                let send = move || {
                    send_flow(sender, (*flow, rate, time), traffic, has_ended);
                    Ok(())
                };
                threads.push(scope.spawn(move || bound(host_cpus, receive)));
                threads.push(scope.spawn(move || bound(host_cpus, send)));
            }
            let measure = || {
                std::thread::sleep(WARM_UP);
                probe(&own, probes, traffic, (progress, stop))
            };
            let first_host = scope.spawn(move || bound(host_cpus, measure));
            let measured = joined(first_host);
            drop(guard);
            threads.into_iter().try_for_each(joined)?;
            measured
        })
    }
}

/// Runs something on these processors.
fn bound<T>(cpus: &[usize], run: impl FnOnce() -> Result<T>) -> Result<T> {
    cpus::bind(cpus).map_err(|e| system("binding a host to its processors", &e.into()))?;
    run()
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    let panicked = || backend_error!("a thread of the trial panicked");
    thread.join().unwrap_or_else(|_| Err(panicked()))
}

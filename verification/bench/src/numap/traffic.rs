//! The hosts around the slice: the probe and its reflector, two flows and their sink. Bounded in
//! rate, number and time.

use super::network::{SLICE_LEFT, SLICE_RIGHT};
use super::result::PointRound;
use crate::clock::monotonic_ns;
use crate::progress::ProgressStep;
use crate::reaper::system;
use crate::stat::{Latencies, as_f64};
use nearstate_model::Result;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a packet of a flow, as UDP payload: below the usual MTU with tunnel headers.
pub(super) const PACKET_BYTES: usize = 1400;

/// Bytes of a probe: those of a ping.
const PROBE_BYTES: usize = 64;

/// The first byte of a packet says which flow it belongs to.
pub(super) const PROBE_FLOW: u8 = 0;
pub(super) const FLOWS: [u8; 2] = [1, 2];

/// Ports of the slice, the probe, and the first flow's sender and sink.
pub(super) const SLICE_PORT: u16 = 2152;
pub(super) const PROBE_PORT: u16 = 7000;

/// The pause between two bursts of a flow, as `iperf3` paces a constant rate.
const TICK: Duration = Duration::from_millis(1);

/// A sender that was late sends at most the packets of this time at once, and drops the others.
const LATE_NS_MAX: u64 = 10_000_000;

/// The pause between the starts of two probes.
const PROBE_INTERVAL_NS: u64 = 1_000_000;

/// A probe without a reply after this time is lost.
const REPLY_WAIT: Duration = Duration::from_millis(100);

/// How often a host that waits for packets checks whether the trial has ended.
const IDLE_WAIT: Duration = Duration::from_millis(20);

/// The port of a flow's host on the right; `None` for an unknown flow.
pub(super) fn right_port(flow: u8) -> Option<u16> {
    (flow == PROBE_FLOW || FLOWS.contains(&flow)).then(|| PROBE_PORT + u16::from(flow))
}

/// Bytes of the flows that were sent, and that arrived.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    sent: AtomicU64,
    arrived: AtomicU64,
}

/// Sends a flow with a constant rate until the trial has ended or the time is over.
pub(super) fn send_flow(
    socket: &UdpSocket,
    (flow, mbps, time): (u8, f64, Duration),
    traffic: &Traffic,
    has_ended: &AtomicBool,
) {
    let packet_ns = as_f64(PACKET_BYTES as u64) * 8e3 / mbps.max(f64::MIN_POSITIVE);
    let to = SocketAddrV4::new(SLICE_LEFT, SLICE_PORT);
    let packet = [flow; PACKET_BYTES];
    let start_ns = monotonic_ns();
    let (mut next_ns, end_ns) = (0.0, as_f64(u64::try_from(time.as_nanos()).unwrap_or(0)));
    while !has_ended.load(Ordering::Relaxed) && next_ns < end_ns {
        let now_ns = as_f64(monotonic_ns() - start_ns);
        next_ns = next_ns.max(now_ns - as_f64(LATE_NS_MAX));
        while next_ns <= now_ns {
            if socket.send_to(&packet, to).is_ok() {
                traffic.sent.fetch_add(PACKET_BYTES as u64, Ordering::Relaxed);
            }
            next_ns += packet_ns;
        }
        std::thread::sleep(TICK);
    }
}

/// Counts what arrives of a flow.
pub(super) fn receive_flow(
    socket: &UdpSocket,
    traffic: &Traffic,
    has_ended: &AtomicBool,
) -> Result<()> {
    until(socket, has_ended, |bytes| {
        traffic.arrived.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    })
}

/// Sends each probe back.
pub(super) fn reflect(socket: &UdpSocket, has_ended: &AtomicBool) -> Result<()> {
    let to = SocketAddrV4::new(SLICE_RIGHT, SLICE_PORT);
    until(socket, has_ended, |bytes| {
        // A reply that is not sent is a lost probe.
        let _ = socket.send_to(bytes, to);
    })
}

fn until(socket: &UdpSocket, has_ended: &AtomicBool, mut take: impl FnMut(&[u8])) -> Result<()> {
    set_wait(socket, IDLE_WAIT)?;
    let mut buffer = [0; PACKET_BYTES];
    while !has_ended.load(Ordering::Relaxed) {
        if let Ok((length, _)) = socket.recv_from(&mut buffer) {
            take(buffer.get(..length).unwrap_or_default());
        }
    }
    Ok(())
}

fn set_wait(socket: &UdpSocket, wait: Duration) -> Result<()> {
    socket.set_read_timeout(Some(wait)).map_err(|e| system("a socket of a host", &e))
}

/// Measures the round-trip times of probes. `None` if it was stopped.
pub(super) fn probe(
    socket: &UdpSocket,
    count: u64,
    traffic: &Traffic,
    (progress, stop): (&ProgressStep<'_>, &AtomicBool),
) -> Result<Option<PointRound>> {
    set_wait(socket, REPLY_WAIT)?;
    let (mut latencies, mut lost) = (Latencies::new(), 0);
    let bytes = |counter: &AtomicU64| as_f64(counter.load(Ordering::Relaxed));
    let (sent, arrived) = (bytes(&traffic.sent), bytes(&traffic.arrived));
    let start_ns = monotonic_ns();
    for number in 0..count {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let begin_ns = monotonic_ns();
        match round_trip(socket, number) {
            Some(ns) => latencies.record(ns, 1),
            None => lost += 1,
        }
        progress.done(1);
        let left_ns = PROBE_INTERVAL_NS.saturating_sub(monotonic_ns() - begin_ns);
        std::thread::sleep(Duration::from_nanos(left_ns));
    }
    // Bits per microsecond are megabits per second.
    let us = as_f64((monotonic_ns() - start_ns).max(1)) / 1e3;
    Ok(Some(PointRound {
        sent_mbps: (bytes(&traffic.sent) - sent) * 8.0 / us,
        achieved_mbps: (bytes(&traffic.arrived) - arrived) * 8.0 / us,
        lost,
        latencies: latencies.pairs().collect(),
    }))
}

/// Sends a probe and waits for its reply: the time in nanoseconds, `None` if it is lost. Late
/// replies of earlier probes are skipped.
fn round_trip(socket: &UdpSocket, number: u64) -> Option<u64> {
    let mut packet = [PROBE_FLOW; PROBE_BYTES];
    packet.get_mut(1..9)?.copy_from_slice(&number.to_le_bytes());
    let begin_ns = monotonic_ns();
    socket.send_to(&packet, SocketAddrV4::new(SLICE_LEFT, SLICE_PORT)).ok()?;
    let mut reply = [0; PROBE_BYTES];
    let wait_ns = u64::try_from(REPLY_WAIT.as_nanos()).unwrap_or(u64::MAX);
    loop {
        socket.recv_from(&mut reply).ok()?;
        let ns = monotonic_ns() - begin_ns;
        if reply == packet {
            return Some(ns);
        }
        if ns > wait_ns {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets on the loopback interface, and the address of the second.
    fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn every_flow_has_a_host_and_unknown_flows_have_none() {
        assert_eq!(right_port(PROBE_FLOW), Some(PROBE_PORT));
        assert_eq!(FLOWS.map(right_port), [Some(7001), Some(7002)]);
        assert_eq!(right_port(3), None);
    }

    #[test]
    fn a_flow_ends_when_its_time_is_over() {
        let (traffic, has_ended) = (Traffic::default(), AtomicBool::new(false));
        // No route: nothing is sent, and the flow ends all the same.
        send_flow(&socket(), (1, 0.1, Duration::from_millis(5)), &traffic, &has_ended);
        assert_eq!(traffic.arrived.load(Ordering::Relaxed), 0);
    }
}

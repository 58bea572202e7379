//! The slice: two threads that forward UDP datagrams. Each owns the socket of one side and hands
//! what it receives to the other, which sends it.

use super::network::{LEFT, Network, RIGHT, SLICE_LEFT, SLICE_RIGHT};
use super::pairing::Pairing;
use super::traffic::{PACKET_BYTES, PROBE_FLOW, PROBE_PORT, SLICE_PORT, right_port};
use crate::cpus;
use crate::reaper::system;
use nearstate_model::Result;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};
use std::collections::VecDeque;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Packets between the threads: 1.4 MB, which 500 Mbit/s fill in 23 ms. Further packets are
/// dropped, as by a full transmit queue.
const QUEUE_MAX: usize = 1024;

/// Packets that a thread receives before it sends what the other one received.
const BURST: usize = 32;

/// How often a thread without packets checks whether the trial has ended.
const IDLE_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// What wakes a thread.
const WAKE: [u8; 8] = [1; 8];

#[derive(Clone, Copy)]
struct Packet {
    length: usize,
    bytes: [u8; PACKET_BYTES],
}

/// A bounded queue between two threads. A packet that finds it empty wakes the receiver.
struct PacketQueue {
    packets: Mutex<VecDeque<Packet>>,
    wake: OwnedFd,
}

impl PacketQueue {
    fn new() -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|e| system("creating an eventfd", &e.into()))?;
        Ok(Self { packets: Mutex::new(VecDeque::with_capacity(QUEUE_MAX)), wake })
    }

    fn push(&self, packet: &Packet) {
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = packets.is_empty();
        if packets.len() < QUEUE_MAX {
            packets.push_back(*packet);
        }
        drop(packets);
        if was_empty {
            // Any number above 0, the same in both byte orders. It fails if the receiver has not
            // read 254 of them, and then it will.
            let _ = write(&self.wake, &WAKE);
        }
    }

    fn pop(&self) -> Option<Packet> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The slice of a trial. It forwards until its threads see the end of the trial.
pub(super) struct NumapSlice {
    left: UdpSocket,
    right: UdpSocket,
    to_right: PacketQueue,
    to_left: PacketQueue,
}

impl NumapSlice {
    pub(super) fn new(network: &Network) -> Result<Self> {
        let left = network.slice.socket(SLICE_LEFT, SLICE_PORT)?;
        let right = network.slice.socket(SLICE_RIGHT, SLICE_PORT)?;
        for socket in [&left, &right] {
            socket.set_nonblocking(true).map_err(|e| system("a socket of the slice", &e))?;
        }
        Ok(Self { left, right, to_right: PacketQueue::new()?, to_left: PacketQueue::new()? })
    }

    /// The thread of the left side, on the first processor of the pairing.
    pub(super) fn run_left(&self, pairing: &Pairing, has_ended: &AtomicBool) -> Result<()> {
        let probe = SocketAddrV4::new(LEFT, PROBE_PORT);
        bind(pairing.cpus.first())?;
        forward(&self.left, (&self.to_left, &self.to_right), has_ended, |_| Some(probe))
    }

    /// The thread of the right side, on the second.
    pub(super) fn run_right(&self, pairing: &Pairing, has_ended: &AtomicBool) -> Result<()> {
        let host = |flow| Some(SocketAddrV4::new(RIGHT, right_port(flow)?));
        bind(pairing.cpus.get(1))?;
        forward(&self.right, (&self.to_right, &self.to_left), has_ended, host)
    }
}

fn bind(cpu: Option<&u32>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let bound = cpus::bind(&[*cpu as usize]);
    bound.map_err(|e| system(&format!("binding a thread to processor {cpu}"), &e.into()))
}

/// Sends what the other thread received, receives for it, and waits for more.
fn forward(
    socket: &UdpSocket,
    (from_other, to_other): (&PacketQueue, &PacketQueue),
    has_ended: &AtomicBool,
    route: impl Fn(u8) -> Option<SocketAddrV4>,
) -> Result<()> {
    let mut packet = Packet { length: 0, bytes: [0; PACKET_BYTES] };
    while !has_ended.load(Ordering::Relaxed) {
        // Cleared before the queue is read: a later packet sets it again.
        let _ = read(&from_other.wake, &mut [0; 8]);
        while let Some(one) = from_other.pop() {
            let bytes = one.bytes.get(..one.length).unwrap_or_default();
            if let Some(to) = route(bytes.first().copied().unwrap_or(PROBE_FLOW)) {
                // A full socket buffer drops the packet, as a network would.
                let _ = socket.send_to(bytes, to);
            }
        }
        let mut received = 0;
        while received < BURST
            && let Ok((length, _)) = socket.recv_from(&mut packet.bytes)
        {
            packet.length = length;
            to_other.push(&packet);
            received += 1;
        }
        if received == BURST {
            continue;
        }
        let mut waits =
            [PollFd::new(socket, PollFlags::IN), PollFd::new(&from_other.wake, PollFlags::IN)];
        match poll(&mut waits, Some(&IDLE_WAIT)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(system("waiting for packets", &e.into())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_packets_and_keeps_their_order() {
        let queue = PacketQueue::new().unwrap();
        for number in 0..QUEUE_MAX + 5 {
            queue.push(&Packet { length: number, bytes: [0; PACKET_BYTES] });
        }
        let lengths: Vec<usize> = std::iter::from_fn(|| queue.pop()).map(|p| p.length).collect();
        assert_eq!(lengths, (0..QUEUE_MAX).collect::<Vec<_>>());
        let mut count = [0; 8];
        read(&queue.wake, &mut count).unwrap();
        assert_eq!(count, WAKE, "only a packet in an empty queue wakes");
    }
}

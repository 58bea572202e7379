//! The client's side of a ring: a stream that is read and written, and waits.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nearstate_memory::{PipeEnd, PipeInterest};
use nearstate_model::Result;

use crate::descriptors::ring_doorbell;

/// How long a client busy-polls for its response before it sleeps: the cost of a sleep and a
/// wake-up on a virtual machine. On a single processor it sleeps at once, so that the node can run.
pub const SPIN: Duration = Duration::from_micros(50);

/// The part of the timeout that a sleep may exceed it by: setting the time limit of a socket costs
/// a system call, which the first sleep of a request does not need.
const SLEEP_SLACK: Duration = Duration::from_millis(1);

/// Polls between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 64;

/// A ring. One thread uses it at a time, and a forked child must not, as with any connection.
#[derive(Debug)]
pub struct LocalRing {
    end: PipeEnd,
    /// Carries doorbells. Its end ends the ring.
    socket: UnixStream,
    spin: Duration,
    timeout: Duration,
    /// The time limit that the socket has: how long one sleep lasts.
    socket_timeout: Duration,
    /// The end of the request in progress, once it has waited. `None` also without a limit.
    deadline: Option<Instant>,
    /// The timeout covers a request, not each wait.
    limits_requests: bool,
    /// Bytes were read since the last write: the next write begins another request.
    has_read: bool,
    /// The socket has ended. Bytes in the ring can still be read.
    is_over: bool,
}

impl LocalRing {
    /// Uses the memory that [`crate::request_ring`] returned. No read or write waits longer than
    /// `timeout`.
    ///
    /// # Errors
    /// `BadArgument` for memory that is not a ring; `System`.
    pub fn new(memory: OwnedFd, socket: UnixStream, timeout: Duration) -> Result<Self> {
        let end = PipeEnd::attach(memory)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if processors > 1 { SPIN } else { Duration::ZERO };
        socket.set_read_timeout(Some(timeout)).map_err(|error| nearstate_model::Error::System {
            detail: format!("cannot set a timeout of {timeout:?}"),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(Self {
            end,
            socket,
            spin,
            timeout,
            socket_timeout: timeout,
            deadline: None,
            limits_requests: false,
            has_read: false,
            is_over: false,
        })
    }

    /// From now on the timeout covers a request from its first wait to the last byte of its reply,
    /// also if single bytes arrive. A write after a read begins a request. Not for a client that
    /// reads what it has not asked for, such as messages of a subscription.
    pub const fn limit_requests(&mut self) {
        self.limits_requests = true;
    }

    /// When a wait that begins now ends at the latest; `None`: never.
    #[inline]
    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        if !self.limits_requests || self.deadline.is_none() {
            self.deadline = now.checked_add(self.timeout);
        }
        self.deadline
    }

    /// Sets how long it busy-polls before it sleeps.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// Waits until the ring is ready, or the other side has ended.
    #[inline]
    fn wait(&mut self, interest: PipeInterest) -> io::Result<()> {
        let started = Instant::now();
        let deadline = self.deadline(started);
        if deadline.is_some_and(|deadline| started >= deadline) {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        if !self.spin.is_zero() {
            loop {
                for _ in 0..POLLS_PER_CLOCK {
                    if self.end.is_ready(interest) {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                if started.elapsed() >= self.spin {
                    break;
                }
            }
        }
        self.sleep(interest, deadline)
    }

    #[cold]
    fn sleep(&mut self, interest: PipeInterest, deadline: Option<Instant>) -> io::Result<()> {
        loop {
            // Superfluous doorbells do not extend the wait beyond the deadline.
            let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let is_late = remaining.is_some_and(|remaining| remaining.is_zero());
            if !self.end.fall_asleep(interest) {
                return Ok(());
            }
            let read = if is_late {
                Err(io::Error::from(io::ErrorKind::TimedOut))
            } else {
                self.limit_sleep(remaining).and_then(|()| self.socket.read(&mut [0; 64]))
            };
            self.end.wake();
            match read {
                Ok(0) => {
                    self.is_over = true;
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    self.is_over = true;
                    return Ok(());
                }
                Err(_) if self.end.is_ready(interest) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl LocalRing {
    /// Limits the next sleep. The first one of a request needs no system call: it lasts almost the
    /// whole timeout, and the spin before it is not worth one.
    fn limit_sleep(&mut self, remaining: Option<Duration>) -> io::Result<()> {
        let remaining = remaining.unwrap_or(self.timeout).min(self.timeout);
        let wanted = if remaining.saturating_add(2 * self.spin.max(SLEEP_SLACK)) >= self.timeout {
            self.timeout
        } else {
            remaining
        };
        if wanted != self.socket_timeout {
            self.socket.set_read_timeout(Some(wanted))?;
            self.socket_timeout = wanted;
        }
        Ok(())
    }
}

fn broken(error: &nearstate_model::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl Read for LocalRing {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            let was_over = self.is_over;
            let moved = self.end.read(into).map_err(|error| broken(&error))?;
            if moved.must_ring_doorbell {
                ring_doorbell(&self.socket);
            }
            if moved.bytes > 0 || was_over {
                self.has_read = true;
                return Ok(moved.bytes);
            }
            self.wait(PipeInterest { readable: true, writable: false })?;
        }
    }
}

impl Write for LocalRing {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.has_read {
            (self.has_read, self.deadline) = (false, None);
        }
        loop {
            if self.is_over {
                return Err(io::Error::from(io::ErrorKind::BrokenPipe));
            }
            let moved = self.end.write(bytes).map_err(|error| broken(&error))?;
            if moved.must_ring_doorbell {
                ring_doorbell(&self.socket);
            }
            if moved.bytes > 0 {
                return Ok(moved.bytes);
            }
            self.wait(PipeInterest { readable: false, writable: true })?;
        }
    }

    /// Written bytes are in the ring already.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply of which a byte arrives whenever the client has read the one before.
    #[test]
    fn a_reply_in_single_bytes_ends_at_the_timeout_of_its_request() {
        // More bytes than a client can wait for within the limit, one each millisecond.
        const BYTES_MAX: usize = 1_000;
        for spin in [Duration::ZERO, SPIN] {
            let (mut client, mut node, doorbells) = ring(Duration::from_millis(100));
            client.set_spin(spin);
            client.limit_requests();
            doorbells.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let is_done = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                        if node.write(b"x").unwrap().must_ring_doorbell {
                            ring_doorbell(&doorbells);
                        }
                        let _ = (&doorbells).read(&mut [0; 8]);
                    }
                });
                let ends = [(); 2].map(|()| {
                    client.write_all(b"request").unwrap();
                    let read = |_| client.read(&mut [0; 64]).err();
                    (0..BYTES_MAX).find_map(read).map(|error| error.kind())
                });
                is_done.store(true, std::sync::atomic::Ordering::Relaxed);
                assert_eq!(ends, [Some(io::ErrorKind::TimedOut); 2]);
            });
        }
    }

    fn ring(timeout: Duration) -> (LocalRing, PipeEnd, UnixStream) {
        let (node, memory) = PipeEnd::create().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        (LocalRing::new(memory, ours, timeout).unwrap(), node, theirs)
    }

    fn counted() -> Vec<u8> {
        (0..=255_u8).cycle().take(300_000).collect()
    }

    #[test]
    fn a_client_sleeps_until_the_doorbell_rings_and_reads_the_last_bytes_before_the_end() {
        for spin in [Duration::ZERO, SPIN] {
            let (mut client, mut node, mut doorbells) = ring(Duration::from_secs(60));
            client.set_spin(spin);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut received = Vec::new();
                    while received.len() < 300_000 {
                        let mut into = [0; 5000];
                        let moved = node.read(&mut into).unwrap();
                        received.extend_from_slice(&into[..moved.bytes]);
                        if moved.must_ring_doorbell {
                            ring_doorbell(&doorbells);
                        }
                        let interest = PipeInterest { readable: true, writable: false };
                        if moved.bytes == 0 && node.fall_asleep(interest) {
                            let _ = doorbells.read(&mut [0; 8]).unwrap();
                            node.wake();
                        }
                    }
                    assert!(received == counted());
                    if node.write(b"bye").unwrap().must_ring_doorbell {
                        ring_doorbell(&doorbells);
                    }
                });
                client.write_all(&counted()).unwrap();
                let mut last = String::new();
                client.read_to_string(&mut last).unwrap();
                assert_eq!(last, "bye");
                assert!(client.write(b"x").is_err());
            });
        }
    }

    #[test]
    fn a_silent_node_and_superfluous_doorbells_do_not_extend_the_timeout() {
        let (mut client, _node, doorbells) = ring(Duration::from_millis(30));
        let error = client.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    ring_doorbell(&doorbells);
                }
            });
            let error = client.read(&mut [0; 8]).unwrap_err();
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
        while client.end.write(&[1; 100]).unwrap().bytes > 0 {}
        assert_eq!(client.write(b"x").unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}

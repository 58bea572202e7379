//! Streams that reply in pieces, stall, break, or accept nothing until their replies are read.

use super::*;
use std::os::unix::net::UnixStream;

/// Replies in pieces of `step` bytes.
struct Fixed(Vec<u8>, usize, usize);

impl Read for Fixed {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let end = self.0.len().min(self.1 + self.2.min(into.len()));
        let bytes = &self.0[self.1..end];
        into[..bytes.len()].copy_from_slice(bytes);
        self.1 = end;
        Ok(bytes.len())
    }
}

impl Write for Fixed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Stream for Fixed {}

/// A server that replies to each byte with eight, and accepts nothing while more than a few of them
/// are unread.
#[derive(Default)]
struct Stubborn {
    waiting: VecDeque<u8>,
    waits: usize,
}

impl Read for Stubborn {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let bytes = into.len().min(self.waiting.len()).min(100);
        if bytes == 0 {
            unreachable!("every request has its reply: the client would wait forever");
        }
        into.iter_mut().zip(self.waiting.drain(..bytes)).for_each(|(to, byte)| *to = byte);
        Ok(bytes)
    }
}

impl Write for Stubborn {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        unreachable!("the replies fill the buffer: the client would wait forever")
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Stream for Stubborn {
    const IS_NON_BLOCKING: bool = true;

    fn write_now(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.waiting.len() > 64 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = bytes.len().min(5);
        self.waiting.extend(bytes.iter().take(taken).flat_map(|byte| [*byte; 8]));
        Ok(taken)
    }

    fn wait(&mut self) -> std::io::Result<bool> {
        self.waits += 1;
        Ok(!self.waiting.is_empty())
    }
}

#[test]
fn the_client_reads_from_a_server_that_accepts_nothing_until_then() {
    let mut wire = Wire::new(Stubborn::default());
    let asked: Vec<u8> = (0..10_000_usize).map(|at| at.to_le_bytes()[0]).collect();
    wire.out.extend_from_slice(&asked);
    wire.send().unwrap();
    assert!(wire.out.is_empty());
    assert!(wire.stream.waits > 100, "the server never blocked: {}", wire.stream.waits);
    let answers: Vec<u8> = asked.iter().flat_map(|byte| [*byte; 8]).collect();
    assert!(wire.take(answers.len()).unwrap() == answers.as_slice());
}

/// The same with sockets and their buffers: the echo server does not read while it writes.
#[test]
fn the_two_sides_of_a_socket_do_not_deadlock() {
    const BYTES: usize = 16 << 20;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let echo = std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        let mut left = BYTES;
        while left > 0 {
            let bytes = theirs.read(&mut buffer).unwrap();
            theirs.write_all(&buffer[..bytes]).unwrap();
            left -= bytes;
        }
    });
    let mut wire = Wire::new(TimeoutSocket::Unix(ours));
    wire.out.resize(BYTES, 7);
    wire.send().unwrap();
    assert!(wire.take(BYTES).unwrap().iter().all(|byte| *byte == 7));
    echo.join().unwrap();
}

#[test]
fn a_message_is_held_while_replies_are_available() {
    let mut wire = Wire::new(Stubborn::default());
    let leave = |wire: &mut Wire<Stubborn>, byte: u8| {
        wire.out.push(byte);
        wire.send_or_hold().unwrap();
        wire.stream_mut().waiting.len()
    };
    // The client has not received a reply yet.
    assert_eq!(leave(&mut wire, 1), 8);
    assert_eq!(leave(&mut wire, 2), 16);
    assert_eq!(wire.take(8).unwrap(), [1; 8]);
    // The second reply has arrived with the first: the message may wait until the next one is sent.
    assert_eq!(leave(&mut wire, 3), 0);
    wire.out.push(9);
    wire.discard_output();
    assert_eq!(wire.out, [3]);
    assert_eq!(leave(&mut wire, 4), 16);
    assert_eq!(wire.take(8).unwrap(), [2; 8]);
    // Or until the client would wait.
    assert_eq!(wire.take(4).unwrap(), [3; 4]);
    assert_eq!(leave(&mut wire, 5), 0);
    assert_eq!(wire.take(12).unwrap(), [3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4]);
    assert_eq!(wire.take(8).unwrap(), [5; 8]);
    assert_eq!(leave(&mut wire, 6), 8);
}

#[test]
fn a_message_that_cannot_be_sent_delays_later_ones() {
    let mut ahead = SentAhead::default();
    assert!(!ahead.pop() && !ahead.is_owed() && ahead.may_send());
    for leaves in [true, true, false] {
        assert!(ahead.may_send());
        ahead.push(leaves);
    }
    assert!(!ahead.may_send());
    ahead.push(false);
    assert!(ahead.is_owed() && ahead.pop() && ahead.is_owed() && ahead.pop());
    assert!(!ahead.is_owed() && !ahead.pop() && !ahead.may_send());
    assert!(!ahead.pop() && ahead.may_send());
}

#[test]
fn lines_and_bytes_are_parsed_from_pieces_of_any_size() {
    for step in [1, 2, 3, 7, 100_000] {
        let long = vec![b'x'; 200_000];
        let answer = [b"first\r\n\r\n", long.as_slice(), b"third\n"].concat();
        let mut wire = Wire::new(Fixed(answer, 0, step));
        assert_eq!(wire.line().unwrap(), b"first");
        assert_eq!(wire.line().unwrap(), b"");
        assert!(wire.take(200_000).unwrap() == long.as_slice());
        assert_eq!(wire.line().unwrap(), b"third");
        assert_eq!(wire.at, wire.end);
    }
}

#[test]
fn after_an_error_no_request_is_sent() {
    let mut wire = Wire::new(Fixed(b"no end".to_vec(), 0, 2));
    wire.send().unwrap();
    let error = wire.line().unwrap_err().to_string();
    assert!(error.contains("closed the connection"), "{error}");
    assert!(wire.send().unwrap_err().to_string().contains("connect again"));
    assert!(wire.is_cut());
    let mut wire = Wire::new(Fixed(vec![b'x'; 200_000], 0, 5000));
    assert!(wire.line().unwrap_err().to_string().contains("does not end"));
    assert!(!wire.is_cut(), "the connection is open, but the reply is invalid");
    let mut wire = Wire::new(Fixed(vec![], 0, 1));
    assert!(wire.take(usize::MAX).is_err());
    assert!(wire.input.capacity() == 0, "a length alone allocates no memory");
}

#[test]
fn a_stalled_server_is_reported() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut wire = Wire::new(TimeoutSocket::Unix(ours));
    let error = wire.line().unwrap_err();
    assert!(matches!(&error, Error::Backend { detail } if detail.contains("no reply for")));
    drop(theirs);
    assert!(matches!(wire.send(), Err(Error::Backend { .. })));
    for address in ["unix:/no/such/folder/socket", "127.0.0.1:1", "not an address"] {
        assert!(connect(address).is_err(), "{address}");
    }
}

#[test]
fn a_socket_is_polled_before_the_client_sleeps() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut wire = Wire::new(TimeoutSocket::Unix(ours));
    wire.set_busy_poll(true);
    theirs.write_all(b"first\nincomplete").unwrap();
    assert_eq!(wire.line().unwrap(), b"first");
    // Polling is limited, and its result is the same as that of a client that sleeps at once.
    assert!(wire.line().unwrap_err().to_string().contains("no reply for"));
    assert!(!wire.is_cut());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut wire = Wire::new(TimeoutSocket::Unix(ours));
    wire.set_busy_poll(true);
    drop(theirs);
    assert!(wire.line().unwrap_err().to_string().contains("closed the connection"));
    assert!(wire.is_cut());
}

#[test]
fn numbers_are_written_and_read() {
    for value in [0, 7, 10, 99, 12_345_678_901_usize, usize::MAX] {
        let mut text = Vec::new();
        digits(value, &mut text);
        assert_eq!(text, value.to_string().into_bytes());
    }
    assert_eq!(number(b"-1"), Some(-1));
    assert_eq!(number(b"1x"), None);
    assert_eq!(number(b""), None);
}

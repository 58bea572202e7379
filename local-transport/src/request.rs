//! The handshake: requests for the region or a ring, and the responses.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nearstate_memory::{RING_FORMAT, RegionFiles};

use crate::descriptors;

/// What a client can request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalResource {
    /// The region's file.
    Region,
    /// A ring.
    Ring,
}

/// The response to a request.
#[derive(Debug)]
pub enum Response<T> {
    /// The descriptors.
    Granted(T),
    /// An error: its code and text. The connection stays open.
    Refused(String),
}

/// The longest response line. A longer one is not a response.
const RESPONSE_BYTES_MAX: usize = 4096;

/// The response line that descriptors are sent with.
pub fn response_line(what: LocalResource) -> Vec<u8> {
    let word = match what {
        LocalResource::Region => "REGION",
        LocalResource::Ring => "RING",
    };
    format!("+{word} {RING_FORMAT}\r\n").into_bytes()
}

/// Requests the region's file.
///
/// # Errors
/// Errors of the socket; `InvalidData` for a response of another format.
pub fn request_region(socket: &UnixStream) -> io::Result<Response<RegionFiles>> {
    match request(socket, LocalResource::Region, b"*2\r\n$5\r\nLOCAL\r\n$6\r\nREGION\r\n")? {
        Response::Refused(text) => Ok(Response::Refused(text)),
        Response::Granted(descriptors) => match <[OwnedFd; 2]>::try_from(descriptors) {
            Ok([file, liveness]) => Ok(Response::Granted(RegionFiles { file, liveness })),
            Err(_) => Err(invalid("a response with a region has two descriptors")),
        },
    }
}

/// Requests a ring: its memory. From now on the socket only carries doorbells.
///
/// # Errors
/// As [`request_region`].
pub fn request_ring(socket: &UnixStream) -> io::Result<Response<OwnedFd>> {
    match request(socket, LocalResource::Ring, b"*2\r\n$5\r\nLOCAL\r\n$4\r\nRING\r\n")? {
        Response::Refused(text) => Ok(Response::Refused(text)),
        Response::Granted(descriptors) => match <[OwnedFd; 1]>::try_from(descriptors) {
            Ok([memory]) => Ok(Response::Granted(memory)),
            Err(_) => Err(invalid("a response with a ring has one descriptor")),
        },
    }
}

fn request(
    mut socket: &UnixStream,
    what: LocalResource,
    request: &[u8],
) -> io::Result<Response<Vec<OwnedFd>>> {
    socket.write_all(request)?;
    // The timeout covers the whole response, also if single bytes arrive.
    let (started, timeout) = (Instant::now(), socket.read_timeout()?);
    let mut line = Vec::new();
    let mut descriptors = Vec::new();
    let end = loop {
        let mut bytes = [0; 256];
        let (count, more) = match descriptors::receive(socket, &mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            received => received?,
        };
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        descriptors.extend(more);
        line.extend_from_slice(bytes.get(..count).unwrap_or_default());
        if let Some(end) = line.windows(2).position(|two| two == b"\r\n") {
            break end;
        }
        if line.len() > RESPONSE_BYTES_MAX {
            return Err(invalid("its response has no end"));
        }
        if timeout.is_some_and(|timeout| started.elapsed() > timeout) {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
    };
    if line == response_line(what) {
        return Ok(Response::Granted(descriptors));
    }
    let text = String::from_utf8_lossy(line.get(1..end).unwrap_or_default()).into_owned();
    match line.first() {
        Some(b'-') if line.len() == end + 2 => Ok(Response::Refused(text)),
        _ => Err(invalid("its response has another format; use a client of the same release")),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the server is not a node of this release: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn response_to(line: &'static [u8], descriptors: usize) -> Option<Response<OwnedFd>> {
        let (client, node) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        descriptors::send(&node, line, &vec![file.as_fd(); descriptors]).unwrap();
        node.shutdown(std::net::Shutdown::Write).unwrap();
        let response = request_ring(&client);
        let mut request = [0; 25];
        (&node).read_exact(&mut request).unwrap();
        assert_eq!(&request, b"*2\r\n$5\r\nLOCAL\r\n$4\r\nRING\r\n");
        response.ok()
    }

    #[test]
    fn a_response_grants_or_refuses_and_any_other_bytes_are_an_error() {
        assert!(matches!(response_to(b"+RING 1\r\n", 1), Some(Response::Granted(_))));
        let refused = response_to(b"-NOPERM not you\r\n", 0).unwrap();
        assert!(matches!(refused, Response::Refused(text) if text == "NOPERM not you"));
        for (line, descriptors) in [
            (&b"+RING 1\r\n"[..], 0),
            (b"+RING 1\r\n", 2),
            (b"+RING 2\r\n", 1),
            (b"+REGION 1\r\n", 1),
            (b"+OK\r\n", 0),
            (b"+RING 1\r\n+more\r\n", 1),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", 0),
            (b"-half an ans", 0),
            (b"\r\n", 0),
        ] {
            assert!(response_to(line, descriptors).is_none(), "{line:?}");
        }
    }

    #[test]
    fn a_response_that_arrives_byte_by_byte_times_out() {
        let (client, node) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let is_done = AtomicBool::new(false);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Slow enough that the line is still short at the timeout.
                while !is_done.load(Ordering::Relaxed) {
                    let _ = (&node).write(b"+");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let error = request_ring(&client).unwrap_err();
            is_done.store(true, Ordering::Relaxed);
            error
        });
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}

//! The page of metrics, over HTTP. Bounded in time and size, whoever answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a node may take to accept.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// How long a page may take as a whole. A node that counts many records writes one in some tens of
/// milliseconds.
const PAGE_MAX: Duration = Duration::from_secs(5);

/// The largest page, with its head. A node names 256 namespaces of at most a kilobyte, escaped, in
/// four families, and as many processes: two megabytes.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// Headers of an answer. A node sends four.
const HEADERS_MAX: usize = 64;

/// Fetches a node's page.
///
/// # Errors
/// What came instead, and what to do about it.
pub(super) fn metrics(address: SocketAddr) -> Result<String, String> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_MAX).map_err(|error| {
        format!(
            "nobody answers at {address} ({error}): is `nearstate serve --metrics-listen \
             {address}` running?"
        )
    })?;
    let answer = exchange(&mut stream, address, start)
        .map_err(|error| format!("{address} did not answer in time or was cut off ({error})"))?;
    page_of(&answer).map_err(|why| format!("{address}: {why}"))
}

fn exchange(
    stream: &mut TcpStream,
    address: SocketAddr,
    start: Instant,
) -> std::io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(CONNECT_MAX))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut part = vec![0; 64 << 10];
    // What is larger is no page, whatever comes behind.
    while answer.len() <= PAGE_BYTES_MAX {
        let left = PAGE_MAX.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(bytes) => answer.extend_from_slice(part.get(..bytes).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// The page in an answer.
fn page_of(answer: &[u8]) -> Result<String, String> {
    if answer.len() > PAGE_BYTES_MAX {
        return Err(format!("more than {} MiB: this is no node's page", PAGE_BYTES_MAX >> 20));
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(answer) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) | Err(_) => {
            return Err("what answers there does not speak HTTP: give the address of \
                        metrics.listen, not one of `listen`"
                .to_owned());
        }
    };
    let code = response.code.unwrap_or_default();
    if code != 200 {
        return Err(format!(
            "/metrics answers {code}: give the address of a nearstate node's metrics.listen"
        ));
    }
    let body = answer.get(head..).unwrap_or_default();
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let length = std::str::from_utf8(header.value).ok().and_then(|text| text.parse().ok());
        if is("transfer-encoding") {
            return Err("its page comes in an encoding that no node uses".to_owned());
        }
        if is("content-length") && length != Some(body.len()) {
            return Err("its page was cut short: ask again".to_owned());
        }
    }
    String::from_utf8(body.to_vec()).map_err(|_| "its page is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_page_is_taken_out_of_its_answer_and_anything_else_is_told() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n# EOF\n";
        assert_eq!(page_of(whole), Ok("# EOF\n".to_owned()));
        for (answer, wanted) in [
            (&b""[..], "HTTP"),
            (b"-ERR unknown command 'GET'\r\n", "HTTP"),
            (b"HTTP/1.1 200 OK\r\nContent-Le", "HTTP"),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", "404"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n# EOF\n", "cut short"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n# EOF\n", "cut short"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "encoding"),
            (b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe", "no text"),
        ] {
            let why = page_of(answer).unwrap_err();
            assert!(why.contains(wanted), "{:?}: {why}", answer.escape_ascii().to_string());
        }
        assert!(page_of(&vec![b'x'; PAGE_BYTES_MAX + 1]).unwrap_err().contains("16 MiB"));
    }

    #[test]
    fn where_nobody_listens_it_is_said_how_to_begin_a_node() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let why = metrics(address).unwrap_err();
        assert!(why.contains(&format!("--metrics-listen {address}")), "{why}");
    }

    #[test]
    fn who_hangs_up_has_not_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hangs_up = std::thread::spawn(move || drop(listener.accept().unwrap()));
        let why = metrics(address).unwrap_err();
        hangs_up.join().unwrap();
        assert!(why.contains("HTTP") || why.contains("cut off"), "{why}");
    }
}

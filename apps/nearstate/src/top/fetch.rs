//! Fetches the metrics page over HTTP, bounded in time and size.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Timeout of the connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of the whole page. A node that counts many records needs some tens of milliseconds.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a page with its header. A node lists 256 namespaces of at most 1 KB, escaped, in
/// four families, and as many processes: 2 MB.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// Maximum number of headers of a response. A node sends four.
const HEADERS_MAX: usize = 64;

/// Fetches a node's page.
///
/// # Errors
/// What was received instead, and what to do.
pub(super) fn metrics(address: SocketAddr) -> Result<String, String> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(|error| {
        format!(
            "cannot connect to {address} ({error}): is `nearstate serve --metrics-listen \
             {address}` running?"
        )
    })?;
    let answer = exchange(&mut stream, address, start).map_err(|error| {
        format!("{address} did not respond in time or closed the connection ({error}): try again")
    })?;
    page_of(&answer).map_err(|why| format!("{address}: {why}"))
}

fn exchange(
    stream: &mut TcpStream,
    address: SocketAddr,
    start: Instant,
) -> std::io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut part = vec![0; 64 << 10];
    // A larger response is not a metrics page.
    while answer.len() <= PAGE_BYTES_MAX {
        let left = PAGE_TIMEOUT.saturating_sub(start.elapsed());
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

/// The page in a response.
fn page_of(answer: &[u8]) -> Result<String, String> {
    if answer.len() > PAGE_BYTES_MAX {
        return Err(format!(
            "the response exceeds {} MiB: give the metrics.listen address of a node",
            PAGE_BYTES_MAX >> 20
        ));
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(answer) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) | Err(_) => {
            return Err("the response is not HTTP: give an address of metrics.listen, not of \
                        `listen`"
                .to_owned());
        }
    };
    let code = response.code.unwrap_or_default();
    if code != 200 {
        return Err(format!(
            "/metrics returned status {code}: give the metrics.listen address of a node"
        ));
    }
    let body = answer.get(head..).unwrap_or_default();
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let length = std::str::from_utf8(header.value).ok().and_then(|text| text.parse().ok());
        if is("transfer-encoding") {
            return Err("the page has an unsupported transfer encoding: give the metrics.listen \
                        address of a node"
                .to_owned());
        }
        if is("content-length") && length != Some(body.len()) {
            return Err("the page was truncated: try again".to_owned());
        }
    }
    String::from_utf8(body.to_vec()).map_err(|_| "the page is not valid UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_page_is_extracted_from_its_response_and_anything_else_is_an_error() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n# EOF\n";
        assert_eq!(page_of(whole), Ok("# EOF\n".to_owned()));
        for (answer, wanted) in [
            (&b""[..], "HTTP"),
            (b"-ERR unknown command 'GET'\r\n", "HTTP"),
            (b"HTTP/1.1 200 OK\r\nContent-Le", "HTTP"),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", "404"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n# EOF\n", "truncated"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n# EOF\n", "truncated"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "encoding"),
            (b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe", "not valid UTF-8"),
        ] {
            let why = page_of(answer).unwrap_err();
            assert!(why.contains(wanted), "{:?}: {why}", answer.escape_ascii().to_string());
        }
        assert!(page_of(&vec![b'x'; PAGE_BYTES_MAX + 1]).unwrap_err().contains("16 MiB"));
    }

    #[test]
    fn a_refused_connection_is_an_error_with_the_command_that_starts_a_node() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let why = metrics(address).unwrap_err();
        assert!(why.contains(&format!("--metrics-listen {address}")), "{why}");
    }

    #[test]
    fn a_closed_connection_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = std::thread::spawn(move || drop(listener.accept().unwrap()));
        let why = metrics(address).unwrap_err();
        acceptor.join().unwrap();
        assert!(why.contains("HTTP") || why.contains("closed"), "{why}");
    }
}

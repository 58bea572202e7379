//! The head of a request. Total and bounded: whatever the bytes are, it is one of four answers,
//! and nothing is allocated.

/// The largest head of a request. Prometheus and probes send a few hundred bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// The most headers of a request. The same senders have ten.
pub const HEADERS_MAX: usize = 64;

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The page of metrics.
    Metrics,
    /// Whether the process lives.
    Health,
    /// Whether it serves.
    Readiness,
    /// What there is.
    Index,
    /// A page that is not there.
    Elsewhere,
    /// Another method than `GET` and `HEAD`.
    Otherwise,
}

/// A request, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) wish: Wish,
    /// `HEAD`: all but the page itself.
    pub(crate) is_head: bool,
    /// The connection is closed behind the answer.
    pub(crate) is_last: bool,
}

/// What some bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// The begin of a request.
    Incomplete,
    /// A request, and its length.
    Request(Request, usize),
    /// A head that is larger than anybody needs.
    TooLarge,
    /// No request, or one that we do not answer, and why.
    Broken(&'static str),
}

/// Finds the request at the front of the input.
pub(crate) fn parse(input: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let bound = input.get(..HEAD_BYTES_MAX).unwrap_or(input);
    let taken = match request.parse(bound) {
        Ok(httparse::Status::Complete(taken)) => taken,
        Ok(httparse::Status::Partial) if bound.len() < HEAD_BYTES_MAX => return Parsed::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Parsed::TooLarge;
        }
        Err(
            httparse::Error::HeaderName
            | httparse::Error::HeaderValue
            | httparse::Error::NewLine
            | httparse::Error::Status
            | httparse::Error::Token
            | httparse::Error::Version,
        ) => return Parsed::Broken("this is not a request of HTTP/1.1"),
    };
    let mut is_last = request.version != Some(1);
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("transfer-encoding") || (is("content-length") && header.value != b"0") {
            // Not to be read, so nobody can say where the next request begins.
            return Parsed::Broken("a request here has no body");
        }
        if is("connection") {
            let words = header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            for word in words {
                is_last |= word.eq_ignore_ascii_case(b"close");
            }
        }
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let wish = match (request.method, path) {
        (Some("GET" | "HEAD"), "/metrics") => Wish::Metrics,
        (Some("GET" | "HEAD"), "/health") => Wish::Health,
        (Some("GET" | "HEAD"), "/ready") => Wish::Readiness,
        (Some("GET" | "HEAD"), "/") => Wish::Index,
        (Some("GET" | "HEAD"), _) => Wish::Elsewhere,
        _ => Wish::Otherwise,
    };
    Parsed::Request(Request { wish, is_head: request.method == Some("HEAD"), is_last }, taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(text: &str) -> Wish {
        let parsed = parse(text.as_bytes());
        let Parsed::Request(request, taken) = parsed else { panic!("{text:?} is {parsed:?}") };
        assert_eq!(taken, text.len(), "{text:?}");
        request.wish
    }

    #[test]
    fn a_request_is_its_method_and_its_path() {
        for (line, wanted) in [
            ("GET /metrics HTTP/1.1", Wish::Metrics),
            ("HEAD /ready?verbose=1 HTTP/1.1", Wish::Readiness),
            ("GET /health HTTP/1.0", Wish::Health),
            ("GET / HTTP/1.1", Wish::Index),
            ("GET /metrics/ HTTP/1.1", Wish::Elsewhere),
            ("GET /../etc/passwd HTTP/1.1", Wish::Elsewhere),
            ("POST /metrics HTTP/1.1", Wish::Otherwise),
        ] {
            assert_eq!(wish(&format!("{line}\r\nHost: x\r\n\r\n")), wanted, "{line}");
        }
    }

    #[test]
    fn the_connection_ends_when_the_client_or_its_version_says_so() {
        let is_last = |text: &str| {
            let parsed = parse(text.as_bytes());
            let Parsed::Request(request, _) = parsed else { panic!("{text:?} is {parsed:?}") };
            request.is_last
        };
        assert!(!is_last("GET / HTTP/1.1\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.0\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.1\r\nConnection: keep-alive, Close\r\n\r\n"));
    }

    #[test]
    fn what_is_too_large_has_a_body_or_is_nonsense_is_refused() {
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(parse(many.as_bytes()), Parsed::TooLarge);
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(parse(long.as_bytes()), Parsed::TooLarge);
        for text in [
            "GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "*1\r\n$4\r\nPING\r\n",
            "\u{16}\u{3}\u{1}", // the begin of TLS
        ] {
            assert!(matches!(parse(text.as_bytes()), Parsed::Broken(_)), "{text:?}");
        }
        assert_eq!(parse(b"GET / HT"), Parsed::Incomplete);
        assert_eq!(parse(b""), Parsed::Incomplete);
    }
}

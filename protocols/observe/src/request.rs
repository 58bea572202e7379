//! Parser of request heads. All input gives one of four results, without allocation.

/// Maximum bytes of a request head. Prometheus and probes send a few hundred.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// Maximum number of headers. Prometheus and probes send about ten.
pub const HEADERS_MAX: usize = 64;

/// Resource of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestTarget {
    /// The metrics page.
    Metrics,
    /// Liveness probe.
    Health,
    /// Readiness probe.
    Readiness,
    /// The index of paths.
    Index,
    /// An unknown path.
    UnknownPath,
    /// A method other than `GET` and `HEAD`.
    UnsupportedMethod,
}

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HttpRequest {
    pub(crate) target: RequestTarget,
    /// `HEAD`: the response has no body.
    pub(crate) is_head: bool,
    /// The connection closes after the response.
    pub(crate) is_last: bool,
}

/// Result of parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpParseResult {
    /// The request head is incomplete.
    Incomplete,
    /// A request and its length.
    Request(HttpRequest, usize),
    /// The request head exceeds the limits.
    TooLarge,
    /// Not a valid or supported request, with the reason.
    Invalid(&'static str),
}

/// Parses the request at the start of the input.
pub(crate) fn parse(input: &[u8]) -> HttpParseResult {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let bound = input.get(..HEAD_BYTES_MAX).unwrap_or(input);
    let taken = match request.parse(bound) {
        Ok(httparse::Status::Complete(taken)) => taken,
        Ok(httparse::Status::Partial) if bound.len() < HEAD_BYTES_MAX => {
            return HttpParseResult::Incomplete;
        }
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return HttpParseResult::TooLarge;
        }
        Err(
            httparse::Error::HeaderName
            | httparse::Error::HeaderValue
            | httparse::Error::NewLine
            | httparse::Error::Status
            | httparse::Error::Token
            | httparse::Error::Version,
        ) => return HttpParseResult::Invalid("this is not a request of HTTP/1.1"),
    };
    let mut is_last = request.version != Some(1);
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("transfer-encoding") || (is("content-length") && header.value != b"0") {
            // The body is not read, so the start of the next request is unknown.
            return HttpParseResult::Invalid("a request here has no body");
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
    let target = match (request.method, path) {
        (Some("GET" | "HEAD"), "/metrics") => RequestTarget::Metrics,
        (Some("GET" | "HEAD"), "/health") => RequestTarget::Health,
        (Some("GET" | "HEAD"), "/ready") => RequestTarget::Readiness,
        (Some("GET" | "HEAD"), "/") => RequestTarget::Index,
        (Some("GET" | "HEAD"), _) => RequestTarget::UnknownPath,
        _ => RequestTarget::UnsupportedMethod,
    };
    HttpParseResult::Request(
        HttpRequest { target, is_head: request.method == Some("HEAD"), is_last },
        taken,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> RequestTarget {
        let parsed = parse(text.as_bytes());
        let HttpParseResult::Request(request, taken) = parsed else {
            panic!("{text:?} is {parsed:?}")
        };
        assert_eq!(taken, text.len(), "{text:?}");
        request.target
    }

    #[test]
    fn method_and_path_of_a_request_are_parsed() {
        for (line, wanted) in [
            ("GET /metrics HTTP/1.1", RequestTarget::Metrics),
            ("HEAD /ready?verbose=1 HTTP/1.1", RequestTarget::Readiness),
            ("GET /health HTTP/1.0", RequestTarget::Health),
            ("GET / HTTP/1.1", RequestTarget::Index),
            ("GET /metrics/ HTTP/1.1", RequestTarget::UnknownPath),
            ("GET /../etc/passwd HTTP/1.1", RequestTarget::UnknownPath),
            ("POST /metrics HTTP/1.1", RequestTarget::UnsupportedMethod),
        ] {
            assert_eq!(target(&format!("{line}\r\nHost: x\r\n\r\n")), wanted, "{line}");
        }
    }

    #[test]
    fn the_connection_closes_on_request_of_the_client_or_for_http_1_0() {
        let is_last = |text: &str| {
            let parsed = parse(text.as_bytes());
            let HttpParseResult::Request(request, _) = parsed else {
                panic!("{text:?} is {parsed:?}")
            };
            request.is_last
        };
        assert!(!is_last("GET / HTTP/1.1\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.0\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.1\r\nConnection: keep-alive, Close\r\n\r\n"));
    }

    #[test]
    fn oversized_requests_bodies_and_garbage_are_rejected() {
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(parse(many.as_bytes()), HttpParseResult::TooLarge);
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(parse(long.as_bytes()), HttpParseResult::TooLarge);
        for text in [
            "GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "*1\r\n$4\r\nPING\r\n",
            "\u{16}\u{3}\u{1}", // the begin of TLS
        ] {
            assert!(matches!(parse(text.as_bytes()), HttpParseResult::Invalid(_)), "{text:?}");
        }
        assert_eq!(parse(b"GET / HT"), HttpParseResult::Incomplete);
        assert_eq!(parse(b""), HttpParseResult::Incomplete);
    }
}

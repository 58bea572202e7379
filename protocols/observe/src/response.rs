//! Encoder of HTTP responses.

/// A response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpResponse<'a> {
    /// `200 OK`.
    pub(crate) status: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) body: &'a str,
    /// The body is omitted.
    pub(crate) is_head: bool,
    pub(crate) is_last: bool,
}

/// Plain text.
pub(crate) const PLAIN: &str = "text/plain; charset=utf-8";

/// The text format of `OpenMetrics`, which Prometheus reads.
pub(crate) const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl HttpResponse<'_> {
    /// Appends the response to `output`.
    pub(crate) fn write(&self, output: &mut Vec<u8>) {
        let Self { status, kind, body, is_head, is_last } = self;
        let length = body.len();
        let connection = if *is_last { "Connection: close\r\n" } else { "" };
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\n{allow}{connection}\r\n"
        );
        output.extend_from_slice(head.as_bytes());
        if !is_head {
            output.extend_from_slice(body.as_bytes());
        }
    }
}

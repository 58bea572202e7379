//! Responses: status, headers, body.

use std::cell::RefCell;

use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, HeaderMap, HeaderName,
    HeaderValue, LAST_MODIFIED, LOCATION,
};
use hyper::{Response, StatusCode};
use serde_json::Value;

use crate::conditions::Validators;
use crate::multipart::{DEFAULT_TYPE, media_type};
use crate::problem::Problem;
use crate::times::format_http_date;

/// How the bytes of a block are encoded, as its client has said.
pub(crate) const CONTENT_TRANSFER_ENCODING: HeaderName =
    HeaderName::from_static("content-transfer-encoding");

/// The initial capacity for headers. Most responses have no more, with those that HTTP adds: their
/// map does not grow. With more, its
/// memory is too large for the cache of the allocator.
const HEADERS_USUAL: usize = 6;

thread_local! {
    /// The second of the last `Last-Modified`, and its text: that of a write is of this second, and
    /// so is that of many reads.
    static MODIFIED: RefCell<(u64, HeaderValue)> =
        const { RefCell::new((u64::MAX, HeaderValue::from_static(""))) };
}

/// The HTTP date of a time in milliseconds.
fn http_date(ms: u64) -> Option<HeaderValue> {
    MODIFIED.with_borrow_mut(|(second, known)| {
        if *second != ms / 1000 {
            *known = HeaderValue::try_from(format_http_date(ms)).ok()?;
            *second = ms / 1000;
        }
        Some(known.clone())
    })
}

/// Content types of most responses, of which no copy is made.
const KNOWN_TYPES: [&str; 3] = ["application/json", DEFAULT_TYPE, "application/problem+json"];

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    /// A response without a body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::with_capacity(HEADERS_USUAL), body: Bytes::new() }
    }

    /// The same response with another status.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// A response with a body of this content type.
    pub(crate) fn with_body(status: StatusCode, media: &str, body: impl Into<Bytes>) -> Self {
        let mut reply = Self { body: body.into(), ..Self::empty(status) };
        let known = KNOWN_TYPES.into_iter().find(|known| *known == media);
        match known {
            Some(known) => reply.append(CONTENT_TYPE, HeaderValue::from_static(known)),
            None => reply.append_text(CONTENT_TYPE, media.to_owned()),
        }
        reply
    }

    /// A response with a JSON body.
    pub(crate) fn json(status: StatusCode, value: &Value) -> Self {
        let mut body = Vec::with_capacity(256);
        let written = serde_json::to_writer(&mut body, value);
        debug_assert!(written.is_ok(), "a value in memory has a text");
        Self::with_body(status, "application/json", body)
    }

    /// An error response.
    pub(crate) fn problem(problem: &Problem) -> Self {
        let body = problem.to_json().to_string();
        let mut reply = Self::with_body(problem.status, "application/problem+json", body);
        if let Some((name, value)) = problem.header.as_deref() {
            reply.append_text(name.clone(), value.clone());
        }
        reply
    }

    /// Adds `ETag`, and `Last-Modified` if it is known. `no-cache` lets caches keep the response
    /// and asks them to validate it each time: another client may change the resource at any time.
    /// The contract wants `max-age` in it.
    pub(crate) fn validated(self, validators: &Validators) -> Self {
        self.validated_by(validators.clone())
    }

    /// As [`Self::validated`], without a copy.
    pub(crate) fn validated_by(mut self, validators: Validators) -> Self {
        self.append_text(ETAG, validators.etag);
        if let Some(date) = validators.modified_ms.and_then(http_date) {
            self.append(LAST_MODIFIED, date);
        }
        self.append(CACHE_CONTROL, HeaderValue::from_static("no-cache, max-age=0"));
        self
    }

    /// Adds the transfer encoding of a block, if it has one.
    pub(crate) fn encoded(mut self, encoding: &str) -> Self {
        if !encoding.is_empty() {
            self.append_text(CONTENT_TRANSFER_ENCODING, encoding.to_owned());
        }
        self
    }

    /// Adds `Location`.
    pub(crate) fn located(mut self, uri: &str) -> Self {
        self.append_text(LOCATION, uri.to_owned());
        self
    }

    /// Adds a header. A value with other bytes than a header may have comes from another interface,
    /// and is left out.
    fn append_text(&mut self, name: HeaderName, value: String) {
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
            self.append(name, value);
        }
    }

    fn append(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.append(name, value);
    }

    /// Fails if the client accepts no such body. Errors are sent whatever the client accepts.
    ///
    /// # Errors
    /// 406.
    pub(crate) fn check_accepted(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if !headers.keys().any(|name| *name == ACCEPT) {
            return Ok(());
        }
        let media = self.headers.get(CONTENT_TYPE).and_then(|media| media.to_str().ok());
        match media.filter(|_| self.status.is_success()) {
            Some(media) => check_accepted(headers, media),
            None => Ok(()),
        }
    }

    /// The length of the body.
    pub(crate) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// The response of hyper.
    pub(crate) fn into_response(self) -> Response<Bytes> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }

    /// The head of a response of HTTP/2, and its body.
    pub(crate) fn into_head(self, date: HeaderValue) -> (Response<()>, Bytes) {
        let mut headers = self.headers;
        headers.append(DATE, date);
        if !self.body.is_empty() {
            headers.append(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        }
        let mut response = Response::new(());
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        (response, self.body)
    }
}

impl From<Problem> for Reply {
    fn from(problem: Problem) -> Self {
        Self::problem(&problem)
    }
}

/// Fails if `Accept` excludes a content type.
///
/// # Errors
/// 406.
pub(crate) fn check_accepted(headers: &HeaderMap, media: &str) -> Result<(), Problem> {
    // Most requests have none, and few headers: no search hashes a name.
    if !headers.keys().any(|name| *name == ACCEPT) || accepts(headers, &media_type(media)) {
        return Ok(());
    }
    let detail = format!("the response is {media}, which Accept excludes");
    Err(Problem::new(StatusCode::NOT_ACCEPTABLE, "UNSUPPORTED_MEDIA_TYPE", detail))
}

/// True if `Accept` is absent or allows a media type: the most specific range that names it counts
/// (RFC 9110, section 12.5.1).
pub(crate) fn accepts(headers: &HeaderMap, media: &str) -> bool {
    let mut best: Option<(u8, bool)> = None;
    let mut is_present = false;
    let kind = media.split('/').next().unwrap_or_default();
    for value in headers.get_all(ACCEPT) {
        let Ok(value) = value.to_str() else { continue };
        for item in value.split(',').filter(|item| !item.trim().is_empty()) {
            is_present = true;
            let range = media_type(item);
            let precision = match range.strip_suffix("/*") {
                Some("*") => 1,
                Some(range) if range == kind => 2,
                None if range == media => 3,
                Some(_) | None => continue,
            };
            let mut quality = item.split(';').skip(1).map(str::trim);
            let quality = quality.find_map(|parameter| parameter.strip_prefix("q="));
            let is_zero = quality.is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q <= 0.0));
            best = best.max(Some((precision, !is_zero)));
        }
    }
    best.map_or(!is_present, |(_, is_allowed)| is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_is_a_list_of_ranges() {
        for (value, wanted) in [
            ("", true),
            ("*/*", true),
            ("application/json", false),
            ("application/json, multipart/*;q=0.5", true),
            ("Multipart/Mixed; boundary=x", true),
            ("multipart/mixed;q=0", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(ACCEPT, HeaderValue::from_str(value).unwrap());
            assert_eq!(accepts(&headers, "multipart/mixed"), wanted, "{value}");
        }
        assert!(accepts(&HeaderMap::new(), "text/plain"));
    }
}

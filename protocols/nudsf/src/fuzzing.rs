//! The parsers of the protocol for the fuzz targets (`verification/fuzz`). No part of the API: each
//! returns the size of what it has built, for the targets to bound.

use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Uri};
use serde_json::Value;
use std::time::Duration;

use crate::conditions::Conditions;
use crate::filter::{parse_counts, parse_text};
use crate::meta::RecordMeta;
use crate::reply::accepts;
use crate::sbi::SbiHeaders;
use crate::{multipart, patch, request_path};

/// The bytes of the parts of a body, and the number of parts.
pub fn parse_multipart(content_type: &str, body: &[u8]) -> Option<(usize, usize)> {
    let body = Bytes::copy_from_slice(body);
    let parts = multipart::parse(content_type, &body).ok()?;
    Some((parts.iter().map(|part| part.bytes.len()).sum(), parts.len()))
}

/// The length of a document after a patch, as JSON text.
pub fn apply_patch(document: &str, items: &str) -> Option<usize> {
    let mut document: Value = serde_json::from_str(document).ok()?;
    let items = patch::parse(&serde_json::from_str(items).ok()?).ok()?;
    let failed = patch::apply(&mut document, &items, |_, _| Ok(()));
    Some(document.to_string().len().min(patch::result(&failed).to_string().len()))
}

/// True if a filter is valid and matches a record with these tags.
pub fn match_filter(text: &str, key: &[u8], tags: &[(&str, &[u8])]) -> bool {
    // The other query parameter with expressions.
    let _ = parse_counts(text);
    parse_text(text, "filter").is_ok_and(|search| search.matches(key, tags))
}

/// True if a meta is the same after it was written and read again. `None`: it is invalid.
pub fn parse_meta(text: &[u8]) -> Option<bool> {
    let meta = RecordMeta::parse(text).ok()?;
    Some(RecordMeta::from_json(&meta.to_json(), "").is_ok_and(|again| again == meta))
}

/// Parses the headers that the protocol reads. False: the conditions are invalid.
pub fn parse_headers(fields: &[(String, Vec<u8>)]) -> bool {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let sbi = SbiHeaders::parse(&headers, || (Duration::ZERO, 0));
    let _ = accepts(&headers, "application/json");
    sbi.priority <= 31 && Conditions::parse(&headers).is_ok()
}

/// True if a path is that of an operation.
pub fn parse_request_path(method: &str, uri: &str) -> bool {
    let method = method.parse::<Method>();
    let uri = uri.parse::<Uri>();
    matches!((method, uri), (Ok(method), Ok(uri)) if request_path::parse(&method, &uri).is_ok())
}

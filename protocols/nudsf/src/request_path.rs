//! The path and the query of a request, decoded and checked.

use std::borrow::Cow;

use hyper::header::ALLOW;
use hyper::{Method, StatusCode, Uri};
use nearstate_model::limits::KEY_BYTES_MAX;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::features::FeatureSet;
use crate::limits::QUERY_PARAMETERS_MAX;
use crate::problem::Problem;
use crate::table::{OperationSpec, Resource, find, methods};

/// The root of the data repository below `apiRoot`.
pub(crate) const API: &str = "/nudsf-dr/v1";

/// The root of timers below `apiRoot`.
pub(crate) const TIMER_API: &str = "/nudsf-timer/v1";

/// The characters of a path segment that are percent-encoded: all but `unreserved`, `sub-delims`,
/// `:` and `@` (RFC 3986).
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// One more than the segments of the longest path below the root of a service.
const SEGMENTS_MAX: usize = 7;

/// The parsed path and query of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestPath<'u> {
    pub(crate) spec: &'static OperationSpec,
    pub(crate) realm: Cow<'u, str>,
    pub(crate) storage: Cow<'u, str>,
    /// The id of the record, subscription or schema; empty for collections.
    pub(crate) id: Cow<'u, str>,
    /// The id of the block.
    pub(crate) block: Cow<'u, str>,
    pub(crate) query: Query,
}

/// Encodes a path segment.
pub(crate) fn encode_segment(segment: &str) -> String {
    if segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)) {
        return segment.to_owned();
    }
    utf8_percent_encode(segment, SEGMENT).to_string()
}

/// Checks the id of a resource that a client creates. One of another interface that could not be
/// created here is read, changed and deleted all the same.
///
/// # Errors
/// 400: a dot segment, which clients and proxies remove from a path (RFC 3986, section 5.2.4), also
/// if it is percent-encoded; or control characters, which many of them refuse.
pub(crate) fn check_new_id(id: &str, name: &str) -> Result<(), Problem> {
    // Most ids have visible ASCII only, which is seen without decoding.
    let is_visible = id.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if id != "." && id != ".." && (is_visible || !id.chars().any(char::is_control)) {
        return Ok(());
    }
    let reason = "must not be `.` or `..`, and has no control characters";
    Err(Problem::parameter("MANDATORY_IE_INCORRECT", name, reason))
}

/// Records of a storage, or parts of them, as a URI names them. Ids are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MonitoredResource {
    /// All records of the storage.
    Records,
    /// A record.
    Record(String),
    /// The meta of a record.
    Meta(String),
    /// All blocks of a record.
    Blocks(String),
    /// A block of a record.
    Block(String, String),
}

impl MonitoredResource {
    /// Parses a URI, which may be absolute. Returns the realm, the storage and the resource.
    /// `None`: it names no records, or has a query or a fragment.
    pub(crate) fn parse(uri: &str) -> Option<(String, String, Self)> {
        if uri.contains(['?', '#']) {
            return None;
        }
        let mut ends = uri.match_indices(API).map(|(at, found)| at + found.len());
        let below = ends.find_map(|end| uri.get(end..).filter(|below| below.starts_with('/')))?;
        let (segments, count) = split(below);
        let text = |segment: &str| decode("", segment).ok().map(Cow::into_owned);
        let segments = segments.get(..count)?;
        if segments.iter().any(|segment| segment.is_empty()) {
            return None;
        }
        let [realm, storage, "records", rest @ ..] = segments else { return None };
        let resource = match rest {
            [] => Self::Records,
            [id] => Self::Record(text(id)?),
            [id, "meta"] => Self::Meta(text(id)?),
            [id, "blocks"] => Self::Blocks(text(id)?),
            [id, "blocks", block] => Self::Block(text(id)?, text(block)?),
            _ => return None,
        };
        Some((text(realm)?, text(storage)?, resource))
    }
}

/// Parses the path and the query of a request.
///
/// # Errors
/// 400 (another API, invalid encoding), 404 (no such resource), 405.
pub(crate) fn parse<'u>(method: &Method, uri: &'u Uri) -> Result<RequestPath<'u>, Problem> {
    let path = uri.path();
    // Most paths begin with the service: only a root with a path of its own is searched for.
    let is_whole = |below: &&str| below.starts_with('/');
    let begins = |api: &str| path.strip_prefix(api).filter(is_whole);
    let contains = |api: &str| path.get(path.find(api)? + api.len()..).filter(is_whole);
    let below = |find: &dyn Fn(&str) -> Option<&'u str>| {
        let timer = || find(TIMER_API).map(|below| (below, true));
        find(API).map(|below| (below, false)).or_else(timer)
    };
    let Some((below, is_timer)) = below(&begins).or_else(|| below(&contains)) else {
        let detail = format!(
            "the path must begin with {API}/{{realmId}}/{{storageId}} or \
             {TIMER_API}/{{realmId}}/{{storageId}}"
        );
        return Err(Problem::new(StatusCode::BAD_REQUEST, "INVALID_API", detail));
    };
    let (segments, count) = split(below);
    let no_structure = || {
        let detail = "no resource of the data repository has this path";
        Problem::not_found("RESOURCE_URI_STRUCTURE_NOT_FOUND", detail)
    };
    let (realm, storage, id, block, resource) = match segments.get(..count).unwrap_or_default() {
        [realm, storage, "timers"] if is_timer => (realm, storage, "", "", Resource::Timers),
        [realm, storage, "timers", id] if is_timer => (realm, storage, *id, "", Resource::Timer),
        _ if is_timer => return Err(no_structure()),
        [realm, storage, "records"] => (realm, storage, "", "", Resource::Records),
        [realm, storage, "records", id] => (realm, storage, *id, "", Resource::Record),
        [realm, storage, "records", id, "meta"] => (realm, storage, *id, "", Resource::Meta),
        [realm, storage, "records", id, "blocks"] => (realm, storage, *id, "", Resource::Blocks),
        [realm, storage, "records", id, "blocks", block] if !block.is_empty() => {
            (realm, storage, *id, *block, Resource::Block)
        }
        [realm, storage, "subs-to-notify"] => (realm, storage, "", "", Resource::Subscriptions),
        [realm, storage, "subs-to-notify", id] => (realm, storage, *id, "", Resource::Subscription),
        [realm, storage, "meta-schemas", id] => (realm, storage, *id, "", Resource::Schema),
        _ => return Err(no_structure()),
    };
    let is_collection =
        matches!(resource, Resource::Records | Resource::Subscriptions | Resource::Timers);
    if id.is_empty() != is_collection {
        return Err(no_structure());
    }
    let Some(spec) = find(method, resource) else {
        let allow = methods(resource);
        let detail = format!("{method} is not defined for this resource; use {allow}");
        let (status, cause) = (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED");
        return Err(Problem::new(status, cause, detail).with_header(ALLOW, allow));
    };
    Ok(RequestPath {
        spec,
        realm: decode("{realmId}", realm)?,
        storage: decode("{storageId}", storage)?,
        id: check_id(decode(id_name(resource), id)?, id_name(resource))?,
        block: decode("{blockId}", block)?,
        query: Query::parse(uri.query().unwrap_or_default())?,
    })
}

/// Checks the length of an id: it is the key of a record of the store.
fn check_id<'u>(id: Cow<'u, str>, name: &str) -> Result<Cow<'u, str>, Problem> {
    if id.len() <= KEY_BYTES_MAX {
        return Ok(id);
    }
    let reason = format!("must have at most {KEY_BYTES_MAX} bytes");
    Err(Problem::parameter("MANDATORY_IE_INCORRECT", name, reason))
}

/// The name of the variable in the path of a resource that has the id.
const fn id_name(resource: Resource) -> &'static str {
    match resource {
        Resource::Records
        | Resource::Record
        | Resource::Meta
        | Resource::Blocks
        | Resource::Block => "{recordId}",
        Resource::Subscriptions | Resource::Subscription => "{subscriptionId}",
        Resource::Schema => "{schemaId}",
        Resource::Timers | Resource::Timer => "{timerId}",
    }
}

/// The segments of a path that begins with a slash, and their number, of which the last may be the
/// first of many: no resource has so many.
fn split(path: &str) -> ([&str; SEGMENTS_MAX], usize) {
    let (mut segments, mut count, mut begin) = ([""; SEGMENTS_MAX], 0, 1);
    // Segments are short: a loop over the bytes takes less time than a search for each slash.
    let ends = path.bytes().enumerate().skip(1).filter(|(_, byte)| *byte == b'/');
    let ends = ends.map(|(at, _)| at).chain([path.len()]);
    for (place, end) in segments.iter_mut().zip(ends) {
        *place = path.get(begin..end).unwrap_or_default();
        begin = end + 1;
        count += 1;
    }
    (segments, count)
}

fn decode<'u>(name: &str, segment: &'u str) -> Result<Cow<'u, str>, Problem> {
    if !segment.as_bytes().contains(&b'%') {
        return Ok(Cow::Borrowed(segment));
    }
    percent_decode_str(segment).decode_utf8().map_err(|_| {
        Problem::parameter("MANDATORY_IE_INCORRECT", name, "must be UTF-8, percent-encoded")
    })
}

/// The query of a request: names and values. Unknown parameters are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Result<Self, Problem> {
        let mut all: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if all.len() == QUERY_PARAMETERS_MAX {
                let reason = format!("has more than {QUERY_PARAMETERS_MAX} parameters");
                return Err(Problem::form("query", reason));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // `+` is a space in forms, and clients encode the JSON of a filter so.
            let decode = |text: &str| {
                let spaced = text.replace('+', " ");
                percent_decode_str(&spaced).decode_utf8().map(Cow::into_owned)
            };
            let (Ok(name), Ok(value)) = (decode(name), decode(value)) else {
                let name = format!("query {name}");
                return Err(Problem::form(name, "must be UTF-8, percent-encoded"));
            };
            if all.iter().any(|(known, _)| *known == name) {
                return Err(Problem::query(&name, "occurs twice"));
            }
            all.push((name, value));
        }
        Ok(Self(all))
    }

    /// The value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A flag; false if it is absent.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::query(name, "must be true or false")),
        }
    }

    /// A number, if it is present.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let parsed = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok());
        parsed.flatten().map(Some).ok_or_else(|| Problem::query(name, "must be a number from 0"))
    }

    /// Checks `supported-features`.
    pub(crate) fn check_features(&self) -> Result<(), Problem> {
        const NAME: &str = "supported-features";
        match self.get(NAME).map(FeatureSet::parse) {
            Some(None) => Err(Problem::query(NAME, "must be hexadecimal digits")),
            Some(Some(_)) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(method: &Method, text: &str) -> Result<RequestPath<'static>, Problem> {
        parse(method, Box::leak(Box::new(text.parse().unwrap())))
    }

    #[test]
    fn paths_name_resources_and_ids_are_decoded() {
        let found = parsed(
            &Method::GET,
            "/nudsf-dr/v1/R%201/S/records/a%2Fb/blocks/x?filter=%7B%22a%22:+1%7D&get-previous=true",
        )
        .unwrap();
        assert_eq!(found.spec.id, "GetBlock");
        assert_eq!((&*found.realm, &*found.id, &*found.block), ("R 1", "a/b", "x"));
        assert_eq!(found.query.get("filter"), Some("{\"a\": 1}"));
        assert_eq!(found.query.flag("get-previous"), Ok(true));
        let prefixed = parsed(&Method::PUT, "/udsf/nudsf-dr/v1/R/S/meta-schemas/m").unwrap();
        assert_eq!(prefixed.spec.id, "CreateOrModifyMetaSchema");
        assert_eq!(encode_segment("a/b c%é"), "a%2Fb%20c%25%C3%A9");
    }

    #[test]
    fn monitored_resources_are_those_that_requests_name() {
        let one = |text: &str| text.to_owned();
        let block = || MonitoredResource::Block(one("a/b"), one("x@y"));
        for (below, wanted) in [
            ("records", Some(MonitoredResource::Records)),
            ("records/nai-u%40r", Some(MonitoredResource::Record(one("nai-u@r")))),
            ("records/records", Some(MonitoredResource::Record(one("records")))),
            ("records/a/meta", Some(MonitoredResource::Meta(one("a")))),
            ("records/a/blocks", Some(MonitoredResource::Blocks(one("a")))),
            ("records/a%2fb/blocks/x%40y", Some(block())),
            ("records/a%2Fb/blocks/x@y", Some(block())),
            ("records/a/", None),
            ("records/a/foo", None),
            ("records/a?x=1", None),
            ("records/", None),
            ("timers/a", None),
        ] {
            for root in ["", "http://records.example", "https://h:1/records/udsf"] {
                let found =
                    MonitoredResource::parse(&format!("{root}/nudsf-dr/v1/R%201/S/{below}"));
                let wanted = wanted.clone().map(|wanted| (one("R 1"), one("S"), wanted));
                assert_eq!(found, wanted, "{root} {below}");
            }
        }
    }

    #[test]
    fn a_query_has_a_limited_number_of_parameters() {
        let with = |count: usize| {
            let query: Vec<String> = (0..count).map(|index| format!("p{index}=&")).collect();
            parsed(&Method::GET, &format!("/nudsf-dr/v1/R/S/records?{}", query.concat()))
        };
        assert_eq!(with(QUERY_PARAMETERS_MAX).unwrap().query.get("p31"), Some(""));
        let problem = with(QUERY_PARAMETERS_MAX + 1).unwrap_err();
        assert_eq!((problem.status.as_u16(), problem.cause), (400, "INVALID_MSG_FORMAT"));
    }

    #[test]
    fn other_paths_have_a_status_and_a_cause() {
        for (method, text, status, cause) in [
            (Method::GET, "/", 400, "INVALID_API"),
            (Method::GET, "/nudsf-dr/v2/R/S/records", 400, "INVALID_API"),
            (Method::GET, "/nudsf-dr/v1", 400, "INVALID_API"),
            (Method::GET, "/nudsf-dr/v1/R/S", 404, "RESOURCE_URI_STRUCTURE_NOT_FOUND"),
            (Method::GET, "/nudsf-dr/v1/R/S/records/", 404, "RESOURCE_URI_STRUCTURE_NOT_FOUND"),
            (Method::GET, "/nudsf-dr/v1/R/S/records/a/b", 404, "RESOURCE_URI_STRUCTURE_NOT_FOUND"),
            (Method::POST, "/nudsf-dr/v1/R/S/records", 405, "METHOD_NOT_ALLOWED"),
            (Method::GET, "/nudsf-dr/v1/R/S/records/%ff", 400, "MANDATORY_IE_INCORRECT"),
            (
                Method::GET,
                "/nudsf-dr/v1/R/S/records?a=1&a=2",
                400,
                "OPTIONAL_QUERY_PARAM_INCORRECT",
            ),
            (Method::GET, "/nudsf-dr/v1/R/S/records?a=%ff", 400, "INVALID_MSG_FORMAT"),
        ] {
            let problem = parsed(&method, text).unwrap_err();
            assert_eq!(
                (problem.status.as_u16(), problem.cause),
                (status, cause),
                "{method} {text}"
            );
        }
        let problem = parsed(&Method::POST, "/nudsf-dr/v1/R/S/records").unwrap_err();
        assert_eq!(problem.header.as_deref(), Some(&(ALLOW, "GET, DELETE".to_owned())));
    }

    #[test]
    fn flags_numbers_and_features_are_checked() {
        let query = Query::parse("a=true&b=1&c=+1&d=maybe&supported-features=0F&e").unwrap();
        assert_eq!(query.flag("b").unwrap_err().status.as_u16(), 400);
        assert_eq!(query.flag("none"), Ok(false));
        assert_eq!(query.number("b"), Ok(Some(1)));
        assert!(query.number("c").is_err() && query.number("e").is_err());
        assert!(query.check_features().is_ok());
        assert!(Query::parse("supported-features=xyz").unwrap().check_features().is_err());
    }

    proptest! {
        #[test]
        fn any_path_is_parsed_or_a_problem(text in "/nudsf-dr/v1(/[a-z%0-9?&=-]{0,6}){0,6}") {
            if let Ok(uri) = text.parse::<Uri>() {
                let _ = parse(&Method::GET, &uri);
            }
        }
    }
}

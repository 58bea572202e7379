//! Errors as `ProblemDetails` (TS 29.571), with the causes of TS 29.500, table 5.2.7.2-1, and those
//! of the data repository.

use hyper::StatusCode;
use hyper::header::{HeaderName, RETRY_AFTER};
use nearstate_model::Error;
use serde_json::{Map, Value, json};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// The machine-readable cause.
    pub(crate) cause: &'static str,
    /// What failed, and what to do.
    pub(crate) detail: String,
    /// The invalid parameters, each with its reason.
    pub(crate) invalid: Vec<(String, String)>,
    /// A further header: `Retry-After` of 503, `Allow` of 405, `ETag` of 412.
    pub(crate) header: Option<Box<(HeaderName, String)>>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, cause: &'static str, detail: impl Into<String>) -> Self {
        Self { status, cause, detail: detail.into(), invalid: Vec::new(), header: None }
    }

    /// Adds a header.
    pub(crate) fn with_header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.header = Some(Box::new((name, value.into())));
        self
    }

    /// 503: the client tries again after a second.
    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "NF_CONGESTION", detail)
            .with_header(RETRY_AFTER, "1")
    }

    /// 400 for a parameter: `query filter`, `header If-Match`, `{recordId}`, or a JSON pointer.
    pub(crate) fn parameter(
        cause: &'static str,
        parameter: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        let (parameter, reason) = (parameter.into(), reason.into());
        let detail = format!("{parameter}: {reason}");
        let mut problem = Self::new(StatusCode::BAD_REQUEST, cause, detail);
        problem.invalid.push((parameter, reason));
        problem
    }

    /// The same problem of a required query parameter.
    pub(crate) fn of_required_query(self) -> Self {
        Self { cause: "MANDATORY_QUERY_PARAM_INCORRECT", ..self }
    }

    /// The same problem of a required attribute.
    pub(crate) fn of_required_attribute(self) -> Self {
        Self { cause: "MANDATORY_IE_INCORRECT", ..self }
    }

    /// 400 for an optional query parameter.
    pub(crate) fn query(name: &str, reason: impl Into<String>) -> Self {
        Self::parameter("OPTIONAL_QUERY_PARAM_INCORRECT", format!("query {name}"), reason)
    }

    /// 400 for a required attribute of a JSON body.
    pub(crate) fn attribute(pointer: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::parameter("MANDATORY_IE_INCORRECT", pointer, reason)
    }

    /// 400 for an optional attribute of a JSON body.
    pub(crate) fn optional(pointer: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::parameter("OPTIONAL_IE_INCORRECT", pointer, reason)
    }

    /// 400 for a part of a request whose form is wrong.
    pub(crate) fn form(parameter: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::parameter("INVALID_MSG_FORMAT", parameter, reason)
    }

    /// 400 for a body whose form is wrong as a whole.
    pub(crate) fn message(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_MSG_FORMAT", detail)
    }

    /// 404 with the cause of a kind of resource.
    pub(crate) fn not_found(cause: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, cause, detail)
    }

    /// 409 for a value of a unique key, or a schema that records contradict.
    pub(crate) fn conflict(cause: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, cause, detail)
    }

    /// The body.
    pub(crate) fn to_json(&self) -> Value {
        let mut body = Map::new();
        body.insert("status".to_owned(), json!(self.status.as_u16()));
        let title = self.status.canonical_reason().unwrap_or("Error");
        body.insert("title".to_owned(), json!(title));
        body.insert("detail".to_owned(), json!(self.detail));
        body.insert("cause".to_owned(), json!(self.cause));
        if !self.invalid.is_empty() {
            let item =
                |(param, reason): &(String, String)| json!({"param": param, "reason": reason});
            let items: Vec<Value> = self.invalid.iter().map(item).collect();
            body.insert("invalidParams".to_owned(), Value::Array(items));
        }
        Value::Object(body)
    }
}

/// Why a text is no JSON, as a sentence for the client. The parser's own texts are for programmers.
pub(crate) fn json_reason(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    if error.is_eof() {
        "the text ends before the JSON value does".to_owned()
    } else if error.to_string().starts_with("recursion limit") {
        format!("values are nested too deeply at line {line}, column {column}")
    } else {
        format!("the text is invalid at line {line}, column {column}")
    }
}

/// 504 without `Retry-After`: the write stands on this host, and must not be taken for refused.
fn not_replicated(position: u64, waited_ms: u64) -> Problem {
    let detail = format!(
        "the write is made on this host and stands there, at position {position} of its log, but \
         it was not replicated within {waited_ms} ms: read the resource before you repeat it"
    );
    Problem::new(StatusCode::GATEWAY_TIMEOUT, "NOT_REPLICATED", detail)
}

/// 504 without `Retry-After`, as [`not_replicated`].
fn outcome_unknown(position: u64) -> Problem {
    let detail = format!(
        "whether the write at position {position} of the log is replicated is not known: another \
         host owns the storage, and this one cannot tell. Read the resource there before you \
         repeat it"
    );
    Problem::new(StatusCode::GATEWAY_TIMEOUT, "OUTCOME_UNKNOWN", detail)
}

/// 503: the write is gone, and the client repeats it where the storage is served then.
fn lost(position: u64) -> Problem {
    let detail = format!(
        "the write at position {position} of the log is lost: another host owns the storage \
         without it, or the log gave it up. Read the resource there, then repeat the request"
    );
    let status = StatusCode::SERVICE_UNAVAILABLE;
    Problem::new(status, "WRITE_LOST", detail).with_header(RETRY_AFTER, "1")
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        let (status, cause) = match error {
            Error::KeyTooLarge { .. } | Error::BadName { .. } | Error::BadArgument { .. } => {
                (StatusCode::BAD_REQUEST, "MANDATORY_IE_INCORRECT")
            }
            Error::ValueTooLarge { .. }
            | Error::TooManyBlocks { .. }
            | Error::TransactionTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE")
            }
            Error::WrongKind { .. } => (StatusCode::CONFLICT, "RECORD_OF_ANOTHER_KIND"),
            Error::TagTaken { .. } => (StatusCode::CONFLICT, "UNIQUE_KEY_TAKEN"),
            Error::Full { .. } | Error::LimitReached { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "INSUFFICIENT_RESOURCES")
            }
            Error::Conflict { .. }
            | Error::Deadline { .. }
            | Error::Behind { .. }
            | Error::NotOwner { .. }
            | Error::Fenced { .. }
            | Error::Stalled { .. } => return Self::busy(detail),
            Error::NotReplicated { position, waited_ms } => {
                return not_replicated(position, waited_ms);
            }
            Error::Lost { position } => return lost(position),
            Error::OutcomeUnknown { position } => return outcome_unknown(position),
            Error::NoObject { .. }
            | Error::NotARegion { .. }
            | Error::Damaged { .. }
            | Error::AlreadyExists { .. }
            | Error::InUse { .. }
            | Error::Forked
            | Error::SessionStopped
            | Error::SessionBusy
            | Error::System { .. }
            | Error::Backend { .. }
            | _ => (StatusCode::INTERNAL_SERVER_ERROR, "SYSTEM_FAILURE"),
        };
        Self::new(status, cause, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_status_title_detail_cause_and_invalid_parameters() {
        let problem = Problem::query("limit-range", "must be a number");
        let wanted = json!({
            "status": 400,
            "title": "Bad Request",
            "detail": "query limit-range: must be a number",
            "cause": "OPTIONAL_QUERY_PARAM_INCORRECT",
            "invalidParams": [{"param": "query limit-range", "reason": "must be a number"}],
        });
        assert_eq!(problem.to_json(), wanted);
    }

    #[test]
    fn a_text_that_is_no_json_is_refused_with_a_sentence_and_the_place() {
        let deep = "[".repeat(200);
        for (text, reason) in [
            ("", "the text ends before the JSON value does"),
            ("{\"op\":", "the text ends before the JSON value does"),
            ("{op}", "the text is invalid at line 1, column 2"),
            ("[1]\n]", "the text is invalid at line 2, column 1"),
            ("1e999", "the text is invalid at line 1, column 5"),
            (&*deep, "values are nested too deeply at line 1, column 128"),
        ] {
            let error = serde_json::from_str::<Value>(text).unwrap_err();
            assert_eq!(json_reason(&error), reason, "{text}: {error}");
        }
    }

    #[test]
    fn an_error_that_passes_tells_when_to_try_again() {
        let busy = Problem::from(Error::Deadline { tries: 3 });
        let header = busy.header.map(|header| *header);
        assert_eq!((busy.status.as_u16(), header), (503, Some((RETRY_AFTER, "1".to_owned()))));
        let full = Problem::from(Error::Full { detail: "heap".to_owned(), heap: None });
        assert_eq!((full.cause, full.header), ("INSUFFICIENT_RESOURCES", None));
    }
}

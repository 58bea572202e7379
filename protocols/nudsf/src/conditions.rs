//! Conditional requests (RFC 9110, section 13): `If-Match`, `If-None-Match`, `If-Modified-Since`.

use hyper::HeaderMap;
use hyper::header::{HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};

use crate::problem::Problem;
use crate::times::parse_http_date;

/// The validators of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validators {
    /// The entity tag with its quotes. Always strong.
    pub(crate) etag: String,
    /// The last modification in milliseconds, if it is known.
    pub(crate) modified_ms: Option<u64>,
}

/// The entity tags of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TagList {
    /// `*`: any representation.
    Any,
    /// These, with their quotes; true for weak ones.
    Tags(Vec<(bool, String)>),
}

/// The conditions of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// `If-Match`.
    wanted: Option<TagList>,
    /// `If-None-Match`.
    unwanted: Option<TagList>,
    /// `If-Modified-Since`.
    modified_since: Option<u64>,
    /// `If-Unmodified-Since`.
    unmodified_since: Option<u64>,
}

/// The result of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConditionResult {
    Proceed,
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

impl Conditions {
    /// Reads the conditions of a request.
    ///
    /// # Errors
    /// 400: a list that is no list of entity tags. A write must not ignore such a condition.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Self, Problem> {
        // Most requests have none, and few headers: no search hashes a name.
        if !headers.keys().any(|name| name.as_str().starts_with("if-")) {
            return Ok(Self::default());
        }
        let date = |name: HeaderName| {
            let text = headers.get(name).and_then(|value| value.to_str().ok());
            text.and_then(parse_http_date)
        };
        Ok(Self {
            wanted: tag_list(headers, &IF_MATCH, "If-Match")?,
            unwanted: tag_list(headers, &IF_NONE_MATCH, "If-None-Match")?,
            modified_since: date(IF_MODIFIED_SINCE),
            unmodified_since: date(IF_UNMODIFIED_SINCE),
        })
    }

    /// True if a write has no condition.
    pub(crate) fn is_unconditional_write(&self) -> bool {
        self.wanted.is_none() && self.unwanted.is_none() && self.unmodified_since.is_none()
    }

    /// Evaluates the conditions against the current representation, if there is one, in the order
    /// of RFC 9110, section 13.2.2. Dates have seconds: one that a client has read in the second of
    /// a change does not tell whether it has seen it.
    pub(crate) fn evaluate(
        &self,
        current: Option<&Validators>,
        is_read: bool,
        now_ms: u64,
    ) -> ConditionResult {
        let modified = current.and_then(|current| current.modified_ms).map(|ms| ms / 1000);
        match (&self.wanted, self.unmodified_since) {
            (Some(wanted), _) if !wanted.matches(current, true) => return ConditionResult::Failed,
            (None, Some(since)) if modified.is_some_and(|modified| modified > since / 1000) => {
                return ConditionResult::Failed;
            }
            (Some(_) | None, _) => {}
        }
        if let Some(unwanted) = &self.unwanted {
            return match unwanted.matches(current, false) {
                false => ConditionResult::Proceed,
                true if is_read => ConditionResult::NotModified,
                true => ConditionResult::Failed,
            };
        }
        let is_unmodified = |since: u64| {
            modified.is_some_and(|modified| modified <= since / 1000 && modified < now_ms / 1000)
        };
        match self.modified_since {
            Some(since) if is_read && is_unmodified(since) => ConditionResult::NotModified,
            Some(_) | None => ConditionResult::Proceed,
        }
    }
}

impl TagList {
    /// True if one of the tags is that of the representation. The strong comparison never holds for
    /// a weak tag.
    fn matches(&self, current: Option<&Validators>, is_strong: bool) -> bool {
        let Some(current) = current else { return false };
        match self {
            Self::Any => true,
            Self::Tags(tags) => {
                tags.iter().any(|(is_weak, tag)| !(is_strong && *is_weak) && *tag == current.etag)
            }
        }
    }
}

/// Parses a list of entity tags, which may be spread over several headers.
fn tag_list(
    headers: &HeaderMap,
    header: &HeaderName,
    name: &str,
) -> Result<Option<TagList>, Problem> {
    let refused = || {
        let reason = "must be * or a list of quoted entity tags";
        Problem::form(format!("header {name}"), reason)
    };
    let mut tags = Vec::new();
    let mut is_present = false;
    for value in headers.get_all(header) {
        is_present = true;
        let mut rest = value.to_str().map_err(|_| refused())?.trim();
        if rest == "*" {
            return Ok(Some(TagList::Any));
        }
        loop {
            // Empty elements are ignored (RFC 9110, section 5.6.1.2).
            rest = rest.trim_start_matches([',', ' ', '\t']);
            if rest.is_empty() {
                break;
            }
            let is_weak = rest.starts_with("W/");
            let quoted = rest.strip_prefix("W/").unwrap_or(rest);
            let inner = quoted.strip_prefix('"').ok_or_else(refused)?;
            let (tag, after) = inner.split_once('"').ok_or_else(refused)?;
            tags.push((is_weak, format!("\"{tag}\"")));
            let after = after.trim_start();
            rest = match after.strip_prefix(',') {
                Some(next) => next.trim_start(),
                None if after.is_empty() => after,
                None => return Err(refused()),
            };
        }
    }
    if is_present && tags.is_empty() {
        return Err(refused());
    }
    Ok(is_present.then_some(TagList::Tags(tags)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    /// Long after the change.
    const NOW_MS: u64 = 1_784_111_777_500;

    fn verdict(
        headers: &[(HeaderName, &str)],
        has_current: bool,
        is_read: bool,
    ) -> ConditionResult {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        let current = Validators { etag: "\"a\"".to_owned(), modified_ms: Some(784_111_777_500) };
        let current = has_current.then_some(&current);
        Conditions::parse(&map).unwrap().evaluate(current, is_read, NOW_MS)
    }

    #[test]
    fn every_combination_of_condition_and_state_has_one_result() {
        use ConditionResult::{Failed, NotModified, Proceed};
        // Header, value, result of a read, of a write, of a write of what does not exist.
        for (name, value, read, write, absent) in [
            (IF_MATCH, "\"a\"", Proceed, Proceed, Failed),
            (IF_MATCH, "*", Proceed, Proceed, Failed),
            (IF_MATCH, "W/\"a\"", Failed, Failed, Failed),
            (IF_MATCH, "\"b\", \"a\"", Proceed, Proceed, Failed),
            (IF_MATCH, "\"b\"", Failed, Failed, Failed),
            (IF_NONE_MATCH, "*", NotModified, Failed, Proceed),
            (IF_NONE_MATCH, "\"a\"", NotModified, Failed, Proceed),
            (IF_NONE_MATCH, "W/\"a\"", NotModified, Failed, Proceed),
            (IF_NONE_MATCH, "\"b\"", Proceed, Proceed, Proceed),
            (IF_MODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:37 GMT", NotModified, Proceed, Proceed),
            (IF_MODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:36 GMT", Proceed, Proceed, Proceed),
            (IF_MODIFIED_SINCE, "yesterday", Proceed, Proceed, Proceed),
            (IF_UNMODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:37 GMT", Proceed, Proceed, Proceed),
            (IF_UNMODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:36 GMT", Failed, Failed, Proceed),
            (IF_MATCH, "\"b\",,\"a\"", Proceed, Proceed, Failed),
        ] {
            assert_eq!(verdict(&[(name.clone(), value)], true, true), read, "{name} {value}");
            assert_eq!(verdict(&[(name.clone(), value)], true, false), write, "{name} {value}");
            assert_eq!(verdict(&[(name.clone(), value)], false, false), absent, "{name} {value}");
        }
        // If-None-Match replaces If-Modified-Since.
        let date = (IF_MODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(verdict(&[(IF_NONE_MATCH, "\"b\""), date.clone()], true, true), Proceed);
        // If-Match replaces If-Unmodified-Since.
        let older = (IF_UNMODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:36 GMT");
        assert_eq!(verdict(&[(IF_MATCH, "\"a\""), older], true, false), Proceed);
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        for value in ["", "a", "\"a", "\"a\" \"b\"", "W/a", "\"a\";"] {
            let mut map = HeaderMap::new();
            map.append(IF_MATCH, HeaderValue::from_str(value).unwrap());
            let problem = Conditions::parse(&map).unwrap_err();
            assert_eq!(problem.status.as_u16(), 400, "{value:?}");
        }
    }
}

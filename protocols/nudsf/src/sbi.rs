//! The `3gpp-Sbi-*` headers that a data repository honours (TS 29.500, 5.2.3.2 and 6.11.2). A
//! header with an invalid value is ignored, as one that is absent.
//!
//! | header | effect |
//! |---|---|
//! | `3gpp-Sbi-Message-Priority` | the order of refusals at overload (`load.rs`) |
//! | `3gpp-Sbi-Max-Rsp-Time` | 504 if the response would come too late |
//! | `3gpp-Sbi-Sender-Timestamp` | the begin of that time, unless it is in the future |
//! | others, such as `3gpp-Sbi-Target-Nf-Group-Id` | none: they are for proxies |

use std::time::Duration;

use hyper::header::HeaderName;
use hyper::{HeaderMap, StatusCode};

use crate::problem::Problem;
use crate::times::parse_http_date_ms;

static PRIORITY: HeaderName = HeaderName::from_static("3gpp-sbi-message-priority");
static MAX_RESPONSE_TIME: HeaderName = HeaderName::from_static("3gpp-sbi-max-rsp-time");
static SENDER_TIMESTAMP: HeaderName = HeaderName::from_static("3gpp-sbi-sender-timestamp");

/// The priority of a request without the header (TS 29.500, 6.8.4).
const PRIORITY_DEFAULT: u8 = 24;

/// The lowest priority. 0 is the highest.
const PRIORITY_LOWEST: u8 = 31;

/// What the headers of a request ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SbiHeaders {
    /// 0 (highest) to 31.
    pub(crate) priority: u8,
    /// How long the client still waits, at the time of the call.
    pub(crate) remaining: Option<Duration>,
}

impl SbiHeaders {
    /// Reads the headers of a request. `times` has how long ago it arrived, and the time of day in
    /// milliseconds.
    pub(crate) fn parse(headers: &HeaderMap, times: impl FnOnce() -> (Duration, u64)) -> Self {
        // Most requests have none, and few headers: no search hashes a name.
        if !headers.keys().any(|name| name.as_str().starts_with("3gpp-sbi-")) {
            return Self { priority: PRIORITY_DEFAULT, remaining: None };
        }
        let (waited, now_ms) = times();
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let number =
            |name: &HeaderName| text(name).and_then(|text| text.trim().parse::<u32>().ok());
        let priority = number(&PRIORITY).and_then(|priority| u8::try_from(priority).ok());
        let priority = priority.filter(|priority| *priority <= PRIORITY_LOWEST);
        let sent_ms = text(&SENDER_TIMESTAMP).and_then(parse_http_date_ms);
        let since_sent = sent_ms.and_then(|sent| now_ms.checked_sub(sent));
        let elapsed = since_sent.map_or(waited, |ms| Duration::from_millis(ms).max(waited));
        let max = number(&MAX_RESPONSE_TIME).map(|ms| Duration::from_millis(u64::from(ms)));
        Self {
            priority: priority.unwrap_or(PRIORITY_DEFAULT),
            remaining: max.map(|max| max.saturating_sub(elapsed)),
        }
    }
}

/// 504: the client no longer waits for the response.
pub(crate) fn timed_out() -> Problem {
    let detail = "the response would come after 3gpp-Sbi-Max-Rsp-Time";
    Problem::new(StatusCode::GATEWAY_TIMEOUT, "TIMED_OUT_REQUEST", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 784_111_777_500;

    fn parse(headers: &[(&HeaderName, &str)], waited_ms: u64) -> SbiHeaders {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert((*name).clone(), value.parse().unwrap());
        }
        SbiHeaders::parse(&map, || (Duration::from_millis(waited_ms), NOW_MS))
    }

    #[test]
    fn a_priority_is_a_number_up_to_31_and_24_if_it_is_absent_or_invalid() {
        for (value, priority) in [("0", 0), ("31", 31), ("32", 24), ("-1", 24), ("high", 24)] {
            assert_eq!(parse(&[(&PRIORITY, value)], 0).priority, priority, "{value}");
        }
        assert_eq!(parse(&[], 0), SbiHeaders { priority: 24, remaining: None });
    }

    #[test]
    fn the_time_that_has_passed_counts_from_the_senders_timestamp_or_from_the_arrival() {
        let remaining = |headers: &[(&HeaderName, &str)], waited_ms| {
            parse(headers, waited_ms).remaining.map(|time| time.as_millis())
        };
        let max = (&MAX_RESPONSE_TIME, "1000");
        assert_eq!(remaining(&[max], 300), Some(700));
        assert_eq!(remaining(&[max], 3000), Some(0));
        assert_eq!(remaining(&[(&MAX_RESPONSE_TIME, "soon")], 0), None);
        let sent = |text| [max, (&SENDER_TIMESTAMP, text)];
        assert_eq!(remaining(&sent("Sun, 06 Nov 1994 08:49:37.100 GMT"), 0), Some(600));
        assert_eq!(remaining(&sent("Sun, 06 Nov 1994 08:49:37 GMT"), 0), Some(500));
        assert_eq!(remaining(&sent("Sun, 06 Nov 1994 08:49:40.000 GMT"), 200), Some(800));
        assert_eq!(remaining(&sent("yesterday"), 200), Some(800));
    }
}

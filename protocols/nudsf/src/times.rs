//! Times of the protocol: `date-time` (RFC 3339) in bodies, HTTP dates in headers. Both become
//! milliseconds since 1970.

use std::time::{Duration, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Parses a `date-time`. `None` if it is invalid or before 1970. A fraction of a millisecond is
/// dropped.
pub(crate) fn parse_date_time(text: &str) -> Option<u64> {
    let parsed = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(parsed.unix_timestamp_nanos() / 1_000_000).ok()
}

/// Formats milliseconds as a `date-time` in UTC.
pub(crate) fn format_date_time(ms: u64) -> String {
    let nanos = i128::from(ms) * 1_000_000;
    let formatted =
        OffsetDateTime::from_unix_timestamp_nanos(nanos).ok().and_then(|t| t.format(&Rfc3339).ok());
    // A time after the year 9999, which another interface may have set.
    formatted.unwrap_or_else(|| "9999-12-31T23:59:59Z".to_owned())
}

/// Formats milliseconds as an HTTP date, which has seconds.
pub(crate) fn format_http_date(ms: u64) -> String {
    // The last second that the format can express: the year 9999.
    let seconds = (ms / 1000).min(253_402_300_799);
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Parses an HTTP date in any of its three formats. `None`: invalid, to be ignored (RFC 9110,
/// 13.1.3).
pub(crate) fn parse_http_date(text: &str) -> Option<u64> {
    let parsed = httpdate::parse_http_date(text).ok()?;
    let seconds = parsed.duration_since(UNIX_EPOCH).ok()?.as_secs();
    seconds.checked_mul(1000)
}

/// Parses an HTTP date with or without milliseconds (`3gpp-Sbi-Sender-Timestamp`, TS 29.500).
pub(crate) fn parse_http_date_ms(text: &str) -> Option<u64> {
    let Some((before, after)) = text.split_once('.') else { return parse_http_date(text) };
    let (fraction, zone) = after.split_once(' ')?;
    let ms: u64 = fraction.parse().ok().filter(|_| fraction.len() == 3)?;
    Some(parse_http_date(&format!("{before} {zone}"))? + ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_times_with_any_offset_become_milliseconds_and_back() {
        for (text, ms, formatted) in [
            ("1970-01-01T00:00:00Z", 0, "1970-01-01T00:00:00Z"),
            ("2026-11-24T03:48:08.125Z", 1_795_492_088_125, "2026-11-24T03:48:08.125Z"),
            ("2026-11-24T04:48:08.125+01:00", 1_795_492_088_125, "2026-11-24T03:48:08.125Z"),
        ] {
            assert_eq!(parse_date_time(text), Some(ms), "{text}");
            assert_eq!(format_date_time(ms), formatted, "{text}");
        }
        for text in ["", "tomorrow", "2026-13-01T00:00:00Z", "1969-12-31T23:59:59Z", "2026-11-24"] {
            assert_eq!(parse_date_time(text), None, "{text}");
        }
        assert_eq!(format_date_time(u64::MAX), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn http_dates_have_seconds() {
        assert_eq!(format_http_date(784_111_777_999), "Sun, 06 Nov 1994 08:49:37 GMT");
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse_http_date(text), Some(784_111_777_000), "{text}");
        }
        assert_eq!(parse_http_date("never"), None);
        let timestamp = "Sun, 06 Nov 1994 08:49:37.042 GMT";
        assert_eq!(parse_http_date_ms(timestamp), Some(784_111_777_042));
        for text in ["never", "a.b", "Sun, 06 Nov 1994 08:49:37.04 GMT", "x.123 GMT"] {
            assert_eq!(parse_http_date_ms(text), None, "{text}");
        }
        assert!(format_http_date(u64::MAX).ends_with("9999 23:59:59 GMT"));
    }
}

//! Times of the protocol: `date-time` (RFC 3339) in bodies, HTTP dates in headers. Both become
//! milliseconds since 1970.

use std::time::{Duration, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Parses a `date-time`. `None` if it is invalid or before 1970. A fraction of a millisecond is
/// dropped.
pub(crate) fn parse_date_time(text: &str) -> Option<u64> {
    plain_date_time(text).or_else(|| any_date_time(text))
}

fn any_date_time(text: &str) -> Option<u64> {
    let parsed = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(parsed.unix_timestamp_nanos() / 1_000_000).ok()
}

/// The number of two or four digits.
fn number(digits: &[u8]) -> Option<u64> {
    let append = |number: u64, digit: &u8| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(*digit - b'0'))
    };
    digits.iter().try_fold(0, append)
}

/// A `date-time` as most clients write it, `2026-11-24T03:48:08Z`, in a fifth of the instructions:
/// a timer is read when it is created, and when it fires. `None`: the general parser decides.
fn plain_date_time(text: &str) -> Option<u64> {
    const DAYS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    const DAYS_BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    /// The leap days before 1970.
    const LEAP_DAYS: u64 = 477;
    let whole: [u8; 20] = text.as_bytes().try_into().ok()?;
    let [y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1, b'T', clock @ .., b'Z'] = whole else {
        return None;
    };
    let [h0, h1, b':', n0, n1, b':', s0, s1] = clock else { return None };
    let (year, month) = (number(&[y0, y1, y2, y3])?, number(&[m0, m1])?);
    let (day, hour) = (number(&[d0, d1])?, number(&[h0, h1])?);
    let (minute, second) = (number(&[n0, n1])?, number(&[s0, s1])?);
    let place = usize::try_from(month.checked_sub(1)?).ok()?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = DAYS.get(place)? + u64::from(is_leap && month == 2);
    let is_valid = year >= 1970
        && (1..=days_of_month).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_valid {
        return None;
    }
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400 - LEAP_DAYS;
    let days_of_year = DAYS_BEFORE.get(place)? + u64::from(is_leap && month > 2) + day - 1;
    let days = 365 * (year - 1970) + leap_days + days_of_year;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000)
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
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_plain_date_time_is_read_as_by_the_general_parser(
            second in 0_u64..253_402_300_800,
            fields in (1960_u64..2110, 0_u64..14, 0_u64..33, 0_u64..26, 0_u64..62, 0_u64..62),
            (at, byte) in (0_usize..20, any::<u8>()),
        ) {
            let text = format_date_time(second * 1000);
            prop_assert_eq!(plain_date_time(&text), Some(second * 1000), "{}", text);
            let (year, month, day, hour, minute, second) = fields;
            let text = format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
            let mut changed = text.clone().into_bytes();
            changed[at] = byte;
            for text in [text, String::from_utf8_lossy(&changed).into_owned()] {
                if let Some(ms) = plain_date_time(&text) {
                    prop_assert_eq!(any_date_time(&text), Some(ms), "{}", text);
                }
            }
        }
    }

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

//! Moments for people: RFC 3339 and how long ago.

use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A moment in milliseconds since 1970, to the second, such as `2026-11-29T08:20:11Z`.
pub(crate) fn rfc3339(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let text = OffsetDateTime::from_unix_timestamp(seconds).map(|at| at.format(&Rfc3339));
    // Years above 9999 have no text.
    text.ok().and_then(Result::ok).unwrap_or_else(|| format!("{ms} ms"))
}

/// A time with its two largest units, such as `4 min 12 s`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// A moment and its age, such as `2026-11-29T08:20:11Z (4 min 12 s ago)`.
pub(crate) fn with_age(ms: u64, now_ms: u64) -> String {
    let age = span(Duration::from_millis(now_ms.saturating_sub(ms)));
    format!("{} ({age} ago)", rfc3339(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_a_date_and_an_age() {
        let at = 1_795_940_411_000;
        assert_eq!(rfc3339(at), "2026-11-29T08:20:11Z");
        assert_eq!(with_age(at, at + 252_999), "2026-11-29T08:20:11Z (4 min 12 s ago)");
        // The clock of the host that reports may be ahead.
        assert_eq!(with_age(at + 10, at), "2026-11-29T08:20:11Z (0 s ago)");
        assert_eq!(rfc3339(u64::MAX), format!("{} ms", u64::MAX));
    }

    #[test]
    fn a_span_has_two_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min 0 s"),
            (3600, "1 h 0 min"),
            (86_399, "23 h 59 min"),
            (200_000, "2 d 7 h"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}

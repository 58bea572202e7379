//! How far the clock of another host is from the one of this host.

use serde_json::Value;

use super::row::{CheckRow, RowOutcome};

/// More than this gives a warning, in milliseconds: times of expiry are given in seconds.
const SKEW_MS_MAX: u64 = 1000;

/// The difference by what another host has said of its time between these two moments of this
/// one, in milliseconds since 1970. `None`: the host has an earlier version, and does not say it.
pub(super) fn check(host: &str, (asked_ms, told_ms): (u64, u64), report: &str) -> Option<CheckRow> {
    let report: Value = serde_json::from_str(report).ok()?;
    let of_host = report.get("clock_ms")?.as_u64()?;
    // What it has said was true at some time between them.
    let (skew, word) = if of_host > told_ms {
        (of_host - told_ms, "ahead of")
    } else {
        (asked_ms.saturating_sub(of_host), "behind")
    };
    let within = told_ms.saturating_sub(asked_ms);
    let row = |outcome, detail| Some(CheckRow::new("clock", host, outcome, detail));
    if skew <= SKEW_MS_MAX {
        let sum = skew + within;
        return row(RowOutcome::Passed, format!("within {sum} ms of the clock of this host"));
    }
    row(
        RowOutcome::Warning,
        format!(
            "its clock is {skew} ms {word} the one of this host: times that clients compute \
             (EXPIREAT, PXAT) end early or late by that when a partition moves to it, and times of \
             status, alarms and events differ. Times to live and leases do not depend on it. \
             Synchronize the clocks (NTP) of all hosts"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(clock_ms: u64) -> (RowOutcome, String) {
        let report = serde_json::json!({ "host": "b", "clock_ms": clock_ms }).to_string();
        let row = check("b", (10_000, 10_040), &report).unwrap();
        (row.outcome, row.detail)
    }

    #[test]
    fn a_skew_is_told_with_its_direction_and_what_it_means() {
        for near in [9_000, 9_990, 10_020, 11_040] {
            assert_eq!(checked(near).0, RowOutcome::Passed, "{near}");
        }
        assert_eq!(checked(10_020).1, "within 40 ms of the clock of this host");
        let (outcome, detail) = checked(11_041);
        assert_eq!(outcome, RowOutcome::Warning);
        assert!(detail.starts_with("its clock is 1001 ms ahead of"), "{detail}");
        assert!(detail.contains("end early or late by that"), "{detail}");
        let (outcome, detail) = checked(8_000);
        assert_eq!(outcome, RowOutcome::Warning);
        assert!(detail.starts_with("its clock is 2000 ms behind"), "{detail}");
        assert!(check("b", (0, 1), "{\"host\":\"b\"}").is_none(), "an earlier version");
    }
}
